//! Memory while a plan holds: what is looked at every interval, with files kept open; and what is done, each change
//! recorded first. Limits and reclaim are written by a thread of their own: the kernel may take seconds over them.

use std::sync::Arc;

use quell_core::control::pressure::{Act, Critical, Look, Machine, Neighbour, Process};
use quell_core::journal::{Stopped, TaskId};
use quell_core::plan::{Pressured, Steered, Watched};
use quell_core::policy::PressureController;
use quell_core::units::{Bytes, Nanos};

use super::Linux;
use super::apart::{apart, not_ours};
use crate::above::{self, Above};
use crate::cgroup::{Controller, Version};
use crate::change::Hands;
use crate::error::{Error, Result};
use crate::freezer::Freezer;
use crate::home::{Home, Place};
use crate::kept::{Kept, keyed};
use crate::memory::{self, Memory};
use crate::psi::{self, Resource};
use crate::root::{Files, Kernel, gone};
use crate::session::Session;
use crate::vm::{self, Watermarks};
use crate::writer::Writer;
use crate::{below, io, oom, pidfd, procfs, rt};

/// Processes of one group that are looked at: who has more is a fork bomb, and its newest are as good as its oldest.
const PROCESSES: usize = 256;
/// Where nobody counts what a group reads and writes, waiting for it stands in: so many nanoseconds for a byte, as on a
/// disk of 100 MB/s.
const NANOSECONDS_PER_BYTE: u64 = 10;

/// Everything that is looked at.
pub(super) struct Watch {
    meminfo: Kept,
    marks: Watermarks,
    average: Option<Kept>,
    above: Above,
    critical: Vec<Account>,
    neighbours: Vec<Hold>,
    /// Processes that we stopped.
    stopped: Vec<TaskId>,
}

/// The files of one group. What is gone reads as nothing.
struct Account {
    memory: Option<Memory>,
    usage: Option<Kept>,
    stat: Option<Kept>,
    memory_stall: Option<Kept>,
    io_stall: Option<Kept>,
    /// What is protected by us.
    protected: Bytes,
}

/// A group that may be acted upon.
struct Hold {
    account: Account,
    io: Option<Kept>,
    events: Option<Kept>,
    /// Where its processes are, those below included.
    tasks: Option<String>,
    freezer: Option<Freezer>,
    /// We froze it.
    frozen: bool,
    writer: Option<Writer>,
}

impl Account {
    fn open(files: &Kernel, group: &str, home: &Home, memory: Option<&Place>) -> Result<Self> {
        let v2 = v2_place(home);
        let stall = |resource: Resource| match v2 {
            Some(place) => Kept::open(files, &resource.of(&place.dir)),
            None => Ok(None),
        };
        let memory = memory.map(Memory::of);
        if let Some(memory) = memory.as_ref().filter(|m| !memory::has(files, m)) {
            return Err(Error::refused_with(
                format!("group {group}: {} is missing", memory.usage()),
                "enable memory in the parents' cgroup.subtree_control",
            ));
        }
        let kept = |path: Option<String>| path.map_or(Ok(None), |p| Kept::open(files, &p));
        Ok(Self {
            usage: kept(memory.as_ref().map(Memory::usage))?,
            stat: kept(memory.as_ref().map(Memory::stat))?,
            memory_stall: stall(Resource::Memory)?,
            io_stall: stall(Resource::Io)?,
            memory,
            protected: Bytes(0),
        })
    }

    fn usage(&mut self, files: &Kernel) -> Result<Bytes> {
        let Some(kept) = self.usage.as_mut() else {
            return Ok(Bytes(0));
        };
        let Some(number) = kept.text(files)?.map(str::parse) else {
            return Ok(Bytes(0));
        };
        number
            .map(Bytes)
            .map_err(|_| Error::malformed(kept.path(), "", "a number of bytes"))
    }

    fn stat(&mut self, files: &Kernel) -> Result<memory::Stat> {
        let (Some(kept), Some(memory)) = (self.stat.as_mut(), self.memory.as_ref()) else {
            return Ok(memory::Stat::default());
        };
        match kept.text(files)? {
            Some(text) => memory.parse_stat(text),
            None => Ok(memory::Stat::default()),
        }
    }
}

