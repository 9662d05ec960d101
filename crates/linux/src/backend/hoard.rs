//! A hoard of page frames that is held outside of a plan, until the backend's end.

use quell_control::hoard::Rules;
use quell_kernel::error::{Error, Result};

use super::Linux;
use crate::colours::hoard::{Hoard, Report};
use crate::enforce::colours;

impl Linux {
    /// Begins to take page frames, and holds those of reserved colours. Returns notes for a person.
    ///
    /// # Errors
    /// Without root; [`Error::Refused`] where there can be no such hoard, with the reason.
    pub fn hoard(&mut self, rules: &Rules) -> Result<Vec<String>> {
        let (_, mut notes) = self.host.session()?;
        let (hoard, more) = colours::begin(&mut self.host, rules)?;
        notes.extend(more);
        self.hoard = Some(hoard);
        Ok(notes)
    }

    /// The process that holds the frames of such a hoard.
    #[must_use]
    pub fn hoard_keeper(&self) -> Option<u32> {
        self.hoard.as_ref().map(Hoard::pid)
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
