//! Settling: which pages of a program are moved to frames of other colours next, how many at once,
//! and when. The program's threads are stopped for each chunk.
//!
//! Method: a chunk is sized from what the last one cost per page, and besides, so that the stop
//! takes what is aimed at. That falls by a tenth of the longest stop that is allowed with each stop
//! that takes longer, and rises by a thousandth with each other one. So about one in a hundred is
//! longer (Robbins and Monro's method for a quantile). Where stopping the threads alone takes about
//! that long, as on a busy machine, pages are moved for another three sixteenths of it: fewer and
//! longer stops cost the program less than many with a page each. A chunk at most doubles from one
//! stop to the next. A pause after each stop keeps the share of time that the program is stopped.

use quell_types::address::Functions;
use quell_types::cpuset::CpuSet;
use quell_types::pages::PageRun;
use quell_types::partition::Colouring;
use quell_types::units::{Nanos, Share};

/// The most colour bits that are distinguished.
pub const MOST_BITS: usize = 16;
/// Pages of the first chunk.
const FIRST: u64 = 16;
/// The most pages of a chunk.
pub const MOST_PAGES: u64 = 512;
/// The most runs of a chunk: each is a system call of the program.
pub const MOST_RUNS: usize = 96;
/// Right pages between two wrong ones that are moved with them. Moving them costs less than another
/// system call.
const BRIDGE: u64 = 4;

/// The frames that a program should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RightFrames {
    functions: Functions,
    shift: u32,
    right: Vec<bool>,
}

impl RightFrames {
    /// The frames of these colours. `None` where a colour does not exist, none is given, or there
    /// are too many.
    #[must_use]
    pub fn new(colouring: &Colouring, colours: &CpuSet) -> Option<Self> {
        let known = |colour: u32| colour < colouring.count();
        if colouring.functions.len() > MOST_BITS || colours.is_empty() || !colours.iter().all(known)
        {
            return None;
        }
        let masks = colouring.functions.iter().map(|mask| mask.0).collect();
        Some(Self {
            functions: Functions::new(masks),
            shift: colouring.page.0.trailing_zeros(),
            right: (0..colouring.count())
                .map(|colour| colours.contains(colour))
                .collect(),
        })
    }

    /// Whether a frame (physical address divided by the page size) has one of the colours.
    #[must_use]
    pub fn has(&self, frame: u64) -> bool {
        self.colour(frame).is_some()
    }

    /// Which of the colours a frame has. `None` where it has another one.
    #[must_use]
    pub fn colour(&self, frame: u64) -> Option<usize> {
        let address = frame.checked_shl(self.shift).unwrap_or(0);
        let colour = usize::try_from(self.functions.of(address)).ok()?;
        (self.right.get(colour) == Some(&true)).then_some(colour)
    }

    /// How many frames have to be looked through for a right one, on average: colours that there
    /// are, divided by those that are right.
    #[must_use]
    pub fn rarity(&self) -> u64 {
        let right = self.right.iter().filter(|right| **right).count().max(1);
        (self.right.len().div_ceil(right)) as u64
    }
}

/// What a page of the program is to settling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageState {
    /// It cannot be moved, or is not in memory.
    Fixed,
    /// It has a right frame, and can be moved.
    Right,
    /// It has a wrong frame, and can be moved.
    Wrong,
}

/// Pages that are moved in one stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Ascending, none next to another.
    pub runs: Vec<PageRun>,
    /// The first page that was not considered.
    pub next: u64,
}

impl Chunk {
    /// Its pages among these, the first of which has the number `first`.
    #[must_use]
    pub fn of<P: Copy>(&self, first: u64, pages: &[P]) -> Vec<P> {
        let numbers = self.runs.iter().flat_map(|run| run.first..run.end());
        let place = |page: u64| usize::try_from(page - first).ok();
        numbers
            .filter_map(|page| pages.get(place(page)?).copied())
            .collect()
    }
}

