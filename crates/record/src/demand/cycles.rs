//! A series cut into periods: how much of it comes back, and what one period looks like.

use std::f64::consts::TAU;

/// Samples per span that bursts may wander.
const PER_SPAN: f64 = 4.0;
/// The most samples per period.
const MOST: f64 = 200.0;
/// The part of a period over which the series is averaged before periods are compared. Bursts may
/// wander by half of that.
const WANDER: f64 = 0.2;
/// The same at least, in bins: a burst may fall on either side of an edge.
const LEAST: f64 = 2.0;
/// What draws more than this times the usual maximum of a period is cut off: a start, an outlier.
const CUT: f64 = 2.0;
/// Stretches of the series for which it is found out what was cut off.
const STRETCHES: f64 = 12.0;
/// Periods over which the phase is averaged, on each side.
const FOLLOWED: usize = 4;

/// The span that the bursts of a period may wander, in bins.
pub(super) fn span(period: f64) -> f64 {
    (WANDER * period).max(LEAST)
}

/// What was drawn until each moment, between bins too: the growth within a bin is even.
pub(super) struct Cumulative {
    until: Vec<f64>,
}

impl Cumulative {
    pub(super) fn of(amounts: &[f64]) -> Self {
        let mut until = vec![0.0];
        let mut sum = 0.0;
        for amount in amounts {
            sum += amount;
            until.push(sum);
        }
        Self { until }
    }

    /// How many bins there are.
    pub(super) fn bins(&self) -> usize {
        self.until.len() - 1
    }

