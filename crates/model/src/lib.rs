//! Models of the memory hierarchy: where an address lives ([`address`]), what stays in a cache
//! ([`cache`]), how long DRAM takes ([`dram`]).
//!
//! Values in, values out: no threads, no I/O, no clock, no randomness; the same calls give the same
//! answers on every machine. Time is an integer count of picoseconds. Nothing allocates after
//! construction on the paths that a simulation takes per access, except that a list handed in by
//! the caller may grow.
//!
//! Each module opens with its method and where that comes from, and with what it leaves out of real
//! hardware.

pub mod address;
pub mod arch;
pub mod cache;
pub mod dram;

/// Simulated time or a span of it, in picoseconds: every DRAM clock period in use is close to a
/// whole number of them, and 64 bits last for half a year.
pub type Picos = u64;

/// A geometry, function or parameter that cannot be. The texts say what was given and what would
/// do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {reason}")]
pub struct Invalid {
    /// Which part of which description.
    pub what: String,
    /// What is wrong with it and what would do.
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
