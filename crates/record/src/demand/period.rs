//! The period of a series: candidates, and which of them and of their parts it is.

use super::comb::{Candidate, candidates};
use super::cycles::{Cumulative, Returns, span};
use super::fold::{contrast, folded, slots};
use super::gaps::equal_distances;
use super::spectrum::Spectrum;

/// The shortest period that is found, in bins.
const SHORTEST: usize = 5;
/// How many whole periods the bins must span.
const PASSED: usize = 3;
/// A period counts from this confidence on.
const CONFIDENT: f64 = 0.999;
/// The same of a comb. The powers of a short series are not quite exponential.
const COMB_CONFIDENT: f64 = 0.999_999_99;
/// A period counts from this regularity on.
const REGULAR: f64 = 0.35;
/// Of a period and its multiples, the shortest that returns to this part of the others counts.
const NEARLY: f64 = 0.7;
/// Periods that are closer than this are one: it is the less likely one by chance.
const SAME: f64 = 1.15;
/// A period that passed less often is refined: the spectrum resolves it badly.
const FEW: f64 = 20.0;
/// Trials on either side of a period that is refined, and their distance as a part of the period,
/// times the number of periods.
const TRIALS: i32 = 30;
const TRIAL: f64 = 0.02;
/// Parts of a candidate that may be the period.
const PARTS: [usize; 6] = [1, 2, 3, 4, 5, 6];

/// A period that a series has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Period {
    /// In bins.
    pub(super) bins: f64,
    /// The part of the variation that comes back after it.
    pub(super) regularity: f64,
    /// The logarithm of the chance that noise has such a period.
    chance: f64,
}

impl Period {
    /// How sure it is that noise has no such period.
    pub(super) fn confidence(&self) -> f64 {
        1.0 - self.chance.exp()
    }
}

/// Finds the period of bins. `None` if they have none.
pub(super) fn period(amounts: &[f64], drawn: &Cumulative) -> Option<Period> {
    let (shortest, longest) = (SHORTEST as f64, amounts.len() as f64 / PASSED as f64);
    if longest <= shortest {
        return None;
    }
    let spectrum = Spectrum::of(&straight(amounts))?;
    let mut likely = candidates(&spectrum, shortest, longest);
    likely.retain(|c| confidence(c) >= COMB_CONFIDENT);
    likely.extend(equal_distances(amounts).filter(|c| confidence(c) >= CONFIDENT));
    let mut all: Vec<Period> = Vec::new();
    let mut tried: Vec<f64> = Vec::new();
    for candidate in likely {
        let whole = refined(drawn, candidate.period);
        for bins in PARTS.map(|parts| whole / parts as f64) {
            let known = tried.iter().any(|t| (t / bins).ln().abs() < 0.002);
            // The shortest period may be found a little short.
            if known || bins < 0.99 * shortest {
                continue;
            }
            tried.push(bins);
            let returns = drawn.returns(bins, span(bins));
            if let Some(returns) = returns.filter(regular) {
                all.push(Period {
                    bins,
                    regularity: returns.once,
                    chance: candidate.chance,
                });
            }
        }
    }
    fundamental(all, drawn)
}

fn confidence(candidate: &Candidate) -> f64 {
    1.0 - candidate.chance.exp()
}

fn regular(returns: &Returns) -> bool {
    returns.once >= REGULAR && returns.twice >= returns.once / 2.0
}

/// The shortest period that returns nearly as well as every longer one does, with the same
/// allowance for bursts that wander.
fn fundamental(mut all: Vec<Period>, drawn: &Cumulative) -> Option<Period> {
    all.sort_by(|a, b| a.bins.total_cmp(&b.bins));
    let holds = |(at, period): (usize, &Period)| {
        let mut longer = all
            .iter()
            .skip(at + 1)
            .filter(|p| p.bins > SAME * period.bins);
        longer.all(|longer| {
            let returns = drawn.returns(longer.bins, span(period.bins));
            returns.is_none_or(|r| period.regularity >= NEARLY * r.once)
        })
    };
    let first = all.iter().enumerate().find(|p| holds(*p))?.1.bins;
    let near = all
        .iter()
        .filter(|p| (first..=SAME * first).contains(&p.bins));
    near.copied().min_by(|a, b| {
        let by_chance = a.chance.total_cmp(&b.chance);
        by_chance.then(b.regularity.total_cmp(&a.regularity))
    })
}

/// The period near this one at which few bursts fall together best.
fn refined(drawn: &Cumulative, period: f64) -> f64 {
    let passed = drawn.bins() as f64 / period;
    if passed >= FEW {
        return period;
    }
    let slots = slots(period);
    let trial = |n: i32| {
        let period = period * (1.0 + TRIAL * f64::from(n) / passed);
        (
            period,
            contrast(&folded(drawn, period, &drawn.punctual(period), slots)),
        )
    };
    let trials = (-TRIALS..=TRIALS).map(trial);
    let best = trials.max_by(|a, b| a.1.total_cmp(&b.1));
    best.map_or(period, |(period, _)| period)
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
