//! The steady state of colours: a program runs under a policy for minutes, while compaction and
//! other programs move pages around. `QUELL_SOAK` is the number of minutes. Part of the tests of
//! settling.

use std::os::unix::process::CommandExt;

use super::policies::{events, share};
use super::*;

/// Memory of the program in MiB, and how long each of its threads rests between two checks of it.
const PROGRAM: usize = 64;
const REST_MS: &str = "2000";
/// Memory in MiB that a neighbour takes and returns, in small pages and in large ones.
const SMALL: usize = 192;
const LARGE: usize = 64;
/// Address space of a neighbour in MiB, besides.
const MORE: u64 = 512;
/// How often all memory is compacted.
const COMPACTED: Duration = Duration::from_secs(5);
/// The longest that filling the hoard and moving the program takes.
const LONGEST: Duration = Duration::from_secs(900);
/// The fewest minutes of a long run.
const SHORTEST: u64 = 3;

/// Not a test of its own: a program that takes `QUELL_TEST_MIB` of memory, in large pages with
/// `QUELL_TEST_LARGE`, and returns it, again and again. It writes to a file how often it has, and
/// how much it had in large pages, in MiB.
#[test]
#[ignore = "a program that another test starts"]
fn takes_and_returns_memory() {
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse().ok());
    let bytes: usize = number("QUELL_TEST_MIB").unwrap();
    let bytes = bytes << 20;
    let advice = match number("QUELL_TEST_LARGE") {
        Some(_) => libc::MADV_HUGEPAGE,
        None => libc::MADV_NOHUGEPAGE,
    };
    let out = std::env::var("QUELL_TEST_OUT").unwrap();
    let mut large = 0;
    for round in 1_u64.. {
        // SAFETY: a new mapping, written within its bounds, and used by nothing after its end.
        unsafe {
            let none = std::ptr::null_mut();
            let may = libc::PROT_READ | libc::PROT_WRITE;
            let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let at = libc::mmap(none, bytes, may, kind, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            libc::madvise(at, bytes, advice);
            for offset in (0..bytes).step_by(PAGE) {
                at.cast::<u8>().add(offset).write_volatile(1);
            }
            let sizes = fs::read_to_string("/proc/self/smaps_rollup").unwrap();
            large += kib(&sizes, "AnonHugePages:") >> 10;
            std::thread::sleep(Duration::from_millis(700));
            libc::munmap(at, bytes);
        }
        fs::write(&out, format!("{round} {large}")).unwrap();
        std::thread::sleep(Duration::from_millis(1300));
    }
}

/// The number behind this word.
fn kib(text: &str, word: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(word));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// A program that takes and returns memory; killed on drop.
struct Neighbour(Child, std::path::PathBuf);

impl Neighbour {
    /// Its address space has a limit: so much more for its code and its threads.
    fn start(machine: &Machine, mib: usize, large: bool) -> Self {
        let out = machine.path(if large { "large" } else { "small" });
        let mut command = Command::new(std::env::current_exe().unwrap());
        let role = [
            "--exact",
            "settling::drift::takes_and_returns_memory",
            "--ignored",
        ];
        command.args(role).env("QUELL_TEST_MIB", mib.to_string());
        command.env("QUELL_TEST_OUT", &out);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        if large {
            command.env("QUELL_TEST_LARGE", "1");
        }
        let most = libc::rlimit {
            rlim_cur: (mib as u64 + MORE) << 20,
            rlim_max: (mib as u64 + MORE) << 20,
        };
        // SAFETY: one system call, between fork and exec.
        unsafe {
            command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_AS, &most) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        Self(command.spawn().unwrap(), out)
    }

