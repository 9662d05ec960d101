//! Units of work while a plan holds: what is put on record of them, and the closed loop that moves budgets by them.
//!
//! What is decided is [`Deadline`]'s; here its word becomes budgets of CPUs, and events.

use std::collections::BTreeMap;

use quell_core::backend::{Action, Backend};
use quell_core::control::deadline::{Aim, Deadline, Step, Unit};
use quell_core::cpuset::CpuSet;
use quell_core::plan::{Adaptation, GroupId, Observed, Plan, Setting};
use quell_core::policy::Source;
use quell_core::record::Event;
use quell_core::units::{Lines, Nanos, Rate, Share};

use crate::drive::Sink;

/// How often what came is put on record.
const TELL_EVERY: Nanos = Nanos::millis(100);

/// So long after its first unit a group's target is to be met (`docs/specification.md`).
const SETTLED: Nanos = Nanos::secs(2);

/// How long a group's first unit is waited for until somebody is told that there is none: a program may load for a while.
const FIRST_WITHIN: Nanos = Nanos::secs(10);

/// A group's units.
#[derive(Debug)]
struct Watched {
    observed: Observed,
    /// What units took since the record was told last.
    took: Vec<u64>,
    late: u64,
    lost: u64,
    first: Option<Nanos>,
    /// When it is told that none has come, unless one does.
    missed: Option<Nanos>,
    /// Units since the target is to be met, and how many of them were late.
    judged: (u64, u64),
}

impl Watched {
    fn seen(&mut self, unit: &Unit) {
        let target = self.observed.deadline.or(unit.target);
        let late = target.is_some_and(|target| unit.took > target);
        self.took.push(unit.took.0);
        self.late += u64::from(late);
        self.missed = None;
        let first = *self.first.get_or_insert(unit.ended);
        if target.is_some() && unit.ended.since(first) >= SETTLED {
            self.judged.0 += 1;
            self.judged.1 += u64::from(late);
        }
    }

    /// What came since the last time.
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

/// A budget that is moved.
#[derive(Debug)]
struct Budget {
    cpus: CpuSet,
    period: Nanos,
    least: Rate,
    most: Rate,
}

/// The closed loop.
#[derive(Debug)]
struct Loop {
    plan: Adaptation,
    control: Deadline,
    budgets: Vec<Budget>,
}

impl Loop {
    fn new(adapts: &Adaptation, plan: &Plan, now: Nanos) -> Self {
        let regulation = |step| {
            let mut steps = plan.steps.iter();
            steps.find_map(|s| match &s.set {
                Setting::Regulate(regulation) if s.id == step => Some(regulation),
                _ => None,
            })
        };
        let budgets: Vec<Budget> = adapts
            .levers
            .iter()
            .filter_map(|lever| {
                let regulation = regulation(lever.step)?;
                Some(Budget {
                    cpus: regulation.cpus.clone(),
                    period: regulation.period,
                    least: lever.least,
                    most: lever.most,
                })
            })
            .collect();
        let sum = |of: fn(&Budget) -> Rate| Rate(budgets.iter().map(|b| of(b).0).sum());
        let aim = Aim {
            deadline: adapts.deadline,
            percentile: adapts.percentile,
            most: sum(|b| b.most),
            least: sum(|b| b.least),
            settles: budgets.iter().map(|b| b.period).max().unwrap_or_default(),
        };
        Self {
            plan: adapts.clone(),
            control: Deadline::new(aim, now),
            budgets,
        }
    }

    /// The actions that leave so much to the others: each budget as far between its ends as the sum is.
    fn leave(&self, given: Rate) -> Vec<Action> {
        let sum = |of: fn(&Budget) -> Rate| self.budgets.iter().map(|b| of(b).0).sum::<u64>();
        let (least, most) = (sum(|b| b.least), sum(|b| b.most));
        let part = Share::ratio(given.0.saturating_sub(least), most - least);
        self.budgets
            .iter()
            .map(|b| {
                let rate = b.least.0 + Rate(b.most.0 - b.least.0).part(part).0;
                let each = Rate(rate / b.cpus.len().max(1) as u64);
                Action::Budget {
                    cpus: b.cpus.clone(),
                    budget: Lines(Lines::at(each, b.period).0.max(1)),
                }
            })
            .collect()
    }

