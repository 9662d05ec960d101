//! What programs do to memory: the generators, and the subjects of the experiments, as streams of accesses.
//!
//! Each pattern is a function of its parameters and seed. A pattern knows no time: where a program computes, or waits for its next frame,
//! the access says so ([`Access::compute`], [`Access::begins`]) and the machine makes time of it.

use quell_core::workload::Banks;

use crate::random::Random;

mod frames;
pub use frames::{Frames, Stage};

/// Bytes per step: one access per line, as the published benchmarks count.
pub const LINE: u64 = 64;

/// One access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Virtual address.
    pub address: u64,
    /// A write.
    pub write: bool,
    /// The next access needs what this one reads.
    pub dependent: bool,
    /// Core cycles that the program computes before it.
    pub compute: u32,
    /// It begins a unit of work (a frame), not before the unit is due: see [`Pattern::period`].
    pub begins: bool,
}

/// What becomes of units of work that were due while an earlier one was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// Only the newest that is due is begun, the others never: a picture that nobody wants any more.
    Skip,
    /// They are begun back to back until none is due any more.
    CatchUp,
}

/// A stream of accesses without end.
#[derive(Clone, Debug)]
pub enum Pattern {
    /// Walks a linked list: one outstanding access. `next[line]` is the line after `line`.
    Latency {
        /// The list, by line.
        next: Vec<u32>,
        /// Where it is.
        at: u32,
    },
    /// Line after line without dependence, as many outstanding as the core allows, round and round.
    Bandwidth {
        /// Lines in all.
        lines: u64,
        /// Where it is.
        at: u64,
        /// Writes instead of reading.
        write: bool,
    },
    /// See [`ParallelLists`].
    ParallelLists(ParallelLists),
    /// See [`Churn`].
    Churn(Churn),
    /// See [`Stores`].
    Stores(Stores),
    /// See [`Lattice`].
    Lattice(Lattice),
    /// See [`Frames`].
    Frames(Frames),
}

impl Pattern {
    /// A list through all lines of `bytes` in random order.
    #[must_use]
    pub fn latency(bytes: u64, seed: u64) -> Self {
        let lines = u32::try_from((bytes / LINE).max(1)).unwrap_or(u32::MAX);
        let lines: Vec<u32> = (0..lines).collect();
        let next = cycle(&lines, &mut Random::new(seed));
        Self::Latency { next, at: 0 }
    }

    /// A list through all lines of `bytes` in order.
    #[must_use]
    pub fn latency_in_order(bytes: u64) -> Self {
        let lines = u32::try_from((bytes / LINE).max(1)).unwrap_or(u32::MAX);
        let next = (1..lines).chain([0]).collect();
        Self::Latency { next, at: 0 }
    }

    /// Over `bytes`, again and again.
    #[must_use]
    pub fn bandwidth(bytes: u64, write: bool) -> Self {
        Self::Bandwidth {
            lines: (bytes / LINE).max(1),
            at: 0,
            write,
        }
    }

    /// What lies between the beginnings of two units of work, in picoseconds; without, one access is as good as another.
    #[must_use]
    pub fn period(&self) -> Option<u64> {
        match self {
            Self::Frames(frames) => Some(frames.period()),
            _ => None,
        }
    }

    /// What becomes of units that come late.
    #[must_use]
    pub fn late(&self) -> Late {
        match self {
            Self::Frames(_) => Late::Skip,
            _ => Late::CatchUp,
        }
    }

    /// The next access.
    #[inline]
    pub fn next_access(&mut self) -> Access {
        match self {
            Self::Latency { next, at } => {
                let address = u64::from(*at) * LINE;
                *at = next[*at as usize];
                Access {
                    address,
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
            Self::ParallelLists(lists) => lists.next_access(),
            Self::Churn(churn) => churn.next_access(),
            Self::Stores(stores) => stores.next_access(),
            Self::Lattice(lattice) => lattice.next_access(),
            Self::Frames(frames) => frames.next_access(),
        }
    }
}

/// One cycle through all of `lines` in random order (Sattolo's algorithm): of each, the line after it.
fn cycle(lines: &[u32], random: &mut Random) -> Vec<u32> {
    let mut next = lines.to_vec();
    for i in (1..next.len()).rev() {
        let other = usize::try_from(random.below(i as u64)).unwrap_or(0);
        next.swap(i, other);
    }
    next
}

/// Independent lists walked in turn: as many outstanding as there are lists. With a choice of banks only lines in those.
///
/// Deviation: a list's step waits for its own last one only; here an access is marked dependent when it completes a round of all
/// lists, so that the slowest of a round holds up the others, too.
#[derive(Clone, Debug)]
pub struct ParallelLists {
    next: Vec<u32>,
    heads: Vec<u32>,
    turn: usize,
}

/// No list to walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{lists} lists over {lines} lines: 1 to 64 lists of at least one line each are possible; take more memory or more banks"
)]
pub struct TooFew {
    /// Lists wanted.
    pub lists: usize,
    /// Lines there are.
    pub lines: usize,
}

