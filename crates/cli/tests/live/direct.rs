//! Pages of a program are moved while the kernel reads and writes them for it: direct I/O, and
//! io_uring with and without fixed buffers, with and without the kernel's threads. The program
//! checks every byte that it wrote and read again. The kernel refuses to move a pinned page.
//!
//! Skipped aloud without root, where the kernel moves no pages, and where the folder for temporary
//! files has no direct I/O.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::coloured::{PAGE, able, counted, settle};
use crate::common::ring::{Request, Ring};
use crate::common::{Machine, Running, eventually};

/// Bytes of one transfer: two pages, which need not be moved together.
const SIZE: usize = 2 * PAGE;
/// Places for the data of one slot, which take turns.
const PLACES: usize = 64;
/// Transfers in flight in each ring.
const SLOTS: usize = 12;
/// The first so many of them have fixed buffers.
const FIXED: usize = 4;
const THREADS: usize = 2;

/// Transfers whose data was checked, and whether some was wrong.
static DONE: AtomicU64 = AtomicU64::new(0);
static WRONG: AtomicBool = AtomicBool::new(false);

/// Memory for the data of some slots.
#[derive(Clone, Copy)]
struct Memory(*mut u8);

// SAFETY: each thread accesses its own slots only.
unsafe impl Send for Memory {}

impl Memory {
    fn new(slots: usize) -> Self {
        // SAFETY: a new mapping, which stays until the end, and no other memory.
        let at = unsafe {
            let length = slots * PLACES * SIZE;
            let at = libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(at, libc::MAP_FAILED);
            libc::madvise(at, length, libc::MADV_NOHUGEPAGE);
            libc::memset(at, 1, length);
            at
        };
        Self(at.cast())
    }

    /// The place that a slot uses this time.
    fn place(self, slot: usize, turn: u64) -> &'static mut [u8] {
        let place = slot * PLACES + usize::try_from(turn).unwrap() % PLACES;
        // SAFETY: within the mapping, and of one slot, which one thread uses.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(place * SIZE), SIZE) }
    }
}

/// Writes words that depend on the slot, the turn and the place.
fn fill(data: &mut [u8], slot: usize, turn: u64) {
    for (at, word) in data.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&word_at(slot, turn, at).to_ne_bytes());
    }
}

