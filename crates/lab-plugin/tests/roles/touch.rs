//! Memory that is touched in known ways, and the kernel's counters of the effects: for programs
//! that play a role in the guest.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::fs;
use std::io::Read;
use std::os::fd::FromRawFd;

pub const LINE: usize = 64;

/// Memory in large pages, so that it lies evenly in every set.
pub struct Memory {
    start: *mut u8,
    size: usize,
}

impl Memory {
    pub fn new(size: usize) -> Self {
        const LARGE: usize = 2 << 20;
        // SAFETY: a fresh mapping, aligned by hand, which is never unmapped.
        let start = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let all = libc::mmap(
                std::ptr::null_mut(),
                size + 2 * LARGE,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            );
            assert_ne!(all, libc::MAP_FAILED);
            let start = all.cast::<u8>().add(all.align_offset(LARGE));
            libc::madvise(
                start.cast(),
                size.next_multiple_of(LARGE),
                libc::MADV_HUGEPAGE,
            );
            start
        };
        let mut memory = Self { start, size };
        memory.write();
        memory
    }

    pub fn write(&mut self) {
        for at in (0..self.size).step_by(LINE) {
            // SAFETY: within the mapping.
            unsafe { self.start.add(at).write_volatile(1) };
        }
    }

    /// Where it begins.
    pub fn address(&self) -> usize {
        self.start.addr()
    }

    pub fn read(&self) {
        (0..self.size).step_by(LINE).for_each(|at| self.load(at));
    }

    pub fn load(&self, at: usize) {
        assert!(at < self.size);
        // SAFETY: within the mapping.
        unsafe { self.start.add(at).read_volatile() };
    }
}

/// An event counter of this thread, in user mode only.
pub fn counter(config: u64, period: u64) -> fs::File {
    // The first 112 bytes of `struct perf_event_attr`: type, size, config, period, sample type,
    // read format, flags, ….
    let mut attributes = [0u64; 14];
    attributes[0] = 112 << 32;
    attributes[1] = config;
    attributes[2] = period;
    attributes[3] = u64::from(period > 0);
    const EXCLUDE_KERNEL: u64 = 1 << 5;
    attributes[5] = EXCLUDE_KERNEL;
    // SAFETY: the attributes are as long as they say. The call concerns this thread, on any CPU.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, attributes.as_ptr(), 0, -1, -1, 0) };
    assert!(
        fd >= 0,
        "perf_event_open: {}",
        std::io::Error::last_os_error()
    );
    // SAFETY: the descriptor was just opened and has no other owner.
    unsafe { fs::File::from_raw_fd(i32::try_from(fd).unwrap()) }
}

pub fn count(counter: &mut fs::File) -> u64 {
    let mut value = [0; 8];
    counter.read_exact(&mut value).unwrap();
    u64::from_ne_bytes(value)
}
