//! What is wanted of memory bandwidth, in bytes per second, and how it was limited.

use std::fmt;

use quell_policy::{Adapt, Bandwidth, Policy};
use quell_types::mechanism::Level;
use quell_types::refusal::Remedy;
use quell_types::units::{Rate, Share};

use crate::plan::Direction;

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

impl Budget {
    /// The table of the group that has its key.
    pub(super) const fn table(self) -> &'static str {
        match self {
            Self::Limit | Self::Spare => "limit",
            Self::Strict | Self::Reserve => "reserve",
        }
    }
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
        let rates = self.given().map(|(_, rate)| rate.0);
        Rate(rates.fold(0, u64::saturating_add))
    }

    /// The directions that a rate is given for.
    pub(super) fn given(self) -> impl Iterator<Item = (Direction, Rate)> {
        let read = self.read.map(|rate| (Direction::Read, rate));
        let write = self.write.map(|rate| (Direction::Write, rate));
        read.into_iter().chain(write)
    }
}

/// The share of a CPU that a loop or a split by demand leaves a group on it, so that it goes on.
pub(super) const LEAST: Share = Share::percent(5);

/// So many times what unmatched tasks were measured to draw is kept for them: nothing stops them.
pub(super) const MARGIN: u64 = 2;

/// A share that a policy asks for, and the rate that it is a share of.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShareOf {
    pub(super) share: Share,
    pub(super) of: Rate,
}

impl ShareOf {
    /// What it comes to.
    pub(super) fn rate(self) -> Rate {
        self.of.part(self.share)
    }
}

/// A rate for a group, and how it came about.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) group: String,
    pub(super) rate: Rate,
    /// As in "39.2GB/s, 20% of …"; empty for a rate that was given.
    pub(super) origin: String,
    /// What was given, where that was a share.
    pub(super) share: Option<ShareOf>,
    pub(super) budget: Budget,
    /// The same by direction, where each is to have its own; then `rate` is the sum.
    pub(super) apart: Option<Apart>,
}

impl Wanted {
    /// The rate before it was rounded.
    pub(super) fn exact(&self) -> Rate {
        self.share.map_or(self.rate, ShareOf::rate)
    }

    /// The key that asks for it.
    pub(super) fn key(&self) -> String {
        format!("group.{}.{}.bandwidth", self.group, self.budget.table())
    }

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

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.rate, self.origin)
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

    /// Without a link that is weaker than the others.
    pub(super) const fn plain(level: Level) -> Self {
        let weakest = None;
        Self { level, weakest }
    }

    /// Lowers it to this one, if this one is worth less.
    pub(super) fn lower(&mut self, to: Self) {
        if to.level < self.level {
            *self = to;
        }
    }
}
