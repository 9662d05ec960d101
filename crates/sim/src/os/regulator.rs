//! The regulators of the operating system: budgets, counters and their interrupts, the timer of
//! pooled budgets, stopped groups.
//!
//! Method:
//! - A regulator belongs to one group on one core. So several groups can be regulated on one core.
//! - It counts what the group's tasks move there. The counters are saved and restored as tasks
//!   change, as perf does for the events of a cgroup.
//! - The counters are armed with what is left of the budget.
//! - After an overflow the interrupt comes with a delay. The core continues meanwhile, so there is
//!   overshoot as on hardware.
//! - The handler asks the regulator and stops the group. The group's tasks leave the core until the
//!   stop is over. Other tasks of the core run meanwhile.
//!
//! Deviations from Linux, where a thread of the group takes the core from the group's tasks:
//! - The group stops when the handler decides: no thread has to wake up, and no task is inside a
//!   system call.
//! - A stopped group does not use up its share of the core: other tasks have all of the time of the
//!   stop.
//! - A task of the group with a priority is stopped, too.
//! - When a stop is over, one of the group's tasks preempts the current task if that has no
//!   priority. The preempted task runs next, for the rest of its slice.
//! - A stop is not interrupted for kernel workers (`regulator.longest`): there are none.
//! - A period of pooled budgets begins on all their cores in the same instant. Each core loses the
//!   time of an interrupt for each of its groups.

use std::cmp::Reverse;

use quell_control::Regulator;
use quell_control::bandwidth::Verdict;
use quell_control::config::LineCounts;
use quell_control::config::Meter;
use quell_control::config::Regulation;
use quell_control::pool::Pool;
use quell_control::pooled::Pooled;
use quell_control::split::ByDemand;
use quell_record::events::Decision;
use quell_types::cpuset::CpuSet;
use quell_types::options::Split;
use quell_types::units::{Lines, Nanos};

use super::{Due, Os, PS, TaskId};
use crate::machine::{Armed, CoreCounts};

/// What the regulator of a group on a core has done since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttled {
    /// How many budgets were used up.
    pub overflows: u64,
    /// How often the group was stopped.
    pub throttles: u64,
    /// Nanoseconds during which the group was stopped.
    pub throttled_ns: u64,
    /// Lines counted until the last interrupt.
    pub lines: u64,
    /// What went through the pool. `None` for a budget that is not pooled.
    pub pooled: Option<Pooled>,
}

/// A group that is regulated on a core.
#[derive(Debug)]
pub(super) struct Regulated {
    regulator: Regulator,
    meter: Meter,
    /// Since when it has been stopped. `None` while it may run.
    stopped: Option<Nanos>,
    /// What its tasks did on the core until the last of them was taken off it.
    counts: CoreCounts,
    /// The core's counters when one of its tasks was put on it. `None` while none is on it.
    since: Option<CoreCounts>,
    /// At which of its own counts an interrupt comes.
    armed: Armed,
    /// What its tasks had drawn beyond their budgets when its last window ended.
    owed: Lines,
    did: Throttled,
    decisions: Vec<Decision>,
}

impl Regulated {
    /// What its tasks have done on the core by the time at which the core's counters read `now`.
    fn counts(&self, now: CoreCounts) -> CoreCounts {
        let running = self.since.map(|since| now.since(since));
        self.counts.plus(running.unwrap_or_default())
    }
}

/// A group's budget that is split repeatedly over its cores, by demand.
#[derive(Debug)]
pub(super) struct Splits {
    class: u8,
    cores: Vec<usize>,
    by: ByDemand,
}

