//! CPU-time quotas of groups, as `cpu.max` gives them: so much time per period over all cores
//! together. Then the group's tasks stop until the next period begins.
//!
//! Deviations from Linux:
//! - The group's time is known at every moment. Linux' CPUs take slices of 5 ms from the quota and
//!   may keep some.
//! - Nothing is used beyond the quota here. Linux would subtract it from the next period.

use std::cmp::Reverse;

use quell_model::Picos;
use quell_types::units::Nanos;

use super::{Due, Os, PS, TaskId};

#[derive(Clone, Copy, Debug)]
pub(super) struct Quota {
    quota: Picos,
    period: Picos,
    used: Picos,
    stopped: bool,
    /// When the quota is checked next; in the past if no check is due.
    looked_at: Picos,
}

impl Os {
    /// Gives the tasks of `class` at most `quota` of CPU time per `period` from now on, over all
    /// cores.
    pub fn set_quota(&mut self, class: u8, quota: Nanos, period: Nanos) {
        let quota = Quota {
            quota: quota.0.max(1).saturating_mul(PS),
            period: period.0.max(1).saturating_mul(PS),
            used: 0,
            stopped: false,
            looked_at: 0,
        };
        let first = self.quotas.insert(class, quota).is_none();
        for core in 0..self.cores.len() {
            self.cores[core].charged = self.now;
            self.expect_quota(core);
        }
        if first {
            let at = self.now + quota.period;
            self.events.push(Reverse((at, Due::Refill(class))));
        }
    }

    /// Whether no quota keeps a task from running.
    pub(super) fn within_quota(&self, id: TaskId) -> bool {
        let quota = self.tasks.get(&id).and_then(|t| self.quotas.get(&t.class));
        quota.is_none_or(|quota| !quota.stopped)
    }

    /// Whether a task is on its core.
    #[must_use]
    pub fn runs(&self, id: TaskId) -> bool {
        let task = self.tasks.get(&id);
        task.is_some_and(|task| self.cores[task.core].current == Some(id))
    }

    /// The class of the task on `core`, if there is one.
    pub(super) fn running(&self, core: usize) -> Option<u8> {
        let id = self.cores[core].current?;
        Some(self.tasks.get(&id)?.class)
    }

    /// Charges the time that the current task of `core` has run to its group's quota.
    pub(super) fn charge(&mut self, core: usize) {
        let class = self.running(core);
        let this = &mut self.cores[core];
        let ran = self.now.saturating_sub(this.charged);
        this.charged = self.now;
        if let Some(quota) = class.and_then(|class| self.quotas.get_mut(&class)) {
            quota.used += ran;
        }
    }

    /// Schedules the next check: the earliest time at which the quota of `core`'s task may be used
    /// up.
    pub(super) fn expect_quota(&mut self, core: usize) {
        let Some(class) = self.running(core) else {
            return;
        };
        let all = (0..self.cores.len()).filter(|core| self.running(*core) == Some(class));
        let all = all.count().max(1) as u64;
        let Some(quota) = self.quotas.get_mut(&class) else {
            return;
        };
        let left = quota.quota.saturating_sub(quota.used);
        let at = self.now + left.div_ceil(all);
        if quota.looked_at <= self.now || at < quota.looked_at {
            quota.looked_at = at;
            self.events.push(Reverse((at, Due::Quota(class))));
        }
    }

    /// Checks whether a group's quota has been used up.
    pub(super) fn quota_used(&mut self, class: u8) {
        (0..self.cores.len()).for_each(|core| self.charge(core));
        let on: Vec<usize> = (0..self.cores.len())
            .filter(|core| self.running(*core) == Some(class))
            .collect();
        let Some(quota) = self.quotas.get_mut(&class) else {
            return;
        };
        if quota.used < quota.quota {
            if let Some(first) = on.first() {
                self.expect_quota(*first);
            }
            return;
        }
        quota.stopped = true;
        for core in on {
            self.take_off(core, true);
            self.dispatch(core);
        }
    }

    /// Begins a group's next period.
    pub(super) fn refill(&mut self, class: u8) {
        (0..self.cores.len()).for_each(|core| self.charge(core));
        let Some(quota) = self.quotas.get_mut(&class) else {
            return;
        };
        quota.used = quota.used.saturating_sub(quota.quota);
        quota.stopped = false;
        let at = self.now + quota.period;
        self.events.push(Reverse((at, Due::Refill(class))));
        for core in 0..self.cores.len() {
            self.back(core, class);
            if self.cores[core].current.is_none() {
                self.dispatch(core);
            } else {
                self.expect_quota(core);
                self.slice(core);
            }
        }
    }

    /// The first task of a group that may run again goes before those that ran meanwhile, as a task
    /// that wakes does.
    pub(super) fn back(&mut self, core: usize, class: u8) {
        let current = self.cores[core].current.and_then(|id| self.tasks.get(&id));
        if current.is_none_or(|task| task.class == class || task.priority.is_some()) {
            return;
        }
        let of_class = |id: &TaskId| self.tasks.get(id).is_some_and(|t| t.class == class);
        let queue = &self.cores[core].queue;
        let Some(id) = queue.iter().position(of_class) else {
            return;
        };
        let id = self.cores[core].queue.remove(id);
        self.take_off(core, true);
        id.into_iter()
            .for_each(|id| self.cores[core].queue.push_front(id));
    }
}
