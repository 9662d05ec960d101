//! A program made from the figures of a recorded one, for the detailed machine: as many accesses,
//! stores and instructions per cycle, and about as many misses at every size of a cache.
//!
//! It draws each access from one of several buffers, and a line of it evenly. All buffers up to one
//! are about as large as the cache in which it fits. Its weight is what the caches of this size and
//! of the next smaller one differ in. What misses every cache walks through memory line by line in
//! an order of its own, and never comes back soon.
//!
//! Deviations: buffers do not overlap, and there is no locality within one. An access needs the one
//! before as often as makes `overlap` misses under way on average.

use quell_types::rng::SplitMix;

use crate::access::{Access, LINE};
use crate::recorded::{Curve, Phase, Program};

/// The buffers. Up to each of them all together fit the cache of the same place in [`CACHES`], with
/// some room for pages that fall unevenly on the sets.
const BUFFERS: [u64; 8] = [
    12 << 10,
    160 << 10,
    460 << 10,
    720 << 10,
    1450 << 10,
    1900 << 10,
    2800 << 10,
    3700 << 10,
];
/// Sizes of caches. Beyond the last one is memory.
const CACHES: [f64; 8] = [
    32768.0,
    262_144.0,
    786_432.0,
    1_572_864.0,
    3_145_728.0,
    5_242_880.0,
    8_388_608.0,
    12_582_912.0,
];
/// So many of them fit the private caches.
const PRIVATE: usize = 2;
/// Bytes that are walked through where every cache is missed.
const FAR: u64 = 64 << 20;
/// An odd step through the far lines: every line comes once before one comes again.
const STEP: u64 = 20_011;
/// Ages, each longer than the one before by a quarter, for which a made program's misses are known.
const AGES: i32 = 90;
/// Weights are counted in parts of this.
const PARTS: u64 = 1 << 20;

/// The accesses of a phase, without end.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Up to which draw each buffer is meant; beyond the last one memory is.
    up_to: [u64; BUFFERS.len()],
    /// How many accesses to the buffers that fit the private caches store.
    stores: u64,
    /// How many lines of the other buffers and of memory are stored to, by each access.
    written: u64,
    needs: u64,
    /// Cycles per access, instructions per cycle, both in parts, and what is owed of both.
    cycles: u64,
    per_cycle: u64,
    owed_cycles: u64,
    owed_instructions: u64,
    far: u64,
    /// Lines of all buffers that were not touched yet, in order. They are walked through first,
    /// the largest buffer first, so that caches are about as full as later.
    cold: u64,
    random: SplitMix,
}

/// A number below [`PARTS`] for a line, the same every time.
fn scattered(line: u64) -> u64 {
    line.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 44
}

#[expect(clippy::cast_sign_loss, reason = "no rate is negative")]
fn parts(of: f64) -> u64 {
    (of * PARTS as f64).round() as u64
}

impl Recorded {
    /// A phase of a program.
    #[must_use]
    pub fn new(program: &Program, phase: &Phase, seed: u64) -> Self {
        let per_access = 1.0 / phase.accesses;
        let mut above = phase.accesses;
        let mut sum = 0.0;
        // Accesses beyond the private caches.
        let far = phase
            .curve
            .misses(CACHES[PRIVATE - 1])
            .min(phase.accesses / 2.0);
        let up_to = CACHES.map(|bytes| {
            let misses = phase.curve.misses(bytes).min(above);
            sum += (above - misses) * per_access;
            above = misses;
            parts(sum)
        });
        Self {
            up_to,
            stores: parts((phase.stores - phase.written * far).max(0.0) / (phase.accesses - far)),
            written: parts(phase.written),
            needs: parts(1.0 / program.overlap),
            cycles: parts(program.cpi * per_access),
            per_cycle: parts(1.0 / program.cpi.max(phase.accesses)),
            owed_cycles: 0,
            owed_instructions: 0,
            far: 0,
            cold: Self::buffers() / LINE,
            random: SplitMix::new(seed),
        }
    }

