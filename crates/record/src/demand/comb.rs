//! Candidates for a period: frequencies whose multiples stand out of a spectrum together.
//!
//! A short burst that returns has power at many multiples of its frequency, and a long one at few.
//! So the relative powers of the first m multiples are summed, for several m (as the search for
//! pulsars does). The sum for a multiple of the period has the same lines and more places without
//! one, the sum for a part of the period has fewer lines: both are less unlikely by chance.
//!
//! Bursts that wander blur the lines. So the sums are also taken over stretches of the spectrum.

use super::spectrum::Spectrum;

/// Numbers of multiples that are summed.
const MULTIPLES: [usize; 9] = [1, 2, 3, 4, 6, 8, 12, 16, 24];
/// Widths of lines in resolved frequencies, each with the most multiples that are summed. The
/// multiples of a line that is wide are wider.
const WIDTHS: [(usize, usize); 4] = [(1, 24), (3, 6), (9, 3), (27, 2)];
/// The widest line relative to its frequency.
const WIDEST: f64 = 0.12;
/// How many candidates are given.
const GIVEN: usize = 6;

/// A period that may be in a series.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    /// In bins.
    pub(super) period: f64,
    /// The natural logarithm of the chance that noise has such a line anywhere.
    pub(super) chance: f64,
}

/// The most unlikely combs, each with another period, of periods from `shortest` to `longest` bins.
pub(super) fn candidates(spectrum: &Spectrum, shortest: f64, longest: f64) -> Vec<Candidate> {
    let size = spectrum.size as f64;
    let (lowest, highest) = (size / longest, size / shortest);
    // Every resolved frequency below the highest, for every number of multiples.
    let tried = (highest * MULTIPLES.len() as f64 * WIDTHS.len() as f64).ln();
    let mut best: Vec<Candidate> = Vec::new();
    for (width, most) in WIDTHS {
        let lines = widened(&spectrum.power, width, spectrum.fineness);
        for multiples in MULTIPLES.into_iter().filter(|m| *m <= most) {
            let shape = (multiples * width) as f64;
            let all = sums(&lines, multiples, lowest, highest);
            let blur = width as f64 * spectrum.fineness;
            for (at, sum) in peaks(&all) {
                let turns = at as f64 / multiples as f64;
                let fits = (lowest..=highest * 1.01).contains(&turns);
                if !fits || (width > 1 && blur > WIDEST * turns) {
                    continue;
                }
                let chance = tail(sum, shape) + tried;
                if chance < 0.0 {
                    let offset = summit(&all, at);
                    best.push(Candidate {
                        period: size * multiples as f64 / (at as f64 + offset),
                        chance,
                    });
                }
            }
        }
    }
    best.sort_by(|a, b| a.chance.total_cmp(&b.chance));
    let mut given: Vec<Candidate> = Vec::new();
    for candidate in best {
        let known = |c: &Candidate| (c.period / candidate.period).ln().abs() < 0.04;
        if !given.iter().any(known) {
            given.push(candidate);
        }
        if given.len() == GIVEN {
            break;
        }
    }
    given
}

/// The sum of the powers over `width` resolved frequencies around each value.
fn widened(power: &[f64], width: usize, fineness: f64) -> Vec<f64> {
    if width == 1 {
        return power.to_vec();
    }
    #[expect(
        clippy::cast_sign_loss,
        clippy::cast_possible_truncation,
        reason = "a few resolved frequencies"
    )]
    let values = (width as f64 * fineness).round() as usize;
    let mut until = Vec::with_capacity(power.len() + 1);
    let mut sum = 0.0;
    until.push(sum);
    for value in power {
        sum += value;
        until.push(sum);
    }
    let at = |n: usize| until.get(n).copied().unwrap_or(sum);
    let around = |n: usize| {
        let from = n.saturating_sub(values / 2);
        (at(from + values) - at(from)) / fineness
    };
    (0..power.len()).map(around).collect()
}

/// For the place `n` of the last multiple: the sum over it and the multiples below it.
fn sums(lines: &[f64], multiples: usize, lowest: f64, highest: f64) -> Vec<f64> {
    let last = (highest * multiples as f64).min(lines.len() as f64 - 1.0);
    let first = lowest * multiples as f64;
    let mut sums = Vec::new();
    let mut n = 0;
    while n as f64 <= last {
        let place = |k: usize| (2 * n * k + multiples) / (2 * multiples);
        let lines = (1..=multiples).filter_map(|k| lines.get(place(k)));
        sums.push(if (n as f64) < first - 1.0 {
            0.0
        } else {
            lines.sum()
        });
        n += 1;
    }
    sums
}

/// The places that are higher than their neighbours, with their heights.
fn peaks(values: &[f64]) -> impl Iterator<Item = (usize, f64)> {
    let middle = values.windows(3).enumerate();
    middle.filter_map(|(n, w)| (w[1] > w[0] && w[1] >= w[2]).then_some((n + 1, w[1])))
}

/// Where a parabola through a peak and its neighbours is highest, from the peak on.
fn summit(values: &[f64], at: usize) -> f64 {
    let [Some(a), Some(b), Some(c)] = [at.wrapping_sub(1), at, at + 1].map(|n| values.get(n))
    else {
        return 0.0;
    };
    let bend = a - 2.0 * b + c;
    if bend < 0.0 {
        (a - c) / (2.0 * bend)
    } else {
        0.0
    }
}

/// The logarithm of the chance that the sum of `shape` exponential values with mean 1 exceeds
/// `sum`, by Chernoff's bound.
fn tail(sum: f64, shape: f64) -> f64 {
    if sum <= shape {
        return 0.0;
    }
    shape - sum + shape * (sum / shape).ln()
}
