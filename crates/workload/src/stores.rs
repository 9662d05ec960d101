//! Stores word by word, one every `stride` bytes, through a buffer again and again.
//!
//! At a stride of a line (the default) a store of eight bytes moves a whole line twice, to the core
//! and back. That is the most traffic an instruction can cause, and the write stream of IsolBench's
//! `bandwidth`. At smaller strides several stores fill a line. At larger strides only every n-th
//! line is visited, so the lines share few sets of a cache.

use std::ptr;

use quell_policy::workload::{Pages, Store, line_bytes};
use quell_types::units::{Bytes, LINE_BYTES};

use crate::Error;
use crate::arch;
use crate::cacheline::{Maker, Request};
use crate::memory::{Buffer, Granted};

const LINE: usize = LINE_BYTES as usize;
const WORD: usize = size_of::<u64>();

/// Stores into `visits` lines, the first at `to` and one every `step` bytes, and makes a request
/// about each.
///
/// # Safety
/// All of them must be lines of ours.
type Visit = unsafe fn(to: *mut u8, visits: usize, step: usize, then: Option<Maker>);

/// A buffer, how it is stored into, and the progress.
#[derive(Debug)]
pub struct Stores {
    buffer: Buffer,
    visit: Visit,
    then: Option<Maker>,
    /// Bytes from one visited line to the next.
    step: usize,
    /// How many lines a round visits.
    round: usize,
    /// Program bytes stored into each line.
    bytes: u64,
    at: usize,
}

impl Stores {
    /// Takes a buffer of `size` bytes. `stride` is 8, 16, 32 or a multiple of 64 bytes.
    ///
    /// # Errors
    /// Those of [`Buffer::new`]. Also when the processor lacks the operation, or the buffer is
    /// smaller than the stride.
    pub fn new(operation: Store, stride: Bytes, size: Bytes, pages: Pages) -> Result<Self, Error> {
        let bytes = line_bytes(stride);
        let words = bytes / WORD as u64;
        let then = match operation {
            Store::Plain | Store::NonTemporal => None,
            Store::WriteBack => Some(Request::WriteBack.maker()?),
            Store::Flush => Some(Request::Flush.maker()?),
        };
        let visit = match operation {
            Store::NonTemporal => non_temporal(words).ok_or_else(|| {
                Error::refused(
                    "the operation 'non-temporal'",
                    format!(
                        "Quell knows no stores past the caches on {}",
                        std::env::consts::ARCH
                    ),
                    "use plain, or an x86-64 or Arm machine",
                )
            })?,
            _ => plain(words),
        };
        let step = usize::try_from(stride.0.max(LINE_BYTES)).unwrap_or(usize::MAX);
        let round = usize::try_from(size.0).unwrap_or(usize::MAX) / step;
        if round == 0 {
            return Err(Error::refused(
                format!("stores every {stride} in {size}"),
                "the buffer ends before the second",
                "give a smaller stride, or a larger size",
            ));
        }
        Ok(Self {
            buffer: Buffer::new(size, pages)?,
            visit,
            then,
            step,
            round,
            bytes,
            at: 0,
        })
    }

    /// Visits exactly `steps` lines.
    pub fn run(&mut self, steps: u64) {
        let mut left = usize::try_from(steps).unwrap_or(usize::MAX);
        while left > 0 {
            let visits = left.min(self.round - self.at);
            // SAFETY: `at + visits` ≤ `round`, and `round` steps lie in the buffer. No other code
            // refers to it.
            unsafe {
                let to = self.buffer.start().add(self.at * self.step);
                (self.visit)(to, visits, self.step, self.then);
            }
            self.at = (self.at + visits) % self.round;
            left -= visits;
        }
    }

    /// Program bytes of one step: the words stored into a line.
    #[must_use]
    pub fn step_bytes(&self) -> u64 {
        self.bytes
    }

    /// The pages that the buffer lies in.
    #[must_use]
    pub fn granted(&self) -> Granted {
        self.buffer.granted()
    }
}

/// The loop for stores into the caches, so many words to a line.
fn plain(words: u64) -> Visit {
    match words {
        1 => visit::<1, false>,
        2 => visit::<2, false>,
        4 => visit::<4, false>,
        _ => visit::<8, false>,
    }
}

/// The loop for stores past the caches.
fn non_temporal(words: u64) -> Option<Visit> {
    arch::STORES_PAST.then_some(match words {
        1 => visit::<1, true>,
        2 => visit::<2, true>,
        4 => visit::<4, true>,
        _ => visit::<8, true>,
    })
}

// SAFETY: as `Visit`.
unsafe fn visit<const WORDS: usize, const PAST: bool>(
    to: *mut u8,
    visits: usize,
    step: usize,
    then: Option<Maker>,
) {
    for line in 0..visits {
        // SAFETY: by the contract; the words are spread evenly over the line and aligned.
        unsafe {
            let line = to.add(line * step);
            for word in 0..WORDS {
                store::<PAST>(line.add(word * (LINE / WORDS)).cast::<u64>());
            }
            if let Some(make) = then {
                make(line);
            }
        }
    }
}

/// # Safety
/// `to` must be a word of ours. Past the caches: call `kernels::settle` before another thread reads
/// it.
#[inline(always)]
unsafe fn store<const PAST: bool>(to: *mut u64) {
    const HALF: u32 = 0x5a5a_5a5a;
    const VALUE: u64 = 0x5a5a_5a5a_5a5a_5a5a;
    // SAFETY: by the contract.
    unsafe {
        if PAST {
            arch::store_past(to, HALF);
        } else {
            ptr::write_volatile(to, VALUE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels;

    fn changed(stores: &Stores) -> Vec<usize> {
        kernels::settle();
        // SAFETY: the buffer holds `len` bytes, a multiple of the word.
        let word = |i: usize| unsafe { stores.buffer.start().cast::<u64>().add(i).read_volatile() };
        let words = 0..stores.buffer.len() / WORD;
        words
            .filter(|i| word(*i) == 0x5a5a_5a5a_5a5a_5a5a)
            .collect()
    }

    #[test]
    fn exactly_the_words_at_the_stride_are_stored_and_counted() {
        for operation in Store::ALL {
            for stride in [8, 16, 32, 64, 256] {
                let made = Stores::new(operation, Bytes(stride), Bytes(4096), Pages::Base);
                let mut stores = match made {
                    Ok(stores) => stores,
                    Err(refused) => {
                        quell_testing::skip_part(refused);
                        continue;
                    }
                };
                let visits = 4096 / stride.max(64);
                stores.run(visits - 1);
                stores.run(1);
                let expected: Vec<usize> =
                    (0..4096).step_by(stride as usize).map(|b| b / 8).collect();
                assert_eq!(changed(&stores), expected, "{operation} {stride}");
                assert_eq!(visits * stores.step_bytes(), expected.len() as u64 * 8);
                assert_eq!(stores.at, 0);
            }
        }
    }

    #[test]
    fn a_stride_beyond_the_buffer_is_refused() {
        let made = Stores::new(Store::Plain, Bytes(8192), Bytes(4096), Pages::Base);
        assert!(made.unwrap_err().to_string().contains("smaller stride"));
    }
}
