//! Sets of CPUs, memory nodes and other small numbers, read and written as the kernel does: `0,2-3`
//! (Documentation/admin-guide/cputopology.rst, "List format").

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The kernel's number of a logical CPU.
pub type CpuId = u32;

/// The largest CPU number accepted: the kernel's own compile-time limit (`NR_CPUS`) is 8192.
pub const MAX_CPU: CpuId = 8191;

/// An ordered set of CPU (or node) numbers.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct CpuSet(BTreeSet<CpuId>);

impl CpuSet {
    /// The empty set, as a constant.
    pub const EMPTY: Self = Self(BTreeSet::new());

    /// The empty set, for a set that is to grow.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The set of one number.
    #[must_use]
    pub fn one(cpu: CpuId) -> Self {
        Self([cpu].into())
    }

    /// How many numbers are in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing is in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `cpu` is in the set.
    #[must_use]
    pub fn contains(&self, cpu: CpuId) -> bool {
        self.0.contains(&cpu)
    }

    /// Adds one number; no effect if it is there.
    pub fn insert(&mut self, cpu: CpuId) {
        self.0.insert(cpu);
    }

    /// The numbers in ascending order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = CpuId> + '_ {
        self.0.iter().copied()
    }

    /// The smallest number; `None` of an empty set.
    #[must_use]
    pub fn first(&self) -> Option<CpuId> {
        self.0.first().copied()
    }

    /// At most `most` of the numbers, spread evenly over the set.
    #[must_use]
    pub fn spread(&self, most: usize) -> Vec<CpuId> {
        let all: Vec<CpuId> = self.iter().collect();
        let n = all.len().min(most);
        (0..n).map(|i| all[i * all.len() / n]).collect()
    }

    /// Everything in either set.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self(self.0.union(&other.0).copied().collect())
    }

    /// Everything in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).copied().collect())
    }

    /// Everything in this set that is not in `other`.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).copied().collect())
    }

    /// The list for a sentence. Where numbers go up in steps of more than one, only the ends of the
    /// row are written, as in `0,2,…,30`. Programs read the kernel's own list, as displayed.
    #[must_use]
    pub fn brief(&self) -> String {
        /// Shorter rows are written out.
        const ROW: usize = 5;
        let text = self.to_string();
        let parts: Vec<&str> = text.split(',').collect();
        let number = |i: usize| parts.get(i).and_then(|p| p.parse::<CpuId>().ok());
        let mut brief: Vec<&str> = Vec::new();
        let mut at = 0;
        while at < parts.len() {
            let step = number(at).zip(number(at + 1)).map(|(a, b)| b - a);
            let mut end = at;
            while step.is_some()
                && number(end)
                    .zip(number(end + 1))
                    .is_some_and(|(a, b)| Some(b - a) == step)
            {
                end += 1;
            }
            if end + 1 - at >= ROW {
                brief.extend([parts[at], parts[at + 1], "…", parts[end]]);
                at = end + 1;
            } else {
                brief.push(parts[at]);
                at += 1;
            }
        }
        brief.join(",")
    }

    /// Whether every number of this set is in `other`.
    #[must_use]
    pub fn is_subset(&self, other: &Self) -> bool {
        self.0.is_subset(&other.0)
    }
}

impl FromIterator<CpuId> for CpuSet {
    fn from_iter<I: IntoIterator<Item = CpuId>>(iter: I) -> Self {
        Self(iter.into_iter().collect())
    }
}

/// Why a list of numbers could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpuSetError {
    /// Not a number, or an empty element.
    #[error("'{0}' is not a CPU number; write a list as the kernel does, for example 0,2-3")]
    Number(String),
    /// A range with its end before its start.
    #[error("the range '{0}' ends before it starts")]
    Range(String),
    /// A number beyond [`MAX_CPU`].
    #[error("CPU {0} is beyond the largest number Linux knows ({MAX_CPU})")]
    TooLarge(u64),
}

impl FromStr for CpuSet {
    type Err = CpuSetError;

