//! The undo journal: what has to be reverted, recorded before it is done, in a file that outlives
//! the process.
//!
//! It has one JSON object per line, each with a checksum over its content. A header names the boot,
//! the run and the main process. [`crate::undo`] reverts the entries.
//!
//! The journal has to survive the *process*, not the machine: kernel state dies with the boot, and
//! so does the need to undo it. So `write(2)` into the page cache is enough, and there is no
//! `fsync`. Space is reserved up front, so that a full disk is noticed before anything has been
//! changed.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quell_kernel::error::{Error, Result};
use quell_kernel::rt;
use quell_types::journal::Undo;
use quell_types::task::TaskId;
use serde::{Deserialize, Serialize};

use crate::fault;
use crate::lease::Lease;

mod found;

pub use found::{Found, open, parse, read};
pub(crate) use found::{read_open, trusted};

/// The file's name in the folder of a run.
pub const FILE: &str = "journal";
/// The name of a file that is about to replace [`FILE`].
pub const NEXT: &str = "journal-next";
/// Version of the journal's format, in [`Header::version`].
pub const VERSION: u32 = 1;
/// Bytes reserved beyond the last entry: about a thousand moves.
const RESERVE: u64 = 256 << 10;

/// The first line of a journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Header {
    /// Version of the format; [`VERSION`] when written.
    pub version: u32,
    /// Id of the boot in which the changes were made.
    pub boot: String,
    /// Name of the run, as its folder's.
    pub run: String,
    /// The main process, which made the changes.
    pub main: TaskId,
}

/// A point in the journal to undo back to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(usize);

/// The journal of a running process.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    header: Header,
    entries: Vec<Undo>,
    /// Offsets in the file at which the header (first) and each entry end.
    ends: Vec<u64>,
    reserved: u64,
    lease: Option<Arc<Lease>>,
}

impl Journal {
    /// Begins a journal in the run's folder `dir`, which has to exist.
    ///
    /// # Errors
    /// [`Error::File`] when the file exists already, cannot be made, or its space cannot be
    /// reserved.
    pub fn create(dir: &Path, header: Header) -> Result<Self> {
        Self::create_at(dir.join(FILE), header)
    }

    fn create_at(path: PathBuf, header: Header) -> Result<Self> {
        let failed = |action, e| Error::file(action, &path.to_string_lossy(), None, e);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(|e| failed("make", e))?;
        let mut journal = Self {
            path: path.clone(),
            file,
            header,
            entries: Vec::new(),
            ends: Vec::new(),
            reserved: 0,
            lease: None,
        };
        journal.reserve(RESERVE)?;
        let line = seal("header", &journal.header);
        journal
            .file
            .write_all_at(line.as_bytes(), 0)
            .map_err(|e| failed("write", e))?;
        journal.ends.push(line.len() as u64);
        Ok(journal)
    }

    /// Once the lease is revoked, nothing is recorded any more, and so nothing changed. The
    /// watchdog has undone everything then, and a later change would stay. Until then every change
    /// made or reverted renews the heartbeat. A process that gets on with its work does not hang,
    /// however slow the machine.
    pub fn bind(&mut self, lease: Arc<Lease>) {
        self.lease = Some(lease);
    }

    /// Path of the journal's file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The header as it was written to the file.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// What would be undone, oldest first.
    #[must_use]
    pub fn entries(&self) -> &[Undo] {
        &self.entries
    }

    /// Records one change that is about to be made.
    ///
    /// # Errors
    /// As [`Self::record_all`].
    pub fn record(&mut self, entry: &Undo) -> Result<()> {
        self.record_all(std::slice::from_ref(entry))
    }

    /// Records changes that are about to be made, with one write for all of them.
    ///
    /// # Errors
    /// [`Error::File`] when they cannot be written, [`Error::Refused`] when the lease was revoked.
    /// None of the changes may then be made.
    pub fn record_all(&mut self, entries: &[Undo]) -> Result<()> {
        fault::boundary();
        self.still_ours()?;
        let mut end = self.end();
        let mut text = String::new();
        let mut ends = Vec::with_capacity(entries.len());
        for entry in entries {
            let line = seal("undo", entry);
            end += line.len() as u64;
            ends.push(end);
            text.push_str(&line);
        }
        if end > self.reserved {
            self.reserve(end + RESERVE)?;
        }
        self.file
            .write_all_at(text.as_bytes(), self.end())
            .map_err(|e| Error::file("write", &self.path.to_string_lossy(), None, e))?;
        self.ends.extend(ends);
        self.entries.extend_from_slice(entries);
        beat(self.lease.as_ref());
        fault::boundary();
        Ok(())
    }

