//! What programs do to memory: the generators, and the subjects of the experiments, as streams of
//! accesses.
//!
//! Each pattern is a function of its parameters and seed. A pattern knows no time. Where a program
//! computes, or waits for its next frame, the access says so ([`Access::compute`],
//! [`Access::begins`]). The machine makes time of it.

use quell_types::rng::SplitMix;

use crate::access::{Access, LINE};

mod churn;
mod frames;
mod lists;
mod pair;
mod recorded;
mod replay;
mod stream;
mod task;
mod walk;
pub use churn::{Churn, Stores};
pub use frames::{FPS, Frames, PASSES, Piece, Stage, Times};
pub use lists::{ParallelLists, TooFew};
pub use pair::Pair;
pub use recorded::Recorded;
pub use replay::{Replay, Unusable};
pub use stream::Stream;
pub use task::Task;
pub use walk::Walk;

/// What becomes of units of work that were due while an earlier one was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// Only the newest due unit begins. The older ones never do, as with pictures that are out of
    /// date.
    Skip,
    /// They begin back to back until none is due any more.
    CatchUp,
}

/// A stream of accesses without end.
#[derive(Clone, Debug)]
pub enum Pattern {
    /// Walks a linked list with one outstanding access. `next[line]` is the line after `line`.
    Latency {
        /// For each line, the line after it.
        next: Vec<u32>,
        /// The line that is accessed next.
        at: u32,
        /// Whether it also stores into each line. The next access needs the line all the same.
        write: bool,
    },
    /// Goes over the lines in order without dependence, again and again. The core has as many
    /// accesses outstanding as it can.
    Bandwidth {
        /// How many lines the buffer has.
        lines: u64,
        /// The line that is accessed next.
        at: u64,
        /// Whether it writes instead of reading.
        write: bool,
    },
    /// Stores past the caches, or copies.
    Stream(Stream),
    /// Two lines, read in turn and flushed.
    Pair(Pair),
    /// Lines in a certain order.
    Walk(Walk),
    /// Independent random lists, walked in turn.
    ParallelLists(ParallelLists),
    /// Blocks of lines under one operation after the other.
    Churn(Churn),
    /// Stores word by word with a stride.
    Stores(Stores),
    /// A lattice-Boltzmann stream of 38 arrays.
    Lattice(Lattice),
    /// The traffic of a video call's stage.
    Frames(Frames),
    /// Jobs of a real-time task.
    Task(Task),
    /// A recorded program, again and again.
    Replay(Replay),
    /// A program made from the figures of a recorded one.
    Recorded(Recorded),
}

impl Pattern {
    /// A list through all lines of `bytes` in random order.
    #[must_use]
    pub fn latency(bytes: u64, seed: u64) -> Self {
        let lines = u32::try_from((bytes / LINE).max(1)).unwrap_or(u32::MAX);
        let lines: Vec<u32> = (0..lines).collect();
        let next = cycle(&lines, &mut SplitMix::new(seed));
        Self::Latency {
            next,
            at: 0,
            write: false,
        }
    }

    /// A list through all lines of `bytes` in ascending order.
    #[must_use]
    pub fn latency_in_order(bytes: u64) -> Self {
        let lines = u32::try_from((bytes / LINE).max(1)).unwrap_or(u32::MAX);
        let next = (1..lines).chain([0]).collect();
        Self::Latency {
            next,
            at: 0,
            write: false,
        }
    }

    /// The same pattern, which also stores into each line it visits. Only lists can; other patterns
    /// are unchanged.
    #[must_use]
    pub fn storing(mut self) -> Self {
        if let Self::Latency { write, .. } = &mut self {
            *write = true;
        }
        self
    }

    /// Goes over `bytes` in order, again and again.
    #[must_use]
    pub fn bandwidth(bytes: u64, write: bool) -> Self {
        Self::Bandwidth {
            lines: (bytes / LINE).max(1),
            at: 0,
            write,
        }
    }

    /// Picoseconds between the beginnings of two units of work. `None`: all accesses are alike.
    #[must_use]
    pub fn period(&self) -> Option<u64> {
        match self {
            Self::Task(task) => Some(task.period()),
            _ => None,
        }
    }

