//! Waiting, and the duties of a hold meanwhile: the heartbeat, newborn tasks, drift, the brakes'
//! figures.

use quell_kernel::error::{Error, Result};
use quell_kernel::{rt, signals};
use quell_record::about::About;
use quell_record::backend::{Observation, Seen};
use quell_types::options::OnDrift;
use quell_types::units::Nanos;
use rustix::event::{PollFd, PollFlags};

use super::Linux;
use crate::drift;
use crate::host::finding;

/// How often the heartbeat is renewed.
const BEAT: Nanos = Nanos::millis(100);
/// How often the slow duties of a hold are done: newborn tasks, drift, brakes.
const LOOK: Nanos = Nanos::secs(1);

impl Linux {
    pub(super) fn beat_if_due(&mut self) -> Result<Option<String>> {
        let now = rt::now();
        if now < self.next_beat {
            return Ok(None);
        }
        self.next_beat = now.plus(BEAT);
        let Some(session) = self.host.session.as_mut() else {
            return Ok(None);
        };
        self.enforcers.brakes.beat(session, now);
        session.beat(&self.host.files, &self.host.cgroups, now)
    }

    /// The slow duties of a hold: newborn tasks, drift, brakes that ended.
    fn check(&mut self, seen: &mut Observation) {
        self.enforcers.account(&self.host, seen);
        self.host.report_spent(seen);
        self.enforcers.check(&mut self.host, seen);
        let files = &self.host.files;
        let Some(session) = &mut self.host.session else {
            return;
        };
        if !session.still_held() {
            return;
        }
        if let Err(e) = session.forget_ended(files) {
            seen.push(finding(About::Session, e.to_string(), None));
        }
        let session = &*session;
        let held = || session.still_held();
        for drift in drift::find(files, session.changes(), self.on_drift, &held) {
            let about = About::Drift { path: drift.path };
            seen.push(finding(about, drift.what, None));
            if self.on_drift == OnDrift::Stop {
                seen.push(Seen::Stop(0));
            }
        }
    }

    fn poll(&mut self, until: Nanos) -> Result<()> {
        let timeout = rt::timespec(until.since(rt::now()));
        let mut watched = vec![PollFd::new(&self.signals, PollFlags::IN)];
        watched.extend(self.host.groups.reports());
        for subject in &self.programs.subjects {
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

    pub(super) fn observe(&mut self, until: Nanos, seen: &mut Observation) -> Result<()> {
        loop {
            match self.beat_if_due() {
                Ok(Some(note)) => seen.push(finding(About::Session, note, None)),
                Ok(None) => {}
                Err(_) if self.revoked => {}
                Err(e) => {
                    self.revoked = true;
                    self.enforcers.brakes.stop();
                    self.enforcers.windows.stop();
                    self.enforcers.scheduler.stop();
                    // The watchdog has reverted it, but perhaps not a change that was being made
                    // then.
                    if let Some(session) = self.host.session.as_mut() {
                        session.undo(&self.host.files);
                    }
                    seen.push(Seen::Revoked(e.to_string()));
                }
            }
            for subject in &mut self.programs.subjects {
                subject.observe(seen);
            }
            if !self.revoked {
                self.programs.answer_clients(&mut self.host, seen);
            }
            self.programs
                .tell_units(self.host.session.as_ref(), seen, until);
            while let Some(signal) = signals::next_signal(&self.signals) {
                seen.push(Seen::Stop(signal));
            }
            if self.host.session.is_some() && !self.revoked {
                let _ = self.host.take_in();
            }
            if self.host.session.is_some() && !self.revoked && rt::now() >= self.next_look {
                self.next_look = rt::now().plus(LOOK);
                self.check(seen);
            }
            if self.host.session.is_some() && !self.revoked {
                self.enforcers.colours.turn(&mut self.host, seen);
            }
            if !seen.is_empty() || rt::now() >= until {
                if seen
                    .iter()
                    .any(|s| matches!(s, Seen::Exited(..) | Seen::Stop(_) | Seen::Result(..)))
                {
                    self.enforcers.account(&self.host, seen);
                }
                if seen
                    .iter()
                    .any(|s| matches!(s, Seen::Exited(..) | Seen::Stop(_)))
                {
                    self.host.report_spent(seen);
                }
                return Ok(());
            }
            let next = if self.host.session.is_some() {
                until.min(self.next_beat)
            } else {
                until
            };
            let next = next.min(self.enforcers.colours.next);
            self.poll(next.min(self.programs.next_call))?;
        }
    }
}
