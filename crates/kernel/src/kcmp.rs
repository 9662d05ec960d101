//! Whether tasks have the same memory (kcmp(2)).
//!
//! The call waits for a process within execve(2), and a program can make that last (a file system
//! of its own, asked when a file is closed). So a thread compares, and is left where it waits.

use std::collections::BTreeSet;
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::stat::Stat;

/// Whether two tasks have the same memory (`KCMP_VM`, include/uapi/linux/kcmp.h).
const KCMP_VM: libc::c_int = 1;
/// How long one comparison is waited for.
const PATIENCE: Duration = Duration::from_millis(50);
/// The most threads that are left waiting.
pub(crate) const MOST_LEFT: usize = 16;

/// The tasks that threads wait for which were left.
static LEFT: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a thread has found so far.
#[derive(Default)]
struct Work {
    answers: Vec<Option<bool>>,
    /// The task that it waits for, once it was left.
    left: Option<u32>,
}

/// Whether a task has the same memory as each of the others. `None`: it cannot be told.
///
/// # Errors
/// EBUSY where too many comparisons wait for processes; the kernel's where there is no thread.
pub(crate) fn compare(one: u32, others: &[u32]) -> io::Result<Vec<Option<bool>>> {
    if others.is_empty() {
        return Ok(Vec::new());
    }
    // Alone first: so it is known which of two is waited for.
    if compare_next(one, &[one])?
        .first()
        .is_none_or(Option::is_none)
    {
        return Ok(vec![None; others.len()]);
    }
    let mut answers = Vec::new();
    while let Some(rest) = others.get(answers.len()..).filter(|r| !r.is_empty()) {
        answers.extend(compare_next(one, rest)?);
    }
    Ok(answers)
}

/// The answers up to the first task that is waited for, at least one.
fn compare_next(one: u32, others: &[u32]) -> io::Result<Vec<Option<bool>>> {
    {
        let left = locked(&LEFT);
        if others.first().is_some_and(|first| left.contains(first)) {
            return Ok(vec![None]);
        }
        if left.len() >= MOST_LEFT {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
    }
    let work = Arc::new(Mutex::new(Work::default()));
    let (begun, tid) = mpsc::channel();
    let (done, end) = mpsc::channel();
    let (theirs, asked) = (Arc::clone(&work), others.to_vec());
    let name = "compare".to_owned();
    std::thread::Builder::new().name(name).spawn(move || {
        let _ = begun.send(rustix::thread::gettid());
        for other in asked {
            // Who is waited for already is not asked again.
            if locked(&LEFT).contains(&other) {
                break;
            }
            let answer = same(one, other);
            let mut work = locked(&theirs);
            if let Some(left) = work.left {
                locked(&LEFT).remove(&left);
                return;
            }
            work.answers.push(answer);
        }
        let _ = done.send(());
    })?;
    let (mut before, mut worker) = (0, None);
    while let Err(RecvTimeoutError::Timeout) = end.recv_timeout(PATIENCE) {
        worker = worker.or_else(|| tid.try_recv().ok());
        let waits = worker.is_some_and(sleeps);
        let mut work = locked(&work);
        let now = work.answers.len();
        // A thread that only had no CPU is waited for.
        if waits && now == before && now < others.len() {
            work.left = others.get(now).copied();
            locked(&LEFT).extend(work.left);
            work.answers.push(None);
            break;
        }
        before = now;
    }
    let mut answers = std::mem::take(&mut locked(&work).answers);
    if answers.is_empty() {
        answers.push(None);
    }
    Ok(answers)
}

/// Whether a thread of ours waits within the kernel.
fn sleeps(tid: rustix::thread::Pid) -> bool {
    let path = format!("/proc/self/task/{}/stat", tid.as_raw_nonzero());
    let text = std::fs::read_to_string(path).unwrap_or_default();
    Stat::parse(&text).is_none_or(|stat| stat.state != 'R')
}

/// Whether two tasks have the same memory. `None`: it cannot be told.
pub(crate) fn same(one: u32, other: u32) -> Option<bool> {
    let [one, other] = [one, other].map(libc::pid_t::try_from);
    let (Ok(one), Ok(other)) = (one, other) else {
        return Some(false);
    };
    // SAFETY: no pointers.
    let done = unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) };
    match done {
        0 => Some(true),
        1.. => Some(false),
        _ => {
            let ended = io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
            ended.then_some(false)
        }
    }
}
