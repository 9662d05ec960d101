//! How many bytes on the memory bus a generator's program bytes amount to.

use quell_types::units::{Bytes, LINE_BYTES};
use serde::{Deserialize, Serialize};

use super::{Access, Operation, Store, Touch, WORD_BYTES, Workload};

/// Bytes that cross the memory bus per program byte. This holds where the buffer is far larger than
/// the caches: each line is fetched or written back once per visit. Inside the caches nothing
/// crosses the bus, unless lines are flushed or stored past the caches.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    /// Bytes read from memory: lines that are loaded, or fetched because part of them is stored.
    pub read: f64,
    /// Bytes written to memory, per program byte.
    pub write: f64,
}

impl<S> Workload<S> {
    /// The traffic of its program bytes on the memory bus. `None` where it depends on the memory
    /// controller, as for stores past the caches that do not fill their lines. `None` also where it
    /// depends on what the caches keep of a buffer that is used again and again.
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
                // The line that is copied to is fetched, too.
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
            // As for a copy: 19 lines are read, and the 19 that are written are fetched.
            Self::Lattice { .. } => of(1.0, 0.5),
            Self::Trace { .. }
            | Self::Recorded { .. }
            | Self::Periodic { .. }
            | Self::FramesCall { .. }
            | Self::FramesDisplay { .. }
            | Self::Detector(_)
            | Self::AnonHog(_)
            | Self::FileHog(_)
            | Self::DirtyWriter(_)
            | Self::Requests(_) => None,
        }
    }
}

/// Program bytes that stores with this stride leave in each line that they visit.
#[must_use]
pub const fn line_bytes(stride: Bytes) -> u64 {
    if stride.0 >= LINE_BYTES {
        WORD_BYTES
    } else {
        LINE_BYTES / stride.0 * WORD_BYTES
    }
}
