//! What an experiment's result must fulfil for `compare --check`.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use quell_types::mechanism::Level;

/// An expectation: all conditions given must hold of the figures over all rounds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// The configuration, by its expanded name.
    pub configuration: String,
    /// The subject, or one of its copies.
    pub subject: String,
    /// The metric. Default: the subject's primary one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
    /// Normalized performance at least this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub normalized_at_least: Option<f64>,
    /// Normalized performance at most this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub normalized_at_most: Option<f64>,
    /// Normalized performance of the 50th percentile at least this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub normalized_p50_at_least: Option<f64>,
    /// Normalized performance of the 99th percentile at least this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub normalized_p99_at_least: Option<f64>,
    /// The value at least this, in the metric's unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_at_least: Option<f64>,
    /// The value at most this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_at_most: Option<f64>,
    /// The 99th percentile at most this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_at_most: Option<f64>,
    /// The largest window at most this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_at_most: Option<f64>,
    /// The configuration's guarantee level at least this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guarantee_at_least: Option<Level>,
}

/// A figure of a metric for which an expectation can be stated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// The metric's value itself.
    Value,
    /// The metric's 99th percentile.
    P99,
    /// The metric's largest window.
    Max,
    /// Normalized performance of the value.
    Normalized,
    /// Normalized performance of the 50th percentile.
    NormalizedP50,
    /// Normalized performance of the 99th percentile.
    NormalizedP99,
}

impl Figure {
    /// The name used in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Value => "value",
            Self::P99 => "p99",
            Self::Max => "max",
            Self::Normalized => "normalized",
            Self::NormalizedP50 => "normalized_p50",
            Self::NormalizedP99 => "normalized_p99",
        }
    }
}

/// On which side of a number a figure must lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// At or above it.
    AtLeast(f64),
    /// At or below it.
    AtMost(f64),
}

impl Bound {
    /// The number that bounds the figure.
    #[must_use]
    pub const fn number(self) -> f64 {
        match self {
            Self::AtLeast(number) | Self::AtMost(number) => number,
        }
    }
}

/// One condition of an expectation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Condition {
    /// The figure that must meet it.
    pub figure: Figure,
    /// What the figure must be.
    pub bound: Bound,
}

impl Condition {
    /// Whether the figure `found` meets the condition.
    #[must_use]
    pub fn met_by(&self, found: f64) -> bool {
        match self.bound {
            Bound::AtLeast(least) => found >= least,
            Bound::AtMost(most) => found <= most,
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.figure.name();
        match self.bound {
            Bound::AtLeast(least) => write!(f, "{name}_at_least = {least}"),
            Bound::AtMost(most) => write!(f, "{name}_at_most = {most}"),
        }
    }
}

impl Expect {
    /// The conditions on figures, in the order of the schema. `guarantee_at_least` is not among
    /// them, because it is not a figure.
    #[must_use]
    pub fn conditions(&self) -> Vec<Condition> {
        use Figure::{Max, Normalized, NormalizedP50, NormalizedP99, P99, Value};
        let least = |figure, bound: Option<f64>| {
            bound.map(|b| Condition {
                figure,
                bound: Bound::AtLeast(b),
            })
        };
        let most = |figure, bound: Option<f64>| {
            bound.map(|b| Condition {
                figure,
                bound: Bound::AtMost(b),
            })
        };
        [
            least(Normalized, self.normalized_at_least),
            most(Normalized, self.normalized_at_most),
            least(NormalizedP50, self.normalized_p50_at_least),
            least(NormalizedP99, self.normalized_p99_at_least),
            least(Value, self.value_at_least),
            most(Value, self.value_at_most),
            most(P99, self.p99_at_most),
            most(Max, self.max_at_most),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}
