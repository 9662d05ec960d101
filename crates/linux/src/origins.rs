//! Where tasks go that were born in a cgroup that Quell made, when it is emptied. Nothing is
//! recorded of them. They go where they would be if Quell had moved nobody:
//!
//! 1. Where its process or an ancestor was moved from, or lives by now, the closest first.
//! 2. Where other processes of its user live, so that it does not leave what limits that user: an
//!    orphan's ancestors have ended, and the owner of a place can make it take nobody.
//! 3. To the heir: the cgroup that Quell was started in.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use quell_kernel::cgroup::{Cgroups, Hierarchy};
use quell_kernel::identity::person;
use quell_kernel::procfs;
use quell_kernel::root::Files;
use quell_types::journal::Undo;

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
    /// Where the processes of each user live, once it is asked for.
    places: RefCell<Option<BTreeMap<u32, Vec<String>>>>,
}

impl<'a> Origins<'a> {
    /// Those of tasks in `ours`. `entries` are those that are being reverted.
    pub fn new(files: &'a dyn Files, entries: &'a [Undo], ours: &str, heir: &'a str) -> Self {
        let (mut moved, mut made) = (BTreeMap::new(), Vec::new());
        for entry in entries {
            match entry {
                Undo::Move { task, from, to } if Path::new(to).starts_with(ours) => {
                    moved.insert(task.pid, (task.start, from.as_str()));
                }
                Undo::Cgroup { path, .. } => made.push(path.as_str()),
                _ => {}
            }
        }
        let all = Cgroups::discover(files).unwrap_or_default().hierarchies;
        let hierarchy = all
            .into_iter()
            .find(|h| Path::new(ours).starts_with(&h.mount));
        Self {
            files,
            moved,
            made,
            heir,
            hierarchy,
            places: RefCell::new(None),
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

    /// The cgroup of a process that is in none of Quell's. Of one that ends v1 shows the root.
    fn lives_in(&self, pid: u32) -> Option<String> {
        let stat = procfs::stat(self.files, pid).ok().flatten()?;
        let dir = self.hierarchy.as_ref()?.dir_of(self.files, pid).ok()??;
        let ours = self
            .made
            .iter()
            .any(|made| Path::new(&dir).starts_with(made));
        (!ours && !stat.leaving()).then_some(dir)
    }

    /// The places of the processes of a process's user: first those that were moved from, then by
    /// the age of who lives there. None for root's, and where nobody was moved: then Quell started
    /// what was there.
    fn of_user(&self, process: u32) -> Vec<String> {
        if self.moved.is_empty() || self.hierarchy.is_none() {
            return Vec::new();
        }
        let Some(own) = self.user(process).filter(|own| *own != 0) else {
            return Vec::new();
        };
        let mut known = self.places.borrow_mut();
        let all = known.get_or_insert_with(|| self.all_places());
        all.get(&own).cloned().unwrap_or_default()
    }

    /// Whose a process is: the user who started it, also where it has the rights of another one.
    fn user(&self, pid: u32) -> Option<u32> {
        let [real, _, _] = procfs::users(self.files, pid).ok().flatten()?;
        Some(person(self.files, real))
    }

    /// The places of each user.
    fn all_places(&self) -> BTreeMap<u32, Vec<String>> {
        let mut processes = procfs::processes(self.files).unwrap_or_default();
        processes.sort_by_key(|stat| stat.id.start);
        let mut all: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        for stat in processes.iter().filter(|stat| !stat.kernel_thread()) {
            let Some(user) = self.user(stat.id.pid).filter(|user| *user != 0) else {
                continue;
            };
            let places = all.entry(user).or_default();
            if places.len() < MOST {
                let new = self.lives_in(stat.id.pid);
                places.extend(new.filter(|new| !places.contains(new)));
            }
        }
        let moved = |place: &String| self.moved.values().any(|(_, from)| from == place);
        for places in all.values_mut() {
            places.sort_by_key(|place| !moved(place));
        }
        all
    }
}
