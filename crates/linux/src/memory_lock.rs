//! Processes that are made to lock their memory, and how that is reverted.
//!
//! Locked memory is what a process asks for itself (mlockall(2)), so one of its threads is made to
//! ask ([`quell_kernel::trace`]). A process without CAP_IPC_LOCK may lock up to a limit, and could
//! map nothing beyond it any more. So its limit is lifted as well.

use std::time::{Duration, Instant};

use quell_kernel::error::Result;
use quell_kernel::root::{Files, gone};
use quell_kernel::trace::{Call, Thread};
use quell_kernel::{limit, paging, procfs, rt, sharing, traceable};
use quell_types::journal::Undo;
use quell_types::task::{LockLimit, TaskId};
use quell_types::units::Bytes;

use crate::change::JournaledWriter;
use crate::fault;
use crate::heirs::Family;

/// The capability without which a limit holds (capability.h).
const CAP_IPC_LOCK: u32 = 14;
/// How often heirs are looked for as long as there are any: they may have children meanwhile.
pub const PASSES: usize = 16;

/// How an attempt to make a process lock its memory came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Locked {
    /// It has ended, or locks its memory already.
    Nothing,
    /// It locks its memory now. One of its threads was stopped so long.
    Now(Duration),
    /// It does not, for this reason.
    Not(String),
}

/// Records that a process has locked its memory since it was launched, with this limit before. Its
/// children are in `dir`.
///
/// # Errors
/// As [`crate::journal::Journal::record`].
pub fn launched(
    writer: &mut JournaledWriter<'_>,
    task: TaskId,
    before: LockLimit,
    dir: String,
) -> Result<()> {
    // It was born with it.
    let since = task.start;
    writer.journal.record(&Undo::Lock {
        task,
        before,
        dir,
        since,
    })
}

/// Makes a process lock its memory, journaled. With `filled`, what it has mapped is in memory
/// afterwards. Its children are in `dir`.
///
/// # Errors
/// As [`crate::journal::Journal::record`].
pub fn lock(
    writer: &mut JournaledWriter<'_>,
    task: TaskId,
    dir: &str,
    filled: bool,
    meanwhile: &mut dyn FnMut(),
) -> Result<Locked> {
    let files = writer.files;
    let Some(thread) = traceable::thread(files, task) else {
        return Ok(Locked::Nothing);
    };
    if let Some((_, why)) = sharing::obstacle(files, task.pid) {
        return Ok(Locked::Not(why));
    }
    // A program that executes another one keeps its number, its limit and its entry.
    let known = |e: &Undo| matches!(e, Undo::Lock { task: of, .. } if *of == task);
    let known = writer.journal.entries().iter().any(known);
    let (mark, since) = (writer.journal.mark(), rt::ticks_since_boot());
    let was = match files.lock_limit(task.pid, None) {
        Ok(was) => was,
        Err(e) if gone(&e) => return Ok(Locked::Nothing),
        Err(e) => return Ok(Locked::Not(why(&e))),
    };
    if !known {
        let before = match was {
            limit::ANY => inherited(writer, task, dir)?.unwrap_or(limit::ANY),
            was => was,
        };
        let dir = dir.to_owned();
        writer.journal.record(&Undo::Lock {
            task,
            before,
            dir,
            since,
        })?;
    }
    let call = Call::lock_memory(filled);
    let done = lift(files, task.pid).and_then(|before| {
        let back = || files.lock_limit(task.pid, Some(before));
        let called = files.call_within(thread, &call, Some(Call::UNLOCK_MEMORY), meanwhile);
        let called = called.inspect_err(|e| {
            if e.raw_os_error() != Some(libc::EINPROGRESS) {
                let _ = back();
            }
        });
        called.map(|stopped| (stopped, before))
    });
    match done {
        Ok((stopped, before)) => {
            fault::boundary();
            Ok(taken_back(files, task, before).map_or(Locked::Now(stopped), Locked::Not))
        }
        Err(e) => {
            let mut stays = Vec::new();
            // A call that goes on may still lock.
            if !known && e.raw_os_error() != Some(libc::EINPROGRESS) {
                stays = used_meanwhile(writer, task, was, dir, since)?;
                if stays.is_empty() {
                    writer.journal.retract(mark)?;
                }
            }
            Ok(match gone(&e) && stays.is_empty() {
                true => Locked::Nothing,
                false => {
                    stays.insert(0, why(&e));
                    Locked::Not(stays.join("; "))
                }
            })
        }
    }
}

