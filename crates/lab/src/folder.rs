//! A folder for one run, within another folder. It is removed with the run. The folder of a killed
//! run is removed by the next run.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::Error;

/// A file that is locked while the run lasts.
const ALIVE: &str = "alive";

/// The folder, removed on drop.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    _alive: fs::File,
}

impl Folder {
    /// Makes a new folder in an existing one. `kind` is how its name begins. Folders of killed runs
    /// with such names are removed.
    ///
    /// # Errors
    /// Names the path that failed.
    pub fn new(within: &Path, kind: &str) -> Result<Self, Error> {
        sweep(within, kind);
        let mut number = 0u32;
        loop {
            let path = within.join(format!("{kind}-{}-{number}", std::process::id()));
            number += 1;
            match fs::create_dir(&path) {
                Ok(()) => {}
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => continue,
                Err(e) => return Err(at(&path, e)),
            }
            let alive = fs::File::create(path.join(ALIVE)).map_err(|e| at(&path, e))?;
            flock(&alive, FlockOperation::LockExclusive).map_err(|e| at(&path, e.into()))?;
            // Another process may have swept the folder in between.
            if path.join(ALIVE).exists() {
                return Ok(Self {
                    path,
                    _alive: alive,
                });
            }
        }
    }

    /// The path of a file in it.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file into the folder.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        fs::write(self.path(name), bytes).map_err(|e| at(&self.path(name), e))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes the folders of killed runs. Where other users write, too, only folders of this user are
/// touched.
fn sweep(within: &Path, kind: &str) {
    let beginning = format!("{kind}-");
    let entries = fs::read_dir(within).into_iter().flatten().flatten();
    for path in entries.map(|e| e.path()) {
        let ours = path
            .file_name()
            .is_some_and(|n| n.to_string_lossy().starts_with(&beginning));
        let Some(alive) = ours.then(|| left(&path)).flatten() else {
            continue;
        };
        if flock(&alive, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

/// The lock file of a run's folder, if the folder belongs to this user.
fn left(path: &Path) -> Option<OwnedFd> {
    use rustix::fs::{Mode, OFlags, fstat, open, openat};
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let folder = open(path, flags | OFlags::DIRECTORY, Mode::empty()).ok()?;
    let mine = fstat(&folder).ok()?.st_uid == rustix::process::geteuid().as_raw();
    mine.then(|| openat(&folder, ALIVE, flags, Mode::empty()).ok())
        .flatten()
}

/// An error with the path that failed.
pub(crate) fn at(path: &Path, e: std::io::Error) -> Error {
    Error::Failed(format!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_dead_runs_go_and_those_of_live_ones_stay() {
        let cache = tempfile::tempdir().unwrap();
        let dead = cache.path().join("run-1-0");
        fs::create_dir(&dead).unwrap();
        fs::write(dead.join(ALIVE), "").unwrap();
        let other = cache.path().join("kernel-7.2");
        fs::create_dir(&other).unwrap();
        // Not the folder of a run: a link to a folder elsewhere.
        let aside = tempfile::tempdir().unwrap();
        fs::write(aside.path().join(ALIVE), "").unwrap();
        let link = cache.path().join("run-2-0");
        std::os::unix::fs::symlink(aside.path(), &link).unwrap();
        let one = Folder::new(cache.path(), "run").unwrap();
        assert!(!dead.exists() && other.exists());
        assert!(link.exists() && aside.path().join(ALIVE).exists());
        let two = Folder::new(cache.path(), "run").unwrap();
        assert!(one.path("").exists() && two.path("").exists());
        assert_ne!(one.path(""), two.path(""));
        let path = one.path("");
        drop(one);
        assert!(!path.exists() && two.path("").exists());
    }
}
