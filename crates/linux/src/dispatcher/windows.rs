//! The dispatcher of windows, on the first CPU that is divided. Before a window begins it takes the
//! CPU, freezes the group that ran and thaws the next one. It leaves the CPU at the time that the
//! window begins.
//!
//! User code of the old group ends when the dispatcher takes the CPU, not when the group is frozen.
//! Until the guard is half over the dispatcher sleeps, so that the old group's tasks reach the
//! freezer in the kernel. From then on it keeps the CPU. What it thaws cannot run before the time.
//!
//! A freezer stops a group on all CPUs, so one process freezes and thaws for all of them. On every
//! other CPU a [`Follower`] takes and leaves the CPU by the same clock. It changes nothing, so
//! nothing has to be undone after it.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use quell_control::config::Frame;
use quell_control::windows::{Dispatch, Lateness, Switch};
use quell_kernel::rt;
use quell_record::windows::{GroupWindows, Kept};
use quell_types::units::Nanos;

use super::{Duty, Gate, Lost, Post, late, nap};
use crate::brake::Grants;

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

    /// What was in time and what was not, so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let get = |value: &AtomicU64| value.load(Ordering::Relaxed);
        Counts {
            switches: get(&self.switches),
            skipped: get(&self.skipped),
            late: get(&self.late),
        }
    }
}

/// Switches of a frame in some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Switches that were made.
    pub switches: u64,
    /// Switches that were passed over.
    pub skipped: u64,
    /// Windows that began more than a guard late, on each CPU by itself.
    pub late: u64,
}

impl Counts {
    /// What came after `before`.
    #[must_use]
    pub const fn since(self, before: Self) -> Self {
        Self {
            switches: self.switches.saturating_sub(before.switches),
            skipped: self.skipped.saturating_sub(before.skipped),
            late: self.late.saturating_sub(before.late),
        }
    }

    /// Whether a group had less than its windows.
    #[must_use]
    pub const fn is_unpunctual(self) -> bool {
        self.late + self.skipped > 0
    }
}

/// How far the dispatcher has come, for the followers on other CPUs.
#[derive(Debug, Default)]
pub struct Progress {
    /// The last switch whose old group was asked to stop, by the time of the switch.
    stopped: AtomicU64,
    /// The last switch whose new group was thawed, by the time of the switch.
    resumed: AtomicU64,
}

/// What the dispatchers of a frame have in common.
#[derive(Clone, Debug)]
pub struct Common {
    frame: Frame,
    stats: Arc<Stats>,
    progress: Arc<Progress>,
}

impl Common {
    /// For the dispatchers of `frame`, which begin together.
    #[must_use]
    pub fn new(frame: &Frame, stats: &Arc<Stats>) -> Self {
        Self {
            frame: frame.clone(),
            stats: Arc::clone(stats),
            progress: Arc::default(),
        }
    }

    /// Half a guard before a switch: the old group is to be frozen until then.
    fn middle(&self, switch: Switch) -> Nanos {
        switch.at.since(Nanos(self.frame.guard.0 / 2))
    }

