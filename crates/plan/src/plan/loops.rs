//! What is steered while a plan is held: the closed loops of a [`Plan`](super::Plan).

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
    /// Who belongs to it besides what is launched: programs that run already.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub matching: Vec<TaskMatch>,
    /// The longest time per unit; absent: what the application says of each.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub deadline: Option<Nanos>,
    /// Which share of the units is to meet it.
    pub percentile: Share,
}

/// The closed loop around the targets of one or several groups: what the others may draw follows
/// how late their units are, those of the worst off first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Adaptation {
    /// The groups whose units are to be in time, whose targets are under `observed`.
    pub groups: Vec<GroupId>,
    /// What all CPUs draw together: what of this the others are not given is reserved.
    pub sustainable: Rate,
    /// Whose budgets are moved, all in proportion.
    pub levers: Vec<Lever>,
    /// Whose budgets are what is reserved, as the levers move: headroom, which they give while they
    /// are idle.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub headroom: Vec<Headroom>,
}

/// A critical group's budget that grows with what the others are not left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Headroom {
    /// The group.
    pub group: GroupId,
    /// The step that began the regulation.
    pub step: StepId,
    /// What is reserved for it in any case.
    pub least: Rate,
}

/// A budget that the closed loop moves: at first and at most as its step says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Lever {
    /// The group.
    pub group: GroupId,
    /// The step that began the regulation.
    pub step: StepId,
    /// What it gets in any case.
    pub least: Rate,
    /// What it gets at most.
    pub most: Rate,
}

/// The ways of a group that follow what it draws from memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Following {
    /// The group.
    pub group: GroupId,
    /// The cache level.
    pub level: u32,
    /// The ways it has at first and at most.
    pub own: Mask,
    /// How many it has at least.
    pub least: u32,
    /// Who gets what it does not need.
    pub others: Vec<GroupId>,
    /// What these have at first and at least.
    pub left: Mask,
    /// How much more it may draw from memory than with all of its ways.
    pub tolerated: Rate,
    /// How often it is looked at.
    pub interval: Nanos,
}

/// The control of memory pressure while a plan holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Pressured {
    /// Which controller.
    pub controller: PressureController,
    /// How often it looks.
    pub interval: Nanos,
    /// Stall share of a critical group from which it acts.
    pub start: Share,
    /// Stall share up to which all is calm.
    pub release: Share,
    /// How long it waits between two steps.
    pub grace: Nanos,
    /// The groups that are looked after.
    pub critical: Vec<Watched>,
    /// The groups that may be acted upon.
    pub neighbours: Vec<Steered>,
}

/// A group that is looked after.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Watched {
    /// The group.
    pub group: GroupId,
    /// Whether what it works on is measured, and its protection follows.
    pub measured: bool,
}

/// A group that may be acted upon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Steered {
    /// The group.
    pub group: GroupId,
    /// What may be done to it.
    pub allows: Allows,
}
