//! The settler: a process that stops another one and moves its pages into frames of other colours,
//! chunk by chunk, as it is asked. It has a session of its own and blocks all signals. If its
//! parent dies, it finishes the chunk that it has begun and ends.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use quell_control::settling::RightFrames;
use quell_kernel::error::{Error, Result};
use quell_kernel::oom;
use quell_kernel::relocate::{Manner, Outcome, Process, Step};
use quell_kernel::root::{Files, Kernel};
use quell_kernel::{affinity, rt};
use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::pages::{SideArea, total};
use quell_types::partition::Colouring;
use quell_types::task::TaskId;
use quell_types::units::{Bytes, Nanos};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use super::sieve::{PagesOf, Sieve};
use crate::fault;

/// How a settler is started: a hidden subcommand. It gets its job on standard input.
#[derive(Clone, Debug)]
pub struct SettlerCommand {
    /// Path of the program; normally `/proc/self/exe`.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
}

/// What a settler is for: its first line of input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Job {
    /// The process whose pages are moved.
    pub task: TaskId,
    /// How frames have colours.
    pub colouring: Colouring,
    /// The colours that its pages shall have.
    pub colours: CpuSet,
    /// The most memory that is held to find frames.
    pub hold: Bytes,
}

/// A chunk: a further line of input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Ask {
    /// The pages, and where they are moved to.
    pub side: SideArea,
    /// Whether they are locked.
    pub locked: bool,
    /// How long the threads may be stopped.
    pub longest: Nanos,
    /// The CPU on which frames were released for it. Absent: any.
    pub cpu: Option<CpuId>,
    /// Right pages of each colour that the memory has of which these pages are a part.
    pub had: PagesOf,
}

/// How a chunk came out: a line of output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Answer {
    /// How long the threads were stopped.
    pub lasted: Nanos,
    /// How long of that pages were moved and copied.
    pub moving: Nanos,
    /// Pages that have new frames.
    pub moved: u64,
    /// Pages that the kernel refuses to move, by number.
    pub refused: Vec<u64>,
    /// Memory that is held to find frames.
    pub held: Bytes,
    /// Whether the settler ends after this answer: so that the kernel lets threads go that have not
    /// stopped yet.
    pub last: bool,
    /// What went wrong, if something did.
    pub trouble: Option<Trouble>,
}

/// What can go wrong with a chunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Trouble {
    /// Too few frames were found. Nothing was moved.
    NoFrames,
    /// A thread did not stop in time, none could do a call, or the side area's place was taken.
    /// Another try may help.
    Busy,
    /// The process has ended.
    Gone,
    /// These pages stay as they are.
    Kept(String),
    /// All pages stay as they are from now on.
    Refused(String),
    /// Pages are still away.
    Away(String),
}

/// The settler itself: the body of the hidden subcommand. `input` and `output` are its standard
/// ones, which lead to its parent.
///
/// # Errors
/// An input that cannot be read, or has no job in it.
pub fn serve(input: &mut impl BufRead, output: &mut impl Write) -> Result<()> {
    let parent = rustix::process::getppid();
    let _ = rustix::process::setsid();
    block_signals();
    // Looking for frames takes CPU time, which the program may want.
    rt::give_way();
    // Its death would leave a program waiting.
    let _ = std::fs::write("/proc/self/oom_score_adj", oom::IMMUNE.to_string());
    let files = Kernel::new()?;
    let Some(job) = next::<Job>(input)? else {
        return Ok(());
    };
    let none = || Error::refused("there are no such colours");
    let right = RightFrames::new(&job.colouring, &job.colours).ok_or_else(none)?;
    let page = job.colouring.page;
    let mut sieve = Sieve::new(&files, right, page, job.hold)?;
    while let Some(ask) = next::<Ask>(input)? {
        let mut answer = one(&files, &job, &ask, &mut sieve, parent);
        answer.held = sieve.held();
        let line = serde_json::to_string(&answer).unwrap_or_default();
        let said = writeln!(output, "{line}").and_then(|()| output.flush());
        if said.is_err() || answer.last {
            break;
        }
    }
    Ok(())
}

