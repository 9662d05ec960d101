//! The only loop: applies a plan's steps, runs a script, records every event, and undoes everything
//! at the end, whatever happened. The script starts subjects and reacts to what is seen.
//!
//! Holding a policy and measuring a cell differ only in the [`Script`], a state machine that never
//! touches the backend itself. So there is one place in which steps are applied and one in which
//! they are undone.

use quell_plan::Plan;
use quell_record::about::About;
use quell_record::backend::{
    Action, Backend, HoldOptions, Observation, Seen, SubjectId, SubjectSpec, Undone,
};
use quell_record::demand::{Drawn, WorkingSet};
use quell_record::events::{Event, Phase};
use quell_record::standing::{Cause, Standing};
use quell_types::mechanism::Level;
use quell_types::units::Nanos;

use crate::loops::{self, Loop};
use crate::sink::{Sink, Watching};

/// What a script asks of the loop.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// Start a subject. [`Script::started`] reports its number.
    Start(SubjectSpec),
    /// Carry out an action, usually on a subject.
    Act(Action),
    /// Read what a subject has drawn. [`Script::drew`] gets the answer.
    Look(SubjectId),
    /// Measure the memory that a subject works on. [`Script::works_on`] gets the answer.
    Size(SubjectId),
}

/// What is done with the subjects while the plan holds. Its errors are sentences for the user that
/// name the subject.
pub trait Script {
    /// All steps are applied and the plan holds.
    fn begin(&mut self, now: Nanos, orders: &mut Vec<Order>) -> Result<(), String>;
    /// An [`Order::Start`] was carried out.
    fn started(&mut self, name: &str, id: SubjectId, now: Nanos);
    /// Something was seen. Stop and revocation never get here, because they end the run.
    fn seen(&mut self, now: Nanos, seen: Seen, orders: &mut Vec<Order>) -> Result<(), String>;
    /// Called after every wait. A script without deadlines has nothing to do then.
    fn tick(&mut self, _now: Nanos, _orders: &mut Vec<Order>) -> Result<(), String> {
        Ok(())
    }
    /// An [`Order::Look`] was carried out. `None` on a machine that does not count by subject.
    fn drew(&mut self, _now: Nanos, _drawn: Option<Drawn>) {}
    /// An [`Order::Size`] was carried out. `None` on a machine that cannot measure it.
    fn works_on(&mut self, _set: Option<WorkingSet>) {}
    /// By when [`Self::tick`] must be called.
    fn wake(&self) -> Nanos {
        Nanos(u64::MAX)
    }
    /// Whether the script has nothing left to do; the loop ends then.
    fn finished(&self) -> bool;
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The script had finished.
    Finished,
    /// A signal with this number asked to stop.
    Stopped(i32),
    /// The watchdog had undone everything already, for this reason. Nothing was held any more.
    Revoked(String),
}

/// A run that was undone in good order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driven {
    /// What ended the run.
    pub ended: Ended,
    /// What undoing reverted and left.
    pub undone: Undone,
    /// Findings of applying the steps, such as a task that remained on a CPU.
    pub notes: Vec<String>,
    /// What each promise was worth, at the end and at its worst.
    pub standing: Standing,
}

/// Why a run failed, and whether anything is left on the machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriveError {
    /// It failed, and everything was undone.
    #[error("{0}")]
    Failed(String),
    /// Undoing failed: something is left on the machine.
    #[error("{why}; undoing failed, too: {undo}; run `quell restore` to undo what is left")]
    NotUndone {
        /// What went wrong first, as a sentence.
        why: String,
        /// What went wrong while undoing.
        undo: String,
    },
}

/// The longest wait. So a new order of the script is seen, and the backend does its own chores.
const LONGEST_WAIT: Nanos = Nanos::secs(1);
/// How often the CPUs' times are read for the record: ten of the kernel's ticks.
const ACCOUNT_EVERY: Nanos = Nanos::millis(100);

