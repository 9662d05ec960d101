//! `quell run` with windows of a repeating frame: each group runs in its own and nowhere else, by a
//! witness that knows nothing of them. After any death everything runs again.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::cyclictest::Waking;
use crate::common::{
    Done, Machine, Program, Running, cpu_share, eventually, in_group, machine, process_named,
    quell, run, send,
};
use crate::witness::{Span, quantile};
use quell_types::units::Nanos;
use rustix::process::Signal;

const WITNESS: &str = "QUELL_WITNESS";
/// For how long a witness runs, in nanoseconds.
const LENGTH: &str = "QUELL_WITNESS_NS";
const MS: u64 = 1_000_000;

/// A frame of windows that two groups have in turn.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// The frame and the guard, in nanoseconds.
    frame: u64,
    guard: u64,
    /// How many windows each group has in a frame.
    windows: u64,
    /// How many tasks each group has. All but one are asleep.
    tasks: usize,
    /// How many frames a witness runs.
    frames: u64,
}

/// Two windows in 10 ms, for 4 s.
const USUAL: Shape = Shape {
    frame: 10 * MS,
    guard: MS / 5,
    windows: 1,
    tasks: 1,
    frames: 400,
};

impl Shape {
    /// The time from one window of a group to its next one.
    const fn slot(&self) -> u64 {
        self.frame / self.windows
    }

    /// Begin and end of the first window of control and of batch, in nanoseconds.
    const fn spans(&self) -> [Span; 2] {
        let part = self.slot() / 10;
        [(0, 4 * part), (4 * part, 9 * part)]
    }

    /// The section of a policy.
    fn section(&self) -> String {
        let window = |n: u64| {
            let at = n / 2 * self.slot();
            let (name, (begin, end)) = match n % 2 {
                0 => ("control", self.spans()[0]),
                _ => ("batch", self.spans()[1]),
            };
            let [start, length] = [at + begin, end - begin].map(|ns| ns / 1_000);
            format!("{{ group = \"{name}\", start = \"{start}us\", length = \"{length}us\" }},\n")
        };
        let windows: String = (0..2 * self.windows).map(window).collect();
        let [frame, guard] = [self.frame, self.guard].map(|ns| ns / 1_000);
        format!(
            "[windows]\nframe = \"{frame}us\"\nguard = \"{guard}us\"\ncpus = \"1\"\nschedule = [\n{windows}]\n"
        )
    }

    /// How long a witness runs.
    const fn length(&self) -> u64 {
        self.frame * self.frames
    }
}

/// For `make soak`.
mod long {
    use super::*;

    #[test]
    #[ignore = "for the long run"]
    fn windows_end_as_precisely_as_a_real_time_thread_wakes_up() {
        let Some(mut machine) = machine() else {
            return;
        };
        let frames = frames(100_000);
        if let Some((ended, late)) = precise(&mut machine, &Shape { frames, ..USUAL }) {
            for ended in ended {
                assert!(
                    ended <= 2_000 * late.max(1),
                    "{ended} ns, cyclictest {late} µs"
                );
            }
        }
    }

    /// Frames of 5 ms to 1 s, up to 16 windows, and groups of up to 1,000 tasks.
    #[test]
    #[ignore = "for the long run"]
    fn windows_of_any_frame_and_group_end_precisely() {
        let Some(mut machine) = machine() else {
            return;
        };
        let of = |frame, frames| Shape {
            frame: frame * MS,
            frames,
            ..USUAL
        };
        let mut shapes = Vec::new();
        for tasks in [1, 10, 100, 1_000] {
            let guards = [MS / 5, MS, 4 * MS];
            shapes.extend(guards.map(|guard| Shape {
                tasks,
                guard,
                ..of(100, 200)
            }));
        }
        shapes.extend([2, 8].map(|windows| Shape {
            windows,
            ..of(10 * windows, 2_000 / windows)
        }));
        shapes.extend([of(5, 2_000), of(100, frames(2_000)), of(1_000, frames(200))]);
        for shape in shapes {
            let Some((ended, late)) = precise(&mut machine, &shape) else {
                return;
            };
            for ended in ended {
                assert!(
                    ended <= 2_000 * late.max(1),
                    "{shape:?}: {ended} ns, cyclictest {late} µs"
                );
            }
        }
    }
}

#[test]
#[ignore = "no test: the program that runs in a window"]
fn watch() {
    let path = std::env::var_os(WITNESS).unwrap();
    let length = std::env::var(LENGTH).unwrap().parse().unwrap();
    crate::witness::watch(Path::new(&path), Nanos(length));
}

/// `QUELL_FRAMES`, or so many.
fn frames(usual: u64) -> u64 {
    let wanted = std::env::var("QUELL_FRAMES").ok();
    wanted.map_or(usual, |n| n.parse().expect("QUELL_FRAMES is a number"))
}

