//! How an experiment is measured.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use quell_types::units::Nanos;

/// How an experiment is measured: a round runs every cell once, in an order shuffled from the seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Measure {
    /// Number of rounds. Each runs every cell once.
    pub rounds: u32,
    /// Time under load before measuring begins.
    pub warmup: Nanos,
    /// The measured span. Default 1s, unless `units` or `until` is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<Nanos>,
    /// Measure so many units of work instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub units: Option<u64>,
    /// Measure until this happens instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Until>,
    /// How long a command that the measurement waits for may run. Where one has not ended by then
    /// its cell has failed.
    pub longest: Nanos,
    /// Confidence of the paired bootstrap intervals over rounds, between 0 and 1.
    pub confidence: f64,
    /// The configuration that `normalized` divides by. Default: the first that is `alone`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<String>,
    /// Two subjects: protection of the first against throughput kept by the second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frontier: Option<(String, String)>,
    /// The runner's own probe around each cell, independent of the subjects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
    /// What is different on a simulated machine, whose time is dear and which nothing disturbs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simulated: Option<Shorter>,
}

/// What is measured for less time on a simulated machine. A key that is absent is as on a real one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Shorter {
    /// Number of rounds. Each runs every cell once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rounds: Option<u32>,
    /// Time under load before measuring begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup: Option<Nanos>,
    /// Length of the measured span.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<Nanos>,
    /// From one release of a `periodic` task to the next, for all of them. A task sleeps between
    /// its jobs, so a shorter period leaves out what its neighbours do then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<Nanos>,
}

impl Default for Measure {
    fn default() -> Self {
        Self {
            rounds: 15,
            warmup: Nanos::millis(200),
            duration: None,
            units: None,
            until: None,
            longest: Nanos::secs(600),
            confidence: 0.95,
            baseline: None,
            frontier: None,
            canary: None,
            simulated: None,
        }
    }
}

/// What ends a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// Measured for this much time.
    Duration(Nanos),
    /// Measured until this many units of work have ended.
    Units(u64),
    /// Measured until an event.
    Until(Until),
}

impl Measure {
    /// The parameters for a simulated machine: `simulated` replaces what it names.
    #[must_use]
    pub fn simulated(&self) -> Self {
        let shorter = self.simulated.clone().unwrap_or_default();
        Self {
            rounds: shorter.rounds.unwrap_or(self.rounds),
            warmup: shorter.warmup.unwrap_or(self.warmup),
            duration: shorter.duration.or(self.duration),
            ..self.clone()
        }
    }

    /// What ends a cell; one second by default.
    #[must_use]
    pub fn span(&self) -> Span {
        match (self.units, self.until) {
            (Some(units), _) => Span::Units(units),
            (None, Some(until)) => Span::Until(until),
            (None, None) => Span::Duration(self.duration.unwrap_or(Nanos::secs(1))),
        }
    }
}

/// An event that ends a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Until {
    /// The critical subjects have ended.
    Exit,
    /// Every subject has ended once; early ones are restarted.
    AllOnce,
}

/// A probe of the runner's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Canary {
    /// Whether the subjects' CPUs share a cache at this moment.
    SharedCache,
}
