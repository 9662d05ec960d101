//! Reverting what an earlier run left: when both the main process and its watchdog died, or could
//! not finish.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use quell_kernel::error::{Error, Result};
use quell_kernel::procfs;
use quell_kernel::root::Files;
use quell_kernel::rt;
use quell_record::backend::Undone;
use quell_types::journal::Undo;

use crate::journal::{self, Found, Journal, trusted};
use crate::known::Known;
use crate::lease::{self, Lease};
use crate::undo;

/// File in a run's folder with the plan, for `quell status`.
pub const PLAN: &str = "plan.json";

/// File in a run's folder with the present level of the promises, once it differs from the plan.
/// For `quell status`.
pub const STANDING: &str = "standing.json";

/// File in a run's folder with what programs declare of their units, by group. For `quell status`.
pub const DECLARED: &str = "declared.json";

/// One of these three while it is written.
pub const HALF: &str = "half.json";

/// Quell's files in a run's folder, in the order in which they are removed: the journal is last.
const FILES: [&str; 7] = [
    PLAN,
    STANDING,
    DECLARED,
    HALF,
    lease::FILE,
    journal::NEXT,
    journal::FILE,
];

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
/// [`Error::Refused`] when a run is alive and well: neither it nor any run after it is touched
/// then. Also where `run_root` is another user's. [`Error::File`].
pub fn restore(files: &dyn Files, run_root: &Path) -> Result<Vec<Restored>> {
    let boot = procfs::boot_id(files)?;
    let mut done = Vec::new();
    let dirs = folders(run_root)?;
    for dir in dirs.iter().map(PathBuf::as_path).chain([run_root]) {
        if let Ok(is) = fs::symlink_metadata(dir)
            && !(is.is_dir() && trusted(&is))
        {
            return Err(Error::refused_with(
                format!(
                    "{} is user {}'s, with mode {:o}: what it says of changes is not believed",
                    dir.display(),
                    is.uid(),
                    is.mode() & 0o7777
                ),
                "find out who made it, and remove it",
            ));
        }
    }
    for dir in dirs {
        if let Some(restored) = restore_one(files, &dir, &boot)? {
            done.push(restored);
        }
    }
    Ok(done)
}

/// The folders of runs that are not empty, sorted: those with a journal, and those whose journal
/// somebody has removed.
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
        .filter(|p| has(p, journal::FILE) || lost_journal(p))
        .collect();
    found.sort();
    Ok(found)
}

fn has(dir: &Path, name: &str) -> bool {
    fs::symlink_metadata(dir.join(name)).is_ok()
}

/// Whether a folder is of a run whose journal is gone: it is removed last.
fn lost_journal(dir: &Path) -> bool {
    [PLAN, lease::FILE].iter().any(|name| has(dir, name)) && !has(dir, journal::FILE)
}

