//! One cell of an experiment: which subject starts when, what counts as its end, and what it measured. A pure state
//! machine over what the backend sees; [`crate::drive`] runs it.
//!
//! Generators build their memory first; nothing is measured before all of them are ready. Then:
//! - if the *deciding* subjects are generators, all generators measure the same span, and the cell ends when each has
//!   reported;
//! - if a deciding subject is a command, the generators beside it run as load, reporting span after span, until the
//!   command has ended.
//!
//! Commands that do not decide are load: they start with the generators, are started again when they end early, and are
//! stopped at the end.

use std::collections::{BTreeMap, VecDeque};

use quell_core::backend::{Action, Measurement, Program, Seen, SubjectId, SubjectSpec};
use quell_core::record::Event;
use quell_core::units::Nanos;
use regex::Regex;

use crate::drive::{Order, Script};

/// How long a generator may build its memory.
pub const READY_WITHIN: Nanos = Nanos::secs(30);
/// The span of generators that are load beside a deciding command.
pub const LOAD_SPAN: Nanos = Nanos::secs(1);
/// The run time of a command, in seconds.
pub const RUN_S: &str = "run_s";
/// A command that ends sooner is no load.
const SHORTEST_LOAD: Nanos = Nanos::millis(10);
/// How many of a command's last lines are kept for an error.
const TAIL: usize = 5;

/// A metric read from a command's output.
#[derive(Clone, Debug)]
pub struct Extract {
    /// The metric's name.
    pub name: String,
    /// What is looked for in each line; its first group is the number.
    pub pattern: Regex,
    /// One value per run (the last line that matches) instead of one per line.
    pub last_only: bool,
    /// Without a match the cell has failed.
    pub required: bool,
}

/// A subject's part in the cell.
#[derive(Clone, Debug)]
pub struct Member {
    /// What is started.
    pub spec: SubjectSpec,
    /// The cell lasts until it is done.
    pub decides: bool,
    /// Started so long after another member, instead of together with all.
    pub after: Option<(String, Nanos)>,
    /// A command that ends while the cell lasts is started again; its first run counts.
    pub again: bool,
    /// Metrics in its output.
    pub extracts: Vec<Extract>,
}

/// The cell's spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Load before measuring.
    pub warmup: Nanos,
    /// The measured span of a generator.
    pub duration: Nanos,
}

/// Throttling in the cell, over all CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttling {
    /// Budgets used up.
    pub overflows: u64,
    /// Times a CPU was throttled.
    pub throttles: u64,
    /// Time throttled.
    pub throttled_ns: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum Phase {
    /// Until the time given, all generators must be ready.
    Preparing(Nanos),
    /// Subjects run; generators were sent off at the time given.
    Running(Nanos),
    Over,
}

struct State {
    member: Member,
    id: Option<SubjectId>,
    alive: bool,
    ready: bool,
    /// When it was set going.
    gone: Option<Nanos>,
    /// When a generator must have reported.
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

/// The state machine.
pub struct Cell {
    span: Span,
    states: Vec<State>,
    by_id: BTreeMap<SubjectId, usize>,
    phase: Phase,
    throttling: Option<Throttling>,
}

impl Cell {
    /// A cell of these members.
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
            throttling: None,
        }
    }

    /// What every subject measured, by name; and the throttling, if any was reported.
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

    /// The span a generator is sent off with.
    fn span_of(&self, state: &State) -> Nanos {
        if self.command_decides() && !state.member.decides {
            self.span.duration.min(LOAD_SPAN)
        } else {
            self.span.duration
        }
    }

    /// When a member is due, once that can be told.
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
            // A deciding command starts into a load that has settled, as a deciding generator does.
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
                state.report_by = Some(report_by(now, warmup, duration));
                orders.push(Order::Act(Action::Go {
                    subject,
                    warmup,
                    duration,
                }));
            }
            _ => orders.push(Order::Start(state.member.spec.clone())),
        }
    }

    fn result(&mut self, index: usize, now: Nanos, new: Measurement, orders: &mut Vec<Order>) {
        let load = self.command_decides();
        let Some(duration) = self.states.get(index).map(|s| self.span_of(s)) else {
            return;
        };
        let Some(state) = self.states.get_mut(index) else {
            return;
        };
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

    fn line(&mut self, index: usize, line: String) -> Result<(), String> {
        let Some(state) = self.states.get_mut(index) else {
            return Ok(());
        };
        if !state.ended {
            for extract in &state.member.extracts {
                let Some(found) = extract.pattern.captures(&line).and_then(|c| c.get(1)) else {
                    continue;
                };
                let value: f64 = found.as_str().parse().map_err(|_| {
                    format!(
                        "subject '{}': metric '{}' found '{}' in the line '{line}', which is not a number; let the \
                         pattern's first group match the digits only",
                        state.name(),
                        extract.name,
                        found.as_str()
                    )
                })?;
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
        Ok(())
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
                        "subject '{}': no line matched the pattern '{}' of metric '{}'; {}",
                        state.name(),
                        extract.pattern,
                        extract.name,
                        state.last_words()
                    ));
                }
            }
            let measured = state.measured.get_or_insert_default();
            measured
                .metrics
                .insert(RUN_S.to_owned(), vec![took.as_secs_f64()]);
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

