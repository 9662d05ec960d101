//! Models of the memory hierarchy: where an address lies in DRAM ([`address`]), what a cache
//! contains ([`cache`]), how long DRAM takes ([`dram`]), what a program demands of caches
//! ([`demand`]).
//!
//! Values in, values out: no threads, no I/O, no clock, no randomness. The same calls give the same
//! answers on every machine. Time is an integer count of picoseconds. After construction, nothing
//! is allocated on the paths that a simulation takes per access, except that a list handed in by
//! the caller may grow.
//!
//! Each module header states its method and source, and what it leaves out of real hardware.

pub mod address;
pub mod arch;
pub mod cache;
pub mod demand;
pub mod dram;

/// Simulated time or a span of it, in picoseconds. Every DRAM clock period in use is close to a
/// whole number of them. 64 bits last for half a year.
pub type Picos = u64;

/// An impossible geometry, function or parameter. The texts say what was given and what would be
/// possible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {reason}")]
pub struct Invalid {
    /// Which part of which description.
    pub what: String,
    /// What is wrong with it, and what would be possible.
    pub reason: String,
}

impl Invalid {
    pub(crate) fn new(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            reason: reason.into(),
        }
    }
}
