//! Locked pages whose frames are known: what address maps are recovered on.

use std::io;

use quell_kernel::node_memory;
use quell_policy::workload::Pages;
use quell_types::address::Ranges;
use quell_types::address::gf2::Space;
use quell_types::address::recovery::Pool;
use quell_types::units::Bytes;

use crate::memory::Buffer;
use crate::{Error, pagemap, procfs};

/// One of so many pages may move while its lines are timed.
const MOVED: usize = 100;

/// In so many parts of one size.
const PARTS: usize = 8;
/// So many pages tell where a part lies.
const SAMPLE: usize = 64;

/// A part that was taken, and the addresses of its pages.
type Taken = (Buffer, Vec<u64>);

/// Pages of the kernel's size, locked in memory.
pub(super) struct Locked {
    /// Each of `part` bytes.
    parts: Vec<Buffer>,
    part: u64,
    frames: Vec<u64>,
    what: &'static str,
}

impl Locked {
    /// So many bytes, a multiple of 2 MiB. `what` they are for, in errors.
    ///
    /// # Errors
    /// When physical addresses are hidden, or memory cannot be had or locked.
    pub fn new(size: u64, what: &'static str) -> Result<Self, Error> {
        Self::take(size, what, &mut |_| Ok(true))
    }

    /// The same, of pages that lie far apart. The kernel gives pages that are close to each other.
    /// So more are taken, `most` bytes in all, until some differ in all bits of the addresses of
    /// `memory`, whichever part is left out. What is not needed is returned. `go_on` is called
    /// after each part.
    ///
    /// # Errors
    /// As [`Self::new`], and those of `go_on`.
    pub fn spread(
        size: u64,
        memory: &Space,
        most: u64,
        what: &'static str,
        go_on: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let parts = usize::try_from(most / size.max(1)).unwrap_or(usize::MAX);
        let parts = parts.saturating_mul(PARTS);
        let shift = rustix::param::page_size().trailing_zeros();
        Self::take(size, what, &mut |taken| {
            let reaches = |without: usize| {
                let left = chosen(taken.len()).filter(|n| *n != without);
                let some = left.flat_map(|n| sample(&taken[n].1));
                Pool::new(some.collect(), shift).missing(memory).rank() == 0
            };
            go_on()?;
            Ok(taken.len() >= parts || chosen(taken.len()).all(reaches))
        })
    }

    /// Takes parts until they are enough, at least as many as are needed. Those that are kept lie
    /// evenly among them.
    fn take(
        size: u64,
        what: &'static str,
        enough: &mut dyn FnMut(&[Taken]) -> Result<bool, Error>,
    ) -> Result<Self, Error> {
        let part = size / PARTS as u64;
        let mut taken: Vec<Taken> = Vec::new();
        while taken.len() < PARTS || !enough(&taken)? {
            let next = Buffer::new(Bytes(part), Pages::Base)?;
            let frames = frames(&next, what)?;
            taken.push((next, frames));
        }
        let of = taken.len();
        let kept = (0..)
            .zip(taken)
            .filter(|(n, _)| chosen(of).any(|c| c == *n));
        let (parts, frames): (Vec<_>, Vec<_>) = kept.map(|(_, taken)| taken).unzip();
        for part in &parts {
            // SAFETY: the range is our own buffer.
            if unsafe { libc::mlock(part.start().cast(), part.len()) } != 0 {
                return Err(Error::refused(
                    what,
                    format!(
                        "{} cannot be locked in memory: {}",
                        Bytes(size),
                        io::Error::last_os_error()
                    ),
                    "run as root, or raise the limit (ulimit -l)",
                ));
            }
        }
        Ok(Self {
            parts,
            part,
            frames: frames.concat(),
            what,
        })
    }

    fn now(&self) -> Result<Vec<u64>, Error> {
        let all: Result<Vec<_>, _> = (self.parts.iter())
            .map(|part| frames(part, self.what))
            .collect();
        all.map(|all| all.concat())
    }

    /// Its pieces of 2^`shift` bytes, which are no larger than pages.
    pub fn pool(&self, shift: u32) -> Pool {
        Pool::new(self.pieces(shift), shift)
    }

    /// The address of a byte, by its offset among all parts.
    pub fn at(&self, offset: u64) -> *mut u8 {
        let place = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let part = &self.parts[place(offset / self.part)];
        part.start().wrapping_add(place(offset % self.part))
    }

    /// The physical addresses of the pieces.
    fn pieces(&self, shift: u32) -> Vec<u64> {
        let page = rustix::param::page_size() as u64;
        let of = |frame: &u64| (*frame..frame + page).step_by(1 << shift);
        self.frames.iter().flat_map(of).collect()
    }

    /// Refuses what was timed where the kernel moved too many pages since.
    ///
    /// # Errors
    /// When it did, or the frames cannot be read.
    pub fn stayed(&self) -> Result<(), Error> {
        let now = self.now()?;
        let moved = self.frames.iter().zip(&now).filter(|(a, b)| a != b).count();
        if moved > now.len() / MOVED {
            return Err(Error::refused(
                self.what,
                format!("the kernel moved {moved} of {} pages meanwhile", now.len()),
                "try again while the machine does nothing else",
            ));
        }
        Ok(())
    }
}

/// The physical addresses of the pages of a buffer.
fn frames(buffer: &Buffer, what: &str) -> Result<Vec<u64>, Error> {
    let page = rustix::param::page_size();
    let (start, pages) = (buffer.start().addr(), buffer.len() / page);
    pagemap::addresses(&procfs::live(), start, pages, page, what)
}

/// Some of these addresses. The step is odd, so that the lower bits differ, too.
fn sample(frames: &[u64]) -> impl Iterator<Item = u64> {
    frames.iter().copied().step_by((frames.len() / SAMPLE) | 1)
}

/// Which of so many parts are kept: the first, the last, and evenly between.
fn chosen(of: usize) -> impl Iterator<Item = usize> {
    (0..PARTS).map(move |n| n * (of - 1) / (PARTS - 1))
}

/// The differences of all addresses of this machine's memory.
pub(super) fn differences() -> Result<Space, Error> {
    let page = rustix::param::page_size() as u64;
    let nodes = node_memory::ranges(&procfs::live(), page)?;
    let all = nodes.values().flat_map(Ranges::iter).cloned();
    Ok(Ranges::new(all).differences())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_are_kept_lie_evenly() {
        let of = |n| chosen(n).collect::<Vec<_>>();
        assert_eq!(of(8), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(of(9), [0, 1, 2, 3, 4, 5, 6, 8]);
        assert_eq!(of(29), [0, 4, 8, 12, 16, 20, 24, 28]);
    }

    #[test]
    fn a_pool_that_is_spread_takes_no_more_than_it_may() {
        const WHAT: &str = "a test";
        const SIZE: u64 = 4 << 20;
        let Ok(memory) = differences() else { return };
        let found = Locked::spread(SIZE, &memory, 8 << 20, WHAT, &mut || Ok(()));
        let Ok(pool) = found else {
            quell_testing::skip("physical addresses are hidden");
            return;
        };
        let mut frames = pool.pieces(12);
        assert_eq!(frames.len() as u64, SIZE >> 12);
        frames.sort_unstable();
        frames.dedup();
        assert_eq!(frames.len() as u64, SIZE >> 12);
        for offset in (0..SIZE).step_by(4096) {
            // SAFETY: a byte of the pool.
            unsafe { pool.at(offset).write_volatile(1) };
        }
        pool.stayed().unwrap();
    }
}
