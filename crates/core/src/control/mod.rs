//! The controllers: pure state machines that read like the papers they come from.

pub mod bandwidth;
pub mod deadline;
pub mod pool;
pub mod pooled;
pub mod pressure;
pub mod split;

use crate::plan::Regulation;
use crate::record::Pooled;
use crate::units::{Lines, Nanos};

use bandwidth::{CpuRegulator, Fast};
use pool::{Period, Pool};
use pooled::PooledRegulator;

/// The regulator of one CPU, as its [`Regulation`] wants it; whoever runs it brings the time, the counter's reading and the
/// pool.
#[derive(Clone, Debug)]
pub enum Regulator {
    /// By itself, its periods beginning when it next overflows.
    Alone(CpuRegulator),
    /// In the pool.
    Pooled(PooledRegulator),
}

impl Regulator {
    /// The regulator of each CPU of `regulation`, at `now` with the counter at `used`. [`Self::begin`] comes next.
    #[must_use]
    pub fn new(regulation: &Regulation, now: Nanos, used: Lines) -> Self {
        let (budget, period) = (regulation.budget, regulation.period);
        match &regulation.pooling {
            Some(rules) => Self::Pooled(PooledRegulator::new(rules, budget, period)),
            None => Self::Alone(CpuRegulator::new(budget, period, now, used)),
        }
    }

    /// A stop is over, or a period may have begun.
    pub fn begin(&mut self, now: Nanos, used: Lines, pool: &impl Pool) -> Fast {
        match self {
            Self::Alone(regulator) => Fast::NewPeriod(regulator.begin(now, used)),
            Self::Pooled(regulator) => regulator.begin(now, used, pool),
        }
    }

    /// The counter overflowed, or there are [`Self::news`].
    pub fn overflow(&mut self, now: Nanos, used: Lines, pool: &impl Pool) -> Fast {
        match self {
            Self::Alone(regulator) => regulator.overflow(now, used),
            Self::Pooled(regulator) => regulator.overflow(now, used, pool),
        }
    }

    /// Of a CPU that is stopped: whether its stop may end before its time.
    #[must_use]
    pub fn news(&self, pool: &impl Pool) -> bool {
        match self {
            Self::Alone(_) => false,
            Self::Pooled(regulator) => regulator.news(pool),
        }
    }

    /// The CPU is regulated no more.
    pub fn leave(&mut self, pool: &impl Pool) {
        if let Self::Pooled(regulator) = self {
            regulator.leave(pool);
        }
    }

    /// The period it shares with others, if it does, and when that ends: then [`Self::begin`] is due, whether it draws
    /// anything or not.
    #[must_use]
    pub fn period(&self) -> Option<(Period, Nanos)> {
        match self {
            Self::Alone(_) => None,
            Self::Pooled(regulator) => Some((regulator.period()?, regulator.end())),
        }
    }

    /// Lines per period, from the next one on.
    #[must_use]
    pub fn budget(&self) -> Lines {
        match self {
            Self::Alone(regulator) => regulator.budget(),
            Self::Pooled(regulator) => regulator.budget(),
        }
    }

    /// Changes them.
    pub fn set_budget(&mut self, budget: Lines) {
        match self {
            Self::Alone(regulator) => regulator.set_budget(budget),
            Self::Pooled(regulator) => regulator.set_budget(budget),
        }
    }

    /// What went through the pool so far, if it is in one.
    #[must_use]
    pub fn did(&self) -> Option<Pooled> {
        match self {
            Self::Alone(_) => None,
            Self::Pooled(regulator) => Some(regulator.did()),
        }
    }

    /// Lines of debt forgiven so far.
    #[must_use]
    pub fn forgiven(&self) -> Lines {
        match self {
            Self::Alone(regulator) => regulator.forgiven(),
            Self::Pooled(regulator) => regulator.forgiven(),
        }
    }
}
