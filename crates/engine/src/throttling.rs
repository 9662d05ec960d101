//! What the regulators of a cell did: budgets that were used up, stops, and how late these came.

use quell_control::bandwidth::Verdict;
use quell_control::pooled::Pooled;
use quell_record::attribution::Stop;
use quell_record::events::Decision;
use quell_types::cpuset::CpuId;
use quell_types::ids::GroupId;
use serde::{Deserialize, Serialize};

/// Throttling in the cell, over all CPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Throttling {
    /// How many budgets were used up.
    pub overflows: u64,
    /// Times a CPU was throttled.
    pub throttles: u64,
    /// Nanoseconds throttled, summed over CPUs.
    pub throttled_ns: u64,
    /// What went through the pool of budgets. `None` without one.
    pub pooled: Option<Pooled>,
    /// Nanoseconds from overflow to stop, where the interrupt hit a program.
    pub reactions_user: Vec<f64>,
    /// The same where the interrupt hit the kernel.
    pub reactions_kernel: Vec<f64>,
    /// From when to when regulated groups were stopped, per group and CPU.
    pub stops: Vec<Stop>,
}

impl Throttling {
    /// Adds the throttling of another cell.
    pub(crate) fn add(&mut self, other: Self) {
        self.overflows += other.overflows;
        self.throttles += other.throttles;
        self.throttled_ns += other.throttled_ns;
        self.pool(other.pooled);
        self.reactions_user.extend(other.reactions_user);
        self.reactions_kernel.extend(other.reactions_kernel);
        self.stops.extend(other.stops);
    }

    pub(crate) fn pool(&mut self, more: Option<Pooled>) {
        if let Some(more) = more {
            self.pooled = Some(self.pooled.unwrap_or_default().plus(more));
        }
    }

    pub(crate) fn decided(&mut self, group: &GroupId, cpu: CpuId, decision: &Decision) {
        if !decision.what.stops() {
            // A stop may end before its time where budgets are pooled.
            let own = |stop: &&mut Stop| stop.cpu == cpu && stop.group == *group;
            if let Some(stop) = self.stops.iter_mut().rev().find(own) {
                stop.until_ns = stop.until_ns.min(decision.at.0);
            }
        }
        if let Verdict::ThrottleUntil(until) = decision.what {
            self.stops.push(Stop {
                group: group.clone(),
                cpu,
                from_ns: decision.at.0,
                until_ns: until.0,
            });
        }
        if let (Verdict::ThrottleUntil(_), Some((late, kernel))) =
            (decision.what, decision.reaction)
        {
            let list = if kernel {
                &mut self.reactions_kernel
            } else {
                &mut self.reactions_user
            };
            list.push(late.0 as f64);
        }
    }
}
