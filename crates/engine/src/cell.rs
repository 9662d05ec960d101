//! One cell of an experiment: which subject starts when, what ends it, and what it measured. It is
//! a pure state machine over what the backend sees; [`crate::drive`] runs it.
//!
//! Generators build their memory first. Nothing is measured before all of them are ready. Then:
//! - if the *deciding* subjects are generators, all generators measure the same span, and the cell
//!   ends when each has reported;
//! - if a deciding subject is a command, the generators next to it run as load. They report span
//!   after span until the command has ended.
//!
//! Commands that do not decide are load. They start with the generators, are started again when
//! they end early, and are stopped at the end.

use std::collections::{BTreeMap, VecDeque};

use quell_plan::Plan;
use quell_policy::experiment::RUN_TIME;
use quell_record::backend::{Action, Program, Seen, SubjectId, SubjectSpec};
use quell_record::events::Event;
use quell_record::measurement::Measurement;
use quell_types::source::NumberPattern;
use quell_types::units::Nanos;

use crate::drive::{Order, Script};
use crate::settling::{LOOK, Settling};
use crate::throttling::Throttling;

/// How long a generator may take to build its memory.
pub const READY_WITHIN: Nanos = Nanos::secs(120);
/// The span of generators that are load next to a deciding command.
pub const LOAD_SPAN: Nanos = Nanos::secs(1);
/// A command that ends sooner cannot serve as load.
const SHORTEST_LOAD: Nanos = Nanos::millis(10);
/// How many of a command's last lines an error shows.
const TAIL: usize = 5;

/// A metric that is read from a command's output.
#[derive(Clone, Debug)]
pub struct Extract {
    /// The metric's name, as in the result.
    pub name: String,
    /// The number that each line is searched for.
    pub pattern: NumberPattern,
    /// One value per run (the last match) instead of one per matching line.
    pub last_only: bool,
    /// Whether the cell fails without a match.
    pub required: bool,
}

/// A subject as a member of the cell.
#[derive(Clone, Debug)]
pub struct Member {
    /// The program to start, with its group and CPUs.
    pub spec: SubjectSpec,
    /// Whether the cell lasts until this member is done.
    pub decides: bool,
    /// Started so long after the member of this name. `None`: together with all.
    pub after: Option<(String, Nanos)>,
    /// A command that is started again when it ends while the cell lasts. Its first run counts.
    pub again: bool,
    /// Metrics that its output is searched for.
    pub extracts: Vec<Extract>,
}

/// How long the cell warms up and measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Load before the measured span begins.
    pub warmup: Nanos,
    /// The measured span of a generator. Load next to a command reports at most [`LOAD_SPAN`] at a
    /// time.
    pub duration: Nanos,
    /// Each generator measures one run of its own instead, however long that takes.
    pub runs: bool,
    /// How long a deciding command may run.
    pub longest: Nanos,
}

#[derive(Debug, PartialEq, Eq)]
enum Phase {
    /// Generators build their memory. All must be ready by this time. Then pages are moved.
    Preparing(Nanos),
    /// Subjects run. Generators were sent off at this time.
    Running(Nanos),
    Over,
}

struct State {
    member: Member,
    id: Option<SubjectId>,
    alive: bool,
    ready: bool,
    /// When it was sent off or started. `None` before.
    gone: Option<Nanos>,
    /// By when a generator must report. `None` where no report is awaited.
    report_by: Option<Nanos>,
    measured: Option<Measurement>,
    ended: bool,
    tail: VecDeque<String>,
}

impl State {
    fn generator(&self) -> bool {
        matches!(self.member.spec.program, Program::Generator(_))
    }

    fn done(&self) -> bool {
        if self.generator() {
            self.measured.is_some()
        } else {
            self.ended
        }
    }

    fn name(&self) -> &str {
        &self.member.spec.name
    }

    fn last_words(&self) -> String {
        if self.tail.is_empty() {
            return "it wrote nothing".to_owned();
        }
        let lines: Vec<&str> = self.tail.iter().map(String::as_str).collect();
        format!("its last output: {}", lines.join(" / "))
    }
}

/// The state machine of one cell; it implements [`Script`].
pub struct Cell {
    span: Span,
    states: Vec<State>,
    by_id: BTreeMap<SubjectId, usize>,
    phase: Phase,
    settling: Settling,
    throttling: Option<Throttling>,
}

