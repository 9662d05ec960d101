//! The cgroups of a group's tasks. Quell makes them in every hierarchy that is needed:
//! `quell.slice/GROUP`, or `quell-GROUP.slice` for one with a weight. For a group selected by
//! cgroup, unit or container, they are the cgroups that it lives in already.
//!
//! Rules of the interfaces (cgroup-v1/cpusets.rst, cgroup-v2.rst):
//!
//! - A v1 cpuset takes no task before it has CPUs and memory nodes.
//! - A v2 controller has to be enabled in every ancestor's `cgroup.subtree_control`. A cgroup that
//!   enables one (other than the root) can hold no process itself. So `quell.slice` never holds
//!   any.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use quell_kernel::cgroup::{
    Cgroups, Controller, Hierarchy, Version, effective_cpus, effective_mems,
};
use quell_kernel::cgroup_tree::tasks_in;
use quell_kernel::error::{Error, Result};
use quell_kernel::procfs::{self, Stat};
use quell_kernel::root::{Files, gone};
use quell_types::journal::Undo;

use crate::change::JournaledWriter;
use crate::fault;
use crate::limited::{Limited, Limits};
use crate::placement::{self, Usual};

/// The parent of Quell's cgroups for groups that have no weight.
pub const SLICE: &str = "quell.slice";
/// The cgroup of a braked group's tasks, below the group's own.
pub const WORK: &str = "work";
/// The cgroup of a braked group's brakes, next to [`WORK`].
pub const STOP: &str = "stop";
/// The most passes over newborn children before giving up. Each pass finds at most those born
/// during the last one, so only a fork bomb needs that many.
const ROUNDS: u32 = 50;
/// How long that may take altogether.
const LONGEST: Duration = Duration::from_millis(300);
/// Entries after which what was found is moved. In the time that thousands take, the numbers of
/// processes may come to mean others.
const PORTION: usize = 256;

/// One cgroup of a group, in one hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupDir {
    /// The hierarchy that the cgroup is in.
    pub hierarchy: Hierarchy,
    /// Absolute path of the cgroup's directory.
    pub dir: String,
    /// Whether Quell made the cgroup and removes it at the end. Otherwise it is changed in place.
    pub ours: bool,
    /// Whether the group's tasks are in the child [`WORK`], next to [`STOP`].
    pub braked: bool,
}

/// Where the cgroups of a group are made, and with which children.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Made directly below the root ([`outermost`]) instead of in [`SLICE`].
    pub outermost: bool,
    /// With [`WORK`] and [`STOP`] where the `cpu` controller is.
    pub braked: bool,
}

/// The name of a group's cgroup directly below the root. The kernel weighs siblings against each
/// other: in [`SLICE`] a weight would not count against programs outside.
#[must_use]
pub fn outermost(group: &str) -> String {
    format!("quell-{group}.slice")
}

impl CgroupDir {
    /// Whether the group's tasks are moved: into a cgroup that Quell made, or within another
    /// owner's.
    #[must_use]
    pub const fn collects(&self) -> bool {
        self.ours || self.braked
    }

    /// The directory of the cgroup that has the group's tasks.
    #[must_use]
    pub fn tasks_dir(&self) -> String {
        if self.braked {
            format!("{}/{WORK}", self.dir)
        } else {
            self.dir.clone()
        }
    }

    /// The directory of the cgroup that has the brakes of a braked group.
    #[must_use]
    pub fn stop_dir(&self) -> String {
        format!("{}/{STOP}", self.dir)
    }

    /// Whether `dir` is this directory, or below it.
    #[must_use]
    pub fn holds(&self, dir: &str) -> bool {
        Path::new(dir).starts_with(&self.dir)
    }
}

/// The cgroups of one group, over all hierarchies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupCgroups {
    /// Name of the group in the plan.
    pub group: String,
    /// One cgroup per hierarchy that Quell made, or cgroups that are changed in place.
    pub places: Vec<CgroupDir>,
}

