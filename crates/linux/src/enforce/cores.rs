//! The core partition: which CPUs and memory nodes a group gets, and how all other tasks stay off
//! them.
//!
//! Documentation/admin-guide/cgroup-v1/cpusets.rst, cgroup-v2.rst ("Cpuset").
//!
//! v2: an exclusive group becomes a partition ([`super::partition`]): the kernel keeps all other
//! tasks off. Where that is not available, and on v1, all other tasks are narrowed. Existing
//! cgroups are changed in place. The CPUs of the root cgroup cannot be changed, so its tasks are
//! moved to `quell.slice/rest`.

use std::collections::{BTreeMap, BTreeSet};

use quell_kernel::cgroup::{Cgroups, Controller, Version, effective_cpus, effective_mems};
use quell_kernel::cgroup_tree::{procs_file, tasks_in};
use quell_kernel::error::{Error, Result};
use quell_kernel::root::{Files, gone};
use quell_kernel::{cgroup_tree, procfs, remaining};
use quell_plan::Setting;
use quell_record::about::About;
use quell_record::backend::Observation;
use quell_types::cpuset::CpuSet;
use quell_types::ids::REST;
use quell_types::journal::Undo;

use super::affinity::{self, Keep};
use super::narrow::{self, What};
use super::partition;
use super::spread::Spread;
use super::{Applied, Enforcer};
use crate::change::JournaledWriter;
use crate::fault;
use crate::group_cgroups::{self, CgroupDir, GroupCgroups};
use crate::host::{Host, finding};
use crate::placement;

/// The most passes over newborn tasks of the root cgroup.
const ROUNDS: u32 = 20;

/// Carries out the core partition.
#[derive(Default)]
pub(crate) struct Cores {
    spread: Spread,
}

impl Enforcer for Cores {
    fn apply(&mut self, host: &mut Host, group: &str, set: &Setting) -> Applied {
        match set {
            Setting::Confine {
                cpus,
                mems,
                exclusive,
            } => {
                let pids: Vec<u32> = match host.cgroups.of(Controller::Cpuset) {
                    Some(_) => Vec::new(),
                    None => host
                        .assigned()?
                        .take(group)
                        .iter()
                        .map(|s| s.id.pid)
                        .collect(),
                };
                let (mut writer, cgroups, confining) = host.of(group)?;
                let group_cgroups = &confining.cgroups;
                let mut confined = confine(
                    &mut writer,
                    cgroups,
                    group_cgroups,
                    cpus,
                    mems,
                    *exclusive,
                    &pids,
                )?;
                confining.cpus.clone_from(cpus);
                if *exclusive {
                    confined.notes.extend(self.spread.begin(host, group, cpus)?);
                }
                Ok(Some(confined.notes))
            }
            Setting::ConfineRest { cpus } => keep_off(host, cpus).map(Some),
            _ => Ok(None),
        }
    }

    fn check(&mut self, host: &mut Host, seen: &mut Observation) {
        for group in self.spread.names() {
            if let Err(e) = self.spread.look(host, &group) {
                seen.push(finding(About::Gather, e.to_string(), Some(&group)));
            }
        }
    }

    fn launched(&mut self, host: &mut Host, group: &str, _: Option<&CpuSet>) -> Result<()> {
        self.spread.look(host, group)
    }

    fn release(&mut self, host: &mut Host) {
        for group in self.spread.names() {
            // So that threads born since the last look get all CPUs back, too.
            let _ = self.spread.look(host, &group);
        }
        self.spread = Spread::default();
    }
}

/// Keeps all tasks that are in no group on `cpus`, and this thread.
pub(super) fn keep_off(host: &mut Host, cpus: &CpuSet) -> Result<Vec<String>> {
    let mut processes: BTreeSet<u32> = [std::process::id()].into();
    let (mut writer, cgroups, groups) = host.changes()?;
    let homes: Vec<&GroupCgroups> = groups.of.values().map(|g| &g.cgroups).collect();
    let keep = Keep {
        homes: &homes,
        processes: &processes,
    };
    let mut notes = confine_rest(&mut writer, cgroups, keep, cpus)?;
    groups.rest = Some(cpus.clone());
    // The process stays free, so that brakes can be pinned anywhere. This thread keeps off.
    if let Some(session) = &host.session {
        session.stay_on(&host.files, cpus);
    }
    let quiet = host.all_cpus()?.difference(cpus);
    // Tasks of groups are there on purpose.
    for place in host.groups.of.values().flat_map(|g| &g.cgroups.places) {
        processes.extend(cgroup_tree::tasks(&host.files, &place.dir));
    }
    notes.extend(remaining::remaining_on(&host.files, &quiet, &processes)?.sentences(&quiet));
    Ok(notes)
}

