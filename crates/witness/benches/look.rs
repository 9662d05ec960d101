//! CPU time of a look next to 100, 1,000 and 10,000 sleeping threads: programs of their own with
//! one thread each, and one program with all of them. The claim: a group of 100 threads has one CPU
//! to itself. The strangers may run on the other CPUs. What ran before is taken for Quell's own, so
//! that all is well.
//!
//! `cargo bench -p quell-witness --bench look [-- LOOKS]`. It needs two CPUs.

#![allow(clippy::expect_used, reason = "a benchmark fails by panicking")]

use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quell_kernel::root::{Files, Kernel};
use quell_kernel::{affinity, rt};
use quell_types::cpuset::CpuSet;
use quell_types::ids::PromiseId;
use quell_types::task::TaskMatch;
use quell_types::units::Nanos;
use quell_witness::{Claim, Party, What, Witness};
use rustix::time::ClockId;

/// Threads of the protected group.
const OWN: usize = 100;

/// Processes that end with this value.
struct Started(Vec<Child>);

impl Drop for Started {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}

/// Starts this program again with `threads` sleeping threads, in each of `count` processes.
fn start(count: usize, threads: usize) -> Started {
    let program = std::env::current_exe().expect("a path");
    let one = |_| {
        let mut command = Command::new(&program);
        command.args(["--sleep", &threads.to_string()]);
        command.stdin(Stdio::null()).spawn().expect("a process")
    };
    Started((0..count).map(one).collect())
}

fn sleep(threads: usize) {
    for _ in 1..threads {
        let builder = std::thread::Builder::new().stack_size(64 << 10);
        let forever = || std::thread::sleep(Duration::from_secs(3_600));
        builder.spawn(forever).expect("a thread");
    }
    std::thread::sleep(Duration::from_secs(3_600));
}

/// Medians of the CPU time and of the elapsed time of a look, and the CPU time of the first one.
fn measure(own: u32, cpus: &CpuSet, looks: u32, before: &BTreeSet<u32>) -> [Duration; 3] {
    let kernel: Arc<dyn Files> = Arc::new(Kernel::new().expect("a kernel"));
    let claim = Claim {
        id: PromiseId(1),
        group: "own".to_owned(),
        what: What::Alone { cpus: cpus.clone() },
    };
    let party = Party {
        name: "own".to_owned(),
        matching: vec![TaskMatch {
            pid: Some(own),
            ..TaskMatch::default()
        }],
        cpus: cpus.clone(),
        ..Party::default()
    };
    let mut witness = Witness::new(kernel, vec![claim], vec![party], before.clone());
    let mut took = Vec::new();
    let mut elapsed = Vec::new();
    for look in 0..=looks {
        let (begun, cpu) = (Instant::now(), rt::clock(ClockId::ThreadCPUTime));
        let verdicts = witness.look(Nanos::secs(u64::from(look)));
        took.push(Duration::from_nanos(
            rt::clock(ClockId::ThreadCPUTime).since(cpu).0,
        ));
        elapsed.push(begun.elapsed());
        if look == looks {
            println!("{verdicts:?}");
        }
    }
    let first = took.remove(0);
    took.sort_unstable();
    elapsed.sort_unstable();
    [took[took.len() / 2], elapsed[elapsed.len() / 2], first]
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|a| a == "--sleep") {
        return sleep(arguments[at + 1].parse().expect("a number"));
    }
    if !arguments.iter().any(|a| a == "--bench") {
        return eprintln!("SKIPPED: runs with cargo bench only");
    }
    let looks = arguments.iter().find_map(|a| a.parse().ok()).unwrap_or(50);
    let all = affinity::of(0).expect("the CPUs of this thread");
    let Some(last) = all.iter().next_back().filter(|_| all.len() > 1) else {
        return eprintln!("SKIPPED: one CPU");
    };
    let cpus = CpuSet::one(last);
    let rest = all.difference(&cpus);
    let names = std::fs::read_dir("/proc").expect("/proc");
    let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let before: BTreeSet<u32> = names.filter_map(|name| name.parse().ok()).collect();
    affinity::set(0, &cpus).expect("its own CPUs");
    let own = start(1, OWN);
    affinity::set(0, &rest).expect("its own CPUs");
    for (count, threads) in [(100, 1), (1_000, 1), (1, 1_000), (1, 10_000), (5_000, 2)] {
        let strangers = start(count, threads);
        std::thread::sleep(Duration::from_millis(500 + count as u64 * 2));
        let [cpu, elapsed, first] = measure(own.0[0].id(), &cpus, looks, &before);
        println!(
            "{count} processes of {threads} threads: {:.2} ms of CPU a look ({:.2} ms elapsed), \
             the first {:.2} ms",
            cpu.as_secs_f64() * 1e3,
            elapsed.as_secs_f64() * 1e3,
            first.as_secs_f64() * 1e3
        );
        drop(strangers);
    }
}