impl GroupCgroups {
    /// Makes the group's cgroups in the hierarchies of `controllers`. Controllers without a
    /// hierarchy are left out.
    ///
    /// # Errors
    /// [`Error::File`]; [`Error::Refused`] for a name that cannot be a directory.
    pub fn create(
        writer: &mut JournaledWriter<'_>,
        cgroups: &Cgroups,
        group: &str,
        controllers: &[Controller],
    ) -> Result<Self> {
        Self::create_as(writer, cgroups, None, group, controllers, Layout::default())
    }

    /// Makes cgroups as [`Self::create`], with a layout. If `above` is given, they lie below that
    /// group's cgroups in the hierarchies that it is in.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn create_as(
        writer: &mut JournaledWriter<'_>,
        cgroups: &Cgroups,
        above: Option<&Self>,
        group: &str,
        controllers: &[Controller],
        layout: Layout,
    ) -> Result<Self> {
        check_name(group)?;
        Self::build(writer, cgroups, above, group, controllers, layout)
    }

    /// Makes cgroups for no group of a policy: for the main process, the watchdog, or around all
    /// groups. The name begins with `_`, which no group's can.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn internal(
        writer: &mut JournaledWriter<'_>,
        cgroups: &Cgroups,
        name: &str,
        controllers: &[Controller],
    ) -> Result<Self> {
        let layout = Layout::default();
        Self::build(
            writer,
            cgroups,
            None,
            &format!("_{name}"),
            controllers,
            layout,
        )
    }

    fn build(
        writer: &mut JournaledWriter<'_>,
        cgroups: &Cgroups,
        above: Option<&Self>,
        group: &str,
        controllers: &[Controller],
        layout: Layout,
    ) -> Result<Self> {
        let mut group_cgroups = Self {
            group: group.to_owned(),
            places: Vec::new(),
        };
        for controller in controllers {
            let Some(hierarchy) = cgroups.of(*controller) else {
                continue;
            };
            let around = above.and_then(|a| a.places.iter().find(|p| p.hierarchy == *hierarchy));
            let mut top = hierarchy.mount.clone();
            let slice = format!("{top}/{SLICE}");
            let name = if layout.outermost && around.is_none() {
                let name = outermost(group);
                writer.owns_or_misses(&format!("{top}/{name}"))?;
                // No program can take a controller from the root as long as a cgroup below hands
                // it on. A group's cgroup without children hands on none.
                if hierarchy.version == Version::V2 && !controller.implicit_in_v2() {
                    make(writer, hierarchy, &top, &slice, *controller)?;
                    writer.enable(&slice, controller.name())?;
                }
                name
            } else {
                for dir in [Some(&slice), around.map(|a| &a.dir)].into_iter().flatten() {
                    make(writer, hierarchy, &top, dir, *controller)?;
                    top.clone_from(dir);
                }
                group.to_owned()
            };
            let dir = format!("{top}/{name}");
            make(writer, hierarchy, &top, &dir, *controller)?;
            let braked = layout.braked && cgroups.of(Controller::Cpu) == Some(hierarchy);
            if !group_cgroups.places.iter().any(|p| p.dir == dir) {
                group_cgroups.places.push(CgroupDir {
                    hierarchy: hierarchy.clone(),
                    dir,
                    ours: true,
                    braked,
                });
            }
        }
        // Every controller has to be enabled above them first.
        for place in group_cgroups.places.iter().filter(|p| p.braked) {
            for child in [WORK, STOP] {
                let child = format!("{}/{child}", place.dir);
                make(
                    writer,
                    &place.hierarchy,
                    &place.dir,
                    &child,
                    Controller::Cpu,
                )?;
            }
        }
        Ok(group_cgroups)
    }

    /// Makes a cgroup below one of a group's, for some of its tasks. Tasks that are left in it at
    /// the end go to the group's.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn below(
        writer: &mut JournaledWriter<'_>,
        place: &CgroupDir,
        name: &str,
    ) -> Result<CgroupDir> {
        let parent = place.tasks_dir();
        let dir = format!("{parent}/{name}");
        writer.make(&dir, &parent)?;
        let is_v1 = place.hierarchy.version == Version::V1;
        if is_v1 && place.hierarchy.controllers.iter().any(|c| c == "cpuset") {
            fill(writer, &place.hierarchy, &parent, &dir)?;
        }
        Ok(CgroupDir {
            hierarchy: place.hierarchy.clone(),
            dir,
            ours: true,
            braked: false,
        })
    }

    /// The group's cgroups in the hierarchy of a controller.
    pub fn dirs<'a>(
        &'a self,
        cgroups: &Cgroups,
        controller: Controller,
    ) -> impl Iterator<Item = &'a CgroupDir> + use<'a> {
        let mount = cgroups.of(controller).map(|h| h.mount.clone());
        self.places
            .iter()
            .filter(move |p| Some(&p.hierarchy.mount) == mount.as_ref())
    }

    /// The files through which a child can enter the cgroups that Quell made, before it executes
    /// (write `0`).
    #[must_use]
    pub fn procs_files(&self) -> Vec<String> {
        self.places
            .iter()
            .filter(|p| p.ours)
            .map(|p| format!("{}/cgroup.procs", p.tasks_dir()))
            .collect()
    }

    /// The directories of the cgroups that the group's tasks are in.
    #[must_use]
    pub fn tasks_dirs(&self) -> Vec<String> {
        self.places.iter().map(CgroupDir::tasks_dir).collect()
    }

    /// The files through which a brake enters its cgroup (write `0`). Empty where the group has no
    /// room for brakes.
    #[must_use]
    pub fn stop_procs_files(&self) -> Vec<String> {
        let braked = self.places.iter().filter(|p| p.braked);
        braked
            .map(|p| format!("{}/cgroup.procs", p.stop_dir()))
            .collect()
    }

    /// Adds cgroups that exist already, to be changed in place.
    ///
    /// # Errors
    /// [`Error::File`] when the controller has to be enabled above them and cannot be.
    /// [`Error::Refused`] for the root cgroup.
    pub fn adopt(
        &mut self,
        writer: &mut JournaledWriter<'_>,
        cgroups: &Cgroups,
        cgroup: &str,
        controllers: &[Controller],
    ) -> Result<()> {
        for controller in controllers {
            let Some(hierarchy) = cgroups.of(*controller) else {
                continue;
            };
            let Some(dir) = hierarchy.dir(cgroup).filter(|d| writer.files.exists(d)) else {
                continue;
            };
            if dir == hierarchy.mount {
                return Err(Error::refused(
                    "the root cgroup is everybody's: it cannot be a group",
                ));
            }
            if hierarchy.version == Version::V2 && !controller.implicit_in_v2() {
                let mut above = hierarchy.mount.clone();
                let below = dir
                    .strip_prefix(&hierarchy.mount)
                    .unwrap_or_default()
                    .to_owned();
                let parts: Vec<&str> = below.split('/').filter(|p| !p.is_empty()).collect();
                for part in &parts {
                    writer.enable(&above, controller.name())?;
                    above = format!("{above}/{part}");
                }
            }
            if !self.places.iter().any(|p| p.dir == dir) {
                self.places.push(CgroupDir {
                    hierarchy: hierarchy.clone(),
                    dir,
                    ours: false,
                    braked: false,
                });
            }
        }
        Ok(())
    }

    /// Moves the processes that `find` finds into the group's own cgroups, again and again until
    /// none is outside. So children born meanwhile are covered. A process that lives in a cgroup
    /// which is changed in place stays there, and so does one that would leave a limit of memory,
    /// but for Quell's own. Whoever begins programs without end is not waited for.
    ///
    /// # Errors
    /// What `find` and the kernel return. All are moved that can be.
    pub fn gather(
        &self,
        writer: &mut JournaledWriter<'_>,
        find: &mut dyn FnMut(&dyn Files) -> Result<Vec<Stat>>,
    ) -> Result<Gathered> {
        let begun = Instant::now();
        let (mut stay, mut failed) = (BTreeMap::new(), None);
        let collecting = self.places.iter().filter(|p| p.collects());
        let mut places: Vec<(&CgroupDir, Limits<'_>)> = collecting
            .map(|place| (place, Limits::new(&place.hierarchy, &place.dir)))
            .collect();
        for round in 0..ROUNDS {
            let found = find(writer.files)?;
            let mut outside = 0;
            for (place, limits) in &mut places {
                let own = !place.ours || self.group.starts_with('_');
                let mut stays = |files: &dyn Files, process: &Stat, from: &str| {
                    if self.is_adopted(place, from) {
                        return Ok(true);
                    }
                    let limited = if own {
                        None
                    } else {
                        limits.of(files, process, from)?
                    };
                    let stays = limited.is_some();
                    stay.extend(limited.map(|why| (process.id, why)));
                    Ok(stays)
                };
                match enter_if(writer, place, &found, &mut stays) {
                    Ok(moved) => outside += moved,
                    Err(e) => failed = Some(e),
                }
            }
            if let Some(e) = failed {
                return Err(e);
            }
            let whole = outside == 0;
            if whole || round > 2 && begun.elapsed() > LONGEST {
                let stay = stay.into_values().collect();
                return Ok(Gathered { whole, stay });
            }
        }
        Ok(Gathered {
            whole: false,
            stay: stay.into_values().collect(),
        })
    }

    /// Whether a cgroup lies in one of this group that is changed in place.
    fn is_adopted(&self, place: &CgroupDir, cgroup: &str) -> bool {
        let mount = &place.hierarchy.mount;
        let adopted = self.places.iter().filter(|p| !p.collects());
        let mut here = adopted.filter(|p| p.hierarchy.mount == *mount);
        place.ours && here.any(|p| Path::new(cgroup).starts_with(&p.dir))
    }
}

