//! Files that are kept in memory: mapped and locked (`mlock(2)`) by a small process in the group's
//! cgroup, the keeper. A page that is not in memory yet is charged to the keeper's cgroup. A page
//! that another cgroup read first stays charged to that one. Pages stay locked as long as the
//! keeper lives. It ends when its standard input does: with the run, however that ends.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::ptr::NonNull;

use quell_kernel::error::{Error, Result};
use quell_kernel::oom;
use quell_types::units::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::mm::{MapFlags, ProtFlags};

use crate::children;

/// How a keeper is started: a hidden subcommand, to which what it keeps is appended.
#[derive(Clone, Debug)]
pub struct KeeperCommand {
    /// Path of the program; normally `/proc/self/exe`.
    pub program: PathBuf,
    /// The arguments before what it keeps.
    pub arguments: Vec<String>,
}

impl KeeperCommand {
    /// Starts a keeper that first enters these cgroups (paths of their `cgroup.procs`). Its
    /// standard streams are pipes.
    ///
    /// # Errors
    /// [`Error::File`] when a cgroup cannot be opened or the program not started.
    pub(crate) fn start(&self, arguments: &[String], cgroups: &[String]) -> Result<Child> {
        let program = self.program.to_string_lossy().into_owned();
        let cgroups = children::open_doors(cgroups)?;
        let mut start = Command::new(&self.program);
        start
            .args(&self.arguments)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        // SAFETY: between fork and exec only system calls on prepared values are made, and nothing
        // allocates.
        unsafe {
            start.pre_exec(move || children::enter(&cgroups, None, false, &[]));
        }
        start
            .spawn()
            .map_err(|e| Error::file("start", &program, None, e))
    }
}

/// Waits until a keeper has written something, or has ended. `heartbeat` is called every 100 ms.
///
/// # Errors
/// [`Error::Refused`] when waiting fails.
pub(crate) fn wait_for_output(output: impl AsFd, heartbeat: &mut dyn FnMut()) -> Result<()> {
    let interval = Timespec {
        tv_sec: 0,
        tv_nsec: 100_000_000,
    };
    loop {
        heartbeat();
        let mut watched = [PollFd::new(&output, PollFlags::IN)];
        match rustix::event::poll(&mut watched, Some(&interval)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(e) => {
                return Err(Error::refused(format!(
                    "waiting for the keeper failed: {e}"
                )));
            }
        }
    }
}

/// A line that a keeper says to the main process.
///
/// # Errors
/// [`Error::File`] when standard output cannot be written.
pub(crate) fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout();
    let written = writeln!(out, "{line}").and_then(|()| out.flush());
    written.map_err(|e| Error::file("write", "standard output", None, e))
}

/// What a keeper that has ended wrote to its standard error. `does`: what it is for, as in "the
/// process that …".
pub(crate) fn last_words(keeper: &mut Child, does: &str) -> Error {
    let mut why = String::new();
    if let Some(mut errors) = keeper.stderr.take() {
        let _ = errors.read_to_string(&mut why);
    }
    let why = why.trim().trim_start_matches("quell: ");
    Error::refused(if why.is_empty() {
        format!(
            "the process that {does} ended without an error; dmesg shows whether the kernel killed it for memory"
        )
    } else {
        why.to_owned()
    })
}

/// Whether any amount of memory may be locked.
///
/// # Errors
/// The reason in words.
pub fn may_lock() -> std::result::Result<(), String> {
    const CAP_IPC_LOCK: u32 = 14;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock);
    match limit.current {
        None => Ok(()),
        _ if quell_kernel::is_capable(CAP_IPC_LOCK) => Ok(()),
        Some(bytes) => Err(format!(
            "only {} may be locked (RLIMIT_MEMLOCK), and CAP_IPC_LOCK is missing",
            Bytes(bytes)
        )),
    }
}

/// A file, mapped and locked until this is dropped.
#[derive(Debug)]
struct Locked {
    memory: NonNull<libc::c_void>,
    length: usize,
}

