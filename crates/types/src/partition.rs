//! What the caches, banks and controllers of a machine can be divided by. The inventory says what
//! there is, plans say what a group gets.
//!
//! Words: a *class* is a set of tasks with one mask of ways. A *colour* is what the choice of a
//! page frame decides. Colours are distinguished by functions of the physical address (each is the
//! exclusive or of the bits of a mask). Colour bit 0 is the first function.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cpuset::CpuSet;
use crate::mechanism::Mechanism;
use crate::text_unit;
use crate::units::{Bytes, UnitError};

/// Up to 64 bits: the ways of a cache, or the address bits of a function. Read and written as
/// `0xf`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema,
)]
#[serde(into = "String")]
#[schemars(with = "String")]
pub struct Mask(pub u64);

text_unit!(Mask, "a mask such as 0xf");

impl Mask {
    /// `count` bits from bit `first` on, as far as 64 bits reach.
    #[must_use]
    pub fn run(first: u32, count: u32) -> Self {
        let ones = 1u64.checked_shl(count).map_or(u64::MAX, |end| end - 1);
        Self(ones.checked_shl(first).unwrap_or(0))
    }

    /// The number of bits that are set.
    #[must_use]
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether no bit is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == 0
    }

    /// The runs of neighbouring bits that are set, lowest first.
    pub fn runs(self) -> impl Iterator<Item = std::ops::Range<u32>> {
        let mut from = 0;
        std::iter::from_fn(move || {
            let rest = self.0.checked_shr(from).filter(|rest| *rest != 0)?;
            let start = from + rest.trailing_zeros();
            from = start + (self.0 >> start).trailing_ones();
            Some(start..from)
        })
    }
}

impl fmt::Display for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl FromStr for Mask {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let digits = text.trim().strip_prefix("0x");
        let value = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        value.map(Self).ok_or_else(|| UnitError {
            text: text.to_owned(),
            wanted: Self::WANTED,
        })
    }
}

/// What a machine's caches, banks and controllers can be divided by. Empty: by nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "kebab-case")]
pub struct Partitions {
    /// Way partition, by cache level.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ways: Vec<WayPartition>,
    /// Colours of the last level's sets that leave the levels before it whole; all of its colours
    /// where none do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sets: Option<Colouring>,
    /// Colours of the DRAM banks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub banks: Option<Colouring>,
    /// Where sets and banks share colour bits: the colours of both, which can only be divided
    /// together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub joint: Option<Colouring>,
    /// Colours are given to a group page by page of a running kernel: a hoard keeps the frames of
    /// its colours from other programs, and its pages are moved into them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub hoarded: bool,
    /// Pseudo-locking: the cache level whose ways can be locked; a level of `ways`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock: Option<u32>,
    /// Bounds of memory-bandwidth allocation in hardware.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mba: Option<MbaBounds>,
    /// What cannot be had together here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exclusions: Vec<Exclusion>,
    /// What is known of how physical addresses choose sets and banks. Absent: nothing is, or the
    /// machine is simulated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address_map: Option<KnownMap>,
}

/// Where the functions of an address map come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MapOrigin {
    /// A person stated the functions.
    Declared,
    /// A person stated that this machine is like one whose map is published.
    Published,
    /// The functions were measured on this machine.
    Recovered,
    /// The lab's own processor, which has these functions by construction.
    Lab,
}

/// An address map, and the colours that follow from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct KnownMap {
    /// Where the functions come from.
    pub origin: MapOrigin,
    /// Name of the published map, or of the file.
    pub from: String,
    /// Which machine, memory modules and firmware setting the map holds for. Absent: not stated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    /// Colours of the DRAM banks. Absent: pages of this kernel leave none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub banks: Option<Colouring>,
    /// Colours of cache sets, if the index is plain address bits: an assumption. Absent: nothing is
    /// known of the cache, or pages leave none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sets: Option<Colouring>,
    /// Colour bits that banks and sets share.
    #[serde(default)]
    pub shared: u32,
}

impl Partitions {
    /// Whether nothing can be divided.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Why this machine cannot use both mechanisms at once; `None` if it can.
    #[must_use]
    pub fn excluded(&self, one: Mechanism, other: Mechanism) -> Option<&str> {
        let both = |e: &&Exclusion| {
            e.mechanism == one && e.with.contains(&other)
                || e.mechanism == other && e.with.contains(&one)
        };
        Some(&self.exclusions.iter().find(both)?.reason)
    }
}

/// Way partition of the caches of a level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct WayPartition {
    /// 1, 2, 3, …
    pub level: u32,
    /// Bits of a mask. Each stands for the same part of the cache.
    pub bits: u32,
    /// Bits that a mask must have at least.
    pub least: u32,
    /// Classes of service, that of all other tasks included.
    pub classes: u32,
    /// Masks may have holes.
    #[serde(default)]
    pub sparse: bool,
    /// Bits that devices fill, too, whatever masks say.
    #[serde(default, skip_serializing_if = "Mask::is_empty")]
    pub shareable: Mask,
    /// Whether code and data can have ways of their own.
    #[serde(default, rename = "apart", skip_serializing_if = "CodeData::is_never")]
    pub code_data: CodeData,
}

