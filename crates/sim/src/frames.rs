//! The page allocator: which page frames a program gets.
//!
//! Small pages come from the lower half of memory as long as it has any, large ones from the upper
//! half. Linux likewise groups what it cannot move, in order to find large pages at all.
//!
//! A system that hands out its memory once ([`FrameOrder::Ascending`]) gives large pages as a
//! region: the lowest free run of frames, aligned to the power of two that the region fits in. So
//! regions follow each other.
//!
//! Deviations from Linux:
//! - A plain allocation takes frames at random, as on a machine that has been up for long. A buddy
//!   allocator hands out runs.
//! - Nothing is reclaimed or migrated.

use std::collections::VecDeque;

use quell_types::address::Colours;
use quell_types::address::gf2::Solutions;
use quell_types::rng::SplitMix;

use crate::access::PAGE_SHIFT;
use crate::profile::FrameOrder;

/// Colours of one kind that the frames of a program may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The functions that define the colour of a page of 4 KiB.
    pub colours: Colours,
    /// The colours to use, by number from 0.
    pub chosen: Vec<u64>,
}

/// How frames are chosen for a program.
#[derive(Clone, Debug)]
pub enum Placement {
    /// Any frames, in the order of the profile ([`FrameOrder`]).
    Plain,
    /// One run of frames in ascending order.
    Sequential,
    /// Frames of certain colours, in turn, at random within each colour. Every choice must hold.
    Coloured {
        /// The choices, for example one of banks and one of sets.
        choices: Vec<Choice>,
        /// Whether other frames are taken when these are used up ([`Space::spilled`]). Otherwise
        /// the allocation is refused.
        spill: bool,
    },
    /// Large pages, any of them, as in [`Self::Plain`], or a region where frames ascend.
    Huge,
}

/// Why an allocation is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Memory is full, or the part of it that the placement allows.
    #[error("{wanted} pages wanted, {found} found: the memory that the placement allows is full")]
    Full {
        /// How many pages were asked for.
        wanted: usize,
        /// How many free pages were found.
        found: usize,
    },
    /// Each colour exists, but no frame has all of them.
    #[error("no page frame has all of the colours chosen: the kinds of colour share address bits")]
    Apart,
    /// A colour that the functions do not have, or no colour at all.
    #[error("colours {chosen:?} of 0-{}: choose at least one, each within the range", .count - 1)]
    Colour {
        /// The colours asked for.
        chosen: Vec<u64>,
        /// How many colours exist: they are numbered from 0.
        count: u64,
    },
}

/// Memory of a program, at virtual addresses from 0.
#[derive(Clone, Debug)]
pub struct Space {
    shift: u32,
    pages: Vec<u64>,
    spilled: usize,
    large: bool,
}

impl Space {
    /// Small pages in these frames, in the order of their virtual addresses.
    #[must_use]
    pub fn of_frames(frames: Vec<u64>) -> Self {
        Self {
            shift: PAGE_SHIFT,
            pages: frames,
            spilled: 0,
            large: false,
        }
    }

    /// The physical address of a virtual one. `None` beyond the end.
    #[inline]
    #[must_use]
    pub fn physical(&self, address: u64) -> Option<u64> {
        let page = self
            .pages
            .get(usize::try_from(address >> self.shift).ok()?)?;
        Some(page << self.shift | address & !(u64::MAX << self.shift))
    }

    /// Whether large entries of the TLB map it.
    #[inline]
    #[must_use]
    pub fn is_large(&self) -> bool {
        self.large
    }

    /// The size of its pages, as a power of two. A region consists of frames of 4 KiB.
    #[inline]
    #[must_use]
    pub fn shift(&self) -> u32 {
        self.shift
    }

    /// Its size in bytes, in whole pages.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.pages.len() as u64) << self.shift
    }

    /// How many pages do not have the colours that were wanted.
    #[must_use]
    pub fn spilled(&self) -> usize {
        self.spilled
    }

    /// Its pages, and behind them those of `more`, which have the same size.
    #[must_use]
    pub fn followed_by(&self, more: &Self) -> Self {
        let pages = self.pages.iter().chain(&more.pages);
        Self {
            pages: pages.copied().collect(),
            ..self.clone()
        }
    }

    /// The numbers of its 4 KiB frames, in order of their virtual addresses.
    pub fn frames(&self) -> impl Iterator<Item = u64> + '_ {
        let small = self.shift - PAGE_SHIFT;
        self.pages
            .iter()
            .flat_map(move |page| (0..1 << small).map(move |n| page << small | n))
    }
}

