//! The plan: what will be done, why, and what each promise is then worth.

mod disk;
mod loops;
mod promise;

use quell_control::config::{Frame, Regulation, Scheduling};
use quell_types::ids::GroupId;
use quell_types::ids::{PromiseId, StepId};
use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use quell_control::config::Allows;
use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::mechanism::{Level, Mechanism};
use quell_types::options::{CpuWeight, PageSize};
use quell_types::partition::{ColourChoice, Colouring, Divides, Mask};
use quell_types::task::TaskMatch;
use quell_types::units::{Bytes, Nanos, Rate, Share};

pub use disk::DiskRates;
pub use loops::{Adaptation, Following, Headroom, Lever, Observed, Pressured, Steered, Watched};
pub use promise::{Direction, Promise};

/// One setting that the plan makes. Steps are applied in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Step {
    /// The step's number within the plan, from 1.
    pub id: StepId,
    /// The group it is for; absent when it is for the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupId>,
    /// The mechanism it belongs to.
    pub mechanism: Mechanism,
    /// What the step changes.
    pub set: Setting,
    /// The reason, in a sentence.
    pub because: String,
    /// What is set was calculated from assumed rates.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub assumed: bool,
}

impl Step {
    /// All mechanisms at work: one choice of pages may divide both caches and banks.
    #[must_use]
    pub fn mechanisms(&self) -> Vec<Mechanism> {
        let divides: Vec<Divides> = match &self.set {
            Setting::Colour { choices, .. } => choices.iter().map(|c| c.divides).collect(),
            Setting::Hoard { divides, .. }
            | Setting::Settle { divides, .. }
            | Setting::Vacate { divides, .. } => vec![*divides],
            _ => return vec![self.mechanism],
        };
        let all = divides.iter().flat_map(|divides| divides.mechanisms());
        let all: BTreeSet<Mechanism> = all.copied().collect();
        all.into_iter().collect()
    }
}

