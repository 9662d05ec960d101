//! The policy language: what the user wants, as TOML. This module has the typed [`Policy`] and its
//! reader, which locates problems.
//!
//! `examples/reference.toml` shows all keys and defaults. The schema (`schemas/policy.schema.json`)
//! and the reference page (`docs/policy-reference.md`) are generated from the types here.

mod check;
mod read;
mod reference;
mod scheduler;
mod schema;
mod sections;
mod values;
mod windows;

use indexmap::IndexMap;
use quell_types::options::CpuWeight;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use quell_types::ids::GroupId;
use quell_types::mechanism::Level;
use quell_types::options::OnDrift;
use quell_types::task::TaskMatch;
use quell_types::text::Complaint;

pub(crate) use check::fit_name;
pub(crate) use read::{FRAGMENT_KEYS, Shape, policy_of, stem};
pub use reference::{policy_reference, policy_schema};
pub use scheduler::{DemandKeys, SchedulerKeys};
pub use sections::{
    Adapt, BandwidthMechanism, Bounds, CacheMechanism, HoardKeys, HoardMoves, Limit, Mechanisms,
    MeterWanted, Paging, Pressure, RegulatorKeys, Reserve, Target, WaysKept,
};
pub use values::{
    Bandwidth, Banks, CacheForm, CacheWanted, CpusWanted, MemoryWanted, Sustainable, WindowWays,
};
pub use windows::{Window, WindowKeys};

/// The version of the policy format that this program reads.
pub const VERSION: u32 = 1;

/// A policy: groups of tasks, what each of them gets, and by which mechanisms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Policy {
    /// Format version: 1. The only required top-level key.
    pub quell: u32,
    /// The policy's name. Default: the file's name without its extension.
    #[serde(default)]
    pub name: String,
    /// The plan is refused when a promise is below this level.
    #[serde(default = "estimated")]
    pub require: Level,
    /// What Quell does when another program has changed a setting that it holds.
    #[serde(default)]
    pub on_drift: OnDrift,
    /// The groups, in the order of the file.
    #[serde(default, rename = "group")]
    pub groups: IndexMap<GroupId, Group>,
    /// Settings of all tasks that no group matches.
    #[serde(default)]
    pub rest: Rest,
    /// Which mechanisms may be used.
    #[serde(default)]
    pub mechanisms: Mechanisms,
    /// How bandwidth is regulated.
    #[serde(default)]
    pub regulator: RegulatorKeys,
    /// How memory pressure is controlled. Absent: it is controlled only where a critical group
    /// reserves memory, as the defaults of the section say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pressure: Option<Pressure>,
    /// How page colours are carried out where no memory node has them. Absent: as the defaults of
    /// the section say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hoard: Option<HoardKeys>,
    /// Which processes run together. Absent: the kernel decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<SchedulerKeys>,
    /// Fixed windows in which one group at a time runs on a CPU. Absent: the kernel decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub windows: Option<WindowKeys>,
    /// What is around all groups and programs of none: the experiment's that this is a
    /// configuration of. No key of a policy.
    #[serde(skip_deserializing, skip_serializing_if = "Bounds::is_empty")]
    #[schemars(skip)]
    pub bounds: Bounds,
}

const fn estimated() -> Level {
    Level::Estimated
}

impl Policy {
    /// What caps a group's bandwidth: its limit. Without one, and with `strict`, its reserve.
    #[must_use]
    pub fn cap(&self, group: &Group) -> Option<Bandwidth> {
        let strict = self.regulator.strict && group.role != Role::Exempt;
        group
            .limit
            .bandwidth
            .or(group.reserve.bandwidth.filter(|_| strict))
    }

    /// A policy with all defaults and without a group.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            quell: VERSION,
            name: name.into(),
            require: estimated(),
            on_drift: OnDrift::default(),
            groups: IndexMap::new(),
            rest: Rest::default(),
            mechanisms: Mechanisms::default(),
            regulator: RegulatorKeys::default(),
            pressure: None,
            hoard: None,
            scheduler: None,
            windows: None,
            bounds: Bounds::default(),
        }
    }

    /// What is wrong although every value has the right type. A group may have neither `match` nor
    /// `command`.
    #[must_use]
    pub fn check(&self) -> Vec<Complaint> {
        check::check(self, Shape::Open)
    }

    /// Whether the plan needs the machine's memory rates.
    #[must_use]
    pub fn needs_rates(&self) -> bool {
        let bandwidth = |g: &Group| g.limit.bandwidth.is_some() || g.reserve.bandwidth.is_some();
        self.groups.values().any(bandwidth) || self.regulator.adapt != Adapt::Off
    }

    /// The groups of one role, in the order of the policy.
    pub fn with_role(&self, role: Role) -> impl Iterator<Item = (&GroupId, &Group)> {
        self.groups.iter().filter(move |(_, g)| g.role == role)
    }
}

/// What a group is to the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Its latency is protected.
    Critical,
    /// It may be slowed.
    BestEffort,
    /// It is never slowed, stopped or moved.
    Exempt,
}

impl Role {
    /// The name used in policies.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::BestEffort => "best-effort",
            Self::Exempt => "exempt",
        }
    }
}

/// How a group shares its cores with SMT siblings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Smt {
    /// The siblings of the group's CPUs stay empty.
    Alone,
    /// Other groups may run on the siblings.
    Shared,
    /// Alone if the other groups keep a core, else shared. The plan says which.
    #[default]
    Auto,
}

