//! What a machine must do for the engine: observe and act, no decisions. The Linux backend and the
//! simulated machine implement it. The engine never knows which one it drives.

use crate::measurement::Measurement;
use std::collections::BTreeMap;

use quell_control::deadline::Unit;
use quell_control::pressure::{Act, Sample};
use quell_plan::inventory::Inventory;
use quell_plan::{Plan, Pressured, Step};
use quell_policy::workload::Workload;
use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::ids::{GroupId, PromiseId};
use quell_types::options::OnDrift;
use quell_types::partition::Mask;
use quell_types::units::{Bytes, Lines, Nanos};
use quell_types::witness::Verdict;

use crate::demand::{Drawn, WorkingSet};
use crate::events::{CpuTimes, Decision, Declared, Event};
use crate::quanta::Quantum;
use crate::standing::Standing;

/// How thoroughly the machine is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Probe {
    /// Only reads and cheap trials; under 100 ms.
    Fast,
    /// Also measures rates: seconds of full memory load.
    Deep,
}

/// What a subject runs.
#[derive(Clone, Debug, PartialEq)]
pub enum Program {
    /// A built-in generator with its parameters.
    Generator(Workload),
    /// Any program with its arguments; the first word is the program.
    Command(Vec<String>),
}

/// A program to be started in a group.
#[derive(Clone, Debug, PartialEq)]
pub struct SubjectSpec {
    /// Its name (`victim`, `db.2`).
    pub name: String,
    /// The group it starts in, if the plan gathers one of that name. Else it starts where the
    /// backend itself runs.
    pub group: GroupId,
    /// The generator or command that it runs.
    pub program: Program,
    /// The CPUs it is pinned to from its start; absent: all CPUs of its group.
    pub cpus: Option<CpuSet>,
    /// Variables added to its environment.
    pub env: BTreeMap<String, String>,
    /// Whether its output is observed line by line ([`Seen::Line`]), or left to the terminal.
    pub capture: bool,
}

/// Number of a started subject, given by the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubjectId(pub u32);

/// Which program of a group tells of its units: a number of the backend's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TellerId(pub u32);

/// What was observed while waiting, in order of time.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    /// A generator has built and warmed its memory and waits for [`Action::Go`]. Commands are never
    /// ready.
    Ready(SubjectId),
    /// A generator finished its measured span.
    Result(SubjectId, Measurement),
    /// A command wrote a line of output.
    Line(SubjectId, String),
    /// A subject ended, with its status as a shell reports it and its run time.
    Exited(SubjectId, i32, Nanos),
    /// Units of work of a program of an observed group ended, in order of time. The number counts
    /// further units of which nothing is known.
    Units(GroupId, TellerId, Vec<Unit>, u64),
    /// What the programs of an observed group declare about their units, summed. Sent the first
    /// time, and on each change.
    Declared(GroupId, Declared),
    /// An event for the record, such as throttling or a finding.
    Event(Event),
    /// What the regulator of a group decided on a CPU since the last time. The number counts
    /// decisions that were lost on the way.
    Decisions(GroupId, CpuId, Vec<Decision>, u64),
    /// What was decided about processes that take turns since the last time.
    Quanta(Vec<Quantum>),
    /// The user or the system wants the run to end (SIGINT, SIGTERM, SIGHUP): the signal's number.
    Stop(i32),
    /// The backend's hold on the machine was revoked (its watchdog reverted everything). Nothing is
    /// held any more. The text is the reason.
    Revoked(String),
}

/// Filled by [`Backend::wait`]; emptied by the caller.
pub type Observation = Vec<Seen>;

/// Adds an account of what was done so far, ahead of all else, which may end the hold: behind the
/// accounts that were added so before.
pub fn put_ahead(seen: &mut Observation, one: Seen) {
    let account = |one: &&Seen| match one {
        Seen::Quanta(_) => true,
        Seen::Event(event) => matches!(
            event,
            Event::Spent { .. }
                | Event::Throttle { .. }
                | Event::Turns { .. }
                | Event::Windows { .. }
        ),
        _ => false,
    };
    let at = seen.iter().take_while(account).count();
    seen.insert(at, one);
}

/// What the engine asks of the backend besides steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A ready generator runs `warmup`, then measures for `duration`, reports, and keeps its load
    /// up until stopped.
    Go {
        /// The generator to start.
        subject: SubjectId,
        /// How long it runs before it measures.
        warmup: Nanos,
        /// The length of the measured span.
        duration: Nanos,
    },
    /// Ends a subject and everything it started, and reaps it.
    Stop(SubjectId),
    /// Sets the lines per period that the group may move on each of these CPUs. It is regulated on
    /// them.
    Budget {
        /// The group. Other groups may be regulated on the same CPUs.
        group: GroupId,
        /// The CPUs of which the budget changes.
        cpus: CpuSet,
        /// Lines per period and CPU.
        budget: Lines,
    },
    /// Sets the ways of the caches of a level that a group may fill.
    Ways {
        /// The group, or `rest`.
        group: GroupId,
        /// Cache level: 1, 2, 3, …
        level: u32,
        /// The ways that it may fill from now on.
        mask: Mask,
    },
    /// An act on memory. Groups are named by their number in what was [watched](Backend::watch). A
    /// process that has ended meanwhile is no error.
    Memory(Act),
}

/// The outcome of an undo.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Undone {
    /// Changes that were reverted.
    pub restored: u32,
    /// Changes left alone because another program changed them since; a sentence each.
    pub left: Vec<String>,
}