fn word_at(slot: usize, turn: u64, at: usize) -> u64 {
    (turn + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (slot as u64) << 48 ^ at as u64
}

fn check(data: &[u8], slot: usize, turn: u64) {
    let mut words = data.chunks_exact(8).enumerate();
    if !words.all(|(at, word)| *word == word_at(slot, turn, at).to_ne_bytes()) {
        WRONG.store(true, Ordering::Relaxed);
    }
    // It was written and read.
    DONE.fetch_add(2, Ordering::Relaxed);
}

fn file(name: &str) -> std::io::Result<File> {
    let folder = std::env::var("QUELL_TEST_DIR").unwrap();
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    options
        .custom_flags(libc::O_DIRECT)
        .open(format!("{folder}/{name}"))
}

/// Where a slot's data is in its file.
fn offset(slot: usize) -> u64 {
    (slot * SIZE) as u64
}

/// Direct I/O by pread(2) and pwrite(2), for ever.
fn direct(memory: Memory, slot: usize) {
    let file = file(&format!("direct{slot}")).unwrap();
    for turn in 0.. {
        let data = memory.place(slot, turn);
        fill(data, slot, turn);
        file.write_all_at(data, 0).unwrap();
        data.fill(0xa5);
        file.read_exact_at(data, 0).unwrap();
        check(data, slot, turn);
    }
}

/// Direct I/O by a ring, with so many transfers in flight, for ever. The slots of a ring follow
/// `first`.
fn ringed(memory: Memory, first: usize) {
    let file = file(&format!("ring{first}")).unwrap();
    file.write_all_at(memory.place(first, 0), 0).unwrap();
    let mut ring = Ring::new(u32::try_from(SLOTS).unwrap());
    // A fixed buffer is all places of its slot.
    let all = |slot: usize| {
        let at = memory.place(first + slot, 0).as_mut_ptr();
        (at, PLACES * SIZE)
    };
    ring.register(&(0..FIXED).map(all).collect::<Vec<_>>());
    let request = |slot: usize, turn: u64, write: bool| Request {
        write,
        fixed: (slot < FIXED).then(|| u16::try_from(slot).unwrap()),
        // Every third transfer is done by a thread of the kernel.
        by_thread: (slot as u64 + turn).is_multiple_of(3),
        file: file.as_raw_fd(),
        offset: offset(slot),
        data: memory.place(first + slot, turn).as_mut_ptr(),
        length: u32::try_from(SIZE).unwrap(),
        tag: slot as u64,
    };
    let mut turns = [0u64; SLOTS];
    let mut writes = [true; SLOTS];
    for slot in 0..SLOTS {
        fill(memory.place(first + slot, 0), first + slot, 0);
        ring.submit(&request(slot, 0, true));
    }
    loop {
        let (tag, result) = ring.completed();
        let slot = usize::try_from(tag).unwrap();
        assert_eq!(result, i32::try_from(SIZE).unwrap());
        let data = memory.place(first + slot, turns[slot]);
        if writes[slot] {
            data.fill(0xa5);
        } else {
            check(data, first + slot, turns[slot]);
            turns[slot] += 1;
            let data = memory.place(first + slot, turns[slot]);
            fill(data, first + slot, turns[slot]);
        }
        writes[slot] = !writes[slot];
        ring.submit(&request(slot, turns[slot], writes[slot]));
    }
}

/// Not a test of its own: a program with many transfers in flight. It writes to a file how many
/// were done, again and again, and whether the data of one was wrong.
#[test]
#[ignore = "a program that another test starts"]
fn transfers() {
    let memory = Memory::new(THREADS * (1 + SLOTS));
    let fixed = memory.place(THREADS, 0).as_ptr().addr();
    for slot in 0..THREADS {
        std::thread::spawn(move || direct(memory, slot));
        std::thread::spawn(move || ringed(memory, THREADS + slot * SLOTS));
    }
    let folder = std::env::var("QUELL_TEST_DIR").unwrap();
    loop {
        let (done, wrong) = (DONE.load(Ordering::Relaxed), WRONG.load(Ordering::Relaxed));
        fs::write(
            format!("{folder}/new"),
            format!("{done} {wrong} {fixed} end"),
        )
        .unwrap();
        fs::rename(format!("{folder}/new"), format!("{folder}/found")).unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The program above; killed on drop.
struct Transfers {
    child: Child,
    found: std::path::PathBuf,
}

impl Transfers {
    fn start(machine: &Machine) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "direct::transfers", "--ignored", "--nocapture"])
            .env("QUELL_TEST_DIR", machine.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let found = machine.path("found");
        let mut program = Self { child, found };
        eventually("transfers are done", || {
            assert!(program.child.try_wait().unwrap().is_none(), "it has ended");
            program.found.exists() && program.done() > 100
        });
        program
    }

    fn word(&self, word: usize) -> String {
        let text = fs::read_to_string(&self.found).unwrap();
        text.split(' ').nth(word).unwrap().to_owned()
    }

    fn done(&self) -> u64 {
        assert_eq!(self.word(1), "false", "data is wrong");
        self.word(0).parse().unwrap()
    }

    /// Frames of a fixed buffer.
    fn pinned(&self) -> Vec<u64> {
        let at: u64 = self.word(2).parse().unwrap();
        let file = File::open(format!("/proc/{}/pagemap", self.child.id())).unwrap();
        let mut bytes = vec![0; PLACES * SIZE / PAGE * 8];
        file.read_exact_at(&mut bytes, at / PAGE as u64 * 8)
            .unwrap();
        let entries = bytes.chunks_exact(8);
        let entries = entries.map(|e| u64::from_ne_bytes(e.try_into().unwrap()));
        entries.map(|entry| entry & 0x7f_ffff_ffff_ffff).collect()
    }

    /// Threads of the kernel that work for it.
    fn workers(&self) -> usize {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let names =
            tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.filter(|name| name.starts_with("iou-")).count()
    }
}

impl Drop for Transfers {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn no_byte_in_flight_is_wrong_while_pages_are_moved() {
    let Some(mut machine) = able() else {
        return;
    };
    let probe = OpenOptions::new()
        .write(true)
        .create(true)
        .custom_flags(libc::O_DIRECT)
        .open(machine.path("probe"));
    if let Err(e) = probe.map(drop).and_then(|()| Ring::is_allowed()) {
        return quell_testing::skip(format_args!("no direct I/O or no io_uring: {e}"));
    }
    let program = Transfers::start(&machine);
    machine.remember();
    let wanted = if quell_testing::soak() {
        1_000_000
    } else {
        2_000
    };
    let pinned = program.pinned();
    let begun = Instant::now();
    let from = program.done();
    let (mut moved, mut refused, mut stops, mut workers) = (0, 0, 0, 0);
    let mut rounds = 0;
    while program.done() < from + wanted || rounds < 2 {
        let half = ["0-3", "4-7"][rounds % 2];
        let manner = ["--json", "--pace", "30%", "--longest-stop", "50ms"];
        let mut command = settle(&machine, program.child.id(), half, &manner);
        let json = Running::start(&mut command).wait().json();
        let of = |key: &str| json[key].as_u64().unwrap();
        moved += of("moved");
        refused += of("refused");
        stops += json["stops"]["count"].as_u64().unwrap();
        workers = workers.max(program.workers());
        rounds += 1;
    }
    let done = program.done() - from;
    let found = counted(program.child.id());
    println!(
        "{done} transfers in {:.1?}; {moved} pages moved in {stops} stops, {refused} refused; {workers} threads of the kernel; pages by colour {found:?}",
        begun.elapsed()
    );
    // All places but those of fixed buffers, at least once each.
    assert!(moved > (SLOTS - FIXED) as u64 * 64, "{moved}");
    assert!(workers > 0, "no thread of the kernel had work");
    assert!(refused >= pinned.len() as u64, "{refused}");
    assert_eq!(program.pinned(), pinned, "a pinned page has another frame");
    let before = program.done();
    eventually("it goes on", || program.done() > before + 200);
    machine.unchanged("after settling");
}
