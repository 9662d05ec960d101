//! One hold on the machine: the lock, the run's folder with journal and lease, and the watchdog. It
//! begins before the first change and ends after the last undo.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quell_kernel::cgroup::Cgroups;
use quell_kernel::error::{Error, Result};
use quell_kernel::procfs;
use quell_kernel::root::Files;
use quell_kernel::rt;
use quell_plan::Plan;
use quell_record::backend::Undone;
use quell_record::events::Declared;
use quell_record::standing::Standing;
use quell_types::cpuset::CpuSet;
use quell_types::ids::GroupId;
use quell_types::journal::Undo;
use quell_types::task::TaskId;
use quell_types::units::Nanos;
use serde::Serialize;

use crate::change::JournaledWriter;
use crate::deputy::Deputy;
use crate::journal::{self, Header, Journal, Mark};
use crate::known;
use crate::lease::Lease;
use crate::lock::Lock;
use crate::restore::{self, DECLARED, HALF, PLAN, STANDING};
use crate::watchdog::{self, Health, Watchdog};

/// How often a watchdog that died is replaced before the run gives up.
const REPLACEMENTS: u32 = 3;

/// How many changes may be recorded, beyond twice what was kept, before ended tasks are forgotten.
const FORGOTTEN: usize = 500;

/// How long the heartbeat may pause between two plans of one hold.
const LONGEST_REST: Nanos = Nanos::secs(600);

/// How the watchdog is started: a program that ends up in [`watchdog::run`], with the run's folder
/// as its last argument.
#[derive(Clone, Debug)]
pub struct WatchdogCommand {
    /// Path of the program.
    pub program: PathBuf,
    /// The arguments before the folder.
    pub arguments: Vec<OsString>,
}

/// A hold on the machine. [`Session::end`] ends it.
#[derive(Debug)]
pub struct Session {
    dir: PathBuf,
    lock: Lock,
    journal: Journal,
    lease: Arc<Lease>,
    deputy: Deputy,
    watchdog: Option<Watchdog>,
    command: WatchdogCommand,
    replaced: u32,
    /// Where the changes of steps begin in the journal: after those that the watchdog needs.
    base: Mark,
    /// How many changes were left when ended tasks were last forgotten.
    kept: usize,
}

impl Session {
    /// Takes the lock, begins the journal and the lease, and starts the watchdog. What an earlier
    /// run left behind is restored first. Returns the session and notes for a person.
    ///
    /// # Errors
    /// When another run holds the machine, the disk is full, or the watchdog does not come up.
    /// Nothing is changed then.
    pub fn begin(
        files: &dyn Files,
        cgroups: &Cgroups,
        run_root: &Path,
        cpus: usize,
        command: &WatchdogCommand,
    ) -> Result<(Self, Vec<String>)> {
        let main = procfs::ourselves(files)?.id;
        let lock = Lock::acquire(run_root, "quell")?;
        let mut notes = Vec::new();
        for left in restore::restore(files, run_root)? {
            notes.push(format!(
                "restored what run {} left: {} changes taken back{}",
                left.run,
                left.undone.restored,
                left.notes
                    .iter()
                    .chain(&left.undone.left)
                    .map(|l| format!("; {l}"))
                    .collect::<String>()
            ));
        }
        restore::sweep(run_root);
        let dir = run_root.join(format!("{}-{}", main.pid, main.start));
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::create_dir(&dir)
            .and_then(|()| std::fs::set_permissions(&dir, mode))
            .map_err(|e| Error::file("make", &dir.to_string_lossy(), None, e))?;
        let begun = Self::fill(files, cgroups, lock, &dir, cpus, command);
        if begun.is_err() {
            let undone = restore::undo_folder(files, &dir);
            if undone.is_ok_and(|undone| undone.complete) {
                let _ = restore::remove_folder(&dir);
            }
        }
        let session = begun?;
        notes.extend(session.watchdog.iter().flat_map(|w| w.notes.clone()));
        Ok((session, notes))
    }

