//! Holding a plan for `quell run`: starts the policy's programs, holds until they or a signal end
//! it, and passes the exit status through.

use std::collections::BTreeMap;

use quell_plan::Plan;
use quell_record::backend::{Backend, HoldOptions, Seen, SubjectId, SubjectSpec, Undone};
use quell_record::events::Event;
use quell_record::standing::Standing;
use quell_types::units::Nanos;

use crate::drive::{DriveError, Ended, Order, Script, drive};
use crate::sink::Sink;

/// What ends the hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Only a signal ends it. For groups that match running tasks.
    Stop,
    /// The end of the first subject; its status is passed through.
    First,
    /// The end of all subjects. The first status that is not zero is passed through.
    All,
}

/// How the hold ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A launched program ended, with this status as a shell reports it.
    Exited(i32),
    /// A signal with this number ended it.
    Stopped(i32),
    /// The watchdog had undone everything, for this reason. Nothing was held any more.
    Revoked(String),
}

/// The outcome of a hold, after everything was undone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// What ended the hold.
    pub outcome: Outcome,
    /// What undoing reverted and left.
    pub undone: Undone,
    /// Findings of applying the steps.
    pub notes: Vec<String>,
    /// How often a CPU was throttled.
    pub throttles: u64,
    /// Time throttled, summed over CPUs.
    pub throttled: Nanos,
    /// What each promise was worth, at the end and at its worst.
    pub standing: Standing,
}

/// Applies `plan`, starts `subjects`, holds `until`, and undoes. Events go to `sink` as they come.
pub fn run(
    backend: &mut dyn Backend,
    plan: &Plan,
    how: HoldOptions,
    subjects: &[SubjectSpec],
    until: Until,
    sink: &mut dyn Sink,
) -> Result<Held, DriveError> {
    let mut script = Hold {
        subjects,
        until,
        running: BTreeMap::new(),
        left: subjects.len(),
        status: None,
        throttles: 0,
        throttled: Nanos(0),
        exits: Vec::new(),
    };
    let driven = drive(backend, plan, how, &mut script, sink)?;
    for (at, event) in &script.exits {
        sink.put(*at, event);
    }
    let outcome = match driven.ended {
        Ended::Finished => Outcome::Exited(script.status.unwrap_or(0)),
        Ended::Stopped(signal) => Outcome::Stopped(signal),
        Ended::Revoked(why) => Outcome::Revoked(why),
    };
    Ok(Held {
        outcome,
        undone: driven.undone,
        notes: driven.notes,
        throttles: script.throttles,
        throttled: script.throttled,
        standing: driven.standing,
    })
}

struct Hold<'a> {
    subjects: &'a [SubjectSpec],
    until: Until,
    /// Subject → its index in `subjects`.
    running: BTreeMap<SubjectId, usize>,
    left: usize,
    status: Option<i32>,
    throttles: u64,
    throttled: Nanos,
    exits: Vec<(Nanos, Event)>,
}

impl Hold<'_> {
    fn ended(&mut self, now: Nanos, id: SubjectId, status: i32) {
        let Some(index) = self.running.remove(&id) else {
            return;
        };
        self.left = self.left.saturating_sub(1);
        let decides = match self.until {
            Until::Stop => false,
            Until::First => index == 0,
            Until::All => self.status.is_none_or(|s| s == 0),
        };
        if decides {
            self.status = Some(status);
        }
        if let Some(spec) = self.subjects.get(index) {
            let group = spec.group.clone();
            self.exits.push((now, Event::Exit { group, status }));
        }
    }
}

impl Script for Hold<'_> {
    fn begin(&mut self, _: Nanos, orders: &mut Vec<Order>) -> Result<(), String> {
        orders.extend(self.subjects.iter().cloned().map(Order::Start));
        Ok(())
    }

    fn started(&mut self, name: &str, id: SubjectId, _: Nanos) {
        if let Some(index) = self.subjects.iter().position(|s| s.name == name) {
            self.running.insert(id, index);
        }
    }

    fn seen(&mut self, now: Nanos, seen: Seen, _: &mut Vec<Order>) -> Result<(), String> {
        match seen {
            Seen::Exited(id, status, _) => self.ended(now, id, status),
            Seen::Event(Event::Throttle {
                throttles,
                throttled_ns,
                ..
            }) => {
                self.throttles += throttles;
                self.throttled = self.throttled.plus(Nanos(throttled_ns));
            }
            _ => {}
        }
        Ok(())
    }

    fn finished(&self) -> bool {
        match self.until {
            Until::Stop => false,
            Until::First => self.status.is_some() || self.subjects.is_empty(),
            Until::All => self.left == 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Fake, command, plan_with_steps};

    fn hold(fake: &mut Fake, names: &[&str], until: Until) -> (Held, Vec<(Nanos, Event)>) {
        let subjects: Vec<_> = names.iter().map(|n| command(n)).collect();
        let mut sink = Vec::new();
        let how = HoldOptions::default();
        let held = run(fake, &plan_with_steps(1), how, &subjects, until, &mut sink).unwrap();
        (held, sink)
    }

    #[test]
    fn the_commands_status_is_passed_through() {
        let mut fake = Fake::new();
        fake.command("encode", Nanos::secs(2), 7, &[]);
        fake.command("stress", Nanos::secs(600), 0, &[]);
        let (held, sink) = hold(&mut fake, &["encode", "stress"], Until::First);
        assert_eq!(held.outcome, Outcome::Exited(7));
        assert!(fake.clean());
        assert!(sink.iter().any(|(_, e)| *e
            == Event::Exit {
                group: "encode".into(),
                status: 7
            }));
    }

    #[test]
    fn all_waits_for_all_and_reports_the_first_failure() {
        let mut fake = Fake::new();
        fake.command("a", Nanos::secs(1), 0, &[]);
        fake.command("b", Nanos::secs(2), 5, &[]);
        fake.command("c", Nanos::secs(3), 6, &[]);
        let (held, _) = hold(&mut fake, &["a", "b", "c"], Until::All);
        assert_eq!(held.outcome, Outcome::Exited(5));
    }

    #[test]
    fn without_a_program_a_signal_ends_it() {
        let mut fake = Fake::new();
        fake.stop_at(Nanos::secs(30), 15);
        let (held, _) = hold(&mut fake, &[], Until::Stop);
        assert_eq!(held.outcome, Outcome::Stopped(15));
        assert!(fake.clean());
    }

    #[test]
    fn a_revoked_hold_says_so() {
        let mut fake = Fake::new();
        fake.command("encode", Nanos::secs(20), 0, &[]);
        fake.revoke_at(Nanos::secs(2), "the watchdog saw no heartbeat");
        let (held, _) = hold(&mut fake, &["encode"], Until::First);
        assert!(matches!(held.outcome, Outcome::Revoked(_)));
    }
}