impl Locked {
    /// Maps and locks a whole file. When it returns, every page is in memory.
    fn new(path: &str) -> Result<Self> {
        let failed = |action, e: std::io::Error| Error::file(action, path, None, e);
        let file = File::open(path).map_err(|e| failed("open", e))?;
        let metadata = file.metadata().map_err(|e| failed("inspect", e))?;
        let length = usize::try_from(metadata.len()).unwrap_or(usize::MAX);
        let refusal = if !metadata.is_file() {
            Some(("is no regular file", "name files, not folders or devices"))
        } else if length == 0 {
            Some((
                "is empty, so it has no page to lock",
                "leave it out of reserve.files",
            ))
        } else {
            None
        };
        if let Some((why, help)) = refusal {
            return Err(Error::refused_with(format!("{path} {why}"), help));
        }
        // SAFETY: a fresh mapping at an address that the kernel chooses. Nothing is ever read
        // through it, so a file that another program shortens cannot fault this process.
        let memory = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ,
                MapFlags::SHARED,
                &file,
                0,
            )
        };
        let memory = memory.map_err(|e| failed("map", e.into())).and_then(|m| {
            NonNull::new(m).ok_or_else(|| Error::refused(format!("{path} was mapped at zero")))
        })?;
        let locked = Self { memory, length };
        // SAFETY: the range is the mapping just made.
        unsafe { rustix::mm::mlock(memory.as_ptr(), length) }.map_err(|e| {
            let e = std::io::Error::from(e);
            match e.raw_os_error() {
                Some(libc::ENOMEM | libc::EPERM | libc::EAGAIN) => Error::refused_with(
                    format!("{path} ({}) cannot be locked in memory: {e}", Bytes(length as u64)),
                    "give CAP_IPC_LOCK, or raise the limit of locked memory (ulimit -l), or free as much memory",
                ),
                _ => failed("lock", e),
            }
        })?;
        Ok(locked)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this address and length. Nothing refers to it.
        let _ = unsafe { rustix::mm::munmap(self.memory.as_ptr(), self.length) };
    }
}

/// The keeper itself: the body of the hidden subcommand. It prints `kept BYTES` once all is locked,
/// and ends with its standard input.
///
/// # Errors
/// The first file that cannot be locked, and no file is locked then. [`Error::File`] when standard
/// output cannot be written.
pub fn keep(files: &[String]) -> Result<()> {
    // Its death would unlock what the group relies on. Without the right to do so it stays as
    // likely to be killed as any process.
    let _ = std::fs::write("/proc/self/oom_score_adj", oom::IMMUNE.to_string());
    let locked: Vec<Locked> = files
        .iter()
        .map(|f| Locked::new(f))
        .collect::<Result<_>>()?;
    let bytes: usize = locked.iter().map(|l| l.length).sum();
    say(&format!("kept {bytes}"))?;
    let mut rest = [0u8; 64];
    // End of file or an error: both end it.
    while matches!(std::io::stdin().read(&mut rest), Ok(n) if n > 0) {}
    drop(locked);
    Ok(())
}

/// The process of a keeper. Dropping it ends the keeper.
#[derive(Debug)]
pub(crate) struct KeeperProcess(pub Child);

impl KeeperProcess {
    /// Its exit status as text, or the error of asking for it. `None` while it runs.
    pub fn ended(&mut self) -> Option<String> {
        match self.0.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(status.to_string()),
            Err(e) => Some(e.to_string()),
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for KeeperProcess {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // It has nothing to save, and its cgroup is about to be removed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The main process's handle of a keeper of files. Dropping it ends the keeper.
#[derive(Debug)]
pub struct Keeper {
    process: KeeperProcess,
    /// The sum of the sizes of the locked files. One that is named twice counts twice.
    pub bytes: Bytes,
}

impl Keeper {
    /// Starts a keeper that first enters these cgroups (paths of their `cgroup.procs`). Waits until
    /// all is in memory, however long reading takes. `heartbeat` is called every 100 ms meanwhile.
    ///
    /// # Errors
    /// [`Error::File`] when a cgroup cannot be opened or the program not started.
    /// [`Error::Refused`] with what the keeper wrote to its standard error, or when waiting fails.
    pub fn start(
        command: &KeeperCommand,
        files: &[String],
        cgroups: &[String],
        heartbeat: &mut dyn FnMut(),
    ) -> Result<Self> {
        let process = KeeperProcess(command.start(files, cgroups)?);
        let mut keeper = Self {
            process,
            bytes: Bytes(0),
        };
        keeper.bytes = keeper.wait(heartbeat)?;
        Ok(keeper)
    }

    fn wait(&mut self, heartbeat: &mut dyn FnMut()) -> Result<Bytes> {
        let none = || Error::refused("the keeper has no output");
        let output = self.process.0.stdout.take().ok_or_else(none)?;
        wait_for_output(&output, heartbeat)?;
        let mut line = String::new();
        let _ = BufReader::new(output).read_line(&mut line);
        if let Some(bytes) = line
            .trim()
            .strip_prefix("kept ")
            .and_then(|n| n.parse().ok())
        {
            return Ok(Bytes(bytes));
        }
        Err(last_words(&mut self.process.0, "locks the group's files"))
    }

    /// Its exit status as text, or the error of asking for it. `None` while it runs. After its end
    /// nothing is locked any more.
    pub fn ended(&mut self) -> Option<String> {
        self.process.ended()
    }

    /// Process id of the keeper.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }
}
