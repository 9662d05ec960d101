//! The watchdog: a second process that reverts everything when the main process dies, hangs, is
//! stopped or frozen.
//!
//! It lives in its own cgroups, so that what kills or freezes the main process's does not reach it.
//! It has its own session, its memory is locked, and it has real-time priority where that is
//! available.
//!
//! It watches the main process through a pidfd, and the lease's heartbeat. A heartbeat that stays
//! the same over two checks and is older than [`lease::LAPSE`] is a hang. It takes two checks,
//! because after a pause of the whole machine both processes wake at once.
//!
//! After reverting for a process that hangs but lives, it stays: the process may wake in the middle
//! of a change and then die. The watchdog ends only when the process has ended, or has released the
//! lease itself.

use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use quell_kernel::cgroup::{Cgroups, Controller};
use quell_kernel::error::{Error, Result};
use quell_kernel::privileges;
use quell_kernel::procfs;
use quell_kernel::refused;
use quell_kernel::root::{Files, Kernel};
use quell_kernel::rt;
use quell_types::units::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::change::JournaledWriter;
use crate::fault;
use crate::group_cgroups::{self, GroupCgroups};
use crate::journal;
use crate::known::Known;
use crate::lease::{self, LAPSE, Lease, State};
use crate::lock::Lock;
use crate::restore;

/// Time between two checks.
const LOOK: Nanos = Nanos::millis(100);
/// How long the main process waits for the watchdog to be in place, and to end.
const PATIENCE: Duration = Duration::from_secs(5);

/// How the main process starts its watchdog.
#[derive(Debug)]
pub struct Spec<'a> {
    /// Path of the program; normally `/proc/self/exe`.
    pub program: PathBuf,
    /// Its arguments (a hidden subcommand), to which the run's folder is appended.
    pub arguments: Vec<OsString>,
    /// The run's folder, with journal and lease.
    pub dir: &'a Path,
    /// The lock, which the watchdog keeps until it has finished.
    pub lock: &'a Lock,
    /// The lease, in which the watchdog announces itself.
    pub lease: &'a Lease,
}

/// State of the watchdog process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Its process has not ended.
    Alive,
    /// It has ended: the exit status in words. Another one has to be started.
    Died(String),
}

/// The main process's handle of its watchdog.
#[derive(Debug)]
pub struct Watchdog {
    child: Child,
    died: Option<String>,
    /// What it does without, such as its own cgroup. Sentences for a person.
    pub notes: Vec<String>,
}

/// Starts the watchdog and waits until it watches. Then come its cgroups, the first change that the
/// journal records.
///
/// # Errors
/// [`Error::File`], [`Error::Refused`] when it does not come up.
pub fn spawn(
    writer: &mut JournaledWriter<'_>,
    cgroups: &Cgroups,
    spec: &Spec<'_>,
) -> Result<Watchdog> {
    let program = spec.program.to_string_lossy().into_owned();
    let mut command = Command::new(&spec.program);
    command
        .args(&spec.arguments)
        .arg(spec.dir)
        // The lock is passed as standard input, so that only the watchdog inherits it.
        .stdin(Stdio::from(spec.lock.share()?))
        .stdout(Stdio::null())
        .env_remove(fault::VARIABLE);
    if let Some(n) = std::env::var_os(fault::WATCHDOG_VARIABLE) {
        command.env(fault::VARIABLE, n);
    }
    spec.lease.set_watchdog(0);
    let mut child = command
        .spawn()
        .map_err(|e| Error::file("start", &program, None, e))?;
    let started = Instant::now();
    while spec.lease.watchdog() != Some(child.id()) {
        let ended = child
            .try_wait()
            .map_err(|e| Error::file("wait for", &program, None, e))?;
        if ended.is_some() || started.elapsed() > PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            let why = ended.map_or_else(
                || "did not come up within 5 s".to_owned(),
                |s| format!("ended at once ({s})"),
            );
            return Err(Error::refused(format!("the watchdog ({program}) {why}")));
        }
        // Waiting for the watchdog is no hang. When it comes up, it must find a fresh heartbeat,
        // and so must the brakes meanwhile.
        spec.lease.beat(rt::now());
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut notes = Vec::new();
    // Other programs may freeze or kill a whole cgroup (freezer, v2). The cpuset keeps the watchdog
    // off the groups' CPUs.
    let group_cgroups = match GroupCgroups::internal(
        writer,
        cgroups,
        "watchdog",
        &[
            Controller::Freezer,
            Controller::PerfEvent,
            Controller::Cpuset,
        ],
    ) {
        Ok(group_cgroups) => group_cgroups,
        Err(e) => {
            notes.push(format!("the watchdog has no cgroup of its own: {e}"));
            GroupCgroups::default()
        }
    };
    for place in group_cgroups.places.iter().filter(|p| p.ours) {
        // Its cgroup is in the journal, and the cgroup's heir takes the whole process at the end.
        let procs_file = format!("{}/cgroup.procs", place.dir);
        if let Err(e) = writer.files.write(&procs_file, &child.id().to_string()) {
            notes.push(format!(
                "the watchdog could not be moved to {}: {e}",
                place.dir
            ));
        }
    }
    Ok(Watchdog {
        child,
        died: None,
        notes,
    })
}

