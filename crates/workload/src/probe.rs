//! Do two CPUs share a cache right now? In a virtual machine the topology that the kernel reports
//! is fiction, and may change while it runs. So it is measured.
//!
//! CPU *a* writes lines. Then it writes enough other lines to push them out of its private caches.
//! CPU *b* then walks the first ones. There are two walks to compare with:
//! - *near*: after *b* itself wrote and pushed out the lines. Its time is the same where both CPUs
//!   push into the same cache.
//! - *far*: after the lines were flushed. Where no cache is shared, *b*'s walk takes as long as
//!   this, or longer.
//!
//! All three are walks by the same CPU over the same lines, since two buffers need not be alike. In
//! a virtual machine memory was seen to be 100 ns away in one buffer and 160 ns in the next. What a
//! host backs a page with does not show in its guest. Flushed lines of the first buffer looked near
//! next to the second.
//!
//! **Scores.** Each walk's time is the median of its parts, since an interruption spoils one part.
//! A repetition makes the three walks right after one another and has a score of its own. It counts
//! only where no other program ran on either CPU from the first line written to the last one read,
//! by the CPU time of their threads. A side's score is the median of [`ENOUGH`] such repetitions.
//! [`AGREE`] of them must give the same answer.
//!
//! **Directions.** The CPUs take turns in writing and reading, and the clearer of the two
//! directions counts. A shared cache is shared in both. Other traffic in the caches can hide it but
//! cannot feign it. Such traffic comes from other virtual machines, sometimes for a second on one
//! side only.

mod lines;

use std::hint::spin_loop;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::stats::median;
use quell_types::units::Bytes;
use serde::{Deserialize, Serialize};

use crate::{Error, affinity, clock, procfs};
use lines::{Lines, flush_is_known};

/// How near the lines of one CPU are to the other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sharing {
    /// 1 = a line that the other CPU wrote is as near as an own one. 0 = it is as far as memory, or
    /// farther.
    ///
    /// The median over repetitions of (far − other) ÷ (far − near), held within 0 and 1. Caches
    /// full of other programs' data can lower it (`quell bench canary` counts how often it errs).
    /// Take 0.5 as the border.
    pub score: f64,
    /// Nanoseconds per access to lines that this CPU pushed out of its private caches. This and the
    /// next two are medians over the same repetitions.
    pub near_ns: f64,
    /// The same for lines that the other CPU pushed out of its own caches.
    pub other_ns: f64,
    /// The same for lines that are in no cache.
    pub far_ns: f64,
}

impl Sharing {
    /// The score of three times. `None` where memory is not clearly farther than the cache, since
    /// nothing can be concluded then.
    fn of(near_ns: f64, other_ns: f64, far_ns: f64) -> Option<Self> {
        (far_ns > CLEARLY * near_ns).then(|| Self {
            score: ((far_ns - other_ns) / (far_ns - near_ns)).clamp(0.0, 1.0),
            near_ns,
            other_ns,
            far_ns,
        })
    }

    /// The result of [`ENOUGH`] repetitions. `None` where they are fewer or do not agree.
    fn together(repetitions: &[Self]) -> Option<Self> {
        let middle = |of: fn(&Self) -> f64| median(&repetitions.iter().map(of).collect::<Vec<_>>());
        let score = middle(|r| r.score)?;
        let same = |r: &&Self| (r.score >= BORDER) == (score >= BORDER);
        let agree = repetitions.iter().filter(same).count();
        (repetitions.len() >= ENOUGH && agree >= AGREE).then_some(Self {
            score,
            near_ns: middle(|r| r.near_ns)?,
            other_ns: middle(|r| r.other_ns)?,
            far_ns: middle(|r| r.far_ns)?,
        })
    }
}

