//! Lines that the calling thread has brought in past the last-level cache, by the processor's counter (perf_event_open(2),
//! `PERF_COUNT_HW_CACHE_MISSES`), in user mode. Most virtual machines have none.

use std::fs::File;
use std::io::Read;
use std::os::fd::FromRawFd;

/// The counter.
#[derive(Debug)]
pub(crate) struct Misses(File);

impl Misses {
    /// `None` where there is none, or the kernel lets nobody have it.
    pub(crate) fn open() -> Option<Self> {
        const MISSES: u64 = 3;
        const EXCLUDE_KERNEL: u64 = 1 << 5;
        const CLOEXEC: libc::c_ulong = 1 << 3;
        // The first 64 bytes of `struct perf_event_attr` (`PERF_ATTR_SIZE_VER0`): type and size, event, period, sample type, read
        // format, flags, ….
        const SIZE: u64 = 64;
        let attr: [u64; 8] = [SIZE << 32, MISSES, 0, 0, 0, EXCLUDE_KERNEL, 0, 0];
        // SAFETY: the attributes are as long as they say and outlive the call; this thread, on any CPU.
        let fd =
            unsafe { libc::syscall(libc::SYS_perf_event_open, attr.as_ptr(), 0, -1, -1, CLOEXEC) };
        let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
        // SAFETY: the kernel just gave us this descriptor; nobody else owns it.
        Some(Self(unsafe { File::from_raw_fd(fd) }))
    }

    /// So far.
    pub(crate) fn read(&mut self) -> Option<u64> {
        let mut value = [0; 8];
        self.0.read_exact(&mut value).ok()?;
        Some(u64::from_ne_bytes(value))
    }
}
