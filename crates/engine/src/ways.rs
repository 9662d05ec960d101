//! Cache ways that follow what a group misses while a plan holds. [`Sizer`] decides. This module
//! turns its decisions into masks and events.

use quell_control::config::Boundary;
use quell_control::ways::{Rules, Sizer, Step};
use quell_plan::Following;
use quell_record::backend::{Action, Backend};
use quell_record::events::Event;
use quell_types::partition::Mask;
use quell_types::units::Nanos;

use crate::loops::Loop;
use crate::sink::Sink;

/// The closed loop over one group's ways.
#[derive(Debug)]
pub(crate) struct Ways {
    plan: Following,
    control: Sizer,
    boundary: Boundary,
}

impl Loop for Ways {
    fn next(&self) -> Nanos {
        self.control.next()
    }

    fn step(
        &mut self,
        backend: &mut dyn Backend,
        now: Nanos,
        sink: &mut dyn Sink,
    ) -> Result<(), String> {
        let group = &self.plan.group;
        let drawn = backend
            .drawn_by(group)
            .map_err(|e| format!("what group {group} draws from memory could not be read: {e}"))?;
        let step = match drawn {
            Some(drawn) => self.control.sample(now, drawn),
            None => {
                self.control.blind(now);
                None
            }
        };
        match step {
            Some(step) => self.carry_out(backend, now, step, sink),
            None => Ok(()),
        }
    }
}

impl Ways {
    /// Begins after the steps were applied. `None` where there is no boundary to move.
    pub(crate) fn begin(following: &Following, now: Nanos) -> Option<Self> {
        let rules = Rules {
            interval: following.interval,
            least: following.least,
            most: following.own.count(),
            tolerated: following.tolerated,
        };
        Some(Self {
            control: Sizer::new(&rules, now),
            boundary: Boundary::between(following.own, following.left)?,
            plan: following.clone(),
        })
    }

    /// The group that loses ways gets its mask first. So no two groups have the same way.
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
