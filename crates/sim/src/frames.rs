//! The page allocator: which page frames a program gets.
//!
//! Deviations from Linux: a plain allocation takes frames at random, as on a machine that has been up for long, where a
//! buddy allocator hands out runs; nothing is reclaimed or migrated.

use quell_model::address::Colours;

use crate::random::Random;

/// log2 of the page size.
pub const PAGE_SHIFT: u32 = 12;
/// log2 of the huge page size.
pub const HUGE_SHIFT: u32 = 21;

/// How frames are chosen.
#[derive(Clone, Debug)]
pub enum Placement {
    /// Any, at random.
    Plain,
    /// One run of frames in order.
    Sequential,
    /// Of certain colours, in turn, at random within each.
    Coloured {
        /// What tells the colours apart; of pages of 4 KiB.
        colours: Colours,
        /// The colours to use.
        chosen: Vec<u64>,
    },
    /// Huge pages, any, at random.
    Huge,
}

/// Why an allocation cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Memory is full, or the part of it that the placement allows.
    #[error("{wanted} pages wanted, {found} found: the memory that the placement allows is full")]
    Full {
        /// Pages asked for.
        wanted: usize,
        /// Pages found.
        found: usize,
    },
    /// A colour that these functions do not have, or none at all.
    #[error("colours {chosen:?} of 0-{}: choose at least one, each within the range", .count - 1)]
    Colour {
        /// Asked for.
        chosen: Vec<u64>,
        /// How many there are.
        count: u64,
    },
}

/// Memory of a program: virtual addresses from 0.
#[derive(Clone, Debug)]
pub struct Space {
    shift: u32,
    pages: Vec<u64>,
}

impl Space {
    /// The physical address; `None` beyond the end.
    #[inline]
    #[must_use]
    pub fn physical(&self, address: u64) -> Option<u64> {
        let page = self
            .pages
            .get(usize::try_from(address >> self.shift).ok()?)?;
        Some(page << self.shift | address & !(u64::MAX << self.shift))
    }

    /// The frames of 4 KiB, in order of their virtual addresses.
    pub fn frames(&self) -> impl Iterator<Item = u64> + '_ {
        let small = self.shift - PAGE_SHIFT;
        self.pages
            .iter()
            .flat_map(move |page| (0..1 << small).map(move |n| page << small | n))
    }
}

/// All frames of the machine.
#[derive(Clone, Debug)]
pub struct Frames {
    bits: u32,
    used: Vec<bool>,
    random: Random,
}

impl Frames {
    /// 2^`bits` free frames of 4 KiB.
    #[must_use]
    pub fn new(bits: u32, seed: u64) -> Self {
        Self {
            bits,
            used: vec![false; 1 << bits],
            random: Random::new(seed),
        }
    }

    /// Memory of `bytes`, rounded up to whole pages.
    ///
    /// # Errors
    /// Where there is none left, or the colours do not exist. Then nothing has been taken.
    pub fn allocate(&mut self, bytes: u64, placement: &Placement) -> Result<Space, Refused> {
        let shift = if matches!(placement, Placement::Huge) {
            HUGE_SHIFT
        } else {
            PAGE_SHIFT
        };
        let wanted = usize::try_from(bytes.div_ceil(1 << shift)).unwrap_or(usize::MAX);
        let per_page = 1usize << (shift - PAGE_SHIFT);
        let mut pages = Vec::new();
        let full = |found| Refused::Full { wanted, found };
        match placement {
            Placement::Sequential => {
                let mut run = 0;
                let end = self.used.iter().position(|&used| {
                    run = if used { 0 } else { run + 1 };
                    run >= wanted
                });
                let end = end.ok_or_else(|| full(0))?;
                pages.extend((end + 1 - wanted..=end).map(|frame| frame as u64));
            }
            Placement::Plain | Placement::Huge => {
                let all = (self.used.len() / per_page) as u64;
                self.take(wanted, per_page, &mut pages, all, |n, _| Some(n))?;
            }
            Placement::Coloured { colours, chosen } => {
                let sets: Option<Vec<_>> = chosen
                    .iter()
                    .map(|&colour| colours.frames(colour, self.bits))
                    .collect();
                let Some(sets) = sets.filter(|sets| !sets.is_empty()) else {
                    return Err(Refused::Colour {
                        chosen: chosen.clone(),
                        count: colours.count(),
                    });
                };
                let each = 1u64 << sets[0].log2_count();
                self.take(wanted, 1, &mut pages, each, |n, turn| {
                    sets[turn % sets.len()].nth(n)
                })?;
            }
        }
        for &page in &pages {
            let first = usize::try_from(page).unwrap_or(0) * per_page;
            self.used[first..first + per_page].fill(true);
        }
        Ok(Space { shift, pages })
    }

    /// Gives the frames of a program that has ended back.
    pub fn free(&mut self, space: &Space) {
        for frame in space.frames() {
            if let Some(used) = usize::try_from(frame)
                .ok()
                .and_then(|f| self.used.get_mut(f))
            {
                *used = false;
            }
        }
    }

    /// Takes `wanted` free pages, each the first free one from a random place on among `all` that `nth` tells, in turn.
    fn take(
        &mut self,
        wanted: usize,
        per_page: usize,
        pages: &mut Vec<u64>,
        all: u64,
        nth: impl Fn(u64, usize) -> Option<u64>,
    ) -> Result<(), Refused> {
        let mut taken = Vec::new();
        for turn in 0..wanted {
            let start = if all == 0 { 0 } else { self.random.below(all) };
            let found = (0..all)
                .filter_map(|n| nth((start + n) % all, turn))
                .find(|&page| {
                    let first = usize::try_from(page).unwrap_or(0) * per_page;
                    self.used[first..first + per_page].iter().all(|used| !used)
                });
            let Some(page) = found else {
                taken
                    .into_iter()
                    .for_each(|range: std::ops::Range<usize>| self.used[range].fill(false));
                return Err(Refused::Full {
                    wanted,
                    found: turn,
                });
            };
            let first = usize::try_from(page).unwrap_or(0) * per_page;
            self.used[first..first + per_page].fill(true);
            taken.push(first..first + per_page);
            pages.push(page);
        }
        Ok(())
    }
}
