//! The generators' patterns as data: what a subject of kind `run` does. The programs are in `quell-workload`, the
//! simulated ones in `quell-sim`.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::result::Better;
use crate::units::{Bytes, LINE_BYTES, Rate, UnitError, text_unit};

mod banks;
mod spec;
mod words;

pub use banks::Banks;
pub use spec::SpecError;
pub use words::{Access, Operation, Order, Pages, Store, Touch, Word};

/// Nanoseconds per access.
pub const LATENCY_NS: &str = "latency_ns";
/// 10^6 program bytes per second.
pub const BANDWIDTH_MB_S: &str = "bandwidth_mb_s";

/// The size of a list where none is given: it fits into the last-level cache, and a neighbour can take that away.
pub const LIST_SIZE: Size = Size::Llc(0.5);
/// The size of a stream's buffer, or of lists side by side, where none is given: far beyond the caches.
pub const STREAM_SIZE: Size = Size::Llc(4.0);
/// The size of a churned buffer where none is given: all of the last-level cache.
pub const CHURN_SIZE: Size = Size::Llc(1.0);
/// More lists side by side than any core follows at once.
pub const MOST_LISTS: u32 = 64;
/// A word, as generators load and store it.
pub const WORD_BYTES: u64 = 8;

/// The data caches a CPU sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caches {
    /// The first level.
    pub l1: Bytes,
    /// The second level.
    pub l2: Bytes,
    /// The last level.
    pub llc: Bytes,
}

/// A size, absolute or as a multiple of a cache of the CPU it is used on (`0.5 LLC`, `2 L1`).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(into = "String")]
#[schemars(with = "String")]
pub enum Size {
    /// So many bytes.
    Bytes(Bytes),
    /// So many times the first-level data cache.
    L1(f64),
    /// So many times the second-level cache.
    L2(f64),
    /// So many times the last-level cache.
    Llc(f64),
}

/// A cache's name, and the size of so many of it.
type OfCache = (&'static str, fn(f64) -> Size);

text_unit!(Size, "a size such as 3MiB, '0.5 LLC', '1 L2' or '1 L1'");

impl Size {
    const LEVELS: [OfCache; 3] = [("LLC", Self::Llc), ("L1", Self::L1), ("L2", Self::L2)];

    /// In bytes on a CPU with these caches, rounded down to a page of 4 KiB, at least one page.
    #[must_use]
    #[expect(
        clippy::cast_sign_loss,
        clippy::cast_possible_truncation,
        reason = "factors are positive and small"
    )]
    pub fn resolve(self, caches: &Caches) -> Bytes {
        let times = |cache: Bytes, factor: f64| (cache.0 as f64 * factor) as u64;
        let bytes = match self {
            Self::Bytes(bytes) => bytes.0,
            Self::L1(factor) => times(caches.l1, factor),
            Self::L2(factor) => times(caches.l2, factor),
            Self::Llc(factor) => times(caches.llc, factor),
        };
        Bytes((bytes & !4095).max(4096))
    }
}

impl FromStr for Size {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let wrong = || UnitError {
            text: text.to_owned(),
            wanted: Self::WANTED,
        };
        for (level, of) in Self::LEVELS {
            let Some(factor) = text.trim().strip_suffix(level) else {
                continue;
            };
            let factor: f64 = factor.trim().parse().map_err(|_| wrong())?;
            return if factor > 0.0 && factor <= 1024.0 {
                Ok(of(factor))
            } else {
                Err(wrong())
            };
        }
        text.parse().map(Self::Bytes).map_err(|_| wrong())
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => bytes.fmt(f),
            Self::L1(factor) => write!(f, "{factor} L1"),
            Self::L2(factor) => write!(f, "{factor} L2"),
            Self::Llc(factor) => write!(f, "{factor} LLC"),
        }
    }
}

