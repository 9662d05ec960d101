//! The programs that a run starts. They are born in their group's cgroups and on their CPUs, and
//! watched through pidfds and pipes.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use quell_kernel::error::{Error, Result};
use quell_kernel::trace::{self, Call};
use quell_kernel::{limit, oom, rt, signals};
use quell_record::backend::{Seen, SubjectId};
use quell_record::measurement::Measurement;
use quell_types::cpuset::CpuSet;
use quell_types::units::Nanos;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::tee::Tee;

/// How long a program may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(3);
/// How long a generator may take to end. It checks for the word `stop` every millisecond.
const GENERATOR_GRACE: Duration = Duration::from_millis(500);
/// How long a killed program may take to be gone. While the kernel reclaims memory from it or reads
/// for it from a slow disk, that takes seconds. After this it is left to the kernel.
const DEATH: Duration = Duration::from_secs(20);
/// The longest line kept of a program's output.
const LONGEST_LINE: usize = 64 << 10;

/// How a program is started.
pub struct Birth<'a> {
    /// Program and arguments; must not be empty.
    pub command: &'a [String],
    /// Variables added to Quell's own environment.
    pub env: Vec<(String, String)>,
    /// `cgroup.procs` files it enters before it executes.
    pub procs_files: Vec<String>,
    /// The CPUs it may use. Empty leaves the CPUs of Quell.
    pub cpus: CpuSet,
    /// Whether it speaks the generators' protocol on its standard input and output.
    pub generator: bool,
    /// Whether its output is read line by line.
    pub capture: bool,
    /// Whether its output is read line by line and also passed on to Quell's standard output.
    pub along: bool,
    /// Open files that it inherits, with the same numbers.
    pub inherits: Vec<BorrowedFd<'a>>,
    /// How its memory is paged.
    pub paging: FirstPages,
}

/// How the memory of a program is paged from its first instruction on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FirstPages {
    /// The call by which it locks its memory.
    pub lock: Option<Call>,
    /// Whether it has small pages only.
    pub small: bool,
}

impl FirstPages {
    /// Runs in the child between fork and exec, last of all.
    fn enter(self) -> io::Result<()> {
        if self.small {
            let (yes, none): (libc::c_ulong, libc::c_ulong) = (1, 0);
            // SAFETY: takes no pointers.
            let done = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, yes, none, none, none) };
            if done != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        if self.lock.is_some() {
            limit::lift()?;
            trace::trace_me()?;
        }
        Ok(())
    }

    /// Lets the child that has executed its program lock its memory, before the program's first
    /// instruction.
    fn lock(self, name: &str, pid: u32) -> Result<()> {
        let Some(call) = self.lock else {
            return Ok(());
        };
        let blocked = trace::blocked_but(&signals::STOP_SIGNALS);
        trace::at_exec(pid, &call, blocked).map_err(|e| {
            Error::refused_with(
                format!("{name}: its memory could not be locked: {e}"),
                "free as much memory as it maps, or leave paging.locked out",
            )
        })
    }
}

/// A program that runs, or has ended.
#[derive(Debug)]
pub struct Subject {
    /// Number of the program within the run.
    pub id: SubjectId,
    name: String,
    child: Child,
    pidfd: OwnedFd,
    started: Nanos,
    generator: bool,
    /// Whether it leads a process group of its own.
    leader: bool,
    /// The readable end of its output, non-blocking. `None` where nothing is read.
    output: Option<File>,
    tee: Option<Tee>,
    buffer: Vec<u8>,
    /// How it ended, while the end of its output is still awaited.
    exited: Option<ExitStatus>,
    status: Option<ExitStatus>,
}

