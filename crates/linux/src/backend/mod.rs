//! The Linux backend: steps become changes, each recorded first (`steps`); programs are started; what happens meanwhile
//! is waited for, and the slow duties of a hold are done (`watch`).

mod apart;
mod curve;
mod in_place;
mod late;
mod locked;
mod measure;
mod memory;
mod parts;
mod regulated;
mod stays;
mod steps;
mod watch;
mod whereabouts;
mod worth;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quell_client::layout::VARIABLE;
use quell_control::pressure::Look;
use quell_kernel::cgroup::Cgroups;
use quell_kernel::error::{Error, Result};
use quell_kernel::pmu::{Counting, Traffic};
use quell_kernel::root::Kernel;
use quell_kernel::spent::Ledger;
use quell_kernel::{oom, own, procfs, rt, signals};
use quell_plan::inventory::{Inventory, Measured};
use quell_plan::{Observed, Plan, Pressured, Step};
use quell_policy::workload::{Caches, Workload};
use quell_record::backend::{
    Action, Backend, BackendError, HoldOptions, Observation, Own, Probe, Program, SubjectId,
    SubjectSpec, Undone,
};
use quell_record::events::{CpuTimes, Declared};
use quell_record::standing::Standing;
use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::ids::GroupId;
use quell_types::mechanism::Level;
use quell_types::options::OnDrift;
use quell_types::source::Source;
use quell_types::task::TaskMatch;
use quell_types::units::{Bytes, Nanos};

use crate::change::Hands;
use crate::children::{Birth, Subject};
use crate::clients::Clients;
use crate::home::{Home, Layout};
use crate::pool::Pool;
use crate::probe;
use crate::resident::{Keeper, KeeperCommand};
use crate::session::{Session, WatchdogCommand};
use crate::units::Units;

use regulated::{Absent, Regulated, Splits};

/// What the backend needs of the rest of the program.
pub struct Tools {
    /// The command that serves a generator on a CPU with these caches.
    pub generator: fn(&Workload, &Caches) -> Vec<String>,
    /// Whether two CPUs share a cache now.
    pub shared_cache: fn(CpuId, CpuId) -> std::io::Result<Option<f64>>,
    /// Measures rates on CPUs.
    pub rates: fn(&CpuSet, Bytes) -> std::io::Result<Measured>,
    /// Prepares a stream far larger than a last-level cache of this size, that reads or writes (`true`), for counters to
    /// be checked with.
    pub traffic: fn(bool, Bytes) -> std::io::Result<Traffic>,
    /// How the watchdog is started.
    pub watchdog: WatchdogCommand,
    /// How the keeper of a group's files is started.
    pub keeper: KeeperCommand,
}

/// Later than anything.
const NEVER: Nanos = Nanos(u64::MAX);

struct Group {
    home: Home,
    layout: Layout,
    matching: Vec<TaskMatch>,
    cpus: CpuSet,
    /// Its programs are immune from the OOM killer.
    immune: bool,
    /// The most that its limit is worth: less than planned once something was found that it does not hold.
    limit_most: Level,
    /// How long they wait for memory is looked at.
    watched: bool,
    /// What keeps its files in memory.
    keeper: Option<Keeper>,
    /// What its threads have spent; none any more once it could not be told.
    ledger: Option<Ledger>,
}

/// What is around all groups and programs of none.
struct Bound {
    home: Home,
    /// Below it: where programs of no group are.
    loose: Home,
}

/// This machine.
pub struct Linux {
    files: Kernel,
    cgroups: Cgroups,
    run_root: PathBuf,
    tools: Tools,
    measured: Option<Measured>,
    plan: Option<Plan>,
    counting: Vec<Counting>,
    inventory: Option<Inventory>,
    signals: OwnedFd,
    on_drift: OnDrift,
    session: Option<Session>,
    groups: BTreeMap<String, Group>,
    bound: Option<Bound>,
    /// Where tasks of no group are confined to, while they are.
    rest: Option<CpuSet>,
    brakes: Vec<Regulated>,
    /// Where there is none for now.
    absent: Vec<Absent>,
    /// What they share.
    pool: Option<Arc<Pool>>,
    splits: Vec<Splits>,
    subjects: Vec<Subject>,
    /// Groups whose units of work are told of.
    observed: BTreeMap<GroupId, Observed>,
    /// What their programs say of them.
    declared: BTreeMap<GroupId, Declared>,
    units: BTreeMap<SubjectId, Units>,
    /// Those of programs that ask, once somebody may; and when to look who does. Never again once they cannot be listened to.
    clients: Option<Clients>,
    next_call: Nanos,
    /// Memory, while it is looked at.
    watch: Option<memory::Watch>,
    /// resctrl, while groups have parts.
    parts: Option<parts::Parts>,
    next_beat: Nanos,
    next_look: Nanos,
    revoked: bool,
}

