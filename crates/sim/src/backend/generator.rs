//! The generators on the simulated machine: what a workload is there, and the windows in which it is measured.

use std::collections::BTreeMap;

use quell_core::backend::{BackendError, Measurement};
use quell_core::units::{Bytes, LINE_BYTES, Nanos};
use quell_core::windows::{Cut, LOOK_NS, Windows};
use quell_core::workload::{Access, LATENCY_NS, Operation, Order, Pages, Workload};

use crate::frames::Placement;
use crate::os::{Os, TaskId};
use crate::pattern::Pattern;

/// The length of a window: that of the generators on Linux.
const WINDOW: Nanos = Nanos::millis(1);

/// The same list in every run, as on Linux: what is compared is configurations, not permutations.
const LIST_SEED: u64 = 0x5eed;

/// What a workload is on the simulated machine.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) pattern: Pattern,
    pub(super) size: Bytes,
    pub(super) placement: Placement,
    /// Touching its memory leaves it changed.
    pub(super) writes: bool,
    metric: &'static str,
    /// Program bytes of an access.
    bytes: u64,
}

impl Work {
    /// # Errors
    /// For what the simulated machine does not have yet, and parameters that make no sense.
    pub(super) fn new(workload: &Workload<Bytes>) -> Result<Self, BackendError> {
        let not_yet = |what: &str| {
            BackendError(format!(
                "{}: {what} is not yet on the simulated machine; use latency or bandwidth as they are, or --on linux",
                workload.kind()
            ))
        };
        if let Some(fault) = workload.fault() {
            return Err(BackendError(format!(
                "{}: `{}`: {}; {}",
                workload.kind(),
                fault.key,
                fault.why,
                fault.remedy
            )));
        }
        if workload.rate().is_some() {
            return Err(not_yet("a target rate"));
        }
        let (pattern, size, writes) = match *workload {
            Workload::Latency {
                size,
                order: Order::Random,
                operation: Access::Read,
                ..
            } => (Pattern::latency(size.0, LIST_SEED), size, false),
            Workload::Bandwidth {
                operation: Operation::Read,
                size,
                ..
            } => (Pattern::bandwidth(size.0, false), size, false),
            Workload::Bandwidth {
                operation: Operation::Write,
                size,
                ..
            } => (Pattern::bandwidth(size.0, true), size, true),
            Workload::Latency { .. } => return Err(not_yet("this order or operation")),
            Workload::Bandwidth { operation, .. } => return Err(not_yet(operation.name())),
            _ => return Err(not_yet("this generator")),
        };
        let placement = match workload.pages() {
            Pages::Base => Placement::Plain,
            Pages::Huge => Placement::Huge,
        };
        Ok(Self {
            pattern,
            size,
            placement,
            writes,
            metric: workload.primary(),
            bytes: LINE_BYTES,
        })
    }
}

#[derive(Debug)]
enum Phase {
    /// Waits to be sent off.
    Ready,
    /// Runs; measuring begins at the first look from then on.
    WarmsUp { until: Nanos, duration: Nanos },
    Measures {
        begin: Nanos,
        end: Nanos,
        done: u64,
        windows: Windows,
    },
    /// Keeps its load up.
    Loads,
}

/// A generator that was started.
#[derive(Debug)]
pub(super) struct Generator {
    pub(super) task: TaskId,
    metric: &'static str,
    bytes: u64,
    phase: Phase,
}

impl Generator {
    pub(super) fn new(task: TaskId, work: &Work) -> Self {
        Self {
            task,
            metric: work.metric,
            bytes: work.bytes,
            phase: Phase::Ready,
        }
    }

    /// Sends it off; `key` is its alarms'.
    pub(super) fn go(&mut self, os: &mut Os, key: u64, warmup: Nanos, duration: Nanos) {
        let until = os.now().plus(warmup);
        self.phase = Phase::WarmsUp { until, duration };
        os.go_on(self.task, u64::MAX);
        os.alarm(until, key);
    }

    fn cut(&self) -> Cut {
        if self.metric == LATENCY_NS {
            Cut::AtLook
        } else {
            Cut::Evenly
        }
    }

    /// An alarm of its own: it looks at the clock, if it runs. One that reports rates is looked at from outside, since
    /// what it has done is known at every moment; the times of the others end where they can look.
    pub(super) fn alarm(&mut self, os: &mut Os, key: u64) -> Option<Measurement> {
        if self.cut() == Cut::AtLook && !os.runs(self.task) {
            os.watch(self.task);
            return None;
        }
        self.look(os, key)
    }

    /// It looks at the clock; its measurement, once it is over.
    pub(super) fn look(&mut self, os: &mut Os, key: u64) -> Option<Measurement> {
        let (now, units) = (os.now(), os.done(self.task));
        let (metric, bytes, cut) = (self.metric, self.bytes, self.cut());
        match &mut self.phase {
            Phase::WarmsUp { until, duration } if now >= *until => {
                let mut windows = Windows::new(duration.0, WINDOW.0, cut);
                windows.begin(now.0, units);
                let end = now.plus(*duration);
                os.alarm(next(now, end, &windows, cut, now), key);
                self.phase = Phase::Measures {
                    begin: now,
                    end,
                    done: units,
                    windows,
                };
            }
            Phase::Measures {
                begin,
                end,
                done,
                windows,
            } => {
                windows.look(now.0, units, |units, ns| match cut {
                    Cut::AtLook => ns as f64 / units.max(1) as f64,
                    Cut::Evenly => (units * bytes) as f64 * 1e3 / ns.max(1) as f64,
                });
                if now < *end || windows.open() {
                    os.alarm(next(*begin, *end, windows, cut, now), key);
                    return None;
                }
                let measured = Measurement {
                    window_ns: windows.length(),
                    metrics: BTreeMap::from([(metric.to_owned(), windows.clone().into_values())]),
                    bytes: (units - *done) * bytes,
                    duration_ns: now.since(*begin).0,
                    begun: None,
                    account: None,
                };
                self.phase = Phase::Loads;
                return Some(measured);
            }
            Phase::Ready | Phase::WarmsUp { .. } | Phase::Loads => {}
        }
        None
    }
}

/// When to look next: at the end of a window, or as often as a generator on Linux looks.
fn next(begin: Nanos, end: Nanos, windows: &Windows, cut: Cut, now: Nanos) -> Nanos {
    match cut {
        Cut::AtLook => now.plus(Nanos(LOOK_NS)),
        Cut::Evenly => {
            let passed = now.since(begin).0 / windows.length();
            begin
                .plus(Nanos((passed + 1) * windows.length()))
                .min(end.max(now.plus(Nanos(1))))
        }
    }
}
