//! Lines that the calling thread has brought in past the last-level cache, by the processor's
//! counter, in user mode. Most virtual machines have none.

use quell_kernel::perf::{Event, EventCode, HW_CACHE_MISSES, Scope, TYPE_HARDWARE, Wake};

/// The counter.
#[derive(Debug)]
pub(crate) struct Misses(Event);

impl Misses {
    /// `None` where there is none, or the kernel lets nobody have it.
    pub(crate) fn open() -> Option<Self> {
        let code = EventCode {
            kind: TYPE_HARDWARE,
            config: HW_CACHE_MISSES,
        };
        Event::open(code, Scope::ThisProgram, Wake::Never)
            .ok()
            .map(Self)
    }

    /// So far; `None` once others had the counter for a time, in which nothing was counted.
    pub(crate) fn read(&self) -> Option<u64> {
        let reading = self.0.read().ok().filter(|r| r.running)?;
        Some(reading.value)
    }
}