    /// How often it has taken memory, and the MiB that it had in large pages.
    fn rounds(&self) -> (u64, u64) {
        let said = fs::read_to_string(&self.1).unwrap_or_default();
        let mut words = said.split(' ').map(|n| n.parse().unwrap_or(0));
        (words.next().unwrap_or(0), words.next().unwrap_or(0))
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// CPU time that a process has used, and that its children had used when they ended, in seconds.
fn cpu(pid: u32) -> (f64, f64) {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let (_, words) = stat.rsplit_once(") ").unwrap_or_default();
    let words: Vec<f64> = words
        .split(' ')
        .map(|word| word.parse().unwrap_or(0.0))
        .collect();
    // SAFETY: no memory.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    let of = |first: usize| words.get(first..first + 2).map_or(0.0, |w| w[0] + w[1]) / ticks;
    (of(11), of(13))
}

/// Quell, its keeper, which has number 0 where nothing is held, and its watchdog.
struct Processes {
    quell: u32,
    keeper: u32,
    watchdog: u32,
}

/// What a minute, or all of them, came to.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    /// Seconds.
    wall: f64,
    quell: f64,
    keeper: f64,
    watchdog: f64,
    settlers: f64,
}

impl Processes {
    fn of(quell: u32) -> Self {
        let child = |word| crate::common::coloured::child_of(quell, word).unwrap_or(0);
        Self {
            quell,
            keeper: child("__hoard"),
            watchdog: child("__watchdog"),
        }
    }

    fn used(&self, since: Instant) -> Used {
        let (quell, settlers) = cpu(self.quell);
        Used {
            wall: since.elapsed().as_secs_f64(),
            quell,
            keeper: cpu(self.keeper).0,
            watchdog: cpu(self.watchdog).0,
            settlers,
        }
    }
}

impl Used {
    fn since(self, before: Self) -> Self {
        Self {
            wall: self.wall - before.wall,
            quell: self.quell - before.quell,
            keeper: self.keeper - before.keeper,
            watchdog: self.watchdog - before.watchdog,
            settlers: self.settlers - before.settlers,
        }
    }