impl Cell {
    /// A cell of these members, none of them started.
    #[must_use]
    pub fn new(members: Vec<Member>, span: Span) -> Self {
        let states = members
            .into_iter()
            .map(|member| State {
                member,
                id: None,
                alive: false,
                ready: false,
                gone: None,
                report_by: None,
                measured: None,
                ended: false,
                tail: VecDeque::new(),
            })
            .collect();
        Self {
            span,
            states,
            by_id: BTreeMap::new(),
            phase: Phase::Preparing(Nanos(0)),
            settling: Settling::default(),
            throttling: None,
        }
    }

    /// The same, which begins once the pages that this plan moves are moved.
    #[must_use]
    pub fn under(mut self, plan: &Plan) -> Self {
        // A command has no memory before the cell begins, and a group without a member never has.
        let generators = self.states.iter().filter(|s| s.generator());
        let groups = generators.map(|s| s.member.spec.group.clone()).collect();
        self.settling = Settling::of(plan, &groups);
        self
    }

    /// What every subject measured, by its name. The throttling is `None` where none was reported.
    #[must_use]
    pub fn into_measurements(self) -> (BTreeMap<String, Measurement>, Option<Throttling>) {
        let measured = self
            .states
            .into_iter()
            .filter_map(|s| Some((s.member.spec.name, s.measured?)))
            .collect();
        (measured, self.throttling)
    }

    fn command_decides(&self) -> bool {
        self.states
            .iter()
            .any(|s| s.member.decides && !s.generator())
    }

    /// The measured span that a generator is sent off with.
    fn span_of(&self, state: &State) -> Nanos {
        if self.command_decides() && !state.member.decides {
            self.span.duration.min(LOAD_SPAN)
        } else {
            self.span.duration
        }
    }

    /// When a deciding command has to have ended. `None` for other members, and where it has not
    /// begun or has ended.
    fn end_by(&self, state: &State) -> Option<Nanos> {
        let awaited = state.member.decides && !state.generator() && !state.ended;
        let gone = state.gone.filter(|_| awaited)?;
        Some(Nanos(gone.0.saturating_add(self.span.longest.0)))
    }

    /// When a member is due. `None` while the member that it follows has not begun.
    fn due(&self, index: usize, went: Nanos) -> Option<Nanos> {
        let state = self.states.get(index)?;
        if let Some((other, delay)) = &state.member.after {
            let first = self.states.iter().find(|s| s.name() == other)?;
            return first.gone.map(|gone| gone.plus(*delay));
        }
        let load = self
            .states
            .iter()
            .any(|s| s.generator() || !s.member.decides);
        if state.generator() || !state.member.decides || !load {
            Some(went)
        } else {
            // A deciding command starts into load that has settled, as a deciding generator does.
            Some(went.plus(self.span.warmup))
        }
    }

    fn set_going(&mut self, index: usize, now: Nanos, orders: &mut Vec<Order>) {
        let warmup = self.span.warmup;
        let Some(duration) = self.states.get(index).map(|s| self.span_of(s)) else {
            return;
        };
        let Some(state) = self.states.get_mut(index) else {
            return;
        };
        state.gone = Some(now);
        match state.id {
            Some(subject) if state.generator() => {
                let by = report_by(now, warmup, duration);
                state.report_by = (!self.span.runs).then_some(by);
                orders.push(Order::Act(Action::Go {
                    subject,
                    warmup,
                    duration,
                }));
            }
            _ => orders.push(Order::Start(state.member.spec.clone())),
        }
    }

    fn result(&mut self, index: usize, now: Nanos, mut new: Measurement, orders: &mut Vec<Order>) {
        let (load, warmup) = (self.command_decides(), self.span.warmup);
        let Some(duration) = self.states.get(index).map(|s| self.span_of(s)) else {
            return;
        };
        let Some(state) = self.states.get_mut(index) else {
            return;
        };
        new.begun = state.gone.map(|gone| gone.plus(warmup));
        if load && !state.member.decides {
            match &mut state.measured {
                None => state.measured = Some(new),
                Some(sum) => add(sum, new),
            }
            if let Some(subject) = state.id {
                state.report_by = Some(report_by(now, Nanos(0), duration));
                orders.push(Order::Act(Action::Go {
                    subject,
                    warmup: Nanos(0),
                    duration,
                }));
            }
        } else if state.measured.is_none() {
            state.measured = Some(new);
            state.report_by = None;
        }
    }

