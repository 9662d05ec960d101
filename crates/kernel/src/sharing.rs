//! Which process shares the memory of another one: clone(2) with CLONE_VM, without CLONE_THREAD.
//! What belongs to the memory, or is written to all that share it, is then both processes'.
//!
//! All processes are compared (kcmp(2)), whatever their `stat` shows: a program may change all
//! numbers of its memory at any time (`PR_SET_MM_MAP`), so none of them can rule a process out.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::kcmp::MOST_LEFT;
use crate::procfs;
use crate::root::Files;
use crate::stat::Stat;

/// A child made by vfork(2) shares memory until it executes. It is looked at again after this.
const MOMENT: Duration = Duration::from_millis(5);
/// How often another thread is asked where the first has ended meanwhile.
const TRIES: u32 = 3;

/// The number of another process that shares the memory of process `pid`, 5 ms long at least.
/// `None` where there is none, where `pid` has ended, and where the root is no running kernel.
///
/// Where kcmp(2) does not answer (a kernel without it, a missing right, a process within
/// execve(2)), a process counts whose memory shows the same random addresses (proc_pid_stat(5)). So
/// does a forked relative then: what is given to neither is safe, what both have is not.
///
/// # Errors
/// [`Error::File`]; [`Error::Refused`] where it cannot be told.
pub fn sharer(files: &dyn Files, pid: u32) -> Result<Option<u32>> {
    let live = files.same_memory(pid, &[]);
    if live.is_err_and(|e| e.raw_os_error() == Some(libc::ENOSYS)) || look(files, pid)?.is_none() {
        return Ok(None);
    }
    std::thread::sleep(MOMENT);
    look(files, pid)
}

/// [`sharer`] and a sentence for who would be given something: both processes, and the remedy. Also
/// where it cannot be told; then only `pid` is named.
#[must_use]
pub fn obstacle(files: &dyn Files, pid: u32) -> Option<(Option<u32>, String)> {
    match sharer(files, pid) {
        Ok(None) => None,
        Ok(Some(by)) => {
            let why = format!(
                "process {by} shares the memory of process {pid} and would have it as well; end process {by}, or begin {pid} without it (fork or execve, not CLONE_VM)"
            );
            Some((Some(by), why))
        }
        Err(e) => Some((None, e.to_string())),
    }
}

fn look(files: &dyn Files, pid: u32) -> Result<Option<u32>> {
    for _ in 0..TRIES {
        let Some(tid) = with_memory(files, pid)? else {
            return Ok(None);
        };
        let found = among_all(files, pid, tid)?;
        // A thread that ended meanwhile had no memory, and was compared for nothing.
        if stat_with_memory(files, pid, tid)?.is_some() {
            return Ok(found);
        }
    }
    match with_memory(files, pid)? {
        None => Ok(None),
        Some(_) => Err(unknown(pid, "its threads end while they are looked at")),
    }
}

fn unknown(pid: u32, why: impl std::fmt::Display) -> Error {
    Error::refused(format!(
        "whether another process shares the memory of process {pid} cannot be told: {why}"
    ))
}

/// The process among all others that has the memory of this thread of process `pid`.
fn among_all(files: &dyn Files, pid: u32, tid: u32) -> Result<Option<u32>> {
    let names = files.names("/proc")?;
    let mut others = Vec::new();
    for other in names.iter().filter_map(|name| name.parse::<u32>().ok()) {
        // A process whose first thread has ended goes on with the others.
        let several = other != pid && procfs::threads(files, other)?.len() > 1;
        let asked = if several {
            with_memory(files, other)?
        } else {
            Some(other)
        };
        others.extend(asked.filter(|_| other != pid).map(|asked| (other, asked)));
    }
    let tasks: Vec<u32> = others.iter().map(|(_, task)| *task).collect();
    let answers = files.same_memory(tid, &tasks).map_err(|e| {
        let many = e.raw_os_error() == Some(libc::EBUSY);
        let many = many.then(|| format!("{MOST_LEFT} processes do not get on with execve"));
        unknown(pid, many.unwrap_or_else(|| e.to_string()))
    })?;
    for ((other, task), same) in others.into_iter().zip(answers) {
        let same = match same {
            Some(same) => same,
            None => {
                let own = addresses(files, tid)?;
                own.is_some() && own == addresses(files, task)?
            }
        };
        // A thread of the kernel borrows memory of a program for a while.
        if same && stat_with_memory(files, other, task)?.is_some() {
            return Ok(Some(other));
        }
    }
    Ok(None)
}

