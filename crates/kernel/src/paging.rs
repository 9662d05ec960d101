//! The pages that the memory of a process lies in. proc_pid_smaps(5), process_madvise(2),
//! Documentation/admin-guide/mm/{pagemap,transhuge}.rst.
//!
//! - `AnonHugePages` is what of a mapping lies in transparent huge pages.
//! - `MADV_COLLAPSE` (Linux 6.1) moves memory of another process into one, whatever
//!   `transparent_hugepage/enabled` says. It is refused where the program has asked for small pages
//!   (`MADV_NOHUGEPAGE`, PR_SET_THP_DISABLE).

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};

use quell_types::units::Bytes;

use crate::error::{Error, Result};
use crate::maps::{self, Backing};
use crate::pagemap::{Page, PageFlags, Pagemap};
use crate::procfs;
use crate::root::Files;
use crate::topology;
use crate::trace::Thread;
use crate::vm;

/// The first kernel that moves memory of another process into huge pages.
const COLLAPSE_SINCE: (u32, u32) = (6, 1);
/// The size of a transparent huge page. Missing on kernels without.
const LARGE: &str = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size";

/// What of the memory is locked, in the `status` of a process or thread.
const LOCKED: &str = "VmLck:";

/// One mapping of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// Its addresses.
    pub range: Range<u64>,
    /// Whether it is private memory of the program that may be read and written, and no file's.
    pub anonymous: bool,
    /// Whether it may be accessed at all.
    pub accessible: bool,
    /// What of it is in memory.
    pub resident: Bytes,
    /// What of it lies in huge pages.
    pub huge: Bytes,
    /// Whether the kernel gives it no huge pages: the program has said so, or it is a device's.
    pub never_huge: bool,
    /// Whether the program may execute it.
    pub executable: bool,
    /// Whether it is locked.
    pub locked: bool,
}

impl Mapping {
    /// The addresses of the whole blocks of `size` bytes in it.
    fn blocks(&self, size: u64) -> impl Iterator<Item = Range<u64>> + use<> {
        let end = self.range.end;
        let first = self.range.start.checked_next_multiple_of(size);
        let starts = std::iter::successors(first, move |at| at.checked_add(size));
        starts
            .map(move |at| at..at.saturating_add(size))
            .take_while(move |block| block.end <= end)
    }
}

/// Parses the text of a `smaps`. `path` is for the error.
///
/// # Errors
/// [`Error::Malformed`].
pub fn mappings(path: &str, text: &str) -> Result<Vec<Mapping>> {
    let mut all: Vec<Mapping> = Vec::new();
    for line in text.lines() {
        if let Some(mapping) = begins(line) {
            all.push(mapping);
            continue;
        }
        let Some(last) = all.last_mut() else {
            continue;
        };
        let size = |key: &str| {
            vm::amount(line, key)
                .ok_or_else(|| Error::malformed(path, line, format!("a line `{key} N kB`")))
        };
        if line.starts_with("Rss:") {
            last.resident = size("Rss:")?;
        } else if line.starts_with("AnonHugePages:") {
            last.huge = size("AnonHugePages:")?;
        } else if let Some(flags) = line.strip_prefix("VmFlags:") {
            let has = |all: &[&str]| flags.split_ascii_whitespace().any(|f| all.contains(&f));
            last.never_huge = has(&["nh", "io", "pf", "ht"]);
            last.locked = has(&["lo"]);
        }
    }
    Ok(all)
}

/// The line that a mapping begins with, as in `maps`.
fn begins(line: &str) -> Option<Mapping> {
    let begun = maps::Mapping::parse(line)?;
    let no_file = !matches!(begun.backing, Backing::File | Backing::Kernel);
    Some(Mapping {
        anonymous: begun.writable && !begun.shared && no_file,
        accessible: begun.accessible,
        executable: begun.executable,
        range: begun.range,
        ..Mapping::default()
    })
}

/// The mappings of a process. Empty where it has ended.
///
/// # Errors
/// [`Error::File`], [`Error::Malformed`].
pub fn mappings_of(files: &dyn Files, pid: u32) -> Result<Vec<Mapping>> {
    let path = format!("/proc/{pid}/smaps");
    let text = files.optional(&path)?.unwrap_or_default();
    mappings(&path, &text)
}

/// The memory of one process by what it lies in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Anonymous memory that is in memory.
    pub anonymous: Bytes,
    /// What of it lies in huge pages.
    pub huge: Bytes,
    /// Locked mappings.
    pub locked: Bytes,
}

