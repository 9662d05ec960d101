//! Colours that whole memory nodes have: each group has memory from the nodes of its colours, and
//! all other tasks from those that are left. Page cache is included. Memory that was there before
//! is migrated.
//!
//! Documentation/admin-guide/cgroup-v1/cpusets.rst (`memory_migrate`), cgroup-v2.rst
//! (`cpuset.mems`, which always migrates).

use std::collections::BTreeSet;

use quell_kernel::cgroup::{Cgroups, Controller, Version, effective_cpus, effective_mems};
use quell_kernel::error::{Error, Result};
use quell_kernel::root::Files;
use quell_kernel::vm;
use quell_plan::Setting;
use quell_record::about::About;
use quell_record::backend::Observation;
use quell_types::cpuset::CpuSet;
use quell_types::ids::REST;
use quell_types::mechanism::Mechanism;
use quell_types::units::Bytes;

use super::affinity::Keep;
use super::narrow::{self, What};
use super::{Applied, Enforcer, cores};
use crate::change::JournaledWriter;
use crate::group_cgroups::{CgroupDir, GroupCgroups};
use crate::host::{Host, finding};

/// The nodes that tasks of no group have memory from, and the cgroups that were narrowed to them.
#[derive(Default)]
pub(crate) struct Nodes {
    rest: CpuSet,
    seen: BTreeSet<String>,
}

impl Enforcer for Nodes {
    fn apply(&mut self, host: &mut Host, group: &str, set: &Setting) -> Applied {
        let Some(mems) = of(set) else {
            return Ok(None);
        };
        if group == REST {
            crowded(&host.files, &mems)?;
            let processes = [std::process::id()].into();
            let (mut writer, cgroups, groups) = host.changes()?;
            let homes: Vec<&GroupCgroups> = groups.of.values().map(|g| &g.cgroups).collect();
            let keep = Keep {
                homes: &homes,
                processes: &processes,
            };
            let notes = keep_off(&mut writer, cgroups, keep, &mems, &mut self.seen)?;
            self.rest = mems;
            return Ok(Some(notes));
        }
        let (mut writer, cgroups, group) = host.of(group)?;
        take(&mut writer, cgroups, &group.cgroups, &mems)?;
        Ok(Some(Vec::new()))
    }

    /// Narrows cgroups that have appeared since, such as a slice that was started.
    fn check(&mut self, host: &mut Host, seen: &mut Observation) {
        if self.rest.is_empty() {
            return;
        }
        let narrowed = host.changes().and_then(|(mut writer, cgroups, groups)| {
            let homes: Vec<&GroupCgroups> = groups.of.values().map(|g| &g.cgroups).collect();
            narrow_others(&mut writer, cgroups, &homes, &self.rest, &mut self.seen)
        });
        let notes = narrowed.unwrap_or_else(|e| vec![e.to_string()]).into_iter();
        let about = || About::Mechanism {
            mechanism: Mechanism::Banks,
        };
        seen.extend(notes.map(|note| finding(about(), note, Some(REST))));
    }

    fn release(&mut self, _: &mut Host) {
        *self = Self::default();
    }
}

/// The nodes of a choice of colours. `None` for other settings, and where a colour is chosen page
/// by page.
pub fn of(set: &Setting) -> Option<CpuSet> {
    let Setting::Colour { choices, .. } = set else {
        return None;
    };
    let mut nodes = choices.iter().map(|choice| &choice.nodes);
    let first = nodes.next()?.clone();
    let common = nodes.fold(first, |common, nodes| common.intersection(nodes));
    (!common.is_empty()).then_some(common)
}

/// Gives a group's cgroups memory from these nodes only.
///
/// # Errors
/// [`Error::File`]; [`Error::Refused`] where a cgroup does not get the nodes.
pub fn take(
    writer: &mut JournaledWriter<'_>,
    cgroups: &Cgroups,
    group_cgroups: &GroupCgroups,
    mems: &CpuSet,
) -> Result<()> {
    let places: Vec<CgroupDir> = group_cgroups
        .dirs(cgroups, Controller::Cpuset)
        .cloned()
        .collect();
    if places.is_empty() {
        return Err(Error::refused_with(
            format!(
                "group {}: no cgroup of it has cpusets, which give memory from nodes",
                group_cgroups.group
            ),
            "mount cgroup v2, or cpuset on v1",
        ));
    }
    for place in &places {
        migrate(writer, place)?;
        if place.hierarchy.version == Version::V1 && !place.ours {
            let tree = narrow::narrowing(writer.files, &place.dir, What::Mems, mems, &[])?;
            narrow::apply(writer, &tree)?;
        } else {
            writer.set_slowly(&format!("{}/cpuset.mems", place.dir), &mems.to_string())?;
        }
        let got = effective_mems(writer.files, &place.hierarchy, &place.dir)?.unwrap_or_default();
        if got != *mems {
            return Err(Error::refused_with(
                format!(
                    "{} got memory nodes {got}, not {mems}: its parents do not have the others",
                    place.dir
                ),
                "give the cgroups above it these nodes",
            ));
        }
    }
    Ok(())
}

