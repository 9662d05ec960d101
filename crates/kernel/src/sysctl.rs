//! The machine-wide settings of memory management that a policy may have changed
//! (`pressure.sysctls`). Documentation/admin-guide/sysctl/vm.rst.

use crate::error::Result;
use crate::root::Files;

/// Path of a setting's file.
#[must_use]
pub fn path(name: &str) -> String {
    format!("/proc/sys/vm/{name}")
}

/// The present value of a setting. `None` where this kernel does not have it.
///
/// # Errors
/// [`crate::error::Error::File`], [`crate::error::Error::Malformed`].
pub fn read(files: &dyn Files, name: &str) -> Result<Option<i64>> {
    files.parsed(&path(name), "a number")
}