/// Four times the span and ten seconds more: a generator that shares its CPU with others is slow, not lost.
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
                    self.line(index, line)?;
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
                ..
            }) => {
                let sum = self.throttling.get_or_insert_default();
                sum.overflows += overflows;
                sum.throttles += throttles;
                sum.throttled_ns += throttled_ns;
            }
            Seen::Event(_) | Seen::Stop(_) | Seen::Revoked(_) => {}
        }
        Ok(())
    }

    fn tick(&mut self, now: Nanos, orders: &mut Vec<Order>) -> Result<(), String> {
        if let Phase::Preparing(by) = self.phase {
            let late = self.states.iter().find(|s| s.generator() && !s.ready);
            match late {
                None => self.phase = Phase::Running(now),
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
                // What was just ordered to run on is stopped instead.
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
                        state.report_by
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
mod tests {
    use super::*;
    use crate::drive::{DriveError, Driven, NoSink, drive};
    use crate::fake::{Fake, Scene, plan_with_steps};
    use quell_core::workload::{Operation, Order as Walk, Pages, Size, Workload};

    fn member(name: &str, program: Program, decides: bool) -> Member {
        let command = matches!(program, Program::Command(_));
        Member {
            spec: SubjectSpec {
                name: name.into(),
                group: name.into(),
                program,
                cpus: None,
                env: BTreeMap::new(),
                capture: true,
            },
            decides,
            after: None,
            again: command && !decides,
            extracts: Vec::new(),
        }
    }

    fn list(name: &str, decides: bool) -> Member {
        let list = Workload::Latency {
            size: Size::Llc(0.5),
            order: Walk::Random,
            pages: Pages::Base,
        };
        member(name, Program::Generator(list), decides)
    }

    fn stream(name: &str, decides: bool) -> Member {
        let stream = Workload::Bandwidth {
            operation: Operation::Write,
            size: Size::Llc(4.0),
            pages: Pages::Base,
            rate: None,
        };
        member(name, Program::Generator(stream), decides)
    }

    fn command(name: &str, decides: bool) -> Member {
        member(name, Program::Command(vec![name.into()]), decides)
    }

    fn extract(name: &str, pattern: &str, last_only: bool) -> Extract {
        Extract {
            name: name.into(),
            pattern: Regex::new(pattern).unwrap(),
            last_only,
            required: true,
        }
    }

    /// Reports one window of the value given per second of span.
    fn steady(metric: &'static str, value: f64) -> impl Fn(&Scene<'_>) -> Measurement {
        move |scene| Measurement {
            metrics: [(metric.to_owned(), vec![value])].into(),
            window_ns: 1_000_000,
            bytes: 1_000,
            duration_ns: scene.duration.0,
        }
    }

    const SPAN: Span = Span {
        warmup: Nanos::millis(200),
        duration: Nanos::secs(2),
    };

    fn run(
        fake: &mut Fake,
        members: Vec<Member>,
    ) -> (Result<Driven, DriveError>, BTreeMap<String, Measurement>) {
        let mut cell = Cell::new(members, SPAN);
        let out = drive(fake, &plan_with_steps(0), &mut cell, &mut NoSink);
        assert!(fake.clean());
        (out, cell.into_measurements().0)
    }

    #[test]
    fn generators_start_together_when_all_are_ready() {
        let mut fake = Fake::new();
        fake.generator("victim", steady("latency_ns", 15.0));
        fake.generator("neighbour", steady("bandwidth_mb_s", 9000.0));
        let (out, measured) = run(
            &mut fake,
            vec![list("victim", true), stream("neighbour", false)],
        );
        out.unwrap();
        assert_eq!(
            fake.log,
            [
                "start victim",
                "start neighbour",
                "go victim 200ms 2s",
                "go neighbour 200ms 2s",
                "stop victim",
                "stop neighbour",
                "undo"
            ]
        );
        assert_eq!(measured["victim"].metrics["latency_ns"], [15.0]);
        assert_eq!(measured["neighbour"].bytes, 1_000);
    }

    #[test]
    fn generators_are_load_for_as_long_as_a_command_takes() {
        let mut fake = Fake::new();
        fake.command(
            "job",
            Nanos::millis(2900),
            0,
            &["frame took 8 ms", "frame took 9 ms"],
        );
        fake.generator("neighbour", steady("bandwidth_mb_s", 9000.0));
        let mut job = command("job", true);
        job.extracts = vec![extract("frame_ms", "took ([0-9.]+) ms", false)];
        let (out, measured) = run(&mut fake, vec![job, stream("neighbour", false)]);
        out.unwrap();
        // The command starts into a warm load; spans of one second go on until it has ended.
        assert_eq!(
            fake.log,
            [
                "start neighbour",
                "go neighbour 200ms 1s",
                "start job",
                "go neighbour 0ns 1s",
                "go neighbour 0ns 1s",
                "exit job",
                "stop neighbour",
                "undo"
            ]
        );
        assert_eq!(measured["job"].metrics[RUN_S], [2.9]);
        assert_eq!(measured["job"].metrics["frame_ms"], [8.0, 9.0]);
        assert_eq!(measured["neighbour"].metrics["bandwidth_mb_s"].len(), 2);
        assert_eq!(measured["neighbour"].duration_ns, 2_000_000_000);
    }

    #[test]
    fn a_command_shorter_than_a_span_waits_for_the_loads_first_report() {
        let mut fake = Fake::new();
        fake.command("job", Nanos::millis(100), 0, &[]);
        fake.generator("neighbour", steady("bandwidth_mb_s", 9000.0));
        let (out, measured) = run(
            &mut fake,
            vec![command("job", true), stream("neighbour", false)],
        );
        out.unwrap();
        assert_eq!(measured["neighbour"].duration_ns, 1_000_000_000);
    }

    #[test]
    fn a_command_that_is_load_is_kept_up_and_then_stopped() {
        let mut fake = Fake::new();
        fake.generator("victim", steady("latency_ns", 15.0));
        fake.command("stress", Nanos::millis(900), 0, &[]);
        let (out, measured) = run(
            &mut fake,
            vec![list("victim", true), command("stress", false)],
        );
        out.unwrap();
        assert_eq!(fake.log.iter().filter(|l| *l == "start stress").count(), 3);
        assert!(fake.log.contains(&"stop stress".to_owned()));
        assert_eq!(measured["stress"].metrics[RUN_S], [0.9]);
    }

    #[test]
    fn a_subject_can_start_after_another() {
        let mut fake = Fake::new();
        fake.command("first", Nanos::secs(4), 0, &[]);
        fake.command("second", Nanos::secs(1), 0, &[]);
        let mut second = command("second", true);
        second.after = Some(("first".into(), Nanos::secs(1)));
        let (out, _) = run(&mut fake, vec![second, command("first", true)]);
        out.unwrap();
        assert_eq!(
            fake.log,
            [
                "start first",
                "start second",
                "exit second",
                "exit first",
                "undo"
            ]
        );
    }

    #[test]
    fn the_last_match_counts_where_a_metric_is_per_run() {
        let mut fake = Fake::new();
        fake.command("bench", Nanos::secs(1), 0, &["rate 10", "rate 12.5"]);
        let mut bench = command("bench", true);
        bench.extracts = vec![extract("rate", "rate ([0-9.]+)", true)];
        let (_, measured) = run(&mut fake, vec![bench]);
        assert_eq!(measured["bench"].metrics["rate"], [12.5]);
    }

    #[test]
    fn every_error_names_the_subject_and_what_it_said_last() {
        let case = |fake: &mut Fake, members| run(fake, members).0.unwrap_err().to_string();

        let mut fake = Fake::new();
        fake.command("job", Nanos::secs(1), 2, &["cannot open input.mp4"]);
        assert_eq!(
            case(&mut fake, vec![command("job", true)]),
            "subject 'job' failed with exit status 2; its last output: cannot open input.mp4"
        );

        let mut fake = Fake::new();
        fake.command("job", Nanos::secs(1), 0, &["done"]);
        let mut job = command("job", true);
        job.extracts = vec![extract("fps", "fps=([0-9]+)", false)];
        assert_eq!(
            case(&mut fake, vec![job]),
            "subject 'job': no line matched the pattern 'fps=([0-9]+)' of metric 'fps'; its last output: done"
        );

        let mut fake = Fake::new();
        fake.generator("victim", steady("latency_ns", 1.0));
        fake.mute("victim", "ready");
        assert!(
            case(&mut fake, vec![list("victim", true)])
                .starts_with("subject 'victim' was not ready within 30s")
        );

        let mut fake = Fake::new();
        fake.generator("victim", steady("latency_ns", 1.0));
        fake.mute("victim", "result");
        assert!(
            case(&mut fake, vec![list("victim", true)])
                .starts_with("subject 'victim' never reported")
        );
        assert_eq!(fake.log.last().unwrap(), "undo");

        let mut fake = Fake::new();
        fake.generator("victim", steady("latency_ns", 1.0));
        fake.command("noop", Nanos::millis(1), 0, &[]);
        assert!(
            case(
                &mut fake,
                vec![list("victim", true), command("noop", false)]
            )
            .contains("'noop' ended after 1ms")
        );
    }
}
