//! Windows of a repeating frame: of the groups that have one, a group runs in its own only.
//!
//! Deviations from Linux:
//! - Groups stop and go on at once, at exactly the time of the switch. In the guard none runs.
//! - There are no system calls that go on.
//! - Ways and budgets of a window are switched at no cost.

use std::cmp::Reverse;

use quell_control::config::{Frame, Regulation};
use quell_control::windows::{Dispatch, Switch};
use quell_types::cpuset::CpuSet;
use quell_types::units::Nanos;

use super::{Due, Os, PS, TaskId};

/// What happens next.
#[derive(Clone, Copy, Debug)]
enum Next {
    /// The group that runs is stopped.
    Stop,
    /// The group of this switch goes on, if there is one.
    Go(Switch),
}

/// What the group of a span gets when it begins.
#[derive(Clone, Debug, Default)]
pub struct Granted {
    /// A cache level (1, 2, …), and the ways that the group fills there.
    pub ways: Option<(u32, u64)>,
    /// What it may move. `None`: as much as it can.
    pub budget: Option<Regulation>,
}

#[derive(Debug)]
pub(super) struct Windows {
    dispatch: Dispatch,
    /// The classes of the frame's groups, in their order.
    classes: Vec<u8>,
    /// What the groups of the frame's spans get, in the order of the spans.
    granted: Vec<Granted>,
    /// The class that runs. `None`: no group of the frame does.
    running: Option<u8>,
    next: Next,
    /// When the machine was booted, on the clock that frames begin by.
    booted: Nanos,
}

impl Os {
    /// Lets each of `classes` run only in the windows of its group, from the next switch on. They
    /// are those of the frame's groups, in their order; `granted` is what the spans give. Frames
    /// begin by the clock on which the machine was booted at `booted`.
    pub fn set_windows(
        &mut self,
        frame: &Frame,
        classes: Vec<u8>,
        granted: Vec<Granted>,
        booted: Nanos,
    ) {
        let dispatch = Dispatch::new(frame, booted.plus(self.now()));
        let due = dispatch.due();
        self.windows = Some(Windows {
            dispatch,
            classes,
            granted,
            running: None,
            next: Next::Stop,
            booted,
        });
        self.expect_window(due.since(booted));
    }

    fn expect_window(&mut self, at: Nanos) {
        let at = at.0.saturating_mul(PS).max(self.now);
        self.events.push(Reverse((at, Due::Window)));
    }

    /// Whether neither a quota, nor a stop of its group, nor a window of another one keeps a task
    /// from running.
    pub(super) fn may_run(&self, id: TaskId) -> bool {
        self.within_quota(id) && !self.is_stopped(id) && self.within_window(id)
    }

    fn within_window(&self, id: TaskId) -> bool {
        let (Some(windows), Some(task)) = (&self.windows, self.tasks.get(&id)) else {
            return true;
        };
        windows.running == Some(task.class) || !windows.classes.contains(&task.class)
    }

    /// Carries out what is due: a group is stopped, or one goes on.
    pub(super) fn window(&mut self) {
        let now = self.now();
        let Some(windows) = &mut self.windows else {
            return;
        };
        let mut begins = None;
        let mut ends = None;
        let due = match windows.next {
            Next::Stop => {
                let switch = windows.dispatch.take(windows.booted.plus(now));
                if switch.stop.is_some() {
                    ends = windows.running.take();
                }
                windows.next = Next::Go(switch);
                switch.at
            }
            Next::Go(switch) => {
                let class = switch.go.and_then(|place| windows.classes.get(place));
                let granted = windows.granted.get(switch.span).cloned();
                begins = class.copied().zip(granted);
                windows.running = class.copied().or(windows.running);
                windows.next = Next::Stop;
                windows.dispatch.due()
            }
        };
        let (running, due) = (windows.running, due.since(windows.booted));
        self.expect_window(due);
        if let Some(class) = ends {
            self.suspend_budget(class);
        }
        if let Some((class, granted)) = begins {
            if let Some((level, mask)) = granted.ways {
                // The level and its ways were looked up when the windows were set.
                let _ = self.set_ways(class, level, mask, &CpuSet::new());
            }
            if let Some(regulation) = &granted.budget {
                self.renew_budget(class, regulation);
            }
        }
        for core in 0..self.cores.len() {
            let current = self.cores[core].current;
            if current.is_some_and(|id| !self.may_run(id)) {
                self.take_off(core, true);
            }
            if let Some(class) = running {
                self.back(core, class);
            }
            if self.cores[core].current.is_none() {
                self.dispatch(core);
            } else {
                self.expect_quota(core);
                self.slice(core);
            }
        }
    }
}
