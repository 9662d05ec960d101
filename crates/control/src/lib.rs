//! The controllers: pure state machines. Each module names the paper that its method comes from.

pub mod bandwidth;
pub mod config;
pub mod congestion;
pub mod deadline;
pub mod deadlines;
pub mod directions;
pub mod hoard;
pub mod looks;
pub mod pool;
pub mod pooled;
pub mod pressure;
pub mod quanta;
pub mod schedule;
pub mod settling;
pub mod split;
pub mod ways;
pub mod windows;
pub mod work;

use quell_types::units::{Lines, Nanos};

use crate::config::LineCounts;
use crate::config::Meter;
use crate::config::Regulation;
use crate::pooled::Pooled;

use bandwidth::{CpuRegulator, Verdict};
use directions::DirectionsRegulator;
use pool::{Period, Pool};
use pooled::PooledRegulator;

/// The regulator of one CPU, of the kind that its [`Regulation`] asks for. The caller supplies the
/// time, the counters' readings and the pool.
#[derive(Clone, Debug)]
pub enum Regulator {
    /// One budget, not pooled. A period begins when the CPU next overflows.
    Alone(CpuRegulator),
    /// Not pooled: one budget for reads, one for writes.
    Directions(DirectionsRegulator),
    /// A budget in a pool. Its periods begin together with those of the other members.
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
            (None, Meter::Directions { .. }) => {
                Self::Directions(DirectionsRegulator::new(budget, period, now, used))
            }
            (None, _) => Self::Alone(CpuRegulator::new(budget.lines, period, now, used.lines)),
        }
    }

    /// To be called when a stop ends, and when a new period of the pool may have begun.
    pub fn begin(&mut self, now: Nanos, used: LineCounts, pool: &impl Pool) -> Verdict {
        match self {
            Self::Alone(regulator) => Verdict::NewPeriod(regulator.begin(now, used.lines)),
            Self::Directions(regulator) => regulator.begin(now, used),
            Self::Pooled(regulator) => regulator.begin(now, used.lines, pool),
        }
    }

    /// To be called when a counter overflows, and when [`Self::news`] is true.
    pub fn overflow(&mut self, now: Nanos, used: LineCounts, pool: &impl Pool) -> Verdict {
        match self {
            Self::Alone(regulator) => regulator.overflow(now, used.lines),
            Self::Directions(regulator) => regulator.overflow(now, used),
            Self::Pooled(regulator) => regulator.overflow(now, used.lines, pool),
        }
    }

    /// After how many lines each counter is to overflow, given a verdict that allows `lines` more.
    /// Where reads and writes have a budget each, `lines` are the reads, and the answer has both.
    #[must_use]
    pub fn armed(&self, lines: Lines, used: LineCounts) -> LineCounts {
        match self {
            Self::Directions(regulator) => regulator.left(used),
            Self::Alone(_) | Self::Pooled(_) => lines.into(),
        }
    }

    /// Whether a CPU that is stopped may resume before its stop was to end.
    #[must_use]
    pub fn news(&self, pool: &impl Pool) -> bool {
        match self {
            Self::Alone(_) | Self::Directions(_) => false,
            Self::Pooled(regulator) => regulator.news(pool),
        }
    }

    /// The lines drawn by `now` beyond what all periods allow that have begun. Known of
    /// [`Self::Alone`] only; else zero.
    #[must_use]
    pub fn debt(&self, now: Nanos, used: LineCounts) -> Lines {
        match self {
            Self::Alone(regulator) => regulator.debt(now, used.lines),
            Self::Directions(_) | Self::Pooled(_) => Lines(0),
        }
    }

    /// To be called where the CPU was not counted until now: a budget begins at `now`, without
    /// debt. Changes [`Self::Alone`] only. Pooled budgets are always counted.
    pub fn restart(&mut self, now: Nanos, used: LineCounts) {
        if let Self::Alone(regulator) = self {
            regulator.restart(now, used.lines);
        }
    }

    /// The regulator of a CPU with one budget that is not pooled. A copy of it may decide elsewhere
    /// (in the counter's interrupt).
    pub fn alone(&mut self) -> Option<&mut CpuRegulator> {
        match self {
            Self::Alone(regulator) => Some(regulator),
            Self::Directions(_) | Self::Pooled(_) => None,
        }
    }

    /// The CPU is regulated no more: its regulator leaves the pool.
    pub fn leave(&mut self, pool: &impl Pool) {
        if let Self::Pooled(regulator) = self {
            regulator.leave(pool);
        }
    }

    /// The pool's period that this CPU is in, and when it ends. [`Self::begin`] is due then,
    /// whether the CPU draws anything or not. `None` where the budget is not pooled, or before it
    /// has joined.
    #[must_use]
    pub fn period(&self) -> Option<(Period, Nanos)> {
        match self {
            Self::Alone(_) | Self::Directions(_) => None,
            Self::Pooled(regulator) => Some((regulator.period()?, regulator.end())),
        }
    }

    /// Lines per period, from the next one on.
    #[must_use]
    pub fn budget(&self) -> LineCounts {
        match self {
            Self::Alone(regulator) => regulator.budget().into(),
            Self::Directions(regulator) => regulator.budget(),
            Self::Pooled(regulator) => regulator.budget().into(),
        }
    }

    /// Sets the budget from the next period on. `writes` is ignored where one budget counts all.
    pub fn set_budget(&mut self, budget: LineCounts) {
        match self {
            Self::Alone(regulator) => regulator.set_budget(budget.lines),
            Self::Directions(regulator) => regulator.set_budget(budget),
            Self::Pooled(regulator) => regulator.set_budget(budget.lines),
        }
    }

    /// What this CPU gave to its pool and took from it so far. `None` where it is in no pool.
    #[must_use]
    pub fn did(&self) -> Option<Pooled> {
        match self {
            Self::Alone(_) | Self::Directions(_) => None,
            Self::Pooled(regulator) => Some(regulator.did()),
        }
    }

    /// Lines of debt forgiven since the beginning, over all directions.
    #[must_use]
    pub fn forgiven(&self) -> Lines {
        match self {
            Self::Alone(regulator) => regulator.forgiven(),
            Self::Directions(regulator) => regulator.forgiven(),
            Self::Pooled(regulator) => regulator.forgiven(),
        }
    }
}
