//! One system call in another program, by ptrace(2): a thread is stopped, does the call, gets its
//! registers back and runs on. Nothing of the program's memory is written but the thread's way
//! back, in a part of the vDSO that no program reads ([`crate::vdso`]).
//!
//! - A program that is launched does it at its first instruction ([`trace_me`], [`at_exec`]).
//! - In a program that runs, a helper process does it ([`within`]). It has a session of its own and
//!   blocks all signals. If it is killed between two steps, the thread takes its way back.
//! - The thread takes no signal meanwhile. Those that come are delivered afterwards.
//! - A thread that waits in a system call goes on waiting. Calls that are never restarted
//!   (`epoll_wait`, signal(7)) return EINTR once.
//! - ptrace(2) reaches the running kernel only, so its files are read directly here.
//! - A thread within a restartable sequence (rseq) is left until it has ended that.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use quell_types::task::TaskId;

use crate::helper::Birth;
use crate::ptrace::{AT_CALL, SEIZED, in_sequence, perform, request, set_mask, stop};
pub use crate::ptrace::{Call, is_built};
use crate::stat::Stat;
use crate::vdso::Vdso;

/// How long a thread may take to stop. One that waits for a disk stops after that.
const STOPS_WITHIN: Duration = Duration::from_millis(500);
/// How long the caller waits for the helper. To lock a GiB that is there takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same where memory is filled, which takes about 0.3 s per GiB.
const FILLS_WITHIN: Duration = Duration::from_secs(60);
/// How often a thread is stopped anew that is within a restartable sequence.
const TRIES: u32 = 20;

/// So that a thread ends with its tracer.
const LAUNCHED: usize = SEIZED | libc::PTRACE_O_EXITKILL.cast_unsigned() as usize;

/// A mask of blocked signals, one bit each.
#[derive(Clone, Copy, Debug)]
pub struct Blocked(u64);

/// The signals that this thread blocks. None of `but` is in the set.
#[must_use]
pub fn blocked_but(but: &[i32]) -> Blocked {
    // SAFETY: the set is written by the call before it is read.
    let set = unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut set);
        set
    };
    let held = (1..=64).filter(|signal| {
        // SAFETY: the set is initialised.
        !but.contains(signal) && unsafe { libc::sigismember(&raw const set, *signal) } == 1
    });
    Blocked(held.fold(0, |mask, signal| mask | 1 << (signal - 1)))
}

/// Lets the parent trace this process from its next exec on. To be called last between fork and
/// exec: no other signal stops it before. Allocates nothing.
///
/// # Errors
/// The kernel's: EPERM where Yama forbids it.
pub fn trace_me() -> io::Result<()> {
    // SAFETY: the set is initialised before use.
    let error = unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&raw mut set);
        libc::sigdelset(&raw mut set, libc::SIGTRAP);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut())
    };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    request(libc::PTRACE_TRACEME, 0, 0, 0)
}

/// Makes a child that has called [`trace_me`] and executes a program do a call before the program's
/// first instruction. The program then runs with these signals blocked.
///
/// # Errors
/// The call's own, or the kernel's. The child is then still stopped, and ends with this process.
pub fn at_exec(pid: u32, call: &Call, blocked: Blocked) -> io::Result<()> {
    let tid = i32::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    while stop(tid, true)? != Some((libc::SIGTRAP, 0)) {
        request(libc::PTRACE_CONT, tid, 0, 0)?;
    }
    request(libc::PTRACE_SETOPTIONS, tid, 0, LAUNCHED)?;
    perform(tid, &Vdso::of(pid)?, call, call)?;
    set_mask(tid, blocked.0)?;
    request(libc::PTRACE_DETACH, tid, 0, 0)
}

/// A thread of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread {
    /// The process, with its start time.
    pub of: TaskId,
    /// Number of the thread.
    pub tid: u32,
}

/// What the helper is told.
struct Job {
    pid: i32,
    tid: i32,
    /// Refers to the process, whatever its number is given to later.
    pidfd: OwnedFd,
    vdso: Vdso,
    call: Call,
    /// What is called in its place if the parent has ended meanwhile.
    otherwise: Option<Call>,
    parent: i32,
}

