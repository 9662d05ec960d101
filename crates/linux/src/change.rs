//! Changing the kernel's state so that it can be taken back: every change goes through here, recorded first.

use quell_core::cpuset::CpuSet;
use quell_core::journal::{TaskId, Undo};

use crate::error::{Error, Result};
use crate::fault;
use crate::journal::Journal;
use crate::root::{Files, gone};
use crate::undo::same;

/// What a change needs: the kernel's files and the journal.
pub struct Hands<'a> {
    /// The kernel.
    pub files: &'a dyn Files,
    /// Where each change is recorded before it is made.
    pub journal: &'a mut Journal,
}

impl<'a> Hands<'a> {
    /// Hands that change `files` and record in `journal`.
    pub fn new(files: &'a dyn Files, journal: &'a mut Journal) -> Self {
        Self { files, journal }
    }

    /// Writes a value. Nothing happens where the file already says so. Returns whether something was changed.
    ///
    /// What the kernel makes of the value is read back; where that is another value than the one written, it is recorded,
    /// too, so that it can be told from somebody else's change.
    ///
    /// # Errors
    /// [`Error::File`]; nothing is changed then.
    pub fn set(&mut self, path: &str, new: &str) -> Result<bool> {
        let old = self.files.text(path)?;
        if same(path, &old, new) {
            return Ok(false);
        }
        self.journal.record(&Undo::Write {
            path: path.to_owned(),
            old: old.clone(),
            new: new.to_owned(),
        })?;
        if let Err(e) = self.files.put(path, new) {
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
                new: now,
            })?;
        }
        Ok(true)
    }

    /// Makes a cgroup. Tasks that are in it at the end go to `heir`. Nothing happens (and nothing is recorded, so that it
    /// is not removed) where it exists. Returns whether it was made.
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

    /// Lets a thread run on `cpus` only. A thread that ended meanwhile is no error. Returns whether something was changed.
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
