//! Reverting changes: in reverse order, idempotent, and only where the written value still stands.
//!
//! Rules:
//! - A file is restored if it still reads as written, or as what the kernel makes of that (lists
//!   and masks are sets). A file that reads as before is done. Any other value was set by another
//!   program since: it is left, and named.
//! - A task is moved back if it is the same (number and start time) and still where it was put.
//! - A v2 cpuset that was not set cannot be emptied while it has tasks: it gets all there can be.
//! - A cgroup that Quell made is emptied ([`crate::origins`]), then removed with all below it.
//! - Of a `schemata` only the values that were written are restored, each by itself.
//! - A resctrl that Quell mounted is unmounted, unless other programs have made groups in it.
//! - Locked cache memory and its mount stay while it is open, a register while its CPU is offline.
//! - A value or CPU that a loop moved is restored, whatever it is now.
//! - Pages that are away come back.
//! - Only what Quell stopped and has not resumed since is resumed or thawed.
//! - A process with Quell's `oom_score_adj`, or with a part of it, where Quell moved its parent
//!   gets the old value.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use quell_kernel::cgroup_tree::{procs_file, tasks_in};
use quell_kernel::resctrl::lock::{For, Lock, PATIENCE};
use quell_kernel::resctrl::{Resctrl, Schemata};
use quell_kernel::root::{Files, gone};
use quell_kernel::value::{divided, only, same};
use quell_kernel::{cgroup_tree, freezer, irq, msr, oom, pidfd, privileges, procfs};
use quell_record::backend::Undone;
use quell_types::cpuset::CpuSet;
use quell_types::journal::{Stopped, Undo};
use quell_types::task::{LockLimit, TaskId};
use rustix::thread::CapabilitySet;

use crate::heirs::Family;
use crate::journal::{Journal, Mark};
use crate::placement::{self, Back};
use crate::{fault, memory_lock, unsettle};

mod removing;

/// How long all programs together are waited for that cannot be made to unlock their memory yet.
const UNLOCKS_WITHIN: Duration = Duration::from_secs(10);

/// The result of undoing a journal's entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// What was restored and what was left, for a person.
    pub undone: Undone,
    /// Entries that could not be reverted although they should have been. Worth another try.
    pub failed: Vec<Undo>,
}

/// Reverts `entries` (oldest first), latest first.
pub fn undo(files: &dyn Files, entries: &[Undo]) -> Outcome {
    undo_while(files, entries, &|| {})
}

/// The same, calling `alive` before each entry and each new try.
pub fn undo_while(files: &dyn Files, entries: &[Undo], alive: &dyn Fn()) -> Outcome {
    let mut work = Work::new(files, entries, alive);
    let mut locking = Vec::new();
    for entry in entries.iter().rev() {
        fault::boundary();
        alive();
        work.lock(entry);
        let result = match entry {
            Undo::Write { path, old, new } => work.write(path, old, new),
            Undo::Steer { path, old } => work.set_back(path, old),
            Undo::Stop { what } => work.go_on(what),
            Undo::Resume { what } => {
                *work.resumed.entry(what).or_default() += 1;
                Ok(false)
            }
            Undo::OomScore {
                task,
                old,
                new,
                dir,
            } => work.oom_score(*task, *old, *new, dir),
            Undo::Move { task, from, to } => work.put_back(*task, from, to),
            Undo::Lock {
                task,
                before,
                dir,
                since,
            } => {
                locking.push((entry.clone(), false));
                work.limits_of_heirs(*task, *before, dir, *since, &mut locking)
            }
            Undo::Settle { side } => unsettle::finish(files, side, alive),
            Undo::Affinity { task, old, new } => work.affinity(*task, old, new),
            Undo::Place { dir, cpus, own } => placement::put_back(files, dir, cpus, own),
            Undo::Cgroup { path, heir } => work.remove(path, heir),
            Undo::Mount { path } => work.unmount(path),
        };
        work.note(entry, result);
    }
    // A program can have whoever makes it unlock its memory wait. So that comes last, and its limit
    // after that: with more locked than it may lock it could map nothing.
    let until = Instant::now() + UNLOCKS_WITHIN;
    let mut next = 0;
    while let Some((entry, is_heir)) = locking.get(next).cloned() {
        next += 1;
        fault::boundary();
        alive();
        let result = work.unlock(&entry, is_heir, until, &mut locking);
        work.note(&entry, result);
    }
    work.outcome.failed.reverse();
    work.outcome
}

