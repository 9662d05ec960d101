//! Machine profiles: what a simulated machine is made of, as data with the origin of every number (`docs/profiles.md`).
//!
//! Method: TOML as a person writes it, read by the reader of the policy language (every problem with its place, unknown keys
//! refused), then built: a profile that was read is one whose caches, DRAM and address map exist. Every section names its
//! `source`; keys that no source gives stand in `assumed` with the reason, so that reports can tell facts from guesses.

mod bits;
mod read;

use std::collections::BTreeMap;

use quell_core::mechanism::Mechanism;
use quell_core::text::Problem;
use quell_core::units::{Bytes, Nanos};
use quell_model::address::{AddressMap, Colours, Fields};
use quell_model::cache::{Geometry, Inclusion, Index, Level, Policy};
use quell_model::dram::{Config, Timing};
use quell_model::{Invalid, Picos};
use serde::Deserialize;

use crate::Description;
pub use bits::BitFunctions;

/// The profiles that come with Quell: name and text.
const BUILT_IN: [(&str, &str); 6] = [
    ("xeon-w3530", include_str!("../../profiles/xeon-w3530.toml")),
    ("p4080", include_str!("../../profiles/p4080.toml")),
    ("apollolake", include_str!("../../profiles/apollolake.toml")),
    ("xeon-e5645", include_str!("../../profiles/xeon-e5645.toml")),
    ("icelake-sp", include_str!("../../profiles/icelake-sp.toml")),
    ("cortex-a72", include_str!("../../profiles/cortex-a72.toml")),
];

/// A machine.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Profile {
    /// Version of the format.
    quell: u64,
    /// Its name.
    pub name: String,
    /// What it is, in a sentence.
    pub about: String,
    /// The processor's cores.
    pub cores: Cores,
    /// Cache levels, nearest first.
    pub cache: Vec<CacheLevel>,
    /// Memory and its controllers.
    pub memory: Memory,
    /// Translation.
    pub tlb: TlbShape,
    /// The hardware prefetcher, if it has one that is worth modelling.
    pub prefetcher: Option<Prefetcher>,
    /// Hardware counters.
    pub counters: Counters,
    /// What it offers for keeping groups apart.
    pub mechanisms: Mechanisms,
}

/// Where the numbers of a section come from.
pub type Assumed = BTreeMap<String, String>;

/// The processor's cores, all alike.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Cores {
    /// Cores.
    pub count: u32,
    /// Hardware threads of each.
    pub threads: u32,
    /// Clock in MHz.
    pub mhz: u32,
    /// Misses of its first-level cache that a core can have outstanding.
    pub misses: u32,
    /// Where the numbers come from.
    pub source: String,
    /// Keys that no source gives, with the reason for their value.
    #[serde(default)]
    pub assumed: Assumed,
}

/// A cache level.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct CacheLevel {
    /// `L1`, `L2`, …
    pub name: String,
    /// Of one cache.
    pub size: Bytes,
    /// Ways.
    pub ways: u32,
    /// Bytes of a line.
    pub line: u64,
    /// What a dependent access that hits here takes, in core cycles.
    pub latency: u32,
    /// Cores that share one cache.
    pub cores: u32,
    /// Who leaves a full set.
    pub replacement: Replacement,
    /// How it relates to the levels before it.
    #[serde(default)]
    pub inclusion: Inclusive,
    /// The set index within a slice; without, it is the line's number modulo the number of sets.
    #[serde(default)]
    pub set: BitFunctions,
    /// The slice.
    #[serde(default)]
    pub slice: BitFunctions,
    /// Where the numbers come from.
    pub source: String,
    /// Keys that no source gives, with the reason for their value.
    #[serde(default)]
    pub assumed: Assumed,
}

/// See [`Policy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Replacement {
    /// [`Policy::Lru`].
    Lru,
    /// [`Policy::TreePlru`].
    TreePlru,
}

/// See [`Inclusion`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Inclusive {
    /// [`Inclusion::NonInclusive`].
    #[default]
    NonInclusive,
    /// [`Inclusion::Inclusive`].
    Inclusive,
    /// [`Inclusion::Exclusive`].
    Exclusive,
}

/// Memory and its controllers.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Memory {
    /// All of it.
    pub size: Bytes,
    /// Speed grade.
    pub timing: Grade,
    /// Between a core and DRAM, there and back, beyond the cache lookups.
    pub transit: Nanos,
    /// Lines go to so many channels in turn, where that is no power of two (else `channel`).
    #[serde(default)]
    pub channels_in_turn: u64,
    /// Channel.
    #[serde(default)]
    pub channel: BitFunctions,
    /// Rank within the channel.
    #[serde(default)]
    pub rank: BitFunctions,
    /// Bank within the rank, the bank group lowest.
    pub bank: BitFunctions,
    /// Row within the bank.
    pub row: BitFunctions,
    /// Line within the row.
    pub column: BitFunctions,
    /// Where the numbers come from.
    pub source: String,
    /// Keys that no source gives, with the reason for their value.
    #[serde(default)]
    pub assumed: Assumed,
}