    fn from_str(text: &str) -> Result<Self, CpuSetError> {
        let text = text.trim();
        let mut set = BTreeSet::new();
        if text.is_empty() {
            return Ok(Self(set));
        }
        let number = |part: &str| -> Result<CpuId, CpuSetError> {
            if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
                return Err(CpuSetError::Number(part.to_owned()));
            }
            let n: u64 = part
                .parse()
                .map_err(|_| CpuSetError::Number(part.to_owned()))?;
            CpuId::try_from(n)
                .ok()
                .filter(|n| *n <= MAX_CPU)
                .ok_or(CpuSetError::TooLarge(n))
        };
        for part in text.split(',') {
            let part = part.trim();
            match part.split_once('-') {
                None => {
                    set.insert(number(part)?);
                }
                Some((low, high)) => {
                    let (low, high) = (number(low)?, number(high)?);
                    if high < low {
                        return Err(CpuSetError::Range(part.to_owned()));
                    }
                    set.extend(low..=high);
                }
            }
        }
        Ok(Self(set))
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut iter = self.iter().peekable();
        let mut first = true;
        while let Some(low) = iter.next() {
            let mut high = low;
            while let Some(next) = iter.next_if(|next| next - high == 1) {
                high = next;
            }
            if !first {
                f.write_str(",")?;
            }
            first = false;
            if high == low {
                write!(f, "{low}")?;
            } else {
                write!(f, "{low}-{high}")?;
            }
        }
        Ok(())
    }
}

impl TryFrom<String> for CpuSet {
    type Error = CpuSetError;

    fn try_from(text: String) -> Result<Self, CpuSetError> {
        text.parse()
    }
}

impl From<CpuSet> for String {
    fn from(set: CpuSet) -> Self {
        set.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_row_in_steps_is_told_by_its_ends() {
        let brief = |text: &str| text.parse::<CpuSet>().unwrap().brief();
        assert_eq!(brief("0,2,4,6,8,10,12,14"), "0,2,…,14");
        assert_eq!(
            brief("1,3,5,7,9,11,17,19,21,23,25,27"),
            "1,3,…,11,17,19,…,27"
        );
        assert_eq!(brief("0-12,14,16-28,30"), "0-12,14,16-28,30");
        assert_eq!(brief("0,2,4,6"), "0,2,4,6", "short enough as it is");
        assert_eq!(brief(""), "");
    }

    #[test]
    fn the_largest_number_can_be_written() {
        let set: CpuSet = [0, 1, u32::MAX - 1, u32::MAX].into_iter().collect();
        assert_eq!(set.to_string(), "0-1,4294967294-4294967295");
    }

    #[test]
    fn reads_what_the_kernel_writes() {
        let set: CpuSet = "0,2-4,7\n".parse().unwrap();
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 2, 3, 4, 7]);
        assert_eq!(set.to_string(), "0,2-4,7");
        assert!("".parse::<CpuSet>().unwrap().is_empty());
    }

    #[test]
    fn refuses_what_the_kernel_would() {
        assert!(matches!(
            "0,,1".parse::<CpuSet>(),
            Err(CpuSetError::Number(_))
        ));
        assert!(matches!(
            "3-1".parse::<CpuSet>(),
            Err(CpuSetError::Range(_))
        ));
        assert!(matches!(
            "99999".parse::<CpuSet>(),
            Err(CpuSetError::TooLarge(99999))
        ));
        assert!(matches!(
            "0-4000000000".parse::<CpuSet>(),
            Err(CpuSetError::TooLarge(_))
        ));
        assert!(matches!(
            "+1".parse::<CpuSet>(),
            Err(CpuSetError::Number(_))
        ));
    }

    proptest! {
        #[test]
        fn text_round_trips(cpus in proptest::collection::btree_set(0u32..=MAX_CPU, 0..40)) {
            let set: CpuSet = cpus.iter().copied().collect();
            prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[0-9,\\- ]{0,24}") {
            let _ = text.parse::<CpuSet>();
        }
    }

    #[test]
    fn some_are_spread_evenly_over_the_set() {
        let set = |text: &str| text.parse::<CpuSet>().unwrap();
        assert_eq!(set("0-15").spread(4), [0, 4, 8, 12]);
        assert_eq!(set("1,7").spread(4), [1, 7]);
        assert_eq!(set("3").spread(4), [3]);
    }
}
