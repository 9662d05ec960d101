//! What holds for every policy, whatever the members are.

use proptest::prelude::*;

use super::plant::Process;
use super::*;
use crate::schedule::grouping::{exact, exchanged};
use crate::schedule::selection::kept_bound;

/// A process that ran in its last quantum, next to others that slowed it a little.
pub fn running(process: &Process) -> Member {
    Member {
        alone: Alone {
            memory: process.memory,
            ipc: process.ipc,
            time: process.work,
        },
        memory: process.memory * 0.8,
        first_level: process.first_level * 0.8,
        ipc: process.ipc * 0.8,
        // So that the weights differ.
        progress: 0.3 + process.work / 1_000.0,
        age: 20,
        waited: 0,
    }
}

/// What the choice of `fair` is worth, as a share of the largest value.
pub fn reached(members: &[Member], cores: Cores) -> f64 {
    let mut fair = Fair::new(E5645, 1_000);
    let value = |members: &[Member], groups: &[Vec<usize>]| fair.value(members, groups);
    let best = Oracle::new(value).decide(members, cores).unwrap();
    let most = fair.value(members, &by_core(&best, cores));
    let chosen = fair.decide(members, cores).unwrap();
    fair.value(members, &by_core(&chosen, cores)) / most
}

/// Any numbers, and those that programs have.
fn figure() -> impl Strategy<Value = f64> {
    prop_oneof![4 => 0.0..100.0f64, 1 => any::<f64>()]
}

fn members(most: usize) -> impl Strategy<Value = Vec<Member>> {
    let one = (
        [figure(), figure(), figure(), figure(), figure(), figure()],
        0.0..1.0f64,
        0..200u32,
        0..20u32,
    );
    let one = one.prop_map(|(f, progress, age, waited)| Member {
        alone: Alone {
            memory: f[0],
            ipc: f[1],
            time: f[2],
        },
        memory: f[3],
        first_level: f[4],
        ipc: f[5],
        progress,
        age,
        waited,
    });
    prop::collection::vec(one, 0..most)
}

fn cores() -> impl Strategy<Value = Cores> {
    (1..=6usize, 1..=4usize).prop_map(|(count, threads)| Cores { count, threads })
}