    /// The present end of the journal, for [`Self::since`] and for undoing back to it.
    #[must_use]
    pub fn mark(&self) -> Mark {
        Mark(self.entries.len())
    }

    /// What was recorded since `mark`, oldest first.
    #[must_use]
    pub fn since(&self, mark: Mark) -> &[Undo] {
        self.entries.get(mark.0..).unwrap_or_default()
    }

    /// Forgets what was recorded since `mark` without reverting it, because the kernel refused the
    /// change.
    ///
    /// # Errors
    /// [`Error::File`] when the file cannot be shortened.
    pub fn retract(&mut self, mark: Mark) -> Result<()> {
        self.replace(mark, &[])
    }

    /// Forgets the newest entry if it is this one. Returns whether it was.
    ///
    /// # Errors
    /// As [`Self::retract`].
    pub fn retract_last(&mut self, entry: &Undo) -> Result<bool> {
        if self.entries.last() != Some(entry) {
            return Ok(false);
        }
        self.retract(Mark(self.entries.len() - 1))?;
        Ok(true)
    }

    /// Renews the heartbeat in the middle of slow work.
    pub(crate) fn beat(&self) {
        beat(self.lease.as_ref());
    }

    /// Removes the file.
    ///
    /// # Errors
    /// [`Error::Refused`] while anything is recorded; [`Error::File`].
    pub fn clear(self) -> Result<()> {
        if !self.entries.is_empty() {
            return Err(Error::refused_with(
                format!("{} changes are not undone yet", self.entries.len()),
                "run quell restore",
            ));
        }
        match std::fs::remove_file(&self.path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(Error::file("remove", &self.path.to_string_lossy(), None, e))
            }
            _ => Ok(()),
        }
    }

    fn end(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Forgets what was recorded since `mark`, except for entries that could not be reverted.
    pub(crate) fn replace(&mut self, mark: Mark, failed: &[Undo]) -> Result<()> {
        self.entries.truncate(mark.0);
        self.ends.truncate(mark.0 + 1);
        let end = self.end();
        self.file
            .set_len(end)
            .map_err(|e| Error::file("shorten", &self.path.to_string_lossy(), None, e))?;
        self.reserved = 0;
        self.reserve(end + RESERVE)?;
        if failed.is_empty() {
            return Ok(());
        }
        let lease = self.lease.take();
        let kept = self.record_all(failed);
        self.lease = lease;
        kept
    }

    /// Forgets entries since `mark` that are not to be kept, without reverting them. The file is
    /// replaced as a whole: whoever reads it finds the old entries or the new ones.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Refused`] when the lease was revoked. The journal is as before
    /// then.
    pub fn rewrite(&mut self, mark: Mark, keep: &dyn Fn(&Undo) -> bool) -> Result<()> {
        self.still_ours()?;
        let (before, since) = self.entries.split_at(mark.0.min(self.entries.len()));
        let since = since.iter().filter(|entry| keep(entry));
        let entries: Vec<Undo> = before.iter().chain(since).cloned().collect();
        let dir = self.path.parent().unwrap_or(Path::new("."));
        let beside = dir.join(NEXT);
        // What an attempt that failed has left.
        let _ = std::fs::remove_file(&beside);
        let mut next = Self::create_at(beside.clone(), self.header.clone())?;
        next.record_all(&entries)?;
        self.still_ours()?;
        std::fs::rename(&beside, &self.path)
            .map_err(|e| Error::file("replace", &self.path.to_string_lossy(), None, e))?;
        fault::boundary();
        self.file = next.file;
        self.entries = next.entries;
        self.ends = next.ends;
        self.reserved = next.reserved;
        Ok(())
    }

    fn still_ours(&self) -> Result<()> {
        match self.lease.as_ref().is_some_and(|l| l.is_revoked()) {
            true => Err(Error::refused_with(
                "the watchdog has revoked this run and undone its changes (the process was stopped or hung)",
                "start it again",
            )),
            false => Ok(()),
        }
    }

    fn reserve(&mut self, bytes: u64) -> Result<()> {
        // The file's length stays what was written, so that a reader meets no zeros.
        match rustix::fs::fallocate(&self.file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, bytes) {
            // Some file systems cannot reserve. There the write before each change is the check.
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
                self.reserved = bytes;
                Ok(())
            }
            Err(e) => Err(Error::file(
                "reserve space for",
                &self.path.to_string_lossy(),
                None,
                e.into(),
            )),
        }
    }
}

