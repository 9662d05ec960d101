//! A real-time task, which works in units: its jobs. The machine logs each job. This module makes
//! metrics of the log.

use quell_control::deadline;
use quell_model::Picos;
use quell_record::measurement::Measurement;
use quell_types::units::Nanos;

use super::{Bell, Counter, Key, WINDOW};
use crate::machine::Unit;
use crate::os::{Os, TaskId};

/// Picoseconds of a nanosecond.
pub(super) const PS: Picos = 1_000;

/// A real-time task with a job per period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) period: Nanos,
    pub(super) deadline: Nanos,
    /// Program bytes of a pass: the lines that it touches.
    pub(super) bytes: u64,
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one per subject")]
enum Phase {
    Ready,
    WarmsUp {
        until: Nanos,
        duration: Nanos,
    },
    Measures {
        begin: Nanos,
        end: Nanos,
        counted: Counter,
        /// Units that ended since the measurement began, and the last one before.
        units: Vec<Unit>,
    },
    Loads,
}

/// A generator that works in units, and its measurement.
#[derive(Debug)]
pub(super) struct Units {
    job: Job,
    /// Picoseconds of a core cycle.
    clock: Picos,
    phase: Phase,
    /// Units that ended since the clock was read last.
    ended: Vec<Unit>,
    /// Units that [`Self::fresh()`] has not returned yet. `None`: they are not collected.
    fresh: Option<Vec<Unit>>,
}

impl Units {
    pub(super) fn new(job: Job, clock: Picos) -> Self {
        Self {
            job,
            clock,
            phase: Phase::Ready,
            ended: Vec::new(),
            fresh: None,
        }
    }

    /// From now on units are collected for [`Self::fresh()`].
    pub(super) fn observe(&mut self) {
        self.fresh = Some(Vec::new());
    }

    /// The jobs that ended since the last call, if they are collected. A job's time counts from
    /// when it was due.
    pub(super) fn fresh(&mut self, os: &mut Os, task: TaskId) -> Vec<deadline::Unit> {
        self.gather(os, task);
        let told = self.fresh.as_mut().map(std::mem::take).unwrap_or_default();
        told.iter()
            .map(|unit| deadline::Unit {
                ended: Nanos(unit.ended / PS),
                took: Nanos((unit.ended - unit.due) / PS),
                target: None,
            })
            .collect()
    }

    fn gather(&mut self, os: &mut Os, task: TaskId) {
        let ended = os.take_units(task);
        if let Some(fresh) = &mut self.fresh {
            fresh.extend(&ended);
        }
        self.ended.extend(ended);
    }

    pub(super) fn go(
        &mut self,
        os: &mut Os,
        task: TaskId,
        key: Key,
        warmup: Nanos,
        duration: Nanos,
    ) {
        let until = os.now().plus(warmup);
        self.phase = Phase::WarmsUp { until, duration };
        os.go_on(task, u64::MAX);
        os.alarm(until, key.of(Bell::Look));
    }

    pub(super) fn look(&mut self, os: &mut Os, task: TaskId, key: Key) -> Option<Measurement> {
        let now = os.now();
        self.gather(os, task);
        let mut ended = std::mem::take(&mut self.ended);
        match &mut self.phase {
            Phase::WarmsUp { until, duration } if now >= *until => {
                let end = now.plus(*duration);
                ended.drain(..ended.len().saturating_sub(1));
                os.alarm(now.plus(WINDOW).min(end), key.of(Bell::Look));
                self.phase = Phase::Measures {
                    begin: now,
                    end,
                    counted: Counter::begin(os, task, self.clock),
                    units: ended,
                };
                None
            }
            Phase::Measures {
                begin,
                end,
                counted,
                units,
            } => {
                units.append(&mut ended);
                // A job that was released within the span belongs to it, however late it is done.
                let open = units
                    .last()
                    .is_none_or(|last| last.due + self.job.period.0 * PS < end.0 * PS);
                if now < *end || open {
                    let next = now.plus(WINDOW);
                    let next = if now < *end { next.min(*end) } else { next };
                    os.alarm(next, key.of(Bell::Look));
                    return None;
                }
                let span = Span {
                    begin: begin.0 * PS,
                    end: end.0 * PS,
                };
                let mut metrics: Vec<(&str, Vec<f64>)> = Vec::new();
                let jobs = task_metrics(&mut metrics, &span, units, self.job.deadline, self.clock);
                let metrics = metrics.into_iter().map(|(name, v)| (name.to_owned(), v));
                let metrics = metrics.chain(counted.end(os, task));
                let measured = Measurement {
                    metrics: metrics.filter(|(_, v)| !v.is_empty()).collect(),
                    window_ns: self.job.period.0,
                    bytes: jobs * self.job.bytes,
                    duration_ns: now.since(*begin).0,
                    begun: None,
                    memory_bytes: Some(counted.memory_bytes(os, task)),
                    ended_ns: Vec::new(),
                    account: None,
                };
                self.phase = Phase::Loads;
                Some(measured)
            }
            Phase::Ready | Phase::WarmsUp { .. } | Phase::Loads => None,
        }
    }
}

