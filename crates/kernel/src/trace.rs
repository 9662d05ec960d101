//! One system call in another program, by ptrace(2): a thread is stopped, does the call, gets its
//! registers back and runs on. Nothing of the program's memory is written. The instruction that
//! enters the kernel is taken from the program's vDSO.
//!
//! - A program that is launched does it at its first instruction ([`trace_me`], [`at_exec`]).
//! - In a program that runs, a helper process does it ([`within`]). It has a session of its own and
//!   blocks all signals: if it was killed between two steps, the thread would go on with wrong
//!   registers.
//! - The thread takes no signal meanwhile. Those that come are delivered afterwards.
//! - A thread that waits in a system call goes on waiting. Calls that are never restarted
//!   (`epoll_wait`, signal(7)) return EINTR once.
//! - ptrace(2) reaches the running kernel only, so its files are read directly here.
//! - A thread within a restartable sequence (rseq) is left until it has ended that.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use quell_types::task::TaskId;

use crate::arch::{self, TaskRegisters};
use crate::stat::Stat;

/// How long a thread may take to stop. One that waits for a disk stops after that.
const STOPS_WITHIN: Duration = Duration::from_millis(500);
/// How long the caller waits for the helper. Filling memory takes about 0.3 s per GiB.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a thread is stopped anew that is within a restartable sequence.
const TRIES: u32 = 20;

const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
const NT_PRSTATUS: usize = 1;
/// Stops at system calls are distinct from signals.
const SEIZED: usize = libc::PTRACE_O_TRACESYSGOOD.cast_unsigned() as usize;
/// So that a thread ends with its tracer.
const LAUNCHED: usize = SEIZED | libc::PTRACE_O_EXITKILL.cast_unsigned() as usize;
/// A stop at the beginning or the end of a system call (PTRACE_O_TRACESYSGOOD).
const AT_CALL: i32 = libc::SIGTRAP | 0x80;

/// A system call with its arguments. Its answer is zero or an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    number: libc::c_long,
    arguments: [u64; 6],
}

impl Call {
    /// Locks all that is mapped and will be mapped. With `filled` it is in memory at once, else
    /// once it is touched (mlockall(2)).
    #[must_use]
    pub const fn lock_memory(filled: bool) -> Self {
        let flags = libc::MCL_CURRENT | libc::MCL_FUTURE;
        let flags = if filled {
            flags
        } else {
            flags | libc::MCL_ONFAULT
        };
        Self {
            number: libc::SYS_mlockall,
            arguments: [flags.cast_unsigned() as u64, 0, 0, 0, 0, 0],
        }
    }

    /// Unlocks all that is mapped, and locks nothing that will be.
    pub const UNLOCK_MEMORY: Self = Self {
        number: libc::SYS_munlockall,
        arguments: [0; 6],
    };
}

/// Whether threads of this machine's architecture can be made to do a call.
#[must_use]
pub const fn is_built() -> bool {
    !arch::INSTRUCTION.is_empty()
}

