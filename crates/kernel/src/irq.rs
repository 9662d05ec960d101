//! Interrupt affinity: which CPUs take which interrupts.
//! Documentation/core-api/irq/irq-affinity.rst.
//!
//! Some interrupts cannot be moved: per-CPU ones, and those whose queues the kernel manages itself.
//! The kernel then answers EIO (or EPERM, since 6.10). They are counted and reported.

use std::time::Duration;

use quell_types::cpuset::CpuId;

use crate::error::Result;
use crate::root::Files;
use crate::value::same;

/// The directory with one directory for every interrupt.
pub const DIR: &str = "/proc/irq";
/// File with the CPUs that a new interrupt gets, as a mask.
pub const DEFAULT: &str = "/proc/irq/default_smp_affinity";

/// Interrupt numbers in ascending order. Empty where there are none.
pub fn numbers(files: &dyn Files) -> Result<Vec<u32>> {
    let mut found: Vec<u32> = files
        .names(DIR)?
        .iter()
        .filter_map(|n| n.parse().ok())
        .collect();
    found.sort_unstable();
    Ok(found)
}

/// Interrupts of all kinds that a CPU has served since boot (`/proc/interrupts`). `None` without
/// the file, or without a column of the CPU.
///
/// # Errors
/// [`crate::error::Error::File`].
pub fn served(files: &dyn Files, cpu: CpuId) -> Result<Option<u64>> {
    let text = files.optional("/proc/interrupts")?.unwrap_or_default();
    let mut lines = text.lines();
    let head: Vec<&str> = lines
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let name = format!("CPU{cpu}");
    let Some(column) = head.iter().position(|c| *c == name) else {
        return Ok(None);
    };
    let served = lines.filter_map(|line| {
        let words = line.split_whitespace().skip(1);
        let numbers: Vec<u64> = words.map_while(|w| w.parse().ok()).collect();
        // ERR and MIS have one number for all CPUs.
        let all = numbers.len() >= head.len();
        numbers.get(column).copied().filter(|_| all)
    });
    Ok(Some(served.fold(0, u64::saturating_add)))
}

/// Numbers of interrupts that can be moved, and that cannot, as far as the files' permissions show.
/// Kernels since 6.12 withhold the permission to write. On older ones only trying shows it.
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

/// Reads a file in which `written` should stand. While the kernel moves an interrupt, the file of
/// its CPUs shows those of the last move for some microseconds: it is read again a while later.
///
/// # Errors
/// As [`Files::read`].
pub fn read_settled(files: &dyn Files, path: &str, written: &str) -> std::io::Result<String> {
    const PAUSE: Duration = Duration::from_millis(5);
    let mut again = if path.starts_with(DIR) { 3 } else { 0 };
    loop {
        let now = files.read(path)?;
        if again == 0 || same(path, &now, written) {
            return Ok(now);
        }
        again -= 1;
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Kernel;

    #[test]
    fn interrupts_are_summed_over_the_column_of_the_cpu() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Kernel::at(dir.path());
        assert_eq!(served(&kernel, 0).unwrap(), None);
        std::fs::create_dir(dir.path().join("proc")).unwrap();
        // CPU 1 is offline.
        let text = "           CPU0       CPU2\n  4:       7    1000 IO-APIC 4-edge ttyS0\n\
                    LOC:  50  60 Local timer interrupts\nERR:          9\n";
        std::fs::write(dir.path().join("proc/interrupts"), text).unwrap();
        let of = |cpu| served(&kernel, cpu).unwrap();
        assert_eq!((of(0), of(2), of(1)), (Some(57), Some(1060), None));
    }
}
