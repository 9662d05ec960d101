//! A hoard of page frames that is held outside of a plan, until the backend's end.
//!
//! Compaction moves locked pages, too, as long as `vm.compact_unevictable_allowed` lets it
//! (Documentation/admin-guide/sysctl/vm.rst). A frame that is moved away is free for any program.
//! So that is switched off before the first frame is taken, recorded first.

use quell_control::hoard::Rules;
use quell_kernel::error::{Error, Result};
use quell_kernel::sysctl;

use super::Linux;
use crate::colours::hoard::{Hoard, Report};

const COMPACTION: &str = "compact_unevictable_allowed";

impl Linux {
    /// Begins to take page frames, and holds those of reserved colours. Returns notes for a person.
    ///
    /// # Errors
    /// Without root; [`Error::Refused`] where there can be no such hoard, with the reason.
    pub fn hoard(&mut self, rules: &Rules) -> Result<Vec<String>> {
        if let Some(why) = rules.refusal() {
            return Err(Error::refused(why));
        }
        let (_, mut notes) = self.host.session()?;
        let path = sysctl::path(COMPACTION);
        if sysctl::read(&self.host.files, COMPACTION)?.is_some() {
            self.host.writer()?.set(&path, "0")?;
        } else {
            let note = format!("{path} is missing: a kernel with compaction may move frames");
            notes.push(note);
        }
        let mut heart = self.host.heart();
        let command = &self.host.tools.hoard;
        self.hoard = Some(Hoard::start(command, rules, &[], &mut heart)?);
        Ok(notes)
    }

    /// What the keeper of the hoard has reported since the last call.
    ///
    /// # Errors
    /// [`Error::Refused`] once the keeper has ended: any program may get the frames.
    pub fn hoarded(&mut self) -> Result<Vec<Report>> {
        let Some(hoard) = &mut self.hoard else {
            return Ok(Vec::new());
        };
        let reports = hoard.reports()?;
        if reports.is_empty()
            && let Some(how) = hoard.ended()
        {
            self.hoard = None;
            return Err(Error::refused(format!(
                "the process that holds the page frames has ended ({how}): any program may get them"
            )));
        }
        Ok(reports)
    }
}
