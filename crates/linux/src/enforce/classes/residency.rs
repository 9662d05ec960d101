//! Whether locked memory stays in its cache: how many of its lines have to come from memory again.
//! The thread that reads them counts its last-level misses.
//!
//! At first other data goes through the cache. A kernel may report that it has locked, and have
//! filled the memory into ways that other groups fill, too (seen with Linux 7.2). The counter is
//! believed if it has seen that traffic. Reading changes nothing of what is locked.

use std::fs::File;
use std::hint::black_box;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use quell_client::Locked;
use quell_types::cpuset::CpuSet;
use quell_types::units::{Bytes, LINE_BYTES};

use quell_kernel::perf::{Event, EventCode, Scope, Wake};
use quell_kernel::rt;

/// Last-level misses: `PERF_TYPE_HARDWARE`, `PERF_COUNT_HW_CACHE_MISSES`.
const MISSES: EventCode = EventCode { kind: 0, config: 3 };

/// How much other data is swept through the cache, as a multiple of its size. This is more than
/// enough for any replacement that is close to LRU.
const OTHERS: u64 = 4;

/// How often the cache is swept before lines are believed to be gone.
const TRIES: usize = 3;

/// Time between two heartbeats meanwhile.
const BREATH: Duration = Duration::from_micros(200);

/// A region of locked memory that is checked.
pub(super) struct Residency {
    memory: Locked,
    /// CPUs of its cache, those first that its group does not have.
    cpus: Vec<u32>,
}

impl Residency {
    /// Maps the region, sweeps its cache with other data, and counts the lines that missed. `None`
    /// where nothing counts here, or where none of its CPUs can be used. `beat` is called
    /// meanwhile. `cpus` are the CPUs of the region's cache. Programs on those in `group` should
    /// not be disturbed.
    ///
    /// # Errors
    /// When the region cannot be mapped.
    pub fn measure(
        device: &File,
        bytes: u64,
        cpus: &CpuSet,
        group: &CpuSet,
        cache: Bytes,
        beat: &mut dyn FnMut(),
    ) -> io::Result<Option<(Self, u64)>> {
        let cpus: Vec<u32> = cpus
            .difference(group)
            .iter()
            .chain(cpus.intersection(group).iter())
            .collect();
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let looked = on(&cpus, beat, || {
            // Pinned: the kernel maps it only for a thread that can run on no CPUs but those of its
            // cache.
            let memory = Locked::map(device.as_fd(), bytes)?;
            let Some(counter) = Counter::open() else {
                return Ok(None);
            };
            let size = usize::try_from(cache.0 * OTHERS).unwrap_or(0);
            let lines = cache.0 * OTHERS / LINE_BYTES;
            let mut others = vec![0u8; size];
            let mut sweep = || {
                let all = others.chunks_mut(LINE_BYTES as usize);
                all.for_each(|line| line[0] = 1);
                black_box(&others);
            };
            // The kernel clears pages at their first use, which the counter does not see.
            sweep();
            let mut least: Option<u64> = None;
            // An interrupt of the reading counts, too. Lines that other data replaces are gone each
            // time. So the least of several counts is used.
            for _ in 0..TRIES {
                let swept = counter.around(&mut sweep);
                if swept.is_none_or(|misses| misses < lines / 8) {
                    return Ok(None);
                }
                let Some(missed) = counter.around(|| read(&memory)) else {
                    return Ok(None);
                };
                least = Some(least.map_or(missed, |least| least.min(missed)));
            }
            Ok(least.map(|missed| (memory, missed)))
        });
        let looked: io::Result<Option<(Locked, u64)>> = looked.unwrap_or(Ok(None));
        Ok(looked?.map(|(memory, missed)| (Self { memory, cpus }, missed)))
    }

    /// How many of its lines come from memory now. `None` where that cannot be counted.
    pub fn missed(&self) -> Option<u64> {
        on(&self.cpus, &mut || {}, || {
            Counter::open()?.around(|| read(&self.memory))
        })?
    }

    /// Size of the region in cache lines.
    pub fn lines(&self) -> u64 {
        self.memory.len() as u64 / LINE_BYTES
    }
}

/// Runs `act` on a thread of its own, on the first of these CPUs that it can be pinned to. Calls
/// `beat` meanwhile. `None` where it can be pinned to none.
fn on<T: Send>(cpus: &[u32], beat: &mut dyn FnMut(), act: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| cpus.iter().any(|cpu| rt::pin(*cpu).is_ok()).then(act));
        while !thread.is_finished() {
            beat();
            std::thread::sleep(BREATH);
        }
        thread.join().ok().flatten()
    })
}

fn read(memory: &Locked) {
    for at in (0..memory.len()).step_by(LINE_BYTES as usize) {
        // SAFETY: the address is within the mapping. Volatile, because the load itself is the
        // purpose.
        unsafe { memory.as_ptr().add(at).read_volatile() };
    }
}

/// Counts the last-level misses of the thread that opened it.
struct Counter(Event);

impl Counter {
    fn open() -> Option<Self> {
        Event::open(MISSES, Scope::ThisProgram, Wake::Never)
            .ok()
            .map(Self)
    }

    fn around(&self, act: impl FnOnce()) -> Option<u64> {
        let before = self.0.read().ok()?;
        act();
        let after = self.0.read().ok()?;
        after
            .running
            .then(|| after.value.saturating_sub(before.value))
    }
}
