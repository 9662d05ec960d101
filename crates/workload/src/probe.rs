//! Do two CPUs share a cache right now? In a virtual machine the topology the kernel tells is fiction, and may change
//! while it runs, so it is measured. CPU *a* writes lines and then enough others to push them out of its private
//! caches; CPU *b* then walks them. The walk takes as long as one over lines that *b* itself pushed out (*near*) where
//! both push into the same cache, and as long as one over flushed lines (*far*) or longer where they do not.
//!
//! Written lines, because caches drop clean ones on the way out as they like. Far apart, because prefetchers fetch
//! neighbours. Every page is visited just before a walk, so that address translation costs all three walks the same.
//! And fast, because on a busy machine a line stays in a shared cache for a millisecond or less: lines at different
//! offsets in a page never share a set of the second-level cache, whatever the pages' places in memory (a virtual
//! machine cannot know them), so only the few offsets that are sampled have to be written in enough other pages.
//!
//! Each walk's time is the median of its parts (an interruption spoils one part), each of the three times the median
//! over the repetitions, which interleave the three. The CPUs take turns in writing and reading, and the clearer of
//! the two directions counts: that caches are shared is true of both, and what else goes on in them (other virtual
//! machines, sometimes for a second on one side only) hides it but cannot feign it.

use std::hint::spin_loop;
use std::io;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use quell_core::cpuset::CpuId;
use quell_core::stats::median;
use quell_core::units::Bytes;
use quell_core::workload::{Order, Pages};
use serde::{Deserialize, Serialize};

use crate::list::cycle;
use crate::memory::Buffer;
use crate::{Error, affinity, clock, procfs};

/// Where the two CPUs stand to each other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sharing {
    /// 1 = a line that the other CPU wrote is as near as one's own, 0 = as far as memory or farther:
    /// (far − other) ÷ (far − near), held within 0 and 1. Caches busy with others' data can lower it; only CPUs busy with
    /// other programs can raise it (`quell bench canary` counts how often): take 0.5 as the border.
    pub score: f64,
    /// Nanoseconds per access to lines that this CPU pushed out of its private caches.
    pub near_ns: f64,
    /// The same for lines that the other CPU pushed out of its own.
    pub other_ns: f64,
    /// The same for lines in no cache.
    pub far_ns: f64,
}

impl Sharing {
    /// The score of three times; `None` where memory is not clearly farther than the cache, so that nothing can be
    /// told.
    fn of(near_ns: f64, other_ns: f64, far_ns: f64) -> Option<Self> {
        (far_ns > CLEARLY * near_ns).then(|| Self {
            score: ((far_ns - other_ns) / (far_ns - near_ns)).clamp(0.0, 1.0),
            near_ns,
            other_ns,
            far_ns,
        })
    }
}

/// How much farther memory must be than the cache before the probe says anything.
const CLEARLY: f64 = 1.3;
/// Turns of each side; odd, so that a median is one of the values.
const REPEATS: u32 = 9;
const PAGE: usize = 4096;
/// Sampled offsets in a page, and how far apart they are: more than a pair of lines.
const OFFSETS: usize = 8;
const GAP: usize = PAGE / OFFSETS;
/// Pages with sampled lines.
const PAGES: usize = 64;
const SAMPLES: usize = PAGES * OFFSETS;
/// Each walk is timed in so many parts.
const PARTS: usize = 8;
/// A second-level cache where the kernel does not tell its size.
const USUAL_L2: Bytes = Bytes(2 << 20);
/// A CPU that does not answer within this time is busy or throttled: nothing can be told.
const PATIENCE_NS: u64 = 50_000_000;
/// A CPU that ran the probe for this part of the time was quiet.
const QUIET: f64 = 0.95;
/// How long a thread that waits asleep goes without looking.
const NAP: Duration = Duration::from_millis(1);

