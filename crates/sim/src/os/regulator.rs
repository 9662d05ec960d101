//! The regulators' side of the operating system: budgets, the counters' interrupts, the timer of pooled budgets, stopped cores.

use std::cmp::Reverse;

use quell_core::control::bandwidth::Fast;
use quell_core::control::pool::Pool;
use quell_core::control::split::ByDemand;
use quell_core::control::{Moved, Regulator};
use quell_core::cpuset::CpuSet;
use quell_core::plan::{Meter, Regulation};
use quell_core::policy::Split;
use quell_core::record::{Decision, Pooled};
use quell_core::units::{Lines, Nanos};

use super::{Due, Os, PS};
use crate::machine::Armed;

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
    meter: Meter,
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
            let used = self.counted(core, regulation.meter);
            self.leave(core);
            self.cores[core].regulated = Some(Regulated {
                regulator: Regulator::new(regulation, now, used),
                meter: regulation.meter,
                stopped: None,
                did: Throttled::default(),
                decisions: Vec::new(),
            });
            if regulation.pooling.is_none() {
                self.arm(core, regulation.meter, regulation.budgets());
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
            let used = cores.iter().map(|core| self.used(*core).lines).collect();
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
                regulated.regulator.set_budget(budget.into());
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

    /// Whether reads and writes of a core have a budget each.
    #[must_use]
    pub fn regulated_apart(&self, core: usize) -> bool {
        let regulated = self.cores.get(core).and_then(|c| c.regulated.as_ref());
        regulated.is_some_and(|r| matches!(r.regulator, Regulator::Apart(_)))
    }

    /// What the counters of a core read that its regulator looks at.
    fn used(&self, core: usize) -> Moved {
        let regulated = self.cores[core].regulated.as_ref();
        self.counted(core, regulated.map_or(Meter::Hardware, |r| r.meter))
    }

    fn counted(&self, core: usize, meter: Meter) -> Moved {
        let counts = self.machine.counts(core);
        let (read, written) = (Lines(counts.lines()), Lines(counts.writebacks));
        match meter {
            Meter::Apart { .. } => Moved {
                lines: read,
                writes: written,
            },
            Meter::Writes => written.into(),
            Meter::Hardware if self.counts_writes => Lines(counts.moved()).into(),
            Meter::Hardware | Meter::Time | Meter::Reads => read.into(),
        }
    }

    /// Arms what a meter counts.
    fn arm(&mut self, core: usize, meter: Meter, lines: Moved) {
        let (first, writes) = (Some(lines.lines.0), Some(lines.writes.0));
        let mut armed = Armed::default();
        match meter {
            Meter::Apart { .. } => (armed.read, armed.written) = (first, writes),
            Meter::Writes => armed.written = first,
            Meter::Hardware if self.counts_writes => armed.moved = first,
            Meter::Hardware | Meter::Time | Meter::Reads => armed.read = first,
        }
        self.machine.arm(core, armed);
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
        regulated.did.lines = used.sum().0;
        let before = self.pool.period();
        let what = regulated.regulator.overflow(now, used, &self.pool);
        regulated.decisions.push(Decision {
            at: now,
            used: used.sum(),
            what,
            reaction: Some((delay, false)),
        });
        self.follow(core, what);
        let alone = !self.is_pooled(core);
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
        let (now, used) = (self.now(), self.used(core));
        let busy = self.now + self.costs.interrupt.0 * PS;
        let Some(regulated) = &mut self.cores[core].regulated else {
            return;
        };
        let lines = match what {
            Fast::Rearm(lines) | Fast::NewPeriod(lines) => Some(lines),
            Fast::RunFreeUntil(_) => None,
            Fast::ThrottleUntil(until) => {
                if regulated.stopped.is_none() {
                    regulated.did.throttles += 1;
                    regulated.stopped = Some(now);
                    self.machine.halt(core, self.now);
                }
                // Who is in the pool is let go by that.
                if !matches!(regulated.regulator, Regulator::Pooled(_)) {
                    let at = (until.0 * PS).max(busy);
                    self.events.push(Reverse((at, Due::Release(core))));
                }
                return;
            }
        };
        let meter = regulated.meter;
        match lines.map(|lines| regulated.regulator.armed(lines, used)) {
            Some(lines) => self.arm(core, meter, lines),
            None => self.machine.arm(core, Armed::default()),
        }
        let Some(regulated) = &mut self.cores[core].regulated else {
            return;
        };
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
                used: used.sum(),
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
        let used = splits
            .cores
            .iter()
            .map(|core| self.used(*core).lines)
            .collect();
        let budget = |core: &usize| {
            let regulated = self.cores[*core].regulated.as_ref();
            regulated.map_or(Lines(0), |r| r.regulator.budget().lines)
        };
        let budgets: Vec<Lines> = splits.cores.iter().map(budget).collect();
        let splits = &mut self.splits[which];
        let parts = splits.by.step(now, used, &budgets);
        for (core, part) in splits.cores.iter().zip(parts) {
            if let Some(regulated) = &mut self.cores[*core].regulated {
                regulated.regulator.set_budget(part.into());
            }
        }
        let next = splits.by.next().0 * PS;
        self.events.push(Reverse((next, Due::Split(which))));
    }
}
