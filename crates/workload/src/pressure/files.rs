//! The generators' own files on a disk, without a name (`O_TMPFILE`).

use std::fs::File;
use std::io::Write;
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr::{self, NonNull};

use quell_types::units::Bytes;
use rustix::fs::{
    Advice, Mode, OFlags, fadvise, fcntl_getfl, fcntl_setfl, fdatasync, fstatfs, fstatvfs, open,
};

use super::page;
use crate::Error;

/// Bytes that are written at a time, and that may wait to be written. Making a file must not be
/// memory pressure itself.
const CHUNK: usize = 1 << 20;
const BATCH: u64 = 16 << 20;
/// One part in so many of the disk is left free.
const SPARE: u64 = 20;
/// File systems that keep their files in memory: statfs(2).
const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];

/// Which pages of a new file remain in the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cached {
    /// All pages, as far as the kernel keeps them.
    Kept,
    /// No page of the file.
    Dropped,
}

/// Makes a file of so many bytes in the folder for temporary files.
///
/// # Errors
/// When that folder is in memory, or the disk has no room or cannot be written.
pub(crate) fn make(size: Bytes, cached: Cached) -> Result<File, Error> {
    make_in(&std::env::temp_dir(), size, cached)
}

fn make_in(folder: &Path, size: Bytes, cached: Cached) -> Result<File, Error> {
    let what = format!("a file of {size} in {}", folder.display());
    let file = |more| {
        let how = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC | more;
        open(folder, how, Mode::RUSR | Mode::WUSR).map(File::from)
    };
    // Past the page cache, where the file system can: quicker, and without use of memory.
    let file = file(OFlags::DIRECT).or_else(|_| file(OFlags::empty()));
    let mut file = file.map_err(Error::kernel(what.clone()))?;
    let kind = fstatfs(&file).map_err(Error::kernel(what.clone()))?.f_type;
    if IN_MEMORY.contains(&(kind & 0xffff_ffff)) {
        return Err(Error::refused(
            what,
            "files lie in memory there, and cannot be reclaimed",
            "set TMPDIR to a folder on a disk",
        ));
    }
    let disk = fstatvfs(&file).map_err(Error::kernel(what.clone()))?;
    let room = (disk.f_bavail.saturating_mul(disk.f_frsize))
        .saturating_sub(disk.f_blocks.saturating_mul(disk.f_frsize) / SPARE);
    if size.0 > room {
        return Err(Error::refused(
            what,
            format!(
                "the disk has room for {}, if a twentieth of it stays free",
                Bytes(room)
            ),
            "ask for a smaller size, or set TMPDIR to a folder on a larger disk",
        ));
    }
    // O_DIRECT takes whole pages, at addresses divisible by a page.
    let mut room = vec![0; CHUNK + page()];
    let from = room.as_ptr().align_offset(page());
    let chunk = &mut room[from..from + CHUNK];
    noise(chunk, &mut 0x9e37_79b9_7f4a_7c15);
    let mut done = 0;
    while done < size.0 {
        let left = usize::try_from(size.0 - done).unwrap_or(CHUNK).min(CHUNK);
        file.write_all(&chunk[..left.next_multiple_of(page())])
            .map_err(Error::kernel(what.clone()))?;
        done += left as u64;
        if done % BATCH == 0 || done == size.0 {
            fdatasync(&file).map_err(Error::kernel(what.clone()))?;
            forget(&file)?;
        }
    }
    // From here on accesses go through the page cache.
    let flags = fcntl_getfl(&file).map_err(Error::kernel(what.clone()))?;
    fcntl_setfl(&file, flags - OFlags::DIRECT).map_err(Error::kernel(what.clone()))?;
    if cached == Cached::Kept {
        let mut at = 0;
        while at < done {
            let read = file
                .read_at(chunk, at)
                .map_err(Error::kernel(what.clone()))?;
            at += read.max(1) as u64;
        }
    }
    Ok(file)
}

/// Fills `bytes` with data that does not compress.
pub(super) fn noise(bytes: &mut [u8], seed: &mut u64) {
    for word in bytes.chunks_exact_mut(8) {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        word.copy_from_slice(&seed.to_ne_bytes());
    }
}

/// Removes a file from the page cache, and from the kernel's memory of reclaimed pages. The next
/// read is as if it were the first.
pub(super) fn forget(file: &File) -> Result<(), Error> {
    forget_range(file, 0, None)
}

/// Turns reading ahead off for a file: a read brings in what it asks for, and nothing behind it.
pub(super) fn no_reading_ahead(file: &File) -> Result<(), Error> {
    fadvise(file, 0, None, Advice::Random).map_err(Error::kernel("turning off reading ahead"))
}

/// The same as [`forget`] for the whole pages from `from` on; all without a length.
pub(super) fn forget_range(file: &File, from: usize, len: Option<NonZeroU64>) -> Result<(), Error> {
    fadvise(file, from as u64, len, Advice::DontNeed)
        .map_err(Error::kernel("dropping a file's pages"))
}

/// A file that is mapped for reading until this is dropped.
#[derive(Debug)]
pub(super) struct Map {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: nothing writes to the mapping. The file has no name and no other writer.
unsafe impl Send for Map {}

impl Map {
    pub(super) fn new(file: &File, len: usize) -> Result<Self, Error> {
        // SAFETY: a fresh shared mapping at an address of the kernel's choice touches nothing that
        // exists.
        let start = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                len,
                rustix::mm::ProtFlags::READ,
                rustix::mm::MapFlags::SHARED,
                file.as_fd(),
                0,
            )
        }
        .map_err(Error::kernel("mapping a file"))?;
        let start = NonNull::new(start.cast()).ok_or_else(|| Error::last("mapping a file"))?;
        Ok(Self { start, len })
    }

    /// The file's bytes. The file keeps its size while it is mapped.
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping lives as long as `self`, has that length, and nothing writes to it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// How many pages of `[from, from + len)` are not in the page cache. `from` is the beginning of
    /// a page, and `seen` has at least a byte for each page.
    pub(super) fn missing(&self, from: usize, len: usize, seen: &mut [u8]) -> Result<usize, Error> {
        let pages = len.div_ceil(page());
        let seen = &mut seen[..pages];
        let inside = &self.bytes()[from..from + len];
        // SAFETY: the range lies in the mapping, and `seen` has a byte per page.
        let failed =
            unsafe { libc::mincore(inside.as_ptr().cast_mut().cast(), len, seen.as_mut_ptr()) }
                != 0;
        if failed {
            return Err(Error::last("asking which pages are in memory"));
        }
        Ok(seen.iter().filter(|page| **page & 1 == 0).count())
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing borrows from it any more.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_in_memory_and_files_larger_than_the_disk_are_refused() {
        let refused = |folder: &str, size| {
            let made = make_in(Path::new(folder), Bytes(size), Cached::Kept);
            made.unwrap_err().to_string()
        };
        let why = refused("/dev/shm", 1 << 20);
        assert!(why.contains("TMPDIR"), "{why}");
        let why = refused("/var/tmp", 1 << 44);
        assert!(why.contains("room"), "{why}");
    }

    #[test]
    fn a_forgotten_file_leaves_the_page_cache_and_a_kept_one_stays() {
        let len = 1 << 20;
        let of = |cached| {
            let file = make_in(Path::new("/var/tmp"), Bytes(len as u64), cached).unwrap();
            let map = Map::new(&file, len).unwrap();
            map.missing(0, len, &mut vec![0; len / page()]).unwrap()
        };
        assert_eq!(of(Cached::Kept), 0);
        assert_eq!(of(Cached::Dropped), len / page());
    }
}