/// What the memory of a process lies in. `None` where it has ended. The kernel walks through all of
/// its page tables for that: about 3 ms per GiB.
///
/// # Errors
/// [`Error::File`].
pub fn sizes(files: &dyn Files, pid: u32) -> Result<Option<Sizes>> {
    let Some(locked) = locked(files, pid)? else {
        return Ok(None);
    };
    let Some(text) = files.optional(&format!("/proc/{pid}/smaps_rollup"))? else {
        return Ok(None);
    };
    let of = |key| vm::amount(&text, key).unwrap_or_default();
    Ok(Some(Sizes {
        anonymous: of("Anonymous:"),
        huge: of("AnonHugePages:"),
        locked,
    }))
}

/// How much of a process's mappings is locked. `None` where it has ended, or has no memory.
///
/// # Errors
/// [`Error::File`].
pub fn locked(files: &dyn Files, pid: u32) -> Result<Option<Bytes>> {
    of_status(files, &format!("/proc/{pid}/status"), LOCKED)
}

/// The same as one thread shows it. The first thread shows no memory once it has ended.
///
/// # Errors
/// [`Error::File`].
pub fn locked_by(files: &dyn Files, thread: Thread) -> Result<Option<Bytes>> {
    let status = procfs::thread_status_path(thread.of.pid, thread.tid);
    of_status(files, &status, LOCKED)
}

/// How much memory without a file a process has in memory. Far cheaper to read than [`sizes`].
/// `None` where it has ended.
///
/// # Errors
/// [`Error::File`].
pub fn anonymous(files: &dyn Files, pid: u32) -> Result<Option<Bytes>> {
    of_status(files, &format!("/proc/{pid}/status"), "RssAnon:")
}

fn of_status(files: &dyn Files, status: &str, key: &str) -> Result<Option<Bytes>> {
    let text = files.optional(status)?;
    Ok(text.and_then(|text| vm::amount(&text, key)))
}

/// The size of large pages that memory can be moved into while its program runs.
///
/// # Errors
/// Why there are none.
pub fn large_pages(files: &dyn Files) -> std::result::Result<Bytes, String> {
    let size = files.parsed::<u64>(LARGE, "a number of bytes");
    let size = size.map_err(|e| e.to_string())?;
    let size = size.ok_or("this kernel has no transparent huge pages")?;
    let release = files.optional("/proc/sys/kernel/osrelease");
    let release = release.ok().flatten().unwrap_or_default();
    match topology::release_number(&release) {
        Some(release) if release < COLLAPSE_SINCE => Err(format!(
            "Linux {}.{} is the first that moves memory of a program that runs into them",
            COLLAPSE_SINCE.0, COLLAPSE_SINCE.1
        )),
        _ => Ok(Bytes(size)),
    }
}

/// The memory of one process that can be moved into large pages.
#[derive(Debug)]
pub struct Movable {
    pidfd: OwnedFd,
    /// Blocks of the size of a large page. At least half of each is in memory, in small pages.
    pub blocks: Vec<Range<u64>>,
}

impl Movable {
    /// The blocks of a process. `None` where it has ended. `size`: of a large page.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Malformed`].
    pub fn find(files: &dyn Files, pid: u32, size: Bytes) -> Result<Option<Self>> {
        let number = i32::try_from(pid)
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        let Some(number) = number else {
            return Ok(None);
        };
        let flags = rustix::process::PidfdFlags::empty();
        let Ok(pidfd) = rustix::process::pidfd_open(number, flags) else {
            return Ok(None);
        };
        let pagemap = match Pagemap::open(files, &pid.to_string()) {
            Ok(pagemap) => pagemap,
            // It has ended.
            Err(e) if e.errno().is_none() => return Ok(None),
            Err(e) => return Err(e),
        };
        let pages = Pages {
            pagemap,
            // Without it, what lies in large pages is asked for again, which changes nothing.
            flags: PageFlags::open(files).ok().flatten(),
            page: rustix::param::page_size() as u64,
        };
        let mut blocks = Vec::new();
        for mapping in mappings_of(files, pid)? {
            // All of it that can lie in large pages does.
            let full = mapping.huge >= mapping.resident;
            if !mapping.anonymous || mapping.never_huge || full {
                continue;
            }
            let each = mapping.blocks(size.0);
            blocks.extend(each.filter(|block| pages.are_small(block)));
        }
        Ok(Some(Self { pidfd, blocks }))
    }

    /// The blocks in runs of neighbours, each of at most so many blocks: what one call is for.
    #[must_use]
    pub fn runs(&self, most: u64) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for block in &self.blocks {
            let longest = (block.end - block.start).saturating_mul(most);
            match runs.last_mut() {
                Some(run) if run.end == block.start && block.end - run.start <= longest => {
                    run.end = block.end;
                }
                _ => runs.push(block.clone()),
            }
        }
        runs
    }

    /// Moves a run into large pages. The program waits for it where it touches that memory.
    ///
    /// # Errors
    /// The kernel's, for any of the blocks: ENOMEM where it finds no large page or the cgroup's
    /// limit is reached, EAGAIN or EBUSY where a page cannot be moved now, EINVAL where the mapping
    /// is gone or may have none.
    pub fn collapse(&self, run: &Range<u64>) -> io::Result<()> {
        let memory = libc::iovec {
            iov_base: run.start as *mut libc::c_void,
            iov_len: usize::try_from(run.end - run.start).unwrap_or(0),
        };
        // SAFETY: one live entry. The addresses are of another process, whose content stays.
        let done = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                self.pidfd.as_raw_fd(),
                &raw const memory,
                1,
                libc::MADV_COLLAPSE,
                0,
            )
        };
        if done < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }
}

