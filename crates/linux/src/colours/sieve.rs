//! Frames of wanted colours, found among those that the kernel hands out.
//!
//! Method: memory is touched page by page, and the frame of each page is read. Pages in wrong
//! frames are kept until the end: released at once, their frames come straight back. A page in a
//! right frame is released right before the kernel allocates a page on the same CPU, which gets
//! that frame. It is one of the colour that the program's memory has least of: memory that has more
//! pages of one colour than of another has too few ways there.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use quell_control::settling::RightFrames;
use quell_kernel::error::{Error, Result};
use quell_kernel::pagemap::{Page, Pagemap};
use quell_kernel::relocate::Frames;
use quell_kernel::root::Files;
use quell_types::units::Bytes;

/// Pages that are touched by one call.
const AT_ONCE: usize = 64;
/// The kernel notes the newest pages of a CPU in a list of this length, and does not release them
/// meanwhile.
const NEWEST: usize = 31;
/// `MADV_POPULATE_WRITE` (Linux 5.14): touches pages.
const TOUCH: libc::c_int = 23;

/// How many pages have a colour, for each that any page has.
pub(super) type PagesOf = BTreeMap<usize, u64>;

/// Pages in right frames by their colour, each in the order in which they were touched.
#[derive(Default)]
struct Right {
    pages: BTreeMap<usize, VecDeque<usize>>,
    /// Pages of each colour that the program's memory has, with those that were taken for it.
    had: PagesOf,
}

impl Right {
    fn push(&mut self, colour: usize, page: usize) {
        self.pages.entry(colour).or_default().push_back(page);
    }

    /// How many there are before a page.
    fn before(&self, end: usize) -> usize {
        let of = |own: &VecDeque<usize>| own.partition_point(|page| *page < end);
        self.pages.values().map(of).sum()
    }

    /// Takes the first page of the colour of which there are least, among those that have a page
    /// before `end`.
    fn take(&mut self, end: usize) -> Option<usize> {
        let has = |own: &VecDeque<usize>| own.front().is_some_and(|page| *page < end);
        let there = self.pages.iter().filter(|(_, own)| has(own));
        let had = |colour| self.had.get(colour).copied().unwrap_or(0);
        let next = *there.min_by_key(|(colour, _)| had(colour))?.0;
        *self.had.entry(next).or_default() += 1;
        self.pages.get_mut(&next)?.pop_front()
    }
}

/// Memory of this process whose frames are looked through.
pub(super) struct Sieve {
    memory: *mut libc::c_void,
    /// Bytes of a page.
    page: usize,
    /// Pages that there is room for.
    room: usize,
    /// Pages that were touched.
    touched: usize,
    right: Right,
    wanted: RightFrames,
    pagemap: Pagemap,
    /// Refers to this process, to release many pages by one call.
    own: Option<OwnedFd>,
}

