//! Sizes of generators, in bytes or as multiples of a cache.

use std::fmt;
use std::str::FromStr;

use quell_types::units::{Bytes, UnitError};
use schemars::JsonSchema;
use serde::Serialize;

/// The sizes of the data caches that a CPU uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caches {
    /// Size of the first level.
    pub l1: Bytes,
    /// Size of the second level.
    pub l2: Bytes,
    /// Size of the last level, as the kernel reports it.
    pub llc: Bytes,
    /// How much of the last level was measured to be there. Up to this size latency stays on the
    /// plateau of a cache. It is `llc` where this was not measured.
    pub seen: Bytes,
}

/// A size, absolute or as a multiple of a cache of the CPU it is used on (`0.5 LLC`, `0.5 seen
/// LLC`, `2 L1`).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(into = "String")]
#[schemars(with = "String")]
pub enum Size {
    /// An absolute size in bytes.
    Bytes(Bytes),
    /// So many times the first-level data cache.
    L1(f64),
    /// So many times the second-level cache.
    L2(f64),
    /// So many times the last-level cache, as the kernel reports it.
    Llc(f64),
    /// So many times the last-level cache, as it was measured.
    Seen(f64),
}

/// A cache's name, and the size that is a multiple of it.
type OfCache = (&'static str, fn(f64) -> Size);

quell_types::text_unit!(
    Size,
    "a size such as 3MiB, '0.5 LLC', '0.5 seen LLC', '1 L2' or '1 L1'"
);

impl Size {
    /// A longer name comes before a name that it ends with.
    const LEVELS: [OfCache; 4] = [
        ("seen LLC", Self::Seen),
        ("LLC", Self::Llc),
        ("L1", Self::L1),
        ("L2", Self::L2),
    ];

    /// The size in bytes for a CPU with these caches. Rounded down to pages of 4 KiB, at least one
    /// page.
    #[must_use]
    #[expect(
        clippy::cast_sign_loss,
        clippy::cast_possible_truncation,
        reason = "factors are positive and small"
    )]
    pub fn resolve(self, caches: &Caches) -> Bytes {
        let times = |cache: Bytes, factor: f64| (cache.0 as f64 * factor) as u64;
        let bytes = match self {
            Self::Bytes(bytes) => bytes.0,
            Self::L1(factor) => times(caches.l1, factor),
            Self::L2(factor) => times(caches.l2, factor),
            Self::Llc(factor) => times(caches.llc, factor),
            Self::Seen(factor) => times(caches.seen, factor),
        };
        Bytes((bytes & !4095).max(4096))
    }
}

impl FromStr for Size {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let wrong = || UnitError {
            text: text.to_owned(),
            wanted: Self::WANTED,
        };
        for (level, of) in Self::LEVELS {
            let Some(factor) = text.trim().strip_suffix(level) else {
                continue;
            };
            let factor: f64 = factor.trim().parse().map_err(|_| wrong())?;
            return if factor > 0.0 && factor <= 1024.0 {
                Ok(of(factor))
            } else {
                Err(wrong())
            };
        }
        text.parse().map(Self::Bytes).map_err(|_| wrong())
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => bytes.fmt(f),
            Self::L1(factor) => write!(f, "{factor} L1"),
            Self::L2(factor) => write!(f, "{factor} L2"),
            Self::Llc(factor) => write!(f, "{factor} LLC"),
            Self::Seen(factor) => write!(f, "{factor} seen LLC"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_of_the_seen_cache_follows_what_was_measured() {
        let caches = Caches {
            l1: Bytes(32 << 10),
            l2: Bytes(1 << 20),
            llc: Bytes(32 << 20),
            seen: Bytes(6 << 20),
        };
        let of = |text: &str| text.parse::<Size>().unwrap().resolve(&caches);
        assert_eq!(of("0.5 seen LLC"), Bytes(3 << 20));
        assert_eq!(of("0.5 LLC"), Bytes(16 << 20));
        let read: Size = "0.5seen LLC".parse().unwrap();
        assert_eq!(read.to_string(), "0.5 seen LLC");
        assert!("0.5 sen LLC".parse::<Size>().is_err());
    }
}