    fn fill(
        files: &dyn Files,
        cgroups: &Cgroups,
        lock: Lock,
        dir: &Path,
        cpus: usize,
        command: &WatchdogCommand,
    ) -> Result<Self> {
        let header = Header {
            version: journal::VERSION,
            boot: procfs::boot_id(files)?,
            run: dir
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            main: procfs::ourselves(files)?.id,
        };
        let mut journal = Journal::create(dir, header)?;
        let lease = Arc::new(Lease::create(dir, cpus, rt::now())?);
        journal.bind(Arc::clone(&lease));
        let mut session = Self {
            dir: dir.to_owned(),
            lock,
            base: journal.mark(),
            kept: 0,
            journal,
            deputy: Deputy::start(Arc::clone(&lease))?,
            lease,
            watchdog: None,
            command: command.clone(),
            replaced: 0,
        };
        session.watch(files, cgroups)?;
        session.base = session.journal.mark();
        Ok(session)
    }

    fn watch(&mut self, files: &dyn Files, cgroups: &Cgroups) -> Result<()> {
        let spec = watchdog::Spec {
            program: self.command.program.clone(),
            arguments: self.command.arguments.clone(),
            dir: &self.dir,
            lock: &self.lock,
            lease: &self.lease,
        };
        let mut writer = JournaledWriter::new(files, &mut self.journal);
        self.watchdog = Some(watchdog::spawn(&mut writer, cgroups, &spec)?);
        Ok(())
    }

