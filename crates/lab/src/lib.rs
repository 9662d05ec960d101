//! The lab: real Linux on an emulated machine. [`vm`] boots Debian kernels under QEMU and runs a
//! command in them. [`emul`] is the processor that QEMU's plugin (`quell-lab-plugin`) puts into
//! that machine: resource control by `CPUID` and registers, the caches of `quell-model` behind it,
//! performance counters. `docs/lab.md` is its manual.

mod arch;
mod boot;
pub mod emul;
pub mod folder;
mod guest;
pub mod image;
pub mod packages;
pub mod profile;
pub mod vm;

/// What went wrong, and what the user can do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The user's input is wrong.
    #[error("{0}")]
    Input(String),
    /// The lab is not available here: packages or programs are missing.
    #[error("{0}")]
    Unavailable(String),
    /// The lab was started and failed.
    #[error("{0}")]
    Failed(String),
    /// A cache with an impossible shape.
    #[error(transparent)]
    Shape(#[from] quell_model::Invalid),
}
