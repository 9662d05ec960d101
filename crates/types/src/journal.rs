//! What has to be known to revert a change, as plain data. The backend owns the file that it is
//! kept in and the undoing itself. This is the contract between them and the record.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cpuset::CpuSet;
use crate::task::TaskId;

/// What is kept from running.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Stopped {
    /// A process, by SIGSTOP.
    Task(TaskId),
    /// A cgroup, by this file (`cgroup.freeze` or `freezer.state`).
    Group(String),
}

/// One change and how to take it back. Recorded before the change is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "change")]
pub enum Undo {
    /// A kernel file was given a new value. Restored only if it still reads as `new` (or as what
    /// the kernel made of it).
    Write {
        /// The file.
        path: String,
        /// What it read before.
        old: String,
        /// What is written.
        new: String,
    },
    /// A file system was mounted. It goes only while nobody else has made anything in it.
    Mount {
        /// The mount point.
        path: String,
    },
    /// A cgroup, or a resctrl group, was made. Tasks still in it go to `heirs`' cgroup before it is
    /// removed.
    Cgroup {
        /// Its directory.
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
        /// The file.
        path: String,
        /// What it read before.
        old: String,
    },
    /// Something is stopped that ran before.
    Stop {
        /// What.
        what: Stopped,
    },
    /// The latest `Stop` of this before here was taken back in the course of the run: it runs, and
    /// if it is found stopped again, somebody else did that.
    Resume {
        /// What.
        what: Stopped,
    },
    /// A process's `oom_score_adj` was changed. Its children inherit the new one: whoever is in
    /// `dir` at the end and has it gets the old one, too.
    OomScore {
        /// The process.
        task: TaskId,
        /// Before.
        old: i32,
        /// After.
        new: i32,
        /// The cgroup it is in.
        dir: String,
    },
    /// A task's CPU affinity was changed.
    Affinity {
        /// The thread.
        task: TaskId,
        /// Before.
        old: CpuSet,
        /// After.
        new: CpuSet,
    },
}
