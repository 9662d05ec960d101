//! Parts of caches and DRAM banks: what is divided, and which groups claim and get what.

use quell_policy::{Banks, CacheForm, CacheWanted, WindowWays};
use quell_types::cpuset::CpuSet;
use quell_types::ids::StepId;
use quell_types::mechanism::Mechanism;
use quell_types::partition::{Colouring, Divides, Partitions};
use quell_types::refusal::Remedy;
use quell_types::units::Bytes;

use super::allot::{Allotted, Want, Whole};
use super::draft::Draft;

/// A kind of thing that can be divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The ways of the caches of this level.
    Ways(u32),
    /// Page colours, of sets or banks or both.
    Colours(Divides),
}

impl Kind {
    /// The text as in "8 of the 32 ways of L3".
    pub(super) fn name(self) -> String {
        match self {
            Self::Ways(level) => format!("ways of L{level}"),
            Self::Colours(divides) => format!("colours of {}", divides.of()),
        }
    }

    /// The mechanisms that divide this kind.
    pub(super) const fn mechanisms(self) -> &'static [Mechanism] {
        match self {
            Self::Ways(_) => &[Mechanism::Ways],
            Self::Colours(divides) => divides.mechanisms(),
        }
    }

    /// How much of it the machine has; `None` where it has none.
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

/// The page colours of this kind on the machine.
pub(super) fn colouring(partitions: &Partitions, divides: Divides) -> Option<&Colouring> {
    match divides {
        Divides::Sets => partitions.sets.as_ref(),
        Divides::Banks => partitions.banks.as_ref(),
        Divides::Joint => partitions.joint.as_ref(),
    }
}

/// What one group wants of one kind.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub group: String,
    /// `reserve.cache`, `reserve.banks` or both; [`IN_WINDOWS`] for ways of windows.
    pub key: &'static str,
    /// For ways of windows: the place of the first such window in the schedule.
    pub window: Option<usize>,
    pub want: Want,
    /// For pseudo-locking: how much memory is to stay in the cache.
    pub locked: Option<Bytes>,
    /// How many of the ways are for code; the rest is for data. `None`: they are not separate.
    pub code: Option<u32>,
}

impl Claim {
    /// The key in the policy.
    pub(super) fn at(&self) -> String {
        if let Some(window) = self.window {
            return ways_of_window(window);
        }
        let key = if self.key == BOTH {
            "reserve"
        } else {
            self.key
        };
        format!("group.{}.{key}", self.group)
    }
}

/// Stands for the keys of a part that has both sets and banks.
pub(super) const BOTH: &str = "reserve.cache and reserve.banks";

/// Stands for the ways of all windows of a group.
const IN_WINDOWS: &str = "ways of its windows";

/// The key of a window's ways.
pub(super) fn ways_of_window(window: usize) -> String {
    format!("windows.schedule[{window}].ways")
}

/// What all groups want of one kind.
#[derive(Clone, Debug)]
pub(super) struct Claims {
    pub kind: Kind,
    pub whole: Whole,
    pub list: Vec<Claim>,
    /// For ways: CPUs whose caches are divided. Empty: all.
    pub caches_of: CpuSet,
}

/// One key of a group that asks for a mechanism.
pub(super) struct Ask<'a> {
    pub group: &'a str,
    pub mechanism: Mechanism,
    pub form: Form<'a>,
}

pub(super) enum Form<'a> {
    Cache(&'a CacheWanted),
    Banks(&'a Banks),
    /// The ways of all windows of a group together. The place of the first of them.
    Windows(usize, WindowWays),
}

impl Ask<'_> {
    pub(super) const fn name(&self) -> &'static str {
        match self.form {
            Form::Cache(_) => "reserve.cache",
            Form::Banks(_) => "reserve.banks",
            Form::Windows(..) => IN_WINDOWS,
        }
    }

    /// For ways of windows: the place of the first such window in the schedule.
    pub(super) const fn window(&self) -> Option<usize> {
        match self.form {
            Form::Windows(window, _) => Some(window),
            Form::Cache(_) | Form::Banks(_) => None,
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
        let of_group = || format!("group.{}.{}", self.group, self.name());
        self.window().map_or_else(of_group, ways_of_window)
    }
}

/// Why a claim cannot be had, and the remedies.
pub(super) type Refused = (String, Vec<Remedy>);

/// One kind of part, after the division.
pub(super) struct Divided {
    pub kind: Kind,
    pub claims: Vec<Claim>,
    pub allotted: Allotted,
    /// For ways: CPUs whose caches are divided. Empty: all.
    pub caches_of: CpuSet,
    /// The groups that get what is left, and `rest` where there are unmatched tasks.
    pub others: Vec<String>,
    /// The steps that hold the division.
    pub steps: Vec<StepId>,
}

impl Divided {
    /// The part that a group may use, with its claim if it has one.
    pub(super) fn of(&self, group: &str) -> Option<(&CpuSet, Option<&Claim>)> {
        let own = self.claims.iter().zip(&self.allotted.parts);
        let mut own = own.filter(|(claim, _)| claim.group == group && claim.locked.is_none());
        if let Some((claim, part)) = own.next() {
            return Some((part, Some(claim)));
        }
        let other = self.others.iter().any(|g| g == group);
        other.then_some((&self.allotted.left, None))
    }

    /// The other groups with a named part that overlaps with this one.
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

/// For each cache of a level, its CPUs.
pub(super) fn domains(draft: &Draft<'_>, level: u32) -> Vec<CpuSet> {
    let caches = draft.machine.caches.iter();
    caches
        .filter(|c| c.holds_data_at(level))
        .map(|c| c.cpus.clone())
        .collect()
}
