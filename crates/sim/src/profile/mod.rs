//! Machine profiles: what a simulated machine is made of, as data with the origin of every number
//! (`docs/profiles.md`).
//!
//! Method: TOML as a person writes it, read by the reader of the policy language (every problem
//! with its place, unknown keys refused), then built: a profile that was read is one whose caches,
//! DRAM and address map exist. Every section names its `source`; keys that no source gives stand in
//! `assumed` with the reason, so that reports can tell facts from guesses.

mod built;
mod origins;
mod read;

use std::collections::BTreeMap;

use quell_model::Invalid;
use quell_model::cache::Geometry;
use quell_types::mechanism::Mechanism;
use quell_types::partition::{Exclusion, MbaBounds};
use quell_types::text::Problem;
use quell_types::units::{Bytes, Nanos};
use serde::Deserialize;

use crate::access::{ADDRESS_BITS, PAGE_SHIFT};

pub use origins::Origin;
pub use quell_types::bits::BitFunctions;

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
    /// The processor, as an inventory calls it.
    pub model: String,
    /// As `uname -m` would say.
    pub architecture: String,
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
    /// What its operating system takes.
    pub os: OsTimes,
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

/// See [`quell_model::cache::Policy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Replacement {
    /// [`quell_model::cache::Policy::Lru`].
    Lru,
    /// [`quell_model::cache::Policy::TreePlru`].
    TreePlru,
    /// [`quell_model::cache::Policy::Random`].
    Random,
    /// [`quell_model::cache::Policy::Bimodal`].
    Bimodal,
}

/// See [`quell_model::cache::Inclusion`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Inclusive {
    /// [`quell_model::cache::Inclusion::NonInclusive`].
    #[default]
    NonInclusive,
    /// [`quell_model::cache::Inclusion::Inclusive`].
    Inclusive,
    /// [`quell_model::cache::Inclusion::Exclusive`].
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

/// Speed grades with known timings, see [`quell_model::dram::Timing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Grade {
    /// [`quell_model::dram::Timing::ddr3_1066`].
    #[serde(rename = "DDR3-1066")]
    Ddr3At1066,
    /// [`quell_model::dram::Timing::ddr3_1333`].
    #[serde(rename = "DDR3-1333")]
    Ddr3At1333,
    /// [`quell_model::dram::Timing::ddr4_2400`].
    #[serde(rename = "DDR4-2400")]
    Ddr4At2400,
    /// [`quell_model::dram::Timing::ddr4_3200`].
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
    /// Entries carry the address space, so that they outlive a change to another one and back.
    pub tagged: bool,
    /// Where the numbers come from.
    pub source: String,
    /// Keys that no source gives, with the reason for their value.
    #[serde(default)]
    pub assumed: Assumed,
}

impl TlbShape {
    /// Both tables, for small and for large pages, as caches whose lines are pages.
    ///
    /// # Errors
    /// For entries that are no whole number of sets, or large pages that are not larger than small
    /// ones.
    pub fn geometries(&self) -> Result<[Geometry; 2], Invalid> {
        let invalid = |reason| Invalid {
            what: "TLB".into(),
            reason,
        };
        let large = self.large_page.0;
        if !large.is_power_of_two() || large >> PAGE_SHIFT < 2 || large >> ADDRESS_BITS != 0 {
            return Err(invalid(format!(
                "large pages of {}: use a power of two above 4KiB",
                self.large_page
            )));
        }
        let table = |entries: u32, ways: u32| {
            if ways == 0 || !entries.is_multiple_of(ways) {
                let reason =
                    format!("{entries} entries are not a whole number of sets of {ways} ways");
                return Err(invalid(reason));
            }
            Geometry::plain(u64::from(entries) << PAGE_SHIFT, ways, 1 << PAGE_SHIFT)
        };
        Ok([
            table(self.entries, self.ways)?,
            table(self.large_entries, self.large_ways)?,
        ])
    }
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
    /// A budget for both directions counts lines written back, too, not lines read alone. A budget
    /// of one direction counts that one either way.
    #[serde(default)]
    pub writes: bool,
    /// Where the numbers come from.
    pub source: String,
    /// Keys that no source gives, with the reason for their value.
    #[serde(default)]
    pub assumed: Assumed,
}

/// What the operating system takes.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct OsTimes {
    /// How long a task runs while others wait for its core.
    pub slice: Nanos,
    /// From one task to the next on a core.
    pub switch: Nanos,
    /// What the handler of a counter's interrupt takes of its core.
    pub interrupt: Nanos,
    /// Which of the free page frames a program gets.
    #[serde(default)]
    pub frames: FrameOrder,
    /// Where the numbers come from.
    pub source: String,
    /// Keys that no source gives, with the reason for their value.
    #[serde(default)]
    pub assumed: Assumed,
}

/// Which of the free page frames that would do a program gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FrameOrder {
    /// Any, at random, as of a machine that has been up for long.
    #[default]
    Random,
    /// The lowest, as of one that has just started.
    Ascending,
}

impl std::fmt::Display for FrameOrder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Random => "random",
            Self::Ascending => "ascending",
        })
    }
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
    pub mba: Option<MbaBounds>,
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

fn one() -> u32 {
    1
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
            let remedy = match quell_types::text::suggestion(name, Self::names()) {
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
        quell_types::text::read(text, file, read::check)
    }
}
