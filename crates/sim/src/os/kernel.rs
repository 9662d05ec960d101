//! The kernel's own work: timer interrupts.
//!
//! Method: each core has a task for it that goes before all others. A timer interrupt has it read
//! the lines of the kernel's code and data, one after the other, through the caches of the core.
//! Then what was interrupted goes on. There are two kinds of interrupt: the tick of a core that is
//! not idle, and the one that wakes a task whose next unit of work is due.
//!
//! The work is in the class of the task that it interrupts, or in the rest's on an idle core.
//! Linux writes the class of a core when it changes tasks, and not at an interrupt
//! (arch/x86, `__resctrl_sched_in`).
//!
//! Deviations from Linux:
//! - Both kinds go through the same lines. Half of them are code, which all cores share. The other
//!   half are data of the core.
//! - An idle core has no tick, and the tick of a core keeps its phase.

use std::cmp::Reverse;

use quell_model::Picos;
use quell_types::rng::SplitMix;

use super::{Due, Os, PS, Task, TaskId};
use crate::access::LINE;
use crate::frames::{Placement, Refused};
use crate::machine::Program;
use crate::pattern::Pattern;
use crate::profile::OsTimes;

/// The priority of the kernel's work, above those of all programs.
pub(super) const PRIORITY: u32 = u32::MAX;

/// The kernel's work on all cores.
#[derive(Debug)]
pub(super) struct Kernel {
    /// By core: the task of the kernel's work.
    tasks: Vec<TaskId>,
    /// Lines that an interrupt goes through.
    lines: u64,
    /// From one tick to the next.
    tick: Picos,
}

impl Os {
    /// Sets up the kernel's work on all cores, where the profile knows its size. The phases of
    /// ticks are drawn from `seed`.
    ///
    /// # Errors
    /// When memory does not hold the kernel's lines.
    pub(super) fn start_kernel(&mut self, times: &OsTimes, seed: u64) -> Result<(), Refused> {
        let lines = times.kernel.0 / LINE;
        if lines == 0 {
            return Ok(());
        }
        let half = times.kernel.0.div_ceil(2);
        let code = self.frames.allocate(half, &Placement::Plain)?;
        let tick = times.tick.0 * PS;
        let mut phase = SplitMix::new(seed);
        let mut tasks = Vec::new();
        for core in 0..self.cores.len() {
            let data = self.frames.allocate(half, &Placement::Plain)?;
            let pattern = Pattern::latency_in_order(times.kernel.0);
            let mut program = Program::endless(pattern, code.followed_by(&data), 0);
            program.until = 0;
            let id = self.next_id();
            program.number = u16::try_from(id.0 & 0xffff).unwrap_or(0);
            self.tasks
                .insert(id, Task::new(core, 0, Some(PRIORITY), program));
            tasks.push(id);
            if tick > 0 {
                let at = phase.below(tick);
                self.events.push(Reverse((at, Due::Tick(core))));
            }
        }
        self.kernel = Some(Kernel { tasks, lines, tick });
        Ok(())
    }

    /// Whether this task is the kernel's work.
    pub(super) fn is_kernel(&self, id: TaskId) -> bool {
        let kernel = self.kernel.as_ref();
        kernel.is_some_and(|kernel| kernel.tasks.contains(&id))
    }

    /// The timer tick of a core. The next one follows.
    pub(super) fn tick(&mut self, core: usize) {
        if self.cores[core].current.is_some() {
            self.timer(core);
        }
        if let Some(kernel) = &self.kernel {
            let at = self.now + kernel.tick;
            self.events.push(Reverse((at, Due::Tick(core))));
        }
    }

    /// A timer interrupt on a core: the kernel works before anything else goes on there.
    pub(super) fn timer(&mut self, core: usize) {
        let Some(kernel) = &self.kernel else {
            return;
        };
        let (id, lines) = (kernel.tasks[core], kernel.lines);
        let current = self.cores[core].current;
        let done = self.done(id);
        if current == Some(id) {
            // It comes while another one is handled, and is handled after it.
            let until = self.machine.program(core).map_or(done, |p| p.until);
            self.machine.go_on(core, until + lines, self.now);
            return;
        }
        let interrupted = current.and_then(|id| self.tasks.get(&id));
        let class = interrupted.map_or(0, |task| task.class);
        if let Some(task) = self.tasks.get_mut(&id) {
            task.class = class;
            if let Some(program) = &mut task.program {
                program.class = class;
                program.until = done + lines;
            }
        }
        self.preempt(core);
        self.cores[core].queue.push_front(id);
        self.dispatch(core);
    }
}
