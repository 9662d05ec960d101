//! The programs a run starts: born in their group's cgroups and on their CPUs, watched through
//! pidfds and pipes.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use quell_kernel::error::{Error, Result};
use quell_kernel::{oom, rt, signals};
use quell_record::backend::{Seen, SubjectId};
use quell_record::measurement::Measurement;
use quell_types::cpuset::CpuSet;
use quell_types::units::Nanos;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::tee::Tee;

/// How long a program is given to end when asked to.
const GRACE: Duration = Duration::from_secs(3);
/// How long a generator is given: it looks for the word every millisecond.
const GENERATOR_GRACE: Duration = Duration::from_millis(500);
/// Who was killed while the kernel took memory from it or read for it, on a slow disk, may take
/// seconds to be gone; who is not by then is left to the kernel.
const DEATH: Duration = Duration::from_secs(20);
/// The longest line kept of a program's output.
const LONGEST_LINE: usize = 64 << 10;

/// How a program is started.
pub struct Birth<'a> {
    /// Program and arguments.
    pub command: &'a [String],
    /// Extra environment.
    pub env: Vec<(String, String)>,
    /// `cgroup.procs` files it enters before it executes.
    pub doors: Vec<String>,
    /// The CPUs it may use.
    pub cpus: CpuSet,
    /// Speaks the generators' protocol on its standard input and output.
    pub generator: bool,
    /// Its output is read line by line.
    pub capture: bool,
    /// Its output is read line by line, and passed on to our own standard output.
    pub along: bool,
    /// Files it inherits.
    pub inherits: Vec<BorrowedFd<'a>>,
}

/// A running (or ended) program.
#[derive(Debug)]
pub struct Subject {
    /// Its number.
    pub id: SubjectId,
    name: String,
    child: Child,
    pidfd: OwnedFd,
    started: Nanos,
    generator: bool,
    /// It leads a process group of its own.
    leader: bool,
    /// What is read of its output, without waiting.
    output: Option<File>,
    tee: Option<Tee>,
    buffer: Vec<u8>,
    /// How it ended, while its last words are waited for.
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
        let doors = open_doors(&birth.doors)?;
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
        // SAFETY: between fork and exec only system calls on prepared values are made; nothing
        // allocates.
        unsafe {
            command.pre_exec(move || enter(&doors, pinned.then_some(&mask), leader, &inherits));
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
        let (pidfd, output, tee) = watch(&mut child, birth.along && !leader).inspect_err(|_| {
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

    /// Its process number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.status.is_some()
    }

    /// What to poll while it runs: its end, and its output.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let running = !self.ended();
        let output = self.output.as_ref().map(AsFd::as_fd);
        // Its end is noticed once.
        let end = self.exited.is_none().then(|| self.pidfd.as_fd());
        end.into_iter().chain(output).filter(move |_| running)
    }

    /// Reads what there is, and notices its end.
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

    /// Says a line of the generators' protocol.
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

    /// Ends it and what it started, and reaps it.
    /// Calls `meanwhile` again and again while it waits: the heartbeat must not stop.
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

    /// Whether it has ended before so long, and is reaped.
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

    /// Signals the process, or its whole group where it leads one. A group outlives its leader, so
    /// that this also reaches what an ended program has left behind.
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
pub(crate) fn open_doors(doors: &[String]) -> Result<Vec<File>> {
    let open = |door: &String| {
        let file = OpenOptions::new().write(true).open(door);
        file.map_err(|e| Error::file("open", door, None, e))
    };
    doors.iter().map(open).collect()
}

/// Runs in the child between fork and exec.
pub(crate) fn enter(
    doors: &[File],
    cpus: Option<&rustix::thread::CpuSet>,
    dies_with_us: bool,
    inherits: &[RawFd],
) -> io::Result<()> {
    for file in inherits {
        // SAFETY: the file is open: who starts the child has it, and the child has a copy of
        // everything.
        let file = unsafe { BorrowedFd::borrow_raw(*file) };
        rustix::io::fcntl_setfd(file, rustix::io::FdFlags::empty())?;
    }
    for mut door in doors {
        door.write_all(b"0")?;
    }
    if let Some(cpus) = cpus {
        rustix::thread::sched_setaffinity(None, cpus)?;
    }
    if dies_with_us {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    }
    oom::unsheltered()?;
    // Blocked by us only to be read from a descriptor; a program must be able to be ended by them.
    signals::release_stop_signals()
}

type Watched = (OwnedFd, Option<File>, Option<Tee>);

/// What tells of its end, and its output, if it is read; `along`: and passed on.
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

/// The status as a shell reports it: 128 + n for signal n.
#[must_use]
pub fn shell_status(status: ExitStatus) -> i32 {
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}
