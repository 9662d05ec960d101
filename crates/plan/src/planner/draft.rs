//! The plan under construction, and what every mechanism does with it.

use std::collections::BTreeMap;

use quell_policy::{Policy, Sustainable};
use quell_types::cpuset::CpuSet;
use quell_types::ids::{GroupId, StepId};
use quell_types::mechanism::Mechanism;
use quell_types::refusal::Refusal;
use quell_types::units::{Nanos, Rate};

use crate::inventory::{Availability, Inventory};
use crate::plan::{GroupPlan, Held, Loops, Setting, Step};

use super::cpus::Division;

/// What is known of a group's program when it runs alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Solo {
    /// The profile's name.
    pub profile: String,
    /// What its units took at the percentile of the group's target, or why that is not known.
    pub took: Result<Nanos, String>,
}

/// By group.
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
    /// Of the regulators.
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

    pub(super) fn refuse(
        &mut self,
        key: impl Into<String>,
        why: impl Into<String>,
        remedy: Option<String>,
    ) {
        self.refusals.push(Refusal {
            key: key.into(),
            why: why.into(),
            remedy,
        });
    }

    /// Why a mechanism cannot be used: the machine lacks it or the policy denies it.
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

    /// What CPUs can draw together: measured, or as the policy states.
    pub(super) fn sustainable(&self, cpus: &CpuSet) -> Option<Rate> {
        match self.policy.regulator.sustainable {
            Sustainable::Rate(rate) => Some(rate),
            Sustainable::Auto => self.machine.sustainable(cpus),
            Sustainable::Machine => self.machine.sustainable(&self.machine.cpu_set()),
        }
    }
}
