//! Stops of threads and system calls in them, by ptrace(2). What is called when, and by which
//! process, is decided by [`crate::trace`] and [`crate::relocate`].

use std::io;

use crate::arch::{self, TaskRegisters, WAY_BACK};
use crate::process_memory::read_memory;
use crate::seccomp::{self, Seen};
use crate::vdso::{Slot, Vdso};

const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
/// Since Linux 6.4.
const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_uint = 0x4211;

const NT_PRSTATUS: usize = 1;

/// Stops at system calls are distinct from signals.
pub(crate) const SEIZED: usize = libc::PTRACE_O_TRACESYSGOOD.cast_unsigned() as usize;

/// A stop at the beginning or the end of a system call (PTRACE_O_TRACESYSGOOD).
pub(crate) const AT_CALL: i32 = libc::SIGTRAP | 0x80;

/// A system call with its arguments.
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

    /// Whether it puts all that is mapped into memory.
    pub(crate) fn fills(&self) -> bool {
        *self == Self::lock_memory(true)
    }

    /// Unlocks all that is mapped, and locks nothing that will be.
    pub const UNLOCK_MEMORY: Self = Self {
        number: libc::SYS_munlockall,
        arguments: [0; 6],
    };

    /// Does nothing (getppid(2)).
    pub const NONE: Self = Self {
        number: libc::SYS_getppid,
        arguments: [0; 6],
    };

    /// Unmaps a range of addresses (munmap(2)).
    #[must_use]
    pub const fn unmap(at: u64, length: u64) -> Self {
        Self {
            number: libc::SYS_munmap,
            arguments: [at, length, 0, 0, 0, 0],
        }
    }

    /// Closes a descriptor (close(2)).
    #[must_use]
    pub const fn close(descriptor: u32) -> Self {
        Self {
            number: libc::SYS_close,
            arguments: [descriptor as u64, 0, 0, 0, 0, 0],
        }
    }

    /// What a thread does on its way back.
    pub(crate) const MASK_SIGNALS: Self = Self {
        number: libc::SYS_rt_sigprocmask,
        arguments: [libc::SIG_SETMASK.cast_unsigned() as u64, 0, 0, 8, 0, 0],
    };

    /// Any system call.
    pub(crate) const fn of(number: libc::c_long, arguments: [u64; 6]) -> Self {
        Self { number, arguments }
    }
}

/// Whether threads of this machine's architecture can be made to do a call.
#[must_use]
pub const fn is_built() -> bool {
    arch::IS_BUILT
}

