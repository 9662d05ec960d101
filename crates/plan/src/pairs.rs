//! Which pairs of CPUs to probe for a shared cache. Where there are few CPUs, all pairs are probed.
//! Else the first CPU of each last-level cache is probed against these:
//!
//! - the second CPU of the cache (near) and its last one (far)
//! - its own SMT sibling
//! - the next cache (across)

use std::collections::BTreeSet;

use quell_types::cpuset::{CpuId, CpuSet};

use crate::inventory::Inventory;

/// The most pairs. At some 10 ms a probe and a few probes per pair, that is a few seconds.
pub const PAIRS: usize = 64;

/// The pairs to probe, ascending; the smaller number comes first in each.
#[must_use]
pub fn pairs(machine: &Inventory) -> Vec<(CpuId, CpuId)> {
    let all: Vec<CpuId> = machine.cpu_set().iter().collect();
    let mut chosen: BTreeSet<(CpuId, CpuId)> = BTreeSet::new();
    if all.len() * all.len().saturating_sub(1) / 2 <= PAIRS {
        for (i, a) in all.iter().enumerate() {
            chosen.extend(all[i + 1..].iter().map(|b| (*a, *b)));
        }
        return chosen.into_iter().collect();
    }
    let usable = machine.cpu_set();
    let mut groups: Vec<CpuSet> = Vec::new();
    for cpu in &all {
        let of = machine.llc(*cpu).map_or_else(
            || CpuSet::from_iter([*cpu]),
            |c| c.cpus.intersection(&usable),
        );
        if !groups.contains(&of) {
            groups.push(of);
        }
    }
    let mut add = |a: Option<CpuId>, b: Option<CpuId>| {
        if let (Some(a), Some(b)) = (a, b)
            && a != b
        {
            chosen.insert((a.min(b), a.max(b)));
        }
    };
    for (i, group) in groups.iter().enumerate() {
        let first = group.first();
        add(first, group.iter().nth(1));
        add(first, group.iter().next_back());
        let siblings = machine.cpus.iter().find(|c| Some(c.id) == first);
        add(
            first,
            siblings.and_then(|c| c.siblings.intersection(&usable).iter().next_back()),
        );
        add(first, groups[(i + 1) % groups.len()].first());
    }
    // There are more caches than the bound allows: thin out evenly.
    let chosen: Vec<(CpuId, CpuId)> = chosen.into_iter().collect();
    let n = chosen.len().min(PAIRS);
    (0..n).map(|i| chosen[i * chosen.len() / n]).collect()
}

#[cfg(test)]
mod tests {
    use quell_types::units::Bytes;

    use super::*;
    use crate::inventory::{Cache, CacheKind, Cpu};
    use crate::planner::tests;
    use proptest::prelude::*;

    fn machine(cpus: u32, per_cache: u32) -> Inventory {
        let mut machine = tests::machine(1, 1);
        let of = |id: u32| (id / per_cache * per_cache..(id / per_cache + 1) * per_cache).collect();
        machine.cpus = (0..cpus)
            .map(|id| Cpu {
                id,
                siblings: CpuSet::from_iter([id]),
                package: 0,
                node: 0,
                tier: 0,
                isolated: false,
                tickless: false,
            })
            .collect();
        machine.caches = (0..cpus)
            .step_by(per_cache as usize)
            .map(|id| Cache {
                level: 3,
                kind: CacheKind::Unified,
                size: Bytes(32 << 20),
                ways: None,
                sets: None,
                line: Bytes(64),
                cpus: of(id),
            })
            .collect();
        machine
    }

    #[test]
    fn few_cpus_are_probed_each_with_each() {
        assert_eq!(pairs(&machine(2, 2)), [(0, 1)]);
        assert_eq!(pairs(&machine(8, 4)).len(), 28);
        assert!(pairs(&machine(1, 1)).is_empty());
    }

    #[test]
    fn many_are_probed_within_each_cache_and_across() {
        let found = pairs(&machine(32, 8));
        assert!(found.contains(&(0, 1)) && found.contains(&(0, 7)) && found.contains(&(0, 8)));
        assert!(found.contains(&(0, 24)), "round and round: {found:?}");
        assert_eq!(found.len(), 12);
    }

    proptest! {
        #[test]
        fn pairs_are_bounded_distinct_and_of_two_usable_cpus(cpus in 1u32..600, per_cache in 1u32..64) {
            let machine = machine(cpus, per_cache);
            let found = pairs(&machine);
            prop_assert!(found.len() <= PAIRS);
            prop_assert!(found.is_sorted());
            prop_assert!(found.iter().all(|(a, b)| a < b && *b < cpus));
            prop_assert!(cpus < 2 || !found.is_empty());
        }
    }
}