/// [`sharing`], the score alone. A CPU shares its cache with itself by definition.
///
/// # Errors
/// As [`sharing`].
pub fn shared_cache(a: CpuId, b: CpuId) -> io::Result<Option<f64>> {
    if a == b {
        return Ok(Some(1.0));
    }
    Ok(sharing(a, b)?.map(|s| s.score))
}

/// Measures whether `a` and `b` share a cache; some 6 ms of one thread on each. The calling thread only waits and keeps
/// its affinity. `None` where it cannot be told: no instruction to flush a line, memory not clearly farther than the
/// cache, or a CPU that did not run its thread in time.
///
/// # Errors
/// When the CPUs are the same, do not exist or may not be used, or memory is not to be had.
pub fn sharing(a: CpuId, b: CpuId) -> io::Result<Option<Sharing>> {
    if a == b {
        return Err(Error::refused(
            format!("probing whether CPUs {a} and {b} share a cache"),
            "they are the same",
            "name two CPUs",
        )
        .into());
    }
    Ok(probe(a, b, Lines::walk)?.sharing)
}

/// What one probe told.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Probed {
    /// Where the CPUs stand to each other, if it could be told.
    pub sharing: Option<Sharing>,
    /// The CPUs ran hardly anything but the probe while it ran.
    pub quiet: bool,
}

/// A probe whose answer is known to be "shared": both threads on one CPU, which wait for each other asleep.
///
/// # Errors
/// As [`sharing`].
pub fn same_cpu(cpu: CpuId) -> io::Result<Probed> {
    probe(cpu, cpu, Lines::walk)
}

/// [`sharing`], with a word on whether the CPUs were quiet.
///
/// # Errors
/// As [`sharing`].
pub fn two_cpus(a: CpuId, b: CpuId) -> io::Result<Probed> {
    probe(a, b, Lines::walk)
}

/// A probe whose answer is known to be "not shared": what the writer left is flushed to memory before it is looked for.
///
/// # Errors
/// As [`sharing`].
pub fn flushed(a: CpuId, b: CpuId) -> io::Result<Probed> {
    probe(a, b, |lines| {
        lines.flush();
        lines.walk()
    })
}

/// The probe; `look` times the walk over what the other side left.
fn probe(a: CpuId, b: CpuId, look: fn(&Lines) -> f64) -> io::Result<Probed> {
    if !flush_is_known() {
        return Ok(Probed::default());
    }
    let mut l2 = 0;
    for cpu in [a, b] {
        let size = procfs::second_level_cache(Path::new("/sys/devices/system/cpu"), cpu)?;
        l2 = l2.max(size.unwrap_or(USUAL_L2).0);
    }
    let size = Bytes((PAGES * PAGE) as u64 + 2 * l2);
    let meeting = Meeting {
        bell: (a == b).then(Bell::default),
        ..Meeting::default()
    };
    let seen = thread::scope(|scope| {
        let sides = [(0, a), (1, b)].map(|(side, cpu)| {
            let meeting = &meeting;
            scope.spawn(move || meeting.attend(|| take_turns(side, cpu, size, meeting, look)))
        });
        let died = |_| Error::refused("probing for a shared cache", "a thread died", "report this");
        sides.map(|side| side.join().map_err(died)?)
    });
    let mut clearest: Option<Sharing> = None;
    let (mut shortest, mut ran_ns) = (f64::INFINITY, 0.0);
    // An error of either side comes before the other's having waited in vain.
    let sides: Vec<Option<Side>> = seen.into_iter().collect::<Result<_, _>>()?;
    for side in sides {
        let Some(side) = side else {
            return Ok(Probed::default());
        };
        ran_ns += side.ran_ns;
        shortest = side.ran_part().min(shortest);
        if let Some(sharing) = side.sharing
            && clearest.is_none_or(|best| sharing.score > best.score)
        {
            clearest = Some(sharing);
        }
        if a == b {
            shortest = ran_ns / side.took_ns;
        }
    }
    Ok(Probed {
        sharing: clearest,
        quiet: shortest > QUIET,
    })
}

