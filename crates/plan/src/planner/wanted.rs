//! What is wanted of memory bandwidth, in bytes per second, and what a promise is worth.

use std::fmt;

use quell_policy::{Adapt, Bandwidth, Policy};
use quell_types::mechanism::Level;
use quell_types::refusal::Remedy;
use quell_types::units::{Rate, Share};

use crate::plan::Direction;

/// Why a group has a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Budget {
    /// The policy limits the group.
    Limit,
    /// The group gets what the reserves leave.
    Spare,
    /// The group's reserve is also its cap (`strict`).
    Strict,
    /// The group gives from its reserve, which is not a cap.
    Reserve,
}

impl Budget {
    /// The table of the group in which its key is.
    pub(super) const fn table(self) -> &'static str {
        match self {
            Self::Limit | Self::Spare => "limit",
            Self::Strict | Self::Reserve => "reserve",
        }
    }
}

/// The rates that are wanted of each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Directions {
    read: Option<Rate>,
    write: Option<Rate>,
}

impl Directions {
    /// `None` where both directions have one rate together.
    pub(super) fn of(wanted: Bandwidth) -> Option<Self> {
        match wanted {
            Bandwidth::ReadWrite { read, write } => Some(Self { read, write }),
            Bandwidth::Rate(_) | Bandwidth::Share(_) => None,
        }
    }

    /// The sum of both; a direction without a rate counts as zero.
    pub(super) fn sum(self) -> Rate {
        let rates = self.given().map(|(_, rate)| rate.0);
        Rate(rates.fold(0, u64::saturating_add))
    }

    /// The directions with a rate, and that rate.
    pub(super) fn given(self) -> impl Iterator<Item = (Direction, Rate)> {
        let read = self.read.map(|rate| (Direction::Read, rate));
        let write = self.write.map(|rate| (Direction::Write, rate));
        read.into_iter().chain(write)
    }
}

/// The share of a CPU that a loop or a split by demand leaves a group on it, so that it still makes
/// progress.
pub(super) const LEAST: Share = Share::percent(5);

/// This many times what unmatched tasks were measured to draw is kept for them: nothing stops them.
pub(super) const MARGIN: u64 = 2;

/// A share that a policy asks for, and the rate that it is a share of.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShareOf {
    pub(super) share: Share,
    pub(super) of: Rate,
}

impl ShareOf {
    /// The share as a rate.
    pub(super) fn rate(self) -> Rate {
        self.of.part(self.share)
    }
}

/// A rate for a group, and where it comes from.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) group: String,
    pub(super) rate: Rate,
    /// As in "39.2GB/s, 20% of …"; empty for a rate that the policy states.
    pub(super) origin: String,
    /// The share that the policy states, if it states one.
    pub(super) share: Option<ShareOf>,
    pub(super) budget: Budget,
    /// The rates by direction, where each has its own; `rate` is then their sum.
    pub(super) apart: Option<Directions>,
}

impl Wanted {
    /// The rate before it was rounded.
    pub(super) fn exact(&self) -> Rate {
        self.share.map_or(self.rate, ShareOf::rate)
    }

    /// The policy key that asks for it.
    pub(super) fn key(&self) -> String {
        format!("group.{}.{}.bandwidth", self.group, self.budget.table())
    }

    /// The keys to leave out so that the budget does not exist.
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

    /// The remedy that sets another rate, where the policy has a key for it.
    pub(super) fn at(&self, rate: Rate, policy: &Policy) -> Remedy {
        match self.budget {
            Budget::Spare => self.without(policy),
            _ => Remedy::set_text(self.key(), rate),
        }
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.rate, self.origin)
    }
}

/// Rounds a calculated rate down: to whole MB/s from 1 GB/s on, else to whole kB/s.
pub(super) fn rounded(rate: Rate) -> Rate {
    let unit = if rate.0 >= 1_000_000_000 {
        1_000_000
    } else {
        1_000
    };
    Rate(rate.0 / unit * unit)
}

/// Rounds a share to a tenth of a percent.
pub(super) fn about(share: Share) -> Share {
    Share((share.0 + 500) / 1_000 * 1_000)
}

/// What a promise is worth, and what would break it first.
#[derive(Clone, Debug)]
pub(super) struct Worth {
    pub(super) level: Level,
    pub(super) weakest: Option<String>,
}

impl Worth {
    pub(super) fn of(level: Level, weakest: impl Into<String>) -> Self {
        let weakest = Some(weakest.into());
        Self { level, weakest }
    }

    /// Without a weakest link.
    pub(super) const fn plain(level: Level) -> Self {
        let weakest = None;
        Self { level, weakest }
    }

    /// Lowers it to `to`, if that is worth less.
    pub(super) fn lower(&mut self, to: Self) {
        if to.level < self.level {
            *self = to;
        }
    }
}