/// The time waited so far, in a pressure file that may be gone.
fn waited(kept: Option<&mut Kept>, files: &Kernel) -> Result<Option<Nanos>> {
    let Some(kept) = kept else {
        return Ok(None);
    };
    let total = kept.text(files)?.map(|text| psi::some_total("", text));
    match total {
        None => Ok(None),
        Some(Ok(total)) => Ok(Some(total)),
        Some(Err(_)) => Err(Error::malformed(kept.path(), "", "a line `some … total=…`")),
    }
}

/// The group's cgroup in v2, whatever its controllers: pressure is told there, and it can be frozen.
fn v2_place(home: &Home) -> Option<&Place> {
    let is = |p: &&Place| p.hierarchy.version == Version::V2;
    home.places.iter().find(is)
}

impl Watch {
    pub(super) fn open(linux: &mut Linux, plan: &Pressured) -> Result<Self> {
        let missing = |path: &str| Error::refused(format!("{path} is missing"));
        let files = linux.files.clone();
        let meminfo = Kept::open(&files, vm::MEMINFO)?.ok_or_else(|| missing(vm::MEMINFO))?;
        let (mut critical, mut homes) = (Vec::new(), Vec::new());
        let (mut places, mut told) = (Vec::new(), Vec::new());
        for Watched { group, .. } in &plan.critical {
            let home = linux.group(group)?.home.clone();
            let memory = linux.memory_place(group)?;
            let account = Account::open(&files, group, &home, memory.as_ref())?;
            // The planner has seen that groups are told of; somebody may have switched it off for this one.
            if account.memory_stall.is_none() && plan.controller != PressureController::Latd {
                return Err(Error::refused_with(
                    format!("group {group}: its cgroup does not tell how long it waits for memory"),
                    "write 1 to its cgroup.pressure",
                ));
            }
            critical.push(account);
            places.extend(memory);
            told.extend(v2_place(&home).cloned());
            homes.push(home);
        }
        let mut neighbours = Vec::new();
        for Steered { group, allows } in &plan.neighbours {
            let home = linux.group(group)?.home.clone();
            let place = linux.memory_place(group)?;
            let account = Account::open(&files, group, &home, place.as_ref())?;
            places.extend(place.clone());
            let v2 = v2_place(&home);
            told.extend(v2.cloned());
            let kept = |name: &str| match v2 {
                Some(place) => Kept::open(&files, &format!("{}/{name}", place.dir)),
                None => Ok(None),
            };
            let tasks = v2.or(place.as_ref()).map(|p| p.dir.clone());
            for place in &home.places {
                not_ours(&files, group, place)?;
            }
            for critical in &homes {
                apart(&home, critical)?;
            }
            let mut freezers = home.places.iter().filter_map(|p| Freezer::of(&files, p));
            let writer = match &account.memory {
                Some(memory) if allows.limit || allows.reclaim => {
                    let path = memory.steered();
                    let old = (&files as &dyn Files).text(&path)?;
                    linux.hands()?.steer(&path, &old)?;
                    let lease = Arc::clone(linux.session()?.0.lease());
                    Some(Writer::start(&files, memory, old, lease)?)
                }
                _ => None,
            };
            neighbours.push(Hold {
                io: kept("io.stat")?,
                events: kept("cgroup.events")?,
                tasks,
                // v2's where there are both: what it has frozen can still be killed.
                freezer: v2
                    .and_then(|p| Freezer::of(&files, p))
                    .or_else(|| freezers.next_back()),
                frozen: false,
                writer,
                account,
            });
        }
        // What reacts must not wait for memory itself.
        let _ = rt::lock_memory();
        Ok(Self {
            meminfo,
            marks: vm::watermarks(&files)?.unwrap_or_default(),
            average: Kept::open(&files, Resource::Memory.system())?,
            above: Above::open(&files, &places, &told)?,
            critical,
            neighbours,
            stopped: Vec::new(),
        })
    }

