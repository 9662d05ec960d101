//! Changing the kernel's state so that it can be taken back: every change goes through here,
//! recorded first.

use std::time::Duration;

use quell_kernel::error::{Error, Result};
use quell_kernel::root::{Files, gone};
use quell_kernel::value::{only, same};
use quell_types::cpuset::CpuSet;
use quell_types::journal::{Stopped, Undo};
use quell_types::task::TaskId;

use crate::fault;
use crate::journal::Journal;

/// Between two beats of the heart while a write takes its time.
const BREATH: Duration = Duration::from_millis(5);

/// Changes the kernel's files, and records each change in the journal first.
pub struct JournaledWriter<'a> {
    /// The kernel.
    pub files: &'a dyn Files,
    /// Where each change is recorded before it is made.
    pub journal: &'a mut Journal,
}

impl<'a> JournaledWriter<'a> {
    /// A writer that changes `files` and records in `journal`.
    pub fn new(files: &'a dyn Files, journal: &'a mut Journal) -> Self {
        Self { files, journal }
    }

    /// Writes a value. Nothing happens where the file already says so. Returns whether something
    /// was changed.
    ///
    /// What the kernel makes of the value is read back; where that is another value than the one
    /// written, it is recorded, too, so that it can be told from somebody else's change.
    ///
    /// # Errors
    /// [`Error::File`]; nothing is changed then.
    pub fn set(&mut self, path: &str, new: &str) -> Result<bool> {
        self.change(path, new, |files, _| files.put(path, new))
    }

    /// The same for a value that the kernel may take seconds to accept (limits below what is used):
    /// the heart beats meanwhile.
    ///
    /// # Errors
    /// As [`Self::set`].
    pub fn set_slowly(&mut self, path: &str, new: &str) -> Result<bool> {
        self.change(path, new, |files, journal| {
            std::thread::scope(|scope| {
                let writing = scope.spawn(|| files.put(path, new));
                while !writing.is_finished() {
                    std::thread::sleep(BREATH);
                    journal.beat();
                }
                writing
                    .join()
                    .unwrap_or_else(|_| Err(Error::refused(format!("writing {path} panicked"))))
            })
        })
    }

    fn change(
        &mut self,
        path: &str,
        new: &str,
        put: impl FnOnce(&dyn Files, &Journal) -> Result<()>,
    ) -> Result<bool> {
        let told = self.files.text(path)?;
        if same(path, &told, new) {
            return Ok(false);
        }
        let old = only(path, &told, new).into_owned();
        self.journal.record(&Undo::Write {
            path: path.to_owned(),
            old: old.clone(),
            new: new.to_owned(),
        })?;
        if let Err(e) = put(self.files, self.journal) {
            // Refused: not a value of ours to look after, and nothing to take back.
            self.journal.record(&Undo::Write {
                path: path.to_owned(),
                old: old.clone(),
                new: old,
            })?;
            return Err(e);
        }
        fault::boundary();
        if let Ok(now) = self.files.text(path)
            && !same(path, &now, new)
        {
            self.journal.record(&Undo::Write {
                path: path.to_owned(),
                old,
                new: only(path, &now, new).into_owned(),
            })?;
        }
        Ok(true)
    }

    /// From here on a loop moves this file, which reads `old`. Recorded once for all its moves, so
    /// that whatever it reads at the end, `old` comes back. In a cgroup of ours nothing has to be
    /// recorded, for it goes as a whole; unless a step has set the file: then it is told from drift
    /// by this.
    ///
    /// # Errors
    /// As [`Journal::record`].
    pub fn steer(&mut self, path: &str, old: &str) -> Result<()> {
        let entries = self.journal.entries();
        let set = |e: &Undo| matches!(e, Undo::Write { path: p, .. } if p == path);
        let set = entries.iter().any(set);
        let known = entries.iter().any(|e| match e {
            Undo::Steer { path: p, .. } => p == path,
            Undo::Cgroup { path: dir, .. } => {
                let above = path.rsplit_once('/').map(|(dir, _)| dir);
                !set && above == Some(dir.as_str())
            }
            _ => false,
        });
        if known {
            return Ok(());
        }
        self.journal.record(&Undo::Steer {
            path: path.to_owned(),
            old: old.to_owned(),
        })
    }

