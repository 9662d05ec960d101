//! Which of the selected members share a core, at the least sum of costs. For two hardware threads
//! per core this is a minimum-cost perfect matching.

use super::Cores;

/// The most hardware threads for which [`exact`] is computed: 2^16 sets.
pub const EXACT: usize = 16;

/// The grouping of the items 0 to `items` − 1 over the cores with the least sum of `cost`, one
/// group per core. Groups may be smaller than a core, or empty.
///
/// `cost` gets a group in ascending order. It must be a finite number. `None` if it is not, if
/// there are more hardware threads than [`EXACT`], or if the items do not fit.
///
/// Method: dynamic programming over sets (Held and Karp 1962 use it for tours). The lowest item
/// that is not placed opens the next core.
#[must_use]
pub fn exact(
    items: usize,
    cores: Cores,
    cost: &dyn Fn(&[usize]) -> f64,
) -> Option<Vec<Vec<usize>>> {
    let slots = cores.seats();
    if slots == 0 || slots > EXACT || items > slots {
        return None;
    }
    let all: usize = (1 << slots) - 1;
    let mut costs: Vec<Option<f64>> = vec![None; all + 1];
    let mut best: Vec<Option<Placed>> = vec![None; all + 1];
    best[0] = Some(Placed { cost: 0.0, last: 0 });
    for placed in 0..all {
        let Some(before) = best[placed] else { continue };
        let free = all & !placed;
        let lowest = 1 << free.trailing_zeros();
        let mut next = |group: usize| {
            let one = *costs[group].get_or_insert_with(|| cost(&members(group, items)));
            let sum = before.cost + one;
            let known = &mut best[placed | group];
            if sum.is_finite() && known.is_none_or(|known| sum < known.cost) {
                *known = Some(Placed {
                    cost: sum,
                    last: group,
                });
            }
        };
        combine(lowest, free & !lowest, cores.threads - 1, &mut next);
    }
    let mut groups = Vec::new();
    let mut placed = all;
    while placed != 0 {
        let group = best[placed]?.last;
        groups.push(members(group, items));
        placed &= !group;
    }
    groups.reverse();
    Some(groups)
}

/// The least cost of a set of items that is placed, and the group that was placed last.
#[derive(Clone, Copy)]
struct Placed {
    cost: f64,
    last: usize,
}

/// Calls `then` with `group` and each choice of `more` items of `free`.
fn combine(group: usize, free: usize, more: usize, then: &mut dyn FnMut(usize)) {
    if more == 0 {
        return then(group);
    }
    let mut free = free;
    while free != 0 {
        let lowest = 1 << free.trailing_zeros();
        free &= !lowest;
        combine(group | lowest, free, more - 1, then);
    }
}

/// The items of a set. Those from `items` on are idle hardware threads.
fn members(set: usize, items: usize) -> Vec<usize> {
    (0..items).filter(|item| set >> item & 1 == 1).collect()
}

/// Exchanges two items of different groups as long as this lowers the sum of `cost`. For machines
/// that are too large for [`exact`]. The result is a local optimum.
#[must_use]
pub fn exchanged(groups: Vec<Vec<usize>>, cost: &dyn Fn(&[usize]) -> f64) -> Vec<Vec<usize>> {
    let mut groups = groups;
    let mut costs: Vec<f64> = groups.iter().map(|group| cost(group)).collect();
    // An exchange must lower the sum by more than rounding does, or it might never end.
    const LEAST: f64 = 1e-12;
    loop {
        let mut lowered = false;
        for a in 0..groups.len() {
            for b in a + 1..groups.len() {
                for i in 0..groups[a].len() {
                    for j in 0..groups[b].len() {
                        let (mut one, mut two) = (groups[a].clone(), groups[b].clone());
                        std::mem::swap(&mut one[i], &mut two[j]);
                        let new = (cost(&one), cost(&two));
                        if new.0 + new.1 < costs[a] + costs[b] - LEAST {
                            (groups[a], groups[b]) = (one, two);
                            (costs[a], costs[b]) = new;
                            lowered = true;
                        }
                    }
                }
            }
        }
        if !lowered {
            return groups;
        }
    }
}