/// All ways to share the cores, written without the policies' own code.
fn cheapest(left: &[usize], cores: Cores, cost: &dyn Fn(&[usize]) -> f64) -> f64 {
    let Some((first, left)) = left.split_first() else {
        return cores.count as f64 * cost(&[]);
    };
    if cores.count == 0 {
        return f64::INFINITY;
    }
    let cores = Cores {
        count: cores.count - 1,
        ..cores
    };
    let mut least = f64::INFINITY;
    for set in 0u32..1 << left.len() {
        if set.count_ones() as usize >= cores.threads {
            continue;
        }
        let (mut group, mut rest) = (vec![*first], Vec::new());
        for (n, item) in left.iter().enumerate() {
            let list = if set >> n & 1 == 1 {
                &mut group
            } else {
                &mut rest
            };
            list.push(*item);
        }
        least = least.min(cost(&group) + cheapest(&rest, cores, cost));
    }
    least
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn no_thread_idles_and_no_member_has_two(
        members in members(30),
        cores in cores(),
        bound in 0..8u32,
        seed: u64,
    ) {
        for mut policy in policies(bound, seed) {
            let seats = policy.decide(&members, cores).unwrap();
            let name = policy.name();
            prop_assert_eq!(seats.len(), members.len().min(cores.seats()), "{}", name);
            let mut run: Vec<usize> = seats.iter().map(|seat| seat.member).collect();
            run.sort_unstable();
            run.dedup();
            prop_assert_eq!(run.len(), seats.len(), "{}: a member has two", name);
            prop_assert!(run.iter().all(|i| *i < members.len()));
            let mut used: Vec<(usize, usize)> = seats.iter().map(|s| (s.core, s.thread)).collect();
            used.sort_unstable();
            used.dedup();
            prop_assert_eq!(used.len(), seats.len(), "{}: a thread has two", name);
            let there = |s: &Seat| s.core < cores.count && s.thread < cores.threads;
            prop_assert!(seats.iter().all(there), "{}", name);
        }
    }

    #[test]
    fn the_exhaustive_policy_fills_every_thread(members in members(8), cores in cores()) {
        let seats = Oracle::new(|_: &[Member], groups: &[Vec<usize>]| groups.len() as f64)
            .decide(&members, cores)
            .unwrap();
        prop_assert_eq!(seats.len(), members.len().min(cores.seats()));
    }

    #[test]
    fn no_process_waits_longer_than_the_bound(
        first in members(30),
        cores in cores(),
        bound in 0..8u32,
        rates in prop::collection::vec(0.0..100.0f64, 30),
    ) {
        let policies: [Box<dyn Scheduler>; 2] =
            [Box::new(Bounded::new(bound)), Box::new(Fair::new(E5645, bound))];
        let kept = kept_bound(bound, first.len(), cores.seats());
        for mut policy in policies {
            let mut members = first.clone();
            for member in &mut members {
                member.waited = 0;
            }
            for quantum in 0..40usize {
                let seats = policy.decide(&members, cores).unwrap();
                for (i, member) in members.iter_mut().enumerate() {
                    member.waited += 1;
                    member.age += 1;
                    // Rates that change without a pattern.
                    member.memory = rates[(i * 7 + quantum * 11) % rates.len()];
                }
                for seat in &seats {
                    members[seat.member].waited = 0;
                }
                let most = members.iter().map(|m| m.waited).max().unwrap_or(0);
                prop_assert!(most <= kept, "{}: {} quanta, bound {}", policy.name(), most, kept);
            }
        }
    }

    #[test]
    fn the_pairing_equals_brute_force(
        items in 0..9usize,
        count in 1..5usize,
        threads in 1..4usize,
        costs in prop::collection::vec(-10.0..10.0f64, 512),
    ) {
        let cores = Cores { count, threads };
        let cost = |group: &[usize]| costs[group.iter().map(|item| 1 << item).sum::<usize>()];
        let found = exact(items, cores, &cost);
        prop_assert_eq!(found.is_some(), items <= cores.seats());
        if let Some(groups) = found {
            let sum: f64 = groups.iter().map(|group| cost(group)).sum();
            let least = cheapest(&(0..items).collect::<Vec<_>>(), cores, &cost);
            prop_assert!((sum - least).abs() < 1e-9, "{sum} and {least}");
            let start: Vec<Vec<usize>> = groups.iter().rev().cloned().collect();
            let after: f64 = exchanged(start, &cost).iter().map(|group| cost(group)).sum();
            prop_assert!((after - least).abs() < 1e-9, "an exchange lowers the least");
        }
    }

    #[test]
    fn the_exhaustive_policy_equals_brute_force(
        costs in prop::collection::vec(0.0..10.0f64, 64),
        count in 1..4usize,
    ) {
        let cores = Cores { count, threads: 2 };
        let members = vec![member(1.0, 1.0, 0); 6];
        let cost = |group: &[usize]| costs[group.iter().map(|item| 1 << item).sum::<usize>()];
        let value = |_: &[Member], groups: &[Vec<usize>]| -groups.iter().map(|g| cost(g)).sum::<f64>();
        let seats = Oracle::new(value).decide(&members, cores).unwrap();
        let chosen: f64 = by_core(&seats, cores).iter().map(|group| {
            let mut group = group.clone();
            group.sort_unstable();
            cost(&group)
        }).sum();
        let mut least = f64::INFINITY;
        for set in 0u32..64 {
            if set.count_ones() as usize == cores.seats() {
                let run: Vec<usize> = (0..6).filter(|i| set >> i & 1 == 1).collect();
                least = least.min(cheapest(&run, cores, &cost));
            }
        }
        prop_assert!((chosen - least).abs() < 1e-9, "{chosen} and {least}");
    }

    #[test]
    fn the_same_seed_gives_the_same_schedule(members in members(30), seed: u64) {
        let (mut one, mut two) = (policies(4, seed), policies(4, seed));
        for _ in 0..3 {
            for (one, two) in one.iter_mut().zip(&mut two) {
                prop_assert_eq!(one.decide(&members, CORES), two.decide(&members, CORES));
            }
        }
    }
}

#[test]
fn another_seed_gives_another_schedule() {
    let members = vec![member(1.0, 1.0, 0); 24];
    let of = |seed| Random::new(seed).decide(&members, CORES).unwrap();
    assert_ne!(of(1), of(2));
}
