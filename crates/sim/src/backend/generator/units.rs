//! Generators that work in units: a real-time task's jobs, and the frames of a video call's two
//! subjects. The machine logs each unit. This module makes metrics of the log.
//!
//! **Frames.** A frame that is late by a period or more never begins: a camera has a newer one by
//! then. What a person on the call notices follows from when frames are done:
//!
//! | metric | is |
//! |---|---|
//! | `frames_per_s` | frames done per second, by the times of completions |
//! | `encode_ms`, `compose_ms` | per frame, from its begin to its end |
//! | `rtt_ms` | per packet: [`CallModel::base_rtt`], plus its wait while a frame is encoded |
//! | `media_kb_s` | frames per second × media per frame (`rate` ÷ frames per second) |
//!
//! Only the machine limits `media_kb_s`: nothing else delays the call.
//!
//! Deviations from Linux: no packets, no rate control, no hand-over from call to display, so a
//! frame has no age.

use quell_control::deadline;
use quell_model::Picos;
use quell_policy::workload::BANDWIDTH_MB_S;
use quell_record::measurement::Measurement;
use quell_types::units::{Bytes, LINE_BYTES, Nanos, Rate};
use quell_types::windows::{Cut, Windows};

use super::{Bell, Counter, Key, WINDOW};
use crate::machine::Unit;
use crate::os::{Os, TaskId};
use crate::pattern::Stage;

/// Picoseconds of a nanosecond.
const PS: Picos = 1_000;
/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

/// The free parameters of the call. The published demand gives none of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct CallModel {
    /// The round trip of a packet that waits for nothing. Calibrated: with it the call alone on
    /// `xeon-w3530` has the published 1.85 ms.
    pub(in super::super) base_rtt: Nanos,
    /// Bytes of a packet, as on Linux. It determines how many arrive, evenly spaced.
    pub(in super::super) packet: Bytes,
}

impl CallModel {
    pub(in super::super) const USUAL: Self = Self {
        base_rtt: Nanos::micros(580),
        packet: Bytes(1200),
    };
}

/// The kind of work that comes in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// A real-time task with a job per period.
    Task {
        period: Nanos,
        deadline: Nanos,
        /// Program bytes of a pass: the lines that it touches.
        bytes: u64,
    },
    /// A subject of the video call.
    Frames {
        stage: Stage,
        /// The highest media rate that the call sends.
        media: Rate,
        fps: u32,
    },
}