/// A thread of a process that has its memory: the first one, else another.
fn with_memory(files: &dyn Files, pid: u32) -> Result<Option<u32>> {
    if stat_with_memory(files, pid, pid)?.is_some() {
        return Ok(Some(pid));
    }
    for tid in procfs::threads(files, pid)? {
        if stat_with_memory(files, pid, tid)?.is_some() {
            return Ok(Some(tid));
        }
    }
    Ok(None)
}

/// The `stat` of a thread, unless it is the kernel's or has given its memory back.
fn stat_with_memory(files: &dyn Files, pid: u32, tid: u32) -> Result<Option<Stat>> {
    let stat = procfs::thread_stat(files, pid, tid)?;
    Ok(stat.filter(|stat| !stat.kernel_thread() && !stat.leaving()))
}

/// Where the stack and the arguments of a task begin: random for each execve(2), the same in those
/// that share memory, and in forked relatives. Zeroes where they may not be read. `None`: it has
/// ended.
fn addresses(files: &dyn Files, tid: u32) -> Result<Option<[String; 2]>> {
    let text = files.optional(&format!("/proc/{tid}/stat"))?;
    let fields = text.as_deref().and_then(|text| text.rsplit_once(')'));
    // The first field behind the name is field 3 of the manual page.
    let field = |number: usize| {
        let fields = fields.map(|(_, rest)| rest.split_ascii_whitespace());
        fields.and_then(|mut all| all.nth(number - 3).map(str::to_owned))
    };
    Ok(field(28).zip(field(48)).map(|(stack, args)| [stack, args]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kcmp::same;
    use crate::root::Kernel;

    /// A child that waits until it is killed.
    struct Child(libc::pid_t);

    impl Drop for Child {
        fn drop(&mut self) {
            // SAFETY: a child that was not waited for has this number.
            unsafe {
                libc::kill(self.0, libc::SIGKILL);
                libc::waitpid(self.0, std::ptr::null_mut(), 0);
            }
        }
    }

    extern "C" fn pauses(_: *mut libc::c_void) -> libc::c_int {
        loop {
            // SAFETY: no pointers. A signal kills the child.
            unsafe { libc::pause() };
        }
    }

    fn child(flags: libc::c_int, stack: &mut [u128]) -> Child {
        let top = stack.as_mut_ptr_range().end.cast();
        // SAFETY: the stack is aligned and outlives the child, which only pauses.
        let pid = unsafe { libc::clone(pauses, top, flags | libc::SIGCHLD, std::ptr::null_mut()) };
        assert!(pid > 0, "{}", std::io::Error::last_os_error());
        Child(pid)
    }

    #[test]
    fn who_shares_memory_is_found_and_a_forked_child_is_not() {
        let kernel = Kernel::new().unwrap();
        let own = std::process::id();
        match same(own, own) {
            Some(true) => {}
            _ => return quell_testing::skip("this kernel has no kcmp, or it is forbidden here"),
        }
        let mut stack = vec![0; 4096];
        let forked = child(0, &mut stack);
        let number = |child: &Child| u32::try_from(child.0).unwrap();
        assert_eq!(same(own, number(&forked)), Some(false));
        assert_eq!(
            addresses(&kernel, own).unwrap(),
            addresses(&kernel, number(&forked)).unwrap()
        );
        assert_eq!(sharer(&kernel, number(&forked)).unwrap(), None);
        let mut stack = vec![0; 4096];
        let sharing = child(libc::CLONE_VM, &mut stack);
        assert_eq!(sharer(&kernel, number(&sharing)).unwrap(), Some(own));
        assert_eq!(sharer(&kernel, own).unwrap(), Some(number(&sharing)));
        drop(sharing);
        assert_eq!(sharer(&kernel, own).unwrap(), None);
        assert_eq!(sharer(&Kernel::at("/nowhere"), own).unwrap(), None);
    }
}