/// What a step sets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Setting {
    /// Collect the group's tasks (matched or launched) in a cgroup of Quell's, or find the cgroup
    /// in which they are changed.
    Gather {
        /// Which tasks belong to it; empty when its tasks are only launched.
        matching: Vec<TaskMatch>,
        /// Its cgroup lies directly below the root, where a weight counts against all others.
        #[serde(skip_serializing_if = "std::ops::Not::not", default)]
        outermost: bool,
        /// Its tasks live in a child cgroup `work`, next to the cgroup `stop` of its brakes.
        #[serde(skip_serializing_if = "std::ops::Not::not", default)]
        braked: bool,
    },
    /// Give the group this weight of the CPU time that several cgroups want.
    Weight {
        /// 1 to 10000, or `idle`. The kernel gives each cgroup 100.
        weight: CpuWeight,
    },
    /// Confine the group to CPUs and memory nodes.
    Confine {
        /// The CPUs on which the group may run.
        cpus: CpuSet,
        /// The memory nodes from which the group may have memory.
        mems: CpuSet,
        /// No other task may run on these CPUs.
        exclusive: bool,
    },
    /// Keep every other task (group `rest`) on these CPUs.
    ConfineRest {
        /// The CPUs left to them.
        cpus: CpuSet,
    },
    /// Send interrupts to `to` that could arrive on `from`.
    MoveIrqs {
        /// CPUs to be kept quiet.
        from: CpuSet,
        /// CPUs that take the interrupts.
        to: CpuSet,
    },
    /// Let unbound kernel work run on these CPUs only.
    WorkqueueMask {
        /// The CPUs left to unbound kernel work.
        cpus: CpuSet,
    },
    /// Regulate the group's memory bandwidth in software.
    Regulate(Regulation),
    /// Give the group at most `share` of each period as CPU time, over all its CPUs together (100 %
    /// = one CPU).
    CpuMax {
        /// CPU time per period, over all CPUs.
        share: Share,
        /// The period of the quota.
        period: Nanos,
    },
    /// Let the group move at most so much to and from each disk.
    IoMax(DiskRates),
    /// Hold other groups back where the group's requests to a disk take longer than this at the
    /// mean.
    IoLatency {
        /// The longest mean time of a request.
        target: Nanos,
    },
    /// Give the group this weight of each disk that several cgroups want.
    IoWeight {
        /// The weight; any other cgroup has 100.
        weight: u32,
    },
    /// Let the group fill these ways only of the caches of a level; it still hits everywhere.
    Ways {
        /// The cache level: 2 or 3.
        level: u32,
        /// The ways that the group may fill, one bit each.
        mask: Mask,
        /// CPUs whose caches this is about; in all others nothing changes. Empty: all caches.
        #[serde(default, skip_serializing_if = "CpuSet::is_empty")]
        caches_of: CpuSet,
    },
    /// Mount resctrl so that code and data of the caches of these levels have separate masks (CDP).
    /// It was not mounted before, and is unmounted at the end.
    #[serde(rename = "mount-apart")]
    MountCodeData {
        /// The cache levels: 2, 3 or both.
        levels: Vec<u32>,
    },
    /// Let the group fill some ways of the caches of a level with code, and other ways with data.
    #[serde(rename = "ways-apart")]
    WaysCodeData {
        /// The cache level: 2 or 3.
        level: u32,
        /// The ways for instructions.
        code: Mask,
        /// The ways for data.
        data: Mask,
    },
    /// Let kernel work and interrupts on the group's own CPUs fill the group's ways.
    WaysCpus {
        /// The CPUs that the group has to itself.
        cpus: CpuSet,
    },
    /// Let the group fill these ways only of the caches of a level, by the processor's registers:
    /// its CPUs get a class of their own.
    WayRegisters {
        /// The cache level: 2 or 3.
        level: u32,
        /// The ways that the class may fill, one bit each.
        mask: Mask,
        /// The CPUs of the class. Empty: the class of all CPUs that have no other.
        #[serde(default, skip_serializing_if = "CpuSet::is_empty")]
        cpus: CpuSet,
    },
    /// Give the group page frames of these colours only (pages of 4 KiB). Every choice must hold.
    Colour {
        /// The colours, per kind of colour. A page must fit all of them.
        choices: Vec<ColourChoice>,
        /// What happens when these colours are used up: others are taken and reported, or the
        /// allocation fails.
        spill: bool,
    },
    /// Hold the free page frames of these colours, so that no program gets them but the groups that
    /// reserve them.
    Hoard {
        /// What the colours divide.
        divides: Divides,
        /// How frames have colours.
        colouring: Colouring,
        /// The colours of which some group reserves sets or banks.
        colours: CpuSet,
        /// What is held at most, at any time. Absent: what is free.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        limit: Option<Bytes>,
        /// Memory that stays free for other programs.
        reserve: Bytes,
        /// What has to be held at least, so that each group has what it reserves of memory.
        least: Bytes,
    },
    /// Move pages of the group into frames of these colours, which a hoard releases for it.
    /// Without a hoard into free ones.
    Settle {
        /// What the colours divide.
        divides: Divides,
        /// How frames have colours.
        colouring: Colouring,
        /// The group's colours.
        colours: CpuSet,
        /// What happens when the hoard has no frames left: pages stay where they are and that is
        /// reported, or the run ends.
        spill: bool,
        /// There is no hoard: free frames are looked for while this much memory stays available.
        /// Absent: a hoard releases frames.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        unheld: Option<Bytes>,
        /// The share of time that a process that runs already may be stopped.
        pace: Share,
        /// The longest stop that is aimed at.
        longest: Nanos,
    },
    /// Move pages of the group that lie in reserved colours already into free frames of others.
    Vacate {
        /// What the colours divide.
        divides: Divides,
        /// How frames have colours.
        colouring: Colouring,
        /// The colours that no group reserves.
        colours: CpuSet,
        /// The share of time that a process may be stopped.
        pace: Share,
        /// The longest stop that is aimed at.
        longest: Nanos,
    },
    /// Pseudo-lock the first bytes of the group's memory in the caches of a level: others fill
    /// other ways, and what is locked is not evicted.
    Lock {
        /// The cache level: 2 or 3.
        level: u32,
        /// The ways that hold the locked memory. No class may fill them any more.
        mask: Mask,
        /// How many bytes are locked.
        size: Bytes,
    },
    /// Keep the kernel from killing the group's programs when memory runs out.
    OomImmune,
    /// Keep memory of the group from being reclaimed.
    ProtectMemory {
        /// Amount of memory. Absent: the memory that the group works on, as measured while it runs.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        size: Option<Bytes>,
    },
    /// Keep these files in memory, charged to the group.
    LockFiles {
        /// Paths of the files.
        files: Vec<String>,
    },
    /// Lock all memory of the group's programs: it stays in memory.
    LockMemory {
        /// It is there as soon as a program maps it. Else once the program touches it.
        prefault: bool,
    },
    /// Let the group's anonymous memory lie in pages of this size.
    PageSize {
        /// The size of the pages.
        pages: PageSize,
    },
    /// Let the group use at most so much memory.
    LimitMemory {
        /// The limit in bytes.
        most: Bytes,
        /// Beyond the limit the kernel kills in the group. Else it only slows the group down.
        kills: bool,
    },
    /// Let all groups, and programs of no group, use at most so much memory together. Their cgroups
    /// are made below one cgroup with this limit.
    BoundMemory {
        /// The limit in bytes.
        most: Bytes,
    },
    /// Decide for each quantum which processes run, and which share a core. The others are frozen.
    Schedule(Scheduling),
    /// Let one group at a time run on some CPUs, in windows of a repeating frame.
    Windows(Frame),
    /// Sample how long the group waits for memory, and how much it uses, while the plan holds.
    WatchMemory,
    /// Steer the group's memory by how long the watched groups wait.
    SteerMemory {
        /// What may be done to the group.
        allows: Allows,
        /// No memory of the group is swapped out.
        unswapped: bool,
    },
    /// Set how readily the kernel swaps out the group's memory instead of dropping pages of files
    /// (cgroup v1).
    Swappiness {
        /// The value of `memory.swappiness`: 0 to 100.
        value: u32,
    },
    /// Set the kernel's machine-wide settings of memory.
    Sysctls {
        /// Name below `/proc/sys/vm` → value.
        values: BTreeMap<String, i64>,
    },
    /// Let the hardware delay the group's requests to memory.
    Mba {
        /// Percentage of an unthrottled core's requests, as resctrl's `MB` line.
        percent: u32,
    },
    /// Give the group a rate on each memory domain. The kernel finds the percentage for it (resctrl
    /// mounted with `mba_MBps`).
    MbaRate {
        /// The rate in MiB/s, as resctrl's `MB` line.
        mib_s: u32,
    },
}

