//! What of a file is in memory (mincore(2)).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use quell_types::units::Bytes;

/// Pages that are asked for in one call.
const AT_ONCE: usize = 1 << 18;

/// How much of a file is not in memory, in whole pages. The caller owns the file or may write it:
/// of other files the kernel says that all is in memory.
///
/// # Errors
/// The kernel's own, where the file cannot be mapped: it is a directory, or a device.
pub fn missing(file: &File) -> io::Result<Bytes> {
    let page = rustix::param::page_size();
    let length = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    let mut missing = 0;
    let step = AT_ONCE * page;
    for from in (0..length).step_by(step) {
        let length = step.min(length - from);
        let offset = libc::off_t::try_from(from).unwrap_or(libc::off_t::MAX);
        // SAFETY: a new mapping at an address that the kernel chooses. Nothing reads it.
        let at = unsafe {
            let (protection, flags) = (libc::PROT_NONE, libc::MAP_SHARED);
            libc::mmap(
                std::ptr::null_mut(),
                length,
                protection,
                flags,
                file.as_raw_fd(),
                offset,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mut seen = vec![0_u8; length.div_ceil(page)];
        // SAFETY: the mapping has this length, and `seen` a byte for each of its pages.
        let done = unsafe { libc::mincore(at, length, seen.as_mut_ptr()) };
        let failed = (done != 0).then(io::Error::last_os_error);
        // SAFETY: the mapping that was made above, and that nothing else knows.
        unsafe { libc::munmap(at, length) };
        if let Some(failed) = failed {
            return Err(failed);
        }
        missing += seen.iter().filter(|page| **page & 1 == 0).count();
    }
    Ok(Bytes((missing * page) as u64))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn what_was_written_is_there_and_a_hole_is_not() {
        let mut file = tempfile::tempfile().unwrap();
        assert_eq!(missing(&file).unwrap(), Bytes(0));
        file.write_all(&[7; 10_000]).unwrap();
        assert_eq!(missing(&file).unwrap(), Bytes(0));
        let page = rustix::param::page_size() as u64;
        file.set_len(10_000_u64.next_multiple_of(page) + 5 * page)
            .unwrap();
        assert_eq!(missing(&file).unwrap(), Bytes(5 * page));
        assert!(missing(&File::open("/").unwrap()).is_err());
    }
}
