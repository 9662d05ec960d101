//! The hoard of a run: started, asked, and what it reports.

use std::time::Duration;

use quell_control::hoard::{Memory, Regrowth, Rules};
use quell_kernel::error::{Error, Result};
use quell_kernel::{rt, sysctl, vm};
use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::units::{Bytes, Nanos};

use crate::colours::hoard::{Command, Hoard, Report, What};
use crate::host::Host;

const COMPACTION: &str = "compact_unevictable_allowed";
/// How often the keeper's reports are read while something is waited for.
const EVERY: Duration = Duration::from_millis(1);
/// How long the keeper may take to release frames.
const PATIENCE: Nanos = Nanos::secs(2);

/// Starts a hoard. Compaction moves locked pages, too, as long as `vm.compact_unevictable_allowed`
/// lets it (Documentation/admin-guide/sysctl/vm.rst). A frame that is moved away is free for any
/// program. So that is switched off before the first frame is taken, recorded first. Returns notes
/// for a person.
///
/// # Errors
/// Without root; [`Error::Refused`] where there can be no such hoard, with the reason.
pub(crate) fn begin(host: &mut Host, rules: &Rules) -> Result<(Hoard, Vec<String>)> {
    if let Some(why) = rules.refusal() {
        return Err(Error::refused(why));
    }
    let path = sysctl::path(COMPACTION);
    let mut notes = Vec::new();
    if sysctl::read(&host.files, COMPACTION)?.is_some() {
        host.writer()?.set(&path, "0")?;
    } else {
        let note = format!("{path} is missing: a kernel with compaction may move frames");
        notes.push(note);
    }
    let mut heart = host.heart();
    let hoard = Hoard::start(&host.tools.hoard, rules, &[], &mut heart)?;
    Ok((hoard, notes))
}

/// A hoard, and what is known of it.
pub(super) struct Held {
    pub hoard: Hoard,
    pub rules: Rules,
    /// It takes and sorts frames, and does not listen.
    pub sieving: bool,
    /// Frames of reserved colours came free, and it may sieve again then.
    pub freed: bool,
    pub next_sieve: Nanos,
    /// When it takes free frames again because it lacks some.
    pub regrowth: Regrowth,
}

impl Held {
    /// Has it sieve again where frames came free, or where memory is free and it lacks frames.
    /// `own` is what programs have got of it.
    pub fn sieve_if_due(&mut self, host: &Host, own: Bytes) -> Result<()> {
        let now = rt::now();
        if self.sieving || now < self.next_sieve {
            return Ok(());
        }
        let memory = vm::memory(&host.files)?.unwrap_or_default();
        let memory = Memory {
            free: memory.free,
            available: memory.available,
        };
        let held = Bytes(self.hoard.kept().0.saturating_add(own.0));
        let freed = self.freed && !self.regrowth.is_shrunk();
        if self.regrowth.is_due(now, memory, held) || freed {
            self.hoard.ask(&Command::Sieve)?;
            (self.freed, self.sieving) = (false, true);
        }
        Ok(())
    }

    /// Reads reports until one says what is waited for.
    pub fn until(
        &mut self,
        heart: &mut dyn FnMut(),
        patience: Nanos,
        is_it: &dyn Fn(&What) -> bool,
    ) -> Result<(Vec<Report>, bool)> {
        let end = rt::now().plus(patience);
        let mut all = Vec::new();
        loop {
            let reports = self.hoard.reports()?;
            let found = reports.iter().any(|report| is_it(&report.what));
            let none = reports.is_empty();
            all.extend(reports);
            if found {
                return Ok((all, true));
            }
            if let Some(how) = self.hoard.ended().filter(|_| none) {
                return Err(ended(&how));
            }
            if rt::now() >= end {
                return Ok((all, false));
            }
            heart();
            std::thread::sleep(EVERY);
        }
    }

    /// Has frames released for a settler. Returns how many were, and other reports.
    pub fn provide(
        &mut self,
        pages: u64,
        cpu: Option<CpuId>,
        colours: &CpuSet,
        heart: &mut dyn FnMut(),
    ) -> Result<(u64, Vec<Report>)> {
        self.hoard.ask(&Command::Release {
            pages,
            cpu,
            colours: Some(colours.clone()),
        })?;
        let is_it = |what: &What| matches!(what, What::Released { .. });
        let (reports, _) = self.until(heart, PATIENCE, &is_it)?;
        let mut released = 0;
        let mut others = Vec::new();
        for report in reports {
            match report.what {
                What::Released { pages } => released += pages,
                _ => others.push(report),
            }
        }
        Ok((released, others))
    }
}

/// The error of a keeper that has ended.
pub(super) fn ended(how: &str) -> Error {
    Error::refused(format!(
        "the process that holds the page frames has ended ({how}): any program may get them"
    ))
}
