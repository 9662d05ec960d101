//! The buffers that the generators work on: private anonymous memory with every page touched, in
//! base pages or in transparent huge pages as asked (madvise(2),
//! Documentation/admin-guide/mm/transhuge.rst).
//!
//! An inaccessible page lies on each side. So the kernel neither merges the mapping with a
//! neighbour nor counts a neighbour's pages with it. Memory that Quell has locked in a cache for
//! this program is the beginning of its first buffer in base pages.

use std::ptr::{self, NonNull};

use quell_kernel::vm;
use quell_policy::workload::Pages;
use quell_types::units::Bytes;
use serde::{Deserialize, Serialize};

use crate::{Error, procfs};

const HUGE: usize = 2 << 20;
const BASE: usize = 4096;

/// The pages that a buffer really got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "pages")]
pub enum Granted {
    /// Base pages, as asked.
    #[serde(rename = "4KiB")]
    Base,
    /// Huge pages for the whole buffer, as asked.
    #[serde(rename = "2MiB")]
    Huge,
    /// Nothing was asked for: what it lies in is whatever the kernel gives, and may change.
    #[serde(rename = "given")]
    Given,
    /// Huge pages were asked for, but part of the buffer has base pages.
    #[serde(rename = "mixed")]
    Mixed {
        /// How much of the buffer lies in huge pages.
        huge: Bytes,
    },
}

impl Granted {
    /// A message for the user where the request was not fully granted.
    #[must_use]
    pub fn complaint(&self) -> Option<String> {
        match self {
            Self::Mixed { huge } => Some(format!(
                "2 MiB pages were not granted: {huge} of the buffer lies in them \
                 (see /sys/kernel/mm/transparent_hugepage/enabled, or memory is fragmented)"
            )),
            Self::Base | Self::Huge | Self::Given => None,
        }
    }
}

/// Whether a program that asks for 2 MiB pages gets them. It is tried with one page.
///
/// # Errors
/// Why there are none, and what to do.
pub fn huge_pages() -> Result<(), Error> {
    Buffer::new(Bytes(2 << 20), Pages::Huge)?.granted().whole()
}

impl Granted {
    /// Refuses a buffer that was not fully granted.
    pub(crate) fn whole(self) -> Result<(), Error> {
        match self {
            Self::Base | Self::Huge | Self::Given => Ok(()),
            Self::Mixed { huge } => Err(Error::refused(
                "memory in 2 MiB pages",
                format!(
                    "the kernel gave {huge} of it: transparent huge pages are off, or memory is fragmented"
                ),
                "as root: `echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`, and \
                 `echo 1 > /proc/sys/vm/compact_memory`",
            )),
        }
    }
}

/// A touched buffer, aligned to 2 MiB and freed on drop.
#[derive(Debug)]
pub struct Buffer {
    map: NonNull<u8>,
    map_len: usize,
    start: NonNull<u8>,
    len: usize,
    granted: Granted,
}

// SAFETY: the buffer owns its mapping alone; moving it to another thread moves that ownership.
unsafe impl Send for Buffer {}

