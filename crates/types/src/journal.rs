//! What has to be known to revert a change, as plain data. The backend owns the file that it is
//! kept in and the undoing itself. This is the contract between them and the record.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cpuset::CpuSet;
use crate::pages::SideArea;
use crate::task::{LockLimit, TaskId};

/// What is kept from running.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Stopped {
    /// A process, by SIGSTOP.
    Task(TaskId),
    /// A cgroup, by this file (`cgroup.freeze` or `freezer.state`).
    Group(String),
}

/// A thread with CPUs of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct OwnCpus {
    /// The thread, with its start time.
    pub task: TaskId,
    /// The CPUs that it may run on.
    pub cpus: CpuSet,
}

/// One change and how to revert it. It is recorded before the change is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "change")]
pub enum Undo {
    /// A kernel file was given a new value. Restored only if it still reads as `new` (or as what
    /// the kernel made of it).
    Write {
        /// Path of the file.
        path: String,
        /// What it read before.
        old: String,
        /// The value that is written.
        new: String,
    },
    /// A file system was mounted. It is unmounted only while no other program has made anything in
    /// it.
    Mount {
        /// Path of the mount point.
        path: String,
    },
    /// A cgroup, or a resctrl group, was made. Tasks still in it go to `heirs`' cgroup before it is
    /// removed.
    Cgroup {
        /// The directory that was made.
        path: String,
        /// Where tasks go that are in it and that no other entry moves back.
        heir: String,
    },
    /// A task was moved between cgroups of one hierarchy, or between resctrl groups.
    Move {
        /// The task (a process: all its threads move).
        task: TaskId,
        /// The directory it came from.
        from: String,
        /// The directory it went to.
        to: String,
    },
    /// A kernel file is moved by a loop for as long as the run holds: what it reads meanwhile is
    /// not recorded, so that it goes back to `old` whatever it reads.
    Steer {
        /// Path of the file.
        path: String,
        /// What it read before.
        old: String,
    },
    /// A process or a cgroup that ran before is stopped.
    Stop {
        /// The process or cgroup.
        what: Stopped,
    },
    /// The latest `Stop` of this before here was reverted in the course of the run. If it is found
    /// stopped again, another program did that.
    Resume {
        /// The process or cgroup.
        what: Stopped,
    },
    /// A process's `oom_score_adj` was changed. Its children inherit the new value. At the end,
    /// each process in `dir` that has it gets the old one, too.
    OomScore {
        /// The process, with its start time.
        task: TaskId,
        /// The value before, -1000 to 1000.
        old: i32,
        /// The value after, -1000 to 1000.
        new: i32,
        /// The cgroup it is in.
        dir: String,
    },
    /// A process was made to lock its memory, and its limit of locked memory was lifted. Its
    /// children and the programs that it executes lock nothing by that.
    Lock {
        /// The process, with its start time.
        task: TaskId,
        /// What it could lock before (RLIMIT_MEMLOCK).
        before: LockLimit,
        /// The cgroup with its children, which inherit the limit.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        dir: String,
        /// When it was lifted, in clock ticks since the boot. Who began before has another one.
        #[serde(default)]
        since: u64,
    },
    /// Pages of a process are moved to other frames while its threads are stopped. Those that are
    /// still away are put back, from the side area that they were moved to.
    Settle {
        /// Where they are meanwhile.
        side: SideArea,
    },
    /// The threads in a cgroup and those below it are moved between CPUs for as long as the run
    /// holds. Whatever their affinity is then, they get back what they had.
    Place {
        /// The cgroup's directory.
        dir: String,
        /// The CPUs of its threads, and of those that are born in it.
        cpus: CpuSet,
        /// The threads that had other CPUs.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        own: Vec<OwnCpus>,
    },
    /// A task's CPU affinity was changed.
    Affinity {
        /// The thread, with its start time.
        task: TaskId,
        /// The CPUs allowed before.
        old: CpuSet,
        /// The CPUs allowed from now on.
        new: CpuSet,
    },
}
