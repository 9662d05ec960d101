//! Processes that stay where they are, below a limit of memory that they did not set themselves.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use quell_kernel::cgroup::Hierarchy;
use quell_kernel::error::Result;
use quell_kernel::identity::person;
use quell_kernel::memory::Memory;
use quell_kernel::procfs::{self, Stat, UNTOLD};
use quell_kernel::root::Files;
use quell_types::task::TaskId;
use quell_types::units::Bytes;

/// The cgroups from the root on that are looked at. Deeper ones are made to take time.
const DEEPEST: usize = 64;

/// A process that stays in its cgroup, because a limit of memory would not hold for it elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limited {
    /// The process.
    pub task: TaskId,
    /// Its command name.
    pub comm: String,
    /// Why it stays.
    pub why: Why,
}

/// Why a process stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// It would leave the limit of this cgroup, from the root of its hierarchy.
    Leaves(String, Bytes),
    /// The path of its cgroup is too long to be read, or not UTF-8.
    Deep,
}

impl Limited {
    /// How it can be in the group.
    #[must_use]
    pub fn remedy(&self) -> String {
        match &self.why {
            Why::Leaves(cgroup, _) => format!(
                "put it into a cgroup below that, and match it: match = [{{ cgroup = \"{cgroup}/NAME\" }}]"
            ),
            Why::Deep => "put it into a cgroup with a shorter path, in UTF-8".to_owned(),
        }
    }
}

impl fmt::Display for Limited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pid, comm) = (self.task.pid, &self.comm);
        write!(f, "process {pid} ({comm}) is not moved: ")?;
        match &self.why {
            Why::Leaves(cgroup, limit) => {
                write!(f, "it would leave {cgroup} and its memory limit of {limit}")
            }
            Why::Deep => f.write_str("the path of its cgroup is too long to be read, or not UTF-8"),
        }
    }
}

/// A limit: its cgroup, how much, and whose its file is.
type Limit = (String, Bytes, Option<u32>);

/// The limits that processes would leave that are moved to one place.
pub struct Limits<'a> {
    hierarchy: &'a Hierarchy,
    to: &'a str,
    /// By cgroup, as read once. `None`: too deep.
    known: BTreeMap<String, Option<Vec<Limit>>>,
}

impl<'a> Limits<'a> {
    /// Those of processes that are moved to the cgroup `to`.
    #[must_use]
    pub fn new(hierarchy: &'a Hierarchy, to: &'a str) -> Self {
        Self {
            hierarchy,
            to,
            known: BTreeMap::new(),
        }
    }

    /// The limit that a process in the cgroup `from` would leave: the machine would have to bear
    /// what its owner has limited. One that the process's own user set is none, since that user can
    /// lift it at any time: nobody keeps out of a group by it.
    ///
    /// # Errors
    /// [`quell_kernel::error::Error::File`].
    pub fn of(&mut self, files: &dyn Files, process: &Stat, from: &str) -> Result<Option<Limited>> {
        if !self.hierarchy.controllers.iter().any(|c| c == "memory") {
            return Ok(None);
        }
        let limits = match self.known.get(from) {
            Some(limits) => limits,
            None => {
                let limits = self.read(files, from)?;
                self.known.entry(from.to_owned()).or_insert(limits)
            }
        };
        let why = match limits {
            None => Some(Why::Deep),
            Some(limits) if limits.is_empty() => None,
            Some(limits) => {
                // It has ended.
                let Some([real, _, _]) = procfs::users(files, process.id.pid)? else {
                    return Ok(None);
                };
                let user = person(files, real);
                let own = |owner: u32| owner != 0 && person(files, owner) == user;
                let mut others = limits
                    .iter()
                    .filter(|(_, _, owner)| !owner.is_some_and(own));
                let other = others.next();
                other.map(|(cgroup, limit, _)| Why::Leaves(cgroup.clone(), *limit))
            }
        };
        Ok(why.map(|why| Limited {
            task: process.id,
            comm: process.comm.clone(),
            why,
        }))
    }

    fn read(&self, files: &dyn Files, from: &str) -> Result<Option<Vec<Limit>>> {
        if from.ends_with(UNTOLD) {
            return Ok(None);
        }
        // Limits further down are of whoever made those.
        let below = from.strip_prefix(&self.hierarchy.mount).unwrap_or(from);
        let ends = below.match_indices('/').map(|(at, _)| at);
        let end = ends.skip(1).nth(DEEPEST - 1).unwrap_or(below.len());
        let top = format!("{}{}", self.hierarchy.mount, &below[..end]);
        let chain = Memory::of(self.hierarchy, &top).chain();
        let mut found = Vec::new();
        for dir in chain
            .iter()
            .rev()
            .filter(|dir| !Path::new(self.to).starts_with(dir))
        {
            let memory = Memory::of(self.hierarchy, dir);
            if let Some(limit) = memory.limit(files)? {
                let cgroup = dir.strip_prefix(&self.hierarchy.mount).unwrap_or(dir);
                let file = memory.limits().into_iter().next().unwrap_or_default();
                let owner = files.node(&file).ok().map(|node| node.owner);
                found.push((cgroup.to_owned(), limit, owner));
            }
        }
        Ok(Some(found))
    }
}
