//! Translation look-aside buffers: what an access costs when its page's translation is missing.
//!
//! Method: a level has two tables, for pages of 4 KiB and for large ones. Each is set-associative
//! with true LRU: the model's cache, with a page for a line. A miss of the last level costs a fixed
//! walk. Where hardware has a first level that is modelled ([`crate::profile::FirstTlb`]), its
//! entries are a subset of the last level's: an entry that leaves the last level leaves it, too. A
//! miss of the first level that hits the last costs a fixed refill.
//!
//! Deviations from hardware:
//! - Without a modelled first level a hit in the last costs nothing.
//! - There are no caches of page-table entries; their effect is in the fixed cost.
//! - There is no instruction side. Walks neither load memory nor overlap.
//! - A walk by software disturbs neither caches nor the TLB.
//! - A hit of the first level does not renew the entry of the last one.
//!
//! Address spaces have numbers. Where entries carry no tag, [`crate::Machine`] gives a new number
//! at every change of tasks, which has the effect of a flush.

use quell_model::Invalid;
use quell_model::cache::{Cache, Policy};

use crate::access::{ADDRESS_BITS, PAGE_SHIFT};
use crate::profile::TlbShape;

/// The TLB of a core, with its misses.
#[derive(Clone, Debug)]
pub struct Tlb {
    first: Option<First>,
    small: Cache,
    large: Cache,
    large_shift: u32,
    walk: u32,
}

/// A first level in front of the last one.
#[derive(Clone, Debug)]
struct First {
    small: Cache,
    large: Cache,
    refill: u32,
}

/// What a translation costs beyond a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Translated {
    /// The nearest level had it.
    Hit,
    /// The last level had it and refilled the first one, in so many core cycles.
    Refilled(u32),
    /// No level had it. The walk takes so many core cycles.
    Walked(u32),
}

impl Translated {
    /// Core cycles beyond a hit.
    #[inline]
    #[must_use]
    pub fn cycles(self) -> u64 {
        match self {
            Self::Hit => 0,
            Self::Refilled(cycles) | Self::Walked(cycles) => u64::from(cycles),
        }
    }

    /// Whether no level had the translation.
    #[inline]
    #[must_use]
    pub fn is_walk(self) -> bool {
        matches!(self, Self::Walked(_))
    }
}

/// The two sizes of page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// A page of 4 KiB.
    Small,
    /// A page as large as the profile's large entries map.
    Large,
}

impl Tlb {
    /// A TLB without entries.
    ///
    /// # Errors
    /// See [`TlbShape::geometries`].
    pub fn new(shape: &TlbShape) -> Result<Self, Invalid> {
        let [small, large] = shape.geometries()?;
        let first = match (&shape.first, shape.first_geometries()?) {
            (Some(first), Some([small, large])) => Some(First {
                small: Cache::new(&small, Policy::Lru, 1)?,
                large: Cache::new(&large, Policy::Lru, 1)?,
                refill: first.refill,
            }),
            _ => None,
        };
        Ok(Self {
            first,
            small: Cache::new(&small, Policy::Lru, 1)?,
            large: Cache::new(&large, Policy::Lru, 1)?,
            large_shift: shape.large_page.0.trailing_zeros(),
            walk: shape.walk,
        })
    }

    /// Translates `address` of `program`.
    #[inline]
    pub fn access(&mut self, program: u16, address: u64, page: Page) -> Translated {
        let number = match page {
            Page::Small => address >> PAGE_SHIFT,
            Page::Large => address >> self.large_shift,
        };
        let number = number & !(u64::MAX << (ADDRESS_BITS - PAGE_SHIFT));
        let tag = u64::from(program) << ADDRESS_BITS | number << PAGE_SHIFT;
        let large = page == Page::Large;
        let last = if large {
            &mut self.large
        } else {
            &mut self.small
        };
        let Some(first) = &mut self.first else {
            return if last.access(tag, false, 0).0 {
                Translated::Hit
            } else {
                Translated::Walked(self.walk)
            };
        };
        let nearest = if large {
            &mut first.large
        } else {
            &mut first.small
        };
        if nearest.lookup(tag, false, 0).is_some() {
            return Translated::Hit;
        }
        let (found, victim) = last.access(tag, false, 0);
        if let Some(victim) = victim {
            nearest.remove(victim.address);
        }
        nearest.fill(tag, false, 0);
        if found {
            Translated::Refilled(first.refill)
        } else {
            Translated::Walked(self.walk)
        }
    }

