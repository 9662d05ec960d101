//! Memory while a plan holds. Every interval a sample is taken, from files kept open. What the
//! controller decides is done, each change recorded first. A separate thread writes limits and
//! reclaims, because the kernel may take seconds over them.

mod account;

use std::collections::BTreeSet;
use std::sync::Arc;

use quell_control::pressure::{Act, Critical, Machine, Neighbour, Process, Sample};
use quell_kernel::cached_file::{CachedFile, keyed};
use quell_kernel::cgroup::Controller;
use quell_kernel::error::{Error, Result};
use quell_kernel::psi::Resource;
use quell_kernel::root::{Files, gone};
use quell_kernel::vm::{self, Watermarks};
use quell_kernel::{cgroup_tree, io, oom, procfs, rt, zram};
use quell_plan::{Pressured, Setting, Steered, Watched};
use quell_record::backend::Action;
use quell_types::cpuset::CpuSet;
use quell_types::journal::Stopped;
use quell_types::options::PressureController;
use quell_types::task::TaskId;
use quell_types::units::Bytes;

use super::freezer::Freezer;
use super::nesting::{apart, not_ours};
use super::{Applied, Enforcer, memory as accounts, stop};
use crate::ancestor_limits::{self, Above};
use crate::change::JournaledWriter;
use crate::group_cgroups::{CgroupDir, GroupCgroups};
use crate::host::Host;
use crate::lease::Lease;
use crate::session::Session;
use crate::writer::Writer;
use account::{Account, v2_place, waited};

/// The most processes of one group in a sample. A group with more is a fork bomb, and its newest
/// processes are as good as its oldest.
const PROCESSES: usize = 256;
/// Where nothing counts a group's I/O, the time it waits for I/O stands in. This is nanoseconds per
/// byte, as on a disk of 100 MB/s.
const NANOSECONDS_PER_BYTE: u64 = 10;

/// Memory under pressure. `watch` is `None` until a plan with a controller is held.
#[derive(Default)]
pub(crate) struct Pressure {
    watch: Option<Watch>,
    /// Groups that memory pressure is measured of.
    watched: BTreeSet<String>,
}

impl Enforcer for Pressure {
    fn apply(&mut self, host: &mut Host, group: &str, set: &Setting) -> Applied {
        const PRESSURE: [Controller; 2] = [Controller::Memory, Controller::Pressure];
        const ALL: [Controller; 4] = [
            Controller::Memory,
            Controller::Io,
            Controller::Freezer,
            Controller::Pressure,
        ];
        match set {
            Setting::WatchMemory => {
                host.extend(group, &PRESSURE)?;
                self.watched.insert(group.to_owned());
            }
            Setting::SteerMemory { unswapped, .. } => {
                host.extend(group, &ALL)?;
                if *unswapped && let Some(place) = host.memory_place(group)? {
                    let path = format!("{}/memory.swap.max", place.dir);
                    // A kernel without swap accounting has no such file.
                    if host.files.exists(&path) {
                        host.writer()?.set(&path, "0")?;
                    }
                }
            }
            _ => return Ok(None),
        }
        Ok(Some(Vec::new()))
    }

