//! The state of the model: the machine, its hierarchies, and what a cgroup is to each controller.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use quell_types::cpuset::CpuSet;

use super::knobs::Knobs;
use super::msr::Registers;
use super::resctrl::Resctrl;
use super::spec::Flavour;
use super::task::Task;

/// The modelled machine, as other programs on it see and change it.
pub struct Machine {
    pub(crate) flavour: Flavour,
    pub(crate) release: (u32, u32),
    pub(crate) cpus: CpuSet,
    pub(crate) nodes: CpuSet,
    pub(crate) tasks: BTreeMap<u32, Task>,
    pub(crate) trees: Vec<Tree>,
    pub(crate) knobs: Knobs,
    pub(crate) resctrl: Option<Resctrl>,
    /// `None` without the module `msr`.
    pub(crate) registers: Option<Registers>,
    pub(crate) resource: bool,
    /// Microseconds waited, by pressure file.
    pub(crate) stalls: BTreeMap<String, u64>,
    /// Texts that files have whatever the model knows, by path.
    pub(crate) recorded: BTreeMap<String, String>,
    /// CPUs that are lost until the next boot (see `partition`).
    pub(crate) leaked: CpuSet,
    pub(super) next: u32,
    pub(super) born: u64,
}

/// One cgroup of a hierarchy.
#[derive(Clone, Debug, Default)]
pub(crate) struct Group {
    /// The controllers in its `cgroup.subtree_control`.
    pub enabled: BTreeSet<String>,
    pub kind: Kind,
    pub cpuset: Cpuset,
    /// Memory that is charged to it.
    pub memory: Ledger,
    /// Values that are just kept, by file name.
    pub values: BTreeMap<&'static str, String>,
}

/// A hierarchy of the model, with its cgroups.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    pub mount: String,
    /// Whether it is v2.
    pub unified: bool,
    /// The number in `/proc/PID/cgroup`.
    pub number: u32,
    /// v1: a single controller, or `name=…`.
    pub controllers: Vec<&'static str>,
    /// By path; `/` is the root. Parents sort before their children.
    pub groups: BTreeMap<String, Group>,
}

/// Controllers in the order in which the kernel lists them.
pub(crate) const LISTED: [&str; 5] = ["cpuset", "cpu", "io", "memory", "pids"];

impl Tree {
    pub fn all(flavour: Flavour, cpus: &CpuSet, nodes: &CpuSet) -> Vec<Self> {
        let root = Group {
            cpuset: Cpuset::root(cpus, nodes),
            ..Group::default()
        };
        let make = |mount: &str, number, unified, controllers: &[&'static str]| Self {
            mount: format!("/sys/fs/cgroup{mount}"),
            unified,
            number,
            controllers: controllers.to_vec(),
            groups: BTreeMap::from([("/".to_owned(), root.clone())]),
        };
        match flavour {
            Flavour::V2 => vec![make("", 0, true, &LISTED)],
            Flavour::V1 => vec![
                make("/cpu", 1, false, &["cpu"]),
                make("/cpuset", 2, false, &["cpuset"]),
                make("/freezer", 3, false, &["freezer"]),
                make("/memory", 4, false, &["memory"]),
                make("/perf_event", 5, false, &["perf_event"]),
                make("/systemd", 6, false, &["name=systemd"]),
                make("/unified", 0, true, &[]),
            ],
        }
    }

    pub fn has(&self, controller: &str) -> bool {
        self.controllers.contains(&controller)
    }

    /// Whether a group has a controller's files.
    pub fn css(&self, group: &str, controller: &str) -> bool {
        self.has(controller)
            && (!self.unified
                || parent(group).is_none_or(|p| {
                    self.groups
                        .get(p)
                        .is_some_and(|g| g.enabled.contains(controller))
                }))
    }

    pub fn children(&self, group: &str) -> Vec<String> {
        let is = |p: &&String| parent(p) == Some(group);
        self.groups.keys().filter(is).cloned().collect()
    }
}

/// The parent of a cgroup. `None` for the root.
pub(crate) fn parent(group: &str) -> Option<&str> {
    if group == "/" {
        return None;
    }
    match group.rsplit_once('/') {
        Some(("", _)) => Some("/"),
        Some((above, _)) => Some(above),
        None => None,
    }
}

/// The value of `cgroup.type` that was set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    #[default]
    Domain,
    Threaded,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Cpuset {
    pub cpus: CpuSet,
    pub mems: CpuSet,
    pub effective: CpuSet,
    pub effective_mems: CpuSet,
    /// v2: `cpuset.cpus.exclusive`, and which of those CPUs the cgroup has.
    pub exclusive: CpuSet,
    pub exclusive_effective: CpuSet,
    pub part: Part,
    pub cpu_exclusive: bool,
    pub mem_exclusive: bool,
    pub load_balance: bool,
}

impl Cpuset {
    pub fn root(cpus: &CpuSet, nodes: &CpuSet) -> Self {
        Self {
            cpus: cpus.clone(),
            mems: nodes.clone(),
            effective: cpus.clone(),
            effective_mems: nodes.clone(),
            cpu_exclusive: true,
            mem_exclusive: true,
            load_balance: true,
            ..Self::default()
        }
    }
}

/// The kind of a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    #[default]
    Member,
    Root,
    Isolated,
}

/// The partition that `cpuset.cpus.partition` shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Part {
    pub mode: Mode,
    /// Why it is invalid, perhaps an empty text. `None` where it is valid.
    pub invalid: Option<&'static str>,
    /// Whether its CPUs come from the root, not from its parent.
    pub remote: bool,
    /// Whether it is invalid, and its CPUs are still kept from all other cgroups. Linux 6.12 does
    /// so with a remote partition that a sibling's change made invalid. `member` gives them back.
    /// Removing the cgroup loses them until the next boot.
    pub withheld: bool,
}

impl Part {
    pub fn valid(self) -> bool {
        self.mode != Mode::Member && self.invalid.is_none()
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.mode {
            Mode::Member => "member",
            Mode::Root => "root",
            Mode::Isolated => "isolated",
        })?;
        match self.invalid {
            None => Ok(()),
            Some("") => f.write_str(" invalid"),
            Some(why) => write!(f, " invalid ({why})"),
        }
    }
}

/// What is charged to a cgroup itself, and its counted events.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ledger {
    /// Bytes of file pages.
    pub file: u64,
    pub high: u64,
    pub max: u64,
    pub kills: u64,
}
