//! The Linux backend. Steps become changes, each recorded first. Programs are started (`programs`).
//! The backend waits for events and does the slow duties of a hold (`watch`).

mod curve;
mod hoard;
mod look;
mod programs;
mod watch;

use std::os::fd::OwnedFd;
use std::path::Path;

use quell_control::pressure::Sample;
use quell_kernel::error::{Error, Result};
use quell_kernel::{oom, procfs, rt, self_usage, signals};
use quell_plan::inventory::{Inventory, Measured};
use quell_plan::{Plan, Pressured, Step};
use quell_record::backend::{
    Action, Backend, BackendError, HoldOptions, Observation, Own, Probe, SubjectId, SubjectSpec,
    Undone,
};
use quell_record::events::{CpuTimes, Event};
use quell_record::standing::Standing;
use quell_types::cpuset::CpuId;
use quell_types::ids::{PromiseId, REST};
use quell_types::options::OnDrift;
use quell_types::units::Nanos;
use quell_types::witness::Verdict;

use crate::colours::Declared;
use crate::colours::hoard::Hoard;
use crate::enforce::{Enforcer, Enforcers};
use crate::host::{Groups, Host};

use programs::Programs;

pub use crate::host::Tools;

/// What the backend answers the engine.
type Answer<T> = std::result::Result<T, BackendError>;

/// The backend of the machine that Quell runs on.
pub struct Linux {
    host: Host,
    enforcers: Enforcers,
    programs: Programs,
    looks: look::Looks,
    /// Page frames that are held outside of a plan.
    hoard: Option<Hoard>,
    signals: OwnedFd,
    on_drift: OnDrift,
    next_beat: Nanos,
    next_look: Nanos,
    revoked: bool,
}

impl Linux {
    /// The backend of this machine. From here on only [`Backend::wait`] sees SIGINT, SIGTERM and
    /// SIGHUP.
    ///
    /// # Errors
    /// When the kernel's interfaces are not where they should be.
    pub fn new(run_root: &Path, tools: Tools) -> Result<Self> {
        rt::one_heap();
        let host = Host::new(run_root, tools)?;
        let signals = signals::stop_signals()
            .map_err(|e| Error::refused(format!("signals cannot be received: {e}")))?;
        Ok(Self {
            host,
            enforcers: Enforcers::new(),
            programs: Programs::new(),
            looks: look::Looks::default(),
            hoard: None,
            signals,
            on_drift: OnDrift::default(),
            next_beat: Nanos(0),
            next_look: Nanos(0),
            revoked: false,
        })
    }

    /// Takes over what an earlier run measured on this machine.
    pub fn measured(&mut self, measured: Measured) {
        self.host.measured(measured);
    }

    /// Takes over the address map that a person has stated for this machine.
    pub fn address_map(&mut self, declared: Declared) {
        self.host.address_map(declared);
    }

    /// Ends the hold: everything is reverted, and the watchdog ends.
    ///
    /// # Errors
    /// When something could not be reverted.
    pub fn end(&mut self) -> Result<Undone> {
        self.release();
        self.revoked = false;
        match self.host.session.take() {
            Some(session) => session.end(&self.host.files),
            None => Ok(Undone::default()),
        }
    }

    /// Ends the programs and what the mechanisms keep running.
    fn release(&mut self) {
        if let Some(session) = &self.host.session {
            session.unsettled();
        }
        // A brake or a freeze would keep programs from ending.
        self.enforcers.brakes.release(&mut self.host);
        self.enforcers.windows.release(&mut self.host);
        self.enforcers.scheduler.release(&mut self.host);
        self.enforcers.pressure.release(&mut self.host);
        self.enforcers.colours.release(&mut self.host);
        // Waiting for a program that hangs takes longer than the lease lasts. The heartbeat goes
        // on, so that the watchdog does not take the run away meanwhile.
        self.programs.stop(&mut self.host.heart());
        for enforcer in self.enforcers.each() {
            enforcer.release(&mut self.host);
        }
        self.hoard = None;
        self.looks = look::Looks::default();
        self.host.groups = Groups::default();
        self.host.plan = None;
    }
}

