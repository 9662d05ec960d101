//! The plan under construction, and the operations that all mechanisms use.

use std::collections::BTreeMap;

use quell_control::config::ProgramDemand;
use quell_policy::{Policy, Sustainable};
use quell_types::cpuset::CpuSet;
use quell_types::ids::{GroupId, StepId};
use quell_types::mechanism::Mechanism;
use quell_types::refusal::{Cause, Refusal, Remedy};
use quell_types::units::{Bytes, Nanos, Rate, Share};

use crate::inventory::{Availability, Inventory};
use crate::plan::{GroupPlan, Held, Loops, Promise, Setting, Step};

use super::cpus::Division;
use super::wanted::Worth;

/// What is known of a group's program when it runs alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Solo {
    /// Name of the profile that this was read from.
    pub profile: String,
    /// What its units took at the percentile of the group's target, or why that is not known.
    pub took: Result<Nanos, String>,
    /// Bytes that the program had in the last-level cache, or where that is not known, touched.
    /// `None` where neither is.
    pub works_on: Option<Bytes>,
    /// How it fared with each number of ways, where that was tried.
    pub curve: Option<WaysCurve>,
    /// What one process of it demands, or why that is not known.
    pub demand: Result<ProgramDemand, String>,
}

/// What a kept sweep of a cache's ways says of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaysCurve {
    /// The cache level.
    pub level: u32,
    /// The goal, as in "keep 95% of its speed alone".
    pub goal: String,
    /// Number of ways that missed the goal → its speed with them ÷ its speed alone.
    pub missed: BTreeMap<u32, Share>,
    /// The smallest number of ways with which, and with every larger one, the goal was kept.
    pub enough: Option<u32>,
}

/// Group → what is known of its program alone.
pub type Solos = BTreeMap<GroupId, Solo>;

/// The plan under construction.
pub(super) struct Draft<'a> {
    pub(super) policy: &'a Policy,
    pub(super) machine: &'a Inventory,
    pub(super) division: Division,
    pub(super) groups: Vec<GroupPlan>,
    pub(super) steps: Vec<Step>,
    pub(super) promises: Vec<Held>,
    pub(super) notes: Vec<String>,
    /// What a person has to do or decide.
    pub(super) acts: Vec<String>,
    pub(super) refusals: Vec<Refusal>,
    pub(super) loops: Loops,
    pub(super) solos: &'a Solos,
    /// The period of all regulators.
    pub(super) period: Nanos,
}