/// A request of ptrace(2), with addresses as numbers.
fn request(what: libc::c_uint, tid: i32, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: the kernel checks the thread. No request of this file that writes into this process
    // is given another address than that of a live value of its size.
    let answer = unsafe {
        libc::ptrace(
            what,
            tid,
            address as *mut libc::c_void,
            data as *mut libc::c_void,
        )
    };
    if answer < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// A block of memory for a request.
fn block<T>(value: &mut T) -> libc::iovec {
    libc::iovec {
        iov_base: std::ptr::from_mut(value).cast(),
        iov_len: size_of::<T>(),
    }
}

/// The registers of a stopped thread. ENOEXEC for a thread of another width.
fn registers(tid: i32) -> io::Result<TaskRegisters> {
    let mut all = TaskRegisters::default();
    let mut block = block(&mut all);
    request(
        libc::PTRACE_GETREGSET,
        tid,
        NT_PRSTATUS,
        &raw mut block as usize,
    )?;
    match block.iov_len == size_of::<TaskRegisters>() {
        true => Ok(all),
        false => Err(io::Error::from_raw_os_error(libc::ENOEXEC)),
    }
}

fn set_registers(tid: i32, all: &TaskRegisters) -> io::Result<()> {
    let mut all = *all;
    let mut block = block(&mut all);
    request(
        libc::PTRACE_SETREGSET,
        tid,
        NT_PRSTATUS,
        &raw mut block as usize,
    )
}

/// A stopped thread's blocked signals, one bit each.
fn mask(tid: i32) -> io::Result<u64> {
    let mut mask = 0u64;
    request(
        libc::PTRACE_GETSIGMASK,
        tid,
        size_of::<u64>(),
        &raw mut mask as usize,
    )?;
    Ok(mask)
}

fn set_mask(tid: i32, mask: u64) -> io::Result<()> {
    let mut mask = mask;
    request(
        libc::PTRACE_SETSIGMASK,
        tid,
        size_of::<u64>(),
        &raw mut mask as usize,
    )
}

/// The next stop of a thread: signal and event. `None` where none came yet and `block` is not set.
/// ESRCH where it has ended.
fn stop(tid: i32, block: bool) -> io::Result<Option<(i32, i32)>> {
    let flags = if block {
        libc::__WALL
    } else {
        libc::__WALL | libc::WNOHANG
    };
    let mut status = 0;
    loop {
        // SAFETY: the kernel writes the status into a live value.
        match unsafe { libc::waitpid(tid, &raw mut status, flags) } {
            0 => return Ok(None),
            n if n > 0 => break,
            _ => {
                let e = io::Error::last_os_error();
                if e.kind() != io::ErrorKind::Interrupted {
                    return Err(e);
                }
            }
        }
    }
    if !libc::WIFSTOPPED(status) {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    Ok(Some((libc::WSTOPSIG(status), status >> 16)))
}

/// Makes a stopped thread do a call and gives it back its registers and its mask of signals.
fn perform(tid: i32, gate: u64, call: &Call) -> io::Result<()> {
    let before = registers(tid)?;
    let number = call.number.cast_unsigned();
    let ready = arch::calling(&before, gate, number, &call.arguments)
        .ok_or(io::Error::from_raw_os_error(libc::ENOEXEC))?;
    let blocked = mask(tid)?;
    set_mask(tid, u64::MAX)?;
    let mut stopped = false;
    let done = set_registers(tid, &ready)
        .and_then(|()| through(tid, &mut stopped))
        .and_then(|()| registers(tid))
        .map(|after| arch::answer(&after));
    set_registers(tid, &before)?;
    set_mask(tid, blocked)?;
    if stopped {
        // SAFETY: a signal to a thread by its number.
        unsafe { libc::syscall(libc::SYS_tkill, tid, libc::SIGSTOP) };
    }
    match done? {
        0 => Ok(()),
        // The kernel returns errors of at most 4095.
        error => Err(io::Error::from_raw_os_error(
            i32::try_from(-error).unwrap_or(libc::EIO),
        )),
    }
}

/// Lets a stopped thread run through one system call, to the stop at its end. Sets `stopped` where
/// a SIGSTOP came meanwhile, the one signal that is not blocked and can be taken.
fn through(tid: i32, stopped: &mut bool) -> io::Result<()> {
    let mut seen = 0;
    while seen < 2 {
        request(libc::PTRACE_SYSCALL, tid, 0, 0)?;
        match stop(tid, true)? {
            Some((AT_CALL, _)) => seen += 1,
            Some((libc::SIGSTOP, 0)) => *stopped = true,
            _ => {}
        }
    }
    Ok(())
}

/// The address of an instruction in a process that enters the kernel: in its vDSO. ENOTSUP where
/// it has none, and for a 32-bit program.
fn gate(pid: u32) -> io::Result<u64> {
    /// The kind of the vDSO's address (AT_SYSINFO_EHDR).
    const VDSO: u64 = 33;
    /// The most of a vDSO that is searched. It has a few pages.
    const SEARCHED: usize = 1 << 14;
    let none = || io::Error::from_raw_os_error(libc::ENOTSUP);
    if !is_built() {
        return Err(none());
    }
    // Pairs of a kind and a value (getauxval(3)).
    let pairs = std::fs::read(format!("/proc/{pid}/auxv"))?;
    let words = pairs.as_chunks::<8>().0.iter();
    let words: Vec<u64> = words.map(|word| u64::from_ne_bytes(*word)).collect();
    let mut pairs = words.as_chunks::<2>().0.iter();
    let vdso = pairs.find(|[kind, _]| *kind == VDSO);
    let [_, start] = *vdso.ok_or_else(none)?;
    let mut code = vec![0; SEARCHED];
    let memory = File::open(format!("/proc/{pid}/mem"))?;
    let read = memory.read_at(&mut code, start).map_err(|_| none())?;
    let mut places = code[..read].windows(arch::INSTRUCTION.len());
    let at = places.position(|bytes| bytes == arch::INSTRUCTION);
    at.map(|at| start + at as u64).ok_or_else(none)
}

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
    perform(tid, gate(pid)?, call)?;
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
    gate: u64,
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
        let done = self
            .seize()
            .and_then(|()| perform(self.tid, self.gate, call));
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

/// Whether a stopped thread is within a restartable sequence. Kernels before 5.13 do not tell.
fn in_sequence(tid: i32) -> bool {
    /// `struct ptrace_rseq_configuration`: address, size and signature, flags and padding.
    type Configuration = [u64; 3];
    /// Where `rseq_cs` is in `struct rseq`.
    const CURRENT: u64 = 8;
    let mut found = Configuration::default();
    let size = size_of::<Configuration>();
    if request(
        PTRACE_GET_RSEQ_CONFIGURATION,
        tid,
        size,
        &raw mut found as usize,
    )
    .is_err()
        || found[0] == 0
    {
        return false;
    }
    let mut current = 0u64;
    let own = block(&mut current);
    let theirs = libc::iovec {
        iov_base: (found[0] + CURRENT) as *mut libc::c_void,
        iov_len: size_of::<u64>(),
    };
    // SAFETY: eight bytes are written into a live value.
    let read = unsafe { libc::process_vm_readv(tid, &raw const own, 1, &raw const theirs, 1, 0) };
    read == 8 && current != 0
}

/// Makes a thread of a process that runs do a call. `otherwise` is called after it if this process
/// ends meanwhile. `stat` reads the `stat` of the process. `meanwhile` is called every few
/// milliseconds. Returns how long the thread was stopped.
///
/// # Errors
/// ESRCH where the process has ended, EPERM where it may not be traced (another tracer, Yama),
/// ENOEXEC and ENOTSUP for a 32-bit program or without a vDSO, ETIMEDOUT where no thread stops,
/// EBUSY where it is always within a restartable sequence, EINPROGRESS where the call takes longer
/// than a minute and goes on; else the call's own.
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
    if !stat.is_some_and(|s| s.is_alive(task)) {
        return Err(none());
    }
    let job = Job {
        pid: number(task.pid)?,
        tid: number(thread.tid)?,
        pidfd,
        gate: gate(task.pid)?,
        call: *call,
        otherwise,
        parent: number(std::process::id())?,
    };
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    // SAFETY: the child makes system calls on prepared values only, and ends by `_exit`.
    let helper = unsafe { libc::fork() };
    if helper < 0 {
        return Err(io::Error::last_os_error());
    }
    if helper == 0 {
        assist(&job, writer.as_raw_fd());
    }
    drop(writer);
    let answer = answered(reader, meanwhile);
    if answer.is_ok() {
        let mut status = 0;
        // SAFETY: the kernel writes the status into a live value. The helper ends at once.
        unsafe { libc::waitpid(helper, &raw mut status, 0) };
    }
    let [error, nanoseconds] = answer?;
    match error {
        0 => Ok(Duration::from_nanos(nanoseconds)),
        error => Err(io::Error::from_raw_os_error(
            i32::try_from(error).unwrap_or(libc::EIO),
        )),
    }
}

/// The program of the helper. It allocates nothing.
fn assist(job: &Job, answer: RawFd) -> ! {
    // SAFETY: the set is initialised before use, and the other calls take no pointers.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&raw mut set);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
        libc::setsid();
    }
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
fn answered(reader: OwnedFd, meanwhile: &mut dyn FnMut()) -> io::Result<[u64; 2]> {
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
        if begun.elapsed() > PATIENCE {
            return Err(io::Error::from_raw_os_error(libc::EINPROGRESS));
        }
    }
    let mut bytes = [[0u8; 8]; 2];
    reader.read_exact(bytes.as_flattened_mut())?;
    Ok(bytes.map(u64::from_ne_bytes))
}