impl Subject {
    /// Starts a program.
    ///
    /// # Errors
    /// [`Error::Refused`] with the program's name when it cannot be executed.
    pub fn start(id: SubjectId, name: &str, birth: &Birth<'_>) -> Result<Self> {
        let (program, arguments) = birth
            .command
            .split_first()
            .ok_or_else(|| Error::refused(format!("{name}: the command is empty")))?;
        let procs_files = open_doors(&birth.procs_files)?;
        let mut mask = rustix::thread::CpuSet::new();
        birth.cpus.iter().for_each(|cpu| mask.set(cpu as usize));
        let (leader, pinned) = (birth.capture || birth.generator, !birth.cpus.is_empty());
        let mut command = Command::new(program);
        command
            .args(arguments)
            .envs(birth.env.iter().map(|(k, v)| (k, v)));
        if birth.generator {
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
        } else if birth.capture {
            command.stdin(Stdio::null()).stdout(Stdio::piped());
        } else if birth.along {
            command.stdout(Stdio::piped());
        }
        if leader {
            command.process_group(0);
        }
        let inherits: Vec<RawFd> = birth.inherits.iter().map(AsRawFd::as_raw_fd).collect();
        let paging = birth.paging;
        // SAFETY: between fork and exec only system calls on prepared values are made, and nothing
        // allocates.
        unsafe {
            command.pre_exec(move || {
                enter(&procs_files, pinned.then_some(&mask), leader, &inherits)?;
                paging.enter()
            });
        }
        let failed = |e: io::Error| {
            let remedy = match e.kind() {
                io::ErrorKind::NotFound => "install it, or give its path",
                io::ErrorKind::PermissionDenied => "make it executable",
                _ => "try the command by itself",
            };
            Error::refused_with(
                format!("{name}: '{program}' could not be started: {e}"),
                remedy,
            )
        };
        let mut child = command.spawn().map_err(failed)?;
        let locked = paging.lock(name, child.id());
        let watched = locked.and_then(|()| watch(&mut child, birth.along && !leader));
        let (pidfd, output, tee) = watched.inspect_err(|_| {
            let _ = child.kill();
            let _ = child.wait();
        })?;
        Ok(Self {
            id,
            name: name.to_owned(),
            child,
            pidfd,
            started: rt::now(),
            generator: birth.generator,
            leader,
            output,
            tee,
            buffer: Vec::new(),
            exited: None,
            status: None,
        })
    }

    /// Its process id, also after it has ended.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether its end was not seen yet: its process id is its own still.
    #[must_use]
    pub const fn runs(&self) -> bool {
        self.exited.is_none() && self.status.is_none()
    }

    /// Whether it has ended and all its output was read.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.status.is_some()
    }

    /// Descriptors to poll while it runs: for its end, and for its output.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let running = !self.ended();
        let output = self.output.as_ref().map(AsFd::as_fd);
        // After its end was seen, the pidfd would stay readable.
        let end = self.exited.is_none().then(|| self.pidfd.as_fd());
        end.into_iter().chain(output).filter(move |_| running)
    }

    /// Reads the output that is there, and reports the program's end.
    pub fn observe(&mut self, seen: &mut Vec<Seen>) {
        if self.ended() {
            return;
        }
        self.exited = self.exited.or_else(|| self.child.try_wait().ok().flatten());
        let told = self.exited.is_some() && self.tee.as_ref().is_none_or(Tee::ended);
        self.drain(seen);
        if let Some(status) = self.exited.filter(|_| told) {
            self.status = Some(status);
            if !self.buffer.is_empty() {
                let rest = std::mem::take(&mut self.buffer);
                self.line(&rest, seen);
            }
            seen.push(Seen::Exited(
                self.id,
                shell_status(status),
                rt::now().since(self.started),
            ));
        }
    }

    fn drain(&mut self, seen: &mut Vec<Seen>) {
        let mut chunk = [0u8; 16 << 10];
        while let Some(output) = self.output.as_mut() {
            match output.read(&mut chunk) {
                Ok(0) => break,
                Ok(n) => self.buffer.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
            while let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                self.line(&line, seen);
            }
            if !self.generator {
                self.buffer.truncate(LONGEST_LINE);
            }
        }
    }

    fn line(&self, line: &[u8], seen: &mut Vec<Seen>) {
        let text = String::from_utf8_lossy(line).trim_end().to_owned();
        if !self.generator {
            seen.push(Seen::Line(self.id, text));
        } else if text == "ready" {
            seen.push(Seen::Ready(self.id));
        } else if let Some(measurement) = text
            .strip_prefix("result ")
            .and_then(|json| serde_json::from_str::<Measurement>(json).ok())
        {
            seen.push(Seen::Result(self.id, measurement));
        }
    }

    /// Writes a line of the generators' protocol to the program.
    ///
    /// # Errors
    /// [`Error::Refused`] when it does not listen any more.
    pub fn say(&mut self, line: &str) -> Result<()> {
        let name = &self.name;
        let gone =
            |e: io::Error| Error::refused(format!("{name}: the generator does not listen: {e}"));
        match self.child.stdin.as_mut() {
            Some(input) => input
                .write_all(line.as_bytes())
                .and_then(|()| input.flush())
                .map_err(gone),
            None => Err(Error::refused(format!("{name} is no generator"))),
        }
    }

    /// Ends the program and its process group, and reaps it. `meanwhile` is called again and again
    /// during the wait, so that heartbeats go on.
    pub fn stop(&mut self, meanwhile: &mut dyn FnMut()) {
        if self.ended() {
            self.signal(Signal::KILL);
            return;
        }
        let grace = if self.generator {
            let _ = self.say("stop\n");
            GENERATOR_GRACE
        } else {
            self.signal(Signal::TERM);
            GRACE
        };
        let left = self.reaped_within(grace, meanwhile);
        self.signal(Signal::KILL);
        if !left {
            self.reaped_within(DEATH, meanwhile);
        }
    }

    /// Whether the program has ended within `patience`, and is reaped.
    fn reaped_within(&mut self, patience: Duration, meanwhile: &mut dyn FnMut()) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < patience {
            if let Ok(Some(status)) = self.child.try_wait() {
                self.status = Some(status);
                return true;
            }
            meanwhile();
            std::thread::sleep(Duration::from_micros(500));
        }
        false
    }

    /// Signals the process, or its whole process group where it leads one. A process group outlives
    /// its leader. So this also reaches what an ended program has left behind.
    fn signal(&self, signal: Signal) {
        let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) else {
            return;
        };
        if self.leader {
            let _ = rustix::process::kill_process_group(pid, signal);
        } else if !self.ended() {
            let _ = rustix::process::pidfd_send_signal(&self.pidfd, signal);
        }
    }
}

