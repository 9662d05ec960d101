//! Ranges of physical addresses, and which functions are constant over them.

use std::ops::Range;

use super::gf2::Space;

/// Ranges of addresses: ascending, without gaps of zero bytes, none empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(Vec<Range<u64>>);

impl Ranges {
    /// The addresses of all these ranges.
    #[must_use]
    pub fn new(ranges: impl IntoIterator<Item = Range<u64>>) -> Self {
        let mut all: Vec<Range<u64>> = ranges.into_iter().filter(|r| r.start < r.end).collect();
        all.sort_by_key(|r| r.start);
        let mut merged: Vec<Range<u64>> = Vec::with_capacity(all.len());
        for next in all {
            match merged.last_mut().filter(|last| next.start <= last.end) {
                Some(last) => last.end = last.end.max(next.end),
                None => merged.push(next),
            }
        }
        Self(merged)
    }

    /// The ranges, ascending.
    pub fn iter(&self) -> impl Iterator<Item = &Range<u64>> {
        self.0.iter()
    }

    /// Whether there is no address.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The lowest address. `None` where there is none.
    #[must_use]
    pub fn first(&self) -> Option<u64> {
        Some(self.0.first()?.start)
    }

    /// The address after the highest one; 0 where there is none.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.0.last().map_or(0, |r| r.end)
    }

    /// The addresses that both have.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let (mut a, mut b) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut common = Vec::new();
        while let (Some(one), Some(two)) = (a.peek(), b.peek()) {
            common.push(one.start.max(two.start)..one.end.min(two.end));
            if one.end < two.end {
                a.next();
            } else {
                b.next();
            }
        }
        Self::new(common)
    }

    /// The span of the differences (exclusive or) between any two of these addresses.
    #[must_use]
    pub fn differences(&self) -> Space {
        let mut space = Space::default();
        let Some(first) = self.first() else {
            return space;
        };
        let mut largest = 0;
        for range in &self.0 {
            let mut at = range.start;
            while at < range.end {
                // The largest aligned block that begins here: within it, all lower bits differ.
                let fits = (range.end - at).ilog2();
                let bits = fits.min(at.trailing_zeros());
                space.insert(at ^ first);
                largest = largest.max(bits);
                match at.checked_add(1 << bits) {
                    Some(next) => at = next,
                    None => break,
                }
            }
        }
        for bit in 0..largest {
            space.insert(1 << bit);
        }
        space
    }
}

/// The functions of `space` that are constant within each of `parts`. A function may well have
/// another value in another part.
#[must_use]
pub fn constant(space: &Space, parts: &[Ranges]) -> Space {
    let all = parts
        .iter()
        .map(Ranges::differences)
        .fold(Space::default(), |all, one| all.sum(&one));
    space.intersection(&all.orthogonal(u64::MAX))
}
