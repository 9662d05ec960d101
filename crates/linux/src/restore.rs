//! Reverting what an earlier run left: when both the main process and its watchdog died, or could
//! not finish.

use std::fs;
use std::path::{Path, PathBuf};

use quell_kernel::error::{Error, Result};
use quell_kernel::procfs;
use quell_kernel::root::Files;
use quell_kernel::rt;
use quell_record::backend::Undone;
use quell_types::journal::Undo;

use crate::journal::{self, Journal};
use crate::lease::{self, Lease};
use crate::undo::{self, Outcome};

/// File in a run's folder with the plan, for `quell status`.
pub const PLAN: &str = "plan.json";

/// File in a run's folder with the present level of the promises, once it differs from the plan.
/// For `quell status`.
pub const STANDING: &str = "standing.json";

/// File in a run's folder with what programs declare of their units, by group. For `quell status`.
pub const DECLARED: &str = "declared.json";

/// The result of restoring one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Name of the run's folder.
    pub run: String,
    /// What was reverted, and what was not.
    pub undone: Undone,
    /// Sentences for a person, such as a journal discarded after a reboot, or a damaged line.
    pub notes: Vec<String>,
    /// Whether nothing is left of the run. Otherwise its folder is kept, to try again.
    pub complete: bool,
}

/// Reverts every run below `run_root` whose main process has ended, or hangs.
///
/// # Errors
/// [`Error::Refused`] when a run is alive and well. Neither it nor any run after it is touched
/// then. [`Error::File`].
pub fn restore(files: &dyn Files, run_root: &Path) -> Result<Vec<Restored>> {
    let boot = procfs::boot_id(files)?;
    let mut done = Vec::new();
    for dir in folders(run_root)? {
        if let Some(restored) = restore_one(files, &dir, &boot)? {
            done.push(restored);
        }
    }
    Ok(done)
}

/// The folders of runs that have a journal, sorted.
///
/// # Errors
/// [`Error::File`].
pub fn folders(run_root: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(run_root) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Error::file("list", &run_root.to_string_lossy(), None, e)),
    };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.join(journal::FILE).exists())
        .collect();
    found.sort();
    Ok(found)
}

/// Restores one run. `None` where another process has reverted it in this very moment.
fn restore_one(files: &dyn Files, dir: &Path, boot: &str) -> Result<Option<Restored>> {
    let found = match journal::read(&dir.join(journal::FILE)) {
        Ok(found) => found,
        Err(e) if e.errno() == Some(libc::ENOENT) => return Ok(None),
        Err(e) => return Err(e),
    };
    let name = dir
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    let mut restored = Restored {
        run: name,
        undone: Undone::default(),
        notes: found.damaged,
        complete: false,
    };
    if let Some(header) = &found.header {
        if header.boot != boot {
            restored.notes.push(format!(
                "run {}: the machine was started again since, nothing of it is left; its journal is discarded",
                header.run
            ));
            restored.complete = true;
            remove_folder(dir)?;
            return Ok(Some(restored));
        }
        if header.version != journal::VERSION {
            return Err(Error::refused_with(
                format!(
                    "{} is of version {}, not {}",
                    dir.display(),
                    header.version,
                    journal::VERSION
                ),
                "use the Quell that wrote it",
            ));
        }
        if procfs::alive(files, header.main) && !lost(dir) {
            return Err(Error::refused_with(
                format!(
                    "run {} is alive: process {} holds it",
                    header.run, header.main.pid
                ),
                "end it (SIGTERM); it undoes everything itself",
            ));
        }
    }
    let outcome = undo::undo(files, &found.entries);
    restored.undone = outcome.undone;
    if outcome.failed.is_empty() {
        restored.complete = true;
        remove_folder(dir)?;
    }
    Ok(Some(restored))
}

/// Whether a living main process has lost its run: the run was revoked, or the heartbeat is late,
/// in which case this call revokes it. A process without a lease has not changed anything yet, or
/// is about to end. It has not lost the run.
fn lost(dir: &Path) -> bool {
    let Ok(lease) = Lease::open(&dir.join(lease::FILE)) else {
        return false;
    };
    if lease.state() == lease::State::Held && !lease.is_held(rt::now()) {
        lease.revoke();
    }
    lease.is_revoked()
}

/// Reverts the entries of the journal in a run's folder, whichever process wrote it.
///
/// # Errors
/// [`Error::File`] when it cannot be read.
pub fn undo_folder(files: &dyn Files, dir: &Path) -> Result<Outcome> {
    let found = journal::read(&dir.join(journal::FILE))?;
    let mut outcome = undo::undo(files, &found.entries);
    outcome.undone.left.extend(found.damaged);
    Ok(outcome)
}

