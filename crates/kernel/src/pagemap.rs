//! Where the pages of a process lie in physical memory (`/proc/PID/pagemap`), and what the kernel
//! uses a page frame for (`/proc/kpageflags`). Documentation/admin-guide/mm/pagemap.rst.
//!
//! Without CAP_SYS_ADMIN the kernel shows frame 0 for every page. In a virtual machine the frames
//! are the guest's.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use crate::error::{Error, Result};
use crate::root::{Access, Files, gone};

/// Bytes of an entry of both files.
const ENTRY: u64 = size_of::<u64>() as u64;
/// Runs of pages that are asked for at once: 6 KiB of them.
const RUNS: usize = 256;

/// `struct pm_scan_arg` (linux/fs.h).
#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// A page as `pagemap` shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Page(pub u64);

impl Page {
    /// Whether it is in memory.
    #[must_use]
    pub fn is_present(self) -> bool {
        self.0 >> 63 & 1 == 1
    }

    /// Whether it is in swap space.
    #[must_use]
    pub fn is_swapped(self) -> bool {
        self.0 >> 62 & 1 == 1
    }

    /// Whether it belongs to a file or to shared memory. If not, it is the program's own.
    #[must_use]
    pub fn is_of_file(self) -> bool {
        self.0 >> 61 & 1 == 1
    }

    /// Whether no other process maps it.
    #[must_use]
    pub fn is_exclusive(self) -> bool {
        self.0 >> 56 & 1 == 1
    }

    /// The page frame (physical address divided by the page size) of a page in memory. 0 where the
    /// kernel hides it.
    #[must_use]
    pub fn frame(self) -> u64 {
        self.0 & ((1 << 55) - 1)
    }
}

/// The `pagemap` of a process.
#[derive(Debug)]
pub struct Pagemap {
    file: File,
    path: String,
}

impl Pagemap {
    /// Opens the file of a process: a number, or `self`.
    ///
    /// # Errors
    /// [`Error::Refused`] where there is no such process or no such file, or it may not be opened.
    pub fn open(files: &dyn Files, process: &str) -> Result<Self> {
        let path = format!("/proc/{process}/pagemap");
        let there = files.exists(&format!("/proc/{process}"));
        let file = files.open(&path, Access::Read).map_err(|e| match &e {
            e if gone(e) && there => Error::refused_with(
                format!("{path} is missing: this kernel does not show where pages lie"),
                "use a kernel with CONFIG_PROC_PAGE_MONITOR",
            ),
            e if gone(e) => Error::refused(format!("there is no process {process}")),
            _ => Error::file("open", &path, None, e),
        })?;
        let none = || Error::refused(format!("{path} cannot be opened here"));
        let file = file.ok_or_else(none)?;
        Ok(Self { file, path })
    }

    /// Reads the entries of pages from the virtual page `first` (address divided by the page size)
    /// on. Fewer than there is room for where the address space ends.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn read(&self, first: u64, room: &mut [Page]) -> Result<usize> {
        let read = read_entries(&self.file, first, room, Page);
        read.map_err(|e| Error::file("read", &self.path, None, e))
    }

    /// Runs of addresses among these whose pages are in memory or in swap space, ascending. An
    /// address space can have far more pages than memory, and entries of the others need not be
    /// read. Before Linux 6.7 all addresses are returned.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn populated(&self, addresses: Range<u64>) -> Result<Vec<Range<u64>>> {
        /// `PAGEMAP_SCAN`.
        const REQUEST: libc::c_ulong = 0xc060_6610;
        const PRESENT: u64 = 1 << 3;
        const SWAPPED: u64 = 1 << 4;
        let mut regions = [Region::default(); RUNS];
        let mut found: Vec<Range<u64>> = Vec::new();
        let mut start = addresses.start;
        while start < addresses.end {
            let mut scan = Scan {
                size: size_of::<Scan>() as u64,
                start,
                end: addresses.end,
                vec: regions.as_mut_ptr().expose_provenance() as u64,
                vec_len: RUNS as u64,
                category_anyof_mask: PRESENT | SWAPPED,
                ..Scan::default()
            };
            // SAFETY: the request reads and writes one `struct pm_scan_arg`, and writes at most
            // `vec_len` regions.
            let count = unsafe { libc::ioctl(self.file.as_raw_fd(), REQUEST, &raw mut scan) };
            let Ok(count) = usize::try_from(count) else {
                let e = io::Error::last_os_error();
                match e.raw_os_error() {
                    Some(libc::EINTR) => continue,
                    Some(libc::ENOTTY) => return Ok(vec![addresses]),
                    _ if gone(&e) => return Ok(found),
                    _ => return Err(Error::file("scan", &self.path, None, e)),
                }
            };
            for region in regions.iter().take(count) {
                match found.last_mut() {
                    Some(last) if last.end == region.start => last.end = region.end,
                    _ => found.push(region.start..region.end),
                }
            }
            if scan.walk_end <= start {
                break;
            }
            start = scan.walk_end;
        }
        Ok(found)
    }
}

