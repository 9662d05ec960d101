//! `fair`: the co-schedule with the largest weighted predicted progress.
//!
//! - **Demand** is corrected for contention, and speeds are predicted from it
//!   ([`super::contention`]).
//! - **Weights** double with each quantum of work alone that a member is behind the mean. With
//!   weights that grow exponentially the distance stays bounded while members differ in speed
//!   (Shakkottai and Stolyar, "Scheduling for multiple flows sharing a time-varying channel: the
//!   exponential rule", 2002).
//! - **Waiting** is bounded as in [`super::bounded`].
//! - **Selection** begins with the largest weights. Then members are exchanged as long as that
//!   raises the sum. Pairs are folded meanwhile. The result is a local optimum.
//! - **Pairing** of the selected members is exact ([`super::grouping`]).

use super::allocation::grouped;
use super::contention::{Contention, Demand};
use super::grouping::{exact, exchanged};
use super::selection::{due, queue};
use super::{Cores, Member, Scheduler, Seat, TooMany};

/// Steps of a weight per quantum.
const STEPS: f64 = 4.0;
/// What a weight is multiplied by at each step: the fourth root of two, so that it doubles with
/// each quantum.
const STEP: f64 = 1.189_207_115_002_721;
/// Beyond this many quanta behind or ahead a weight changes no more.
const FARTHEST: f64 = 64.0;
/// By how much of itself an exchange must raise the sum. Less is rounding.
const LEAST: f64 = 1e-9;

/// The policy.
#[derive(Clone, Copy, Debug)]
pub struct Fair {
    contention: Contention,
    bound: u32,
}

impl Fair {
    /// For a machine that can do what `contention` says. No member waits for more than `bound`
    /// quanta in a row, or [`kept_bound`](super::selection::kept_bound) where there are too many
    /// members for that.
    #[must_use]
    pub fn new(contention: Contention, bound: u32) -> Self {
        Self { contention, bound }
    }

    /// What the policy makes as large as it can: the sum of weight times predicted speed, with one
    /// of `groups` on each core.
    #[must_use]
    pub fn value(&self, members: &[Member], groups: &[Vec<usize>]) -> f64 {
        let known = Known::new(&self.contention, members);
        let all = groups.iter().flatten();
        let excess = Contention::excess(known.sum(all));
        groups.iter().map(|group| known.core(group, excess)).sum()
    }
}

impl Scheduler for Fair {
    fn name(&self) -> &'static str {
        "fair"
    }

    fn decide(&mut self, members: &[Member], cores: Cores) -> Result<Vec<Seat>, TooMany> {
        let known = Known::new(&self.contention, members);
        let seats = cores.seats();
        let first = due(members, self.bound, seats);
        let (first, rest) = {
            let mut queue = queue(members);
            let rest = queue.split_off(first);
            (queue, rest)
        };
        let chosen = known.select(first, rest, cores);
        let excess = Contention::excess(known.sum(&chosen));
        let cost = |group: &[usize]| {
            let group: Vec<usize> = group.iter().map(|n| chosen[*n]).collect();
            -known.core(&group, excess)
        };
        let groups = exact(chosen.len(), cores, &cost).unwrap_or_else(|| {
            let folded = known.folded(&chosen, cores);
            exchanged(folded, &cost)
        });
        let groups: Vec<Vec<usize>> = groups
            .iter()
            .map(|group| group.iter().map(|n| chosen[*n]).collect())
            .collect();
        Ok(grouped(&groups))
    }
}

/// What is known of the members in one quantum.
struct Known {
    demands: Vec<Demand>,
    weights: Vec<f64>,
    /// The place of each member among all, the one with the largest demand on its core first.
    ranks: Vec<usize>,
}

impl Known {
    fn new(contention: &Contention, members: &[Member]) -> Self {
        let demands: Vec<Demand> = members.iter().map(|m| contention.demand(m)).collect();
        let pressure = |i: &usize| demands[*i].issue + demands[*i].ports;
        let mut order: Vec<usize> = (0..members.len()).collect();
        order.sort_by(|a, b| pressure(b).total_cmp(&pressure(a)));
        let mut ranks = vec![0; members.len()];
        for (rank, member) in order.iter().enumerate() {
            ranks[*member] = rank;
        }
        Self {
            weights: weights(members),
            demands,
            ranks,
        }
    }

