//! `quell run` with windows of a repeating frame: each group runs in its own and nowhere else, by a
//! witness that knows nothing of them. After any death everything runs again.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod common;
#[path = "common/kills.rs"]
mod kills;
#[path = "../../linux/tests/common/witness.rs"]
mod witness;

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{
    Machine, Program, Running, cpu_share, eventually, in_group, machine, process_named, quell, run,
    send, soak,
};
use quell_types::units::Nanos;
use rustix::process::Signal;
use witness::{Span, quantile};

const WITNESS: &str = "QUELL_WITNESS";
/// How many frames a witness runs.
const FRAMES: &str = "QUELL_FRAMES";
const MS: u64 = 1_000_000;
const FRAME: u64 = 10 * MS;
const GUARD: u64 = MS / 5;
/// The windows: begin and end in the frame, in nanoseconds.
const CONTROL: Span = (0, 4 * MS);
const BATCH: Span = (4 * MS, 9 * MS);

const WINDOWS: &str = r#"
[windows]
frame = "10ms"
cpus = "1"
schedule = [
  { group = "control", start = "0ms", length = "4ms" },
  { group = "batch", start = "4ms", length = "5ms" },
]
"#;

#[test]
#[ignore = "no test: the program that runs in a window"]
fn watch() {
    let path = std::env::var_os(WITNESS).unwrap();
    witness::watch(Path::new(&path), Nanos(frames(400) * FRAME));
}

fn frames(usual: u64) -> u64 {
    let wanted = std::env::var(FRAMES).ok();
    wanted.map_or(usual, |n| n.parse().expect("QUELL_FRAMES is a number"))
}

/// A policy with two groups of these keys, and windows.
fn policy(machine: &Machine, control: &str, batch: &str) -> String {
    let group = |name: &str, keys: &str| {
        format!("[group.{name}]\nrole = \"best-effort\"\nallow = [\"freeze\"]\n{keys}\n")
    };
    let groups = group("control", control) + &group("batch", batch);
    machine.file("windows.toml", &format!("quell = 1\n{groups}{WINDOWS}"))
}

/// How the spans of a witness lie to its window.
#[derive(Debug)]
struct Seen {
    /// The part of its running time that was outside its windows.
    outside: f64,
    /// The part of its windows, without their guards, in which it ran.
    used: f64,
    /// How long after its window began user code ran first, in nanoseconds, ascending.
    begun: Vec<i64>,
    /// How long after its window ended user code ran last. Negative: so much earlier.
    ended: Vec<i64>,
}

fn seen(spans: &[Span], window: Span) -> Seen {
    let first = spans[0].0.div_ceil(FRAME) + 1;
    let last = spans.last().unwrap().1 / FRAME - 1;
    let (mut inside, mut outside) = (0, 0);
    let (mut begun, mut ended) = (Vec::new(), Vec::new());
    for frame in first..last {
        let at = frame * FRAME;
        let (start, end) = (at + window.0, at + window.1);
        // What belongs to this window: from half-way since the last one to half-way to the next.
        let half = (FRAME - (window.1 - window.0)) / 2;
        let (from, to) = (start - half, end + half);
        let of = || spans.iter().filter(|(b, l)| *l > from && *b < to);
        for (b, l) in of() {
            let (b, l) = ((*b).max(from), (*l).min(to));
            let within = l.min(end).saturating_sub(b.max(start));
            inside += within;
            outside += l - b - within;
        }
        let signed = |time: u64, edge: u64| time.cast_signed() - edge.cast_signed();
        begun.extend(of().next().map(|(b, _)| signed((*b).max(from), start)));
        ended.extend(of().next_back().map(|(_, l)| signed((*l).min(to), end)));
    }
    begun.sort_unstable();
    ended.sort_unstable();
    let all = (last - first) * (window.1 - window.0 - GUARD);
    Seen {
        outside: outside as f64 / (inside + outside).max(1) as f64,
        used: inside as f64 / all as f64,
        begun,
        ended,
    }
}

