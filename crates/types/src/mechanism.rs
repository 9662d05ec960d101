//! The mechanisms and the guarantee levels, in the words of the design.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A way to isolate groups from each other.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Mechanism {
    /// The weight of a group where several want the same CPU.
    Weight,
    /// Core partition: CPUs, memory nodes, interrupts, unbound kernel work.
    Cores,
    /// The software memory-bandwidth regulator.
    Bandwidth,
    /// Way-based cache partition (Intel CAT, Arm MPAM).
    Ways,
    /// Set-based cache partition by page colour.
    Sets,
    /// DRAM bank partition, by page colour.
    Banks,
    /// Locking of memory in a cache (resctrl's pseudo-locking).
    PseudoLock,
    /// Memory-bandwidth allocation in hardware.
    Mba,
    /// Latency control under memory pressure.
    Memory,
    /// Locked memory and the size of its pages.
    Paging,
    /// Stopping and resuming tasks.
    Stop,
    /// Where tasks run: SMT-aware and contention-aware placement.
    Placement,
    /// The kernel's CPU-time quota.
    CpuMax,
    /// The kernel's limit of what is moved to and from each disk.
    IoMax,
    /// The kernel's latency target for the requests to each disk.
    IoLatency,
    /// The weight of a group where several want the same disk.
    IoWeight,
    /// Fixed windows of a repeating frame, in which one group runs on a CPU.
    Windows,
}

impl Mechanism {
    /// Every mechanism, in the order of the design.
    pub const ALL: [Self; 17] = [
        Self::Weight,
        Self::Cores,
        Self::Bandwidth,
        Self::Ways,
        Self::Sets,
        Self::Banks,
        Self::PseudoLock,
        Self::Mba,
        Self::Memory,
        Self::Paging,
        Self::Stop,
        Self::Placement,
        Self::CpuMax,
        Self::IoMax,
        Self::IoLatency,
        Self::IoWeight,
        Self::Windows,
    ];

    /// The name used in policies, plans and records.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Weight => "weight",
            Self::Cores => "cores",
            Self::Bandwidth => "bandwidth",
            Self::Ways => "ways",
            Self::Sets => "sets",
            Self::Banks => "banks",
            Self::PseudoLock => "pseudo-lock",
            Self::Mba => "mba",
            Self::Memory => "memory",
            Self::Paging => "paging",
            Self::Stop => "stop",
            Self::Placement => "placement",
            Self::CpuMax => "cpu-max",
            Self::IoMax => "io-max",
            Self::IoLatency => "io-latency",
            Self::IoWeight => "io-weight",
            Self::Windows => "windows",
        }
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How reliable a promise is, weakest first.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// No mechanism holds it.
    #[default]
    None,
    /// Held through a proxy; the bound is stated.
    Estimated,
    /// A loop holds it; the error is measured.
    Regulated,
    /// Hardware or kernel refuses to break it.
    Enforced,
}

impl Level {
    /// The name used in policies, plans and records.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Estimated => "estimated",
            Self::Regulated => "regulated",
            Self::Enforced => "enforced",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