impl Os {
    /// Regulates the tasks of `class` on the cores of `regulation` from now on. Where they are
    /// regulated already, the new budget replaces the old one.
    pub fn regulate(&mut self, class: u8, regulation: &Regulation) {
        let now = self.now();
        let cores = self.cores_of(&regulation.cpus);
        let first = self.pooled().is_empty();
        for core in cores.iter().copied() {
            self.leave(core, class);
            let counts = self.machine.counts(core);
            let regulated = Regulated {
                regulator: Regulator::new(regulation, now, LineCounts::default()),
                meter: regulation.meter,
                stopped: None,
                counts: CoreCounts::default(),
                since: (self.running(core) == Some(class)).then_some(counts),
                armed: Armed::default(),
                owed: Lines(0),
                did: Throttled::default(),
                decisions: Vec::new(),
            };
            self.cores[core].regulated.insert(class, regulated);
            if regulation.pooling.is_none() {
                self.arm(core, class, Some(regulation.budgets()));
            }
        }
        if regulation.pooling.is_some() {
            if first {
                self.events.push(Reverse((self.now, Due::Period)));
            }
            cores.iter().for_each(|core| self.join(*core, class));
        }
        if regulation.split == Split::Demand && cores.len() > 1 {
            let total = Lines(regulation.budget.0.saturating_mul(cores.len() as u64));
            let used = cores.iter().map(|core| self.used(*core, class).lines);
            let used = used.collect();
            let by = ByDemand::new(total, regulation.least, regulation.period, now, used);
            let due = Due::Split(self.splits.len());
            self.events.push(Reverse((by.next().0 * PS, due)));
            self.splits.push(Splits { class, cores, by });
        }
    }

    /// The budgets of `regulation` begin anew for `class`: its first periods begin now. What its
    /// regulators did so far is kept, and what was drawn beyond the last budgets is owed.
    pub(super) fn renew_budget(&mut self, class: u8, regulation: &Regulation) {
        let now = self.now();
        for core in self.cores_of(&regulation.cpus) {
            let used = self.used(core, class);
            let Some(regulated) = self.cores[core].regulated.get_mut(&class) else {
                let cpus = u32::try_from(core).into_iter().collect();
                let of = regulation.clone();
                self.regulate(class, &Regulation { cpus, ..of });
                continue;
            };
            let owed = std::mem::take(&mut regulated.owed);
            let base = LineCounts::from(Lines(used.lines.0.saturating_sub(owed.0)));
            regulated.regulator = Regulator::new(regulation, now, base);
            let what = regulated.regulator.begin(now, used, &self.pool);
            if let Verdict::NewPeriod(lines) = what {
                self.arm(core, class, Some(lines.into()));
            }
        }
    }

    /// `class` has no budget until it gets another one. A stop of it is over.
    pub(super) fn suspend_budget(&mut self, class: u8) {
        let now = self.now();
        for core in 0..self.cores.len() {
            let used = self.used(core, class);
            self.arm(core, class, None);
            let Some(regulated) = self.cores[core].regulated.get_mut(&class) else {
                continue;
            };
            regulated.owed = regulated.regulator.debt(now, used);
            if let Some(since) = regulated.stopped.take() {
                regulated.did.throttled_ns += now.since(since).0;
            }
        }
    }

    /// `class` may move so many lines per period on each of these cores from now on. Where their
    /// sum is split by demand, the new sum is split.
    pub fn set_budget(&mut self, class: u8, cpus: &CpuSet, budget: Lines) {
        let cores = self.cores_of(cpus);
        for core in &cores {
            if let Some(regulated) = self.cores[*core].regulated.get_mut(&class) {
                regulated.regulator.set_budget(budget.into());
            }
        }
        let splits = self.splits.iter_mut();
        for splits in splits.filter(|s| s.class == class && s.cores == cores) {
            let total = budget.0.saturating_mul(cores.len() as u64);
            splits.by.set_total(Lines(total));
        }
    }

    fn cores_of(&self, cpus: &CpuSet) -> Vec<usize> {
        let cores = cpus.iter().filter_map(|cpu| usize::try_from(cpu).ok());
        cores.filter(|core| *core < self.cores.len()).collect()
    }

    /// Removes the regulator of a group on a core, if there is one. Its stop is over.
    fn leave(&mut self, core: usize, class: u8) {
        let Some(mut old) = self.cores[core].regulated.remove(&class) else {
            return;
        };
        old.regulator.leave(&self.pool);
        if old.stopped.is_some() {
            self.put_back(core, class);
        }
    }