/// What one side saw, and how long it ran of the time it took.
struct Side {
    sharing: Option<Sharing>,
    ran_ns: f64,
    took_ns: f64,
}

impl Side {
    fn ran_part(&self) -> f64 {
        self.ran_ns / self.took_ns
    }
}

/// Where the two threads meet. It outlives both, and so do their lines.
#[derive(Default)]
struct Meeting {
    /// How many half turns are over: after an even number the writer of the next turn is to write, after an odd one
    /// its reader to read.
    phase: AtomicU32,
    lines: [OnceLock<Lines>; 2],
    /// What wakes a side that waits asleep; without one they spin, as they do on CPUs of their own.
    bell: Option<Bell>,
}

#[derive(Default)]
struct Bell {
    lock: Mutex<()>,
    rung: Condvar,
}

impl Bell {
    /// Sleeps until rung, or for a nap: a ring in between is not lost for long.
    fn nap(&self) {
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.rung.wait_timeout(guard, NAP));
    }
}

const OVER: u32 = u32::MAX;

impl Meeting {
    /// Waits for `phase`; false when the other side gave up or does not answer in time.
    fn wait(&self, phase: u32) -> bool {
        self.until(|| self.phase.load(Ordering::Acquire) == phase)
    }

    /// Waits until something is so; false when the other side gave up or does not answer in time.
    fn until(&self, so: impl Fn() -> bool) -> bool {
        let by = clock::now() + PATIENCE_NS;
        loop {
            if self.phase.load(Ordering::Acquire) == OVER {
                return false;
            }
            if so() {
                return true;
            }
            if clock::now() > by {
                return false;
            }
            self.bell.as_ref().map_or_else(spin_loop, Bell::nap);
        }
    }

    /// Opens `phase`, unless the other side has given up.
    fn open(&self, phase: u32) {
        let _ = self
            .phase
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |p| {
                (p != OVER).then_some(phase)
            });
        if let Some(bell) = &self.bell {
            bell.rung.notify_all();
        }
    }

    /// Runs one side; the other is let go if it returns before the last turn, however it does.
    fn attend<T>(&self, side: impl FnOnce() -> T) -> T {
        struct End<'a>(&'a Meeting);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                if self.0.phase.load(Ordering::Acquire) < 4 * REPEATS {
                    self.0.phase.store(OVER, Ordering::Release);
                }
            }
        }
        let _end = End(self);
        side()
    }
}

/// One side: writes in every other turn, measures in the turns between. `None` when the other side was not in time.
fn take_turns(
    side: usize,
    cpu: CpuId,
    size: Bytes,
    meeting: &Meeting,
    look: fn(&Lines) -> f64,
) -> Result<Option<Side>, Error> {
    let _pinned = affinity::pin_to(cpu)?;
    let lines = Lines::new(size, 1 + side as u64)?;
    let own = meeting.lines[side].get_or_init(|| lines);
    // What taking memory costs is no part of the time that is looked at below.
    if !meeting.until(|| meeting.lines.iter().all(|l| l.get().is_some())) {
        return Ok(None);
    }
    let (begin, ran) = (clock::now(), clock::of_this_thread());
    let [mut near, mut other, mut far] = [(); 3].map(|()| Vec::with_capacity(REPEATS as usize));
    for turn in 0..2 * REPEATS {
        if turn % 2 == side as u32 {
            if !meeting.wait(2 * turn) {
                return Ok(None);
            }
            own.write_and_push_out();
            meeting.open(2 * turn + 1);
        } else {
            if !meeting.wait(2 * turn + 1) {
                return Ok(None);
            }
            let Some(theirs) = meeting.lines[1 - side].get() else {
                return Ok(None);
            };
            other.push(look(theirs));
            // Out of this CPU's caches again, so that the writer's next turn begins as the first did.
            theirs.flush();
            own.write_and_push_out();
            near.push(own.walk());
            own.flush();
            far.push(own.walk());
            meeting.open(2 * turn + 2);
        }
    }
    let middle = |times: &[f64]| median(times).unwrap_or(f64::NAN);
    Ok(Some(Side {
        sharing: Sharing::of(middle(&near), middle(&other), middle(&far)),
        ran_ns: (clock::of_this_thread() - ran) as f64,
        took_ns: (clock::now() - begin).max(1) as f64,
    }))
}

