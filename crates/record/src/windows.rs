//! How exactly the windows of a frame were kept.

use quell_types::ids::GroupId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How late something was, over many times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Late {
    /// The median in nanoseconds.
    pub p50_ns: u64,
    /// The 99th percentile in nanoseconds.
    pub p99_ns: u64,
    /// The longest in nanoseconds.
    pub most_ns: u64,
}

/// The windows of one group, since the plan is held.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroupWindows {
    /// The group whose windows they are.
    pub group: GroupId,
    /// How often the group was resumed.
    pub windows: u64,
    /// How long after its window began the CPU was left to the group.
    pub begun: Late,
    /// How long after its window had ended the group was stopped. Zero where the guard was enough.
    pub ended: Late,
    /// How often the guard passed before all its tasks had left the kernel.
    pub unparked: u64,
    /// CPU time that its tasks used outside its windows, in nanoseconds: system calls that went on,
    /// and the stop itself. Absent where no file of the kernel says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outside_ns: Option<u64>,
    /// The most of that between two of its windows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outside_most_ns: Option<u64>,
}

/// All windows of a frame, since the plan is held.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Kept {
    /// How often the CPU changed hands.
    pub switches: u64,
    /// Switches that were passed over, because the dispatcher did not run in time.
    pub skipped: u64,
    /// Windows that began more than a guard late.
    pub late: u64,
    /// What became of each group's windows.
    pub groups: Vec<GroupWindows>,
}
