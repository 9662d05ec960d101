//! Deaths of `quell run`, of its watchdog, and of both, at any moment: every setting is back, and
//! nobody stays throttled.

use std::time::{Duration, Instant};

use crate::common::{
    Machine, Program, Running, busy, cpu_share, eventually, is_held, machine, quell, run,
    throttles, watchdog_of,
};
use rustix::process::Signal;

/// Long enough for a share of a CPU to be told from a fifth of it, on a busy machine too.
const SPAN: Duration = Duration::from_millis(400);

/// A busy best-effort program, partitioned from a critical one and regulated.
struct Regulated {
    _victim: Program,
    other: Program,
    run: Running,
    /// The share of a CPU it gets while throttled.
    throttled: f64,
}

impl Regulated {
    fn start(machine: &mut Machine) -> Self {
        let (victim, other) = (Program::start(&["sleep", "600"]), busy());
        machine.remember();
        let run = Running::start(&mut hold(victim.pid(), other.pid(), &[]));
        eventually("it is throttled", || throttles() > 0);
        // The least of a few spans: where a host takes the CPU away for a while, the kernel charges
        // that time to whoever was running, and the regulator debits it only afterwards.
        let spans = (0..5).map(|_| cpu_share(other.pid(), SPAN));
        let throttled = spans.fold(f64::INFINITY, f64::min);
        assert!(throttled < 0.5, "a fifth was asked for, it got {throttled}");
        Self {
            _victim: victim,
            other,
            run,
            throttled,
        }
    }

    /// It gets most of a CPU again, far more than while throttled. Somebody else's load may take
    /// some of a moment.
    fn is_free(&self) {
        let mut best = 0.0_f64;
        eventually("the best-effort program runs freely", || {
            best = best.max(cpu_share(self.other.pid(), SPAN));
            best > 0.5 && best > 2.0 * self.throttled
        });
        eprintln!(
            "share of a CPU: throttled {:.2}, afterwards {best:.2}",
            self.throttled
        );
    }
}

fn hold(victim: u32, other: u32, command: &[&str]) -> std::process::Command {
    let mut hold = quell();
    hold.args(["run", "--limit", "20%", "--period", "1ms", "--cpus", "auto"])
        .arg("--best-effort")
        .arg(format!("pid={other}"));
    match command {
        [] => hold.arg("--critical").arg(format!("pid={victim}")),
        command => hold.arg("--").args(command),
    };
    hold
}

#[test]
fn a_kill_is_undone_by_the_watchdog() {
    let Some(mut machine) = machine() else {
        return;
    };
    let held = Regulated::start(&mut machine);
    held.run.signal(Signal::KILL);
    let took = machine.undone();
    eprintln!("undone {took:.1?} after SIGKILL");
    assert!(
        took < Duration::from_secs(20),
        "at most 3 s, on an idle machine: {took:?}"
    );
    machine.unchanged("after SIGKILL");
    held.is_free();
}

#[test]
fn a_stopped_run_holds_nobody() {
    let Some(mut machine) = machine() else {
        return;
    };
    let held = Regulated::start(&mut machine);
    held.run.signal(Signal::STOP);
    let stopped = Instant::now();
    eventually("everything is restored while it is stopped", || {
        machine.differences().is_empty()
    });
    eprintln!("undone {:.1?} after SIGSTOP", stopped.elapsed());
    held.is_free();
    std::thread::sleep(Duration::from_millis(2500).saturating_sub(stopped.elapsed()));
    held.run.signal(Signal::CONT);
    let Regulated { run, .. } = held;
    let done = run.wait();
    done.fails(3, &["stopped or hung", "watchdog undid everything"]);
    machine.undone();
}