    #[expect(
        clippy::cast_sign_loss,
        clippy::cast_possible_truncation,
        reason = "a place in the series: clamped to it"
    )]
    fn until(&self, at: f64) -> f64 {
        let at = at.clamp(0.0, self.bins() as f64);
        let whole = at as usize;
        let low = self.until.get(whole).copied().unwrap_or_default();
        let high = self.until.get(whole + 1).copied().unwrap_or(low);
        low + (high - low) * (at - whole as f64)
    }

    /// The mean per bin between two moments.
    pub(super) fn mean(&self, from: f64, to: f64) -> f64 {
        (self.until(to) - self.until(from)) / (to - from)
    }

    /// Means over whole periods, each over `span` bins. Outliers are cut off, and the mean over the
    /// period around each sample is taken away.
    fn sampled(&self, period: f64, span: f64) -> Samples {
        let per_period = (PER_SPAN * period / span).ceil().min(MOST);
        let step = period / per_period;
        let reach = span / 2.0;
        #[expect(
            clippy::cast_sign_loss,
            clippy::cast_possible_truncation,
            reason = "a number of samples: from zero on, and small"
        )]
        let (cycle, cycles) = (per_period as usize, (self.bins() as f64 / period) as usize);
        let count = cycle * cycles;
        let at = |n: usize| (n as f64 + 0.5) * step;
        let mut samples: Vec<f64> = (0..count)
            .map(|n| self.mean(at(n) - reach, at(n) + reach))
            .collect();
        let highest = |cycle: &[f64]| cycle.iter().copied().fold(0.0, f64::max);
        let mut tops: Vec<f64> = samples.chunks_exact(cycle).map(highest).collect();
        tops.sort_by(f64::total_cmp);
        let most = CUT * tops.get(tops.len() / 2).copied().unwrap_or_default();
        let raw = Self::of(&samples);
        for sample in &mut samples {
            *sample = sample.min(most);
        }
        let held = Self::of(&samples);
        let kept = kept(&held, &raw);
        let half = per_period / 2.0;
        let around = |n: usize| {
            let middle = (n as f64 + 0.5).clamp(half, (count as f64 - half).max(half));
            held.mean(middle - half, middle + half)
        };
        let values = samples.iter().enumerate().map(|(n, v)| v - around(n));
        Samples {
            values: values.collect(),
            cycle,
            kept,
        }
    }

    /// The part of the variation within a period that comes back after one period and after two.
    /// Bursts may wander by `span` bins.
    pub(super) fn returns(&self, period: f64, span: f64) -> Option<Returns> {
        let samples = self.sampled(period, span);
        let variance = samples.product(0)?;
        // What rounding leaves of a constant is no variation.
        let size = self.mean(0.0, self.bins() as f64).abs();
        if variance.sqrt() <= 1e-9 * size.max(1e-9) {
            return None;
        }
        Some(Returns {
            once: samples.kept * samples.product(1)? / variance,
            twice: samples.kept * samples.product(2)? / variance,
        })
    }

    /// No lateness, for every whole period.
    #[expect(
        clippy::cast_sign_loss,
        clippy::cast_possible_truncation,
        reason = "a number of periods: from zero on, and small"
    )]
    pub(super) fn punctual(&self, period: f64) -> Vec<f64> {
        vec![0.0; (self.bins() as f64 / period) as usize]
    }

    /// Where the bursts of each period are later than the first one's, in bins: the phase of the
    /// series at the period, averaged over some periods. It follows a clock that wanders.
    pub(super) fn late(&self, period: f64) -> Vec<f64> {
        let samples = self.sampled(period, span(period));
        let phasor = |cycle: &[f64]| {
            cycle
                .iter()
                .enumerate()
                .fold((0.0, 0.0), |(re, im), (n, v)| {
                    let (sin, cos) = (TAU * n as f64 / samples.cycle as f64).sin_cos();
                    (re + v * cos, im + v * sin)
                })
        };
        let phasors: Vec<(f64, f64)> = samples
            .values
            .chunks_exact(samples.cycle)
            .map(phasor)
            .collect();
        let mut late: Vec<f64> = Vec::new();
        for at in 0..phasors.len() {
            let from = at.saturating_sub(FOLLOWED);
            let around = phasors.get(from..(at + FOLLOWED + 1).min(phasors.len()));
            let around = around.unwrap_or_default().iter();
            let (re, im) = around.fold((0.0, 0.0), |sum, p| (sum.0 + p.0, sum.1 + p.1));
            let phase = im.atan2(re) / TAU * period;
            let before = late.last().copied().unwrap_or(phase);
            // The nearest moment with this phase.
            late.push(phase - ((phase - before) / period).round() * period);
        }
        let first = late.first().copied().unwrap_or_default();
        late.iter().map(|l| l - first).collect()
    }
}

/// How much of a series comes back after a period and after two periods: 1 is all of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Returns {
    pub(super) once: f64,
    pub(super) twice: f64,
}

/// A series that is sampled a whole number of times per period.
struct Samples {
    values: Vec<f64>,
    /// Samples per period.
    cycle: usize,
    /// What cutting outliers off has left of the usual stretch of the series, 0 to 1.
    kept: f64,
}

/// What `held` is of `raw`: the median over stretches. An outlier or a start is in few of them, and
/// bursts that are larger than what returns are in all.
fn kept(held: &Cumulative, raw: &Cumulative) -> f64 {
    let length = raw.bins() as f64 / STRETCHES;
    let mut parts: Vec<f64> = Vec::new();
    let mut at = 0.0;
    while at + 0.5 < raw.bins() as f64 {
        let whole = raw.mean(at, at + length);
        if whole > 0.0 {
            parts.push(held.mean(at, at + length) / whole);
        }
        at += length;
    }
    parts.sort_by(f64::total_cmp);
    parts.get(parts.len() / 2).copied().unwrap_or(1.0)
}

impl Samples {
    /// The mean product of samples that are so many periods apart.
    fn product(&self, periods: usize) -> Option<f64> {
        let later = self.values.get(periods * self.cycle..)?;
        let sum: f64 = self.values.iter().zip(later).map(|(a, b)| a * b).sum();
        (!later.is_empty()).then(|| sum / later.len() as f64)
    }
}
