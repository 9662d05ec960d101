//! What a regulated CPU pays while it stays below its budget. Four cases are compared:
//! - no event
//! - a bare clock event that fires once per budget
//! - the decision in its interrupt
//! - the decision in the brake's thread
//!
//! Two programs run alone in a cgroup on one CPU. One is busy, and its work per second is measured.
//! The other sleeps ten thousand times a second. What each sleep costs is found by the work that a
//! SCHED_IDLE program next to it gets done. A budget is a quarter more than a period of CPU time,
//! so that it is never spent too soon.
//!
//! `cargo bench -p quell-linux --bench below_budget [-- ROUNDS [MILLISECONDS]]`, as root, on a
//! machine with nothing else to do.

#![allow(clippy::unwrap_used, reason = "a program of tests")]

#[path = "../tests/common/counted.rs"]
mod counted;

use std::fs;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use counted::Counted;
use quell_control::config::Meter as Kind;
use quell_control::config::Regulation;
use quell_kernel::cgroup::{Cgroups, Controller};
use quell_kernel::perf::{self, Event, EventCode, SW_CPU_CLOCK, Scope, TYPE_SOFTWARE, Wake};
use quell_kernel::root::Kernel;
use quell_linux::brake::{Brake, Decides, Permit};
use quell_linux::meter::TimeMeter;
use quell_linux::pool::Pool;
use quell_types::options::Split;
use quell_types::units::{Lines, Nanos, Rate};

/// One line is one nanosecond at this rate.
const PEAK: Rate = Rate(64_000_000_000);
const BUDGETS: [Nanos; 3] = [Nanos::micros(100), Nanos::millis(1), Nanos::millis(10)];
const SLEEP: Duration = Duration::from_micros(100);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Variant {
    None,
    Bare,
    Decided(Decides),
}

const VARIANTS: [(Variant, &str); 4] = [
    (Variant::None, "no event"),
    (Variant::Bare, "bare event"),
    (Variant::Decided(Decides::Interrupt), "interrupt"),
    (Variant::Decided(Decides::Thread), "thread"),
];

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|a| a == "--subject") {
        return subject(&arguments[at + 1]);
    }
    if !arguments.iter().any(|a| a == "--bench") {
        return eprintln!("SKIPPED: runs with cargo bench only");
    }
    let mut numbers = arguments.iter().filter_map(|a| a.parse::<u64>().ok());
    let rounds = numbers.next().unwrap_or(5);
    let span = Duration::from_millis(numbers.next().unwrap_or(1_000));
    if !quell_kernel::is_root() {
        return eprintln!("SKIPPED: needs root");
    }
    let cgroups = Cgroups::discover(&Kernel::new().unwrap()).unwrap();
    let Some(hierarchy) = cgroups.of(Controller::PerfEvent) else {
        return eprintln!("SKIPPED: no cgroup hierarchy carries perf_event");
    };
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let cpu = (0..1024).rev().find(|c| allowed.is_set(*c)).unwrap();
    let own = PathBuf::from(hierarchy.own_dir());
    let group = Group::new(&own, u32::try_from(cpu).unwrap());
    busy(&group, rounds, span);
    sleepy(&group, rounds, span);
}

/// Measures the work per second of a busy loop.
fn busy(group: &Group, rounds: u64, span: Duration) {
    for budget in BUDGETS {
        let mut rows = VARIANTS.map(|_| Vec::new());
        let mut subject = Subject::start("busy", group.cpu, Some(&group.dir));
        subject.work(span / 10);
        for _ in 0..rounds {
            let mut free = 0.0;
            for (row, (variant, _)) in rows.iter_mut().zip(VARIANTS) {
                let Some(held) = Held::start(group, variant, budget) else {
                    continue;
                };
                let done = subject.work(span);
                held.end();
                if variant == Variant::None {
                    free = done;
                }
                row.push(100.0 * (1.0 - done / free));
            }
        }
        println!("busy loop, a budget of {budget}: work lost");
        for (row, (_, name)) in rows.iter().zip(VARIANTS) {
            tell(name, row, "%");
        }
        // With ten milliseconds the difference is less than the noise.
        if budget < BUDGETS[2] {
            bar(&rows);
        }
    }
}

/// Measures the CPU time per sleep of a program that sleeps often.
fn sleepy(group: &Group, rounds: u64, span: Duration) {
    for budget in BUDGETS {
        let mut rows = VARIANTS.map(|_| Vec::new());
        let mut filler = Subject::start("filler", group.cpu, None);
        let alone = filler.work(span) / span.as_micros() as f64;
        let mut subject = Subject::start("sleepy", group.cpu, Some(&group.dir));
        for _ in 0..rounds {
            for (row, (variant, _)) in rows.iter_mut().zip(VARIANTS) {
                let Some(held) = Held::start(group, variant, budget) else {
                    continue;
                };
                subject.begin(span);
                let done = filler.work(span) / alone;
                let sleeps = subject.end();
                held.end();
                // All that the filler did not get, including the sleeper's own work: compare with
                // no event.
                row.push((span.as_micros() as f64 - done) / sleeps);
            }
        }
        println!("ten thousand sleeps a second, a budget of {budget}: CPU time per sleep");
        for (row, (_, name)) in rows.iter().zip(VARIANTS) {
            tell(name, row, "µs");
        }
    }
}

