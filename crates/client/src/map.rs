//! A mapped session, and the clock.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use crate::layout::SIZE;

/// A session mapped for reading and writing, until dropped.
#[derive(Debug)]
pub(crate) struct Map(NonNull<u8>);

// SAFETY: the memory is reached through atomic words only.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps a file of at least [`SIZE`] bytes that cannot become shorter. Accesses can then not
    /// fail.
    pub(crate) fn new(file: BorrowedFd<'_>) -> io::Result<Self> {
        const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
        // SAFETY: takes numbers only.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & SEALS != SEALS {
            return Err(io::Error::other("not a sealed memory file"));
        }
        // SAFETY: a `stat` of zeroes is one; the call fills it.
        let mut about: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `about` is valid for the call.
        if unsafe { libc::fstat(file.as_raw_fd(), &raw mut about) } < 0 {
            return Err(io::Error::last_os_error());
        }
        if usize::try_from(about.st_size) != Ok(SIZE) {
            return Err(io::Error::other("its size is not a session's"));
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice, of a file that is that long
        // and stays so.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                SIZE,
                access,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(at.cast())
            .map(Self)
            .ok_or_else(|| io::Error::other("it was mapped at zero"))
    }

    /// The word at an offset, which must be one of the layout's.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset.is_multiple_of(8) && offset + 8 <= SIZE);
        // SAFETY: it lies inside the mapping, which is aligned to pages, at a multiple of eight.
        // Other processes should change it atomically only. If they do not, a word still has some
        // value.
        unsafe { self.0.add(offset).cast::<AtomicU64>().as_ref() }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made, without any borrow left.
        unsafe { libc::munmap(self.0.as_ptr().cast(), SIZE) };
    }
}

/// Nanoseconds of `CLOCK_MONOTONIC`: no system call where the kernel offers it in user space.
pub(crate) fn now() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is valid for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    let part = |n: i64| u64::try_from(n).unwrap_or(0);
    part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
}
