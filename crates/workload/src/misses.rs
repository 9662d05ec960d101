//! Lines that the calling thread has fetched past the last-level cache, by the processor's counter,
//! in user mode. Most virtual machines have no such counter.

use quell_kernel::perf::{Event, EventCode, HW_CACHE_MISSES, Scope, TYPE_HARDWARE, Wake};

/// The open counter of the calling thread.
#[derive(Debug)]
pub(crate) struct Misses(Event);

impl Misses {
    /// `None` where there is no counter, or the kernel does not allow it.
    pub(crate) fn open() -> Option<Self> {
        let code = EventCode {
            kind: TYPE_HARDWARE,
            config: HW_CACHE_MISSES,
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