/// The measured span, in picoseconds since booting.
struct Span {
    begin: Picos,
    end: Picos,
}

/// Adds the metrics of `docs/generators.md` for a real-time task. Returns how many jobs were
/// released in the span and done.
fn task_metrics(
    metrics: &mut Vec<(&str, Vec<f64>)>,
    span: &Span,
    units: &[Unit],
    deadline: Nanos,
    clock: Picos,
) -> u64 {
    let (mut cycles, mut wakeup, mut response, mut misses) = (vec![], vec![], vec![], vec![]);
    let mut met: [Vec<f64>; MET.len()] = Default::default();
    let mut before = 0;
    for unit in units {
        let slept = before <= unit.due;
        before = unit.ended;
        if !(span.begin..span.end).contains(&unit.due) {
            continue;
        }
        cycles.push((unit.ended - unit.began) as f64 / clock.max(1) as f64);
        for (values, value) in met.iter_mut().zip(of_unit(unit, clock)) {
            values.push(value);
        }
        if slept {
            wakeup.push((unit.began - unit.due) as f64 / 1e6);
        }
        response.push((unit.ended - unit.due) as f64 / 1e6);
        let never = usize::try_from(unit.skipped).unwrap_or(0);
        misses.extend(std::iter::repeat_n(1.0, never));
        misses.push(f64::from(u8::from(unit.ended - unit.due > deadline.0 * PS)));
    }
    let jobs = cycles.len() as u64;
    metrics.extend([
        ("cycles", cycles),
        ("wakeup_us", wakeup),
        ("response_us", response),
        ("misses", misses),
    ]);
    metrics.extend(MET.into_iter().zip(met));
    jobs
}

/// What is known of each job beyond its time, in the order of [`of_unit`].
const MET: [&str; 6] = [
    "llc_misses",
    "own_misses",
    "buffer_cycles",
    "own_cycles",
    "port_cycles",
    "interrupt_cycles",
];

/// The values of [`MET`] for a job: lines from memory and those of them that are its code, stack
/// and page tables. Then the cycles that it waited for the buffer's lines, for its own, and for the
/// port of a cache, and those in which it was not on its core.
fn of_unit(unit: &Unit, clock: Picos) -> [f64; MET.len()] {
    let met = &unit.met;
    let cycles = |time: Picos| time as f64 / clock.max(1) as f64;
    let away = (unit.ended - unit.began).saturating_sub(met.active);
    [
        met.misses as f64,
        met.own_misses as f64,
        cycles(met.stalled - met.own_stalled),
        cycles(met.own_stalled),
        cycles(met.queued),
        cycles(away),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Met;

    const MS: Picos = 1_000_000_000;

    /// A unit with these times, in milliseconds.
    fn unit(due: u64, began: u64, ended: u64, skipped: u64) -> Unit {
        Unit {
            due: due * MS,
            began: began * MS,
            ended: ended * MS,
            skipped,
            met: Met::default(),
        }
    }

    fn span(begin: u64, end: u64) -> Span {
        Span {
            begin: begin * MS,
            end: end * MS,
        }
    }

    #[test]
    fn a_job_that_was_never_begun_is_a_miss() {
        let units = [
            unit(0, 0, 3, 0),
            unit(10, 10, 34, 0),
            unit(30, 34, 36, 1),
            unit(40, 40, 42, 0),
        ];
        let mut metrics = Vec::new();
        let jobs = task_metrics(&mut metrics, &span(5, 45), &units, Nanos::millis(10), 1_000);
        assert_eq!(jobs, 3);
        let of = |name| &metrics.iter().find(|(n, _)| *n == name).unwrap().1;
        assert_eq!(*of("cycles"), [24e6, 2e6, 2e6]);
        assert_eq!(*of("misses"), [1.0, 1.0, 0.0, 0.0]);
        assert_eq!(*of("wakeup_us"), [0.0, 0.0]);
        assert_eq!(*of("response_us"), [24e3, 6e3, 2e3]);
    }
}