/// Where a sampled line lies, from 0 to [`SAMPLES`].
const fn sample(i: usize) -> usize {
    PAGE * (i % PAGES) + GAP * (i / PAGES)
}

/// A buffer with a list through its sampled lines. They lie in the first [`PAGES`] pages; the others push them out.
struct Lines {
    buffer: Buffer,
    next: Vec<u32>,
}

// SAFETY: two threads write and read the buffer, by volatile accesses through raw pointers and never at the same time:
// each touches it only between the phase that lets it and the one it opens then, with release and acquire.
unsafe impl Sync for Lines {}

impl Lines {
    fn new(size: Bytes, seed: u64) -> Result<Self, Error> {
        let lines = Self {
            // Huge pages where to be had: fewer translations, less noise. Base pages do as well.
            buffer: Buffer::new(size, Pages::Huge)?,
            next: cycle(SAMPLES as u32, Order::Random, seed),
        };
        // From here on the sampled lines always hold a whole list.
        lines.write_and_push_out();
        Ok(lines)
    }

    fn start(&self) -> *mut u8 {
        self.buffer.start()
    }

    /// Writes the list's lines, then the lines at the same offsets in all other pages.
    fn write_and_push_out(&self) {
        let start = self.start();
        for (i, next) in self.next.iter().enumerate() {
            // SAFETY: sampled lines lie inside the first `PAGES` pages of the buffer, at multiples of a line.
            unsafe {
                let to = start.add(sample(*next as usize));
                start.add(sample(i)).cast::<*mut u8>().write_volatile(to);
            }
        }
        for offset in (0..PAGE).step_by(GAP) {
            for page in (PAGES * PAGE..self.buffer.len()).step_by(PAGE) {
                // SAFETY: inside a page of the buffer.
                unsafe { start.add(page + offset).write_volatile(2) };
            }
        }
    }

    /// Nanoseconds per access of a walk through all sampled lines: the median of its parts.
    fn walk(&self) -> f64 {
        for page in (0..PAGES * PAGE).step_by(PAGE) {
            // SAFETY: in a page with sampled lines, between two of them.
            unsafe { ptr::read_volatile(self.start().add(page + GAP / 2)) };
        }
        let mut parts = [0.0; PARTS];
        let mut at = self.start().cast::<*mut u8>();
        for part in &mut parts {
            let begin = clock::now();
            for _ in 0..SAMPLES / PARTS {
                // SAFETY: `at` is the list's first node or was read from one, and each points to another.
                at = unsafe { ptr::read_volatile(at) }.cast();
            }
            // The clock must not be read before the last load is back.
            std::hint::black_box(at);
            *part = (clock::now() - begin) as f64 / (SAMPLES / PARTS) as f64;
        }
        median(&parts).unwrap_or(f64::NAN)
    }

