//! The Linux backend: steps become changes, each recorded first; programs are started and watched; throttlers run.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use quell_core::backend::{
    Action, Backend, BackendError, Observation, Probe, Program, Seen, SubjectId, SubjectSpec,
    Undone,
};
use quell_core::cpuset::{CpuId, CpuSet};
use quell_core::inventory::{Inventory, Measured};
use quell_core::plan::{Meter as MeterKind, Plan, REST, Regulation, Setting, Step};
use quell_core::policy::OnDrift;
use quell_core::record::Event;
use quell_core::task::TaskMatch;
use quell_core::units::{Bytes, Nanos};
use quell_core::workload::Workload;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::cgroup::{Cgroups, Controller};
use crate::change::Hands;
use crate::children::{self, Birth, Subject};
use crate::cpuset::Keep;
use crate::error::{Error, Result};
use crate::home::Home;
use crate::meter::{EventMeter, Meter, TimeMeter};
use crate::pmu::{self, Counting};
use crate::root::{Files, Kernel};
use crate::session::{Session, WatchdogCommand};
use crate::tasks::{self, Matcher};
use crate::throttle::Throttler;
use crate::{cpumax, cpuset, drift, irq, perf, probe, remaining, rt, workqueue};

/// How often the heartbeat is renewed.
const BEAT: Nanos = Nanos::millis(100);
/// How often newborn tasks, drift and the throttlers are looked after.
const LOOK: Nanos = Nanos::secs(1);

/// What the backend needs of the rest of the program.
pub struct Tools {
    /// The command that serves a generator on these CPUs, on a machine with a last-level cache of this size.
    pub generator: fn(&Workload, Bytes) -> Vec<String>,
    /// Whether two CPUs share a cache now.
    pub shared_cache: fn(CpuId, CpuId) -> std::io::Result<Option<f64>>,
    /// Measures rates on CPUs.
    pub rates: fn(&CpuSet, Bytes) -> std::io::Result<Measured>,
    /// How the watchdog is started.
    pub watchdog: WatchdogCommand,
}

struct Group {
    home: Home,
    matching: Vec<TaskMatch>,
    cpus: CpuSet,
    /// CPUs whose throttlers belong to it.
    regulated: CpuSet,
}

/// A regulated CPU.
struct Regulated {
    group: String,
    throttler: Throttler,
    /// What the record has been told of it: overflows, throttles, time, lines.
    told: [u64; 4],
}

