//! What the processor counts of the calling thread in user mode. Most virtual machines count
//! nothing.

use quell_kernel::perf::{
    Event, EventCode, HW_CACHE_MISSES, HW_CPU_CYCLES, Scope, TYPE_HARDWARE, Wake,
};

/// An open counter of the calling thread.
#[derive(Debug)]
pub(crate) struct Counted(Event);

impl Counted {
    /// Lines that were fetched past the last-level cache. `None` where there is no counter, or the
    /// kernel does not allow it.
    pub(crate) fn misses() -> Option<Self> {
        Self::open(HW_CACHE_MISSES)
    }

    /// Cycles. `None` as above.
    pub(crate) fn cycles() -> Option<Self> {
        Self::open(HW_CPU_CYCLES)
    }

    fn open(config: u64) -> Option<Self> {
        let code = EventCode {
            kind: TYPE_HARDWARE,
            config,
        };
        Event::open(code, Scope::ThisProgram, Wake::Never)
            .ok()
            .map(Self)
    }

    /// The count so far. `None` once another user had the counter for a time, in which nothing was
    /// counted.
    pub(crate) fn read(&self) -> Option<u64> {
        let reading = self.0.read().ok().filter(|r| r.running)?;
        Some(reading.value)
    }
}
