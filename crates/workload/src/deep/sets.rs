//! Which address bits choose the set of a cache: times of lines that are read again
//! (`quell_types::address::recovery::recover_sets`).
//!
//! Method: a thread on one CPU reads the lines of a question, times the last read, and flushes all
//! of them. The pages are locked and their frames known, as for the banks. A pool is much larger
//! than the pages that are taken from it at random: neighbours would lack address bits.
//!
//! All caches together have [`LIMIT_NS`]. A cache that is not done then is said to be noisy.

use std::io;

use quell_plan::deep::{CacheSets, targets};
use quell_plan::inventory::Inventory;
use quell_types::address::recovery::{Reread, recover_sets};
use quell_types::units::Bytes;

use super::banks::{Clock, LEAST, PART, TURN_NS, Timer};
use super::locked::{Locked, differences};
use super::{Block, Watch, first};
use crate::{Error, affinity, clock, procfs};

const WHAT: &str = "recovering the sets of caches";
/// How long all caches together may take, in nanoseconds.
const LIMIT_NS: u64 = 18_000_000_000;
/// Bytes of the pool, where memory has them: at least, and at most.
const POOL: (u64, u64) = (256 << 20, 1 << 30);
/// log2 of the bytes of the pages that are compared.
const SHIFT: u32 = 12;

/// Times lines that are read again, and recovers from them the functions of the sets of all caches
/// beyond the first level.
///
/// # Errors
/// When `watch` returns false, physical addresses are hidden, memory is too short, or this
/// processor lacks an instruction.
pub fn cache_sets(
    machine: &Inventory,
    clock: Clock,
    mut watch: Watch<'_>,
) -> io::Result<Vec<CacheSets>> {
    let begin = clock::now();
    let mut block = Block {
        label: "cache sets",
        from: 0,
        to: 100,
        watch: &mut watch,
    };
    block.at(0, 1)?;
    let cpu = first(machine)?;
    let all = targets(&machine.caches, cpu);
    let wanted = all.iter().map(|(_, shape)| (shape.pool() as u64) << SHIFT);
    let wanted = wanted.max().unwrap_or(0).clamp(POOL.0, POOL.1);
    let available = procfs::available_memory()?.map_or(u64::MAX, |available| available.0);
    let size = wanted.min(available / PART) & !0x1f_ffff;
    if size < LEAST {
        return Err(Error::refused(
            WHAT,
            format!("a quarter of the available memory is {}", Bytes(size)),
            format!("free memory: {} are needed", Bytes(PART * LEAST)),
        )
        .into());
    }
    let _pinned = affinity::pin_to(cpu)?;
    let (timer, memory) = (Timer::new(clock)?, differences()?);
    let locked = Locked::new(size, WHAT)?;
    let pool = locked.pool(SHIFT);
    let (mut found, mut from, mut due) = (Vec::new(), begin, begin);
    for (n, (cache, shape)) in all.iter().enumerate() {
        let left = (begin + LIMIT_NS).saturating_sub(from) / (all.len() - n) as u64;
        let mut probe = |question: &Reread<'_>| {
            let now = clock::now();
            if now - from >= left {
                return Ok(None);
            }
            if now >= due {
                let percent = u32::try_from((now - begin) * 100 / LIMIT_NS);
                block.at(percent.unwrap_or(100), 100)?;
                due = clock::now() + TURN_NS;
            }
            // SAFETY: lines of the pool.
            Ok::<_, Error>(Some(unsafe {
                timer.reread(&|line| locked.at(line), question)
            }))
        };
        let recovery = recover_sets(&pool, &memory, shape, size, &mut probe)?;
        let now = clock::now();
        let took_s = (now - from) as f64 / 1e9;
        found.push(CacheSets::new(cache, Bytes(size), took_s, recovery));
        from = now;
    }
    locked.stayed()?;
    Ok(found)
}
