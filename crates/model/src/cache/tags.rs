//! The line numbers in a cache's slots, in the form that a lookup reads fastest.

use crate::host::{self, LANES};

/// Per set a row of tags, padded to whole [`LANES`]; [`Tag::NONE`] where no line is.
///
/// 32 bits hold every line number of 256 GiB of addresses, so that a set of sixteen ways is one line of the host's cache. The first
/// longer one (a trace of virtual addresses) makes all of them wide.
#[derive(Clone, Debug)]
pub(super) enum Tags {
    Narrow(Vec<u32>),
    Wide(Vec<u64>),
}

/// A line number in one of the two widths.
trait Tag: Copy + PartialEq {
    const NONE: Self;
    fn of(line: u64) -> Option<Self>;
    fn line(self) -> u64;
}

impl Tag for u32 {
    const NONE: Self = Self::MAX;
    #[inline]
    fn of(line: u64) -> Option<Self> {
        Self::try_from(line).ok().filter(|&tag| tag != Self::NONE)
    }
    #[inline]
    fn line(self) -> u64 {
        u64::from(self)
    }
}

impl Tag for u64 {
    const NONE: Self = Self::MAX;
    #[inline]
    fn of(line: u64) -> Option<Self> {
        Some(line)
    }
    #[inline]
    fn line(self) -> u64 {
        self
    }
}

impl Tags {
    /// Of `sets` sets of `ways` ways, all empty. Slots are numbered `set * row + way`.
    pub(super) fn new(sets: usize, ways: usize) -> Self {
        Self::Narrow(vec![u32::NONE; sets * Self::row(ways)])
    }

    /// Slots from one set to the next.
    pub(super) fn row(ways: usize) -> usize {
        ways.next_multiple_of(LANES)
    }

    /// The way of the row from slot `base` on that holds `line`.
    #[inline]
    pub(super) fn find(&self, base: usize, row: usize, line: u64) -> Option<usize> {
        match self {
            Self::Narrow(tags) => host::position(&tags[base..base + row], u32::of(line)?),
            Self::Wide(tags) => tags[base..base + row].iter().position(|&tag| tag == line),
        }
    }

    /// The line in a slot.
    #[inline]
    pub(super) fn get(&self, slot: usize) -> Option<u64> {
        match self {
            Self::Narrow(tags) => line(tags[slot]),
            Self::Wide(tags) => line(tags[slot]),
        }
    }

    #[inline]
    pub(super) fn set(&mut self, slot: usize, line: u64) {
        match self {
            Self::Narrow(tags) => match u32::of(line) {
                Some(tag) => tags[slot] = tag,
                None => self.widen(slot, line),
            },
            Self::Wide(tags) => tags[slot] = line,
        }
    }

    #[cold]
    fn widen(&mut self, slot: usize, line: u64) {
        let wide = |at| self.get(at).unwrap_or(u64::NONE);
        let mut tags: Vec<u64> = (0..self.len()).map(wide).collect();
        tags[slot] = line;
        *self = Self::Wide(tags);
    }

    pub(super) fn clear(&mut self, slot: usize) {
        match self {
            Self::Narrow(tags) => tags[slot] = u32::NONE,
            Self::Wide(tags) => tags[slot] = u64::NONE,
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Narrow(tags) => tags.len(),
            Self::Wide(tags) => tags.len(),
        }
    }
}

#[inline]
fn line<T: Tag>(tag: T) -> Option<u64> {
    (tag != T::NONE).then(|| tag.line())
}
