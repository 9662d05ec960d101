//! How processes took turns by `[scheduler]`, and what that cost.

use quell_types::ids::GroupId;
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
