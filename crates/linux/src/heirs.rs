//! Processes that have a setting from another one, which was set on that one and is inherited when
//! it forks.

use std::collections::BTreeSet;

use quell_kernel::root::Files;
use quell_kernel::{cgroup_tree, procfs};
use quell_types::task::TaskId;

/// The process and those in the cgroup `dir` or below that may have the setting from it and still
/// have it. `own` are the processes whose own setting is recorded.
pub fn of(
    files: &dyn Files,
    task: TaskId,
    dir: &str,
    own: &BTreeSet<TaskId>,
    has: &dyn Fn(u32) -> bool,
) -> Vec<u32> {
    let mut found = vec![task.pid];
    found.extend(cgroup_tree::tasks(files, dir));
    // A process that ended, or has another setting by now, is left alone.
    found.retain(|pid| inherits(files, *pid, task, own, has) && has(*pid));
    found
}

/// Whether a process is this task, or a later descendant or orphan. An older process had its own
/// setting, and so has one with an entry of its own.
fn inherits(
    files: &dyn Files,
    pid: u32,
    task: TaskId,
    own: &BTreeSet<TaskId>,
    has: &dyn Fn(u32) -> bool,
) -> bool {
    match procfs::stat(files, pid) {
        Ok(Some(stat)) if stat.id == task => true,
        Ok(Some(stat)) if own.contains(&stat.id) => false,
        Ok(Some(stat)) if pid != task.pid && stat.id.start >= task.start => {
            // An orphan's parent (the first process or a subreaper) cannot have handed on a setting
            // that it does not have.
            stat.parent == 1
                || !has(stat.parent)
                || procfs::ancestry(files, pid).is_ok_and(|chain| chain.contains(&task.pid))
        }
        _ => false,
    }
}