/// Applies `plan`, runs `script`, and undoes the plan.
pub fn drive(
    backend: &mut dyn Backend,
    plan: &Plan,
    how: HoldOptions,
    script: &mut dyn Script,
    sink: &mut dyn Sink,
) -> Result<Driven, DriveError> {
    let mut notes = Vec::new();
    let mut sink = Watching::new(plan, sink);
    let held = backend.hold(plan, how).map_err(|e| e.to_string());
    let ran = held
        .and_then(|()| apply(backend, plan, &mut notes, &mut sink))
        .and_then(|()| attend(backend, plan, script, &mut sink));
    let Watching { sink, standing, .. } = sink;
    phase(backend, sink, Phase::Undo);
    let undone = backend.undo();
    if let Ok(undone) = &undone {
        for left in &undone.left {
            finding(backend, sink, About::NotReverted, left);
        }
    }
    match (ran, undone) {
        (Ok(ended), Ok(undone)) => Ok(Driven {
            ended,
            undone,
            notes,
            standing,
        }),
        (Err(why), Ok(_)) => {
            finding(backend, sink, About::Failed, &why);
            Err(DriveError::Failed(why))
        }
        (ran, Err(undo)) => {
            let why = match ran {
                Ok(Ended::Finished) => "the run itself ended well".to_owned(),
                Ok(Ended::Stopped(signal)) => format!("the run was stopped by signal {signal}"),
                Ok(Ended::Revoked(why)) => why,
                Err(why) => why,
            };
            let error = DriveError::NotUndone {
                why,
                undo: undo.to_string(),
            };
            finding(backend, sink, About::Failed, &error.to_string());
            Err(error)
        }
    }
}

fn apply(
    backend: &mut dyn Backend,
    plan: &Plan,
    notes: &mut Vec<String>,
    sink: &mut dyn Sink,
) -> Result<(), String> {
    for step in &plan.steps {
        let outcome = backend.apply(step);
        let text = match &outcome {
            Ok(_) => "applied".to_owned(),
            Err(error) => format!("failed: {error}"),
        };
        sink.put(
            backend.now(),
            &Event::Step {
                step: step.id,
                outcome: text,
            },
        );
        let said = outcome.map_err(|e| format!("step {} ({}): {e}", step.id.0, step.mechanism))?;
        for note in said {
            let about = About::Mechanism {
                mechanism: step.mechanism,
            };
            sink.put(
                backend.now(),
                &Event::finding(about, note.as_str(), step.group.as_deref()),
            );
            notes.push(note);
        }
    }
    Ok(())
}

fn attend(
    backend: &mut dyn Backend,
    plan: &Plan,
    script: &mut dyn Script,
    sink: &mut Watching<'_>,
) -> Result<Ended, String> {
    phase(backend, sink, Phase::Hold);
    let mut loops = loops::begin(backend, plan)?;
    let ended = hold(backend, script, &mut loops, sink);
    match &ended {
        Ok(Ended::Revoked(why)) => revoked(backend, plan, why, sink),
        _ => {
            for event in backend.last() {
                sink.put(backend.now(), &event);
            }
        }
    }
    for one in &mut loops {
        one.end(backend, sink);
    }
    ended
}

fn hold(
    backend: &mut dyn Backend,
    script: &mut dyn Script,
    loops: &mut [Box<dyn Loop>],
    sink: &mut Watching<'_>,
) -> Result<Ended, String> {
    let mut orders = Vec::new();
    let mut seen = Observation::new();
    let mut account = Account::begin(backend, sink);
    script.begin(backend.now(), &mut orders)?;
    carry_out(backend, script, &mut orders)?;
    while !script.finished() {
        if let Some(standing) = sink.news() {
            backend.stands(standing);
        }
        let until = script.wake().min(backend.now().plus(LONGEST_WAIT));
        let until = loops
            .iter()
            .map(|l| l.next())
            .fold(until.min(account.next), Nanos::min);
        let now = backend.wait(until, &mut seen).map_err(|e| e.to_string())?;
        account.take(backend, now, sink);
        for one in seen.drain(..) {
            match &one {
                Seen::Stop(signal) => return Ok(Ended::Stopped(*signal)),
                Seen::Revoked(why) => return Ok(Ended::Revoked(why.clone())),
                Seen::Event(event) => sink.put(now, event),
                Seen::Decisions(group, cpu, decisions, missed) => {
                    sink.decisions(group, *cpu, decisions, *missed);
                }
                Seen::Quanta(quanta) => sink.quanta(quanta),
                _ => {}
            }
            for l in loops.iter_mut() {
                l.seen(backend, now, &one, sink)?;
            }
            script.seen(now, one, &mut orders)?;
        }
        for due in loops.iter_mut().filter(|l| now >= l.next()) {
            due.step(backend, now, sink)?;
        }
        sink.tick(now);
        script.tick(now, &mut orders)?;
        carry_out(backend, script, &mut orders)?;
    }
    Ok(Ended::Finished)
}