/// Holds up the main thread of a process, as a system call that waits for a busy disk does, and
/// none of its other threads.
fn hold_up(pid: u32, span: Duration) {
    let pid = i32::try_from(pid).unwrap();
    let trace = |request| {
        // SAFETY: requests without memory.
        let done = unsafe { libc::ptrace(request, pid, 0, 0) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    };
    trace(libc::PTRACE_SEIZE);
    trace(libc::PTRACE_INTERRUPT);
    let mut status = 0;
    // SAFETY: a child of ours.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert!(libc::WIFSTOPPED(status), "{status}");
    std::thread::sleep(span);
    trace(libc::PTRACE_DETACH);
}

#[test]
fn a_main_thread_that_is_held_up_keeps_its_run_for_a_while() {
    let Some(mut machine) = machine() else {
        return;
    };
    let mut held = Regulated::start(&mut machine);
    // Who stands in for it keeps off the critical CPUs as it does.
    let main = held.run.pid();
    let places = std::fs::read_dir(format!("/proc/{main}/task"))
        .unwrap()
        .filter_map(|task| {
            let of = |name| std::fs::read_to_string(task.as_ref().unwrap().path().join(name)).ok();
            let status = of("status")?;
            let cpus = status
                .lines()
                .find_map(|l| l.strip_prefix("Cpus_allowed_list:"))?;
            Some((of("comm")?.trim().to_owned(), cpus.trim().to_owned()))
        });
    let places: std::collections::BTreeMap<String, String> = places.collect();
    assert_eq!(places["deputy"], places["quell"], "{places:?}");
    hold_up(main, Duration::from_secs(3));
    assert!(
        held.run.alive() && is_held(held.other.pid()),
        "no longer than three seconds"
    );
    eventually("it is throttled", || throttles() > 0);
    // What hangs for good is undone for, though its process lives.
    hold_up(main, Duration::from_secs(8));
    held.is_free();
    let done = held.run.wait();
    done.fails(3, &["stopped or hung", "watchdog undid everything"]);
    machine.undone();
    machine.unchanged("after it was held up");
}

#[test]
fn a_killed_watchdog_is_replaced() {
    let Some(mut machine) = machine() else {
        return;
    };
    let held = Regulated::start(&mut machine);
    let first = watchdog_of(held.run.pid()).unwrap();
    crate::common::send(first, Signal::KILL);
    eventually("another one watches", || {
        watchdog_of(held.run.pid()).is_some_and(|w| w != first)
    });
    let before = throttles();
    eventually("the run goes on", || throttles() > before);
    let Regulated { run, .. } = held;
    run.signal(Signal::TERM);
    let done = run.wait();
    done.fails(0, &["the watchdog died", "was replaced"]);
    machine.unchanged("after the replacement");
}

#[test]
fn restore_undoes_what_two_deaths_left() {
    let Some(mut machine) = machine() else {
        return;
    };
    let held = Regulated::start(&mut machine);
    let watchdog = watchdog_of(held.run.pid()).unwrap();
    // Stopped first, so that neither can act on the death of the other.
    held.run.signal(Signal::STOP);
    crate::common::send(watchdog, Signal::STOP);
    crate::common::send(watchdog, Signal::KILL);
    held.run.signal(Signal::KILL);
    eventually("both are gone", || {
        let main = std::fs::read_to_string(format!("/proc/{}/stat", held.run.pid()));
        main.is_ok_and(|stat| stat.contains(") Z "))
            && !std::path::Path::new(&format!("/proc/{watchdog}/fd"))
                .join("0")
                .exists()
    });
    assert!(is_held(held.other.pid()), "nobody has undone it");
    // A brake's thread went with its process: what is left is confined, not throttled.
    let status = run(&["status"]);
    assert_eq!(status.code, 3, "{status:?}");
    assert!(status.out.contains("quell restore"), "{status:?}");
    let restored = run(&["restore"]);
    assert_eq!(restored.code, 0, "{restored:?}");
    assert!(restored.out.contains("changes taken back"), "{restored:?}");
    machine.unchanged("after restore");
    held.is_free();
    assert_eq!(run(&["restore"]).out, "nothing to restore\n");
}

#[test]
fn a_kill_at_a_random_moment_leaves_nothing() {
    let Some(mut machine) = machine() else {
        return;
    };
    let (victim, other) = (Program::start(&["sleep", "600"]), busy());
    machine.remember();
    // How long a whole one takes: the shortest of a few, as somebody else's load only lengthens it.
    let whole = (0..3).map(|_| {
        let begun = Instant::now();
        let done = Running::start(&mut hold(victim.pid(), other.pid(), &["sleep", "0.05"])).wait();
        assert_eq!(done.code, 0, "{done:?}");
        u32::try_from(begun.elapsed().as_micros()).unwrap()
    });
    let whole = whole.min().unwrap();
    let rounds = quell_testing::kills().max(20);
    let command = || hold(victim.pid(), other.pid(), &["sleep", "0.05"]);
    let span = Duration::from_micros(whole.into());
    let alive = machine.killed_at_random(rounds, span, command, || {});
    assert!(
        alive * 2 > rounds,
        "{alive} of {rounds} were killed in time"
    );
    eventually("nobody is left throttled", || {
        cpu_share(other.pid(), SPAN) > 0.5
    });
}

#[test]
fn a_death_at_a_boundary_leaves_nothing() {
    let Some(mut machine) = machine() else {
        return;
    };
    let (victim, other) = (Program::start(&["sleep", "600"]), busy());
    machine.remember();
    let step = if quell_testing::soak() { 1 } else { 7 };
    let mut died = 0;
    for n in (1..).step_by(step) {
        let mut command = hold(victim.pid(), other.pid(), &["true"]);
        command.env("QUELL_FAULT", n.to_string());
        let done = Running::start(&mut command).wait();
        machine.undone_or_restored();
        machine.unchanged(&format!("killed at boundary {n}: {done:?}"));
        if done.code == 0 {
            eprintln!("survived from boundary {n} on; {died} deaths");
            break;
        }
        assert_eq!(done.code, 137, "boundary {n}: {}", done.err);
        died += 1;
    }
    assert!(died > 5, "only {died} deaths: the faults were not armed");
}
