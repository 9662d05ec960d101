//! Tasks that the kernel's fair scheduler does not schedule. No weight, `cpu.max` or `cpu.idle`
//! holds them.
//!
//! Real-time and deadline tasks have schedulers of their own (sched(7)). A loaded sched_ext
//! scheduler also schedules ordinary tasks (Documentation/scheduler/sched-ext.rst), and may ignore
//! these values.

use std::fmt;

use crate::cgroup_tree;
use crate::error::{Error, Result};
use crate::procfs;
use crate::root::Files;

/// `SCHED_DEADLINE` and `SCHED_EXT`, which the C library's headers name only in part
/// (linux/sched.h).
const DEADLINE: i32 = 6;
const EXT: i32 = 7;

/// A task that the fair scheduler does not schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exempt {
    /// Thread id of the task.
    pub task: u32,
    /// The thread's name (`comm`).
    pub comm: String,
    /// The name of its scheduling policy, as in sched(7).
    pub policy: &'static str,
}

impl fmt::Display for Exempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {} ({}) is {}", self.task, self.comm, self.policy)
    }
}

/// The first such task in these cgroups and those below them. A task that has ended is left out.
#[must_use]
pub fn exempt(files: &dyn Files, dirs: &[String]) -> Option<Exempt> {
    first(files, dirs, &|_, _| true)
}

/// The first task in these cgroups and those below them that a real-time thread of this priority
/// does not preempt. A task that has ended is left out.
#[must_use]
pub fn above(files: &dyn Files, dirs: &[String], priority: i32) -> Option<Exempt> {
    first(files, dirs, &|task, number| match number {
        DEADLINE => true,
        libc::SCHED_FIFO | libc::SCHED_RR => {
            procfs::rt_priority(files, task).is_none_or(|own| own >= priority)
        }
        _ => false,
    })
}

/// The first task, by id and policy, that is `such` and that the fair scheduler does not schedule.
fn first(files: &dyn Files, dirs: &[String], such: &dyn Fn(u32, i32) -> bool) -> Option<Exempt> {
    let found = dirs.iter().find_map(|dir| {
        let mut tasks = cgroup_tree::threads(files, dir).into_iter();
        tasks.find_map(|task| {
            let number = files.scheduler(task).ok()?;
            let policy = policy(number)?;
            such(task, number).then_some((task, policy))
        })
    });
    let (task, policy) = found?;
    let stat = procfs::stat(files, task).ok().flatten()?;
    Some(Exempt {
        task,
        comm: stat.comm,
        policy,
    })
}

/// Refuses a group with such a task in its cgroups: neither a limit of CPU time nor a brake holds
/// it.
///
/// # Errors
/// [`Error::Refused`].
pub fn required(files: &dyn Files, group: &str, dirs: &[String]) -> Result<()> {
    match exempt(files, dirs) {
        None => Ok(()),
        Some(task) => Err(Error::refused_with(
            format!("group {group}: {task}: its limit would not hold that"),
            format!(
                "make it ordinary (chrt --other --pid 0 {}), or leave its process out of the group",
                task.task
            ),
        )),
    }
}

/// The name of a policy that is not the fair scheduler's. `None` for the fair ones.
const fn policy(number: i32) -> Option<&'static str> {
    Some(match number {
        libc::SCHED_FIFO => "SCHED_FIFO",
        libc::SCHED_RR => "SCHED_RR",
        DEADLINE => "SCHED_DEADLINE",
        EXT => "SCHED_EXT",
        _ => return None,
    })
}

/// The name of the loaded sched_ext scheduler. `None` where none is loaded.
#[must_use]
pub fn replaced_by(files: &dyn Files) -> Option<String> {
    let read = |name| files.optional(&format!("/sys/kernel/sched_ext/{name}"));
    let state = read("state").ok().flatten()?;
    if state.trim() == "disabled" {
        return None;
    }
    let name = read("root/ops").ok().flatten().unwrap_or_default();
    Some(match name.trim() {
        "" => "unnamed".to_owned(),
        name => name.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Kernel;

    #[test]
    fn a_loaded_scheduler_is_known_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Kernel::at(dir.path());
        assert_eq!(replaced_by(&kernel), None, "a kernel without sched_ext");
        let at = dir.path().join("sys/kernel/sched_ext");
        std::fs::create_dir_all(at.join("root")).unwrap();
        std::fs::write(at.join("state"), "disabled\n").unwrap();
        assert_eq!(replaced_by(&kernel), None);
        std::fs::write(at.join("state"), "enabled\n").unwrap();
        assert_eq!(replaced_by(&kernel).as_deref(), Some("unnamed"));
        std::fs::write(at.join("root/ops"), "rusty_1.0\n").unwrap();
        assert_eq!(replaced_by(&kernel).as_deref(), Some("rusty_1.0"));
    }
}