    fn act(&mut self, host: &mut Host, action: &Action) -> Result<()> {
        match (action, &mut self.watch) {
            (Action::Memory(act), Some(watch)) => watch.act(&mut host.writer()?, act),
            (Action::Memory(_), None) => Err(Error::refused("memory is not watched")),
            // Frozen or stopped programs could not end.
            (Action::Stop(_), Some(watch)) => {
                if let Ok(mut journaled) = host.writer() {
                    watch.let_go(&mut journaled);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Quell samples memory every few milliseconds, so its threads move off the program's CPUs.
    fn launched(&mut self, host: &mut Host, group: &str, on: Option<&CpuSet>) -> Result<()> {
        if let (true, Some(cpus), Some(session)) = (self.watched.contains(group), on, &host.session)
        {
            session.keep_off(&host.files, cpus);
        }
        Ok(())
    }

    fn release(&mut self, host: &mut Host) {
        if let (Some(mut watch), Ok(mut journaled)) = (self.watch.take(), host.writer()) {
            watch.let_go(&mut journaled);
        }
        self.watched.clear();
    }
}

impl Pressure {
    /// Opens the files of all groups of a plan, for sampling from now on.
    pub fn begin(&mut self, host: &mut Host, plan: &Pressured) -> Result<()> {
        let member = |name: &String| {
            let group_cgroups = host.groups.one(name)?.cgroups.clone();
            Ok((group_cgroups, host.memory_place(name)?.cloned()))
        };
        let of = |names: Vec<&String>| names.into_iter().map(member).collect::<Result<Vec<_>>>();
        let members = Members {
            critical: of(plan.critical.iter().map(|c| &c.group).collect())?,
            neighbours: of(plan.neighbours.iter().map(|n| &n.group).collect())?,
        };
        let files: Arc<dyn Files> = Arc::new(host.files.clone());
        let lease = Arc::clone(host.session()?.0.lease());
        // A controller that reacts to shortage must not wait for memory itself.
        let _ = rt::lock_memory();
        let watch = Watch::open(&files, &mut host.writer()?, &lease, plan, &members)?;
        self.watch = Some(watch);
        Ok(())
    }

    /// Takes a sample, with the processes of best-effort groups if `processes`.
    pub fn read(&mut self, host: &mut Host, processes: bool, sample: &mut Sample) -> Result<()> {
        // The watchdog must never be stopped or killed. Quell itself is known by its process id.
        let watchdog = host.session.as_ref().and_then(Session::watchdog_pid);
        let (Some(watch), Ok(mut journaled)) = (self.watch.as_mut(), host.writer()) else {
            return Err(Error::refused("memory is not watched"));
        };
        let files = journaled.files;
        watch.sample(&mut journaled, files, watchdog, processes, sample)
    }
}

/// The files of the machine and of all groups in a plan.
struct Watch {
    meminfo: CachedFile,
    marks: Watermarks,
    average: Option<CachedFile>,
    compressed: zram::Devices,
    above: Above,
    critical: Vec<Account>,
    neighbours: Vec<Hold>,
    /// Processes that Quell has stopped.
    stopped: Vec<TaskId>,
}

/// Cgroups of the groups, in the order of the plan, each with its one cgroup that has the memory
/// controller.
struct Members {
    critical: Vec<(GroupCgroups, Option<CgroupDir>)>,
    neighbours: Vec<(GroupCgroups, Option<CgroupDir>)>,
}

/// A best-effort group that the controller may act upon.
struct Hold {
    account: Account,
    io: Option<CachedFile>,
    events: Option<CachedFile>,
    /// The cgroup with its processes, those below it included.
    tasks: Option<String>,
    freezer: Option<Freezer>,
    /// Whether Quell has frozen it.
    frozen: bool,
    writer: Option<Writer>,
}

impl Watch {
    /// Opens all files. A group whose limit may be moved gets a thread that writes it.
    fn open(
        files: &Arc<dyn Files>,
        journaled: &mut JournaledWriter<'_>,
        lease: &Arc<Lease>,
        plan: &Pressured,
        members: &Members,
    ) -> Result<Self> {
        let missing = |path: &str| Error::refused(format!("{path} is missing"));
        let (shared, files) = (files, &**files);
        let meminfo = CachedFile::open(files, vm::MEMINFO)?.ok_or_else(|| missing(vm::MEMINFO))?;
        let mut critical = Vec::new();
        let (mut places, mut told) = (Vec::new(), Vec::new());
        for (Watched { group, .. }, (group_cgroups, memory)) in
            plan.critical.iter().zip(&members.critical)
        {
            let account = Account::open(files, group, group_cgroups, memory.as_ref())?;
            // The planner has seen that pressure is reported. It may be switched off for this
            // cgroup.
            if account.memory_stall.is_none() && plan.controller != PressureController::Latd {
                return Err(Error::refused_with(
                    format!("group {group}: its cgroup does not tell how long it waits for memory"),
                    "write 1 to its cgroup.pressure",
                ));
            }
            critical.push(account);
            places.extend(memory.clone());
            told.extend(v2_place(group_cgroups).cloned());
        }
        let mut neighbours = Vec::new();
        for (Steered { group, allows }, (group_cgroups, memory)) in
            plan.neighbours.iter().zip(&members.neighbours)
        {
            let account = Account::open(files, group, group_cgroups, memory.as_ref())?;
            places.extend(memory.clone());
            let v2 = v2_place(group_cgroups);
            told.extend(v2.cloned());
            let kept = |name: &str| match v2 {
                Some(place) => CachedFile::open(files, &format!("{}/{name}", place.dir)),
                None => Ok(None),
            };
            let tasks = v2.or(memory.as_ref()).map(CgroupDir::tasks_dir);
            for place in &group_cgroups.places {
                not_ours(files, group, place)?;
            }
            for (critical, _) in &members.critical {
                apart(group_cgroups, critical)?;
            }
            let mut freezers = group_cgroups
                .places
                .iter()
                .filter_map(|p| Freezer::of(files, p));
            let writer = match &account.memory {
                Some(memory) if allows.limit || allows.reclaim => {
                    let path = memory.steered();
                    let old = files.text(&path)?;
                    journaled.steer(&path, &old)?;
                    Some(Writer::start(shared, memory, old, Arc::clone(lease))?)
                }
                _ => None,
            };
            neighbours.push(Hold {
                io: kept("io.stat")?,
                events: kept("cgroup.events")?,
                tasks,
                // v2's freezer where there are both: frozen tasks can still be killed there.
                freezer: v2
                    .and_then(|p| Freezer::of(files, p))
                    .or_else(|| freezers.next_back()),
                frozen: false,
                writer,
                account,
            });
        }
        Ok(Self {
            meminfo,
            marks: vm::watermarks(files)?.unwrap_or_default(),
            average: CachedFile::open(files, Resource::Memory.system())?,
            compressed: zram::Devices::open(files)?,
            above: Above::open(files, &places, &told)?,
            critical,
            neighbours,
            stopped: Vec::new(),
        })
    }

    fn sample(
        &mut self,
        journaled: &mut JournaledWriter<'_>,
        files: &dyn Files,
        never: Option<u32>,
        processes: bool,
        sample: &mut Sample,
    ) -> Result<()> {
        sample.machine = self.machine(files)?;
        sample.critical.clear();
        for account in &mut self.critical {
            let stat = account.stat(files)?;
            let for_memory = waited(account.memory_stall.as_mut(), files)?;
            if for_memory.is_none() {
                account.check_reported(files)?;
            }
            let for_memory = for_memory.unwrap_or_default();
            let for_disks = waited(account.io_stall.as_mut(), files)?.unwrap_or_default();
            sample.critical.push(Critical {
                memory_stall: for_memory.some,
                memory_full: for_memory.full,
                io_stall: for_disks.some,
                usage: account.usage(files)?,
                anonymous: Bytes(stat.anonymous.0.saturating_add(stat.shared.0)),
                file: stat.active_file.max(stat.mapped),
                refaults: stat.refaults,
                unit_end: None,
            });
        }
        sample.neighbours.clear();
        sample.processes.clear();
        for (number, hold) in self.neighbours.iter_mut().enumerate() {
            let neighbour = hold.sample(journaled, files)?;
            sample.neighbours.push(neighbour);
            if processes {
                hold.processes(files, number, never, &mut sample.processes)?;
            }
        }
        Ok(())
    }

    fn machine(&mut self, files: &dyn Files) -> Result<Machine> {
        let memory = vm::meminfo(self.meminfo.text(files)?.unwrap_or_default())?;
        let average = match self.average.as_mut() {
            None => None,
            Some(kept) => ancestor_limits::average(kept, files)?,
        };
        let compressed = self.compressed.read(files)?;
        let machine = Machine {
            total: memory.total,
            available: memory.available,
            swap_free: memory.swap_free,
            compressed: compressed.stored,
            compressed_takes: compressed.takes,
            low: self.marks.low,
            high: self.marks.high,
            average,
        };
        self.above.machine(files, machine)
    }
}

impl Hold {
    fn sample(
        &mut self,
        journaled: &mut JournaledWriter<'_>,
        files: &dyn Files,
    ) -> Result<Neighbour> {
        let stat = self.account.stat(files)?;
        let mut thawed = false;
        if self.account.stat.as_mut().is_some_and(CachedFile::renewed) {
            // A cgroup that was made again has no limit, and is not frozen.
            thawed = self.made_anew(journaled)?;
            if let Some(writer) = &self.writer {
                writer.again()?;
            }
        }
        let for_disks = waited(self.account.io_stall.as_mut(), files)?.unwrap_or_default();
        let io = match self.io.as_mut() {
            None => for_disks.some.0 / NANOSECONDS_PER_BYTE,
            Some(kept) => {
                let moved = kept.text(files)?.map(|text| io::moved("io.stat", text));
                moved.transpose()?.unwrap_or_default()
            }
        };
        let populated = match self.events.as_mut() {
            None => true,
            Some(kept) => {
                let text = kept.text(files)?;
                text.is_some_and(|text| keyed(text, "populated") == Some(1))
            }
        };
        Ok(Neighbour {
            usage: self.account.usage(files)?,
            anonymous: Bytes(stat.anonymous.0.saturating_add(stat.shared.0)),
            refaults: stat.refaults,
            io,
            stall: waited(self.account.memory_stall.as_mut(), files)?.map(|t| t.some),
            populated,
            thawed,
        })
    }

    fn processes(
        &mut self,
        files: &dyn Files,
        neighbour: usize,
        never: Option<u32>,
        found: &mut Vec<Process>,
    ) -> Result<()> {
        let Some(dir) = &self.tasks else {
            return Ok(());
        };
        let mut pids = Vec::new();
        cgroup_tree::processes(files, dir, |pid| {
            if pids.len() < PROCESSES {
                pids.push(pid);
            }
        });
        for pid in pids {
            if pid <= 1 || pid == std::process::id() || Some(pid) == never {
                continue;
            }
            let Some(stat) = procfs::stat(files, pid)? else {
                continue;
            };
            if stat.kernel_thread() || stat.leaving() {
                continue;
            }
            found.push(Process {
                task: stat.id,
                neighbour,
                oom_score: oom::score(files, pid)?.unwrap_or_default(),
                resident: stat.resident,
                io: procfs::moved(files, pid).unwrap_or_default(),
                major_faults: stat.major_faults,
            });
        }
        Ok(())
    }
}

impl Hold {
    /// Whether Quell froze it and the cgroup that has replaced it is not frozen. Quell must not
    /// thaw the new one.
    fn made_anew(&mut self, journaled: &mut JournaledWriter<'_>) -> Result<bool> {
        let Some(freezer) = self.freezer.as_ref().filter(|_| self.frozen) else {
            return Ok(false);
        };
        if freezer.frozen(journaled.files)? {
            return Ok(false);
        }
        self.frozen = false;
        journaled.resumed(Stopped::Group(freezer.path().to_owned()))?;
        Ok(true)
    }

    fn thaw(&mut self, journaled: &mut JournaledWriter<'_>) -> Result<()> {
        if let Some(freezer) = self.freezer.as_ref().filter(|_| self.frozen) {
            freezer.thaw(journaled)?;
            self.frozen = false;
        }
        Ok(())
    }
}

impl Watch {
    fn act(&mut self, journaled: &mut JournaledWriter<'_>, act: &Act) -> Result<()> {
        match *act {
            Act::Protect { critical, memory } => {
                let missing = || Error::refused(format!("there is no critical group {critical}"));
                let account = self.critical.get_mut(critical).ok_or_else(missing)?;
                let Some(files) = &account.memory else {
                    return Ok(());
                };
                accounts::protect(journaled, files, account.protected, memory, true)?;
                account.protected = memory;
            }
            Act::Limit { neighbour, most } => self.writer(neighbour)?.limit(most)?,
            Act::Reclaim { neighbour, amount } => self.writer(neighbour)?.reclaim(amount)?,
            Act::KeepUnswapped { neighbour } => {
                if let Some(memory) = &self.hold(neighbour)?.account.memory {
                    accounts::keep_unswapped(journaled, memory)?;
                }
            }
            Act::Freeze { neighbour } => {
                let hold = self.hold(neighbour)?;
                if let Some(freezer) = &hold.freezer {
                    hold.frozen = freezer.freeze(journaled)?;
                    if !hold.frozen {
                        let why = format!("{}: somebody else froze it", freezer.path());
                        return Err(Error::refused(why));
                    }
                }
            }
            // A group that another program froze is not thawed here.
            Act::Thaw { neighbour } => self.hold(neighbour)?.thaw(journaled)?,
            Act::Stop(task) => {
                if !stop::stop(journaled, task)? {
                    let why = format!("process {}: it has ended, or somebody stopped it", task.pid);
                    return Err(Error::refused(why));
                }
                self.stopped.push(task);
            }
            Act::Continue(task) => self.go_on(journaled, task)?,
            Act::Kill(task) => kill(journaled.files, task)?,
        }
        Ok(())
    }

    fn go_on(&mut self, journaled: &mut JournaledWriter<'_>, task: TaskId) -> Result<()> {
        if self.stopped.contains(&task) {
            stop::resume(journaled, task)?;
            self.stopped.retain(|stopped| *stopped != task);
        }
        Ok(())
    }

    /// Thaws and resumes all that Quell froze or stopped, so that it can end. A failure stays in
    /// the journal.
    fn let_go(&mut self, journaled: &mut JournaledWriter<'_>) {
        for hold in &mut self.neighbours {
            let _ = hold.thaw(journaled);
        }
        for task in std::mem::take(&mut self.stopped) {
            let _ = stop::resume(journaled, task);
        }
    }

    fn hold(&mut self, neighbour: usize) -> Result<&mut Hold> {
        let missing = || Error::refused(format!("there is no neighbour {neighbour}"));
        self.neighbours.get_mut(neighbour).ok_or_else(missing)
    }

    fn writer(&mut self, neighbour: usize) -> Result<&mut Writer> {
        let missing = || {
            Error::refused(format!(
                "the memory of neighbour {neighbour} is not ours to limit"
            ))
        };
        self.hold(neighbour)?.writer.as_mut().ok_or_else(missing)
    }
}

fn kill(files: &dyn Files, task: TaskId) -> Result<()> {
    match files.signal(task, libc::SIGKILL) {
        Err(e) if !gone(&e) => Err(Error::file(
            "kill",
            &format!("process {}", task.pid),
            None,
            e,
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod replay;

#[cfg(test)]
mod tests {
    use quell_types::journal::Undo;

    use super::*;
    use crate::enforce::nesting::tests::group_cgroups;
    use crate::journal::Journal;
    use crate::journal::tests::header;

    #[test]
    fn a_frozen_cgroup_that_is_made_anew_is_not_ours_to_thaw() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("cg/a");
        std::fs::create_dir_all(&place).unwrap();
        let file = place.join("cgroup.freeze");
        std::fs::write(&file, "0").unwrap();
        let files = quell_kernel::root::Kernel::at(dir.path());
        let run = tempfile::tempdir().unwrap();
        let mut journal = Journal::create(run.path(), header()).unwrap();
        let group_cgroups = group_cgroups("a", "/cg/a");
        let mut hold = Hold {
            account: Account::open(&files, "a", &group_cgroups, None).unwrap(),
            io: None,
            events: None,
            tasks: None,
            freezer: Freezer::of(&files, &group_cgroups.places[0]),
            frozen: false,
            writer: None,
        };
        let mut journaled = JournaledWriter::new(&files, &mut journal);
        assert!(!hold.made_anew(&mut journaled).unwrap(), "nobody froze it");
        hold.frozen = hold
            .freezer
            .as_ref()
            .unwrap()
            .freeze(&mut journaled)
            .unwrap();
        assert!(!hold.made_anew(&mut journaled).unwrap(), "it is frozen");
        std::fs::write(&file, "0").unwrap();
        assert!(hold.made_anew(&mut journaled).unwrap());
        assert!(!hold.frozen);
        let stops = |e: &&Undo| matches!(e, Undo::Stop { .. });
        assert_eq!(journal.entries().iter().filter(stops).count(), 0);
    }
}
