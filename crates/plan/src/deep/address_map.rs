//! The address map of the DRAM banks, recovered by timing (`quell_types::address::recovery`).

use quell_types::address::BankMap;
use quell_types::address::recovery::{Recovery, Verdict};
use quell_types::units::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What timing says of the address map.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct AddressMap {
    /// The memory whose lines were timed.
    pub pool: Bytes,
    /// How long it took, in seconds.
    pub took_s: f64,
    /// What was found.
    pub found: Recovery,
}

impl AddressMap {
    /// The map. `None` where none was recovered.
    #[must_use]
    pub fn map(&self) -> Option<BankMap> {
        match &self.found.verdict {
            Verdict::Map { functions, .. } => {
                BankMap::new(functions.iter().map(|function| function.0).collect()).ok()
            }
            _ => None,
        }
    }
}