/// A promise, its level, and the steps that hold it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Held {
    /// The group that the promise is made to, or that it limits.
    pub group: GroupId,
    /// What is promised to or about the group.
    pub promise: Promise,
    /// How reliable the promise is.
    pub level: Level,
    /// The steps that hold it.
    pub held_by: Vec<StepId>,
    /// What would break it first. Absent where nothing is known to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weakest: Option<String>,
    /// Its figure, or the step that holds it, was calculated from assumed rates.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub assumed: bool,
}

/// The rates that a plan assumes, where none were measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct AssumedRates {
    /// What one CPU is taken to draw at most, in bytes per second.
    pub peak_cpu: Rate,
    /// What all CPUs together are taken to draw, in bytes per second.
    pub sustainable: Rate,
}

/// A group and the CPUs that the plan gives it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct GroupPlan {
    /// Name of the group in the policy.
    pub name: GroupId,
    /// The CPUs on which the group runs.
    pub cpus: CpuSet,
    /// Which processes that run are of it. A process of two groups is in neither, also where
    /// nothing is set for one of them.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub matching: Vec<TaskMatch>,
}

/// What the slow control loops do while a plan holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Loops {
    /// Groups whose units of work are observed, and how.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub observed: BTreeMap<GroupId, Observed>,
    /// The control of memory pressure. Absent when memory is not controlled.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pressure: Option<Pressured>,
    /// The loop that moves budgets. Absent when budgets stay as they are.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub adapts: Option<Adaptation>,
    /// Ways that move while the plan holds.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub follows: Vec<Following>,
}

/// What a policy would do on a machine, and how reliable each promise is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Plan {
    /// Name of the policy.
    pub policy: String,
    /// The groups, in the order of the policy.
    pub groups: Vec<GroupPlan>,
    /// The settings to make, in order.
    pub steps: Vec<Step>,
    /// The promises of the policy, each with its level.
    pub promises: Vec<Held>,
    /// What a person should also know: defaults chosen, residual risks.
    pub notes: Vec<String>,
    /// What a person has to do or decide, each with the act that helps.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub acts: Vec<String>,
    /// The rates that steps and promises marked `assumed` were calculated from. Absent when nothing
    /// is assumed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub assumed: Option<AssumedRates>,
    /// What is sampled and steered while the plan holds.
    #[serde(flatten)]
    pub loops: Loops,
}

impl Plan {
    /// The lowest level of all promises; `none` without promises.
    #[must_use]
    pub fn level(&self) -> Level {
        self.promises
            .iter()
            .map(|p| p.level)
            .min()
            .unwrap_or(Level::None)
    }

    /// The CPUs of a group; `None` if the plan does not have the group.
    #[must_use]
    pub fn cpus(&self, group: &str) -> Option<&CpuSet> {
        self.groups
            .iter()
            .find(|g| g.name == group)
            .map(|g| &g.cpus)
    }

    /// The CPU of a group that runs on one; of several, the lowest.
    #[must_use]
    pub fn first_cpu(&self, group: &str) -> Option<CpuId> {
        self.cpus(group).and_then(CpuSet::first)
    }
}

impl Plan {
    /// All promises with their numbers, from 1 on.
    pub fn numbered(&self) -> impl Iterator<Item = (PromiseId, &Held)> {
        (1..).map(PromiseId).zip(&self.promises)
    }

    /// The promises of any group that rest on a group's steps for which `such` is true. Of the step
    /// of all windows only the group's own budgets do.
    pub fn resting_on<'p>(
        &'p self,
        group: &str,
        such: &dyn Fn(&Setting) -> bool,
    ) -> impl Iterator<Item = (PromiseId, &'p Held)> {
        let of = |step: &&Step| step.group.as_deref() == Some(group) && such(&step.set);
        let steps: BTreeSet<StepId> = self.steps.iter().filter(of).map(|s| s.id).collect();
        let all = |step: &&Step| matches!(step.set, Setting::Windows(_)) && such(&step.set);
        let windows: BTreeSet<StepId> = self.steps.iter().filter(all).map(|s| s.id).collect();
        let group = group.to_owned();
        self.numbered().filter(move |(_, held)| {
            let budget = matches!(held.promise, Promise::WindowBandwidth { .. });
            let own = budget && held.group == group;
            let mut by = held.held_by.iter();
            by.any(|by| steps.contains(by) || own && windows.contains(by))
        })
    }

    /// A promise by its number; `None` if the plan does not have it.
    #[must_use]
    pub fn promise(&self, id: PromiseId) -> Option<&Held> {
        self.promises.get((id.0 as usize).checked_sub(1)?)
    }
}