    /// Whether a task's group is stopped on its core.
    pub(super) fn is_stopped(&self, id: TaskId) -> bool {
        let regulated = self.tasks.get(&id).and_then(|task| {
            let core = &self.cores[task.core];
            core.regulated.get(&task.class)
        });
        regulated.is_some_and(|r| r.stopped.is_some())
    }

    /// A task was put on a core: its group's counters start.
    pub(super) fn start_counting(&mut self, core: usize, id: TaskId) {
        let now = self.machine.counts(core);
        let class = self.tasks.get(&id).map(|task| task.class);
        let regulated = class.and_then(|class| self.cores[core].regulated.get_mut(&class));
        let armed = regulated.map(|regulated| {
            regulated.since = Some(now);
            let counts = regulated.counts;
            let left = |at: Option<u64>, now: u64| at.map(|at| at.saturating_sub(now));
            Armed {
                read: left(regulated.armed.read, counts.lines()),
                written: left(regulated.armed.written, counts.writebacks),
                moved: left(regulated.armed.moved, counts.moved()),
            }
        });
        self.machine.arm(core, armed.unwrap_or_default());
    }

    /// A task is taken off a core: its group's counters stop.
    pub(super) fn stop_counting(&mut self, core: usize, id: TaskId) {
        let now = self.machine.counts(core);
        let class = self.tasks.get(&id).map(|task| task.class);
        if let Some(regulated) = class.and_then(|class| self.cores[core].regulated.get_mut(&class))
        {
            regulated.counts = regulated.counts(now);
            regulated.since = None;
        }
        self.machine.arm(core, Armed::default());
    }

    /// The groups with pooled budgets, each with its core.
    fn pooled(&self) -> Vec<(usize, u8)> {
        let all = self.cores.iter().enumerate();
        let all = all.flat_map(|(core, this)| this.regulated.iter().map(move |r| (core, r)));
        let pooled = |r: &Regulated| matches!(r.regulator, Regulator::Pooled(_));
        all.filter_map(|(core, (class, r))| pooled(r).then_some((core, *class)))
            .collect()
    }

    /// What the regulator of `class` on a core has done, and its decisions since the last call.
    pub fn throttled(&mut self, core: usize, class: u8) -> Option<(Throttled, Vec<Decision>)> {
        let now = self.now();
        let regulated = self.cores.get_mut(core)?.regulated.get_mut(&class)?;
        let mut did = regulated.did;
        if let Some(since) = regulated.stopped {
            did.throttled_ns += now.since(since).0;
        }
        did.pooled = regulated.regulator.did();
        Some((did, std::mem::take(&mut regulated.decisions)))
    }

    /// Whether reads and writes of `class` have separate budgets on a core.
    #[must_use]
    pub fn regulates_directions(&self, core: usize, class: u8) -> bool {
        let core = self.cores.get(core);
        let regulated = core.and_then(|core| core.regulated.get(&class));
        regulated.is_some_and(|r| matches!(r.regulator, Regulator::Directions(_)))
    }

    /// The counts that the regulator of a group on a core is based on.
    fn used(&self, core: usize, class: u8) -> LineCounts {
        let Some(regulated) = self.cores[core].regulated.get(&class) else {
            return LineCounts::default();
        };
        let counts = regulated.counts(self.machine.counts(core));
        let (read, written) = (Lines(counts.lines()), Lines(counts.writebacks));
        match regulated.meter {
            Meter::Directions { .. } => LineCounts {
                lines: read,
                writes: written,
            },
            Meter::Writes => written.into(),
            Meter::Hardware if self.counts_writes => Lines(counts.moved()).into(),
            Meter::Hardware | Meter::Time | Meter::Reads => read.into(),
        }
    }

