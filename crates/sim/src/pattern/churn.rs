//! Lines of a buffer under one operation after the other, and stores word by word.

use quell_policy::workload::{Order, Store, Touch, WORD_BYTES, line_bytes};
use quell_types::rng::SplitMix;
use quell_types::units::Bytes;

use crate::access::{Access, Effect, LINE};

/// How many lines an operation gets before the next one takes its turn, as on Linux.
const BLOCK: u64 = 16;
/// Core cycles that it takes to draw a line at random. Assumed: on Linux a draw needs the one
/// before, by a multiplication of 64 bits (five cycles on small cores) and an addition.
const DRAW: u32 = 6;

/// Blocks of lines of a buffer, at random or in order, each block under the next of some
/// operations. It is stress-ng's cache stressor, and the neighbour of the cache-level experiments
/// (`--cache-level`: a buffer as large as that level).
///
/// Deviation: a load is waited for only if the next address depends on it. So a load and a prefetch
/// are the same here.
#[derive(Clone, Debug)]
pub struct Churn {
    lines: u64,
    operations: Vec<Touch>,
    order: Order,
    done: u64,
    random: SplitMix,
}

impl Churn {
    /// Over `bytes`. Without operations it reads.
    #[must_use]
    pub fn new(bytes: u64, operations: &[Touch], order: Order, seed: u64) -> Self {
        let mut operations = operations.to_vec();
        if operations.is_empty() {
            operations.push(Touch::Read);
        }
        Self {
            lines: (bytes / LINE).max(1),
            operations,
            order,
            done: 0,
            random: SplitMix::new(seed),
        }
    }

    pub(super) fn next_access(&mut self) -> Access {
        let (line, compute) = match self.order {
            Order::Random => (self.random.below(self.lines), DRAW),
            Order::Sequential => (self.done % self.lines, 0),
        };
        let turn = usize::try_from(self.done / BLOCK).unwrap_or(0) % self.operations.len();
        self.done += 1;
        let touch = self.operations[turn];
        Access {
            address: line * LINE,
            compute,
            write: touch == Touch::Write,
            effect: match touch {
                Touch::Read | Touch::Write | Touch::Prefetch => Effect::Use,
                Touch::WriteBack => Effect::WriteBack,
                Touch::Flush => Effect::Flush,
            },
            ..Access::default()
        }
    }
}

/// Stores a word every `stride` bytes, again and again over a buffer.
///
/// Deviations:
/// - Stores past the caches are one access per line, since a write-combining buffer collects its
///   words.
/// - A line that they fill in part costs memory as much as a whole one. Real memory writes it as a
///   burst with masked bytes, unless it has error correction.
#[derive(Clone, Debug)]
pub struct Stores {
    operation: Store,
    /// How many lines a round visits. `step`: bytes from one to the next.
    round: u64,
    step: u64,
    /// How many words are stored into each line.
    words: u64,
    at: u64,
    /// Which access of the visit comes next.
    part: u64,
}

impl Stores {
    /// Over `bytes`. The stride is 8, 16, 32 or a multiple of 64 bytes, and at most the buffer.
    #[must_use]
    pub fn new(bytes: u64, stride: u64, operation: Store) -> Self {
        let step = stride.max(LINE);
        Self {
            operation,
            round: (bytes / step).max(1),
            step,
            words: line_bytes(Bytes(stride.max(1))) / WORD_BYTES,
            at: 0,
            part: 0,
        }
    }

    /// How many accesses a visit to a line has.
    #[must_use]
    pub fn accesses(&self) -> u64 {
        match self.operation {
            Store::Plain => self.words,
            Store::NonTemporal => 1,
            Store::WriteBack | Store::Flush => self.words + 1,
        }
    }

    pub(super) fn next_access(&mut self) -> Access {
        let line = self.at * self.step;
        let part = self.part;
        self.part += 1;
        if self.part == self.accesses() {
            self.part = 0;
            self.at = if self.at + 1 == self.round {
                0
            } else {
                self.at + 1
            };
        }
        let access = Access {
            address: line,
            write: true,
            ..Access::default()
        };
        match self.operation {
            Store::NonTemporal => Access {
                effect: Effect::Past,
                compute: u32::try_from(self.words - 1).unwrap_or(0),
                ..access
            },
            Store::WriteBack | Store::Flush if part == self.words => Access {
                write: false,
                effect: if self.operation == Store::Flush {
                    Effect::Flush
                } else {
                    Effect::WriteBack
                },
                ..access
            },
            _ => Access {
                address: line + part * (LINE / self.words),
                ..access
            },
        }
    }
}
