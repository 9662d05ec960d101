//! Shares of caches and of memory bandwidth (resctrl): mounting, control groups, what each group
//! gets, and which tasks and CPUs are in it.
//!
//! No function here takes the lock (`lock`), because several changes belong together.

use std::collections::{BTreeMap, BTreeSet};

use quell_kernel::error::{Error, Result};
use quell_kernel::procfs;
use quell_kernel::resctrl::groups::membership;
use quell_kernel::resctrl::locked::Region;
use quell_kernel::resctrl::mount::USUAL;
use quell_kernel::resctrl::{Group, Info, Kind, Mode, Resctrl, Schemata, masks};
use quell_kernel::root::{Files, gone};
use quell_types::cpuset::CpuSet;
use quell_types::journal::Undo;

use crate::change::JournaledWriter;
use crate::fault;

/// The most searches for tasks outside, before they are said to multiply too fast.
const ROUNDS: usize = 50;

/// The resctrl mount that exists, whatever its options. Otherwise mounts it at the usual place with
/// these options, to be unmounted at the end.
///
/// # Errors
/// [`Error::File`] when it cannot be mounted.
pub fn adopt_or_mount(writer: &mut JournaledWriter<'_>, options: &str) -> Result<Resctrl> {
    if let Some(found) = Resctrl::find(writer.files)? {
        return Ok(found);
    }
    let mark = writer.journal.mark();
    writer.journal.record(&Undo::Mount {
        path: USUAL.to_owned(),
    })?;
    let mounted = writer.files.mount("resctrl", USUAL, options);
    if mounted.is_err() {
        // Another program may mount it meanwhile. Quell must not unmount that.
        writer.journal.retract(mark)?;
    }
    let found = Resctrl::find(writer.files)?;
    match (mounted, found) {
        (Ok(()), Some(found)) => {
            fault::boundary();
            Ok(found)
        }
        (Err(e), Some(found)) if e.raw_os_error() == Some(libc::EBUSY) => Ok(found),
        (Err(e), _) => Err(Error::file("mount resctrl at", USUAL, None, e)),
        (Ok(()), None) => Err(Error::refused(format!(
            "resctrl was mounted at {USUAL} and is not among the mounts"
        ))),
    }
}

/// Makes a control group (`name`) or a monitor group (`PARENT/mon_groups/NAME`). A group that
/// exists already belongs to another program.
///
/// # Errors
/// [`Error::File`] with the kernel's words: no class of service or monitoring id is free.
/// [`Error::Refused`] when the name is taken.
pub fn make(writer: &mut JournaledWriter<'_>, resctrl: &Resctrl, name: &str) -> Result<Group> {
    let group = resctrl.group(name);
    let files = writer.files;
    if resctrl.explained(files, || writer.make(&group.dir, &resctrl.root))? {
        return Ok(group);
    }
    Err(Error::refused_with(
        format!("{} is there already, and not of this run", group.dir),
        "remove it (rmdir), if nobody needs it",
    ))
}

/// Writes a group's `schemata`. Lines that `wanted` does not name stay as they are. Returns whether
/// something was changed.
///
/// # Errors
/// [`Error::Refused`] before anything is written, where a mask is not possible or belongs to
/// another group. [`Error::File`] with the kernel's words.
pub fn allocate(
    writer: &mut JournaledWriter<'_>,
    resctrl: &Resctrl,
    info: &Info,
    group: &Group,
    wanted: &Schemata,
) -> Result<bool> {
    let mode = group.mode(writer.files)?.unwrap_or(Mode::Shareable);
    for (resource, wanted) in masks::of(wanted) {
        let of = info.all_ways().find(|(r, _)| r.name == *resource);
        let Some((_, ways)) = of else {
            return Err(Error::refused_with(
                format!("this machine has no {resource} to divide"),
                format!("{}/info tells what there is", resctrl.root),
            ));
        };
        for mask in wanted.values() {
            masks::possible(resource, ways, *mask)?;
        }
        let level: Vec<&str> = info
            .ways(ways.level)
            .map(|(r, _)| r.name.as_str())
            .collect();
        let owners = resctrl.owners(writer.files, &level)?;
        masks::free(resource, ways, &group.name, &mode, wanted, &owners)?;
    }
    let files = writer.files;
    let path = group.file("schemata");
    resctrl.explained(files, || writer.set(&path, &wanted.to_string()))
}

