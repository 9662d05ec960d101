//! Memory locked in a cache, as Linux 6.12 and 7.2 have it.
//!
//! Deviations:
//! - A mapping is only seen as an open descriptor (`Machine::opens`).
//! - A region that is removed while a process has it open stays in its cache for ever, as the
//!   kernel's does. But nothing else breaks when resctrl is unmounted then.

use std::collections::BTreeMap;

use quell_types::cpuset::CpuSet;

use super::{Control, Resctrl, Resource};
use crate::fake::Answer;
use crate::fake::task::Task;

/// State of a group that is used for locking and is no class of service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lock {
    /// Its ways were not written yet.
    Setup,
    Held,
}

/// Memory locked in some ways of one cache.
#[derive(Clone, Debug)]
pub(super) struct Region {
    /// Name of its group, and of its device.
    pub name: String,
    pub resource: String,
    pub domain: u32,
    pub mask: u32,
    /// Whether its group was removed while a process had it open.
    lost: bool,
}

/// Path of a region's device.
pub(crate) fn device(name: &str) -> String {
    format!("/dev/pseudo_lock/{name}")
}

impl Resctrl {
    /// The CPUs of a domain: pairs of CPUs share a second level, and all CPUs the rest.
    pub(super) fn cpus_of(&self, resource: &str, domain: u32) -> CpuSet {
        match resource.starts_with("L2") {
            true => {
                let pair = CpuSet::from_iter([2 * domain, 2 * domain + 1]);
                pair.intersection(&self.cpus)
            }
            false => self.cpus.clone(),
        }
    }

    /// The ways of a domain that hold locked memory.
    pub(super) fn locked_ways(&self, resource: &str, domain: u32) -> u32 {
        let here = |r: &&Region| r.resource == resource && r.domain == domain;
        let regions = self.regions.iter().filter(here);
        regions.fold(0, |all, r| all | r.mask)
    }

    /// The region of a group that has locked one.
    pub(super) fn region(&self, group: &str) -> Option<&Region> {
        let held = self.groups.get(group)?.lock == Some(Lock::Held);
        let mut own = self.regions.iter().filter(|r| !r.lost && r.name == group);
        own.next().filter(|_| held)
    }

    pub(super) fn set_up(&mut self, group: &str) -> Answer<()> {
        let default = group.is_empty();
        let code_data = |o: &str| o.contains("cdp");
        let control = &self.groups[group];
        let why = if default {
            "Cannot pseudo-lock default group"
        } else if self.options.as_deref().is_some_and(code_data) {
            "CDP enabled"
        } else if !self.rdt.locks {
            "Pseudo-locking not supported"
        } else if !control.monitors.is_empty() {
            "Monitoring in progress"
        } else if self.tasks.values().any(|home| home.0 == group) {
            "Tasks assigned to resource group"
        } else if !control.cpus.is_empty() {
            "CPUs assigned to resource group"
        } else {
            return Ok(());
        };
        self.fail(libc::EINVAL, why)
    }

    /// Whether any region is in a cache of the CPUs of a domain, of whatever level.
    pub(super) fn locked_near(&self, resource: &str, domain: u32) -> bool {
        let cpus = self.cpus_of(resource, domain);
        let of = |r: &Region| self.cpus_of(&r.resource, r.domain);
        self.regions
            .iter()
            .any(|r| !of(r).intersection(&cpus).is_empty())
    }

    /// Locks the ways that a group in setup was given.
    pub(super) fn lock(&mut self, group: &str, resource: &str, domain: u32, mask: u32) {
        self.regions.push(Region {
            name: group.to_owned(),
            resource: resource.to_owned(),
            domain,
            mask,
            lost: false,
        });
        if let Some(control) = self.groups.get_mut(group) {
            control.lock = Some(Lock::Held);
        }
    }

    /// Releases the region of a group that is removed.
    pub(super) fn unlock(&mut self, group: &str, tasks: &BTreeMap<u32, Task>) {
        let path = device(group);
        let open = tasks.values().any(|t| t.open.contains(&path));
        let own = |r: &Region| !r.lost && r.name == group;
        if open {
            self.regions
                .iter_mut()
                .filter(|r| own(r))
                .for_each(|r| r.lost = true);
        } else {
            self.regions.retain(|r| !own(r));
        }
    }

    /// Names of all devices.
    pub(crate) fn devices(&self) -> Vec<String> {
        self.regions.iter().map(|r| r.name.clone()).collect()
    }

    /// `schemata` and `size` of a group that is no class of service. `None` for other groups.
    pub(super) fn lines_of_lock(
        &self,
        group: &str,
        control: &Control,
        size: bool,
    ) -> Option<String> {
        let bytes = |r: &Resource, mask: u32| r.way * u64::from(mask.count_ones());
        match (control.lock.as_ref()?, size) {
            (Lock::Setup, false) => {
                let line = |r: &Resource| format!("{}:uninitialized\n", r.name);
                Some(self.resources.iter().map(line).collect())
            }
            (Lock::Setup, true) => {
                let none = |r: &Resource| {
                    let each: Vec<String> = r.domains.iter().map(|d| format!("{d}=0")).collect();
                    format!("{}:{}\n", r.name, each.join(";"))
                };
                Some(self.resources.iter().map(none).collect())
            }
            (Lock::Held, size) => {
                let region = self.region(group)?;
                let of = self.resources.iter().find(|r| r.name == region.resource)?;
                let (name, domain) = (&region.resource, region.domain);
                Some(match size {
                    true => format!("{name}:{domain}={}\n", bytes(of, region.mask)),
                    false => format!("{name}:{domain}={:x}\n", region.mask),
                })
            }
        }
    }
}