    /// When the first unit of work is due, and each period later, in picoseconds since booting.
    /// `None`: when the program comes to it.
    #[must_use]
    pub fn first(&self) -> Option<u64> {
        match self {
            Self::Task(task) => task.first(),
            _ => None,
        }
    }

    /// What becomes of units that come late.
    #[must_use]
    pub fn late(&self) -> Late {
        match self {
            Self::Task(_) => Late::Skip,
            _ => Late::CatchUp,
        }
    }

    /// The next access. A pattern never ends.
    #[inline]
    pub fn next_access(&mut self) -> Access {
        match self {
            Self::Latency { next, at, write } => {
                let address = u64::from(*at) * LINE;
                *at = next[*at as usize];
                Access {
                    address,
                    write: *write,
                    dependent: true,
                    ..Access::default()
                }
            }
            Self::Bandwidth { lines, at, write } => {
                let address = *at * LINE;
                *at = if *at + 1 == *lines { 0 } else { *at + 1 };
                Access {
                    address,
                    write: *write,
                    ..Access::default()
                }
            }
            Self::Stream(stream) => stream.next_access(),
            Self::Pair(pair) => pair.next_access(),
            Self::Walk(walk) => walk.next_access(),
            Self::ParallelLists(lists) => lists.next_access(),
            Self::Churn(churn) => churn.next_access(),
            Self::Stores(stores) => stores.next_access(),
            Self::Lattice(lattice) => lattice.next_access(),
            Self::Frames(frames) => frames.next_access(),
            Self::Task(task) => task.next_access(),
            Self::Replay(replay) => replay.next_access(),
            Self::Recorded(recorded) => recorded.next_access(),
        }
    }
}

/// One cycle through all of `lines` in random order (Sattolo's algorithm): for each, the line after
/// it.
fn cycle(lines: &[u32], random: &mut SplitMix) -> Vec<u32> {
    let mut next = lines.to_vec();
    for i in (1..next.len()).rev() {
        let other = usize::try_from(random.below(i as u64)).unwrap_or(0);
        next.swap(i, other);
    }
    next
}

/// A lattice-Boltzmann stream like SPEC's lbm: two grids of 19 distributions per cell.
///
/// A sweep reads one grid's cells in order. It writes each distribution to the neighbour in its
/// direction in the other grid. Then the grids change places. So 19 streams of reads and 19 of
/// writes run at the same time: write-heavy, steady, larger than any cache.
///
/// Deviations: one access per line and stream instead of one per distribution. `compute` cycles per
/// cell are a parameter. Obstacles, which SPEC's input has, are left out.
#[derive(Clone, Debug)]
pub struct Lattice {
    /// Lines of one distribution's array.
    lines: u64,
    line: u64,
    /// Which of the 38 accesses of a step comes next.
    step: u64,
    /// The grid that is read: 0 or 1.
    from: u64,
    compute: u32,
}

/// Distributions of a cell (D3Q19).
const DISTRIBUTIONS: u64 = 19;

impl Lattice {
    /// Two grids in `bytes` together. `compute`: cycles for the eight cells of a line of each
    /// distribution.
    #[must_use]
    pub fn new(bytes: u64, compute: u32) -> Self {
        Self {
            lines: (bytes / LINE / DISTRIBUTIONS / 2).max(1),
            line: 0,
            step: 0,
            from: 0,
            compute,
        }
    }

    fn next_access(&mut self) -> Access {
        let write = self.step >= DISTRIBUTIONS;
        let distribution = self.step % DISTRIBUTIONS;
        let grid = if write { 1 - self.from } else { self.from };
        // A write goes to a neighbour, up to a plane away. That only shifts the stream.
        let line = if write {
            (self.line + distribution * 7) % self.lines
        } else {
            self.line
        };
        let address = ((grid * DISTRIBUTIONS + distribution) * self.lines + line) * LINE;
        let compute = if self.step == 0 { self.compute } else { 0 };
        self.step += 1;
        if self.step == 2 * DISTRIBUTIONS {
            self.step = 0;
            self.line += 1;
            if self.line == self.lines {
                self.line = 0;
                self.from = 1 - self.from;
            }
        }
        Access {
            address,
            write,
            compute,
            ..Access::default()
        }
    }
}
