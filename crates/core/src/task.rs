//! Which tasks belong to a group: the `match` tables of a policy, as data.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One `match` table: all keys given must hold. A group matches when any of its tables does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TaskMatch {
    /// Process number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The executable's path; symbolic links are followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exe: Option<String>,
    /// The command name, as `/proc/PID/comm` (at most 15 bytes; longer names are compared by their first 15).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comm: Option<String>,
    /// A regular expression found in any argument, as `/proc/PID/cmdline`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arg: Option<String>,
    /// The effective user, by name or number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// A cgroup path from the hierarchy's root, its children included. The group is changed in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// A systemd unit. The group is changed in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// A container, by the beginning of its id (at least 12 characters). The group is changed in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
}

impl TaskMatch {
    /// Whether the table names a cgroup as a whole, which is then changed in place and never emptied.
    #[must_use]
    pub fn in_place(&self) -> bool {
        self.cgroup.is_some() || self.unit.is_some() || self.container.is_some()
    }
}
