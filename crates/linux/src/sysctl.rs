//! The machine-wide settings of memory management that a policy may have changed (`pressure.sysctls`).
//! Documentation/admin-guide/sysctl/vm.rst.

use crate::change::Hands;
use crate::error::Result;
use crate::root::Files;

/// The file of a setting.
#[must_use]
pub fn path(name: &str) -> String {
    format!("/proc/sys/vm/{name}")
}

/// What one reads now; `None` where this kernel does not have it.
///
/// # Errors
/// [`crate::error::Error::File`], [`crate::error::Error::Malformed`].
pub fn read(files: &dyn Files, name: &str) -> Result<Option<i64>> {
    files.parsed(&path(name), "a number")
}

/// Changes one, journaled. Whether it was another value before. A ratio in whose place a number of bytes is in force stays: writing it would
/// set that to none, and writing it back would leave neither.
///
/// # Errors
/// [`crate::error::Error::File`]: EINVAL for a value that the kernel refuses.
pub fn set(hands: &mut Hands<'_>, name: &str, value: i64) -> Result<bool> {
    if let Some(kind) = name.strip_suffix("_ratio") {
        let bytes: Option<u64> = hands
            .files
            .parsed(&path(&format!("{kind}_bytes")), "a number")?;
        if bytes.is_some_and(|bytes| bytes > 0) {
            return Ok(false);
        }
    }
    hands.set(&path(name), &value.to_string())
}
