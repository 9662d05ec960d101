//! A kernel file that a loop reads again and again: it is opened once, and read into a buffer that
//! stays.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::error::{Error, Result};
use crate::root::{Access, Files, gone};

/// Bytes read at once: more than `memory.stat` and `/proc/vmstat` have.
const SIZE: usize = 16 << 10;
/// The most that the buffer grows to, for a longer text.
const MOST: usize = 16 << 20;

/// A file that is kept open where the root has descriptors, and otherwise read by its path.
#[derive(Debug)]
pub struct CachedFile {
    path: String,
    file: Option<File>,
    buffer: Vec<u8>,
    renewed: bool,
}

impl CachedFile {
    /// Opens a file. `None` where it is not there.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn open(files: &dyn Files, path: &str) -> Result<Option<Self>> {
        if !files.exists(path) {
            return Ok(None);
        }
        let file = match files.open(path, Access::Read) {
            Ok(file) => file,
            Err(e) if gone(&e) => return Ok(None),
            Err(e) => return Err(Error::file("open", path, None, e)),
        };
        Ok(Some(Self {
            path: path.to_owned(),
            file,
            buffer: vec![0; SIZE],
            renewed: false,
        }))
    }

    /// The path that it was opened with.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether the file was opened again since the last call. Then its cgroup was removed and made
    /// again, without the values that were set.
    pub fn renewed(&mut self) -> bool {
        std::mem::take(&mut self.renewed)
    }

    /// The present text, trimmed. `None` where the file is gone (its cgroup was removed, and not
    /// made again). Text beyond 16 MiB, and text after bytes that are no UTF-8, is left out.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn text(&mut self, files: &dyn Files) -> Result<Option<&str>> {
        let mut length = match &self.file {
            Some(file) => fill(file, &mut self.buffer),
            None => files.read(&self.path).map(|text| {
                let length = text.len().min(MOST);
                self.buffer.resize(length.max(SIZE), 0);
                self.buffer[..length].copy_from_slice(&text.as_bytes()[..length]);
                length
            }),
        };
        if matches!(&length, Err(e) if gone(e)) && self.file.is_some() {
            // A unit that is restarted has another cgroup of the same name.
            length = files.open(&self.path, Access::Read).and_then(|file| {
                let file = file.ok_or_else(|| std::io::Error::from_raw_os_error(libc::ENOENT))?;
                let length = fill(&file, &mut self.buffer)?;
                self.file = Some(file);
                self.renewed = true;
                Ok(length)
            });
        }
        let length = match length {
            Ok(length) => length,
            Err(e) if gone(&e) => return Ok(None),
            Err(e) => return Err(Error::file("read", &self.path, None, e)),
        };
        let text = match std::str::from_utf8(&self.buffer[..length]) {
            Ok(text) => text,
            Err(e) => std::str::from_utf8(&self.buffer[..e.valid_up_to()]).unwrap_or_default(),
        };
        Ok(Some(text.trim()))
    }
}

/// Reads once from the beginning, where the kernel generates the text of such a file in one piece
/// (`single_open`). A second read for the end of file would generate all of it again.
fn fill(file: &File, buffer: &mut Vec<u8>) -> std::io::Result<usize> {
    loop {
        match file.read_at(buffer, 0) {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            // There may be more than fits.
            Ok(length) if length == buffer.len() && length < MOST => {
                buffer.resize(4 * length, 0);
            }
            read => return read,
        }
    }
}

/// The number after a key, in files of lines `KEY NUMBER` (`memory.stat`, `memory.events`,
/// `/proc/vmstat`).
#[must_use]
pub fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let rest = line.strip_prefix(key)?.strip_prefix(' ')?;
        rest.trim().parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Kernel;

    #[test]
    fn a_kept_file_is_read_anew_each_time() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Kernel::at(dir.path());
        assert!(CachedFile::open(&kernel, "/x").unwrap().is_none());
        std::fs::write(dir.path().join("x"), "low 1\nhigh 22\n").unwrap();
        let mut kept = CachedFile::open(&kernel, "/x").unwrap().unwrap();
        let high = |k: &mut CachedFile| keyed(k.text(&kernel).unwrap().unwrap(), "high");
        assert_eq!(high(&mut kept), Some(22));
        std::fs::write(dir.path().join("x"), "high 3\n").unwrap();
        assert_eq!(high(&mut kept), Some(3));
        let long = "low 1\n".repeat(10_000) + "high 4\n";
        std::fs::write(dir.path().join("x"), long).unwrap();
        assert_eq!(high(&mut kept), Some(4));
        assert_eq!(keyed("highest 4", "high"), None);
    }

    #[test]
    fn a_file_that_was_removed_and_made_again_is_read() {
        // An ended process stands in for a removed cgroup: its file stays open, and has no content.
        let mut child = std::process::Command::new("sleep")
            .arg("100")
            .spawn()
            .unwrap();
        let path = format!("/proc/{}/stat", child.id());
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("x"), "new").unwrap();
        let kernel = Kernel::at(dir.path());
        let mut kept = CachedFile::open(&kernel, "/x").unwrap().unwrap();
        kept.file = Some(File::open(path).unwrap());
        assert!(kept.text(&kernel).unwrap().unwrap().contains("sleep"));
        assert!(!kept.renewed());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(kept.text(&kernel).unwrap(), Some("new"));
        assert!(kept.renewed() && !kept.renewed());
        kept.file = None;
        std::fs::remove_file(dir.path().join("x")).unwrap();
        assert_eq!(kept.text(&kernel).unwrap(), None);
    }
}
