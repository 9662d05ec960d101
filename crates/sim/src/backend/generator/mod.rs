//! The generators on the simulated machine: what a workload is there ([`work`]), and the windows in which it is measured.

mod work;

use std::collections::BTreeMap;

use quell_core::backend::Measurement;
use quell_core::pace::{Pace, SPIN_NS};
use quell_core::units::Nanos;
use quell_core::windows::{Cut, LOOK_NS, Windows};
use quell_core::workload::{BANDWIDTH_MB_S, LATENCY_NS};

use crate::os::{Os, TaskId};
use work::{Judged, Steps};

pub(super) use work::Work;

/// The length of a window: that of the generators on Linux.
const WINDOW: Nanos = Nanos::millis(1);

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

/// What an alarm is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bell {
    /// To look at the clock.
    Look,
    /// The next slot of its target rate begins.
    Slot,
}

/// Whose alarm it is: a generator's number and what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key(pub(super) u32);

impl Key {
    fn of(self, bell: Bell) -> u64 {
        u64::from(self.0) << 1 | u64::from(bell == Bell::Slot)
    }

    /// What rang.
    pub(super) fn rang(key: u64) -> (Self, Bell) {
        let bell = if key & 1 == 0 { Bell::Look } else { Bell::Slot };
        (Self(u32::try_from(key >> 1).unwrap_or(u32::MAX)), bell)
    }
}

/// A generator that was started.
#[derive(Debug)]
pub(super) struct Generator {
    pub(super) task: TaskId,
    steps: Steps,
    pace: Option<Pace>,
    /// Its pace has begun.
    paced: bool,
    phase: Phase,
}

impl Generator {
    pub(super) fn new(task: TaskId, work: &Work) -> Self {
        let steps = work.steps;
        Self {
            task,
            steps,
            pace: steps.rate.map(|rate| Pace::new(rate, steps.bytes)),
            paced: false,
            phase: Phase::Ready,
        }
    }

    /// Sends it off; `key` is its alarms'.
    pub(super) fn go(&mut self, os: &mut Os, key: Key, warmup: Nanos, duration: Nanos) {
        let until = os.now().plus(warmup);
        self.phase = Phase::WarmsUp { until, duration };
        if self.pace.is_none() {
            os.go_on(self.task, u64::MAX);
        } else if !std::mem::replace(&mut self.paced, true) {
            self.keep_pace(os, key);
        }
        os.alarm(until, key.of(Bell::Look));
    }

    /// It has done what it was to do.
    pub(super) fn finished(&mut self, os: &mut Os, key: Key) {
        self.keep_pace(os, key);
    }

    /// Does what is due by the end of the slot, or waits for the next one: as on Linux by sleeping, and if that is not worth
    /// it by spinning, which here is holding the core.
    fn keep_pace(&mut self, os: &mut Os, key: Key) {
        let Some(pace) = &mut self.pace else {
            os.sleep(self.task);
            return;
        };
        let now = os.now();
        let due = pace.due(now.0);
        if due > 0 {
            pace.done(due);
            let until = os.done(self.task) + due * self.steps.accesses;
            os.go_on(self.task, until);
            return;
        }
        let next = pace.next_slot(now.0);
        if next - now.0 > SPIN_NS {
            os.sleep(self.task);
        }
        os.alarm(Nanos(next), key.of(Bell::Slot));
    }

    fn cut(&self) -> Cut {
        match self.steps.judged {
            Judged::Time { .. } => Cut::AtLook,
            Judged::Rate => Cut::Evenly,
        }
    }

    /// An alarm of its own: it looks at the clock, if it runs. One that reports rates is looked at from outside, since
    /// what it has done is known at every moment; the times of the others end where they can look.
    pub(super) fn alarm(&mut self, os: &mut Os, key: Key, bell: Bell) -> Option<Measurement> {
        if bell == Bell::Slot {
            self.keep_pace(os, key);
            return None;
        }
        if self.cut() == Cut::AtLook && !os.runs(self.task) {
            os.watch(self.task);
            return None;
        }
        self.look(os, key)
    }

    /// It looks at the clock; its measurement, once it is over.
    pub(super) fn look(&mut self, os: &mut Os, key: Key) -> Option<Measurement> {
        let steps = self.steps;
        let (now, units) = (os.now(), os.done(self.task) / steps.accesses);
        let (key, cut) = (key.of(Bell::Look), self.cut());
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
                windows.look(now.0, units, |units, ns| match steps.judged {
                    Judged::Time { accesses, .. } => ns as f64 / (units * accesses).max(1) as f64,
                    Judged::Rate => (units * steps.bytes) as f64 * 1e3 / ns.max(1) as f64,
                });
                if now < *end || windows.open() {
                    os.alarm(next(*begin, *end, windows, cut, now), key);
                    return None;
                }
                let measured = Measurement {
                    window_ns: windows.length(),
                    metrics: metrics(&steps, windows.clone().into_values()),
                    bytes: (units - *done) * steps.bytes,
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

/// The metrics of a load of equal steps, from the windows of its main one.
fn metrics(steps: &Steps, values: Vec<f64>) -> BTreeMap<String, Vec<f64>> {
    let mut metrics = BTreeMap::new();
    match steps.judged {
        Judged::Rate => metrics.insert(BANDWIDTH_MB_S.to_owned(), values),
        Judged::Time {
            accesses,
            also_rate,
        } => {
            if also_rate {
                let bytes = (steps.bytes / accesses) as f64;
                let rates = values.iter().map(|ns| bytes * 1e3 / ns.max(1e-3));
                metrics.insert(BANDWIDTH_MB_S.to_owned(), rates.collect());
            }
            metrics.insert(LATENCY_NS.to_owned(), values)
        }
    };
    metrics
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
