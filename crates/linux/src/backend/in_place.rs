//! Groups that are braked in a cgroup that is not ours ([`crate::enforce::threaded`]).

use std::collections::BTreeSet;

use quell_kernel::below::listed;
use quell_kernel::cgroup::{Controller, Version};
use quell_kernel::error::{Error, Result};
use quell_kernel::root::Files;
use quell_record::backend::{Observation, Seen};
use quell_record::events::Event;

use super::apart::not_ours;
use super::regulated::{Absent, Regulated};
use super::{Group, Linux};
use crate::enforce::threaded;
use crate::home::Place;

impl Linux {
    /// Refuses a group whose brakes would have to be in a cgroup that is not ours and cannot.
    /// Changes nothing.
    pub(super) fn check_in_place(&self, name: &str, cgroups: &BTreeSet<String>) -> Result<()> {
        let refused =
            |why: &str| Error::refused_with(format!("group {name}: {why}"), threaded::INSTEAD);
        let hierarchy = self.cgroups.of(Controller::Cpu);
        let Some(hierarchy) = hierarchy.filter(|h| h.version == Version::V2) else {
            return Err(refused("the cpu controller is not on cgroup v2"));
        };
        let mut found = cgroups.iter();
        let (Some(cgroup), None) = (found.next(), found.next()) else {
            let names: Vec<&str> = cgroups.iter().map(String::as_str).collect();
            return Err(refused(&match names.as_slice() {
                [] => {
                    "no program runs in a cgroup that it matches, and a brake needs one".to_owned()
                }
                several => format!(
                    "it matches several cgroups ({}), and a brake holds one",
                    several.join(", ")
                ),
            }));
        };
        let Some(dir) = hierarchy.dir(cgroup) else {
            return Ok(());
        };
        let place = Place {
            hierarchy: hierarchy.clone(),
            dir,
            ours: false,
            braked: false,
        };
        not_ours(&self.files, name, &place)?;
        threaded::check(&self.files, name, &place.dir)
    }

    /// Whether no program is left in a group that is braked in a cgroup that is not ours.
    pub(super) fn is_vacant(&self, group: &Group) -> bool {
        let brakes: BTreeSet<u32> = self.brakes.iter().filter_map(|r| r.brake.pid()).collect();
        let mut theirs = group.home.places.iter().filter(|p| p.braked && !p.ours);
        theirs.any(|place| {
            // Of a domain with threaded children it lists the processes of all.
            let all = self.files.read(&format!("{}/cgroup.procs", place.dir));
            listed(&all.unwrap_or_default()).all(|pid| brakes.contains(&pid))
        })
    }

    /// Ends the brakes of groups of which no program is left in a cgroup that is not ours: its owner
    /// waits until it is empty, or removes it. [`Self::brake_again`] starts them when a program
    /// comes.
    pub(super) fn leave_vacant(&mut self, seen: &mut Observation) {
        let vacant = self
            .groups
            .iter()
            .filter(|(_, group)| self.is_vacant(group));
        let vacant: Vec<String> = vacant.map(|(name, _)| name.clone()).collect();
        for name in vacant {
            let all = std::mem::take(&mut self.brakes).into_iter();
            let (left, stay): (Vec<Regulated>, _) = all.partition(|r| r.group == name);
            self.brakes = stay;
            if left.is_empty() {
                continue;
            }
            self.splits.retain(|splits| splits.group != name);
            self.absent.extend(left.into_iter().map(Absent::of));
            let what = format!(
                "group {name}: no program is left in its cgroup: its brakes have ended until one comes"
            );
            seen.push(Seen::Event(Event::Finding {
                what,
                group: Some(name),
            }));
        }
    }
}
