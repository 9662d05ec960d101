//! Memory of this process that is taken and released page by page: locked, in small pages.
//! mmap(2), mlock2(2), madvise(2).
//!
//! - The mapping is locked with `MLOCK_ONFAULT`: a page gets its frame when it is touched, and
//!   keeps it. `MADV_DONTNEED_LOCKED` (Linux 5.18) releases single pages. The mapping stays one.
//!   Each page that is locked alone would be a mapping, and a process may have some 65,000.
//! - Each page gets a content of its own, which is not zero. Pages of zeroes of a huge page become
//!   the page of zeroes that all programs share when it is split. Equal pages may be merged.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, MlockFlags, ProtFlags};

use crate::error::{Error, Result};

/// Addresses for pages of this process, of which none has a frame at first.
#[derive(Debug)]
pub struct Frames {
    at: NonNull<libc::c_void>,
    pages: usize,
    page: usize,
}

impl Frames {
    /// Addresses for so many pages.
    ///
    /// # Errors
    /// [`Error::Refused`] where so much cannot be mapped or locked, or single pages cannot be
    /// released.
    pub fn reserve(pages: usize) -> Result<Self> {
        let page = rustix::param::page_size();
        let length = pages.checked_mul(page).filter(|length| *length > 0);
        let length = length.ok_or_else(|| Error::refused(format!("{pages} pages")))?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping at an address that the kernel chooses.
        let at =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), length, protection, flags) };
        let at = at.map_err(|e| {
            Error::refused_with(
                format!("{pages} pages cannot be mapped: {e}"),
                "hold less, or let the kernel promise more memory (vm.overcommit_memory)",
            )
        })?;
        let none = || Error::refused("the kernel mapped address zero");
        let frames = Self {
            at: NonNull::new(at).ok_or_else(none)?,
            pages,
            page,
        };
        // A kernel without huge pages does not know the word.
        let _ = frames.advise(0..pages, Advice::LinuxNoHugepage);
        let _ = frames.advise(0..pages, Advice::LinuxDontDump);
        // SAFETY: the range is the mapping just made.
        let locked = unsafe { rustix::mm::mlock_with(at, length, MlockFlags::ONFAULT) };
        locked.map_err(|e| {
            Error::refused_with(
                format!("{pages} pages cannot be locked in memory: {e}"),
                "give CAP_IPC_LOCK, or raise the limit of locked memory (ulimit -l)",
            )
        })?;
        frames.release(0..1).map_err(|e| {
            Error::refused_with(
                format!("single pages of locked memory cannot be released: {e}"),
                "use Linux 5.18 or newer",
            )
        })?;
        Ok(frames)
    }

    /// The number of the first page of the mapping: address divided by the size of a page.
    #[must_use]
    pub fn first_page(&self) -> u64 {
        self.at.addr().get() as u64 / self.page as u64
    }

    /// Gives pages a frame, and a content of their own. Pages beyond the end are left out.
    pub fn touch(&mut self, pages: Range<usize>) {
        for number in pages.start..pages.end.min(self.pages) {
            let content = number as u64 | 1 << 63;
            // SAFETY: the page is within the mapping, which this value owns and nothing else refers
            // to. Its first bytes are aligned for a word.
            unsafe {
                let word = self.at.as_ptr().byte_add(number * self.page).cast::<u64>();
                word.write_volatile(content);
            }
        }
    }

    /// Releases the frames of pages. What is beyond the end is left out.
    ///
    /// # Errors
    /// The kernel's: EINVAL before Linux 5.18.
    pub fn release(&self, pages: Range<usize>) -> io::Result<()> {
        self.advise(pages, Advice::LinuxDontneedLocked)
    }

    fn advise(&self, pages: Range<usize>, advice: Advice) -> io::Result<()> {
        let end = pages.end.min(self.pages);
        let Some(count) = end.checked_sub(pages.start).filter(|count| *count > 0) else {
            return Ok(());
        };
        // SAFETY: the range lies within the mapping, which this value owns. Nothing refers to the
        // content of its pages.
        unsafe {
            let from = self.at.as_ptr().byte_add(pages.start * self.page);
            rustix::mm::madvise(from, count * self.page, advice)?;
        }
        Ok(())
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        // SAFETY: mapped by `reserve` with this address and length. Nothing refers to it.
        let _ = unsafe { rustix::mm::munmap(self.at.as_ptr(), self.pages * self.page) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pagemap::{Page, Pagemap};
    use crate::root::Kernel;

    /// Which of the pages have a frame.
    fn present(frames: &Frames, count: usize) -> Option<Vec<bool>> {
        let kernel = Kernel::new().ok()?;
        let pagemap = Pagemap::open(&kernel, "self").ok()?;
        let mut room = vec![Page::default(); count];
        assert_eq!(pagemap.read(frames.first_page(), &mut room).unwrap(), count);
        assert!(room.iter().all(|page| !page.is_swapped()));
        Some(room.iter().map(|page| page.is_present()).collect())
    }

    #[test]
    fn pages_have_a_frame_from_their_touch_to_their_release() {
        let mut frames = match Frames::reserve(8) {
            Ok(frames) => frames,
            Err(e) => return quell_testing::skip(e),
        };
        let Some(none) = present(&frames, 8) else {
            return quell_testing::skip("no pagemap here");
        };
        assert_eq!(none, [false; 8]);
        frames.touch(2..6);
        let four = [false, false, true, true, true, true, false, false];
        assert_eq!(present(&frames, 8).unwrap(), four);
        frames.release(3..5).unwrap();
        let two = [false, false, true, false, false, true, false, false];
        assert_eq!(present(&frames, 8).unwrap(), two);
        frames.touch(7..100);
        frames.release(0..100).unwrap();
        assert_eq!(present(&frames, 8).unwrap(), none);
        assert!(Frames::reserve(0).is_err() && Frames::reserve(usize::MAX).is_err());
    }
}