/// Gives a group what the kernel gives a new one: every way that no other group has to itself, and
/// all bandwidth. Bandwidth that is not linear stays as it is, because its maximum is not known.
///
/// # Errors
/// [`Error::File`] with the kernel's words.
pub fn widen(
    writer: &mut JournaledWriter<'_>,
    resctrl: &Resctrl,
    info: &Info,
    group: &Group,
) -> Result<()> {
    let now = group.schemata(writer.files)?;
    for resource in &info.resources {
        let mut wide = Schemata::default();
        let name = resource.name.as_str();
        match &resource.kind {
            Kind::Ways(ways) => {
                let level = info.ways(ways.level).map(|(r, _)| r.name.as_str());
                let level: Vec<&str> = level.collect();
                let owners = resctrl.owners(writer.files, &level)?;
                for cache in now.domains(name) {
                    let mask = masks::open(ways, cache, &group.name, &owners);
                    if mask.count() >= ways.least {
                        wide = wide.with(&Schemata::masks(name, [cache], mask));
                    }
                }
            }
            Kind::Bandwidth(bandwidth) if resctrl.mib_s || bandwidth.linear => {
                let most = if resctrl.mib_s { u32::MAX.into() } else { 100 };
                wide = Schemata::numbers(name, now.domains(name), most);
            }
            _ => {}
        }
        // One entry per resource. A step that sets one of them replaces its entry.
        let files = writer.files;
        let path = group.file("schemata");
        resctrl.explained(files, || writer.set(&path, &wide.to_string()))?;
    }
    Ok(())
}

/// The CPUs that were put into a control group.
pub struct GivenCpus {
    /// Those that are in it now.
    pub cpus: CpuSet,
    /// Those that another program has put into another control group, by its name. They stay there.
    pub taken: BTreeMap<String, CpuSet>,
}

/// Puts CPUs of the default group into a control group. Tasks of the default group fill its ways
/// while they run there.
///
/// # Errors
/// [`Error::File`] with the kernel's words.
pub fn give_cpus(
    writer: &mut JournaledWriter<'_>,
    resctrl: &Resctrl,
    group: &Group,
    cpus: &CpuSet,
) -> Result<GivenCpus> {
    let files = writer.files;
    let mut given = GivenCpus {
        cpus: cpus.clone(),
        taken: BTreeMap::new(),
    };
    for other in resctrl.groups(files)? {
        let theirs = other.cpus(files)?.intersection(cpus);
        if !other.name.is_empty() && other != *group && !theirs.is_empty() {
            given.cpus = given.cpus.difference(&theirs);
            given.taken.insert(other.name, theirs);
        }
    }
    if !given.cpus.is_empty() {
        let path = group.file("cpus_list");
        resctrl.explained(files, || writer.set(&path, &given.cpus.to_string()))?;
    }
    Ok(given)
}

/// Makes a group's ways shareable or exclusive. Returns whether something was changed.
///
/// # Errors
/// [`Error::File`] with the kernel's words.
pub fn set_mode(
    writer: &mut JournaledWriter<'_>,
    resctrl: &Resctrl,
    group: &Group,
    mode: &Mode,
) -> Result<bool> {
    let files = writer.files;
    resctrl.explained(files, || writer.set(&group.file("mode"), mode.as_str()))
}

/// Moves the threads that `find` finds into a group, again and again until none is outside. So
/// threads born meanwhile are covered. Returns how many were moved.
///
/// # Errors
/// What `find` and the kernel return. [`Error::Refused`] when threads are born faster than they can
/// be moved.
pub fn take(
    writer: &mut JournaledWriter<'_>,
    resctrl: &Resctrl,
    group: &Group,
    find: &mut dyn FnMut(&dyn Files) -> Result<BTreeSet<u32>>,
) -> Result<usize> {
    let mut moved = 0;
    for _ in 0..ROUNDS {
        let mut outside = find(writer.files)?;
        for tid in group.tasks(writer.files)? {
            outside.remove(&tid);
        }
        let round = enter(writer, resctrl, group, &outside)?;
        if round == 0 {
            return Ok(moved);
        }
        moved += round;
    }
    Err(Error::refused(format!(
        "{}: the group's threads multiply faster than they can be moved",
        group.dir
    )))
}