/// Reads entries from `first` on. Returns how many there are.
fn read_entries<T>(
    file: &File,
    first: u64,
    room: &mut [T],
    entry: impl Fn(u64) -> T,
) -> io::Result<usize> {
    let mut bytes = vec![0; room.len() * size_of::<u64>()];
    let read = read_at(file, first, &mut bytes)?;
    let entries = bytes[..read].chunks_exact(size_of::<u64>());
    let mut count = 0;
    for (place, bytes) in room.iter_mut().zip(entries) {
        *place = entry(bytes.try_into().map_or(0, u64::from_ne_bytes));
        count += 1;
    }
    Ok(count)
}

/// Reads as much as there is from an entry on. A process that ended has nothing.
fn read_at(file: &File, entry: u64, bytes: &mut [u8]) -> io::Result<usize> {
    let Some(at) = entry.checked_mul(ENTRY) else {
        return Ok(0);
    };
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], at + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if gone(&e) => break,
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// What the kernel uses a page frame for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u64);

impl Flags {
    /// Whether the frame is part of a huge page, reserved (hugetlbfs) or transparent.
    #[must_use]
    pub fn is_huge(self) -> bool {
        const HUGE: u64 = 1 << 17;
        const THP: u64 = 1 << 22;
        self.0 & (HUGE | THP) != 0
    }

    /// What the frame is used for.
    #[must_use]
    pub fn usage(self) -> Usage {
        const LRU: u64 = 1 << 5;
        const BUDDY: u64 = 1 << 10;
        const MMAP: u64 = 1 << 11;
        const ANON: u64 = 1 << 12;
        const HUGETLB: u64 = 1 << 17;
        const HWPOISON: u64 = 1 << 19;
        const NOPAGE: u64 = 1 << 20;
        const OFFLINE: u64 = 1 << 23;
        const RESERVED: u64 = 1 << 32;
        let has = |flags: u64| self.0 & flags != 0;
        match self.0 {
            _ if has(NOPAGE | HWPOISON | OFFLINE | RESERVED) => Usage::Never,
            _ if has(BUDDY) => Usage::Free,
            _ if has(ANON | HUGETLB) => Usage::Programs,
            _ if has(LRU | MMAP) => Usage::Files,
            _ => Usage::Kernel,
        }
    }

    /// Whether it is the page of zeroes that all programs share.
    #[must_use]
    pub fn is_zero_page(self) -> bool {
        self.0 >> 24 & 1 == 1
    }
}

/// What a page frame is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Usage {
    /// It is no memory, or never handed out.
    Never,
    /// Nothing: it is in the lists of free frames.
    Free,
    /// Programs' own memory.
    Programs,
    /// Pages of files, and shared memory.
    Files,
    /// The kernel's, and free frames in the lists of single CPUs, which cannot be distinguished.
    Kernel,
}

/// `/proc/kpageflags`.
#[derive(Debug)]
pub struct PageFlags(File);

impl PageFlags {
    const PATH: &str = "/proc/kpageflags";