impl Job {
    /// Whether the process is there, and the thread one of its own.
    fn is_there(&self) -> bool {
        // SAFETY: signal 0 is only checked for.
        unsafe {
            let pidfd = self.pidfd.as_raw_fd();
            let nothing = std::ptr::null::<libc::siginfo_t>();
            libc::syscall(libc::SYS_pidfd_send_signal, pidfd, 0, nothing, 0) == 0
                && libc::syscall(libc::SYS_tgkill, self.pid, self.tid, 0) == 0
        }
    }

    fn is_orphaned(&self) -> bool {
        // SAFETY: takes nothing and cannot fail.
        unsafe { libc::getppid() != self.parent }
    }

    /// Stops the thread, outside of a restartable sequence.
    fn seize(&self) -> io::Result<()> {
        request(libc::PTRACE_SEIZE, self.tid, 0, SEIZED)?;
        for _ in 0..TRIES {
            self.interrupt()?;
            if !self.is_there() {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            if !in_sequence(self.tid) {
                return Ok(());
            }
            request(libc::PTRACE_CONT, self.tid, 0, 0)?;
        }
        Err(io::Error::from_raw_os_error(libc::EBUSY))
    }

    /// Waits for the stop that is asked for. A signal that is delivered first is passed on.
    fn interrupt(&self) -> io::Result<()> {
        request(libc::PTRACE_INTERRUPT, self.tid, 0, 0)?;
        let begun = Instant::now();
        loop {
            match stop(self.tid, false)? {
                Some((_, libc::PTRACE_EVENT_STOP)) => return Ok(()),
                Some((signal, _)) => {
                    // Such a stop takes the place of the one that was asked for.
                    let signal = if signal == AT_CALL { 0 } else { signal };
                    request(libc::PTRACE_INTERRUPT, self.tid, 0, 0)?;
                    let signal = usize::try_from(signal).unwrap_or(0);
                    request(libc::PTRACE_CONT, self.tid, 0, signal)?;
                }
                None if begun.elapsed() > STOPS_WITHIN => {
                    return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
                }
                None => std::thread::sleep(Duration::from_micros(100)),
            }
        }
    }

    /// Stops the thread, lets it do the call and lets it run on. Returns how long it was stopped.
    fn once(&self, call: &Call) -> io::Result<Duration> {
        let begun = Instant::now();
        let done = self.seize().and_then(|()| {
            let undo = self.otherwise.as_ref().unwrap_or(call);
            perform(self.tid, &self.vdso, call, undo)
        });
        // Where it has not stopped, it is let go when this process ends.
        let _ = request(libc::PTRACE_DETACH, self.tid, 0, 0);
        done.map(|()| begun.elapsed())
    }

    fn run(&self) -> io::Result<Duration> {
        if self.is_orphaned() {
            return Err(io::Error::from_raw_os_error(libc::ECANCELED));
        }
        let done = self.once(&self.call)?;
        // What undoes the run may have come before the call. Then nothing else would undo it.
        if let Some(otherwise) = self.otherwise.as_ref().filter(|_| self.is_orphaned()) {
            self.once(otherwise)?;
        }
        Ok(done)
    }
}

/// Makes a thread of a process that runs do a call. `otherwise` is called after it if this process
/// ends meanwhile. `stat` reads the `stat` of the process. `meanwhile` is called every few
/// milliseconds. Returns how long the thread was stopped.
///
/// # Errors
/// ESRCH where the process has ended, EPERM where it may not be traced (another tracer, Yama),
/// ENOEXEC and ENOTSUP for a 32-bit program or without a vDSO, ETIMEDOUT where no thread stops,
/// EBUSY where it is always within a restartable sequence, EINPROGRESS where the call takes longer
/// than five seconds (a minute where it fills memory) and goes on, EACCES where a filter (seccomp)
/// denies one of the calls or cannot be read, or where the program takes its system calls itself
/// (PR_SET_SYSCALL_USER_DISPATCH); else the call's own.
pub fn within(
    thread: Thread,
    call: &Call,
    otherwise: Option<Call>,
    stat: impl FnOnce() -> io::Result<String>,
    meanwhile: &mut dyn FnMut(),
) -> io::Result<Duration> {
    let task = thread.of;
    let none = || io::Error::from_raw_os_error(libc::ESRCH);
    let number = |n: u32| i32::try_from(n).map_err(|_| none());
    let pid = rustix::process::Pid::from_raw(number(task.pid)?).ok_or_else(none)?;
    let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
    // The pidfd first, the start time second, as for a signal.
    let stat = stat().ok().and_then(|text| Stat::parse(&text));
    if !stat.is_some_and(|s| s.id == task && !s.over()) {
        return Err(none());
    }
    let job = Job {
        pid: number(task.pid)?,
        tid: number(thread.tid)?,
        pidfd,
        // Of the thread: the first one shows no memory once it has ended.
        vdso: Vdso::of(thread.tid)?,
        call: *call,
        otherwise,
        parent: number(std::process::id())?,
    };
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let birth = Birth::new();
    // SAFETY: the child makes system calls on prepared values only, and ends by `_exit`.
    let helper = unsafe { libc::fork() };
    if helper < 0 {
        return Err(io::Error::last_os_error());
    }
    if helper == 0 {
        assist(&job, writer.as_raw_fd(), birth);
    }
    drop(writer);
    let patience = match call.fills() {
        true => FILLS_WITHIN,
        false => PATIENCE,
    };
    let answer = answered(reader, patience, meanwhile);
    end(helper, answer.is_ok());
    let [error, nanoseconds] = answer?;
    match error {
        0 => Ok(Duration::from_nanos(nanoseconds)),
        error => Err(io::Error::from_raw_os_error(
            i32::try_from(error).unwrap_or(libc::EIO),
        )),
    }
}

/// Waits for the end of a helper: at once where it has answered. One that has not is killed, and
/// its thread takes its way back without it. It may wait in the kernel for the program.
fn end(helper: libc::pid_t, answered: bool) {
    const LOOKS: u32 = 20;
    // SAFETY: a child that was not waited for has this number. No status is asked for.
    let waited = |flags| unsafe { libc::waitpid(helper, std::ptr::null_mut(), flags) };
    if answered {
        waited(0);
        return;
    }
    // SAFETY: as above.
    unsafe { libc::kill(helper, libc::SIGKILL) };
    for _ in 0..LOOKS {
        if waited(libc::WNOHANG) != 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The program of the helper. It allocates nothing.
fn assist(job: &Job, answer: RawFd, birth: Birth) -> ! {
    let memory = job.vdso.descriptor().unwrap_or(answer);
    let mut kept = [answer, job.pidfd.as_raw_fd(), memory];
    kept.sort_unstable();
    birth.begin(c"quell-helper", &kept);
    // What ends our process group must not end it.
    // SAFETY: takes nothing.
    unsafe { libc::setsid() };
    let said = match job.run() {
        Ok(stopped) => [0, u64::try_from(stopped.as_nanos()).unwrap_or(u64::MAX)],
        Err(e) => [
            u64::from(e.raw_os_error().unwrap_or(libc::EIO).unsigned_abs()),
            0,
        ],
    };
    // SAFETY: sixteen bytes are read from a live value; `_exit` runs nothing of the parent's.
    unsafe {
        libc::write(answer, said.as_ptr().cast(), size_of_val(&said));
        libc::_exit(0)
    }
}

/// Waits for what the helper says.
fn answered(
    reader: OwnedFd,
    patience: Duration,
    meanwhile: &mut dyn FnMut(),
) -> io::Result<[u64; 2]> {
    let mut reader = File::from(reader);
    let begun = Instant::now();
    loop {
        let mut polled = libc::pollfd {
            fd: reader.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one live entry.
        let ready = unsafe { libc::poll(&raw mut polled, 1, 5) };
        meanwhile();
        if ready > 0 {
            break;
        }
        if begun.elapsed() > patience {
            return Err(io::Error::from_raw_os_error(libc::EINPROGRESS));
        }
    }
    let mut bytes = [[0u8; 8]; 2];
    reader.read_exact(bytes.as_flattened_mut())?;
    Ok(bytes.map(u64::from_ne_bytes))
}
