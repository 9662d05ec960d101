//! The weight of a cgroup's CPU time: `cpu.weight` (v2) or `cpu.shares` (v1), and `cpu.idle` (both,
//! since Linux 5.15). cgroup-v2.rst, "CPU Interface Files"; sched-design-CFS.rst.
//!
//! Setting `cpu.idle` loses the weight, and clearing it leaves the default one. So `cpu.idle` is
//! only set in cgroups that Quell made, which are removed as a whole.

use std::collections::BTreeSet;

use quell_kernel::cgroup::{Cgroups, Controller, Version};
use quell_kernel::error::{Error, Result};
use quell_kernel::fair;
use quell_kernel::root::Files;
use quell_plan::Setting;
use quell_record::backend::Observation;
use quell_record::standing::Cause;
use quell_types::mechanism::Level;
use quell_types::options::CpuWeight;

use super::{Applied, Enforcer};
use crate::change::JournaledWriter;
use crate::group_cgroups::{CgroupDir, GroupCgroups};
use crate::host::Host;

/// `cpu.shares` of the kernel's default weight, 100.
const USUAL_SHARES: u64 = 1024;
/// The least and the most that `cpu.shares` takes.
const SHARES: (u64, u64) = (2, 1 << 18);
/// The highest value of `cpu.weight`.
const HIGHEST: u32 = 10_000;

/// Carries out weights of CPU time.
#[derive(Default)]
pub(crate) struct Weight {
    /// Groups whose promises were reported as lost.
    lost: BTreeSet<String>,
}

impl Enforcer for Weight {
    fn apply(&mut self, host: &mut Host, group: &str, set: &Setting) -> Applied {
        let Setting::Weight { weight } = set else {
            return Ok(None);
        };
        let (mut writer, cgroups, group) = host.of(group)?;
        give(&mut writer, cgroups, &group.cgroups, *weight).map(Some)
    }

    /// A group that has no cgroup of the `cpu` controller was given no weight.
    fn check(&mut self, host: &mut Host, seen: &mut Observation) {
        let weighs = |set: &Setting| matches!(set, Setting::Weight { .. });
        let steps = host.plan.iter().flat_map(|plan| &plan.steps);
        let mut names: BTreeSet<String> = steps
            .filter(|step| weighs(&step.set))
            .filter_map(|step| step.group.clone())
            .collect();
        names.retain(|name| !self.lost.contains(name));
        for name in names {
            let Ok((_, cgroups, group)) = host.of(&name) else {
                continue;
            };
            if group
                .cgroups
                .dirs(cgroups, Controller::Cpu)
                .next()
                .is_some()
            {
                continue;
            }
            let why = "its tasks are in no cgroup of the cpu controller".to_owned();
            let because = Cause::Loose { why };
            seen.extend(host.worth(&name, &weighs, Level::None, &because));
            self.lost.insert(name);
        }
    }

    fn release(&mut self, _: &mut Host) {
        self.lost.clear();
    }
}

/// The file of a weight, and the value to write.
fn setting(version: Version, dir: &str, weight: u32) -> (String, u64) {
    match version {
        Version::V2 => (format!("{dir}/cpu.weight"), u64::from(weight)),
        Version::V1 => {
            let shares = match weight {
                HIGHEST => SHARES.1,
                weight => (u64::from(weight) * USUAL_SHARES + 50) / 100,
            };
            (
                format!("{dir}/cpu.shares"),
                shares.clamp(SHARES.0, SHARES.1),
            )
        }
    }
}

fn set(writer: &mut JournaledWriter<'_>, version: Version, dir: &str, weight: u32) -> Result<()> {
    let (path, value) = setting(version, dir, weight);
    writer.set(&path, &value.to_string()).map(|_| ())
}

/// Gives a group its weight. Returns notes for a person.
///
/// # Errors
/// [`Error::File`]; [`Error::Refused`] where a cgroup that Quell did not make is to be idle.
pub fn give(
    writer: &mut JournaledWriter<'_>,
    cgroups: &Cgroups,
    group_cgroups: &GroupCgroups,
    weight: CpuWeight,
) -> Result<Vec<String>> {
    let places: Vec<CgroupDir> = group_cgroups
        .dirs(cgroups, Controller::Cpu)
        .cloned()
        .collect();
    if places.is_empty() {
        return Ok(vec![format!(
            "group {}: its tasks are in no cgroup of the cpu controller, so that its weight stays as it is",
            group_cgroups.group
        )]);
    }
    let exempt = fair::exempt(writer.files, &group_cgroups.tasks_dirs());
    let exempt =
        exempt.map(|task| format!("group {}: {task}: no weight holds it", group_cgroups.group));
    let mut notes: Vec<String> = exempt.into_iter().collect();
    for place in &places {
        let (version, dir) = (place.hierarchy.version, &place.dir);
        match weight {
            CpuWeight::Of(_) if !place.ours && is_idle(writer.files, dir)? => notes.push(format!(
                "group {}: {dir} is idle already (cpu.idle), which is less than any weight: left as it is",
                group_cgroups.group
            )),
            CpuWeight::Of(weight) => set(writer, version, dir, weight)?,
            CpuWeight::Idle if place.ours => idle(writer, dir)?,
            CpuWeight::Idle => {
                return Err(Error::refused_with(
                    format!(
                        "group {}: {dir} is not ours, and making it idle would lose the weight that it has",
                        group_cgroups.group
                    ),
                    "give it a number (cpu-weight = 1), or match its tasks by something else than their cgroup",
                ));
            }
        }
    }
    Ok(notes)
}

fn is_idle(files: &dyn Files, dir: &str) -> Result<bool> {
    let text = files.optional(&format!("{dir}/cpu.idle"))?;
    Ok(text.is_some_and(|text| text.trim() == "1"))
}

fn idle(writer: &mut JournaledWriter<'_>, dir: &str) -> Result<()> {
    let path = format!("{dir}/cpu.idle");
    if !writer.files.exists(&path) {
        return Err(Error::refused_with(
            format!("{path} is not there: cgroups can be idle since Linux 5.15"),
            "write cpu-weight = 1 instead, or have limits held by cpu.max (mechanisms.bandwidth = \"none\")",
        ));
    }
    writer.set(&path, "1").map(|_| ())
}

/// Makes a group stoppable by its brakes: its tasks run only while no brake does. It was gathered
/// with room for brakes.
///
/// # Errors
/// As [`give`].
pub fn under_the_brake(
    writer: &mut JournaledWriter<'_>,
    group_cgroups: &GroupCgroups,
) -> Result<()> {
    for place in group_cgroups.places.iter().filter(|p| p.braked) {
        set(writer, place.hierarchy.version, &place.stop_dir(), HIGHEST)?;
        idle(writer, &place.tasks_dir())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_of_both_versions() {
        let of = |version, weight| setting(version, "/g", weight);
        assert_eq!(of(Version::V2, 5), ("/g/cpu.weight".to_owned(), 5));
        assert_eq!(of(Version::V1, 5), ("/g/cpu.shares".to_owned(), 51));
        assert_eq!(of(Version::V1, 100).1, 1024);
        assert_eq!(of(Version::V1, 1).1, 10);
        assert_eq!(of(Version::V1, 10_000).1, 1 << 18);
    }
}