/// A generator and its parameters. `docs/generators.md` says what each does and measures.
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
        /// What is done to each node.
        #[serde(default)]
        operation: Access,
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
    /// Independent random lists, walked side by side (`latency_ns` per access, and `bandwidth_mb_s`).
    ParallelLists {
        /// How many lists: 1 to 64.
        lists: u32,
        /// The size of all lists together.
        size: S,
        /// Their pages.
        #[serde(default)]
        pages: Pages,
        /// What is done to each node.
        #[serde(default)]
        operation: Access,
        /// Only lines in these DRAM banks. Needs CAP_SYS_ADMIN, to see physical addresses.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        banks: Option<Banks>,
    },
    /// Line after line of a buffer as large as a cache is read, written, prefetched, flushed (`bandwidth_mb_s`, a line per
    /// operation).
    CacheChurn {
        /// What is done, in turn, each to lines of its own.
        #[serde(default = "read_and_write")]
        operations: Vec<Touch>,
        /// The buffer's size.
        size: S,
        /// The order in which lines are visited.
        #[serde(default)]
        order: Order,
        /// The buffer's pages.
        #[serde(default)]
        pages: Pages,
        /// A target rate, a line per operation; absent: as fast as it can.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rate: Option<Rate>,
    },
    /// Word by word stores, one every so many bytes (`bandwidth_mb_s`, program bytes: 8 a store).
    Stores {
        /// How they are stored.
        #[serde(default)]
        operation: Store,
        /// From one store to the next: 8, 16 or 32 bytes, or whole lines.
        #[serde(default = "line")]
        stride: Bytes,
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

fn read_and_write() -> Vec<Touch> {
    vec![Touch::Read, Touch::Write]
}

const fn line() -> Bytes {
    Bytes(LINE_BYTES)
}

/// Why a generator with these parameters cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {why}; {remedy}")]
pub struct Fault {
    /// The parameter.
    pub key: &'static str,
    /// What is wrong with it.
    pub why: String,
    /// What to write instead.
    pub remedy: &'static str,
}

/// Bytes that cross the memory bus per program byte, where the buffer is far larger than the caches: each line fetched
/// or written back once per visit. Inside the caches nothing crosses it, unless lines are flushed or stored past them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    /// Read from memory: lines loaded, and lines fetched because part of them is stored.
    pub read: f64,
    /// Written to memory.
    pub write: f64,
}

impl Workload {
    /// The size a kind of generator has where none is given.
    #[must_use]
    pub fn usual_size(kind: &str) -> Option<Size> {
        match kind {
            "latency" => Some(LIST_SIZE),
            "bandwidth" | "parallel-lists" | "stores" => Some(STREAM_SIZE),
            "cache-churn" => Some(CHURN_SIZE),
            _ => None,
        }
    }