/// What the witnesses of both groups saw of so many frames.
fn witnessed(machine: &mut Machine, frames: u64) -> [Seen; 2] {
    machine.remember();
    let exe = std::env::current_exe().unwrap();
    let command = |name: &str| {
        let note = format!("{WITNESS}={}", machine.path(name).display());
        format!(
            "command = [\"env\", \"{note}\", \"{FRAMES}={frames}\", \"{}\", \"--exact\", \"watch\", \"--ignored\"]",
            exe.display()
        )
    };
    let policy = policy(machine, &command("control"), &command("batch"));
    let longest = Duration::from_nanos(frames * FRAME) * 2 + Duration::from_secs(60);
    let done = Running::start(quell().args(["run", &policy])).within(longest);
    assert_eq!(done.code, 0, "{done:?}");
    machine.unchanged("after the run");
    [("control", CONTROL), ("batch", BATCH)].map(|(name, window)| {
        let dispatched = done.err.lines().find(|l| {
            l.contains(&format!("{name}: ")) && l.contains("windows; begun late by")
        });
        eprintln!("{}", dispatched.unwrap_or_else(|| panic!("{name}: {}", done.err)));
        let seen = seen(&witness::read(&machine.path(name)), window);
        let us = |values: &[i64]| {
            [0.0, 0.5, 0.99, 0.999, 1.0].map(|part| quantile(values, part) / 1_000)
        };
        eprintln!(
            "{name}: {} windows, {:.4} % outside, {:.1} % of them used; µs at 0, 50, 99, 99.9, 100 %: begun {:?}, ended {:?}",
            seen.begun.len(),
            seen.outside * 100.0,
            seen.used * 100.0,
            us(&seen.begun),
            us(&seen.ended)
        );
        seen
    })
}

#[test]
fn each_group_runs_in_its_windows_only() {
    let Some(mut machine) = machine("windows") else {
        return;
    };
    for seen in witnessed(&mut machine, frames(400)) {
        // Another program, an interrupt or the host may take a part of a window. What is outside
        // was not stopped in time.
        assert!(seen.outside < 0.02, "{seen:?}");
        assert!(seen.used > 0.8, "{seen:?}");
    }
}

/// `cyclictest` on CPU 0, at the dispatcher's priority, until it is told to end. Its lines of a
/// histogram have microseconds and how many times it woke up so late.
fn cyclictest() -> Option<Waking> {
    let mut command = Command::new("cyclictest");
    command.args([
        "-q", "-m", "-p", "80", "-i", "1000", "-h", "60000", "-a", "0", "-t", "1",
    ]);
    command.stdout(Stdio::piped()).spawn().ok().map(Waking)
}

/// It ends with this.
struct Waking(Child);

impl Drop for Waking {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Microseconds at these parts of the wake-ups.
fn lateness(mut cyclictest: Waking, parts: [f64; 3]) -> [i64; 3] {
    send(cyclictest.0.id(), Signal::INT);
    let mut text = String::new();
    let mut told = cyclictest.0.stdout.take().unwrap();
    told.read_to_string(&mut text).unwrap();
    let counted = text.lines().filter_map(|line| {
        let (late, times) = line.split_once(' ')?;
        Some((late.parse::<i64>().ok()?, times.trim().parse::<u64>().ok()?))
    });
    let counted: Vec<(i64, u64)> = counted.collect();
    let all: u64 = counted.iter().map(|(_, times)| times).sum();
    assert!(all > 1_000, "{text}");
    parts.map(|part| {
        let mut upto = 0;
        let within = |(_, times): &&(i64, u64)| {
            upto += times;
            upto as f64 >= all as f64 * part
        };
        counted.iter().find(within).unwrap().0
    })
}

/// Time that the host took from CPU 1, in hundredths of a second.
fn stolen() -> u64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap();
    let line = text.lines().find(|line| line.starts_with("cpu1 ")).unwrap();
    line.split(' ').nth(8).unwrap().parse().unwrap()
}

/// Beside it `cyclictest` wakes up on the CPU that has no windows.
#[test]
fn windows_end_as_precisely_as_a_real_time_thread_wakes_up() {
    if !soak() {
        eprintln!("SKIPPED: for the long run (QUELL_SOAK)");
        return;
    }
    let Some(mut machine) = machine("precise windows") else {
        return;
    };
    let Some(waking) = cyclictest() else {
        eprintln!("SKIPPED: no cyclictest (apt-get install rt-tests)");
        return;
    };
    let (frames, before) = (frames(100_000), stolen());
    let both = witnessed(&mut machine, frames);
    let parts = [0.5, 0.999, 1.0];
    let late = lateness(waking, parts);
    eprintln!(
        "cyclictest: µs at 50, 99.9, 100 %: {late:?}; stolen on CPU 1: {} ms",
        (stolen() - before) * 10
    );
    for seen in both {
        assert!(seen.begun.len() as u64 > frames * 9 / 10);
        // The dispatcher ends user code a guard before the window ends.
        let ended = quantile(&seen.ended, 0.999) + GUARD.cast_signed();
        assert!(
            ended <= 2_000 * late[1].max(1),
            "{ended} ns, cyclictest {late:?} µs"
        );
    }
}

/// Two busy programs of the test's own, and a policy that matches them.
struct Matched {
    control: Program,
    batch: Program,
    policy: String,
}

