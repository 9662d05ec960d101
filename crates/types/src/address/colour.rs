//! Page colours: what the choice of page frames can decide.
//!
//! A page holds all values of its offset bits. So a function that uses one of them takes both
//! values within every page, and decides nothing. What remains are the *combinations* of functions
//! in which the offset bits cancel: the subspace of the span that avoids them. Its dimension is the
//! number of colour bits.
//!
//! Counting only the functions as written undercounts. Of `12^20` and `12^21` with 8 KiB pages,
//! neither avoids bit 12, but their sum `20^21` does.

use super::function::Functions;
use super::gf2::{Solutions, Space};

/// The colours that some address functions leave to pages of one size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Colours {
    page_shift: u32,
    space: Space,
    of_address: Functions,
}

/// log2 of the size of a large page, from that of a small one: what one table of page-table entries
/// maps.
#[must_use]
pub const fn large_shift(page_shift: u32) -> u32 {
    (2 * page_shift).saturating_sub(3)
}

/// How two kinds of colour relate, for example those of banks and of cache sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joint {
    /// Colour bits that both have: choosing them for one chooses them for the other.
    pub shared: u32,
    /// Colour bits of both kinds together.
    pub together: u32,
    /// How many groups can be separated in both respects with every frame in use: two to the power
    /// of `shared`.
    pub partitions: u64,
    /// How many groups can be separated in both respects when frames may be idle. Each group takes
    /// one colour of both kinds, and the frames of mixed colours are unused.
    pub at_most: u64,
}

impl Colours {
    /// The colours that `functions` (masks over physical addresses) leave to pages of
    /// 2^`page_shift` bytes.
    #[must_use]
    pub fn new(functions: &[u64], page_shift: u32) -> Self {
        let outside = u64::MAX.checked_shl(page_shift).unwrap_or(0);
        Self::among(
            Space::spanned(functions.iter().copied()).within(outside),
            page_shift,
        )
    }

    fn among(space: Space, page_shift: u32) -> Self {
        let of_address = Functions::new(space.rows().to_vec());
        Self {
            page_shift,
            space,
            of_address,
        }
    }

    /// log2 of the number of colours.
    #[must_use]
    pub fn bits(&self) -> u32 {
        self.space.rank()
    }

    /// The number of colours; `u64::MAX` for 2^64.
    #[must_use]
    pub fn count(&self) -> u64 {
        1u64.checked_shl(self.bits()).unwrap_or(u64::MAX)
    }

    /// The functions that define the colours, in reduced form, colour bit 0 first. Where the given
    /// functions were single address bits, these are the same bits in ascending order.
    #[must_use]
    pub fn functions(&self) -> &[u64] {
        self.space.rows()
    }

    /// The colour of the page frame `frame` (physical address >> page shift).
    #[inline]
    #[must_use]
    pub fn of_frame(&self, frame: u64) -> u64 {
        self.of_address.of(frame << self.page_shift)
    }

    /// The frames of `colour` among the first 2^`frame_bits` frames, ascending. `None` if there is
    /// no such colour.
    #[must_use]
    pub fn frames(&self, colour: u64, frame_bits: u32) -> Option<Solutions> {
        if self.bits() < 64 && colour >> self.bits() != 0 {
            return None;
        }
        let within = !u64::MAX.checked_shl(frame_bits).unwrap_or(0);
        let functions: Vec<u64> = self
            .space
            .rows()
            .iter()
            .map(|row| row >> self.page_shift)
            .collect();
        Solutions::of(&functions, colour, within)
    }

    /// How these colours relate to `other` ones of the same page size.
    #[must_use]
    pub fn joint(&self, other: &Self) -> Joint {
        let shared = self.space.intersection(&other.space).rank();
        let together = self.space.sum(&other.space).rank();
        Joint {
            shared,
            together,
            partitions: 1u64.checked_shl(shared).unwrap_or(u64::MAX),
            at_most: self.count().min(other.count()),
        }
    }

    /// The colours by which partitioning leaves `other` whole: a group of one such colour still
    /// reaches every colour of `other`. On a cache with an index that includes that of a smaller
    /// private cache, these colours do not shrink the private one.
    #[must_use]
    pub fn sparing(&self, other: &Self) -> Self {
        let shared = self.space.intersection(&other.space);
        Self::among(self.space.independent_of(&shared), self.page_shift)
    }
}
