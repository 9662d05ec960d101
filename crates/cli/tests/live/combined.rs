//! A hoard of cache sets and DRAM banks at once, on the kernel that the tests run on, under a
//! published map that means nothing for the hardware here. The witness is a reader of `pagemap`
//! that shares no code with the program.
//!
//! Skipped aloud without root, and where the kernel moves no pages.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::common::coloured::{PAGE, able, child_of, own_frames, run_under};
use crate::common::{Machine, Running, eventually};
use rustix::process::Signal;

/// Not a test of its own: a program with 16 MiB of memory that it checks and writes again and
/// again. It says in a file how often, and whether all was as it should be.
#[test]
#[ignore = "a program that another test starts"]
fn checks_its_words() {
    const WORDS: usize = (16 << 20) / 8;
    let out = std::env::var("QUELL_TEST_OUT").unwrap();
    // SAFETY: a new mapping, which stays until the end, and which no other code uses.
    let words = unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            WORDS * 8,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(at, libc::MAP_FAILED);
        libc::madvise(at, WORDS * 8, libc::MADV_NOHUGEPAGE);
        std::slice::from_raw_parts_mut(at.cast::<u64>(), WORDS)
    };
    let word = |at: usize, round: u64| (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ round;
    let mut right = true;
    for round in 1.. {
        for (at, place) in words.iter_mut().enumerate() {
            right &= round == 1 || *place == word(at, round - 1);
            *place = word(at, round);
        }
        std::fs::write(format!("{out}.new"), format!("{round} {right}")).unwrap();
        std::fs::rename(format!("{out}.new"), &out).unwrap();
    }
}

/// The program above, and its file; killed on drop.
struct Words(Child, PathBuf);

impl Drop for Words {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Colour of sets (address bits 12 to 15) and of banks by the published map `ryzen-9900x`. This
/// shares no code with the program.
fn both_colours(frame: u64) -> (u64, u64) {
    let odd = |bits: &[u64]| {
        bits.iter()
            .fold(0, |sum, bit| sum ^ frame >> (bit - 12) & 1)
    };
    let bank = odd(&[19]) | odd(&[12, 21, 26]) << 1 | odd(&[13, 24, 29]) << 2;
    (frame & 15, bank)
}

/// Starts the program above, and waits until it has its memory.
fn words(machine: &Machine, name: &str) -> Words {
    let out = machine.path(name);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        "combined::checks_its_words",
        "--ignored",
        "--nocapture",
    ]);
    command.env("QUELL_TEST_OUT", &out);
    let child = command.stdout(Stdio::null()).spawn();
    let program = Words(child.unwrap(), out);
    eventually("the program runs", || program.1.exists());
    program
}

/// The program goes on, and its memory is as it should be.
fn goes_on(out: &Path) {
    let said = || std::fs::read_to_string(out).unwrap();
    let before = said();
    eventually("the program goes on", || said() != before);
    assert!(said().ends_with(" true"), "its memory is wrong: {}", said());
}

/// One group has half of the sets in two of eight banks. The other reserves two other banks, and
/// has the sets that are left.
#[test]
fn sets_and_banks_of_two_groups_are_held_at_once() {
    let Some(mut machine) = able() else {
        return;
    };
    let programs = ["a", "b"].map(|name| words(&machine, name));
    machine.remember();
    let pids = [0, 1].map(|i: usize| programs[i].0.id());
    let group = |name: &str, pid: u32, reserves: &str| {
        format!(
            "[group.{name}]\nrole='critical'\ncpus='any'\nmatch=[{{ pid={pid} }}]\n{reserves}\n"
        )
    };
    let sets = "reserve.cache={ colours='0-7' }\nreserve.banks='0-1'";
    let policy = [
        "quell=1\n".to_owned(),
        group("a", pids[0], sets),
        group("b", pids[1], "reserve.banks='2-3'"),
        "[hoard]\nlimit='256MiB'\nreserve='1GiB'\npace='100%'\nlongest-stop='100ms'\n".to_owned(),
    ];
    let mut run = run_under(&machine, "ryzen-9900x", &policy.concat());
    let run = Running::start(&mut run);
    let right = |group: usize, frame: u64| match (group, both_colours(frame)) {
        (0, (set, bank)) => set < 8 && bank < 2,
        (_, (set, bank)) => set >= 8 && (2..4).contains(&bank),
    };
    for (group, pid) in pids.into_iter().enumerate() {
        eventually("its pages have its sets and banks", || {
            let frames = own_frames(pid);
            let right = frames.iter().filter(|frame| right(group, **frame)).count();
            right * 100 >= frames.len() * 95
        });
    }
    // What is held has a reserved set or a reserved bank.
    let keeper = child_of(run.pid(), "__hoard").unwrap();
    let held = own_frames(keeper);
    let reserved = |frame: u64| both_colours(frame).0 < 8 || both_colours(frame).1 < 4;
    assert!(held.len() * PAGE >= 128 << 20, "{}", held.len());
    // The keeper has a heap and a stack, too.
    let others = held.iter().filter(|frame| !reserved(**frame)).count();
    assert!(others * PAGE < 4 << 20, "{others} of {}", held.len());
    let unused = |frame: u64| reserved(frame) && !right(0, frame) && !right(1, frame);
    assert!(held.iter().any(|frame| unused(*frame)));
    run.signal(Signal::TERM);
    let done = run.wait();
    // On a busy machine pages are moved later than the promise allows, and that is told.
    let late = done
        .err
        .contains("moved at the pace that the policy allows");
    assert_eq!(done.code, if late { 3 } else { 0 }, "{done:?}");
    let kept = "of reserved colours are held";
    assert!(done.err.contains(kept), "{done:?}");
    programs.iter().for_each(|Words(_, out)| goes_on(out));
    machine.unchanged("after the run");
}

/// No frames are held, so no other program is kept out, and the run says so.
#[test]
fn a_group_gets_its_colours_without_a_hoard() {
    let Some(mut machine) = able() else {
        return;
    };
    let Words(child, out) = &words(&machine, "alone");
    machine.remember();
    let policy = format!(
        "quell=1\nrequire='none'\n[group.a]\nrole='critical'\ncpus='any'\n\
        match=[{{ pid={} }}]\nreserve.banks='0-1'\n\
        [hoard]\nlimit='0B'\nreserve='1GiB'\npace='100%'\nlongest-stop='100ms'\n",
        child.id()
    );
    let run = Running::start(&mut run_under(&machine, "ryzen-9900x", &policy));
    eventually("its pages have its banks", || {
        let frames = own_frames(child.id());
        let right = frames.iter().filter(|frame| both_colours(**frame).1 < 2);
        right.count() * 100 >= frames.len() * 95
    });
    assert!(child_of(run.pid(), "__hoard").is_none(), "frames are held");
    // The run counts once it has gone through all of the memory.
    std::thread::sleep(std::time::Duration::from_secs(3));
    run.signal(Signal::TERM);
    let done = run.wait();
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.err.contains("had its colours at last"), "{done:?}");
    let why = "no frames are held, so that any program gets frames of these colours";
    let said = done.err + &done.out;
    let said: Vec<&str> = said.split_whitespace().collect();
    assert!(said.join(" ").contains(why), "{said:?}");
    goes_on(out);
    machine.unchanged("after the run");
}