/// How the gathering of a group came out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gathered {
    /// Whether none is outside at the end that can be inside.
    pub whole: bool,
    /// The processes that stay outside.
    pub stay: Vec<Limited>,
}

/// Makes one cgroup below `parent`, ready to take tasks.
fn make(
    writer: &mut JournaledWriter<'_>,
    hierarchy: &Hierarchy,
    parent: &str,
    dir: &str,
    controller: Controller,
) -> Result<()> {
    match hierarchy.version {
        Version::V2 => {
            if !controller.implicit_in_v2() {
                writer.enable(parent, controller.name())?;
            }
            writer.make(dir, &hierarchy.own_dir())?;
        }
        Version::V1 => {
            writer.make(dir, &hierarchy.own_dir())?;
            if hierarchy.controllers.iter().any(|c| c == "cpuset") {
                fill(writer, hierarchy, parent, dir)?;
            }
        }
    }
    Ok(())
}

/// A new v1 cpuset is empty, and takes no task until it has its parent's nodes and CPUs.
fn fill(
    writer: &mut JournaledWriter<'_>,
    hierarchy: &Hierarchy,
    parent: &str,
    dir: &str,
) -> Result<()> {
    for (what, value) in [
        ("mems", effective_mems(writer.files, hierarchy, parent)?),
        ("cpus", effective_cpus(writer.files, hierarchy, parent)?),
    ] {
        let path = format!("{dir}/cpuset.{what}");
        if writer.files.text(&path)?.is_empty() {
            let value = value.ok_or_else(|| {
                Error::malformed(&format!("{parent}/cpuset.{what}"), "", "a list")
            })?;
            // Not recorded: the cgroup is removed as a whole.
            writer.files.put(&path, &value.to_string())?;
        }
    }
    Ok(())
}