fn beat(lease: Option<&Arc<Lease>>) {
    if let Some(lease) = lease {
        lease.beat(rt::now());
    }
}

const SUM: &str = "{\"sum\":\"";

/// One line: `{"sum":"<16 hex digits>","<key>":<content>}`.
fn seal<T: Serialize>(key: &str, content: &T) -> String {
    let json = serde_json::to_string(content).unwrap_or_default();
    format!(
        "{SUM}{:016x}\",\"{key}\":{json}}}\n",
        checksum(json.as_bytes())
    )
}

fn unseal<T: for<'a> Deserialize<'a>>(key: &str, line: &str) -> Option<T> {
    let rest = line.strip_prefix(SUM)?;
    let sum = u64::from_str_radix(rest.get(..16)?, 16).ok()?;
    let json = rest
        .get(16..)?
        .strip_prefix("\",\"")?
        .strip_prefix(key)?
        .strip_prefix("\":")?
        .strip_suffix('}')?;
    (checksum(json.as_bytes()) == sum).then(|| serde_json::from_str(json).ok())?
}

/// FNV-1a, 64 bits (draft-eastlake-fnv): enough to notice a torn or overwritten line.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, b| {
        (sum ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use quell_kernel::root::Kernel;
    use quell_types::units::Nanos;

    use super::*;
    use crate::known::Known;

    pub(crate) fn header() -> Header {
        Header {
            version: VERSION,
            boot: "b00t".into(),
            run: "r1".into(),
            main: TaskId { pid: 1, start: 2 },
        }
    }

    fn found(journal: &Journal) -> Found {
        read(journal.path(), &Known::here(&Kernel::at("/nowhere"))).unwrap()
    }

    fn write(path: &str, old: &str, new: &str) -> Undo {
        Undo::Write {
            path: format!("/proc/sys/vm{path}"),
            old: old.into(),
            new: new.into(),
        }
    }

    #[test]
    fn what_is_recorded_can_be_read_by_another_process() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::create(dir.path(), header()).unwrap();
        journal.record(&write("/a", "1", "2")).unwrap();
        journal
            .record_all(&[write("/b", "\"\n", "4"), write("/c", "", "6")])
            .unwrap();
        let found = found(&journal);
        assert_eq!(found.header, Some(header()));
        assert_eq!(found.entries, journal.entries());
        assert!(found.damaged.is_empty());
    }

    #[test]
    fn a_torn_last_line_is_ignored_and_a_damaged_one_reported() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::create(dir.path(), header()).unwrap();
        for path in ["/a", "/b", "/c"] {
            journal.record(&write(path, "1", "2")).unwrap();
        }
        let whole = std::fs::read(journal.path()).unwrap();
        // Torn anywhere in its last line: the two entries before it are all there is, and nothing
        // is reported.
        let last = whole[..whole.len() - 1]
            .iter()
            .rposition(|b| *b == b'\n')
            .unwrap()
            + 1;
        for end in last..whole.len() {
            std::fs::write(journal.path(), &whole[..end]).unwrap();
            let found = found(&journal);
            assert_eq!(
                (found.entries.len(), found.damaged.len()),
                (2, 0),
                "torn at {end}"
            );
        }
        // Any single damaged byte within the second entry is reported, and all other entries are
        // still there.
        let second = whole
            .iter()
            .enumerate()
            .filter(|(_, b)| **b == b'\n')
            .map(|(i, _)| i)
            .nth(1)
            .unwrap()
            + 1;
        for at in second..last - 1 {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            if bytes[at] == b'\n' {
                continue;
            }
            std::fs::write(journal.path(), &bytes).unwrap();
            let found = found(&journal);
            assert_eq!(
                (found.entries.len(), found.damaged.len()),
                (2, 1),
                "damaged at {at}"
            );
        }
    }

    #[test]
    fn undoing_restores_in_reverse_and_forgets() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Kernel::at(dir.path());
        let root = dir.path().join("proc/sys/vm");
        std::fs::create_dir_all(&root).unwrap();
        std::fs::write(root.join("x"), "3").unwrap();
        let mut journal = Journal::create(dir.path(), header()).unwrap();
        journal.record(&write("/x", "1", "2")).unwrap();
        let mark = journal.mark();
        journal.record(&write("/x", "2", "3")).unwrap();
        assert_eq!(journal.undo_to(&kernel, mark).restored, 1);
        assert_eq!(std::fs::read_to_string(root.join("x")).unwrap().trim(), "2");
        assert_eq!(found(&journal).entries.len(), 1);
        journal.record(&write("/x", "2", "3")).unwrap();
        std::fs::write(root.join("x"), "3").unwrap();
        assert_eq!(journal.undo_all(&kernel).restored, 2);
        assert_eq!(std::fs::read_to_string(root.join("x")).unwrap().trim(), "1");
        let path = journal.path().to_owned();
        journal.clear().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn what_is_forgotten_is_gone_and_the_rest_keeps_its_order() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::create(dir.path(), header()).unwrap();
        journal.record(&write("/first", "1", "2")).unwrap();
        let mark = journal.mark();
        for path in ["/a", "/gone", "/first", "/b"] {
            journal.record(&write(path, "1", "2")).unwrap();
        }
        let path_of = |entry: &Undo| match entry {
            Undo::Write { path, .. } => path.replace("/proc/sys/vm", ""),
            _ => String::new(),
        };
        // A file that a death in the middle has left is no hindrance.
        std::fs::write(dir.path().join(NEXT), "torn").unwrap();
        let keep = |entry: &Undo| !["/gone", "/first"].contains(&path_of(entry).as_str());
        journal.rewrite(mark, &keep).unwrap();
        journal.record(&write("/c", "1", "2")).unwrap();
        let found = found(&journal);
        assert_eq!(found.header.as_ref(), Some(&header()));
        assert_eq!(found.entries, journal.entries());
        let paths: Vec<String> = found.entries.iter().map(path_of).collect();
        assert_eq!(paths, ["/first", "/a", "/b", "/c"]);
        assert!(!dir.path().join(NEXT).exists());
    }

    #[test]
    fn a_revoked_journal_forgets_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let lease = Arc::new(Lease::create(dir.path(), 1, rt::now()).unwrap());
        let mut journal = Journal::create(dir.path(), header()).unwrap();
        journal.bind(Arc::clone(&lease));
        journal.record(&write("/a", "1", "2")).unwrap();
        let before = std::fs::read(journal.path()).unwrap();
        lease.revoke();
        journal.rewrite(Mark::default(), &|_| false).unwrap_err();
        assert_eq!(std::fs::read(journal.path()).unwrap(), before);
    }

    #[test]
    fn getting_on_with_the_work_keeps_the_heart_beating() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Kernel::at(dir.path());
        std::fs::create_dir_all(dir.path().join("proc/sys/vm")).unwrap();
        std::fs::write(dir.path().join("proc/sys/vm/x"), "2").unwrap();
        let lease = Arc::new(Lease::create(dir.path(), 1, rt::now()).unwrap());
        let mut journal = Journal::create(dir.path(), header()).unwrap();
        journal.bind(Arc::clone(&lease));
        let mut beats_at = |work: &mut dyn FnMut(&mut Journal)| {
            lease.beat(Nanos(1));
            work(&mut journal);
            assert_ne!(lease.last_beat(), Nanos(1));
        };
        beats_at(&mut |journal| journal.record(&write("/x", "1", "2")).unwrap());
        beats_at(&mut |journal| assert_eq!(journal.undo_all(&kernel).restored, 1));
    }

    #[test]
    fn a_full_disk_fails_before_the_change() {
        // /dev/full answers every write with ENOSPC. Space cannot be reserved there, so the write
        // is the check.
        let Ok(file) = OpenOptions::new().write(true).open("/dev/full") else {
            return quell_testing::skip("no /dev/full");
        };
        let mut journal = Journal {
            path: "/dev/full".into(),
            file,
            header: header(),
            entries: Vec::new(),
            ends: vec![0],
            reserved: u64::MAX,
            lease: None,
        };
        let error = journal.record(&write("/a", "1", "2")).unwrap_err();
        assert_eq!(error.errno(), Some(libc::ENOSPC));
        assert!(journal.entries().is_empty());
    }

    #[test]
    fn a_second_journal_in_the_same_folder_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let _first = Journal::create(dir.path(), header()).unwrap();
        assert_eq!(
            Journal::create(dir.path(), header()).unwrap_err().errno(),
            Some(libc::EEXIST)
        );
    }
}
