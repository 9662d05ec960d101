//! Keeps the account of a span's units: what the kernel's clocks say of the calling thread between
//! two units.
//!
//! - The clocks are read on descriptors that stay open, outside the time of the units.
//! - Three calls read them, in one to three microseconds together (measured,
//!   [`Account::sample_ns`]): the thread's CPU clock, its `schedstat`
//!   (Documentation/scheduler/sched-stats.rst) and `getrusage(RUSAGE_THREAD)`.
//! - What a fault, the gap of an interrupt and a reading cost on this machine is measured when the
//!   sampler is made.
//! - What only the whole span shows (interrupts, steal) is measured before and after it.
//!
//! [`quell_record::attribution`] evaluates the account.

use std::fs::File;

use quell_kernel::cpuinfo::Cpuinfo;
use quell_kernel::irq;
use quell_kernel::root::{Access, Files, Kernel};
use quell_record::attribution::{Account, Unit};
use quell_types::cpuset::CpuId;
use rustix::time::{ClockId, clock_gettime};

use crate::Error;
use crate::clock;
use crate::procfs;

/// The cost of a reading is the median of so many. A thread that is preempted in one of them has
/// not become slower.
const TRIED: u32 = 64;
/// Pages touched to learn what a fault costs, in chunks of this size. The median chunk counts.
const CHUNK: usize = 32;
const CHUNKS: usize = 8;
/// A gap of this length between two readings of the clock is an interrupt's. A reading takes some
/// 30 ns. Longer gaps are other threads and hypervisors.
const GAP_NS: std::ops::Range<u64> = 500..100_000;
/// So many gaps are enough, and after this time no more are searched for.
const GAPS: usize = 9;
const GAPS_WITHIN_NS: u64 = 20_000_000;
/// More units than this are not kept: their memory would disturb what is measured.
const MOST_UNITS: usize = 1 << 20;
/// Nor are units kept when a reading takes more than this part of one.
const DEAREST: f64 = 0.02;

#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    wall: u64,
    cpu: u64,
    waited: u64,
    minor: u64,
    major: u64,
    slept: u64,
}

/// The kernel's clocks of the calling thread, and the costs measured on this machine.
#[derive(Debug)]
pub struct Sampler {
    kernel: Kernel,
    schedstat: File,
    worth: Account,
    gap_ns: f64,
    before: Whole,
    last: Reading,
    units: Vec<Unit>,
    entered: usize,
}

/// What is read before and after a span.
#[derive(Clone, Copy, Debug, Default)]
struct Whole {
    at: u64,
    interrupts: u64,
    steal_ns: u64,
}

impl Sampler {
    /// For the calling thread of this kernel. Takes some 20 ms to measure costs. `None` where the
    /// kernel does not report how long threads wait (no CONFIG_SCHED_INFO).
    ///
    /// # Errors
    /// When a file exists and cannot be read.
    pub fn open(kernel: Kernel) -> Result<Option<Self>, Error> {
        let Ok(Some(schedstat)) = kernel.open("/proc/thread-self/schedstat", Access::Read) else {
            return Ok(None);
        };
        let times = procfs::cpu_times(&kernel)?;
        let mut sampler = Self {
            schedstat,
            worth: Account {
                // The processor reports a hypervisor, or one has taken CPU time.
                guest: Cpuinfo::read(&kernel)?.is_guest() || times.iter().any(|t| t.steal_ns > 0),
                // Without CONFIG_IRQ_TIME_ACCOUNTING, interrupt time is what a tick finds
                // interrupted. A tick never finds itself, so the figure remains zero.
                interrupts_apart: times.iter().any(|t| t.irq_ns > 0),
                fault_ns: fault_ns(),
                ..Account::default()
            },
            kernel,
            gap_ns: gap_ns(),
            before: Whole::default(),
            last: Reading::default(),
            units: Vec::new(),
            entered: 0,
        };
        let mut took = Vec::with_capacity(TRIED as usize);
        for _ in 0..TRIED {
            let begin = clock::now();
            if sampler.read().is_none() {
                return Ok(None);
            }
            took.push(clock::now() - begin);
        }
        sampler.worth.sample_ns = median(took);
        Ok(Some(sampler))
    }

    /// Makes room for a span of at most `units`, each of about `unit_ns`. `false`: it would disturb
    /// the measurement, so no account is kept.
    pub fn prepare(&mut self, units: usize, unit_ns: u64) -> bool {
        if units > MOST_UNITS || self.worth.sample_ns > unit_ns as f64 * DEAREST {
            return false;
        }
        // Not zeroes: zeroed memory comes from the kernel at its first use, inside the span.
        let untouched = Unit {
            cpu: u64::MAX,
            ..Unit::default()
        };
        self.units = vec![untouched; units];
        self.entered = 0;
        true
    }

    /// Begins the span and its first unit. Returns the time of that begin.
    pub fn begin(&mut self) -> u64 {
        // What cannot be read now cannot be read at the end either, and is reported then.
        self.before = self.whole().unwrap_or_default();
        if let Some(reading) = self.read() {
            self.last = reading;
        }
        clock::now()
    }