/// A policy with two groups of these keys, and windows.
fn policy(machine: &Machine, shape: &Shape, control: &str, batch: &str) -> String {
    let group = |name: &str, keys: &str| {
        format!("[group.{name}]\nrole = \"best-effort\"\nallow = [\"freeze\"]\n{keys}\n")
    };
    let groups = group("control", control) + &group("batch", batch) + &shape.section();
    machine.file("windows.toml", &format!("quell = 1\n{groups}"))
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

fn seen(spans: &[Span], window: Span, shape: &Shape) -> Seen {
    let slot = shape.slot();
    let first = spans[0].0.div_ceil(slot) + 1;
    let last = spans.last().unwrap().1 / slot - 1;
    let (mut inside, mut outside) = (0, 0);
    let (mut begun, mut ended) = (Vec::new(), Vec::new());
    for frame in first..last {
        let at = frame * slot;
        let (start, end) = (at + window.0, at + window.1);
        // What belongs to this window: from half-way since the last one to half-way to the next.
        let half = (slot - (window.1 - window.0)) / 2;
        let (from, to) = (start - half, end + half);
        let mine =
            spans.partition_point(|(_, l)| *l <= from)..spans.partition_point(|(b, _)| *b < to);
        let mine = spans.get(mine).unwrap_or_default();
        for (b, l) in mine {
            let (b, l) = ((*b).max(from), (*l).min(to));
            let within = l.min(end).saturating_sub(b.max(start));
            inside += within;
            outside += l - b - within;
        }
        let signed = |time: u64, edge: u64| time.cast_signed() - edge.cast_signed();
        begun.extend(mine.first().map(|(b, _)| signed((*b).max(from), start)));
        ended.extend(mine.last().map(|(_, l)| signed((*l).min(to), end)));
    }
    begun.sort_unstable();
    ended.sort_unstable();
    let all = (last - first) * (window.1 - window.0 - shape.guard);
    Seen {
        outside: outside as f64 / (inside + outside).max(1) as f64,
        used: inside as f64 / all as f64,
        begun,
        ended,
    }
}

/// What the witnesses of both groups saw.
fn witnessed(machine: &mut Machine, shape: &Shape) -> [Seen; 2] {
    machine.remember();
    let exe = std::env::current_exe().unwrap();
    let command = |name: &str| {
        let script = format!(
            "n={}; while [ $((n -= 1)) -gt 0 ]; do sleep 1000000 & asleep=\"$asleep $!\"; done; \
            {WITNESS}={} {LENGTH}={} {} --exact windows::watch --ignored; [ -z \"$asleep\" ] || kill $asleep; wait",
            shape.tasks,
            machine.path(name).display(),
            shape.length(),
            exe.display()
        );
        format!(
            "command = [\"sh\", \"{}\"]",
            machine.file(&format!("{name}.sh"), &script)
        )
    };
    let policy = policy(machine, shape, &command("control"), &command("batch"));
    let longest = Duration::from_nanos(shape.length()) * 2 + Duration::from_secs(60);
    let done = Running::start(quell().args(["run", &policy])).within(longest);
    is_on_time(&done);
    machine.unchanged("after the run");
    [("control", 0), ("batch", 1)].map(|(name, place)| {
        let dispatched = done.err.lines().find(|l| {
            l.contains(&format!("{name}: ")) && l.contains("windows; begun late by")
        });
        eprintln!("{}", dispatched.unwrap_or_else(|| panic!("{name}: {}", done.err)));
        let seen = seen(&crate::witness::read(&machine.path(name)), shape.spans()[place], shape);
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
    let Some(mut machine) = machine() else {
        return;
    };
    // Another program, an interrupt or the host may take a part of a window. What is outside was
    // not stopped in time. A dispatcher that lets that happen does so in each run.
    let right = |seen: &Seen| seen.outside < 0.02 && seen.used > 0.8;
    let seen = (0..3).map(|_| witnessed(&mut machine, &USUAL));
    let wrong: Vec<_> = seen.take_while(|both| !both.iter().all(right)).collect();
    assert!(wrong.len() < 3, "{wrong:?}");
}

/// A run ended well, or windows were late: a host that takes the CPU away makes them so. Then that
/// is the exit status.
#[track_caller]
fn is_on_time(done: &Done) {
    let late = done.err.contains("began more than a guard late");
    assert_eq!(done.code, if late { 3 } else { 0 }, "{done:?}");
}

/// Time that the host took from CPU 1, in hundredths of a second.
fn stolen() -> u64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap();
    let line = text.lines().find(|line| line.starts_with("cpu1 ")).unwrap();
    line.split(' ').nth(8).unwrap().parse().unwrap()
}

/// Runs windows next to `cyclictest`, which wakes up on the CPU that has none. `None`: it cannot be
/// had. How late user code ended at the 99.9th percentile in nanoseconds, and how late `cyclictest`
/// woke up then in microseconds.
fn precise(machine: &mut Machine, shape: &Shape) -> Option<([i64; 2], i64)> {
    let waking = Waking::start(0)?;
    eprintln!("{shape:?}");
    let before = stolen();
    let both = witnessed(machine, shape);
    let late = waking.lateness([0.5, 0.999, 1.0]);
    eprintln!(
        "cyclictest: µs at 50, 99.9, 100 %: {late:?}; stolen on CPU 1: {} ms",
        (stolen() - before) * 10
    );
    let ended = both.map(|seen| {
        let windows = shape.frames * shape.windows;
        assert!(seen.begun.len() as u64 > windows * 9 / 10);
        // The dispatcher ends user code a guard before the window ends.
        quantile(&seen.ended, 0.999) + shape.guard.cast_signed()
    });
    Some((ended, late[1]))
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
        let policy = policy(machine, &USUAL, &of(&control), &of(&batch));
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
    let Some(mut machine) = machine() else {
        return;
    };
    let matched = Matched::new(&mut machine);
    let (mut longest, rounds) = (Duration::ZERO, quell_testing::kills());
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
    let Some(mut machine) = machine() else {
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
    let Some(mut machine) = machine() else {
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
    let Some(mut machine) = machine() else {
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
    is_on_time(&first.wait());
    machine.unchanged("after both runs");
}
