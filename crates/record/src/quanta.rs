//! How processes took turns by `[scheduler]`, and what that cost.

use quell_control::work::Work;
use quell_types::cpuset::CpuId;
use quell_types::ids::GroupId;
use quell_types::units::Nanos;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::windows::Late;

/// The turns of one group's processes, since the plan is held.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroupTurns {
    /// The group whose processes they are.
    pub group: GroupId,
    /// How many of its processes took turns, those that have ended included. Their children count
    /// with them.
    pub processes: u64,
    /// How long they had a CPU, summed over the processes, in nanoseconds.
    pub ran_ns: u64,
    /// How long they were frozen, summed over the processes, in nanoseconds.
    pub waited_ns: u64,
    /// The longest that one of them was frozen without a turn, in nanoseconds.
    pub longest_wait_ns: u64,
}

/// The turns of all processes, since the plan is held.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Turns {
    /// How many decisions were carried out.
    pub quanta: u64,
    /// Quanta that were passed over, because the dispatcher did not run in time.
    pub skipped: u64,
    /// How long after the end of a quantum the dispatcher ran.
    pub late: Late,
    /// How long a decision and the switch took: from then until all have their CPU.
    pub switch: Late,
    /// How often a process that waits had not stopped at the end of a quantum. It was in a system
    /// call, or it got no CPU to stop on: no code of the program runs then.
    pub unparked: u64,
    /// How often a process's counters could not be opened, or not be read at the end of a quantum.
    #[serde(default)]
    pub uncounted: u64,
    /// How long the turns were taken, in nanoseconds.
    pub wall_ns: u64,
    /// For how much of that at least one process waited, in nanoseconds.
    pub waiting_ns: u64,
    /// CPU time of the dispatcher, in nanoseconds.
    pub own_ns: u64,
    /// Idle time of all CPUs of the turns while a process waited, in nanoseconds. It is counted in
    /// clock ticks, often of 10 ms. Absent where no file of the kernel says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_ns: Option<u64>,
    /// What became of each group's processes.
    pub groups: Vec<GroupTurns>,
}

/// What was known of a process when a quantum began, and what it got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chance {
    /// Its number. No other process of the run ever has it.
    pub member: u64,
    /// The place of its group among those that take turns, by their names.
    pub group: usize,
    /// What it had done so far. `None` where that is not counted.
    pub did: Option<Work>,
    /// Where it ran. `None` where it waited.
    pub cpu: Option<CpuId>,
}

/// One decision about all processes that take turns, for `samples/turns.csv`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantum {
    /// When it was decided.
    pub at: Nanos,
    /// What was drawn came from this seed. With each new one the decisions begin anew.
    pub seed: u64,
    /// The processes, in the order in which the policy got them.
    pub chances: Vec<Chance>,
}
