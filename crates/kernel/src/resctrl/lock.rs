//! Cooperation with other tools: `flock(2)` on the mount point, shared to read more than one file,
//! exclusive to change (Documentation/filesystems/resctrl.rst, "Locking").

use std::fs::File;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;

use super::Resctrl;
use crate::error::{Error, Result};
use crate::root::{Access, Files};

/// How long to wait for another tool's lock. Tools hold it for milliseconds, and a heartbeat must
/// not be missed for it.
pub const PATIENCE: Duration = Duration::from_millis(500);

/// What the lock is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum For {
    /// Reading several files that belong together; a shared lock.
    Reading,
    /// Changing anything; an exclusive lock.
    Changing,
}

/// The lock, held as long as this lives. It does nothing on files without descriptors (models).
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "its end is the end of the lock")] Option<File>);

impl Resctrl {
    /// Takes the lock, waiting for at most `patience`.
    ///
    /// # Errors
    /// [`Error::Refused`] when another tool keeps it.
    pub fn lock(&self, files: &dyn Files, what: For, patience: Duration) -> Result<Lock> {
        let failed = |e| Error::file("lock", &self.root, None, e);
        let Some(file) = files.open(&self.root, Access::Read).map_err(failed)? else {
            return Ok(Lock(None));
        };
        let how = match what {
            For::Reading => FlockOperation::NonBlockingLockShared,
            For::Changing => FlockOperation::NonBlockingLockExclusive,
        };
        let started = Instant::now();
        loop {
            match rustix::fs::flock(&file, how) {
                Ok(()) => return Ok(Lock(Some(file))),
                Err(rustix::io::Errno::WOULDBLOCK) if started.elapsed() < patience => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let long = match patience.as_millis() {
                        0 => String::new(),
                        ms => format!(", for {ms} ms so far"),
                    };
                    return Err(Error::refused_with(
                        format!("{} is locked by another tool{long}", self.root),
                        "wait for it to end; /proc/locks tells its process (FLOCK)",
                    ));
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(failed(e.into())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Kernel;

    #[test]
    fn readers_go_together_and_a_change_waits_for_them() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("r")).unwrap();
        let kernel = Kernel::at(dir.path());
        let resctrl = Resctrl::at("/r");
        let take = |what| resctrl.lock(&kernel, what, Duration::ZERO);
        let (one, two) = (take(For::Reading).unwrap(), take(For::Reading).unwrap());
        let refused = take(For::Changing).unwrap_err().to_string();
        assert!(refused.contains("locked by another tool"), "{refused}");
        drop((one, two));
        let change = take(For::Changing).unwrap();
        assert!(take(For::Reading).is_err());
        drop(change);
        assert!(take(For::Reading).is_ok());
    }
}
