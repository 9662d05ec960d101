//! Counters of what a program does: cycles, instructions, misses of the last-level cache, loads and
//! stores. They are read next to those of its demand ([`crate::sampler`]), less often, and of
//! processes that take turns after each quantum.
//!
//! They are used only where a trial on the calling thread finds that all of them count, that the
//! first-level ones see nearly all loads that were made, and that the demand's counters lose no
//! time to them.

use std::io;

use quell_control::work::Work;
use quell_kernel::perf::{
    Event, EventCode, HW_CACHE_MISSES, HW_CPU_CYCLES, HW_INSTRUCTIONS, L1D_LOADS, L1D_STORES,
    SW_TASK_CLOCK, Scope, TYPE_HARDWARE, TYPE_HW_CACHE, TYPE_SOFTWARE, Wake,
};

const CLOCK: EventCode = code(TYPE_SOFTWARE, SW_TASK_CLOCK);
const CYCLES: EventCode = code(TYPE_HARDWARE, HW_CPU_CYCLES);
const INSTRUCTIONS: EventCode = code(TYPE_HARDWARE, HW_INSTRUCTIONS);
const MISSES: EventCode = code(TYPE_HARDWARE, HW_CACHE_MISSES);
const LOADS: EventCode = code(TYPE_HW_CACHE, L1D_LOADS);
const STORES: EventCode = code(TYPE_HW_CACHE, L1D_STORES);

/// Loads that the trial makes, and the part of them that must be counted.
const TRIED: usize = 4_000_000;
const LEAST: f64 = 0.8;

const fn code(kind: u32, config: u64) -> EventCode {
    EventCode { kind, config }
}

/// Which events count here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Countable {
    /// Whether stores have an event of their own. On AMD's processors the one of loads has both.
    stores: bool,
}

impl Countable {
    /// Tries all counters, next to those of `demand`. `None` where they cannot be used.
    pub(crate) fn here(demand: &[EventCode]) -> Option<Self> {
        let open = |code: &EventCode| Event::open(*code, Scope::ThisThread, Wake::Never);
        let demand: Vec<Event> = demand.iter().map(open).collect::<io::Result<_>>().ok()?;
        let found = Self {
            stores: open(&STORES).is_ok(),
        };
        let counters = found.open(Scope::ThisThread).ok()?;
        let before = counters.read()?;
        let memory = vec![1u8; 4096];
        for at in 0..TRIED {
            // SAFETY: the index lies within the buffer.
            std::hint::black_box(unsafe { memory.as_ptr().add(at % 4096).read_volatile() });
        }
        let after = counters.read()?;
        let lost = |event: &Event| event.read().map_or(true, |read| !read.running);
        let loads = (after.first_level - before.first_level) as f64 / TRIED as f64;
        let counts = after.cycles > before.cycles
            && after.instructions - before.instructions >= TRIED as u64
            && loads >= LEAST;
        (counts && !demand.iter().any(lost)).then_some(found)
    }

    fn open(self, scope: Scope<'_>) -> io::Result<Counters> {
        let open = |code| Event::open(code, scope, Wake::Never);
        Ok(Counters {
            events: [
                open(CLOCK)?,
                open(CYCLES)?,
                open(INSTRUCTIONS)?,
                open(MISSES)?,
                open(LOADS)?,
            ],
            stores: self.stores.then(|| open(STORES)).transpose()?,
        })
    }

    /// The counters of a thread and its children.
    ///
    /// # Errors
    /// The kernel's, such as ESRCH for a thread that has ended.
    pub(crate) fn of(self, thread: u32) -> io::Result<Counters> {
        self.open(Scope::Thread(thread))
    }
}

/// The counters of one thread.
#[derive(Debug)]
pub(crate) struct Counters {
    /// Time, cycles, instructions, misses and loads.
    events: [Event; 5],
    stores: Option<Event>,
}

impl Counters {
    /// What it has done. `None` where a counter was taken away for a time.
    pub(crate) fn read(&self) -> Option<Work> {
        let value = |event: &Event| {
            let read = event.read().ok()?;
            read.running.then_some(read.value)
        };
        let [cpu_ns, cycles, instructions, memory, loads] = &self.events;
        let stores = self.stores.as_ref().map_or(Some(0), value)?;
        Some(Work {
            cpu_ns: value(cpu_ns)?,
            cycles: value(cycles)?,
            instructions: value(instructions)?,
            memory: value(memory)?,
            first_level: value(loads)? + stores,
        })
    }
}

/// What all of them have done together. `None` where one of them cannot be read.
pub(crate) fn together(all: &[Counters]) -> Option<Work> {
    let mut sum = Work::default();
    for counters in all {
        sum = sum.with(counters.read()?);
    }
    Some(sum)
}