/// The page frames of a process.
struct Pages {
    pagemap: Pagemap,
    flags: Option<PageFlags>,
    /// Bytes of a base page.
    page: u64,
}

impl Pages {
    /// Whether at least half of a block is in memory and it lies in no large page.
    fn are_small(&self, block: &Range<u64>) -> bool {
        let pages = usize::try_from((block.end - block.start) / self.page).unwrap_or(0);
        let mut entries = vec![Page::default(); pages];
        let read = self.pagemap.read(block.start / self.page, &mut entries);
        if read.ok() != Some(pages) {
            return false;
        }
        let present = entries.iter().filter(|entry| entry.is_present()).count();
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else {
            return false;
        };
        let (first, last) = (first.frame(), last.frame());
        let together =
            first % pages as u64 == 0 && last.checked_sub(first) == Some(pages as u64 - 1);
        present * 2 >= pages && !(together && self.is_large(first))
    }

    /// Whether a frame belongs to a large page.
    fn is_large(&self, frame: u64) -> bool {
        let flags = self.flags.as_ref().and_then(|flags| flags.of(frame).ok());
        flags.is_some_and(|flags| flags.is_huge())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Kernel;

    /// From Linux 6.18, shortened.
    const SMAPS: &str = "\
        00400000-00600000 r-xp 00000000 fe:00 42    /usr/bin/a\nRss: 8 kB\nAnonHugePages: 0 kB\nVmFlags: rd ex\n\
        01000000-01900000 rw-p 00000000 00:00 0    [heap]\nRss: 9000 kB\nAnonHugePages: 2048 kB\nVmFlags: rd wr\n\
        02000000-02400000 rw-p 00000000 00:00 0 \nRss: 0 kB\nVmFlags: rd wr lo nh\n\
        03000000-03400000 ---p 00000000 00:00 0 \nRss: 0 kB\n\
        04000000-04400000 rw-s 00000000 00:01 7    /memfd:x (deleted)\nRss: 4 kB\n";

    #[test]
    fn mappings_are_read_with_what_they_lie_in() {
        let all = mappings("/proc/1/smaps", SMAPS).unwrap();
        let kinds: Vec<_> = all
            .iter()
            .map(|m| (m.anonymous, m.accessible, m.never_huge))
            .collect();
        let file = (false, true, false);
        let hidden = (false, false, false);
        assert_eq!(
            kinds,
            [file, (true, true, false), (true, true, true), hidden, file]
        );
        let flags: Vec<_> = all.iter().map(|m| (m.executable, m.locked)).collect();
        let none = (false, false);
        assert_eq!(flags, [(true, false), none, (false, true), none, none]);
        assert_eq!(all[1].range, 0x100_0000..0x190_0000);
        let (resident, huge) = (Bytes(9000 << 10), Bytes(2 << 20));
        assert_eq!((all[1].resident, all[1].huge), (resident, huge));
        let error = mappings("/proc/1/smaps", "1-2 rw-p 0 0:0 0\nRss: lots\n");
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("/proc/1/smaps") && error.contains("Rss:"),
            "{error}"
        );
    }

    #[test]
    fn blocks_are_whole_and_aligned() {
        let of = |range| {
            let mapping = Mapping {
                range,
                ..Mapping::default()
            };
            mapping.blocks(0x1000).collect::<Vec<_>>()
        };
        assert_eq!(of(0x800..0x3800), [0x1000..0x2000, 0x2000..0x3000]);
        assert!(of(0x1000..0x1fff).is_empty());
        assert!(of(u64::MAX - 10..u64::MAX).is_empty());
    }

    #[test]
    fn large_pages_need_the_kernel_that_has_them() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Kernel::at(dir.path());
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path.trim_start_matches('/'));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        assert!(
            large_pages(&kernel)
                .unwrap_err()
                .contains("no transparent huge pages")
        );
        put(LARGE, "2097152\n");
        put("/proc/sys/kernel/osrelease", "5.15.0-91-generic\n");
        assert!(large_pages(&kernel).unwrap_err().contains("6.1"));
        put("/proc/sys/kernel/osrelease", "6.12.3\n");
        assert_eq!(large_pages(&kernel), Ok(Bytes(2 << 20)));
    }
}
