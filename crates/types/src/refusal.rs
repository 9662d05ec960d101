//! What cannot be had.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A promise or key that cannot be had, with the reason and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Refusal {
    /// The key in the policy, for example `group.batch.limit.bandwidth`.
    pub key: String,
    /// Why it cannot be had.
    pub why: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.key, self.why)?;
        if let Some(remedy) = &self.remedy {
            write!(f, "; {remedy}")?;
        }
        Ok(())
    }
}
