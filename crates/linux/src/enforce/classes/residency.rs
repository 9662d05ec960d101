//! Whether what is locked stays: how many of its lines have to come from memory again, by the
//! counter of last-level misses of the thread that reads them. At first others go through the
//! cache, for a kernel may say that it has locked, and have filled the memory into ways that others
//! fill, too (seen with Linux 7.2).
//!
//! The counter is believed if it has seen that traffic. Reading changes nothing of what is locked.

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

/// `PERF_TYPE_HARDWARE`, `PERF_COUNT_HW_CACHE_MISSES`.
const MISSES: EventCode = EventCode { kind: 0, config: 3 };

/// How much of the cache's size others bring in, as a multiple: more than enough for any
/// replacement that is near to LRU.
const OTHERS: u64 = 4;

/// How often they do, before it is believed that lines are gone.
const TRIES: usize = 3;

/// Between two beats of the heart.
const BREATH: Duration = Duration::from_micros(200);

/// A region that is looked at.
pub(super) struct Stays {
    memory: Locked,
    /// CPUs of its cache, those first that its group does not have.
    cpus: Vec<u32>,
}

impl Stays {
    /// Maps the region, has others sweep its cache, and counts. `None` where nothing counts here,
    /// or none of its CPUs can be run on. `beat` is called meanwhile. `cpus`: those of its cache.
    /// `group`: those of them whose programs are not to be disturbed.
    ///
    /// # Errors
    /// When it cannot be mapped.
    pub fn look(
        device: &File,
        bytes: u64,
        (cpus, group): (&CpuSet, &CpuSet),
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
            // Alone: the kernel maps it for a thread that can run on its cache's CPUs only.
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
            // Whoever interrupts the reading counts, too; lines that others replace are gone each
            // time.
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

    /// How many of its lines come from memory now; `None` where that cannot be told.
    pub fn missed(&self) -> Option<u64> {
        on(&self.cpus, &mut || {}, || {
            Counter::open()?.around(|| read(&self.memory))
        })?
    }

    /// Its lines.
    pub fn lines(&self) -> u64 {
        self.memory.len() as u64 / LINE_BYTES
    }
}

/// Does something on a thread of its own on the first of these CPUs that it can be pinned to, and
/// calls `beat` meanwhile.
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
        // SAFETY: within the mapping. Volatile: the load is what it is for.
        unsafe { memory.as_ptr().add(at).read_volatile() };
    }
}

/// Last-level misses of this thread.
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