impl Journal {
    /// Reverts everything recorded since `mark`, latest first, and forgets it. What could not be
    /// reverted stays in the journal and is named in [`Undone::left`]. Changes by other programs
    /// are only named.
    pub fn undo_to(&mut self, files: &dyn Files, mark: Mark) -> Undone {
        let mut outcome = undo_while(files, self.since(mark), &|| self.beat());
        fault::boundary();
        if let Err(error) = self.replace(mark, &outcome.failed) {
            outcome.undone.left.push(error.to_string());
        }
        outcome.undone
    }

    /// Reverts everything, as [`Self::undo_to`].
    pub fn undo_all(&mut self, files: &dyn Files) -> Undone {
        self.undo_to(files, Mark::default())
    }
}

struct Work<'a> {
    files: &'a dyn Files,
    alive: &'a dyn Fn(),
    entries: &'a [Undo],
    /// Cgroups that this undoing will remove: their settings need not be restored first.
    made: BTreeSet<&'a str>,
    /// Tasks whose `oom_score_adj` is recorded.
    scored: BTreeSet<TaskId>,
    /// Processes whose `oom_score_adj` was set back, by the task that it was recorded of.
    rescored: BTreeMap<u32, TaskId>,
    /// Heirs whose limit of locked memory was set back, by the task that they had it from.
    limited: BTreeMap<u32, TaskId>,
    /// Tasks whose limit of locked memory is recorded.
    lifted: BTreeSet<TaskId>,
    /// Files that the kernel refused to change: they read as before.
    refused: BTreeSet<&'a str>,
    /// What Quell has resumed itself, and how many of its stops that reverts.
    resumed: BTreeMap<&'a Stopped, u32>,
    /// Tasks by directory, as read when first needed.
    members: BTreeMap<&'a str, BTreeSet<u32>>,
    /// Set while entries below resctrl are to be reverted and its lock was not asked for yet.
    resctrl: Option<Resctrl>,
    lock: Option<Lock>,
    outcome: Outcome,
}

/// `Ok(true)`: reverted. `Ok(false)`: nothing to do. `Err`: what failed, in a sentence.
type Step = Result<bool, String>;

impl<'a> Work<'a> {
    fn new(files: &'a dyn Files, entries: &'a [Undo], alive: &'a dyn Fn()) -> Self {
        let made = entries
            .iter()
            .filter_map(|e| match e {
                Undo::Cgroup { path, .. } => Some(path.as_str()),
                _ => None,
            })
            .collect();
        let scored = entries.iter().filter_map(|e| match e {
            Undo::OomScore { task, .. } => Some(*task),
            _ => None,
        });
        let lifted = entries.iter().filter_map(|e| match e {
            Undo::Lock { task, .. } => Some(*task),
            _ => None,
        });
        let refused = entries.iter().filter_map(|e| match e {
            Undo::Write { path, old, new } if old == new => Some(path.as_str()),
            _ => None,
        });
        let parts = |e: &Undo| matches!(e, Undo::Write { path, .. } | Undo::Steer { path, .. } if divided(path));
        let parts = entries.iter().any(parts);
        let resctrl = parts.then(|| Resctrl::find(files).ok().flatten());
        Self {
            files,
            alive,
            entries,
            made,
            scored: scored.collect(),
            rescored: BTreeMap::new(),
            limited: BTreeMap::new(),
            lifted: lifted.collect(),
            refused: refused.collect(),
            resumed: BTreeMap::new(),
            members: BTreeMap::new(),
            resctrl: resctrl.flatten(),
            lock: None,
            outcome: Outcome::default(),
        }
    }

    /// Takes the lock that other tools take, too, before the first entry below resctrl. A tool that
    /// keeps the lock does not prevent the reverting.
    fn lock(&mut self, entry: &Undo) {
        let (Undo::Write { path, .. }
        | Undo::Steer { path, .. }
        | Undo::Cgroup { path, .. }
        | Undo::Move { to: path, .. }) = entry
        else {
            return;
        };
        let below = |r: &mut Resctrl| path.starts_with(&format!("{}/", r.root));
        if let Some(resctrl) = self.resctrl.take_if(below) {
            self.lock = resctrl.lock(self.files, For::Changing, PATIENCE).ok();
            (self.alive)();
        }
    }

    /// Takes note of what became of an entry.
    fn note(&mut self, entry: &Undo, result: Step) {
        match result {
            Ok(true) => self.outcome.undone.restored += 1,
            Ok(false) => {}
            Err(what) => {
                self.outcome.undone.left.push(what);
                if !self.outcome.failed.contains(entry) {
                    self.outcome.failed.push(entry.clone());
                }
            }
        }
    }

