//! Changing the kernel's state so that it can be reverted: every change goes through here and is
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

/// Time between two heartbeats while a write takes long.
const BREATH: Duration = Duration::from_millis(5);

/// Changes the kernel's files, and records each change in the journal first.
pub struct JournaledWriter<'a> {
    /// The kernel's files, or a model of them.
    pub files: &'a dyn Files,
    /// Where each change is recorded before it is made.
    pub journal: &'a mut Journal,
}

impl<'a> JournaledWriter<'a> {
    /// A writer that changes `files` and records in `journal`.
    pub fn new(files: &'a dyn Files, journal: &'a mut Journal) -> Self {
        Self { files, journal }
    }

    /// Writes a value. Nothing happens where the file already has it. Returns whether something was
    /// changed.
    ///
    /// The value is read back. Where the kernel made another value of it, that is recorded, too. So
    /// it can be distinguished from a change by another program.
    ///
    /// # Errors
    /// [`Error::File`]; nothing is changed then.
    pub fn set(&mut self, path: &str, new: &str) -> Result<bool> {
        self.change(path, new, |files, _| files.put(path, new))
    }

    /// Writes as [`Self::set`] a value that the kernel may take seconds to accept, such as a limit
    /// below what is used. Heartbeats go on meanwhile.
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
            // The kernel refused the value. So there is nothing to revert, and no value to check
            // for drift.
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

    /// Records that a loop moves this file from here on, which reads `old` now. One record covers
    /// all moves: whatever the file reads at the end, `old` is restored. In a cgroup that Quell
    /// made, nothing has to be recorded, because the cgroup is removed as a whole. An exception is
    /// a file that a step has set: the record keeps the loop's moves from counting as drift.
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

    /// Records that `what` was resumed, or was not stopped after all. If it is found stopped later,
    /// Quell must not resume it.
    ///
    /// # Errors
    /// As [`Journal::record`].
    pub fn resumed(&mut self, what: Stopped) -> Result<()> {
        let stop = Undo::Stop { what };
        // Stops come and go as long as a run holds. A stop and its resumption leave no record where
        // nothing was recorded in between.
        if self.journal.retract_last(&stop)? {
            return Ok(());
        }
        let Undo::Stop { what } = stop else {
            return Ok(());
        };
        self.journal.record(&Undo::Resume { what })
    }

    /// Makes a cgroup. Tasks that are in it at the end go to `heir`. Returns whether it was made.
    /// Where it exists already, nothing is recorded, so that it is not removed.
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
                // Another program has made it meanwhile, or may yet. Quell must not remove that
                // one.
                self.journal.retract(mark)?;
                if e.raw_os_error() == Some(libc::EEXIST) {
                    return Ok(false);
                }
                Err(Error::file("make", path, None, e))
            }
        }
    }

    /// Refuses a cgroup that is there and that this journal did not make: what another program has
    /// set there would be lost.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn owns_or_misses(&self, dir: &str) -> Result<()> {
        let own = |entry: &Undo| matches!(entry, Undo::Cgroup { path, .. } if path == dir);
        if !self.files.exists(dir) || self.journal.entries().iter().any(own) {
            return Ok(());
        }
        Err(Error::refused_with(
            format!("{dir} is there already, and this run has not made it"),
            "give the group another name, or remove it",
        ))
    }

    /// Enables a controller for the children of a v2 cgroup. Returns whether something was changed.
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
            // The kernel refused it. If another program enables it later, Quell must not disable
            // it.
            self.journal.retract(mark)?;
            return Err(e);
        }
        fault::boundary();
        Ok(true)
    }

    /// Lets a thread run only on `cpus`. A thread that ended meanwhile is no error. Returns whether
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
