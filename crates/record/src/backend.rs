//! What a machine must do for the engine: sense and act, nothing else. Implemented by the Linux
//! backend and the simulated machine; the engine never knows which one it drives.

use crate::measurement::Measurement;
use std::collections::BTreeMap;

use quell_control::deadline::Unit;
use quell_control::pressure::{Act, Look};
use quell_plan::inventory::Inventory;
use quell_plan::{Plan, Pressured, Step};
use quell_policy::workload::Workload;
use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::ids::GroupId;
use quell_types::options::OnDrift;
use quell_types::partition::Mask;
use quell_types::units::{Bytes, Lines, Nanos};

use crate::demand::{Drawn, WorkingSet};
use crate::events::{CpuTimes, Decision, Declared, Event};
use crate::standing::Standing;

/// How deep to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Probe {
    /// Read and try only; under 100 ms.
    Fast,
    /// Measure rates, too: seconds of full memory load.
    Deep,
}

/// What a subject runs.
#[derive(Clone, Debug, PartialEq)]
pub enum Program {
    /// A generator.
    Generator(Workload),
    /// Any program, with its arguments.
    Command(Vec<String>),
}

/// A program to be started in a group.
#[derive(Clone, Debug, PartialEq)]
pub struct SubjectSpec {
    /// Its name (`victim`, `db.2`).
    pub name: String,
    /// The group it is born in, if the plan gathers one of that name; else where the backend itself
    /// runs.
    pub group: GroupId,
    /// What it runs.
    pub program: Program,
    /// The CPUs it is pinned to from birth; absent: wherever its group may run.
    pub cpus: Option<CpuSet>,
    /// Extra environment.
    pub env: BTreeMap<String, String>,
    /// Whether its output is observed line by line ([`Seen::Line`]) or left to the terminal.
    pub capture: bool,
}

/// A started subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubjectId(pub u32);

/// What was seen while waiting, in order of time.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    /// A generator has built and warmed its memory and waits for [`Action::Go`]. Commands are never
    /// ready.
    Ready(SubjectId),
    /// A generator finished its measured span.
    Result(SubjectId, Measurement),
    /// A command wrote a line.
    Line(SubjectId, String),
    /// A subject ended, with its status as a shell reports it and its run time.
    Exited(SubjectId, i32, Nanos),
    /// Units of work of an observed group ended, in order of time; and how many more there were
    /// that nobody can tell of.
    Units(GroupId, Vec<Unit>, u64),
    /// What the programs of an observed group say of their units, together, when they say it first
    /// and when that changes.
    Declared(GroupId, Declared),
    /// Something for the record: throttling, findings.
    Event(Event),
    /// What the regulator of a group decided on a CPU since the last time, and how many decisions
    /// were lost on the way.
    Decisions(GroupId, CpuId, Vec<Decision>, u64),
    /// The user or the system wants the run to end (SIGINT, SIGTERM, SIGHUP): the signal's number.
    Stop(i32),
    /// The backend's hold on the machine was revoked (its watchdog undid everything): nothing is
    /// held any more.
    Revoked(String),
}

/// Filled by [`Backend::wait`]; emptied by the caller.
pub type Observation = Vec<Seen>;

/// What the engine asks of the backend besides steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A ready generator runs `warmup`, then measures for `duration`, reports, and keeps its load
    /// up until stopped.
    Go {
        /// Which.
        subject: SubjectId,
        /// Load before measuring.
        warmup: Nanos,
        /// The measured span.
        duration: Nanos,
    },
    /// End a subject and everything it started, and reap it.
    Stop(SubjectId),
    /// From now on the group, which is regulated on these CPUs, may move so many lines per period
    /// on each of them.
    Budget {
        /// The group. Others may be regulated on the same CPUs.
        group: GroupId,
        /// The CPUs.
        cpus: CpuSet,
        /// Lines per period and CPU.
        budget: Lines,
    },
    /// A group fills these ways of the caches of a level from now on.
    Ways {
        /// The group, or the rest.
        group: GroupId,
        /// 1, 2, 3, …
        level: u32,
        /// The ways.
        mask: Mask,
    },
    /// Memory is steered. Groups by their number in what was [watched](Backend::watch); who has
    /// ended meanwhile is no error.
    Memory(Act),
}

/// What undoing came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Undone {
    /// Changes taken back.
    pub restored: u32,
    /// Changes left alone because somebody else has changed them since, each in a sentence.
    pub left: Vec<String>,
}