    fn leave(&mut self, what: String) -> Step {
        self.outcome.undone.left.push(what);
        Ok(false)
    }

    fn write(&mut self, path: &str, old: &str, new: &str) -> Step {
        // The exceptions: a parent cannot lose a controller that a child has. A partition may not
        // give its CPUs back if removed: one made invalid by a sibling (6.12), a valid local one
        // (6.1). An exclusive resctrl group keeps other groups from their ways.
        let first = ["/cgroup.subtree_control", "/cpuset.cpus.partition", "/mode"];
        if !first.iter().any(|name| path.ends_with(name))
            && path
                .rsplit_once('/')
                .is_some_and(|(dir, _)| self.made.contains(dir))
        {
            return Ok(false);
        }
        let written = if self.refused.contains(path) {
            old
        } else {
            new
        };
        let now = match irq::read_settled(self.files, path, written) {
            Ok(text) => text.trim().to_owned(),
            Err(e) if gone(&e) && msr::parse(path).is_some() => return Err(msr::unreached(path)),
            Err(e) if gone(&e) => return Ok(false),
            Err(e) => return Err(format!("{path} could not be read: {e}")),
        };
        if divided(path) {
            return self.divide_back(path, &now, old, new);
        }
        if path.ends_with("/cgroup.subtree_control") {
            let controller = new.trim_start_matches('+');
            if !now.split_ascii_whitespace().any(|c| c == controller) {
                return Ok(false);
            }
        } else if same(path, &now, old)
            || self
                .unset(path, old)
                .is_some_and(|all| same(path, &now, &all))
        {
            return Ok(false);
        } else if !same(path, &now, new) {
            return self.leave(format!(
                "{path} reads '{now}', not the '{}' that was written: somebody has changed it since",
                new.trim()
            ));
        }
        let written = match self.files.write(path, old) {
            Err(e) if e.raw_os_error() == Some(libc::ENOSPC) => match self.unset(path, old) {
                Some(all) => self.files.write(path, &all),
                None => Err(e),
            },
            other => other,
        };
        match written {
            Err(e)
                if e.raw_os_error() == Some(libc::EBUSY)
                    && path.ends_with("/cgroup.subtree_control") =>
            {
                self.leave(format!(
                    "{path} keeps {}: other cgroups use it by now",
                    old.trim_start_matches('-')
                ))
            }
            written => put_result(path, old, written),
        }
    }

    /// All that the machine can have, where a v2 cpuset was not set. It cannot be emptied while it
    /// has tasks (ENOSPC), and this value, too, leaves the cgroup what its parent has.
    fn unset(&self, path: &str, old: &str) -> Option<String> {
        let possible = match path.rsplit('/').next() {
            _ if !old.trim().is_empty() => return None,
            Some("cpuset.cpus") => "/sys/devices/system/cpu/possible",
            Some("cpuset.mems") => "/sys/devices/system/node/possible",
            _ => return None,
        };
        let all = self.files.read(possible).ok()?.trim().to_owned();
        (!all.is_empty()).then_some(all)
    }

    /// Restores each value by itself, so that a changed or missing one does not prevent the rest.
    fn divide_back(&mut self, path: &str, now: &str, old: &str, new: &str) -> Step {
        let (back, theirs) =
            Schemata::parse(now).back(&Schemata::parse(old), &Schemata::parse(new));
        if !theirs.is_empty() {
            self.outcome.undone.left.push(format!(
                "{path} reads '{theirs}', where '{new}' was written: somebody has changed it since"
            ));
        }
        match back.is_empty() {
            true => Ok(false),
            false => self.put(path, &back.to_string()),
        }
    }

    fn set_back(&self, path: &str, old: &str) -> Step {
        let now = match self.files.read(path) {
            Ok(now) => now,
            Err(e) if gone(&e) => return Ok(false),
            Err(e) => return Err(format!("{path} could not be read: {e}")),
        };
        let old = only(path, old, &now);
        match same(path, &now, &old) {
            true => Ok(false),
            false => self.put(path, &old),
        }
    }

    fn put(&self, path: &str, old: &str) -> Step {
        put_result(path, old, self.files.write(path, old))
    }

