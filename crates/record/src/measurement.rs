//! What a generator measured.

use std::collections::BTreeMap;

use quell_types::units::Nanos;

use crate::attribution::Account;

/// One metric of one subject over its measured span, as values over short windows.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Measurement {
    /// Metric name → its values per window, in order of time. The metric's value is their mean,
    /// with equal weights.
    pub metrics: BTreeMap<String, Vec<f64>>,
    /// Length of a window, in nanoseconds.
    pub window_ns: u64,
    /// Program bytes moved in the span.
    pub bytes: u64,
    /// Bytes read from memory for it in the span, prefetched ones included. Absent where they are
    /// not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Real length of the span, in nanoseconds.
    pub duration_ns: u64,
    /// When the span began, on the backend's clock, within milliseconds. The engine fills it in,
    /// since it started the span.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun: Option<Nanos>,
    /// When each unit of work ended, in nanoseconds since the span began. Only for generators that
    /// report for each unit what it met in memory (`resident_mb`, `cache_misses`, `major_faults`: a
    /// value per unit).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ended_ns: Vec<u64>,
    /// Where the time of its units went, by the kernel's clocks. Absent where it was not asked for,
    /// or cannot be determined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<Account>,
}