    fn sum<'a>(&self, group: impl IntoIterator<Item = &'a usize>) -> Demand {
        let demands = group.into_iter().map(|i| self.demands[*i]);
        demands.fold(Demand::default(), Demand::plus)
    }

    /// The weighted predicted progress of the members of one core.
    fn core(&self, group: &[usize], excess: f64) -> f64 {
        let core = self.sum(group);
        let speeds = group.iter().map(|i| {
            let speed = Contention::speed(self.demands[*i], core, excess);
            self.weights[*i] * speed
        });
        speeds.sum()
    }

    /// Places in `chosen`, sorted by demand on the core and folded over the cores.
    fn folded(&self, chosen: &[usize], cores: Cores) -> Vec<Vec<usize>> {
        let mut order: Vec<usize> = (0..chosen.len()).collect();
        order.sort_by_key(|n| self.ranks[chosen[*n]]);
        let mut groups = vec![Vec::with_capacity(cores.threads); cores.count];
        for (n, place) in order.into_iter().enumerate() {
            let at = n % cores.count;
            let back = n / cores.count % 2 == 1;
            groups[if back { cores.count - 1 - at } else { at }].push(place);
        }
        groups
    }

    /// The value of a selection whose members are folded over the cores.
    fn folded_value(&self, chosen: &[usize], cores: Cores) -> f64 {
        let excess = Contention::excess(self.sum(chosen));
        let groups = self.folded(chosen, cores);
        let cores = groups.iter().map(|group| {
            let group: Vec<usize> = group.iter().map(|n| chosen[*n]).collect();
            self.core(&group, excess)
        });
        cores.sum()
    }

    /// `first`, and of `rest` those with which the sum becomes largest by exchanges.
    fn select(&self, first: Vec<usize>, rest: Vec<usize>, cores: Cores) -> Vec<usize> {
        let (fixed, mut chosen, mut waiting) = (first.len(), first, rest);
        waiting.sort_by(|a, b| self.weights[*b].total_cmp(&self.weights[*a]));
        let more = (cores.seats() - fixed).min(waiting.len());
        let left_out = waiting.split_off(more);
        chosen.append(&mut waiting);
        waiting = left_out;
        let mut value = self.folded_value(&chosen, cores);
        // Each exchange raises the value, so this ends.
        while let Some(exchange) = self.best_exchange(&mut chosen, &waiting, fixed, cores) {
            if exchange.value <= value * (1.0 + LEAST) {
                break;
            }
            value = exchange.value;
            std::mem::swap(&mut chosen[exchange.out], &mut waiting[exchange.into]);
        }
        chosen
    }

    /// The exchange of a chosen member from `fixed` on with a waiting one that leaves the largest
    /// value. `chosen` is left as it was.
    fn best_exchange(
        &self,
        chosen: &mut [usize],
        waiting: &[usize],
        fixed: usize,
        cores: Cores,
    ) -> Option<Exchange> {
        let mut best: Option<Exchange> = None;
        for out in fixed..chosen.len() {
            let before = chosen[out];
            for (into, member) in waiting.iter().enumerate() {
                chosen[out] = *member;
                let value = self.folded_value(chosen, cores);
                if best.as_ref().is_none_or(|best| value > best.value) {
                    best = Some(Exchange { value, out, into });
                }
            }
            chosen[out] = before;
        }
        best
    }
}

/// A chosen member that waits instead of a waiting one, by their places in the two lists.
struct Exchange {
    value: f64,
    out: usize,
    into: usize,
}

/// What a unit of each member's progress counts: 1 at the mean progress, and twice as much for each
/// quantum of work alone that it is behind.
///
/// The power is a product of equal factors, so that it is the same on every processor.
fn weights(members: &[Member]) -> Vec<f64> {
    let progress = |m: &Member| Some(m.progress).filter(|p| p.is_finite()).unwrap_or(0.0);
    let mean = members.iter().map(progress).sum::<f64>() / members.len().max(1) as f64;
    let weight = |m: &Member| {
        let behind = (mean - progress(m)) * f64::from(m.age);
        let steps = (behind.clamp(-FARTHEST, FARTHEST) * STEPS).round();
        let mut weight = 1.0;
        let mut done = 0.0;
        while done < steps.abs() {
            weight *= STEP;
            done += 1.0;
        }
        if steps < 0.0 { 1.0 / weight } else { weight }
    };
    members.iter().map(weight).collect()
}