    /// Requests an interrupt after so many more lines of the group's tasks on a core. Without
    /// `lines`, never.
    fn arm(&mut self, core: usize, class: u8, lines: Option<LineCounts>) {
        let counts_writes = self.counts_writes;
        let now = self.machine.counts(core);
        let Some(regulated) = self.cores[core].regulated.get_mut(&class) else {
            return;
        };
        let first = lines.map(|lines| lines.lines.0);
        let mut armed = Armed::default();
        match regulated.meter {
            Meter::Directions { .. } => {
                (armed.read, armed.written) = (first, lines.map(|lines| lines.writes.0));
            }
            Meter::Writes => armed.written = first,
            Meter::Hardware if counts_writes => armed.moved = first,
            Meter::Hardware | Meter::Time | Meter::Reads => armed.read = first,
        }
        let counts = regulated.counts(now);
        let at = |lines: Option<u64>, now: u64| lines.map(|lines| now.saturating_add(lines.max(1)));
        regulated.armed = Armed {
            read: at(armed.read, counts.lines()),
            written: at(armed.written, counts.writebacks),
            moved: at(armed.moved, counts.moved()),
        };
        if regulated.since.is_some() {
            self.machine.arm(core, armed);
        }
    }

    /// A counter of the group on a core has overflowed: its interrupt is on the way.
    pub(super) fn overflowed(&mut self, core: usize) {
        let class = self.running(core);
        let Some(class) = class.filter(|c| self.cores[core].regulated.contains_key(c)) else {
            return;
        };
        if let Some(regulated) = self.cores[core].regulated.get_mut(&class) {
            regulated.armed = Armed::default();
        }
        let at = self.now + self.costs.interrupt_delay.0 * PS;
        self.events.push(Reverse((at, Due::Interrupt(core, class))));
    }

    /// The handler of a counter's interrupt.
    pub(super) fn interrupt(&mut self, core: usize, class: u8) {
        self.charge(core);
        let (now, used) = (self.now(), self.used(core, class));
        let delay = self.costs.interrupt_delay;
        let Some(regulated) = self.cores[core].regulated.get_mut(&class) else {
            return;
        };
        regulated.did.overflows += 1;
        regulated.did.lines = used.sum().0;
        let before = self.pool.period();
        let what = regulated.regulator.overflow(now, used, &self.pool);
        regulated.decisions.push(Decision {
            at: now,
            used: used.sum(),
            what,
            reaction: Some((delay, false)),
        });
        let alone = !matches!(regulated.regulator, Regulator::Pooled(_));
        self.follow(core, class, what);
        let period = self.pool.period();
        if !alone && (period != before || self.pool.is_free(period)) {
            for other in self.pooled() {
                if other != (core, class) {
                    self.join(other.0, other.1);
                }
            }
        }
    }

    /// Carries out what a regulator has decided.
    fn follow(&mut self, core: usize, class: u8, what: Verdict) {
        let (now, used) = (self.now(), self.used(core, class));
        let busy = self.now + self.costs.interrupt.0 * PS;
        let Some(regulated) = self.cores[core].regulated.get_mut(&class) else {
            return;
        };
        let lines = match what {
            Verdict::Rearm(lines) | Verdict::NewPeriod(lines) => Some(lines),
            Verdict::RunFreeUntil(_) => None,
            Verdict::ThrottleUntil(until) => {
                // The pool continues a pooled budget.
                if !matches!(regulated.regulator, Regulator::Pooled(_)) {
                    let at = (until.0 * PS).max(busy);
                    self.events.push(Reverse((at, Due::Release(core, class))));
                }
                if regulated.stopped.is_none() {
                    regulated.did.throttles += 1;
                    regulated.stopped = Some(now);
                    self.leave_core(core, class);
                }
                self.machine.delay(core, busy);
                return;
            }
        };
        let lines = lines.map(|lines| regulated.regulator.armed(lines, used));
        let stopped = regulated.stopped.take();
        if let Some(since) = stopped {
            regulated.did.throttled_ns += now.since(since).0;
        }
        self.arm(core, class, lines);
        if stopped.is_some() {
            self.put_back(core, class);
        } else {
            self.machine.delay(core, busy);
        }
    }