/// Records that nothing holds any more, and what this means for each promise.
fn revoked(backend: &dyn Backend, plan: &Plan, why: &str, sink: &mut dyn Sink) {
    finding(backend, sink, About::Failed, why);
    for (id, _) in plan.numbered() {
        let (level, why) = (Level::None, why.to_owned());
        let because = Cause::Revoked { why };
        sink.put(backend.now(), &Event::Promise { id, level, because });
    }
}

/// Reads the CPUs' times while a plan holds, if the record wants them and the machine keeps them.
struct Account {
    /// When the next reading is due. Never again once one was not available.
    next: Nanos,
}

impl Account {
    fn begin(backend: &mut dyn Backend, sink: &mut dyn Sink) -> Self {
        let next = if sink.wants_cpu_times() {
            backend.now()
        } else {
            Nanos(u64::MAX)
        };
        let mut account = Self { next };
        let now = backend.now();
        account.take(backend, now, sink);
        account
    }

    fn take(&mut self, backend: &mut dyn Backend, now: Nanos, sink: &mut dyn Sink) {
        if now < self.next {
            return;
        }
        self.next = match backend.cpu_times() {
            Ok(Some(times)) => {
                sink.cpu_times(now, &times);
                now.plus(ACCOUNT_EVERY)
            }
            Ok(None) => Nanos(u64::MAX),
            Err(why) => {
                let what = format!("how the CPUs' time was spent is not in the record: {why}");
                finding(backend, sink, About::Record, &what);
                Nanos(u64::MAX)
            }
        };
    }
}

fn carry_out(
    backend: &mut dyn Backend,
    script: &mut dyn Script,
    orders: &mut Vec<Order>,
) -> Result<(), String> {
    for order in orders.drain(..) {
        match order {
            Order::Start(spec) => {
                let id = backend
                    .start(&spec)
                    .map_err(|e| format!("subject '{}' could not be started: {e}", spec.name))?;
                script.started(&spec.name, id, backend.now());
            }
            Order::Act(action) => backend.act(&action).map_err(|e| e.to_string())?,
            Order::Look(id) => {
                let drawn = backend.drawn(id).map_err(|e| e.to_string())?;
                script.drew(backend.now(), drawn);
            }
            Order::Size(id) => {
                let set = backend.working_set(id).map_err(|e| e.to_string())?;
                script.works_on(set);
            }
        }
    }
    Ok(())
}

fn phase(backend: &dyn Backend, sink: &mut dyn Sink, name: Phase) {
    sink.put(backend.now(), &Event::Phase { name });
}

