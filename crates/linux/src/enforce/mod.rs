//! What changes the machine: one file for each mechanism. Each change goes through a
//! [`JournaledWriter`](crate::change::JournaledWriter), which records it first, so that it can be
//! taken back. [`Enforcers::new`] lists the mechanisms.

use std::fs::File;

use quell_kernel::error::{Error, Result};
use quell_plan::Setting;
use quell_record::backend::{Action, Observation, SubjectId};
use quell_types::cpuset::CpuSet;

use crate::children::Subject;
use crate::host::Host;

pub mod affinity;
mod brakes;
pub mod cache;
mod classes;
pub mod cores;
pub mod cpumax;
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
mod pressure;
pub mod quiet;
pub mod stop;
pub mod threaded;
pub mod weight;

/// What a person should know of a step that was carried out; `None` where the step is another
/// mechanism's.
type Applied = Result<Option<Vec<String>>>;

/// A mechanism, and what it keeps while a plan is held.
pub(crate) trait Enforcer {
    /// Carries out a step of a group.
    fn apply(&mut self, host: &mut Host, group: &str, set: &Setting) -> Applied;

    /// Does what a loop has decided, if that is this mechanism's.
    fn act(&mut self, _: &mut Host, _: &Action) -> Result<()> {
        Ok(())
    }

    /// The slow duties, once a second: newborn tasks, and what others have changed.
    fn look(&mut self, _: &mut Host, _: &mut Observation) {}

    /// A program is about to be launched in a group.
    fn launch(&mut self, _: &mut Launch<'_>) -> Result<()> {
        Ok(())
    }

    /// A program was launched in a group, on these CPUs if it was given some.
    fn launched(&mut self, _: &mut Host, _group: &str, _: Option<&CpuSet>) -> Result<()> {
        Ok(())
    }

    /// Ends what is not in the journal, and forgets the plan.
    fn release(&mut self, _: &mut Host) {}
}

/// A program that is about to be launched.
pub(crate) struct Launch<'a> {
    pub group: &'a str,
    pub id: SubjectId,
    /// Those launched before.
    pub subjects: &'a [Subject],
    /// The files through which it enters its group before it executes.
    pub doors: Vec<String>,
    pub env: Vec<(String, String)>,
    /// Files it inherits.
    pub files: Vec<File>,
}

/// All mechanisms: those that are asked by others by name, and the rest.
pub(crate) struct Enforcers {
    pub brakes: brakes::Brakes,
    pub classes: classes::Classes,
    pub pressure: pressure::Pressure,
    others: Vec<Box<dyn Enforcer>>,
}

impl Enforcers {
    /// None of them has done anything yet.
    pub fn new() -> Self {
        Self {
            brakes: brakes::Brakes::default(),
            classes: classes::Classes::default(),
            pressure: pressure::Pressure::default(),
            // In the order in which they look after a hold.
            others: vec![
                Box::new(gather::Gather),
                Box::new(exempt::Exempt),
                Box::new(immunity::Immunity::default()),
                Box::new(files::LockedFiles::default()),
                Box::new(cores::Cores),
                Box::new(quiet::Quiet),
                Box::new(weight::Weight),
                Box::new(cpumax::CpuMax),
                Box::new(io::Io),
                Box::new(memory::Accounts),
            ],
        }
    }

    /// Each of them.
    pub fn each(&mut self) -> impl Iterator<Item = &mut (dyn Enforcer + 'static)> {
        let others = self.others.iter_mut().map(|e| &mut **e);
        let first: &mut (dyn Enforcer + 'static) = &mut self.brakes;
        let last: [&mut (dyn Enforcer + 'static); 2] = [&mut self.classes, &mut self.pressure];
        std::iter::once(first).chain(others).chain(last)
    }

    /// Carries out a step of a group. Returns what a person should know.
    ///
    /// # Errors
    /// As the mechanism's own; [`Error::Refused`] for what is not built for Linux.
    pub fn apply(&mut self, host: &mut Host, group: &str, set: &Setting) -> Result<Vec<String>> {
        for enforcer in self.each() {
            if let Some(notes) = enforcer.apply(host, group, set)? {
                return Ok(notes);
            }
        }
        // No plan for this machine has it: it does not say that it could.
        Err(Error::refused(format!(
            "group {group}: this step is not built for Linux yet"
        )))
    }

    /// The slow duties of a hold, as long as it is ours.
    pub fn look(&mut self, host: &mut Host, seen: &mut Observation) {
        for enforcer in self.each() {
            if host.still_held() {
                enforcer.look(host, seen);
            }
        }
    }
}
