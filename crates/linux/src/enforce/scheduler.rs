//! Turns of processes: which ones take part, each in a cgroup of its own, how their dispatcher is
//! started, watched and started again, and what the record gets of it
//! ([`crate::dispatcher::quanta`]).
//!
//! The journal has one entry of each kind per member for as long as the run holds: its cgroup, its
//! moves into it, that it is frozen, and its CPUs. Nothing is recorded per quantum.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use quell_control::config::Scheduling;
use quell_kernel::cgroup::{Controller, Version};
use quell_kernel::cgroup_tree::listed;
use quell_kernel::error::{Error, Result};
use quell_kernel::root::{Files, gone};
use quell_kernel::{procfs, rt, topology};
use quell_plan::Setting;
use quell_record::about::About;
use quell_record::backend::{Action, Observation, Seen, put_ahead};
use quell_record::events::Event;
use quell_types::cpuset::CpuSet;
use quell_types::journal::{OwnCpus, Stopped, Undo};
use quell_types::mechanism::Mechanism;
use quell_types::units::Nanos;

use super::freezer::Freezer;
use super::{Applied, Enforcer, dispatching};
use crate::dispatcher::quanta::{Inbox, Member, Outbox, Stats, Turning};
use crate::dispatcher::{Dispatcher, Gate};
use crate::fault;
use crate::group_cgroups::{self, CgroupDir, GroupCgroups};
use crate::host::{Host, finding};
use crate::placement;
use crate::work::{Countable, Counters};

/// The most members at a time. Further processes run on as they are.
const MOST: usize = 512;
/// The most passes over processes that are born while their parent enters its cgroup.
const PASSES: u32 = 20;

/// The turns of the plan that is held.
#[derive(Default)]
pub(crate) struct Scheduler {
    held: Option<Held>,
}

/// A member as its owner knows it.
#[derive(Clone, Debug)]
struct Leaf {
    id: u64,
    group: String,
    place: CgroupDir,
    freezer: Freezer,
    cpus: CpuSet,
    own: Vec<OwnCpus>,
}

struct Held {
    by: Scheduling,
    /// The groups, each with its cgroup that can be frozen.
    places: Vec<(String, CgroupDir)>,
    leaves: Vec<Leaf>,
    /// The number of the next member.
    next: u64,
    /// `None` after it has ended by itself, until another one runs.
    dispatcher: Option<Dispatcher>,
    inbox: Inbox,
    outbox: Outbox,
    /// The counters of processes. `None` where demands are not counted.
    countable: Option<Countable>,
    stats: Arc<Stats>,
    /// The cores that the dispatcher knows.
    cores: Vec<CpuSet>,
    idle: Idle,
    /// Whether it was reported that there are too many processes.
    full: bool,
}

/// Idle time of the CPUs while a member waited.
#[derive(Default)]
struct Idle {
    /// Idle time of all CPUs of the turns, and the time in which a member waited, when last read.
    seen: Option<(Nanos, Nanos)>,
    /// `None` where the kernel does not tell.
    sum: Option<Nanos>,
}

fn about() -> About {
    let mechanism = Mechanism::Placement;
    About::Mechanism { mechanism }
}

impl Enforcer for Scheduler {
    fn apply(&mut self, host: &mut Host, _: &str, set: &Setting) -> Applied {
        let Setting::Schedule(by) = set else {
            return Ok(None);
        };
        for group in by.groups.keys() {
            host.extend(group, &[Controller::Freezer, Controller::Pressure])?;
        }
        // A page that is not in memory would make the dispatcher late.
        let _ = rt::lock_memory();
        let held = self.held.insert(Held::new(by));
        if by.counted {
            held.countable = Countable::here(&[]);
            if held.countable.is_none() {
                return Err(Error::refused_with(
                    "the counters that say what a process demands do not count any more",
                    "end what else uses them, or declare scheduler.demand and plan again",
                ));
            }
        }
        for group in by.groups.keys() {
            let group_cgroups = &host.groups.one(group)?.cgroups;
            let (place, _) = dispatching::freezable(&host.files, group, group_cgroups)?;
            held.places.push((group.clone(), place.clone()));
        }
        held.adopt(host)?;
        held.start(host)?;
        Ok(Some(Vec::new()))
    }

    /// A program that is to end must not be frozen, or it never could.
    fn act(&mut self, host: &mut Host, action: &Action) -> Result<()> {
        if matches!(action, Action::Stop(_)) {
            self.release(host);
        }
        Ok(())
    }