impl ParallelLists {
    /// `lists` lists, 1 to 64, that share `bytes` evenly.
    ///
    /// # Errors
    /// Where there are fewer lines than lists.
    pub fn new(bytes: u64, lists: usize, seed: u64) -> Result<Self, TooFew> {
        Self::of(
            (0..u32::try_from(bytes / LINE).unwrap_or(u32::MAX)).collect(),
            lists,
            seed,
        )
    }

    /// The same over those lines of `bytes` that lie in the banks of `choice`, with `physical` telling where virtual addresses lie.
    ///
    /// # Errors
    /// Where there are fewer such lines than lists.
    pub fn in_banks(
        bytes: u64,
        lists: usize,
        seed: u64,
        choice: &Banks,
        physical: impl Fn(u64) -> Option<u64>,
    ) -> Result<Self, TooFew> {
        let all = 0..u32::try_from(bytes / LINE).unwrap_or(u32::MAX);
        let inside =
            |&line: &u32| physical(u64::from(line) * LINE).is_some_and(|at| choice.wants(at));
        Self::of(all.filter(inside).collect(), lists, seed)
    }

    fn of(lines: Vec<u32>, lists: usize, seed: u64) -> Result<Self, TooFew> {
        if !(1..=64).contains(&lists) || lines.len() < lists {
            let lines = lines.len();
            return Err(TooFew { lists, lines });
        }
        let mut random = Random::new(seed);
        let size = lines.last().map_or(0, |&last| last as usize + 1);
        let mut next = vec![0; size];
        let mut heads = Vec::with_capacity(lists);
        let each = lines.len() / lists;
        for part in lines.chunks_exact(each).take(lists) {
            heads.push(part[0]);
            for (&line, after) in part.iter().zip(cycle(part, &mut random)) {
                next[line as usize] = after;
            }
        }
        Ok(Self {
            next,
            heads,
            turn: 0,
        })
    }

    fn next_access(&mut self) -> Access {
        let head = &mut self.heads[self.turn];
        let address = u64::from(*head) * LINE;
        *head = self.next[*head as usize];
        self.turn = (self.turn + 1) % self.heads.len();
        Access {
            address,
            dependent: self.turn == 0,
            ..Access::default()
        }
    }
}

/// A cache-sized buffer read and written at random: stress-ng's cache stressor and the neighbour of the cache-level experiments
/// (`--cache-level`: a buffer as large as that level).
#[derive(Clone, Debug)]
pub struct Churn {
    lines: u64,
    /// Accesses of 256 that write.
    writes: u64,
    random: Random,
}

impl Churn {
    /// Over `bytes`, `writes` of 256 accesses writing.
    #[must_use]
    pub fn new(bytes: u64, writes: u8, seed: u64) -> Self {
        Self {
            lines: (bytes / LINE).max(1),
            writes: writes.into(),
            random: Random::new(seed),
        }
    }

    fn next_access(&mut self) -> Access {
        let address = self.random.below(self.lines) * LINE;
        Access {
            address,
            write: self.random.below(256) < self.writes,
            ..Access::default()
        }
    }
}

/// Stores a word every `stride` bytes, again and again over a buffer.
#[derive(Clone, Debug)]
pub struct Stores {
    bytes: u64,
    stride: u64,
    at: u64,
}

impl Stores {
    /// Over `bytes`, every `stride` (at least one).
    #[must_use]
    pub fn new(bytes: u64, stride: u64) -> Self {
        Self {
            bytes: bytes.max(LINE),
            stride: stride.max(1),
            at: 0,
        }
    }

    fn next_access(&mut self) -> Access {
        let address = self.at;
        self.at += self.stride;
        if self.at >= self.bytes {
            self.at = 0;
        }
        Access {
            address,
            write: true,
            ..Access::default()
        }
    }
}

/// A lattice-Boltzmann stream like SPEC's lbm: two grids of 19 distributions per cell; a sweep reads one grid's cells in order and writes each
/// distribution to the neighbour in its direction in the other, then the grids change places. So 19 streams of reads and 19 of writes
/// go side by side: write-heavy, steady, larger than any cache.
///
/// Deviations: one access per line and stream instead of one per distribution; `compute` cycles per cell are a parameter; obstacles,
/// which SPEC's input has, are left out.
#[derive(Clone, Debug)]
pub struct Lattice {
    /// Lines of one distribution's array.
    lines: u64,
    line: u64,
    /// Of the 38 accesses of a step.
    step: u64,
    /// The grid that is read.
    from: u64,
    compute: u32,
}

/// Distributions of a cell (D3Q19).
const DISTRIBUTIONS: u64 = 19;

impl Lattice {
    /// Two grids in `bytes` together; `compute` cycles for the eight cells of a line of each distribution.
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
        // A write goes to a neighbour: up to a plane away, which shifts the stream and changes nothing else.
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
