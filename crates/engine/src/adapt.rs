//! Units of work while a plan holds: what is recorded of them, and the closed loop that moves
//! budgets by them.
//!
//! [`Deadlines`] decides. This module turns its decisions into budgets of CPUs and into events.

use std::collections::BTreeMap;

use quell_control::config::Regulation;
use quell_control::deadline::{Aim, Step, Unit};
use quell_control::deadlines::Deadlines;
use quell_plan::{Adaptation, Observed, Plan, Promise, Setting};
use quell_record::about::About;
use quell_record::backend::{Action, Backend, Seen, TellerId};
use quell_record::events::{Declared, Event};
use quell_record::standing::Cause;
use quell_record::target::TargetVerdict;
use quell_types::cpuset::CpuSet;
use quell_types::ids::GroupId;
use quell_types::ids::PromiseId;
use quell_types::mechanism::Level;
use quell_types::source::Source;
use quell_types::units::{Lines, Nanos, Rate, Share};
use quell_types::witness::Verdict;

use crate::loops::Loop;
use crate::sink::Sink;

/// How often the units that ended are recorded.
const TELL_EVERY: Nanos = Nanos::millis(100);

/// A group's target is judged from so long after its first unit on
/// (`docs/specification/deadlines.md`).
const SETTLED: Nanos = Nanos::secs(2);

/// How long a group's first unit may take before a finding says that none has come. A program may
/// load for a while.
const FIRST_WITHIN: Nanos = Nanos::secs(10);

/// What is observed of one group's units of work.
#[derive(Debug)]
struct Watched {
    observed: Observed,
    /// Nanoseconds of each unit since the last [`Event::Units`].
    took: Vec<u64>,
    late: u64,
    lost: u64,
    /// When a finding reports that no unit has come. `None` once one has come or it was reported.
    missed: Option<Nanos>,
    first: Option<Nanos>,
    /// Units from [`SETTLED`] on, by the program that told of them.
    judged: BTreeMap<TellerId, Judged>,
    /// Units of programs that had just begun, and of those that are not judged by themselves any
    /// more.
    others: TargetVerdict,
}

/// What one program told.
#[derive(Clone, Copy, Debug)]
struct Judged {
    /// When its first unit ended, and its last.
    first: Nanos,
    last: Nanos,
    verdict: TargetVerdict,
}

/// The most programs of a group that are judged by themselves. For one more, that is not any more
/// which has told of nothing for longest. There are fewer sessions at a time.
const MOST_TELLERS: usize = 128;

impl Watched {
    fn seen(&mut self, teller: TellerId, unit: &Unit) {
        let target = self.observed.deadline.or(unit.target);
        let late = target.is_some_and(|target| unit.took > target);
        self.took.push(unit.took.0);
        self.late += u64::from(late);
        self.missed = None;
        if self.judged.len() >= MOST_TELLERS && !self.judged.contains_key(&teller) {
            let oldest = self.judged.iter().min_by_key(|(_, one)| one.last);
            let oldest = oldest.map(|(teller, _)| *teller);
            if let Some(one) = oldest.and_then(|oldest| self.judged.remove(&oldest)) {
                self.others.add(&one.verdict);
            }
        }
        let new = Judged {
            first: unit.ended,
            last: unit.ended,
            verdict: TargetVerdict::default(),
        };
        let one = self.judged.entry(teller).or_insert(new);
        one.last = unit.ended;
        let first = *self.first.get_or_insert(unit.ended);
        if target.is_none() || unit.ended.since(first) < SETTLED {
            return;
        }
        let into = match unit.ended.since(one.first) < SETTLED {
            true => &mut self.others,
            false => &mut one.verdict,
        };
        into.add(&TargetVerdict {
            units: 1,
            late: u64::from(late),
            allowed: Share(Share::WHOLE.0.saturating_sub(self.observed.percentile.0)),
            longest_ns: unit.took.0,
            programs: None,
        });
    }

    fn verdict(&self) -> TargetVerdict {
        let judged = self.judged.values().map(|one| one.verdict);
        let each: Vec<TargetVerdict> = judged.filter(|one| one.units > 0).collect();
        TargetVerdict::worst(&each, self.others)
    }

