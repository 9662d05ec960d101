//! Checks while groups have parts: newborn threads, and what other programs have changed.

use std::collections::BTreeSet;
use std::time::Duration;

use quell_kernel::error::{Error, Result};
use quell_kernel::resctrl::lock::{For, PATIENCE};
use quell_kernel::root::Files;
use quell_record::standing::Cause;

use super::locked::Locked;
use super::members::{ClassMembers, strangers, threads};
use super::{Own, Parts, cache, promised};
use crate::host::Host;

/// What a check of parts has found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Found {
    /// A sentence for a person.
    Note(String),
    /// No part of the group holds.
    Parts(Cause),
    /// The group's ways of this cache level do not hold.
    Ways(u32, Cause),
    /// The memory locked for the group does not hold.
    Locked(Cause),
}

impl Parts {
    /// Moves the threads of a group that are still outside into its control group.
    pub fn follow(&mut self, host: &mut Host, name: &str) -> Result<()> {
        let Some(found) = self.whereabouts(host, name)? else {
            return Ok(());
        };
        if !found.outside(&host.files)? {
            return Ok(());
        }
        let _lock = self.resctrl.lock(&host.files, For::Changing, PATIENCE)?;
        self.bring(host, &found)
    }

    fn bring(&self, host: &mut Host, found: &ClassMembers) -> Result<()> {
        let mut find = |files: &dyn Files| threads(files, &found.cgroups);
        cache::take(&mut host.writer()?, &self.resctrl, &found.group, &mut find)?;
        Ok(())
    }

    /// The members of a group's control group. `None` for a group that has none. A control group
    /// that another program has removed is given up.
    fn whereabouts(&mut self, host: &Host, name: &str) -> Result<Option<ClassMembers>> {
        let Some(group) = self.groups.get(name).cloned() else {
            return Ok(None);
        };
        // The directory alone proves nothing: that of the default group stays after an unmount.
        if !host.files.exists(&group.file("tasks")) {
            self.groups.remove(name);
            self.gone.push((name.to_owned(), group.dir));
            return Ok(None);
        }
        let group_cgroups = host.groups.one(name)?.cgroups.clone();
        let inside = group.tasks(&host.files)?.into_iter().collect();
        Ok(Some(ClassMembers {
            name: name.to_owned(),
            all: threads(&host.files, &group_cgroups)?,
            group,
            cgroups: group_cgroups,
            inside,
            cpus: self.cpus.get(name).cloned().unwrap_or_default(),
        }))
    }

    /// What is new since the last check, with the group's name.
    pub fn fresh(&mut self, host: &mut Host) -> Vec<(String, Found)> {
        let names: Vec<String> = self.groups.keys().cloned().collect();
        let mut found = Vec::new();
        let mut all = Vec::new();
        for name in names {
            match self.whereabouts(host, &name) {
                Ok(known) => all.extend(known),
                Err(e) => found.push((name, Found::Note(e.to_string()))),
            }
        }
        // Taken once for all groups, without waiting: a heartbeat must not be missed, and the next
        // check tries again.
        let mut lock = None;
        for group in &all {
            if !host.still_held() {
                return found;
            }
            let moved = match group.outside(&host.files) {
                Ok(false) => continue,
                Ok(true) => {
                    let take = || {
                        self.resctrl
                            .lock(&host.files, For::Changing, Duration::ZERO)
                    };
                    match lock.get_or_insert_with(take) {
                        Ok(_) => self.bring(host, group).map_err(|e| e.to_string()),
                        Err(e) => Err(format!("its newborn threads wait outside: {e}")),
                    }
                }
                Err(e) => Err(e.to_string()),
            };
            if let Err(why) = moved {
                found.push((group.name.clone(), Found::Note(why)));
            }
        }
        drop(lock);
        found.extend(self.disputed(host, &all));
        let broken = |(name, l): (&String, &Locked)| {
            Some((name.clone(), Found::Locked(l.broken(&host.files)?)))
        };
        found.extend(self.locks.iter().filter_map(broken));
        let gone = std::mem::take(&mut self.gone).into_iter();
        found.extend(gone.map(|(name, what)| (name, Found::Parts(Cause::Removed { what }))));
        let now: BTreeSet<(String, Found)> = found.into_iter().collect();
        let fresh = now.difference(&self.told).cloned().collect();
        self.told = now;
        fresh
    }

    /// Which other control groups may fill what was promised to groups of the plan, and where that
    /// cannot be read.
    fn disputed(&self, host: &Host, all: &[ClassMembers]) -> Vec<(String, Found)> {
        let Some(plan) = &host.plan else {
            return Vec::new();
        };
        let unknown = |group: &str, e: Error| {
            let what = format!("whether others have its part cannot be told: {e}");
            vec![(group.to_owned(), Found::Note(what))]
        };
        let mut found = Vec::new();
        // Threads of a group that could not be read would seem to be strangers.
        if let Some(first) = all.first().filter(|_| all.len() == self.groups.len()) {
            match strangers(&host.files, all) {
                Ok(said) => found.extend(
                    said.into_iter()
                        .map(|(name, by)| (name, Found::Parts(Cause::Shared { by }))),
                ),
                Err(e) => found.extend(unknown(&first.name, e)),
            }
        }
        let Some(first) = promised(plan).next().map(|own| own.group) else {
            return found;
        };
        let foreign = match self.foreign(&host.files) {
            Ok(foreign) => foreign,
            Err(e) => {
                found.extend(unknown(first, e));
                return found;
            }
        };
        for own in promised(plan) {
            let Own { group, level, .. } = own;
            match foreign.intruders(&host.files, &self.info, &own) {
                Ok(others) => found.extend(others.into_iter().map(|other| {
                    let by = format!("{other}, of what group {group} has to itself");
                    (group.to_owned(), Found::Ways(level, Cause::Shared { by }))
                })),
                Err(e) => found.extend(unknown(group, e)),
            }
        }
        found
    }
}
