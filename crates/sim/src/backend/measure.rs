//! What the simulated machine can do, as measured by its own generators in simulated time. The
//! rates are measured by the procedure for real machines (`quell_workload::measure`). The curve of
//! its bandwidth allocation is [`MbaCurve`].
//!
//! Deviations from that procedure: nothing disturbs a run, so runs are short and each CPU alone
//! runs once. Every run begins on a freshly booted machine, with its buffer touched.

use quell_plan::deep::{MbaCurve, Runs, Streams};
use quell_plan::inventory::Measured;
use quell_policy::workload::Operation;
use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::units::{LINE_BYTES, Nanos, Rate};

use crate::board::Board;
use crate::frames::Placement;
use crate::os::{Os, TaskId};
use crate::pattern::{Pattern, Stream};

use quell_record::backend::BackendError;

/// The length of a run under a percentage of bandwidth allocation. There are many of them.
const BRIEF: Nanos = Nanos::micros(300);
/// A buffer of more bytes than a CPU streams through in such a run.
const LEAST: u64 = 16 << 20;
/// How many runs there are of all CPUs together.
const ROUNDS: u64 = 2;
/// The load before a run is measured, until the queues are as full as they get.
const SETTLE: Nanos = Nanos::micros(100);
/// The measured span of a run.
const RUN: Nanos = Nanos::millis(1);
/// How many CPUs are measured alone: all are alike.
const MOST_CPUS: usize = 2;
/// A buffer is so many times as large as the last-level caches.
const CACHES: u64 = 4;

/// A kind of stream that could be the fastest.
struct Way {
    operation: &'static str,
    pattern: Pattern,
    /// Whether touching its memory leaves it modified, as the stream does.
    writes: bool,
}

/// All streams to try over a buffer of so many bytes: those of Linux.
fn ways(bytes: u64) -> [Way; 5] {
    let way = |operation, pattern, writes| Way {
        operation,
        pattern,
        writes,
    };
    let stream = |operation: Operation, pattern, writes| way(operation.name(), pattern, writes);
    let copy = |past| Pattern::Stream(Stream::copy(bytes, past));
    let past = Pattern::Stream(Stream::past(bytes));
    [
        stream(Operation::Read, Pattern::bandwidth(bytes, false), false),
        stream(Operation::Write, Pattern::bandwidth(bytes, true), true),
        stream(Operation::Copy, copy(false), true),
        stream(Operation::NonTemporal, past, false),
        way("copy-non-temporal", copy(true), false),
    ]
}

/// How streams are measured.
#[derive(Clone, Copy)]
struct Trial {
    /// The percentage of their requests that they are throttled to; 100: not throttled.
    percent: u32,
    span: Nanos,
    /// So many bytes of other programs' memory fill the caches. `None`: each stream has gone
    /// through its own.
    others: Option<u64>,
}

/// A run of full length without throttling.
const FREE: Trial = Trial {
    percent: 100,
    span: RUN,
    others: None,
};

/// Streams on `cpus` at once on a machine booted with `seed`, each over `bytes`. Returns the
/// program bytes per second of each.
fn run(
    board: &Board,
    cpus: &[CpuId],
    (way, bytes): (&Way, u64),
    trial: Trial,
    seed: u64,
) -> Result<Vec<f64>, BackendError> {
    let wrong = |e: &dyn std::fmt::Display| {
        BackendError(format!(
            "the rates of {} cannot be measured: {e}",
            board.profile.name
        ))
    };
    let mut os = Os::boot(board, seed).map_err(|e| wrong(&e))?;
    os.set_mba(0, trial.percent);
    let mut start = |cpu, bytes, touched| {
        let space = os
            .allocate(bytes, &Placement::Plain)
            .map_err(|e| wrong(&e))?;
        let program = (way.pattern.clone(), space);
        os.spawn(
            &CpuSet::from_iter([cpu]),
            None,
            0,
            program,
            touched,
            way.writes,
        )
        .ok_or_else(|| wrong(&format!("there is no CPU {cpu}")))
    };
    if let (Some(others), Some(cpu)) = (trial.others, cpus.first()) {
        start(*cpu, others, others)?;
    }
    let touched = trial.others.map_or(bytes, |_| 0);
    let tasks: Vec<TaskId> = cpus
        .iter()
        .map(|cpu| start(*cpu, bytes, touched))
        .collect::<Result<_, _>>()?;
    tasks.iter().for_each(|task| os.go_on(*task, u64::MAX));
    os.run(SETTLE);
    let before: Vec<u64> = tasks.iter().map(|task| os.done(*task)).collect();
    os.run(SETTLE.plus(trial.span));
    let done = tasks
        .iter()
        .zip(before)
        .map(|(task, before)| os.done(*task) - before);
    Ok(done
        .map(|lines| (lines * LINE_BYTES) as f64 * 1e9 / trial.span.0 as f64)
        .collect())
}

/// The measured rates of the machine's CPUs.
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
    let bytes = CACHES * llc;
    let mut measured = Vec::new();
    for way in ways(bytes) {
        let (mut alone, mut together) = (Runs::new(), Runs::new());
        for (cpu, n) in cpus.spread(MOST_CPUS).into_iter().zip(0..) {
            let rates = run(board, &[cpu], (&way, bytes), FREE, seed + n)?;
            alone.insert(cpu, rates);
        }
        for n in 0..ROUNDS {
            let rates = run(board, &all, (&way, bytes), FREE, seed + n)?;
            for (&cpu, rate) in all.iter().zip(rates) {
                together.entry(cpu).or_default().push(rate);
            }
        }
        measured.push(Streams {
            operation: way.operation,
            alone,
            together,
        });
    }
    let mut measured = Measured::of_streams(&measured, all.len(), 0)
        .ok_or_else(|| BackendError("rates of no CPU were asked for".to_owned()))?;
    measured.stop_cost = Some(board.stop_cost());
    // Every task here is a generator in some group.
    measured.rest = Some(Rate(0));
    let Some(bounds) = &board.profile.mechanisms.mba else {
        return Ok(measured);
    };
    let operation = measured.peak_operation.as_str();
    let mut once = |percent, cpus: &[CpuId]| {
        let trial = Trial {
            percent,
            span: BRIEF,
            others: Some(2 * llc),
        };
        let fastest = ways(LEAST).into_iter().find(|w| w.operation == operation);
        let rates = match fastest {
            Some(way) => run(board, cpus, (&way, LEAST), trial, seed)?,
            None => Vec::new(),
        };
        Ok::<f64, BackendError>(rates.into_iter().sum())
    };
    let curve = MbaCurve::measure(bounds, cpus, operation, 1, &mut once)?;
    Ok(Measured {
        mba: Some(curve),
        ..measured
    })
}