    /// The units since the last call, as an event. `None` where none came and none was lost.
    fn tell(&mut self, group: &str) -> Option<Event> {
        if self.took.is_empty() && self.lost == 0 {
            return None;
        }
        let mut took = std::mem::take(&mut self.took);
        took.sort_unstable();
        Some(Event::Units {
            group: group.to_owned(),
            units: took.len() as u64,
            late: std::mem::take(&mut self.late),
            median_ns: took.get(took.len() / 2).copied().unwrap_or(0),
            worst_ns: took.last().copied().unwrap_or(0),
            lost: std::mem::take(&mut self.lost),
        })
    }
}

/// A budget that the closed loop moves. Rates are sums over all its CPUs.
#[derive(Debug)]
struct Budget {
    group: GroupId,
    cpus: CpuSet,
    period: Nanos,
    least: Rate,
    most: Rate,
}

impl Budget {
    fn set(&self, rate: u64) -> Action {
        let each = Rate(rate / self.cpus.len().max(1) as u64);
        Action::Budget {
            group: self.group.clone(),
            cpus: self.cpus.clone(),
            budget: Lines(Lines::at(each, self.period).0.max(1)),
        }
    }
}

/// The closed loop: the budgets that it moves, by the targets of the plan.
#[derive(Debug)]
struct Budgets {
    plan: Adaptation,
    control: Deadlines,
    budgets: Vec<Budget>,
    /// Budgets of the groups that get what best-effort groups are not left.
    headroom: Vec<Budget>,
}

impl Budgets {
    fn new(adapts: &Adaptation, plan: &Plan, now: Nanos) -> Self {
        let regulation = |step| {
            let mut steps = plan.steps.iter();
            steps.find_map(|s| match &s.set {
                Setting::Regulate(regulation) if s.id == step => Some(regulation),
                _ => None,
            })
        };
        let budget = |group: &GroupId, step, least, most| {
            let regulation: &Regulation = regulation(step)?;
            Some(Budget {
                group: group.clone(),
                cpus: regulation.cpus.clone(),
                period: regulation.period,
                least,
                most,
            })
        };
        let levers = adapts.levers.iter();
        let budgets: Vec<Budget> = levers
            .filter_map(|l| budget(&l.group, l.step, l.least, l.most))
            .collect();
        let headroom = adapts.headroom.iter();
        let headroom = headroom
            .filter_map(|h| budget(&h.group, h.step, h.least, adapts.sustainable))
            .collect();
        let sum = |of: fn(&Budget) -> Rate| Rate(budgets.iter().map(|b| of(b).0).sum());
        let aims = adapts.groups.iter().map(|group| {
            let observed = plan.loops.observed.get(group);
            Aim {
                deadline: observed.and_then(|o| o.deadline),
                percentile: observed.map_or(Share::WHOLE, |o| o.percentile),
                most: sum(|b| b.most),
                least: sum(|b| b.least),
                settles: budgets.iter().map(|b| b.period).max().unwrap_or_default(),
            }
        });
        Self {
            plan: adapts.clone(),
            control: Deadlines::new(aims, now),
            budgets,
            headroom,
        }
    }

    /// The index of a group's aim in `plan.groups`.
    fn aim(&self, group: &str) -> Option<usize> {
        self.plan.groups.iter().position(|g| g == group)
    }

    /// The actions that leave the rate `given` to best-effort groups.
    ///
    /// Each of their budgets lies as far between its ends as the sum does. The rest of what is
    /// sustainable goes as headroom to the groups with a reserve, in proportion to it.
    fn leave(&self, given: Rate) -> Vec<Action> {
        let sum = |of: fn(&Budget) -> Rate| self.budgets.iter().map(|b| of(b).0).sum::<u64>();
        let (least, most) = (sum(|b| b.least), sum(|b| b.most));
        let part = Share::ratio(given.0.saturating_sub(least), most - least);
        let others = self.budgets.iter().map(|b| {
            let rate = b.least.0 + Rate(b.most.0 - b.least.0).part(part).0;
            b.set(rate)
        });
        let kept = self.plan.sustainable.0.saturating_sub(given.0);
        let reserves: u64 = self.headroom.iter().map(|b| b.least.0).sum();
        let own = self.headroom.iter().map(|b| {
            let part = Rate(kept).part(Share::ratio(b.least.0, reserves));
            b.set(part.max(b.least).0)
        });
        others.chain(own).collect()
    }

