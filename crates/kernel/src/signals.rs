//! The signals that end a run (SIGINT, SIGTERM, SIGHUP) as something to be read (signalfd(2))
//! instead of something that happens to a process.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::error::{Error, Result};

/// Blocks the signals that end a run and returns a descriptor to read them from.
///
/// # Errors
/// As the kernel answers.
pub fn stop_signals() -> io::Result<OwnedFd> {
    let set = mask_stop_signals(libc::SIG_BLOCK)?;
    // SAFETY: the set is initialised; the descriptor is new and nobody else's.
    unsafe {
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(std::os::fd::FromRawFd::from_raw_fd(fd))
    }
}

/// Lets the next of them end this process as it would have without [`stop_signals`]: the kernel
/// delivers it to this thread, whatever others, started in between, keep blocked. Allocates
/// nothing, so that it may be called between fork and exec.
///
/// # Errors
/// As the kernel answers.
pub fn release_stop_signals() -> io::Result<()> {
    mask_stop_signals(libc::SIG_UNBLOCK).map(|_| ())
}

/// Does what takes long and changes nothing of the machine: the signals that end a run end this
/// process at once meanwhile.
///
/// # Errors
/// Its own, or as the kernel answers.
pub fn ended_by_any<T>(act: impl FnOnce() -> Result<T>) -> Result<T> {
    let refused = |e| Error::refused(format!("signals: {e}"));
    release_stop_signals().map_err(refused)?;
    let done = act();
    mask_stop_signals(libc::SIG_BLOCK).map_err(refused)?;
    done
}

/// From here on this process ends quietly when the reader of its output is gone, as any filter
/// does. Not for one that has something to revert.
pub fn end_with_the_reader() {
    // SAFETY: the default disposition installs no handler; the number is valid.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Blocks or unblocks them for this thread.
fn mask_stop_signals(how: libc::c_int) -> io::Result<libc::sigset_t> {
    // SAFETY: the set is initialised by sigemptyset before use; the calls take no other pointers.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut set);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            libc::sigaddset(&raw mut set, signal);
        }
        match libc::pthread_sigmask(how, &raw const set, std::ptr::null_mut()) {
            0 => Ok(set),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// The next signal of [`stop_signals`], if one came.
#[must_use]
pub fn next_signal(signals: &OwnedFd) -> Option<i32> {
    let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
    // SAFETY: the buffer is as long as the record the kernel writes.
    let n = unsafe { libc::read(signals.as_raw_fd(), info.as_mut_ptr().cast(), info.len()) };
    if usize::try_from(n).ok()? != info.len() {
        return None;
    }
    let number: [u8; 4] = info[..4].try_into().ok()?;
    i32::try_from(u32::from_ne_bytes(number)).ok()
}
