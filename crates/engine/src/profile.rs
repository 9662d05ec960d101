//! What one subject draws over time, alone, on a machine that counts it by subject. The subject is
//! started and warmed up. Its counters are read on a grid until the span is over. No plan is
//! applied and nothing else is started.

use std::collections::BTreeMap;

use quell_plan::{Loops, Observed, Plan};
use quell_record::backend::{Action, Backend, HoldOptions, Program, Seen, SubjectId, SubjectSpec};
use quell_record::demand::{BIN, Drawn, WorkingSet};
use quell_types::source::Source;
use quell_types::units::{Nanos, Share};

use crate::compare::Progress;
use crate::drive::{DriveError, Ended, Order, Script, drive};
use crate::sink::NoSink;

/// What was read while the subject ran.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Watched {
    /// Times, each with what the subject had drawn by then.
    pub readings: Vec<(Nanos, Drawn)>,
    /// The memory it worked on at the end. `None` where the machine cannot measure that.
    pub working_set: Option<WorkingSet>,
    /// Nanoseconds of each unit of work. Empty where the subject reports none.
    pub units_ns: Vec<u64>,
}

impl Watched {
    /// The readings of one field of [`Drawn`], with their times.
    #[must_use]
    pub fn counter<T>(&self, of: impl Fn(&Drawn) -> T) -> Vec<(Nanos, T)> {
        let readings = self.readings.iter();
        readings.map(|(at, drawn)| (*at, of(drawn))).collect()
    }
}

/// Why a subject has no profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchError {
    /// Forwarded from the drive loop.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// A signal came, or the hold was revoked.
    #[error("interrupted: nothing was measured")]
    Interrupted,
}

/// Observes the generator `spec` for `span`, after `warmup` of its load.
///
/// # Errors
/// When it cannot be started, ends by itself, is not counted, or a signal ends it.
pub fn watch(
    backend: &mut dyn Backend,
    spec: &SubjectSpec,
    warmup: Nanos,
    span: Nanos,
    progress: &mut dyn Progress,
) -> Result<Watched, WatchError> {
    let bins = span.0 / BIN.0;
    progress.begin(100);
    progress.cell(&spec.name);
    let mut script = Watching {
        spec,
        warmup,
        span,
        bins,
        subject: None,
        next: Nanos(u64::MAX),
        uncounted: false,
        over: false,
        watched: Watched::default(),
        progress,
    };
    let observed = Observed {
        source: Source::Client,
        matching: Vec::new(),
        deadline: None,
        percentile: Share::WHOLE,
    };
    let plan = Plan {
        policy: "profile".to_owned(),
        groups: Vec::new(),
        steps: Vec::new(),
        promises: Vec::new(),
        loops: Loops {
            observed: BTreeMap::from([(spec.group.clone(), observed)]),
            ..Loops::default()
        },
        notes: Vec::new(),
        acts: Vec::new(),
        assumed: None,
    };
    let driven = drive(
        backend,
        &plan,
        HoldOptions::default(),
        &mut script,
        &mut NoSink,
    )?;
    match driven.ended {
        Ended::Finished => Ok(script.watched),
        Ended::Stopped(_) | Ended::Revoked(_) => Err(WatchError::Interrupted),
    }
}

fn percent(done: u64, of: u64) -> u32 {
    u32::try_from(done * 100 / of.max(1)).unwrap_or(100)
}

struct Watching<'a> {
    spec: &'a SubjectSpec,
    warmup: Nanos,
    span: Nanos,
    bins: u64,
    subject: Option<SubjectId>,
    /// When the counters are read next.
    next: Nanos,
    /// Whether a reading was tried and the machine does not count the subject.
    uncounted: bool,
    over: bool,
    watched: Watched,
    progress: &'a mut dyn Progress,
}

