//! Processes that have a setting from another one, which was set on that one and is inherited when
//! it forks.

use std::collections::BTreeSet;

use quell_kernel::root::Files;
use quell_kernel::{cgroup_tree, procfs};
use quell_types::task::TaskId;

/// Processes between an heir and who it has its setting from.
const GENERATIONS: usize = 64;

/// Where the heirs of a process are.
pub struct Family<'a> {
    /// The cgroup with its children. Empty: they are not known.
    dir: &'a str,
    /// When the setting was made, in clock ticks since the boot.
    since: u64,
    /// Processes whose own setting of this kind is recorded.
    own: &'a BTreeSet<TaskId>,
}

impl<'a> Family<'a> {
    /// The family of a process in a cgroup, as the fields say.
    pub fn new(dir: &'a str, since: u64, own: &'a BTreeSet<TaskId>) -> Self {
        Self { dir, since, own }
    }

    /// The process, then those in the cgroup or below that may have the setting from it, as far as
    /// they are `wanted`. `has` says whether a process has the setting now. A v1 cgroup lists
    /// threads; these are processes, each once.
    pub fn of(
        &self,
        files: &dyn Files,
        task: TaskId,
        has: &dyn Fn(u32) -> bool,
        wanted: &dyn Fn(u32) -> bool,
    ) -> Vec<u32> {
        let process = |tid| procfs::process_of(files, tid).ok().flatten().unwrap_or(tid);
        let mut others = BTreeSet::new();
        if !self.dir.is_empty() {
            others.extend(
                cgroup_tree::suspects(files, self.dir)
                    .into_iter()
                    .map(process),
            );
        }
        others.remove(&task.pid);
        // A process that ended, or has another setting by now, is left alone.
        let all = std::iter::once(task.pid).chain(others);
        all.filter(|pid| wanted(*pid) && self.inherits(files, *pid, task, has))
            .collect()
    }

    /// Whether a process is this task, or a later descendant or orphan. An older process had its
    /// own setting, and so has one with an entry of its own.
    fn inherits(
        &self,
        files: &dyn Files,
        pid: u32,
        task: TaskId,
        has: &dyn Fn(u32) -> bool,
    ) -> bool {
        let begun = task.start.max(self.since);
        let stat = |pid| procfs::stat(files, pid).ok().flatten();
        let mut at = match stat(pid) {
            Some(stat) if stat.id == task => return true,
            Some(stat) if pid != task.pid => stat,
            _ => return false,
        };
        for _ in 0..GENERATIONS {
            if self.own.contains(&at.id) || at.id.start < begun {
                return false;
            }
            // An orphan's parent (the first process or a subreaper) cannot have handed on a setting
            // that it does not have. Another one may be an heir itself.
            let parent = at.parent;
            if parent == task.pid || parent == 1 || !has(parent) {
                return true;
            }
            match stat(parent) {
                Some(above) => at = above,
                None => return true,
            }
        }
        false
    }
}
