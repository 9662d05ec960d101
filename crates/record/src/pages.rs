//! The pages that the memory of processes lies in, as events have them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Memory of processes by what it lies in, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Paged {
    /// Number of processes.
    pub processes: u32,
    /// Bytes of anonymous memory that are in memory.
    pub anonymous_bytes: u64,
    /// Bytes of these that lie in large pages.
    pub large_bytes: u64,
    /// Bytes of mappings that are locked, whether they are in memory yet or not.
    pub locked_bytes: u64,
    /// Page faults without input or output since each process began. Memory that the kernel fills
    /// ahead counts, too.
    pub minor_faults: u64,
    /// Page faults that needed input or output, counted in the same way.
    pub major_faults: u64,
}

/// Pages of a process by whether they have its colours, and how moving them stopped it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ColouredPages {
    /// Number of pages of its own memory that have frames of its colours.
    pub right: u64,
    /// Number of those that could be moved and have other frames.
    pub wrong: u64,
    /// Number of pages moved so far. One that was moved twice counts twice.
    pub moved: u64,
    /// How often all its threads were stopped so far.
    pub stops: u64,
    /// The time within which 99 % of the stops were over, in nanoseconds.
    pub p99_ns: u64,
    /// The longest stop, in nanoseconds.
    pub longest_ns: u64,
    /// Bytes in frames of reserved colours that are held, for all groups together.
    pub held_bytes: u64,
}

pub(crate) const fn is_zero(n: &u64) -> bool {
    *n == 0
}
