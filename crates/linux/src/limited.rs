//! Processes that stay where they are, below a limit of memory of their own.

use std::fmt;

use quell_kernel::cgroup::Hierarchy;
use quell_kernel::error::Result;
use quell_kernel::memory::Memory;
use quell_kernel::procfs::Stat;
use quell_kernel::root::Files;
use quell_types::task::TaskId;
use quell_types::units::Bytes;

use crate::group_cgroups::within;

/// A process that stays in its cgroup, because a limit of memory would not hold for it elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limited {
    /// The process.
    pub task: TaskId,
    /// Its command name.
    pub comm: String,
    /// The cgroup with the limit, from the root of its hierarchy.
    pub cgroup: String,
    /// The limit.
    pub limit: Bytes,
}

impl Limited {
    /// The limit of memory that a process in the cgroup `from` would leave if it was moved `to`
    /// another one of this hierarchy: the machine would have to bear what its owner has limited.
    ///
    /// # Errors
    /// [`quell_kernel::error::Error::File`].
    pub fn find(
        files: &dyn Files,
        hierarchy: &Hierarchy,
        process: &Stat,
        from: &str,
        to: &str,
    ) -> Result<Option<Self>> {
        if !hierarchy.controllers.iter().any(|c| c == "memory") {
            return Ok(None);
        }
        let chain = Memory::of(hierarchy, from).chain();
        for dir in chain.iter().rev().filter(|dir| !within(to, dir)) {
            if let Some(limit) = Memory::of(hierarchy, dir).limit(files)? {
                let cgroup = dir.strip_prefix(&hierarchy.mount).unwrap_or(dir);
                return Ok(Some(Self {
                    task: process.id,
                    comm: process.comm.clone(),
                    cgroup: cgroup.to_owned(),
                    limit,
                }));
            }
        }
        Ok(None)
    }

    /// How it can be in the group.
    #[must_use]
    pub fn remedy(&self) -> String {
        let cgroup = &self.cgroup;
        format!(
            "put it into a cgroup below that, and match it: match = [{{ cgroup = \"{cgroup}/NAME\" }}]"
        )
    }
}

impl fmt::Display for Limited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "process {} ({}) is not moved: it would leave {} and its memory limit of {}",
            self.task.pid, self.comm, self.cgroup, self.limit
        )
    }
}
