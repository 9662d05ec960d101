//! What is wanted of memory bandwidth, in bytes per second, and how it was limited.

use quell_policy::{Adapt, Bandwidth, Policy};
use quell_types::cpuset::CpuSet;
use quell_types::ids::StepId;
use quell_types::mechanism::Level;
use quell_types::refusal::Remedy;
use quell_types::units::{Rate, Share};

use crate::plan::{Direction, Held, Promise};

/// Why a group has a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Budget {
    /// Its policy limits it.
    Limit,
    /// It gets what the reserves leave.
    Spare,
    /// Its reserve is its cap, too (`strict`).
    Strict,
    /// Its reserve is what it gives from; it is no cap.
    Reserve,
}

/// What is wanted of each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Apart {
    read: Option<Rate>,
    write: Option<Rate>,
}

impl Apart {
    /// `None` where both go together.
    pub(super) fn of(wanted: Bandwidth) -> Option<Self> {
        match wanted {
            Bandwidth::ReadWrite { read, write } => Some(Self { read, write }),
            Bandwidth::Rate(_) | Bandwidth::Share(_) => None,
        }
    }

    /// Both together; what is not given counts for nothing.
    pub(super) fn sum(self) -> Rate {
        Rate(
            self.given()
                .map(|(_, rate)| rate.0)
                .fold(0, u64::saturating_add),
        )
    }

    /// The directions that a rate is given for.
    pub(super) fn given(self) -> impl Iterator<Item = (Direction, Rate)> {
        let read = self.read.map(|rate| (Direction::Read, rate));
        let write = self.write.map(|rate| (Direction::Write, rate));
        read.into_iter().chain(write)
    }
}

/// The share of a CPU that a loop or a split by demand leaves every CPU of a group: below, its programs stand still.
pub(super) const LEAST: Share = Share::percent(5);

/// A rate for a group, and how it came about.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) group: String,
    pub(super) rate: Rate,
    /// As in "39.2GB/s, 20% of …"; empty for a rate that was given.
    pub(super) origin: String,
    /// The rate that a percentage was given of.
    pub(super) of: Option<Rate>,
    pub(super) budget: Budget,
    /// The same by direction, where each is to have its own; then `rate` is the sum.
    pub(super) apart: Option<Apart>,
}

impl Wanted {
    /// The key that asks for it.
    pub(super) fn key(&self) -> String {
        let key = match self.budget {
            Budget::Limit | Budget::Spare => "limit",
            Budget::Strict | Budget::Reserve => "reserve",
        };
        format!("group.{}.{key}.bandwidth", self.group)
    }
}

impl Wanted {
    /// The keys without which there is no such budget.
    pub(super) fn without(&self, policy: &Policy) -> Remedy {
        if self.budget != Budget::Spare {
            return Remedy::leave_out(self.key());
        }
        let reserves = policy.groups.iter();
        let reserves = reserves.filter(|(_, g)| g.reserve.bandwidth.is_some());
        let mut keys: Vec<String> = reserves
            .map(|(name, _)| format!("group.{name}.reserve.bandwidth"))
            .collect();
        if policy.regulator.adapt != Adapt::Off {
            keys.push("regulator.adapt".to_owned());
        }
        Remedy::LeaveOut { keys }
    }

    /// The same budget at another rate, where the policy has a key for it.
    pub(super) fn at(&self, rate: Rate, policy: &Policy) -> Remedy {
        match self.budget {
            Budget::Spare => self.without(policy),
            _ => Remedy::set_text(self.key(), rate),
        }
    }
}

/// A rate that was calculated, down to what a person reads: whole MB/s, below 1 GB/s whole kB/s.
pub(super) fn rounded(rate: Rate) -> Rate {
    let unit = if rate.0 >= 1_000_000_000 {
        1_000_000
    } else {
        1_000
    };
    Rate(rate.0 / unit * unit)
}

/// A share for a sentence: to a tenth of a percent.
pub(super) fn about(share: Share) -> Share {
    Share((share.0 + 500) / 1_000 * 1_000)
}

/// How a group's rate was limited.
pub(super) struct Limited {
    pub(super) group: String,
    pub(super) rate: Rate,
    pub(super) level: Level,
    pub(super) by: Option<StepId>,
    pub(super) weakest: Option<String>,
    pub(super) cpus: CpuSet,
}

/// The promise of a limit.
pub(super) fn limit_held(
    name: &str,
    rate: Rate,
    level: Level,
    by: Option<StepId>,
    weakest: Option<String>,
) -> Held {
    Held {
        group: name.to_owned(),
        promise: Promise::LimitBandwidth { rate },
        level,
        held_by: by.into_iter().collect(),
        weakest,
        assumed: false,
    }
}
