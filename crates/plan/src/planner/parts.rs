//! Parts of caches and DRAM banks: what is divided, who claims what of it, and what came of it.

use quell_policy::{Banks, CacheForm, CacheWanted};
use quell_types::cpuset::CpuSet;
use quell_types::ids::StepId;
use quell_types::mechanism::Mechanism;
use quell_types::partition::{Colouring, Divides, Partitions};
use quell_types::refusal::Remedy;
use quell_types::units::Bytes;

use crate::inventory::CacheKind;

use super::allot::{Allotted, Want, Whole};
use super::draft::Draft;

/// What is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The ways of the caches of a level.
    Ways(u32),
    /// Page colours.
    Colours(Divides),
}

impl Kind {
    /// As in "8 of the 32 ways of L3".
    pub(super) fn name(self) -> String {
        match self {
            Self::Ways(level) => format!("ways of L{level}"),
            Self::Colours(divides) => format!("colours of {}", divides.of()),
        }
    }

    /// The mechanisms that divide it.
    pub(super) const fn mechanisms(self) -> &'static [Mechanism] {
        match self {
            Self::Ways(_) => &[Mechanism::Ways],
            Self::Colours(divides) => divides.mechanisms(),
        }
    }

    /// How much of it there is.
    pub(super) fn whole(self, partitions: &Partitions) -> Option<Whole> {
        match self {
            Self::Ways(level) => {
                let ways = partitions.ways.iter().find(|w| w.level == level)?;
                Some(Whole {
                    count: ways.bits,
                    least: ways.least.max(1),
                    sparse: ways.sparse,
                })
            }
            Self::Colours(divides) => Some(Whole {
                count: colouring(partitions, divides)?.count(),
                least: 1,
                sparse: true,
            }),
        }
    }
}

/// The colours of what is divided.
pub(super) fn colouring(partitions: &Partitions, divides: Divides) -> Option<&Colouring> {
    match divides {
        Divides::Sets => partitions.sets.as_ref(),
        Divides::Banks => partitions.banks.as_ref(),
        Divides::Joint => partitions.joint.as_ref(),
    }
}

/// What a group wants of it.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub group: String,
    /// `reserve.cache`, `reserve.banks`, or both.
    pub key: &'static str,
    pub want: Want,
    /// For pseudo-locking: how much memory is to stay.
    pub locked: Option<Bytes>,
    /// So many of the ways are for code, the others for data.
    pub code: Option<u32>,
}

impl Claim {
    /// The key in the policy.
    pub(super) fn at(&self) -> String {
        let key = if self.key == BOTH {
            "reserve"
        } else {
            self.key
        };
        format!("group.{}.{key}", self.group)
    }
}

/// The keys of a part that is of sets and banks at once.
pub(super) const BOTH: &str = "reserve.cache and reserve.banks";

/// What all groups want of one kind.
#[derive(Clone, Debug)]
pub(super) struct Claims {
    pub kind: Kind,
    pub whole: Whole,
    pub list: Vec<Claim>,
}

/// A key of a group that asks for a mechanism.
pub(super) struct Ask<'a> {
    pub group: &'a str,
    pub mechanism: Mechanism,
    pub form: Form<'a>,
}

pub(super) enum Form<'a> {
    Cache(&'a CacheWanted),
    Banks(&'a Banks),
}

impl Ask<'_> {
    pub(super) const fn name(&self) -> &'static str {
        match self.form {
            Form::Cache(_) => "reserve.cache",
            Form::Banks(_) => "reserve.banks",
        }
    }

    pub(super) fn code(&self) -> Option<u32> {
        match self.form {
            Form::Cache(CacheWanted {
                form: CacheForm::Apart { code, .. },
                ..
            }) => Some(*code),
            _ => None,
        }
    }

    pub(super) fn key(&self) -> String {
        format!("group.{}.{}", self.group, self.name())
    }
}

/// Why a claim cannot be had, and the remedies.
pub(super) type Refused = (String, Vec<Remedy>);

/// One kind of part, divided.
pub(super) struct Divided {
    pub kind: Kind,
    pub claims: Vec<Claim>,
    pub allotted: Allotted,
    /// Who gets what is left; not unmatched tasks, where there are none.
    pub others: Vec<String>,
    /// The steps that hold it.
    pub steps: Vec<StepId>,
}

impl Divided {
    /// The part a group may use, and whether it is its own.
    pub(super) fn of(&self, group: &str) -> Option<(&CpuSet, Option<&Claim>)> {
        let own = self.claims.iter().zip(&self.allotted.parts);
        let mut own = own.filter(|(claim, _)| claim.group == group && claim.locked.is_none());
        if let Some((claim, part)) = own.next() {
            return Some((part, Some(claim)));
        }
        let other = self.others.iter().any(|g| g == group);
        other.then_some((&self.allotted.left, None))
    }

    /// The others whose named part overlaps with this one.
    pub(super) fn shared_with(&self, which: usize) -> Vec<String> {
        let own = &self.allotted.parts[which];
        let parts = self.claims.iter().zip(&self.allotted.parts).enumerate();
        parts
            .filter(|(i, (_, part))| *i != which && !part.intersection(own).is_empty())
            .map(|(_, (claim, _))| claim.group.clone())
            .collect()
    }

    /// The groups that have a part of their own.
    pub(super) fn owners(&self) -> Vec<&str> {
        self.claims.iter().map(|c| c.group.as_str()).collect()
    }
}

/// The CPUs of each cache of a level.
pub(super) fn domains(draft: &Draft<'_>, level: u32) -> Vec<CpuSet> {
    let caches = draft.machine.caches.iter();
    caches
        .filter(|c| c.level == level && c.kind != CacheKind::Instruction)
        .map(|c| c.cpus.clone())
        .collect()
}