    /// Opens the file. `None` where this kernel has none.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn open(files: &dyn Files) -> Result<Option<Self>> {
        match files.open(Self::PATH, Access::Read) {
            Ok(file) => Ok(file.map(Self)),
            Err(e) if gone(&e) => Ok(None),
            Err(e) => Err(Error::file("open", Self::PATH, None, e)),
        }
    }

    /// Reads the flags of frames from `first` on. Fewer than there is room for beyond the last one.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn read(&self, first: u64, room: &mut [Flags]) -> Result<usize> {
        let read = read_entries(&self.0, first, room, Flags);
        read.map_err(|e| Error::file("read", Self::PATH, None, e))
    }

    /// The flags of a frame; none beyond the last one.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn of(&self, frame: u64) -> Result<Flags> {
        let mut one = [Flags::default()];
        self.read(frame, &mut one)?;
        Ok(one[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Kernel;

    fn root(path: &str, entries: &[u64]) -> (tempfile::TempDir, Kernel) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        let bytes: Vec<u8> = entries.iter().flat_map(|e| e.to_ne_bytes()).collect();
        std::fs::write(file, bytes).unwrap();
        let kernel = Kernel::at(dir.path());
        (dir, kernel)
    }

    #[test]
    fn entries_are_read_as_the_kernel_documents_them() {
        let own = 1 << 63 | 1 << 56 | 1 << 55 | 0x1234;
        let (_dir, kernel) = root("proc/7/pagemap", &[0, own, 1 << 63 | 1 << 61 | 9, 1 << 62]);
        let pagemap = Pagemap::open(&kernel, "7").unwrap();
        let mut room = [Page::default(); 5];
        assert_eq!(pagemap.read(1, &mut room).unwrap(), 3);
        assert!(room[0].is_present() && room[0].is_exclusive() && !room[0].is_of_file());
        assert_eq!(room[0].frame(), 0x1234);
        assert!(room[1].is_of_file() && !room[1].is_exclusive());
        assert!(room[2].is_swapped() && !room[2].is_present());
        assert_eq!(pagemap.read(4, &mut room).unwrap(), 0);
        assert_eq!(pagemap.read(u64::MAX, &mut room).unwrap(), 0);
    }

    #[test]
    fn what_is_missing_is_named() {
        let (_dir, kernel) = root("proc/7/maps", &[]);
        let said = Pagemap::open(&kernel, "7").unwrap_err().to_string();
        assert!(said.contains("CONFIG_PROC_PAGE_MONITOR"), "{said}");
        let said = Pagemap::open(&kernel, "8").unwrap_err().to_string();
        assert_eq!(said, "there is no process 8");
        assert!(PageFlags::open(&kernel).unwrap().is_none());
    }

    #[test]
    fn flags_tell_huge_pages_and_the_page_of_zeroes() {
        let (_dir, kernel) = root("proc/kpageflags", &[1 << 22, 1 << 17, 1 << 24, 1 << 12]);
        let flags = PageFlags::open(&kernel).unwrap().unwrap();
        let of = |frame| flags.of(frame).unwrap();
        assert!(of(0).is_huge() && of(1).is_huge() && !of(3).is_huge());
        assert!(of(2).is_zero_page() && !of(3).is_zero_page());
        assert_eq!(of(4), Flags::default());
        let flags = [1 << 10, 1 << 12, 1 << 5, 1 << 7, 1 << 20, 1 << 32, 1 << 17];
        let (_dir, kernel) = root("proc/kpageflags", &flags);
        let flags = PageFlags::open(&kernel).unwrap().unwrap();
        let mut room = [Flags::default(); 9];
        assert_eq!(flags.read(0, &mut room).unwrap(), 7);
        let all = [
            Usage::Free,
            Usage::Programs,
            Usage::Files,
            Usage::Kernel,
            Usage::Never,
            Usage::Never,
            Usage::Programs,
        ];
        assert_eq!(room.map(Flags::usage)[..7], all);
    }

    /// A page that this process has just written lies somewhere, where it may see it.
    #[test]
    fn a_page_of_this_process_is_present() {
        let Ok(kernel) = Kernel::new() else {
            return quell_testing::skip("no /proc or /sys here");
        };
        let value = Box::new([1u8; 64]);
        let page = rustix::param::page_size() as u64;
        let at = std::ptr::from_ref(&*value).addr() as u64 / page;
        let Ok(pagemap) = Pagemap::open(&kernel, "self") else {
            return quell_testing::skip("no pagemap here");
        };
        let mut room = [Page::default()];
        assert_eq!(pagemap.read(at, &mut room).unwrap(), 1);
        assert!(room[0].is_present() && !room[0].is_of_file(), "{room:?}");
        assert_eq!(value[0], 1);
    }

    /// Three pages of a mapping of 4 GiB were written.
    #[test]
    fn pages_that_a_mapping_lacks_are_skipped() {
        let (_dir, kernel) = root("proc/7/pagemap", &[0; 8]);
        let other = Pagemap::open(&kernel, "7").unwrap();
        let all = other.populated(4096..8192).unwrap();
        assert_eq!((all.len(), all.first()), (1, Some(&(4096..8192))));
        let Ok(kernel) = Kernel::new() else {
            return quell_testing::skip("no /proc or /sys here");
        };
        let Ok(pagemap) = Pagemap::open(&kernel, "self") else {
            return quell_testing::skip("no pagemap here");
        };
        let (page, size) = (rustix::param::page_size(), 4usize << 30);
        // SAFETY: a new mapping at an address that the kernel chooses, unmapped below.
        let memory = unsafe {
            let memory = libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            );
            assert_ne!(memory, libc::MAP_FAILED);
            libc::madvise(memory, size, libc::MADV_NOHUGEPAGE);
            memory.cast::<u8>()
        };
        let last = size / page - 1;
        for number in [5, 6, last] {
            // SAFETY: within the mapping.
            unsafe { memory.add(number * page).write_volatile(1) };
        }
        let (start, page) = (memory.addr() as u64, page as u64);
        let whole = start..start + size as u64;
        let found = pagemap.populated(whole.clone()).unwrap();
        // SAFETY: the mapping from above, of which nothing is used any more.
        unsafe { libc::munmap(memory.cast(), size) };
        if found == [whole.clone()] {
            return quell_testing::skip("this kernel cannot scan (before Linux 6.7)");
        }
        assert_eq!(
            found,
            [
                start + 5 * page..start + 7 * page,
                whole.end - page..whole.end
            ]
        );
    }
}
