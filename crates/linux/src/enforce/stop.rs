//! Stopping single processes by SIGSTOP, while a run holds the machine.

use quell_kernel::error::{Error, Result};
use quell_kernel::pidfd::stopped;
use quell_kernel::procfs;
use quell_kernel::root::gone;
use quell_types::journal::Stopped;
use quell_types::task::TaskId;

use crate::change::JournaledWriter;
use crate::fault;

/// Stops a process (SIGSTOP), journaled. Returns whether this call stopped it. A process that is
/// stopped already, or has ended, is left as it is, and Quell never resumes it.
///
/// # Errors
/// [`Error::File`].
pub fn stop(writer: &mut JournaledWriter<'_>, task: TaskId) -> Result<bool> {
    match procfs::stat(writer.files, task.pid)? {
        Some(stat) if stat.id == task && !stat.leaving() && !stopped(stat.state) => {}
        _ => return Ok(false),
    }
    let what = Stopped::Task(task);
    writer.stopping(what.clone())?;
    match writer.files.signal(task, libc::SIGSTOP) {
        Ok(()) => {
            fault::boundary();
            Ok(true)
        }
        Err(e) => {
            writer.resumed(what)?;
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

/// Resumes a process that [`stop`] stopped. One that has ended meanwhile is no error.
///
/// # Errors
/// [`Error::File`].
pub fn resume(writer: &mut JournaledWriter<'_>, task: TaskId) -> Result<()> {
    match writer.files.signal(task, libc::SIGCONT) {
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
    writer.resumed(Stopped::Task(task))
}
