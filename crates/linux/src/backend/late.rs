//! Cgroups that a group's tables name and that appear while it is held: a unit that is started, a container that comes.

use std::collections::BTreeSet;

use quell_kernel::cgroup::Controller;
use quell_kernel::error::Result;
use quell_kernel::tasks;
use quell_plan::{Setting, Step};
use quell_record::backend::{Observation, Seen};
use quell_record::events::Event;
use quell_types::task::TaskMatch;

use super::Linux;
use crate::enforce::{self, cores};
use crate::home::Home;

/// The controllers that a group is gathered with.
const GATHERED: [Controller; 3] = [Controller::Cpuset, Controller::Cpu, Controller::PerfEvent];

impl Linux {
    /// Gives the cgroups of a group that have appeared since it was gathered what the plan sets for it. Each is tried once.
    pub(super) fn adopt_late(&mut self, name: &str, seen: &mut Observation) -> Result<()> {
        let group = self.group(name)?;
        let in_place = group.matching.iter().filter(|m| m.in_place());
        let in_place: Vec<TaskMatch> = in_place.cloned().collect();
        // A brake needs its cgroup from the beginning; without one such a group was refused.
        if in_place.is_empty() || group.layout.braked {
            return Ok(());
        }
        let known: BTreeSet<String> = group.home.places.iter().map(|p| p.dir.clone()).collect();
        let cgroups = self.cgroups.clone();
        let is_known = |cgroup: &String| {
            let of = GATHERED.iter().filter_map(|c| cgroups.of(*c));
            of.filter_map(|h| h.dir(cgroup))
                .any(|dir| known.contains(&dir))
        };
        let found = self.assigned()?.remove(name).unwrap_or_default();
        let mut named = tasks::cgroups_of(&self.files, &in_place, &found)?;
        named.retain(|cgroup| !is_known(cgroup));
        if named.is_empty() {
            return Ok(());
        }
        let mut late = Home {
            group: name.to_owned(),
            places: Vec::new(),
        };
        for cgroup in &named {
            late.adopt(&mut self.hands()?, &cgroups, cgroup, &GATHERED)?;
        }
        late.places.retain(|place| !known.contains(&place.dir));
        // Before anything can fail: what fails is said once, not every second.
        let home = &mut self.group_mut(name)?.home;
        home.places.extend(late.places.iter().cloned());
        let steps = self.plan.iter().flat_map(|plan| &plan.steps);
        let steps = steps.filter(|step| step.group.as_deref() == Some(name));
        let steps: Vec<Step> = steps.cloned().collect();
        let mut without = Vec::new();
        let mut notes = Vec::new();
        for step in steps {
            match &step.set {
                Setting::Gather { .. } => {}
                Setting::Confine {
                    cpus,
                    mems,
                    exclusive,
                } => {
                    let mut hands = self.hands()?;
                    let of = (cpus, mems, *exclusive);
                    let confined =
                        cores::confine(&mut hands, &cgroups, &late, of.0, of.1, of.2, &[])?;
                    notes.extend(confined.notes);
                }
                set @ (Setting::Weight { .. }
                | Setting::CpuMax { .. }
                | Setting::IoMax(_)
                | Setting::IoLatency { .. }
                | Setting::IoWeight { .. }) => {
                    let mut hands = self.hands()?;
                    for cgroup in &named {
                        late.adopt(&mut hands, &cgroups, cgroup, enforce::controllers(set))?;
                    }
                    notes.extend(enforce::apply(&mut hands, &cgroups, &late, set)?);
                }
                _ => without.push(step.mechanism.to_string()),
            }
        }
        let which: Vec<&str> = named.iter().map(String::as_str).collect();
        let mut what = format!(
            "group {name}: {} appeared and has what the plan sets",
            which.join(", ")
        );
        if !without.is_empty() {
            what = format!(
                "group {name}: {} appeared after the start, too late for {}: end the run and start it again to have it \
                 there, too",
                which.join(", "),
                without.join(", ")
            );
        }
        for what in std::iter::once(what).chain(notes) {
            let group = Some(name.to_owned());
            seen.push(Seen::Event(Event::Finding { what, group }));
        }
        Ok(())
    }
}
