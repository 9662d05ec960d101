//! One Quell at a time: an exclusive `flock(2)` on `/run/quell/lock`. The watchdog inherits it, so
//! that no other Quell starts while a dead run is still being undone.

use std::fs::{self, File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;

use quell_kernel::error::{Error, Result};

/// The folder of all runs and of the lock.
pub const RUN_ROOT: &str = "/run/quell";
/// The lock's name there. Root alone may open it: `flock` needs no right to write, so another user
/// could otherwise keep Quell from starting.
pub const FILE: &str = "lock";
/// The file next to it that names the process which took the lock last (`process PID (TEXT)`).
/// Every user may read it. It stays when the lock is released.
pub const HOLDER: &str = "holder";

/// The lock, held as long as this (or an inherited copy of it) is open.
#[derive(Debug)]
pub struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    /// Takes the lock in `run_root` (normally [`RUN_ROOT`]; made if missing). `who` is the text in
    /// parentheses of the file [`HOLDER`].
    ///
    /// # Errors
    /// [`Error::Refused`] with the text of [`HOLDER`]; [`Error::File`].
    pub fn acquire(run_root: &Path, who: &str) -> Result<Self> {
        Self::acquire_within(run_root, who, Duration::ZERO)
    }

    /// Takes the lock as [`Self::acquire`], trying again every 10 ms for `patience`.
    ///
    /// # Errors
    /// As [`Self::acquire`].
    pub fn acquire_within(run_root: &Path, who: &str, patience: Duration) -> Result<Self> {
        make_dir(run_root)?;
        let path = run_root.join(FILE);
        let failed = |action, e| Error::file(action, &path.to_string_lossy(), None, e);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|e| failed("open", e))?;
        // An earlier version made it readable for every user.
        file.set_permissions(fs::Permissions::from_mode(0o600))
            .map_err(|e| failed("set mode 0600 of", e))?;
        let holder = run_root.join(HOLDER);
        let started = Instant::now();
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(rustix::io::Errno::WOULDBLOCK) if started.elapsed() < patience => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let holder = fs::read_to_string(&holder).unwrap_or_default();
                    let holder = holder.trim();
                    let holder = if holder.is_empty() {
                        "a process that has just started"
                    } else {
                        holder
                    };
                    return Err(Error::refused_with(
                        format!(
                            "another Quell holds {}: {holder}, or its watchdog",
                            path.display()
                        ),
                        "wait until it has ended, or end it; quell status shows what it does",
                    ));
                }
                Err(e) => return Err(failed("lock", e.into())),
            }
        }
        let text = format!("process {} ({who})\n", std::process::id());
        fs::write(&holder, text)
            .and_then(|()| fs::set_permissions(&holder, fs::Permissions::from_mode(0o644)))
            .map_err(|e| Error::file("write", &holder.to_string_lossy(), None, e))?;
        Ok(Self { file, path })
    }

    /// Process id of the Quell that took the lock in `run_root` last, if a process of that id and
    /// name runs and is not this one. It may have released the lock. Reading takes no lock, so it
    /// keeps no other process from it. `None` where only the watchdog holds the lock.
    #[must_use]
    pub fn holder(run_root: &Path) -> Option<u32> {
        let text = fs::read_to_string(run_root.join(HOLDER)).ok()?;
        let pid = text.strip_prefix("process ")?.split(' ').next()?;
        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        let pid: u32 = pid.parse().ok()?;
        (comm.trim() == "quell" && pid != std::process::id()).then_some(pid)
    }

    /// A copy that also holds the lock, for the watchdog.
    ///
    /// # Errors
    /// [`Error::File`] when the process has no file descriptor left.
    pub fn share(&self) -> Result<OwnedFd> {
        let copy = self.file.try_clone();
        copy.map(OwnedFd::from)
            .map_err(|e| Error::file("share", &self.path.to_string_lossy(), None, e))
    }
}

/// Makes the folder of all runs, or of one, with mode 0755. One that exists is left as it is.
///
/// # Errors
/// [`Error::File`].
pub fn make_dir(dir: &Path) -> Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(dir);
    // Whatever the umask: programs of every user connect to Quell in this folder.
    let open = || fs::set_permissions(dir, fs::Permissions::from_mode(0o755));
    made.and_then(|()| open())
        .map_err(|e| Error::file("make", &dir.to_string_lossy(), None, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_who_holds_it_and_gets_it_afterwards() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("quell");
        let first = Lock::acquire(&root, "run r1").unwrap();
        let error = Lock::acquire(&root, "run r2").unwrap_err().to_string();
        assert!(
            error.contains(&format!("process {} (run r1)", std::process::id())),
            "{error}"
        );
        drop(first);
        assert!(Lock::acquire(&root, "run r2").is_ok());
    }

    #[test]
    fn another_user_can_read_who_holds_it_and_not_open_it() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |name| {
            let about = fs::metadata(dir.path().join(name)).unwrap();
            about.permissions().mode() & 0o777
        };
        // As an earlier version made it.
        fs::write(dir.path().join(FILE), "").unwrap();
        fs::set_permissions(dir.path().join(FILE), fs::Permissions::from_mode(0o644)).unwrap();
        let _lock = Lock::acquire(dir.path(), "run r1").unwrap();
        assert_eq!((mode(FILE), mode(HOLDER)), (0o600, 0o644));
    }

    #[test]
    fn an_inherited_copy_keeps_it() {
        let dir = tempfile::tempdir().unwrap();
        let lock = Lock::acquire(dir.path(), "run r1").unwrap();
        let copy = lock.share().unwrap();
        drop(lock);
        assert!(Lock::acquire(dir.path(), "run r2").is_err());
        drop(copy);
        assert!(Lock::acquire(dir.path(), "run r2").is_ok());
    }
}