    fn step(
        &mut self,
        backend: &mut dyn Backend,
        now: Nanos,
        sink: &mut dyn Sink,
    ) -> Result<(), String> {
        let group = &self.plan.group;
        let finding = |what: String| Event::Finding {
            what,
            group: Some(group.clone()),
        };
        let event = match self.control.step(now) {
            None => return Ok(()),
            Some(Step::Change { from, to, why }) => {
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
            Some(Step::Silent { since }) => finding(format!(
                "no unit of group {group} has ended for {}: what is left to the others stays at {} until one does",
                Nanos(now.since(since).0 / 1_000_000 * 1_000_000),
                whole(self.control.given())
            )),
            Some(Step::Unmet { took, target }) => finding(format!(
                "units of group {group} take up to {took} of {target}, although the others are left no more than {}",
                whole(self.control.given())
            )),
        };
        sink.put(now, &event);
        Ok(())
    }
}

/// A rate for a sentence: whole MB/s.
fn whole(rate: Rate) -> Rate {
    Rate(rate.0 / 1_000_000 * 1_000_000)
}

/// Everything observed under a plan.
#[derive(Debug)]
pub(crate) struct Adapt {
    watched: BTreeMap<GroupId, Watched>,
    adapts: Option<Loop>,
    tell: Nanos,
}

impl Adapt {
    /// Begins to observe what the plan has observed.
    pub(crate) fn begin(plan: &Plan, now: Nanos) -> Self {
        let watched = |(name, observed): (&GroupId, &Observed)| {
            let watched = Watched {
                observed: observed.clone(),
                took: Vec::new(),
                late: 0,
                lost: 0,
                first: None,
                missed: Some(now.plus(FIRST_WITHIN)),
                judged: (0, 0),
            };
            (name.clone(), watched)
        };
        Self {
            watched: plan.observed.iter().map(watched).collect(),
            adapts: plan.adapts.as_ref().map(|a| Loop::new(a, plan, now)),
            tell: now.plus(TELL_EVERY),
        }
    }

    /// When [`Self::step`] is wanted at the latest.
    pub(crate) fn next(&self) -> Nanos {
        let tell = if self.watched.is_empty() {
            Nanos(u64::MAX)
        } else {
            self.tell
        };
        self.adapts
            .as_ref()
            .map_or(tell, |a| a.control.next().min(tell))
    }

    /// Takes in units of a group that ended, and how many more nobody can tell of.
    pub(crate) fn seen(&mut self, group: &str, units: &[Unit], lost: u64) {
        let Some(watched) = self.watched.get_mut(group) else {
            return;
        };
        watched.lost += lost;
        let mut control = self.adapts.as_mut().filter(|a| a.plan.group == group);
        for unit in units {
            watched.seen(unit);
            if let Some(adapts) = &mut control {
                adapts.control.seen(unit);
            }
        }
    }

    /// Moves budgets, and tells the record, if it is time.
    pub(crate) fn step(
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
                let group = Some(group.clone());
                sink.put(now, &Event::Finding { what, group });
            }
        }
    }