    /// Ends a unit that ran from `from` to `at`, stands for `windows` values, and stood still for
    /// `stalled` ns. Returns the time at which the next one begins.
    pub fn end(&mut self, from: u64, at: u64, windows: u64, stalled: u64) -> u64 {
        let (Some(new), Some(unit)) = (self.read(), self.units.get_mut(self.entered)) else {
            return clock::now();
        };
        let last = self.last;
        // From reading to reading, as with the other clocks: so the time of reading is on both
        // sides.
        let (wall, between) = (at.saturating_sub(from), new.wall.saturating_sub(last.wall));
        let cpu = new.cpu.saturating_sub(last.cpu);
        *unit = Unit {
            windows,
            at_ns: at,
            wall_ns: wall,
            cpu_ns: cpu.saturating_sub(between.saturating_sub(wall)).min(wall),
            waited_ns: new.waited.saturating_sub(last.waited),
            stalled_ns: stalled,
            minor: new.minor.saturating_sub(last.minor),
            major: new.major.saturating_sub(last.major),
            slept: new.slept.saturating_sub(last.slept),
            cpu: current_cpu().into(),
        };
        self.entered += 1;
        self.last = new;
        clock::now()
    }

    /// The account of the span since [`Self::begin`].
    ///
    /// # Errors
    /// When a file exists and cannot be read.
    pub fn finish(&mut self) -> Result<Account, Error> {
        let after = self.whole()?;
        let mut units = std::mem::take(&mut self.units);
        units.truncate(self.entered);
        let span = after.at.saturating_sub(self.before.at).max(1) as f64;
        let interrupts = after.interrupts.saturating_sub(self.before.interrupts) as f64;
        Ok(Account {
            units,
            interrupted: (interrupts * self.gap_ns / span).min(1.0),
            steal_ns: after.steal_ns.saturating_sub(self.before.steal_ns),
            ..self.worth.clone()
        })
    }

    fn whole(&self) -> Result<Whole, Error> {
        let cpu = current_cpu();
        let times = procfs::cpu_times(&self.kernel)?;
        let own = times.iter().find(|t| t.cpu == cpu);
        Ok(Whole {
            at: clock::now(),
            interrupts: irq::served(&self.kernel, cpu)?.unwrap_or(0),
            steal_ns: own.map_or(0, |t| t.steal_ns),
        })
    }

    fn read(&self) -> Option<Reading> {
        let mut bytes = [0; 64];
        let n = rustix::io::pread(&self.schedstat, &mut bytes, 0).ok()?;
        let usage = usage();
        let wall = clock::now();
        let cpu = clock_gettime(ClockId::ThreadCPUTime);
        Some(Reading {
            wall,
            cpu: cpu.tv_sec.unsigned_abs() * 1_000_000_000 + cpu.tv_nsec.unsigned_abs(),
            waited: waited(bytes.get(..n)?)?,
            minor: usage.ru_minflt.unsigned_abs(),
            major: usage.ru_majflt.unsigned_abs(),
            slept: usage.ru_nvcsw.unsigned_abs(),
        })
    }
}

/// The second number of `RUNNING_NS WAITED_NS SLICES`.
fn waited(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn current_cpu() -> CpuId {
    CpuId::try_from(rustix::thread::sched_getcpu()).unwrap_or(0)
}

fn usage() -> libc::rusage {
    // SAFETY: a `rusage` is plain numbers, for which zeroes are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `rusage` through a valid pointer. It cannot fail with these
    // arguments.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage
}

fn median(mut values: Vec<u64>) -> f64 {
    values.sort_unstable();
    values.get(values.len() / 2).map_or(0.0, |v| *v as f64)
}

/// Nanoseconds of a first touch of a base page; 0 where no memory can be had.
fn fault_ns() -> f64 {
    const PAGE: usize = 4096;
    let length = CHUNK * CHUNKS * PAGE;
    // SAFETY: a new private mapping at an address of the kernel's choice; nothing else is touched.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return 0.0;
    }
    // SAFETY: the range is our own mapping. A kernel without huge pages refuses, which is as well.
    unsafe { libc::madvise(start, length, libc::MADV_NOHUGEPAGE) };
    let chunks = (0..CHUNKS).map(|chunk| {
        let begin = clock::now();
        for page in 0..CHUNK {
            // SAFETY: below `length`, which is mapped for writing.
            unsafe {
                start
                    .cast::<u8>()
                    .add((chunk * CHUNK + page) * PAGE)
                    .write_volatile(1);
            }
        }
        (clock::now() - begin) / CHUNK as u64
    });
    let found = median(chunks.collect());
    // SAFETY: our own mapping, to which no reference is left.
    unsafe { libc::munmap(start, length) };
    found
}