    fn check(&mut self, host: &mut Host, seen: &mut Observation) {
        if let Some(held) = &mut self.held
            && let Err(e) = held.check(host, seen)
        {
            seen.push(finding(about(), e.to_string(), None));
        }
    }

    fn launched(&mut self, host: &mut Host, group: &str, _: Option<&CpuSet>) -> Result<()> {
        match &mut self.held {
            Some(held) if held.by.groups.contains_key(group) => held.adopt(host),
            _ => Ok(()),
        }
    }

    fn release(&mut self, host: &mut Host) {
        if let Some(mut held) = self.held.take() {
            held.end(host);
        }
    }
}

impl Scheduler {
    /// Reports how turns were taken so far, ahead of all else in `seen`.
    pub fn account(&mut self, host: &Host, seen: &mut Observation) {
        let Some(held) = &mut self.held else {
            return;
        };
        held.count_idle(&host.files);
        let turns = held.stats.turns(&held.by, held.idle.sum);
        put_ahead(seen, Seen::Event(Event::Turns { turns }));
        // A dispatcher that was killed may have left it locked.
        if let Ok(mut decided) = held.outbox.try_lock()
            && !decided.is_empty()
        {
            put_ahead(seen, Seen::Quanta(std::mem::take(&mut decided)));
        }
    }

    /// Ends the dispatcher, which lets all members run. The journal is left to its undoing.
    pub fn stop(&mut self) {
        if let Some(held) = &mut self.held {
            held.dispatcher = None;
        }
    }
}

impl Held {
    fn new(by: &Scheduling) -> Self {
        Self {
            by: by.clone(),
            places: Vec::new(),
            leaves: Vec::new(),
            next: 1,
            dispatcher: None,
            inbox: Arc::default(),
            outbox: Arc::default(),
            countable: None,
            stats: Arc::new(Stats::new(by.groups.len())),
            cores: Vec::new(),
            idle: Idle::default(),
            full: false,
        }
    }

    /// The slow duties: the dispatcher, new processes, and members that have ended.
    fn check(&mut self, host: &mut Host, seen: &mut Observation) -> Result<()> {
        let lost = self.dispatcher.as_ref().and_then(|d| d.lost(rt::now()));
        if let Some(why) = lost {
            self.end(host);
            let what = format!("processes take no turns, and all of them run: {why}");
            seen.push(finding(about(), what, None));
        } else if self.dispatcher.is_none() {
            self.start(host)?;
            let what = "processes take turns again".to_owned();
            seen.push(finding(about(), what, None));
        } else if self.online(&host.files)? != self.cores {
            self.end(host);
            let what = "a CPU of the turns went offline or came back: they begin anew".to_owned();
            seen.push(finding(about(), what, None));
        }
        self.remove_ended(&host.files);
        self.adopt(host)?;
        if self.leaves.len() >= MOST && !self.full {
            self.full = true;
            let what = format!("more than {MOST} processes: further ones take no turns");
            seen.push(finding(about(), what, None));
        }
        host.brakes
            .extend(self.dispatcher.as_ref().and_then(Dispatcher::pid));
        Ok(())
    }

    /// The cores, as far as their CPUs are online.
    fn online(&self, files: &dyn Files) -> Result<Vec<CpuSet>> {
        let online = topology::online(files)?;
        let cores = self.by.cores.iter().map(|core| core.intersection(&online));
        Ok(cores.filter(|core| !core.is_empty()).collect())
    }

    /// Starts a dispatcher for all members.
    fn start(&mut self, host: &mut Host) -> Result<()> {
        let cores = self.online(&host.files)?;
        let cpus = cores.iter().fold(CpuSet::new(), |all, c| all.union(c));
        let (Some(cpu), Some(first)) = (cpus.first(), self.by.groups.keys().next()) else {
            return Err(Error::refused("turns need a CPU and a group"));
        };
        let procs_files = dispatching::procs_files(host, first, &cpus)?;
        let permit = dispatching::permit(host)?;
        let members = self
            .leaves
            .iter()
            .map(|leaf| self.member(&host.files, leaf));
        let members = members.collect::<Result<Vec<_>>>()?;
        self.inbox = Arc::new(Mutex::new(members));
        self.outbox = Outbox::default();
        let duty = Turning::new(
            &host.files,
            &self.by,
            &cores,
            rt::now().0,
            &self.inbox,
            &self.outbox,
            &self.stats,
        );
        self.cores = cores;
        match Dispatcher::start("quell/turns", cpu, procs_files, permit, duty) {
            Ok(dispatcher) => {
                host.brakes.extend(dispatcher.pid());
                self.dispatcher = Some(dispatcher);
                Ok(())
            }
            Err(e) => {
                self.end(host);
                Err(dispatching::no_dispatcher("turns", cpu, &e))
            }
        }
    }

