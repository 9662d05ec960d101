//! Misses of the last-level cache by thread, where the processor counts them. A counter of a thread
//! costs that thread about a microsecond each time that it comes or leaves.

use std::collections::BTreeMap;

use quell_kernel::perf::{Event, EventCode, HW_CACHE_MISSES, Scope, TYPE_HARDWARE, Wake};
use quell_record::ways::Snapshot;

/// The most threads that are counted.
const MOST: usize = 64;

const MISSES: EventCode = EventCode {
    kind: TYPE_HARDWARE,
    config: HW_CACHE_MISSES,
};

/// The counters of threads.
#[derive(Debug, Default)]
pub struct Misses {
    open: BTreeMap<u32, Event>,
    refused: Option<std::io::Error>,
}

impl Misses {
    /// Adds what the threads of a sample have missed since they were counted first: of those that
    /// are watched, and of processes with a class.
    pub fn sample(&mut self, seen: &mut Snapshot) {
        self.open.retain(|tid, _| seen.threads.contains_key(tid));
        for (tid, _) in seen.threads.iter().filter(|(_, thread)| !thread.passing) {
            if self.open.contains_key(tid) || self.open.len() >= MOST || self.refused.is_some() {
                continue;
            }
            match Event::open(MISSES, Scope::ThreadAlone(*tid), Wake::Never) {
                Ok(event) => {
                    self.open.insert(*tid, event);
                }
                // It has ended meanwhile.
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
                Err(e) => self.refused = Some(e),
            }
        }
        for (tid, event) in &self.open {
            // One that shares its counter with others has counted only a part.
            if let Ok(read) = event.read()
                && read.running
            {
                seen.misses.insert(*tid, read.value);
            }
        }
    }

    /// Why nothing is counted.
    #[must_use]
    pub const fn refused(&self) -> Option<&std::io::Error> {
        self.refused.as_ref()
    }
}
