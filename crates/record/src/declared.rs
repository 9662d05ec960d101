//! What programs say of their units of work.

use quell_types::units::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a unit of work asks of the machine, as its program declares. It is not checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Declared {
    /// Bytes that a unit moves to and from memory.
    #[serde(default, skip_serializing_if = "crate::pages::is_zero")]
    pub bytes_per_unit: u64,
    /// Bytes that it uses again and again.
    #[serde(default, skip_serializing_if = "crate::pages::is_zero")]
    pub working_set: u64,
}

impl std::ops::AddAssign for Declared {
    fn add_assign(&mut self, other: Self) {
        self.bytes_per_unit = self.bytes_per_unit.saturating_add(other.bytes_per_unit);
        self.working_set = self.working_set.saturating_add(other.working_set);
    }
}

impl std::fmt::Display for Declared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let said = [
            (self.bytes_per_unit, "a unit moves"),
            (self.working_set, "its working set is"),
        ];
        let said: Vec<String> = said
            .into_iter()
            .filter(|(bytes, _)| *bytes > 0)
            .map(|(bytes, what)| format!("{what} {}", Bytes(bytes)))
            .collect();
        f.write_str(&said.join(", "))
    }
}
