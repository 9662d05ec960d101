//! What is built from a profile: the hardware, and the colours that its pages have.

use quell_model::address::{AddressMap, Fields};
use quell_model::cache::{Geometry, Inclusion, Index, Level, Policy};
use quell_model::dram::{Config, Timing};
use quell_model::{Invalid, Picos};
use quell_types::address::{Colours, of_index};

use super::{CacheLevel, Cores, Grade, Inclusive, Memory, Profile, Replacement, Ways};
use crate::Description;

impl Profile {
    /// What [`crate::Machine`] is built from. Its cores are the hardware threads, numbered as Linux
    /// does on x86: the first threads of all cores, then the second ones.
    ///
    /// # Errors
    /// None for a profile that was read. For one that was changed since: what is impossible.
    pub fn description(&self) -> Result<Description, Invalid> {
        Ok(Description {
            clock: self.clock(),
            levels: self
                .cache
                .iter()
                .map(|level| Ok((level.level(&self.cores)?, level.latency)))
                .collect::<Result<_, Invalid>>()?,
            ports: self.cache.iter().map(|level| level.port).collect(),
            transit: self.memory.transit.0 * 1000,
            misses: self.cores.misses,
            window: self.cores.window,
            map: self.memory.map()?,
            dram: self.memory.dram(),
            tlb: Some(self.tlb.clone()),
            prefetcher: self.prefetcher.clone().filter(|prefetcher| prefetcher.on),
            smt: self.smt.clone(),
        })
    }

    /// Picoseconds of a core cycle.
    #[must_use]
    pub fn clock(&self) -> Picos {
        1_000_000 / u64::from(self.cores.mhz.max(1))
    }

    /// The number of a cache level, from 1; 0 if there is no such level.
    #[must_use]
    pub fn level_of(&self, name: &str) -> u32 {
        let index = self.cache.iter().position(|level| level.name == name);
        index.map_or(0, |n| u32::try_from(n + 1).unwrap_or(0))
    }

    /// How many hardware threads there are in all.
    #[must_use]
    pub fn cpus(&self) -> u32 {
        self.cores.count * self.cores.threads
    }

    /// The core of a hardware thread.
    #[must_use]
    pub fn core_of(&self, cpu: u32) -> u32 {
        cpu % self.cores.count
    }

    /// The functions of DRAM banks by which pages of 2^`page_shift` bytes can be placed. Empty
    /// where channels take lines in turn by division, which is no function of single bits.
    #[must_use]
    pub fn bank_colours(&self, page_shift: u32) -> Colours {
        let memory = &self.memory;
        let functions: Vec<u64> = if memory.channels_in_turn > 1 {
            Vec::new()
        } else {
            memory
                .bank
                .0
                .iter()
                .chain(&memory.rank.0)
                .copied()
                .collect()
        };
        Colours::new(&functions, page_shift)
    }

    /// The functions of the sets of cache level `level` (from 0) by which pages can be placed.
    /// Empty where the number of sets is no power of two: then the index is no function of single
    /// bits.
    #[must_use]
    pub fn set_colours(&self, level: usize, page_shift: u32) -> Colours {
        let functions = self
            .cache
            .get(level)
            .map_or_else(Vec::new, CacheLevel::functions);
        Colours::new(&functions, page_shift)
    }

    /// Those of [`Profile::set_colours`] of the last level that leave all nearer levels whole, if
    /// there are any. A group with one of these colours still fills all of its private caches.
    #[must_use]
    pub fn sparing_set_colours(&self, page_shift: u32) -> Colours {
        let last = self.cache.len().saturating_sub(1);
        let all = self.set_colours(last, page_shift);
        let nearer = self.cache[..last].iter().flat_map(CacheLevel::functions);
        let nearer = Colours::new(&nearer.collect::<Vec<_>>(), page_shift);
        let sparing = all.sparing(&nearer);
        if sparing.bits() == 0 { all } else { sparing }
    }
}