/// Takes back what a process was given just now, where another one shares its memory by now.
/// Returns why. The entry stays: a child that was born meanwhile has the limit.
fn taken_back(files: &dyn Files, task: TaskId, before: LockLimit) -> Option<String> {
    let (by, mut why) = sharing::obstacle(files, task.pid)?;
    // The other one as well: the first may have executed another program meanwhile.
    let by = by.and_then(|pid| procfs::stat(files, pid).ok().flatten());
    let tasks = [Some(task), by.map(|stat| stat.id)];
    let unlocked = tasks
        .into_iter()
        .flatten()
        .map(|task| unlock(files, task, Instant::now(), &|| ()));
    let limit = std::iter::once_with(|| limit_back(files, task.pid, before));
    for stays in unlocked.chain(limit).filter_map(std::result::Result::err) {
        why = format!("{why}; {stays}");
    }
    Some(why)
}

/// Takes back what became of a limit that was lifted since then, for nothing: children that were
/// born meanwhile have it, and a process may have locked memory with it. Returns what stays.
fn used_meanwhile(
    writer: &mut JournaledWriter<'_>,
    task: TaskId,
    was: LockLimit,
    dir: &str,
    since: u64,
) -> Result<Vec<String>> {
    let files = writer.files;
    let own = writer.journal.entries().iter().filter_map(|e| match e {
        Undo::Lock { task, .. } => Some(*task),
        _ => None,
    });
    let own = own.collect();
    let family = Family::new(dir, since, &own);
    let has = |pid| is_lifted(files, pid, was);
    let unlocked = |pid| match task_of(files, pid)?.filter(|_| is_beyond(files, pid, was)) {
        Some(task) => unlock(files, task, Instant::now(), &|| ()),
        None => Ok(false),
    };
    let mut stays = Vec::from_iter(unlocked(task.pid).err());
    for _ in 0..PASSES {
        let mut heirs = family.of(files, task, &has, &has);
        heirs.retain(|pid| *pid != task.pid);
        if heirs.is_empty() {
            return Ok(stays);
        }
        for pid in heirs {
            let Err(why) = limit_back(files, pid, was).and_then(|_| unlocked(pid)) else {
                continue;
            };
            // With its limit it is no heir any more.
            if let Some(heir) = procfs::stat(files, pid)? {
                writer.journal.record(&Undo::Lock {
                    task: heir.id,
                    before: was,
                    dir: dir.to_owned(),
                    since: heir.id.start,
                })?;
            }
            stays.push(why);
        }
    }
    stays.push(endless(task));
    Ok(stays)
}

/// What is said of a process whose limit other ones get faster than it is taken from them.
pub fn endless(task: TaskId) -> String {
    format!(
        "children of process {} that have its limit of locked memory are born without end",
        task.pid
    )
}

/// The limit that a process would have without Quell: that of an ancestor before it was lifted. Of
/// an orphan in `dir` it is taken to be that of the last such process there. The parent of an
/// orphan is the first process, or one that cannot have given it its limit.
fn inherited(writer: &JournaledWriter<'_>, task: TaskId, dir: &str) -> Result<Option<LockLimit>> {
    let above = procfs::ancestry(writer.files, task.pid)?;
    let has_less = |pid: u32| {
        let limit = writer.files.lock_limit(pid, None);
        limit.is_ok_and(|limit| limit != limit::ANY)
    };
    let orphan = above
        .get(1)
        .is_none_or(|parent| *parent == 1 || has_less(*parent));
    let entries = writer.journal.entries().iter().rev();
    let mut lifted = entries.filter_map(|entry| match entry {
        Undo::Lock {
            task: of,
            before,
            dir: home,
            since,
        } if *before != limit::ANY => {
            let its = above.contains(&of.pid) || orphan && home == dir;
            (its && *since <= task.start).then_some(*before)
        }
        _ => None,
    });
    Ok(lifted.next())
}

/// Lifts the limit of a process. Returns what it was. Where that is not allowed, it is an error
/// only if the limit holds the process.
fn lift(files: &dyn Files, pid: u32) -> std::io::Result<LockLimit> {
    match files.lock_limit(pid, Some(limit::ANY)) {
        Err(e) if e.raw_os_error() == Some(libc::EPERM) => match is_free(files, pid) {
            Ok(true) => files.lock_limit(pid, None),
            _ => Err(std::io::Error::from_raw_os_error(libc::EDQUOT)),
        },
        other => other,
    }
}

