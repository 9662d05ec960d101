//! Where a thread may run (sched_setaffinity(2)). Masks are as large as the kernel's largest (`NR_CPUS`), so machines
//! beyond the C library's 1024 CPUs work, too.

use quell_types::cpuset::{CpuId, CpuSet, MAX_CPU};

use crate::Error;

const WORDS: usize = (MAX_CPU as usize + 1) / 64;

#[derive(Clone, PartialEq, Eq)]
struct Mask([u64; WORDS]);

impl Mask {
    fn of(cpus: &CpuSet) -> Self {
        let mut words = [0; WORDS];
        for cpu in cpus.iter() {
            words[cpu as usize / 64] |= 1 << (cpu % 64);
        }
        Self(words)
    }

    fn cpus(&self) -> CpuSet {
        (0..=MAX_CPU)
            .filter(|cpu| self.0[*cpu as usize / 64] >> (cpu % 64) & 1 == 1)
            .collect()
    }

    fn read() -> Result<Self, Error> {
        let mut words = [0_u64; WORDS];
        // SAFETY: the pointer and the length describe `words`, which the kernel fills; thread 0 is the caller.
        let status =
            unsafe { libc::sched_getaffinity(0, size_of_val(&words), words.as_mut_ptr().cast()) };
        if status != 0 {
            return Err(Error::last("reading this thread's CPU affinity"));
        }
        Ok(Self(words))
    }

    fn set(&self) -> Result<(), Error> {
        // SAFETY: the pointer and the length describe the array, which the kernel only reads; thread 0 is the caller.
        let status =
            unsafe { libc::sched_setaffinity(0, size_of_val(&self.0), self.0.as_ptr().cast()) };
        if status != 0 {
            return Err(Error::last(format!(
                "pinning this thread to CPUs {}",
                self.cpus()
            )));
        }
        Ok(())
    }
}

/// The calling thread's former affinity; set again on drop.
pub struct Pinned {
    before: Mask,
}

/// The CPUs the calling thread may run on.
///
/// # Errors
/// When the kernel refuses to tell.
pub fn allowed() -> Result<CpuSet, Error> {
    Ok(Mask::read()?.cpus())
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
    let before = Mask::read()?;
    let wanted = Mask::of(cpus);
    let pinned = Pinned { before };
    wanted.set()?;
    // The kernel drops what the cpuset does not contain without a word.
    let got = Mask::read()?.cpus();
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
/// As [`pin`].
pub fn pin_to(cpu: CpuId) -> Result<Pinned, Error> {
    pin(&[cpu].into_iter().collect())
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // The former mask may have gone meanwhile (hot-unplug); there is nobody to tell, and the thread still runs.
        let _ = self.before.set();
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