/// The next line of input. `None` at its end.
fn next<T: for<'a> Deserialize<'a>>(input: &mut impl BufRead) -> Result<Option<T>> {
    let mut line = String::new();
    let read = input.read_line(&mut line);
    let read = read.map_err(|e| Error::file("read", "standard input", None, e))?;
    if read == 0 || !line.ends_with('\n') {
        return Ok(None);
    }
    serde_json::from_str(&line).map(Some).map_err(|e| {
        Error::malformed(
            "standard input",
            &line,
            format!("what a settler is asked: {e}"),
        )
    })
}

fn block_signals() {
    // SAFETY: the set is initialised before use.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&raw mut set);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
    }
}

/// How many more right frames than are needed are looked for, so that there is a choice of colours.
pub(super) fn spare(colours: &CpuSet) -> u64 {
    /// What a pool has of each colour, about.
    const OF_EACH: u64 = 2;
    /// 2 MiB of small pages.
    const MOST: u64 = 512;
    (colours.iter().count() as u64 * OF_EACH).min(MOST)
}

/// Moves one chunk.
fn one(files: &dyn Files, job: &Job, ask: &Ask, sieve: &mut Sieve, parent: Option<Pid>) -> Answer {
    let trouble = |trouble| Answer {
        trouble: Some(trouble),
        ..Answer::default()
    };
    let process = match Process::open(job.task) {
        Ok(process) => process,
        Err(_) => return trouble(Trouble::Gone),
    };
    // A frame that is released comes back on the same CPU.
    let allowed = files.affinity(0);
    let pin = |cpu| affinity::set(0, &CpuSet::from_iter([cpu])).is_ok();
    if !ask.cpu.is_some_and(pin) {
        pin(rt::current_cpu());
    }
    let wanted = usize::try_from(total(&ask.side.runs)).unwrap_or(usize::MAX);
    sieve.deal(ask.had.clone());
    let spare = usize::try_from(spare(&job.colours)).unwrap_or(0);
    let found = sieve.fill(wanted + spare);
    let done = match found {
        // What undoes the run may have come before this chunk. Then nothing else would finish it.
        _ if rustix::process::getppid() != parent => Answer {
            last: true,
            ..trouble(Trouble::Busy)
        },
        Ok(found) if found >= wanted => {
            // Only now: the program runs there.
            let calling = ask.side.caller.as_ref();
            let side = match calling.is_some_and(|caller| pin(caller.on)) {
                true => ask.side.clone(),
                false => SideArea {
                    caller: None,
                    sleepers: Vec::new(),
                    ..ask.side.clone()
                },
            };
            let manner = Manner {
                locked: ask.locked,
                longest: std::time::Duration::from_nanos(ask.longest.0),
            };
            // Other programs that want this CPU would make the stop longer.
            let urgent = rt::fifo(rt::SETTLER_PRIORITY).is_ok();
            let outcome = process.relocate(&side, manner, sieve, &fault::boundary);
            if urgent {
                let _ = rt::ordinary();
            }
            answer(outcome)
        }
        Ok(_) => trouble(Trouble::NoFrames),
        Err(e) => trouble(Trouble::Refused(e.to_string())),
    };
    if let Ok(allowed) = allowed {
        let _ = affinity::set(0, &allowed);
    }
    done
}

fn answer(outcome: Outcome) -> Answer {
    let late = |error: &std::io::Error| error.raw_os_error() == Some(libc::ETIMEDOUT);
    let nanos =
        |time: std::time::Duration| Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    Answer {
        lasted: nanos(outcome.lasted),
        moving: nanos(outcome.moving),
        moved: outcome.moved,
        refused: outcome.refused,
        held: Bytes(0),
        last: matches!(&outcome.failed, Some((Step::Stop, e)) if late(e)),
        trouble: outcome.failed.map(|(step, error)| trouble(step, &error)),
    }
}

