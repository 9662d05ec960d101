//! Memory that stays in a cache: what Quell has locked there for this program (`reserve.cache = {
//! locked = … }`).
//!
//! Quell has the kernel lock memory, and passes its device to the program that it launches. The
//! descriptor is inherited, and three environment variables describe it. The program only has to
//! map it. The kernel clears the memory whenever it is mapped. It maps it only for a thread that
//! may run on the CPUs of that cache alone.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Release};

/// The environment variable that names the descriptor of the locked memory's device, in decimal.
pub const FD_VARIABLE: &str = "QUELL_LOCKED_FD";
/// The environment variable that has its size in bytes.
pub const BYTES_VARIABLE: &str = "QUELL_LOCKED_BYTES";
/// The environment variable that has the CPUs of its cache, as in `0-1`.
pub const CPUS_VARIABLE: &str = "QUELL_LOCKED_CPUS";

/// Locked memory, mapped for reading and writing until dropped. Aligned to pages.
#[derive(Debug)]
pub struct Locked {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping has one owner, and is given out as a pointer only.
unsafe impl Send for Locked {}
// SAFETY: as above.
unsafe impl Sync for Locked {}

impl Locked {
    /// Maps the first `len` bytes of a locked region's device.
    ///
    /// # Errors
    /// The kernel's error. EINVAL: this thread may run on CPUs of other caches. ENOSPC: the region
    /// is smaller. ENODEV: it is gone.
    pub fn map(device: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { map(device, std::ptr::null_mut(), len, 0) }?;
        Ok(Self { at, len })
    }

    /// Address of the first byte; aligned to pages.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.at.as_ptr()
    }

    /// Its length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no region is empty")]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // SAFETY: the mapping that `map` made. Its users know that the pointer is valid until then.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.len) };
    }
}

/// # Safety
/// As `mmap` with these flags.
unsafe fn map(
    device: BorrowedFd<'_>,
    at: *mut u8,
    len: usize,
    flags: libc::c_int,
) -> io::Result<NonNull<u8>> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | flags;
    // SAFETY: as the caller promises.
    let at = unsafe { libc::mmap(at.cast(), len, access, flags, device.as_raw_fd(), 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(at.cast()).ok_or_else(|| io::Error::other("it was mapped at zero"))
}

/// Why the memory locked for this program could not be mapped. It can be tried again.
#[derive(Debug)]
pub struct NotMapped {
    bytes: String,
    cpus: String,
    source: io::Error,
}

impl NotMapped {
    /// The kernel's error number, if the error has one.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }
}

impl fmt::Display for NotMapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            bytes,
            cpus,
            source,
        } = self;
        write!(
            f,
            "the {bytes} bytes that are locked in a cache cannot be mapped: "
        )?;
        match self.errno() {
            Some(libc::EINVAL) => write!(
                f,
                "they are in the cache of CPUs {cpus}: map them in a thread that may run on these alone (sched_setaffinity)"
            ),
            Some(libc::ENOSPC) => f.write_str("the region is smaller than that"),
            Some(libc::ENODEV) => {
                f.write_str("the region is gone: the run that locked it has ended")
            }
            _ => write!(f, "{source}"),
        }
    }
}

impl std::error::Error for NotMapped {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// This process has mapped it already: a second mapping would clear it.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Maps what Quell has locked for this program. `None` where nothing is locked, or it was mapped
/// before. Programs that this process starts afterwards do not inherit it.
///
/// # Errors
/// [`NotMapped`] has the reason and what to do.
pub fn locked() -> Result<Option<Locked>, NotMapped> {
    take(Locked::map)
}

/// Maps locked memory over the beginning of the caller's own memory, and replaces that. This is for
/// programs that have their buffer already. Returns how many bytes of `len` are locked, or 0 where
/// [`locked`] returns `None`. The old contents are lost.
///
/// # Safety
/// `start` is aligned to pages and begins a mapping of `len` bytes, to which no reference exists.
///
/// # Errors
/// As for [`locked`].
pub unsafe fn locked_over(start: NonNull<u8>, len: usize) -> Result<usize, NotMapped> {
    let taken = take(|device, bytes| {
        let bytes = bytes.min(len);
        // SAFETY: as the caller promises: only that memory is replaced.
        unsafe { map(device, start.as_ptr(), bytes, libc::MAP_FIXED) }.map(|_| bytes)
    });
    Ok(taken?.unwrap_or(0))
}

fn take<T>(
    map: impl FnOnce(BorrowedFd<'_>, usize) -> io::Result<T>,
) -> Result<Option<T>, NotMapped> {
    let told = |name: &str| std::env::var(name).ok();
    let file: Option<RawFd> = told(FD_VARIABLE).and_then(|number| number.parse().ok());
    let bytes: Option<usize> = told(BYTES_VARIABLE).and_then(|bytes| bytes.parse().ok());
    let (Some(file), Some(bytes)) = (file.filter(|number| *number > 2), bytes) else {
        return Ok(None);
    };
    if TAKEN.swap(true, AcqRel) {
        return Ok(None);
    }
    // A daemon that has closed all descriptors has another file there, or none.
    if !is_device(file) {
        return Ok(None);
    }
    // SAFETY: used for this call only, and open, as was just seen.
    match map(unsafe { BorrowedFd::borrow_raw(file) }, bytes) {
        Ok(mapped) => {
            // The mapping keeps the region alive, and the descriptor is not needed any more.
            // SAFETY: left to this process by Quell for this, and taken once.
            drop(unsafe { OwnedFd::from_raw_fd(file) });
            Ok(Some(mapped))
        }
        Err(source) => {
            TAKEN.store(false, Release);
            Err(NotMapped {
                bytes: bytes.to_string(),
                cpus: told(CPUS_VARIABLE).unwrap_or_default(),
                source,
            })
        }
    }
}

fn is_device(file: RawFd) -> bool {
    // SAFETY: a `stat` of zeroes is one; the call fills it.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `about` is valid for the call.
    let done = unsafe { libc::fstat(file, &raw mut about) };
    done == 0 && about.st_mode & libc::S_IFMT == libc::S_IFCHR
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_mapping_is_as_long_as_asked_and_shared() {
        // A device that can be mapped as a region is; its memory is not locked anywhere.
        let device = std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/zero")
            .unwrap();
        assert!(is_device(device.as_raw_fd()));
        let locked = Locked::map(device.as_fd(), 8192).unwrap();
        assert_eq!((locked.len(), locked.as_ptr().addr() % 4096), (8192, 0));
        // SAFETY: within the mapping.
        unsafe { locked.as_ptr().add(8191).write(7) };
        // SAFETY: within the mapping.
        assert_eq!(unsafe { locked.as_ptr().add(8191).read() }, 7);
        let file = tempfile::tempfile().unwrap();
        assert!(!is_device(file.as_raw_fd()) && !is_device(-1));
    }

    #[test]
    fn errors_say_what_to_do() {
        let of = |errno| {
            let source = io::Error::from_raw_os_error(errno);
            let (bytes, cpus) = ("131072".to_owned(), "0-1".to_owned());
            NotMapped {
                bytes,
                cpus,
                source,
            }
            .to_string()
        };
        assert!(
            of(libc::EINVAL).contains("CPUs 0-1: map them in a thread that may run on these alone")
        );
        assert!(of(libc::ENOSPC).contains("smaller"));
        assert!(of(libc::ENODEV).contains("has ended"));
        assert!(of(libc::EPERM).contains("131072 bytes") && of(libc::EPERM).contains("permitted"));
    }
}
