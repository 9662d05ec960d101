//! One cycle through every node of a list. A random one is made by Sattolo's algorithm (S. Sattolo,
//! "An algorithm to generate a random cyclic permutation", Information Processing Letters 22,
//! 1986). It is a Fisher-Yates shuffle that swaps each item with one strictly below it. The result
//! is a single cycle, and each cycle is equally likely.

use quell_policy::workload::Order;
use quell_types::rng::Rng;

/// For every node the index of its successor: one cycle through all of them. `seed` is used for
/// [`Order::Random`] only. No nodes: an empty list.
#[must_use]
pub fn cycle(nodes: u32, order: Order, seed: u64) -> Vec<u32> {
    let mut next: Vec<u32> = (0..nodes).collect();
    match order {
        Order::Sequential => next.rotate_left(usize::from(nodes > 0)),
        Order::Random => {
            let mut rng = Rng::new(seed);
            for i in (1..nodes).rev() {
                next.swap(i as usize, rng.below(i) as usize);
            }
        }
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn steps_until_back(next: &[u32]) -> usize {
        let mut at = next[0];
        let mut steps = 1;
        while at != 0 && steps <= next.len() {
            at = next[at as usize];
            steps += 1;
        }
        steps
    }

    proptest! {
        #[test]
        fn a_list_is_one_cycle_through_all_nodes(nodes in 1u32..3_000, seed: u64, random: bool) {
            let order = if random { Order::Random } else { Order::Sequential };
            let next = cycle(nodes, order, seed);
            prop_assert_eq!(steps_until_back(&next), nodes as usize);
        }
    }

    #[test]
    fn a_random_list_jumps_and_a_sequential_one_does_not() {
        let far = |next: &[u32]| {
            let jumps = next
                .iter()
                .enumerate()
                .filter(|(i, n)| i.abs_diff(**n as usize) > 100);
            jumps.count()
        };
        assert_eq!(far(&cycle(10_000, Order::Sequential, 1)), 1);
        assert!(far(&cycle(10_000, Order::Random, 1)) > 9_000);
    }
}
