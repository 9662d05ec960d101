//! Machine profiles: what a simulated machine is made of, as data with the origin of every number
//! (`docs/profiles.md`).
//!
//! Method:
//! - A profile is TOML, read by the reader of the policy language: every problem has its place, and
//!   unknown keys are refused.
//! - A profile that was read can be built: its caches, DRAM and address map are possible.
//! - Every section names its `source`. Keys that no source gives are in `assumed` with the reason.
//!   So reports can separate facts from guesses.

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
pub use quell_types::address::BitFunctions;

/// The profiles that come with Quell: name and text.
const BUILT_IN: [(&str, &str); 6] = [
    ("xeon-w3530", include_str!("../../profiles/xeon-w3530.toml")),
    ("p4080", include_str!("../../profiles/p4080.toml")),
    ("apollolake", include_str!("../../profiles/apollolake.toml")),
    ("xeon-e5645", include_str!("../../profiles/xeon-e5645.toml")),
    ("icelake-sp", include_str!("../../profiles/icelake-sp.toml")),
    ("cortex-a72", include_str!("../../profiles/cortex-a72.toml")),
];

/// A machine to simulate, with the origin of every number.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Profile {
    /// Version of the format; 1.
    quell: u64,
    /// The name that `--on sim:NAME` takes.
    pub name: String,
    /// What the machine is, in a sentence.
    pub about: String,
    /// The processor, as an inventory calls it.
    pub model: String,
    /// The architecture, as `uname -m` would print it.
    pub architecture: String,
    /// Number, clock and misses of the cores.
    pub cores: Cores,
    /// What the hardware threads of a core share besides caches and TLB. `None`: that is not
    /// modelled, and each thread has issue slots, ports and misses of its own.
    pub smt: Option<Smt>,
    /// Cache levels, nearest first.
    pub cache: Vec<CacheLevel>,
    /// Memory and its controllers.
    pub memory: Memory,
    /// The TLB of each core.
    pub tlb: TlbShape,
    /// The hardware prefetcher. `None`: it has none that is worth modelling.
    pub prefetcher: Option<Prefetcher>,
    /// What the hardware counters see, and how late they interrupt.
    pub counters: Counters,
    /// The times that its operating system takes.
    pub os: OsTimes,
    /// The mechanisms that it has for isolating groups.
    pub mechanisms: Mechanisms,
}

/// Keys that no source gives, each with the reason for its value.
pub type Assumed = BTreeMap<String, String>;

/// The processor's cores, which are all alike.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Cores {
    /// How many cores there are.
    pub count: u32,
    /// Hardware threads of each core.
    pub threads: u32,
    /// The clock of the cores in MHz.
    pub mhz: u32,
    /// Misses of its first-level cache that a core can have outstanding.
    pub misses: u32,
    /// Instructions that a core has in flight behind its oldest miss. `None`: without limit.
    pub window: Option<u32>,
    /// Where the section's numbers come from.
    pub source: String,
    /// Keys that no source gives, with the reason for their value.
    #[serde(default)]
    pub assumed: Assumed,
}

/// What the hardware threads of a core share, per core cycle. They share its misses, too.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Smt {
    /// Instructions that a core can issue.
    pub issue: u32,
    /// Loads that its first-level cache can serve.
    pub loads: u32,
    /// Stores that its first-level cache can serve.
    pub stores: u32,
    /// Where the section's numbers come from.
    pub source: String,
    /// Keys that no source gives, with the reason for their value.
    #[serde(default)]
    pub assumed: Assumed,
}

/// One level of caches, which are all alike.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct CacheLevel {
    /// `L1`, `L2`, … in this order.
    pub name: String,
    /// Bytes of one cache, not of all together.
    pub size: Bytes,
    /// Ways of each set.
    pub ways: u32,
    /// Bytes of a line.
    pub line: u64,
    /// Core cycles of a dependent access that hits here.
    pub latency: u32,
    /// Core cycles that an access occupies one cache, whichever core it comes from. 0: no limit.
    #[serde(default)]
    pub port: u32,
    /// How many cores share one cache.
    pub cores: u32,
    /// Which line leaves a full set.
    pub replacement: Replacement,
    /// Of bimodal insertion: one of so many lines that are filled in settles.
    #[serde(default = "aging")]
    pub aging: u32,
    /// How its contents relate to the nearer levels.
    #[serde(default)]
    pub inclusion: Inclusive,
    /// The set index within a slice. Without it, the index is the line's number modulo the number
    /// of sets.
    #[serde(default)]
    pub set: BitFunctions,
    /// The slice index. Without it there is one slice.
    #[serde(default)]
    pub slice: BitFunctions,
    /// Where the section's numbers come from.
    pub source: String,
    /// Keys that no source gives, with the reason for their value.
    #[serde(default)]
    pub assumed: Assumed,
}

