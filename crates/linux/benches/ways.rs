//! CPU time that `quell ways` takes: sampling at 10 and at 100 Hz, and by context switches, with
//! 10, 1,000 and 10,000 threads in a class. Then what recording costs each context switch.
//!
//! Where the caches are divided is a folder ([`Divided`]), so that it runs on any machine. Threads
//! are real, two of them run a thousand times a second, and the others sleep. Registers are not
//! read.
//!
//! `cargo bench -p quell-linux --bench ways [-- SECONDS]`, as root for the context switches.

#![allow(clippy::unwrap_used, reason = "a program of tests")]

#[path = "../tests/common/divided.rs"]
mod divided;

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use divided::Divided;
use quell_kernel::rt;
use quell_kernel::switches::Switches;
use quell_linux::ways::Looker;
use quell_record::ways::{Snapshot, changes};
use quell_types::cpuset::CpuSet;
use rustix::time::ClockId;

const COUNTS: [usize; 3] = [10, 1_000, 10_000];
/// Threads that run.
const BUSY: usize = 2;
/// Samples before the measurement.
const WARM: u32 = 15;
/// The most of a CPU that 100 samples a second of 10 threads may take.
const BAR: f64 = 1.0;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|a| a == "--threads") {
        return threads(arguments[at + 1].parse().unwrap());
    }
    if !arguments.iter().any(|a| a == "--bench") {
        return eprintln!("SKIPPED: runs with cargo bench only");
    }
    let seconds = arguments.iter().find_map(|a| a.parse::<u64>().ok());
    let span = Duration::from_secs(seconds.unwrap_or(5));
    println!("threads   samples/s   by         CPU time, % of one   median sample   longest");
    let mut met = true;
    for count in COUNTS {
        let program = Program::start(count);
        for hertz in [10, 100] {
            let part = sample(&program, hertz, None, span);
            met &= count > 10 || hertz < 100 || part <= BAR;
        }
        match Switches::open(&online()) {
            Ok(switches) => {
                sample(&program, 10, Some(switches), span);
            }
            Err(e) => eprintln!("SKIPPED: switches cannot be recorded here: {e}"),
        }
    }
    each_switch(span);
    let word = if met { "met" } else { "MISSED" };
    println!("bar: 100 samples a second of 10 threads take at most {BAR} % of a CPU: {word}");
}

fn online() -> CpuSet {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    online.trim().parse().unwrap()
}

/// Runs as a program with so many threads, until its input ends.
fn threads(count: usize) {
    for n in 1..count {
        let work = move || loop {
            match n <= BUSY {
                true => std::thread::sleep(Duration::from_millis(1)),
                false => std::thread::park(),
            }
        };
        let builder = std::thread::Builder::new().stack_size(64 << 10);
        builder.spawn(work).unwrap();
    }
    println!("ready");
    let _ = std::io::stdin().read(&mut [0]);
}

struct Program {
    child: Child,
    machine: Divided,
}

impl Program {
    fn start(count: usize) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--threads", &count.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 6];
        child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut ready)
            .unwrap();
        let machine = Divided::new();
        let tids = machine.show(child.id());
        machine.class("", "fff0", &[]);
        machine.class("db", "f", &tids);
        machine.class("batch", "f0", &[]);
        Self { child, machine }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Samples for a while. Returns the CPU time in percent of one CPU.
