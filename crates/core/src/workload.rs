//! The generators' patterns as data: what a subject of kind `run` does. The programs are in `quell-workload`, the
//! simulated ones in `quell-sim`.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::{Bytes, Rate, UnitError};

/// A size, absolute or as a multiple of the last-level cache (`0.5 LLC`).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub enum Size {
    /// So many bytes.
    Bytes(Bytes),
    /// So many times the last-level cache.
    Llc(f64),
}

impl Size {
    /// In bytes on a machine whose last-level cache holds `llc`, rounded down to a page of 4 KiB, at least one page.
    #[must_use]
    #[expect(
        clippy::cast_sign_loss,
        clippy::cast_possible_truncation,
        reason = "factors are positive and small"
    )]
    pub fn resolve(self, llc: Bytes) -> Bytes {
        let bytes = match self {
            Self::Bytes(bytes) => bytes.0,
            Self::Llc(factor) => (llc.0 as f64 * factor) as u64,
        };
        Bytes((bytes & !4095).max(4096))
    }
}

impl FromStr for Size {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let wrong = || UnitError {
            text: text.to_owned(),
            wanted: "a size such as 3MiB or '0.5 LLC'",
        };
        match text.trim().strip_suffix("LLC") {
            Some(factor) => {
                let factor: f64 = factor.trim().parse().map_err(|_| wrong())?;
                if !(factor > 0.0 && factor <= 1024.0) {
                    return Err(wrong());
                }
                Ok(Self::Llc(factor))
            }
            None => text.parse().map(Self::Bytes).map_err(|_| wrong()),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => bytes.fmt(f),
            Self::Llc(factor) => write!(f, "{factor} LLC"),
        }
    }
}

impl TryFrom<String> for Size {
    type Error = UnitError;
    fn try_from(text: String) -> Result<Self, UnitError> {
        text.parse()
    }
}

impl From<Size> for String {
    fn from(size: Size) -> Self {
        size.to_string()
    }
}

/// The order in which a list is walked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// One random cycle through all lines.
    #[default]
    Random,
    /// In address order.
    Sequential,
}

/// The pages memory is taken in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Pages {
    /// Base pages; transparent huge pages are switched off for the buffer.
    #[default]
    #[serde(rename = "4KiB")]
    Base,
    /// Huge pages.
    #[serde(rename = "2MiB")]
    Huge,
}

/// What a stream does to each line.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Load.
    Read,
    /// Store (the line is fetched and written back).
    Write,
    /// Load from one half, store to the other.
    Copy,
    /// Store past the caches.
    NonTemporal,
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Copy, Self::NonTemporal];

    /// The name used in experiments and records.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Copy => "copy",
            Self::NonTemporal => "non-temporal",
        }
    }
}

/// A generator and its parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "kind", deny_unknown_fields)]
// The published schema has one workload only, that of experiments.
#[schemars(rename = "Workload")]
pub enum Workload<S = Size> {
    /// A dependent walk through a list with one node per line (`latency_ns`).
    Latency {
        /// The list's size.
        size: S,
        /// Its order.
        #[serde(default)]
        order: Order,
        /// Its pages.
        #[serde(default)]
        pages: Pages,
    },
    /// A stream (`bandwidth_mb_s`, program bytes).
    Bandwidth {
        /// What it does.
        operation: Operation,
        /// The buffer's size.
        size: S,
        /// Its pages.
        #[serde(default)]
        pages: Pages,
        /// A target rate in program bytes; absent: as fast as it can.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rate: Option<Rate>,
    },
}

impl Workload {
    /// With its size for a machine whose last-level cache holds `llc`: then it depends on the machine no more.
    #[must_use]
    pub fn resolve(&self, llc: Bytes) -> Workload<Bytes> {
        match *self {
            Self::Latency { size, order, pages } => Workload::Latency {
                size: size.resolve(llc),
                order,
                pages,
            },
            Self::Bandwidth {
                operation,
                size,
                pages,
                rate,
            } => Workload::Bandwidth {
                operation,
                size: size.resolve(llc),
                pages,
                rate,
            },
        }
    }
}

impl<S: Copy> Workload<S> {
    /// The generator's name, as in `quell bench NAME`.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Latency { .. } => "latency",
            Self::Bandwidth { .. } => "bandwidth",
        }
    }

    /// The metric it is judged by.
    #[must_use]
    pub const fn primary(&self) -> &'static str {
        match self {
            Self::Latency { .. } => "latency_ns",
            Self::Bandwidth { .. } => "bandwidth_mb_s",
        }
    }

    /// The buffer's size.
    #[must_use]
    pub const fn size(&self) -> S {
        match self {
            Self::Latency { size, .. } | Self::Bandwidth { size, .. } => *size,
        }
    }
}