/// Which line leaves a full set, see [`quell_model::cache::Policy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Replacement {
    /// Least recently used, see [`quell_model::cache::Policy::Lru`].
    Lru,
    /// A tree of bits, see [`quell_model::cache::Policy::TreePlru`].
    TreePlru,
    /// Any line at random, see [`quell_model::cache::Policy::Random`].
    Random,
    /// Bimodal insertion of lines, see [`quell_model::cache::Policy::Bimodal`].
    Bimodal,
}

/// Qureshi et al. took 1/32.
fn aging() -> u32 {
    32
}

/// How a cache relates to nearer ones, see [`quell_model::cache::Inclusion`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Inclusive {
    /// Independent of nearer levels, see [`quell_model::cache::Inclusion::NonInclusive`].
    #[default]
    NonInclusive,
    /// Contains all nearer levels, see [`quell_model::cache::Inclusion::Inclusive`].
    Inclusive,
    /// Contains no nearer line, see [`quell_model::cache::Inclusion::Exclusive`].
    Exclusive,
}

/// Memory and its controllers.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Memory {
    /// Bytes of all memory together.
    pub size: Bytes,
    /// The speed grade, which has known timings.
    pub timing: Grade,
    /// The time between a core and DRAM, there and back, beyond the cache lookups.
    pub transit: Nanos,
    /// Lines go to so many channels in turn, where that is no power of two. Else `channel` decides.
    #[serde(default)]
    pub channels_in_turn: u64,
    /// The channel of an address, as bit functions.
    #[serde(default)]
    pub channel: BitFunctions,
    /// The rank within the channel.
    #[serde(default)]
    pub rank: BitFunctions,
    /// The bank within the rank; the bank group has the lowest bits.
    pub bank: BitFunctions,
    /// The row within the bank.
    pub row: BitFunctions,
    /// The line within the row.
    pub column: BitFunctions,
    /// Where the section's numbers come from.
    pub source: String,
    /// Keys that no source gives, with the reason for their value.
    #[serde(default)]
    pub assumed: Assumed,
}

/// Speed grades with known timings, see [`quell_model::dram::Timing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Grade {
    /// DDR3 at 1066 MT/s, see [`quell_model::dram::Timing::ddr3_1066`].
    #[serde(rename = "DDR3-1066")]
    Ddr3At1066,
    /// DDR3 at 1333 MT/s, see [`quell_model::dram::Timing::ddr3_1333`].
    #[serde(rename = "DDR3-1333")]
    Ddr3At1333,
    /// DDR4 at 2400 MT/s, see [`quell_model::dram::Timing::ddr4_2400`].
    #[serde(rename = "DDR4-2400")]
    Ddr4At2400,
    /// DDR4 at 3200 MT/s, see [`quell_model::dram::Timing::ddr4_3200`].
    #[serde(rename = "DDR4-3200")]
    Ddr4At3200,
}

/// Translation: the data TLB's last level, and the first where it is modelled, for pages of 4 KiB
/// and for large ones.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TlbShape {
    /// Entries for pages of 4 KiB.
    pub entries: u32,
    /// Ways of the table of 4 KiB pages.
    pub ways: u32,
    /// Entries for large pages or regions.
    pub large_entries: u32,
    /// Ways of the table of large pages.
    pub large_ways: u32,
    /// Bytes that a large entry maps. Where that varies, the size that the model uses.
    pub large_page: Bytes,
    /// Core cycles of a miss: the walk, with its loads hitting a cache.
    pub walk: u32,
    /// Whether a miss raises an interrupt and software walks. The interrupt is precise: the
    /// program's earlier misses come back first.
    #[serde(default)]
    pub software: bool,
    /// Whether entries carry the address space, so that they outlive a change to another one and
    /// back.
    pub tagged: bool,
    /// The first level, inclusive in the last one. `None`: it costs nothing worth modelling.
    pub first: Option<FirstTlb>,
    /// Where the section's numbers come from.
    pub source: String,
    /// Keys that no source gives, with the reason for their value.
    #[serde(default)]
    pub assumed: Assumed,
}

/// The first level of a data TLB, which hardware refills from the last one.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct FirstTlb {
    /// Entries for pages of 4 KiB.
    pub entries: u32,
    /// Ways of the table of 4 KiB pages.
    pub ways: u32,
    /// Entries for large pages or regions.
    pub large_entries: u32,
    /// Ways of the table of large pages.
    pub large_ways: u32,
    /// Core cycles of a miss that hits the last level.
    pub refill: u32,
    /// Where the section's numbers come from.
    pub source: String,
    /// Keys that no source gives, with the reason for their value.
    #[serde(default)]
    pub assumed: Assumed,
}

/// A table of a TLB as a cache in which a page stands for a line.
fn table(entries: u32, ways: u32) -> Result<Geometry, Invalid> {
    if ways == 0 || !entries.is_multiple_of(ways) {
        return Err(Invalid {
            what: "TLB".into(),
            reason: format!("{entries} entries are not a whole number of sets of {ways} ways"),
        });
    }
    Geometry::plain(u64::from(entries) << PAGE_SHIFT, ways, 1 << PAGE_SHIFT)
}

