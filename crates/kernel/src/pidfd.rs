//! Signals to one process, and to no later one of the same number, and copies of its descriptors.
//! pidfd_open(2), pidfd_send_signal(2), pidfd_getfd(2).

use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};

use quell_types::task::TaskId;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::stat::Stat;

/// Sends a signal. `stat` reads the `stat` of the process.
///
/// # Errors
/// ESRCH where the process has ended, EINVAL for a number that is no signal.
pub fn signal(
    task: TaskId,
    signal: i32,
    stat: impl FnOnce() -> io::Result<String>,
) -> io::Result<()> {
    let none = || io::Error::from_raw_os_error(libc::ESRCH);
    let signal =
        Signal::from_named_raw(signal).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
    let pid = i32::try_from(task.pid).ok().and_then(Pid::from_raw);
    let handle = rustix::process::pidfd_open(pid.ok_or_else(none)?, PidfdFlags::empty())?;
    // The pidfd first, the start time second: which process the pidfd refers to cannot change any
    // more.
    let stat = stat().ok().and_then(|text| Stat::parse(&text));
    if !stat.is_some_and(|s| s.is_alive(task)) {
        return Err(none());
    }
    Ok(rustix::process::pidfd_send_signal(handle, signal)?)
}

/// A copy of one of a process's descriptors, by its number there.
pub(crate) fn copy_of(number: u32, process: impl AsFd) -> io::Result<OwnedFd> {
    let number = RawFd::try_from(number).unwrap_or(-1);
    let none = rustix::process::PidfdGetfdFlags::empty();
    Ok(rustix::process::pidfd_getfd(process, number, none)?)
}

/// Whether a state letter means stopped, by a signal or by a debugger.
#[must_use]
pub const fn stopped(state: char) -> bool {
    matches!(state, 'T' | 't')
}
