//! What a person is told while a plan is held, and what goes into the record.

use std::collections::BTreeSet;
use std::io::Write;

use quell_engine::folder::Folder;
use quell_engine::hold::{Held, Outcome, Until};
use quell_engine::sink::Sink;
use quell_plan::Plan;
use quell_policy::{Policy, Role};
use quell_record::account::Account;
use quell_record::backend::{Program, SubjectSpec};
use quell_record::events::{CpuTimes, Decision, Event, Phase};
use quell_record::preview::Met;
use quell_record::quanta::Quantum;
use quell_report::{Ends, closing, holding_line, status_line};
use quell_types::cpuset::CpuId;
use quell_types::ids::{GroupId, PromiseId};
use quell_types::units::Nanos;
use quell_types::witness::Verdict;

use super::live::Live;
use crate::exit::Exit;
use crate::found::spelled;
use crate::terminal::say;

/// The signal of a terminal that has gone (SIGHUP).
const HANGUP: i32 = 1;

/// What is said, and when.
pub struct Messages<'p> {
    quiet: bool,
    plan: &'p Plan,
    /// Everything is applied: what is found from now on is no mere note.
    holding: bool,
    /// From the beginning of the undoing on, what is found is told at the end, once.
    undoing: bool,
    /// What was found while the plan was applied: told below the line that it holds.
    early: Vec<String>,
    late: Vec<String>,
    account: Account,
    /// Promises of which it was said that they are not seen to hold.
    doubted: BTreeSet<PromiseId>,
    /// The line for the moment when all steps are applied.
    holding_line: String,
    live: Live,
    /// The record.
    pub folder: Option<Folder>,
}

/// The protected groups, each with what it runs or matches.
fn critical(policy: &Policy, subjects: &[SubjectSpec]) -> Vec<(GroupId, String)> {
    let groups = policy.groups.iter();
    let critical = groups.filter(|(_, group)| group.role == Role::Critical);
    let what = |(name, group): (&GroupId, &quell_policy::Group)| {
        let launched = subjects.iter().find(|s| s.group == *name);
        let what = match launched.map(|s| &s.program) {
            Some(Program::Command(command)) => command.first().cloned().unwrap_or_default(),
            _ => spelled(&group.matching),
        };
        (name.clone(), what)
    };
    critical.map(what).collect()
}

/// How a hold ends, for the person at the terminal.
fn ends(until: Until) -> Ends {
    match until {
        Until::First => Ends::WithCommand,
        Until::All => Ends::WithCommands,
        Until::Stop => {
            let terminal = crate::terminal::columns(&std::io::stderr(), 1).is_some();
            let process = (!terminal).then(std::process::id);
            Ends::OnSignal { process }
        }
    }
}

impl<'p> Messages<'p> {
    pub fn new(
        plan: &'p Plan,
        policy: &Policy,
        subjects: &[SubjectSpec],
        until: Until,
        quiet: bool,
        folder: Option<Folder>,
    ) -> Self {
        let groups = policy.groups.iter();
        let neighbours = groups.filter(|(_, group)| group.role == Role::BestEffort);
        // What we launch writes to the same terminal.
        let alone = subjects.is_empty();
        Self {
            quiet,
            plan,
            holding: false,
            undoing: false,
            early: Vec::new(),
            doubted: BTreeSet::new(),
            late: Vec::new(),
            account: Account::new(plan, neighbours.map(|(name, _)| name)),
            holding_line: holding_line(plan, &critical(policy, subjects), ends(until)),
            live: Live::new(alone && !quiet),
            folder,
        }
    }

    /// Writes a line below what is on the terminal.
    fn say(&mut self, text: &str) {
        self.live.clear();
        say(text);
    }

    pub fn show_plan(&self, met: &Met) {
        if !self.quiet {
            let style = crate::terminal::error_style();
            let text = quell_report::plan_text(self.plan, style);
            let text = text + &quell_report::preview_text(met, style);
            let _ = std::io::stderr().write_all(text.as_bytes());
        }
    }