fn trouble(step: Step, error: &std::io::Error) -> Trouble {
    let what = match (step, error.raw_os_error()) {
        (Step::Return, _) => {
            return Trouble::Away(format!("pages could be put back at no place: {error}"));
        }
        (_, Some(libc::ESRCH)) => return Trouble::Gone,
        (Step::Stop, Some(libc::EAGAIN | libc::ETIMEDOUT))
        | (Step::Enter, Some(libc::EBUSY))
        | (Step::Map, Some(libc::EEXIST)) => {
            return Trouble::Busy;
        }
        (Step::Stop, Some(libc::EPERM)) => {
            "it may not be traced: another program traces it, or the kernel forbids it (Yama's ptrace_scope, a container)".to_owned()
        }
        (Step::Stop, _) => format!("its threads could not be stopped: {error}"),
        (Step::Enter, Some(libc::ENOEXEC | libc::ENOTSUP)) => {
            "it runs 32-bit code, or has no vDSO to enter the kernel from".to_owned()
        }
        (Step::Enter, Some(libc::ENOSPC)) => {
            "settlers that were killed have used up the room in its vDSO that calls need: restart it".to_owned()
        }
        (Step::Enter, Some(libc::EACCES)) => {
            "its filters of system calls (seccomp) cannot be read: CAP_SYS_ADMIN is missing, or Quell runs with a filter itself".to_owned()
        }
        (Step::Enter, _) => format!("no thread could be made to do a call: {error}"),
        (Step::Map, _) => format!("no side area could be mapped in it: {error}"),
        (Step::Lock, _) => format!(
            "its memory is locked, and no more may be (RLIMIT_MEMLOCK): {error}"
        ),
        (Step::Open, _) => format!("it could not open a userfaultfd: {error}"),
        (Step::Register | Step::Move, _) => {
            return Trouble::Kept(format!("the kernel does not move some pages: {error}"));
        }
        (Step::Copy, _) => "there was no memory for new frames, perhaps by the limit of its cgroup; the pages have their old frames".to_owned(),
        (Step::Remove, _) => format!("the side area could not be removed: {error}"),
    };
    Trouble::Refused(what)
}

/// The main process's handle of a settler. Dropping it waits until the settler has ended.
pub(super) struct Settler {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Settler {
    /// Starts a settler.
    pub(super) fn start(command: &SettlerCommand, job: &Job) -> Result<Self> {
        let program = command.program.to_string_lossy().into_owned();
        let failed = |e| Error::file("start", &program, None, e);
        let mut starting = Command::new(&command.program);
        starting
            .args(&command.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .env_remove(fault::VARIABLE);
        if let Some(n) = std::env::var_os(fault::SETTLER_VARIABLE) {
            starting.env(fault::VARIABLE, n);
        }
        let mut child = starting.spawn().map_err(failed)?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) = pipes.ok_or_else(|| Error::refused("the settler has no pipes"))?;
        let mut settler = Self {
            child,
            input: Some(input),
            output: BufReader::new(output),
        };
        settler.say(job)?;
        Ok(settler)
    }

    fn say<T: Serialize>(&mut self, what: &T) -> Result<()> {
        let line = serde_json::to_string(what).unwrap_or_default();
        let Some(input) = &mut self.input else {
            return Ok(());
        };
        writeln!(input, "{line}").map_err(|e| Error::file("write", "pipe of the settler", None, e))
    }

    /// Asks for a chunk. `meanwhile` is called every few milliseconds. `None`: the settler has
    /// died.
    pub(super) fn ask(&mut self, ask: &Ask, meanwhile: &mut dyn FnMut()) -> Result<Option<Answer>> {
        const PAUSE: Timespec = Timespec {
            tv_sec: 0,
            tv_nsec: 5_000_000,
        };
        if self.say(ask).is_err() {
            return Ok(None);
        }
        loop {
            let mut polled = [PollFd::new(self.output.get_ref(), PollFlags::IN)];
            let ready = rustix::event::poll(&mut polled, Some(&PAUSE));
            meanwhile();
            if ready.is_ok_and(|n| n > 0) {
                break;
            }
        }
        next(&mut self.output)
    }
}

impl Settler {
    /// Process id of the settler.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Settler {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}
