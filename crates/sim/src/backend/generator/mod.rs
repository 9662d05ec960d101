//! The generators on the simulated machine. [`work`] says what a workload is there. Loads of equal
//! steps are measured in windows (here). Generators that work in units are measured by their log
//! ([`units`]). The stages of a video call are loops of their own ([`stages`]). In addition all
//! have what the machine counts ([`Counter`]).

mod stages;
mod units;
mod work;

use std::collections::BTreeMap;

use quell_control::deadline::Unit;
use quell_model::Picos;
use quell_policy::workload::{
    ACCESSES_PER_S, BANDWIDTH_MB_S, LATENCY_NS, MISSES_PER_ACCESS, ns_per_line,
};
use quell_record::backend::SubjectId;
use quell_record::measurement::Measurement;
use quell_types::pace::{Pace, SPIN_NS};
use quell_types::units::{LINE_BYTES, Nanos};
use quell_types::windows::{Cut, SAMPLE_NS, Windows};

use crate::machine::Counts;
use crate::os::{Os, TaskId};
pub(super) use stages::Link;
use stages::Stages;
use units::Units;
use work::{Judged, Kind, Steps};

pub(super) use work::{Place, Work};

/// The length of a window, as the generators on Linux have it.
const WINDOW: Nanos = Nanos::millis(1);

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one per subject")]
enum Phase {
    /// Waits for the order to start.
    Ready,
    /// Runs. Measuring begins at the first reading of the clock at or after `until`.
    WarmsUp { until: Nanos, duration: Nanos },
    Measures {
        begin: Nanos,
        end: Nanos,
        done: u64,
        counted: Counter,
        windows: Box<Windows>,
    },
    /// Continues as load after its measurement.
    Loads,
}

/// What an alarm of a generator is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bell {
    /// To read the clock.
    Look,
    /// The next slot of its target rate begins.
    Slot,
}

/// The number of the generator that an alarm belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key(pub(super) u32);

impl Key {
    fn of(self, bell: Bell) -> u64 {
        u64::from(self.0) << 1 | u64::from(bell == Bell::Slot)
    }

    /// The generator and the purpose of an alarm, from its key.
    pub(super) fn rang(key: u64) -> (Self, Bell) {
        let bell = if key & 1 == 0 { Bell::Look } else { Bell::Slot };
        (Self(u32::try_from(key >> 1).unwrap_or(u32::MAX)), bell)
    }
}

/// What the machine counts of a task over a span, apart from the generator's own metrics.
#[derive(Clone, Copy, Debug)]
struct Counter {
    begin: Nanos,
    before: Counts,
    clock: Picos,
}

impl Counter {
    fn begin(os: &Os, task: TaskId, clock: Picos) -> Self {
        Self {
            begin: os.now(),
            before: os.counts(task),
            clock,
        }
    }

    /// Bytes read from memory for the task since the begin.
    fn memory_bytes(&self, os: &Os, task: TaskId) -> u64 {
        let (now, before) = (os.counts(task), self.before);
        (now.misses - before.misses + now.prefetches - before.prefetches) * LINE_BYTES
    }

    /// `ipc` ([`Counts::ipc`]; absent without time on a core) and `misses_per_ms`: lines that its
    /// accesses read from memory per millisecond. With several memory channels also
    /// `channel_N_per_ms`: its requests to each, lines read and written back.
    fn end(&self, os: &Os, task: TaskId) -> Vec<(String, Vec<f64>)> {
        let (now, before) = (os.counts(task), self.before);
        let since = Counts {
            instructions: now.instructions - before.instructions,
            misses: now.misses - before.misses,
            active: now.active.saturating_sub(before.active),
            ..Counts::default()
        };
        let span = os.now().since(self.begin).0.max(1) as f64;
        let per_ms = |n: u64| vec![n as f64 * 1e6 / span];
        let mut found = vec![("misses_per_ms".to_owned(), per_ms(since.misses))];
        if since.active > 0 {
            found.push(("ipc".to_owned(), vec![since.ipc(self.clock)]));
        }
        let channels = os.channels();
        if channels > 1 {
            let counts = now.channels.iter().zip(before.channels);
            let each = counts.take(channels).enumerate();
            found.extend(
                each.map(|(n, (now, before))| {
                    (format!("channel_{n}_per_ms"), per_ms(now - before))
                }),
            );
        }
        found
    }
}

/// A generator that was started as a task.
#[derive(Debug)]
pub(super) struct Generator {
    pub(super) task: TaskId,
    pub(super) group: String,
    does: Does,
}