    fn step(
        &mut self,
        backend: &mut dyn Backend,
        now: Nanos,
        sink: &mut dyn Sink,
    ) -> Result<(), String> {
        for (aim, step) in self.control.step(now) {
            self.carry_out(backend, now, aim, step, sink)?;
        }
        Ok(())
    }

    fn carry_out(
        &self,
        backend: &mut dyn Backend,
        now: Nanos,
        aim: usize,
        step: Step,
        sink: &mut dyn Sink,
    ) -> Result<(), String> {
        let Some(group) = self.plan.groups.get(aim) else {
            return Ok(());
        };
        let finding = |what: String| Event::finding(About::Units, what, Some(group));
        let event = match step {
            Step::Change { from, to, why } => {
                for action in self.leave(to) {
                    backend.act(&action).map_err(|e| {
                        format!("a budget could not be moved for group {group}: {e}")
                    })?;
                }
                Event::Adapted {
                    group: group.clone(),
                    from_bytes_per_s: from.0,
                    to_bytes_per_s: to.0,
                    reserved_bytes_per_s: self.plan.sustainable.0.saturating_sub(to.0),
                    why: why.to_string(),
                }
            }
            Step::Silent { since } => finding(format!(
                "no unit of group {group} has ended for {}: what it leaves to the others stays at {} for a while",
                Nanos(now.since(since).0 / 1_000_000 * 1_000_000),
                whole(self.control.given_by(aim))
            )),
            Step::Unmet { took, target } => finding(format!(
                "units of group {group} take up to {took} of {target}, although the others are left no more than {}",
                whole(self.control.given())
            )),
        };
        sink.put(now, &event);
        Ok(())
    }
}

/// A rate rounded down to whole MB/s, for messages.
fn whole(rate: Rate) -> Rate {
    Rate(rate.0 / 1_000_000 * 1_000_000)
}

/// All groups observed under a plan.
#[derive(Debug)]
pub(crate) struct Adapt {
    watched: BTreeMap<GroupId, Watched>,
    adapts: Option<Budgets>,
    tell: Nanos,
    /// The promises that units end in time, each with its group.
    targets: Vec<(PromiseId, GroupId)>,
}

impl Adapt {
    /// Begins to observe the groups that the plan observes.
    pub(crate) fn begin(plan: &Plan, now: Nanos) -> Self {
        let watched = |(name, observed): (&GroupId, &Observed)| {
            let watched = Watched {
                observed: observed.clone(),
                took: Vec::new(),
                late: 0,
                lost: 0,
                missed: Some(now.plus(FIRST_WITHIN)),
                first: None,
                judged: BTreeMap::new(),
                others: TargetVerdict::default(),
            };
            (name.clone(), watched)
        };
        Self {
            watched: plan.loops.observed.iter().map(watched).collect(),
            adapts: plan
                .loops
                .adapts
                .as_ref()
                .map(|a| Budgets::new(a, plan, now)),
            tell: now.plus(TELL_EVERY),
            targets: plan
                .numbered()
                .filter(|(_, held)| matches!(held.promise, Promise::Deadline { .. }))
                .map(|(id, held)| (id, held.group.clone()))
                .collect(),
        }
    }

    /// Takes in units of a group that ended. `lost`: units that could not be read.
    fn units(&mut self, group: &str, teller: TellerId, units: &[Unit], lost: u64) {
        let Some(watched) = self.watched.get_mut(group) else {
            return;
        };
        watched.lost = watched.lost.saturating_add(lost);
        let mut control = self.adapts.as_mut().and_then(|a| Some((a.aim(group)?, a)));
        units.iter().for_each(|unit| watched.seen(teller, unit));
        if let Some((aim, adapts)) = &mut control {
            adapts.control.seen(*aim, teller.0, units);
        }
    }

