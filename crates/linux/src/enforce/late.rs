//! Cgroups named by a group's match tables that appear while the group is held: a unit that is
//! started, a container that comes.

use quell_kernel::cgroup::Controller;
use quell_kernel::error::Result;
use quell_kernel::procfs::Stat;
use quell_kernel::tasks;
use quell_plan::{Setting, Step};
use quell_record::about::About;
use quell_record::backend::Observation;
use quell_types::task::TaskMatch;

use super::{cores, cpumax, io, nodes, partition, weight};
use crate::group_cgroups::{CgroupDir, GroupCgroups};
use crate::host::{Host, finding};

/// The controllers that a group is gathered with.
const GATHERED: [Controller; 3] = [Controller::Cpuset, Controller::Cpu, Controller::PerfEvent];

/// Applies the plan's settings of a group to cgroups that have appeared since it was gathered. Each
/// cgroup is tried once.
pub(super) fn adopt(
    host: &mut Host,
    name: &str,
    found: &[Stat],
    seen: &mut Observation,
) -> Result<()> {
    let group = host.groups.one(name)?;
    let in_place = group.matching.iter().filter(|m| m.in_place());
    let in_place: Vec<TaskMatch> = in_place.cloned().collect();
    // A brake needs its cgroup from the beginning. Without one such a group was refused.
    if in_place.is_empty() || group.layout.braked {
        return Ok(());
    }
    let mut named = tasks::cgroups_of(&host.files, &in_place, found)?;
    named.retain(|cgroup| !group.tried.contains(cgroup));
    if named.is_empty() {
        return Ok(());
    }
    let mut late = GroupCgroups {
        group: name.to_owned(),
        places: Vec::new(),
    };
    let steps = host.plan.iter().flat_map(|plan| &plan.steps);
    let steps = steps.filter(|step| step.group.as_deref() == Some(name));
    let steps: Vec<Step> = steps.cloned().collect();
    let (mut writer, cgroups, group) = host.of(name)?;
    // Before anything can fail, so that a failure is reported once, not every second.
    group.tried.extend(named.iter().cloned());
    for cgroup in &named {
        late.adopt(&mut writer, cgroups, cgroup, &GATHERED)?;
    }
    let known = group.cgroups.places.clone();
    let is_new = |place: &CgroupDir| known.iter().all(|p| p.dir != place.dir);
    late.places.retain(is_new);
    group.cgroups.places.append(&mut late.places);
    host.complete(name, &GATHERED)?;
    let (mut writer, cgroups, group) = host.of(name)?;
    let places = group.cgroups.places.iter();
    late.places = places.filter(|place| is_new(place)).cloned().collect();
    let mut without = Vec::new();
    let mut notes = Vec::new();
    let mut dissolved = false;
    for step in steps {
        match &step.set {
            Setting::Gather { .. } => {}
            Setting::Confine {
                cpus,
                mems,
                exclusive,
            } => {
                // Of several cgroups with the same CPUs none can be a partition.
                let beside = *exclusive && !late.places.is_empty();
                for place in known.iter().filter(|_| beside) {
                    dissolved |= partition::dissolve(&mut writer, place)?;
                }
                let alone = *exclusive && known.is_empty();
                let confined = cores::confine(&mut writer, cgroups, &late, cpus, mems, alone, &[])?;
                notes.extend(confined.notes);
            }
            Setting::Weight { weight } => {
                notes.extend(weight::give(&mut writer, cgroups, &late, *weight)?);
            }
            Setting::CpuMax { share, period } => {
                let limited = cpumax::limit(&mut writer, cgroups, &late, *share, *period)?;
                notes.extend(limited);
            }
            set if nodes::of(set).is_some() => {
                let mems = nodes::of(set).unwrap_or_default();
                nodes::take(&mut writer, cgroups, &late, &mems)?;
            }
            set if io::is_own(set) => {
                for cgroup in &named {
                    late.adopt(&mut writer, cgroups, cgroup, &[Controller::Io])?;
                }
                io::set(&mut writer, cgroups, &late, set)?;
            }
            _ => without.push(step.mechanism.to_string()),
        }
    }
    if let (true, Some(rest)) = (dissolved, host.groups.rest.clone()) {
        notes.extend(cores::keep_off(host, &rest)?);
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
    let all = std::iter::once(what).chain(notes);
    seen.extend(all.map(|what| finding(About::Late, what, Some(name))));
    Ok(())
}
