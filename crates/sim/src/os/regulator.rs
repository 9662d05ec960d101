//! The regulators' side of the operating system: budgets, the counters' interrupts, the timer of pooled budgets, stopped cores.

use std::cmp::Reverse;

use quell_core::control::Regulator;
use quell_core::control::bandwidth::Fast;
use quell_core::control::pool::Pool;
use quell_core::control::split::ByDemand;
use quell_core::cpuset::CpuSet;
use quell_core::plan::Regulation;
use quell_core::policy::Split;
use quell_core::record::{Decision, Pooled};
use quell_core::units::{Lines, Nanos};

use super::{Due, Os, PS};

/// What the regulator of a core has done since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttled {
    /// Budgets used up.
    pub overflows: u64,
    /// Times the core was stopped.
    pub throttles: u64,
    /// Time stopped, in nanoseconds.
    pub throttled_ns: u64,
    /// Lines counted until the last interrupt.
    pub lines: u64,
    /// What went through the pool, where its budget is in one.
    pub pooled: Option<Pooled>,
}

/// A regulated core.
#[derive(Debug)]
pub(super) struct Regulated {
    regulator: Regulator,
    /// Since when it has been stopped.
    stopped: Option<Nanos>,
    did: Throttled,
    decisions: Vec<Decision>,
}

impl Regulated {
    pub(super) fn stops(&self) -> bool {
        self.stopped.is_some()
    }
}

/// A budget that is split again by demand.
#[derive(Debug)]
pub(super) struct Splits {
    cores: Vec<usize>,
    by: ByDemand,
}

impl Os {
    /// Regulates the cores of `regulation` from now on; one that is regulated already, by the new budget.
    pub fn regulate(&mut self, regulation: &Regulation) {
        let now = self.now();
        let cores: Vec<usize> = regulation
            .cpus
            .iter()
            .filter_map(|cpu| usize::try_from(cpu).ok())
            .filter(|core| *core < self.cores.len())
            .collect();
        let first = self.pooled_cores().is_empty();
        for core in cores.iter().copied() {
            let used = self.used(core);
            self.leave(core);
            self.cores[core].regulated = Some(Regulated {
                regulator: Regulator::new(regulation, now, used),
                stopped: None,
                did: Throttled::default(),
                decisions: Vec::new(),
            });
            if regulation.pooling.is_none() {
                self.machine.arm(core, Some(regulation.budget.0.max(1)));
            }
        }
        if regulation.pooling.is_some() {
            if first {
                self.events.push(Reverse((self.now, Due::Period)));
            }
            cores.iter().for_each(|core| self.join(*core));
        }
        if regulation.split == Split::Demand && cores.len() > 1 {
            let total = Lines(regulation.budget.0.saturating_mul(cores.len() as u64));
            let used = cores.iter().map(|core| self.used(*core)).collect();
            let by = ByDemand::new(total, regulation.least, regulation.period, now, used);
            let due = Due::Split(self.splits.len());
            self.events.push(Reverse((by.next().0 * PS, due)));
            self.splits.push(Splits { cores, by });
        }
    }

    /// Each of these cores may move so many lines per period from now on; what splits their sum by demand splits the new one.
    pub fn set_budget(&mut self, cpus: &CpuSet, budget: Lines) {
        let cores: Vec<usize> = cpus
            .iter()
            .filter_map(|cpu| usize::try_from(cpu).ok())
            .collect();
        for core in &cores {
            let regulated = self.cores.get_mut(*core).and_then(|c| c.regulated.as_mut());
            if let Some(regulated) = regulated {
                regulated.regulator.set_budget(budget);
            }
        }
        for splits in self.splits.iter_mut().filter(|s| s.cores == cores) {
            let total = budget.0.saturating_mul(cores.len() as u64);
            splits.by.set_total(Lines(total));
        }
    }

    /// A core's regulator, if it has one, makes way for another.
    fn leave(&mut self, core: usize) {
        if let Some(old) = &mut self.cores[core].regulated {
            old.regulator.leave(&self.pool);
        }
    }

    fn pooled_cores(&self) -> Vec<usize> {
        (0..self.cores.len())
            .filter(|core| self.is_pooled(*core))
            .collect()
    }

    fn is_pooled(&self, core: usize) -> bool {
        let regulated = self.cores[core].regulated.as_ref();
        regulated.is_some_and(|r| matches!(r.regulator, Regulator::Pooled(_)))
    }

    /// What the regulator of a core has done, and its decisions since the last time they were taken.
    pub fn throttled(&mut self, core: usize) -> Option<(Throttled, Vec<Decision>)> {
        let now = self.now();
        let regulated = self.cores.get_mut(core)?.regulated.as_mut()?;
        let mut did = regulated.did;
        if let Some(since) = regulated.stopped {
            did.throttled_ns += now.since(since).0;
        }
        did.pooled = regulated.regulator.did();
        Some((did, std::mem::take(&mut regulated.decisions)))
    }