impl Drop for Linux {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

impl Backend for Linux {
    fn inventory(&mut self, depth: Probe) -> Answer<Inventory> {
        if depth == Probe::Deep {
            // This takes many seconds on a busy machine. Before anything is held, any signal may
            // end it.
            let host = &mut self.host;
            let measured = match host.session {
                None => signals::ended_by_any(|| host.measure())?,
                Some(_) => host.measure()?,
            };
            host.measured(measured);
        }
        Ok(self.host.inventory()?.clone())
    }

    fn now(&self) -> Nanos {
        rt::now()
    }

    fn hold(&mut self, plan: &Plan, how: HoldOptions) -> Answer<()> {
        self.host.plan = Some(plan.clone());
        self.on_drift = how.on_drift;
        self.programs.observe(&plan.loops.observed);
        // A measurement, or the plan before this one, may have begun the session.
        if let Some(session) = &self.host.session {
            session.describe(plan)?;
        }
        Ok(())
    }

    fn stands(&mut self, standing: &Standing) {
        if let Some(session) = &self.host.session {
            session.stands(standing);
        }
    }

    fn apply(&mut self, step: &Step) -> Answer<Vec<String>> {
        self.beat_if_due()?;
        let (_, mut notes) = self.host.session()?;
        let group = step.group.as_deref().unwrap_or(REST);
        notes.extend(self.enforcers.apply(&mut self.host, group, &step.set)?);
        Ok(notes)
    }

    fn undo(&mut self) -> Answer<Undone> {
        self.release();
        let all = self.host.all_cpus()?;
        let (mut undone, files) = (Undone::default(), &self.host.files);
        if let Some(session) = &mut self.host.session {
            undone = session.undo(files);
            session.rest(rt::now());
            session.stay_on(files, &all);
        }
        // Makes the first step that follows renew the heartbeat at once.
        self.next_beat = Nanos(0);
        Ok(undone)
    }

    fn start(&mut self, subject: &SubjectSpec) -> Answer<SubjectId> {
        oom::shelter();
        let (host, enforcers) = (&mut self.host, &mut self.enforcers);
        Ok(self.programs.start(host, enforcers, subject)?)
    }

    fn wait(&mut self, until: Nanos, seen: &mut Observation) -> Answer<Nanos> {
        self.observe(until, seen)?;
        Ok(rt::now())
    }

    fn watch(&mut self, pressure: &Pressured) -> Answer<()> {
        Ok(self.enforcers.pressure.begin(&mut self.host, pressure)?)
    }

    fn memory(&mut self, processes: bool, look: &mut Sample) -> Answer<()> {
        let pressure = &mut self.enforcers.pressure;
        Ok(pressure.read(&mut self.host, processes, look)?)
    }

    fn own(&mut self) -> Answer<Option<Own>> {
        Ok(Some(self_usage::own(&self.host.files)?))
    }

    fn can_look(&self) -> bool {
        true
    }

    fn look(&mut self) -> Vec<(PromiseId, Verdict)> {
        self.seen(rt::now())
    }

    fn last(&mut self) -> Vec<Event> {
        match self.revoked {
            true => Vec::new(),
            false => self.enforcers.colours.last(&self.host),
        }
    }

    fn act(&mut self, action: &Action) -> Answer<()> {
        for enforcer in self.enforcers.each() {
            enforcer.act(&mut self.host, action)?;
        }
        match action {
            Action::Go {
                subject,
                warmup,
                duration,
            } => {
                let line = format!("go {} {}\n", warmup.0, duration.0);
                self.programs.subject(*subject)?.say(&line)?;
            }
            Action::Stop(subject) => {
                let subject = self.programs.subject(*subject)?;
                subject.stop(&mut self.host.heart());
            }
            Action::Budget { .. } | Action::Memory(_) | Action::Ways { .. } => {}
        }
        Ok(())
    }

    fn shared_cache(&mut self, a: CpuId, b: CpuId) -> Answer<Option<f64>> {
        (self.host.tools.shared_cache)(a, b).map_err(|e| {
            BackendError(format!(
                "the cache of CPUs {a} and {b} cannot be probed: {e}"
            ))
        })
    }

    fn drawn_by(&mut self, group: &str) -> Answer<Option<u64>> {
        let (classes, files) = (&mut self.enforcers.classes, &self.host.files);
        Ok(classes.moved_by(files, group)?)
    }

    fn cpu_times(&mut self) -> Answer<Option<Vec<CpuTimes>>> {
        let ticks = rustix::param::clock_ticks_per_second();
        Ok(procfs::cpu_times(&self.host.files, ticks)?)
    }
}
