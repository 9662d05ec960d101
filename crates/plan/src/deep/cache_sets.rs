//! Which address bits choose the set of a cache, recovered from what drives lines out
//! (`quell_types::address::recovery`), next to what the inventory assumes.

use quell_types::address::gf2::Space;
use quell_types::address::of_index;
use quell_types::address::recovery::{SetRecovery, Shape};
use quell_types::cpuset::CpuId;
use quell_types::partition::{Mask, SMALL_PAGE};
use quell_types::units::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::hardware::Cache;

/// Ways of a set where the machine reports none: most last-level caches have that many.
const WAYS: u32 = 16;

/// What eviction says of a cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct CacheSets {
    /// Level of the cache.
    pub level: u32,
    /// Its size, as reported.
    pub size: Bytes,
    /// Lines of a set, as reported. Absent where the machine reports none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ways: Option<u32>,
    /// The memory whose lines were read.
    pub pool: Bytes,
    /// How long it took, in seconds.
    pub took_s: f64,
    /// What was found.
    pub found: SetRecovery,
    /// The functions that the inventory assumes: plain address bits above those within a line.
    /// Empty where the number of sets is no power of two, or not reported.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assumed: Vec<Mask>,
}

/// How the colours that were found differ from those that the inventory assumes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Functions of the colours found that do not follow from those assumed.
    pub more: Vec<Mask>,
    /// Functions of the colours assumed that do not follow from those found.
    pub missing: Vec<Mask>,
}

impl CacheSets {
    /// What was found of `cache`, with `pool` bytes in so many seconds.
    #[must_use]
    pub fn new(cache: &Cache, pool: Bytes, took_s: f64, found: SetRecovery) -> Self {
        let sets = cache.sets.map_or(0, u64::from);
        Self {
            level: cache.level,
            size: cache.size,
            ways: cache.ways,
            pool,
            took_s,
            found,
            assumed: of_index(cache.line.0, sets).into_iter().map(Mask).collect(),
        }
    }

    /// How the colours of pages of 2^`page_shift` bytes differ from those assumed. `None` where no
    /// functions were found.
    #[must_use]
    pub fn difference(&self, page_shift: u32) -> Option<Difference> {
        let found = self.found.colours(page_shift)?;
        let outside = u64::MAX.checked_shl(page_shift).unwrap_or(0);
        let assumed = Space::spanned(self.assumed.iter().map(|mask| mask.0)).within(outside);
        let found = Space::spanned(found.functions().iter().copied());
        let beyond = |one: &Space, other: &Space| {
            let rows = one.rows().iter().filter(|row| !other.contains(**row));
            rows.map(|row| Mask(*row)).collect()
        };
        Some(Difference {
            more: beyond(&found, &assumed),
            missing: beyond(&assumed, &found),
        })
    }
}

/// Of a machine's caches those of a CPU beyond the first level, nearest first, each with what a
/// recovery needs.
#[must_use]
pub fn targets(caches: &[Cache], cpu: CpuId) -> Vec<(Cache, Shape)> {
    let level = |level: u32| {
        let mut all = caches.iter();
        all.find(|cache| cache.holds_data_at(level) && cache.cpus.contains(cpu))
    };
    let pages = |cache: &Cache| usize::try_from(cache.size.0 / SMALL_PAGE.0).unwrap_or(usize::MAX);
    let pairs = (1..).map_while(|n| level(n).zip(level(n + 1)));
    let target = |(nearer, cache): (&Cache, &Cache)| {
        let shape = Shape {
            pages: pages(cache),
            ways: cache.ways.unwrap_or(WAYS).max(1) as usize,
            nearer: pages(nearer),
        };
        (cache.clone(), shape)
    };
    pairs.map(target).collect()
}