/// The next pages to move: of these pages, the first of which has the number `first`. A chunk has
/// at most `most` pages, right ones between wrong ones included. `None` where none is wrong.
#[must_use]
pub fn chunk(first: u64, states: &[PageState], most: u64) -> Option<Chunk> {
    let mut runs: Vec<PageRun> = Vec::new();
    let (mut taken, mut next) = (0u64, first);
    // Right pages since the last wrong one, if nothing else was between.
    let mut gap = None;
    for (page, state) in (first..).zip(states) {
        match state {
            PageState::Fixed => gap = None,
            PageState::Right => gap = gap.map(|gap: u64| gap + 1),
            PageState::Wrong => {
                let bridged = gap.filter(|gap| *gap <= BRIDGE && taken + gap < most);
                if taken >= most || bridged.is_none() && runs.len() >= MOST_RUNS {
                    return Some(Chunk { runs, next });
                }
                match (bridged, runs.last_mut()) {
                    (Some(gap), Some(run)) => {
                        run.pages += gap + 1;
                        taken += gap + 1;
                    }
                    _ => {
                        runs.push(PageRun {
                            first: page,
                            pages: 1,
                        });
                        taken += 1;
                    }
                }
                (gap, next) = (Some(0), page + 1);
            }
        }
    }
    let next = first.saturating_add(states.len() as u64);
    (!runs.is_empty()).then_some(Chunk { runs, next })
}

/// How long a program may be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The longest stop that is aimed at.
    pub longest: Nanos,
    /// The share of time.
    pub share: Share,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            longest: Nanos::millis(2),
            share: Share(3_000),
        }
    }
}

/// Sizes chunks, and spaces their stops.
#[derive(Clone, Debug)]
pub struct Pacer {
    pace: Pace,
    /// How long a stop is to take.
    aim: Nanos,
    pages: u64,
}

impl Pacer {
    /// Begins with small chunks.
    #[must_use]
    pub const fn new(pace: Pace) -> Self {
        Self {
            pace,
            aim: Nanos(pace.longest.0 / 8 * 5),
            pages: FIRST,
        }
    }

    /// The most pages of the next chunk, at least one.
    #[must_use]
    pub const fn pages(&self) -> u64 {
        self.pages
    }

    /// Changes the share of time that the program may be stopped.
    pub const fn pace(&mut self, share: Share) {
        self.pace.share = share;
    }

    /// To be called after a stop that moved so many pages. It took so long, of which `moving` was
    /// for these pages. Returns how long the program runs before the next stop, at least.
    pub fn after(&mut self, pages: u64, lasted: Nanos, moving: Nanos) -> Nanos {
        let (longest, besides) = (self.pace.longest, lasted.since(moving));
        // Where the rest takes longer already, fewer pages help nothing.
        if besides < longest {
            self.aim = match lasted > longest {
                true => self.aim.since(Nanos(longest.0 / 10)),
                false => self.aim.plus(Nanos(longest.0 / 1000)),
            };
            self.aim = self
                .aim
                .clamp(Nanos(longest.0 / 4), Nanos(longest.0 / 4 * 3));
        }
        let room = u128::from(self.aim.since(besides).max(Nanos(longest.0 / 16 * 3)).0);
        let fitting = u128::from(pages.max(1)) * room / u128::from(moving.0.max(1));
        let fitting = u64::try_from(fitting).unwrap_or(u64::MAX);
        // A chunk that was smaller than it could be says nothing of larger ones.
        let most = match pages >= self.pages {
            true => self.pages.saturating_mul(2),
            false => self.pages,
        };
        if pages > 0 || u128::from(moving.0) > room {
            self.pages = fitting.clamp(1, most.min(MOST_PAGES));
        }
        let share = self.pace.share.0.clamp(1, Share::WHOLE.0);
        let rest = u128::from(lasted.0) * u128::from(Share::WHOLE.0 - share) / u128::from(share);
        Nanos(u64::try_from(rest).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
#[path = "settling_tests.rs"]
mod tests;
