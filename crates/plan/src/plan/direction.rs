//! The directions of memory traffic.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One direction of memory traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Lines that come in.
    Read,
    /// Lines that are written back.
    Write,
}

impl std::fmt::Display for Direction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "written back",
        })
    }
}
