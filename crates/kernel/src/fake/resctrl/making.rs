//! How groups are made and removed.

use std::collections::BTreeMap;

use quell_types::cpuset::CpuSet;

use super::locked::Lock;
use super::{Control, Place, Resctrl, shape};
use crate::fake::Answer;
use crate::fake::task::Task;

impl Resctrl {
    pub fn mkdir(&mut self, rest: &str) -> Answer<()> {
        if self.options.is_none() {
            return Err(libc::EPERM);
        }
        let path = rest.trim_matches('/').to_owned();
        let (above, name) = path.rsplit_once('/').unwrap_or(("", &path));
        if self
            .place(rest)
            .is_ok_and(|p| !matches!(p, Place::Data(_) | Place::Info(_)))
        {
            return Err(libc::EEXIST);
        }
        match self.place(above)? {
            Place::Info(_) if self.newer => Err(libc::ENODEV),
            Place::Group(group) if group.is_empty() => {
                if name.contains('\n') {
                    return Err(libc::EINVAL);
                }
                self.begin_lately();
                self.make_control(name)
            }
            Place::Monitors(group) => {
                self.begin_lately();
                self.take_rmid()?;
                if let Some(control) = self.groups.get_mut(&group) {
                    control.monitors.insert(name.to_owned(), CpuSet::new());
                }
                Ok(())
            }
            _ => Err(libc::EPERM),
        }
    }

    fn take_rmid(&mut self) -> Answer<()> {
        let used: usize = self.used().map(|(_, g)| 1 + g.monitors.len()).sum();
        if self.rdt.rmids == 0 || used + (self.limbo as usize) < self.rdt.rmids as usize {
            return Ok(());
        }
        let errno = if self.limbo > 0 {
            libc::EBUSY
        } else {
            libc::ENOSPC
        };
        self.fail(errno, "Out of RMIDs")
    }

    fn make_control(&mut self, name: &str) -> Answer<()> {
        let used = self.groups.values();
        let used = used.filter(|g| g.lock != Some(Lock::Held)).count();
        if used >= self.classes() {
            return self.fail(libc::ENOSPC, "Out of CLOSIDs");
        }
        self.take_rmid()?;
        // A new group gets every way that no other group has to itself, code or data. Up to some
        // kernel that was one piece, even where masks may have holes.
        let mut control = self.control(|r| r.all(), CpuSet::new());
        for resource in self.resources.clone() {
            let Some(bits) = resource.bits else { continue };
            for domain in &resource.domains {
                let taken = |g: &Control| {
                    let peers = resource.peers(&self.resources);
                    peers.fold(0, |m, peer| m | g.values[&peer.name][domain])
                };
                let locked = self.locked_ways(&resource.name, *domain);
                let alone = self.used().filter(|(_, g)| g.exclusive);
                let alone = alone.fold(locked, |m, (_, g)| m | taken(g));
                let shared = self.used().filter(|(_, g)| !g.exclusive);
                let shared = shared.fold(resource.shareable, |m, (_, g)| m | taken(g));
                let full = shape::full(bits);
                let free = shared | full & !(alone | shared);
                let free = match self.newer && self.rdt.sparse {
                    true => free,
                    false => shape::lowest_run(free),
                };
                if free.count_ones() < self.rdt.least {
                    return self.fail(
                        libc::ENOSPC,
                        format!("No space on {}:{domain}", resource.name),
                    );
                }
                if let Some(values) = control.values.get_mut(&resource.name) {
                    values.insert(*domain, free);
                }
            }
        }
        self.groups.insert(name.to_owned(), control);
        Ok(())
    }

    pub fn rmdir(&mut self, rest: &str, tasks: &BTreeMap<u32, Task>) -> Answer<()> {
        match self.place(rest)? {
            Place::Group(group) if !group.is_empty() => {
                self.unlock(&group, tasks);
                // Its tasks and CPUs go to the default group.
                if let Some(gone) = self.groups.remove(&group)
                    && let Some(default) = self.groups.get_mut("")
                {
                    default.cpus = default.cpus.union(&gone.cpus);
                }
                self.tasks.retain(|_, home| home.0 != group);
                Ok(())
            }
            Place::Monitor(group, name) => {
                if let Some(control) = self.groups.get_mut(&group) {
                    control.monitors.remove(&name);
                }
                for home in self.tasks.values_mut().filter(|h| h.0 == group) {
                    home.1 = home.1.take().filter(|m| *m != name);
                }
                Ok(())
            }
            Place::File(..) | Place::MonitorFile(..) => Err(libc::ENOTDIR),
            _ => Err(libc::EPERM),
        }
    }
}