/// Speed grades with known timings, see [`Timing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Grade {
    /// [`Timing::ddr3_1066`].
    #[serde(rename = "DDR3-1066")]
    Ddr3At1066,
    /// [`Timing::ddr3_1333`].
    #[serde(rename = "DDR3-1333")]
    Ddr3At1333,
    /// [`Timing::ddr4_2400`].
    #[serde(rename = "DDR4-2400")]
    Ddr4At2400,
    /// [`Timing::ddr4_3200`].
    #[serde(rename = "DDR4-3200")]
    Ddr4At3200,
}

/// Translation: the last level of the data TLB, for pages of 4 KiB and for large ones.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TlbShape {
    /// Entries for pages of 4 KiB.
    pub entries: u32,
    /// Their ways.
    pub ways: u32,
    /// Entries for large pages or regions.
    pub large_entries: u32,
    /// Their ways.
    pub large_ways: u32,
    /// Bytes that a large entry maps; where it varies, the size that the model uses.
    pub large_page: Bytes,
    /// What a miss costs, in core cycles: the walk, its loads hitting a cache.
    pub walk: u32,
    /// Where the numbers come from.
    pub source: String,
    /// Keys that no source gives, with the reason for their value.
    #[serde(default)]
    pub assumed: Assumed,
}

/// A stream prefetcher.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Prefetcher {
    /// Whether it is on unless an experiment says otherwise.
    pub on: bool,
    /// Streams that a core follows at a time.
    pub streams: u32,
    /// Lines fetched per access of a stream.
    pub degree: u32,
    /// How many lines ahead at most.
    pub distance: u32,
    /// Where the numbers come from.
    pub source: String,
    /// Keys that no source gives, with the reason for their value.
    #[serde(default)]
    pub assumed: Assumed,
}

/// Hardware counters.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Counters {
    /// From an overflow to its interrupt being handled.
    pub delay: Nanos,
    /// Where the numbers come from.
    pub source: String,
    /// Keys that no source gives, with the reason for their value.
    #[serde(default)]
    pub assumed: Assumed,
}

/// What a machine offers for keeping groups apart.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Mechanisms {
    /// Which of them.
    pub available: Vec<Mechanism>,
    /// Way partition.
    pub ways: Option<Ways>,
    /// Memory-bandwidth allocation.
    pub mba: Option<Mba>,
    /// What cannot be had together.
    #[serde(default)]
    pub exclusion: Vec<Exclusion>,
    /// Where the numbers come from.
    pub source: String,
    /// Keys that no source gives, with the reason for their value.
    #[serde(default)]
    pub assumed: Assumed,
}

/// Way partition, in the words of resctrl.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Ways {
    /// The cache it partitions, by name.
    pub cache: String,
    /// Classes of service.
    pub classes: u32,
    /// Bits of a mask; the cache's ways are a multiple.
    pub segments: u32,
    /// Bits that a mask must have at least.
    #[serde(default = "one")]
    pub least: u32,
    /// Masks may have holes.
    #[serde(default)]
    pub sparse: bool,
}

/// Memory-bandwidth allocation, in the words of resctrl.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Mba {
    /// Classes of service.
    pub classes: u32,
    /// Least percentage.
    pub least: u32,
    /// Steps of percentages.
    pub step: u32,
}

/// Mechanisms that cannot be had together.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Exclusion {
    /// One of them…
    pub mechanism: Mechanism,
    /// … with any of these.
    pub with: Vec<Mechanism>,
    /// Why, as a plan says it.
    pub reason: String,
}

fn one() -> u32 {
    1
}

/// Where a number comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The section, for example `memory` or `cache.L2`.
    pub section: String,
    /// The key; all of the section that is not assumed where absent.
    pub key: Option<String>,
    /// The source, or why it was assumed so.
    pub text: String,
    /// An assumption.
    pub assumed: bool,
}

/// No such profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no machine profile '{name}'; {remedy}")]
pub struct Unknown {
    /// Asked for.
    pub name: String,
    /// What there is.
    pub remedy: String,
}

impl Profile {
    /// The names of the profiles that come with Quell.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// A profile that comes with Quell.
    ///
    /// # Errors
    /// Where there is none of that name.
    pub fn built_in(name: &str) -> Result<Self, Unknown> {
        let Some((name, text)) = BUILT_IN.iter().find(|(known, _)| *known == name) else {
            let remedy = match quell_core::text::suggestion(name, Self::names()) {
                Some(close) => format!("did you mean '{close}'?"),
                None => format!("there are {}", Self::names().collect::<Vec<_>>().join(", ")),
            };
            let name = name.to_owned();
            return Err(Unknown { name, remedy });
        };
        Ok(Self::parse(text, &format!("{name}.toml"))
            .expect("invariant: a test reads the built-in profiles"))
    }

    /// Reads a profile; `file` is what problems call it.
    ///
    /// # Errors
    /// Every problem found, with its place.
    pub fn parse(text: &str, file: &str) -> Result<Self, Vec<Problem>> {
        quell_core::text::read(text, file, read::check)
    }

