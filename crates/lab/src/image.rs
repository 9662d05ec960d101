//! The guest's file system, held in its memory. It is an archive in the form that the kernel
//! unpacks at its start ("newc"; the kernel's `early-userspace/buffer-format`). It has busybox, the
//! programs that were asked for, and the libraries that they name.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;

/// The contents of an archive, by path without the leading slash.
#[derive(Debug, Default)]
pub struct Image {
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug)]
enum Entry {
    Directory,
    File { mode: u32, bytes: Vec<u8> },
    Link { target: String },
}

impl Image {
    /// Adds a file, and its directories.
    pub fn file(&mut self, path: &str, mode: u32, bytes: Vec<u8>) {
        self.add(path, Entry::File { mode, bytes });
    }

    /// Adds a symbolic link to `target`.
    pub fn link(&mut self, path: &str, target: &str) {
        let target = target.to_owned();
        self.add(path, Entry::Link { target });
    }

    /// Adds an empty directory, and its parents.
    pub fn directory(&mut self, path: &str) {
        self.add(path, Entry::Directory);
    }

    /// Whether the archive has this path.
    #[must_use]
    pub fn has(&self, path: &str) -> bool {
        self.entries.contains_key(path.trim_matches('/'))
    }

    fn add(&mut self, path: &str, entry: Entry) {
        let path = path.trim_matches('/');
        for (at, _) in path.match_indices('/') {
            self.entries
                .entry(path[..at].to_owned())
                .or_insert(Entry::Directory);
        }
        self.entries.insert(path.to_owned(), entry);
    }

    /// Adds a file or a directory of this machine, unchanged, at a path of the guest's.
    ///
    /// # Errors
    /// Names what cannot be read.
    pub fn copy(&mut self, from: &Path, to: &str) -> Result<(), Error> {
        let failed = |e: std::io::Error| Error::Input(format!("{}: {e}", from.display()));
        let meta = fs::metadata(from).map_err(failed)?;
        if !meta.is_dir() {
            let bytes = fs::read(from).map_err(failed)?;
            self.file(to, meta.permissions().mode() & 0o777, bytes);
            return Ok(());
        }
        self.directory(to);
        let mut names: Vec<_> = fs::read_dir(from)
            .map_err(failed)?
            .collect::<Result<_, _>>()
            .map_err(failed)?;
        names.sort_by_key(fs::DirEntry::file_name);
        for name in names {
            let below = format!("{to}/{}", name.file_name().to_string_lossy());
            self.copy(&name.path(), &below)?;
        }
        Ok(())
    }

    /// Adds a program of this machine, and the libraries it names, at a path of the guest's. Parts
    /// that only debuggers read are left out: they would take the guest's memory.
    ///
    /// # Errors
    /// Names what cannot be read.
    pub fn program(&mut self, from: &Path, to: &str) -> Result<(), Error> {
        self.copy(from, to)?;
        if let Some(Entry::File { bytes, .. }) = self.entries.get_mut(to.trim_matches('/')) {
            keep_loaded(bytes);
        }
        for library in libraries(from) {
            let path = library.to_string_lossy().into_owned();
            if !self.has(&path) {
                self.copy(&library, &path)?;
            }
        }
        Ok(())
    }

    /// The bytes of the archive.
    #[must_use]
    pub fn archive(&self) -> Vec<u8> {
        const DIRECTORY: u32 = 0o040_000;
        const FILE: u32 = 0o100_000;
        const LINK: u32 = 0o120_000;
        let mut out = Vec::new();
        for (n, (path, entry)) in (1..).zip(&self.entries) {
            let (mode, bytes) = match entry {
                Entry::Directory => (DIRECTORY | 0o755, &[][..]),
                Entry::File { mode, bytes } => (FILE | mode, &bytes[..]),
                Entry::Link { target } => (LINK | 0o777, target.as_bytes()),
            };
            record(&mut out, n, mode, path, bytes);
        }
        record(&mut out, 0, 0, "TRAILER!!!", &[]);
        out
    }
}