/// All page frames of the machine, free and used.
#[derive(Clone, Debug)]
pub struct Frames {
    /// log2 of the number of frames, rounded up.
    bits: u32,
    large_shift: u32,
    used: Vec<bool>,
    random: SplitMix,
    order: FrameOrder,
}

impl Frames {
    /// 2^`bits` free frames of 4 KiB. Large pages have 2 MiB.
    #[must_use]
    pub fn new(bits: u32, seed: u64) -> Self {
        Self::of(1 << (bits + PAGE_SHIFT), 2 << 20, FrameOrder::Random, seed)
    }

    /// `memory` bytes of free frames. Large pages have `large` bytes, a power of two.
    #[must_use]
    pub fn of(memory: u64, large: u64, order: FrameOrder, seed: u64) -> Self {
        let frames = memory >> PAGE_SHIFT;
        Self {
            bits: frames.next_power_of_two().trailing_zeros(),
            large_shift: large.trailing_zeros().max(PAGE_SHIFT),
            used: vec![false; usize::try_from(frames).unwrap_or(0)],
            random: SplitMix::new(seed),
            order,
        }
    }

    /// Takes memory of `bytes`, rounded up to whole pages.
    ///
    /// # Errors
    /// Where none is left, or the colours do not exist. Then nothing has been taken.
    pub fn allocate(&mut self, bytes: u64, placement: &Placement) -> Result<Space, Refused> {
        let large = matches!(placement, Placement::Huge);
        let region = large && self.order == FrameOrder::Ascending;
        let shift = if large && !region {
            self.large_shift
        } else {
            PAGE_SHIFT
        };
        let wanted = usize::try_from(bytes.div_ceil(1 << shift)).unwrap_or(usize::MAX);
        let mut taken = Taken {
            per_page: 1 << (shift - PAGE_SHIFT),
            pages: Vec::new(),
        };
        let mut spilled = 0;
        let took = match placement {
            Placement::Sequential => self.run(wanted, 1, &mut taken),
            Placement::Huge if region => self.run(wanted, wanted.next_power_of_two(), &mut taken),
            Placement::Plain | Placement::Huge => self.any(wanted, &mut taken),
            Placement::Coloured { choices, spill } => {
                let sets = self.sets(choices)?;
                match self.coloured(wanted, &sets, &mut taken) {
                    Err(_) if *spill => {
                        spilled = wanted - taken.pages.len();
                        self.any(wanted, &mut taken)
                    }
                    took => took,
                }
            }
        };
        if let Err(refused) = took {
            for page in taken.pages {
                self.mark(page, taken.per_page, false);
            }
            return Err(refused);
        }
        Ok(Space {
            shift,
            pages: taken.pages,
            spilled,
            large,
        })
    }

    /// Frees the frames of a program that has ended.
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

    /// The frames that every choice allows: one set for each existing combination of colours.
    fn sets(&self, choices: &[Choice]) -> Result<Vec<Solutions>, Refused> {
        let (mut functions, mut values) = (Vec::new(), vec![0u64]);
        for Choice { colours, chosen } in choices {
            let beyond = |colour: &u64| *colour >= colours.count();
            if chosen.is_empty() || chosen.iter().any(beyond) {
                return Err(Refused::Colour {
                    chosen: chosen.clone(),
                    count: colours.count(),
                });
            }
            let at = functions.len();
            functions.extend(colours.functions().iter().map(|mask| mask >> PAGE_SHIFT));
            values = chosen
                .iter()
                .flat_map(|colour| values.iter().map(move |value| value | colour << at))
                .collect();
        }
        let within = (1u64 << self.bits) - 1;
        let sets: Vec<Solutions> = values
            .into_iter()
            .filter_map(|value| Solutions::of(&functions, value, within))
            .collect();
        if sets.is_empty() {
            return Err(Refused::Apart);
        }
        Ok(sets)
    }