    /// A failure, with what else the undoing brought to light.
    pub fn also(&self, failure: &str) -> String {
        let late = self.late.iter().filter(|l| *l != failure);
        let lines = std::iter::once(failure).chain(late.map(String::as_str));
        lines.collect::<Vec<_>>().join("\nquell: ")
    }

    /// What is seen of a promise. That it holds is said where something else was said before.
    fn witnessed(&mut self, id: PromiseId, verdict: &Verdict) {
        let Some(held) = self.plan.promise(id) else {
            return;
        };
        let said = match verdict {
            Verdict::Holds if !self.doubted.remove(&id) => return,
            Verdict::Holds => "is seen to hold again".to_owned(),
            Verdict::Broken(fault) => format!("does not hold: {fault}"),
            Verdict::Unseen(why) => format!("cannot be seen to hold: {why}"),
        };
        if *verdict != Verdict::Holds {
            self.doubted.insert(id);
        }
        self.say(&format!("group {}: {}: {said}", held.group, held.promise));
    }

    pub fn end(&mut self, held: &Held, with_command: bool) -> Exit {
        let missed = self.account.targets.values().any(|of| !of.is_met());
        let lost = held.standing.was_lost() || missed;
        let revoked = matches!(held.outcome, Outcome::Revoked(_));
        if self.quiet {
            for left in &held.undone.left {
                self.say(&format!("not reverted: {left}"));
            }
        } else {
            for line in closing(&self.account, self.plan, &held.undone, revoked) {
                self.say(&line);
            }
        }
        match &held.outcome {
            // Why was told when it was found.
            Outcome::Revoked(_) => Exit::NotHeld,
            Outcome::Exited(0) if lost => Exit::NotHeld,
            Outcome::Exited(status) => Exit::Status(*status),
            Outcome::Stopped(signal) if with_command && *signal > 0 => Exit::Status(128 + signal),
            Outcome::Stopped(0) => Exit::NotHeld,
            // The terminal is gone, and nobody asked for the end of the protection.
            Outcome::Stopped(HANGUP) => Exit::Status(128 + HANGUP),
            Outcome::Stopped(_) if lost => Exit::NotHeld,
            Outcome::Stopped(_) => Exit::Done,
        }
    }
}

impl Sink for Messages<'_> {
    fn put(&mut self, at: Nanos, event: &Event) {
        self.account.take(at, event);
        match event {
            Event::Phase { name } => {
                self.holding = *name == Phase::Hold;
                self.undoing = *name == Phase::Undo;
                if self.holding && !self.quiet {
                    say(&self.holding_line);
                }
                for note in std::mem::take(&mut self.early) {
                    self.say(&format!("note: {note}"));
                }
                if self.undoing {
                    self.live.clear();
                }
            }
            Event::Finding { what, .. } if self.undoing => self.late.push(what.clone()),
            Event::Finding { what, .. } if self.holding => self.say(what),
            Event::Finding { what, .. } if !self.quiet => self.early.push(what.clone()),
            Event::Promise { id, level, because } => {
                if let Some(held) = self.plan.promise(*id) {
                    let (group, promise) = (&held.group, &held.promise);
                    let text = format!(
                        "group {group}: {promise}: from now on at level {level}: {because}"
                    );
                    self.say(&text);
                }
            }
            Event::Witnessed { id, verdict } => self.witnessed(*id, verdict),
            Event::Declared { group, declared } if !self.quiet => {
                self.say(&format!("{group} says: {declared}"));
            }
            _ => {}
        }
        self.folder.put(at, event);
    }

    fn decisions(&mut self, group: &GroupId, cpu: CpuId, decisions: &[Decision], missed: u64) {
        self.folder.decisions(group, cpu, decisions, missed);
    }

    fn quanta(&mut self, quanta: &[Quantum]) {
        self.folder.quanta(quanta);
    }

    fn cpu_times(&mut self, at: Nanos, times: &[CpuTimes]) {
        self.folder.cpu_times(at, times);
    }

    fn tick(&mut self, now: Nanos) {
        let (account, plan) = (&self.account, self.plan);
        self.live
            .draw(now, |style| status_line(account, plan, now, style));
    }

    fn wants_cpu_times(&self) -> bool {
        self.folder.wants_cpu_times()
    }
}
