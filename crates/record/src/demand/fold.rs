//! What one period of a series looks like.

use super::cycles::Cumulative;

/// A period that draws more than this times the usual one is left out: a program's start.
const UNUSUAL: f64 = 3.0;
/// Following the bursts must make them stand out so much more.
const BETTER: f64 = 1.1;

/// A series folded at its period.
pub(super) struct Folded {
    /// The mean amount of each slot, per bin.
    pub(super) slots: Vec<f64>,
    /// The period, in bins.
    pub(super) period: f64,
    /// When the first period begins, in bins.
    pub(super) first: f64,
}

impl Folded {
    /// Folds at a period of a clock, or follows the bursts if that shows them better.
    pub(super) fn of(drawn: &Cumulative, period: f64) -> Self {
        let slots = slots(period);
        let fixed = folded(drawn, period, &drawn.punctual(period), slots);
        let (drift, late) = drift(&drawn.late(period));
        let following = folded(drawn, period + drift, &late, slots);
        if contrast(&following) > BETTER * contrast(&fixed) {
            Self {
                slots: following,
                period: period + drift,
                first: late.first().copied().unwrap_or_default(),
            }
        } else {
            Self {
                slots: fixed,
                period,
                first: 0.0,
            }
        }
    }
}

/// What lateness grows by per period, and what is left of it.
fn drift(late: &[f64]) -> (f64, Vec<f64>) {
    let n = late.len().max(2) as f64;
    let middle = (n - 1.0) / 2.0;
    let places = || (0..late.len()).map(|at| at as f64 - middle);
    let both: f64 = places().zip(late).map(|(at, l)| at * l).sum();
    let squares: f64 = places().map(|at| at * at).sum();
    let slope = both / squares.max(f64::MIN_POSITIVE);
    let left = late.iter().enumerate().map(|(at, l)| l - slope * at as f64);
    (slope, left.collect())
}

/// As many slots as whole bins fit.
#[expect(
    clippy::cast_sign_loss,
    clippy::cast_possible_truncation,
    reason = "a number of slots: a period, which is positive"
)]
pub(super) fn slots(period: f64) -> usize {
    (period as usize).max(1)
}

/// The mean of each slot over periods, of which each begins `late` bins after its turn.
pub(super) fn folded(drawn: &Cumulative, period: f64, late: &[f64], slots: usize) -> Vec<f64> {
    let width = period / slots as f64;
    let begins = late
        .iter()
        .enumerate()
        .map(|(n, late)| n as f64 * period + late);
    let last = drawn.bins() as f64 - period;
    let begins: Vec<f64> = begins.filter(|b| (0.0..=last).contains(b)).collect();
    let total = |begin: &f64| drawn.mean(*begin, begin + period);
    let mut totals: Vec<f64> = begins.iter().map(total).collect();
    totals.sort_by(f64::total_cmp);
    let most = UNUSUAL * totals.get(totals.len() / 2).copied().unwrap_or_default();
    let usual: Vec<f64> = begins.into_iter().filter(|b| total(b) <= most).collect();
    let slot = |n: usize| {
        let (from, to) = (n as f64 * width, (n + 1) as f64 * width);
        let of = usual
            .iter()
            .map(|begin| drawn.mean(begin + from, begin + to));
        of.sum::<f64>() / usual.len().max(1) as f64
    };
    (0..slots).map(slot).collect()
}

/// The variance of the slots.
pub(super) fn contrast(slots: &[f64]) -> f64 {
    let n = slots.len().max(1) as f64;
    let mean = slots.iter().sum::<f64>() / n;
    slots.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n
}

/// The slot in which the burst begins, and how many slots it has. The pause is the longest cyclic
/// stretch of slots below the middle between the lowest and the highest. All else is the burst, so
/// two bursts close together are one.
pub(super) fn around_pause(folded: &[f64]) -> Option<(usize, usize)> {
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
