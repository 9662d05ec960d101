//! The vDSO of a process: code that the kernel maps into each program. Behind it lie names and
//! tables that no program reads. There is room for the way back of a thread that does calls.
//!
//! All 64-bit processes have the same image, so this process's own one says what is in there.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;

use crate::arch::{IS_BUILT, WAY_BACK};
use crate::process_memory::read_memory;

/// The kind of the vDSO's address (AT_SYSINFO_EHDR).
const KIND: u64 = 33;
/// The kernel maps whole pages.
const PAGE: usize = 4096;
/// Bytes of the header of an ELF file.
const HEADER: usize = 64;
const SIZE: usize = WAY_BACK * 8;

/// The vDSO of a process.
#[derive(Debug)]
pub(crate) struct Vdso {
    at: u64,
    /// The memory of the process, for writing. Some kernels let nothing be written so that the
    /// process may not write itself (`proc_mem.force_override`).
    memory: Option<File>,
}

/// Room for one way back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    /// Its address.
    pub(crate) at: u64,
    /// What the kernel has there.
    pub(crate) original: [u64; WAY_BACK],
}

/// The image, and which part of it no program reads.
struct Image {
    bytes: &'static [u8],
    unread: Range<usize>,
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<usize> {
    let mut all = [0; 8];
    all[..N].copy_from_slice(bytes.get(at..at + N)?);
    usize::try_from(u64::from_le_bytes(all)).ok()
}

/// What of an ELF file is loaded ends here, and here the file ends. `None` where that is not said
/// in these bytes.
fn ends(bytes: &[u8]) -> Option<(usize, usize)> {
    const LOAD: usize = 1;
    if !bytes.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (programs, sections) = (number::<8>(bytes, 0x20)?, number::<8>(bytes, 0x28)?);
    let [size, count, section, names] = [0x36, 0x38, 0x3a, 0x3c].map(|at| number::<2>(bytes, at));
    let mut loaded = 0;
    for n in 0..count? {
        let at = programs.checked_add(n * size?)?;
        if number::<4>(bytes, at)? == LOAD {
            let (offset, length) = (number::<8>(bytes, at + 8)?, number::<8>(bytes, at + 0x20)?);
            loaded = loaded.max(offset.checked_add(length)?);
        }
    }
    let end = sections.checked_add(section? * names?)?;
    Some((loaded, end.max(loaded)))
}

impl Image {
    fn own() -> Option<Self> {
        /// No vDSO is that large.
        const MOST: usize = 16 * PAGE;
        // SAFETY: takes a number.
        let at = unsafe { libc::getauxval(KIND) } as *const u8;
        if at.is_null() {
            return None;
        }
        // SAFETY: the kernel has mapped the image there for good. It has a page at least.
        let first = unsafe { std::slice::from_raw_parts(at, PAGE) };
        let (loaded, end) = ends(first)?;
        let end = Some(end.checked_next_multiple_of(PAGE)?).filter(|end| *end <= MOST)?;
        // SAFETY: the pages up to the end of the file are mapped.
        let bytes = unsafe { std::slice::from_raw_parts(at, end) };
        let unread = loaded.checked_next_multiple_of(16)?..end;
        Some(Self { bytes, unread })
    }
}

impl Vdso {
    /// Of a process. ENOTSUP where it has none, for a 32-bit program, and on architectures for
    /// which no way back is built.
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        let none = || io::Error::from_raw_os_error(libc::ENOTSUP);
        if !IS_BUILT {
            return Err(none());
        }
        // Pairs of a kind and a value (getauxval(3)).
        let pairs = std::fs::read(format!("/proc/{pid}/auxv"))?;
        let words = pairs.as_chunks::<8>().0.iter();
        let words: Vec<u64> = words.map(|word| u64::from_ne_bytes(*word)).collect();
        let mut pairs = words.as_chunks::<2>().0.iter();
        let found = pairs.find(|[kind, _]| *kind == KIND);
        let memory = || File::options().write(true).open(format!("/proc/{pid}/mem"));
        let vdso = found.map(|[_, at]| Self {
            at: *at,
            memory: memory().ok(),
        });
        vdso.filter(|vdso| vdso.is_there(pid)).ok_or_else(none)
    }

    /// The descriptor of its memory.
    pub(crate) fn descriptor(&self) -> Option<RawFd> {
        self.memory.as_ref().map(AsRawFd::as_raw_fd)
    }

    fn is_there(&self, pid: u32) -> bool {
        let mut header = [0; HEADER];
        let read = read_memory(pid, self.at, &mut header);
        read.is_ok() && Image::own().is_some_and(|own| own.bytes.starts_with(&header))
    }

    /// Room that is as the kernel made it, in the process of a thread. EBUSY where the process has
    /// executed another program since, ENOSPC where tracers that died have left their ways back in
    /// all of it but `spare`. Allocates nothing.
    pub(crate) fn slot(&self, tid: u32, spare: usize) -> io::Result<Slot> {
        let busy = || io::Error::from_raw_os_error(libc::EBUSY);
        let own = Image::own()
            .filter(|_| self.is_there(tid))
            .ok_or_else(busy)?;
        let mut left = spare;
        for original in own.bytes[own.unread.clone()].chunks_exact(SIZE) {
            let at = self.at + (original.as_ptr().addr() - own.bytes.as_ptr().addr()) as u64;
            let mut bytes = [0; SIZE];
            read_memory(tid, at, &mut bytes)?;
            if bytes == original && left > 0 {
                left -= 1;
            } else if bytes == original {
                let words = bytes.as_chunks::<8>().0;
                let original = std::array::from_fn(|n| u64::from_ne_bytes(words[n]));
                return Ok(Slot { at, original });
            }
        }
        Err(io::Error::from_raw_os_error(libc::ENOSPC))
    }

    /// Writes to an address in it, by one system call. Returns whether that was possible.
    pub(crate) fn write(&self, at: u64, words: &[u64; WAY_BACK]) -> bool {
        let mut bytes = [0; SIZE];
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *to = word.to_ne_bytes();
        }
        let memory = self.memory.as_ref();
        memory.is_some_and(|memory| matches!(memory.write_at(&bytes, at), Ok(SIZE)))
    }

    /// Whether an address is where ways back are.
    pub(crate) fn is_way_back(&self, at: u64) -> bool {
        let unread = |own: Image| own.unread.contains(&(at.wrapping_sub(self.at) as usize));
        Image::own().is_some_and(unread)
    }
}
