//! What the generators read of the kernel's files, through the readers of `quell-kernel`.

use quell_kernel::root::Kernel;
use quell_kernel::{memory, procfs, topology};
use quell_record::events::CpuTimes;
use quell_types::cpuset::CpuSet;
use quell_types::units::Bytes;

use crate::Error;

/// The running kernel. Files that it lacks are read as `None`.
pub(crate) fn live() -> Kernel {
    Kernel::at("/")
}

/// Memory that can be taken without swapping and within the limits of this process's cgroups.
///
/// # Errors
/// When a file cannot be read, or a line is malformed.
pub(crate) fn available_memory() -> Result<Option<Bytes>, Error> {
    Ok(memory::available(&live())?)
}

/// The time of every CPU. Empty without `/proc/stat`.
///
/// # Errors
/// When the file cannot be read, or a line is malformed.
pub(crate) fn cpu_times(kernel: &Kernel) -> Result<Vec<CpuTimes>, Error> {
    let ticks = rustix::param::clock_ticks_per_second();
    Ok(procfs::cpu_times(kernel, ticks)?.unwrap_or_default())
}

/// The size of a second-level cache where the kernel does not report it.
const USUAL_L2: Bytes = Bytes(2 << 20);

/// The largest second-level cache of any of these CPUs, or a usual size where the kernel reports
/// none.
///
/// # Errors
/// When a file of a cache exists and cannot be read, or is malformed.
pub(crate) fn largest_l2(cpus: &CpuSet) -> Result<Bytes, Error> {
    Ok(topology::largest_l2(&live(), cpus)?.unwrap_or(USUAL_L2))
}
