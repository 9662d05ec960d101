//! Signals to one process and to no later one of the same number. pidfd_open(2), pidfd_send_signal(2).

use std::io;
use std::os::fd::OwnedFd;

use quell_core::journal::{Stopped, TaskId};
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::change::Hands;
use crate::error::{Error, Result};
use crate::fault;
use crate::procfs;
use crate::root::{Files, gone};

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

/// Stops a process (SIGSTOP), journaled. Whether it was stopped: one that is stopped already, or has ended, is left
/// as it is, and never continued by us.
///
/// # Errors
/// [`Error::File`].
pub fn stop(hands: &mut Hands<'_>, task: TaskId) -> Result<bool> {
    match procfs::stat(hands.files, task.pid)? {
        Some(stat) if stat.id == task && !stat.leaving() && !stopped(stat.state) => {}
        _ => return Ok(false),
    }
    let what = Stopped::Task(task);
    hands.stopping(what.clone())?;
    match hands.files.signal(task, libc::SIGSTOP) {
        Ok(()) => {
            fault::boundary();
            Ok(true)
        }
        Err(e) => {
            hands.resumed(what)?;
            if gone(&e) {
                return Ok(false);
            }
            Err(Error::file(
                "stop",
                &format!("process {}", task.pid),
                None,
                e,
            ))
        }
    }
}

/// Lets a process go on that [`stop`] stopped. One that has ended meanwhile is no error.
///
/// # Errors
/// [`Error::File`].
pub fn resume(hands: &mut Hands<'_>, task: TaskId) -> Result<()> {
    match hands.files.signal(task, libc::SIGCONT) {
        Err(e) if !gone(&e) => {
            return Err(Error::file(
                "continue",
                &format!("process {}", task.pid),
                None,
                e,
            ));
        }
        _ => fault::boundary(),
    }
    hands.resumed(Stopped::Task(task))
}

/// Whether a state letter means stopped, by a signal or by a debugger.
#[must_use]
pub const fn stopped(state: char) -> bool {
    matches!(state, 'T' | 't')
}