/// A request of ptrace(2), with addresses as numbers.
pub(crate) fn request(what: libc::c_uint, tid: i32, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: the kernel checks the thread. No request of this crate that writes into this process
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
pub(crate) fn block<T>(value: &mut T) -> libc::iovec {
    libc::iovec {
        iov_base: std::ptr::from_mut(value).cast(),
        iov_len: size_of::<T>(),
    }
}

/// The registers of a stopped thread. ENOEXEC for a thread of another width.
pub(crate) fn registers(tid: i32) -> io::Result<TaskRegisters> {
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

pub(crate) fn set_registers(tid: i32, all: &TaskRegisters) -> io::Result<()> {
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
pub(crate) fn mask(tid: i32) -> io::Result<u64> {
    let mut mask = 0u64;
    request(
        libc::PTRACE_GETSIGMASK,
        tid,
        size_of::<u64>(),
        &raw mut mask as usize,
    )?;
    Ok(mask)
}

pub(crate) fn set_mask(tid: i32, mask: u64) -> io::Result<()> {
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
pub(crate) fn stop(tid: i32, block: bool) -> io::Result<Option<(i32, i32)>> {
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

/// A stopped thread that does calls. Until [`Self::rest`] it has registers of the caller's, and
/// blocks all signals. If the caller dies meanwhile, the thread ends the call that it does and
/// takes its way back: code in its vDSO that gives it its own registers and signals.
pub(crate) struct Lent<'a> {
    tid: i32,
    vdso: &'a Vdso,
    slot: Slot,
    registers: TaskRegisters,
    blocked: u64,
    busy: bool,
    /// A SIGSTOP came meanwhile, the one signal that is not blocked and can be taken.
    stopped: bool,
    /// Called wherever the caller may die.
    boundary: &'a dyn Fn(),
}

impl<'a> Lent<'a> {
    /// A thread that is stopped. Room for `spare` more ways back is left.
    ///
    /// # Errors
    /// EBUSY where it is on its way back from another caller, ENOSPC without room for a way back.
    pub(crate) fn new(
        tid: i32,
        vdso: &'a Vdso,
        spare: usize,
        boundary: &'a dyn Fn(),
    ) -> io::Result<Self> {
        let registers = registers(tid)?;
        if vdso.is_way_back(arch::position(&registers)) {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        Ok(Self {
            tid,
            vdso,
            slot: vdso.slot(tid.unsigned_abs(), spare)?,
            registers,
            blocked: mask(tid)?,
            busy: false,
            stopped: false,
            boundary,
        })
    }

    /// The thread's number.
    pub(crate) fn number(&self) -> u32 {
        self.tid.unsigned_abs()
    }

    /// The first of these calls that its filters deny, by its index: any, where it takes its
    /// system calls itself. Allocates nothing.
    ///
    /// # Errors
    /// As [`seccomp::denied`].
    pub(crate) fn denied(&self, calls: &[Call]) -> io::Result<Option<usize>> {
        if takes_its_calls(self.tid) {
            return Ok(Some(0));
        }
        let seen = calls.iter().map(|call| Seen {
            number: u32::try_from(call.number).unwrap_or(u32::MAX),
            position: arch::after_call(self.slot.at),
            arguments: call.arguments,
        });
        seccomp::denied(self.tid, seen)
    }

    /// Lets it do one call. Returns what the kernel answers.
    pub(crate) fn call(&mut self, call: &Call) -> io::Result<u64> {
        /// The kernel returns errors of at most this.
        const LARGEST: i64 = 4095;
        let number = call.number.cast_unsigned();
        let ready = arch::calling(&self.registers, self.slot.at, number, &call.arguments)
            .ok_or(io::Error::from_raw_os_error(libc::ENOEXEC))?;
        if !self.busy {
            let code = arch::way_back(&self.registers, self.blocked, self.slot.at);
            self.busy = true;
            self.write(&code)?;
        }
        set_registers(self.tid, &ready)?;
        (self.boundary)();
        set_mask(self.tid, u64::MAX)?;
        (self.boundary)();
        self.through()?;
        let answer = arch::answer(&registers(self.tid)?);
        match i32::try_from(-answer) {
            Ok(error) if (1..=LARGEST).contains(&-answer) => {
                Err(io::Error::from_raw_os_error(error))
            }
            _ => Ok(answer.cast_unsigned()),
        }
    }

    /// Writes its way back, which it may read and execute only.
    fn write(&self, code: &[u64; WAY_BACK]) -> io::Result<()> {
        if !self.vdso.write(self.slot.at, code) {
            for (n, word) in code.iter().enumerate() {
                let place = self.slot.at as usize + n * size_of::<u64>();
                request(libc::PTRACE_POKEDATA, self.tid, place, *word as usize)?;
            }
        }
        (self.boundary)();
        Ok(())
    }

    /// Lets it run through one system call, to the stop at its end.
    ///
    /// # Errors
    /// EACCES where a signal comes that cannot be blocked: the call was not done.
    fn through(&mut self) -> io::Result<()> {
        let mut seen = 0;
        while seen < 2 {
            request(libc::PTRACE_SYSCALL, self.tid, 0, 0)?;
            match stop(self.tid, true)? {
                Some((AT_CALL, _)) => seen += 1,
                Some((libc::SIGSTOP, 0)) => self.stopped = true,
                Some((_, 0)) => return Err(io::Error::from_raw_os_error(libc::EACCES)),
                _ => {}
            }
            (self.boundary)();
        }
        Ok(())
    }

    /// Gives it back its registers and its mask of signals. It stays stopped.
    pub(crate) fn rest(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.busy) {
            return Ok(());
        }
        // In this order: its way back gives it both.
        set_mask(self.tid, self.blocked)?;
        (self.boundary)();
        set_registers(self.tid, &self.registers)?;
        (self.boundary)();
        if std::mem::take(&mut self.stopped) {
            // SAFETY: a signal to a thread by its number.
            unsafe { libc::syscall(libc::SYS_tkill, self.tid, libc::SIGSTOP) };
        }
        self.write(&self.slot.original)
    }

    /// The address of its area for restartable sequences, which the kernel writes whenever it
    /// returns to the program. `None` where it has none.
    pub(crate) fn sequences(&self) -> Option<u64> {
        area(self.tid)
    }
}

/// Makes a stopped thread do a call and gives it back its registers and its mask of signals. EACCES
/// where its filters deny this call, or the one that undoes it.
pub(crate) fn perform(tid: i32, vdso: &Vdso, call: &Call, undo: &Call) -> io::Result<()> {
    let mut thread = Lent::new(tid, vdso, 0, &|| ())?;
    if thread
        .denied(&[*call, *undo, Call::MASK_SIGNALS])?
        .is_some()
    {
        return Err(io::Error::from_raw_os_error(libc::EACCES));
    }
    let done = thread.call(call);
    thread.rest()?;
    done.map(|_| ())
}

/// The address of a stopped thread's area for restartable sequences. `None` where it has none, and
/// on kernels before 5.13, which do not tell.
fn area(tid: i32) -> Option<u64> {
    /// `struct ptrace_rseq_configuration`: address, size and signature, flags and padding.
    type Configuration = [u64; 3];
    let mut found = Configuration::default();
    let size = size_of::<Configuration>();
    let into = &raw mut found as usize;
    let told = request(PTRACE_GET_RSEQ_CONFIGURATION, tid, size, into);
    told.ok().map(|()| found[0]).filter(|at| *at != 0)
}

/// Whether a stopped thread has its system calls delivered as signals (syscall user dispatch). A
/// signal that it blocks would take its handler away.
fn takes_its_calls(tid: i32) -> bool {
    /// `struct ptrace_sud_config`: mode, selector, offset and length.
    type Configuration = [u64; 4];
    let mut found = Configuration::default();
    let size = size_of::<Configuration>();
    let into = &raw mut found as usize;
    let told = request(PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, tid, size, into);
    told.is_ok() && found[0] != 0
}

/// Whether a stopped thread is within a restartable sequence.
pub(crate) fn in_sequence(tid: i32) -> bool {
    /// Where `rseq_cs` is in `struct rseq`.
    const CURRENT: u64 = 8;
    let Some(area) = area(tid) else {
        return false;
    };
    let mut current = [0; 8];
    let read = read_memory(tid.unsigned_abs(), area + CURRENT, &mut current);
    read.is_ok() && u64::from_ne_bytes(current) != 0
}

#[cfg(test)]
#[path = "ptrace_tests.rs"]
mod tests;