impl Linux {
    /// The machine we run on. From here on SIGINT, SIGTERM and SIGHUP are seen by [`Backend::wait`] only.
    ///
    /// # Errors
    /// When the kernel's interfaces are not where they should be.
    pub fn new(run_root: &Path, tools: Tools) -> Result<Self> {
        rt::one_heap();
        let files = Kernel::new()?;
        let cgroups = Cgroups::discover(&files)?;
        let signals = signals::stop_signals()
            .map_err(|e| Error::refused(format!("signals cannot be received: {e}")))?;
        Ok(Self {
            files,
            cgroups,
            run_root: run_root.to_owned(),
            tools,
            measured: None,
            plan: None,
            counting: Vec::new(),
            inventory: None,
            signals,
            on_drift: OnDrift::default(),
            session: None,
            groups: BTreeMap::new(),
            bound: None,
            rest: None,
            brakes: Vec::new(),
            absent: Vec::new(),
            pool: None,
            splits: Vec::new(),
            subjects: Vec::new(),
            observed: BTreeMap::new(),
            declared: BTreeMap::new(),
            units: BTreeMap::new(),
            clients: None,
            next_call: NEVER,
            watch: None,
            parts: None,
            next_beat: Nanos(0),
            next_look: Nanos(0),
            revoked: false,
        })
    }

    /// What an earlier run measured on this machine.
    pub fn measured(&mut self, measured: Measured) {
        self.measured = Some(measured);
        // Which events meter depends on it.
        self.inventory = None;
    }

    /// Ends the hold: everything is taken back, the watchdog goes.
    ///
    /// # Errors
    /// When something could not be taken back.
    pub fn end(&mut self) -> Result<Undone> {
        self.release();
        match self.session.take() {
            Some(session) => session.end(&self.files),
            None => Ok(Undone::default()),
        }
    }

    /// Ends brakes and programs.
    fn release(&mut self) {
        self.brakes.clear();
        self.absent.clear();
        self.splits.clear();
        self.pool = None;
        if let (Some(mut watch), Some(session)) = (self.watch.take(), self.session.as_mut()) {
            watch.let_go(&mut Hands::new(&self.files, session.journal()));
        }
        // What hangs is waited for longer than the lease lasts: the watchdog must not take the run away meanwhile.
        let lease = self.session.as_ref().map(|s| Arc::clone(s.lease()));
        let mut beat = || {
            if let Some(lease) = lease.as_ref().filter(|l| !l.is_revoked()) {
                lease.beat(rt::now());
            }
        };
        for subject in &mut self.subjects {
            subject.stop(&mut beat);
        }
        self.subjects.clear();
        self.groups.clear();
        self.bound = None;
        self.observed.clear();
        self.declared.clear();
        self.units.clear();
        self.clients = None;
        self.next_call = NEVER;
        self.rest = None;
        self.parts = None;
        self.plan = None;
    }

    fn cached_inventory(&mut self) -> Result<&Inventory> {
        if self.inventory.is_none() {
            let probed = probe::probe(
                &self.files,
                &probe::Live,
                &self.cgroups,
                self.measured.clone(),
            )?;
            self.counting = probed.counting;
            self.inventory = Some(probed.inventory);
        }
        self.inventory
            .as_ref()
            .ok_or_else(|| Error::refused("the machine could not be read"))
    }

    fn all_cpus(&mut self) -> Result<CpuSet> {
        Ok(self.cached_inventory()?.cpu_set())
    }

    /// The caches of the CPU given, or of the first.
    fn caches(&mut self, cpu: Option<CpuId>) -> Result<Caches> {
        let machine = self.cached_inventory()?;
        let first = machine.cpus.first().map_or(0, |c| c.id);
        Ok(machine.data_caches(cpu.unwrap_or(first)))
    }