fn finding(backend: &dyn Backend, sink: &mut dyn Sink, about: About, what: &str) {
    sink.put(backend.now(), &Event::finding(about, what, None));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Fake, command, plan_with_steps};
    use quell_record::events::CpuTimes;

    /// Starts one command and ends with it.
    struct UntilExit {
        ended: bool,
    }

    impl Script for UntilExit {
        fn begin(&mut self, _: Nanos, orders: &mut Vec<Order>) -> Result<(), String> {
            orders.push(Order::Start(command("job")));
            Ok(())
        }
        fn started(&mut self, _: &str, _: SubjectId, _: Nanos) {}
        fn seen(&mut self, _: Nanos, seen: Seen, _: &mut Vec<Order>) -> Result<(), String> {
            match seen {
                Seen::Exited(_, 0, _) => self.ended = true,
                Seen::Exited(_, status, _) => return Err(format!("the job ended with {status}")),
                _ => {}
            }
            Ok(())
        }
        fn finished(&self) -> bool {
            self.ended
        }
    }

    fn run(fake: &mut Fake) -> (Result<Driven, DriveError>, Vec<(Nanos, Event)>) {
        let mut sink = Vec::new();
        let out = drive(
            fake,
            &plan_with_steps(2),
            HoldOptions::default(),
            &mut UntilExit { ended: false },
            &mut sink,
        );
        (out, sink)
    }

    /// Wants the CPUs' times, and keeps when they came.
    #[derive(Default)]
    struct Wanting {
        times: Vec<Nanos>,
        findings: Vec<String>,
    }

    impl Sink for Wanting {
        fn put(&mut self, _: Nanos, event: &Event) {
            if let Event::Finding { what, .. } = event {
                self.findings.push(what.clone());
            }
        }

        fn cpu_times(&mut self, at: Nanos, times: &[CpuTimes]) {
            assert_eq!(times[0].steal_ns, at.0);
            self.times.push(at);
        }

        fn wants_cpu_times(&self) -> bool {
            true
        }
    }

    fn account(fake: &mut Fake) -> Wanting {
        let mut sink = Wanting::default();
        fake.command("job", Nanos::secs(3), 0, &[]);
        let mut script = UntilExit { ended: false };
        let how = HoldOptions::default();
        drive(fake, &plan_with_steps(0), how, &mut script, &mut sink).unwrap();
        sink
    }

    #[test]
    fn how_the_cpus_time_was_spent_is_read_ten_times_a_second() {
        let mut fake = Fake::new();
        fake.keep_account();
        let sink = account(&mut fake);
        assert_eq!(sink.times.len(), 31, "{:?}", sink.times);
        assert!(sink.findings.is_empty());
    }

    #[test]
    fn a_machine_without_an_account_is_asked_once() {
        assert!(account(&mut Fake::new()).times.is_empty());
        let mut fake = Fake::new();
        fake.keep_account();
        fake.fail_once("account");
        let sink = account(&mut fake);
        assert!(sink.times.is_empty());
        assert_eq!(sink.findings.len(), 1);
        assert!(
            sink.findings[0].contains("not in the record"),
            "{:?}",
            sink.findings
        );
    }

    #[test]
    fn steps_are_applied_in_order_and_undone_after_the_script() {
        let mut fake = Fake::new();
        fake.command("job", Nanos::secs(3), 0, &[]);
        let (out, sink) = run(&mut fake);
        assert_eq!(out.unwrap().ended, Ended::Finished);
        assert_eq!(
            fake.log,
            ["apply 1", "apply 2", "start job", "exit job", "undo"]
        );
        assert_eq!(fake.stood, [true]);
        let outcomes: Vec<_> = sink
            .iter()
            .filter_map(|(_, e)| match e {
                Event::Step { step, outcome } => Some((step.0, outcome.as_str())),
                _ => None,
            })
            .collect();
        assert_eq!(outcomes, [(1, "applied"), (2, "applied")]);
    }

    #[test]
    fn everything_is_undone_after_every_way_to_fail() {
        for (what, fault) in [
            ("apply 2", "apply 2"),
            ("start job", "start job"),
            ("wait", "wait"),
        ] {
            let mut fake = Fake::new();
            fake.command("job", Nanos::secs(3), 0, &[]);
            fake.fail_once(fault);
            let (out, _) = run(&mut fake);
            let error = out.unwrap_err();
            assert!(
                matches!(&error, DriveError::Failed(why) if why.contains("scripted fault")),
                "{what}: {error}"
            );
            assert_eq!(fake.log.last().unwrap(), "undo", "{what}");
            assert!(fake.clean(), "{what}");
        }
    }

    #[test]
    fn a_failing_script_is_undone_and_says_why() {
        let mut fake = Fake::new();
        fake.command("job", Nanos::secs(1), 3, &[]);
        let (out, sink) = run(&mut fake);
        assert_eq!(out, Err(DriveError::Failed("the job ended with 3".into())));
        assert!(fake.clean());
        assert!(sink.iter().any(
            |(_, e)| matches!(e, Event::Finding { what, .. } if what == "the job ended with 3")
        ));
    }

    #[test]
    fn a_signal_ends_the_run_in_good_order() {
        let mut fake = Fake::new();
        fake.command("job", Nanos::secs(9), 0, &[]);
        fake.stop_at(Nanos::secs(2), 2);
        let (out, _) = run(&mut fake);
        assert_eq!(out.unwrap().ended, Ended::Stopped(2));
        assert!(fake.clean());
    }

    #[test]
    fn a_revoked_hold_is_an_end_of_its_own() {
        let mut fake = Fake::new();
        fake.command("job", Nanos::secs(9), 0, &[]);
        fake.revoke_at(Nanos::secs(2), "the watchdog saw no heartbeat");
        let (out, _) = run(&mut fake);
        assert_eq!(
            out.unwrap().ended,
            Ended::Revoked("the watchdog saw no heartbeat".into())
        );
    }

    #[test]
    fn a_failing_undo_names_the_remedy_and_the_first_cause() {
        let mut fake = Fake::new();
        fake.command("job", Nanos::secs(1), 3, &[]);
        fake.fail_once("undo");
        let (out, _) = run(&mut fake);
        let text = out.unwrap_err().to_string();
        assert!(text.starts_with("the job ended with 3; undoing failed, too:"));
        assert!(text.contains("quell restore"));
    }
}
