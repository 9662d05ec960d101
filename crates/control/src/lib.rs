//! The controllers: pure state machines that read like the papers they come from.

pub mod apart;
pub mod bandwidth;
pub mod config;
pub mod deadline;
pub mod deadlines;
pub mod pool;
pub mod pooled;
pub mod pressure;
pub mod split;
pub mod ways;

use quell_types::units::{Lines, Nanos};

use crate::config::LineCounts;
use crate::config::Meter;
use crate::config::Regulation;
use crate::pooled::Pooled;

use apart::ApartRegulator;
use bandwidth::{CpuRegulator, Verdict};
use pool::{Period, Pool};
use pooled::PooledRegulator;

/// The regulator of one CPU, as its [`Regulation`] wants it; whoever runs it brings the time, the
/// counters' readings and the pool.
#[derive(Clone, Debug)]
pub enum Regulator {
    /// By itself, its periods beginning when it next overflows.
    Alone(CpuRegulator),
    /// By itself, reads and writes each with a budget.
    Apart(ApartRegulator),
    /// In the pool.
    Pooled(PooledRegulator),
}

impl Regulator {
    /// The regulator of each CPU of `regulation`, at `now` with the counters at `used`.
    /// [`Self::begin`] comes next.
    #[must_use]
    pub fn new(regulation: &Regulation, now: Nanos, used: LineCounts) -> Self {
        let (budget, period) = (regulation.budgets(), regulation.period);
        match (&regulation.pooling, regulation.meter) {
            (Some(rules), _) => Self::Pooled(PooledRegulator::new(rules, budget.lines, period)),
            (None, Meter::Apart { .. }) => {
                Self::Apart(ApartRegulator::new(budget, period, now, used))
            }
            (None, _) => Self::Alone(CpuRegulator::new(budget.lines, period, now, used.lines)),
        }
    }

    /// A stop is over, or a period may have begun.
    pub fn begin(&mut self, now: Nanos, used: LineCounts, pool: &impl Pool) -> Verdict {
        match self {
            Self::Alone(regulator) => Verdict::NewPeriod(regulator.begin(now, used.lines)),
            Self::Apart(regulator) => regulator.begin(now, used),
            Self::Pooled(regulator) => regulator.begin(now, used.lines, pool),
        }
    }

    /// A counter overflowed, or there are [`Self::news`].
    pub fn overflow(&mut self, now: Nanos, used: LineCounts, pool: &impl Pool) -> Verdict {
        match self {
            Self::Alone(regulator) => regulator.overflow(now, used.lines),
            Self::Apart(regulator) => regulator.overflow(now, used),
            Self::Pooled(regulator) => regulator.overflow(now, used.lines, pool),
        }
    }

    /// With what the counters are armed when it said that `lines` may be moved: where reads and
    /// writes have a budget each, these are the reads.
    #[must_use]
    pub fn armed(&self, lines: Lines, used: LineCounts) -> LineCounts {
        match self {
            Self::Apart(regulator) => regulator.left(used),
            Self::Alone(_) | Self::Pooled(_) => lines.into(),
        }
    }

    /// Of a CPU that is stopped: whether its stop may end before its time.
    #[must_use]
    pub fn news(&self, pool: &impl Pool) -> bool {
        match self {
            Self::Alone(_) | Self::Apart(_) => false,
            Self::Pooled(regulator) => regulator.news(pool),
        }
    }

    /// The CPU was not counted until now: a budget of its own begins. Budgets in a pool are always
    /// counted.
    pub fn restart(&mut self, now: Nanos, used: LineCounts) {
        if let Self::Alone(regulator) = self {
            regulator.restart(now, used.lines);
        }
    }

    /// That of a CPU with one budget of its own, which may be decided about elsewhere.
    pub fn alone(&mut self) -> Option<&mut CpuRegulator> {
        match self {
            Self::Alone(regulator) => Some(regulator),
            Self::Apart(_) | Self::Pooled(_) => None,
        }
    }

    /// The CPU is regulated no more.
    pub fn leave(&mut self, pool: &impl Pool) {
        if let Self::Pooled(regulator) = self {
            regulator.leave(pool);
        }
    }

    /// The period it shares with others, if it does, and when that ends: then [`Self::begin`] is
    /// due, whether it draws anything or not.
    #[must_use]
    pub fn period(&self) -> Option<(Period, Nanos)> {
        match self {
            Self::Alone(_) | Self::Apart(_) => None,
            Self::Pooled(regulator) => Some((regulator.period()?, regulator.end())),
        }
    }

    /// Lines per period, from the next one on.
    #[must_use]
    pub fn budget(&self) -> LineCounts {
        match self {
            Self::Alone(regulator) => regulator.budget().into(),
            Self::Apart(regulator) => regulator.budget(),
            Self::Pooled(regulator) => regulator.budget().into(),
        }
    }

    /// Changes them.
    pub fn set_budget(&mut self, budget: LineCounts) {
        match self {
            Self::Alone(regulator) => regulator.set_budget(budget.lines),
            Self::Apart(regulator) => regulator.set_budget(budget),
            Self::Pooled(regulator) => regulator.set_budget(budget.lines),
        }
    }

    /// What went through the pool so far, if it is in one.
    #[must_use]
    pub fn did(&self) -> Option<Pooled> {
        match self {
            Self::Alone(_) | Self::Apart(_) => None,
            Self::Pooled(regulator) => Some(regulator.did()),
        }
    }

    /// Lines of debt forgiven so far.
    #[must_use]
    pub fn forgiven(&self) -> Lines {
        match self {
            Self::Alone(regulator) => regulator.forgiven(),
            Self::Apart(regulator) => regulator.forgiven(),
            Self::Pooled(regulator) => regulator.forgiven(),
        }
    }
}
