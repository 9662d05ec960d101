//! Signals to one process and to no later one of the same number. pidfd_open(2), pidfd_send_signal(2).

use std::io;
use std::os::fd::OwnedFd;

use quell_types::task::TaskId;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::procfs;
use crate::root::Files;

/// A handle of a process, to be polled (it is readable once the process has ended) and signalled.
///
/// # Errors
/// ESRCH where it has ended; else as the kernel answers.
pub fn open(files: &dyn Files, task: TaskId) -> io::Result<OwnedFd> {
    let none = || io::Error::from_raw_os_error(libc::ESRCH);
    let pid = i32::try_from(task.pid)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(none)?;
    let handle = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    // The handle first, the start time second: what it names cannot change any more.
    if procfs::alive(files, task) {
        Ok(handle)
    } else {
        Err(none())
    }
}

/// Sends a signal.
///
/// # Errors
/// ESRCH where the process has ended, EINVAL for a number that is no signal.
pub fn signal(files: &dyn Files, task: TaskId, signal: i32) -> io::Result<()> {
    let signal =
        Signal::from_named_raw(signal).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
    Ok(rustix::process::pidfd_send_signal(
        open(files, task)?,
        signal,
    )?)
}

/// Whether a state letter means stopped, by a signal or by a debugger.
#[must_use]
pub const fn stopped(state: char) -> bool {
    matches!(state, 'T' | 't')
}
