//! Where tasks go that were born in a cgroup that Quell made, when it is emptied. Nothing is
//! recorded of them. They go where they would be if Quell had moved nobody:
//!
//! 1. Where its process or an ancestor was moved from, or lives by now, the closest first.
//! 2. Where other processes of its user live, so that it does not leave what limits that user: an
//!    orphan's ancestors have ended, and the owner of a place can make it take nobody.
//! 3. To the heir: the cgroup that Quell was started in.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use quell_kernel::cgroup::{Cgroups, Hierarchy};
use quell_kernel::procfs::{self, Stat};
use quell_kernel::root::Files;
use quell_types::journal::Undo;

use crate::group_cgroups::within;

/// Places of a user that are tried: whoever owns one can make it take nobody.
const MOST: usize = 16;

/// The places of tasks that were born in one cgroup.
pub struct Origins<'a> {
    files: &'a dyn Files,
    /// Where tasks that were moved into it came from.
    moved: BTreeMap<u32, (u64, &'a str)>,
    /// The cgroups that Quell made.
    made: Vec<&'a str>,
    heir: &'a str,
    /// `None` where it is no cgroup, but a group of resctrl.
    hierarchy: Option<Hierarchy>,
    processes: OnceCell<Vec<Stat>>,
}

impl<'a> Origins<'a> {
    /// Those of tasks in `ours`. `entries` are of the whole journal.
    pub fn new(files: &'a dyn Files, entries: &'a [Undo], ours: &str, heir: &'a str) -> Self {
        let (mut moved, mut made) = (BTreeMap::new(), Vec::new());
        for entry in entries {
            match entry {
                Undo::Move { task, from, to } if within(to, ours) => {
                    moved.insert(task.pid, (task.start, from.as_str()));
                }
                Undo::Cgroup { path, .. } => made.push(path.as_str()),
                _ => {}
            }
        }
        let all = Cgroups::discover(files).unwrap_or_default().hierarchies;
        let hierarchy = all.into_iter().find(|h| within(ours, &h.mount));
        Self {
            files,
            moved,
            made,
            heir,
            hierarchy,
            processes: OnceCell::new(),
        }
    }

    /// Where a task may go, the best first. The last is the heir.
    pub fn of(&self, tid: u32) -> impl Iterator<Item = String> {
        let process = procfs::process_of(self.files, tid).ok().flatten();
        let process = process.unwrap_or(tid);
        let chain = procfs::ancestry(self.files, process).unwrap_or_default();
        let mut chain = chain.into_iter().filter(|pid| *pid != 1);
        let closest = chain.find_map(|pid| self.came_from(pid).or_else(|| self.lives_in(pid)));
        let others = std::iter::once_with(move || self.of_user(process));
        let heir = std::iter::once_with(|| self.heir.to_owned());
        closest.into_iter().chain(others.flatten()).chain(heir)
    }

    fn came_from(&self, pid: u32) -> Option<String> {
        let (start, from) = *self.moved.get(&pid)?;
        let stat = procfs::stat(self.files, pid).ok().flatten()?;
        (stat.id.start == start && self.files.exists(from)).then(|| from.to_owned())
    }

    /// The cgroup of a process that is in none of Quell's.
    fn lives_in(&self, pid: u32) -> Option<String> {
        let dir = self.hierarchy.as_ref()?.dir_of(self.files, pid).ok()??;
        let ours = self.made.iter().any(|made| within(&dir, made));
        (!ours).then_some(dir)
    }

    /// The places of the processes of a process's user: first those that were moved from, then by
    /// the age of who lives there. None for root's, and where nobody was moved: then Quell started
    /// what was there.
    fn of_user(&self, process: u32) -> Vec<String> {
        let user = |pid| {
            let all = procfs::users(self.files, pid).ok().flatten();
            all.map(|[_, effective, _]| effective)
        };
        let Some(own) = user(process).filter(|own| *own != 0 && !self.moved.is_empty()) else {
            return Vec::new();
        };
        let all = || {
            let mut all = procfs::processes(self.files).unwrap_or_default();
            all.sort_by_key(|stat| stat.id.start);
            all
        };
        let mut places: Vec<String> = Vec::new();
        for stat in self.processes.get_or_init(all) {
            if places.len() < MOST && user(stat.id.pid) == Some(own) {
                let new = self.lives_in(stat.id.pid);
                places.extend(new.filter(|new| !places.contains(new)));
            }
        }
        let known = |place: &String| self.moved.values().any(|(_, from)| from == place);
        places.sort_by_key(|place| !known(place));
        places
    }
}
