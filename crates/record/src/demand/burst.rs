//! Whether demand comes in bursts that return after a period, and what one of them is.
//!
//! Method: the autocorrelation of the bins.
//!
//! - A burst may fall on either side of a bin's edge. So each bin is first summed with its two
//!   neighbours.
//! - What changes slowly is removed: first a straight line, then the mean of the surroundings.
//! - The period is the first lag at which the autocorrelation returns to (nearly) its best. It is
//!   refined at multiples of that lag.
//! - A period counts if noise with the same memory would not reach it. The standard error of an
//!   autocorrelation beyond a process's memory is that of Bartlett (1946, "On the Theoretical
//!   Specification and Sampling Properties of Autocorrelated Time-Series"). The chance that one of
//!   all lags exceeds it by z standard errors is at most lags × ½ exp(−z²/2).
//! - The autocorrelation also has to return after two periods.
//! - The bins folded at the period are then one burst and one pause.
//!
//! It does not see periods of fewer than [`SHORTEST`] bins, or of which fewer than three passed.
//! Nor does it see bursts whose times vary by more than their length.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The shortest period that is found, in bins.
pub const SHORTEST: usize = 5;
/// How many whole periods the bins must span.
const PASSED: usize = 3;
/// The most bins that are used. With more, a period that is slightly off would smear the folded
/// burst.
const MOST: usize = 10_000;
/// A period counts from this confidence on.
const CONFIDENT: f64 = 0.999;
/// A period counts from this regularity on. Below it, bursts are a minor part of the demand.
const REGULAR: f64 = 0.2;
/// The period is the first lag that returns to this part of the best one. The best may be a
/// multiple of it.
const NEARLY: f64 = 0.8;
/// What is drawn in a pause is at most this part of what is drawn in a burst, per slot.
const PAUSE: f64 = 0.75;
/// Lags on either side of a multiple of the period in which its peak is searched.
const AROUND: usize = 3;

/// Bursts of demand that return after a fixed period.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Burst {
    /// From one to the next, in bins (milliseconds).
    pub period_ms: f64,
    /// From the beginning of the profile to the beginning of a burst, less whole periods.
    pub phase_ms: f64,
    /// How long one burst lasts, in milliseconds.
    pub length_ms: f64,
    /// What one draws: MB, or milliseconds of CPU time.
    pub amount: f64,
    /// The part of everything drawn that falls into bursts, 0 to 1.
    pub share: f64,
    /// The part of the variation that comes back after a period: 1 is a clock, 0 is noise.
    pub regularity: f64,
    /// How sure it is that noise would not have looked like this, 0 to 1; at least 0.999.
    pub confidence: f64,
}

impl Burst {
    /// Number of bursts per second.
    #[must_use]
    pub fn per_s(&self) -> f64 {
        1e3 / self.period_ms
    }
}

/// Finds bursts in bins of a millisecond. `amounts` is in any unit per bin; the result's `amount`
/// is in that unit. `None` where no burst returns.
#[must_use]
pub fn burst(amounts: &[f64]) -> Option<Burst> {
    let amounts = amounts.get(..amounts.len().min(MOST))?;
    let smooth = smoothed(amounts);
    let longest = smooth.len() / PASSED;
    if longest <= SHORTEST {
        return None;
    }
    let correlation = autocorrelation(&level(&straight(&smooth), longest), 2 * longest)?;
    let memory = correlation.iter().position(|r| *r <= 0.0)?;
    let lag = first_return(correlation.get(..=longest)?, memory.max(SHORTEST))?;
    let regularity = *correlation.get(lag)?;
    let again = correlation.get(2 * lag - AROUND.min(lag)..(2 * lag + AROUND).min(2 * longest))?;
    let within = correlation.get(1..memory).unwrap_or_default();
    let spread = 1.0 + 2.0 * within.iter().map(|r| r * r).sum::<f64>();
    let error = (spread / smooth.len() as f64).sqrt();
    let confidence = 1.0 - 0.5 * longest as f64 * (-(regularity / error).powi(2) / 2.0).exp();
    let returns = again.iter().any(|r| *r >= regularity / 2.0);
    if confidence < CONFIDENT || regularity < REGULAR || !returns {
        return None;
    }
    let period = finer(&correlation, lag, regularity);
    let folded = fold(amounts, period);
    let (first, slots) = around_pause(&folded)?;
    let width = period / folded.len() as f64;
    let whole: f64 = folded.iter().sum();
    let in_burst: f64 = folded.iter().cycle().skip(first).take(slots).sum();
    let pause = (whole - in_burst) / (folded.len() - slots).max(1) as f64;
    if pause > PAUSE * in_burst / slots as f64 {
        return None;
    }
    Some(Burst {
        period_ms: period,
        phase_ms: first as f64 * width,
        length_ms: slots as f64 * width,
        amount: in_burst * width,
        share: in_burst / whole,
        regularity,
        confidence,
    })
}

/// Sums each bin with its two neighbours.
fn smoothed(values: &[f64]) -> Vec<f64> {
    values.windows(3).map(|w| w.iter().sum()).collect()
}