    /// A group is stopped on a core. Its task, if one is there, is replaced by a task of another
    /// group.
    fn leave_core(&mut self, core: usize, class: u8) {
        if self.running(core) == Some(class) {
            self.take_off(core, true);
            self.dispatch(core);
        }
    }

    /// A group's stop is over: the first of its tasks that wait for the core is resumed.
    fn put_back(&mut self, core: usize, class: u8) {
        let current = self.cores[core].current.and_then(|id| self.tasks.get(&id));
        let preempts = current.is_some_and(|t| t.class != class && t.priority.is_none());
        let mut queue = self.cores[core].queue.iter();
        let of_class = |id: &&TaskId| self.tasks.get(id).is_some_and(|t| t.class == class);
        let first = queue.find(|id| of_class(id) && self.may_run(**id)).copied();
        if let Some(first) = first.filter(|_| preempts) {
            self.preempt(core);
            let queue = &mut self.cores[core].queue;
            queue.retain(|id| *id != first);
            queue.push_front(first);
        }
        if self.cores[core].current.is_none() {
            self.dispatch(core);
        } else {
            self.slice(core);
        }
    }

    /// Ends the stop of a group on a core.
    pub(super) fn release(&mut self, core: usize, class: u8) {
        let (now, used) = (self.now(), self.used(core, class));
        let Some(regulated) = self.cores[core].regulated.get_mut(&class) else {
            return;
        };
        let what = regulated.regulator.begin(now, used, &self.pool);
        self.follow(core, class, what);
    }

    /// A pooled group learns on a core what has become of the period: a new one has begun, or all
    /// groups may run.
    fn join(&mut self, core: usize, class: u8) {
        self.charge(core);
        let (now, used) = (self.now(), self.used(core, class));
        let Some(regulated) = self.cores[core].regulated.get_mut(&class) else {
            return;
        };
        let what = regulated.regulator.begin(now, used, &self.pool);
        // The record has a period only where it ends or begins a stop.
        if regulated.stopped.is_some() || !matches!(what, Verdict::Rearm(_) | Verdict::NewPeriod(_))
        {
            regulated.decisions.push(Decision {
                at: now,
                used: used.sum(),
                what,
                reaction: None,
            });
        }
        self.follow(core, class, what);
    }

    /// The timer of the pool: a period is over, unless one began early meanwhile.
    pub(super) fn period(&mut self) {
        let now = self.now();
        let pooled = self.pooled();
        let end = |os: &Self| {
            let (core, class) = pooled.first()?;
            let regulated = os.cores[*core].regulated.get(class)?;
            regulated.regulator.period().map(|(_, end)| end)
        };
        if end(self).is_some_and(|end| now >= end) {
            for (core, class) in &pooled {
                self.join(*core, *class);
            }
        }
        if let Some(end) = end(self) {
            let at = (end.0 * PS).max(self.now + 1);
            self.events.push(Reverse((at, Due::Period)));
        }
    }

    /// Splits a group's budget again over its cores.
    pub(super) fn split(&mut self, which: usize) {
        let now = self.now();
        let Some(splits) = self.splits.get(which) else {
            return;
        };
        let class = splits.class;
        let used = splits
            .cores
            .iter()
            .map(|core| self.used(*core, class).lines);
        let used = used.collect();
        let budget = |core: &usize| {
            let regulated = self.cores[*core].regulated.get(&class);
            regulated.map_or(Lines(0), |r| r.regulator.budget().lines)
        };
        let budgets: Vec<Lines> = splits.cores.iter().map(budget).collect();
        let splits = &mut self.splits[which];
        let parts = splits.by.step(now, used, &budgets);
        for (core, part) in splits.cores.iter().zip(parts) {
            if let Some(regulated) = self.cores[*core].regulated.get_mut(&class) {
                regulated.regulator.set_budget(part.into());
            }
        }
        let next = splits.by.next().0 * PS;
        self.events.push(Reverse((next, Due::Split(which))));
    }
}
