//! Use by this process: CPU time by its own clock, memory by `/proc/self/status`
//! (proc_pid_status(5)).

use quell_record::backend::Own;
use quell_types::units::{Bytes, Nanos};
use rustix::time::ClockId;

use crate::error::{Error, Result};
use crate::root::Files;
use crate::rt;

const STATUS: &str = "/proc/self/status";

/// The present use.
///
/// # Errors
/// [`Error::File`], [`Error::Malformed`].
pub fn own(files: &dyn Files) -> Result<Own> {
    let text = files.text(STATUS)?;
    let size = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        let wrong = || Error::malformed(STATUS, &text, format!("a line `{key} NUMBER kB`"));
        kib.map(|kib| Bytes(kib << 10)).ok_or_else(wrong)
    };
    Ok(Own {
        cpu: rt::clock(ClockId::ProcessCPUTime),
        resident: size("VmRSS:")?,
        locked: size("VmLck:")?,
    })
}

/// CPU time of this process and of its children that have ended and were waited for, with theirs
/// (getrusage(2)).
#[must_use]
pub fn with_children() -> Nanos {
    let of = |who| {
        // SAFETY: the kernel writes the structure before it is read. All zeroes are a value of it.
        let usage = unsafe {
            let mut usage = std::mem::zeroed::<libc::rusage>();
            libc::getrusage(who, &raw mut usage);
            usage
        };
        [usage.ru_utime, usage.ru_stime].map(|time| {
            let part = |n: i64| u64::try_from(n).unwrap_or(0);
            part(time.tv_sec) * 1_000_000_000 + part(time.tv_usec) * 1_000
        })
    };
    let all = [libc::RUSAGE_SELF, libc::RUSAGE_CHILDREN].map(of);
    Nanos(all.iter().flatten().sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Kernel;

    #[test]
    fn we_are_told_what_we_take() {
        let kernel = Kernel::new().unwrap();
        let before = own(&kernel).unwrap();
        assert!(before.resident > Bytes(0) && before.locked <= before.resident.max(Bytes(1 << 40)));
        let all = with_children();
        while own(&kernel).unwrap().cpu.since(before.cpu).0 < 1_000_000 {}
        assert!(with_children().since(all) >= Nanos(500_000));
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("proc/self")).unwrap();
        std::fs::write(dir.path().join("proc/self/status"), "VmRSS:\t 12 kB\n").unwrap();
        let why = own(&Kernel::at(dir.path())).unwrap_err().to_string();
        assert!(
            why.contains("VmLck") && why.contains("/proc/self/status"),
            "{why}"
        );
    }
}
