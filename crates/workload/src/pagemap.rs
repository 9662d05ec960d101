//! The physical addresses of a buffer, for choosing lines by DRAM bank.

use quell_kernel::pagemap::{Page, Pagemap};
use quell_kernel::root::Files;

use crate::Error;

fn refused(what: &str, why: &str) -> Error {
    Error::refused(
        what,
        format!("physical addresses are not shown: {why}"),
        "run as root, or with CAP_SYS_ADMIN in the first user namespace",
    )
}

/// The physical addresses of `pages` pages of `page` bytes of this process, from the virtual
/// address `start` on. `what` they are for, in errors.
///
/// # Errors
/// When addresses are hidden (the message names the capability), a page is not in memory, or the
/// file cannot be read.
pub fn addresses(
    files: &dyn Files,
    start: usize,
    pages: usize,
    page: usize,
    what: &str,
) -> Result<Vec<u64>, Error> {
    let pagemap = Pagemap::open(files, "self").map_err(|e| match e.errno() {
        Some(libc::EACCES | libc::EPERM) => refused(what, "the file may not be opened"),
        _ => Error::File(e),
    })?;
    let mut entries = vec![Page::default(); pages];
    let read = pagemap.read((start / page) as u64, &mut entries)?;
    entries
        .iter()
        .enumerate()
        .map(|(n, entry)| {
            if n >= read || !entry.is_present() {
                return Err(Error::refused(
                    what,
                    "a page of the buffer is not in memory",
                    "free some memory, or switch swapping off",
                ));
            }
            match entry.frame() {
                0 => Err(refused(what, "every page seems to lie in frame 0")),
                frame => Ok(frame * page as u64),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use quell_kernel::root::Kernel;

    use super::*;

    const PRESENT: u64 = 1 << 63;

    fn written(entries: &[u64]) -> (tempfile::TempDir, Kernel) {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("proc/self")).unwrap();
        let bytes: Vec<u8> = entries.iter().flat_map(|e| e.to_ne_bytes()).collect();
        std::fs::write(root.path().join("proc/self/pagemap"), bytes).unwrap();
        let kernel = Kernel::at(root.path());
        (root, kernel)
    }

    #[test]
    fn a_page_lies_where_its_entry_says() {
        // Soft-dirty and exclusively mapped, as the kernel marks a fresh page.
        let flags = PRESENT | 1 << 55 | 1 << 56;
        let (_root, kernel) = written(&[0, flags | 0x1234, flags | 7]);
        let found = addresses(&kernel, 4096, 2, 4096, "a test").unwrap();
        assert_eq!(found, [0x0123_4000, 0x7000]);
    }

    #[test]
    fn hidden_and_missing_pages_are_refused_with_the_reason() {
        let (_root, kernel) = written(&[PRESENT, 0]);
        let said = |page: usize| {
            addresses(&kernel, page * 4096, 1, 4096, "a test")
                .unwrap_err()
                .to_string()
        };
        assert!(said(0).contains("CAP_SYS_ADMIN"), "{}", said(0));
        assert!(said(1).contains("not in memory"), "{}", said(1));
        assert!(said(2).contains("not in memory"), "{}", said(2));
        let none = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(none.path().join("proc/self")).unwrap();
        let none = Kernel::at(none.path());
        let said = addresses(&none, 0, 1, 4096, "a test")
            .unwrap_err()
            .to_string();
        assert!(said.contains("CONFIG_PROC_PAGE_MONITOR"), "{said}");
    }
}