/// The result of confining a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Confined {
    /// Whether the kernel itself keeps all other tasks off (a valid v2 partition).
    pub partition: bool,
    /// Sentences for a person.
    pub notes: Vec<String>,
}

/// Confines a group to CPUs and memory nodes. Without a cpuset hierarchy the threads of `tasks`
/// (processes) are pinned one by one.
///
/// # Errors
/// [`Error::File`].
pub fn confine(
    writer: &mut JournaledWriter<'_>,
    cgroups: &Cgroups,
    group_cgroups: &GroupCgroups,
    cpus: &CpuSet,
    mems: &CpuSet,
    exclusive: bool,
    tasks: &[u32],
) -> Result<Confined> {
    let mut confined = Confined::default();
    if cgroups.of(Controller::Cpuset).is_none() {
        confined.notes = affinity::confine(writer, tasks, cpus)?;
        confined.notes.push(format!(
            "group {}: no cpuset hierarchy is mounted, so its tasks are pinned one by one, and can undo that themselves",
            group_cgroups.group
        ));
        return Ok(confined);
    }
    let places: Vec<CgroupDir> = group_cgroups
        .dirs(cgroups, Controller::Cpuset)
        .cloned()
        .collect();
    if places.is_empty() && !group_cgroups.places.is_empty() {
        return Err(Error::refused_with(
            format!(
                "group {}: its cgroup is not in the cpuset hierarchy, so it can be given no CPUs",
                group_cgroups.group
            ),
            "match its processes by comm, exe or pid instead",
        ));
    }
    // Several cgroups with the same CPUs cannot all be partitions.
    let alone = exclusive && places.len() == 1;
    let mut partitions = 0;
    for place in &places {
        if !place.ours {
            placement::keep(writer, &place.hierarchy, &place.dir)?;
        }
        if place.hierarchy.version == Version::V1 && !place.ours {
            let tree = narrow::narrowing(writer.files, &place.dir, What::Cpus, cpus, &[])?;
            narrow::apply(writer, &tree)?;
            continue;
        }
        if !mems.is_empty() {
            writer.set(&format!("{}/cpuset.mems", place.dir), &mems.to_string())?;
        }
        writer.set(&format!("{}/cpuset.cpus", place.dir), &cpus.to_string())?;
        if alone && place.hierarchy.version == Version::V2 {
            match partition::make(writer, place, cpus)? {
                Ok(()) => partitions += 1,
                Err(why) => confined.notes.push(format!(
                    "group {}: the kernel does not make CPUs {cpus} a partition of its own ({why}); everybody else is \
                     narrowed instead",
                    group_cgroups.group
                )),
            }
        }
        let got = effective_cpus(writer.files, &place.hierarchy, &place.dir)?.unwrap_or_default();
        if got != *cpus {
            return Err(Error::refused_with(
                format!(
                    "{} got CPUs {got}, not {cpus}: its parents do not have the others",
                    place.dir
                ),
                "give the cgroups above it these CPUs",
            ));
        }
    }
    confined.partition = alone && partitions > 0;
    Ok(confined)
}

