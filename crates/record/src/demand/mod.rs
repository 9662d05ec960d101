//! What a program asks of the memory system over time: amounts per millisecond, what they come to
//! ([`Figures`]), whether they come in bursts that return ([`burst()`]), what a policy could
//! reserve for them ([`proposal()`]), and all of it as a file that is kept ([`Profile`]). Pure; who
//! reads the counters is the backend's matter.
//!
//! Method: a counter's readings come when they come; they are laid on a grid of bins, each
//! reading's growth spread evenly over the time since the one before, so that nothing is lost or
//! counted twice whatever the reader's delays ([`bins`]).

mod burst;
mod profile;
mod proposal;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use burst::{Burst, burst};
pub use profile::{
    Measuring, PROFILE_SCHEMA, Pressed, Profile, Quantity, Sampler, Sensitivity, Series, Subject,
    UnitTimes, WorkingSet, assess,
};
pub use proposal::{Basis, Proposal, Sought, proposal};

use quell_types::stats::{mean, percentile, sorted};
use quell_types::units::Nanos;

/// The length of a bin: what the published demand-over-time figures have.
pub const BIN: Nanos = Nanos::millis(1);

/// A bin in which a program drew more than this part of its peak counts as active.
const ACTIVE: f64 = 0.1;

/// What was drawn until a moment: two counters of one program, read together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drawn {
    /// Bytes read from memory for it.
    pub read: u64,
    /// Bytes written to memory for it.
    pub written: u64,
}

/// A counter's growth on a grid of bins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Binned {
    /// How much it grew in each bin.
    pub per_bin: Vec<u64>,
    /// Bins in which it was not read: their share of what lies between two readings is even.
    pub unread: u64,
}

/// `readings` of a counter, times and values ascending, in whole bins from the first reading on.
/// What a bin is given is exact at every reading; the sum of all bins is what the counter grew by
/// until their end, rounded down.
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
    /// The mean.
    pub mean: f64,
    /// The largest bin.
    pub peak: f64,
    /// The median bin.
    pub p50: f64,
    /// The bin that 95 of 100 do not exceed.
    pub p95: f64,
    /// The bin that 99 of 100 do not exceed.
    pub p99: f64,
    /// The part of all bins, 0 to 1, with more than a tenth of the peak.
    pub active: f64,
}

impl Figures {
    /// Of the bins' values in any order; `None` without any.
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
mod tests;
