//! The small operating system of the simulated machine: tasks on cores, their memory, and the
//! regulator's interrupt handler.
//!
//! Method: each core has a queue of tasks and serves them in turn by time slices. Tasks with a
//! priority go before those without, and run until they sleep, as under SCHED_FIFO. A task sleeps
//! until its next unit of work is due, without the latency of a timer. How groups are regulated:
//! [`regulator`]. What the kernel itself does: [`kernel`].
//!
//! Deviations from Linux:
//! - A task never leaves its core: of the allowed ones, the core with the fewest tasks.
//! - Slices are equal, whatever a task has had before.
//! - A task that wakes preempts one without a priority at once.
//! - There is no other kernel work, and the only interrupts are those of the counters and, where
//!   the profile has them, of timers.

mod classes;
mod kernel;
mod quota;
mod regulator;
mod windows;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use quell_control::pool::SharedPool;
use quell_model::{Invalid, Picos};
use quell_types::cpuset::CpuSet;
use quell_types::units::Nanos;

use crate::access::LINE;
use crate::board::{Board, Costs};
use crate::frames::{Frames, Placement, Refused, Space};
use crate::machine::{Counts, Machine, Program, Raised, Unit};
use crate::pattern::Pattern;
use classes::Classes;
use kernel::Kernel;
use quota::Quota;
pub use regulator::Throttled;
use regulator::{Regulated, Splits};
pub use windows::Granted;
use windows::Windows;

/// Picoseconds of a nanosecond.
const PS: Picos = 1_000;

/// Numbers a task; never used twice between two boots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(u32);

/// The reason why [`Os::run`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A task has done all its accesses. It holds its core until it gets more or is put to sleep.
    Finished(TaskId),
    /// The time of the alarm with this key has come.
    Alarm(u64),
    /// A watched task ([`Os::watch`]) runs again.
    Runs(TaskId),
}

/// The order of the variants is the order of events at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Interrupt(usize, u8),
    Release(usize, u8),
    Period,
    Split(usize),
    Window,
    Wake(TaskId),
    Quota(u8),
    Refill(u8),
    Slice(usize),
    Tick(usize),
    Alarm(u64),
}

#[derive(Debug)]
struct Task {
    core: usize,
    class: u8,
    priority: Option<u32>,
    /// Its program while it is not on its core.
    program: Option<Program>,
    watched: bool,
    /// Until when it sleeps because its next unit of work is not due.
    wakes: Option<Picos>,
    /// How much of its slice it had used when it was last taken off its core.
    ran: Picos,
    /// Bytes of its memory that are locked, and the cache level (from 0).
    locked: Option<(u64, usize)>,
}

impl Task {
    /// Asleep on `core`.
    fn new(core: usize, class: u8, priority: Option<u32>, program: Program) -> Self {
        Self {
            core,
            class,
            priority,
            program: Some(program),
            watched: false,
            wakes: None,
            ran: 0,
            locked: None,
        }
    }
}

#[derive(Debug, Default)]
struct Core {
    current: Option<TaskId>,
    /// The task that ran last, so that caches and registers are its own.
    last: Option<TaskId>,
    queue: VecDeque<TaskId>,
    sliced: bool,
    /// When its current task was put on it.
    began: Picos,
    /// Until when its current task's time has been charged to a quota.
    charged: Picos,
    /// The groups that are regulated here, by class.
    regulated: BTreeMap<u8, Regulated>,
    tasks: u32,
}

/// The machine with its operating system.
#[derive(Debug)]
pub struct Os {
    machine: Machine,
    frames: Frames,
    costs: Costs,
    now: Picos,
    cores: Vec<Core>,
    classes: Classes,
    quotas: BTreeMap<u8, Quota>,
    windows: Option<Windows>,
    /// `None`: the kernel's own work is not modelled.
    kernel: Option<Kernel>,
    /// Whether a budget for both directions also counts lines written back.
    counts_writes: bool,
    pool: SharedPool,
    splits: Vec<Splits>,
    tasks: BTreeMap<TaskId, Task>,
    born: u32,
    events: BinaryHeap<Reverse<(Picos, Due)>>,
    notices: VecDeque<Notice>,
}

