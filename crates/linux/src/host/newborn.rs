//! Programs that begin while a plan is held. They are moved into their group when the kernel
//! reports them, not when processes are next searched.

use quell_kernel::births::Births;
use quell_kernel::error::Result;
use quell_kernel::procfs;
use quell_kernel::root::Files;
use quell_kernel::rt;
use quell_kernel::tasks::{self, Fit, Matcher};
use quell_types::units::Nanos;
use rustix::event::{PollFd, PollFlags};

use super::Host;
use super::gate::Gate;
use super::groups::Groups;

/// How long reports are worked on before all else that a hold does has its turn.
const SPELL: Nanos = Nanos::millis(20);
/// How long none is fetched after that: whoever starts programs without end gets a fifth of a CPU
/// of Quell's, and the rest of them are found by the search.
const PAUSE: Nanos = Nanos::millis(80);

/// The kernel's reports, and what they are compared with.
pub struct Newborn {
    births: Births,
    /// The groups' match tables. `None` until they are needed.
    matchers: Option<Vec<Matcher>>,
    /// When reports are fetched again.
    next: Nanos,
    gate: Gate,
}

impl Groups {
    /// Asks the kernel for reports, once for all groups. Returns why there are none, for a person.
    pub fn expect(&mut self) -> Option<String> {
        if let Some(newborn) = &mut self.newborn {
            // Another group was gathered.
            newborn.matchers = None;
        }
        if std::mem::replace(&mut self.expecting, true) {
            return None;
        }
        match Births::listen() {
            Ok(births) => {
                self.newborn = Some(Newborn {
                    births,
                    matchers: None,
                    next: Nanos(0),
                    gate: Gate::default(),
                });
                None
            }
            Err(e) => Some(format!(
                "programs that begin are looked for once a second ({e}): match what starts programs \
                 that run for less"
            )),
        }
    }

    /// What is readable when a program has begun.
    pub fn reports(&self) -> Option<PollFd<'_>> {
        let newborn = self.newborn.as_ref().filter(|n| rt::now() >= n.next)?;
        Some(PollFd::new(&newborn.births, PollFlags::IN))
    }
}

impl Host {
    /// Moves programs that have begun into their groups.
    ///
    /// # Errors
    /// As [`Self::matchers`].
    pub fn take_in(&mut self) -> Result<()> {
        let Some(mut newborn) = self.groups.newborn.take() else {
            return Ok(());
        };
        let taken = self.take_in_from(&mut newborn);
        self.groups.newborn = Some(newborn);
        taken
    }

    fn take_in_from(&mut self, newborn: &mut Newborn) -> Result<()> {
        let begun = rt::now();
        if begun < newborn.next {
            return Ok(());
        }
        let born = newborn.births.fetch();
        if born.is_empty() {
            return Ok(());
        }
        let mut never = self.never();
        never.insert(std::process::id());
        let matchers = match &mut newborn.matchers {
            Some(matchers) => matchers,
            none => none.insert(self.matchers()?),
        };
        for pid in born.into_iter().filter(|pid| !never.contains(pid)) {
            if rt::now() >= begun.plus(SPELL) {
                newborn.next = rt::now().plus(PAUSE);
                break;
            }
            // What fails for one is found again, and reported, by the search of all processes.
            if let Ok(Fit::Group(name)) = tasks::matched(&self.files, matchers, pid) {
                let _ = self.take_in_one(&mut newborn.gate, &name, pid);
            }
        }
        Ok(())
    }

    fn take_in_one(&mut self, gate: &mut Gate, group: &str, pid: u32) -> Result<()> {
        let (mut writer, _, group) = self.of(group)?;
        // What a member starts is inside already, and to see so costs less than to gather.
        let mut outside = None;
        for place in group.cgroups.places.iter().filter(|p| p.collects()) {
            let dir = place.hierarchy.dir_of(writer.files, pid)?;
            if dir.is_some_and(|dir| !place.holds(&dir)) {
                outside = Some(&place.hierarchy);
            }
        }
        if let Some(hierarchy) = outside {
            gate.keep_open(hierarchy);
            let mut find = |files: &dyn Files| Ok(procfs::stat(files, pid)?.into_iter().collect());
            group.cgroups.gather(&mut writer, &mut find)?;
        }
        Ok(())
    }
}