impl Script for Watching<'_> {
    fn begin(&mut self, _: Nanos, orders: &mut Vec<Order>) -> Result<(), String> {
        match self.spec.program {
            Program::Generator(_) => orders.push(Order::Start(self.spec.clone())),
            Program::Command(_) => return Err("only generators are watched this way".to_owned()),
        }
        Ok(())
    }

    fn started(&mut self, _: &str, id: SubjectId, _: Nanos) {
        self.subject = Some(id);
    }

    fn seen(&mut self, now: Nanos, seen: Seen, orders: &mut Vec<Order>) -> Result<(), String> {
        match seen {
            Seen::Ready(subject) => {
                self.next = now.plus(self.warmup);
                orders.push(Order::Act(Action::Go {
                    subject,
                    warmup: self.warmup,
                    duration: self.span,
                }));
                Ok(())
            }
            Seen::Units(_, _, units, _) if !self.watched.readings.is_empty() => {
                let took = units.iter().map(|unit| unit.took.0);
                self.watched.units_ns.extend(took);
                Ok(())
            }
            Seen::Exited(_, status, _) => Err(format!(
                "'{}' ended with status {status} before it was stopped",
                self.spec.name
            )),
            _ => Ok(()),
        }
    }

    fn tick(&mut self, now: Nanos, orders: &mut Vec<Order>) -> Result<(), String> {
        if self.uncounted {
            return Err("this machine does not count what single programs draw".to_owned());
        }
        let Some(subject) = self.subject.filter(|_| now >= self.next) else {
            return Ok(());
        };
        orders.push(Order::Look(subject));
        self.next = self.next.plus(BIN);
        let looked = self.watched.readings.len() as u64;
        if looked.is_multiple_of(self.bins.div_ceil(100)) {
            self.progress.done(percent(looked, self.bins), 100);
        }
        if looked == self.bins {
            orders.push(Order::Size(subject));
            orders.push(Order::Act(Action::Stop(subject)));
        }
        Ok(())
    }

    fn drew(&mut self, now: Nanos, drawn: Option<Drawn>) {
        match drawn {
            Some(drawn) => self.watched.readings.push((now, drawn)),
            None => self.uncounted = true,
        }
    }

    fn works_on(&mut self, set: Option<WorkingSet>) {
        self.watched.working_set = set;
        self.over = true;
    }

    fn wake(&self) -> Nanos {
        self.next
    }

    fn finished(&self) -> bool {
        self.over
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::NoProgress;
    use crate::fake::{Fake, command};
    use quell_record::measurement::Measurement;

    fn generator(fake: &mut Fake) -> SubjectSpec {
        fake.generator("job", |_| Measurement::default());
        SubjectSpec {
            program: Program::Generator("bandwidth:read".parse().unwrap()),
            ..command("job")
        }
    }

    #[test]
    fn what_a_subject_draws_is_read_on_a_grid() {
        let mut fake = Fake::new();
        fake.count_draws();
        let spec = generator(&mut fake);
        let (warmup, span) = (Nanos::millis(20), Nanos::millis(30));
        let watched = watch(&mut fake, &spec, warmup, span, &mut NoProgress).unwrap();
        assert_eq!(watched.readings.len(), 31);
        let times: Vec<u64> = watched.readings.iter().map(|(at, _)| at.0).collect();
        assert!(times.windows(2).all(|w| w[1] - w[0] == BIN.0), "{times:?}");
        let read = watched.counter(|d| d.read);
        assert!(
            read.windows(2).all(|w| w[1].1 - w[0].1 == BIN.0),
            "{read:?}"
        );
        assert_eq!(watched.readings[0].0, Nanos::millis(70));
        assert_eq!(
            fake.log,
            [
                "observe job",
                "start job",
                "go job 20ms 30ms",
                "stop job",
                "undo"
            ]
        );
    }

    #[test]
    fn units_count_from_the_first_reading_on() {
        let mut fake = Fake::new();
        fake.count_draws();
        let spec = generator(&mut fake);
        for (ended, took) in [(60, 3), (80, 4), (90, 5)] {
            fake.unit_at(Nanos::millis(ended), "job", Nanos::millis(took));
        }
        let (warmup, span) = (Nanos::millis(20), Nanos::millis(30));
        let watched = watch(&mut fake, &spec, warmup, span, &mut NoProgress).unwrap();
        assert_eq!(watched.units_ns, [4_000_000, 5_000_000]);
    }

    #[test]
    fn a_machine_that_does_not_count_by_subject_says_so() {
        let mut fake = Fake::new();
        let spec = generator(&mut fake);
        let span = Nanos::millis(30);
        let error = watch(&mut fake, &spec, Nanos(0), span, &mut NoProgress).unwrap_err();
        assert!(error.to_string().contains("does not count"), "{error}");
        assert!(fake.clean());
    }

    #[test]
    fn a_signal_ends_it_and_everything_is_undone() {
        let mut fake = Fake::new();
        fake.count_draws();
        let spec = generator(&mut fake);
        fake.stop_at(Nanos::millis(60), 15);
        let span = Nanos::millis(300);
        let error = watch(&mut fake, &spec, Nanos(0), span, &mut NoProgress).unwrap_err();
        assert_eq!(error, WatchError::Interrupted);
        assert!(fake.clean());
    }
}