/// Restores one run. `None` where another process has reverted it in this very moment.
fn restore_one(files: &dyn Files, dir: &Path, boot: &str) -> Result<Option<Restored>> {
    let found = match journal::read(&dir.join(journal::FILE), &Known::here(files)) {
        Ok(found) => found,
        Err(e) if e.errno() == Some(libc::ENOENT) && !lost_journal(dir) => return Ok(None),
        Err(e) if e.errno() == Some(libc::ENOENT) => {
            alive(dir)?;
            return Ok(Some(Restored {
                run: name(dir),
                undone: Undone::default(),
                notes: vec![format!(
                    "somebody has removed its journal, so that nothing is known of its changes; \
                     remove {} when you have looked",
                    dir.display()
                )],
                complete: false,
            }));
        }
        Err(e) => return Err(e),
    };
    match &found.header {
        Some(header) if header.boot != boot => {
            let note = format!(
                "run {}: the machine was started again since, nothing of it is left; its journal is discarded",
                header.run
            );
            remove_folder(dir)?;
            return Ok(Some(Restored {
                run: name(dir),
                undone: Undone::default(),
                notes: vec![note],
                complete: true,
            }));
        }
        Some(header) if header.version != journal::VERSION => {
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
        Some(header) if procfs::alive(files, header.main) && !lost(dir) => {
            return Err(is_alive(&header.run, header.main.pid));
        }
        Some(_) => {}
        None => alive(dir)?,
    }
    let restored = revert(files, dir, &found)?;
    if restored.complete {
        remove_folder(dir)?;
    }
    Ok(Some(restored))
}

fn name(dir: &Path) -> String {
    let name = dir.file_name().map(|n| n.to_string_lossy().into_owned());
    name.unwrap_or_default()
}

fn is_alive(run: &str, pid: u32) -> Error {
    Error::refused_with(
        format!("run {run} is alive: process {pid} holds it"),
        "end it (SIGTERM); it undoes everything itself",
    )
}

/// Refuses a run that is alive and well by its lease, where its journal does not tell.
fn alive(dir: &Path) -> Result<()> {
    let path = dir.join(lease::FILE);
    if Lease::open(&path).is_err() || lost(dir) {
        return Ok(());
    }
    // The link leads to a descriptor of the main process: /proc/PID/fd/N.
    let target = fs::read_link(&path).unwrap_or_default();
    let pid = target.iter().nth(2).and_then(|p| p.to_str()?.parse().ok());
    Err(is_alive(&name(dir), pid.unwrap_or_default()))
}

/// Reverts what a run's journal says. Where that is done, only damaged lines stay in the journal.
///
/// # Errors
/// [`Error::File`] where those cannot be kept.
pub(crate) fn revert(files: &dyn Files, dir: &Path, found: &Found) -> Result<Restored> {
    let outcome = undo::undo(files, &found.entries);
    let mut notes = found.damaged.clone();
    let whole = outcome.failed.is_empty();
    if whole && !notes.is_empty() && dir.exists() {
        found.keep_damaged(dir)?;
        notes.push(format!(
            "all other changes are reverted; remove {} when you have looked",
            dir.display()
        ));
    }
    Ok(Restored {
        run: name(dir),
        undone: outcome.undone,
        complete: whole && notes.is_empty(),
        notes,
    })
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
pub fn undo_folder(files: &dyn Files, dir: &Path) -> Result<Restored> {
    let found = journal::read(&dir.join(journal::FILE), &Known::here(files))?;
    revert(files, dir, &found)
}

/// Removes a run's folder and Quell's files in it, the journal last.
///
/// # Errors
/// [`Error::File`]. A folder that is gone is no error.
pub fn remove_folder(dir: &Path) -> Result<()> {
    let failed = |path: &Path, e| Error::file("remove", &path.to_string_lossy(), None, e);
    for name in FILES {
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
    for name in FILES.iter().filter(|name| **name != journal::FILE) {
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
pub fn left_by(files: &dyn Files, dir: &Path) -> Result<Vec<Undo>> {
    Ok(journal::read(&dir.join(journal::FILE), &Known::here(files))?.entries)
}

#[cfg(test)]
mod tests {
    use quell_kernel::root::Kernel;
    use quell_types::task::TaskId;

    use super::*;
    use crate::journal::Header;

    const SETTING: &str = "/proc/sys/vm/swappiness";

    fn text(kernel: &Kernel, path: &str) -> String {
        kernel.read(path).unwrap().trim().to_owned()
    }

    /// A machine with one setting that a dead run has changed.
    fn machine(boot: &str) -> (tempfile::TempDir, Kernel, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("machine");
        fs::create_dir_all(root.join("proc/sys/kernel/random")).unwrap();
        fs::write(root.join("proc/sys/kernel/random/boot_id"), "now\n").unwrap();
        fs::create_dir_all(root.join("proc/sys/vm")).unwrap();
        fs::write(root.join("proc/sys/vm/swappiness"), "1").unwrap();
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
            path: SETTING.into(),
            old: "60".into(),
            new: "1".into(),
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
        assert_eq!(text(&kernel, SETTING), "60");
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
            text(&kernel, SETTING),
            "1",
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

    fn restored(dir: &tempfile::TempDir, kernel: &Kernel) -> Restored {
        let mut done = restore(kernel, &dir.path().join("quell")).unwrap();
        assert_eq!(done.len(), 1);
        done.remove(0)
    }

    #[test]
    fn a_damaged_line_stays_until_a_person_has_looked() {
        let (dir, kernel, run) = machine("now");
        let path = run.join(journal::FILE);
        let damaged = b"{\"sum\":\"0123456789abcdef\",\"undo\":{}}\n";
        let before = [fs::read(&path).unwrap(), damaged.to_vec()].concat();
        fs::write(&path, &before).unwrap();
        for changes in [1, 0] {
            let done = restored(&dir, &kernel);
            assert_eq!((done.undone.restored, done.complete), (changes, false));
            assert!(
                done.notes[0].contains("is damaged; its change cannot be undone"),
                "{:?}",
                done.notes
            );
            assert!(done.notes[1].contains("all other changes are reverted"));
            assert_eq!(text(&kernel, SETTING), "60");
        }
        assert!(fs::read(&path).unwrap().ends_with(damaged));
        // What somebody sets later is not taken for what the run set.
        kernel.write(SETTING, "1").unwrap();
        restored(&dir, &kernel);
        assert_eq!(text(&kernel, SETTING), "1");
    }

    #[test]
    fn a_line_about_what_quell_never_changes_is_kept() {
        let (dir, kernel, run) = machine("now");
        let header = journal::read(&run.join(journal::FILE), &Known::here(&kernel));
        let header = header.unwrap().header.unwrap();
        fs::remove_file(run.join(journal::FILE)).unwrap();
        let mut journal = Journal::create(&run, header).unwrap();
        fs::create_dir(dir.path().join("machine/etc")).unwrap();
        fs::write(dir.path().join("machine/etc/shadow"), "theirs").unwrap();
        let forged = Undo::Write {
            path: "/etc/shadow".into(),
            old: "forged".into(),
            new: "theirs".into(),
        };
        journal.record(&forged).unwrap();
        let done = restored(&dir, &kernel);
        assert_eq!((done.undone.restored, done.complete), (0, false));
        assert!(done.notes[0].contains("\"/etc/shadow\", which Quell never changes"));
        assert_eq!(text(&kernel, "/etc/shadow"), "theirs");
    }

    #[test]
    fn a_damaged_header_is_left_alone_while_the_lease_is_held() {
        let (dir, kernel, run) = machine("now");
        let path = run.join(journal::FILE);
        let mut bytes = fs::read(&path).unwrap();
        bytes[30] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let lease = Lease::create(&run, 1, rt::now()).unwrap();
        let error = restore(&kernel, &dir.path().join("quell")).unwrap_err();
        let expected = format!("run r1 is alive: process {}", std::process::id());
        assert!(error.to_string().contains(&expected), "{error}");
        assert_eq!(text(&kernel, SETTING), "1");
        lease.revoke();
        let done = restored(&dir, &kernel);
        assert_eq!((done.undone.restored, done.complete), (1, false));
        assert!(done.notes[0].contains("the header is damaged"));
    }

    #[test]
    fn a_journal_that_somebody_has_removed_is_told() {
        let (dir, kernel, run) = machine("now");
        fs::write(run.join(PLAN), "{}").unwrap();
        fs::remove_file(run.join(journal::FILE)).unwrap();
        let done = restored(&dir, &kernel);
        assert!(!done.complete);
        assert!(done.notes[0].contains("somebody has removed its journal"));
        fs::remove_dir_all(run).unwrap();
        assert!(
            restore(&kernel, &dir.path().join("quell"))
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn a_folder_that_others_may_write_to_is_not_believed() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let (dir, kernel, run) = machine("now");
        let root = dir.path().join("quell");
        let refused = |what: &str| {
            let error = restore(&kernel, &root).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
            assert_eq!(text(&kernel, SETTING), "1");
        };
        for path in [&root, &run, &run.join(journal::FILE)] {
            let before = fs::metadata(path).unwrap().permissions();
            fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
            refused(&path.display().to_string());
            fs::set_permissions(path, before).unwrap();
        }
        let aside = dir.path().join("aside");
        fs::rename(run.join(journal::FILE), &aside).unwrap();
        symlink(&aside, run.join(journal::FILE)).unwrap();
        refused("journal");
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
