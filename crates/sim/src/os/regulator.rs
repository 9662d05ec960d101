//! The regulator's side of the operating system: budgets, the counters' interrupts, stopped cores.

use std::cmp::Reverse;

use quell_core::control::bandwidth::{CpuRegulator, Fast};
use quell_core::plan::Regulation;
use quell_core::record::Decision;
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
}

/// A regulated core.
#[derive(Debug)]
pub(super) struct Regulated {
    regulator: CpuRegulator,
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

impl Os {
    /// Regulates the cores of `regulation` from now on; one that is regulated already, by the new budget.
    pub fn regulate(&mut self, regulation: &Regulation) {
        let now = self.now();
        for cpu in regulation.cpus.iter() {
            let core = usize::try_from(cpu).unwrap_or(usize::MAX);
            if core >= self.cores.len() {
                continue;
            }
            let used = self.used(core);
            let regulator = CpuRegulator::new(regulation.budget, regulation.period, now, used);
            self.machine.arm(core, Some(regulator.left(used).0));
            self.cores[core].regulated = Some(Regulated {
                regulator,
                stopped: None,
                did: Throttled::default(),
                decisions: Vec::new(),
            });
        }
    }

    /// What the regulator of a core has done, and its decisions since the last time they were taken.
    pub fn throttled(&mut self, core: usize) -> Option<(Throttled, Vec<Decision>)> {
        let now = self.now();
        let regulated = self.cores.get_mut(core)?.regulated.as_mut()?;
        let mut did = regulated.did;
        if let Some(since) = regulated.stopped {
            did.throttled_ns += now.since(since).0;
        }
        Some((did, std::mem::take(&mut regulated.decisions)))
    }

    fn used(&self, core: usize) -> Lines {
        Lines(self.machine.counts(core).lines())
    }

    /// The handler of a counter's interrupt.
    pub(super) fn interrupt(&mut self, core: usize) {
        self.charge(core);
        let (now, used) = (self.now(), self.used(core));
        let cost = self.costs.interrupt.0 * PS;
        let delay = self.costs.interrupt_delay;
        let Some(regulated) = &mut self.cores[core].regulated else {
            return;
        };
        regulated.did.overflows += 1;
        regulated.did.lines = used.0;
        let what = regulated.regulator.overflow(now, used);
        regulated.decisions.push(Decision {
            at: now,
            used,
            what,
            reaction: Some((delay, false)),
        });
        match what {
            Fast::Rearm(lines) | Fast::NewPeriod(lines) => {
                self.machine.arm(core, Some(lines.0));
                self.machine.delay(core, self.now + cost);
            }
            Fast::ThrottleUntil(until) => {
                regulated.did.throttles += 1;
                regulated.stopped = Some(now);
                self.machine.halt(core, self.now);
                let at = (until.0 * PS).max(self.now + cost);
                self.events.push(Reverse((at, Due::Release(core))));
            }
        }
    }

    /// A core's stop is over.
    pub(super) fn release(&mut self, core: usize) {
        let (now, used) = (self.now(), self.used(core));
        let Some(regulated) = &mut self.cores[core].regulated else {
            return;
        };
        if let Some(since) = regulated.stopped.take() {
            regulated.did.throttled_ns += now.since(since).0;
        }
        let lines = regulated.regulator.begin(now, used);
        self.machine.arm(core, Some(lines.0));
        self.machine.resume(core, self.now);
        self.cores[core].charged = self.now;
        self.expect_quota(core);
        self.tell_running(core);
    }
}