/// Opens the files through which a child enters its cgroups ([`enter`]).
pub(crate) fn open_doors(procs_files: &[String]) -> Result<Vec<File>> {
    let open = |procs_file: &String| {
        let file = OpenOptions::new().write(true).open(procs_file);
        file.map_err(|e| Error::file("open", procs_file, None, e))
    };
    procs_files.iter().map(open).collect()
}

/// Runs in the child between fork and exec.
pub(crate) fn enter(
    procs_files: &[File],
    cpus: Option<&rustix::thread::CpuSet>,
    dies_with_us: bool,
    inherits: &[RawFd],
) -> io::Result<()> {
    for file in inherits {
        // SAFETY: the file is open in the process that starts the child, and the child has a copy
        // of every descriptor.
        let file = unsafe { BorrowedFd::borrow_raw(*file) };
        rustix::io::fcntl_setfd(file, rustix::io::FdFlags::empty())?;
    }
    for mut procs_file in procs_files {
        procs_file.write_all(b"0")?;
    }
    if let Some(cpus) = cpus {
        rustix::thread::sched_setaffinity(None, cpus)?;
    }
    if dies_with_us {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    }
    oom::unsheltered()?;
    // Quell blocks these signals only to read them from a descriptor. They must be able to end a
    // program.
    signals::release_stop_signals()
}

type Watched = (OwnedFd, Option<File>, Option<Tee>);

/// A pidfd for the child's end, and its output if it is read. `along` also passes the output on.
fn watch(child: &mut Child, along: bool) -> Result<Watched> {
    let failed = |e: io::Error| Error::refused(format!("the new process cannot be watched: {e}"));
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| Error::refused("the new process has no number"))?;
    let (output, tee) = match child.stdout.take() {
        None => (None, None),
        Some(output) if along => {
            let (tee, copy) = Tee::start(output).map_err(failed)?;
            (Some(copy), Some(tee))
        }
        Some(output) => (Some(File::from(OwnedFd::from(output))), None),
    };
    if let Some(output) = &output {
        let flags = rustix::fs::fcntl_getfl(output).map_err(|e| failed(e.into()))?;
        let flags = flags | rustix::fs::OFlags::NONBLOCK;
        rustix::fs::fcntl_setfl(output, flags).map_err(|e| failed(e.into()))?;
    }
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty());
    Ok((pidfd.map_err(|e| failed(e.into()))?, output, tee))
}

/// The exit status as a shell reports it: 128 + n for signal n.
#[must_use]
pub fn shell_status(status: ExitStatus) -> i32 {
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}
