//! The section `[scheduler]`: its keys, and what is wrong with them although every value has the
//! right type.

use indexmap::IndexMap;
use quell_types::ids::GroupId;
use quell_types::options::SchedulerPolicy;
use quell_types::text::Path;
use quell_types::units::{Nanos, Rate};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::check::Found;
use super::{Permission, Policy, Role};

/// The bounds of a quantum. Below, stopping and moving takes too much of it. Above, peers of a
/// stopped program time out.
const QUANTUM: (Nanos, Nanos) = (Nanos::millis(20), Nanos::secs(5));

/// Which processes run together, where there are more than hardware threads. The others are frozen
/// meanwhile, so each group needs `allow = ["freeze"]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct SchedulerKeys {
    /// Who decides.
    pub policy: SchedulerPolicy,
    /// For how long a decision holds, 20ms to 5s. The kernel's slice, where the policy is `linux`.
    pub quantum: Nanos,
    /// How many quanta a process waits at most. With too many processes for that it is as many as a
    /// turn of all takes.
    pub bound: u32,
    /// The groups whose processes take turns. Default: every best-effort group that may be frozen.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupId>,
    /// What one process of a group demands while it runs alone, by group. Policies other than
    /// "random" need it where the machine does not count it.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub demand: IndexMap<GroupId, DemandKeys>,
}

/// What one process of a group demands while it runs alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct DemandKeys {
    /// What it moves to and from main memory, for example "2GB/s".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Rate>,
    /// What it loads from and stores to the first-level cache, for example "20GB/s": 64 bytes for
    /// each load or store. It decides who shares a core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_level: Option<Rate>,
}

impl Default for SchedulerKeys {
    fn default() -> Self {
        Self {
            policy: SchedulerPolicy::Fair,
            quantum: Nanos::millis(200),
            bound: 4,
            groups: Vec::new(),
            demand: IndexMap::new(),
        }
    }
}

impl Policy {
    /// The groups whose processes take turns by `[scheduler]`: those that it names, else every
    /// best-effort group that may be frozen. None without the section.
    #[must_use]
    pub fn scheduled(&self) -> Vec<&GroupId> {
        let Some(keys) = &self.scheduler else {
            return Vec::new();
        };
        if !keys.groups.is_empty() {
            return keys.groups.iter().collect();
        }
        let all = self.with_role(Role::BestEffort);
        all.filter(|(_, group)| group.allows(Permission::Freeze))
            .map(|(name, _)| name)
            .collect()
    }

    /// Whether a group's processes take turns by `[scheduler]`.
    #[must_use]
    pub fn is_scheduled(&self, group: &str) -> bool {
        self.scheduled().iter().any(|name| *name == group)
    }
}

/// Complains about the section, and about groups that cannot take part.
pub(super) fn check(found: &mut Found, policy: &Policy) {
    let Some(keys) = &policy.scheduler else {
        return;
    };
    let at = Path::of(&["scheduler"]);
    if !(QUANTUM.0..=QUANTUM.1).contains(&keys.quantum) {
        let (least, most) = QUANTUM;
        let why = format!("{} is not between {least} and {most}", keys.quantum);
        found.say(at.key("quantum"), why, Some("default 200ms"));
    }
    for (i, name) in keys.groups.iter().enumerate() {
        member(found, at.key("groups").index(i), policy, name);
    }
    for name in keys.demand.keys() {
        if !policy.is_scheduled(name) {
            let why = format!("group '{name}' does not take turns by [scheduler]");
            let remedy = "add it to scheduler.groups, or remove its demand";
            found.say(at.key("demand").key(name), why, Some(remedy));
        }
    }
}

/// Complains of a group that cannot take part.
fn member(found: &mut Found, at: Path, policy: &Policy, name: &GroupId) {
    let Some(group) = policy.groups.get(name) else {
        let why = format!("there is no group '{name}'");
        found.say(at, why, Some("write a [group.NAME] for it"));
        return;
    };
    if group.role != Role::BestEffort {
        let why = format!(
            "group '{name}' is {}: only best-effort groups wait for their turn",
            group.role.name()
        );
        found.say(at, why, Some("make it best-effort, or leave it out"));
        return;
    }
    if policy.windows.as_ref().is_some_and(|w| w.has(name)) {
        let why = format!("group '{name}' has a window, which says when it runs");
        found.say(at, why, Some("leave it out here or in [windows]"));
    } else if !group.allows(Permission::Freeze) {
        let why = format!("group '{name}' is frozen while it waits, and may not be");
        found.say(at, why, Some("write allow = [\"freeze\"] in the group"));
    }
}
