//! What programs do to memory: the generators `latency` and `bandwidth` as streams of accesses.

use crate::random::Random;

/// Bytes per step: one access per line, as the published benchmarks count.
pub const LINE: u64 = 64;

/// One access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Virtual address.
    pub address: u64,
    /// A write.
    pub write: bool,
    /// The next access needs what this one reads.
    pub dependent: bool,
}

/// A stream of accesses without end.
#[derive(Clone, Debug)]
pub enum Pattern {
    /// Walks a linked list: one outstanding access. `next[line]` is the line after `line`.
    Latency {
        /// The list, by line.
        next: Vec<u32>,
        /// Where it is.
        at: u32,
    },
    /// Line after line without dependence, as many outstanding as the core allows, round and round.
    Bandwidth {
        /// Lines in all.
        lines: u64,
        /// Where it is.
        at: u64,
        /// Writes instead of reading.
        write: bool,
    },
}

impl Pattern {
    /// A list through all lines of `bytes` in random order (one cycle: Sattolo's algorithm).
    #[must_use]
    pub fn latency(bytes: u64, seed: u64) -> Self {
        let lines = u32::try_from((bytes / LINE).max(1)).unwrap_or(u32::MAX);
        let mut random = Random::new(seed);
        let mut next: Vec<u32> = (0..lines).collect();
        for i in (1..next.len()).rev() {
            let other = usize::try_from(random.below(i as u64)).unwrap_or(0);
            next.swap(i, other);
        }
        Self::Latency { next, at: 0 }
    }

    /// Over `bytes`, again and again.
    #[must_use]
    pub fn bandwidth(bytes: u64, write: bool) -> Self {
        Self::Bandwidth {
            lines: (bytes / LINE).max(1),
            at: 0,
            write,
        }
    }

    /// The next access.
    #[inline]
    pub fn next_access(&mut self) -> Access {
        match self {
            Self::Latency { next, at } => {
                let address = u64::from(*at) * LINE;
                *at = next[*at as usize];
                Access {
                    address,
                    write: false,
                    dependent: true,
                }
            }
            Self::Bandwidth { lines, at, write } => {
                let address = *at * LINE;
                *at = if *at + 1 == *lines { 0 } else { *at + 1 };
                Access {
                    address,
                    write: *write,
                    dependent: false,
                }
            }
        }
    }
}
