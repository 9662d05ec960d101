//! Whether demand comes in bursts that return after a period, and what one of them is.
//!
//! Method:
//!
//! - Candidates are frequencies whose multiples stand out of the spectrum together (`comb`), and
//!   few bursts at equal distances (`gaps`). Each has a chance that noise looks like it, whatever
//!   the noise's memory.
//! - Of a candidate, its parts and its multiples, the period is the shortest that comes back nearly
//!   as well as the others (`period`). A start, outliers and pauses count little (`cycles`).
//! - The bins folded at the period are then one burst and one pause (`fold`).
//!
//! It does not see periods of fewer than 5 bins, or of which fewer than three passed. Nor
//! does it see bursts that wander by more than a tenth of their period to either side, or that
//! last longer than [`LONGEST`].

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::cycles::Cumulative;
use super::fold::{Folded, around_pause};
use super::period::period;

/// The most bins that are used. With more, a period that is slightly off would smear the folded
/// burst.
const MOST: usize = 10_000;
/// What is drawn in a pause is at most this part of what is drawn in a burst, per slot.
const PAUSE: f64 = 0.75;
/// A burst is at most this part of its period. A busy program that is stopped for a moment now and
/// then (preempted, throttled, a virtual machine without its CPU) looks like longer ones.
const LONGEST: f64 = 0.9;

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
    let drawn = Cumulative::of(amounts);
    let found = period(amounts, &drawn)?;
    let folded = Folded::of(&drawn, found.bins);
    let (first, slots) = around_pause(&folded.slots)?;
    let all = folded.slots.len();
    let width = folded.period / all as f64;
    let whole: f64 = folded.slots.iter().sum();
    let in_burst: f64 = folded.slots.iter().cycle().skip(first).take(slots).sum();
    let pause = (whole - in_burst) / (all - slots).max(1) as f64;
    if pause > PAUSE * in_burst / slots as f64 || slots as f64 > LONGEST * all as f64 {
        return None;
    }
    Some(Burst {
        period_ms: folded.period,
        phase_ms: (first as f64 * width + folded.first).rem_euclid(folded.period),
        length_ms: slots as f64 * width,
        amount: in_burst * width,
        share: in_burst / whole,
        regularity: found.regularity.min(1.0),
        confidence: found.confidence(),
    })
}
