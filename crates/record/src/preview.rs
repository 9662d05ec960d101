//! What a plan meets on the machine that it was made for: the processes of its groups, and what
//! becomes of each.

use quell_plan::Plan;
use quell_types::ids::GroupId;
use quell_types::witness::Amount;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What becomes of a process when the plan is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// It is moved into a cgroup of its group.
    Gathered,
    /// Its own cgroup is changed, and it stays there.
    InPlace,
    /// The run starts it in a cgroup of its group.
    Launched,
    /// Its cgroup is left as it is, and the process in it.
    Untouched,
}

/// A process of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Process {
    /// Name of the group.
    pub group: GroupId,
    /// Absent for a program that the run starts.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pid: Option<u32>,
    /// The command name, as `/proc/PID/comm`.
    pub command: String,
    /// Its cgroup now, from the root of the hierarchy. Absent for a program that the run starts.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cgroup: Option<String>,
    /// What becomes of it.
    pub fate: Fate,
}

/// A limit on a group, which the plan does not lift.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LimitAbove {
    /// Name of the group.
    pub group: GroupId,
    /// Path of the file: of a cgroup of the group or one above it, or of a setting of the kernel.
    pub file: String,
    /// Its content. In v1 quota and period, as v2 shows them.
    pub value: String,
    /// What all processes below that cgroup get together, at most.
    pub gets: Amount,
}

/// What a plan meets on the machine that it was made for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Met {
    /// The processes of all groups. Absent where no process was looked for: for another machine,
    /// or without root.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub processes: Vec<Process>,
    /// Limits of CPU time, memory and disks on the critical groups, and low weights above them.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub limits: Vec<LimitAbove>,
    /// Why programs that begin later are found only by a search once a second. Absent where the
    /// kernel reports them, and where no group matches programs one by one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub unreported: Option<String>,
    /// A sentence for each process that two groups match, or that lets whoever reads its arguments
    /// wait, and for each group of several users' processes that are matched by what they say of
    /// themselves.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
}

/// A plan, with what it meets on the machine it was made for: what `quell plan --json` prints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Preview {
    /// The plan.
    #[serde(flatten)]
    pub plan: Plan,
    /// What it meets.
    #[serde(flatten)]
    pub met: Met,
}