    fn session(&mut self) -> Result<(&mut Session, Vec<String>)> {
        let mut notes = Vec::new();
        if self.session.is_none() {
            if !quell_kernel::is_root() {
                return Err(Error::refused_with(
                    "changing the machine needs root (CAP_SYS_ADMIN for cgroups)",
                    "run it with sudo",
                ));
            }
            let most = self
                .all_cpus()?
                .iter()
                .next_back()
                .map_or(1, |c| c as usize + 1);
            oom::shelter();
            let (session, said) = Session::begin(
                &self.files,
                &self.cgroups,
                &self.run_root,
                most,
                &self.tools.watchdog,
            )?;
            if let Some(plan) = &self.plan {
                session.describe(plan)?;
            }
            self.session = Some(session);
            notes = said;
            self.revoked = false;
        }
        let session = self
            .session
            .as_mut()
            .ok_or_else(|| Error::refused("no hold on the machine"))?;
        Ok((session, notes))
    }

    fn birth(&mut self, subject: &SubjectSpec) -> Result<SubjectId> {
        oom::shelter();
        let command = match &subject.program {
            Program::Generator(workload) => {
                let caches = self.caches(subject.cpus.as_ref().and_then(CpuSet::first))?;
                (self.tools.generator)(workload, &caches)
            }
            Program::Command(command) => command.clone(),
        };
        let group = self.groups.get(&subject.group);
        let home = group.map(|g| &g.home);
        let home = home.or(self.bound.as_ref().map(|b| &b.loose));
        let mut doors = home.map(Home::doors).unwrap_or_default();
        doors.extend(self.part_door(&subject.group));
        // We ourselves may run anywhere, which whoever belongs to no group must not inherit.
        let usual = match (group, &self.rest) {
            (Some(group), _) => group.cpus.clone(),
            (None, Some(rest)) => rest.clone(),
            (None, None) => self.all_cpus()?,
        };
        let id = SubjectId(u32::try_from(self.subjects.len()).unwrap_or(u32::MAX));
        let units = match self.observed.get(&subject.group) {
            Some(observed) => Units::new(id, &subject.group, observed)?,
            None => None,
        };
        let mut env: Vec<(String, String)> = subject.env.clone().into_iter().collect();
        let session = units.as_ref().and_then(Units::file);
        env.extend(session.map(|file| (VARIABLE.to_owned(), file.as_raw_fd().to_string())));
        let handed = self.handed(&subject.group, id)?;
        env.extend(handed.iter().flat_map(|h| h.env.clone()));
        let device = handed.as_ref().map(|h| h.device.as_fd());
        let birth = Birth {
            command: &command,
            env,
            doors,
            cpus: subject.cpus.clone().unwrap_or(usual),
            generator: matches!(subject.program, Program::Generator(_)),
            capture: subject.capture,
            along: units.as_ref().is_some_and(Units::lines),
            inherits: session.into_iter().chain(device).collect(),
        };
        self.subjects
            .push(Subject::start(id, &subject.name, &birth)?);
        self.units.extend(units.map(|units| (id, units)));
        // The first of its tasks; those it has begotten meanwhile are found with the newborn.
        self.immunise(&subject.group)?;
        // Who looks every few milliseconds does so from elsewhere.
        let watched = self.groups.get(&subject.group).is_some_and(|g| g.watched);
        if let (true, Some(cpus), Some(session)) = (watched, &subject.cpus, &self.session) {
            session.keep_off(&self.files, cpus);
        }
        Ok(id)
    }

    fn subject(&mut self, id: SubjectId) -> Result<&mut Subject> {
        self.subjects
            .iter_mut()
            .find(|s| s.id == id)
            .ok_or_else(|| Error::refused(format!("there is no subject {}", id.0)))
    }
}

impl Drop for Linux {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

impl Backend for Linux {
    fn inventory(&mut self, depth: Probe) -> std::result::Result<Inventory, BackendError> {
        if depth == Probe::Deep {
            // Many seconds on a busy machine; before anything is held nobody needs to be waited for.
            let measured = match self.session {
                None => signals::ended_by_any(|| self.measure())?,
                Some(_) => self.measure()?,
            };
            self.measured(measured);
        }
        Ok(self.cached_inventory()?.clone())
    }

    fn now(&self) -> Nanos {
        rt::now()
    }

    fn hold(&mut self, plan: &Plan, how: HoldOptions) -> std::result::Result<(), BackendError> {
        self.plan = Some(plan.clone());
        self.on_drift = how.on_drift;
        self.observed.clone_from(&plan.loops.observed);
        let asked = plan
            .loops
            .observed
            .values()
            .any(|o| o.source == Source::Client);
        self.next_call = if asked { Nanos(0) } else { NEVER };
        // Measuring, or the plan before this one, may have begun the session.
        if let Some(session) = &self.session {
            session.describe(plan)?;
        }
        Ok(())
    }