/// Removes a run's folder and Quell's files in it, the journal last.
///
/// # Errors
/// [`Error::File`]. A folder that is gone is no error.
pub fn remove_folder(dir: &Path) -> Result<()> {
    let failed = |path: &Path, e| Error::file("remove", &path.to_string_lossy(), None, e);
    for name in [
        PLAN,
        STANDING,
        DECLARED,
        lease::FILE,
        journal::NEXT,
        journal::FILE,
    ] {
        let path = dir.join(name);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(&path, e)),
            _ => {}
        }
    }
    match fs::remove_dir(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(failed(dir, e)),
        _ => Ok(()),
    }
}

/// Ends a run whose changes are all reverted: closes the journal and removes the folder.
///
/// # Errors
/// [`Error::Refused`] while something is recorded, [`Error::File`].
pub fn close(journal: Journal, dir: &Path) -> Result<()> {
    // The journal is removed before the folder, and all other files before the journal. So a death
    // in between leaves a journal by which the rest is found, or an empty folder.
    for name in [PLAN, STANDING, DECLARED, lease::FILE, journal::NEXT] {
        let _ = fs::remove_file(dir.join(name));
    }
    journal.clear()?;
    remove_folder(dir)
}

/// Removes the empty folders that deaths between the last two steps of [`close`] leave.
pub fn sweep(run_root: &Path) {
    let Ok(entries) = fs::read_dir(run_root) else {
        return;
    };
    for entry in entries.flatten().filter(|e| e.path().is_dir()) {
        // Fails, as it should, where anything is inside.
        let _ = fs::remove_dir(entry.path());
    }
}

/// The changes that an earlier run left, without reverting them. For `status` and `doctor`.
///
/// # Errors
/// [`Error::File`].
pub fn left_by(dir: &Path) -> Result<Vec<Undo>> {
    Ok(journal::read(&dir.join(journal::FILE))?.entries)
}

#[cfg(test)]
mod tests {
    use quell_kernel::root::Kernel;
    use quell_types::task::TaskId;

    use super::*;
    use crate::journal::Header;

    /// A machine with one setting that a dead run has changed.
    fn machine(boot: &str) -> (tempfile::TempDir, Kernel, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("machine");
        fs::create_dir_all(root.join("proc/sys/kernel/random")).unwrap();
        fs::write(root.join("proc/sys/kernel/random/boot_id"), "now\n").unwrap();
        fs::write(root.join("setting"), "ours").unwrap();
        let run = dir.path().join("quell/r1");
        fs::create_dir_all(&run).unwrap();
        let header = Header {
            version: journal::VERSION,
            boot: boot.into(),
            run: "r1".into(),
            main: TaskId {
                pid: 4_000_000,
                start: 1,
            },
        };
        let mut journal = Journal::create(&run, header).unwrap();
        let entry = Undo::Write {
            path: "/setting".into(),
            old: "before".into(),
            new: "ours".into(),
        };
        journal.record(&entry).unwrap();
        (dir, Kernel::at(root), run)
    }

    #[test]
    fn what_a_dead_run_left_is_undone_and_its_folder_removed() {
        let (dir, kernel, run) = machine("now");
        let done = restore(&kernel, &dir.path().join("quell")).unwrap();
        assert_eq!(
            (done.len(), done[0].undone.restored, done[0].complete),
            (1, 1, true)
        );
        assert_eq!(kernel.read("/setting").unwrap().trim(), "before");
        assert!(!run.exists());
        assert!(
            restore(&kernel, &dir.path().join("quell"))
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn a_journal_of_an_earlier_boot_is_discarded() {
        let (dir, kernel, run) = machine("earlier");
        let done = restore(&kernel, &dir.path().join("quell")).unwrap();
        assert!(done[0].notes[0].contains("started again"));
        assert_eq!(
            kernel.read("/setting").unwrap(),
            "ours",
            "nothing of this boot is touched"
        );
        assert!(!run.exists());
    }

    #[test]
    fn a_run_that_is_alive_is_left_alone() {
        let (dir, kernel, run) = machine("now");
        let proc = dir.path().join("machine/proc/4000000");
        fs::create_dir_all(&proc).unwrap();
        let stat = "4000000 (quell) S 1 0 0 0 0 0 0 0 0 0 0 0 0 0 20 0 1 0 1 0 0";
        fs::write(proc.join("stat"), stat).unwrap();
        let error = restore(&kernel, &dir.path().join("quell"))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("run r1 is alive: process 4000000"),
            "{error}"
        );
        // The process is alive, but its lease was revoked: it has lost the run.
        let lease = Lease::create(&run, 1, rt::now()).unwrap();
        assert!(restore(&kernel, &dir.path().join("quell")).is_err());
        assert!(lease.revoke());
        assert!(restore(&kernel, &dir.path().join("quell")).unwrap()[0].complete);
    }

    #[test]
    fn nothing_left_is_nothing_to_do() {
        let (dir, kernel, _) = machine("now");
        assert!(
            restore(&kernel, &dir.path().join("no-such"))
                .unwrap()
                .is_empty()
        );
    }
}