    /// With its size for a CPU with these caches: then it depends on the machine no more.
    #[must_use]
    pub fn resolve(&self, caches: &Caches) -> Workload<Bytes> {
        match self.clone() {
            Self::Latency {
                size,
                order,
                pages,
                operation,
            } => Workload::Latency {
                size: size.resolve(caches),
                order,
                pages,
                operation,
            },
            Self::Bandwidth {
                operation,
                size,
                pages,
                rate,
            } => Workload::Bandwidth {
                operation,
                size: size.resolve(caches),
                pages,
                rate,
            },
            Self::ParallelLists {
                lists,
                size,
                pages,
                operation,
                banks,
            } => Workload::ParallelLists {
                lists,
                size: size.resolve(caches),
                pages,
                operation,
                banks,
            },
            Self::CacheChurn {
                operations,
                size,
                order,
                pages,
                rate,
            } => Workload::CacheChurn {
                operations,
                size: size.resolve(caches),
                order,
                pages,
                rate,
            },
            Self::Stores {
                operation,
                stride,
                size,
                pages,
                rate,
            } => Workload::Stores {
                operation,
                stride,
                size: size.resolve(caches),
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
            Self::ParallelLists { .. } => "parallel-lists",
            Self::CacheChurn { .. } => "cache-churn",
            Self::Stores { .. } => "stores",
        }
    }

    /// The metrics it reports, the one it is judged by first.
    #[must_use]
    pub const fn metrics(&self) -> &'static [(&'static str, Better)] {
        match self {
            Self::Latency { .. } => &[(LATENCY_NS, Better::Lower)],
            Self::ParallelLists { .. } => &[
                (LATENCY_NS, Better::Lower),
                (BANDWIDTH_MB_S, Better::Higher),
            ],
            Self::Bandwidth { .. } | Self::CacheChurn { .. } | Self::Stores { .. } => {
                &[(BANDWIDTH_MB_S, Better::Higher)]
            }
        }
    }

    /// The metric it is judged by.
    #[must_use]
    pub const fn primary(&self) -> &'static str {
        self.metrics()[0].0
    }

    /// The buffer's size.
    #[must_use]
    pub const fn size(&self) -> S {
        match self {
            Self::Latency { size, .. }
            | Self::Bandwidth { size, .. }
            | Self::ParallelLists { size, .. }
            | Self::CacheChurn { size, .. }
            | Self::Stores { size, .. } => *size,
        }
    }

    /// Its target rate.
    #[must_use]
    pub const fn rate(&self) -> Option<Rate> {
        match self {
            Self::Bandwidth { rate, .. }
            | Self::CacheChurn { rate, .. }
            | Self::Stores { rate, .. } => *rate,
            Self::Latency { .. } | Self::ParallelLists { .. } => None,
        }
    }

    /// What is wrong with its parameters, if anything is.
    #[must_use]
    pub fn fault(&self) -> Option<Fault> {
        let fault = |key, why: &str, remedy| {
            Some(Fault {
                key,
                why: why.to_owned(),
                remedy,
            })
        };
        if self.rate() == Some(Rate(0)) {
            let remedy = "give a rate such as 600MB/s, or none for full speed";
            return fault("rate", "a target rate of nothing does nothing", remedy);
        }
        match self {
            Self::ParallelLists { lists, .. } if !(1..=MOST_LISTS).contains(lists) => fault(
                "lists",
                &format!("{lists} lists cannot be walked side by side"),
                "give 1 to 64",
            ),
            Self::CacheChurn { operations, .. } if operations.is_empty() => fault(
                "operations",
                "nothing is done",
                "write [\"read\", \"write\"]",
            ),
            Self::Stores { stride, .. }
                if ![8, 16, 32].contains(&stride.0)
                    && (stride.0 == 0 || !stride.0.is_multiple_of(LINE_BYTES)) =>
            {
                fault(
                    "stride",
                    &format!("a stride of {stride} splits lines unevenly"),
                    "give 8B, 16B, 32B or a multiple of 64B",
                )
            }
            _ => None,
        }
    }

    /// What its program bytes stand for on the memory bus. `None` where that is up to the memory controller: stores past
    /// the caches that do not fill their lines.
    #[must_use]
    pub fn traffic(&self) -> Option<Traffic> {
        let of = |read, write| Some(Traffic { read, write });
        match self {
            Self::Latency { operation, .. } | Self::ParallelLists { operation, .. } => {
                match operation {
                    Access::Read => of(1.0, 0.0),
                    // A visit counts the line read and the line written.
                    Access::ReadWrite => of(0.5, 0.5),
                }
            }
            Self::Bandwidth { operation, .. } => match operation {
                Operation::Read => of(1.0, 0.0),
                Operation::Write => of(1.0, 1.0),
                // The line copied to is fetched, too.
                Operation::Copy => of(1.0, 0.5),
                Operation::NonTemporal => of(0.0, 1.0),
            },
            Self::CacheChurn { operations, .. } => {
                let part = |wanted: &[Touch]| {
                    let some = operations.iter().filter(|o| wanted.contains(o)).count();
                    some as f64 / operations.len().max(1) as f64
                };
                let fetched = [Touch::Read, Touch::Write, Touch::Prefetch];
                of(part(&fetched), part(&[Touch::Write]))
            }
            Self::Stores {
                operation, stride, ..
            } => {
                let lines = LINE_BYTES as f64 / line_bytes(*stride) as f64;
                match operation {
                    Store::NonTemporal if lines > 1.0 => None,
                    Store::NonTemporal => of(0.0, 1.0),
                    Store::Plain | Store::WriteBack | Store::Flush => of(lines, lines),
                }
            }
        }
    }
}

/// Program bytes that stores at this stride leave in each line they visit.
#[must_use]
pub const fn line_bytes(stride: Bytes) -> u64 {
    if stride.0 >= LINE_BYTES {
        WORD_BYTES
    } else {
        LINE_BYTES / stride.0 * WORD_BYTES
    }
}
