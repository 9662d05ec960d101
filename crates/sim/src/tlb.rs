//! Translation look-aside buffers: what an access costs when its page's translation is missing.
//!
//! Method: two tables, for pages of 4 KiB and for large ones. Each is set-associative with true
//! LRU: the model's cache, with a page for a line. A miss costs a fixed walk.
//!
//! Deviations from hardware:
//! - Only the last level is modelled, and a hit in it costs nothing. First levels would add some
//!   cycles to what they miss.
//! - There are no caches of page-table entries; their effect is in the fixed cost.
//! - There is no instruction side. Walks neither load memory nor overlap.
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
    small: Cache,
    large: Cache,
    large_shift: u32,
    walk: u32,
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
        Ok(Self {
            small: Cache::new(&small, Policy::Lru, 1)?,
            large: Cache::new(&large, Policy::Lru, 1)?,
            large_shift: shape.large_page.0.trailing_zeros(),
            walk: shape.walk,
        })
    }

    /// Translates `address` of `program`. Returns its cost beyond a hit, in core cycles.
    #[inline]
    pub fn access(&mut self, program: u16, address: u64, page: Page) -> u32 {
        let (table, number) = match page {
            Page::Small => (&mut self.small, address >> PAGE_SHIFT),
            Page::Large => (&mut self.large, address >> self.large_shift),
        };
        let number = number & !(u64::MAX << (ADDRESS_BITS - PAGE_SHIFT));
        let tag = u64::from(program) << ADDRESS_BITS | number << PAGE_SHIFT;
        if table.access(tag, false, 0).0 {
            0
        } else {
            self.walk
        }
    }

    /// Misses so far: of small and of large pages.
    #[must_use]
    pub fn misses(&self) -> (u64, u64) {
        (self.small.counts(0).misses, self.large.counts(0).misses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_types::units::Bytes;

    fn shape() -> TlbShape {
        TlbShape {
            entries: 64,
            ways: 4,
            large_entries: 8,
            large_ways: 8,
            large_page: Bytes(2 << 20),
            walk: 30,
            tagged: true,
            source: "a test".into(),
            assumed: Default::default(),
        }
    }

    /// Cycles of the second pass over `bytes` in steps of 4 KiB.
    fn second_pass(bytes: u64, page: Page) -> u64 {
        let mut tlb = Tlb::new(&shape()).unwrap();
        let mut pass = || {
            (0..bytes >> 12)
                .map(|n| u64::from(tlb.access(1, n << 12, page)))
                .sum()
        };
        let _: u64 = pass();
        pass()
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
        assert_eq!(tlb.access(1, 0x5000, Page::Small), 30);
        assert_eq!(tlb.access(2, 0x5000, Page::Small), 30);
        assert_eq!(tlb.access(1, 0x5fff, Page::Small), 0);
        assert_eq!(tlb.access(1, 0x5fff, Page::Large), 30);
        assert_eq!(tlb.misses(), (2, 1));
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