impl Os {
    /// Boots `board`: nothing runs, and memory is free.
    ///
    /// # Errors
    /// For a board that describes an impossible machine.
    pub fn boot(board: &Board, seed: u64) -> Result<Self, Invalid> {
        let machine = Machine::new(&board.description)?;
        let cores = (0..machine.cores()).map(|_| Core::default()).collect();
        let large = board.profile.tlb.large_page.0;
        let mut os = Self {
            machine,
            frames: Frames::of(board.memory(), large, board.profile.os.frames, seed),
            costs: board.costs,
            now: 0,
            cores,
            classes: Classes::new(&board.description.levels),
            quotas: BTreeMap::new(),
            windows: None,
            kernel: None,
            counts_writes: board.profile.counters.writes,
            pool: SharedPool::new(Nanos(0)),
            splits: Vec::new(),
            tasks: BTreeMap::new(),
            born: 0,
            events: BinaryHeap::new(),
            notices: VecDeque::new(),
        };
        let started = os.start_kernel(&board.profile.os, seed);
        started.map_err(|refused| Invalid {
            what: "the kernel's memory".to_owned(),
            reason: refused.to_string(),
        })?;
        Ok(os)
    }

    /// A number for a new task.
    fn next_id(&mut self) -> TaskId {
        self.born += 1;
        TaskId(self.born)
    }

    /// The time since booting.
    #[must_use]
    pub fn now(&self) -> Nanos {
        Nanos(self.now / PS)
    }

    /// Takes memory for a program.
    ///
    /// # Errors
    /// When it cannot be had.
    pub fn allocate(&mut self, bytes: u64, placement: &Placement) -> Result<Space, Refused> {
        self.frames.allocate(bytes, placement)
    }

    /// A new task of `class` ([`Os::class`]) on one of the cores `allowed`, asleep. `None` if none
    /// of them exists. Its memory (`bytes` of `space`) has been touched, which takes no time.
    pub fn spawn(
        &mut self,
        allowed: &CpuSet,
        priority: Option<u32>,
        class: u8,
        (pattern, space): (Pattern, Space),
        bytes: u64,
        write: bool,
    ) -> Option<TaskId> {
        let cores = allowed.iter().filter_map(|cpu| usize::try_from(cpu).ok());
        let core = cores
            .filter(|core| *core < self.cores.len())
            .min_by_key(|core| (self.cores[*core].tasks, *core))?;
        self.machine.touch(core, class, &space, bytes, write);
        let id = self.next_id();
        let mut program = Program::endless(pattern, space, class);
        program.until = 0;
        program.number = u16::try_from(id.0 & 0xffff).unwrap_or(0);
        self.cores[core].tasks += 1;
        self.tasks
            .insert(id, Task::new(core, class, priority, program));
        Some(id)
    }

    /// The core that a task was put on.
    #[must_use]
    pub fn core_of(&self, id: TaskId) -> Option<usize> {
        self.tasks.get(&id).map(|task| task.core)
    }

    /// Accesses that a task has done; 0 for an unknown task.
    #[must_use]
    pub fn done(&self, id: TaskId) -> u64 {
        self.counts(id).accesses
    }

    /// What a task has done so far; zeros for an unknown task.
    #[must_use]
    pub fn counts(&self, id: TaskId) -> Counts {
        let Some(task) = self.tasks.get(&id) else {
            return Counts::default();
        };
        match &task.program {
            Some(program) => program.counts(),
            None => self
                .machine
                .program_counts(task.core, self.now)
                .unwrap_or_default(),
        }
    }