/// Whether code and data of a group can have different ways (resctrl's `cdp`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "Apart")]
pub enum CodeData {
    /// The hardware cannot, or nothing is known of it.
    #[default]
    Never,
    /// They can have different ways now.
    Now,
    /// They can once resctrl is mounted so. It is not mounted yet.
    OnceMounted {
        /// Classes of service there are then.
        classes: u32,
    },
    /// The hardware could, but resctrl is mounted without it.
    MountedWithout,
}

impl CodeData {
    fn is_never(&self) -> bool {
        *self == Self::Never
    }
}

/// The smallest pages of most kernels.
pub const SMALL_PAGE: Bytes = Bytes(4 << 10);

const fn small_page() -> Bytes {
    SMALL_PAGE
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_small_page(size: &Bytes) -> bool {
    *size == SMALL_PAGE
}

/// A kind of page colour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Colouring {
    /// Functions of the physical address that tell the colours apart, colour bit 0 first. Those of
    /// one kind are in reduced form: each has a bit that no other has.
    pub functions: Vec<Mask>,
    /// Colour bits that large pages leave.
    pub large: u32,
    /// The size of a small page.
    #[serde(default = "small_page", skip_serializing_if = "is_small_page")]
    pub page: Bytes,
    /// Where every memory node has one colour: the nodes of each colour, at least one. Empty: a
    /// colour is chosen page by page.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<CpuSet>,
}

impl Colouring {
    /// Colours that are chosen page by page, of pages of 4 KiB. `large` is the number of colour
    /// bits that large pages leave.
    #[must_use]
    pub fn of_pages(functions: impl IntoIterator<Item = u64>, large: u32) -> Self {
        Self {
            functions: functions.into_iter().map(Mask).collect(),
            large,
            page: SMALL_PAGE,
            nodes: Vec::new(),
        }
    }

    /// The memory nodes that have these colours. Empty where colours are chosen page by page.
    #[must_use]
    pub fn nodes_of(&self, colours: &CpuSet) -> CpuSet {
        let of = |colour: u32| self.nodes.get(colour as usize);
        let all = colours.iter().filter_map(of);
        all.fold(CpuSet::new(), |all, nodes| all.union(nodes))
    }

    /// The number of colours that small pages have.
    #[must_use]
    pub fn count(&self) -> u32 {
        u32::try_from(self.functions.len())
            .ok()
            .and_then(|bits| 1u32.checked_shl(bits))
            .unwrap_or(u32::MAX)
    }

    /// The number of colours that large pages have.
    #[must_use]
    pub fn count_large(&self) -> u32 {
        1u32.checked_shl(self.large).unwrap_or(u32::MAX)
    }

    /// How many colours of kind `other` pages with these `colours` reach, and of how many. Counts
    /// only those functions of `other` that these colours decide. It is one of one where the two
    /// kinds are independent.
    #[must_use]
    pub fn reach(&self, colours: &CpuSet, other: &Self) -> (u32, u32) {
        // Reduced form: a bit that no other function has shows whether a function is part of a sum.
        let own = |i: usize| {
            let others = self.functions.iter().enumerate().filter(|(k, _)| *k != i);
            self.functions[i].0 & !others.fold(0, |sum, (_, f)| sum | f.0)
        };
        let sum_of = |function: &Mask| {
            let of = (0..self.functions.len()).filter(|i| function.0 & own(*i) != 0);
            let of: Vec<usize> = of.collect();
            let sum = of.iter().fold(0, |sum, i| sum ^ self.functions[*i].0);
            (sum == function.0).then_some(of)
        };
        let decided: Vec<Vec<usize>> = other.functions.iter().filter_map(sum_of).collect();
        let project = |colour: u32| -> Vec<bool> {
            let bit =
                |of: &Vec<usize>| of.iter().fold(false, |sum, i| sum ^ (colour >> i & 1 == 1));
            decided.iter().map(bit).collect()
        };
        let reached: BTreeSet<Vec<bool>> = colours.iter().map(project).collect();
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let all = 1u32.checked_shl(number(decided.len())).unwrap_or(u32::MAX);
        (number(reached.len()), all)
    }
}

/// Memory-bandwidth allocation, in the words of resctrl.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct MbaBounds {
    /// Classes of service, that of all other tasks included.
    pub classes: u32,
    /// The smallest percentage that can be set.
    pub least: u32,
    /// The distance between two percentages.
    pub step: u32,
    /// The unit in which the kernel takes bandwidth.
    #[serde(default, skip_serializing_if = "MbaUnit::is_percent")]
    pub unit: MbaUnit,
}

