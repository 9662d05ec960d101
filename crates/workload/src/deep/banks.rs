//! Which address bits choose the DRAM bank: times of pairs of lines
//! (`quell_types::address::recovery`).
//!
//! Method: a thread on one CPU flushes both lines from the caches, then reads one after the other.
//! The pages are locked, and their frames are read from `/proc/self/pagemap` before and after. The
//! time of a pair is the mean of its lower rounds, so that interrupts do not count.
//!
//! It needs an instruction that flushes a line, and a counter of constant rate: `CLFLUSH` and
//! `RDTSC`, or `DC CIVAC` and `CNTVCT_EL0` on Arm, where Linux lets programs use both. On an
//! emulated processor that counter tells how long the emulation takes. There a performance counter
//! of the cycles in programs takes its place ([`Clock`]).

use std::io;

use quell_kernel::{memory, vm};
use quell_plan::deep::AddressMap;
use quell_plan::inventory::Inventory;
use quell_types::address::recovery::{Lines, Reread, Verdict, recover};
use quell_types::cpuset::CpuId;
use quell_types::units::Bytes;

use super::locked::{Locked, differences};
use super::{Block, Watch, first};
use crate::arch::{self, Maker, Request};
use crate::counted::Counted;
use crate::{Error, affinity, clock, procfs};

const WHAT: &str = "recovering the address map";
/// Bytes of the pool.
const POOL: u64 = 256 << 20;
/// The most that is taken to reach all of memory, where a pool does not: three quarters of what is
/// free and what cgroups allow, but no more than this.
const REACH: u64 = 8 << 30;
/// The part of the available memory that a pool takes at most.
pub(super) const PART: u64 = 4;
/// A smaller pool reaches too few address bits.
pub(super) const LEAST: u64 = 32 << 20;
/// How often both lines are read for one time, and how many of these rounds count.
const ROUNDS: (usize, usize) = (12, 8);
/// Nanoseconds between two questions whether to stop.
pub(super) const TURN_NS: u64 = 100_000_000;
/// How long the counter is compared with the clock, in nanoseconds.
const COMPARE_NS: u64 = 10_000_000;
/// About how many turns a recovery takes, for the progress that is shown.
const TURNS: u32 = 50;

/// Times pairs of lines, and recovers the functions of the banks from them.
///
/// # Errors
/// When `watch` returns false, physical addresses are hidden, memory is too short, or this
/// processor lacks an instruction.
pub fn address_map(
    machine: &Inventory,
    clock: Clock,
    mut watch: Watch<'_>,
) -> io::Result<AddressMap> {
    let mut block = Block {
        label: "address map",
        from: 0,
        to: 100,
        watch: &mut watch,
    };
    let available = procfs::available_memory()?.map_or(u64::MAX, |available| available.0);
    let (cpu, begin) = (first(machine)?, clock::now());
    let size = POOL.min(available / PART) & !0x1f_ffff;
    let mut found = pool_of(cpu, clock, size, 0, &mut block)?;
    if matches!(found.found.verdict, Verdict::Narrow { .. }) {
        found = pool_of(cpu, clock, size, reach()?, &mut block)?;
    }
    found.took_s = (clock::now() - begin) as f64 / 1e9;
    Ok(found)
}

/// How much may be taken to reach all of memory.
fn reach() -> Result<u64, Error> {
    let files = procfs::live();
    let free = vm::memory(&files)?.map_or(0, |memory| memory.free.0);
    let left = memory::left(&files)?.map_or(u64::MAX, |(_, left)| left.0);
    Ok(REACH.min(free.min(left) / 4 * 3))
}

/// The same with a pool of `size` bytes, for which `reach` may be taken.
fn pool_of(
    cpu: CpuId,
    clock: Clock,
    size: u64,
    reach: u64,
    block: &mut Block<'_, '_>,
) -> Result<AddressMap, Error> {
    if size < LEAST {
        return Err(Error::refused(
            WHAT,
            format!("a quarter of the available memory is {}", Bytes(size)),
            format!("free memory: {} are needed", Bytes(PART * LEAST)),
        ));
    }
    let _pinned = affinity::pin_to(cpu)?;
    let timer = Timer::new(clock)?;
    let memory = differences()?;
    block.at(0, 1)?;
    let locked = match reach {
        0 => Locked::new(size, WHAT)?,
        most => Locked::spread(size, &memory, most, WHAT, &mut || block.at(0, 1))?,
    };
    let pool = locked.pool(rustix::param::page_size().trailing_zeros());
    let (mut turn, mut due) = (0, clock::now());
    let found = recover(&pool, &memory, size, &mut |lines: Lines| {
        if clock::now() >= due {
            block.at(turn, TURNS)?;
            (turn, due) = (turn + 1, clock::now() + TURN_NS);
        }
        let lines = [lines.0, lines.1].map(|line| locked.at(line));
        // SAFETY: lines of the pool.
        Ok::<f64, Error>(unsafe { timer.ns(lines) })
    })?;
    locked.stayed()?;
    Ok(AddressMap {
        pool: Bytes(size),
        took_s: 0.0,
        found,
    })
}