    /// Misses of the last level so far: of small and of large pages.
    #[must_use]
    pub fn misses(&self) -> (u64, u64) {
        (self.small.counts(0).misses, self.large.counts(0).misses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::FirstTlb;
    use quell_types::units::Bytes;

    fn shape() -> TlbShape {
        TlbShape {
            entries: 64,
            ways: 4,
            large_entries: 8,
            large_ways: 8,
            large_page: Bytes(2 << 20),
            walk: 30,
            software: false,
            tagged: true,
            first: None,
            source: "a test".into(),
            assumed: Default::default(),
        }
    }

    /// The same with a first level of 8 and 2 entries, all of them in one set.
    fn two_levels() -> TlbShape {
        let first = FirstTlb {
            entries: 8,
            ways: 8,
            large_entries: 2,
            large_ways: 2,
            refill: 7,
            source: "a test".into(),
            assumed: Default::default(),
        };
        TlbShape {
            first: Some(first),
            ..shape()
        }
    }

    /// Cycles of the second pass over `bytes` in steps of 4 KiB.
    fn second_pass_of(shape: &TlbShape, bytes: u64, page: Page) -> u64 {
        let mut tlb = Tlb::new(shape).unwrap();
        let mut pass = || {
            (0..bytes >> 12)
                .map(|n| tlb.access(1, n << 12, page).cycles())
                .sum()
        };
        let _: u64 = pass();
        pass()
    }

    fn second_pass(bytes: u64, page: Page) -> u64 {
        second_pass_of(&shape(), bytes, page)
    }

    #[test]
    fn what_fits_is_free_and_what_does_not_walks_every_time() {
        assert_eq!(second_pass(64 << 12, Page::Small), 0);
        // Round and round under LRU, a set with one page too many misses every time.
        assert_eq!(second_pass(128 << 12, Page::Small), 128 * 30);
        assert_eq!(second_pass(16 << 20, Page::Large), 0);
        // A large page needs one walk, however many small ones it contains.
        assert_eq!(second_pass(32 << 20, Page::Large), 16 * 30);
    }

    #[test]
    fn programs_do_not_share_translations() {
        let mut tlb = Tlb::new(&shape()).unwrap();
        let walked = Translated::Walked(30);
        assert_eq!(tlb.access(1, 0x5000, Page::Small), walked);
        assert_eq!(tlb.access(2, 0x5000, Page::Small), walked);
        assert_eq!(tlb.access(1, 0x5fff, Page::Small), Translated::Hit);
        assert_eq!(tlb.access(1, 0x5fff, Page::Large), walked);
        assert_eq!(tlb.misses(), (2, 1));
    }

    #[test]
    fn a_first_level_is_refilled_from_the_last() {
        let shape = two_levels();
        assert_eq!(second_pass_of(&shape, 8 << 12, Page::Small), 0);
        // Beyond the first level each page costs a refill, beyond the last one a walk alone.
        assert_eq!(second_pass_of(&shape, 9 << 12, Page::Small), 9 * 7);
        assert_eq!(second_pass_of(&shape, 128 << 12, Page::Small), 128 * 30);
        assert_eq!(second_pass_of(&shape, 4 << 20, Page::Large), 0);
        assert_eq!(second_pass_of(&shape, 6 << 20, Page::Large), 3 * 7);
    }

    #[test]
    fn what_leaves_the_last_level_leaves_the_first() {
        let mut tlb = Tlb::new(&two_levels()).unwrap();
        // Pages of one set of the last level, which has sixteen sets of four ways.
        let mut at = |n: u64| tlb.access(1, (16 * n) << 12, Page::Small);
        for n in 0..4 {
            assert_eq!(at(n), Translated::Walked(30));
        }
        assert_eq!(at(0), Translated::Hit);
        // The fifth page takes the place of the first one. Of the last level it is the oldest,
        // since a hit of the first level renews nothing there.
        assert_eq!(at(4), Translated::Walked(30));
        assert_eq!(at(0), Translated::Walked(30));
        assert_eq!(at(4), Translated::Hit);
    }

    #[test]
    fn impossible_shapes_say_what_is_wrong() {
        let error = |shape: TlbShape| Tlb::new(&shape).unwrap_err().to_string();
        let odd = TlbShape {
            entries: 63,
            ..shape()
        };
        assert!(error(odd).contains("63 entries"));
        let small = TlbShape {
            large_page: Bytes(4096),
            ..shape()
        };
        assert!(error(small).contains("4KiB"));
    }
}