/// The files by which a group's brakes enter cgroups (write `0`). Where brakes may stop the group,
/// this is the cgroup next to its tasks. A brake has to get onto `cpus`. Where neither that cgroup
/// nor this process's own has them, there are two other ways. A group whose CPUs are a partition
/// has them to itself. A brake that only counts then lies among its tasks. Otherwise this process
/// moves to a cgroup of Quell that has all CPUs of the root cgroup.
///
/// # Errors
/// [`Error::File`]; [`Error::Refused`] when not even the root cgroup has them: they belong to
/// another program's partition.
pub fn procs_files(
    writer: &mut JournaledWriter<'_>,
    cgroups: &Cgroups,
    group_cgroups: &GroupCgroups,
    stops: bool,
    cpus: &CpuSet,
) -> Result<Vec<String>> {
    let procs_files = if stops {
        group_cgroups.stop_procs_files()
    } else {
        Vec::new()
    };
    let Some(hierarchy) = cgroups.of(Controller::Cpuset) else {
        return Ok(procs_files);
    };
    let has = |files: &dyn Files, dir: &str| -> Result<bool> {
        let effective = effective_cpus(files, hierarchy, dir)?;
        Ok(effective.is_none_or(|all| cpus.is_subset(&all)))
    };
    for place in group_cgroups.dirs(cgroups, Controller::Cpuset) {
        if stops && place.braked && has(writer.files, &place.stop_dir())? {
            return Ok(procs_files);
        }
    }
    let pid = std::process::id();
    match hierarchy.dir_of(writer.files, pid)? {
        Some(own) if !has(writer.files, &own)? => {}
        _ => return Ok(procs_files),
    }
    if !has(writer.files, &hierarchy.mount)? {
        for place in group_cgroups
            .dirs(cgroups, Controller::Cpuset)
            .filter(|p| p.ours)
        {
            if !stops && has(writer.files, &place.dir)? {
                return Ok(vec![format!("{}/cgroup.procs", place.tasks_dir())]);
            }
        }
        return Err(Error::refused(format!(
            "not all of CPUs {cpus} are left to {}: they belong to a partition",
            hierarchy.mount
        )));
    }
    let main = GroupCgroups::internal(writer, cgroups, "main", &[Controller::Cpuset])?;
    let Some(stat) = procfs::stat(writer.files, pid)? else {
        return Ok(procs_files);
    };
    for place in &main.places {
        group_cgroups::enter(writer, place, std::slice::from_ref(&stat))?;
    }
    Ok(procs_files)
}

/// Keeps all tasks that are in no group on `cpus`. Returns notes for a person.
///
/// # Errors
/// [`Error::File`]; [`Error::Refused`] when tasks are born faster than they can be moved.
pub fn confine_rest(
    writer: &mut JournaledWriter<'_>,
    cgroups: &Cgroups,
    keep: Keep<'_>,
    cpus: &CpuSet,
) -> Result<Vec<String>> {
    let Some(hierarchy) = cgroups.of(Controller::Cpuset) else {
        return affinity::confine_rest(writer, keep, cpus);
    };
    let top = effective_cpus(writer.files, hierarchy, &hierarchy.mount)?.unwrap_or_default();
    if hierarchy.version == Version::V2 && top.is_subset(cpus) {
        return Ok(vec![format!(
            "the kernel keeps everybody else on CPUs {top}: the others are partitions"
        )]);
    }
    let mut notes = Vec::new();
    let kept: Vec<String> = keep
        .homes
        .iter()
        .flat_map(|h| h.dirs(cgroups, Controller::Cpuset))
        .map(|p| p.dir.clone())
        .collect();
    if hierarchy.version == Version::V2 {
        writer.enable(&hierarchy.mount, Controller::Cpuset.name())?;
    }
    narrow::others(writer, hierarchy, What::Cpus, cpus, &kept, &mut notes)?;
    let rest = GroupCgroups::create(writer, cgroups, REST, &[Controller::Cpuset])?;
    for place in &rest.places {
        let mems = effective_mems(writer.files, hierarchy, &hierarchy.mount)?.unwrap_or_default();
        if hierarchy.version == Version::V1 {
            writer.set(&format!("{}/cpuset.mems", place.dir), &mems.to_string())?;
        }
        writer.set(&format!("{}/cpuset.cpus", place.dir), &cpus.to_string())?;
        move_root(writer, place, &top, cpus, keep.processes, &mut notes)?;
    }
    Ok(notes)
}

