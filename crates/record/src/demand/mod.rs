//! What a program asks of the memory system over time: amounts per millisecond, and figures over
//! them ([`Figures`]). From these follow the bursts that return ([`burst()`]) and what a policy
//! could reserve for them ([`proposal()`]). A [`Profile`] is the file that keeps all of it. The
//! module is pure; reading the counters is the backend's task.
//!
//! Method: a counter's readings come at irregular times and are laid on a grid of bins. The growth
//! of a reading is spread evenly over the time since the one before. So nothing is lost or counted
//! twice, whatever the reader's delays ([`bins`]).

mod burst;
mod comb;
mod cycles;
mod fold;
mod gaps;
mod period;
mod phases;
mod profile;
mod proposal;
mod spectrum;
mod sweep;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use burst::{Burst, burst};
pub use phases::{Phase, phases};
pub use profile::{
    Measuring, PROFILE_SCHEMA, Pressed, Profile, Quantity, Sampler, Sensitivity, Series, Subject,
    UnitTimes, WorkingSet, assess,
};
pub use proposal::{Basis, Proposal, Sought, proposal};
pub use quell_control::work::Work;
pub use sweep::{Goal, Judged, Needed, Point, Sweep, Swept};

use quell_types::stats::{mean, percentile, sorted};
use quell_types::units::Nanos;

/// The length of a bin. Published figures of demand over time have the same.
pub const BIN: Nanos = Nanos::millis(1);

/// A bin in which a program drew more than this part of its peak counts as active.
const ACTIVE: f64 = 0.1;

/// What a program has drawn until a moment: counters, read together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drawn {
    /// Bytes read from memory on its behalf.
    pub read: u64,
    /// Bytes written to memory on its behalf.
    pub written: u64,
    /// What it has done meanwhile.
    pub work: Work,
}

/// A counter's growth on a grid of bins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Binned {
    /// How much it grew in each bin.
    pub per_bin: Vec<u64>,
    /// Bins without a reading. Such a bin has an even share of the growth between two readings.
    pub unread: u64,
}

/// Lays `readings` of a counter on whole bins, from the first reading on. Times and values must
/// ascend. The sum is exact at each reading: all bins together have what the counter grew by until
/// their end, rounded down.
#[must_use]
pub fn bins(readings: &[(Nanos, u64)], bin: Nanos) -> Binned {
    let (Some(&(begin, first)), Some(&(end, _))) = (readings.first(), readings.last()) else {
        return Binned::default();
    };
    let mut binned = Binned::default();
    let (mut at, mut before) = (0, 0);
    let mut edge = begin.plus(bin);
    while bin.0 > 0 && edge <= end {
        let from = at;
        while readings.get(at + 1).is_some_and(|(time, _)| *time <= edge) {
            at += 1;
        }
        binned.unread += u64::from(from == at);
        let Some(&(time, value)) = readings.get(at) else {
            break;
        };
        let beyond = readings.get(at + 1).map_or(0, |&(next, then)| {
            let (part, whole) = (edge.since(time).0, next.since(time).0.max(1));
            let grown = u128::from(then.saturating_sub(value)) * u128::from(part);
            u64::try_from(grown / u128::from(whole)).unwrap_or(u64::MAX)
        });
        let until = value.saturating_sub(first).saturating_add(beyond);
        binned.per_bin.push(until.saturating_sub(before));
        before = before.max(until);
        edge = edge.plus(bin);
    }
    binned
}

/// What the bins of a series come to, in the series' unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Figures {
    /// The mean over all bins.
    pub mean: f64,
    /// The largest of all bins.
    pub peak: f64,
    /// The bin that half of all bins do not exceed.
    pub p50: f64,
    /// The bin that 95 of 100 do not exceed.
    pub p95: f64,
    /// The bin that 99 of 100 do not exceed.
    pub p99: f64,
    /// The part of all bins, 0 to 1, with more than a tenth of the peak.
    pub active: f64,
}

impl Figures {
    /// The figures of bins, whose values may be in any order. `None` without a bin.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let ordered = sorted(values);
        let peak = *ordered.last()?;
        let active = values.iter().filter(|v| **v > ACTIVE * peak).count();
        Some(Self {
            mean: mean(values)?,
            peak,
            p50: percentile(&ordered, 50.0)?,
            p95: percentile(&ordered, 95.0)?,
            p99: percentile(&ordered, 99.0)?,
            active: active as f64 / values.len() as f64,
        })
    }
}

#[cfg(test)]
mod burst_tests;
#[cfg(test)]
mod tests;
