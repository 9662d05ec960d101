//! Generators that work in units: a real-time task's jobs, and the frames of a video call's two
//! subjects. The machine logs each unit; here is what is made of the log.
//!
//! **Frames.** A frame that is late by a period or more is never begun (a camera has a newer one by
//! then). What a person on the call notices follows from when frames get done:
//!
//! | metric | is |
//! |---|---|
//! | `frames_per_s` | frames done, from one completion to another: the last ones before a second begins and before it ends |
//! | `encode_ms`, `compose_ms` | of each frame, from its begin to its end |
//! | `rtt_ms` | of each packet, [`CallModel::base_rtt`] and how long it waits for the call's thread, which is busy with a frame until that is done |
//! | `media_kb_s` | frames per second × media per frame, which is `rate` ÷ frames per second: nothing but the machine holds the call up |
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

/// Picoseconds per nanosecond.
const PS: Picos = 1_000;
/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

/// The free parameters of the call, none of which the published demand tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct CallModel {
    /// The round trip of a packet that nothing waits for. Calibrated: with it the call alone on
    /// `xeon-w3530` has the published 1.85 ms.
    pub(in super::super) base_rtt: Nanos,
    /// Bytes of a packet, which says how many arrive, evenly: those of the call on Linux.
    pub(in super::super) packet: Bytes,
}

impl CallModel {
    pub(in super::super) const USUAL: Self = Self {
        base_rtt: Nanos::micros(580),
        packet: Bytes(1200),
    };
}

/// What works in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// A real-time task.
    Task {
        period: Nanos,
        deadline: Nanos,
        /// Program bytes of a pass: the lines it touches.
        bytes: u64,
    },
    /// A video call's subject.
    Frames {
        stage: Stage,
        /// The most media that the call sends.
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
        /// Those that ended since the begin, and the last one before.
        units: Vec<Unit>,
    },
    Loads,
}

/// A generator that works in units.
#[derive(Debug)]
pub(super) struct Units {
    job: Job,
    /// The clock period.
    clock: Picos,
    phase: Phase,
    /// Those that ended since the last look.
    ended: Vec<Unit>,
    /// Those that ended since somebody else was told, if anybody is.
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

    /// From now on somebody is told of every unit.
    pub(super) fn observe(&mut self) {
        self.fresh = Some(Vec::new());
    }

    /// Those that ended since the last time, if anybody is told: from when they were due, or of
    /// frames from when they began.
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
                windows.look(now.0, done, |lines, ns| {
                    (lines * LINE_BYTES) as f64 * 1e3 / ns.max(1) as f64
                });
                let open = match self.job {
                    // What was released within the span belongs to it, however late it is done.
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

/// The measured time, in picoseconds since booting.
struct Span {
    begin: Picos,
    end: Picos,
}

fn ms(time: Picos) -> f64 {
    time as f64 / 1e9
}

/// The metrics of `docs/generators.md` for a real-time task; how many jobs were released in the
/// span and done.
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

/// The metrics of a frame subject, but for its bandwidth.
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

/// Frames done per second, second by second: between the last completion before each begins and the
/// last before it ends. A subject that has not come to an end for two periods is not given that
/// time.
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

/// The round trip of each packet that arrives while it is known what the thread does: from the
/// first completion to the last, `apart` from each other. Between a frame's being due and its begin
/// the thread does not run, and takes packets first when it does.
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

    /// A unit by its times in milliseconds.
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
        // The same whatever part of a period the span begins with.
        assert_eq!(per_second(&span(215, 1187), &steady, 40 * MS), [25.0]);
        // Nothing after half of the time: two periods of doubt, then it counts.
        let (half, _) = steady.split_at(16);
        let found = per_second(&span(200, 1200), half, 40 * MS)[0];
        assert!((found - 11.0 / 1.031).abs() < 1e-9, "{found}");
    }

    #[test]
    fn packets_wait_for_the_frame_that_the_thread_is_busy_with() {
        let units = [unit(0, 0, 10, 0), unit(40, 40, 50, 0), unit(80, 84, 94, 0)];
        let trips = round_trips(&span(0, 100), &units, 2 * MS, Nanos::millis(1));
        // At 10, 12 … 38 nothing waits; at 40 … 48 until 50; then free until 80; then until 84,
        // then until 94.
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
