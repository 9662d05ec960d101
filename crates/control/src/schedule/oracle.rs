//! `oracle`: a control for small cases. It tries every selection and every way to share the cores.
//! The caller says what a co-schedule is worth, for instance from measured speeds of all pairs.

use super::allocation::grouped;
use super::{Cores, Member, Scheduler, Seat, TooMany};

/// The most members that it takes. Twelve members on six cores of two threads are 10,395
/// co-schedules.
pub const MOST: usize = 12;

/// The policy. `V` is what a co-schedule is worth: it gets all members, and those of each core that
/// is not empty as places in that list. Larger is better.
#[derive(Clone, Debug)]
pub struct Oracle<V> {
    value: V,
}

impl<V: FnMut(&[Member], &[Vec<usize>]) -> f64> Oracle<V> {
    /// Finds the co-schedule with the largest `value`, and of several such the first.
    #[must_use]
    pub fn new(value: V) -> Self {
        Self { value }
    }
}

impl<V: FnMut(&[Member], &[Vec<usize>]) -> f64> Scheduler for Oracle<V> {
    fn name(&self) -> &'static str {
        "oracle"
    }

    fn decide(&mut self, members: &[Member], cores: Cores) -> Result<Vec<Seat>, TooMany> {
        let there = members.len();
        if there > MOST {
            return Err(TooMany { there, most: MOST });
        }
        let run = there.min(cores.seats());
        let mut best: Option<Best> = None;
        let mut compare = |groups: &[Vec<usize>]| {
            let value = (self.value)(members, groups);
            if best.as_ref().is_none_or(|best| value > best.value) {
                let groups = groups.to_vec();
                best = Some(Best { value, groups });
            }
        };
        for set in 0u32..1 << there {
            if set.count_ones() as usize == run {
                let chosen: Vec<usize> = (0..there).filter(|i| set >> i & 1 == 1).collect();
                share(&chosen, &mut Vec::new(), cores, &mut compare);
            }
        }
        Ok(grouped(&best.map(|best| best.groups).unwrap_or_default()))
    }
}

struct Best {
    value: f64,
    groups: Vec<Vec<usize>>,
}

/// Calls `then` with each way to put `left` on the cores, next to the `groups` that are there.
fn share(
    left: &[usize],
    groups: &mut Vec<Vec<usize>>,
    cores: Cores,
    then: &mut dyn FnMut(&[Vec<usize>]),
) {
    let Some((member, left)) = left.split_first() else {
        return then(groups);
    };
    for core in 0..groups.len() {
        if groups[core].len() < cores.threads {
            groups[core].push(*member);
            share(left, groups, cores, then);
            groups[core].pop();
        }
    }
    if groups.len() < cores.count {
        groups.push(vec![*member]);
        share(left, groups, cores, then);
        groups.pop();
    }
}