fn sample(program: &Program, hertz: u32, mut switches: Option<Switches>, span: Duration) -> f64 {
    let files = program.machine.files();
    let mut looker = Looker::new(&files, false).unwrap();
    let by = if switches.is_some() {
        "switches"
    } else {
        "samples"
    };
    let mut before = Snapshot::default();
    let mut times = Vec::new();
    let mut once = |switches: &mut Option<Switches>| {
        let begun = rt::clock(ClockId::ThreadCPUTime);
        let taken = switches.as_mut().map(Switches::take);
        let seen = looker.sample(&files, taken.as_ref()).unwrap();
        std::hint::black_box(changes(&before, &seen));
        before = seen;
        rt::clock(ClockId::ThreadCPUTime).since(begun).0
    };
    // The first sample reads all threads. Those that sleep are known as such after a few.
    let first = once(&mut switches);
    (0..WARM).for_each(|_| {
        once(&mut switches);
    });
    let begun = Instant::now();
    let mut next = begun;
    while begun.elapsed() < span {
        next += Duration::from_secs(1) / hertz;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        times.push(once(&mut switches));
    }
    // On a busy machine fewer samples are taken than wanted.
    let each = times.iter().sum::<u64>() as f64 / times.len() as f64;
    let part = each * f64::from(hertz) / 1e7;
    times.sort_unstable();
    let ms = |ns: u64| ns as f64 / 1e6;
    println!(
        "{:>7}   {hertz:>9}   {by:<8}   {part:>18.2}   {:>10.3} ms   {:.3} ms (first {:.1} ms)",
        program.machine_threads(),
        ms(times[times.len() / 2]),
        ms(*times.last().unwrap()),
        ms(first),
    );
    part
}

impl Program {
    fn machine_threads(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/task", self.child.id()))
            .unwrap()
            .count()
    }
}

/// What a context switch takes with and without its records, by two threads that wake each other on
/// one CPU.
fn each_switch(span: Duration) {
    let cpu = rt::current_cpu();
    let mut rows = [Vec::new(), Vec::new()];
    let mut read = Vec::new();
    for round in 0..6 {
        let recorded = round % 2 == 1;
        let mut switches = match recorded
            .then(|| Switches::open(&CpuSet::one(cpu)))
            .transpose()
        {
            Ok(switches) => switches,
            Err(_) => return,
        };
        let (passes, took) = ping_pong(cpu, span / 6, &mut || {
            let Some(switches) = &mut switches else {
                return;
            };
            let begun = rt::clock(ClockId::ThreadCPUTime);
            let taken = switches.take();
            let spent = rt::clock(ClockId::ThreadCPUTime).since(begun);
            let runs: usize = taken.runs.values().map(Vec::len).sum();
            read.push((spent.0, runs as u64, taken.lost));
        });
        rows[usize::from(recorded)].push(took.as_nanos() as f64 / passes as f64 / 2.0);
    }
    for (row, name) in rows.iter_mut().zip(["not recorded", "recorded"]) {
        row.sort_by(f64::total_cmp);
        println!(
            "a context switch, {name}: {:.0} ns ({row:.0?})",
            row[row.len() / 2]
        );
    }
    let sum = |of: fn(&(u64, u64, u64)) -> u64| read.iter().map(of).sum::<u64>();
    let runs = sum(|r| r.1).max(1);
    println!(
        "reading takes {:.0} ns for each of {runs} runs, {} records were lost",
        sum(|r| r.0) as f64 / runs as f64,
        sum(|r| r.2)
    );
}

/// Passes a byte to and fro for a while. Returns how often, and how long that took. `meanwhile` is
/// called fifty times a second.
fn ping_pong(cpu: u32, span: Duration, meanwhile: &mut dyn FnMut()) -> (u64, Duration) {
    let (mut one, mut other) = std::os::unix::net::UnixStream::pair().unwrap();
    let answer = std::thread::spawn(move || {
        let _ = rt::pin(cpu);
        let mut byte = [0];
        while other.read_exact(&mut byte).is_ok() && other.write_all(&byte).is_ok() {}
    });
    let ask = std::thread::spawn(move || {
        let _ = rt::pin(cpu);
        let begun = Instant::now();
        let mut passes = 0;
        let mut byte = [1];
        while begun.elapsed() < span {
            one.write_all(&byte).unwrap();
            one.read_exact(&mut byte).unwrap();
            passes += 1;
        }
        (passes, begun.elapsed())
    });
    while !ask.is_finished() {
        std::thread::sleep(Duration::from_millis(20));
        meanwhile();
    }
    let result = ask.join().unwrap();
    answer.join().unwrap();
    result
}
