//! The architecture of the lab. Guest, emulator and tools are Debian's packages for x86-64, and the
//! emulated processor is Intel's. So the lab is refused on machines of another architecture.

use crate::Error;

/// Debian's name for the architecture.
pub(crate) const DEBIAN: &str = "amd64";
/// The package with the emulator.
pub(crate) const EMULATOR_PACKAGE: &str = "qemu-system-x86";
/// The emulator's path in that package.
pub(crate) const EMULATOR: &str = "usr/bin/qemu-system-x86_64";
/// The end of the releases of Debian's kernels for virtual machines.
pub(crate) const KERNEL: &str = "-cloud-amd64";
/// The folder of shared libraries in packages.
pub(crate) const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// The loader of shared libraries: its name, and the folder in which programs expect it.
pub(crate) const LOADER: &str = "ld-linux-x86-64.so.2";
pub(crate) const LOADER_FOLDER: &str = "usr/lib64";

/// Refuses machines on which the packages do not run.
pub(crate) fn runs_here() -> Result<(), Error> {
    if cfg!(target_arch = "x86_64") {
        return Ok(());
    }
    let here = std::env::consts::ARCH;
    Err(Error::Unavailable(format!(
        "its packages are for x86-64, this is {here}"
    )))
}
