//! A journal as it is found on disk, whichever process wrote it.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use quell_kernel::error::{Error, Result};
use quell_types::journal::Undo;

use super::{FILE, Header, NEXT, seal, unseal};
use crate::known::Known;

/// The most bytes of a journal that is read: some million moves.
const MOST_BYTES: u64 = 1 << 30;

/// The content of a journal on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The header. `None` where it is torn or damaged.
    pub header: Option<Header>,
    /// The readable entries, oldest first.
    pub entries: Vec<Undo>,
    /// One sentence for each damaged line. A torn last line is not among them: its change was never
    /// made.
    pub damaged: Vec<String>,
    /// Those lines.
    rest: Vec<u8>,
}

impl Found {
    /// Takes entries that name what Quell never changes for damaged lines.
    fn believe(&mut self, known: &Known, path: &Path) {
        for entry in std::mem::take(&mut self.entries) {
            if let Some(stranger) = known.stranger(&entry) {
                let what = format!(
                    "{}: a line names {stranger:?}, which Quell never changes",
                    path.display()
                );
                self.damaged.push(what);
                self.rest.extend_from_slice(seal("undo", &entry).as_bytes());
            } else {
                self.entries.push(entry);
            }
        }
    }

    /// Leaves only the damaged lines in a journal whose other entries are reverted.
    pub(crate) fn keep_damaged(&self, dir: &Path) -> Result<()> {
        let beside = dir.join(NEXT);
        let failed = |e| Error::file("write", &beside.to_string_lossy(), None, e);
        let _ = std::fs::remove_file(&beside);
        let header = self.header.as_ref().map(|header| seal("header", header));
        let text = [header.unwrap_or_default().as_bytes(), &self.rest].concat();
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let file = options.open(&beside).map_err(failed)?;
        file.write_all_at(&text, 0).map_err(failed)?;
        std::fs::rename(&beside, dir.join(FILE)).map_err(failed)
    }
}

/// Opens a journal left by any process: a file of root or this user, which nobody else may write.
///
/// # Errors
/// [`Error::File`], [`Error::Refused`] for any other file.
pub fn open(path: &Path) -> Result<File> {
    let failed = |e| Error::file("read", &path.to_string_lossy(), None, e);
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(flags).open(path);
    let file = file.map_err(failed)?;
    let is = file.metadata().map_err(failed)?;
    if !is.is_file() || !trusted(&is) || is.len() > MOST_BYTES {
        return Err(Error::refused_with(
            format!(
                "{} is no journal that Quell wrote: user {} owns it, mode {:o}, {} bytes",
                path.display(),
                is.uid(),
                is.mode() & 0o7777,
                is.len()
            ),
            "find out who made it, and remove it",
        ));
    }
    Ok(file)
}

/// Whether a file or folder belongs to root or this user, and nobody else may change it.
pub(crate) fn trusted(is: &std::fs::Metadata) -> bool {
    const STICKY: u32 = 0o1000;
    let kept = is.mode() & 0o022 == 0 || is.is_dir() && is.mode() & STICKY != 0;
    [0, rustix::process::geteuid().as_raw()].contains(&is.uid()) && kept
}

/// Reads a journal left by any process. What names anything that is not `known` is damaged.
///
/// # Errors
/// As [`open`].
pub fn read(path: &Path, known: &Known) -> Result<Found> {
    read_open(&open(path)?, path, known)
}

/// Reads a journal that is open.
///
/// # Errors
/// [`Error::File`].
pub(crate) fn read_open(file: &File, path: &Path, known: &Known) -> Result<Found> {
    let failed = |e| Error::file("read", &path.to_string_lossy(), None, e);
    let length = file.metadata().map_err(failed)?.len().min(MOST_BYTES);
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
    file.read_exact_at(&mut bytes, 0).map_err(failed)?;
    let mut found = parse(&bytes, path);
    found.believe(known, path);
    Ok(found)
}

/// Reads the lines of a journal. `path` is for sentences about damaged ones.
#[must_use]
pub fn parse(bytes: &[u8], path: &Path) -> Found {
    let mut found = Found::default();
    let mut lines: Vec<&[u8]> = bytes.split(|b| *b == b'\n').collect();
    // After the last newline the file is empty, or has a line that was torn while it was written.
    lines.pop();
    for (i, line) in lines.iter().enumerate() {
        let whole = std::str::from_utf8(line).ok();
        let damage = if i == 0 {
            found.header = whole.and_then(|l| unseal("header", l));
            let damaged = found.header.is_none();
            damaged.then(|| "the header is damaged".to_owned())
        } else if let Some(entry) = whole.and_then(|l| unseal("undo", l)) {
            found.entries.push(entry);
            None
        } else {
            Some(format!(
                "line {} is damaged; its change cannot be undone",
                i + 1
            ))
        };
        if let Some(damage) = damage {
            found.damaged.push(format!("{}: {damage}", path.display()));
            found.rest.extend_from_slice(line);
            found.rest.push(b'\n');
        }
    }
    found
}
