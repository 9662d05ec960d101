//! The verdict on a group's target.

use quell_types::units::Share;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the units of a group did against their target, from two seconds after the first on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TargetVerdict {
    /// Number of units.
    pub units: u64,
    /// How many of them were late.
    pub late: u64,
    /// The share of units that may be late.
    pub allowed: Share,
    /// The longest time that a unit took, in nanoseconds.
    pub longest_ns: u64,
}

impl TargetVerdict {
    /// Whether no more units were late than may be.
    #[must_use]
    pub fn is_met(&self) -> bool {
        Share::ratio(self.late, self.units) <= self.allowed
    }
}
