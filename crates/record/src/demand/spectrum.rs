//! The power of a series by frequency, relative to the power around it.
//!
//! Of a process without a period, each value is exponentially distributed with mean 1, whatever
//! memory the process has: its spectrum is smooth, and smooth is what is divided by.

use std::f64::consts::{LN_2, TAU};

/// Values per resolved frequency. With fewer, a line between two of them would be lost.
pub(super) const FINENESS: usize = 4;

/// The surroundings of a frequency go from it ÷ this to it × this.
const AROUND: f64 = 1.4;

/// No noise has such a power, relative to its surroundings.
const STRONG: f64 = 20.0;

/// Relative power by frequency: value `n` is at `n` ÷ [`Spectrum::size`] turns per bin.
pub(super) struct Spectrum {
    pub(super) power: Vec<f64>,
    /// The length of the transform, in bins.
    pub(super) size: usize,
    /// Values per resolved frequency.
    pub(super) fineness: f64,
}

impl Spectrum {
    /// The spectrum of values whose mean is 0. `None` of fewer than two, or if they do not vary.
    pub(super) fn of(values: &[f64]) -> Option<Self> {
        let size = (values.len() * FINENESS).checked_next_power_of_two()?;
        let mut wave: Vec<Complex> = values.iter().map(|v| Complex(*v, 0.0)).collect();
        wave.resize(size, Complex(0.0, 0.0));
        transform(&mut wave);
        let half = wave.get(..size / 2)?;
        let raw: Vec<f64> = half.iter().map(|c| c.0 * c.0 + c.1 * c.1).collect();
        let fineness = size as f64 / values.len() as f64;
        Some(Self {
            power: relative(&raw, fineness),
            size,
            fineness,
        })
    }
}

#[derive(Clone, Copy)]
struct Complex(f64, f64);

/// The discrete Fourier transform in place (Cooley and Tukey). The length is a power of two.
fn transform(wave: &mut [Complex]) {
    let size = wave.len();
    let bits = size.trailing_zeros();
    if bits == 0 {
        return;
    }
    for at in 0..size {
        let other = at.reverse_bits() >> (usize::BITS - bits);
        if at < other {
            wave.swap(at, other);
        }
    }
    let turns: Vec<Complex> = (0..size / 2)
        .map(|n| {
            let (sin, cos) = (TAU * n as f64 / size as f64).sin_cos();
            Complex(cos, -sin)
        })
        .collect();
    let mut half = 1;
    while half < size {
        let stride = size / (2 * half);
        for block in wave.chunks_exact_mut(2 * half) {
            let (low, high) = block.split_at_mut(half);
            let turns = turns.iter().step_by(stride);
            for ((a, b), turn) in low.iter_mut().zip(high).zip(turns) {
                let turned = Complex(b.0 * turn.0 - b.1 * turn.1, b.0 * turn.1 + b.1 * turn.0);
                *b = Complex(a.0 - turned.0, a.1 - turned.1);
                *a = Complex(a.0 + turned.0, a.1 + turned.1);
            }
        }
        half *= 2;
    }
}

/// Each power relative to the median of its surroundings, scaled so that noise has the mean 1.
/// The median is taken at a few frequencies and is a power law between them.
#[expect(
    clippy::cast_sign_loss,
    clippy::cast_possible_truncation,
    reason = "a place in the spectrum: from zero on, below its length"
)]
fn relative(power: &[f64], fineness: f64) -> Vec<f64> {
    let least = 4.0 * fineness;
    let mut knots: Vec<(f64, f64)> = Vec::new();
    let mut at = fineness;
    while at < power.len() as f64 {
        let from = (at / AROUND).min(at - least).max(fineness / 2.0) as usize;
        let to = ((at * AROUND).max(at + least) as usize).min(power.len());
        let mut around: Vec<f64> = power.get(from..to).unwrap_or_default().to_vec();
        let middle = around.len() / 2;
        if around.is_empty() {
            break;
        }
        let (_, median, _) = around.select_nth_unstable_by(middle, f64::total_cmp);
        knots.push((at.ln(), (*median / LN_2).max(f64::MIN_POSITIVE).ln()));
        at *= 1.08;
    }
    let mut next = 0;
    let level = |n: usize| {
        let x = (n as f64).max(fineness).ln();
        while knots.get(next + 1).is_some_and(|k| k.0 < x) {
            next += 1;
        }
        match (knots.get(next), knots.get(next + 1)) {
            (Some(a), Some(b)) => a.1 + (b.1 - a.1) * (x - a.0) / (b.0 - a.0),
            (Some(a), None) => a.1,
            _ => 0.0,
        }
    };
    let levels: Vec<f64> = (0..power.len()).map(level).collect();
    let all = power.iter().zip(&levels);
    all.map(|(p, level)| held((p.max(f64::MIN_POSITIVE).ln() - level).min(60.0).exp()))
        .collect()
}

/// Beyond [`STRONG`], a power counts by its logarithm. Else one line would outweigh all others, and
/// a multiple of the period would be as good as the period.
fn held(power: f64) -> f64 {
    if power <= STRONG {
        power
    } else {
        STRONG * (1.0 + (power / STRONG).ln())
    }
}