    /// The run's folder, with journal, lease and plan.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes the plan to the run's folder, for `quell status`.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn describe(&self, plan: &Plan) -> Result<()> {
        self.unsettled();
        let path = self.dir.join(PLAN);
        self.shows(PLAN, plan)
            .map_err(|e| Error::file("write", &path.to_string_lossy(), None, e))
    }

    /// Writes a file of the run's folder so that nobody reads half of it.
    fn shows(&self, name: &str, content: &impl Serialize) -> std::io::Result<()> {
        let half = self.dir.join(HALF);
        std::fs::write(&half, serde_json::to_string(content)?)?;
        std::fs::rename(&half, self.dir.join(name))
    }

    /// Steps are to be applied or undone: without the file `quell status` says that nothing holds.
    pub fn unsettled(&self) {
        let _ = std::fs::remove_file(self.dir.join(STANDING));
    }

    /// All steps are applied: writes the present level of the promises to the run's folder, for
    /// `quell status`.
    pub fn stands(&self, standing: &Standing) {
        let _ = self.shows(STANDING, standing);
    }

    /// Writes what programs declare of their units to the run's folder, for `quell status`, which
    /// does without where it cannot be written.
    pub fn declared(&self, all: &BTreeMap<GroupId, Declared>) {
        let _ = self.shows(DECLARED, all);
    }

    /// The journal in which changes are recorded.
    pub fn journal(&mut self) -> &mut Journal {
        &mut self.journal
    }

    /// The recorded changes, oldest first.
    #[must_use]
    pub fn changes(&self) -> &[Undo] {
        self.journal.entries()
    }

    /// Forgets where tasks that have ended came from, once these are many: programs that begin and
    /// end all the time would fill the journal.
    ///
    /// # Errors
    /// As [`Journal::rewrite`].
    pub fn forget_ended(&mut self, files: &dyn Files) -> Result<()> {
        let recorded = self.journal.since(self.base).len();
        if recorded < 2 * self.kept + FORGOTTEN {
            return Ok(());
        }
        let lease = Arc::clone(&self.lease);
        let runs = |task: TaskId| {
            if !lease.is_revoked() {
                lease.beat(rt::now());
            }
            match procfs::thread_stat(files, task.pid, task.pid) {
                Ok(stat) => stat.is_some_and(|stat| stat.id == task),
                Err(_) => true,
            }
        };
        // A child may have the setting of one that has ended. Of all of those that had the same
        // before in the same place, the first and the last say so.
        let key = |entry: &Undo| match entry {
            Undo::Lock {
                task, before, dir, ..
            } if !runs(*task) => Some((*task, format!("{before:?} {dir}"))),
            Undo::OomScore { task, old, dir, .. } if !runs(*task) => {
                Some((*task, format!("{old} {dir}")))
            }
            _ => None,
        };
        let (mut first, mut last) = (BTreeMap::new(), BTreeMap::new());
        for (task, key) in self.journal.since(self.base).iter().filter_map(key) {
            first.entry(key.clone()).or_insert(task);
            last.insert(key, task);
        }
        let told: BTreeSet<TaskId> = first.into_values().chain(last.into_values()).collect();
        // Of repeated moves to one place, and of repeated affinities, the earliest says what was at
        // first.
        let moved = RefCell::new(BTreeSet::new());
        let earliest = |task: TaskId, to: String| moved.borrow_mut().insert((task, to));
        self.journal.rewrite(self.base, &|entry| match entry {
            Undo::Move { task, to, .. } => runs(*task) && earliest(*task, to.clone()),
            Undo::Affinity { task, new, .. } => runs(*task) && earliest(*task, new.to_string()),
            Undo::Lock { task, .. } | Undo::OomScore { task, .. } => {
                told.contains(task) || runs(*task)
            }
            _ => true,
        })?;
        self.kept = self.journal.since(self.base).len();
        Ok(())
    }

    /// Puts the calling thread, which is the main one, and its deputy on these CPUs, as far as the
    /// kernel allows.
    pub fn stay_on(&self, files: &dyn Files, cpus: &CpuSet) {
        for thread in [Some(0), self.deputy.thread()].into_iter().flatten() {
            let _ = files.set_affinity(thread, cpus);
        }
    }

    /// Moves every thread of this process off these CPUs that may run on other CPUs, too. Brakes,
    /// which have only one, stay where they are.
    pub fn keep_off(&self, files: &dyn Files, cpus: &CpuSet) {
        for thread in procfs::threads(files, std::process::id()).unwrap_or_default() {
            let Ok(has) = files.affinity(thread) else {
                continue;
            };
            let keeps = has.difference(cpus);
            if !keeps.is_empty() && keeps != has {
                let _ = files.set_affinity(thread, &keeps);
            }
        }
    }

    /// The lease on the machine, shared with brakes and watchdog.
    #[must_use]
    pub fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    /// Process id of the watchdog. `None` while there is none.
    #[must_use]
    pub fn watchdog_pid(&self) -> Option<u32> {
        self.watchdog.as_ref().map(Watchdog::pid)
    }

    /// Renews the heartbeat and replaces a watchdog that died. Returns a sentence when it was
    /// replaced.
    ///
    /// # Errors
    /// When the run was revoked, or watchdogs keep dying.
    pub fn beat(
        &mut self,
        files: &dyn Files,
        cgroups: &Cgroups,
        now: Nanos,
    ) -> Result<Option<String>> {
        if self.lease.is_revoked() {
            return Err(Error::refused(
                "the run was stopped or hung for over a second, and its watchdog undid everything",
            ));
        }
        self.lease.beat(now);
        let Some(Health::Died(how)) = self.watchdog.as_mut().map(Watchdog::check) else {
            return Ok(None);
        };
        self.replaced += 1;
        if self.replaced > REPLACEMENTS {
            return Err(Error::refused(format!(
                "the watchdog died {REPLACEMENTS} times ({how})"
            )));
        }
        self.watch(files, cgroups)?;
        Ok(Some(format!("the watchdog died ({how}) and was replaced")))
    }

    /// Whether the run still holds the machine, asked during slow work. If so, renews the
    /// heartbeat.
    #[must_use]
    pub fn still_held(&self) -> bool {
        let held = !self.lease.is_revoked();
        if held {
            self.lease.beat(rt::now());
        }
        held
    }

    /// Reverts what the steps changed. The hold itself stays.
    pub fn undo(&mut self, files: &dyn Files) -> Undone {
        self.journal.undo_to(files, self.base)
    }

    /// Announces that nothing is applied for the moment, so a late heartbeat endangers nothing. The
    /// next [`Self::beat`] ends this rest.
    pub fn rest(&self, now: Nanos) {
        self.lease.beat(now.plus(LONGEST_REST));
    }

    /// Ends the hold: everything is reverted, the watchdog ends, the folder is removed, and the
    /// lock is free.
    ///
    /// # Errors
    /// When something could not be reverted. The journal then stays for `quell restore`.
    pub fn end(mut self, files: &dyn Files) -> Result<Undone> {
        debug_assert_eq!(known::stranger(files, self.changes()), None);
        let mut undone = self.undo(files);
        // Released only now: until here the watchdog must notice a death of this process.
        self.lease.release();
        if let Some(watchdog) = self.watchdog.take()
            && let Err(e) = watchdog.finish()
        {
            undone.left.push(e.to_string());
        }
        let own = self.journal.undo_all(files);
        undone.restored += own.restored;
        undone.left.extend(own.left);
        restore::close(self.journal, &self.dir)?;
        Ok(undone)
    }
}
