//! Regulated CPUs: their brakes, what the record has been told of each, and budgets that are split again by demand.

use std::sync::atomic::Ordering;

use quell_core::control::config::Regulation;
use quell_core::control::pooled::Pooled;
use quell_core::control::split::ByDemand;
use quell_core::cpuset::{CpuId, CpuSet};
use quell_core::record::Decision;
use quell_core::units::{Lines, Nanos};

use crate::brake::Brake;

/// A regulated CPU.
pub(super) struct Regulated {
    pub(super) group: String,
    pub(super) brake: Brake,
    /// What it was started with.
    pub(super) regulation: Regulation,
    /// What the record has been told of it: overflows, throttles, time, lines.
    pub(super) told: [u64; 4],
    pub(super) told_pooled: Pooled,
    /// Decisions taken out of its ring and not told yet, and how many were told to be lost.
    pub(super) decisions: Vec<Decision>,
    pub(super) missed: u64,
}

impl Regulated {
    /// Empties the ring.
    pub(super) fn take(&mut self) {
        self.brake.stats().decisions.drain(&mut self.decisions);
    }

    pub(super) fn totals(&self) -> [u64; 4] {
        let stats = self.brake.stats();
        [
            &stats.overflows,
            &stats.throttles,
            &stats.throttled_ns,
            &stats.lines,
        ]
        .map(|v| v.load(Ordering::Relaxed))
    }
}

/// A CPU of a regulated group without a brake, for now.
pub(super) struct Absent {
    pub(super) group: String,
    pub(super) regulation: Regulation,
    pub(super) cpu: CpuId,
}

impl Absent {
    /// Ends the brake.
    pub(super) fn of(regulated: Regulated) -> Self {
        Self {
            cpu: regulated.brake.cpu,
            group: regulated.group,
            regulation: regulated.regulation,
        }
    }
}

/// A group's budget that is split again by what its CPUs draw.
pub(super) struct Splits {
    pub(super) group: String,
    pub(super) cpus: CpuSet,
    pub(super) by: ByDemand,
}

impl Splits {
    pub(super) fn new(group: &str, regulation: &Regulation, now: Nanos) -> Self {
        let group = group.to_owned();
        let cpus = regulation.cpus.clone();
        let total = Lines(regulation.budget.0.saturating_mul(cpus.len() as u64));
        let used = vec![Lines(0); cpus.len()];
        let by = ByDemand::new(total, regulation.least, regulation.period, now, used);
        Self { group, cpus, by }
    }

    /// So many lines for each CPU, which together are what is split from the next time on.
    pub(super) fn set_budget(&mut self, each: Lines) {
        let total = each.0.saturating_mul(self.cpus.len() as u64);
        self.by.set_total(Lines(total));
    }

    /// Splits it, when it is time. A CPU that has not used a budget up since it was last looked at has drawn nothing, as far
    /// as is known.
    pub(super) fn again(&mut self, brakes: &[Regulated], now: Nanos) {
        if now < self.by.next() {
            return;
        }
        let of = |cpu| {
            brakes
                .iter()
                .filter(|r| r.group == self.group)
                .map(|r| &r.brake)
                .find(|t| t.cpu == cpu)
        };
        let brakes: Vec<&Brake> = self.cpus.iter().filter_map(of).collect();
        let used = brakes.iter().map(|t| t.lines()).collect();
        let budgets: Vec<Lines> = brakes.iter().map(|t| t.budget()).collect();
        for (brake, part) in brakes.iter().zip(self.by.step(now, used, &budgets)) {
            brake.set_budget(part);
        }
    }
}
