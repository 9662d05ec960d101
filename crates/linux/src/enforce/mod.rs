//! The code that changes the machine: one file for each mechanism. Each change goes through a
//! [`JournaledWriter`](crate::change::JournaledWriter), which records it first, so that it can be
//! reverted. [`Enforcers::new`] lists the mechanisms.

use std::fs::File;
use std::sync::Arc;

use quell_kernel::error::{Error, Result};
use quell_plan::Setting;
use quell_record::backend::{Action, Observation, SubjectId};
use quell_types::cpuset::CpuSet;

use crate::children::{FirstPages, Subject};
use crate::host::Host;

pub mod affinity;
mod brakes;
pub mod cache;
pub mod classes;
pub mod colours;
pub mod cores;
pub mod cpumax;
mod dispatching;
mod exempt;
mod files;
pub mod freezer;
mod gather;
mod immunity;
pub mod io;
mod late;
pub mod memory;
mod narrow;
mod nesting;
pub mod nodes;
mod paging;
mod partition;
mod pressure;
pub mod quiet;
pub mod registers;
mod scheduler;
mod spread;
pub mod stop;
pub mod threaded;
pub mod weight;
mod windows;

/// Notes for a person about a step that was carried out. `None` where the step belongs to another
/// mechanism.
type Applied = Result<Option<Vec<String>>>;

/// A mechanism, and its state while a plan is held.
pub(crate) trait Enforcer {
    fn apply(&mut self, host: &mut Host, group: &str, set: &Setting) -> Applied;

    /// Carries out what a loop has decided, if that concerns this mechanism.
    fn act(&mut self, _: &mut Host, _: &Action) -> Result<()> {
        Ok(())
    }

    /// The slow duties, once a second: newborn tasks, and changes by other programs.
    fn check(&mut self, _: &mut Host, _: &mut Observation) {}

    /// Called before a program is launched in a group.
    fn launch(&mut self, _: &mut Launch<'_>) -> Result<()> {
        Ok(())
    }

    /// Called after a program was launched in a group, on these CPUs if it was given some.
    fn launched(&mut self, _: &mut Host, _group: &str, _: Option<&CpuSet>) -> Result<()> {
        Ok(())
    }

    /// Ends what is not in the journal, and forgets the plan.
    fn release(&mut self, _: &mut Host) {}
}

pub(crate) struct Launch<'a> {
    pub group: &'a str,
    pub id: SubjectId,
    /// The programs launched before it.
    pub subjects: &'a [Subject],
    /// The files through which it enters its group's cgroups before it executes.
    pub procs_files: Vec<String>,
    pub env: Vec<(String, String)>,
    /// Open files that it inherits.
    pub files: Vec<File>,
    /// How its memory is paged.
    pub paging: FirstPages,
}

/// All mechanisms. The backend calls some of them by name.
pub(crate) struct Enforcers {
    pub brakes: brakes::Brakes,
    pub classes: classes::Classes,
    pub colours: colours::Colours,
    pub pressure: pressure::Pressure,
    pub scheduler: scheduler::Scheduler,
    pub windows: windows::Windows,
    others: Vec<Box<dyn Enforcer>>,
}

impl Enforcers {
    /// All mechanisms, before the first step of a plan.
    pub fn new() -> Self {
        Self {
            brakes: brakes::Brakes::default(),
            classes: classes::Classes::default(),
            colours: colours::Colours::default(),
            pressure: pressure::Pressure::default(),
            scheduler: scheduler::Scheduler::default(),
            windows: windows::Windows::default(),
            // In the order of their slow duties.
            others: vec![
                Box::new(gather::Gather),
                Box::new(exempt::Exempt),
                Box::new(immunity::Immunity::default()),
                Box::new(files::LockedFiles::default()),
                Box::new(cores::Cores::default()),
                Box::new(nodes::Nodes::default()),
                Box::new(quiet::Quiet),
                Box::new(weight::Weight::default()),
                Box::new(cpumax::CpuMax),
                Box::new(io::Io),
                Box::new(registers::Registers::default()),
                Box::new(memory::Accounts),
                Box::new(paging::Paging::default()),
            ],
        }
    }

    pub fn each(&mut self) -> impl Iterator<Item = &mut (dyn Enforcer + 'static)> {
        let others = self.others.iter_mut().map(|e| &mut **e);
        let first: [&mut (dyn Enforcer + 'static); 3] =
            [&mut self.brakes, &mut self.windows, &mut self.colours];
        let last: [&mut (dyn Enforcer + 'static); 3] =
            [&mut self.classes, &mut self.pressure, &mut self.scheduler];
        first.into_iter().chain(others).chain(last)
    }

    /// Reports what brakes and dispatchers did since the last time, ahead of all else in `seen`.
    pub fn account(&mut self, host: &Host, seen: &mut Observation) {
        self.brakes.account(seen);
        self.windows.account(host, seen);
        self.scheduler.account(host, seen);
    }

    /// Carries out a step of a group. Returns notes for a person.
    ///
    /// # Errors
    /// As the mechanism's own; [`Error::Refused`] for a step that is not built for Linux.
    pub fn apply(&mut self, host: &mut Host, group: &str, set: &Setting) -> Result<Vec<String>> {
        if let Setting::Windows(frame) = set {
            self.windows.masks = Arc::new(self.classes.way_masks(host, frame)?);
            self.windows.grants = self.brakes.of_windows(host, frame)?;
        }
        for enforcer in self.each() {
            if let Some(notes) = enforcer.apply(host, group, set)? {
                return Ok(notes);
            }
        }
        // No plan for Linux has such a step, because the inventory does not offer it.
        Err(Error::refused(format!(
            "group {group}: this step is not built for Linux yet"
        )))
    }

    /// The slow duties of a hold, as long as the run still holds the machine.
    pub fn check(&mut self, host: &mut Host, seen: &mut Observation) {
        for enforcer in self.each() {
            if host.still_held() {
                enforcer.check(host, seen);
            }
        }
    }
}