    /// Flushes all sampled lines from all caches.
    fn flush(&self) {
        for i in 0..SAMPLES {
            // SAFETY: a sampled line lies inside the buffer.
            let at = unsafe { self.start().add(sample(i)) };
            #[cfg(target_arch = "x86_64")]
            // SAFETY: CLFLUSH of a mapped line changes no data; it belongs to every x86-64 processor.
            unsafe {
                core::arch::x86_64::_mm_clflush(at);
            }
            #[cfg(target_arch = "aarch64")]
            // SAFETY: cleaning a mapped line changes no data; Linux allows it to programs (SCTLR_EL1.UCI).
            unsafe {
                std::arch::asm!("dc civac, {}", in(reg) at, options(nostack, preserves_flags));
            }
            #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
            let _ = at;
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a fence has no other effect.
        unsafe {
            core::arch::x86_64::_mm_mfence();
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: a barrier has no other effect.
        unsafe {
            std::arch::asm!("dsb ish", options(nostack, preserves_flags));
        }
    }
}

/// Whether a line can be flushed from all caches by an ordinary program here.
const fn flush_is_known() -> bool {
    cfg!(any(target_arch = "x86_64", target_arch = "aarch64"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a_pair() -> Option<(CpuId, CpuId)> {
        let allowed = affinity::allowed().unwrap();
        let mut cpus = allowed.iter();
        cpus.next().zip(cpus.next())
    }

    #[test]
    fn the_score_places_the_other_cpus_lines_between_cache_and_memory() {
        let score = |near, other, far| Sharing::of(near, other, far).map(|s| s.score);
        assert_eq!(score(20.0, 20.0, 120.0), Some(1.0));
        assert_eq!(score(20.0, 70.0, 120.0), Some(0.5));
        assert_eq!(score(20.0, 200.0, 120.0), Some(0.0));
        assert_eq!(score(20.0, 15.0, 120.0), Some(1.0));
        assert_eq!(score(100.0, 100.0, 129.0), None);
        assert_eq!(score(f64::NAN, 1.0, 2.0), None);
    }

    #[test]
    fn sampled_lines_are_distinct_and_leave_their_neighbours_alone() {
        let mut places: Vec<usize> = (0..SAMPLES).map(sample).collect();
        places.sort_unstable();
        assert!(places.windows(2).all(|w| w[1] - w[0] >= GAP));
        assert!(places[SAMPLES - 1] < PAGES * PAGE);
    }

    #[test]
    fn a_cpu_shares_with_itself_by_definition_and_is_not_measured_against_itself() {
        let cpu = affinity::allowed().unwrap().first().unwrap();
        assert_eq!(shared_cache(cpu, cpu).unwrap(), Some(1.0));
        assert!(sharing(cpu, cpu).unwrap_err().to_string().contains("same"));
    }

    #[test]
    fn a_probe_scores_within_range_and_leaves_the_caller_where_it_was() {
        let Some((a, b)) = a_pair() else {
            println!("skipped: one CPU only");
            return;
        };
        let before = affinity::allowed().unwrap();
        if let Some(seen) = sharing(a, b).unwrap() {
            assert!((0.0..=1.0).contains(&seen.score), "{seen:?}");
            assert!(seen.far_ns > seen.near_ns, "{seen:?}");
        }
        assert_eq!(affinity::allowed().unwrap(), before);
    }

    /// Of five probes, at least three: the machine may be busy.
    fn mostly(right: impl Fn(f64) -> bool, probe: impl Fn() -> Probed) {
        let told: Vec<f64> = (0..15)
            .filter_map(|_| probe().sharing.map(|s| s.score))
            .take(5)
            .collect();
        if told.len() < 5 {
            println!("skipped: {} probes of 15 told something", told.len());
            return;
        }
        let count = told.iter().filter(|s| right(**s)).count();
        assert!(count >= 3, "{told:?}");
    }

    #[test]
    fn forced_cases_are_told_for_what_they_are() {
        let cpu = affinity::allowed().unwrap().first().unwrap();
        mostly(|score| score >= 0.5, || same_cpu(cpu).unwrap());
        if let Some((a, b)) = a_pair() {
            mostly(|score| score < 0.5, || flushed(a, b).unwrap());
        }
    }

    #[test]
    fn a_cpu_that_does_not_exist_is_an_error_on_either_side() {
        let cpu = affinity::allowed().unwrap().first().unwrap();
        for (a, b) in [(cpu, 8191), (8191, cpu)] {
            let text = sharing(a, b).unwrap_err().to_string();
            assert!(text.contains("8191"), "{text}");
        }
    }

    #[test]
    fn a_side_that_leaves_lets_the_other_go_at_once() {
        let meeting = Meeting::default();
        meeting.attend(|| ());
        assert!(!meeting.wait(1));
        meeting.open(1);
        assert!(!meeting.wait(1), "an ended meeting cannot be reopened");
    }
}
