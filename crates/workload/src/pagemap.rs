//! Where pages lie in physical memory: `/proc/self/pagemap`
//! (Documentation/admin-guide/mm/pagemap.rst). Without CAP_SYS_ADMIN the kernel shows frame 0 for
//! every page. Before Linux 4.2 it refused to open the file. In a virtual machine the frames are
//! the guest's.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::Error;

const PRESENT: u64 = 1 << 63;
const FRAME: u64 = (1 << 55) - 1;
const ENTRY: usize = size_of::<u64>();

fn refused(why: &str) -> Error {
    Error::refused(
        "choosing lines by DRAM bank",
        format!("physical addresses are not shown: {why}"),
        "run as root, or with CAP_SYS_ADMIN in the first user namespace",
    )
}

/// The physical addresses of `pages` pages of `page` bytes, from the virtual address `start` on.
/// `proc` is `/proc`.
///
/// # Errors
/// When addresses are hidden (the message names the capability), a page is not in memory, or the
/// file cannot be read.
pub fn addresses(proc: &Path, start: usize, pages: usize, page: usize) -> Result<Vec<u64>, Error> {
    let path = proc.join("self/pagemap");
    let reading = || Error::kernel(format!("reading {}", path.display()));
    let file = File::open(&path).map_err(|e| match e.kind() {
        io::ErrorKind::PermissionDenied => refused("the file may not be opened"),
        io::ErrorKind::NotFound => refused("this kernel has no pagemap (CONFIG_PROC_PAGE_MONITOR)"),
        _ => reading()(e),
    })?;
    let mut bytes = vec![0; pages * ENTRY];
    file.read_exact_at(&mut bytes, (start / page * ENTRY) as u64)
        .map_err(reading())?;
    let entries = bytes.chunks_exact(ENTRY);
    entries
        .map(|entry| {
            let entry = entry.try_into().map_or(0, u64::from_ne_bytes);
            if entry & PRESENT == 0 {
                return Err(Error::refused(
                    "choosing lines by DRAM bank",
                    "a page of the buffer is not in memory",
                    "free some memory, or switch swapping off",
                ));
            }
            match entry & FRAME {
                0 => Err(refused("every page seems to lie in frame 0")),
                frame => Ok(frame * page as u64),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(entries: &[u64]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("self")).unwrap();
        let bytes: Vec<u8> = entries.iter().flat_map(|e| e.to_ne_bytes()).collect();
        std::fs::write(root.path().join("self/pagemap"), bytes).unwrap();
        root
    }

    #[test]
    fn a_page_lies_where_its_entry_says() {
        // Soft-dirty and exclusively mapped, as the kernel marks a fresh page.
        let flags = PRESENT | 1 << 55 | 1 << 56;
        let root = written(&[0, flags | 0x1234, flags | 7]);
        let found = addresses(root.path(), 4096, 2, 4096).unwrap();
        assert_eq!(found, [0x0123_4000, 0x7000]);
    }

    #[test]
    fn hidden_and_missing_pages_are_refused_with_the_reason() {
        let root = written(&[PRESENT, 0]);
        let said = |page: usize| {
            addresses(root.path(), page * 4096, 1, 4096)
                .unwrap_err()
                .to_string()
        };
        assert!(said(0).contains("CAP_SYS_ADMIN"), "{}", said(0));
        assert!(said(1).contains("not in memory"), "{}", said(1));
        assert!(said(2).contains("pagemap"), "{}", said(2));
        let none = tempfile::tempdir().unwrap();
        let said = addresses(none.path(), 0, 1, 4096).unwrap_err().to_string();
        assert!(said.contains("CONFIG_PROC_PAGE_MONITOR"), "{said}");
    }
}
