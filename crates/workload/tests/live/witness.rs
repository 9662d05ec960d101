//! The generators against independent witnesses: cachegrind's model of a cache counts the lines
//! that they touch, and their times must order as the memory that they reach.
#![allow(
    clippy::unwrap_used,
    reason = "a test: helpers outside test functions, too"
)]

use std::process::Command;

use quell_policy::workload::{Caches, Workload};
use quell_types::units::{Bytes, Nanos};
use quell_workload::{BenchOptions, Load, ResolvedWorkload, bench};

fn resolved(spec: &str) -> ResolvedWorkload {
    let caches = Caches {
        l1: Bytes(32 << 10),
        l2: Bytes(1 << 20),
        llc: Bytes(16 << 20),
        seen: Bytes(16 << 20),
    };
    spec.parse::<Workload>().unwrap().resolve(&caches)
}

const SPEC: &str = "QUELL_WITNESS_SPEC";
const STEPS: &str = "QUELL_WITNESS_STEPS";

/// Not a test of its own: this runs under cachegrind.
#[test]
#[ignore = "no test: the program that bytes_are_lines_that_cachegrind_counts runs under valgrind"]
fn under_cachegrind() {
    let Ok(spec) = std::env::var(SPEC) else {
        return;
    };
    let steps: u64 = std::env::var(STEPS).unwrap().parse().unwrap();
    let mut load = Load::new(&resolved(&spec)).unwrap();
    load.run(steps);
    println!("step_bytes {}", load.step_bytes());
}

/// Lines fetched into a 64 KiB last level during so many steps, set-up included; and program bytes
/// of a step.
fn misses(spec: &str, steps: u64) -> (u64, u64) {
    let folder = tempfile::tempdir().unwrap();
    let counts = folder.path().join("counts");
    let run = Command::new("valgrind")
        // Its optimiser drops a read whose value nobody uses, and the count with it. Whether it can
        // tell depends on how the compiler laid out the loop.
        .args([
            "--tool=cachegrind",
            "--cache-sim=yes",
            "--vex-iropt-level=0",
        ])
        .args(["--I1=32768,8,64", "--D1=32768,8,64", "--LL=65536,16,64"])
        .arg(format!("--cachegrind-out-file={}", counts.display()))
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "witness::under_cachegrind",
            "--ignored",
            "--nocapture",
        ])
        .env(SPEC, spec)
        .env(STEPS, steps.to_string())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    let failed = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(run.status.success(), "{said}{failed}");
    let bytes = said.split("step_bytes ").nth(1).unwrap();
    let bytes = bytes.split_whitespace().next().unwrap().parse().unwrap();
    let text = std::fs::read_to_string(counts).unwrap();
    let line = |start: &str| -> Vec<String> {
        let found = text.lines().find_map(|l| l.strip_prefix(start)).unwrap();
        found.split_whitespace().map(str::to_owned).collect()
    };
    let (events, summary) = (line("events:"), line("summary:"));
    let of = |event: &str| -> u64 {
        let place = events.iter().position(|e| e == event).unwrap();
        summary[place].parse().unwrap()
    };
    (of("DLmr") + of("DLmw"), bytes)
}

/// In a buffer sixteen times the modelled cache every visit to a line is a miss, whatever the
/// operation. The difference between two runs excludes the set-up.
#[test]
fn bytes_are_lines_that_cachegrind_counts() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        quell_testing::skip("valgrind is not installed");
        return;
    }
    // Program bytes that stand for one line: all of it, or the words stored into it.
    for (spec, per_line) in [
        ("latency:size=1MiB", 64),
        ("latency:size=1MiB,read-write", 128),
        ("bandwidth:read,size=1MiB", 64),
        ("bandwidth:write,size=1MiB", 64),
        ("bandwidth:copy,size=1MiB", 64),
        ("parallel-lists:lists=4,size=1MiB", 64),
        ("cache-churn:read,write,sequential,size=1MiB", 64),
        ("lattice:size=1MiB", 64),
        ("stores:size=1MiB", 8),
        ("stores:size=1MiB,stride=8B", 64),
    ] {
        let (before, bytes) = misses(spec, 10_000);
        let (after, _) = misses(spec, 30_000);
        let counted = 20_000 * bytes / per_line;
        let ratio = (after - before) as f64 / counted as f64;
        assert!(
            (0.97..=1.03).contains(&ratio),
            "{spec}: {ratio} of {counted}"
        );
    }
}

/// The best window of a short run, since noise only adds.
fn best(spec: &str) -> f64 {
    let options = BenchOptions {
        warmup: Nanos::millis(5),
        duration: Nanos::millis(40),
        ..BenchOptions::new(resolved(spec))
    };
    bench(&options).unwrap().figures.min
}

#[test]
fn a_list_in_the_first_level_is_far_faster_than_in_memory() {
    // 1-2 ns against some 100: 4 to 5 cycles against an access to memory.
    let ratio = best("latency:size=128MiB") / best("latency:size=16KiB");
    assert!(ratio > 4.0, "{ratio}");
}

#[test]
fn eight_lists_take_less_time_per_access_than_one() {
    let one = best("parallel-lists:lists=1,size=128MiB");
    let eight = best("parallel-lists:lists=8,size=128MiB");
    // Today's cores keep ten and more misses outstanding.
    assert!(one / eight > 1.7, "{one} and {eight} ns");
}