    /// Records what a program declares of its units. Where the target is a time, it also gives the
    /// loop a first guess.
    fn declared(
        &mut self,
        backend: &mut dyn Backend,
        now: Nanos,
        group: &str,
        declared: Declared,
        sink: &mut dyn Sink,
    ) -> Result<(), String> {
        let event = Event::Declared {
            group: group.to_owned(),
            declared,
        };
        sink.put(now, &event);
        let deadline = self.watched.get(group).and_then(|w| w.observed.deadline);
        let control = self.adapts.as_mut().and_then(|a| Some((a.aim(group)?, a)));
        let (Some((aim, adapts)), Some(deadline)) = (control, deadline) else {
            return Ok(());
        };
        let need =
            u128::from(declared.bytes_per_unit) * 1_000_000_000 / u128::from(deadline.0.max(1));
        let said = Rate(u64::try_from(need).unwrap_or(u64::MAX));
        let sustainable = adapts.plan.sustainable;
        let most = adapts.plan.draws.get(group).copied();
        let need = said.min(most.unwrap_or(sustainable));
        if need < said {
            let what = format!(
                "group {group} says that its units draw {said}: its CPUs draw at most {need}, which \
                 is what it is given"
            );
            sink.put(now, &Event::finding(About::Units, what, Some(group)));
        }
        match adapts.control.declared(now, aim, need, sustainable) {
            Some(step) => adapts.carry_out(backend, now, aim, step, sink),
            None => Ok(()),
        }
    }

    fn tell(&mut self, now: Nanos, sink: &mut dyn Sink) {
        for (group, watched) in &mut self.watched {
            if let Some(event) = watched.tell(group) {
                sink.put(now, &event);
            }
            if watched.missed.take_if(|by| now >= *by).is_some() {
                let what = format!(
                    "no unit of group {group} has come in {FIRST_WITHIN}: {}",
                    match watched.observed.source {
                        Source::Pattern(_) => "no line of its output fits target.source.pattern",
                        _ =>
                            "its program does not tell of any through quell-client (docs/client.md)",
                    }
                );
                sink.put(now, &Event::finding(About::Units, what, Some(group)));
            }
        }
    }
}

impl Loop for Adapt {
    fn next(&self) -> Nanos {
        self.adapts
            .as_ref()
            .map_or(self.tell, |a| a.control.next().min(self.tell))
    }

    fn seen(
        &mut self,
        backend: &mut dyn Backend,
        now: Nanos,
        seen: &Seen,
        sink: &mut dyn Sink,
    ) -> Result<(), String> {
        match seen {
            Seen::Units(group, teller, units, lost) => {
                self.units(group, *teller, units, *lost);
            }
            Seen::Declared(group, declared) => {
                self.declared(backend, now, group, *declared, sink)?
            }
            _ => {}
        }
        Ok(())
    }

    fn step(
        &mut self,
        backend: &mut dyn Backend,
        now: Nanos,
        sink: &mut dyn Sink,
    ) -> Result<(), String> {
        if let Some(adapts) = self.adapts.as_mut().filter(|a| now >= a.control.next()) {
            adapts.step(backend, now, sink)?;
        }
        if now >= self.tell {
            self.tell = now.plus(TELL_EVERY);
            self.tell(now, sink);
        }
        Ok(())
    }

    /// Records what is left, and reports whether the targets were met.
    fn end(&mut self, backend: &mut dyn Backend, sink: &mut dyn Sink) {
        let now = backend.now();
        self.tell(now, sink);
        for (group, watched) in &self.watched {
            let verdict = watched.verdict();
            if verdict.units > 0 {
                let group = group.clone();
                sink.put(now, &Event::Target { group, verdict });
            }
        }
        for (id, group) in &self.targets {
            let watched = self.watched.get(group);
            if watched.is_none_or(|watched| watched.verdict().units == 0) {
                let why = "no unit of work was told of after the first two seconds";
                let verdict = Verdict::Unseen(why.to_owned());
                sink.put(now, &Event::Witnessed { id: *id, verdict });
            }
        }
        let Some(adapts) = &self.adapts else {
            return;
        };
        for group in &adapts.plan.groups {
            let Some(watched) = self.watched.get(group) else {
                continue;
            };
            let verdict = watched.verdict();
            if verdict.is_met() {
                continue;
            }
            let TargetVerdict {
                units,
                late,
                allowed,
                ..
            } = verdict;
            for (id, _) in self.targets.iter().filter(|(_, of)| of == group) {
                let because = Cause::Late {
                    late,
                    units,
                    allowed,
                };
                let (id, level) = (*id, Level::None);
                sink.put(now, &Event::Promise { id, level, because });
            }
        }
    }
}

#[cfg(test)]
#[path = "adapt_tests.rs"]
mod tests;
