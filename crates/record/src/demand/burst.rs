//! Whether demand comes in bursts that return after a period, and what one of them is.
//!
//! Method: the autocorrelation of the bins. A burst that falls on one side of a bin's edge or on
//! the other is the same one, so each bin is first summed with its two neighbours; what changes
//! slowly is taken away as a straight line and then as the mean of the surroundings. The period is
//! the first lag at which the autocorrelation comes back to (nearly) its best, made finer at
//! multiples of it. It counts if noise with the same memory would not reach it: the standard error
//! of an autocorrelation beyond a process's memory is that of Bartlett (1946, "On the Theoretical
//! Specification and Sampling Properties of Autocorrelated Time-Series"), the chance that one of
//! all lags exceeds it by so much at most lags × ½ exp(−z²/2); and it has to come back after two
//! periods as well. The bins folded at the period then are one burst and one pause.
//!
//! What it does not see: periods of fewer than [`SHORTEST`] bins or of which fewer than three
//! passed, and bursts whose times wander by more than their length.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The shortest period that is looked for, in bins.
pub const SHORTEST: usize = 5;
/// How many periods must have passed.
const PASSED: usize = 3;
/// Bins that are looked at: with more, a period that is off by little would smear what is folded.
const MOST: usize = 10_000;
/// A period counts from this confidence on.
const CONFIDENT: f64 = 0.999;
/// And from this regularity on: below, bursts are a minor part of what goes on.
const REGULAR: f64 = 0.2;
/// The first lag that comes back to this part of the best is the period, the best one may be a
/// multiple.
const NEARLY: f64 = 0.8;
/// What is drawn in a pause is at most this part of what is drawn in a burst.
const PAUSE: f64 = 0.75;
/// Lags around a multiple of the period at which its peak is looked for.
const AROUND: usize = 3;

/// Bursts that return.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Burst {
    /// From one to the next, in bins (milliseconds).
    pub period_ms: f64,
    /// From the beginning of the profile to the beginning of a burst, less whole periods.
    pub phase_ms: f64,
    /// How long one lasts.
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
    /// How many there are in a second.
    #[must_use]
    pub fn per_s(&self) -> f64 {
        1e3 / self.period_ms
    }
}

/// The bursts in bins of a millisecond, `amounts` in any unit per bin (the result's `amount` is in
/// the same). `None` where none return.
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

/// Each bin with its neighbours.
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

/// The values less the mean of what lies up to `reach` before and behind.
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

/// By lag from 0 to `longest`, each over the pairs there are; `None` of what does not vary.
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

/// The peak of the first stretch of lags, from `from` on, that comes nearly back to the best.
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
    // A peak at the end may be the slope of one beyond it.
    peak.filter(|p| correlation[*p] >= NEARLY * best && p + 1 < correlation.len())
}

/// The period from the peaks at twice, four times, … the lag, as far as there are such.
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

/// The mean bin of each slot of the period, in as many slots as it has whole bins.
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

/// Where the burst begins and how many slots it has: everything but the longest stretch of slots,
/// round and round, below the middle between the lowest and the highest. So two bursts close
/// together are one.
fn around_pause(folded: &[f64]) -> Option<(usize, usize)> {
    let (low, high) = folded
        .iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| {
            (low.min(*v), high.max(*v))
        });
    let slots = folded.len();
    let quiet = |at: usize| folded[at % slots] <= f64::midpoint(low, high);
    // Begin behind a loud slot, so that no pause goes over the end.
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