/// So many times as far as the cache must memory be before the probe gives an answer.
const CLEARLY: f64 = 1.3;
/// How many repetitions make a side's score. Odd, so that their median is one of them.
const ENOUGH: usize = 9;
/// How many of them must lie on the median's side of [`BORDER`]. With random answers so many agree
/// in one case of 26.
const AGREE: usize = 8;
/// At or above this score a repetition counts as "shared".
const BORDER: f64 = 0.5;
/// After so many turns a side without enough repetitions gives up: the CPUs are too busy.
const MOST_TURNS: u32 = 128;
/// A repetition does not count if its lines waited longer than this for their reader.
const FRESH_NS: u64 = 500_000;
/// A CPU that does not answer within this time is busy or throttled. There is no answer then.
const PATIENCE_NS: u64 = 200_000_000;
/// How long a thread spins: longer than a half turn on a quiet machine. On a busy machine spinning
/// uses up the CPU time that the thread needs next.
const SPIN_NS: u64 = 500_000;
/// A CPU was quiet if it ran the probe for this part of the time.
const QUIET: f64 = 0.95;
/// How often a thread that waits asleep checks the phase.
const NAP: Duration = Duration::from_millis(1);

/// [`sharing`], the score alone. A CPU shares its cache with itself by definition.
///
/// # Errors
/// Those of [`sharing`].
pub fn shared_cache(a: CpuId, b: CpuId) -> io::Result<Option<f64>> {
    if a == b {
        return Ok(Some(1.0));
    }
    Ok(sharing(a, b)?.map(|s| s.score))
}

/// Measures whether `a` and `b` share a cache. It takes some 6 ms of one thread on each, on busy
/// CPUs up to ten times that. The calling thread only waits and keeps its affinity.
///
/// `None` where there is no answer:
/// - no instruction to flush a line,
/// - memory not clearly farther than the cache,
/// - repetitions that do not agree, or
/// - a CPU too busy with other programs.
///
/// # Errors
/// When the CPUs are the same, do not exist or may not be used, or memory cannot be had.
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

/// The outcome of one probe.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Probed {
    /// How near the CPUs are to each other. `None` where there is no answer.
    pub sharing: Option<Sharing>,
    /// Whether the CPUs ran hardly anything but the probe.
    pub quiet: bool,
}

/// A probe with the known answer "shared": both threads on one CPU. They wait for each other
/// asleep.
///
/// # Errors
/// Those of [`sharing`].
pub fn same_cpu(cpu: CpuId) -> io::Result<Probed> {
    probe(cpu, cpu, Lines::walk)
}

/// [`sharing`], and whether the CPUs were quiet.
///
/// # Errors
/// Those of [`sharing`].
pub fn two_cpus(a: CpuId, b: CpuId) -> io::Result<Probed> {
    probe(a, b, Lines::walk)
}

/// A probe with the known answer "not shared": the writer's lines are flushed to memory before they
/// are walked.
///
/// # Errors
/// Those of [`sharing`].
pub fn flushed(a: CpuId, b: CpuId) -> io::Result<Probed> {
    probe(a, b, |lines| {
        lines.flush();
        lines.walk()
    })
}

/// The probe. `look` times the walk over the lines of the other side.
fn probe(a: CpuId, b: CpuId, look: fn(&Lines) -> f64) -> io::Result<Probed> {
    if !flush_is_known() {
        return Ok(Probed::default());
    }
    let size = Bytes(lines::SAMPLED_BYTES + 2 * procfs::largest_l2(&CpuSet::from_iter([a, b]))?.0);
    let meeting = Meeting {
        // On one CPU the other thread runs only while this one sleeps.
        spin_ns: if a == b { 0 } else { SPIN_NS },
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
    // An error of one side is reported rather than that the other side waited in vain.
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

/// What one side measured, and how much CPU time it had of the time it took.
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
    /// How many half turns are over. After an even number the writer of the next turn is to write,
    /// after an odd one its reader to read.
    phase: AtomicU32,
    lines: [OnceLock<Lines>; 2],
    /// When this turn's writer was done. 0 if another program ran on its CPU.
    written: AtomicU64,
    /// How many repetitions of each side count.
    counted: [AtomicU32; 2],
    /// How long a waiting side spins before it sleeps. `bell`: wakes it.
    spin_ns: u64,
    bell: Bell,
}

#[derive(Default)]
struct Bell {
    lock: Mutex<()>,
    rung: Condvar,
}

impl Bell {
    /// Sleeps until rung, or for a nap. So a ring in between is not lost for long.
    fn nap(&self) {
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.rung.wait_timeout(guard, NAP));
    }
}

/// The phase after a side gave up.
const OVER: u32 = u32::MAX;
/// The phase after both sides have enough repetitions, or the turns are used up.
const DONE: u32 = OVER - 1;

