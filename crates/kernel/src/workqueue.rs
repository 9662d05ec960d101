//! Where unbound kernel work runs. Documentation/core-api/workqueue.rst ("Affinity Scopes"), and
//! the mask in /sys/devices/virtual/workqueue.

use quell_types::cpuset::CpuSet;

use crate::error::{Error, Result};
use crate::root::{Files, parse_mask};

/// File with the CPU mask of all unbound workqueues.
pub const MASK: &str = "/sys/devices/virtual/workqueue/cpumask";

/// The CPUs that unbound kernel work may use. `None` where the kernel has no such file.
///
/// # Errors
/// [`Error::File`], [`Error::Malformed`].
pub fn mask(files: &dyn Files) -> Result<Option<CpuSet>> {
    let Some(text) = files.optional(MASK)? else {
        return Ok(None);
    };
    parse_mask(&text)
        .map(Some)
        .ok_or_else(|| Error::malformed(MASK, &text, "a CPU mask"))
}
