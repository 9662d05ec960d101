//! The line numbers in a cache's slots, in the form that a lookup reads fastest.

use crate::arch::{self, LANES};

/// For each set a row of tags, padded to whole [`LANES`].
///
/// 32 bits hold every line number of 256 GiB of addresses. So a set of sixteen ways is one line of
/// the host's cache. The first longer number (in a trace of virtual addresses) makes all of them
/// wide.
#[derive(Clone, Debug)]
pub(super) enum Tags {
    Narrow(Vec<u32>),
    Wide(Vec<u64>),
}

/// Marks a slot without a line: line numbers are shorter than an address.
const NONE: u64 = u64::MAX;
const NARROW_NONE: u32 = u32::MAX;

/// The line number in 32 bits. `None` if it does not fit.
#[inline]
fn narrow(line: u64) -> Option<u32> {
    u32::try_from(line).ok().filter(|&tag| tag != NARROW_NONE)
}

impl Tags {
    /// Empty tags for `sets` sets of `ways` ways. Slots are numbered `set * row + way`.
    pub(super) fn new(sets: usize, ways: usize) -> Self {
        Self::Narrow(vec![NARROW_NONE; sets * Self::row(ways)])
    }

    /// Slots from one set to the next.
    pub(super) fn row(ways: usize) -> usize {
        ways.next_multiple_of(LANES)
    }

    /// The way that holds `line`, in the row from slot `base` on.
    #[inline]
    pub(super) fn find(&self, base: usize, row: usize, line: u64) -> Option<usize> {
        match self {
            Self::Narrow(tags) => arch::position(&tags[base..base + row], narrow(line)?),
            Self::Wide(tags) => tags[base..base + row].iter().position(|&tag| tag == line),
        }
    }

    /// The line number in a slot. `None` for an empty slot.
    #[inline]
    pub(super) fn get(&self, slot: usize) -> Option<u64> {
        match self {
            Self::Narrow(tags) => Some(tags[slot])
                .filter(|&tag| tag != NARROW_NONE)
                .map(u64::from),
            Self::Wide(tags) => Some(tags[slot]).filter(|&tag| tag != NONE),
        }
    }

    #[inline]
    pub(super) fn set(&mut self, slot: usize, line: u64) {
        match self {
            Self::Narrow(tags) => match narrow(line) {
                Some(tag) => tags[slot] = tag,
                None => self.widen(slot, line),
            },
            Self::Wide(tags) => tags[slot] = line,
        }
    }

    #[cold]
    fn widen(&mut self, slot: usize, line: u64) {
        let wide = |at| self.get(at).unwrap_or(NONE);
        let mut tags: Vec<u64> = (0..self.len()).map(wide).collect();
        tags[slot] = line;
        *self = Self::Wide(tags);
    }

    pub(super) fn clear(&mut self, slot: usize) {
        match self {
            Self::Narrow(tags) => tags[slot] = NARROW_NONE,
            Self::Wide(tags) => tags[slot] = NONE,
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Narrow(tags) => tags.len(),
            Self::Wide(tags) => tags.len(),
        }
    }
}