/// What tells how long an access takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The processor's counter of constant rate.
    Ticks,
    /// A performance counter of the cycles in programs.
    Cycles,
}

/// What times lines.
pub(super) struct Timer {
    flush: Maker,
    /// `None`: the counter of constant rate.
    cycles: Option<Counted>,
    ns_per_tick: f64,
}

impl Timer {
    pub fn new(clock: Clock) -> Result<Self, Error> {
        let lacks = |what: &str| {
            Error::refused(
                WHAT,
                format!("Quell knows no {what} of this processor"),
                "declare the map instead (quell colours map FILE)",
            )
        };
        let flush = arch::request(Request::Flush);
        let flush = flush.ok_or_else(|| lacks("instruction that flushes a line"))?;
        let cycles = match clock {
            Clock::Ticks => {
                arch::ticks().ok_or_else(|| lacks("counter of constant rate"))?;
                None
            }
            Clock::Cycles => Some(Counted::cycles().ok_or_else(|| lacks("counter of cycles"))?),
        };
        let mut timer = Self {
            flush,
            cycles,
            ns_per_tick: 1.0,
        };
        let (from, begin) = (timer.now(), clock::now());
        while clock::now() < begin + COMPARE_NS {}
        let (ticks, ns) = (timer.now().wrapping_sub(from), clock::now() - begin);
        timer.ns_per_tick = ns as f64 / ticks.max(1) as f64;
        Ok(timer)
    }

    /// The counter; 0 where it cannot be read now.
    fn now(&self) -> u64 {
        match &self.cycles {
            None => arch::ticks(),
            Some(cycles) => cycles.read(),
        }
        .unwrap_or(0)
    }

    /// Nanoseconds of reading two lines from memory, one after the other.
    ///
    /// # Safety
    /// They are in memory of ours.
    unsafe fn ns(&self, [a, b]: [*mut u8; 2]) -> f64 {
        let mut rounds = [0u64; ROUNDS.0];
        for round in &mut rounds {
            // SAFETY: by the contract; a flush changes no contents.
            unsafe {
                (self.flush)(a);
                (self.flush)(b);
            }
            arch::fence();
            let begin = self.now();
            // SAFETY: by the contract.
            unsafe { a.read_volatile() };
            // Reading the counter waits for the first line.
            let _ = arch::ticks();
            // SAFETY: by the contract.
            unsafe { b.read_volatile() };
            *round = self.now().wrapping_sub(begin);
        }
        rounds.sort_unstable();
        let counted = &rounds[..ROUNDS.1];
        counted.iter().sum::<u64>() as f64 / counted.len() as f64 * self.ns_per_tick
    }

    /// Nanoseconds of the last read of a question. Afterwards no cache has any of its lines.
    ///
    /// # Safety
    /// `at` tells where its lines are, in memory of ours.
    pub unsafe fn reread(&self, at: &dyn Fn(u64) -> *mut u8, question: &Reread<'_>) -> f64 {
        let victim = at(question.victim);
        // SAFETY: by the contract.
        unsafe { victim.read_volatile() };
        arch::fence();
        for line in question.between() {
            // SAFETY: by the contract.
            unsafe { at(line).read_volatile() };
        }
        arch::fence();
        let begin = self.now();
        // SAFETY: by the contract.
        unsafe { victim.read_volatile() };
        let took = self.now().wrapping_sub(begin);
        for line in question.lines() {
            // SAFETY: by the contract; a flush changes no contents.
            unsafe { (self.flush)(at(line)) };
        }
        arch::fence();
        took as f64 * self.ns_per_tick
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Buffer;
    use quell_policy::workload::Pages;

    #[test]
    fn a_line_from_memory_takes_time_and_keeps_its_contents() {
        let Ok(timer) = Timer::new(Clock::Ticks) else {
            quell_testing::skip("this processor flushes no line, or has no counter");
            return;
        };
        let buffer = Buffer::new(Bytes(2 << 20), Pages::Base).unwrap();
        // SAFETY: two lines of the buffer.
        let ns = unsafe { timer.ns([buffer.start(), buffer.start().wrapping_add(4096)]) };
        assert!(ns > 1.0 && ns < 1e6, "{ns}");
        assert_eq!((buffer.bytes()[0], buffer.bytes()[4096]), (1, 1));
        // Memory has at least the bits of a page.
        assert!(differences().unwrap().rank() >= 12);
    }

    #[test]
    fn a_pool_without_memory_is_refused() {
        let mut watch = |_: &str, _: u32| true;
        let mut watch: Watch<'_> = &mut watch;
        let mut block = Block {
            label: "address map",
            from: 0,
            to: 100,
            watch: &mut watch,
        };
        let said = pool_of(0, Clock::Ticks, 1 << 20, 0, &mut block).unwrap_err();
        let said = said.to_string();
        assert!(said.contains("free memory: 128MiB are needed"), "{said}");
    }
}