    fn stands(&mut self, standing: &Standing) {
        if let Some(session) = &self.session {
            session.stands(standing);
        }
    }

    fn apply(&mut self, step: &Step) -> std::result::Result<Vec<String>, BackendError> {
        Ok(self.apply_step(step)?)
    }

    fn undo(&mut self) -> std::result::Result<Undone, BackendError> {
        self.release();
        let all = self.all_cpus()?;
        let undone = self
            .session
            .as_mut()
            .map(|s| s.undo(&self.files))
            .unwrap_or_default();
        if let Some(session) = &self.session {
            session.rest(rt::now());
            session.stay_on(&self.files, &all);
        }
        // The first step that follows beats at once.
        self.next_beat = Nanos(0);
        Ok(undone)
    }

    fn start(&mut self, subject: &SubjectSpec) -> std::result::Result<SubjectId, BackendError> {
        Ok(self.birth(subject)?)
    }

    fn wait(
        &mut self,
        until: Nanos,
        seen: &mut Observation,
    ) -> std::result::Result<Nanos, BackendError> {
        self.observe(until, seen)?;
        Ok(rt::now())
    }

    fn watch(&mut self, pressure: &Pressured) -> std::result::Result<(), BackendError> {
        self.watch = Some(self.watch_memory(pressure)?);
        Ok(())
    }

    fn memory(
        &mut self,
        processes: bool,
        look: &mut Look,
    ) -> std::result::Result<(), BackendError> {
        let of = (self.watchdog(), processes);
        let (Some(watch), Some(session)) = (self.watch.as_mut(), self.session.as_mut()) else {
            return Err(BackendError("memory is not watched".to_owned()));
        };
        let mut hands = Hands::new(&self.files, session.journal());
        Ok(watch.look(&mut hands, &self.files, of, look)?)
    }

    fn own(&mut self) -> std::result::Result<Option<Own>, BackendError> {
        Ok(Some(own::own(&self.files)?))
    }

    fn act(&mut self, action: &Action) -> std::result::Result<(), BackendError> {
        match action {
            Action::Go {
                subject,
                warmup,
                duration,
            } => {
                let line = format!("go {} {}\n", warmup.0, duration.0);
                self.subject(*subject)?.say(&line)?;
            }
            // One whose brake has ended is not moved: that was told when it was found.
            Action::Budget {
                group,
                cpus,
                budget,
            } => {
                let of_group = |r: &&Regulated| r.group == *group && cpus.contains(r.brake.cpu);
                let brakes = || self.brakes.iter().filter(of_group);
                let mut apart = brakes().map(|r| &r.brake);
                if let Some(one) = apart.find(|t| t.apart) {
                    return Err(BackendError(format!(
                        "CPU {} has a budget of reads and one of writes: neither is moved by one for both",
                        one.cpu
                    )));
                }
                for regulated in brakes() {
                    regulated.brake.set_budget(*budget);
                }
                let split = |s: &&mut Splits| s.group == *group && s.cpus == *cpus;
                for splits in self.splits.iter_mut().filter(split) {
                    splits.set_budget(*budget);
                }
            }
            Action::Memory(act) => self.steer_memory(act)?,
            Action::Ways { group, level, mask } => self.move_ways(group, *level, *mask)?,
            Action::Stop(subject) => {
                // Who is frozen or stopped could not end.
                if let (Some(watch), Some(session)) = (&mut self.watch, self.session.as_mut()) {
                    watch.let_go(&mut Hands::new(&self.files, session.journal()));
                }
                let lease = self.session.as_ref().map(|s| Arc::clone(s.lease()));
                self.subject(*subject)?.stop(&mut || {
                    if let Some(lease) = lease.as_ref().filter(|l| !l.is_revoked()) {
                        lease.beat(rt::now());
                    }
                });
            }
        }
        Ok(())
    }

    fn shared_cache(
        &mut self,
        a: CpuId,
        b: CpuId,
    ) -> std::result::Result<Option<f64>, BackendError> {
        (self.tools.shared_cache)(a, b).map_err(|e| {
            BackendError(format!(
                "the cache of CPUs {a} and {b} cannot be probed: {e}"
            ))
        })
    }

    fn drawn_by(&mut self, group: &str) -> std::result::Result<Option<u64>, BackendError> {
        Ok(self.moved_by(group)?)
    }

    fn cpu_times(&mut self) -> std::result::Result<Option<Vec<CpuTimes>>, BackendError> {
        let ticks = rustix::param::clock_ticks_per_second();
        Ok(procfs::cpu_times(&self.files, ticks)?)
    }
}