    fn used(&self, core: usize) -> Lines {
        Lines(self.machine.counts(core).lines())
    }

    /// The handler of a counter's interrupt.
    pub(super) fn interrupt(&mut self, core: usize) {
        self.charge(core);
        let (now, used) = (self.now(), self.used(core));
        let delay = self.costs.interrupt_delay;
        let Some(regulated) = &mut self.cores[core].regulated else {
            return;
        };
        regulated.did.overflows += 1;
        regulated.did.lines = used.0;
        let before = self.pool.period();
        let what = regulated.regulator.overflow(now, used, &self.pool);
        regulated.decisions.push(Decision {
            at: now,
            used,
            what,
            reaction: Some((delay, false)),
        });
        self.follow(core, what);
        let alone = !self.is_pooled(core);
        if let (true, Fast::ThrottleUntil(until)) = (alone, what) {
            let at = (until.0 * PS).max(self.now + self.costs.interrupt.0 * PS);
            self.events.push(Reverse((at, Due::Release(core))));
        }
        let period = self.pool.period();
        if !alone && (period != before || self.pool.is_free(period)) {
            for other in self.pooled_cores() {
                if other != core {
                    self.join(other);
                }
            }
        }
    }

    /// Does what a regulator has decided.
    fn follow(&mut self, core: usize, what: Fast) {
        let now = self.now();
        let busy = self.now + self.costs.interrupt.0 * PS;
        let Some(regulated) = &mut self.cores[core].regulated else {
            return;
        };
        let lines = match what {
            Fast::Rearm(lines) | Fast::NewPeriod(lines) => Some(lines.0),
            Fast::RunFreeUntil(_) => None,
            Fast::ThrottleUntil(_) => {
                if regulated.stopped.is_none() {
                    regulated.did.throttles += 1;
                    regulated.stopped = Some(now);
                    self.machine.halt(core, self.now);
                }
                return;
            }
        };
        self.machine.arm(core, lines);
        let Some(since) = regulated.stopped.take() else {
            self.machine.delay(core, busy);
            return;
        };
        regulated.did.throttled_ns += now.since(since).0;
        self.machine.resume(core, self.now);
        self.cores[core].charged = self.now;
        self.expect_quota(core);
        self.tell_running(core);
    }

    /// A core's stop is over.
    pub(super) fn release(&mut self, core: usize) {
        let (now, used) = (self.now(), self.used(core));
        let Some(regulated) = &mut self.cores[core].regulated else {
            return;
        };
        let what = regulated.regulator.begin(now, used, &self.pool);
        self.follow(core, what);
    }

    /// A core sees what has become of the period: a new one has begun, or all may run.
    fn join(&mut self, core: usize) {
        self.charge(core);
        let (now, used) = (self.now(), self.used(core));
        let Some(regulated) = &mut self.cores[core].regulated else {
            return;
        };
        let what = regulated.regulator.begin(now, used, &self.pool);
        // For the record a period is news only where it ends or begins a stop.
        if regulated.stopped.is_some() || !matches!(what, Fast::Rearm(_) | Fast::NewPeriod(_)) {
            regulated.decisions.push(Decision {
                at: now,
                used,
                what,
                reaction: None,
            });
        }
        self.follow(core, what);
    }

    /// The timer of the pool: a period is over, unless one has begun early meanwhile.
    pub(super) fn period(&mut self) {
        let now = self.now();
        let cores = self.pooled_cores();
        let end = |os: &Self| {
            let first = cores.first().copied();
            let regulated = os.cores[first?].regulated.as_ref()?;
            regulated.regulator.period().map(|(_, end)| end)
        };
        if end(self).is_some_and(|end| now >= end) {
            for core in &cores {
                self.join(*core);
            }
        }
        if let Some(end) = end(self) {
            let at = (end.0 * PS).max(self.now + 1);
            self.events.push(Reverse((at, Due::Period)));
        }
    }

    /// A group's budget is split again.
    pub(super) fn split(&mut self, which: usize) {
        let now = self.now();
        let Some(splits) = self.splits.get(which) else {
            return;
        };
        let used = splits.cores.iter().map(|core| self.used(*core)).collect();
        let budget = |core: &usize| {
            let regulated = self.cores[*core].regulated.as_ref();
            regulated.map_or(Lines(0), |r| r.regulator.budget())
        };
        let budgets: Vec<Lines> = splits.cores.iter().map(budget).collect();
        let splits = &mut self.splits[which];
        let parts = splits.by.step(now, used, &budgets);
        for (core, part) in splits.cores.iter().zip(parts) {
            if let Some(regulated) = &mut self.cores[*core].regulated {
                regulated.regulator.set_budget(part);
            }
        }
        let next = splits.by.next().0 * PS;
        self.events.push(Reverse((next, Due::Split(which))));
    }
}