/// The machine refused: what failed, where, why, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BackendError(pub String);

/// What Quell's own process takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Own {
    /// CPU time of all its threads so far.
    pub cpu: Nanos,
    /// Memory that it has resident.
    pub resident: Bytes,
    /// Bytes of its address space that are locked: they stay in memory once they are there.
    pub locked: Bytes,
}

/// How a plan is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HoldOptions {
    /// What happens when another program changes a setting.
    pub on_drift: OnDrift,
}

/// The machine on which a plan is held.
pub trait Backend {
    /// What the machine is and what it offers.
    fn inventory(&mut self, depth: Probe) -> Result<Inventory, BackendError>;
    /// The current time, on the clock that [`Self::wait`] uses.
    fn now(&self) -> Nanos;
    /// A cell of an experiment begins, in a round; no step is applied and no subject runs. On a
    /// machine with seeded randomness, what follows depends only on the seed and these numbers.
    fn begin(&mut self, _cell: u64, _round: u32) -> Result<(), BackendError> {
        Ok(())
    }
    /// A plan begins to be held. No subject was started yet, and its steps are applied next. Until
    /// it is undone, the units of work of its observed groups are reported ([`Seen::Units`]), as
    /// far as their programs report any. Changes of a promise's worth are reported as well
    /// ([`Event::Promise`]).
    fn hold(&mut self, plan: &Plan, how: HoldOptions) -> Result<(), BackendError>;
    /// What the plan's promises are worth now, for other programs that ask (`quell status`).
    fn stands(&mut self, _standing: &Standing) {}
    /// Carries out one step, after recording how to revert it. Returns what a person should know
    /// (for example which tasks stayed on the CPU).
    fn apply(&mut self, step: &Step) -> Result<Vec<String>, BackendError>;
    /// Reverts everything that was applied, in reverse order, and ends all subjects.
    fn undo(&mut self) -> Result<Undone, BackendError>;
    /// Starts a program in its group.
    fn start(&mut self, subject: &SubjectSpec) -> Result<SubjectId, BackendError>;
    /// Waits until `until`, or until something was observed. Returns the time.
    fn wait(&mut self, until: Nanos, seen: &mut Observation) -> Result<Nanos, BackendError>;
    /// Until it is undone, memory is sampled and steered ([`Self::memory`], [`Action::Memory`]). To
    /// be called once the steps are applied.
    fn watch(&mut self, _pressure: &Pressured) -> Result<(), BackendError> {
        Err(BackendError(
            "this machine does not tell of its memory".to_owned(),
        ))
    }
    /// Samples memory into `_look`, which the caller reuses. `_processes`: include the neighbours'
    /// processes.
    fn memory(&mut self, _processes: bool, _look: &mut Sample) -> Result<(), BackendError> {
        Err(BackendError("memory is not watched".to_owned()))
    }
    /// What Quell's own process has taken, for the record. `None` on a machine without such an
    /// account.
    fn own(&mut self) -> Result<Option<Own>, BackendError> {
        Ok(None)
    }
    /// Carries out one action.
    fn act(&mut self, action: &Action) -> Result<(), BackendError>;
    /// Whether two CPUs share a cache right now, by a probe of the backend's own. 1: a neighbour's
    /// line is as near as one's own. 0: it is as far as memory. `None` where it cannot be
    /// determined.
    fn shared_cache(&mut self, a: CpuId, b: CpuId) -> Result<Option<f64>, BackendError>;
    /// What a subject has drawn from memory since it was started. `None` on a machine that does not
    /// count it per subject.
    fn drawn(&mut self, _subject: SubjectId) -> Result<Option<Drawn>, BackendError> {
        Ok(None)
    }
    /// Bytes that a group's tasks have drawn from memory, counted from an arbitrary moment. `None`
    /// while that is not known.
    fn drawn_by(&mut self, _group: &str) -> Result<Option<u64>, BackendError> {
        Err(BackendError(
            "this machine does not tell what a group draws from memory".to_owned(),
        ))
    }
    /// The memory that a subject works on. `None` on a machine that cannot determine it.
    fn working_set(&mut self, _subject: SubjectId) -> Result<Option<WorkingSet>, BackendError> {
        Ok(None)
    }
    /// Whether [`Self::look`] sees anything on this machine.
    fn can_look(&self) -> bool {
        false
    }
    /// Looks at the machine as a stranger would, with nothing of what holds the promises: what is
    /// seen of each promise that can be looked at.
    fn look(&mut self) -> Vec<(PromiseId, Verdict)> {
        Vec::new()
    }
    /// What is on record of the end, before anything is undone.
    fn last(&mut self) -> Vec<Event> {
        Vec::new()
    }
    /// How the time of each CPU was spent so far, for the record. `None` on a machine without that
    /// account.
    fn cpu_times(&mut self) -> Result<Option<Vec<CpuTimes>>, BackendError> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_stay_in_order_ahead_of_all_else() {
        let quantum = |at| {
            let (at, seed, chances) = (Nanos(at), 1, Vec::new());
            Seen::Quanta(vec![Quantum { at, seed, chances }])
        };
        let mut seen = vec![Seen::Stop(15)];
        for at in 1..4 {
            put_ahead(&mut seen, quantum(at));
        }
        let all = [quantum(1), quantum(2), quantum(3), Seen::Stop(15)];
        assert_eq!(seen, all);
    }
}
