//! What a regulator takes to decide after an overflow, in nanoseconds: `cargo bench -p
//! quell-control --bench overflow [-- NAME]`.
//!
//! Prints the best and the median of several runs, by one thread's CPU time. The system calls
//! around it in a brake (the wake-up, reading and arming the counter) are left out.

use std::hint::black_box;
use std::time::Instant;

use quell_control::bandwidth::CpuRegulator;
use quell_control::config::Pooling;
use quell_control::pool::{Pool, SharedPool};
use quell_control::pooled::PooledRegulator;
use quell_types::options::{After, Idle};
use quell_types::units::{Lines, Nanos, Share};

const RUNS: usize = 7;
const COUNT: u64 = 5_000_000;
const LENGTH: Nanos = Nanos::millis(1);
const BUDGET: Lines = Lines(16_384);

/// This thread's CPU time, in nanoseconds (Linux); else the time since the beginning.
fn spent(begun: Instant) -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = stat.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    nanos.map_or_else(|| begun.elapsed().as_secs_f64() * 1e9, |ns| ns as f64)
}

/// Runs `work`, which decides [`COUNT`] times.
fn bench(name: &str, mut work: impl FnMut()) {
    let part = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    if part.is_some_and(|part| !name.contains(&part)) {
        return;
    }
    let begun = Instant::now();
    let mut ns: Vec<f64> = (0..RUNS)
        .map(|_| {
            let before = spent(begun);
            work();
            (spent(begun) - before) / COUNT as f64
        })
        .collect();
    ns.sort_by(f64::total_cmp);
    println!(
        "{name:<44} {:>6.1} ns   median {:>6.1}",
        ns[0],
        ns[RUNS / 2]
    );
}

fn rules(quantum: u64) -> Pooling {
    Pooling {
        reclaim: true,
        after: After::Wait,
        predictor: Share::percent(50),
        idle: Idle::Counted,
        quantum: Lines(quantum),
        capped: true,
        headroom: false,
    }
}

/// A member that has just begun its first period, and the pool.
fn member(quantum: u64, length: Nanos) -> (SharedPool, PooledRegulator) {
    let pool = SharedPool::new(Nanos(0));
    let mut cpu = PooledRegulator::new(&rules(quantum), BUDGET, length);
    cpu.begin(Nanos(0), Lines(0), &pool);
    (pool, cpu)
}

fn main() {
    let period = |n: u64| Nanos(n * LENGTH.0);
    bench("alone/overflow, stop, begin", || {
        let mut cpu = CpuRegulator::new(BUDGET, LENGTH, Nanos(0), Lines(0));
        for n in 0..COUNT {
            let used = Lines((n + 1) * BUDGET.0);
            black_box(cpu.overflow(Nanos(period(n).0 + 1_000), used));
            black_box(cpu.begin(period(n + 1), used));
        }
    });
    bench("pooled/overflow below the grant", || {
        let (pool, mut cpu) = member(1_024, LENGTH);
        for n in 0..COUNT {
            black_box(cpu.overflow(Nanos(n % 1_000), Lines(n % BUDGET.0), &pool));
        }
    });
    bench("pooled/overflow, a quantum from the pool", || {
        let (pool, mut cpu) = member(1, Nanos::secs(100));
        if let Some(period) = cpu.period() {
            pool.give(period, Lines(2 * COUNT));
        }
        for n in 0..COUNT {
            black_box(cpu.overflow(Nanos(n), Lines(BUDGET.0 + n), &pool));
        }
    });
    bench("pooled/overflow, stop, begin", || {
        let (pool, mut cpu) = member(1_024, LENGTH);
        for n in 0..COUNT {
            let used = Lines((n + 1) * BUDGET.0);
            black_box(cpu.overflow(Nanos(period(n).0 + 1_000), used, &pool));
            black_box(cpu.begin(period(n + 1), used, &pool));
        }
    });
    bench("pooled/begin of an idle CPU", || {
        let (pool, mut cpu) = member(1_024, LENGTH);
        for n in 0..COUNT {
            black_box(cpu.begin(period(n + 1), Lines(0), &pool));
        }
    });
    bench("pooled/a look while it is stopped", || {
        let (pool, cpu) = member(1_024, LENGTH);
        for _ in 0..COUNT {
            black_box(black_box(&cpu).news(&pool));
        }
    });
}
