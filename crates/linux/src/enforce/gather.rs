//! Which tasks are in a group's cgroups. They are moved to cgroups that Quell makes, or stay in
//! their own.

use std::collections::BTreeSet;

use quell_kernel::cgroup::{Controller, Version};
use quell_kernel::cpu_accounting::Ledger;
use quell_kernel::error::{Error, Result};
use quell_kernel::tasks::Matcher;
use quell_kernel::{rt, tasks};
use quell_plan::Setting;
use quell_record::about::About;
use quell_record::backend::Observation;
use quell_types::mechanism::Level;
use quell_types::task::TaskMatch;

use super::nesting::not_ours;
use super::{Applied, Enforcer, late, threaded};
use crate::group_cgroups::{CgroupDir, GroupCgroups, Layout};
use crate::host::{BOUND, Group, Host, finding, moves};

/// Gathers the tasks of groups.
pub(crate) struct Gather;

impl Enforcer for Gather {
    fn apply(&mut self, host: &mut Host, group: &str, set: &Setting) -> Applied {
        let Setting::Gather {
            matching,
            outermost,
            braked,
        } = set
        else {
            return Ok(None);
        };
        let layout = Layout {
            outermost: *outermost,
            braked: *braked,
        };
        gather(host, group, matching, layout).map(Some)
    }

    fn check(&mut self, host: &mut Host, seen: &mut Observation) {
        let groups = host.groups.of.iter();
        let matched = groups.filter(|(_, g)| !g.matching.is_empty());
        let matched: Vec<String> = matched.map(|(name, _)| name.clone()).collect();
        if matched.is_empty() {
            return;
        }
        let mut assigned = match host.assigned() {
            Ok(assigned) => assigned,
            Err(e) => return seen.push(finding(About::Gather, e.to_string(), None)),
        };
        host.report_processes(&assigned.left_out, seen);
        for name in matched {
            if !host.still_held() {
                return;
            }
            let found = assigned.take(&name);
            let adopted = late::adopt(host, &name, &found, seen);
            let failed = adopted
                .and_then(|()| host.collect(&name, Some(found)))
                .err();
            let untold = host
                .groups
                .of
                .get_mut(&name)
                .map(|g| std::mem::take(&mut g.untold));
            let what = untold
                .into_iter()
                .flatten()
                .chain(failed.map(|e| e.to_string()));
            seen.extend(what.map(|what| finding(About::Gather, what, Some(&name))));
        }
    }
}

fn gather(
    host: &mut Host,
    name: &str,
    matching: &[TaskMatch],
    layout: Layout,
) -> Result<Vec<String>> {
    let mut controllers = vec![Controller::Cpuset, Controller::Cpu, Controller::PerfEvent];
    controllers.extend(host.groups.bound.iter().flat_map(|_| BOUND));
    let cpus = host.all_cpus()?;
    let mut notes = Vec::new();
    let in_place: Vec<TaskMatch> = matching.iter().filter(|m| m.in_place()).cloned().collect();
    let group_cgroups = if moves(matching) {
        host.make_cgroups(name, &controllers, layout)?
    } else {
        GroupCgroups {
            group: name.to_owned(),
            places: Vec::new(),
        }
    };
    let group = Group {
        cgroups: group_cgroups,
        layout,
        matching: matching.to_vec(),
        tried: BTreeSet::new(),
        multiplies: false,
        stay: BTreeSet::new(),
        untold: Vec::new(),
        cpus,
        limit_most: Level::Enforced,
        ledger: Some(Ledger::new(rt::ticks_since_boot())),
    };
    host.groups.of.insert(name.to_owned(), group);
    if matching.is_empty() {
        return Ok(notes);
    }
    let own = [Matcher::new(&host.files, name, matching)?];
    tasks::present(&host.files, &own, &host.never())?;
    host.pin(matching)?;
    let found = host.assigned()?.take(name);
    let named = tasks::cgroups_of(&host.files, &in_place, &found)?;
    let within = layout.braked && !in_place.is_empty();
    if within {
        check_in_place(host, name, &named)?;
    }
    let (mut writer, cgroups, group) = host.of(name)?;
    for cgroup in named {
        group
            .cgroups
            .adopt(&mut writer, cgroups, &cgroup, &controllers)?;
        group.tried.insert(cgroup);
    }
    if within {
        threaded::divide(&mut writer, cgroups, &mut group.cgroups)?;
    }
    if !in_place.is_empty() {
        host.complete(name, &controllers)?;
    }
    if moves(matching) {
        notes.extend(host.groups.expect());
    }
    if found.is_empty() {
        notes.push(format!(
            "group {name}: no task matches yet; it is looked for every second"
        ));
    }
    host.collect_first(name, Some(found))?;
    notes.append(&mut host.groups.one_mut(name)?.untold);
    Ok(notes)
}

/// Refuses a group whose brakes would have to be in another owner's cgroup and cannot. Changes
/// nothing.
fn check_in_place(host: &Host, name: &str, cgroups: &BTreeSet<String>) -> Result<()> {
    let refused =
        |why: &str| Error::refused_with(format!("group {name}: {why}"), threaded::INSTEAD);
    let hierarchy = host.cgroups.of(Controller::Cpu);
    let Some(hierarchy) = hierarchy.filter(|h| h.version == Version::V2) else {
        return Err(refused("the cpu controller is not on cgroup v2"));
    };
    let mut found = cgroups.iter();
    let (Some(cgroup), None) = (found.next(), found.next()) else {
        let names: Vec<&str> = cgroups.iter().map(String::as_str).collect();
        return Err(refused(&match names.as_slice() {
            [] => "no program runs in a cgroup that it matches, and a brake needs one".to_owned(),
            several => format!(
                "it matches several cgroups ({}), and a brake holds one",
                several.join(", ")
            ),
        }));
    };
    let Some(dir) = hierarchy.dir(cgroup) else {
        return Ok(());
    };
    let place = CgroupDir {
        hierarchy: hierarchy.clone(),
        dir,
        ours: false,
        braked: false,
    };
    not_ours(&host.files, name, &place)?;
    threaded::check(&host.files, name, &place.dir)
}