/// The gap that an interrupt makes in a thread that only reads the clock: the median of a few.
fn gap_ns() -> f64 {
    let mut gaps = Vec::with_capacity(GAPS);
    let begin = clock::now();
    let mut last = begin;
    while gaps.len() < GAPS && last - begin < GAPS_WITHIN_NS {
        let now = clock::now();
        if GAP_NS.contains(&(now - last)) {
            gaps.push(now - last);
        }
        last = now;
    }
    median(gaps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::{expect, in_one_of_ten};

    fn sampler() -> Option<Sampler> {
        let made = Sampler::open(procfs::live()).unwrap();
        if made.is_none() {
            quell_testing::skip("this kernel does not tell how long threads wait to run");
        }
        made
    }

    fn spin(until: u64) {
        while clock::now() < until {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn the_second_number_of_schedstat_is_the_wait() {
        assert_eq!(waited(b"123 4567 8\n"), Some(4567));
        assert_eq!(waited(b"123"), None);
        assert_eq!(waited(b"a b c"), None);
    }

    #[test]
    fn a_unit_accounts_for_its_time() {
        let Some(mut sampler) = sampler() else { return };
        in_one_of_ten(|| accounts_for_its_time(&mut sampler));
    }

    fn accounts_for_its_time(sampler: &mut Sampler) -> Result<(), String> {
        assert!(sampler.prepare(20, 5_000_000));
        let mut from = sampler.begin();
        for _ in 0..20 {
            let until = from + 5_000_000;
            spin(until);
            from = sampler.end(from, clock::now(), 1, 0);
        }
        let account = sampler.finish().unwrap();
        assert_eq!(account.units.len(), 20);
        assert!(account.sample_ns > 0.0 && account.fault_ns > 0.0);
        let (mut wall, mut known) = (0, 0);
        for unit in &account.units {
            assert!(unit.wall_ns >= 5_000_000 && unit.cpu_ns <= unit.wall_ns);
            wall += unit.wall_ns;
            known += unit.cpu_ns + unit.waited_ns;
        }
        // The rest is steal. A busy host takes some.
        let ratio = known as f64 / wall as f64;
        expect((0.5..1.05).contains(&ratio), || format!("{ratio}"))
    }

    #[test]
    fn fresh_memory_shows_as_faults_and_a_nap_as_sleep() {
        let Some(mut sampler) = sampler() else { return };
        in_one_of_ten(|| faults_and_a_nap(&mut sampler));
    }

    fn faults_and_a_nap(sampler: &mut Sampler) -> Result<(), String> {
        assert!(sampler.prepare(3, 5_000_000));
        let mut from = sampler.begin();
        spin(from + 1_000_000);
        from = sampler.end(from, clock::now(), 1, 0);
        // More than the allocator keeps, so it comes new from the kernel.
        let fresh = vec![1u8; 4 << 20];
        from = sampler.end(from, clock::now(), 1, 0);
        clock::sleep_until(from + 2_000_000);
        sampler.end(from, clock::now(), 1, 0);
        drop(fresh);
        let units = sampler.finish().unwrap().units;
        // With huge pages a few faults, with base pages a thousand.
        let faults = units[1].minor > units[0].minor;
        let slept = units[2].slept > 0 && units[2].cpu_ns < 1_500_000;
        expect(faults && slept, || format!("{units:?}"))
    }

    #[test]
    fn the_lateness_of_a_unit_on_fresh_memory_is_its_faults() {
        let Some(mut sampler) = sampler() else { return };
        in_one_of_ten(|| lateness_is_faults(&mut sampler));
    }

    fn lateness_is_faults(sampler: &mut Sampler) -> Result<(), String> {
        use quell_record::attribution::{Cause, Sum};
        use quell_types::stats::Better;
        const WORK_NS: u64 = 1_000_000;
        const LENGTH: usize = 16 << 20;
        assert!(sampler.prepare(10, WORK_NS));
        let mut values = Vec::new();
        let mut from = sampler.begin();
        for _ in 0..10 {
            spin(from + WORK_NS);
            touch_fresh(LENGTH);
            let at = clock::now();
            values.push((at - from) as f64);
            from = sampler.end(from, at, 1, 0);
        }
        let account = sampler.finish().unwrap();
        let mut sum = Sum::default();
        sum.add(&values, WORK_NS as f64, Better::Lower, &account, &[]);
        let found = sum.attribution().unwrap();
        let ns = |cause| {
            let part = found.parts.iter().find(|p| p.cause == cause);
            part.map_or(0.0, |p| p.ns as f64)
        };
        // Other programs may run meanwhile. Unmapping takes some tens of nanoseconds a page and is
        // no fault.
        let (faults, rest) = (ns(Cause::Faults), ns(Cause::Memory) + ns(Cause::Standstill));
        expect(faults > rest, || format!("{found:?}"))
    }

    fn touch_fresh(length: usize) {
        // SAFETY: a new private mapping, written inside its bounds and given back.
        unsafe {
            let start = libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert!(start != libc::MAP_FAILED);
            libc::madvise(start, length, libc::MADV_NOHUGEPAGE);
            for offset in (0..length).step_by(4096) {
                start.cast::<u8>().add(offset).write_volatile(1);
            }
            libc::munmap(start, length);
        }
    }

    #[test]
    fn clocks_that_take_too_much_of_a_unit_are_not_read() {
        let Some(mut sampler) = sampler() else { return };
        assert!(!sampler.prepare(10, 1_000));
        assert!(!sampler.prepare(MOST_UNITS + 1, 1_000_000));
    }
}
