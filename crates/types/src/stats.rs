//! Percentiles, spread, and confidence intervals over rounds. All are pure functions of values.
//!
//! Percentiles interpolate linearly between order statistics (type 7 of Hyndman and Fan 1996,
//! "Sample Quantiles in Statistical Packages"; the default of R and NumPy).
//!
//! Intervals are percentile bootstrap intervals (Efron and Tibshirani 1993, "An Introduction to the
//! Bootstrap", chapter 13). They resample *rounds*, never samples. Samples of one round share
//! whatever the machine did in it, so they are not independent. Ratios are formed within a round
//! first ([`ratios`]) and then resampled, which keeps the pairs together.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rng::Rng;

/// How often the bootstrap resamples.
pub const RESAMPLES: usize = 2000;

/// An interval, written as `[low, high]`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "[f64; 2]", into = "[f64; 2]")]
#[schemars(with = "[f64; 2]")]
pub struct Interval {
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end of the interval.
    pub high: f64,
}

impl From<[f64; 2]> for Interval {
    fn from([low, high]: [f64; 2]) -> Self {
        Self { low, high }
    }
}

impl From<Interval> for [f64; 2] {
    fn from(interval: Interval) -> Self {
        [interval.low, interval.high]
    }
}

impl Interval {
    /// Whether the two have a point in common. Then no difference between their statistics is
    /// shown.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.low <= other.high && other.low <= self.high
    }

    /// Half of the width, in the unit of the values.
    #[must_use]
    pub fn half_width(&self) -> f64 {
        (self.high - self.low) / 2.0
    }
}

/// The values in ascending order; NaN comes last.
#[must_use]
pub fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The percentile `p` (0 to 100) of values in ascending order; `None` without values.
#[must_use]
#[expect(
    clippy::cast_sign_loss,
    clippy::cast_possible_truncation,
    reason = "the position is between zero and the length"
)]
pub fn percentile(sorted: &[f64], p: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let position = p.clamp(0.0, 100.0) / 100.0 * last as f64;
    let below = (position.floor() as usize).min(last);
    let above = (below + 1).min(last);
    let (low, high) = (*sorted.get(below)?, *sorted.get(above)?);
    // Rounding may carry `low + (high − low) × w` beyond the ends; keep it inside.
    let value = low + (high - low) * (position - below as f64);
    Some(value.min(high).max(low))
}

/// The arithmetic mean; `None` without values.
#[must_use]
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The median of values in any order; `None` without values.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    percentile(&sorted(values), 50.0)
}

/// `above ÷ below` for each pair. A pair is left out if a value is missing or not finite, or
/// `below` is zero.
#[must_use]
pub fn ratios(above: &[Option<f64>], below: &[Option<f64>]) -> Vec<f64> {
    above
        .iter()
        .zip(below)
        .filter_map(|(a, b)| Some((*a)? / (*b)?))
        .filter(|ratio| ratio.is_finite())
        .collect()
}

/// The percentile bootstrap interval of `statistic` over rounds, at `confidence` (for example
/// 0.95). The same seed gives the same interval. `None` with fewer than two rounds: one round has
/// no spread.
#[must_use]
pub fn bootstrap(
    rounds: &[f64],
    statistic: impl Fn(&[f64]) -> Option<f64>,
    confidence: f64,
    seed: u64,
) -> Option<Interval> {
    let count = u32::try_from(rounds.len()).ok().filter(|n| *n >= 2)?;
    let mut rng = Rng::new(seed);
    let mut resample = vec![0.0; rounds.len()];
    let mut statistics = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        for slot in &mut resample {
            *slot = *rounds.get(rng.below(count) as usize)?;
        }
        statistics.push(statistic(&resample)?);
    }
    let statistics = sorted(&statistics);
    let outside = (1.0 - confidence.clamp(0.0, 1.0)) * 50.0;
    Some(Interval {
        low: percentile(&statistics, outside)?,
        high: percentile(&statistics, 100.0 - outside)?,
    })
}

/// The standard normal quantile for two-sided 95 %.
const Z95: f64 = 1.959_964;

/// The interval of a rate at 95 % confidence, where `hits` of `tries` were seen (Wilson 1927,
/// "Probable Inference, the Law of Succession, and Statistical Inference"). It keeps its confidence
/// for rates near 0, where nothing was seen. `None` without a try.
#[must_use]
pub fn wilson(hits: u32, tries: u32) -> Option<Interval> {
    let n = f64::from(tries);
    let (rate, z2) = (f64::from(hits.min(tries)) / n, Z95 * Z95);
    let middle = (rate + z2 / (2.0 * n)) / (1.0 + z2 / n);
    let half = Z95 / (1.0 + z2 / n) * (rate * (1.0 - rate) / n + z2 / (4.0 * n * n)).sqrt();
    (tries > 0).then(|| Interval {
        low: (middle - half).clamp(0.0, rate),
        high: (middle + half).clamp(rate, 1.0),
    })
}