    fn line(&mut self, index: usize, line: String) {
        let Some(state) = self.states.get_mut(index) else {
            return;
        };
        if !state.ended {
            for extract in &state.member.extracts {
                let Some(value) = extract.pattern.find(&line) else {
                    continue;
                };
                let values = state
                    .measured
                    .get_or_insert_default()
                    .metrics
                    .entry(extract.name.clone())
                    .or_default();
                if extract.last_only {
                    values.clear();
                }
                values.push(value);
            }
        }
        if state.tail.len() == TAIL {
            state.tail.pop_front();
        }
        state.tail.push_back(line);
    }

    fn exited(
        &mut self,
        index: usize,
        status: i32,
        took: Nanos,
        orders: &mut Vec<Order>,
    ) -> Result<(), String> {
        let Some(state) = self.states.get_mut(index) else {
            return Ok(());
        };
        state.alive = false;
        if state.generator() {
            return Err(format!(
                "subject '{}' ended with status {status} before it was stopped; {}",
                state.name(),
                state.last_words()
            ));
        }
        if status != 0 {
            return Err(format!(
                "subject '{}' failed with exit status {status}; {}",
                state.name(),
                state.last_words()
            ));
        }
        if !state.ended {
            state.ended = true;
            for extract in state.member.extracts.iter().filter(|e| e.required) {
                let found = state
                    .measured
                    .as_ref()
                    .is_some_and(|m| m.metrics.contains_key(&extract.name));
                if !found {
                    return Err(format!(
                        "subject '{}': no line matched the pattern '{}' of metric '{}' with a number; {}",
                        state.name(),
                        extract.pattern.as_str(),
                        extract.name,
                        state.last_words()
                    ));
                }
            }
            let measured = state.measured.get_or_insert_default();
            measured
                .metrics
                .insert(RUN_TIME.to_owned(), vec![took.as_secs_f64()]);
            measured.duration_ns = took.0;
        }
        if state.member.again {
            if took < SHORTEST_LOAD {
                return Err(format!(
                    "subject '{}' ended after {took} and would have to be started again and again; give it more to do",
                    state.name()
                ));
            }
            orders.push(Order::Start(state.member.spec.clone()));
        }
        Ok(())
    }

    fn complete(&self) -> bool {
        self.states
            .iter()
            .all(|s| s.done() || !(s.member.decides || s.generator()))
    }
}

/// By when a report must come: four times the span and ten seconds more. A generator that shares
/// its CPU is slow, not lost.
fn report_by(now: Nanos, warmup: Nanos, duration: Nanos) -> Nanos {
    now.plus(warmup)
        .plus(Nanos(duration.0.saturating_mul(4)))
        .plus(Nanos::secs(10))
}

fn add(sum: &mut Measurement, new: Measurement) {
    for (name, values) in new.metrics {
        sum.metrics.entry(name).or_default().extend(values);
    }
    sum.window_ns = new.window_ns;
    sum.bytes = sum.bytes.saturating_add(new.bytes);
    sum.duration_ns = sum.duration_ns.saturating_add(new.duration_ns);
}

impl Script for Cell {
    fn begin(&mut self, now: Nanos, orders: &mut Vec<Order>) -> Result<(), String> {
        self.phase = Phase::Preparing(now.plus(READY_WITHIN));
        orders.extend(
            self.states
                .iter()
                .filter(|s| s.generator())
                .map(|s| Order::Start(s.member.spec.clone())),
        );
        self.tick(now, orders)
    }

    fn started(&mut self, name: &str, id: SubjectId, _: Nanos) {
        if let Some((index, state)) = self
            .states
            .iter_mut()
            .enumerate()
            .find(|(_, s)| s.name() == name)
        {
            state.id = Some(id);
            state.alive = true;
            self.by_id.insert(id, index);
        }
    }