impl Watchdog {
    /// Process id of the watchdog.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still watches. To be asked as often as the heartbeat is renewed.
    pub fn check(&mut self) -> Health {
        if self.died.is_none() {
            self.died = match self.child.try_wait() {
                Ok(None) => None,
                Ok(Some(status)) => Some(status.to_string()),
                Err(e) => Some(e.to_string()),
            };
        }
        self.died.clone().map_or(Health::Alive, Health::Died)
    }

    /// Waits until it has ended, after the lease was released (or revoked, and both have reverted
    /// the run).
    ///
    /// # Errors
    /// [`Error::Refused`] when it does not end.
    pub fn finish(mut self) -> Result<()> {
        let started = Instant::now();
        while self.check() == Health::Alive {
            if started.elapsed() > PATIENCE {
                return Err(Error::refused(format!(
                    "the watchdog (process {}) does not end",
                    self.pid()
                )));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// Why the watchdog ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The main process released the lease.
    Released,
    /// The main process ended without a release. Everything was reverted.
    Undone,
    /// The same, but something could not be reverted: the journal is kept for `quell restore`.
    Incomplete,
}

/// The watchdog itself: the body of the hidden subcommand. Standard input is the lock.
///
/// # Errors
/// [`Error::File`], [`Error::Malformed`] when lease or journal cannot be read.
pub fn run(dir: &Path) -> Result<Ended> {
    prepare();
    let kernel = Kernel::new()?;
    let journal_path = dir.join(journal::FILE);
    let mut watched = Watched::new(&kernel, dir)?;
    let known = Known::here(&kernel);
    let found = journal::read_open(&watched.journal, &journal_path, &known)?;
    let Some(header) = found.header else {
        return Err(Error::malformed(
            &journal_path.to_string_lossy(),
            "",
            "a journal with a header",
        ));
    };
    let main = header.main;
    let handle = i32::try_from(main.pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    let handle =
        handle.map(|pid| rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()));
    // The pidfd first, the start time second: which process the pidfd refers to cannot change any
    // more.
    let handle = match handle {
        Some(Ok(handle)) if procfs::alive(&kernel, main) => handle,
        Some(Err(e)) if procfs::alive(&kernel, main) => {
            return Err(Error::file("watch", "main process", None, e.into()));
        }
        // The main process died before the watchdog came up.
        _ => return Ok(watched.undo_for_good()),
    };
    let lease = match Lease::open(&dir.join(lease::FILE)) {
        Ok(lease) => lease,
        Err(_) if !procfs::alive(&kernel, main) => return Ok(watched.undo_for_good()),
        Err(e) => return Err(e),
    };
    lease.set_watchdog(std::process::id());
    Ok(watch(&mut watched, &lease, &handle))
}

fn watch(watched: &mut Watched<'_>, lease: &Lease, main: &rustix::fd::OwnedFd) -> Ended {
    let look = Timespec {
        tv_sec: 0,
        tv_nsec: i64::try_from(LOOK.0).unwrap_or(100_000_000),
    };
    let mut stale: Option<Nanos> = None;
    let mut undone = false;
    loop {
        let mut fds = [PollFd::new(main, PollFlags::IN)];
        let ready = rustix::event::poll(&mut fds, Some(&look));
        // A failing poll (out of kernel memory) must neither become a busy loop nor end the watch.
        let died = match ready {
            Ok(n) => n > 0,
            Err(_) => {
                std::thread::sleep(Duration::from_millis(100));
                false
            }
        };
        if lease.state() == State::Released {
            return Ended::Released;
        }
        if died {
            if lease.revoke() && !undone {
                note("the main process has died: its changes are being reverted");
            }
            return watched.undo_for_good();
        }
        watched.follow();
        let beat = lease.last_beat();
        let old = rt::now().since(beat) >= LAPSE;
        let hangs = old && stale == Some(beat);
        stale = old.then_some(beat);
        if hangs && !undone && (lease.revoke() || lease.is_revoked()) {
            note("the main process does not answer: everything is undone");
            watched.undo();
            undone = true;
        }
    }
}

/// A run's folder, and its journal, which stays readable when somebody removes it.
struct Watched<'a> {
    kernel: &'a dyn Files,
    dir: &'a Path,
    journal: File,
}

impl<'a> Watched<'a> {
    fn new(kernel: &'a dyn Files, dir: &'a Path) -> Result<Self> {
        Ok(Self {
            kernel,
            dir,
            journal: journal::open(&dir.join(journal::FILE))?,
        })
    }

    /// Takes the file that has replaced the journal meanwhile, if any.
    fn follow(&mut self) {
        let path = self.dir.join(journal::FILE);
        let number = |is: std::io::Result<Metadata>| is.ok().map(|is| is.ino());
        let now = number(std::fs::symlink_metadata(&path));
        if now.is_some()
            && now != number(self.journal.metadata())
            && let Ok(journal) = journal::open(&path)
        {
            self.journal = journal;
        }
    }

    /// Reverts, and removes the run's folder if all went well.
    fn undo_for_good(&mut self) -> Ended {
        if self.undo() && restore::remove_folder(self.dir).is_ok() {
            Ended::Undone
        } else {
            note("something could not be undone: run quell restore");
            Ended::Incomplete
        }
    }

    /// Reverts the journal's entries. Returns whether everything was reverted that should have
    /// been.
    fn undo(&mut self) -> bool {
        self.follow();
        let path = self.dir.join(journal::FILE);
        // Where another process has reverted it and removed it, nothing is left to be done.
        let removed = !path.exists();
        let known = Known::here(self.kernel);
        let found = journal::read_open(&self.journal, &path, &known);
        match found.and_then(|found| restore::revert(self.kernel, self.dir, &found)) {
            Ok(restored) => {
                if removed && restored.undone.restored > 0 {
                    note("somebody has removed the journal: an open copy of it was used");
                }
                for text in restored.notes.iter().chain(&restored.undone.left) {
                    note(text);
                }
                restored.complete
            }
            Err(e) => {
                note(&e.to_string());
                false
            }
        }
    }
}

#[expect(
    clippy::print_stderr,
    reason = "standard error is all that the watchdog has; whoever started the run sees it"
)]
fn note(text: &str) {
    eprintln!("quell watchdog: {text}");
}