#[derive(Debug)]
enum Does {
    Steps(Load),
    Units(Units),
    Stages(Box<Stages>),
}

impl Generator {
    /// The subject `id`, which is `task` of `group` on cores with a clock period of `clock`.
    pub(super) fn new(
        id: SubjectId,
        task: TaskId,
        group: &str,
        work: &Work,
        clock: Picos,
        link: &mut Link,
    ) -> Self {
        let does = match work.kind {
            Kind::Steps(steps) => Does::Steps(Load::new(task, steps, clock)),
            Kind::Units(job) => Does::Units(Units::new(job, clock)),
            Kind::Call(media) => Does::Stages(Box::new(Stages::call(id, media, clock, link))),
            Kind::Display => Does::Stages(Box::new(Stages::display(id, clock, link))),
        };
        Self {
            task,
            group: group.to_owned(),
            does,
        }
    }

    /// From now on its units are collected for [`Self::fresh`], if it works in units.
    pub(super) fn observe(&mut self) {
        match &mut self.does {
            Does::Units(units) => units.observe(),
            Does::Stages(stages) => stages.observe(),
            Does::Steps(_) => {}
        }
    }

    /// The units that ended since the last call, if they are collected. Times are since booting.
    pub(super) fn fresh(&mut self, os: &mut Os) -> Vec<Unit> {
        match &mut self.does {
            Does::Units(units) => units.fresh(os, self.task),
            Does::Stages(stages) => stages.fresh(),
            Does::Steps(_) => Vec::new(),
        }
    }

    /// Starts warm-up and measurement. `key` identifies its alarms.
    pub(super) fn go(&mut self, os: &mut Os, key: Key, warmup: Nanos, duration: Nanos) {
        match &mut self.does {
            Does::Steps(load) => load.go(os, key, warmup, duration),
            Does::Units(units) => units.go(os, self.task, key, warmup, duration),
            Does::Stages(stages) => stages.go(os, self.task, key, warmup, duration),
        }
    }

    /// The task has done all its accesses.
    pub(super) fn finished(&mut self, os: &mut Os, key: Key, link: &mut Link) {
        match &mut self.does {
            Does::Steps(load) => load.keep_pace(os, key),
            Does::Stages(stages) => stages.finished(os, self.task, key, link),
            Does::Units(_) => os.sleep(self.task),
        }
    }

    /// Handles one of its alarms. Returns its measurement once that is over.
    pub(super) fn alarm(&mut self, os: &mut Os, key: Key, bell: Bell) -> Option<Measurement> {
        match &mut self.does {
            Does::Steps(load) => load.alarm(os, key, bell),
            Does::Units(units) => units.look(os, self.task, key),
            Does::Stages(stages) => stages.alarm(os, self.task, key, bell),
        }
    }

    /// Another stage has news ([`Link`]).
    pub(super) fn news(&mut self, os: &mut Os) {
        if let Does::Stages(stages) = &mut self.does {
            stages.news(os, self.task);
        }
    }

    /// The task runs again. Returns its measurement once that is over.
    pub(super) fn runs(&mut self, os: &mut Os, key: Key) -> Option<Measurement> {
        match &mut self.does {
            Does::Steps(load) => load.look(os, key),
            Does::Units(_) | Does::Stages(_) => None,
        }
    }
}

/// A load of equal steps, and its measurement.
#[derive(Debug)]
struct Load {
    task: TaskId,
    steps: Steps,
    clock: Picos,
    pace: Option<Pace>,
    /// Whether the target rate has begun to be kept.
    paced: bool,
    phase: Phase,
}

impl Load {
    fn new(task: TaskId, steps: Steps, clock: Picos) -> Self {
        Self {
            task,
            steps,
            clock,
            pace: steps.rate.map(|rate| Pace::new(rate, steps.bytes)),
            paced: false,
            phase: Phase::Ready,
        }
    }

    fn go(&mut self, os: &mut Os, key: Key, warmup: Nanos, duration: Nanos) {
        let until = os.now().plus(warmup);
        self.phase = Phase::WarmsUp { until, duration };
        if self.pace.is_none() {
            os.go_on(self.task, u64::MAX);
        } else if !std::mem::replace(&mut self.paced, true) {
            self.keep_pace(os, key);
        }
        os.alarm(until, key.of(Bell::Look));
    }