    /// Shares of a CPU in percent: of the run itself, the keeper, the watchdog and the settlers.
    fn percent(self) -> [f64; 4] {
        let all = [self.quell, self.keeper, self.watchdog, self.settlers];
        all.map(|seconds| 100.0 * seconds / self.wall)
    }
}

/// Frames of the hoard that were moved to other colours, and stops of the program, as recorded.
fn recorded(record: &Path) -> (u64, u64) {
    let text = events(record).unwrap_or_default();
    let (mut drifted, mut stops) = (0, 0);
    for line in text.lines() {
        let number = |after: &str| line.split_once(after)?.1.split(' ').next()?.parse().ok();
        if line.contains("pages of the hoard to frames of other colours") {
            drifted += number("the kernel moved ").unwrap_or(0);
        }
        let event: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
        if event["event"] == "coloured" {
            stops = event["stops"].as_u64().unwrap_or(stops);
        }
    }
    (drifted, stops)
}

/// Pages of the process in wrong colours, and all of them.
fn wrong(pid: u32) -> (u64, u64) {
    let (right, all) = share(pid);
    (all - right, all)
}

/// `quell run` of a policy that starts the program, with two of eight colours or without.
fn run(machine: &Machine, record: &Path, coloured: bool) -> Running {
    let out = machine.path("found");
    let _ = fs::remove_file(&out);
    let exe = std::env::current_exe().unwrap().display().to_string();
    let words = [
        "env",
        &format!("QUELL_TEST_MIB={PROGRAM}"),
        &format!("QUELL_TEST_OUT={}", out.display()),
        &format!("QUELL_TEST_REST={REST_MS}"),
        &exe,
        "--exact",
        "settling::checks_its_memory",
        "--ignored",
    ];
    let mut policy =
        format!("quell = 1\n[group.a]\nrole = 'critical'\ncpus = 'any'\ncommand = {words:?}\n");
    if coloured {
        // Compaction leaves locked pages alone, as long as colours are held.
        policy += "reserve.banks = '2-3'\npaging = { locked = true }\n[hoard]\nlimit = '256MiB'\nreserve = '512MiB'\n\
            pace = '5%'\nlongest-stop = '20ms'\n";
    }
    Running::start(run_of(machine, &policy).arg("--out").arg(record))
}

/// Waits until the program runs and at least this many in a thousand of its pages are right.
/// Returns its number.
fn program_of(run: &mut Running, machine: &Machine, right: u64) -> u32 {
    let begun = Instant::now();
    loop {
        let program = crate::common::coloured::child_of(run.pid(), "checks_its_memory");
        if let Some(pid) = program.filter(|_| machine.path("found").exists()) {
            let (wrong, all) = wrong(pid);
            if (all - wrong) * 1000 >= all * right {
                return pid;
            }
        }
        assert!(run.alive() && begun.elapsed() < LONGEST, "not settled");
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// The share of a CPU in percent that a run of the program takes without colours: of the run itself
/// and of its watchdog.
fn without_colours(machine: &Machine) -> f64 {
    let mut run = run(machine, &machine.path("plain"), false);
    program_of(&mut run, machine, 0);
    let (processes, begun) = (Processes::of(run.pid()), Instant::now());
    let first = processes.used(begun);
    std::thread::sleep(Duration::from_secs(60));
    let [quell, _, watchdog, _] = processes.used(begun).since(first).percent();
    send(run.pid(), Signal::TERM);
    run.wait();
    quell + watchdog
}

/// One minute in which memory is compacted again and again. Returns the largest share of wrong
/// pages that was seen, in percent.
fn compacted(program: u32) -> f64 {
    let (begun, mut worst) = (Instant::now(), 0.0_f64);
    while begun.elapsed() < Duration::from_secs(60) {
        fs::write("/proc/sys/vm/compact_memory", "1").unwrap();
        let (wrong, all) = wrong(program);
        worst = worst.max(100.0 * wrong as f64 / all as f64);
        std::thread::sleep(COMPACTED);
    }
    worst
}

/// For `make soak`.
mod long {
    use super::*;

    #[test]
    #[ignore = "for the long run"]
    fn colours_stay_right_while_memory_is_compacted() {
        let Some(mut machine) = able() else {
            return;
        };
        machine.remember();
        let minutes = std::env::var("QUELL_SOAK").ok();
        let minutes: u64 = minutes.and_then(|n| n.parse().ok()).unwrap_or(SHORTEST);
        let plain = without_colours(&machine);
        println!("without colours: {plain:.3} % of a CPU");
        let (record, out) = (machine.path("record"), machine.path("found"));
        let (mut run, begun) = (run(&machine, &record, true), Instant::now());
        let program = program_of(&mut run, &machine, 999);
        println!("right after {:.0} s", begun.elapsed().as_secs_f64());
        let processes = Processes::of(run.pid());
        let neighbours = [
            Neighbour::start(&machine, SMALL, false),
            Neighbour::start(&machine, LARGE, true),
        ];
        println!(
            "minute right% worst% drifted held stops quell% keeper% watchdog% settlers% large-MiB"
        );
        let first = processes.used(begun);
        let mut before = first;
        for minute in 1..=minutes.max(SHORTEST) {
            let worst = compacted(program);
            assert!(run.alive() && fs::read_to_string(&out).unwrap().ends_with(" false"));
            let now = processes.used(begun);
            let (off, all) = wrong(program);
            let held = counted(processes.keeper);
            let (drifted, stops) = recorded(&record);
            println!(
                "{minute} {:.3} {:.3} {drifted} {} {stops} {:.3?} {}",
                100.0 - 100.0 * off as f64 / all as f64,
                100.0 - worst,
                held[2] + held[3],
                now.since(before).percent(),
                neighbours[1].rounds().1
            );
            before = now;
        }
        assert!(neighbours.iter().all(|one| one.rounds().0 > 10));
        drop(neighbours);
        let [quell, keeper, watchdog, settlers] = before.since(first).percent();
        let colours = quell + keeper + watchdog - plain;
        println!("colours take {colours:.3} % of a CPU, and settlers {settlers:.3} %");
        program_of(&mut run, &machine, 999);
        let rounds = fs::read_to_string(&out).unwrap();
        eventually("it goes on", || fs::read_to_string(&out).unwrap() != rounds);
        assert!(fs::read_to_string(&out).unwrap().ends_with(" false"));
        send(run.pid(), Signal::TERM);
        let done = run.wait();
        println!("{}", done.err);
        assert_eq!(done.code, 128 + Signal::TERM.as_raw(), "{done:?}");
        assert!(colours <= 1.0, "{colours} % of a CPU");
        machine.unchanged("after the run");
    }
}
