//! Lines churned through a cache: blocks of lines, each block under the next operation in turn.
//!
//! At random over a buffer as large as a cache, this displaces a neighbour's lines there as fast as
//! a core can. stress-ng's cache stressor does the same. In order, and with one operation, it is
//! the loop of `membw` for prefetches and flushes.

use std::ptr;

use quell_policy::workload::{Order, Pages, Touch};
use quell_types::units::{Bytes, LINE_BYTES};

use crate::Error;
use crate::cacheline::{Maker, Request};
use crate::latency::{SEED, lines};
use crate::memory::{Buffer, Granted};

/// Lines under one operation before the next takes its turn. Enough that the choice costs nothing,
/// and few enough that a millisecond sees all operations many times.
const BLOCK: u64 = 16;

/// An operation, with its instruction where it needs one.
#[derive(Clone, Copy, Debug)]
enum Doing {
    Read,
    Write,
    Request(Maker),
}

/// A buffer, what is done to its lines, and the progress.
#[derive(Debug)]
pub struct Churn {
    buffer: Buffer,
    lines: u32,
    doing: Vec<Doing>,
    order: Order,
    /// Steps done so far. They determine the next operation and line.
    done: u64,
    random: u64,
}

impl Churn {
    /// Takes a buffer of `size` bytes for these operations, at least one.
    ///
    /// # Errors
    /// Those of [`Buffer::new`]. Also when the processor lacks an operation, or the buffer has more
    /// than 2^32 lines.
    pub fn new(
        operations: &[Touch],
        size: Bytes,
        order: Order,
        pages: Pages,
    ) -> Result<Self, Error> {
        let doing = operations.iter().map(|touch| {
            Ok(match touch {
                Touch::Read => Doing::Read,
                Touch::Write => Doing::Write,
                Touch::Prefetch => Doing::Request(Request::Prefetch.maker()?),
                Touch::WriteBack => Doing::Request(Request::WriteBack.maker()?),
                Touch::Flush => Doing::Request(Request::Flush.maker()?),
            })
        });
        Ok(Self {
            // Done before memory is taken: a refusal costs nothing.
            doing: doing.collect::<Result<_, Error>>()?,
            lines: lines(size)?,
            buffer: Buffer::new(size, pages)?,
            order,
            done: 0,
            random: SEED,
        })
    }

    /// Handles exactly `steps` lines.
    pub fn run(&mut self, steps: u64) {
        let end = self.done + steps;
        while self.done < end {
            let left = BLOCK - self.done % BLOCK;
            let count = left.min(end - self.done);
            let turn = usize::try_from(self.done / BLOCK).unwrap_or_default();
            let Some(doing) = self.doing.get(turn % self.doing.len().max(1)).copied() else {
                return;
            };
            for _ in 0..count {
                let line = match self.order {
                    Order::Random => random(&mut self.random, self.lines),
                    Order::Sequential => {
                        u32::try_from(self.done % u64::from(self.lines)).unwrap_or_default()
                    }
                };
                self.done += 1;
                // SAFETY: `line` is below `lines`, which the buffer holds. No other code refers to
                // it.
                unsafe {
                    let line = self.buffer.start().add(line as usize * LINE_BYTES as usize);
                    touch(doing, line);
                }
            }
        }
    }

    /// Program bytes of one step: its line, whatever the operation is.
    #[must_use]
    pub fn step_bytes(&self) -> u64 {
        LINE_BYTES
    }

    /// The pages that the buffer lies in.
    #[must_use]
    pub fn granted(&self) -> Granted {
        self.buffer.granted()
    }
}

/// A number below `bound`: the upper half of a linear congruential generator modulo 2^64 (Knuth's
/// MMIX constants), scaled. It takes two multiplications. Anything more would show next to an
/// access to the first-level cache.
fn random(state: &mut u64, bound: u32) -> u32 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    u32::try_from(((*state >> 32) * u64::from(bound)) >> 32).unwrap_or_default()
}

/// # Safety
/// `line` must be a line of ours.
#[inline(always)]
unsafe fn touch(doing: Doing, line: *mut u8) {
    // SAFETY: by the contract; a line is aligned for a word.
    unsafe {
        match doing {
            Doing::Read => {
                ptr::read_volatile(line.cast::<u64>());
            }
            Doing::Write => ptr::write_volatile(line.cast::<u64>(), 0x5a5a),
            Doing::Request(make) => make(line),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(churn: &Churn) -> Vec<bool> {
        (0..churn.lines as usize)
            // SAFETY: the buffer holds `lines` lines.
            .map(|i| unsafe {
                churn
                    .buffer
                    .start()
                    .add(i * 64)
                    .cast::<u64>()
                    .read_volatile()
                    == 0x5a5a
            })
            .collect()
    }

    #[test]
    fn operations_take_turns_by_block_and_the_order_goes_round() {
        let operations = [Touch::Write, Touch::Read];
        let mut churn =
            Churn::new(&operations, Bytes(4096), Order::Sequential, Pages::Base).unwrap();
        // Uneven pieces: the turn does not depend on how a run is cut.
        churn.run(5);
        churn.run(40);
        let expected: Vec<bool> = (0..64).map(|i| i < 45 && i / 16 % 2 == 0).collect();
        assert_eq!(written(&churn), expected);
        churn.run(64);
        assert_eq!(churn.done, 109);
    }

    #[test]
    fn a_random_churn_reaches_every_line_before_long() {
        let mut churn =
            Churn::new(&[Touch::Write], Bytes(64 << 10), Order::Random, Pages::Base).unwrap();
        churn.run(512);
        let some = written(&churn).iter().filter(|w| **w).count();
        // Of 1024 lines, 512 random picks hit about 403 different ones.
        assert!((330..=480).contains(&some), "{some}");
        churn.run(30_000);
        assert!(written(&churn).iter().all(|w| *w));
    }
}