    /// A member as the dispatcher gets it, with open files.
    fn member(&self, files: &dyn Files, leaf: &Leaf) -> Result<Member> {
        let group = self.by.groups.keys().position(|name| *name == leaf.group);
        let demand = self.by.groups.get(&leaf.group).copied();
        let list = match leaf.place.hierarchy.version {
            Version::V1 => "tasks",
            Version::V2 => "cgroup.threads",
        };
        let threads = format!("{}/{list}", leaf.place.dir);
        Ok(Member {
            counters: self.counters(files, &threads),
            id: leaf.id,
            group: group.unwrap_or(usize::MAX),
            demand: demand.unwrap_or_default(),
            gate: Gate::open(files, leaf.freezer.path(), leaf.freezer.words(), None)?,
            threads,
            dir: leaf.place.dir.clone(),
            cpus: leaf.cpus.clone(),
            own: leaf.own.clone(),
        })
    }

    /// Counters of the threads that a file lists, and of all that these start. None where they
    /// cannot be had, as where too many files are open.
    fn counters(&self, files: &dyn Files, threads: &str) -> Vec<Counters> {
        let (Some(countable), Ok(text)) = (self.countable, files.read(threads)) else {
            return Vec::new();
        };
        let opened = listed(&text).filter_map(|thread| match countable.of(thread) {
            Err(e) if gone(&e) => None,
            opened => Some(opened),
        });
        opened.collect::<std::io::Result<_>>().unwrap_or_else(|_| {
            self.stats.uncounted();
            Vec::new()
        })
    }

    /// Gives each new process of the groups a cgroup of its own, with all that it has started.
    fn adopt(&mut self, host: &mut Host) -> Result<()> {
        for (group, place) in self.places.clone() {
            let usual = host.groups.one(&group)?.cpus.clone();
            for root in roots(&host.files, &processes(&host.files, &place)?)? {
                if self.leaves.len() >= MOST {
                    return Ok(());
                }
                let Some(leaf) = self.enter(host, &group, &place, root, &usual)? else {
                    continue;
                };
                let member = self.member(&host.files, &leaf);
                self.leaves.push(leaf);
                // A dispatcher that starts later gets all of them.
                if self.dispatcher.is_some()
                    && let Ok(mut inbox) = self.inbox.lock()
                {
                    inbox.push(member?);
                }
            }
        }
        Ok(())
    }

    /// Moves a process and its descendants into a new cgroup, and records what is done to it from
    /// now on. `None`: it has ended. `usual` are the CPUs of its group.
    fn enter(
        &mut self,
        host: &mut Host,
        group: &str,
        place: &CgroupDir,
        root: u32,
        usual: &CpuSet,
    ) -> Result<Option<Leaf>> {
        let files = host.files.clone();
        let Some(cpus) = had(&files, root, usual)? else {
            return Ok(None);
        };
        let mut writer = host.writer()?;
        let leaf = GroupCgroups::below(&mut writer, place, &format!("m{}", self.next))?;
        let freezer = Freezer::of(&files, &leaf)
            .ok_or_else(|| Error::refused(format!("{} cannot be frozen", leaf.dir)))?;
        let mut own = Vec::new();
        for _ in 0..PASSES {
            let mut family = Vec::new();
            for pid in processes(&files, place)? {
                let of_root = pid == root || procfs::ancestry(&files, pid)?.contains(&root);
                if let Some(stat) = procfs::stat(&files, pid)?.filter(|_| of_root) {
                    family.push(stat);
                }
            }
            if family.is_empty() {
                break;
            }
            for process in &family {
                for thread in procfs::threads(&files, process.id.pid)? {
                    writer.journal.beat();
                    let has = had(&files, thread, usual)?.filter(|has| *has != cpus);
                    let stat = procfs::thread_stat(&files, process.id.pid, thread)?;
                    own.extend(has.zip(stat).map(|(cpus, stat)| OwnCpus {
                        task: stat.id,
                        cpus,
                    }));
                }
            }
            group_cgroups::enter(&mut writer, &leaf, &family)?;
        }
        // Reverted in the other order: it gets its CPUs back while it is frozen, then runs, then
        // leaves.
        writer.stopping(Stopped::Group(freezer.path().to_owned()))?;
        writer.journal.record(&Undo::Place {
            dir: leaf.dir.clone(),
            cpus: cpus.clone(),
            own: own.clone(),
        })?;
        let id = self.next;
        self.next += 1;
        Ok(Some(Leaf {
            id,
            group: group.to_owned(),
            place: leaf,
            freezer,
            cpus,
            own,
        }))
    }

