//! The signals that end a run (SIGINT, SIGTERM, SIGHUP), read from a descriptor (signalfd(2))
//! instead of delivered.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::error::{Error, Result};

/// The signals that end a run.
pub const STOP_SIGNALS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Blocks the signals that end a run and returns a descriptor to read them from.
///
/// # Errors
/// The kernel's.
pub fn stop_signals() -> io::Result<OwnedFd> {
    let set = mask_stop_signals(libc::SIG_BLOCK)?;
    // SAFETY: the set is initialised; the descriptor is new and nothing else owns it.
    unsafe {
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(std::os::fd::FromRawFd::from_raw_fd(fd))
    }
}

/// Lets the next of these signals end this process, as without [`stop_signals`]. The kernel
/// delivers it to this thread, whatever threads started in between keep blocked. Allocates nothing,
/// so it may be called between fork and exec.
///
/// # Errors
/// The kernel's.
pub fn release_stop_signals() -> io::Result<()> {
    mask_stop_signals(libc::SIG_UNBLOCK).map(|_| ())
}

/// Runs `act`, which takes long and changes nothing of the machine. Meanwhile the signals that end
/// a run end this process at once.
///
/// # Errors
/// Those of `act`, or the kernel's.
pub fn ended_by_any<T>(act: impl FnOnce() -> Result<T>) -> Result<T> {
    let refused = |e| Error::refused(format!("signals: {e}"));
    release_stop_signals().map_err(refused)?;
    let done = act();
    mask_stop_signals(libc::SIG_BLOCK).map_err(refused)?;
    done
}

/// Makes this process end quietly when the reader of its output is gone, as any filter does. Not
/// for a process that has something to revert.
pub fn end_with_the_reader() {
    // SAFETY: the default disposition installs no handler, and the number is valid.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Blocks or unblocks the stop signals for this thread. Returns their set.
fn mask_stop_signals(how: libc::c_int) -> io::Result<libc::sigset_t> {
    // SAFETY: the set is initialised by sigemptyset before use, and the calls take no other
    // pointers.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut set);
        for signal in STOP_SIGNALS {
            libc::sigaddset(&raw mut set, signal);
        }
        match libc::pthread_sigmask(how, &raw const set, std::ptr::null_mut()) {
            0 => Ok(set),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// The next signal of [`stop_signals`]. `None` where none came.
#[must_use]
pub fn next_signal(signals: &OwnedFd) -> Option<i32> {
    let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
    // SAFETY: the buffer is as long as the record that the kernel writes.
    let n = unsafe { libc::read(signals.as_raw_fd(), info.as_mut_ptr().cast(), info.len()) };
    if usize::try_from(n).ok()? != info.len() {
        return None;
    }
    let number: [u8; 4] = info[..4].try_into().ok()?;
    i32::try_from(u32::from_ne_bytes(number)).ok()
}