    /// Takes the first run of `wanted` free frames that begins at a multiple of `align`.
    fn run(&mut self, wanted: usize, align: usize, taken: &mut Taken) -> Result<(), Refused> {
        let mut first = 0usize;
        while let Some(run) = self.used.get(first..first.saturating_add(wanted)) {
            let Some(last_used) = run.iter().rposition(|&used| used) else {
                self.used[first..first + wanted].fill(true);
                taken
                    .pages
                    .extend((first..first + wanted).map(|frame| frame as u64));
                return Ok(());
            };
            first = (first + last_used + 1).next_multiple_of(align);
        }
        Err(Refused::Full { wanted, found: 0 })
    }

    /// Takes free pages until there are `wanted`, each the first free one from a random place on.
    /// Small ones come from the lower half of memory first, large ones from the upper half.
    fn any(&mut self, wanted: usize, taken: &mut Taken) -> Result<(), Refused> {
        let all = (self.used.len() / taken.per_page) as u64;
        let halves = [0..all / 2, all / 2..all];
        let order = if taken.per_page == 1 { [0, 1] } else { [1, 0] };
        let mut first = 0;
        while taken.pages.len() < wanted {
            let found = (first..2).find_map(|n| {
                let half = halves[order[n]].clone();
                let page = self.first(half.end - half.start, taken.per_page, |n| {
                    Some(half.start + n)
                })?;
                Some((n, page))
            });
            let Some((n, page)) = found else {
                let found = taken.pages.len();
                return Err(Refused::Full { wanted, found });
            };
            // No half gets free pages during this call.
            first = n;
            self.take(page, taken);
        }
        Ok(())
    }

    /// Takes free frames of `sets` in turn until there are `wanted`, as [`Frames::any`] does. A set
    /// that is used up is left out.
    fn coloured(
        &mut self,
        wanted: usize,
        sets: &[Solutions],
        taken: &mut Taken,
    ) -> Result<(), Refused> {
        // Solutions ascend, so their first half is the lower one. No half gets free frames during
        // this call.
        let halves = |set: &Solutions| {
            let all = 1u64 << set.log2_count();
            VecDeque::from([0..all / 2, all / 2..all])
        };
        let mut left: Vec<_> = sets.iter().map(|set| (set, halves(set))).collect();
        let mut turn = 0;
        while taken.pages.len() < wanted {
            if left.is_empty() {
                let found = taken.pages.len();
                return Err(Refused::Full { wanted, found });
            }
            turn %= left.len();
            let (set, halves) = &mut left[turn];
            let Some(half) = halves.front().cloned() else {
                left.remove(turn);
                continue;
            };
            match self.first(half.end - half.start, 1, |n| set.nth(half.start + n)) {
                Some(page) => {
                    self.take(page, taken);
                    turn += 1;
                }
                None => {
                    halves.pop_front();
                }
            }
        }
        Ok(())
    }

    /// The first free page among `all` pages, numbered by `nth`. The search starts at a random
    /// place, or at the lowest ([`FrameOrder`]).
    fn first(
        &mut self,
        all: u64,
        per_page: usize,
        nth: impl Fn(u64) -> Option<u64>,
    ) -> Option<u64> {
        let start = match self.order {
            FrameOrder::Random if all > 0 => self.random.below(all),
            FrameOrder::Random | FrameOrder::Ascending => 0,
        };
        (0..all)
            .filter_map(|n| nth((start + n) % all))
            .find(|&page| {
                let first = usize::try_from(page).unwrap_or(usize::MAX) * per_page;
                let frames = self.used.get(first..first + per_page);
                frames.is_some_and(|frames| frames.iter().all(|used| !used))
            })
    }

    fn take(&mut self, page: u64, taken: &mut Taken) {
        self.mark(page, taken.per_page, true);
        taken.pages.push(page);
    }

    fn mark(&mut self, page: u64, per_page: usize, used: bool) {
        let first = usize::try_from(page).unwrap_or(usize::MAX) * per_page;
        self.used[first..first + per_page].fill(used);
    }
}

/// What an allocation has taken so far.
struct Taken {
    /// How many 4 KiB frames a page has.
    per_page: usize,
    pages: Vec<u64>,
}
