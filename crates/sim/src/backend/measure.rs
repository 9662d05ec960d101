//! What the simulated machine is, as its own generators measure it: the rates, by the procedure used on real machines
//! (`quell_workload::measure`) in simulated time.
//!
//! Deviations from that procedure: nothing disturbs a run, so runs are short and each CPU alone runs once; the streams
//! are those operations that the simulated machine has; every run begins on a machine freshly booted, its buffer touched.

use std::collections::BTreeMap;

use quell_core::cpuset::{CpuId, CpuSet};
use quell_core::deep::{CpuRate, OperationRates, Spread};
use quell_core::inventory::Measured;
use quell_core::stats::median;
use quell_core::units::{LINE_BYTES, Nanos, Rate};

use crate::board::Board;
use crate::frames::Placement;
use crate::os::Os;
use crate::pattern::Pattern;

use quell_core::backend::BackendError;

/// Runs of all CPUs together.
const ROUNDS: u64 = 4;
/// Before a run is measured: until queues are as full as they stay.
const SETTLE: Nanos = Nanos::micros(100);
/// A run.
const RUN: Nanos = Nanos::millis(1);
/// CPUs measured alone.
const MOST_CPUS: usize = 4;
/// How many last-level caches a buffer is large.
const CACHES: u64 = 4;

const OPERATIONS: [(&str, bool); 2] = [("read", false), ("write", true)];

/// Streams on `cpus` at once on a machine booted with `seed`; program bytes per second of each.
fn run(
    board: &Board,
    cpus: &[CpuId],
    write: bool,
    llc: u64,
    seed: u64,
) -> Result<Vec<f64>, BackendError> {
    let wrong = |e: &dyn std::fmt::Display| {
        BackendError(format!(
            "the rates of {} cannot be measured: {e}",
            board.profile.name
        ))
    };
    let mut os = Os::boot(board, seed).map_err(|e| wrong(&e))?;
    let bytes = CACHES * llc;
    let mut tasks = Vec::new();
    for &cpu in cpus {
        let space = os
            .allocate(bytes, &Placement::Plain)
            .map_err(|e| wrong(&e))?;
        let program = (Pattern::bandwidth(bytes, write), space);
        let task = os
            .spawn(&CpuSet::from_iter([cpu]), None, 0, program, bytes, write)
            .ok_or_else(|| wrong(&format!("there is no CPU {cpu}")))?;
        tasks.push(task);
    }
    tasks.iter().for_each(|task| os.go_on(*task, u64::MAX));
    os.run(SETTLE);
    let before: Vec<u64> = tasks.iter().map(|task| os.done(*task)).collect();
    os.run(SETTLE.plus(RUN));
    let done = tasks
        .iter()
        .zip(before)
        .map(|(task, before)| os.done(*task) - before);
    Ok(done
        .map(|lines| (lines * LINE_BYTES) as f64 * 1e9 / RUN.0 as f64)
        .collect())
}

/// The rates of the machine's CPUs.
///
/// # Errors
/// When its memory does not hold the buffers.
pub(super) fn rates(
    board: &Board,
    cpus: &CpuSet,
    llc: u64,
    seed: u64,
) -> Result<Measured, BackendError> {
    let all: Vec<CpuId> = cpus.iter().collect();
    let some = all.len().min(MOST_CPUS);
    let spread: Vec<CpuId> = (0..some).map(|i| all[i * all.len() / some]).collect();
    let mut operations = Vec::new();
    let mut by_operation = BTreeMap::new();
    let mut best: Option<(f64, f64, &str)> = None;
    for (name, write) in OPERATIONS {
        let mut alone = Vec::new();
        for (&cpu, n) in spread.iter().zip(0..) {
            let rate = run(board, &[cpu], write, llc, seed + n)?;
            alone.push((cpu, rate));
        }
        let mut together: Vec<Vec<f64>> = Vec::new();
        for n in 0..ROUNDS {
            together.push(run(board, &all, write, llc, seed + n)?);
        }
        let peak = alone
            .iter()
            .flat_map(|(_, r)| r)
            .copied()
            .fold(0.0, f64::max);
        let sums: Vec<f64> = together.iter().map(|r| r.iter().sum()).collect();
        if best.is_none_or(|(most, _, _)| peak > most) {
            best = Some((peak, median(&sums).unwrap_or(0.0), name));
        }
        by_operation.insert(name.to_owned(), rate(peak));
        let mb_s = |rates: &[f64]| Spread::of(&rates.iter().map(|r| r / 1e6).collect::<Vec<f64>>());
        let each = |cpu: CpuId, rates: &[f64]| {
            Some(CpuRate {
                cpu,
                mb_s: mb_s(rates)?,
            })
        };
        let loaded = all.iter().enumerate().filter_map(|(n, &cpu)| {
            let runs: Vec<f64> = together.iter().filter_map(|r| r.get(n).copied()).collect();
            each(cpu, &runs)
        });
        if let Some(sum) = mb_s(&sums) {
            operations.push(OperationRates {
                operation: name.to_owned(),
                alone: alone.iter().filter_map(|(cpu, r)| each(*cpu, r)).collect(),
                loaded: loaded.collect(),
                together: sum,
            });
        }
    }
    let (peak, sustained, name) = best.unwrap_or((0.0, 0.0, ""));
    Ok(Measured {
        peak_cpu: rate(peak),
        peak_operation: name.to_owned(),
        by_operation,
        sustainable: rate(sustained.max(peak)),
        cpus: u32::try_from(all.len()).unwrap_or(u32::MAX),
        stop_cost: None,
        operations,
        counters: BTreeMap::new(),
        within_cache: None,
        at_unix_s: 0,
        deep: None,
    })
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a measured rate: positive, far below 2^53"
)]
fn rate(bytes_per_second: f64) -> Rate {
    // As on real machines, up to the next 10^6.
    Rate((bytes_per_second / 1e6).ceil() as u64 * 1_000_000)
}
