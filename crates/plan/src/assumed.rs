//! Rates that a plan assumes on a machine where none were measured.
//!
//! The rule: one CPU draws 10 GB/s. The CPUs of a memory node together draw as much as four of
//! them, or as all of them where there are fewer. Unmatched tasks draw a hundredth of one CPU's
//! rate. `quell run` never uses these figures: it measures first.

use std::collections::BTreeMap;

use quell_types::units::Rate;

use crate::inventory::{Inventory, Measured};

/// What one CPU is assumed to draw at most.
const ONE_CPU: Rate = Rate(10_000_000_000);

/// This many CPUs of a memory node are assumed to draw all that the node gives.
const SATURATE_A_NODE: u64 = 4;

/// Unmatched tasks are assumed to draw the rate of one CPU divided by this.
const REST: u64 = 100;

/// The assumed rates of a machine, by the rule above.
#[must_use]
pub fn rates(machine: &Inventory) -> Measured {
    let mut nodes: BTreeMap<u32, u64> = BTreeMap::new();
    for cpu in &machine.cpus {
        *nodes.entry(cpu.node).or_default() += 1;
    }
    let saturating: u64 = nodes.values().map(|n| (*n).min(SATURATE_A_NODE)).sum();
    Measured {
        peak_cpu: ONE_CPU,
        peak_operation: "assumed".to_owned(),
        by_operation: BTreeMap::new(),
        sustainable: Rate(ONE_CPU.0 * saturating.max(1)),
        cpus: u32::try_from(machine.cpus.len()).unwrap_or(u32::MAX),
        stop_cost: None,
        operations: Vec::new(),
        counters: BTreeMap::new(),
        mba: None,
        within_cache: None,
        cache_steps: None,
        rest: Some(Rate(ONE_CPU.0 / REST)),
        assumed: true,
        at_unix_s: 0,
        deep: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::tests::machine;

    #[test]
    fn rates_follow_the_cpus_and_the_nodes() {
        let together = |cpus, smt| rates(&machine(cpus, smt)).sustainable.0 / ONE_CPU.0;
        assert_eq!([together(1, 1), together(2, 1), together(8, 1)], [1, 2, 4]);
        let mut two = machine(8, 1);
        for cpu in two.cpus.iter_mut().skip(5) {
            cpu.node = 1;
        }
        assert_eq!(rates(&two).sustainable.0 / ONE_CPU.0, 4 + 3);
        assert!(rates(&two).assumed);
    }
}
