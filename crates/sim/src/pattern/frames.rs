//! The two subjects of the video call (Gondi, Biswas, Yun): bursts of memory traffic, thirty a
//! second.
//!
//! Method:
//! - The study gives demand alone as misses per millisecond over a second. Mean and peak are
//!   published.
//! - A frame moves mean ÷ frame rate bytes at the peak rate, line after line of a buffer too large
//!   for the caches.
//! - It asks for as few lines at a time as reach that peak on the idle machine (its latency × the
//!   peak). It waits for them and computes for what is left of their share of time.
//! - So alone it draws what was published. Next to other programs it waits for memory as much as a
//!   program of that demand can.
//! - Sizes of frames vary by a fifth, evenly, from the seed.
//! - The display's frame is two bursts merged, as the study saw it. So it has two parts, and the
//!   second one's buffer follows the first one's.
//!
//! Deviations:
//! - The shape within a burst is flat: the published figure is a picture, not numbers.
//! - A quarter of the lines is written (assumed).
//! - There is no work within the caches' size in addition to the traffic.

use quell_types::rng::SplitMix;

use crate::access::{Access, LINE};

/// Picoseconds of a second.
const SECOND: u64 = 1_000_000_000_000;
/// How many frames begin per second.
const FPS: u64 = 30;

/// One of the two subjects of the call.
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

    fn bursts(self) -> u64 {
        match self {
            Self::Call => 1,
            Self::Display => 2,
        }
    }
}

/// The stream of accesses of a subject.
#[derive(Clone, Debug)]
pub struct Frames {
    stage: Stage,
    /// How many lines each burst's buffer has.
    buffer: u64,
    /// How many lines are asked for at a time.
    together: u64,
    /// Core cycles of computing per line, in 2^-16.
    pace: u64,
    /// The part of the current pace that is not yet a whole cycle.
    rest: u64,
    left: u64,
    frame: u64,
    size: u64,
    at: u64,
    random: SplitMix,
}

impl Frames {
    /// Over `bytes` of memory, on a core with a clock period of `clock` picoseconds where an idle
    /// memory answers after `latency`.
    #[must_use]
    pub fn new(stage: Stage, bytes: u64, (clock, latency): (u64, u64), seed: u64) -> Self {
        let (_, peak) = stage.demand();
        // Picoseconds that a line may take at the peak rate.
        let share = LINE * SECOND / peak;
        let together = latency.div_ceil(share).max(1);
        let left = u128::from(share.saturating_sub(latency / together)) << 16;
        Self {
            stage,
            buffer: (bytes / LINE / stage.bursts()).max(1),
            together,
            pace: u64::try_from(left / u128::from(clock.max(1))).unwrap_or(u64::MAX),
            rest: 0,
            left: 0,
            frame: 0,
            size: 0,
            at: 0,
            random: SplitMix::new(seed),
        }
    }

    /// Picoseconds between the beginnings of two frames.
    #[must_use]
    pub fn period(&self) -> u64 {
        SECOND / FPS
    }

    pub(super) fn next_access(&mut self) -> Access {
        let begins = self.left == 0;
        if begins {
            let (mean, _) = self.stage.demand();
            let lines = mean / FPS / LINE;
            self.size = lines * 4 / 5 + self.random.below(lines * 2 / 5 + 1);
            self.left = self.size;
            self.frame += 1;
        }
        // Which burst of the frame this line belongs to.
        let burst = (self.size - self.left) * self.stage.bursts() / self.size;
        self.left -= 1;
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
            begins,
            ..Access::default()
        }
    }
}
