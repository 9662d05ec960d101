//! Processes that no group matches by itself, and that a person should know of.

use std::fmt;

use quell_types::ids::GroupId;
use quell_types::task::TaskId;

use crate::stat::Stat;

/// A process that no group matches by itself, and that a person should know of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The process.
    pub task: TaskId,
    /// Its command name.
    pub comm: String,
    /// Why none does.
    pub why: Why,
}

/// Why no group matches a process by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// These two match it.
    Two([GroupId; 2]),
    /// It lets its readers wait, and a group goes by arguments.
    Silent,
}

impl LeftOut {
    /// For this process.
    #[must_use]
    pub fn new(stat: &Stat, why: Why) -> Self {
        Self {
            task: stat.id,
            comm: stat.comm.clone(),
            why,
        }
    }

    /// Whether this group matches it.
    #[must_use]
    pub fn fits(&self, group: &str) -> bool {
        matches!(&self.why, Why::Two(groups) if groups.iter().any(|one| one == group))
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({}) ", self.task.pid, self.comm)?;
        match &self.why {
            Why::Two([one, other]) => write!(
                f,
                "is matched by two groups, {one} and {other}, and is in neither; make one of their match tables \
                 narrower"
            ),
            Why::Silent => write!(
                f,
                "lets whoever reads its arguments wait: no process of its user is matched by arg meanwhile; match them by \
                 exe or user"
            ),
        }
    }
}