/// Why a process could not be made to do a call.
fn why(error: &std::io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM) => {
            "it may not be traced: another program traces it, or the kernel forbids it (Yama's ptrace_scope, a container)".to_owned()
        }
        Some(libc::ENOEXEC) => "it runs 32-bit code".to_owned(),
        Some(libc::ENOTSUP) => {
            "it runs 32-bit code, or has no vDSO to enter the kernel from".to_owned()
        }
        Some(libc::ETIMEDOUT) => "none of its threads stopped: it waits for a disk, or is frozen".to_owned(),
        Some(libc::EDQUOT) => {
            "its limit of locked memory may not be lifted (CAP_SYS_RESOURCE is missing), and it lacks CAP_IPC_LOCK".to_owned()
        }
        Some(libc::EINPROGRESS) => "locking it takes longer than is waited for (5 s; a minute where it is filled)".to_owned(),
        Some(libc::EBUSY) => "its thread is always within a restartable sequence".to_owned(),
        Some(libc::EACCES) => {
            "a filter of its system calls (seccomp) denies mlockall or munlockall, or cannot be read; or it takes its system calls itself (PR_SET_SYSCALL_USER_DISPATCH)".to_owned()
        }
        Some(libc::EAGAIN | libc::ENOMEM) => {
            format!("the kernel could not lock its memory ({error})")
        }
        _ if gone(error) => "its threads end while they are asked".to_owned(),
        _ => format!("it could not be made to lock its memory ({error})"),
    }
}

/// What keeps a process from being made to lock its memory, in a sentence. `None` if nothing does
/// or the process has ended. With `filled`, `room` is the memory that there is for it.
///
/// # Errors
/// As [`traceable::obstacle`], [`paging::mappings_of`].
pub fn refusal(
    files: &dyn Files,
    pid: u32,
    filled: bool,
    room: Option<Bytes>,
) -> Result<Option<String>> {
    match traceable::obstacle(files, pid)? {
        None => {}
        Some(traceable::Obstacle::Ended) => return Ok(None),
        Some(obstacle) => return Ok(Some(obstacle.to_string())),
    }
    let Some(room) = room.filter(|_| filled) else {
        return Ok(None);
    };
    let mut wants = 0u64;
    for mapping in paging::mappings_of(files, pid)?
        .iter()
        .filter(|m| m.accessible)
    {
        let size = mapping.range.end.saturating_sub(mapping.range.start);
        wants = wants.saturating_add(size.saturating_sub(mapping.resident.0));
    }
    Ok((wants > room.0).then(|| {
        let (wants, missing) = (Bytes(wants), Bytes(wants - room.0));
        format!(
            "prefault would fill {wants} that it has mapped and not touched, and there are {room} ({missing} too little)"
        )
    }))
}

/// Reverts [`lock`], but for the limit: the process unlocks all. Whether it did, or why it did not.
/// What passes by itself is waited for until then.
pub fn unlock(
    files: &dyn Files,
    task: TaskId,
    until: Instant,
    alive: &dyn Fn(),
) -> std::result::Result<bool, String> {
    let pid = task.pid;
    let stays = |why: &str| format!("the memory of process {pid} stays locked: {why}");
    loop {
        let Some(first) = living_thread(files, task)? else {
            return Ok(false);
        };
        let thread = traceable::thread(files, task).unwrap_or(first);
        let obstacle = traceable::untraced(files, thread, until, alive);
        let obstacle = obstacle.map_err(|e| e.to_string())?;
        let locked = paging::locked_by(files, thread).map_err(|e| e.to_string())?;
        if locked == Some(Bytes(0)) {
            return Ok(false);
        }
        let done = match obstacle {
            None => files.call_within(thread, &Call::UNLOCK_MEMORY, None, &mut || alive()),
            // A thread has ended meanwhile, but perhaps not the process.
            Some(traceable::Obstacle::Ended) => Err(std::io::Error::from_raw_os_error(libc::ESRCH)),
            Some(obstacle) => return Err(stays(&obstacle.to_string())),
        };
        match done {
            Ok(_) => return Ok(true),
            Err(e) if passes(&e) && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(1));
                alive();
            }
            Err(e) if gone(&e) && living_thread(files, task)?.is_none() => return Ok(false),
            Err(e) => return Err(stays(&why(&e))),
        }
    }
}