/// A refusal by the machine: what failed, where, why, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BackendError(pub String);

/// What our own process takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Own {
    /// CPU time of all its threads so far.
    pub cpu: Nanos,
    /// What it has in memory.
    pub resident: Bytes,
    /// What of its address space stays in memory once it is there.
    pub locked: Bytes,
}

/// How a plan is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HoldOptions {
    /// What happens when somebody else changes a setting.
    pub on_drift: OnDrift,
}

/// The machine behind the plan.
pub trait Backend {
    /// What the machine is and offers.
    fn inventory(&mut self, depth: Probe) -> Result<Inventory, BackendError>;
    /// The time, on the clock that [`Self::wait`] uses.
    fn now(&self) -> Nanos;
    /// A cell of an experiment begins; nothing is applied and nobody runs. On a machine that draws
    /// what is random from a seed, what happens from here on depends on that seed and the cell's
    /// number, not on what was before.
    fn begin(&mut self, _cell: u64) -> Result<(), BackendError> {
        Ok(())
    }
    /// A plan begins to be held; its steps are applied next, and nothing was started yet. From here
    /// on, until it is undone, units of work of its observed groups are seen ([`Seen::Units`]), as
    /// far as their programs tell of any, and so is what its promises are worth where that changes
    /// ([`Event::Promise`]).
    fn hold(&mut self, plan: &Plan, how: HoldOptions) -> Result<(), BackendError>;
    /// What the plan's promises are worth now, for other programs that ask (`quell status`).
    fn stands(&mut self, _standing: &Standing) {}
    /// Carries out one step, having recorded how to undo it. Returns what a person should know (who
    /// stayed on the CPU).
    fn apply(&mut self, step: &Step) -> Result<Vec<String>, BackendError>;
    /// Takes back everything applied, in reverse, and ends every subject.
    fn undo(&mut self) -> Result<Undone, BackendError>;
    /// Starts a program.
    fn start(&mut self, subject: &SubjectSpec) -> Result<SubjectId, BackendError>;
    /// Waits until `until` or until something was seen; returns the time.
    fn wait(&mut self, until: Nanos, seen: &mut Observation) -> Result<Nanos, BackendError>;
    /// From here on, until it is undone, memory is looked at and steered ([`Self::memory`],
    /// [`Action::Memory`]). Once the steps are applied.
    fn watch(&mut self, _pressure: &Pressured) -> Result<(), BackendError> {
        Err(BackendError(
            "this machine does not tell of its memory".to_owned(),
        ))
    }
    /// Memory as it is now, into a look that the caller keeps; `processes`: with those of the
    /// neighbours.
    fn memory(&mut self, _processes: bool, _look: &mut Look) -> Result<(), BackendError> {
        Err(BackendError("memory is not watched".to_owned()))
    }
    /// What our own process has taken, for the record. `None` where nobody keeps an account of it.
    fn own(&mut self) -> Result<Option<Own>, BackendError> {
        Ok(None)
    }
    /// Acts on a running subject.
    fn act(&mut self, action: &Action) -> Result<(), BackendError>;
    /// Whether two CPUs share a cache right now, by a probe of the backend's own: 1 = a neighbour's
    /// line is as near as one's own, 0 = as far as memory. `None` where it cannot be told.
    fn shared_cache(&mut self, a: CpuId, b: CpuId) -> Result<Option<f64>, BackendError>;
    /// What a subject has drawn from memory since it was started. `None` on a machine that does not
    /// count that by subject.
    fn drawn(&mut self, _subject: SubjectId) -> Result<Option<Drawn>, BackendError> {
        Ok(None)
    }
    /// Bytes that a group's tasks have drawn from memory so far, counted from no particular moment;
    /// `None` while that cannot be told.
    fn drawn_by(&mut self, _group: &str) -> Result<Option<u64>, BackendError> {
        Err(BackendError(
            "this machine does not tell what a group draws from memory".to_owned(),
        ))
    }
    /// The memory that a subject works on. `None` on a machine that cannot tell.
    fn working_set(&mut self, _subject: SubjectId) -> Result<Option<WorkingSet>, BackendError> {
        Ok(None)
    }
    /// How the time of every CPU was spent so far, for the record. `None` on a machine that keeps
    /// no account.
    fn cpu_times(&mut self) -> Result<Option<Vec<CpuTimes>>, BackendError> {
        Ok(None)
    }
}