/// Lets memory that a v1 cpuset has already follow its nodes. v2 always does.
fn migrate(writer: &mut JournaledWriter<'_>, place: &CgroupDir) -> Result<()> {
    let file = format!("{}/cpuset.memory_migrate", place.dir);
    if place.hierarchy.version == Version::V1 && writer.files.exists(&file) {
        writer.set(&file, "1")?;
    }
    Ok(())
}

/// Refuses nodes that are smaller than what the machine's programs use: there the kernel would
/// kill.
fn crowded(files: &dyn Files, mems: &CpuSet) -> Result<()> {
    const NODES: &str = "/sys/devices/system/node";
    let online = files.cpus(&format!("{NODES}/online"))?.unwrap_or_default();
    let (mut used, mut room) = (0u64, 0u64);
    for node in online.iter() {
        let path = format!("{NODES}/node{node}/meminfo");
        let text = files.optional(&path)?.unwrap_or_default();
        let of = |key: &str| vm::amount(&text, key).unwrap_or_default().0;
        used = used
            .saturating_add(of("AnonPages:"))
            .saturating_add(of("Shmem:"));
        if mems.contains(node) {
            room = room.saturating_add(of("MemTotal:"));
        }
    }
    if room > 0 && used > room {
        return Err(Error::refused_with(
            format!(
                "memory nodes {mems} have {}, and programs use {} without pages of files: what is left for unmatched tasks would be too small",
                Bytes(room),
                Bytes(used)
            ),
            "reserve fewer colours",
        ));
    }
    Ok(())
}

/// Keeps all tasks that are in no group on these nodes: those of other cgroups in place, those of
/// the root cgroup in one of Quell's. `seen` are the cgroups that were narrowed before. Returns
/// notes for a person.
///
/// # Errors
/// [`Error::File`]; [`Error::Refused`] as [`take`], and where tasks are born faster than they can
/// be moved.
pub fn keep_off(
    writer: &mut JournaledWriter<'_>,
    cgroups: &Cgroups,
    keep: Keep<'_>,
    mems: &CpuSet,
    seen: &mut BTreeSet<String>,
) -> Result<Vec<String>> {
    let mut notes = narrow_others(writer, cgroups, keep.homes, mems, seen)?;
    let rest = GroupCgroups::create(writer, cgroups, REST, &[Controller::Cpuset])?;
    take(writer, cgroups, &rest, mems)?;
    for place in &rest.places {
        let files = writer.files;
        let cpus = |dir: &str| -> Result<CpuSet> {
            Ok(effective_cpus(files, &place.hierarchy, dir)?.unwrap_or_default())
        };
        let (top, own) = (cpus(&place.hierarchy.mount)?, cpus(&place.dir)?);
        cores::move_root(writer, place, &top, &own, keep.processes, &mut notes)?;
    }
    Ok(notes)
}

/// Narrows the cgroups of other programs that were not narrowed yet.
///
/// # Errors
/// [`Error::File`].
pub fn narrow_others(
    writer: &mut JournaledWriter<'_>,
    cgroups: &Cgroups,
    homes: &[&GroupCgroups],
    mems: &CpuSet,
    seen: &mut BTreeSet<String>,
) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    let Some(hierarchy) = cgroups.of(Controller::Cpuset) else {
        return Ok(notes);
    };
    let there = narrow::top(writer.files, hierarchy)?;
    if there.iter().all(|dir| seen.contains(dir)) {
        return Ok(notes);
    }
    let mut kept: Vec<String> = homes
        .iter()
        .flat_map(|home| home.dirs(cgroups, Controller::Cpuset))
        .map(|place| place.dir.clone())
        .collect();
    kept.extend(seen.iter().cloned());
    if hierarchy.version == Version::V2 {
        writer.enable(&hierarchy.mount, Controller::Cpuset.name())?;
    }
    narrow::others(writer, hierarchy, What::Mems, mems, &kept, &mut notes)?;
    seen.extend(there);
    Ok(notes)
}
