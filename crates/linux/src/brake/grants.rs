//! Budgets that switch with windows of a frame. The dispatcher says which window it is, and the
//! group's brakes follow.
//!
//! - A brake that stops its group lets go when the window ends. Another group's window is not to be
//!   spent on a stop.
//! - The next window is announced within the guard before it, while the group is still frozen. So a
//!   brake arms its counter then, and not in the window.
//! - What was drawn beyond a window's budget is owed in the next one that has a budget.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quell_control::config::{Frame, Regulation};
use quell_types::cpuset::CpuId;
use quell_types::units::Nanos;

use crate::pool::ParkSlot;

/// One window of the group.
#[derive(Debug)]
pub(super) struct Window {
    /// When it begins, from the beginning of the frame.
    start: Nanos,
    /// How long it lasts.
    pub(super) length: Nanos,
    /// What the group may move in it. `None`: as much as it can.
    pub(super) budget: Option<Regulation>,
}

/// What a group may move in each of its windows, and which one it has.
#[derive(Debug)]
pub struct Grants {
    frame: Nanos,
    windows: Vec<Window>,
    /// When the group's window begins, on CLOCK_MONOTONIC. 0: another group has its window.
    begins: AtomicU64,
    /// Where the brake of each CPU sleeps.
    slots: Vec<(CpuId, Arc<ParkSlot>)>,
}

impl Grants {
    /// The budgets of a group's windows. `None` where no window of it has one.
    ///
    /// # Errors
    /// When no descriptor is available.
    pub fn of(frame: &Frame, group: &str) -> io::Result<Option<Self>> {
        let own = frame.spans.iter();
        let own = own.filter(|span| span.group.as_deref() == Some(group));
        let mut windows: Vec<Window> = own
            .map(|span| Window {
                start: span.start,
                length: span.end.since(span.start),
                budget: span.budget.clone(),
            })
            .collect();
        if windows.iter().all(|window| window.budget.is_none()) {
            return Ok(None);
        }
        if let ([first, .., last], Some(window)) = (frame.spans.as_slice(), windows.last_mut())
            && first.is_alike(last)
            && last.group.as_deref() == Some(group)
        {
            // It goes on in the next frame without an edge.
            window.length = window.length.plus(first.end);
        }
        let slot = |cpu| Ok((cpu, Arc::new(ParkSlot::new()?)));
        let slots = frame.cpus.iter().map(slot).collect::<io::Result<_>>()?;
        Ok(Some(Self {
            frame: frame.length,
            windows,
            begins: AtomicU64::new(0),
            slots,
        }))
    }

    /// The budget that a brake is started with. It has no effect before a window begins.
    #[must_use]
    pub fn first(&self) -> Option<&Regulation> {
        self.windows.iter().find_map(|w| w.budget.as_ref())
    }

    /// The group's window that begins at `at` is next. Wakes its brakes, which prepare for it.
    pub fn open(&self, at: Nanos) {
        self.begins.store(at.0, Ordering::Release);
        self.slots.iter().for_each(|(_, slot)| slot.ring());
    }

    /// The group's window has ended. Its brakes stop it no more.
    pub fn close(&self) {
        self.begins.store(0, Ordering::Release);
    }

    /// When the group's window begins or began. 0: it has none now.
    pub(super) fn begins(&self) -> Nanos {
        Nanos(self.begins.load(Ordering::Acquire))
    }

    /// The window that begins at `at`.
    pub(super) fn window(&self, at: Nanos) -> Option<&Window> {
        let into = at.0.checked_rem(self.frame.0)?;
        let mut windows = self.windows.iter();
        windows.find(|w| at.0 > 0 && w.start.0 == into)
    }

    /// Where the brake of a CPU sleeps.
    pub(super) fn slot(&self, cpu: CpuId) -> Option<Arc<ParkSlot>> {
        let mut slots = self.slots.iter();
        let found = slots.find(|(of, _)| *of == cpu);
        found.map(|(_, slot)| Arc::clone(slot))
    }
}

#[cfg(test)]
mod tests {
    use quell_control::config::{Meter, Span};
    use quell_types::cpuset::CpuSet;
    use quell_types::options::Split;
    use quell_types::units::{Lines, Rate};

    use super::*;

    fn budget(lines: u64) -> Regulation {
        Regulation {
            cpus: CpuSet::one(1),
            budget: Lines(lines),
            period: Nanos::millis(1),
            meter: Meter::Hardware,
            peak: Rate(1_000_000_000),
            pooling: None,
            split: Split::Even,
            least: Lines(0),
        }
    }

    /// From and to in milliseconds.
    fn span(start: u64, end: u64, group: &str, lines: Option<u64>) -> Span {
        Span {
            start: Nanos::millis(start),
            end: Nanos::millis(end),
            group: Some(group.to_owned()),
            budget: lines.map(budget),
            ..Span::default()
        }
    }

    fn frame(windows: &[Span]) -> Frame {
        let (length, guard) = (Nanos::millis(10), Nanos::micros(200));
        Frame::new(CpuSet::one(1), length, guard, windows, None)
    }

    #[test]
    fn the_window_of_a_time_has_its_own_budget() {
        let frame = frame(&[
            span(0, 3, "batch", Some(10)),
            span(3, 6, "control", None),
            span(6, 10, "batch", None),
        ]);
        assert!(Grants::of(&frame, "control").unwrap().is_none());
        let grants = Grants::of(&frame, "batch").unwrap().unwrap();
        assert!(grants.window(grants.begins()).is_none());
        let lines = |at| {
            let budget = grants.window(at).unwrap().budget.as_ref();
            budget.map(|budget| budget.budget.0)
        };
        grants.open(Nanos::millis(70));
        assert_eq!(lines(grants.begins()), Some(10));
        grants.open(Nanos::millis(76));
        assert_eq!(lines(grants.begins()), None);
        grants.close();
        assert!(grants.window(grants.begins()).is_none());
        assert!(grants.slot(1).is_some() && grants.slot(0).is_none());
    }

    #[test]
    fn a_window_that_goes_on_in_the_next_frame_is_one() {
        let frame = frame(&[
            span(0, 2, "batch", Some(10)),
            span(2, 7, "control", None),
            span(7, 10, "batch", Some(10)),
        ]);
        let grants = Grants::of(&frame, "batch").unwrap().unwrap();
        let window = grants.window(Nanos::millis(27)).unwrap();
        assert_eq!(window.length, Nanos::millis(5));
    }
}