fn record(out: &mut Vec<u8>, inode: u32, mode: u32, path: &str, bytes: &[u8]) {
    let links = 1;
    let fields = [
        inode,
        mode,
        0,
        0,
        links,
        0,
        u32::try_from(bytes.len()).unwrap_or(u32::MAX),
        0,
        0,
        0,
        0,
        u32::try_from(path.len() + 1).unwrap_or(u32::MAX),
        0,
    ];
    out.extend(b"070701");
    for field in fields {
        out.extend(format!("{field:08x}").as_bytes());
    }
    out.extend(path.as_bytes());
    out.push(0);
    out.resize(out.len().next_multiple_of(4), 0);
    out.extend(bytes);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Cuts a program off behind its loaded segments (elf(5)). The sections behind are symbols and
/// lines for debuggers. A file is unchanged if it is no 64-bit program of this byte order, or has
/// data of its own behind its sections.
fn keep_loaded(bytes: &mut Vec<u8>) {
    const IDENTITY: &[u8] = b"\x7fELF\x02\x01";
    let number = |at: usize, wide: usize| {
        let field = bytes.get(at..at + wide)?;
        let value = field.iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
        usize::try_from(value).ok()
    };
    let end = || {
        let (segments, sections) = (number(0x20, 8)?, number(0x28, 8)?);
        let (size, count) = (number(0x36, 2)?, number(0x38, 2)?);
        let last = number(0x3a, 2)? * number(0x3c, 2)?;
        if !bytes.starts_with(IDENTITY) || sections.checked_add(last)? != bytes.len() {
            return None;
        }
        let mut end = segments.checked_add(size * count)?;
        for n in 0..count {
            let at = segments + n * size;
            end = end.max(number(at + 0x8, 8)?.checked_add(number(at + 0x20, 8)?)?);
        }
        (end <= sections).then_some(end)
    };
    let Some(end) = end() else {
        return;
    };
    bytes.truncate(end);
    // No sections: clears their offset, their number, and the index of their names.
    for field in [0x28..0x30, 0x3c..0x40] {
        bytes[field].fill(0);
    }
}

/// The libraries that a program of this machine names, its loader included, as `ldd` finds them.
/// Empty for files that are no such program.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let Ok(said) = Command::new("ldd").arg(program).output() else {
        return Vec::new();
    };
    let said = String::from_utf8_lossy(&said.stdout);
    let paths = said.lines().filter_map(|line| {
        let path = line.split("=>").last()?.split_whitespace().next()?;
        path.starts_with('/').then(|| PathBuf::from(path))
    });
    paths.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_are_what_cpio_reads() {
        let mut image = Image::default();
        image.file("/lab/deep/words", 0o644, b"one two".to_vec());
        image.link("/bin/sh", "busybox");
        image.directory("proc");
        let archive = image.archive();
        assert!(archive.len().is_multiple_of(4) && archive.starts_with(b"070701"));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("archive");
        fs::write(&file, &archive).unwrap();
        let listed = Command::new("cpio")
            .args(["-i", "--quiet", "--no-absolute-filenames", "-F"])
            .arg(&file)
            .current_dir(folder.path())
            .status();
        let Ok(listed) = listed else {
            quell_testing::skip("no cpio here to read it");
            return;
        };
        assert!(listed.success());
        let words = folder.path().join("lab/deep/words");
        assert_eq!(fs::read(words).unwrap(), b"one two");
        let sh = fs::read_link(folder.path().join("bin/sh")).unwrap();
        assert_eq!(sh, Path::new("busybox"));
    }

    #[test]
    fn a_program_runs_without_what_debuggers_read() {
        let folder = tempfile::tempdir().unwrap();
        let own = std::env::current_exe().unwrap();
        let mut image = Image::default();
        image.program(&own, "/own").unwrap();
        let Some(Entry::File { bytes, .. }) = image.entries.get("own") else {
            panic!("no program");
        };
        assert!((bytes.len() as u64) < fs::metadata(&own).unwrap().len());
        let copy = folder.path().join("own");
        fs::write(&copy, bytes).unwrap();
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
        let listed = Command::new(&copy).arg("--list").output().unwrap();
        assert!(listed.status.success());
        assert!(String::from_utf8_lossy(&listed.stdout).contains("a_program_runs_without"));

        // A file that is no program, is cut short, or has data of its own.
        let mut carries = fs::read(&own).unwrap();
        carries.extend(b"of its own");
        for same in [b"#!/bin/sh\n".to_vec(), carries[..0x30].to_vec(), carries] {
            let mut kept = same.clone();
            keep_loaded(&mut kept);
            assert!(kept == same);
        }
    }

    #[test]
    fn a_program_comes_with_its_loader() {
        let mut image = Image::default();
        image.program(Path::new("/bin/sh"), "/bin/sh").unwrap();
        assert!(
            image.entries.keys().any(|path| path.contains("ld-linux")),
            "{:?}",
            image.entries.keys()
        );
        let e = image.program(Path::new("/no/such"), "/x").unwrap_err();
        assert!(e.to_string().contains("/no/such"), "{e}");
    }
}