/// Moves the tasks of the root cgroup to `rest`, again and again until none is left that can be
/// moved. The first move waits for the kernel's grace period (about 10 ms). Moves right after it do
/// not.
pub(super) fn move_root(
    writer: &mut JournaledWriter<'_>,
    rest: &CgroupDir,
    top: &CpuSet,
    cpus: &CpuSet,
    stay: &BTreeSet<u32>,
    notes: &mut Vec<String>,
) -> Result<()> {
    let root = rest.hierarchy.mount.clone();
    let mut unmovable: BTreeMap<u32, String> = BTreeMap::new();
    let mut displaced: BTreeSet<String> = BTreeSet::new();
    for round in 0.. {
        let batch = movable(writer, rest, &root, top, stay, &unmovable)?;
        if batch.writes.is_empty() {
            break;
        }
        if round == ROUNDS {
            notes.push(format!(
                "the tasks of {root} multiply faster than they can be moved: those that are born later may run where \
                 their parents could"
            ));
            break;
        }
        displaced.extend(
            batch
                .custom
                .iter()
                .filter(|(_, own)| own.intersection(cpus).is_empty())
                .map(|(n, _)| n.clone()),
        );
        writer.journal.record_all(&batch.entries)?;
        for (file, task, name) in batch.writes {
            writer.journal.beat();
            match writer.files.write(&file, &task.to_string()) {
                Ok(()) => fault::boundary(),
                Err(e) if gone(&e) => {}
                // A kernel thread that became bound since it was read.
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                    unmovable.insert(task, name);
                }
                Err(e) => return Err(Error::file("write", &file, Some(&task.to_string()), e)),
            }
        }
    }
    if !unmovable.is_empty() {
        let names: BTreeSet<&str> = unmovable.values().map(String::as_str).collect();
        notes.push(format!(
            "could not be moved off: {}",
            names.into_iter().collect::<Vec<_>>().join(", ")
        ));
    }
    if !displaced.is_empty() {
        notes.push(format!(
            "pinned by themselves to other CPUs than {cpus}, and moved off them for the time being: {}",
            displaced.into_iter().collect::<Vec<_>>().join(", ")
        ));
    }
    Ok(())
}

#[derive(Default)]
struct Batch {
    entries: Vec<Undo>,
    /// File to write to, task, and the task's name for messages.
    writes: Vec<(String, u32, String)>,
    /// Names and affinities of tasks whose affinity is not the default.
    custom: Vec<(String, CpuSet)>,
}

/// The tasks directly in the root cgroup that can be moved. Not among them are tasks that the
/// kernel binds, or that are to stay.
fn movable(
    writer: &JournaledWriter<'_>,
    rest: &CgroupDir,
    root: &str,
    top: &CpuSet,
    stay: &BTreeSet<u32>,
    unmovable: &BTreeMap<u32, String>,
) -> Result<Batch> {
    let files = writer.files;
    let failed = |e| Error::file("read", root, None, e);
    let here: BTreeSet<u32> = tasks_in(files, root).map_err(failed)?.into_iter().collect();
    let processes = match rest.hierarchy.version {
        Version::V2 => here.iter().copied().collect(),
        Version::V1 => {
            let text = files.text(&format!("{root}/cgroup.procs"))?;
            let mut pids: Vec<u32> = text
                .split_ascii_whitespace()
                .filter_map(|t| t.parse().ok())
                .collect();
            pids.sort_unstable();
            pids
        }
    };
    let mut batch = Batch::default();
    let mut moves = Vec::new();
    let whole = format!("{}/cgroup.procs", rest.dir);
    let single = procs_file(files, &rest.dir);
    for pid in processes
        .into_iter()
        .filter(|p| *p != 0 && !stay.contains(p) && !unmovable.contains_key(p))
    {
        let Some(leader) = procfs::stat(files, pid)? else {
            continue;
        };
        // kthreadd (2) starts the kernel's threads, and the kernel refuses to move it.
        if leader.bound() || (leader.kernel_thread() && pid == 2) {
            continue;
        }
        let tids = match rest.hierarchy.version {
            Version::V1 if leader.threads > 1 => procfs::threads(files, pid)?,
            _ => vec![pid],
        };
        let all_here = tids.iter().all(|t| here.contains(t));
        let mut any = false;
        for tid in tids.into_iter().filter(|t| here.contains(t)) {
            writer.journal.beat();
            let stat = if tid == pid {
                Some(leader.clone())
            } else {
                procfs::thread_stat(files, pid, tid)?
            };
            let Some(stat) = stat.filter(|s| !s.leaving()) else {
                continue;
            };
            any = true;
            if let Some(entry) = placement::custom_affinity(files, top, stat.id) {
                if let Undo::Affinity { old, .. } = &entry {
                    batch
                        .custom
                        .push((format!("{} ({tid})", stat.comm), old.clone()));
                }
                batch.entries.push(entry);
            }
            moves.push(Undo::Move {
                task: stat.id,
                from: root.to_owned(),
                to: rest.dir.clone(),
            });
            if !all_here {
                batch.writes.push((single.clone(), tid, stat.comm));
            }
        }
        if any && all_here {
            batch.writes.push((whole.clone(), pid, leader.comm));
        }
    }
    // The journal is reverted backwards: affinities are restored after the moves.
    batch.entries.append(&mut moves);
    Ok(batch)
}