impl Meeting {
    /// Waits for `phase` or the end. False when the other side gave up or does not answer in time.
    fn wait(&self, phase: u32) -> bool {
        self.until(|| [phase, DONE].contains(&self.phase.load(Ordering::Acquire)))
    }

    fn done(&self) -> bool {
        self.phase.load(Ordering::Acquire) == DONE
    }

    /// After turn `turn`: opens the next one, or the end.
    fn after(&self, turn: u32) {
        let enough = |c: &AtomicU32| c.load(Ordering::Relaxed) as usize >= ENOUGH;
        let done = self.counted.iter().all(enough) || turn + 1 >= MOST_TURNS;
        self.open(if done { DONE } else { 2 * turn + 2 });
    }

    /// Waits until `so` is true. False when the other side gave up or does not answer in time.
    fn until(&self, so: impl Fn() -> bool) -> bool {
        let begin = clock::now();
        loop {
            if self.phase.load(Ordering::Acquire) == OVER {
                return false;
            }
            if so() {
                return true;
            }
            match clock::now() - begin {
                waited if waited > PATIENCE_NS => return false,
                waited if waited < self.spin_ns => spin_loop(),
                _ => self.bell.nap(),
            }
        }
    }

    /// Opens `phase`, unless the probe is over or done.
    fn open(&self, phase: u32) {
        let _ = self
            .phase
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |p| {
                (p < DONE).then_some(phase)
            });
        self.bell.rung.notify_all();
    }

    /// Runs one side. If it returns before the last turn, for any reason, the other side stops
    /// waiting.
    fn attend<T>(&self, side: impl FnOnce() -> T) -> T {
        struct End<'a>(&'a Meeting);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.open(OVER);
            }
        }
        let _end = End(self);
        side()
    }
}

/// One side: writes in every other turn and measures in the turns between. `None` when the other
/// side was not in time.
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
    // The cost of taking memory is not part of the time that is judged below.
    if !meeting.until(|| meeting.lines.iter().all(|l| l.get().is_some())) {
        return Ok(None);
    }
    let (begin, ran) = (clock::now(), clock::of_this_thread());
    let mut repetitions = Vec::with_capacity(ENOUGH);
    for turn in 0.. {
        let writes = turn % 2 == side as u32;
        if !meeting.wait(2 * turn + u32::from(!writes)) {
            return Ok(None);
        }
        if meeting.done() {
            break;
        }
        let alone = Alone::begin();
        if writes {
            own.write_and_push_out();
            let at = if alone.so_far() { clock::now() } else { 0 };
            meeting.written.store(at, Ordering::Relaxed);
            meeting.open(2 * turn + 1);
        } else {
            let Some(theirs) = meeting.lines[1 - side].get() else {
                return Ok(None);
            };
            let written = meeting.written.load(Ordering::Relaxed);
            let fresh = clock::now().saturating_sub(written) < FRESH_NS;
            let other = look(theirs);
            theirs.flush();
            let far = theirs.walk();
            theirs.write_and_push_out();
            let near = theirs.walk();
            // Out of all caches, so that the writer's next turn begins as the first did.
            theirs.flush();
            if fresh && alone.so_far() && repetitions.len() < ENOUGH {
                if let Some(told) = Sharing::of(near, other, far) {
                    repetitions.push(told);
                }
                meeting.counted[side].store(repetitions.len() as u32, Ordering::Relaxed);
            }
            meeting.after(turn);
        }
    }
    Ok(Some(Side {
        sharing: Sharing::together(&repetitions),
        ran_ns: (clock::of_this_thread() - ran) as f64,
        took_ns: (clock::now() - begin).max(1) as f64,
    }))
}

/// Since when a thread is checked for being alone on its CPU.
struct Alone {
    at: u64,
    ran: u64,
}

impl Alone {
    fn begin() -> Self {
        Self {
            at: clock::now(),
            ran: clock::of_this_thread(),
        }
    }

