//! The regulator on this machine's kernel: a busy process in a cgroup of its own, throttled on its CPU, and what it got counted
//! by the kernel's accounting of the process itself (`/proc/PID/schedstat`, and how often it got around to reading,
//! `/proc/PID/io`), which no part of the regulator reads.
//!
//! Needs root and a cgroup hierarchy that carries perf_event; skipped aloud otherwise.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod apart;
mod pooled;

use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use quell_core::control::Moved;
use quell_core::plan::{Meter as Kind, Regulation};
use quell_core::policy::Split;
use quell_core::units::{Lines, Nanos, Rate, Share};
use quell_linux::cgroup::{Cgroups, Controller};
use quell_linux::lock::Lock;
use quell_linux::meter::{EventMeter, MOST_EVENTS, Meter, TimeMeter};
use quell_linux::perf::{
    self, Event, EventCode, Overflow, SW_MINOR_FAULTS, Scope, TYPE_SOFTWARE, Wake,
};
use quell_linux::pool::Pool;
use quell_linux::root::Kernel;
use quell_linux::rt;
use quell_linux::throttle::{Lost, Permit, Throttler};

/// One line is one nanosecond at this rate.
const PEAK: Rate = Rate(64_000_000_000);

struct Busy {
    child: Child,
    dir: PathBuf,
    cpu: u32,
    _lock: Arc<Lock>,
}

impl Busy {
    /// A shell loop, which reads once in a while, on the highest CPU, in a perf_event cgroup of its own; or `None` with the reason said.
    fn start(name: &str) -> Option<Self> {
        Self::several(name, 1)?.pop()
    }

    /// The same on so many CPUs, the highest ones.
    fn several(name: &str, cpus: usize) -> Option<Vec<Self>> {
        let skip = |why: &str| {
            eprintln!("SKIPPED {name}: {why}");
            None
        };
        if !quell_linux::is_root() {
            return skip("needs root");
        }
        let kernel = Kernel::new().unwrap();
        let cgroups = Cgroups::discover(&kernel).unwrap();
        let Some(hierarchy) = cgroups.of(Controller::PerfEvent) else {
            return skip("no cgroup hierarchy carries perf_event");
        };
        if let Err(why) = rt::probe() {
            return skip(&why);
        }
        let lock = Lock::acquire_within(
            &std::env::temp_dir().join("quell-tests"),
            name,
            Duration::from_secs(120),
        );
        let lock = Arc::new(lock.unwrap());
        let allowed = rustix::thread::sched_getaffinity(None).unwrap();
        let found: Vec<usize> = (0..1024).rev().filter(|c| allowed.is_set(*c)).collect();
        if found.len() < cpus {
            return skip(&format!("needs {cpus} CPUs"));
        }
        let own = PathBuf::from(hierarchy.own_dir());
        let on = |cpu: &usize| Self::on(*cpu, name, &own, &lock);
        Some(found[..cpus].iter().map(on).collect())
    }