    /// Notes when a window began on this CPU.
    fn begun(&self, place: usize, switch: Switch) {
        let late = rt::now().since(switch.at);
        if let Some(of) = self.stats.groups.get(place) {
            of.begun.note(late);
        }
        if late > self.frame.guard {
            self.stats.late.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Keeps the CPU until `over`.
fn spin(over: impl Fn(Nanos) -> bool) {
    while !over(rt::now()) {
        rt::relax();
    }
}

/// The masks of groups that fill other ways in some of their windows than in others.
#[derive(Debug, Default)]
pub struct WayMasks {
    /// The open `schemata` of these groups' control groups.
    pub files: Vec<File>,
    /// For each span of the frame: the file of its group, and what is written there when it
    /// begins. `None` where the group fills the same ways at all times.
    pub spans: Vec<Option<(usize, String)>>,
}

/// Takes a CPU and leaves it as the dispatcher does on the first one.
pub struct Follower(Common);

impl Follower {
    /// One that follows a dispatcher with the same `common`.
    #[must_use]
    pub const fn new(common: Common) -> Self {
        Self(common)
    }

    /// Keeps the old group from the CPU until it is asked to stop, and the new one until its window
    /// has begun. A dispatcher that is more than a guard late is not waited for.
    fn follow(&self, switch: Switch) {
        let Common {
            frame, progress, ..
        } = &self.0;
        let (at, latest) = (switch.at, switch.at.plus(frame.guard));
        let done = |of: &AtomicU64| of.load(Ordering::Acquire) >= at.0;
        if switch.stop.is_some() {
            spin(|now| done(&progress.stopped) || now >= latest);
        }
        if let Some(new) = switch.go {
            nap(self.0.middle(switch));
            spin(|now| now >= at && (done(&progress.resumed) || now >= latest));
            self.0.begun(new, switch);
        }
    }
}

impl Duty for Follower {
    fn dispatch(&mut self, post: &Post) -> Result<(), Lost> {
        let mut dispatch = Dispatch::new(&self.0.frame, rt::now());
        while post.sleep_until(dispatch.due())? {
            let switch = dispatch.take(rt::now());
            self.follow(switch);
        }
        Ok(())
    }

    fn let_go(&mut self) {}
}

/// The groups of a frame, which take their windows.
pub struct Windows {
    common: Common,
    gates: Vec<Gate>,
    /// CPU time of each group when its last window had ended.
    used: Vec<Option<Nanos>>,
    masks: Arc<WayMasks>,
    /// The budgets of each group's windows. `None` where it has none.
    grants: Vec<Option<Arc<Grants>>>,
    /// The span whose masks are in each of the files. `None`: not known.
    written: Vec<Option<usize>>,
}

impl Windows {
    /// The windows of a frame. `gates` are those of its groups, in their order.
    #[must_use]
    pub fn new(
        common: Common,
        gates: Vec<Gate>,
        masks: &Arc<WayMasks>,
        grants: &[Option<Arc<Grants>>],
    ) -> Self {
        Self {
            common,
            used: vec![None; gates.len()],
            gates,
            written: vec![None; masks.files.len()],
            masks: Arc::clone(masks),
            grants: grants.to_vec(),
        }
    }

    /// Gives the group of a span its ways, while it is frozen.
    fn fill(&mut self, span: usize) -> Result<(), Lost> {
        let Some(Some((place, text))) = self.masks.spans.get(span) else {
            return Ok(());
        };
        let (file, written) = (self.masks.files.get(*place), self.written.get_mut(*place));
        let (Some(file), Some(written)) = (file, written) else {
            return Ok(());
        };
        if *written != Some(span) {
            rustix::io::pwrite(file, text.as_bytes(), 0).map_err(|_| Lost::Masks)?;
            *written = Some(span);
        }
        Ok(())
    }

    /// The budgets of a group's windows.
    fn grants(&self, place: usize) -> Option<&Grants> {
        self.grants.get(place)?.as_deref()
    }

    fn freeze(&self, post: &Post, place: usize) -> Result<(), Lost> {
        if let Some(grants) = self.grants(place) {
            grants.close();
        }
        let gate = self.gates.get(place).ok_or(Lost::Gate)?;
        gate.set(true).map_err(|_| Lost::Gate)?;
        post.permitted()
    }

    /// Gives the group whose window is next its budget. Its brakes get the CPU while the dispatcher
    /// sleeps in its guard.
    fn announce(&self, switch: Switch) {
        if let Some(grants) = switch.go.and_then(|new| self.grants(new)) {
            grants.open(switch.at);
        }
    }

    /// Leaves the CPU to the tasks of a group that reach the freezer in the kernel, until all have
    /// or `until`.
    fn park(&mut self, place: usize, until: Nanos) {
        let of = self.common.stats.groups.get(place);
        let (Some(gate), Some(of)) = (self.gates.get(place), of) else {
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
        let of = self.common.stats.groups.get(place).ok_or(Lost::Gate)?;
        if let Some(before) = self.used.get(place).copied().flatten()
            && let Some(used) = gate.used()
        {
            let outside = used.since(before).0;
            of.outside.fetch_add(outside, Ordering::Relaxed);
            of.outside_most.fetch_max(outside, Ordering::Relaxed);
            of.accounted.store(true, Ordering::Relaxed);
        }
        gate.set(false).map_err(|_| Lost::Gate)?;
        let resumed = &self.common.progress.resumed;
        resumed.store(switch.at.0, Ordering::Release);
        spin(|now| now >= switch.at);
        self.common.begun(place, switch);
        of.windows.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

impl Duty for Windows {
    fn dispatch(&mut self, post: &Post) -> Result<(), Lost> {
        for place in 0..self.gates.len() {
            self.freeze(post, place)?;
        }
        let stats = Arc::clone(&self.common.stats);
        let before = stats.skipped.load(Ordering::Relaxed);
        let mut dispatch = Dispatch::new(&self.common.frame, rt::now());
        while post.sleep_until(dispatch.due())? {
            let taken = rt::now();
            let switch = dispatch.take(taken);
            if let Some(old) = switch.stop {
                self.freeze(post, old)?;
                let stopped = &self.common.progress.stopped;
                stopped.store(switch.at.0, Ordering::Release);
                self.announce(switch);
                self.park(old, self.common.middle(switch));
                if let Some(of) = stats.groups.get(old) {
                    of.ended.note(taken.since(switch.at));
                }
            }
            if let Some(new) = switch.go {
                self.fill(switch.span)?;
                if switch.stop.is_none() {
                    self.announce(switch);
                }
                nap(self.common.middle(switch));
                self.resume(new, switch)?;
            }
            stats.switches.fetch_add(1, Ordering::Relaxed);
            let skipped = before + dispatch.skipped();
            stats.skipped.store(skipped, Ordering::Relaxed);
        }
        Ok(())
    }

    fn let_go(&mut self) {
        self.grants.iter().flatten().for_each(|g| g.close());
        for gate in &self.gates {
            let _ = gate.set(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use quell_control::config::Span;
    use quell_types::cpuset::CpuSet;

    use super::*;

    /// What two dispatchers of a frame with one window share.
    fn common() -> Common {
        let (length, guard) = (Nanos::millis(10), Nanos::millis(2));
        let frame = Frame::new(CpuSet::from_iter([1, 2]), length, guard, &[], None);
        let stats = Arc::new(Stats::new(1));
        Common::new(&frame, &stats)
    }

    #[test]
    fn a_follower_waits_for_the_dispatcher_a_guard_at_most() {
        let common = common();
        let begins = |stopped, resumed| {
            let at = rt::now().plus(Nanos::millis(3));
            let at_or_never = |is| if is { at.0 } else { 0 };
            let progress = &common.progress;
            progress
                .stopped
                .store(at_or_never(stopped), Ordering::Release);
            progress
                .resumed
                .store(at_or_never(resumed), Ordering::Release);
            Follower::new(common.clone()).follow(Switch {
                at,
                span: 0,
                stop: Some(0),
                go: Some(0),
            });
            rt::now().since(at)
        };
        let guard = common.frame.guard;
        // Where the dispatcher has stopped the old group and resumed the new one, nothing is
        // waited for but the time. One that has not is given a guard.
        let mut in_time = begins(true, true);
        for _ in 0..20 {
            in_time = in_time.min(begins(true, true));
        }
        assert!(in_time < guard, "{in_time}");
        assert!(begins(true, false) >= guard && begins(false, true) >= guard);
        assert!(common.stats.counts().late >= 2);
    }

    #[test]
    fn masks_are_written_where_they_change() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("schemata");
        let masks = WayMasks {
            files: vec![File::create(&path).unwrap()],
            spans: vec![
                Some((0, "L3:0=f\n".to_owned())),
                None,
                Some((0, "L3:0=3\n".to_owned())),
            ],
        };
        let mut windows = Windows::new(common(), Vec::new(), &Arc::new(masks), &[]);
        let read = || std::fs::read_to_string(&path).unwrap();
        windows.fill(0).unwrap();
        assert_eq!(read(), "L3:0=f\n");
        // Not again before another span of the group.
        std::fs::write(&path, "").unwrap();
        windows.fill(1).unwrap();
        windows.fill(0).unwrap();
        assert_eq!(read(), "");
        windows.fill(2).unwrap();
        assert_eq!(read(), "L3:0=3\n");
        windows.fill(0).unwrap();
        assert_eq!(read(), "L3:0=f\n");
    }

    #[test]
    fn figures_have_the_names_of_the_groups() {
        let (length, guard) = (Nanos::millis(10), Nanos::micros(200));
        let window = Span {
            start: Nanos(0),
            end: Nanos::millis(4),
            group: Some("control".to_owned()),
            ..Span::default()
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
