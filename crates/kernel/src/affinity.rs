//! The CPUs that threads may run on (sched_setaffinity(2)). These are the raw system calls. The C
//! library's `cpu_set_t` ends at 1024 CPUs, and the kernel refuses a buffer that is shorter than
//! its own.

use std::io;

use quell_types::cpuset::{CpuSet, MAX_CPU};

/// Number of 64-bit words that hold every CPU the kernel can number.
const WORDS: usize = (MAX_CPU as usize + 1) / 64;

/// A thread id as the system calls take it. ESRCH where it does not fit.
pub(crate) fn pid(tid: u32) -> io::Result<libc::pid_t> {
    libc::pid_t::try_from(tid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))
}

/// The CPUs of a thread (0: the caller).
///
/// # Errors
/// The kernel's: ESRCH where there is no such thread.
pub fn of(tid: u32) -> io::Result<CpuSet> {
    let mut words = [0u64; WORDS];
    // SAFETY: the buffer is valid for `size_of_val(&words)` bytes and u64 has no invalid values.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_getaffinity,
            pid(tid)?,
            size_of_val(&words),
            words.as_mut_ptr(),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(numbers(&words))
}

/// The numbers of the bits that are set. It is called for each thread of the
/// machine, so words without a bit have to cost next to nothing.
fn numbers(words: &[u64; WORDS]) -> CpuSet {
    let mut set = CpuSet::new();
    for (first, word) in (0..=MAX_CPU).step_by(64).zip(words) {
        let mut left = *word;
        while left != 0 {
            set.insert(first + left.trailing_zeros());
            left &= left - 1;
        }
    }
    set
}

/// Sets the CPUs of a thread (0: the caller). The kernel silently leaves out CPUs outside the
/// thread's cpuset, and refuses when none is left.
///
/// # Errors
/// The kernel's; EINVAL for a CPU beyond [`MAX_CPU`].
pub fn set(tid: u32, cpus: &CpuSet) -> io::Result<()> {
    let mut words = [0u64; WORDS];
    for cpu in cpus.iter() {
        let word = words.get_mut((cpu / 64) as usize);
        *word.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))? |= 1 << (cpu % 64);
    }
    set_words(tid, &words)
}

/// Gives a thread the CPUs back that it had before another one was chosen for it. Where they are
/// all that its cpuset allows, it is let run on any: so it follows its cpuset from then on, as it
/// did before.
///
/// # Errors
/// The kernel's.
pub fn give_back(tid: u32, before: &CpuSet) -> io::Result<()> {
    set_words(tid, &[u64::MAX; WORDS])?;
    match of(tid)? == *before {
        true => Ok(()),
        false => set(tid, before),
    }
}

fn set_words(tid: u32, words: &[u64; WORDS]) -> io::Result<()> {
    // SAFETY: the buffer is valid for reading `size_of_val(words)` bytes for the whole call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_setaffinity,
            pid(tid)?,
            size_of_val(words),
            words.as_ptr(),
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_is_one_number() {
        let mut words = [0; WORDS];
        assert!(numbers(&words).is_empty());
        (words[0], words[1], words[WORDS - 1]) = (0b101, 1, 1 << 63);
        assert_eq!(numbers(&words).to_string(), format!("0,2,64,{MAX_CPU}"));
    }

    /// Others that take CPUs away would be in the way.
    mod live {
        use super::*;

        #[test]
        fn a_thread_gets_its_cpus_back() {
            let own = of(0).unwrap();
            let each: Vec<CpuSet> = own.iter().map(|cpu| CpuSet::from_iter([cpu])).collect();
            let [first, .., last] = &each[..] else {
                quell_testing::skip("one CPU");
                return;
            };
            for before in [&own, last] {
                set(0, first).unwrap();
                give_back(0, before).unwrap();
                assert_eq!(of(0).unwrap(), *before);
            }
            set(0, &own).unwrap();
        }
    }
}