impl TlbShape {
    /// Both tables of the last level, for small and for large pages.
    ///
    /// # Errors
    /// When the entries are no whole number of sets, or large pages are not larger than small ones.
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
        Ok([
            table(self.entries, self.ways)?,
            table(self.large_entries, self.large_ways)?,
        ])
    }

    /// The same of the first level, where it is modelled.
    ///
    /// # Errors
    /// When the entries are no whole number of sets.
    pub fn first_geometries(&self) -> Result<Option<[Geometry; 2]>, Invalid> {
        let Some(first) = &self.first else {
            return Ok(None);
        };
        Ok(Some([
            table(first.entries, first.ways)?,
            table(first.large_entries, first.large_ways)?,
        ]))
    }
}

/// A stream prefetcher, one per core.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Prefetcher {
    /// Whether it is on, unless an experiment says otherwise.
    pub on: bool,
    /// How many streams a core follows at a time.
    pub streams: u32,
    /// Lines fetched per access of a stream.
    pub degree: u32,
    /// How many lines ahead it fetches at most.
    pub distance: u32,
    /// Where the section's numbers come from.
    pub source: String,
    /// Keys that no source gives, with the reason for their value.
    #[serde(default)]
    pub assumed: Assumed,
}

/// Counters of the lines that a core moves.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Counters {
    /// Time from an overflow to the handling of its interrupt.
    pub delay: Nanos,
    /// Whether a budget for both directions counts lines written back in addition to lines read. A
    /// budget for one direction always counts that one.
    #[serde(default)]
    pub writes: bool,
    /// Where the section's numbers come from.
    pub source: String,
    /// Keys that no source gives, with the reason for their value.
    #[serde(default)]
    pub assumed: Assumed,
}

/// Times that the operating system takes, and its choice of page frames.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct OsTimes {
    /// How long a task runs while another one waits for its core.
    pub slice: Nanos,
    /// Time to switch from one task to the next on a core.
    pub switch: Nanos,
    /// Core time that the handler of a counter's interrupt takes.
    pub interrupt: Nanos,
    /// From one timer tick of a core that is not idle to the next. 0: there is no tick.
    #[serde(default)]
    pub tick: Nanos,
    /// The kernel's code and data that a timer interrupt goes through. 0: it touches nothing.
    #[serde(default)]
    pub kernel: Bytes,
    /// Which of the free page frames a program gets.
    #[serde(default)]
    pub frames: FrameOrder,
    /// Where the section's numbers come from.
    pub source: String,
    /// Keys that no source gives, with the reason for their value.
    #[serde(default)]
    pub assumed: Assumed,
}

/// Which of the suitable free page frames a program gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FrameOrder {
    /// Any, at random, as on a machine that has been up for long.
    #[default]
    Random,
    /// The lowest, as on a machine that has just started. Large pages of a program are one run of
    /// frames: a region that is mapped by large entries.
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

/// What a machine offers for isolating groups.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Mechanisms {
    /// Mechanisms that the machine has, by name.
    pub available: Vec<Mechanism>,
    /// How ways are divided. `None`: they cannot be.
    pub ways: Option<Ways>,
    /// The range of memory-bandwidth allocation. `None`: there is none.
    pub mba: Option<MbaBounds>,
    /// Mechanisms that cannot be used together.
    #[serde(default)]
    pub exclusion: Vec<Exclusion>,
    /// Where the section's numbers come from.
    pub source: String,
    /// Keys that no source gives, with the reason for their value.
    #[serde(default)]
    pub assumed: Assumed,
}

/// Way partition, in the terms of resctrl.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Ways {
    /// The name of the cache that it divides.
    pub cache: String,
    /// How many classes of service there are.
    pub classes: u32,
    /// Bits of a mask. The cache's ways are a multiple of them.
    pub segments: u32,
    /// The fewest bits that a mask may have.
    #[serde(default = "one")]
    pub least: u32,
    /// Whether masks may have holes.
    #[serde(default)]
    pub sparse: bool,
    /// Whether ways are given to regions of memory. Then the memory of a group with ways is one run
    /// of frames.
    #[serde(default)]
    pub regions: bool,
}

fn one() -> u32 {
    1
}

/// An error: no built-in profile has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no machine profile '{name}'; {remedy}")]
pub struct Unknown {
    /// The name that was asked for.
    pub name: String,
    /// What to write instead, with the names that exist.
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

    /// Reads a profile. `file` is its name in problems.
    ///
    /// # Errors
    /// All problems found, each with its place.
    pub fn parse(text: &str, file: &str) -> Result<Self, Vec<Problem>> {
        quell_types::text::read(text, file, read::check)
    }
}
