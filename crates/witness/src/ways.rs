//! Which classes fill which ways of the caches, as resctrl says now.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use quell_kernel::error::Result;
use quell_kernel::resctrl::Resctrl;
use quell_kernel::root::Files;
use quell_kernel::topology;
use quell_types::cpuset::CpuSet;
use quell_types::partition::Mask;

use crate::alone::{Thread, meet};
use quell_types::witness::Fault;

/// A control group of resctrl: a class of tasks that fill the same ways.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Class {
    /// Its name. Empty: the default group.
    pub name: String,
    /// Ways that it fills with code or with data, by number of the cache.
    pub fills: BTreeMap<u32, Mask>,
    /// Ways that it fills with code and with data.
    pub keeps: BTreeMap<u32, Mask>,
    /// CPUs on which tasks of the default group belong to it.
    pub cpus: CpuSet,
    /// Its threads. Those of the default group are not read.
    pub tasks: Vec<u32>,
}

impl Class {
    /// Whether any task fills its ways.
    fn is_used(&self) -> bool {
        self.name.is_empty() || !self.tasks.is_empty() || !self.cpus.is_empty()
    }
}

/// The classes of a level. `None` where resctrl is not mounted, or does not divide that level.
///
/// # Errors
/// Files that cannot be read.
pub(crate) fn classes(files: &dyn Files, level: u32) -> Result<Option<Vec<Class>>> {
    let Some(resctrl) = Resctrl::find(files)? else {
        return Ok(None);
    };
    let names = ["", "CODE", "DATA"].map(|content| format!("L{level}{content}"));
    let mut all = Vec::new();
    for group in resctrl.groups(files)? {
        let schemata = group.schemata(files)?;
        let mut class = Class {
            cpus: group.cpus(files)?,
            tasks: match group.name.is_empty() {
                true => Vec::new(),
                false => group.tasks(files)?,
            },
            name: group.name,
            ..Class::default()
        };
        for (cache, mask) in names.iter().filter_map(|n| schemata.masks_of(n)).flatten() {
            class.fills.entry(*cache).or_default().0 |= mask.0;
            class.keeps.entry(*cache).or_insert(Mask(u64::MAX)).0 &= mask.0;
        }
        all.push(class);
    }
    let divided = all.iter().any(|class| !class.fills.is_empty());
    Ok(divided.then_some(all))
}

/// The caches of a level on these CPUs, by the kernel's number. `None`: all of them, since the
/// machine does not say it.
pub(crate) fn caches(files: &dyn Files, cpus: &CpuSet, level: u32) -> Option<BTreeSet<u32>> {
    let number = |cpu| topology::cache_number(files, cpu, level).ok();
    let all: Option<BTreeSet<u32>> = cpus.iter().map(number).collect();
    all.filter(|all| !all.is_empty())
}

/// The names of the classes that threads of these groups are in. A thread in none but the default
/// group has the class of the CPU that it runs on.
pub(crate) fn classes_of(
    classes: &[Class],
    threads: &[Thread],
    groups: &[usize],
) -> BTreeSet<String> {
    let each = classes
        .iter()
        .flat_map(|class| class.tasks.iter().map(|tid| (*tid, &class.name)));
    let by_task: HashMap<u32, &String> = each.collect();
    let own = threads
        .iter()
        .filter(|t| !t.exempt && t.groups.iter().any(|g| groups.contains(g)));
    let mut found = BTreeSet::new();
    for thread in own {
        if let Some(name) = by_task.get(&thread.tid) {
            found.insert((*name).clone());
            continue;
        }
        let by_cpu = classes.iter().filter(|c| meet(&c.cpus, &thread.cpus));
        let before = found.len();
        found.extend(by_cpu.map(|class| class.name.clone()));
        if found.len() == before && !classes.iter().any(|c| meet(&c.cpus, &thread.cpus)) {
            found.insert(String::new());
        }
    }
    found
}

/// What a claim says of ways.
pub(crate) struct Wanted<'a> {
    pub level: u32,
    pub mask: Mask,
    /// Numbers of the caches. `None`: all.
    pub caches: Option<&'a BTreeSet<u32>>,
}

/// Judges the classes. `own` are those of the group's threads, `shared` those of groups that share
/// the ways.
pub(crate) fn judged(
    wanted: &Wanted<'_>,
    classes: &[Class],
    own: &BTreeSet<String>,
    shared: &BTreeSet<String>,
) -> Option<Fault> {
    let counts = |cache: &u32| wanted.caches.is_none_or(|caches| caches.contains(cache));
    for class in classes.iter().filter(|class| own.contains(&class.name)) {
        let each = class.fills.iter().filter(|(cache, _)| counts(cache));
        for (cache, fills) in each {
            let keeps = class.keeps.get(cache).copied().unwrap_or_default();
            if let Some(has) = [keeps, *fills].into_iter().find(|has| *has != wanted.mask) {
                return Some(Fault::Remasked {
                    class: class.name.clone(),
                    level: wanted.level,
                    cache: *cache,
                    has,
                    promised: wanted.mask,
                });
            }
        }
    }
    let others = classes
        .iter()
        .filter(|c| c.is_used() && !own.contains(&c.name) && !shared.contains(&c.name));
    for class in others {
        let each = class.fills.iter().filter(|(cache, _)| counts(cache));
        for (cache, fills) in each {
            let mask = Mask(fills.0 & wanted.mask.0);
            if !mask.is_empty() {
                return Some(Fault::Filled {
                    class: class.name.clone(),
                    level: wanted.level,
                    cache: *cache,
                    mask,
                });
            }
        }
    }
    None
}

#[cfg(test)]
#[path = "ways_tests.rs"]
mod tests;
