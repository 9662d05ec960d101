//! The dispatcher of windows, on the CPU that is divided. Before a window begins it takes the CPU,
//! freezes the group that ran and thaws the next one. It leaves the CPU at the time that the window
//! begins.
//!
//! User code of the old group ends when the dispatcher takes the CPU, not when the group is frozen.
//! Until the guard is half over the dispatcher sleeps, so that the old group's tasks reach the
//! freezer in the kernel. From then on it keeps the CPU. What it thaws cannot run before the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use quell_control::config::Frame;
use quell_control::windows::{Dispatch, Lateness, Switch};
use quell_kernel::rt;
use quell_record::windows::{GroupWindows, Kept};
use quell_types::units::Nanos;

use super::{Duty, Gate, Lost, Post, late, nap};

/// Time between two checks whether the old group's tasks have reached the freezer.
const PARKING: Nanos = Nanos::micros(20);

/// What became of one group's windows.
#[derive(Debug, Default)]
struct Figures {
    windows: AtomicU64,
    begun: Lateness,
    ended: Lateness,
    unparked: AtomicU64,
    outside: AtomicU64,
    outside_most: AtomicU64,
    /// Whether a file says what was used outside.
    accounted: AtomicBool,
}

/// What a dispatcher did, and those before it for the same frame.
#[derive(Debug)]
pub struct Stats {
    switches: AtomicU64,
    skipped: AtomicU64,
    late: AtomicU64,
    groups: Vec<Figures>,
}

impl Stats {
    /// For a frame with so many groups.
    #[must_use]
    pub fn new(groups: usize) -> Self {
        Self {
            switches: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            late: AtomicU64::new(0),
            groups: (0..groups).map(|_| Figures::default()).collect(),
        }
    }

    /// The figures so far, with the names of the frame's groups.
    #[must_use]
    pub fn kept(&self, frame: &Frame) -> Kept {
        let get = |value: &AtomicU64| value.load(Ordering::Relaxed);
        let named = frame.groups().into_iter().zip(&self.groups);
        let groups = named.map(|(group, of)| {
            let accounted = of.accounted.load(Ordering::Relaxed);
            GroupWindows {
                group: group.clone(),
                windows: get(&of.windows),
                begun: late(&of.begun),
                ended: late(&of.ended),
                unparked: get(&of.unparked),
                outside_ns: accounted.then(|| get(&of.outside)),
                outside_most_ns: accounted.then(|| get(&of.outside_most)),
            }
        });
        Kept {
            switches: get(&self.switches),
            skipped: get(&self.skipped),
            late: get(&self.late),
            groups: groups.collect(),
        }
    }

    /// Number of windows that began more than a guard late.
    #[must_use]
    pub fn late(&self) -> u64 {
        self.late.load(Ordering::Relaxed)
    }
}

/// The groups of a frame, which take their windows.
pub struct Windows {
    frame: Frame,
    gates: Vec<Gate>,
    /// CPU time of each group when its last window had ended.
    used: Vec<Option<Nanos>>,
    stats: Arc<Stats>,
}

impl Windows {
    /// The windows of `frame`. `gates` are those of its groups, in their order.
    #[must_use]
    pub fn new(frame: &Frame, gates: Vec<Gate>, stats: &Arc<Stats>) -> Self {
        Self {
            frame: frame.clone(),
            used: vec![None; gates.len()],
            gates,
            stats: Arc::clone(stats),
        }
    }

    fn freeze(&self, post: &Post, place: usize) -> Result<(), Lost> {
        let gate = self.gates.get(place).ok_or(Lost::Gate)?;
        gate.set(true).map_err(|_| Lost::Gate)?;
        post.permitted()
    }

    /// Leaves the CPU to the tasks of a group that reach the freezer in the kernel, until all have
    /// or `until`.
    fn park(&mut self, place: usize, until: Nanos) {
        let (Some(gate), Some(of)) = (self.gates.get(place), self.stats.groups.get(place)) else {
            return;
        };
        let mut parked = gate.is_parked();
        while !parked {
            let now = rt::now();
            if now >= until {
                break;
            }
            nap(until.min(now.plus(PARKING)));
            parked = gate.is_parked();
        }
        if !parked {
            of.unparked.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(used) = self.used.get_mut(place) {
            *used = gate.used();
        }
    }

    /// Thaws a group, and keeps the CPU until its window begins.
    fn resume(&self, place: usize, switch: Switch) -> Result<(), Lost> {
        let gate = self.gates.get(place).ok_or(Lost::Gate)?;
        let of = self.stats.groups.get(place).ok_or(Lost::Gate)?;
        if let Some(before) = self.used.get(place).copied().flatten()
            && let Some(used) = gate.used()
        {
            let outside = used.since(before).0;
            of.outside.fetch_add(outside, Ordering::Relaxed);
            of.outside_most.fetch_max(outside, Ordering::Relaxed);
            of.accounted.store(true, Ordering::Relaxed);
        }
        gate.set(false).map_err(|_| Lost::Gate)?;
        while rt::now() < switch.at {
            rt::relax();
        }
        let late = rt::now().since(switch.at);
        of.begun.note(late);
        of.windows.fetch_add(1, Ordering::Relaxed);
        if late > self.frame.guard {
            self.stats.late.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Duty for Windows {
    fn dispatch(&mut self, post: &Post) -> Result<(), Lost> {
        for place in 0..self.gates.len() {
            self.freeze(post, place)?;
        }
        let half = Nanos(self.frame.guard.0 / 2);
        let before = self.stats.skipped.load(Ordering::Relaxed);
        let mut dispatch = Dispatch::new(&self.frame, rt::now());
        while post.sleep_until(dispatch.due())? {
            let taken = rt::now();
            let switch = dispatch.take(taken);
            if let Some(old) = switch.stop {
                self.freeze(post, old)?;
                self.park(old, switch.at.since(half));
                if let Some(of) = self.stats.groups.get(old) {
                    of.ended.note(taken.since(switch.at));
                }
            }
            if let Some(new) = switch.go {
                nap(switch.at.since(half));
                self.resume(new, switch)?;
            }
            let stats = &self.stats;
            stats.switches.fetch_add(1, Ordering::Relaxed);
            let skipped = before + dispatch.skipped();
            stats.skipped.store(skipped, Ordering::Relaxed);
        }
        Ok(())
    }

    fn let_go(&mut self) {
        for gate in &self.gates {
            let _ = gate.set(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use quell_types::cpuset::CpuSet;

    use super::*;

    #[test]
    fn figures_have_the_names_of_the_groups() {
        let (length, guard) = (Nanos::millis(10), Nanos::micros(200));
        let window = quell_control::config::Span {
            start: Nanos(0),
            end: Nanos::millis(4),
            group: Some("control".to_owned()),
        };
        let frame = Frame::new(CpuSet::from_iter([1]), length, guard, &[window], None);
        let stats = Stats::new(frame.groups().len());
        stats.groups[0].begun.note(Nanos(7));
        stats.groups[0].windows.fetch_add(1, Ordering::Relaxed);
        let kept = stats.kept(&frame);
        let group = &kept.groups[0];
        assert_eq!((group.group.as_str(), group.windows), ("control", 1));
        assert_eq!((group.begun.most_ns, group.outside_ns), (7, None));
    }
}