/// A thread of a process that has not ended.
fn living_thread(files: &dyn Files, task: TaskId) -> std::result::Result<Option<Thread>, String> {
    let tid = procfs::living(files, task).map_err(|e| e.to_string())?;
    Ok(tid.map(|tid| Thread { of: task, tid }))
}

/// Whether what kept a process from doing a call may pass by itself: its thread has ended (ESRCH),
/// is traced (EPERM), is within a restartable sequence (EBUSY), or did not stop (ETIMEDOUT).
fn passes(error: &std::io::Error) -> bool {
    let known = [libc::EPERM, libc::EBUSY, libc::ETIMEDOUT];
    gone(error) || error.raw_os_error().is_some_and(|e| known.contains(&e))
}

/// Whether a process has more memory locked than this limit allows: what it locked while its limit
/// was lifted, or what was locked by another process that shares its memory.
///
/// # Errors
/// Why it could not be read.
pub fn exceeds(
    files: &dyn Files,
    task: TaskId,
    limit: LockLimit,
) -> std::result::Result<bool, String> {
    let Some((most, thread)) = limit.soft.zip(living_thread(files, task)?) else {
        return Ok(false);
    };
    let locked = paging::locked_by(files, thread).map_err(|e| e.to_string())?;
    Ok(locked.is_some_and(|locked| locked > Bytes(most)))
}

/// Whether a process has the limit that it was given, or a part of it that is more than it had: it
/// may have lowered it, and could not raise it above its own hard limit.
pub fn is_lifted(files: &dyn Files, pid: u32, before: LockLimit) -> bool {
    let above = |now: Option<u64>| {
        let hard = before.hard;
        hard.is_some_and(|hard| now.is_none_or(|now| now > hard))
    };
    let now = files.lock_limit(pid, None);
    before != limit::ANY && now.is_ok_and(|now| now == limit::ANY || above(now.hard))
}

/// Whether a process has more locked than the limit allows that was set back, and nothing else
/// allows it: it has the limit, and may not exceed it. It locked that while its limit was lifted.
fn is_beyond(files: &dyn Files, pid: u32, before: LockLimit) -> bool {
    let has = files.lock_limit(pid, None);
    has.is_ok_and(|now| now == before)
        && !is_free(files, pid).unwrap_or(false)
        && task_of(files, pid).is_ok_and(|task| {
            task.is_some_and(|task| exceeds(files, task, before).unwrap_or(false))
        })
}

/// Whether no limit of locked memory holds a process: it has CAP_IPC_LOCK in the first user
/// namespace. In one of its own everybody has all capabilities. That of a process which may do more
/// than this one cannot be read, and is the first.
fn is_free(files: &dyn Files, pid: u32) -> Result<bool> {
    /// Linux, `PROC_USER_INIT_INO` (linux/proc_ns.h).
    const FIRST: &str = "user:[4026531837]";
    let namespace = files.link(&format!("/proc/{pid}/ns/user"));
    Ok(procfs::is_capable(files, pid, CAP_IPC_LOCK)? && namespace.map_or(true, |ns| ns == FIRST))
}

/// Sets the limit of an heir back. Returns whether it was, and the heir if it has more locked than
/// that allows. A program may lose what it has locked itself by right: that looks the same.
///
/// # Errors
/// Why the limit could not be set back, or what is locked could not be read.
pub fn heir_back(
    files: &dyn Files,
    pid: u32,
    before: LockLimit,
) -> std::result::Result<(bool, Option<TaskId>), String> {
    let Some(heir) = task_of(files, pid)? else {
        return Ok((false, None));
    };
    let back = limit_back(files, pid, before)?;
    Ok((back, exceeds(files, heir, before)?.then_some(heir)))
}

fn task_of(files: &dyn Files, pid: u32) -> std::result::Result<Option<TaskId>, String> {
    let stat = procfs::thread_stat(files, pid, pid).map_err(|e| e.to_string())?;
    Ok(stat.map(|stat| stat.id))
}

/// Sets the limit of a process back. Whether it was, or why it could not be.
pub fn limit_back(
    files: &dyn Files,
    pid: u32,
    before: LockLimit,
) -> std::result::Result<bool, String> {
    match files.lock_limit(pid, Some(before)) {
        Ok(_) => Ok(true),
        Err(e) if gone(&e) => Ok(false),
        Err(e) => Err(format!(
            "the limit of locked memory of process {pid} could not be set back: {e}"
        )),
    }
}

#[cfg(test)]
#[path = "memory_lock_tests.rs"]
mod tests;
