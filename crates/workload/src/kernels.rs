//! The inner loops of the streams: what is done to whole lines. Their rates define a machine's
//! peak, so they must not be slower than a program's.

use quell_policy::workload::Operation;

use crate::arch;
pub use crate::arch::{Kernel, settle};

/// A way to stream that belongs to a machine's peak, but is no operation of experiments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extra {
    /// Loads from one half and stores past the caches to the other.
    CopyNonTemporal,
}

/// The fastest kernel for `operation` here. `None` where the processor has none, or Quell knows
/// none.
#[must_use]
pub fn kernel(operation: Operation) -> Option<Kernel> {
    let streams = arch::streams();
    match operation {
        Operation::Read => Some(streams.read),
        Operation::Write => Some(streams.write),
        Operation::Copy => Some(streams.copy),
        Operation::NonTemporal => streams.non_temporal,
    }
}

/// [`kernel`] for the additional ways to stream.
#[must_use]
pub fn extra(extra: Extra) -> Option<Kernel> {
    match extra {
        Extra::CopyNonTemporal => arch::streams().copy_non_temporal,
    }
}
