//! Splits a group's budget over its CPUs by what each of them draws.
//!
//! Method: max-min fairness (Bertsekas and Gallager, "Data Networks", section 6.5.2). A CPU that
//! draws less than its part keeps what it drew and a margin. The hungry CPUs share what is left
//! evenly.
//!
//! A CPU that is stopped at its budget does not show how much more it wants. A split in proportion
//! to what was drawn would therefore keep whatever split there is. An even split among the hungry
//! CPUs does not.
//!
//! Every CPU keeps a least part, so that one that wakes is not stopped at its first lines.

use quell_types::units::{Lines, Nanos};

/// A CPU is hungry if it has drawn at least this much of its budget, in sixteenths.
const HUNGRY: u64 = 15;

/// What a CPU keeps beyond what it drew, as a divisor of that: a quarter.
const MARGIN: u64 = 4;

/// The least that every CPU keeps, as a divisor of an even share: an eighth. What the plan says
/// counts instead if it is more.
const LEAST: u64 = 8;

/// A budget is split again after this many periods, and not before [`SHORTEST`].
const PERIODS: u64 = 10;

/// The shortest time between two splits.
const SHORTEST: Nanos = Nanos::millis(10);

/// The budget of one group, split again and again by what its CPUs drew since the last time.
#[derive(Clone, Debug)]
pub struct ByDemand {
    total: Lines,
    least: Lines,
    period: Nanos,
    at: Nanos,
    seen: Vec<Lines>,
}

impl ByDemand {
    /// Splits `total` lines per `period` over the CPUs whose counters read `used` at `now`. Each
    /// CPU keeps at least `least` lines per period.
    #[must_use]
    pub fn new(total: Lines, least: Lines, period: Nanos, now: Nanos, used: Vec<Lines>) -> Self {
        Self {
            total,
            least,
            period: Nanos(period.0.max(1)),
            at: now,
            seen: used,
        }
    }

    /// When the budget is to be split again.
    #[must_use]
    pub fn next(&self) -> Nanos {
        let span = Nanos(self.period.0.saturating_mul(PERIODS));
        self.at.plus(span.max(SHORTEST))
    }

    /// Sets what is split from the next step on.
    pub fn set_total(&mut self, total: Lines) {
        self.total = total;
    }

    /// The new budgets of the CPUs. Their counters read `used`, and `budgets` were theirs until
    /// now.
    pub fn step(&mut self, now: Nanos, used: Vec<Lines>, budgets: &[Lines]) -> Vec<Lines> {
        let span = now.since(self.at).0.max(1);
        let per_period = |lines: u64| {
            let lines = u128::from(lines) * u128::from(self.period.0) / u128::from(span);
            Lines(u64::try_from(lines).unwrap_or(u64::MAX))
        };
        let drew: Vec<Drew> = used
            .iter()
            .zip(&self.seen)
            .zip(budgets)
            .map(|((now, before), budget)| Drew {
                budget: *budget,
                lines: per_period(now.0.saturating_sub(before.0)),
            })
            .collect();
        (self.at, self.seen) = (now, used);
        by_demand(self.total, self.least, &drew)
    }
}

/// What a CPU had and drew, per period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drew {
    /// What it was allowed to draw.
    pub budget: Lines,
    /// What it drew, on average since the last split.
    pub lines: Lines,
}

/// The even split: the sum is `total`, and the first CPUs get the odd lines.
#[must_use]
pub fn even(total: Lines, cpus: usize) -> Vec<Lines> {
    let n = cpus.max(1) as u64;
    let (part, odd) = (total.0 / n, total.0 % n);
    (0..cpus as u64)
        .map(|cpu| Lines(part + u64::from(cpu < odd)))
        .collect()
}