/// A session of its own, no signals from the terminal, memory locked, real-time priority, and the
/// last choice of the OOM killer. Then it keeps no more rights than reverting needs. None of it is
/// vital: what is refused is done without.
fn prepare() {
    // It outlives the shell that started Quell, and must not keep that one's files open.
    // SAFETY: nothing has been opened yet but the standard streams, which stay.
    let _ = unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
    let _ = rustix::thread::set_name(c"quell-watchdog");
    let _ = rustix::process::setsid();
    for signal in [
        libc::SIGTERM,
        libc::SIGINT,
        libc::SIGHUP,
        libc::SIGQUIT,
        libc::SIGPIPE,
    ] {
        // SAFETY: setting a disposition to "ignore" installs no handler, and the numbers are valid.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
    let all = rustix::mm::MlockAllFlags::CURRENT
        | rustix::mm::MlockAllFlags::FUTURE
        | rustix::mm::MlockAllFlags::ONFAULT;
    let _ = rustix::mm::mlockall(all);
    let _ = rt::fifo(rt::WATCHDOG_PRIORITY);
    let _ = privileges::keep(privileges::REVERTING);
    // With a filter, of the run or of a container, it cannot read those of others anyway: another
    // one costs nothing.
    if refused::has_filter() {
        let _ = refused::refuse(&[refused::EXECUTING]);
    }
}

/// Path of the watchdog's cgroups, from the root of a hierarchy. For summaries of what runs where.
#[must_use]
pub fn cgroup() -> String {
    format!("/{}/_watchdog", group_cgroups::SLICE)
}

#[cfg(test)]
mod tests {
    use quell_kernel::fake::{self, Fake, Flavour};

    use super::*;
    use crate::journal::Journal;
    use crate::journal::tests::header;

    #[test]
    fn a_watchdog_that_ends_at_once_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let fake = Fake::new(&fake::Spec::new(Flavour::V2));
        let cgroups = Cgroups::discover(&fake).unwrap();
        let lock = Lock::acquire(dir.path(), "run test").unwrap();
        let lease = Lease::create(dir.path(), 1, rt::now()).unwrap();
        let mut journal = Journal::create(dir.path(), header()).unwrap();
        let mut writer = JournaledWriter::new(&fake, &mut journal);
        let spec = Spec {
            program: "/bin/sh".into(),
            arguments: vec!["-c".into(), "exit 3".into()],
            dir: dir.path(),
            lock: &lock,
            lease: &lease,
        };
        let refused = spawn(&mut writer, &cgroups, &spec).unwrap_err();
        let refused = refused.to_string();
        assert!(
            refused.contains("ended at once (exit status: 3)"),
            "{refused}"
        );
    }
}