impl Regulated {
    fn totals(&self) -> [u64; 4] {
        let stats = self.throttler.stats();
        [
            &stats.overflows,
            &stats.throttles,
            &stats.throttled_ns,
            &stats.lines,
        ]
        .map(|v| v.load(Ordering::Relaxed))
    }
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
    throttlers: Vec<Regulated>,
    subjects: Vec<Subject>,
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
        let files = Kernel::new()?;
        let cgroups = Cgroups::discover(&files)?;
        let signals = children::stop_signals()
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
            throttlers: Vec::new(),
            subjects: Vec::new(),
            next_beat: Nanos(0),
            next_look: Nanos(0),
            revoked: false,
        })
    }

    /// What an earlier run measured on this machine.
    pub fn measured(&mut self, measured: Measured) {
        if let Some(machine) = self.inventory.as_mut() {
            machine.measured = Some(measured.clone());
        }
        self.measured = Some(measured);
    }

    /// The plan whose steps will be applied, told to `quell status` while they hold.
    pub fn describe(&mut self, plan: &Plan) {
        self.plan = Some(plan.clone());
    }

    /// What to do when somebody else changes what we set.
    pub fn on_drift(&mut self, what: OnDrift) {
        self.on_drift = what;
    }

    /// The folder of the current hold, once something was applied.
    #[must_use]
    pub fn run_dir(&self) -> Option<&Path> {
        self.session.as_ref().map(Session::dir)
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

    /// Ends throttlers and programs.
    fn release(&mut self) {
        self.throttlers.clear();
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
    }

    fn cached_inventory(&mut self) -> Result<&Inventory> {
        if self.inventory.is_none() {
            let probed = probe::probe(&self.files, &self.cgroups, self.measured.clone())?;
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

    fn llc(&mut self) -> Result<Bytes> {
        let machine = self.cached_inventory()?;
        let first = machine.cpus.first().map_or(0, |c| c.id);
        // A machine that tells nothing of its caches: 32 MiB is beyond most.
        Ok(machine.llc(first).map_or(Bytes(32 << 20), |c| c.size))
    }

    fn session(&mut self) -> Result<(&mut Session, Vec<String>)> {
        let mut notes = Vec::new();
        if self.session.is_none() {
            if !crate::is_root() {
                return Err(Error::refused_with(
                    "changing the machine needs root (CAP_SYS_ADMIN for cgroups, CAP_SYS_NICE for throttlers)",
                    "run it with sudo",
                ));
            }
            let most = self
                .all_cpus()?
                .iter()
                .next_back()
                .map_or(1, |c| c as usize + 1);
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

    fn apply_step(&mut self, step: &Step) -> Result<Vec<String>> {
        self.beat_if_due()?;
        let (_, mut notes) = self.session()?;
        let group = step.group.as_deref().unwrap_or(REST);
        match &step.set {
            Setting::Gather { matching } => notes.extend(self.gather(group, matching)?),
            Setting::Confine {
                cpus,
                mems,
                exclusive,
            } => notes.extend(self.confine(group, cpus, mems, *exclusive)?),
            Setting::ConfineRest { cpus } => notes.extend(self.confine_rest(cpus)?),
            Setting::MoveIrqs { from, to } => {
                let moved = irq::keep_away(&mut self.hands()?, from, to)?;
                notes.extend(moved.note(from));
            }
            Setting::WorkqueueMask { cpus } => {
                workqueue::confine(&mut self.hands()?, cpus)?;
            }
            Setting::Regulate(regulation) => self.regulate(group, regulation)?,
            Setting::CpuMax { share, period } => {
                let home = self.group(group)?.home.clone();
                let cgroups = self.cgroups.clone();
                notes.extend(cpumax::limit(
                    &mut self.hands()?,
                    &cgroups,
                    &home,
                    *share,
                    *period,
                )?);
            }
        }
        Ok(notes)
    }

    fn hands(&mut self) -> Result<Hands<'_>> {
        let session = self
            .session
            .as_mut()
            .ok_or_else(|| Error::refused("no hold on the machine"))?;
        Ok(Hands::new(&self.files, session.journal()))
    }

    fn group(&self, name: &str) -> Result<&Group> {
        self.groups.get(name).ok_or_else(|| {
            Error::refused(format!("group {name} was not gathered before this step"))
        })
    }

    fn gather(&mut self, name: &str, matching: &[TaskMatch]) -> Result<Vec<String>> {
        let controllers = [Controller::Cpuset, Controller::Cpu, Controller::PerfEvent];
        let cgroups = self.cgroups.clone();
        let cpus = self.all_cpus()?;
        let mut notes = Vec::new();
        let in_place: Vec<TaskMatch> = matching.iter().filter(|m| m.in_place()).cloned().collect();
        let mut home = if in_place.is_empty() {
            Home::create(&mut self.hands()?, &cgroups, name, &controllers)?
        } else {
            Home {
                group: name.to_owned(),
                places: Vec::new(),
            }
        };
        self.groups.insert(
            name.to_owned(),
            Group {
                home: home.clone(),
                matching: matching.to_vec(),
                cpus,
                regulated: CpuSet::new(),
            },
        );
        if matching.is_empty() {
            return Ok(notes);
        }
        let found = self.assigned()?.remove(name).unwrap_or_default();
        for cgroup in tasks::cgroups_of(&self.files, &in_place, &found)? {
            home.adopt(&mut self.hands()?, &cgroups, &cgroup, &controllers)?;
        }
        if let Some(group) = self.groups.get_mut(name) {
            group.home = home;
        }
        if found.is_empty() {
            notes.push(format!(
                "group {name}: no task matches yet; it is looked for every second"
            ));
        }
        self.collect(name)?;
        Ok(notes)
    }

    fn matchers(&self) -> Result<Vec<Matcher>> {
        self.groups
            .iter()
            .map(|(name, g)| Matcher::new(&self.files, name, &g.matching))
            .collect()
    }

    fn never(&self) -> BTreeSet<u32> {
        self.session
            .as_ref()
            .and_then(Session::watchdog_pid)
            .into_iter()
            .collect()
    }

    fn assigned(&self) -> Result<tasks::Assigned> {
        tasks::assign(&self.files, &self.matchers()?, &self.never())
    }

    /// Moves the tasks of a group that are still outside into its cgroups.
    fn collect(&mut self, name: &str) -> Result<()> {
        let home = self.group(name)?.home.clone();
        if !home.places.iter().any(|p| p.ours) {
            return Ok(());
        }
        let (matchers, never) = (self.matchers()?, self.never());
        let mut find = |files: &dyn Files| {
            Ok(tasks::assign(files, &matchers, &never)?
                .remove(name)
                .unwrap_or_default())
        };
        home.gather(&mut self.hands()?, &mut find)?;
        Ok(())
    }

    fn confine(
        &mut self,
        name: &str,
        cpus: &CpuSet,
        mems: &CpuSet,
        exclusive: bool,
    ) -> Result<Vec<String>> {
        let home = self.group(name)?.home.clone();
        let cgroups = self.cgroups.clone();
        let pids: Vec<u32> = match cgroups.of(Controller::Cpuset) {
            Some(_) => Vec::new(),
            None => self
                .assigned()?
                .remove(name)
                .unwrap_or_default()
                .iter()
                .map(|s| s.id.pid)
                .collect(),
        };
        let confined = cpuset::confine(
            &mut self.hands()?,
            &cgroups,
            &home,
            cpus,
            mems,
            exclusive,
            &pids,
        )?;
        if let Some(group) = self.groups.get_mut(name) {
            group.cpus = cpus.clone();
        }
        Ok(confined.notes)
    }

    fn confine_rest(&mut self, cpus: &CpuSet) -> Result<Vec<String>> {
        let cgroups = self.cgroups.clone();
        let homes: Vec<Home> = self.groups.values().map(|g| g.home.clone()).collect();
        let homes: Vec<&Home> = homes.iter().collect();
        let processes: BTreeSet<u32> = [std::process::id()].into();
        let keep = Keep {
            homes: &homes,
            processes: &processes,
        };
        let mut notes = cpuset::confine_rest(&mut self.hands()?, &cgroups, keep, cpus)?;
        // Our own process stays free, so that throttlers can be pinned anywhere; this thread keeps off.
        let _ = self.files.set_affinity(0, cpus);
        let all = self.all_cpus()?;
        let quiet = all.difference(cpus);
        // Who was put there is not left there.
        let mut except = processes;
        for place in homes.iter().flat_map(|h| &h.places) {
            except.extend(crate::undo::tasks_in(&self.files, &place.dir).unwrap_or_default());
        }
        notes.extend(remaining::remaining_on(&self.files, &quiet, &except)?.sentences(&quiet));
        Ok(notes)
    }

    fn regulate(&mut self, name: &str, regulation: &Regulation) -> Result<()> {
        let home = self.group(name)?.home.clone();
        let cgroups = self.cgroups.clone();
        let dirs: Vec<String> = home
            .dirs(&cgroups, Controller::PerfEvent)
            .map(|p| p.dir.clone())
            .collect();
        self.cached_inventory()?;
        for cpu in regulation.cpus.iter() {
            let failed = |what: &str, e: std::io::Error| {
                Error::refused_with(
                    format!("group {name}, CPU {cpu}: {what}: {e}"),
                    "quell doctor tells what is missing; mechanisms.bandwidth = \"none\" uses cpu-max instead",
                )
            };
            let meter: Box<dyn Meter> = match regulation.meter {
                MeterKind::Time => {
                    let [dir] = dirs.as_slice() else {
                        return Err(Error::refused_with(
                            format!(
                                "group {name} lives in {} cgroups that carry perf_event; CPU time is counted in one",
                                dirs.len()
                            ),
                            "match it by something else than its cgroup, or limit cpu-time",
                        ));
                    };
                    let dir = perf::cgroup_dir(Path::new(dir))
                        .map_err(|e| failed("its cgroup cannot be opened", e))?;
                    let meter = TimeMeter::open(&dir, cpu, regulation.peak, regulation.stop_cost);
                    Box::new(meter.map_err(|e| failed("its CPU clock cannot be counted", e))?)
                }
                MeterKind::Hardware => {
                    let codes = pmu::of_cpu(&self.counting, cpu)
                        .map(Counting::codes)
                        .unwrap_or_default();
                    Box::new(
                        EventMeter::open(&codes, cpu)
                            .map_err(|e| failed("its counters cannot be opened", e))?,
                    )
                }
            };
            let lease = Arc::clone(self.session()?.0.lease());
            let permit = Arc::new(move |now| lease.is_held(now));
            let throttler = Throttler::start(cpu, regulation, meter, permit)
                .map_err(|e| failed("no throttler", e))?;
            self.throttlers.push(Regulated {
                group: name.to_owned(),
                throttler,
                told: [0; 4],
            });
        }
        if let Some(group) = self.groups.get_mut(name) {
            group.regulated = regulation.cpus.clone();
        }
        Ok(())
    }

    fn beat_if_due(&mut self) -> Result<Option<String>> {
        let now = rt::now();
        if now < self.next_beat {
            return Ok(None);
        }
        self.next_beat = now.plus(BEAT);
        let Some(session) = self.session.as_mut() else {
            return Ok(None);
        };
        publish(session, &self.throttlers);
        session.beat(&self.files, &self.cgroups, now)
    }

    /// Tells what the throttlers did since the last time, before anything else seen meanwhile.
    fn account(&mut self, seen: &mut Observation) {
        for regulated in &mut self.throttlers {
            let now = regulated.totals();
            let [overflows, throttles, throttled_ns, lines] =
                std::array::from_fn(|i| now[i] - regulated.told[i]);
            regulated.told = now;
            let reaction = |percent| {
                regulated
                    .throttler
                    .stats()
                    .reaction_percentile(percent)
                    .map(|n| n.0)
            };
            let event = Event::Throttle {
                cpu: regulated.throttler.cpu,
                group: regulated.group.clone(),
                overflows,
                throttles,
                throttled_ns,
                lines,
                reaction_p50_ns: reaction(50),
                reaction_p99_ns: reaction(99),
            };
            seen.insert(0, Seen::Event(event));
        }
    }

    /// The slow duties of a hold: newborn tasks, drift, throttlers that ended.
    fn look(&mut self, seen: &mut Observation) -> Result<()> {
        let finding =
            |what: String, group: Option<String>| Seen::Event(Event::Finding { what, group });
        let mut lost = Vec::new();
        self.account(seen);
        for Regulated {
            group, throttler, ..
        } in &self.throttlers
        {
            if let Some(why) = throttler.lost() {
                lost.push(throttler.cpu);
                let what = format!(
                    "CPU {} is no longer regulated: {why}; the group's limit is at level none",
                    throttler.cpu
                );
                seen.push(finding(what, Some(group.clone())));
            }
        }
        self.throttlers.retain(|r| !lost.contains(&r.throttler.cpu));
        let matched: Vec<String> = self
            .groups
            .iter()
            .filter(|(_, g)| !g.matching.is_empty())
            .map(|(n, _)| n.clone())
            .collect();
        for name in matched {
            if let Err(e) = self.collect(&name) {
                seen.push(finding(e.to_string(), Some(name)));
            }
        }
        if let Some(session) = &self.session {
            for what in drift::look(&self.files, session.changes(), self.on_drift) {
                seen.push(finding(what, None));
                if self.on_drift == OnDrift::Stop {
                    seen.push(Seen::Stop(0));
                }
            }
        }
        Ok(())
    }

    fn poll(&mut self, until: Nanos) -> Result<()> {
        let span = until.since(rt::now());
        let timeout = Timespec {
            tv_sec: i64::try_from(span.0 / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(span.0 % 1_000_000_000).unwrap_or(0),
        };
        let mut watched = vec![PollFd::new(&self.signals, PollFlags::IN)];
        for subject in &self.subjects {
            watched.extend(
                subject
                    .descriptors()
                    .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)),
            );
        }
        match rustix::event::poll(&mut watched, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(Error::refused(format!("waiting failed: {e}"))),
        }
    }

    fn observe(&mut self, until: Nanos, seen: &mut Observation) -> Result<()> {
        loop {
            match self.beat_if_due() {
                Ok(Some(note)) => seen.push(Seen::Event(Event::Finding {
                    what: note,
                    group: None,
                })),
                Ok(None) => {}
                Err(_) if self.revoked => {}
                Err(e) => {
                    self.revoked = true;
                    self.throttlers.clear();
                    // The watchdog has undone it, but perhaps not a change we were in the middle of.
                    if let Some(session) = self.session.as_mut() {
                        session.undo(&self.files);
                    }
                    seen.push(Seen::Revoked(e.to_string()));
                }
            }
            for subject in &mut self.subjects {
                subject.observe(seen);
            }
            while let Some(signal) = children::next_signal(&self.signals) {
                seen.push(Seen::Stop(signal));
            }
            if self.session.is_some() && !self.revoked && rt::now() >= self.next_look {
                self.next_look = rt::now().plus(LOOK);
                self.look(seen)?;
            }
            if !seen.is_empty() || rt::now() >= until {
                if seen
                    .iter()
                    .any(|s| matches!(s, Seen::Exited(..) | Seen::Stop(_) | Seen::Result(..)))
                {
                    self.account(seen);
                }
                return Ok(());
            }
            let next = if self.session.is_some() {
                until.min(self.next_beat)
            } else {
                until
            };
            self.poll(next)?;
        }
    }

    fn birth(&mut self, subject: &SubjectSpec) -> Result<SubjectId> {
        let command = match &subject.program {
            Program::Generator(workload) => (self.tools.generator)(workload, self.llc()?),
            Program::Command(command) => command.clone(),
        };
        let group = self.groups.get(&subject.group);
        let doors = group.map(|g| g.home.doors()).unwrap_or_default();
        let usual = match group {
            Some(group) => group.cpus.clone(),
            None => self.all_cpus()?,
        };
        let id = SubjectId(u32::try_from(self.subjects.len()).unwrap_or(u32::MAX));
        let birth = Birth {
            command: &command,
            env: subject.env.clone().into_iter().collect(),
            doors,
            cpus: subject.cpus.clone().unwrap_or(usual),
            generator: matches!(subject.program, Program::Generator(_)),
            capture: subject.capture,
        };
        self.subjects
            .push(Subject::start(id, &subject.name, &birth)?);
        Ok(id)
    }

    fn subject(&mut self, id: SubjectId) -> Result<&mut Subject> {
        self.subjects
            .iter_mut()
            .find(|s| s.id == id)
            .ok_or_else(|| Error::refused(format!("there is no subject {}", id.0)))
    }
}

/// Writes what the throttlers did into the lease's page, for `quell status`.
fn publish(session: &Session, throttlers: &[Regulated]) {
    for regulated in throttlers {
        if let Some(record) = session.lease().record(regulated.throttler.cpu as usize) {
            for (slot, value) in record.0.iter().zip(regulated.totals()) {
                slot.store(value, Ordering::Relaxed);
            }
            record.0[4].store(
                u64::from(regulated.throttler.lost().is_none()),
                Ordering::Relaxed,
            );
        }
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
            let (cpus, llc) = (self.all_cpus()?, self.llc()?);
            let rates = (self.tools.rates)(&cpus, llc);
            let measured = rates.map_err(|e| {
                BackendError(format!(
                    "the rates of this machine could not be measured: {e}"
                ))
            })?;
            self.measured = Some(measured.clone());
            if let Some(machine) = self.inventory.as_mut() {
                machine.measured = Some(measured);
            }
        }
        Ok(self.cached_inventory()?.clone())
    }

    fn now(&self) -> Nanos {
        rt::now()
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
        }
        // The first step that follows beats at once.
        self.next_beat = Nanos(0);
        let _ = self.files.set_affinity(0, &all);
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
            Action::Stop(subject) => {
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
}