    /// Removes the cgroups of members that have ended. Their entries stay in the journal, and find
    /// nothing to revert.
    fn remove_ended(&mut self, files: &dyn Files) {
        self.leaves.retain(|leaf| {
            let empty = processes(files, &leaf.place).is_ok_and(|all| all.is_empty());
            let removed = empty && files.rmdir(&leaf.place.dir).is_ok();
            if removed {
                fault::boundary();
            }
            !removed
        });
    }

    /// Ends the dispatcher and lets all members run, on the CPUs that they had. The journal stays
    /// as it is, because another dispatcher may follow.
    fn end(&mut self, host: &mut Host) {
        self.dispatcher = None;
        for leaf in &self.leaves {
            // What fails is tried again at the end, by the journal.
            let _ = placement::put_back(&host.files, &leaf.place.dir, &leaf.cpus, &leaf.own);
            let [_, thaw] = leaf.freezer.words();
            let _ = host.files.write(leaf.freezer.path(), thaw);
            fault::boundary();
        }
    }

    /// Adds the CPUs' idle time since the last call, as far as a member waited.
    fn count_idle(&mut self, files: &dyn Files) {
        let ticks = rustix::param::clock_ticks_per_second();
        let Ok(Some(times)) = procfs::cpu_times(files, ticks) else {
            return;
        };
        let ours = |cpu| self.cores.iter().any(|core| core.contains(cpu));
        let all = times.iter().filter(|times| ours(times.cpu));
        let idle = Nanos(all.map(|times| times.idle_ns).sum());
        let waiting = self.stats.waiting();
        if let Some((before, waited)) = self.idle.seen.replace((idle, waiting)) {
            let cpus = self.cores.iter().map(CpuSet::len).sum::<usize>() as u64;
            let waited = Nanos(waiting.since(waited).0.saturating_mul(cpus));
            let more = idle.since(before).min(waited);
            self.idle.sum = Some(self.idle.sum.unwrap_or_default().plus(more));
        }
    }
}

/// The processes that are directly in a cgroup.
fn processes(files: &dyn Files, place: &CgroupDir) -> Result<BTreeSet<u32>> {
    let path = format!("{}/cgroup.procs", place.tasks_dir());
    match files.read(&path) {
        Ok(text) => Ok(listed(&text).collect()),
        Err(e) if gone(&e) => Ok(BTreeSet::new()),
        Err(e) => Err(Error::file("read", &path, None, e)),
    }
}

/// Those of `processes` that none of the others has started.
fn roots(files: &dyn Files, processes: &BTreeSet<u32>) -> Result<Vec<u32>> {
    let mut roots = Vec::new();
    for pid in processes {
        let mut above = procfs::ancestry(files, *pid)?;
        above.retain(|other| other != pid);
        if !above.iter().any(|other| processes.contains(other)) {
            roots.push(*pid);
        }
    }
    Ok(roots)
}

/// The CPUs that a thread is to have at the end. One that may run on all CPUs of its group gets
/// all that there can be: the cpuset that it returns to decides. `None`: it has ended.
fn had(files: &dyn Files, thread: u32, usual: &CpuSet) -> Result<Option<CpuSet>> {
    let own = match files.affinity(thread) {
        Ok(own) => own,
        Err(e) if gone(&e) => return Ok(None),
        Err(e) => {
            let path = format!("/proc/{thread}/affinity");
            return Err(Error::file("read", &path, None, e));
        }
    };
    if !usual.is_subset(&own) {
        return Ok(Some(own));
    }
    let possible = topology::possible(files)?;
    Ok(Some(if possible.is_empty() { own } else { possible }))
}
