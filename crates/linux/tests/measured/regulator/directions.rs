//! Two budgets on one CPU, with counters that every kernel has. A fault that touches a page counts
//! once as a fault, which stands for a line that comes in. It also counts once as a minor fault,
//! which stands for a line written back.

use std::time::Instant;

use quell_linux::meter::DirectionsMeter;

use super::*;

const PERIOD: Nanos = Nanos::millis(5);

/// `PERF_COUNT_SW_PAGE_FAULTS`: minor and major faults.
const FAULTS: EventCode = EventCode {
    kind: TYPE_SOFTWARE,
    config: 2,
};

const MINOR: EventCode = EventCode {
    kind: TYPE_SOFTWARE,
    config: SW_MINOR_FAULTS,
};

/// A program that touches pages for the first time, on and on, in place of the shell loop.
const TOUCH: &str = "import mmap
n = 0
while True:
    m = mmap.mmap(-1, 4 << 20)
    m[::4096] = bytes(1024)
    n += 1024
    m.close()";

/// Page faults of a process so far.
fn faults(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after = text.rsplit_once(')').unwrap().1;
    after.split_whitespace().nth(7).unwrap().parse().unwrap()
}

#[test]
fn whichever_of_two_budgets_is_smaller_holds() {
    let Some(mut busy) = Busy::start("apart") else {
        return;
    };
    if let Err(e) = busy.becomes(&["/usr/bin/env", "python3", "-c", TOUCH]) {
        return quell_testing::skip(format_args!("python3 cannot be started: {e}"));
    }
    let span = Duration::from_millis(500);
    // How many, and how many periods that took.
    let touched = || {
        let (before, begun) = (faults(busy.child.id()), Instant::now());
        sleep(span);
        let periods = begun.elapsed().as_nanos() as u64 / PERIOD.0;
        (faults(busy.child.id()) - before, periods)
    };
    // Python has begun to touch.
    let (starting, begun) = (faults(busy.child.id()), Instant::now());
    while faults(busy.child.id()) < starting + 10_000 && begun.elapsed() < Duration::from_secs(10) {
        sleep(Duration::from_millis(20));
    }
    let (free, _) = touched();
    let per_period = free / 100;
    // The events wake no sooner than every 256 page faults.
    if per_period < 1_000 {
        quell_testing::skip(format_args!(
            "a page fault takes too long here, {free} of them in {span:?}"
        ));
        return;
    }
    let (less, more) = (Lines(per_period / 4), Lines(per_period * 4));
    for (lines, writes) in [(less, more), (more, less)] {
        let regulation = Regulation {
            budget: lines,
            meter: Kind::Directions { writes },
            ..busy.regulation(Share::WHOLE, PERIOD)
        };
        let dir = perf::cgroup_dir(&busy.dir).unwrap();
        let scope = Scope::Cgroup(dir.as_fd(), busy.cpu);
        let meter = DirectionsMeter::open(&[FAULTS], &[MINOR], scope).unwrap();
        assert_eq!(meter.descriptors().iter().flatten().count(), 2);
        let brake = busy.brake(&regulation, Box::new(meter), Arc::new(|_| true), &pool());
        assert!(brake.directions);
        let (held, periods) = touched();
        // One budget more may be used before the first stop.
        let most = (periods + 1) * less.0;
        assert!(
            held <= most + most / 20,
            "{held} of {most} with {lines:?} and {writes:?}"
        );
        assert!(
            held >= most / 3,
            "{held} of {most} with {lines:?} and {writes:?}"
        );
        assert!(brake.stats().throttles.load(Ordering::Relaxed) > 10);
        assert_eq!(brake.lost(), None);
    }
}

#[test]
fn a_meter_of_each_direction_needs_an_event_of_each() {
    for (reads, writes) in [
        (&[FAULTS][..], &[][..]),
        (&[], &[MINOR]),
        (&[FAULTS, FAULTS], &[MINOR]),
    ] {
        assert!(DirectionsMeter::open(reads, writes, Scope::Cpu(0)).is_err());
    }
}