/// Which direction of a metric is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Better {
    /// Times: less is better.
    Lower,
    /// Rates: more is better.
    Higher,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn percentiles_interpolate_as_r_and_numpy_do() {
        let values = [15.0, 20.0, 35.0, 40.0, 50.0];
        assert_eq!(percentile(&values, 0.0), Some(15.0));
        assert_eq!(percentile(&values, 40.0), Some(29.0));
        assert_eq!(percentile(&values, 50.0), Some(35.0));
        assert_eq!(percentile(&values, 95.0), Some(48.0));
        assert_eq!(percentile(&values, 100.0), Some(50.0));
        assert_eq!(percentile(&[], 50.0), None);
    }

    #[test]
    fn the_median_ignores_one_wild_value() {
        let values = [1.0, 1.0, 2.0, 2.0, 4.0, 6.0, 900.0];
        assert_eq!(median(&values), Some(2.0));
        assert_eq!(mean(&[1.0, 2.0, 6.0]), Some(3.0));
        assert_eq!(mean(&[]), None);
    }

    #[test]
    fn ratios_are_formed_within_a_round() {
        let solo = [Some(10.0), Some(20.0), None, Some(30.0)];
        let measured = [Some(20.0), Some(40.0), Some(1.0), Some(0.0)];
        assert_eq!(ratios(&solo, &measured), [0.5, 0.5]);
    }

    #[test]
    fn pairing_removes_drift_that_hits_both() {
        // The machine slows down fourfold over the rounds. The effect is a factor of two in each.
        let solo: Vec<_> = (0..12).map(|r| Some(10.0 + 3.0 * f64::from(r))).collect();
        let measured: Vec<_> = solo.iter().map(|v| v.map(|v| v * 2.0)).collect();
        let interval = bootstrap(&ratios(&solo, &measured), median, 0.95, 1).unwrap();
        assert!(interval.half_width() < 1e-12);
        assert!((interval.low - 0.5).abs() < 1e-12);
    }

    #[test]
    fn a_rate_of_which_nothing_was_seen_has_an_upper_end() {
        // Newcombe 1998, "Two-sided confidence intervals for the single proportion", table I: 81 of
        // 263, 0 of 20.
        let near = |a: f64, b: f64| (a - b).abs() < 5e-5;
        let some = wilson(81, 263).unwrap();
        assert!(
            near(some.low, 0.2553) && near(some.high, 0.3662),
            "{some:?}"
        );
        let none = wilson(0, 20).unwrap();
        assert!(none.low == 0.0 && near(none.high, 0.1611), "{none:?}");
        assert_eq!(wilson(0, 0), None);
    }

    #[test]
    fn a_single_round_has_no_interval() {
        assert_eq!(bootstrap(&[1.0], median, 0.95, 1), None);
        assert_eq!(bootstrap(&[], median, 0.95, 1), None);
    }

    #[test]
    fn more_confidence_is_wider() {
        let rounds: Vec<f64> = (0..15).map(f64::from).collect();
        let narrow = bootstrap(&rounds, mean, 0.5, 3).unwrap();
        let wide = bootstrap(&rounds, mean, 0.99, 3).unwrap();
        assert!(wide.low < narrow.low && narrow.high < wide.high);
    }

    #[test]
    fn intervals_are_written_as_pairs_and_overlap_at_their_ends() {
        let a = Interval {
            low: 1.0,
            high: 2.0,
        };
        assert_eq!(serde_json::to_string(&a).unwrap(), "[1.0,2.0]");
        assert!(a.overlaps(&Interval::from([2.0, 3.0])));
        assert!(!a.overlaps(&Interval::from([2.1, 3.0])));
    }

    proptest! {
        #[test]
        fn percentiles_are_monotone_and_inside(
            values in proptest::collection::vec(-1e9f64..1e9, 1..60), p in 0.0f64..100.0, q in 0.0f64..100.0,
        ) {
            let values = sorted(&values);
            let (low, high) = (p.min(q), p.max(q));
            let (a, b) = (percentile(&values, low).unwrap(), percentile(&values, high).unwrap());
            prop_assert!(a <= b);
            prop_assert!(values[0] <= a && b <= values[values.len() - 1]);
        }

        #[test]
        fn the_interval_contains_the_statistic_of_symmetric_data(
            half in proptest::collection::vec(0.01f64..100.0, 3..12), seed in any::<u64>(),
        ) {
            let rounds: Vec<f64> = half.iter().flat_map(|v| [50.0 - v, 50.0 + v]).collect();
            let interval = bootstrap(&rounds, mean, 0.95, seed).unwrap();
            let statistic = mean(&rounds).unwrap();
            prop_assert!(interval.low <= statistic && statistic <= interval.high);
        }

        #[test]
        fn the_interval_of_a_rate_encloses_it_and_shrinks_with_tries(hits in 0u32..500, more in 0u32..500) {
            let tries = hits + more;
            prop_assume!(tries > 0);
            let (few, many) = (wilson(hits, tries).unwrap(), wilson(10 * hits, 10 * tries).unwrap());
            let rate = f64::from(hits) / f64::from(tries);
            prop_assert!(0.0 <= few.low && few.low <= rate && rate <= few.high && few.high <= 1.0);
            prop_assert!(many.half_width() < few.half_width());
        }

        #[test]
        fn the_interval_is_a_function_of_the_seed(
            rounds in proptest::collection::vec(0.0f64..100.0, 2..20), seed in any::<u64>(),
        ) {
            prop_assert_eq!(bootstrap(&rounds, median, 0.95, seed), bootstrap(&rounds, median, 0.95, seed));
        }
    }
}
