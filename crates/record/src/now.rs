//! A run as it is now, for `quell status`.

use quell_types::cpuset::CpuSet;
use quell_types::ids::GroupId;
use quell_types::mechanism::Level;
use quell_types::units::Nanos;
use serde::Serialize;

/// What a promise is worth now. The later, the worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PromiseState {
    /// The level that was planned.
    Holds,
    /// Less than was planned, and more than nothing.
    Lowered,
    /// The plan says that nothing holds it.
    Unheld,
    /// Nothing holds it any more.
    Lost,
}

/// A promise now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PromiseNow {
    /// Name of the group.
    pub group: GroupId,
    /// What is promised.
    pub promise: String,
    /// What it is worth.
    pub state: PromiseState,
    /// Its level.
    pub level: Level,
    /// How long it has been so, in nanoseconds.
    #[serde(rename = "since_ns", skip_serializing_if = "Option::is_none")]
    pub since: Option<Nanos>,
    /// It may have been so for longer than `since`.
    pub at_least: bool,
    /// Why it was changed last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
}

/// A group now.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupNow {
    /// Its name.
    pub group: GroupId,
    /// How many processes are in its cgroups.
    pub processes: usize,
    /// The CPUs that the plan gives it.
    pub cpus: CpuSet,
    /// How many CPUs it uses. Absent where that was not looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used: Option<f64>,
    /// The worst of its promises. Absent where nothing is promised to or about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub promise: Option<PromiseState>,
    /// Since when all its promises have been so, in nanoseconds before now.
    #[serde(rename = "since_ns", skip_serializing_if = "Option::is_none")]
    pub since: Option<Nanos>,
    /// How many values of its cgroups another program has changed.
    pub drift: usize,
}