    pub(super) fn look(
        &mut self,
        hands: &mut Hands<'_>,
        files: &Kernel,
        (never, processes): (Option<u32>, bool),
        look: &mut Look,
    ) -> Result<()> {
        look.machine = self.machine(files)?;
        look.critical.clear();
        for account in &mut self.critical {
            let stat = account.stat(files)?;
            look.critical.push(Critical {
                memory_stall: waited(account.memory_stall.as_mut(), files)?.unwrap_or_default(),
                io_stall: waited(account.io_stall.as_mut(), files)?.unwrap_or_default(),
                usage: account.usage(files)?,
                anonymous: Bytes(stat.anonymous.0.saturating_add(stat.shared.0)),
                file: stat.active_file.max(stat.mapped),
                refaults: stat.refaults,
                beat: None,
            });
        }
        look.neighbours.clear();
        look.processes.clear();
        for (number, hold) in self.neighbours.iter_mut().enumerate() {
            let neighbour = hold.look(hands, files)?;
            look.neighbours.push(neighbour);
            if processes {
                hold.processes(files, number, never, &mut look.processes)?;
            }
        }
        Ok(())
    }

    fn machine(&mut self, files: &Kernel) -> Result<Machine> {
        let memory = vm::meminfo(self.meminfo.text(files)?.unwrap_or_default())?;
        let average = match self.average.as_mut() {
            None => None,
            Some(kept) => above::average(kept, files)?,
        };
        let machine = Machine {
            total: memory.total,
            available: memory.available,
            swap_free: memory.swap_free,
            low: self.marks.low,
            high: self.marks.high,
            average,
        };
        self.above.machine(files, machine)
    }
}

