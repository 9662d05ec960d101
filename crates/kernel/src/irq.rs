//! Interrupt affinity: which CPUs take which interrupts. Documentation/core-api/irq/irq-affinity.rst.
//!
//! Some interrupts cannot be moved: per-CPU ones, and those whose queues the kernel manages itself. The kernel answers EIO
//! (or EPERM, since 6.10) then; they are counted and told.

use crate::error::Result;
use crate::root::Files;

/// The folder with one folder for every interrupt.
pub const DIR: &str = "/proc/irq";
/// The CPUs that an interrupt gets when it is made, as a mask.
pub const DEFAULT: &str = "/proc/irq/default_smp_affinity";

/// Interrupt numbers, ascending.
pub fn numbers(files: &dyn Files) -> Result<Vec<u32>> {
    let mut found: Vec<u32> = files
        .names(DIR)?
        .iter()
        .filter_map(|n| n.parse().ok())
        .collect();
    found.sort_unstable();
    Ok(found)
}

/// How many interrupts can be moved and how many not, as far as the files' permissions tell (kernels since 6.12 withhold
/// the permission to write; on older ones only trying tells).
///
/// # Errors
/// [`crate::error::Error::File`].
pub fn count(files: &dyn Files) -> Result<(u32, u32)> {
    let (mut movable, mut fixed) = (0, 0);
    for number in numbers(files)? {
        match files.mode(&format!("{DIR}/{number}/smp_affinity_list")) {
            Ok(mode) if mode & 0o200 != 0 => movable += 1,
            Ok(_) => fixed += 1,
            Err(_) => {}
        }
    }
    Ok((movable, fixed))
}