/// A range of addresses that nothing uses, without memory. `None`: the kernel refuses, and `errno`
/// says why.
fn reserved(length: usize) -> Option<NonNull<u8>> {
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches nothing that
    // exists.
    let map = unsafe {
        libc::mmap(
            ptr::null_mut(),
            length,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    let map = Some(map).filter(|map| *map != libc::MAP_FAILED)?;
    NonNull::new(map.cast::<u8>())
}

impl Buffer {
    /// Takes and touches `size` bytes, rounded up to a page of 4 KiB. For huge pages the mapping is
    /// rounded up to 2 MiB, so that the end lies in one, too.
    ///
    /// # Errors
    /// When more is asked for than the machine has available, or the kernel refuses.
    pub fn new(size: Bytes, pages: Pages) -> Result<Self, Error> {
        let what = format!("taking a buffer of {size}");
        // Not what its cgroup's limit leaves: to take more than that is what some are there for.
        if let Some(available) = vm::memory(&procfs::live())?.map(|memory| memory.available)
            && size.0 > available.0 / 8 * 7
        {
            return Err(Error::refused(
                what,
                format!(
                    "{} of memory are available, of which an eighth is left alone",
                    available
                ),
                "ask for a smaller size",
            ));
        }
        let too_large =
            || Error::refused(what.clone(), "it exceeds the address space", "ask for less");
        let len = usize::try_from(size.0)
            .ok()
            .and_then(|len| len.max(1).checked_next_multiple_of(BASE))
            .ok_or_else(too_large)?;
        let unit = match pages {
            Pages::Base => BASE,
            // So that the end may lie in a huge page, too.
            Pages::Huge | Pages::Given => HUGE,
        };
        let used = len.checked_next_multiple_of(unit).ok_or_else(too_large)?;
        let map_len = used.checked_add(2 * HUGE).ok_or_else(too_large)?;

        let map = reserved(map_len).ok_or_else(|| Error::last(what.clone()))?;
        // At least a page remains on each side: the start is the first 2 MiB boundary past the
        // first page, and the end leaves 2 MiB less.
        let skip = HUGE - map.as_ptr().addr() % HUGE;
        // SAFETY: `skip` ≤ 2 MiB and `used` + 2 · 2 MiB is the mapping's length.
        let start = unsafe { map.add(skip) };
        let mut buffer = Self {
            map,
            map_len,
            start,
            len,
            granted: Granted::Base,
        };
        // SAFETY: the range lies inside our own mapping and nothing refers to it yet.
        if unsafe {
            libc::mprotect(
                start.as_ptr().cast(),
                used,
                libc::PROT_READ | libc::PROT_WRITE,
            )
        } != 0
        {
            return Err(Error::last(what));
        }
        // A kernel without transparent huge pages answers EINVAL. Then there are base pages only,
        // and the check below reports that where huge ones were asked for.
        let advice = match pages {
            Pages::Base => Some(libc::MADV_NOHUGEPAGE),
            Pages::Huge => Some(libc::MADV_HUGEPAGE),
            Pages::Given => None,
        };
        if let Some(advice) = advice {
            // SAFETY: the range lies inside our own mapping.
            let _ = unsafe { libc::madvise(start.as_ptr().cast(), used, advice) };
        }
        if pages == Pages::Base {
            // SAFETY: aligned to 2 MiB, and the beginning of `used` bytes of our own that nothing
            // refers to yet.
            unsafe { quell_client::locked_over(start, used) }.map_err(|e| {
                Error::refused(what.clone(), e.to_string(), "leave reserve.cache out")
            })?;
        }
        // This takes half the time of a fault for each page, which counts where the program starts
        // under a limit of its CPU time. Linux 5.14 added it; pages that it leaves are touched
        // below.
        // SAFETY: the range lies inside our own mapping and nothing refers to it yet.
        let _ = unsafe { libc::madvise(start.as_ptr().cast(), used, libc::MADV_POPULATE_WRITE) };
        for offset in (0..used).step_by(BASE) {
            // SAFETY: `offset` lies below `used`, which is mapped for writing.
            unsafe { start.as_ptr().add(offset).write_volatile(1) };
        }
        buffer.granted = match pages {
            Pages::Base => Granted::Base,
            Pages::Given => Granted::Given,
            Pages::Huge => buffer.huge(used as u64)?,
        };
        Ok(buffer)
    }

    /// How much of the first `used` bytes lies in huge pages.
    fn huge(&self, used: u64) -> Result<Granted, Error> {
        let start = self.start.as_ptr().addr() as u64;
        let huge = vm::huge_pages(&procfs::live(), start)?.unwrap_or_default();
        if huge.0 >= used {
            return Ok(Granted::Huge);
        }
        Ok(Granted::Mixed {
            huge: huge.min(Bytes(self.len as u64)),
        })
    }

    /// The address of its first byte, aligned to 2 MiB.
    #[must_use]
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The contents of the buffer.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the range is mapped, touched, and written only through this buffer.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The contents of the buffer, mutable.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the buffer is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Its length in bytes, a multiple of 4096.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The pages that the buffer lies in.
    #[must_use]
    pub fn granted(&self) -> Granted {
        self.granted
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone, and no reference into it can exist: `start` returns
        // raw pointers.
        unsafe { libc::munmap(self.map.as_ptr().cast(), self.map_len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_pages_means_no_huge_page_anywhere() {
        let buffer = Buffer::new(Bytes(8 << 20), Pages::Base).unwrap();
        assert_eq!(buffer.len(), 8 << 20);
        assert_eq!(buffer.granted(), Granted::Base);
        let huge = vm::huge_pages(&procfs::live(), buffer.start().addr() as u64).unwrap();
        assert_eq!(huge, Some(Bytes(0)));
    }

    #[test]
    fn huge_pages_are_given_or_the_lack_is_said() {
        let buffer = Buffer::new(Bytes(3 << 20), Pages::Huge).unwrap();
        assert_eq!(buffer.len(), 3 << 20);
        let huge = vm::huge_pages(&procfs::live(), buffer.start().addr() as u64)
            .unwrap()
            .unwrap();
        match buffer.granted() {
            Granted::Huge => assert_eq!(huge, Bytes(4 << 20)),
            Granted::Mixed { huge } => {
                assert!(huge.0 < 4 << 20);
                assert!(
                    buffer
                        .granted()
                        .complaint()
                        .unwrap()
                        .contains("not granted")
                );
            }
            Granted::Base | Granted::Given => panic!("huge pages were asked for"),
        }
    }

    #[test]
    fn more_than_the_machine_has_is_refused_before_it_is_taken() {
        let text = Buffer::new(Bytes(1 << 60), Pages::Base)
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("available") && text.contains("smaller"),
            "{text}"
        );
    }
}