impl CacheLevel {
    pub(super) fn geometry(&self) -> Result<Geometry, Invalid> {
        if self.set.0.is_empty() && self.slice.0.is_empty() {
            return Geometry::plain(self.size.0, self.ways, self.line);
        }
        Ok(Geometry {
            line: self.line,
            ways: self.ways,
            index: Index::Functions {
                set: self.set.0.clone(),
                slice: self.slice.0.clone(),
            },
        })
    }

    pub(super) fn level(&self, cores: &Cores) -> Result<Level, Invalid> {
        let shared = self.cores.max(1);
        Ok(Level {
            geometry: self.geometry()?,
            policy: match self.replacement {
                Replacement::Lru => Policy::Lru,
                Replacement::TreePlru => Policy::TreePlru,
                Replacement::Random => Policy::Random,
                Replacement::Bimodal => Policy::Bimodal { aging: self.aging },
            },
            inclusion: match self.inclusion {
                Inclusive::NonInclusive => Inclusion::NonInclusive,
                Inclusive::Inclusive => Inclusion::Inclusive,
                Inclusive::Exclusive => Inclusion::Exclusive,
            },
            cache_of: (0..cores.count * cores.threads)
                .map(|cpu| (cpu % cores.count / shared) as usize)
                .collect(),
        })
    }

    /// Set and slice index as masks over addresses. Empty where the index is a remainder.
    pub(super) fn functions(&self) -> Vec<u64> {
        if !self.set.0.is_empty() || !self.slice.0.is_empty() {
            return self.set.0.iter().chain(&self.slice.0).copied().collect();
        }
        let sets = self.size.0 / (self.line * u64::from(self.ways)).max(1);
        of_index(self.line, sets)
    }
}

impl Memory {
    pub(super) fn map(&self) -> Result<AddressMap, Invalid> {
        AddressMap::new(Fields {
            line_shift: 6,
            channel: self.channel.0.clone(),
            rank: self.rank.0.clone(),
            bank: self.bank.0.clone(),
            row: self.row.0.clone(),
            column: self.column.0.clone(),
            channels_in_turn: self.channels_in_turn,
        })
    }

    pub(super) fn dram(&self) -> Config {
        let config = match self.timing {
            Grade::Ddr3At1066 => Config::ddr3(Timing::ddr3_1066()),
            Grade::Ddr3At1333 => Config::ddr3(Timing::ddr3_1333()),
            Grade::Ddr4At2400 => Config::ddr4(Timing::ddr4_2400()),
            Grade::Ddr4At3200 => Config::ddr4(Timing::ddr4_3200()),
        };
        let ranks = 1 << self.rank.0.len().min(8);
        let banks = 1 << self.bank.0.len().min(8);
        Config {
            ranks,
            banks,
            ..config
        }
    }

    /// How many bytes the functions distinguish.
    pub(super) fn reach(&self) -> u64 {
        let bits = [
            &self.channel,
            &self.rank,
            &self.bank,
            &self.row,
            &self.column,
        ]
        .iter()
        .map(|functions| functions.0.len())
        .sum::<usize>();
        u32::try_from(bits)
            .ok()
            .and_then(|bits| 64u64.checked_shl(bits))
            .unwrap_or(u64::MAX)
            .saturating_mul(self.channels_in_turn.max(1))
    }
}

impl Ways {
    /// The fill mask of a cache with `ways` ways, from a mask of segments. The lowest segment
    /// stands for the lowest ways.
    #[must_use]
    pub fn fill_mask(&self, segments: u64, ways: u32) -> u64 {
        let each = ways / self.segments.max(1);
        let one = u64::MAX >> (64 - each.clamp(1, 64));
        (0..self.segments.min(64))
            .filter(|segment| segments >> segment & 1 == 1)
            .fold(0, |mask, segment| {
                mask | one.checked_shl(segment * each).unwrap_or(0)
            })
    }
}
