//! Which address bits choose the DRAM bank: times of pairs of lines
//! (`quell_types::address::recovery`).
//!
//! Method: a thread on one CPU flushes both lines from the caches, then reads one after the other.
//! The pages are locked, and their frames are read from `/proc/self/pagemap` before and after. The
//! time of a pair is the mean of its lower rounds, so that interrupts do not count.
//!
//! It needs an instruction that flushes a line, and a counter of constant rate: `CLFLUSH` and
//! `RDTSC`, or `DC CIVAC` and `CNTVCT_EL0` on Arm, where Linux lets programs use both.

use std::io;

use quell_plan::deep::AddressMap;
use quell_plan::inventory::Inventory;
use quell_types::address::recovery::{Lines, Pool, Reread, Verdict, recover};
use quell_types::cpuset::CpuId;
use quell_types::units::Bytes;

use super::locked::{Locked, differences};
use super::{Block, Watch, first};
use crate::arch::{self, Maker, Request};
use crate::{Error, affinity, clock, procfs};

const WHAT: &str = "recovering the address map";
/// Sizes of the pool, in bytes: the second one where the first does not reach all of memory.
const POOLS: [u64; 2] = [256 << 20, 1 << 30];
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
pub fn address_map(machine: &Inventory, mut watch: Watch<'_>) -> io::Result<AddressMap> {
    let mut block = Block {
        label: "address map",
        from: 0,
        to: 100,
        watch: &mut watch,
    };
    let available = procfs::available_memory()?.map_or(u64::MAX, |available| available.0);
    let (cpu, begin) = (first(machine)?, clock::now());
    let [small, large] = POOLS.map(|size| size.min(available / PART) & !0x1f_ffff);
    let mut found = pool_of(cpu, small, &mut block)?;
    if matches!(found.found.verdict, Verdict::Narrow { .. }) && large > small {
        found = pool_of(cpu, large, &mut block)?;
    }
    found.took_s = (clock::now() - begin) as f64 / 1e9;
    Ok(found)
}

/// The same with a pool of `size` bytes.
fn pool_of(cpu: CpuId, size: u64, block: &mut Block<'_, '_>) -> Result<AddressMap, Error> {
    if size < LEAST {
        return Err(Error::refused(
            WHAT,
            format!("a quarter of the available memory is {}", Bytes(size)),
            format!("free memory: {} are needed", Bytes(PART * LEAST)),
        ));
    }
    let _pinned = affinity::pin_to(cpu)?;
    let timer = Timer::new()?;
    let memory = differences()?;
    block.at(0, 1)?;
    let locked = Locked::new(size, WHAT)?;
    let shift = rustix::param::page_size().trailing_zeros();
    let pool = Pool::new(locked.pieces(shift), shift);
    let (mut turn, mut due) = (0, clock::now());
    let found = recover(&pool, &memory, size, &mut |lines: Lines| {
        if clock::now() >= due {
            block.at(turn, TURNS)?;
            (turn, due) = (turn + 1, clock::now() + TURN_NS);
        }
        // SAFETY: lines of the pool, which has the pages of the buffer.
        Ok::<f64, Error>(unsafe { timer.ns(locked.start(), lines) })
    })?;
    locked.stayed()?;
    Ok(AddressMap {
        pool: Bytes(size),
        took_s: 0.0,
        found,
    })
}

/// What times lines.
pub(super) struct Timer {
    flush: Maker,
    ns_per_tick: f64,
}

/// The counter of the processor; 0 where there is none, which [`Timer::new`] refuses.
fn ticks() -> u64 {
    arch::ticks().unwrap_or(0)
}

impl Timer {
    pub fn new() -> Result<Self, Error> {
        let lacks = |what: &str| {
            Error::refused(
                WHAT,
                format!("Quell knows no {what} of this processor"),
                "declare the map instead (quell colours map FILE)",
            )
        };
        let flush = arch::request(Request::Flush);
        let flush = flush.ok_or_else(|| lacks("instruction that flushes a line"))?;
        let from = arch::ticks().ok_or_else(|| lacks("counter of constant rate"))?;
        let begin = clock::now();
        while clock::now() < begin + COMPARE_NS {}
        let (ticks, ns) = (ticks().wrapping_sub(from), clock::now() - begin);
        Ok(Self {
            flush,
            ns_per_tick: ns as f64 / ticks.max(1) as f64,
        })
    }

    /// Nanoseconds of reading two lines from memory, one after the other.
    ///
    /// # Safety
    /// `lines` are offsets within a buffer of ours at `start`.
    unsafe fn ns(&self, start: *mut u8, lines: Lines) -> f64 {
        let at = |line: u64| start.wrapping_add(usize::try_from(line).unwrap_or(0));
        let (a, b) = (at(lines.0), at(lines.1));
        let mut rounds = [0u64; ROUNDS.0];
        for round in &mut rounds {
            // SAFETY: by the contract; a flush changes no contents.
            unsafe {
                (self.flush)(a);
                (self.flush)(b);
            }
            arch::fence();
            let begin = ticks();
            // SAFETY: by the contract.
            unsafe { a.read_volatile() };
            // Reading the counter waits for the first line.
            let _ = ticks();
            // SAFETY: by the contract.
            unsafe { b.read_volatile() };
            *round = ticks().wrapping_sub(begin);
        }
        rounds.sort_unstable();
        let counted = &rounds[..ROUNDS.1];
        counted.iter().sum::<u64>() as f64 / counted.len() as f64 * self.ns_per_tick
    }

    /// Nanoseconds of the last read of a question. Afterwards no cache has any of its lines.
    ///
    /// # Safety
    /// Its lines are offsets within a buffer of ours at `start`.
    pub unsafe fn reread(&self, start: *mut u8, question: &Reread<'_>) -> f64 {
        let at = |line: u64| start.wrapping_add(usize::try_from(line).unwrap_or(0));
        let victim = at(question.victim);
        // SAFETY: by the contract.
        unsafe { victim.read_volatile() };
        arch::fence();
        for line in question.between() {
            // SAFETY: by the contract.
            unsafe { at(line).read_volatile() };
        }
        arch::fence();
        let begin = ticks();
        // SAFETY: by the contract.
        unsafe { victim.read_volatile() };
        let took = ticks().wrapping_sub(begin);
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
        let Ok(timer) = Timer::new() else {
            println!("skipped: this processor flushes no line, or has no counter");
            return;
        };
        let buffer = Buffer::new(Bytes(2 << 20), Pages::Base).unwrap();
        // SAFETY: two lines of the buffer.
        let ns = unsafe { timer.ns(buffer.start(), (0, 4096)) };
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
        let said = pool_of(0, 1 << 20, &mut block).unwrap_err();
        let said = said.to_string();
        assert!(said.contains("free memory: 128MiB are needed"), "{said}");
    }
}