    /// What the program really does, for a model that is to be compared with it: its misses at
    /// every size, as an LRU cache has them whose lines are drawn independently. A line that is
    /// drawn every `n` accesses is there with the probability 1 - exp(-`age` / `n`), where `age` is
    /// how many accesses ago the oldest line was used (Che, Tung and Wang, IEEE JSAC 2002).
    #[must_use]
    pub fn made(phase: &Phase) -> Phase {
        let misses = CACHES.map(|bytes| phase.curve.misses(bytes));
        let mut above = phase.accesses;
        // By buffer: its lines, and the accesses to it per instruction.
        let buffers = BUFFERS.map(|bytes| bytes as f64 / LINE as f64);
        let drawn = misses.map(|misses| {
            let drawn = above - misses.min(above);
            above -= drawn;
            drawn
        });
        let point = |step: i32| {
            let age = 8.0 * 1.25f64.powi(step);
            let (mut lines, mut missed) = (above * age, above);
            for (buffer, drawn) in buffers.into_iter().zip(drawn) {
                let gone = (-age * drawn / buffer).exp();
                lines += buffer * (1.0 - gone);
                missed += drawn * gone;
            }
            (lines * LINE as f64, missed)
        };
        let sizes = (0..AGES).map(point).collect::<Vec<_>>();
        // Where nothing new is touched, the size no longer grows.
        let mut largest = 0.0;
        let grows = sizes.into_iter().filter(|(bytes, _)| {
            let more = *bytes > largest * 1.001;
            largest = if more { *bytes } else { largest };
            more
        });
        Phase {
            curve: Curve::new(phase.accesses, grows),
            ..phase.clone()
        }
    }

    /// The same, if the caches have seen its buffers before.
    #[must_use]
    pub fn warm(self) -> Self {
        Self { cold: 0, ..self }
    }

    /// Bytes of its buffers together. They come first.
    #[must_use]
    pub fn buffers() -> u64 {
        BUFFERS.iter().sum()
    }

    /// Bytes of all that it accesses.
    #[must_use]
    pub fn bytes() -> u64 {
        Self::buffers() + FAR
    }

    fn drawn(&mut self, below: u64) -> bool {
        self.random.below(PARTS) < below
    }

    pub(super) fn next_access(&mut self) -> Access {
        if let Some(line) = self.cold.checked_sub(1) {
            self.cold = line;
            return Access {
                address: line * LINE,
                instructions: Some(1),
                ..Access::default()
            };
        }
        let draw = self.random.below(PARTS);
        let buffer = self.up_to.iter().position(|up_to| draw < *up_to);
        let line = match buffer {
            Some(buffer) => self.random.below(BUFFERS[buffer] / LINE),
            None => {
                self.far = (self.far + STEP) % (FAR / LINE);
                self.far
            }
        };
        let before: u64 = BUFFERS[..buffer.unwrap_or(BUFFERS.len())].iter().sum();
        self.owed_cycles += self.cycles;
        // The access itself takes a cycle.
        let cycles = (self.owed_cycles / PARTS).saturating_sub(1);
        self.owed_cycles = self.owed_cycles.saturating_sub((cycles + 1) * PARTS);
        // As many in each cycle, so that no cycle has more than the core can issue.
        self.owed_instructions += (cycles + 1) * self.per_cycle;
        let instructions = self.owed_instructions / PARTS;
        self.owed_instructions -= instructions * PARTS;
        Access {
            address: before + line * LINE,
            // What leaves the last cache was written as often as recorded, however long it was
            // there.
            write: match buffer.is_some_and(|buffer| buffer < PRIVATE) {
                true => self.drawn(self.stores),
                false => scattered(before / LINE + line) < self.written,
            },
            // One that hits the first level is waited for in `cpi` already.
            dependent: buffer != Some(0) && self.drawn(self.needs),
            compute: u32::try_from(cycles).unwrap_or(u32::MAX),
            instructions: Some(u32::try_from(instructions).unwrap_or(u32::MAX)),
            ..Access::default()
        }
    }
}