    /// Records that `what` is about to be stopped.
    ///
    /// # Errors
    /// As [`Journal::record`].
    pub fn stopping(&mut self, what: Stopped) -> Result<()> {
        self.journal.record(&Undo::Stop { what })
    }

    /// Records that `what` was let go on (or was not stopped after all): found stopped later, it is
    /// not ours to continue.
    ///
    /// # Errors
    /// As [`Journal::record`].
    pub fn resumed(&mut self, what: Stopped) -> Result<()> {
        let stop = Undo::Stop { what };
        // Stops come and go for as long as a run holds: a pair leaves nothing behind where nothing
        // came in between.
        if self.journal.retract_last(&stop)? {
            return Ok(());
        }
        let Undo::Stop { what } = stop else {
            return Ok(());
        };
        self.journal.record(&Undo::Resume { what })
    }

    /// Makes a cgroup. Tasks that are in it at the end go to `heir`. Nothing happens (and nothing
    /// is recorded, so that it is not removed) where it exists. Returns whether it was made.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn make(&mut self, path: &str, heir: &str) -> Result<bool> {
        if self.files.exists(path) {
            return Ok(false);
        }
        let mark = self.journal.mark();
        self.journal.record(&Undo::Cgroup {
            path: path.to_owned(),
            heir: heir.to_owned(),
        })?;
        match self.files.mkdir(path) {
            Ok(()) => {
                fault::boundary();
                Ok(true)
            }
            Err(e) => {
                // Whoever has made it meanwhile, or will: it is not ours to remove.
                self.journal.retract(mark)?;
                if e.raw_os_error() == Some(libc::EEXIST) {
                    return Ok(false);
                }
                Err(Error::file("make", path, None, e))
            }
        }
    }

    /// Gives the children of a v2 cgroup a controller.
    ///
    /// # Errors
    /// [`Error::File`]; [`Error::Refused`] when the cgroup does not have the controller itself.
    pub fn enable(&mut self, dir: &str, controller: &str) -> Result<bool> {
        let path = format!("{dir}/cgroup.subtree_control");
        let has = |text: &str| text.split_ascii_whitespace().any(|c| c == controller);
        if has(&self.files.text(&path)?) {
            return Ok(false);
        }
        let available = self.files.text(&format!("{dir}/cgroup.controllers"))?;
        if !has(&available) {
            return Err(Error::refused_with(
                format!("{dir} does not have the {controller} controller, only: {available}"),
                format!(
                    "enable it in the parents' cgroup.subtree_control (under systemd: Delegate={controller})"
                ),
            ));
        }
        let mark = self.journal.mark();
        self.journal.record(&Undo::Write {
            path: path.clone(),
            old: format!("-{controller}"),
            new: format!("+{controller}"),
        })?;
        if let Err(e) = self.files.put(&path, &format!("+{controller}")) {
            // Refused: enabled by somebody else later, it is not ours to take away.
            self.journal.retract(mark)?;
            return Err(e);
        }
        fault::boundary();
        Ok(true)
    }

    /// Lets a thread run on `cpus` only. A thread that ended meanwhile is no error. Returns whether
    /// something was changed.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn pin(&mut self, task: TaskId, cpus: &CpuSet) -> Result<bool> {
        let what = format!("/proc/{}/affinity", task.pid);
        let old = match self.files.affinity(task.pid) {
            Ok(old) => old,
            Err(e) if gone(&e) => return Ok(false),
            Err(e) => return Err(Error::file("read", &what, None, e)),
        };
        if old == *cpus {
            return Ok(false);
        }
        self.journal.record(&Undo::Affinity {
            task,
            old,
            new: cpus.clone(),
        })?;
        match self.files.set_affinity(task.pid, cpus) {
            Ok(()) => {
                fault::boundary();
                Ok(true)
            }
            Err(e) if gone(&e) => Ok(false),
            Err(e) => Err(Error::file("write", &what, Some(&cpus.to_string()), e)),
        }
    }
}