    /// Whether its CPU time is nearly all of the time that passed. Steal does not show where the
    /// kernel counts it as running. A line then seems to remain in the caches longer than it does.
    fn so_far(&self) -> bool {
        let ran = clock::of_this_thread() - self.ran;
        ran as f64 >= QUIET * (clock::now() - self.at) as f64
    }
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
    fn the_score_places_other_cpus_lines_between_cache_and_memory() {
        let score = |near, other, far| Sharing::of(near, other, far).map(|s| s.score);
        assert_eq!(score(20.0, 20.0, 120.0), Some(1.0));
        assert_eq!(score(20.0, 70.0, 120.0), Some(0.5));
        assert_eq!(score(20.0, 200.0, 120.0), Some(0.0));
        assert_eq!(score(20.0, 15.0, 120.0), Some(1.0));
        assert_eq!(score(100.0, 100.0, 129.0), None);
        assert_eq!(score(f64::NAN, 1.0, 2.0), None);
    }

    #[test]
    fn a_cpu_shares_with_itself_by_definition_without_measuring() {
        let cpu = affinity::allowed().unwrap().first().unwrap();
        assert_eq!(shared_cache(cpu, cpu).unwrap(), Some(1.0));
        assert!(sharing(cpu, cpu).unwrap_err().to_string().contains("same"));
    }

    #[test]
    fn a_probe_scores_within_range_and_leaves_the_caller_in_place() {
        let Some((a, b)) = a_pair() else {
            quell_testing::skip("one CPU only");
            return;
        };
        let before = affinity::allowed().unwrap();
        if let Some(seen) = sharing(a, b).unwrap() {
            assert!((0.0..=1.0).contains(&seen.score), "{seen:?}");
            assert!(seen.far_ns > seen.near_ns, "{seen:?}");
        }
        assert_eq!(affinity::allowed().unwrap(), before);
    }

    /// The fewest wrong answers, of so many answers, that a probe wrong in one of twenty gives in
    /// less than one of a million tests.
    fn too_many(told: usize) -> usize {
        const WRONG: f64 = 0.05;
        let mut tail = 1.0;
        let mut exactly = (0..told).map(|_| 1.0 - WRONG).product::<f64>();
        let mut k = 0;
        while tail >= 1e-6 {
            tail -= exactly;
            exactly *= (told - k) as f64 / (k + 1) as f64 * WRONG / (1.0 - WRONG);
            k += 1;
        }
        k
    }

    #[test]
    fn a_right_probe_fails_rarely_and_a_guessing_one_mostly() {
        assert_eq!((too_many(9), too_many(21)), (7, 9));
    }

    /// Gets as many answers as half a minute allows. Hardly any may be wrong. A machine too busy
    /// for answers is skipped, with a message.
    fn mostly(case: &str, right: impl Fn(f64) -> bool, probe: impl Fn() -> Probed) {
        let begin = clock::now();
        let mut told = Vec::new();
        while told.len() < 21 && clock::now() - begin < 30_000_000_000 {
            told.extend(probe().sharing);
        }
        if told.len() < 9 {
            quell_testing::skip_part(format_args!(
                "{case}: {} answers in 30 s, the machine is too busy",
                told.len()
            ));
            return;
        }
        let wrong = told.iter().filter(|s| !right(s.score)).count();
        eprintln!("{case}: {wrong} of {} wrong", told.len());
        assert!(wrong < too_many(told.len()), "{case}: {told:?}");
    }

    mod measured {
        use super::*;

        #[test]
        fn forced_cases_are_told_for_what_they_are() {
            let cpu = affinity::allowed().unwrap().first().unwrap();
            mostly("same CPU", |s| s >= BORDER, || same_cpu(cpu).unwrap());
            if let Some((a, b)) = a_pair() {
                mostly("flushed", |s| s < BORDER, || flushed(a, b).unwrap());
            }
        }
    }

    #[test]
    fn repetitions_that_do_not_agree_tell_nothing() {
        let near = Sharing::of(20.0, 25.0, 120.0).unwrap();
        let far = Sharing::of(20.0, 110.0, 120.0).unwrap();
        let told = |nears, fars| {
            let all = [vec![near; nears], vec![far; fars]].concat();
            Sharing::together(&all).map(|s| s.score)
        };
        assert_eq!(told(9, 0), Some(0.95));
        assert_eq!(told(8, 1), Some(0.95));
        assert_eq!(told(1, 8), Some(0.1));
        assert_eq!(told(7, 2), None);
        assert_eq!(told(8, 0), None, "too few");
        assert_eq!(told(0, 0), None);
    }

    #[test]
    fn a_cpu_that_does_not_exist_is_an_error_on_either_side() {
        if !flush_is_known() {
            quell_testing::skip("no probe here");
            return;
        }
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