/// The values less the straight line through them (least squares).
fn straight(values: &[f64]) -> Vec<f64> {
    let middle = (values.len() as f64 - 1.0) / 2.0;
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    let places = || (0..values.len()).map(|at| at as f64 - middle);
    let both: f64 = places().zip(values).map(|(at, v)| at * v).sum();
    let slope = both
        / places()
            .map(|at| at * at)
            .sum::<f64>()
            .max(f64::MIN_POSITIVE);
    let line = places().map(|at| mean + slope * at);
    values.iter().zip(line).map(|(v, line)| v - line).collect()
}

/// The values less the mean of up to `reach` values before and after each.
fn level(values: &[f64], reach: usize) -> Vec<f64> {
    let mut sums = vec![0.0];
    let mut sum = 0.0;
    for value in values {
        sum += value;
        sums.push(sum);
    }
    let until = |n: usize| sums.get(n).copied().unwrap_or(sum);
    let surroundings = |at: usize| {
        let (from, to) = (at.saturating_sub(reach), (at + reach + 1).min(values.len()));
        (until(to) - until(from)) / (to - from) as f64
    };
    let levelled = values.iter().enumerate();
    levelled.map(|(at, v)| v - surroundings(at)).collect()
}

/// The autocorrelation by lag from 0 to `longest`, each over the pairs there are. `None` if nothing
/// varies.
fn autocorrelation(values: &[f64], longest: usize) -> Option<Vec<f64>> {
    let at = |lag: usize| {
        let later = values.get(lag..).unwrap_or_default();
        let sum: f64 = values.iter().zip(later).map(|(a, b)| a * b).sum();
        sum / later.len().max(1) as f64
    };
    let variance = at(0);
    // What rounding leaves of a constant is no variation.
    let size = values.iter().fold(0.0f64, |most, v| most.max(v.abs()));
    if !(variance > 0.0 && variance.is_finite() && size > 1e-9) {
        return None;
    }
    Some((0..=longest).map(|lag| at(lag) / variance).collect())
}

/// The peak of the first stretch of lags, from `from` on, that nearly returns to the best.
fn first_return(correlation: &[f64], from: usize) -> Option<usize> {
    let after = correlation.get(from..)?;
    let best = after.iter().copied().fold(0.0, f64::max);
    let mut peak: Option<usize> = None;
    for (lag, r) in correlation.iter().enumerate().skip(from) {
        if *r >= best / 2.0 && best > 0.0 {
            peak = peak.filter(|p| correlation[*p] >= *r).or(Some(lag));
        } else if peak.is_some_and(|p| correlation[p] >= NEARLY * best) {
            return peak;
        } else {
            peak = None;
        }
    }
    // A peak at the end may be part of a slope that goes on beyond it.
    peak.filter(|p| correlation[*p] >= NEARLY * best && p + 1 < correlation.len())
}

/// Refines the period by the peaks at twice, four times, … the lag, as long as there are any.
fn finer(correlation: &[f64], lag: usize, regularity: f64) -> f64 {
    let mut period = lag as f64;
    let mut times = 2usize;
    loop {
        #[expect(
            clippy::cast_sign_loss,
            clippy::cast_possible_truncation,
            reason = "a lag: positive, and below a few thousand"
        )]
        let centre = (period * times as f64).round() as usize;
        let from = centre.saturating_sub(AROUND);
        let Some(near) = correlation.get(from..=centre + AROUND) else {
            return period;
        };
        let peak = near.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        match peak {
            Some((at, r)) if *r >= regularity / 2.0 => period = (from + at) as f64 / times as f64,
            _ => return period,
        }
        times *= 2;
    }
}

/// Folds the bins at the period: the mean of each slot, with as many slots as whole bins fit.
#[expect(
    clippy::cast_sign_loss,
    clippy::cast_possible_truncation,
    reason = "a slot: from zero on, below the period"
)]
fn fold(amounts: &[f64], period: f64) -> Vec<f64> {
    let slots = (period as usize).max(1);
    let (mut sums, mut counts) = (vec![0.0; slots], vec![0.0f64; slots]);
    for (bin, amount) in amounts.iter().enumerate() {
        // The middle of the bin: at its edge, rounding would decide.
        let into = (bin as f64 + 0.5) % period / period * slots as f64;
        let slot = (into as usize).min(slots - 1);
        sums[slot] += amount;
        counts[slot] += 1.0;
    }
    let means = sums.iter().zip(&counts);
    means.map(|(sum, n)| sum / n.max(1.0)).collect()
}

/// The slot in which the burst begins, and how many slots it has. The pause is the longest cyclic
/// stretch of slots below the middle between the lowest and the highest. All else is the burst, so
/// two bursts close together are one.
fn around_pause(folded: &[f64]) -> Option<(usize, usize)> {
    let (low, high) = folded
        .iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| {
            (low.min(*v), high.max(*v))
        });
    let slots = folded.len();
    let quiet = |at: usize| folded[at % slots] <= f64::midpoint(low, high);
    // Starts after a loud slot, so that no pause crosses the end.
    let loud = (0..slots).find(|at| !quiet(*at))?;
    let (mut longest, mut run) = ((0, 0), 0);
    for at in loud + 1..=loud + slots {
        run = if quiet(at) { run + 1 } else { 0 };
        if run > longest.1 {
            longest = (at + 1, run);
        }
    }
    let (end, length) = longest;
    (length > 0).then_some((end % slots, slots - length))
}
