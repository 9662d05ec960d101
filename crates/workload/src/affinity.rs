//! The CPUs on which the calling thread may run.

use quell_kernel::affinity;
use quell_types::cpuset::{CpuId, CpuSet, MAX_CPU};

use crate::Error;

fn set(cpus: &CpuSet) -> Result<(), Error> {
    affinity::set(0, cpus).map_err(Error::kernel(format!("pinning this thread to CPUs {cpus}")))
}

/// Restores the calling thread's former affinity on drop.
pub struct Pinned {
    before: CpuSet,
}

/// The CPUs on which the calling thread may run.
///
/// # Errors
/// When the kernel refuses the call.
pub fn allowed() -> Result<CpuSet, Error> {
    affinity::of(0).map_err(Error::kernel("reading this thread's CPU affinity"))
}

/// Confines the calling thread to `cpus` until the result is dropped.
///
/// # Errors
/// When one of the CPUs does not exist, is offline, or is outside the thread's cpuset.
pub fn pin(cpus: &CpuSet) -> Result<Pinned, Error> {
    if let Some(cpu) = cpus.iter().find(|cpu| *cpu > MAX_CPU) {
        return Err(Error::refused(
            format!("CPU {cpu}"),
            format!("the highest number handled is {MAX_CPU}"),
            "name a CPU that is online",
        ));
    }
    let pinned = Pinned { before: allowed()? };
    set(cpus)?;
    // The kernel silently drops CPUs that the cpuset does not contain.
    let got = allowed()?;
    if got != *cpus {
        return Err(Error::refused(
            format!("pinning this thread to CPUs {cpus}"),
            format!("the kernel allows {got} only"),
            "name CPUs that are online and in this process's cpuset (Cpus_allowed_list in /proc/self/status)",
        ));
    }
    Ok(pinned)
}

/// [`pin`] to one CPU.
///
/// # Errors
/// Those of [`pin`].
pub fn pin_to(cpu: CpuId) -> Result<Pinned, Error> {
    pin(&[cpu].into_iter().collect())
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // The former CPUs may be gone meanwhile (hot-unplug). The thread still runs, and a drop
        // cannot report an error.
        let _ = affinity::set(0, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_gets_its_cpus_back() {
        let before = allowed().unwrap();
        let last = before.iter().next_back().unwrap();
        {
            let _pinned = pin_to(last).unwrap();
            assert_eq!(allowed().unwrap(), [last].into_iter().collect());
        }
        assert_eq!(allowed().unwrap(), before);
    }

    #[test]
    fn a_cpu_that_does_not_exist_is_refused_and_nothing_changed() {
        let before = allowed().unwrap();
        let both: CpuSet = [before.first().unwrap(), MAX_CPU].into_iter().collect();
        assert!(pin_to(MAX_CPU).is_err());
        let text = pin(&both).err().unwrap().to_string();
        assert!(text.contains("8191"), "{text}");
        assert_eq!(allowed().unwrap(), before);
    }
}
