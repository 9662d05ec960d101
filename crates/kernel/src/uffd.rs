//! Descriptors by which missing pages of a process are supplied (userfaultfd(2),
//! ioctl_userfaultfd(2), linux/userfaultfd.h).
//!
//! - UFFDIO_MOVE (Linux 6.8) moves a page, its frame included, to another address. Only a thread of
//!   the process itself may ask for it: EINVAL otherwise.
//! - UFFDIO_COPY puts content into a new frame. Another process may ask for it, on a descriptor
//!   that it has fetched (pidfd_getfd(2)). So it may for the rest of this file.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::procfs;
use crate::root::Files;

/// Whether a process may open a userfaultfd that is for the kernel's accesses, too: with
/// CAP_SYS_PTRACE, or where `vm.unprivileged_userfaultfd` lets all.
///
/// # Errors
/// [`Error::File`](crate::error::Error::File).
pub fn may_open(files: &dyn Files, pid: u32) -> crate::error::Result<bool> {
    const CAP_SYS_PTRACE: u32 = 19;
    let of_all = files.parsed::<u32>("/proc/sys/vm/unprivileged_userfaultfd", "0 or 1")?;
    // Capabilities within a user namespace do not count.
    let users = |process: &str| files.link(&format!("/proc/{process}/ns/user")).ok();
    let is_ours = users("self") == users(&pid.to_string());
    Ok(of_all == Some(1) || is_ours && procfs::is_capable(files, pid, CAP_SYS_PTRACE)?)
}

/// The version of the interface.
const API: u64 = 0xaa;
/// `UFFD_FEATURE_MOVE`.
const MOVES: u64 = 1 << 16;
/// `UFFDIO_REGISTER_MODE_MISSING`.
const MISSING: u64 = 1;

const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFDIO_REGISTER: u64 = 0xc020_aa00;
const UFFDIO_UNREGISTER: u64 = 0x8010_aa01;
const UFFDIO_COPY: u64 = 0xc028_aa03;

