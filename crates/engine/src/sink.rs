//! Where the events of a hold are sent.

use quell_plan::Plan;
use quell_record::events::{CpuTimes, Decision, Event};
use quell_record::quanta::Quantum;
use quell_record::standing::Standing;
use quell_types::cpuset::CpuId;
use quell_types::ids::GroupId;
use quell_types::units::Nanos;

/// Receives the events of a hold. Sinks cannot fail.
pub trait Sink {
    /// Takes one event. `at` is the time on the backend's clock.
    fn put(&mut self, at: Nanos, event: &Event);
    /// Takes what a regulator decided. `_missed`: how many decisions were lost.
    fn decisions(&mut self, _group: &GroupId, _cpu: CpuId, _decisions: &[Decision], _missed: u64) {}
    /// Takes what was decided about processes that take turns.
    fn quanta(&mut self, _quanta: &[Quantum]) {}
    /// Takes how the CPUs' time was spent until `at`: sums that only grow.
    fn cpu_times(&mut self, _at: Nanos, _times: &[CpuTimes]) {}
    /// Called after every wait while a plan is held, at least once a second.
    fn tick(&mut self, _now: Nanos) {}
    /// Whether [`Self::cpu_times`] does anything. Reading the times costs the kernel a walk over
    /// its counters.
    fn wants_cpu_times(&self) -> bool {
        false
    }
}

/// Keeps events in memory, in the order in which they came.
impl Sink for Vec<(Nanos, Event)> {
    fn put(&mut self, at: Nanos, event: &Event) {
        self.push((at, event.clone()));
    }
}

/// Passes events to the sink if there is one.
impl<S: Sink> Sink for Option<S> {
    fn put(&mut self, at: Nanos, event: &Event) {
        if let Some(sink) = self {
            sink.put(at, event);
        }
    }

    fn decisions(&mut self, group: &GroupId, cpu: CpuId, decisions: &[Decision], missed: u64) {
        if let Some(sink) = self {
            sink.decisions(group, cpu, decisions, missed);
        }
    }

    fn quanta(&mut self, quanta: &[Quantum]) {
        if let Some(sink) = self {
            sink.quanta(quanta);
        }
    }

    fn cpu_times(&mut self, at: Nanos, times: &[CpuTimes]) {
        if let Some(sink) = self {
            sink.cpu_times(at, times);
        }
    }

    fn wants_cpu_times(&self) -> bool {
        self.as_ref().is_some_and(Sink::wants_cpu_times)
    }
}

/// A sink that drops all events.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSink;

impl Sink for NoSink {
    fn put(&mut self, _: Nanos, _: &Event) {}
}

/// Passes events on, and keeps what the promises of the plan are worth.
pub(crate) struct Watching<'s> {
    pub(crate) sink: &'s mut dyn Sink,
    /// What the promises are worth, by the events so far.
    pub(crate) standing: Standing,
    changed: bool,
}

impl<'s> Watching<'s> {
    pub(crate) fn new(plan: &Plan, sink: &'s mut dyn Sink) -> Self {
        Self {
            sink,
            standing: Standing::of(plan),
            // Nobody was told yet.
            changed: true,
        }
    }

    /// What the promises are worth, if that has changed since the last call.
    pub(crate) fn news(&mut self) -> Option<&Standing> {
        std::mem::take(&mut self.changed).then_some(&self.standing)
    }
}

impl Sink for Watching<'_> {
    fn put(&mut self, at: Nanos, event: &Event) {
        self.changed |= self.standing.take(event);
        self.sink.put(at, event);
    }

    fn decisions(&mut self, group: &GroupId, cpu: CpuId, decisions: &[Decision], missed: u64) {
        self.sink.decisions(group, cpu, decisions, missed);
    }

    fn quanta(&mut self, quanta: &[Quantum]) {
        self.sink.quanta(quanta);
    }

    fn cpu_times(&mut self, at: Nanos, times: &[CpuTimes]) {
        self.sink.cpu_times(at, times);
    }

    fn tick(&mut self, now: Nanos) {
        self.sink.tick(now);
    }

    fn wants_cpu_times(&self) -> bool {
        self.sink.wants_cpu_times()
    }
}