/// What bandwidth allocation is written in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MbaUnit {
    /// Percentages of the requests of each core.
    #[default]
    Percent,
    /// MiB/s of all CPUs of a group on one memory domain together: resctrl is mounted with
    /// `mba_MBps`, and the kernel looks for the percentage.
    MibPerS,
}

impl MbaUnit {
    fn is_percent(&self) -> bool {
        *self == Self::Percent
    }
}

/// Mechanisms that cannot be had together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Exclusion {
    /// One of the mechanisms.
    pub mechanism: Mechanism,
    /// The mechanisms of which none can be used together with it.
    pub with: Vec<Mechanism>,
    /// Why, as text for a person.
    pub reason: String,
}

/// What a choice of colours divides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Divides {
    /// Sets of the last-level cache.
    Sets,
    /// Banks of the DRAM.
    Banks,
    /// Sets and banks at once.
    Joint,
}

impl Divides {
    /// The mechanisms that divide this.
    #[must_use]
    pub const fn mechanisms(self) -> &'static [Mechanism] {
        match self {
            Self::Sets => &[Mechanism::Sets],
            Self::Banks => &[Mechanism::Banks],
            Self::Joint => &[Mechanism::Banks, Mechanism::Sets],
        }
    }

    /// What the colours are colours of, in words.
    #[must_use]
    pub const fn of(self) -> &'static str {
        match self {
            Self::Sets => "cache sets",
            Self::Banks => "DRAM banks",
            Self::Joint => "cache sets and DRAM banks together",
        }
    }
}

/// Colours that a group's pages are kept to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ColourChoice {
    /// What the colours divide.
    pub divides: Divides,
    /// The bits of a physical address whose parity is one bit of the colour, as masks.
    pub functions: Vec<Mask>,
    /// The colours that pages may have.
    pub colours: CpuSet,
    /// The memory nodes that have these colours. Empty: pages are chosen one by one.
    #[serde(default, skip_serializing_if = "CpuSet::is_empty")]
    pub nodes: CpuSet,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_written_as_resctrl_writes_them() {
        assert_eq!("0xf0".parse(), Ok(Mask(0xf0)));
        assert_eq!(Mask::run(4, 4).to_string(), "0xf0");
        assert_eq!(Mask::run(60, 8).count(), 4);
        assert_eq!(Mask::run(0, 64), Mask(u64::MAX));
        assert!(Mask::run(3, 0).is_empty());
        let runs = |mask: u64| Mask(mask).runs().collect::<Vec<_>>();
        assert_eq!(runs(0b1011_0001), [0..1, 4..6, 7..8]);
        assert_eq!(runs(u64::MAX).first(), Some(&(0..64)));
        assert!(runs(0).is_empty() && runs(1 << 63).first() == Some(&(63..64)));
        for wrong in ["", "f", "0x", "0xg", "0x10000000000000000"] {
            assert!(wrong.parse::<Mask>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn colours_of_one_kind_reach_those_that_share_their_bits() {
        let kind = |functions: &[u64]| Colouring::of_pages(functions.iter().copied(), 0);
        let set = |text: &str| text.parse::<CpuSet>().unwrap();
        let banks = kind(&[1 << 12, 1 << 13, 1 << 19, 1 << 20]);
        let joint = kind(&[1 << 12, 1 << 13]);
        assert_eq!(banks.reach(&set("0-3"), &joint), (4, 4));
        assert_eq!(banks.reach(&set("0,4,8"), &joint), (1, 4));
        assert_eq!(banks.reach(&set("0-1"), &joint), (2, 4));
        // A sum of two functions, and one that these colours do not decide at all.
        let hashed = kind(&[(1 << 14) | (1 << 17), (1 << 15) | (1 << 18)]);
        let sum = kind(&[0b11 << 14 | 0b11 << 17, 1 << 20]);
        assert_eq!(hashed.reach(&set("0,3"), &sum), (1, 2));
        assert_eq!(hashed.reach(&set("0-1"), &sum), (2, 2));
        assert_eq!(banks.reach(&set("0"), &kind(&[1 << 15])), (1, 1));
    }

    #[test]
    fn exclusions_go_both_ways() {
        let machine = Partitions {
            exclusions: vec![Exclusion {
                mechanism: Mechanism::Ways,
                with: vec![Mechanism::Sets],
                reason: "so it is".to_owned(),
            }],
            ..Partitions::default()
        };
        let reason = Some("so it is");
        assert_eq!(machine.excluded(Mechanism::Ways, Mechanism::Sets), reason);
        assert_eq!(machine.excluded(Mechanism::Sets, Mechanism::Ways), reason);
        assert_eq!(machine.excluded(Mechanism::Banks, Mechanism::Sets), None);
    }
}