    /// How many memory channels there are.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.machine.dram().channels().len()
    }

    /// The bytes of a task's memory, and how many of them lie in caches of its core now. Zeros for
    /// an unknown task.
    #[must_use]
    pub fn memory_of(&self, id: TaskId) -> (u64, u64) {
        let program = self.tasks.get(&id).and_then(|task| {
            let away = task.program.as_ref();
            Some((task.core, away.or_else(|| self.machine.program(task.core))?))
        });
        let Some((core, program)) = program else {
            return (0, 0);
        };
        let bytes = program.space.bytes();
        let caches = self.machine.caches();
        let cached = |line: &u64| {
            let address = program.space.physical(line * LINE);
            let holds = |address| {
                (0..caches.levels())
                    .any(|level| caches.cache(level, core).slot_of(address).is_some())
            };
            address.is_some_and(holds)
        };
        let lines = (0..bytes / LINE).filter(cached).count() as u64;
        (bytes, lines * LINE)
    }

    /// Takes the units of work that a task has ended since the last call. A unit has ended when the
    /// task comes to the next one.
    pub fn take_units(&mut self, id: TaskId) -> Vec<Unit> {
        let Some(task) = self.tasks.get_mut(&id) else {
            return Vec::new();
        };
        let program = match &mut task.program {
            Some(program) => Some(program),
            None => self.machine.program_mut(task.core),
        };
        program.map(Program::take_units).unwrap_or_default()
    }

    /// The accesses that a task makes, to give it more of them. `None` for an unknown task.
    pub fn pattern_mut(&mut self, id: TaskId) -> Option<&mut Pattern> {
        let task = self.tasks.get_mut(&id)?;
        let program = match &mut task.program {
            Some(program) => Some(program),
            None => self.machine.program_mut(task.core),
        };
        program.map(|program| &mut program.pattern)
    }

    /// Wakes a task, or resumes one that has finished, until it has done `until` accesses.
    pub fn go_on(&mut self, id: TaskId, until: u64) {
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        let core = task.core;
        if self.cores[core].current == Some(id) {
            self.machine.go_on(core, until, self.now);
            return;
        }
        if let Some(program) = &mut task.program {
            program.until = until;
        }
        if task.wakes.is_none() && !self.cores[core].queue.contains(&id) {
            self.wake(id);
        }
    }

    /// Puts a sleeping task on its core, or into the queue for it.
    fn wake(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        task.wakes = None;
        let core = task.core;
        let (priority, current) = (task.priority, self.cores[core].current);
        // The kernel's work is done first, and counts as what it interrupted.
        let kernel = current.is_some_and(|id| self.is_kernel(id));
        let rival = if kernel {
            self.cores[core].queue.front().copied()
        } else {
            current
        };
        let rival = rival.and_then(|id| self.tasks.get(&id));
        let goes_first = self.may_run(id)
            && rival.is_none_or(|other| other.priority.is_none() || priority > other.priority);
        if goes_first && kernel {
            self.cores[core].queue.push_front(id);
        } else if goes_first {
            self.take_off(core, true);
            self.cores[core].queue.push_front(id);
            self.dispatch(core);
        } else {
            self.cores[core].queue.push_back(id);
            self.slice(core);
        }
    }

    /// Puts a task to sleep.
    pub fn sleep(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        task.wakes = None;
        let core = task.core;
        self.cores[core].queue.retain(|other| *other != id);
        if self.cores[core].current == Some(id) {
            self.take_off(core, false);
            self.dispatch(core);
        }
    }

    /// Ends a task and frees its memory.
    pub fn end(&mut self, id: TaskId) {
        self.sleep(id);
        if let Some(task) = self.tasks.remove(&id) {
            self.cores[task.core].tasks -= 1;
            if let Some(program) = task.program {
                if let Some((bytes, level)) = task.locked {
                    self.machine.unlock(task.core, &program.space, bytes, level);
                }
                self.frames.free(&program.space);
            }
        }
        self.notices
            .retain(|n| !matches!(n, Notice::Finished(t) | Notice::Runs(t) if *t == id));
    }

    /// Reports [`Notice::Runs`] when a task that does not run now does so again.
    pub fn watch(&mut self, id: TaskId) {
        if let Some(task) = self.tasks.get_mut(&id) {
            task.watched = true;
        }
    }

    /// Reports [`Notice::Alarm`] at a time since booting.
    pub fn alarm(&mut self, at: Nanos, key: u64) {
        let at = at.0.saturating_mul(PS).max(self.now);
        self.events.push(Reverse((at, Due::Alarm(key))));
    }

    /// Runs until `until` (a time since booting) or until there is something to report.
    pub fn run(&mut self, until: Nanos) -> Option<Notice> {
        let until = until.0.saturating_mul(PS);
        loop {
            if let Some(notice) = self.notices.pop_front() {
                return Some(notice);
            }
            let next = self.events.peek().map(|Reverse((at, _))| *at);
            let end = next.map_or(until, |at| at.min(until));
            match self.machine.run(end) {
                Some(Raised::Overflow { core, at }) => {
                    self.now = self.now.max(at);
                    self.overflowed(core);
                }
                Some(Raised::Finished { core, at }) => {
                    self.now = self.now.max(at);
                    match self.cores[core].current {
                        Some(id) if self.is_kernel(id) => self.sleep(id),
                        Some(id) => return Some(Notice::Finished(id)),
                        None => {}
                    }
                }
                Some(Raised::Waits { core, at, until }) => {
                    self.now = self.now.max(at);
                    self.wait(core, until);
                }
                None => {
                    self.now = self.now.max(end);
                    if next.is_none_or(|at| at > end) {
                        return None;
                    }
                    if let Some(Reverse((_, due))) = self.events.pop() {
                        self.happen(due);
                    }
                }
            }
        }
    }

    fn happen(&mut self, due: Due) {
        match due {
            Due::Interrupt(core, class) => self.interrupt(core, class),
            Due::Release(core, class) => self.release(core, class),
            Due::Period => self.period(),
            Due::Split(which) => self.split(which),
            Due::Quota(class) => self.quota_used(class),
            Due::Refill(class) => self.refill(class),
            Due::Window => self.window(),
            Due::Wake(id) => {
                let wakes = self.tasks.get(&id).and_then(|task| task.wakes);
                if wakes.is_some_and(|at| at <= self.now) {
                    if let Some(core) = self.core_of(id) {
                        self.timer(core);
                    }
                    self.wake(id);
                }
            }
            Due::Alarm(key) => self.notices.push_back(Notice::Alarm(key)),
            Due::Slice(core) => self.slice_over(core),
            Due::Tick(core) => self.tick(core),
        }
    }

    /// Ends the slice of a core's current task, unless part of it is left.
    fn slice_over(&mut self, core: usize) {
        self.cores[core].sliced = false;
        let this = &self.cores[core];
        let mut queue = this.queue.iter();
        let next = queue.find(|id| self.may_run(**id));
        let equal = next.and_then(|id| self.tasks.get(id)).map(|t| t.priority);
        let current = this.current.and_then(|id| self.tasks.get(&id));
        let ran = current.map_or(0, |task| task.ran + (self.now - this.began));
        let left = (self.costs.slice.0.max(1) * PS).saturating_sub(ran);
        // Only tasks without a priority take turns.
        if equal == Some(None) && current.is_some_and(|t| t.priority.is_none()) {
            if left > 0 {
                self.slice_in(core, left);
                return;
            }
            self.take_off(core, true);
            self.dispatch(core);
        }
        self.slice(core);
    }

    /// Puts the current task of a core to sleep until its next unit of work is due.
    fn wait(&mut self, core: usize, until: Picos) {
        let Some(id) = self.cores[core].current else {
            return;
        };
        self.take_off(core, false);
        if let Some(task) = self.tasks.get_mut(&id) {
            task.wakes = Some(until);
        }
        self.events.push(Reverse((until, Due::Wake(id))));
        self.dispatch(core);
    }

    /// Lets the tasks of a core take turns as long as one waits.
    fn slice(&mut self, core: usize) {
        if !self.cores[core].queue.is_empty() {
            self.slice_in(core, self.costs.slice.0.max(1) * PS);
        }
    }

    fn slice_in(&mut self, core: usize, left: Picos) {
        if !std::mem::replace(&mut self.cores[core].sliced, true) {
            let at = self.now + left;
            self.events.push(Reverse((at, Due::Slice(core))));
        }
    }

    /// Takes the current task off its core, to the end of the queue if it has more to do. Its slice
    /// is over.
    fn take_off(&mut self, core: usize, more: bool) {
        self.charge(core);
        let Some(id) = self.cores[core].current else {
            return;
        };
        self.stop_counting(core, id);
        let this = &mut self.cores[core];
        this.current = None;
        if more {
            this.queue.push_back(id);
        }
        let program = self.machine.switch(core, None, self.now);
        if let Some(task) = self.tasks.get_mut(&id) {
            task.program = program;
            task.ran = 0;
        }
    }

    /// Takes the current task off its core for tasks that go before it. It gets the rest of its
    /// slice after them.
    fn preempt(&mut self, core: usize) {
        let Some(id) = self.cores[core].current else {
            return;
        };
        let ran = self.now - self.cores[core].began;
        let ran = ran + self.tasks.get(&id).map_or(0, |task| task.ran);
        self.take_off(core, false);
        self.cores[core].queue.push_front(id);
        if let Some(task) = self.tasks.get_mut(&id) {
            task.ran = ran;
        }
    }

    /// Puts the next task on a core that runs none: the first of the highest priority.
    fn dispatch(&mut self, core: usize) {
        let queue = &self.cores[core].queue;
        let priority = |id: &TaskId| self.tasks.get(id).and_then(|t| t.priority);
        let can = |id: &&TaskId| self.may_run(**id);
        let Some(highest) = queue.iter().filter(can).map(priority).max() else {
            return;
        };
        let first = |id: &TaskId| priority(id) == highest && self.may_run(*id);
        let Some(at) = queue.iter().position(first) else {
            return;
        };
        let kernel = highest == Some(kernel::PRIORITY);
        let this = &mut self.cores[core];
        let Some(id) = this.queue.remove(at) else {
            return;
        };
        let switch = if kernel {
            self.costs.interrupt.0 * PS
        } else if this.last == Some(id) {
            0
        } else {
            self.costs.switch.0 * PS
        };
        this.current = Some(id);
        if !kernel {
            this.last = Some(id);
        }
        (this.began, this.charged) = (self.now, self.now);
        let program = self.tasks.get_mut(&id).and_then(|t| t.program.take());
        self.machine.switch(core, program, self.now + switch);
        self.start_counting(core, id);
        self.expect_quota(core);
        self.tell_running(core);
        self.slice(core);
    }

    /// Reports the task that runs again on this core, if it is watched.
    fn tell_running(&mut self, core: usize) {
        let Some(id) = self.cores[core].current.filter(|id| self.runs(*id)) else {
            return;
        };
        if let Some(task) = self.tasks.get_mut(&id).filter(|task| task.watched) {
            task.watched = false;
            self.notices.push_back(Notice::Runs(id));
        }
    }
}