    /// Does what is due by the end of the slot, or waits for the next one. On Linux it waits by
    /// sleeping, or by spinning where that is too short. Spinning here is holding the core.
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
            Judged::Time { .. } => Cut::AtSample,
            Judged::Rate { .. } | Judged::Accesses => Cut::Evenly,
        }
    }

    /// Handles one of its alarms. A load that reports rates is read from outside, since its
    /// progress is known at every moment. One that reports times reads the clock itself, so only
    /// while it runs.
    fn alarm(&mut self, os: &mut Os, key: Key, bell: Bell) -> Option<Measurement> {
        if bell == Bell::Slot {
            self.keep_pace(os, key);
            return None;
        }
        if self.cut() == Cut::AtSample && !os.runs(self.task) {
            os.watch(self.task);
            return None;
        }
        self.look(os, key)
    }

    /// Reads the clock. Returns the measurement once that is over.
    fn look(&mut self, os: &mut Os, key: Key) -> Option<Measurement> {
        let (steps, task) = (self.steps, self.task);
        let (now, units) = (os.now(), os.done(self.task) / steps.accesses);
        let (key, cut) = (key.of(Bell::Look), self.cut());
        match &mut self.phase {
            Phase::WarmsUp { until, duration } if now >= *until => {
                let mut windows = Box::new(Windows::new(duration.0, WINDOW.0, cut));
                windows.begin(now.0, units);
                let end = now.plus(*duration);
                os.alarm(next(now, end, &windows, cut, now), key);
                self.phase = Phase::Measures {
                    begin: now,
                    end,
                    done: units,
                    counted: Counter::begin(os, task, self.clock),
                    windows,
                };
            }
            Phase::Measures {
                begin,
                end,
                done,
                counted,
                windows,
            } => {
                windows.sample(now.0, units, |units, ns| match steps.judged {
                    Judged::Time { accesses, .. } => ns as f64 / (units * accesses).max(1) as f64,
                    Judged::Rate { .. } => (units * steps.bytes) as f64 * 1e3 / ns.max(1) as f64,
                    Judged::Accesses => units as f64 * 1e9 / ns.max(1) as f64,
                });
                if now < *end || windows.open() {
                    os.alarm(next(*begin, *end, windows, cut, now), key);
                    return None;
                }
                let metrics = metrics(&steps, (**windows).clone().into_values());
                let metrics = metrics.into_iter().map(|(name, v)| (name.to_owned(), v));
                let walked = match steps.judged {
                    Judged::Time { accesses, .. } => Some((units - *done) * accesses),
                    Judged::Rate { .. } | Judged::Accesses => None,
                };
                let missed = walked.map(|walked| {
                    let missed = os.counts(task).misses - counted.before.misses;
                    let each = missed as f64 / walked.max(1) as f64;
                    (MISSES_PER_ACCESS.to_owned(), vec![each])
                });
                let metrics = metrics.chain(missed).chain(counted.end(os, task));
                let measured = Measurement {
                    window_ns: windows.length(),
                    metrics: metrics.collect(),
                    bytes: (units - *done) * steps.bytes,
                    duration_ns: now.since(*begin).0,
                    begun: None,
                    memory_bytes: Some(counted.memory_bytes(os, task)),
                    ended_ns: Vec::new(),
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

/// The metrics of a load of equal steps, from the windows of its main metric.
fn metrics(steps: &Steps, values: Vec<f64>) -> BTreeMap<&'static str, Vec<f64>> {
    // Converts times per access to rates, and rates to times.
    let inverse = |unit: f64| values.iter().map(|v| unit / v.max(1e-3)).collect();
    match steps.judged {
        Judged::Rate { also_time: true } => {
            [(LATENCY_NS, ns_per_line(&values)), (BANDWIDTH_MB_S, values)].into()
        }
        Judged::Rate { .. } => [(BANDWIDTH_MB_S, values)].into(),
        Judged::Accesses => [(LATENCY_NS, inverse(1e9)), (ACCESSES_PER_S, values)].into(),
        Judged::Time {
            accesses,
            also_rate: true,
        } => {
            let bytes = (steps.bytes / accesses) as f64;
            [(BANDWIDTH_MB_S, inverse(bytes * 1e3)), (LATENCY_NS, values)].into()
        }
        Judged::Time { .. } => [(LATENCY_NS, values)].into(),
    }
}

/// When to read the clock next: at the end of a window, or as often as a generator on Linux does.
fn next(begin: Nanos, end: Nanos, windows: &Windows, cut: Cut, now: Nanos) -> Nanos {
    match cut {
        Cut::AtSample => now.plus(Nanos(SAMPLE_NS)),
        Cut::Evenly => {
            let passed = now.since(begin).0 / windows.length();
            begin
                .plus(Nanos((passed + 1) * windows.length()))
                .min(end.max(now.plus(Nanos(1))))
        }
    }
}