    fn go_on(&mut self, what: &'a Stopped) -> Step {
        if let Some(resumed) = self.resumed.get_mut(what).filter(|n| **n > 0) {
            *resumed -= 1;
            return Ok(false);
        }
        let (done, name) = match what {
            Stopped::Task(task) => {
                let stat = procfs::stat(self.files, task.pid).map_err(|e| e.to_string())?;
                let Some(stat) = stat.filter(|s| s.id == *task) else {
                    return Ok(false);
                };
                // A process that waits for a disk stops after that: the signal cancels the stop.
                let done = self.files.signal(*task, libc::SIGCONT);
                if done.is_ok() && !pidfd::stopped(stat.state) {
                    return Ok(false);
                }
                (done, format!("process {}", task.pid))
            }
            Stopped::Group(path) => {
                match self.files.read(path) {
                    Ok(now) if !freezer::is_frozen(&now) => return Ok(false),
                    Ok(_) => {}
                    Err(e) if gone(&e) => return Ok(false),
                    Err(e) => return Err(format!("{path} could not be read: {e}")),
                }
                (self.files.write(path, freezer::thawing(path)), path.clone())
            }
        };
        match done {
            Ok(()) => Ok(true),
            Err(e) if gone(&e) => Ok(false),
            Err(e) => Err(format!("{name} could not be let go on: {e}")),
        }
    }

    fn oom_score(&mut self, task: TaskId, old: i32, new: i32, dir: &str) -> Step {
        let mine = |pid| self.rescored.get(&pid).is_none_or(|by| *by == task);
        let value = |pid| oom::adjustment(self.files, pid).ok().flatten();
        // A process may raise its own value: what is left of what it was given goes as well.
        let given = |now: i32| now == new || (new..old).contains(&now);
        let has = |pid| mine(pid) && value(pid).is_some_and(given);
        let wanted = |pid| has(pid) || new < old && mine(pid);
        let family = Family::new(dir, task.start, &self.scored);
        let (mut any, mut done) = (false, Vec::new());
        for pid in family.of(self.files, task, &has, &wanted) {
            let Some(now) = value(pid) else { continue };
            match self.files.write(&oom::path(pid), &old.to_string()) {
                Ok(()) if given(now) => any = true,
                // It has raised its value, and could lower it again to what it was given: the
                // kernel notes the lowest by what root writes.
                Ok(()) => privileges::without(CapabilitySet::SYS_RESOURCE, || {
                    let _ = self.files.write(&oom::path(pid), &now.to_string());
                }),
                Err(e) if gone(&e) => {}
                // Without the capability it may not be lowered, and was not before.
                Err(_) if !given(now) => {}
                Err(e) => {
                    return Err(format!(
                        "the oom_score_adj of process {pid} could not be set back to {old}: {e}"
                    ));
                }
            }
            done.push((pid, task));
        }
        self.rescored.extend(done);
        Ok(any)
    }

    /// Sets the limits of locked memory back in the heirs of a task. Their memory is not locked by
    /// what it was made to do, but they may share it, or have locked some themselves: entries of
    /// heirs that have more locked than they may are put to those that are to unlock (`locking`).
    fn limits_of_heirs(
        &mut self,
        task: TaskId,
        before: LockLimit,
        dir: &str,
        since: u64,
        locking: &mut Vec<(Undo, bool)>,
    ) -> Step {
        let family = Family::new(dir, since, &self.lifted);
        let has = |pid| memory_lock::is_lifted(self.files, pid, before);
        let mut any = false;
        // Its children may have children meanwhile.
        for _ in 0..memory_lock::PASSES {
            let mine = |pid| self.limited.get(&pid).is_none_or(|by| *by == task);
            let has = |pid| mine(pid) && has(pid);
            let mut heirs = family.of(self.files, task, &has, &has);
            heirs.retain(|pid| *pid != task.pid);
            if heirs.is_empty() {
                return Ok(any);
            }
            for pid in heirs {
                let (back, heir) = memory_lock::heir_back(self.files, pid, before)?;
                any |= back;
                let entry = |heir: TaskId| Undo::Lock {
                    task: heir,
                    before,
                    dir: dir.to_owned(),
                    since: heir.start,
                };
                locking.extend(heir.map(|heir| (entry(heir), true)));
                self.limited.insert(pid, task);
            }
        }
        Err(memory_lock::endless(task))
    }

    /// Makes a task unlock its memory, then sets its limit back, and those of children that it had
    /// meanwhile. An heir, which has its limit, is asked while there is time.
    fn unlock(
        &mut self,
        entry: &Undo,
        is_heir: bool,
        until: Instant,
        locking: &mut Vec<(Undo, bool)>,
    ) -> Step {
        let Undo::Lock {
            task,
            before,
            dir,
            since,
        } = entry
        else {
            return Ok(false);
        };
        if is_heir && Instant::now() >= until {
            let pid = task.pid;
            return Err(format!(
                "the memory of process {pid} stays locked: no time is left"
            ));
        }
        let unlock = |work: &Self| memory_lock::unlock(work.files, *task, until, work.alive);
        let unlocked = unlock(self);
        let back = self.limit_of(*task, *before)?;
        // It may have locked anew before it had its limit.
        if back && memory_lock::exceeds(self.files, *task, *before)? {
            unlock(self)?;
        }
        let heirs = back && self.limits_of_heirs(*task, *before, dir, *since, locking)?;
        Ok(unlocked? || back || heirs)
    }

