//! The types that name groups, steps and promises.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The number of a step within its plan, from 1.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub struct StepId(pub u32);

/// The name of a group. Unmatched tasks form the group [`REST`].
pub type GroupId = String;

/// The group of every task that no other group matches.
pub const REST: &str = "rest";

/// The number of a promise within its plan, from 1: its place among the promises of the plan.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub struct PromiseId(pub u32);