#[derive(Debug)]
enum Phase {
    Ready,
    WarmsUp {
        until: Nanos,
        duration: Nanos,
    },
    Measures {
        begin: Nanos,
        end: Nanos,
        done: u64,
        counted: Counter,
        windows: Box<Windows>,
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

    /// The units that ended since the last call, if they are collected. A job's time counts from
    /// when it was due, a frame's from when it began.
    pub(super) fn fresh(&mut self, os: &mut Os, task: TaskId) -> Vec<deadline::Unit> {
        self.gather(os, task);
        let from = |unit: &Unit| match self.job {
            Job::Task { .. } => unit.due,
            Job::Frames { .. } => unit.began,
        };
        let told = self.fresh.as_mut().map(std::mem::take).unwrap_or_default();
        told.iter()
            .map(|unit| deadline::Unit {
                ended: Nanos(unit.ended / PS),
                took: Nanos((unit.ended - from(unit)) / PS),
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
        let done = os.done(task);
        self.gather(os, task);
        let mut ended = std::mem::take(&mut self.ended);
        match &mut self.phase {
            Phase::WarmsUp { until, duration } if now >= *until => {
                let mut windows = Box::new(Windows::new(duration.0, WINDOW.0, Cut::Evenly));
                windows.begin(now.0, done);
                let end = now.plus(*duration);
                ended.drain(..ended.len().saturating_sub(1));
                os.alarm(now.plus(WINDOW).min(end), key.of(Bell::Look));
                self.phase = Phase::Measures {
                    begin: now,
                    end,
                    done,
                    counted: Counter::begin(os, task, self.clock),
                    windows,
                    units: ended,
                };
                None
            }
            Phase::Measures {
                begin,
                end,
                done: before,
                counted,
                windows,
                units,
            } => {
                units.append(&mut ended);
                windows.sample(now.0, done, |lines, ns| {
                    (lines * LINE_BYTES) as f64 * 1e3 / ns.max(1) as f64
                });
                let open = match self.job {
                    // A job that was released within the span belongs to it, however late it is
                    // done.
                    Job::Task { period, .. } => units
                        .last()
                        .is_none_or(|last| last.due + period.0 * PS < end.0 * PS),
                    Job::Frames { .. } => false,
                };
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
                let mut metrics: Vec<(&str, Vec<f64>)> = counted.end(os, task);
                let (bytes, window_ns) = match self.job {
                    Job::Task {
                        period,
                        deadline,
                        bytes,
                    } => {
                        let jobs = task_metrics(&mut metrics, &span, units, deadline, self.clock);
                        (jobs * bytes, period.0)
                    }
                    Job::Frames { stage, media, fps } => {
                        let model = &CallModel::USUAL;
                        frame_metrics(&mut metrics, &span, units, stage, (media, fps), model);
                        let values = (**windows).clone().into_values();
                        metrics.push((BANDWIDTH_MB_S, values));
                        ((done - *before) * LINE_BYTES, windows.length())
                    }
                };
                metrics.retain(|(_, values)| !values.is_empty());
                let measured = Measurement {
                    metrics: metrics
                        .into_iter()
                        .map(|(name, v)| (name.to_owned(), v))
                        .collect(),
                    window_ns,
                    bytes,
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

fn ms(time: Picos) -> f64 {
    time as f64 / 1e9
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
    let mut before = 0;
    for unit in units {
        let slept = before <= unit.due;
        before = unit.ended;
        if !(span.begin..span.end).contains(&unit.due) {
            continue;
        }
        cycles.push((unit.ended - unit.began) as f64 / clock.max(1) as f64);
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
    jobs
}

/// The metrics of a frame subject, except its bandwidth.
fn frame_metrics(
    metrics: &mut Vec<(&str, Vec<f64>)>,
    span: &Span,
    units: &[Unit],
    stage: Stage,
    (media, fps): (Rate, u32),
    model: &CallModel,
) {
    let inside = |unit: &&Unit| unit.ended > span.begin && unit.ended <= span.end;
    let took = units.iter().filter(inside).map(|u| ms(u.ended - u.began));
    let took: Vec<f64> = took.collect();
    let frames = per_second(span, units, SECOND * PS / u64::from(fps.max(1)));
    if stage == Stage::Call {
        let each = media.0 as f64 / f64::from(fps.max(1)) / 1e3;
        metrics.push(("media_kb_s", frames.iter().map(|f| f * each).collect()));
        let apart = model.packet.0 * SECOND / media.0.max(1) * PS;
        metrics.push((
            "rtt_ms",
            round_trips(span, units, apart.max(1), model.base_rtt),
        ));
    }
    let name = match stage {
        Stage::Call => "encode_ms",
        Stage::Display => "compose_ms",
    };
    metrics.extend([("frames_per_s", frames), (name, took)]);
}

/// Frames done per second, for each second. Its time is counted between the last completions before
/// its begin and before its end. Where the last completion is more than two periods old, its time
/// counts to the boundary itself.
fn per_second(span: &Span, units: &[Unit], period: Picos) -> Vec<f64> {
    let whole = span.end - span.begin;
    let seconds = ((whole + SECOND * PS / 2) / (SECOND * PS)).max(1);
    let at = |n: u64| span.begin + whole / seconds * n;
    let last = |time: Picos| {
        let before = units.iter().map(|u| u.ended).take_while(|e| *e <= time);
        let last = before.last().filter(|last| time - last <= 2 * period);
        last.unwrap_or(time)
    };
    (0..seconds)
        .map(|n| {
            let (from, to) = (last(at(n)), last(at(n + 1)));
            let done = units.iter().filter(|u| u.ended > from && u.ended <= to);
            let took = (to.saturating_sub(from)) as f64 / 1e12;
            if took > 0.0 {
                done.count() as f64 / took
            } else {
                0.0
            }
        })
        .collect()
}

/// The round trip of each packet. Packets arrive every `apart` from the first completion to the
/// last: there it is known what the thread does. Between a frame's due time and its begin the
/// thread does not run. When it does run, it takes packets first.
fn round_trips(span: &Span, units: &[Unit], apart: Picos, base: Nanos) -> Vec<f64> {
    let Some((first, rest)) = units.split_first() else {
        return Vec::new();
    };
    let mut at = first.ended.max(span.begin);
    let mut trips = Vec::new();
    for unit in rest.iter().filter(|unit| unit.ended <= span.end) {
        while at < unit.ended {
            let wait = if at >= unit.began {
                unit.ended - at
            } else if at >= unit.due {
                unit.began - at
            } else {
                0
            };
            trips.push(ms(base.0 * PS + wait));
            at += apart;
        }
    }
    trips
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Picos = 1_000_000_000;

    /// A unit with these times, in milliseconds.
    fn unit(due: u64, began: u64, ended: u64, skipped: u64) -> Unit {
        Unit {
            due: due * MS,
            began: began * MS,
            ended: ended * MS,
            skipped,
        }
    }

    fn span(begin: u64, end: u64) -> Span {
        Span {
            begin: begin * MS,
            end: end * MS,
        }
    }

    #[test]
    fn frames_are_counted_from_completion_to_completion() {
        let steady: Vec<Unit> = (0..31)
            .map(|n| unit(n * 40, n * 40, n * 40 + 9, 0))
            .collect();
        assert_eq!(per_second(&span(200, 1200), &steady, 40 * MS), [25.0]);
        // The same, whatever part of a period the span begins with.
        assert_eq!(per_second(&span(215, 1187), &steady, 40 * MS), [25.0]);
        // No completion after half of the time: two periods of doubt, then that time counts.
        let (half, _) = steady.split_at(16);
        let found = per_second(&span(200, 1200), half, 40 * MS)[0];
        assert!((found - 11.0 / 1.031).abs() < 1e-9, "{found}");
    }

    #[test]
    fn packets_wait_for_the_frame_that_the_thread_is_busy_with() {
        let units = [unit(0, 0, 10, 0), unit(40, 40, 50, 0), unit(80, 84, 94, 0)];
        let trips = round_trips(&span(0, 100), &units, 2 * MS, Nanos::millis(1));
        // At 10, 12 … 38 packets do not wait. At 40 … 48 they wait until 50. Then the thread is
        // free until 80, and busy until 84 and until 94.
        assert_eq!(trips.len(), 42);
        assert!(trips[..15].iter().all(|t| *t == 1.0));
        assert_eq!(trips[15..20], [11.0, 9.0, 7.0, 5.0, 3.0]);
        assert_eq!(trips[35..38], [5.0, 3.0, 11.0]);
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
