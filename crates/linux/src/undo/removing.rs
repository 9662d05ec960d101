//! Cgroups and mounts that Quell made are removed.

use std::time::Duration;

use quell_kernel::cgroup_tree::{procs_file, tasks_in, threads};
use quell_kernel::resctrl::{Resctrl, locked};
use quell_kernel::root::{gone, is_exact};

use super::{Step, Work};
use crate::origins::Origins;

/// Tries for an occupied cgroup, and the pause in between: together about a second. A task that is
/// just ending keeps its cgroup busy for a moment.
const TRIES: u32 = 200;
const PAUSE: Duration = Duration::from_millis(5);
/// The try before which it is frozen.
const FREEZES: u32 = 20;

impl Work<'_> {
    pub(super) fn remove(&mut self, path: &str, heir: &str) -> Step {
        if let Some(region) = locked::region_at(self.files, path) {
            return locked::remove(self.files, path, &region, self.alive);
        }
        let origins = Origins::new(self.files, self.entries, path, heir);
        let mut why = String::new();
        for attempt in 0..TRIES {
            if attempt > 0 {
                std::thread::sleep(PAUSE);
                (self.alive)();
            }
            if !self.files.exists(path) {
                return Ok(attempt > 0);
            }
            if attempt == FREEZES {
                // Its tasks begin others without end. Who leaves it goes on.
                let _ = self.files.write(&format!("{path}/cgroup.freeze"), "1");
            }
            if let Err(e) = self.empty(&origins, path, 0) {
                why = e;
            }
            match self.files.rmdir(path) {
                Ok(()) => return Ok(true),
                Err(e) if gone(&e) => return Ok(attempt > 0),
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {
                    if why.is_empty() {
                        why = e.to_string();
                    }
                }
                Err(e) => {
                    why = e.to_string();
                    break;
                }
            }
        }
        let _ = self.files.write(&format!("{path}/cgroup.freeze"), "0");
        Err(format!("{path} could not be removed: {why}"))
    }

    /// Unmounts a resctrl that Quell mounted, unless other programs have made groups in it.
    pub(super) fn unmount(&mut self, path: &str) -> Step {
        let mounted = |work: &Self| Resctrl::find(work.files).map_err(|e| e.to_string());
        let Some(resctrl) = mounted(self)?.filter(|r| r.root == path) else {
            return Ok(false);
        };
        let mut others = resctrl.groups(self.files).map_err(|e| e.to_string())?;
        others.remove(0);
        let monitors = resctrl.default_group().monitors(self.files);
        others.extend(monitors.map_err(|e| e.to_string())?);
        // A group of Quell that could not be removed yet keeps the mount for another try.
        if let Some(ours) = others.iter().find(|g| self.made.contains(g.dir.as_str())) {
            return Err(format!("{path} stays mounted with {}", ours.dir));
        }
        if let Some(other) = others.first() {
            return self.leave(format!(
                "{path} stays mounted: somebody has made the group {} in it since",
                other.name
            ));
        }
        // Quell's own lock keeps it busy.
        self.lock = None;
        let mut why = String::new();
        for attempt in 0..TRIES {
            if attempt > 0 {
                std::thread::sleep(PAUSE);
                (self.alive)();
            }
            match self.files.unmount(path) {
                Ok(()) => return Ok(true),
                Err(e) if gone(&e) || mounted(self)?.is_none() => return Ok(attempt > 0),
                Err(e) => why = e.to_string(),
            }
        }
        self.leave(format!("{path} stays mounted: somebody uses it ({why})"))
    }

    /// Moves every task out of a cgroup and of those inside it. Removes those inside.
    fn empty(&mut self, origins: &Origins<'_>, path: &str, depth: u32) -> Result<(), String> {
        // Deeper than any cgroup tree in practice. A bound, so that a hostile tree ends.
        const DEEPEST: u32 = 32;
        let mut hidden = false;
        for name in self.files.list(path).unwrap_or_default() {
            hidden |= !is_exact(&name);
            let child = format!("{path}/{name}");
            if depth < DEEPEST && self.files.exists(&format!("{child}/cgroup.procs")) {
                self.empty(origins, &child, depth + 1)?;
                let _ = self.files.rmdir(&child);
            }
        }
        let mut left = tasks_in(self.files, path)
            .map_err(|e| format!("the tasks of {path} could not be read: {e}"))?;
        if hidden {
            // A folder whose name is not UTF-8 cannot be removed, but its tasks can go.
            left.extend(threads(self.files, path));
            left.sort_unstable();
            left.dedup();
        }
        let mut failed = Ok(());
        for tid in left {
            (self.alive)();
            failed = failed.and(self.go_home(origins, tid));
        }
        failed
    }

    fn go_home(&mut self, origins: &Origins<'_>, tid: u32) -> Result<(), String> {
        let mut refused = None;
        for place in origins.of(tid) {
            let file = procs_file(self.files, &place);
            match self.files.write(&file, &tid.to_string()) {
                Ok(()) => {
                    let told = refused.map(|why| format!("{why}; it is in {place} now"));
                    self.outcome.undone.left.extend(told);
                    return Ok(());
                }
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
                Err(e) => {
                    let why = || format!("task {tid} could not be moved to {place}: {e}");
                    refused.get_or_insert_with(why);
                }
            }
        }
        refused.map_or(Ok(()), Err)
    }
}