/// What happens to interrupts that could arrive on the group's CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Irqs {
    /// Sent elsewhere, where the kernel lets them.
    Away,
    /// Left where they are.
    Leave,
}

/// What may be done to a group's tasks.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Permission {
    /// Kept from running until its budget is refilled.
    Throttle,
    /// Held below a memory limit.
    LimitMemory,
    /// Stopped and continued. Only if named.
    Freeze,
    /// Its memory reclaimed ahead of need. Only if named.
    Reclaim,
    /// Killed. Only if named.
    Kill,
}

impl Permission {
    /// All permissions that a policy can give.
    pub const ALL: [Self; 5] = [
        Self::Throttle,
        Self::LimitMemory,
        Self::Freeze,
        Self::Reclaim,
        Self::Kill,
    ];

    /// The name used in policies.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Throttle => "throttle",
            Self::LimitMemory => "limit-memory",
            Self::Freeze => "freeze",
            Self::Reclaim => "reclaim",
            Self::Kill => "kill",
        }
    }
}

/// What happens when coloured memory runs out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Coloured {
    /// Take memory of any colour, and report.
    #[default]
    Spill,
    /// Let the allocation fail.
    Fail,
}

/// A named set of tasks with one role and one set of promises.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Group {
    /// What the group is to the machine.
    pub role: Role,
    /// Which tasks belong to it. A task must fit all keys of any one table.
    #[serde(rename = "match", default, skip_serializing_if = "Vec::is_empty")]
    pub matching: Vec<TaskMatch>,
    /// A program launched in the group by `quell run`, with its arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Its CPUs. Critical: exclusive, default "auto"; CPUs isolated at boot come first.
    /// Best-effort: default "remaining".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpusWanted>,
    /// Whether SMT siblings of its CPUs stay empty.
    #[serde(default)]
    pub smt: Smt,
    /// Interrupts on its CPUs. Default for critical: "away"; for others: "leave".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub irqs: Option<Irqs>,
    /// The outcome wanted; drives the closed loop and the "held" column.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
    /// What the group gets at least.
    #[serde(default, skip_serializing_if = "Reserve::is_empty")]
    pub reserve: Reserve,
    /// What the group gets at most.
    #[serde(default, skip_serializing_if = "Limit::is_empty")]
    pub limit: Limit,
    /// How the memory of its programs is paged.
    #[serde(default, skip_serializing_if = "Paging::is_empty")]
    pub paging: Paging,
    /// Its weight where other programs want the same CPU: 1 to 10000, or "idle". The kernel gives
    /// every cgroup 100. Default for best-effort: "idle". It then has CPU time that no other
    /// program wants, and hardly any next to a busy program. In cgroups that are changed in place:
    /// 2. For other roles: as found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_weight: Option<CpuWeight>,
    /// Its share of the spare, among best-effort groups. Default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// What may be done to it. Default for best-effort: "throttle" and "limit-memory". For other
    /// roles: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow: Option<Vec<Permission>>,
    /// When coloured memory runs out: "spill" (default) or "fail".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coloured: Option<Coloured>,
}

impl Group {
    /// A group of `role` with all defaults, which matches nothing.
    #[must_use]
    pub fn new(role: Role) -> Self {
        Self {
            role,
            matching: Vec::new(),
            command: None,
            cpus: None,
            smt: Smt::default(),
            irqs: None,
            target: None,
            reserve: Reserve::default(),
            limit: Limit::default(),
            paging: Paging::default(),
            cpu_weight: None,
            weight: None,
            allow: None,
            coloured: None,
        }
    }

    /// The CPUs wanted, or the role's default: critical "auto", best-effort "remaining", exempt
    /// "any".
    #[must_use]
    pub fn cpus_wanted(&self) -> CpusWanted {
        self.cpus.clone().unwrap_or(match self.role {
            Role::Critical => CpusWanted::Auto,
            Role::BestEffort => CpusWanted::Remaining,
            Role::Exempt => CpusWanted::Any,
        })
    }

    /// What is to happen to interrupts, or the role's default.
    #[must_use]
    pub fn irqs_wanted(&self) -> Irqs {
        self.irqs.unwrap_or(match self.role {
            Role::Critical => Irqs::Away,
            Role::BestEffort | Role::Exempt => Irqs::Leave,
        })
    }

    /// The group's weight in what reserves leave, or the default of 100.
    #[must_use]
    pub fn weight(&self) -> u32 {
        self.weight.unwrap_or(100)
    }

    /// Whether the policy permits `what` for the group's tasks, by the role's default if it says
    /// nothing.
    #[must_use]
    pub fn allows(&self, what: Permission) -> bool {
        match &self.allow {
            Some(list) => list.contains(&what),
            None => {
                self.role == Role::BestEffort
                    && matches!(what, Permission::Throttle | Permission::LimitMemory)
            }
        }
    }
}

/// Every unmatched task: your shell, system services, the rest of the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Rest {
    /// The CPUs on which these tasks run.
    pub cpus: CpusWanted,
    /// What may be done to these tasks. They are neither counted nor stopped with a group that is
    /// regulated on their CPUs.
    pub allow: Vec<Permission>,
}

impl Default for Rest {
    fn default() -> Self {
        Self {
            cpus: CpusWanted::Remaining,
            allow: Vec::new(),
        }
    }
}