    /// What [`crate::Machine`] is made of. Its cores are the hardware threads, numbered as Linux does on x86: the first ones of all
    /// cores, then the second ones.
    ///
    /// # Errors
    /// None for a profile that was read; for one that was changed since, what cannot be.
    pub fn description(&self) -> Result<Description, Invalid> {
        Ok(Description {
            clock: self.clock(),
            levels: self
                .cache
                .iter()
                .map(|level| Ok((level.level(&self.cores)?, level.latency)))
                .collect::<Result<_, Invalid>>()?,
            transit: self.memory.transit.0 * 1000,
            misses: self.cores.misses,
            map: self.memory.map()?,
            dram: self.memory.dram(),
        })
    }

    /// A core's clock period in picoseconds.
    #[must_use]
    pub fn clock(&self) -> Picos {
        1_000_000 / u64::from(self.cores.mhz.max(1))
    }

    /// Hardware threads in all.
    #[must_use]
    pub fn cpus(&self) -> u32 {
        self.cores.count * self.cores.threads
    }

    /// The core of a hardware thread.
    #[must_use]
    pub fn core_of(&self, cpu: u32) -> u32 {
        cpu % self.cores.count
    }

    /// What tells the DRAM banks apart that pages of 2^`page_shift` bytes can be kept to. None where channels take lines in turn by
    /// division, which is no function of single bits.
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

    /// What tells the sets of cache level `level` (from 0) apart that pages can be kept to. None where the number of sets is no
    /// power of two and the index therefore no function of single bits.
    #[must_use]
    pub fn set_colours(&self, level: usize, page_shift: u32) -> Colours {
        let functions = self
            .cache
            .get(level)
            .map_or_else(Vec::new, CacheLevel::functions);
        Colours::new(&functions, page_shift)
    }

    /// Why two mechanisms cannot be had together here, if so.
    #[must_use]
    pub fn excluded(&self, one: Mechanism, other: Mechanism) -> Option<&str> {
        let both = |e: &&Exclusion| {
            e.mechanism == one && e.with.contains(&other)
                || e.mechanism == other && e.with.contains(&one)
        };
        let found = self.mechanisms.exclusion.iter().find(both)?;
        Some(&found.reason)
    }

    /// Where every number comes from, section by section: the source, then what is assumed.
    #[must_use]
    pub fn origins(&self) -> Vec<Origin> {
        let mut origins = Vec::new();
        for (section, source, assumed) in self.sections() {
            origins.push(Origin {
                section: section.clone(),
                key: None,
                text: source.to_owned(),
                assumed: false,
            });
            origins.extend(assumed.iter().map(|(key, why)| Origin {
                section: section.clone(),
                key: Some(key.clone()),
                text: why.clone(),
                assumed: true,
            }));
        }
        origins
    }

    fn sections(&self) -> Vec<(String, &str, &Assumed)> {
        let mut sections = vec![("cores".to_owned(), &*self.cores.source, &self.cores.assumed)];
        for level in &self.cache {
            let name = format!("cache.{}", level.name);
            sections.push((name, &level.source, &level.assumed));
        }
        sections.push(("memory".into(), &self.memory.source, &self.memory.assumed));
        sections.push(("tlb".into(), &self.tlb.source, &self.tlb.assumed));
        if let Some(p) = &self.prefetcher {
            sections.push(("prefetcher".into(), &p.source, &p.assumed));
        }
        sections.push((
            "counters".into(),
            &self.counters.source,
            &self.counters.assumed,
        ));
        let mechanisms = &self.mechanisms;
        sections.push(("mechanisms".into(), &mechanisms.source, &mechanisms.assumed));
        sections
    }
}

impl CacheLevel {
    fn geometry(&self) -> Result<Geometry, Invalid> {
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

    fn level(&self, cores: &Cores) -> Result<Level, Invalid> {
        let shared = self.cores.max(1);
        Ok(Level {
            geometry: self.geometry()?,
            policy: match self.replacement {
                Replacement::Lru => Policy::Lru,
                Replacement::TreePlru => Policy::TreePlru,
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

    /// Set and slice as masks over addresses; empty where the index is a remainder.
    fn functions(&self) -> Vec<u64> {
        if !self.set.0.is_empty() || !self.slice.0.is_empty() {
            return self.set.0.iter().chain(&self.slice.0).copied().collect();
        }
        let sets = self.size.0 / (self.line * u64::from(self.ways)).max(1);
        let first = self.line.trailing_zeros();
        if !sets.is_power_of_two() {
            return Vec::new();
        }
        (first..first + sets.trailing_zeros())
            .map(|bit| 1 << bit)
            .collect()
    }
}

impl Memory {
    fn map(&self) -> Result<AddressMap, Invalid> {
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

    fn dram(&self) -> Config {
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

    /// Bytes that the functions tell apart.
    fn reach(&self) -> u64 {
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
    /// The fill mask of a cache with `ways` ways for a mask of segments, the lowest segment being the lowest ways.
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