/// The split by demand: the sum is `total`, and every CPU keeps `least`, if all of them can.
#[must_use]
pub fn by_demand(total: Lines, least: Lines, drew: &[Drew]) -> Vec<Lines> {
    let wants: Vec<Option<u64>> = drew
        .iter()
        .zip(even(Lines(total.0 / LEAST), drew.len()))
        .map(|(cpu, part)| {
            let least = part.max(least);
            let hungry = cpu.lines.0.saturating_mul(16) >= cpu.budget.0.saturating_mul(HUNGRY);
            let want = cpu.lines.0.saturating_add(cpu.lines.0 / MARGIN);
            (!hungry).then_some(want.max(least.0))
        })
        .collect();
    // The CPUs that want least are served first. Each hungry CPU gets an even part of what is then
    // left.
    let mut order: Vec<usize> = (0..drew.len()).collect();
    order.sort_by_key(|cpu| wants[*cpu].unwrap_or(u64::MAX));
    let mut parts = vec![Lines(0); drew.len()];
    let mut left = total.0;
    for (served, cpu) in order.iter().enumerate() {
        let even = left / (drew.len() - served) as u64;
        parts[*cpu] = Lines(wants[*cpu].map_or(even, |want| want.min(even)));
        left -= parts[*cpu].0;
    }
    // What is left where no CPU is hungry is spread evenly.
    for (part, more) in parts.iter_mut().zip(even(Lines(left), drew.len())) {
        part.0 += more.0;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn drew(list: &[(u64, u64)]) -> Vec<Drew> {
        list.iter()
            .map(|(budget, lines)| Drew {
                budget: Lines(*budget),
                lines: Lines(*lines),
            })
            .collect()
    }

    #[test]
    fn what_one_leaves_the_other_gets() {
        let split = by_demand(Lines(1_000), Lines(0), &drew(&[(500, 100), (500, 500)]));
        assert_eq!(split, [Lines(125), Lines(875)]);
    }

    #[test]
    fn two_who_want_more_get_the_same_whatever_they_had() {
        let split = by_demand(Lines(1_000), Lines(0), &drew(&[(100, 100), (900, 900)]));
        assert_eq!(split, [Lines(500), Lines(500)]);
    }

    #[test]
    fn who_sleeps_keeps_an_eighth_of_its_even_part() {
        let split = by_demand(Lines(1_600), Lines(0), &drew(&[(800, 0), (800, 800)]));
        assert_eq!(split, [Lines(100), Lines(1_500)]);
    }

    #[test]
    fn who_sleeps_keeps_what_can_be_held() {
        let drew = drew(&[(800, 0), (800, 800)]);
        let split = by_demand(Lines(1_600), Lines(240), &drew);
        assert_eq!(split, [Lines(240), Lines(1_360)]);
        let split = by_demand(Lines(1_600), Lines(900), &drew);
        assert_eq!(split, [Lines(800), Lines(800)]);
    }

    #[test]
    fn what_nobody_wants_is_spread_evenly() {
        let split = by_demand(Lines(1_000), Lines(0), &drew(&[(500, 200), (500, 100)]));
        assert_eq!(split, [Lines(563), Lines(437)]);
    }

    proptest! {
        #[test]
        fn the_sum_is_conserved_and_everybody_keeps_something(
            total in 8u64..1_000_000,
            least in 0u64..100_000,
            list in proptest::collection::vec((0u64..1_000_000, 0u64..2_000_000), 1..12),
        ) {
            let split = by_demand(Lines(total), Lines(least), &drew(&list));
            prop_assert_eq!(split.iter().map(|l| l.0).sum::<u64>(), total);
            let least = least.max(total / LEAST / list.len() as u64).min(total / list.len() as u64);
            for part in &split {
                prop_assert!(part.0 + 1 >= least, "{} below {}", part.0, least);
            }
            prop_assert_eq!(even(Lines(total), list.len()).iter().map(|l| l.0).sum::<u64>(), total);
        }

        /// Demands that fit are met within eight splits, whatever the split was before.
        #[test]
        fn demands_that_fit_are_met(
            demands in proptest::collection::vec(0u64..1_000, 1..8),
            first in 1u64..9,
        ) {
            // This includes margins and least parts.
            let total = demands.iter().map(|d| d + d / MARGIN + d / HUNGRY + 2).sum::<u64>() * 8 / 7 + 8;
            let mut budgets = even(Lines(total), demands.len());
            budgets[0].0 /= first;
            for _ in 0..8 {
                let seen: Vec<Drew> = budgets
                    .iter()
                    .zip(&demands)
                    .map(|(budget, demand)| Drew { budget: *budget, lines: Lines(budget.0.min(*demand)) })
                    .collect();
                budgets = by_demand(Lines(total), Lines(0), &seen);
            }
            for (budget, demand) in budgets.iter().zip(&demands) {
                prop_assert!(budget.0 >= *demand, "{} below {}", budget.0, demand);
            }
        }
    }
}