/// `struct uffdio_api`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_range`.
#[repr(C)]
struct Span {
    start: u64,
    length: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    range: Span,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_copy`.
#[repr(C)]
struct Copy {
    to: u64,
    from: u64,
    length: u64,
    mode: u64,
    copied: i64,
}

/// `struct uffdio_move`: what a thread of the process hands to [`Self::REQUEST`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Move {
    /// The address to move to.
    pub to: u64,
    /// The address to move from.
    pub from: u64,
    /// Bytes, a multiple of the page size.
    pub length: u64,
    /// Flags: none are used.
    pub mode: u64,
    /// Where the request fails: bytes that were moved before, or an error below zero.
    pub moved: i64,
}

impl Move {
    /// `UFFDIO_MOVE`.
    pub const REQUEST: u64 = 0xc028_aa05;

    /// The bytes as the kernel reads them.
    #[must_use]
    pub fn bytes(&self) -> [u8; size_of::<Self>()] {
        let words = [
            self.to,
            self.from,
            self.length,
            self.mode,
            self.moved.cast_unsigned(),
        ];
        let mut bytes = [0; size_of::<Self>()];
        for (room, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *room = word.to_ne_bytes();
        }
        bytes
    }
}

/// Where [`Move::moved`] lies in its bytes.
pub const MOVED_AT: u64 = 32;

/// Such a descriptor, of this process or fetched from another one.
#[derive(Debug)]
pub struct Uffd(OwnedFd);

fn span(range: &Range<u64>) -> Span {
    Span {
        start: range.start,
        length: range.end.saturating_sub(range.start),
    }
}

impl Uffd {
    /// A descriptor for the memory of this process.
    fn own() -> io::Result<Self> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: takes no pointers; the descriptor is new and nothing else owns it.
        unsafe {
            let fd = libc::syscall(libc::SYS_userfaultfd, flags);
            match i32::try_from(fd) {
                Ok(fd) if fd >= 0 => Ok(Self(OwnedFd::from_raw_fd(fd))),
                _ => Err(io::Error::last_os_error()),
            }
        }
    }

    /// A copy of such a descriptor of another process.
    #[must_use]
    pub fn of(copy: OwnedFd) -> Self {
        Self(copy)
    }

    fn ioctl<T>(&self, request: u64, argument: &mut T) -> io::Result<()> {
        let at = std::ptr::from_mut(argument);
        // SAFETY: `argument` is the structure of this request, and lives during the call. The
        // addresses in it are of the descriptor's process. The kernel checks them. The source of a
        // copy is checked in `copy`.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), request as libc::c_ulong, at) };
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }

    /// Agrees with the kernel on the interface. To be called first, once.
    ///
    /// # Errors
    /// EINVAL where the kernel moves no pages (before 6.8).
    pub fn agree(&self) -> io::Result<()> {
        let mut api = Api {
            api: API,
            features: MOVES,
            ioctls: 0,
        };
        self.ioctl(UFFDIO_API, &mut api)
    }

    /// From now on a missing page of this range stops the thread that touches it, until the page is
    /// supplied.
    ///
    /// # Errors
    /// The kernel's: EINVAL where the range is not mapped or of a kind that it cannot do it for,
    /// EBUSY where another descriptor has it.
    pub fn register(&self, range: &Range<u64>) -> io::Result<()> {
        let mut register = Register {
            range: span(range),
            mode: MISSING,
            ioctls: 0,
        };
        self.ioctl(UFFDIO_REGISTER, &mut register)
    }

    /// Reverts [`Self::register`]. Threads that wait go on, and find what is there.
    ///
    /// # Errors
    /// The kernel's.
    pub fn unregister(&self, range: &Range<u64>) -> io::Result<()> {
        self.ioctl(UFFDIO_UNREGISTER, &mut span(range))
    }

    /// Puts content into missing pages from the address `to` on, in new frames, and lets threads go
    /// on that wait for them. Returns the bytes that were put there before the first page that
    /// failed, and its error.
    ///
    /// # Errors
    /// EEXIST where a page is there, ENOENT where none can be missing, ENOMEM where there is no
    /// frame for it.
    pub fn copy(&self, to: u64, content: &[u8]) -> (u64, io::Result<()>) {
        let mut done = 0u64;
        while done < content.len() as u64 {
            let rest = usize::try_from(done)
                .ok()
                .and_then(|done| content.get(done..));
            let Some(rest) = rest else { break };
            let mut copy = Copy {
                to: to.saturating_add(done),
                // The slice is borrowed until the call has ended, and is only read.
                from: rest.as_ptr().addr() as u64,
                length: rest.len() as u64,
                mode: 0,
                copied: 0,
            };
            match self.ioctl(UFFDIO_COPY, &mut copy) {
                Ok(()) => done += rest.len() as u64,
                // A part was copied, or mappings are being changed.
                Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => {
                    done += u64::try_from(copy.copied).unwrap_or(0);
                }
                Err(e) => return (done, Err(e)),
            }
        }
        (done, Ok(()))
    }
}

/// Whether this kernel moves pages, as far as this process may ask.
///
/// # Errors
/// Why not, in words.
pub fn support() -> Result<(), String> {
    let descriptor = Uffd::own().map_err(|e| match e.raw_os_error() {
        Some(libc::ENOSYS) => "this kernel has no userfaultfd (CONFIG_USERFAULTFD)".to_owned(),
        _ => format!("userfaultfd is refused ({e})"),
    })?;
    descriptor
        .agree()
        .map_err(|_| "this kernel moves no pages: Linux 6.8 is the first that does".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    fn mapping(pages: usize) -> u64 {
        // SAFETY: a new mapping, never unmapped.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                pages * 4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        at.addr() as u64
    }

    fn byte(at: u64) -> u8 {
        // SAFETY: an address of a mapping above, whose page is there.
        unsafe { (at as *const u8).read_volatile() }
    }

    #[test]
    fn structures_have_the_sizes_that_the_requests_name() {
        let size = |request: u64| usize::try_from(request >> 16 & 0x3fff).unwrap();
        assert_eq!(size(UFFDIO_API), size_of::<Api>());
        assert_eq!(size(UFFDIO_REGISTER), size_of::<Register>());
        assert_eq!(size(UFFDIO_UNREGISTER), size_of::<Span>());
        assert_eq!(size(UFFDIO_COPY), size_of::<Copy>());
        assert_eq!(size(Move::REQUEST), size_of::<Move>());
        let one = Move {
            moved: -2,
            ..Move::default()
        };
        let at = usize::try_from(MOVED_AT).unwrap();
        assert_eq!(one.bytes()[at..], (-2i64).to_ne_bytes());
    }

    #[test]
    fn a_page_is_moved_away_and_its_content_comes_back() {
        if rustix::param::page_size() as u64 != PAGE {
            return quell_testing::skip(format_args!("written for pages of {PAGE} bytes"));
        }
        if let Err(why) = support() {
            return quell_testing::skip(why);
        }
        let uffd = Uffd::own().unwrap();
        uffd.agree().unwrap();
        let (own, side) = (mapping(2), mapping(2));
        for page in 0..2 {
            // SAFETY: within the mapping.
            unsafe { ((own + page * PAGE) as *mut u8).write_volatile(7) };
        }
        uffd.register(&(side..side + 2 * PAGE)).unwrap();
        uffd.register(&(own..own + 2 * PAGE)).unwrap();
        let mut one = Move {
            to: side,
            from: own,
            length: 2 * PAGE,
            ..Move::default()
        };
        uffd.ioctl(Move::REQUEST, &mut one).unwrap();
        assert_eq!((one.moved, byte(side + PAGE)), (8192, 7));
        let content = vec![9; 8192];
        let (done, result) = uffd.copy(own, &content);
        assert!(done == 8192 && result.is_ok(), "{result:?}");
        assert_eq!(byte(own + PAGE), 9);
        // It is there now: not overwritten.
        let (done, result) = uffd.copy(own, &content);
        assert_eq!(
            (done, result.unwrap_err().raw_os_error()),
            (0, Some(libc::EEXIST))
        );
        uffd.unregister(&(own..own + 2 * PAGE)).unwrap();
        let (_, result) = uffd.copy(mapping(1), &content[..4096]);
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ENOENT));
    }
}
