//! What a trace contains, in brief: accesses, how much memory they touch, and how much of it caches
//! of usual sizes would keep.
//!
//! The caches are the model's, with true LRU. They see virtual addresses and data only. A real
//! cache that indexes by physical addresses, holds instructions, or prefetches has other misses.

use std::collections::BTreeMap;
use std::io::BufRead;

use quell_model::cache::{Cache, Geometry, Policy};
use serde::Serialize;

use super::{Damaged, Kind, Reader};
use crate::access::LINE;

/// Sizes and ways of the caches in a summary: usual ones of each level.
const CACHES: [(u64, u32); 4] = [(32 << 10, 8), (256 << 10, 8), (2 << 20, 16), (16 << 20, 16)];
/// Lines of a page of 4 KiB.
const PAGE_LINES: u64 = 4096 / LINE;

/// What one cache would make of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cached {
    /// Its size in bytes.
    pub bytes: u64,
    /// The ways of each set.
    pub ways: u32,
    /// Lines it would fetch, if it begins empty.
    pub misses: u64,
}

/// What a trace contains.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// How many accesses only read.
    pub reads: u64,
    /// How many accesses only write.
    pub writes: u64,
    /// Accesses that read and write the same place.
    pub modifies: u64,
    /// Instructions, up to the last access.
    pub instructions: u64,
    /// Accesses to lines of 64 bytes, as a replay does them. An access across lines counts once for
    /// each line.
    pub line_accesses: u64,
    /// How many different lines of 64 bytes are touched.
    pub lines: u64,
    /// How many different pages of 4 KiB are touched.
    pub pages: u64,
    /// What caches of usual sizes would fetch.
    pub caches: Vec<Cached>,
}

impl Summary {
    /// All accesses: reads, writes and modifies together.
    #[must_use]
    pub fn accesses(&self) -> u64 {
        self.reads + self.writes + self.modifies
    }
}

/// Reads a trace to its end. It needs some 16 bytes of memory per page that the program touched,
/// and the caches.
///
/// # Errors
/// Those of the reader.
pub fn summary<R: BufRead>(trace: Reader<R>) -> Result<Summary, Damaged> {
    let mut caches = CACHES.map(|(bytes, ways)| {
        let geometry = Geometry::plain(bytes, ways, LINE);
        let cache = geometry.and_then(|geometry| Cache::new(&geometry, Policy::Lru, 1));
        cache.expect("invariant: these caches can be")
    });
    let mut touched: BTreeMap<u64, u64> = BTreeMap::new();
    let mut all = Summary::default();
    for record in trace {
        let record = record?;
        match record.kind {
            Kind::Load => all.reads += 1,
            Kind::Store => all.writes += 1,
            Kind::Modify => all.modifies += 1,
        }
        all.instructions = all.instructions.saturating_add(record.instructions);
        for access in record.accesses() {
            all.line_accesses += 1;
            let line = access.address / LINE;
            *touched.entry(line / PAGE_LINES).or_default() |= 1 << (line % PAGE_LINES);
            for cache in &mut caches {
                cache.access(access.address, access.write, 0);
            }
        }
    }
    all.pages = touched.len() as u64;
    all.lines = touched
        .values()
        .map(|page| u64::from(page.count_ones()))
        .sum();
    all.caches = CACHES
        .iter()
        .zip(&caches)
        .map(|(&(bytes, ways), cache)| Cached {
            bytes,
            ways,
            misses: cache.counts(0).misses,
        })
        .collect();
    Ok(all)
}
