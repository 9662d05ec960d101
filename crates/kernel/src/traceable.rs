//! Which thread of a process can be made to do a system call ([`crate::trace`]), and what keeps a
//! process from that. proc_pid_status(5).

use std::time::{Duration, Instant};

use quell_types::task::TaskId;

use crate::error::Result;
use crate::procfs;
use crate::root::Files;
use crate::trace::Thread;

/// What keeps a process from being made to do a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// It is dead, though perhaps not reaped.
    Ended,
    /// It is stopped by a signal.
    Stopped,
    /// Another process traces it.
    Traced {
        /// Number of that process.
        by: u32,
    },
    /// It may do no calls but read(2), write(2) and to end (SECCOMP_MODE_STRICT). Filters are read
    /// once a thread is stopped ([`crate::seccomp`]).
    Strict,
}

impl std::fmt::Display for Obstacle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ended => f.write_str("it has ended"),
            Self::Stopped => f.write_str("it is stopped"),
            Self::Traced { by } => write!(f, "process {by} traces it, and only one can"),
            Self::Strict => f.write_str("it may only read and write (seccomp's strict mode)"),
        }
    }
}

/// What keeps a process from being made to do a call, as far as its `status` shows.
///
/// # Errors
/// [`Error::File`](crate::error::Error::File).
pub fn obstacle(files: &dyn Files, pid: u32) -> Result<Option<Obstacle>> {
    shown_by(files, &format!("/proc/{pid}/status"))
}

fn shown_by(files: &dyn Files, status: &str) -> Result<Option<Obstacle>> {
    let Some(text) = files.optional(status)? else {
        return Ok(Some(Obstacle::Ended));
    };
    let field = |name: &str| {
        text.lines()
            .find_map(|l| l.strip_prefix(name))
            .map(str::trim)
    };
    let number = |name| field(name).and_then(|f| f.parse::<u32>().ok()).unwrap_or(0);
    let state = field("State:").and_then(|f| f.chars().next());
    let by = number("TracerPid:");
    Ok(match state {
        Some('Z' | 'X') | None => Some(Obstacle::Ended),
        _ if by != 0 => Some(Obstacle::Traced { by }),
        Some('T' | 't') => Some(Obstacle::Stopped),
        _ if number("Seccomp:") == 1 => Some(Obstacle::Strict),
        _ => None,
    })
}

/// The same as one thread shows it, once no other process traces that. This is waited for until
/// then: the helper of a run that has died goes on until its call has ended. `meanwhile` is called
/// every millisecond.
///
/// # Errors
/// [`Error::File`](crate::error::Error::File).
pub fn untraced(
    files: &dyn Files,
    thread: Thread,
    until: Instant,
    meanwhile: &dyn Fn(),
) -> Result<Option<Obstacle>> {
    let status = procfs::thread_status_path(thread.of.pid, thread.tid);
    loop {
        let found = shown_by(files, &status)?;
        if !matches!(found, Some(Obstacle::Traced { .. })) || Instant::now() >= until {
            return Ok(found);
        }
        std::thread::sleep(Duration::from_millis(1));
        meanwhile();
    }
}

/// The thread that is asked: one that runs, because its system call would be interrupted otherwise.
/// Else one that sleeps, or any that has not ended. Never one of the kernel's (io_uring). `None`
/// where the process has ended.
#[must_use]
pub fn thread(files: &dyn Files, task: TaskId) -> Option<Thread> {
    let all = procfs::threads(files, task.pid).ok()?;
    let state = |tid: u32| {
        let stat = procfs::thread_stat(files, task.pid, tid).ok().flatten();
        let stat = stat.filter(|s| !s.leaving() && !s.io_worker());
        stat.map(|s| s.state)
    };
    let running = all.iter().find(|tid| state(**tid) == Some('R'));
    let sleeping = || all.iter().find(|tid| state(**tid) == Some('S'));
    let any = || all.iter().find(|tid| state(**tid).is_some());
    let tid = running.or_else(sleeping).or_else(any).copied()?;
    Some(Thread { of: task, tid })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Kernel;

    #[test]
    fn an_obstacle_is_read_from_the_status() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Kernel::at(dir.path());
        let of = |text: &str| {
            std::fs::create_dir_all(dir.path().join("proc/7")).unwrap();
            std::fs::write(dir.path().join("proc/7/status"), text).unwrap();
            obstacle(&kernel, 7).unwrap()
        };
        let status = |state: &str, tracer: u32, seccomp: u32| {
            format!("Name:\ta\nState:\t{state}\nTracerPid:\t{tracer}\nSeccomp:\t{seccomp}\n")
        };
        assert_eq!(of(&status("S (sleeping)", 0, 0)), None);
        assert_eq!(of(&status("Z (zombie)", 0, 0)), Some(Obstacle::Ended));
        assert_eq!(of(&status("T (stopped)", 0, 0)), Some(Obstacle::Stopped));
        let traced = of(&status("t (tracing stop)", 31, 0));
        assert_eq!(traced, Some(Obstacle::Traced { by: 31 }));
        assert_eq!(of(&status("R (running)", 0, 1)), Some(Obstacle::Strict));
        assert_eq!(of(&status("R (running)", 0, 2)), None);
        assert_eq!(obstacle(&kernel, 8).unwrap(), Some(Obstacle::Ended));
    }

    #[test]
    fn a_thread_of_the_program_is_asked_that_runs() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Kernel::at(dir.path());
        let task = TaskId { pid: 7, start: 1 };
        let put = |tid: u32, state: char, flags: u64| {
            let folder = dir.path().join(format!("proc/7/task/{tid}"));
            std::fs::create_dir_all(&folder).unwrap();
            let rest = "0 ".repeat(44);
            let stat = format!("{tid} (a) {state} 1 1 1 0 0 {flags} {rest}");
            std::fs::write(folder.join("stat"), stat).unwrap();
        };
        assert_eq!(thread(&kernel, task), None);
        let asked = || thread(&kernel, task).unwrap().tid;
        put(7, 'D', 0x40_0000);
        assert_eq!(asked(), 7);
        put(8, 'S', 0x40_0000);
        assert_eq!(asked(), 8);
        // One that io_uring has, as Linux 6.18 shows it.
        put(9, 'R', 4_210_768);
        assert_eq!(asked(), 8);
        put(10, 'R', 0x40_0000);
        assert_eq!(asked(), 10);
        for ended in [7, 8, 9] {
            put(ended, 'Z', 0x40_0000);
        }
        put(10, 'D', 0x40_0000);
        assert_eq!(asked(), 10);
        put(10, 'D', 0x40_0004);
        assert_eq!(thread(&kernel, task), None);
    }
}
