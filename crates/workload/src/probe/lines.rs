//! The lines that the probe writes, pushes out, flushes and walks.
//!
//! - They are written, because caches may drop clean lines on the way out.
//! - They are far from each other, because prefetchers fetch neighbours.
//! - Every page is visited just before a walk, so that address translation costs all three walks
//!   the same.
//! - Pushing out is fast, because on a busy machine a line remains in a shared cache for a
//!   millisecond or less. Lines at different offsets in a page never share a set of the
//!   second-level cache, wherever the pages lie in memory. A virtual machine cannot know that. So
//!   only the few sampled offsets have to be written in enough other pages.

use std::ptr;

use quell_policy::workload::{Order, Pages};
use quell_types::stats::median;
use quell_types::units::Bytes;

use crate::arch::{self, Request};
use crate::list::cycle;
use crate::memory::Buffer;
use crate::{Error, clock};

const PAGE: usize = 4096;
/// How many offsets in a page are sampled. `GAP`: bytes between them, more than a pair of lines.
const OFFSETS: usize = 8;
const GAP: usize = PAGE / OFFSETS;
/// How many pages have sampled lines.
const PAGES: usize = 64;
/// Bytes of those pages together.
pub(super) const SAMPLED_BYTES: u64 = (PAGES * PAGE) as u64;
const SAMPLES: usize = PAGES * OFFSETS;
/// Each walk is timed in so many parts.
const PARTS: usize = 8;

/// The offset in the buffer of a sampled line, numbered from 0 to [`SAMPLES`].
const fn sample(i: usize) -> usize {
    PAGE * (i % PAGES) + GAP * (i / PAGES)
}

/// A buffer with a list through its sampled lines. They lie in the first [`PAGES`] pages. Writing
/// all other pages pushes them out.
pub(super) struct Lines {
    buffer: Buffer,
    next: Vec<u32>,
}

// SAFETY: two threads write and read the buffer, by volatile accesses through raw pointers and
// never at the same time. Each touches it only between the phase that allows it and the phase that
// it opens then, with release and acquire.
unsafe impl Sync for Lines {}

impl Lines {
    pub(super) fn new(size: Bytes, seed: u64) -> Result<Self, Error> {
        let lines = Self {
            // Huge pages where possible: fewer translations, less noise. Base pages do as well.
            buffer: Buffer::new(size, Pages::Huge)?,
            next: cycle(SAMPLES as u32, Order::Random, seed),
        };
        // From here on the sampled lines always hold a whole list.
        lines.write_and_push_out();
        Ok(lines)
    }

    fn start(&self) -> *mut u8 {
        self.buffer.start()
    }

    /// Writes the list's lines, then the lines at the same offsets in all other pages.
    pub(super) fn write_and_push_out(&self) {
        let start = self.start();
        for (i, next) in self.next.iter().enumerate() {
            // SAFETY: sampled lines lie inside the first `PAGES` pages of the buffer, at multiples
            // of a line.
            unsafe {
                let to = start.add(sample(*next as usize));
                start.add(sample(i)).cast::<*mut u8>().write_volatile(to);
            }
        }
        for offset in (0..PAGE).step_by(GAP) {
            for page in (PAGES * PAGE..self.buffer.len()).step_by(PAGE) {
                // SAFETY: inside a page of the buffer.
                unsafe { start.add(page + offset).write_volatile(2) };
            }
        }
    }

    /// Nanoseconds per access of a walk through all sampled lines: the median of its parts.
    pub(super) fn walk(&self) -> f64 {
        for page in (0..PAGES * PAGE).step_by(PAGE) {
            // SAFETY: in a page with sampled lines, between two of them.
            unsafe { ptr::read_volatile(self.start().add(page + GAP / 2)) };
        }
        let mut parts = [0.0; PARTS];
        let mut at = self.start().cast::<*mut u8>();
        for part in &mut parts {
            let begin = clock::now();
            for _ in 0..SAMPLES / PARTS {
                // SAFETY: `at` is the list's first node or was read from one, and each points to
                // another.
                at = unsafe { ptr::read_volatile(at) }.cast();
            }
            // The clock must not be read before the last load is back.
            std::hint::black_box(at);
            *part = (clock::now() - begin) as f64 / (SAMPLES / PARTS) as f64;
        }
        median(&parts).unwrap_or(f64::NAN)
    }

    /// Flushes all sampled lines from all caches, where [`flush_is_known`].
    pub(super) fn flush(&self) {
        let Some(flush) = arch::request(Request::Flush) else {
            return;
        };
        for i in 0..SAMPLES {
            // SAFETY: a sampled line lies inside the buffer, which is mapped and ours.
            unsafe { flush(self.start().add(sample(i))) };
        }
        arch::fence();
    }
}

/// Whether an ordinary program can flush a line from all caches here.
pub(super) fn flush_is_known() -> bool {
    arch::request(Request::Flush).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampled_lines_are_distinct_and_leave_their_neighbours_alone() {
        let mut places: Vec<usize> = (0..SAMPLES).map(sample).collect();
        places.sort_unstable();
        assert!(places.windows(2).all(|w| w[1] - w[0] >= GAP));
        assert!(places[SAMPLES - 1] < PAGES * PAGE);
    }
}
