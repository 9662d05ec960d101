//! What is steered while a plan is held: the closed loops of a [`Plan`](super::Plan).

use std::collections::BTreeMap;

use quell_types::ids::GroupId;
use quell_types::ids::StepId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use quell_control::config::Allows;
use quell_types::options::PressureController;
use quell_types::partition::Mask;
use quell_types::source::Source;
use quell_types::task::TaskMatch;
use quell_types::units::{Nanos, Rate, Share};

/// A group whose units of work are observed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Observed {
    /// Where the times come from.
    pub source: Source,
    /// Tasks that run already and belong to the group. Tasks that are launched in it need no entry.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub matching: Vec<TaskMatch>,
    /// The longest time per unit. Absent: the deadline that the application gives for each unit.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub deadline: Option<Nanos>,
    /// Which share of the units is to meet it.
    pub percentile: Share,
}

/// The closed loop around the targets of one or several groups. The bandwidth of the best-effort
/// groups follows how late units are, first those of the group that is worst off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Adaptation {
    /// The groups whose units are to be in time. Their targets are under `observed`.
    pub groups: Vec<GroupId>,
    /// The rate of all CPUs together. What the best-effort groups are not given of it is reserved.
    pub sustainable: Rate,
    /// The rate that the CPUs of each of these groups draw together at most. Of its units no more
    /// is believed.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub draws: BTreeMap<GroupId, Rate>,
    /// The budgets that are moved, all in proportion.
    pub levers: Vec<Lever>,
    /// Groups whose budgets are what is reserved, as the levers move. Such a budget is headroom:
    /// the group gives it away while it is idle.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub headroom: Vec<Headroom>,
}

/// A critical group's budget, which grows with what is taken from the best-effort groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Headroom {
    /// Name of the critical group.
    pub group: GroupId,
    /// The step that began the regulation.
    pub step: StepId,
    /// The rate that is reserved for it in any case.
    pub least: Rate,
}

/// A budget that the closed loop moves. It starts at what its step says, which is also its maximum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Lever {
    /// Name of the regulated group.
    pub group: GroupId,
    /// The step that began the regulation.
    pub step: StepId,
    /// The rate that the loop leaves it in any case.
    pub least: Rate,
    /// The rate that it has at first and at most.
    pub most: Rate,
}

/// The ways of a group that follow what it draws from memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Following {
    /// Name of the critical group.
    pub group: GroupId,
    /// The cache level: 2 or 3.
    pub level: u32,
    /// The ways it has at first and at most.
    pub own: Mask,
    /// The number of ways that it keeps in any case.
    pub least: u32,
    /// The groups that get the ways which it does not need.
    pub others: Vec<GroupId>,
    /// The ways that these groups have at first and at least.
    pub left: Mask,
    /// How much more it may draw from memory than with all of its ways.
    pub tolerated: Rate,
    /// Time between two samples.
    pub interval: Nanos,
}

/// The control of memory pressure while a plan holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Pressured {
    /// The controller that decides what is done.
    pub controller: PressureController,
    /// Time between two decisions.
    pub interval: Nanos,
    /// Stall share of a critical group from which the controller acts.
    pub start: Share,
    /// Stall share up to which the controller holds that pressure is over.
    pub release: Share,
    /// Least time between two steps.
    pub grace: Nanos,
    /// The groups that are protected.
    pub critical: Vec<Watched>,
    /// The groups that the controller may limit, stop or kill.
    pub neighbours: Vec<Steered>,
}

/// A critical group whose waits for memory are sampled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Watched {
    /// Name of the group.
    pub group: GroupId,
    /// Whether the memory it works on is measured, so that its protection follows.
    pub measured: bool,
}

/// A group that the controller may limit, stop or kill.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Steered {
    /// Name of the group.
    pub group: GroupId,
    /// What may be done to it.
    pub allows: Allows,
}