/// Prints the median, the least and the greatest value of a row.
fn tell(name: &str, row: &[f64], unit: &str) {
    if let (Some(least), Some(most)) = (sorted(row).first(), sorted(row).last()) {
        let median = median(row);
        println!("  {name:12} {median:7.2} {unit} ({least:.2} to {most:.2})");
    }
}

fn sorted(row: &[f64]) -> Vec<f64> {
    let mut row = row.to_vec();
    row.sort_by(f64::total_cmp);
    row
}

fn median(row: &[f64]) -> f64 {
    sorted(row).get(row.len() / 2).copied().unwrap_or(f64::NAN)
}

fn bar(rows: &[Vec<f64>; 4]) {
    let [_, bare, interrupt, thread] = rows.each_ref().map(|row| median(row));
    println!(
        "  the interrupt costs {:.2} of what the thread costs (bare event: {:.2})",
        interrupt / thread,
        bare / thread
    );
}

/// A cgroup of this program, and the CPU that its programs run on.
struct Group {
    dir: PathBuf,
    cpu: u32,
}

impl Group {
    fn new(own: &Path, cpu: u32) -> Self {
        let dir = own.join(format!("quell-bench-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        Self { dir, cpu }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..100 {
            if fs::remove_dir(&self.dir).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The event or brake that counts the group.
#[expect(dead_code, reason = "kept for as long as it counts")]
enum Held {
    Nothing,
    Event(Event),
    Brake(Box<Brake>),
}

impl Held {
    /// `None` where the interrupt cannot decide.
    fn start(group: &Group, variant: Variant, budget: Nanos) -> Option<Self> {
        let dir = perf::cgroup_dir(&group.dir).unwrap();
        let decides = match variant {
            Variant::None => return Some(Self::Nothing),
            Variant::Bare => {
                let code = EventCode {
                    kind: TYPE_SOFTWARE,
                    config: SW_CPU_CLOCK,
                };
                let scope = Scope::Cgroup(dir.as_fd(), group.cpu);
                let event = Event::open(code, scope, Wake::Repeatedly).unwrap();
                event.arm(budget.0).unwrap();
                return Some(Self::Event(event));
            }
            Variant::Decided(decides) => decides,
        };
        let regulation = Regulation {
            cpus: [group.cpu].into_iter().collect(),
            budget: Lines::at(PEAK, budget),
            period: Nanos(budget.0 / 5 * 4),
            meter: Kind::Time,
            peak: PEAK,
            pooling: None,
            split: Split::Even,
            least: Lines(0),
        };
        let meter = Counted {
            meter: TimeMeter::open(&dir, group.cpu, PEAK).unwrap(),
            decides,
        };
        let pool = Arc::new(Pool::new(1024));
        // It never stops anything, so it needs no cgroup of its own.
        let permit: Permit = Arc::new(|_| true);
        let brake = Brake::start(
            group.cpu,
            &regulation,
            Box::new(meter),
            permit,
            Vec::new(),
            &pool,
            None,
        )
        .unwrap();
        if brake.decides == decides {
            Some(Self::Brake(Box::new(brake)))
        } else {
            eprintln!("SKIPPED: the kernel does not take a program for the counter's interrupt");
            None
        }
    }

    /// Prints why the row cannot be compared, if so.
    fn end(self) {
        if let Self::Brake(brake) = self {
            let stats = brake.stats();
            let counts = [&stats.overflows, &stats.renewed, &stats.throttles];
            let [overflows, renewed, throttles] = counts.map(|c| c.load(Ordering::Relaxed));
            let woken = overflows - renewed;
            if throttles > 0 || brake.decides == Decides::Interrupt && woken * 20 > overflows {
                eprintln!("  {overflows} overflows, {woken} woke the thread, {throttles} stops");
            }
        }
    }
}

/// A program that works for the spans it is given, and reports how much it did.
struct Subject {
    child: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Subject {
    fn start(kind: &str, cpu: u32, group: Option<&Path>) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--subject", kind])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        if let Some(group) = group {
            fs::write(group.join("cgroup.procs"), child.id().to_string()).unwrap();
        }
        let mut only = rustix::thread::CpuSet::new();
        only.set(cpu as usize);
        let pid = rustix::process::Pid::from_child(&child);
        rustix::thread::sched_setaffinity(Some(pid), &only).unwrap();
        Self {
            ask: child.stdin.take().unwrap(),
            answers: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    fn begin(&mut self, span: Duration) {
        writeln!(self.ask, "{}", span.as_micros()).unwrap();
    }

    fn end(&mut self) -> f64 {
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        answer.trim().parse().unwrap()
    }

    fn work(&mut self, span: Duration) -> f64 {
        self.begin(span);
        self.end()
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The other half of [`Subject`]: reads a span in microseconds per line and answers with a count.
fn subject(kind: &str) {
    if kind == "filler" {
        let idle = libc::sched_param { sched_priority: 0 };
        // SAFETY: the parameter is valid for the call; 0 is the calling thread.
        unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const idle) };
    }
    // SAFETY: plain numbers. The timer slack is least, so that sleeps end when they should.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    for line in std::io::stdin().lines() {
        let span = Duration::from_micros(line.unwrap().parse().unwrap());
        let end = Instant::now() + span;
        let mut next = Instant::now();
        let (mut count, mut x) = (0u64, 1u64);
        while Instant::now() < end {
            if kind == "sleepy" {
                next += SLEEP;
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
            } else {
                for _ in 0..1_000 {
                    x = black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
                }
            }
            count += 1;
        }
        println!("{count}");
    }
}
