//! The lab: real Linux on a machine that is not there. [`vm`] boots Debian kernels under QEMU and
//! runs a command in them; [`emul`] is the processor that QEMU's plugin (`quell-lab-plugin`) puts
//! into that machine: resource control by `CPUID` and registers, the caches of `quell-model` behind
//! it, performance counters. `docs/lab.md` is its manual.

mod arch;
mod boot;
pub mod emul;
pub mod folder;
mod guest;
pub mod image;
pub mod packages;
pub mod profile;
pub mod vm;

/// What went wrong, and what would do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What the user gave.
    #[error("{0}")]
    Input(String),
    /// The lab cannot be had here: packages, programs.
    #[error("{0}")]
    Unavailable(String),
    /// It was had, and failed.
    #[error("{0}")]
    Failed(String),
    /// A cache that cannot be.
    #[error(transparent)]
    Shape(#[from] quell_model::Invalid),
}