impl Sieve {
    /// Room for at most `most` of memory. None of it is used yet.
    pub(super) fn new(
        files: &dyn Files,
        wanted: RightFrames,
        page: Bytes,
        most: Bytes,
    ) -> Result<Self> {
        let refused = |e| Error::refused(format!("memory to find frames in cannot be mapped: {e}"));
        let size = |bytes: Bytes| usize::try_from(bytes.0).unwrap_or(usize::MAX);
        let page = size(page).max(1);
        let room = (size(most) / page).max(AT_ONCE);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                room.saturating_mul(page),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(refused(io::Error::last_os_error()));
        }
        let sieve = Self {
            memory,
            page,
            room,
            touched: 0,
            right: Right::default(),
            wanted,
            pagemap: Pagemap::open(files, "self")?,
            own: rustix::process::pidfd_open(
                rustix::process::getpid(),
                rustix::process::PidfdFlags::empty(),
            )
            .ok(),
        };
        // Large pages have fewer colours. Where the kernel has none, there is nothing to refuse.
        let _ = sieve.advise(0, room, libc::MADV_NOHUGEPAGE);
        Ok(sieve)
    }

    fn advise(&self, first: usize, pages: usize, advice: libc::c_int) -> io::Result<()> {
        debug_assert!(first + pages <= self.room);
        // SAFETY: within the mapping, which nothing refers to.
        let done = unsafe {
            let at = self.memory.byte_add(first * self.page);
            libc::madvise(at, pages * self.page, advice)
        };
        match done {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Releases pages in this order: by one call, or by one each where the kernel releases none by
    /// process_madvise(2) (before Linux 6.13).
    fn release(&self, pages: &[usize]) {
        let part = |page: &usize| libc::iovec {
            iov_base: self.memory.wrapping_byte_add(page * self.page),
            iov_len: self.page,
        };
        let parts: Vec<libc::iovec> = pages.iter().map(part).collect();
        let released = self.own.as_ref().map_or(-1, |own| {
            // SAFETY: pages of the mapping, which nothing refers to.
            unsafe {
                libc::syscall(
                    libc::SYS_process_madvise,
                    own.as_raw_fd(),
                    parts.as_ptr(),
                    parts.len(),
                    libc::MADV_DONTNEED,
                    0,
                )
            }
        });
        if usize::try_from(released).ok() != Some(pages.len() * self.page) {
            for page in pages {
                let _ = self.advise(*page, 1, libc::MADV_DONTNEED);
            }
        }
    }

    /// What the program's memory has of each colour.
    pub(super) fn deal(&mut self, had: PagesOf) {
        self.right.had = had;
    }

    /// Looks for right frames until there are so many, or no room is left. Returns how many there
    /// are.
    pub(super) fn fill(&mut self, wanted: usize) -> Result<usize> {
        let refused = |e| Error::refused(format!("no memory to find frames in: {e}"));
        while self.right.before(self.old()) < wanted && self.touched < self.room {
            let pages = AT_ONCE.min(self.room - self.touched);
            self.advise(self.touched, pages, TOUCH).map_err(refused)?;
            let mut found = [Page::default(); AT_ONCE];
            let first = self.memory.addr() / self.page + self.touched;
            let read = self.pagemap.read(first as u64, &mut found[..pages])?;
            for (n, page) in found[..read].iter().enumerate() {
                let there = page.is_present() && page.frame() != 0;
                if let Some(colour) = self.wanted.colour(page.frame()).filter(|_| there) {
                    self.right.push(colour, self.touched + n);
                }
            }
            self.touched += pages;
            // The program may want this CPU.
            std::thread::yield_now();
        }
        Ok(self.right.before(self.old()))
    }

    /// The kernel releases pages before this one, if it is told to.
    fn old(&self) -> usize {
        self.touched.saturating_sub(NEWEST)
    }

    /// Memory that is held.
    pub(super) fn held(&self) -> Bytes {
        Bytes((self.touched as u64).saturating_mul(self.page as u64))
    }
}

impl Frames for Sieve {
    fn offer(&mut self, pages: u64) {
        // The frame that is released last is allocated first.
        let old = self.old();
        let next: Vec<usize> = (0..pages).map_while(|_| self.right.take(old)).collect();
        self.release(&next);
    }
}

impl Drop for Sieve {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length. Nothing refers to it.
        unsafe { libc::munmap(self.memory, self.room * self.page) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_dealt_colour_by_colour() {
        let mut right = Right::default();
        // As runs of frames come: ten of one colour, then ten of the next.
        for page in 0..30 {
            right.push([2, 5, 7][page / 10], page);
        }
        assert_eq!((right.before(30), right.before(12)), (30, 12));
        let dealt = |right: &mut Right, end| -> Vec<usize> {
            (0..6).map_while(|_| right.take(end)).collect()
        };
        assert_eq!(dealt(&mut right, 30), [0, 10, 20, 1, 11, 21]);
        // Pages that are too new to be released are left for later. They are made up for.
        assert_eq!(dealt(&mut right, 14), [2, 12, 3, 13, 4, 5]);
        assert_eq!(dealt(&mut right, 30), [22, 23, 14, 24, 15, 25]);
        // The program has more of two colours.
        right.had = [(2, 3), (7, 2)].into();
        assert_eq!(dealt(&mut right, 30), [16, 17, 18, 26, 6, 19]);
        assert_eq!(right.before(30), 6);
    }
}