    fn seen(&mut self, now: Nanos, seen: Seen, orders: &mut Vec<Order>) -> Result<(), String> {
        let place = |id: &SubjectId| self.by_id.get(id).copied();
        match seen {
            Seen::Ready(id) => {
                if let Some(state) = place(&id).and_then(|i| self.states.get_mut(i)) {
                    state.ready = true;
                }
            }
            Seen::Result(id, measurement) => {
                if let Some(index) = place(&id) {
                    self.result(index, now, measurement, orders);
                }
            }
            Seen::Line(id, line) => {
                if let Some(index) = place(&id) {
                    self.line(index, line);
                }
            }
            Seen::Exited(id, status, took) => {
                if let Some(index) = place(&id) {
                    self.exited(index, status, took, orders)?;
                }
            }
            Seen::Event(Event::Throttle {
                overflows,
                throttles,
                throttled_ns,
                pooled,
                ..
            }) => {
                let sum = self.throttling.get_or_insert_default();
                sum.overflows += overflows;
                sum.throttles += throttles;
                sum.throttled_ns += throttled_ns;
                sum.pool(pooled);
            }
            Seen::Decisions(group, cpu, decisions, _) => {
                let sum = self.throttling.get_or_insert_default();
                decisions.iter().for_each(|d| sum.decided(&group, cpu, d));
            }
            Seen::Event(Event::Coloured {
                group, pid, pages, ..
            }) => self.settling.note(group, pid, pages),
            Seen::Event(_)
            | Seen::Quanta(_)
            | Seen::Units(..)
            | Seen::Declared(..)
            | Seen::Stop(_)
            | Seen::Revoked(_) => {}
        }
        Ok(())
    }

    fn tick(&mut self, now: Nanos, orders: &mut Vec<Order>) -> Result<(), String> {
        if let Phase::Preparing(by) = self.phase {
            let late = self.states.iter().find(|s| s.generator() && !s.ready);
            match late {
                None if self.settling.is_over(now) => self.phase = Phase::Running(now),
                None => self.phase = Phase::Preparing(now.plus(LOOK)),
                Some(state) if now >= by => {
                    return Err(format!(
                        "subject '{}' was not ready within {READY_WITHIN}; {}",
                        state.name(),
                        state.last_words()
                    ));
                }
                Some(_) => {}
            }
        }
        if let Phase::Running(went) = self.phase {
            for index in 0..self.states.len() {
                let waiting = self.states.get(index).is_some_and(|s| s.gone.is_none());
                if waiting && self.due(index, went).is_some_and(|due| now >= due) {
                    self.set_going(index, now, orders);
                }
            }
            if self.complete() {
                // A member that was just ordered to start or run on is stopped instead.
                orders.retain(|o| !matches!(o, Order::Start(_) | Order::Act(Action::Go { .. })));
                for state in self.states.iter().filter(|s| s.alive) {
                    if let Some(id) = state.id {
                        orders.push(Order::Act(Action::Stop(id)));
                    }
                }
                self.phase = Phase::Over;
                return Ok(());
            }
            let silent = |s: &&State| s.report_by.is_some_and(|by| now >= by);
            if let Some(state) = self.states.iter().find(silent) {
                return Err(format!(
                    "subject '{}' never reported: nothing came within four times its measured span of {} and 10s",
                    state.name(),
                    self.span_of(state)
                ));
            }
            let endless = |s: &&State| self.end_by(s).is_some_and(|by| now >= by);
            if let Some(state) = self.states.iter().find(endless) {
                return Err(format!(
                    "subject '{}' had not ended after {}, which measure.longest allows: have it end by itself, or allow it longer; {}",
                    state.name(),
                    self.span.longest,
                    state.last_words()
                ));
            }
        }
        Ok(())
    }

    fn wake(&self) -> Nanos {
        match self.phase {
            Phase::Preparing(by) => by,
            Phase::Running(went) => (0..self.states.len())
                .filter_map(|index| {
                    let state = self.states.get(index)?;
                    if state.gone.is_none() {
                        self.due(index, went)
                    } else {
                        state.report_by.or_else(|| self.end_by(state))
                    }
                })
                .min()
                .unwrap_or(Nanos(u64::MAX)),
            Phase::Over => Nanos(0),
        }
    }

    fn finished(&self) -> bool {
        self.phase == Phase::Over
    }
}

#[cfg(test)]
#[path = "cell_tests.rs"]
mod tests;