fn enter(
    writer: &mut JournaledWriter<'_>,
    resctrl: &Resctrl,
    group: &Group,
    threads: &BTreeSet<u32>,
) -> Result<usize> {
    if threads.is_empty() {
        return Ok(0);
    }
    let homes = Homes::new(resctrl, writer.files)?;
    let mut entries = Vec::new();
    let mut moving = Vec::new();
    for tid in threads {
        writer.journal.beat();
        let stat = procfs::thread_stat(writer.files, *tid, *tid)?;
        let Some(stat) = stat.filter(|s| !s.leaving()) else {
            continue;
        };
        let (control, monitor) = homes.of(writer.files, *tid)?;
        // The journal is reverted backwards: into the control group first, then into its monitor
        // group.
        entries.extend(monitor.map(|from| Undo::Move {
            task: stat.id,
            from,
            to: control.clone(),
        }));
        entries.push(Undo::Move {
            task: stat.id,
            from: control,
            to: group.dir.clone(),
        });
        moving.push(*tid);
    }
    writer.journal.record_all(&entries)?;
    let procs_file = group.file("tasks");
    let mut entered = 0;
    for tid in &moving {
        writer.journal.beat();
        let text = tid.to_string();
        match writer.files.write(&procs_file, &text) {
            Ok(()) => {
                entered += 1;
                fault::boundary();
            }
            // The thread has ended.
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
            Err(e) if gone(&e) => {
                return Err(Error::refused_with(
                    format!("{} is gone: another process removed it", group.dir),
                    "plan again",
                ));
            }
            Err(e) => {
                let failed = Error::file("write", &procs_file, Some(&text), e);
                return resctrl.explained(writer.files, || Err(failed));
            }
        }
    }
    Ok(entered)
}

/// Makes a group of this name and locks memory in the ways of one cache (`what`). All other groups
/// have left these ways before.
///
/// # Errors
/// [`Error::File`] with the kernel's words. [`Error::Refused`] when the name is taken, or nothing
/// was locked after all.
pub fn lock_memory(
    writer: &mut JournaledWriter<'_>,
    resctrl: &Resctrl,
    name: &str,
    what: &Schemata,
) -> Result<Region> {
    let group = make(writer, resctrl, name)?;
    let files = writer.files;
    // The group is removed as a whole, so nothing else in it has to be recorded.
    let put = |file: &str, text: &str| {
        resctrl.explained(files, || files.put(&group.file(file), text))?;
        fault::boundary();
        Ok::<(), Error>(())
    };
    put("mode", Mode::PseudoLockSetup.as_str())?;
    put("schemata", &what.to_string())?;
    let mode = group.mode(files)?;
    if mode != Some(Mode::PseudoLocked) {
        return Err(Error::refused(format!(
            "{} was given {what} and reads '{}', not '{}'",
            group.file("mode"),
            mode.as_ref().map_or("nothing", Mode::as_str),
            Mode::PseudoLocked
        )));
    }
    let sizes = group.sizes(files)?;
    Ok(Region {
        bytes: sizes.values().flat_map(|s| s.values()).sum(),
        cpus: group.cpus(files)?,
        group,
    })
}

/// Finds the groups that threads are in.
struct Homes<'a> {
    resctrl: &'a Resctrl,
    /// Directories of threads outside the default group. Filled only where the kernel has no
    /// `cpu_resctrl_groups` file.
    listed: BTreeMap<u32, String>,
}

impl<'a> Homes<'a> {
    fn new(resctrl: &'a Resctrl, files: &dyn Files) -> Result<Self> {
        let mut listed = BTreeMap::new();
        if membership(files, std::process::id())?.is_none() {
            for group in resctrl.groups(files)?.into_iter().skip(1) {
                let tasks = group.tasks(files)?;
                listed.extend(tasks.into_iter().map(|tid| (tid, group.dir.clone())));
            }
        }
        Ok(Self { resctrl, listed })
    }

    /// The directories of a thread's control group and, if it is in one, of its monitor group.
    fn of(&self, files: &dyn Files, tid: u32) -> Result<(String, Option<String>)> {
        let root = &self.resctrl.root;
        let Some(told) = membership(files, tid)? else {
            let listed = self.listed.get(&tid);
            return Ok((listed.unwrap_or(root).clone(), None));
        };
        let control = match told.control.as_str() {
            "" => root.clone(),
            name => format!("{root}/{name}"),
        };
        let monitor =
            (!told.monitor.is_empty()).then(|| format!("{control}/mon_groups/{}", told.monitor));
        Ok((control, monitor))
    }
}