    fn on(cpu: usize, name: &str, own: &Path, lock: &Arc<Lock>) -> Self {
        let cpu = u32::try_from(cpu).unwrap();
        let dir = own.join(format!("quell-test-{name}-{}-{cpu}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let child = Command::new("/bin/sh")
            .args([
                "-c",
                "while :; do i=0; while [ $i -lt 100 ]; do i=$((i+1)); done; read x </dev/null; done",
            ])
            .spawn()
            .unwrap();
        let busy = Self {
            child,
            dir,
            cpu,
            _lock: Arc::clone(lock),
        };
        fs::write(busy.dir.join("cgroup.procs"), busy.child.id().to_string()).unwrap();
        let mut only = rustix::thread::CpuSet::new();
        only.set(cpu as usize);
        let pid = rustix::process::Pid::from_child(&busy.child);
        rustix::thread::sched_setaffinity(Some(pid), &only).unwrap();
        // Before whatever else runs here.
        rustix::process::setpriority_process(Some(pid), -20).unwrap();
        busy
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// CPU time the kernel says the process has had.
    fn cpu_time(&self) -> Nanos {
        let text = fs::read_to_string(format!("/proc/{}/schedstat", self.child.id())).unwrap();
        Nanos(text.split_whitespace().next().unwrap().parse().unwrap())
    }

    /// Rounds of its loop, as the kernel counts its reads.
    fn rounds(&self) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/io", self.child.id())).unwrap();
        let line = text.lines().find_map(|l| l.strip_prefix("syscr: "));
        line.unwrap().parse().unwrap()
    }

    /// Rounds, CPU time and wall-clock time over `span`.
    fn progress(&self, span: Duration) -> Progress {
        let (rounds, cpu, began) = (self.rounds(), self.cpu_time(), rt::now());
        sleep(span);
        Progress {
            rounds: (self.rounds() - rounds) as f64,
            cpu: self.cpu_time().since(cpu).as_secs_f64(),
            wall: rt::now().since(began).as_secs_f64(),
        }
    }

    /// Rounds per second of CPU time, at best: the host may take the CPU away, or slow it down, in any span.
    fn free_pace(&self) -> f64 {
        let paces = (0..8).map(|_| self.progress(Duration::from_millis(50)));
        paces
            .filter(|p| p.cpu > 0.0)
            .map(|p| p.rounds / p.cpu)
            .fold(0.0, f64::max)
    }

    /// Waits until it has had `more` CPU time; at most ten seconds.
    fn ran(&self, more: Nanos) {
        let had = self.cpu_time();
        let began = rt::now();
        while self.cpu_time().since(had) < more {
            let waited = rt::now().since(began);
            assert!(
                waited < Nanos::secs(10),
                "no {more} of CPU time in {waited}"
            );
            sleep(Duration::from_millis(1));
        }
    }

    /// The greatest share of a CPU it gets over one of ten spans, or the first above `wanted`: others, and the host, may
    /// take the CPU away in some.
    fn share_above(&self, wanted: f64, span: Duration) -> f64 {
        let mut most = 0.0_f64;
        for _ in 0..10 {
            most = most.max(self.share_over(span));
            if most > wanted {
                break;
            }
        }
        most
    }

    fn meter(&self) -> Box<dyn Meter> {
        let dir = perf::cgroup_dir(&self.dir).unwrap();
        Box::new(TimeMeter::open(&dir, self.cpu, PEAK, Nanos(0)).unwrap())
    }

    fn regulation(&self, share: Share, period: Nanos) -> Regulation {
        Regulation {
            cpus: [self.cpu].into_iter().collect(),
            budget: Lines::at(PEAK.part(share), period),
            period,
            meter: Kind::Time,
            peak: PEAK,
            stop_cost: Nanos(0),
            longest: Nanos::millis(5),
            pooling: None,
            split: Split::Even,
            least: Lines(0),
        }
    }

    /// Limits it to a share of the CPU, for as long as `permit` says.
    fn throttle_while(&self, share: Share, period: Nanos, permit: Permit) -> Throttler {
        let regulation = self.regulation(share, period);
        Throttler::start(self.cpu, &regulation, self.meter(), permit, &pool()).unwrap()
    }

    fn throttle(&self, share: Share, period: Nanos) -> Throttler {
        self.throttle_while(share, period, Arc::new(|_| true))
    }

    /// The share of a CPU it gets over `span`.
    fn share_over(&self, span: Duration) -> f64 {
        let (from, began) = (self.cpu_time(), rt::now());
        sleep(span);
        self.cpu_time().since(from).0 as f64 / rt::now().since(began).0 as f64
    }
}

/// Of a hold of its own.
fn pool() -> Arc<Pool> {
    Arc::new(Pool::new(1024))
}

/// What a busy process did.
struct Progress {
    rounds: f64,
    cpu: f64,
    wall: f64,
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for _ in 0..100 {
            if fs::remove_dir(&self.dir).is_ok() {
                break;
            }
            sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_throttled_process_never_gets_more_than_its_cap() {
    let Some(busy) = Busy::start("caps") else {
        return;
    };
    for (percent, period) in [
        (10, Nanos::millis(1)),
        (50, Nanos::millis(1)),
        (30, Nanos::millis(10)),
        (20, Nanos::millis(100)),
    ] {
        let share = Share::percent(percent);
        // A period more or less may fall into the span.
        let most = 1.05 * (1.0 + period.as_secs_f64());
        // A regulator that lets too much or too little through does so every time.
        let (mut of_cap, mut time) = (f64::INFINITY, 0.0);
        for _ in 0..5 {
            let before = busy.free_pace();
            let throttler = busy.throttle(share, period);
            sleep(Duration::from_millis(100));
            let had = busy.progress(Duration::from_secs(1));
            assert!(throttler.lost().is_none());
            assert!(throttler.stats().throttles.load(Ordering::Relaxed) > 0);
            drop(throttler);
            let free = busy.free_pace().max(before);
            // Two accounts, either of which tells too much on a busy machine and never too little: time that the host
            // takes counts as CPU time, and the pace when free is found too low next to a busy SMT sibling.
            let by_rounds = had.rounds / had.wall / free / share.as_f64();
            let by_time = had.cpu / had.wall / share.as_f64();
            of_cap = by_rounds.min(by_time).min(of_cap);
            time = by_time.max(time);
            if of_cap <= most && time >= 0.3 {
                break;
            }
        }
        assert!(
            of_cap <= most,
            "{percent} % per {period}: {of_cap:.3} of the cap"
        );
        // What it got done says little below: stops cost it time here, and this meter credits no way back. That it is
        // not throttled to nothing the CPU time tells, short of what others had of the CPU.
        assert!(
            time >= 0.3,
            "{percent} % per {period}: {time:.3} of the cap in CPU time"
        );
        eprintln!("{percent} % per {period}: {of_cap:.3} of the cap");
    }
}

#[test]
fn below_its_budget_a_cpu_is_left_alone() {
    let Some(busy) = Busy::start("below") else {
        return;
    };
    // A budget of 99 % of the time is hardly ever used up sooner than a period. Beside programs that load memory one span
    // of some with 58 ms was seen; a regulator that does not leave the CPU alone throttles in each.
    let throttled: Vec<u64> = (0..5)
        .map(|_| {
            let throttler = busy.throttle(Share::percent(99), Nanos::millis(1));
            sleep(Duration::from_millis(500));
            throttler.stats().throttled_ns.load(Ordering::Relaxed)
        })
        .take_while(|ns| *ns >= 25_000_000)
        .collect();
    assert!(throttled.len() < 5, "throttled {throttled:?} ns of 500 ms");
}

#[test]
fn a_budget_that_is_no_limit_costs_no_look_until_it_is_one() {
    let Some(busy) = Busy::start("no-limit") else {
        return;
    };
    let throttler = busy.throttle(Share::percent(100), Nanos::millis(1));
    sleep(Duration::from_millis(300));
    assert_eq!(throttler.stats().overflows.load(Ordering::Relaxed), 0);
    // What was drawn while nobody counted is not paid for.
    throttler.set_budget(Lines::at(PEAK.part(Share::percent(30)), Nanos::millis(1)));
    let held = busy.share_above(0.2, Duration::from_millis(300));
    assert!(held > 0.2 && held < 0.36, "{held}");
}

#[test]
fn without_permission_nothing_is_throttled_any_more() {
    let Some(busy) = Busy::start("permit") else {
        return;
    };
    let held = Arc::new(AtomicBool::new(true));
    let permit = Arc::clone(&held);
    let throttler = busy.throttle_while(
        Share::percent(10),
        Nanos::millis(1),
        Arc::new(move |_| permit.load(Ordering::Acquire)),
    );
    let held_share = busy.share_over(Duration::from_millis(300));
    held.store(false, Ordering::Release);
    let free_share = busy.share_above(2.0 * held_share, Duration::from_millis(300));
    assert_eq!(throttler.lost(), Some(Lost::NotPermitted));
    assert!(
        free_share > 2.0 * held_share,
        "held {held_share}, free {free_share}"
    );
}

#[test]
fn a_budget_can_be_changed_while_it_is_held() {
    let Some(busy) = Busy::start("budget") else {
        return;
    };
    let throttler = busy.throttle(Share::percent(10), Nanos::millis(5));
    let low = busy.share_over(Duration::from_millis(300));
    throttler.set_budget(Lines::at(PEAK.part(Share::percent(40)), Nanos::millis(5)));
    let high = busy.share_above(2.0 * low, Duration::from_millis(300));
    assert!(high > 2.0 * low && high < 0.45, "from {low} to {high}");
    throttler.set_budget(Lines::at(PEAK.part(Share::percent(10)), Nanos::millis(5)));
    sleep(Duration::from_millis(20));
    let again = busy.share_over(Duration::from_millis(300));
    assert!(again < 0.5 * high, "{again} after {high}");
}

#[test]
fn an_ended_throttler_leaves_the_cpu_free() {
    let Some(busy) = Busy::start("drop") else {
        return;
    };
    let throttler = busy.throttle(Share::percent(10), Nanos::millis(1));
    let held = busy.share_over(Duration::from_millis(300));
    drop(throttler);
    let free = busy.share_above(2.0 * held, Duration::from_millis(300));
    assert!(free > 2.0 * held, "held {held}, free {free}");
}

#[test]
fn a_throttler_that_finds_itself_on_another_cpu_ends() {
    let Some(busy) = Busy::start("moved") else {
        return;
    };
    let others = rustix::thread::sched_getaffinity(None).unwrap();
    let Some(other) = (0..1024).find(|c| others.is_set(*c) && *c != busy.cpu as usize) else {
        eprintln!("SKIPPED moved: only one CPU");
        return;
    };
    let throttler = busy.throttle(Share::percent(10), Nanos::millis(1));
    sleep(Duration::from_millis(50));
    throttler_goes_to(busy.cpu, other);
    for _ in 0..100 {
        if throttler.lost().is_some() {
            break;
        }
        sleep(Duration::from_millis(50));
    }
    assert_eq!(throttler.lost(), Some(Lost::WrongCpu));
}

/// One that counts nothing, whose counter is taken away at some moment: it does not wake for that.
struct Taken(Arc<AtomicBool>);

impl Meter for Taken {
    fn arm(&mut self, _: Moved, _: bool) -> std::io::Result<()> {
        Ok(())
    }

    fn rest(&mut self) -> std::io::Result<()> {
        Ok(())
    }

    fn woken(&mut self) -> std::io::Result<Option<Overflow>> {
        Ok(None)
    }

    fn read(&mut self) -> std::io::Result<(Moved, bool)> {
        Ok((Lines(0).into(), !self.0.load(Ordering::Acquire)))
    }

    fn descriptors(&self) -> [Option<BorrowedFd<'_>>; MOST_EVENTS] {
        [None; MOST_EVENTS]
    }
}

#[test]
fn a_throttler_whose_counter_is_taken_away_ends_though_nothing_wakes_it() {
    let Some(busy) = Busy::start("taken") else {
        return;
    };
    let taken = Arc::new(AtomicBool::new(false));
    let regulation = busy.regulation(Share::percent(10), Nanos::millis(1));
    let meter = Box::new(Taken(Arc::clone(&taken)));
    let throttler =
        Throttler::start(busy.cpu, &regulation, meter, Arc::new(|_| true), &pool()).unwrap();
    sleep(Duration::from_millis(600));
    assert_eq!(throttler.lost(), None);
    taken.store(true, Ordering::Release);
    for _ in 0..100 {
        if throttler.lost().is_some() {
            break;
        }
        sleep(Duration::from_millis(50));
    }
    assert_eq!(throttler.lost(), Some(Lost::Meter));
}

/// As a shrunk cpuset or a CPU going offline would do it: the thread is moved from outside.
fn throttler_goes_to(cpu: u32, other: usize) {
    let name = format!("quell/{cpu}");
    let tid = fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|t| t.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .find(|tid| {
            fs::read_to_string(format!("/proc/self/task/{tid}/comm"))
                .is_ok_and(|c| c.trim() == name)
        })
        .unwrap();
    let mut set = rustix::thread::CpuSet::new();
    set.set(other);
    rustix::thread::sched_setaffinity(rustix::process::Pid::from_raw(tid), &set).unwrap();
}

/// The event path on a counter that every kernel has: page faults of everybody on the CPU, one fault one line.
#[test]
fn an_event_meter_counts_everybody_on_its_cpu_and_wakes() {
    let Some(busy) = Busy::start("events") else {
        return;
    };
    let code = EventCode {
        kind: TYPE_SOFTWARE,
        config: SW_MINOR_FAULTS,
    };
    let mut meter = EventMeter::open(&[code], busy.cpu).unwrap();
    meter.arm(Lines(1_000).into(), false).unwrap();
    let before = meter.read().unwrap();
    // 16 MiB touched page by page on that CPU: 4096 faults.
    let cpu = busy.cpu;
    std::thread::spawn(move || {
        rt::pin(cpu).unwrap();
        let mut memory = vec![0u8; 16 << 20];
        memory.chunks_mut(4096).for_each(|page| page[0] = 1);
        std::hint::black_box(&memory);
    })
    .join()
    .unwrap();
    let after = meter.read().unwrap();
    assert!(
        after.1 && after.0.lines.0 >= before.0.lines.0 + 4_096,
        "{before:?} → {after:?}"
    );
    let descriptors = meter.descriptors();
    let mut polled = [rustix::event::PollFd::from_borrowed_fd(
        descriptors[0].unwrap(),
        rustix::event::PollFlags::IN,
    )];
    assert_eq!(
        rustix::event::poll(
            &mut polled,
            Some(&rustix::event::Timespec {
                tv_sec: 1,
                tv_nsec: 0
            })
        )
        .unwrap(),
        1
    );
}

/// Alarms are one-shot: armed with the shortest time on a busy CPU, and nobody reading, there is one wake-up, not an
/// interrupt every 10 µs (which locked up a CPU once).
#[test]
fn an_alarm_rings_once() {
    let Some(busy) = Busy::start("alarm") else {
        return;
    };
    let dir = perf::cgroup_dir(&busy.dir).unwrap();
    let code = EventCode {
        kind: TYPE_SOFTWARE,
        config: perf::SW_CPU_CLOCK,
    };
    let alarm = Event::open(code, Scope::Cgroup(dir.as_fd(), busy.cpu), Wake::Once).unwrap();
    alarm.arm(10_000).unwrap();
    busy.ran(Nanos::millis(5));
    let first = alarm.read().unwrap().value;
    busy.ran(Nanos::millis(20));
    let second = alarm.read().unwrap().value;
    assert_eq!(first, second, "the alarm went on counting after it rang");
    // Armed again and again before it rings, as at the start of every period, it still rings once.
    for _ in 0..100 {
        alarm.arm(1_000_000_000).unwrap();
        busy.ran(Nanos::micros(20));
    }
    let before = alarm.read().unwrap().value;
    alarm.arm(10_000).unwrap();
    busy.ran(Nanos::millis(5));
    let counted = alarm.read().unwrap().value - before;
    assert!(
        (10_000..500_000).contains(&counted),
        "it counted {counted} ns: it rang more than once"
    );
}