    /// Tells what is left to be told, and whether the target that was followed was met.
    pub(crate) fn end(&mut self, now: Nanos, sink: &mut dyn Sink) {
        self.tell(now, sink);
        let Some(adapts) = &self.adapts else {
            return;
        };
        let group = &adapts.plan.group;
        let Some((units, late)) = self.watched.get(group).map(|w| w.judged) else {
            return;
        };
        let allowed = Share(Share::WHOLE.0.saturating_sub(adapts.plan.percentile.0));
        if Share::ratio(late, units) > allowed {
            let what = format!(
                "group {group}: {late} of {units} units were late, more than the {allowed} that its target allows: it is at level none"
            );
            let group = Some(group.clone());
            sink.put(now, &Event::Finding { what, group });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Fake, command, plan_with_steps};
    use crate::hold::{self, Until};
    use quell_core::mechanism::Mechanism;
    use quell_core::plan::{Lever, Meter, Regulation, StepId};
    use quell_core::policy::Split;

    const DEADLINE: Nanos = Nanos::millis(8);

    /// A job is to be in time; a neighbour on two CPUs has 4 GB/s for that, and 1 in any case.
    fn plan() -> Plan {
        let mut plan = plan_with_steps(1);
        let step = &mut plan.steps[0];
        step.mechanism = Mechanism::Bandwidth;
        step.set = Setting::Regulate(Regulation {
            cpus: CpuSet::from_iter([2, 3]),
            budget: Lines::at(Rate(2_000_000_000), Nanos::millis(1)),
            period: Nanos::millis(1),
            meter: Meter::Time,
            peak: Rate(2_000_000_000),
            stop_cost: Nanos(0),
            longest: Nanos::millis(5),
            pooling: None,
            split: Split::Even,
            least: Lines(0),
        });
        let observed = Observed {
            source: Source::Client,
            deadline: Some(DEADLINE),
            percentile: Share::percent(99),
        };
        plan.observed.insert("job".into(), observed);
        plan.adapts = Some(Adaptation {
            group: "job".into(),
            deadline: Some(DEADLINE),
            percentile: Share::percent(99),
            sustainable: Rate(10_000_000_000),
            levers: vec![Lever {
                group: "noise".into(),
                step: StepId(1),
                least: Rate(1_000_000_000),
                most: Rate(4_000_000_000),
            }],
        });
        plan
    }

    /// A job that ends after six seconds; its units, every 10 ms from 1 s on, take so long in turn.
    fn ran(plan: &Plan, took: &[Nanos]) -> (Fake, Vec<(Nanos, Event)>) {
        let mut fake = Fake::new();
        fake.command("job", Nanos::secs(6), 0, &[]);
        for (n, took) in (0..).zip(took) {
            fake.unit_at(Nanos::millis(1_000 + 10 * n), "job", *took);
        }
        let mut sink = Vec::new();
        hold::run(&mut fake, plan, &[command("job")], Until::First, &mut sink).unwrap();
        (fake, sink)
    }

    #[test]
    fn late_units_take_from_the_others_and_it_is_on_record() {
        let mut took = vec![Nanos::millis(7); 50];
        took.extend([Nanos::millis(9)]);
        let (fake, sink) = ran(&plan(), &took);
        assert_eq!(fake.log[0], "observe job");
        let adapted: Vec<_> = sink
            .iter()
            .filter(|(_, e)| matches!(e, Event::Adapted { .. }))
            .collect();
        let [
            (
                at,
                Event::Adapted {
                    from_bytes_per_s,
                    to_bytes_per_s,
                    reserved_bytes_per_s,
                    why,
                    ..
                },
            ),
        ] = adapted.as_slice()
        else {
            panic!("{adapted:?}")
        };
        // Seen at the latest a step after it ended.
        assert!(
            (Nanos::millis(1_500)..=Nanos::millis(1_510)).contains(at),
            "{at}"
        );
        assert_eq!(
            (*from_bytes_per_s, *to_bytes_per_s, *reserved_bytes_per_s),
            (4_000_000_000, 3_920_000_000, 6_080_000_000)
        );
        assert_eq!(why, "a unit took 9ms of 8ms");
        // 1.96 GB/s each, in lines of 64 bytes per millisecond.
        let budgets: Vec<&String> = fake
            .log
            .iter()
            .filter(|l| l.starts_with("budget"))
            .collect();
        assert_eq!(budgets, ["budget 2-3 30624"]);
        let (mut units, mut late) = (0, 0);
        for (_, event) in &sink {
            if let Event::Units {
                units: n,
                late: l,
                worst_ns,
                ..
            } = event
            {
                units += n;
                late += l;
                assert!((7_000_000..=9_000_000).contains(worst_ns));
            }
        }
        assert_eq!((units, late), (51, 1));
    }

    #[test]
    fn a_silent_job_and_an_unmet_target_are_told() {
        let findings = |took: &[Nanos]| {
            let (fake, sink) = ran(&plan(), took);
            assert!(fake.clean());
            let found = sink.into_iter().filter_map(|(_, e)| match e {
                Event::Finding { what, .. } => Some(what),
                _ => None,
            });
            found.collect::<Vec<_>>()
        };
        let silent = findings(&[Nanos::millis(7); 20]);
        assert_eq!(silent.len(), 1, "{silent:?}");
        assert!(
            silent[0].starts_with("no unit of group job has ended for 1"),
            "{silent:?}"
        );
        let unmet = findings(&[Nanos::millis(9); 450]);
        assert_eq!(unmet.len(), 2, "{unmet:?}");
        assert!(
            unmet[0].contains("are left no more than 1GB/s"),
            "{unmet:?}"
        );
        assert!(unmet[1].ends_with("it is at level none"), "{unmet:?}");
    }

    #[test]
    fn a_program_that_tells_of_nothing_is_told_of_once() {
        let mut fake = Fake::new();
        fake.command("job", Nanos::secs(30), 0, &[]);
        let mut sink = Vec::new();
        let job = [command("job")];
        hold::run(&mut fake, &plan(), &job, Until::First, &mut sink).unwrap();
        let mut findings = sink
            .iter()
            .filter(|(_, e)| matches!(e, Event::Finding { .. }));
        let Some((at, Event::Finding { what, .. })) = findings.next() else {
            panic!("{sink:?}")
        };
        assert!(
            (Nanos::secs(10)..=Nanos::millis(10_200)).contains(at),
            "{at}"
        );
        assert!(what.contains("through quell-client"), "{what}");
        assert_eq!(findings.next(), None);
    }

    #[test]
    fn what_is_only_observed_moves_nothing() {
        let mut plan = plan();
        plan.adapts = None;
        let (fake, sink) = ran(&plan, &[Nanos::millis(9); 30]);
        assert!(!fake.log.iter().any(|l| l.starts_with("budget")));
        assert!(
            sink.iter()
                .any(|(_, e)| matches!(e, Event::Units { late, .. } if *late > 0))
        );
    }
}
