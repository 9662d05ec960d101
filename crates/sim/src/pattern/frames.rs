//! The memory traffic of the video call's two stages (Gondi, Biswas, Yun).
//!
//! Method:
//! - A stage is given pieces of work ([`Piece`]) by the loop that it stands for. It knows neither
//!   time nor frames.
//! - The study gives demand alone as misses per millisecond over a second. Mean and peak are
//!   published. A frame's traffic goes at the peak, line after line of a buffer too large for the
//!   caches.
//! - It asks for as few lines at a time as reach that peak on the idle machine (its latency × the
//!   peak). It waits for them and computes for what is left of their share of time.
//! - So alone it draws what was published. Next to other programs it waits for memory as much as a
//!   program of that demand can.
//! - The call also goes over a working set, [`PASSES`] times per frame, with one access at a time.
//!   Alone the set stays in the last-level cache. Packets are copied from and to it.
//! - The display's frame is two bursts merged, as the study saw it. So it has two parts, and the
//!   second one's buffer follows the first one's.
//!
//! Deviations:
//! - The shape within a burst is flat: the published figure is a picture, not numbers.
//! - A quarter of the lines is written (assumed).
//! - The display reads the frames that it is handed from memory of its own.

use std::collections::VecDeque;

use crate::access::{Access, LINE};

/// Picoseconds of a second.
const SECOND: u64 = 1_000_000_000_000;
/// How many frames begin per second.
pub const FPS: u64 = 30;
/// How often a frame's traffic goes over the working set. Assumed: with one pass per frame, the
/// frame's 11 MB of traffic would push the set out of an 8 MB cache even alone.
pub const PASSES: u64 = 2;

/// One of the two stages of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// `webrtc`: mean 342 MB/s, peak 1247 MB/s.
    Call,
    /// `xserver`: mean 365 MB/s, peak 2865 MB/s.
    Display,
}

impl Stage {
    /// Mean and peak demand alone in bytes per second, as published.
    #[must_use]
    pub fn demand(self) -> (u64, u64) {
        match self {
            Self::Call => (342_000_000, 1_247_000_000),
            Self::Display => (365_000_000, 2_865_000_000),
        }
    }

    /// Lines of a frame's traffic in the mean.
    #[must_use]
    pub fn lines(self) -> u64 {
        self.demand().0 / FPS / LINE
    }

    fn bursts(self) -> u64 {
        match self {
            Self::Call => 1,
            Self::Display => 2,
        }
    }
}

/// What a stage does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// So many lines of a frame's traffic, with their share of the working set.
    Frame(u64),
    /// Copies so many lines of the working set, after so many core cycles of computing.
    Copy {
        /// How many lines.
        lines: u64,
        /// Core cycles before the first line.
        compute: u32,
    },
}

/// The times of a core in picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// A clock period.
    pub clock: u64,
    /// After this time a line in the last-level cache is there.
    pub cached: u64,
    /// After this time a line in an idle memory is there.
    pub memory: u64,
}

/// A piece under way.
#[derive(Clone, Copy, Debug)]
struct Underway {
    piece: Piece,
    /// How many lines of the piece, and of the working set, are done.
    done: u64,
    cached: u64,
}

/// The stream of accesses of a stage.
#[derive(Clone, Debug)]
pub struct Frames {
    stage: Stage,
    /// How many lines each burst's buffer has.
    buffer: u64,
    /// How many lines the working set has. It follows the buffers.
    set: u64,
    /// How many lines are asked for at a time.
    together: u64,
    /// Core cycles of computing per line, in 2^-16.
    pace: u64,
    /// The part of the current pace that is not yet a whole cycle.
    rest: u64,
    /// The next line of the buffer, and of the working set.
    at: u64,
    set_at: u64,
    pieces: VecDeque<Underway>,
}

impl Frames {
    /// Over `bytes` of buffers, and `set` bytes of working set behind them.
    #[must_use]
    pub fn new(stage: Stage, bytes: u64, set: u64, times: Times) -> Self {
        let (_, peak) = stage.demand();
        let set = set / LINE;
        // Picoseconds that a line may take at the peak rate, without its share of the set.
        let cached = times.cached * set * PASSES / stage.lines();
        let share = (LINE * SECOND / peak).saturating_sub(cached).max(1);
        let together = times.memory.div_ceil(share).max(1);
        let left = u128::from(share.saturating_sub(times.memory / together)) << 16;
        Self {
            stage,
            buffer: (bytes / LINE / stage.bursts()).max(1),
            set,
            together,
            pace: u64::try_from(left / u128::from(times.clock.max(1))).unwrap_or(u64::MAX),
            rest: 0,
            at: 0,
            set_at: 0,
            pieces: VecDeque::new(),
        }
    }

    /// How many lines are asked for at a time.
    #[must_use]
    pub fn together(&self) -> u64 {
        self.together
    }

    /// Adds a piece of work. Returns how many accesses it has.
    pub fn add(&mut self, piece: Piece) -> u64 {
        self.pieces.push_back(Underway {
            piece,
            done: 0,
            cached: 0,
        });
        match piece {
            Piece::Frame(lines) => lines + self.share(lines),
            Piece::Copy { lines, .. } => lines,
        }
    }

    /// How many lines of the working set go with so many lines of traffic.
    fn share(&self, lines: u64) -> u64 {
        lines * self.set * PASSES / self.stage.lines()
    }

    pub(super) fn next_access(&mut self) -> Access {
        let Some(mut under) = self.pieces.pop_front() else {
            // The loop gives no more accesses than its pieces have.
            return Access::default();
        };
        let (access, over) = match under.piece {
            Piece::Frame(lines) => {
                // A line of the set comes as soon as it is due.
                let access = if under.cached < self.share(under.done) {
                    under.cached += 1;
                    self.of_set(true, 0)
                } else {
                    under.done += 1;
                    self.of_frame(under.done - 1, lines)
                };
                let over = under.done == lines && under.cached == self.share(lines);
                (access, over)
            }
            Piece::Copy { lines, compute } => {
                under.done += 1;
                let compute = if under.done == 1 { compute } else { 0 };
                (self.of_set(false, compute), under.done >= lines)
            }
        };
        if !over {
            self.pieces.push_front(under);
        }
        access
    }

    /// The next line of the working set. Without one, the first line of the buffer.
    fn of_set(&mut self, dependent: bool, compute: u32) -> Access {
        let before = if self.set == 0 {
            0
        } else {
            self.buffer * self.stage.bursts()
        };
        let line = before + self.set_at;
        self.set_at = if self.set_at + 1 >= self.set {
            0
        } else {
            self.set_at + 1
        };
        Access {
            address: line * LINE,
            dependent,
            compute,
            ..Access::default()
        }
    }

    /// Line `n` of `lines` of a frame's traffic.
    fn of_frame(&mut self, n: u64, lines: u64) -> Access {
        // Which burst of the frame this line belongs to.
        let burst = n * self.stage.bursts() / lines;
        let line = burst * self.buffer + self.at % self.buffer;
        self.at += 1;
        self.rest += self.pace;
        let compute = u32::try_from(self.rest >> 16).unwrap_or(u32::MAX);
        self.rest &= 0xffff;
        Access {
            address: line * LINE,
            write: self.at.is_multiple_of(4),
            dependent: self.at.is_multiple_of(self.together),
            // The access itself takes a cycle.
            compute: compute.saturating_sub(1),
            ..Access::default()
        }
    }
}