impl Matched {
    fn new(machine: &mut Machine) -> Self {
        // Without the niceness of `busy`: two of those would leave nothing to the rest of the
        // machine.
        let loops = || Program::start(&["sh", "-c", "while :; do :; done"]);
        let (control, batch) = (loops(), loops());
        let of = |program: &Program| format!("match = [{{ pid = {} }}]", program.pid());
        let policy = policy(machine, &of(&control), &of(&batch));
        machine.remember();
        Self {
            control,
            batch,
            policy,
        }
    }

    fn pids(&self) -> [u32; 2] {
        [self.control.pid(), self.batch.pid()]
    }

    /// Starts a run, and waits until both programs are in their windows.
    fn held(&self) -> Running {
        let run = Running::start(quell().args(["run", self.policy.as_str()]));
        eventually("windows are switched", || {
            dispatcher().is_some() && self.pids().iter().all(|pid| in_group(*pid, ""))
        });
        run
    }

    /// Both run again.
    fn are_free(&self, when: &str) {
        for pid in self.pids() {
            let mut best = 0.0_f64;
            eventually(when, || {
                best = best.max(cpu_share(pid, Duration::from_millis(200)));
                best > 0.02
            });
        }
    }
}

/// The process id of the dispatcher of CPU 1. One that has ended may wait for init to collect it.
fn dispatcher() -> Option<u32> {
    process_named("quell/w1")
}

#[test]
fn after_a_kill_everything_runs_again() {
    let Some(mut machine) = machine("windows and kills") else {
        return;
    };
    let matched = Matched::new(&mut machine);
    let (mut longest, rounds) = (Duration::ZERO, kills::kills());
    for kill in 0..6 {
        let begun = Instant::now();
        let run = matched.held();
        longest = longest.max(begun.elapsed());
        // At another place of the frame each time.
        std::thread::sleep(Duration::from_micros(100_000 + kill * 1_700 % 10_000));
        run.signal(Signal::KILL);
        drop(run);
        machine.undone();
        machine.unchanged("after the kill");
        eventually("the dispatcher is gone", || dispatcher().is_none());
        matched.are_free("both run after the kill");
    }
    let command = || {
        let mut command = quell();
        command.args(["run", matched.policy.as_str()]);
        command
    };
    // While it starts, while it switches, and wherever between.
    machine.killed_at_random(rounds, 2 * longest, command, || {
        matched.are_free("both run after a kill at any time");
    });
}

#[test]
fn a_quell_that_hangs_freezes_nothing() {
    let Some(mut machine) = machine("windows of a Quell that hangs") else {
        return;
    };
    let matched = Matched::new(&mut machine);
    let run = matched.held();
    run.signal(Signal::STOP);
    eventually("the watchdog undoes it", || {
        matched.pids().iter().all(|pid| !in_group(*pid, ""))
    });
    matched.are_free("both run while Quell is stopped");
    run.signal(Signal::KILL);
    drop(run);
    machine.undone();
}

#[test]
fn a_dispatcher_that_is_killed_is_replaced_and_told() {
    let Some(mut machine) = machine("a dispatcher is killed") else {
        return;
    };
    let matched = Matched::new(&mut machine);
    let run = matched.held();
    // One that dies before it is ready makes the run fail instead.
    std::thread::sleep(Duration::from_secs(1));
    let first = dispatcher().unwrap();
    send(first, Signal::KILL);
    eventually("another one runs", || {
        dispatcher().is_some_and(|pid| pid != first)
    });
    // Then one that is stopped, which looks like one that hangs.
    std::thread::sleep(Duration::from_secs(1));
    let second = dispatcher().unwrap();
    send(second, Signal::STOP);
    eventually("a third one runs", || {
        dispatcher().is_some_and(|pid| pid != first && pid != second)
    });
    run.signal(Signal::TERM);
    // A promise was lost for a while.
    run.wait()
        .fails(3, &["the dispatcher was killed", "was it stopped?"]);
    machine.unchanged("after the run");
    matched.are_free("both run after the run");
}

#[test]
fn a_second_run_with_windows_is_refused() {
    let Some(mut machine) = machine("two policies with windows") else {
        return;
    };
    let matched = Matched::new(&mut machine);
    let first = matched.held();
    let second = run(&["run", matched.policy.as_str()]);
    assert!(second.code != 0, "{second:?}");
    assert!(second.err.contains("another Quell holds"), "{second:?}");
    assert!(second.err.contains("wait until it has ended"), "{second:?}");
    // The first one goes on.
    assert!(dispatcher().is_some() && matched.pids().iter().all(|pid| in_group(*pid, "")));
    matched.are_free("both run in their windows");
    first.signal(Signal::TERM);
    assert_eq!(first.wait().code, 0);
    machine.unchanged("after both runs");
}