impl Hold {
    fn look(&mut self, hands: &mut Hands<'_>, files: &Kernel) -> Result<Neighbour> {
        let stat = self.account.stat(files)?;
        let mut thawed = false;
        if self.account.stat.as_mut().is_some_and(Kept::renewed) {
            // Made again, it has no limit, and nobody froze it.
            thawed = self.made_anew(hands)?;
            if let Some(writer) = &self.writer {
                writer.again()?;
            }
        }
        let waits = waited(self.account.io_stall.as_mut(), files)?.unwrap_or_default();
        let io = match self.io.as_mut() {
            None => waits.0 / NANOSECONDS_PER_BYTE,
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
            stall: waited(self.account.memory_stall.as_mut(), files)?,
            populated,
            thawed,
        })
    }

    fn processes(
        &mut self,
        files: &Kernel,
        neighbour: usize,
        never: Option<u32>,
        found: &mut Vec<Process>,
    ) -> Result<()> {
        let Some(dir) = &self.tasks else {
            return Ok(());
        };
        let mut pids = Vec::new();
        below::processes(files, dir, |pid| {
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

impl Linux {
    /// The group's one cgroup with the memory controller; `None` without a controller.
    pub(super) fn memory_place(&self, name: &str) -> Result<Option<Place>> {
        let home = &self.group(name)?.home;
        let places: Vec<Place> = home
            .dirs(&self.cgroups, Controller::Memory)
            .cloned()
            .collect();
        match places.as_slice() {
            [] => Ok(None),
            [one] => Ok(Some(one.clone())),
            several => Err(Error::refused_with(
                format!(
                    "group {name}: it lives in {} cgroups, whose memory would add up",
                    several.len()
                ),
                "select it by one cgroup, or by its tasks",
            )),
        }
    }

    pub(super) fn steer_memory(&mut self, act: &Act) -> Result<()> {
        let missing = || Error::refused("memory is not watched");
        let session = self.session.as_mut().ok_or_else(missing)?;
        let watch = self.watch.as_mut().ok_or_else(missing)?;
        let mut hands = Hands::new(&self.files, session.journal());
        match *act {
            Act::Protect { critical, memory } => {
                let account = watch.critical.get_mut(critical).ok_or_else(missing)?;
                let Some(files) = &account.memory else {
                    return Ok(());
                };
                files.protect(&mut hands, (account.protected, memory), true)?;
                account.protected = memory;
            }
            Act::Limit { neighbour, most } => watch.writer(neighbour)?.limit(most)?,
            Act::Reclaim { neighbour, amount } => watch.writer(neighbour)?.reclaim(amount)?,
            Act::Freeze { neighbour } => {
                let hold = watch.hold(neighbour)?;
                if let Some(freezer) = &hold.freezer {
                    hold.frozen = freezer.freeze(&mut hands)?;
                    if !hold.frozen {
                        let why = format!("{}: somebody else froze it", freezer.path());
                        return Err(Error::refused(why));
                    }
                }
            }
            // What somebody else froze stays theirs.
            Act::Thaw { neighbour } => watch.hold(neighbour)?.thaw(&mut hands)?,
            Act::Stop(task) => {
                if !pidfd::stop(&mut hands, task)? {
                    let why = format!("process {}: it has ended, or somebody stopped it", task.pid);
                    return Err(Error::refused(why));
                }
                watch.stopped.push(task);
            }
            Act::Continue(task) => watch.go_on(&mut hands, task)?,
            Act::Kill(task) => kill(&self.files, task)?,
        }
        Ok(())
    }

    /// Whoever must never be touched: our watchdog. (We ourselves are known by our number.)
    pub(super) fn watchdog(&self) -> Option<u32> {
        self.session.as_ref().and_then(Session::watchdog_pid)
    }
}

impl Hold {
    /// Whether it was frozen by us, and in the cgroup that stands in its place nobody is: nor is that ours to thaw.
    fn made_anew(&mut self, hands: &mut Hands<'_>) -> Result<bool> {
        let Some(freezer) = self.freezer.as_ref().filter(|_| self.frozen) else {
            return Ok(false);
        };
        if freezer.frozen(hands.files)? {
            return Ok(false);
        }
        self.frozen = false;
        hands.resumed(Stopped::Group(freezer.path().to_owned()))?;
        Ok(true)
    }

    fn thaw(&mut self, hands: &mut Hands<'_>) -> Result<()> {
        if let Some(freezer) = self.freezer.as_ref().filter(|_| self.frozen) {
            freezer.thaw(hands)?;
            self.frozen = false;
        }
        Ok(())
    }
}

impl Watch {
    fn go_on(&mut self, hands: &mut Hands<'_>, task: TaskId) -> Result<()> {
        if self.stopped.contains(&task) {
            pidfd::resume(hands, task)?;
            self.stopped.retain(|stopped| *stopped != task);
        }
        Ok(())
    }

    /// Lets everybody go on whom we stopped: who is to end must be able to. What fails is in the journal still.
    pub(super) fn let_go(&mut self, hands: &mut Hands<'_>) {
        for hold in &mut self.neighbours {
            let _ = hold.thaw(hands);
        }
        for task in std::mem::take(&mut self.stopped) {
            let _ = pidfd::resume(hands, task);
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
mod tests {
    use super::*;
    use crate::backend::apart::tests::home;
    use crate::journal::{Header, Journal, VERSION};
    use quell_core::journal::Undo;

    #[test]
    fn a_frozen_cgroup_that_is_made_anew_is_neither_frozen_nor_ours_to_thaw() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("cg/a");
        std::fs::create_dir_all(&place).unwrap();
        let file = place.join("cgroup.freeze");
        std::fs::write(&file, "0").unwrap();
        let files = Kernel::at(dir.path());
        let run = tempfile::tempdir().unwrap();
        let header = Header {
            version: VERSION,
            boot: "b00t".into(),
            run: "r1".into(),
            main: TaskId { pid: 1, start: 2 },
        };
        let mut journal = Journal::create(run.path(), header).unwrap();
        let home = home("a", "/cg/a");
        let mut hold = Hold {
            account: Account::open(&files, "a", &home, None).unwrap(),
            io: None,
            events: None,
            tasks: None,
            freezer: Freezer::of(&files, &home.places[0]),
            frozen: false,
            writer: None,
        };
        let mut hands = Hands::new(&files, &mut journal);
        assert!(!hold.made_anew(&mut hands).unwrap(), "nobody froze it");
        hold.frozen = hold.freezer.as_ref().unwrap().freeze(&mut hands).unwrap();
        assert!(!hold.made_anew(&mut hands).unwrap(), "it is frozen");
        std::fs::write(&file, "0").unwrap();
        assert!(hold.made_anew(&mut hands).unwrap());
        assert!(!hold.frozen);
        let stops = |e: &&Undo| matches!(e, Undo::Stop { .. });
        assert_eq!(journal.entries().iter().filter(stops).count(), 0);
    }
}