/// Refuses names that would collide with the kernel's own files, or leave the directory.
fn check_name(group: &str) -> Result<()> {
    let bad = group.is_empty()
        || group.starts_with(['.', '_'])
        || group.contains(['/', '\n', '\0'])
        || group.len() > 100
        || ["tasks", "notify_on_release", "release_agent"].contains(&group)
        || ["cgroup.", "cpuset.", "cpu.", "memory.", "io.", "pids."]
            .iter()
            .any(|p| group.starts_with(p));
    if bad {
        return Err(Error::refused_with(
            format!("'{group}' cannot be the name of a cgroup"),
            "use letters, digits and dashes",
        ));
    }
    Ok(())
}

/// Moves whole processes into a cgroup. If Quell did not make that, only processes next to [`WORK`]
/// are moved. A process below it stays there. Returns how many were outside.
pub(crate) fn enter(
    writer: &mut JournaledWriter<'_>,
    place: &CgroupDir,
    processes: &[Stat],
) -> Result<usize> {
    enter_if(writer, place, processes, &mut |_, _, _| Ok(false))
}

/// Moves as [`enter`], after `stays` has been asked whether a task of a process stays in the cgroup
/// that it is in. Then the whole process does.
fn enter_if(
    writer: &mut JournaledWriter<'_>,
    place: &CgroupDir,
    processes: &[Stat],
    stays: &mut dyn FnMut(&dyn Files, &Stat, &str) -> Result<bool>,
) -> Result<usize> {
    let to = place.tasks_dir();
    if !place.ours && !writer.files.exists(&to) {
        // Its owner has removed it, which is reported elsewhere.
        return Ok(0);
    }
    let inside: BTreeSet<u32> = tasks_in(writer.files, &to)
        .map_err(|e| Error::file("read", &to, None, e))?
        .into_iter()
        .collect();
    let (mut moved, mut failed) = (0, Ok(()));
    let mut all_usual = Usual::default();
    let mut moving = Vec::new();
    let mut entries = Vec::new();
    for process in processes {
        let before = entries.len();
        let tids = match place.hierarchy.version {
            Version::V1 => procfs::threads(writer.files, process.id.pid)?,
            Version::V2 => vec![process.id.pid],
        };
        for tid in tids.into_iter().filter(|t| !inside.contains(t)) {
            writer.journal.beat();
            let stat = procfs::thread_stat(writer.files, process.id.pid, tid)?;
            let Some(stat) = stat.filter(|s| !s.leaving()) else {
                continue;
            };
            let Some(from) = place
                .hierarchy
                .dir_of(writer.files, tid)?
                .filter(|f| !Path::new(f).starts_with(&to) && (place.ours || *f == place.dir))
            else {
                continue;
            };
            if stays(writer.files, process, &from)? {
                entries.truncate(before);
                break;
            }
            // A move within a cgroup leaves affinities as they are.
            if place.ours {
                let (files, of, usual) = (writer.files, &place.hierarchy, &mut all_usual);
                entries.extend(match of.version {
                    Version::V1 => placement::thread(files, of, &from, stat.id, usual),
                    Version::V2 => placement::process(files, of, &from, tid, usual)?,
                });
            }
            entries.push(Undo::Move {
                task: stat.id,
                from,
                to: to.clone(),
            });
        }
        if entries.len() > before {
            moving.push(process.id.pid);
        }
        if entries.len() >= PORTION {
            moved += record_and_move(writer, &to, &mut entries, &mut moving, &mut failed)?;
        }
    }
    moved += record_and_move(writer, &to, &mut entries, &mut moving, &mut failed)?;
    failed.map(|()| moved)
}

/// Moves processes into the cgroup `to`, once `entries` are recorded, and empties both. Returns how
/// many there were. All are moved that can be: the first failure is told in `failed`.
fn record_and_move(
    writer: &mut JournaledWriter<'_>,
    to: &str,
    entries: &mut Vec<Undo>,
    moving: &mut Vec<u32>,
    failed: &mut Result<()>,
) -> Result<usize> {
    let count = moving.len();
    if count == 0 {
        return Ok(0);
    }
    writer.journal.record_all(entries)?;
    entries.clear();
    let procs_file = format!("{to}/cgroup.procs");
    for pid in moving.drain(..) {
        writer.journal.beat();
        let pid = pid.to_string();
        match writer.files.write(&procs_file, &pid) {
            Ok(()) => fault::boundary(),
            Err(e) if gone(&e) => {}
            Err(_) if failed.is_err() => {}
            Err(e) => *failed = Err(Error::file("write", &procs_file, Some(&pid), e)),
        }
    }
    Ok(count)
}

#[cfg(test)]
#[path = "group_cgroups_tests.rs"]
mod tests;