    fn limit_of(&self, task: TaskId, before: LockLimit) -> Step {
        let is = procfs::stat(self.files, task.pid).map_err(|e| e.to_string())?;
        let is = is.is_some_and(|stat| stat.id == task);
        match is && memory_lock::is_lifted(self.files, task.pid, before) {
            true => memory_lock::limit_back(self.files, task.pid, before),
            false => Ok(false),
        }
    }

    fn put_back(&mut self, task: TaskId, from: &'a str, to: &'a str) -> Step {
        if !self.is_member(to, task.pid) {
            // A task that is exiting is listed in no group; it was not moved.
            let stays = matches!(procfs::thread_stat(self.files, task.pid, task.pid),
                Ok(Some(stat)) if stat.id == task && !stat.leaving());
            if stays && !self.is_member(from, task.pid) && self.files.exists(to) {
                return self.leave(format!(
                    "task {} was not moved back to {from}: somebody has moved it since",
                    task.pid
                ));
            }
            return Ok(false);
        }
        match procfs::thread_stat(self.files, task.pid, task.pid) {
            Ok(Some(stat)) if stat.id == task => {}
            // It ended, or is a later task of the same number, which leaves with its cgroup.
            Ok(_) => return Ok(false),
            Err(e) => return Err(e.to_string()),
        }
        let file = self.entrance(from, task.pid);
        match self.files.write(&file, &task.pid.to_string()) {
            Ok(()) => {
                if let Some(members) = self.members.get_mut(from) {
                    members.insert(task.pid);
                    if file.ends_with("/cgroup.procs") {
                        members.extend(procfs::threads(self.files, task.pid).unwrap_or_default());
                    }
                }
                if let Some(members) = self.members.get_mut(to) {
                    members.remove(&task.pid);
                }
                Ok(true)
            }
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(false),
            Err(e) if gone(&e) => {
                self.leave(format!("task {} cannot go back: {from} is gone", task.pid))
            }
            // It leaves with its cgroup: for there once more, or for another place.
            Err(_) if self.made.contains(to) => Ok(false),
            // A threaded cgroup whose owner has made another one of that name.
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => self.leave(format!(
                "task {} cannot go back: {from} takes no threads",
                task.pid
            )),
            Err(e) => Err(format!(
                "task {} could not be moved back to {from}: {e}",
                task.pid
            )),
        }
    }

    /// The file through which a task goes back. On v2 a thread does so by itself only where the
    /// cgroups are threaded, after its process.
    fn entrance(&self, dir: &str, tid: u32) -> String {
        let threads = format!("{dir}/cgroup.threads");
        let process = procfs::process_of(self.files, tid).ok().flatten();
        match process.is_some_and(|process| process != tid) && self.files.exists(&threads) {
            true => threads,
            false => procs_file(self.files, dir),
        }
    }

    /// Whether a task is in a cgroup: a thread (v1), a process or a thread of its own place (v2).
    fn is_member(&mut self, dir: &'a str, tid: u32) -> bool {
        let files = self.files;
        let members = self.members.entry(dir).or_insert_with(|| {
            let threads = files.read(&format!("{dir}/cgroup.threads"));
            let tasks = tasks_in(files, dir).unwrap_or_default();
            let threads = threads.unwrap_or_default();
            tasks
                .into_iter()
                .chain(cgroup_tree::listed(&threads))
                .collect()
        });
        members.contains(&tid)
    }

    fn affinity(&mut self, task: TaskId, old: &CpuSet, new: &CpuSet) -> Step {
        match placement::put_thread_back(self.files, task, old, new)? {
            Back::Left(what) => self.leave(what),
            back => Ok(back == Back::Done),
        }
    }
}

/// What writing an old value did, where it may be gone by now.
fn put_result(path: &str, old: &str, written: std::io::Result<()>) -> Step {
    match written {
        Ok(()) => Ok(true),
        Err(e) if gone(&e) => Ok(false),
        Err(e) => Err(format!(
            "{path} could not be set back to '{}': {e}",
            old.trim()
        )),
    }
}

#[cfg(test)]
#[path = "undo_tests.rs"]
mod tests;