impl Draft<'_> {
    pub(super) fn step(
        &mut self,
        group: Option<&str>,
        mechanism: Mechanism,
        set: Setting,
        because: impl Into<String>,
    ) -> StepId {
        let id = StepId(u32::try_from(self.steps.len() + 1).unwrap_or(u32::MAX));
        self.steps.push(Step {
            id,
            group: group.map(str::to_owned),
            mechanism,
            set,
            because: because.into(),
            assumed: false,
        });
        id
    }

    /// Adds a promise to or about a group, held by these steps.
    pub(super) fn promise(
        &mut self,
        group: &str,
        promise: Promise,
        worth: Worth,
        held_by: impl IntoIterator<Item = StepId>,
    ) {
        self.promises.push(Held {
            group: group.to_owned(),
            promise,
            level: worth.level,
            held_by: held_by.into_iter().collect(),
            weakest: worth.weakest,
            assumed: false,
        });
    }

    pub(super) fn refuse(
        &mut self,
        key: impl Into<String>,
        why: impl Into<String>,
        remedies: impl Remedies,
    ) {
        self.refuse_for(Cause::Policy, key, why, remedies);
    }

    /// Adds a refusal with its cause.
    pub(super) fn refuse_for(
        &mut self,
        cause: Cause,
        key: impl Into<String>,
        why: impl Into<String>,
        remedies: impl Remedies,
    ) {
        self.refusals.push(Refusal {
            key: key.into(),
            why: why.into(),
            cause,
            remedies: remedies.list(),
        });
    }

    /// Refuses what needs a mechanism that the machine lacks. The machine's own remedy comes before
    /// those of the policy.
    pub(super) fn refuse_lacking(
        &mut self,
        mechanism: Mechanism,
        key: impl Into<String>,
        why: impl Into<String>,
        instead: impl Remedies,
    ) {
        let mut remedies = self.enables(mechanism);
        remedies.extend(instead.list());
        self.refuse_for(self.lack(mechanism), key, why, remedies);
    }

    /// What would make a mechanism available; empty if nothing does.
    pub(super) fn enables(&self, mechanism: Mechanism) -> Vec<Remedy> {
        if self.lack(mechanism) == Cause::Rights {
            return vec![Remedy::Rights];
        }
        match self.machine.mechanisms.get(&mechanism) {
            Some(Availability::No {
                remedy: Some(remedy),
                ..
            }) => vec![Remedy::from(remedy.as_str())],
            _ => Vec::new(),
        }
    }

    /// The cause for which a mechanism is not available.
    pub(super) fn lack(&self, mechanism: Mechanism) -> Cause {
        match self.machine.mechanisms.get(&mechanism) {
            Some(Availability::No { lack, .. }) => lack.cause(),
            _ => Cause::Policy,
        }
    }

    /// Why a mechanism cannot be used: the machine lacks it, or the policy denies it.
    pub(super) fn unavailable(&self, mechanism: Mechanism) -> Option<String> {
        if self.policy.mechanisms.deny.contains(&mechanism) {
            return Some(format!("the policy denies {mechanism}"));
        }
        match self.machine.mechanisms.get(&mechanism) {
            Some(Availability::Yes { .. }) => None,
            Some(Availability::No { why, .. }) => Some(why.clone()),
            None => Some(format!("this machine says nothing about {mechanism}")),
        }
    }

    /// What these CPUs can draw together, as measured or as the policy states.
    pub(super) fn sustainable(&self, cpus: &CpuSet) -> Option<Rate> {
        match self.policy.regulator.sustainable {
            Sustainable::Rate(rate) => Some(rate),
            Sustainable::Auto => self.machine.sustainable(cpus),
            Sustainable::Machine => self.machine.sustainable(&self.machine.cpu_set()),
        }
    }

    /// The memory nodes of CPUs, and those that are as near to them.
    pub(super) fn nodes_of(&self, cpus: &CpuSet) -> CpuSet {
        let own = self.machine.cpus.iter().filter(|c| cpus.contains(c.id));
        let own: CpuSet = own.map(|c| c.node).collect();
        let nodes = self.machine.nodes.iter().filter(|n| own.contains(n.id));
        nodes.fold(own.clone(), |all, node| all.union(&node.near))
    }

    /// The memory nodes from which programs on these CPUs may have memory: their own, as far as
    /// these have any, and those that no CPU is next to. Where that is none, all that have memory.
    pub(super) fn memory_of(&self, cpus: &CpuSet) -> CpuSet {
        let (bare, full): (Vec<_>, Vec<_>) =
            (self.machine.nodes.iter()).partition(|node| node.memory.0 == 0);
        let bare: CpuSet = bare.iter().map(|node| node.id).collect();
        let own = self.nodes_of(cpus);
        let near = own.difference(&bare);
        if near.is_empty() {
            let all: CpuSet = full.iter().map(|node| node.id).collect();
            return if all.is_empty() { own } else { all };
        }
        let far = full.iter().filter(|node| node.cpus.is_empty());
        far.fold(near, |all, node| all.union(&CpuSet::one(node.id)))
    }
}

/// What can be given as the remedies of a refusal.
pub(super) trait Remedies {
    fn list(self) -> Vec<Remedy>;
}

impl Remedies for Vec<Remedy> {
    fn list(self) -> Vec<Remedy> {
        self
    }
}

impl Remedies for Remedy {
    fn list(self) -> Vec<Remedy> {
        vec![self]
    }
}

impl<const N: usize> Remedies for [Remedy; N] {
    fn list(self) -> Vec<Remedy> {
        self.into()
    }
}
