//! Ways that follow what a group misses while a plan holds. What is decided is [`Sizer`]'s; here its word becomes masks, and events.

use quell_core::backend::{Action, Backend};
use quell_core::control::config::Boundary;
use quell_core::control::ways::{Rules, Sizer, Step};
use quell_core::partition::Mask;
use quell_core::plan::{Following, Plan};
use quell_core::record::Event;
use quell_core::units::Nanos;

use crate::sink::Sink;

#[derive(Debug)]
struct Loop {
    plan: Following,
    control: Sizer,
    boundary: Boundary,
}

/// Everybody whose ways follow.
#[derive(Debug, Default)]
pub(crate) struct Ways {
    loops: Vec<Loop>,
}

impl Ways {
    /// Begins, after the steps were applied.
    pub(crate) fn begin(plan: &Plan, now: Nanos) -> Self {
        let one = |following: &Following| {
            let rules = Rules {
                interval: following.interval,
                least: following.least,
                most: following.own.count(),
                tolerated: following.tolerated,
            };
            Some(Loop {
                control: Sizer::new(&rules, now),
                boundary: Boundary::between(following.own, following.left)?,
                plan: following.clone(),
            })
        };
        Self {
            loops: plan.follows.iter().filter_map(one).collect(),
        }
    }

    /// When [`Self::step`] is wanted at the latest.
    pub(crate) fn next(&self) -> Nanos {
        let all = self.loops.iter().map(|l| l.control.next());
        all.min().unwrap_or(Nanos(u64::MAX))
    }

    /// Looks and acts, if it is time.
    pub(crate) fn step(
        &mut self,
        backend: &mut dyn Backend,
        now: Nanos,
        sink: &mut dyn Sink,
    ) -> Result<(), String> {
        for one in self.loops.iter_mut().filter(|l| now >= l.control.next()) {
            let group = &one.plan.group;
            let drawn = backend.drawn_by(group).map_err(|e| {
                format!("what group {group} draws from memory could not be read: {e}")
            })?;
            let step = match drawn {
                Some(drawn) => one.control.look(now, drawn),
                None => {
                    one.control.blind(now);
                    None
                }
            };
            if let Some(step) = step {
                one.carry_out(backend, now, step, sink)?;
            }
        }
        Ok(())
    }
}

impl Loop {
    /// Whoever loses ways is told first, so that nobody has what another one has.
    fn carry_out(
        &self,
        backend: &mut dyn Backend,
        now: Nanos,
        step: Step,
        sink: &mut dyn Sink,
    ) -> Result<(), String> {
        let (own, left) = self.boundary.at(step.to);
        let set = |group: &str, mask: Mask, backend: &mut dyn Backend| {
            let action = Action::Ways {
                group: group.to_owned(),
                level: self.plan.level,
                mask,
            };
            backend
                .act(&action)
                .map_err(|e| format!("the ways of group {group} could not be moved: {e}"))
        };
        let others = |backend: &mut dyn Backend| {
            let mut others = self.plan.others.iter();
            others.try_for_each(|other| set(other, left, backend))
        };
        if step.to < step.from {
            set(&self.plan.group, own, backend)?;
            others(backend)?;
        } else {
            others(backend)?;
            set(&self.plan.group, own, backend)?;
        }
        let event = Event::Resized {
            group: self.plan.group.clone(),
            level: self.plan.level,
            from: step.from,
            to: step.to,
            why: step.why.to_string(),
        };
        sink.put(now, &event);
        Ok(())
    }
}
