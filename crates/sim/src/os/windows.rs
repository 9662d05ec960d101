//! Windows of a repeating frame: of the groups that have one, a group runs in its own only.
//!
//! Deviations from Linux:
//! - Groups stop and go on at once, at exactly the time of the switch. In the guard none runs.
//! - There are no system calls that go on.

use std::cmp::Reverse;

use quell_control::config::Frame;
use quell_control::windows::Dispatch;
use quell_types::units::Nanos;

use super::{Due, Os, PS, TaskId};

/// What happens next.
#[derive(Clone, Copy, Debug)]
enum Next {
    /// The group that runs is stopped.
    Stop,
    /// The group at this place goes on, if there is one.
    Go(Option<usize>),
}

#[derive(Debug)]
pub(super) struct Windows {
    dispatch: Dispatch,
    /// The classes of the frame's groups, in their order.
    classes: Vec<u8>,
    /// The class that runs. `None`: no group of the frame does.
    running: Option<u8>,
    next: Next,
    /// When the machine was booted, on the clock that frames begin by.
    booted: Nanos,
}

impl Os {
    /// Lets each of `classes` run only in the windows of its group, from the next switch on. They
    /// are those of the frame's groups, in their order. Frames begin by the clock on which the
    /// machine was booted at `booted`.
    pub fn set_windows(&mut self, frame: &Frame, classes: Vec<u8>, booted: Nanos) {
        let dispatch = Dispatch::new(frame, booted.plus(self.now()));
        let due = dispatch.due();
        self.windows = Some(Windows {
            dispatch,
            classes,
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
        let due = match windows.next {
            Next::Stop => {
                let switch = windows.dispatch.take(windows.booted.plus(now));
                if switch.stop.is_some() {
                    windows.running = None;
                }
                windows.next = Next::Go(switch.go);
                switch.at
            }
            Next::Go(group) => {
                let class = group.and_then(|place| windows.classes.get(place));
                windows.running = class.copied().or(windows.running);
                windows.next = Next::Stop;
                windows.dispatch.due()
            }
        };
        let (running, due) = (windows.running, due.since(windows.booted));
        self.expect_window(due);
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
