//! A thread of Quell that is a process of its own: it shares memory and descriptors with this
//! process, and can be in another cgroup.
//!
//! cgroup v2 keeps all threads of a process in one (domain) cgroup (cgroup-v2.rst, "Threads"), and
//! a brake has to be in its group's. So it is made by clone(2) with `CLONE_VM` and without
//! `CLONE_THREAD`.
//!
//! It runs on its own stack and uses the thread-local storage of the thread that made it, as a
//! child of vfork(2) does. That thread only waits for it, by a system call that touches neither
//! memory nor `errno`. The process dies with this one (`PR_SET_PDEATHSIG`), is not stopped or
//! frozen with it, and leaves no zombie.

use std::ffi::CString;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use quell_kernel::rt;
use quell_types::cpuset::CpuId;

/// Bytes of the lowest page of a stack. Code that runs past the end of the stack faults there.
const GUARD: usize = 4096;
/// How long a twin that was asked to end may take before it is killed. A brake checks every 250 ms.
const PATIENCE: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(1);
/// `__WALL` of waitid(2): also children that report their end by no signal.
const ANY_CHILD: WaitIdOptions = WaitIdOptions::from_bits_retain(0x4000_0000);

/// Brings the calling twin into its cgroups, by their `cgroup.procs` or `tasks`, and onto its CPU.
/// It is left SCHED_FIFO, where that is allowed. Among its group it could wait for a busy CPU for
/// seconds, and its maker with it.
///
/// # Errors
/// The kernel's, and where it then runs on another CPU.
pub fn settle(procs_files: &[String], cpu: CpuId) -> io::Result<()> {
    let hurries = rt::fifo(rt::DISPATCHER_PRIORITY).is_ok();
    for path in procs_files {
        let entered = std::fs::write(path, "0");
        // A cgroup without real-time runtime (CONFIG_RT_GROUP_SCHED) takes ordinary threads alone.
        match entered {
            Err(_) if hurries => {
                rt::ordinary()?;
                std::fs::write(path, "0")?;
            }
            other => other?,
        }
    }
    rt::pin(cpu)?;
    if rt::current_cpu() != cpu {
        let why = format!("it could not be brought onto CPU {cpu}");
        return Err(io::Error::other(why));
    }
    Ok(())
}

/// A running twin. [`Twin::end`] waits for its end.
#[derive(Debug)]
pub struct Twin {
    /// Its process id. 0 until it is made, and once it has ended.
    pid: Arc<AtomicI32>,
    waiter: JoinHandle<()>,
}

/// What the new process gets from its maker.
struct Start {
    parent: Pid,
    name: CString,
    /// Whether it could be made and prepared. Nobody waits for it with a lock: a process that is
    /// killed releases none.
    told: Arc<OnceLock<io::Result<()>>>,
    prepare: Box<dyn FnOnce() -> io::Result<()> + Send>,
    body: Box<dyn FnOnce() + Send>,
}

impl Twin {
    /// Runs `prepare` and then `body` in a process called `name`, and returns when it is prepared.
    /// `ended` is called when it has ended, with `true` if it was killed.
    ///
    /// # Errors
    /// Those of `prepare`, and where neither a thread nor a process can be made.
    pub fn start(
        name: &str,
        prepare: impl FnOnce() -> io::Result<()> + Send + 'static,
        body: impl FnOnce() + Send + 'static,
        ended: impl FnOnce(bool) + Send + 'static,
    ) -> io::Result<Self> {
        let told = Arc::new(OnceLock::new());
        let start = Start {
            parent: rustix::process::getpid(),
            name: CString::new(name)?,
            told: Arc::clone(&told),
            prepare: Box::new(prepare),
            body: Box::new(body),
        };
        let pid = Arc::new(AtomicI32::new(0));
        let child = Arc::clone(&pid);
        let waiter = std::thread::Builder::new()
            .name(name.to_owned())
            .stack_size(rt::STACK)
            .spawn(move || {
                if let Some(killed) = clone_and_wait(Box::new(start), &child) {
                    ended(killed);
                }
            })?;
        while told.get().is_none() && !waiter.is_finished() {
            std::thread::sleep(LOOK);
        }
        let failed = match told.get() {
            Some(Ok(())) => return Ok(Self { pid, waiter }),
            Some(Err(e)) => io::Error::new(e.kind(), e.to_string()),
            None => io::Error::other("the process was killed while it started"),
        };
        let _ = waiter.join();
        Err(failed)
    }

    /// Its process id. `None` once it has ended.
    #[must_use]
    pub fn pid(&self) -> Option<Pid> {
        Pid::from_raw(self.pid.load(Ordering::Acquire))
    }

    /// Waits for its end. The twin was asked to end. If it does not (it is frozen with its cgroup,
    /// or never gets its CPU), it is killed.
    pub fn end(self) {
        if let Some(pid) = self.pid() {
            // It may wait for its CPU behind all that is not its group.
            let _ = rt::fifo_of(pid, rt::DISPATCHER_PRIORITY);
        }
        let mut waited = Duration::ZERO;
        while !self.waiter.is_finished() && waited < PATIENCE {
            std::thread::sleep(LOOK);
            waited += LOOK;
        }
        if let Some(pid) = self.pid().filter(|_| !self.waiter.is_finished()) {
            // Its number is not reused before the waiter has seen its end.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        let _ = self.waiter.join();
    }
}

/// A stack with a page below it that faults.
struct Stack {
    base: *mut std::ffi::c_void,
}

impl Stack {
    fn new() -> io::Result<Self> {
        use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
        // SAFETY: a fresh private mapping at an address that the kernel chooses.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                GUARD + rt::STACK,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )?
        };
        let stack = Self { base };
        // SAFETY: the first page of the mapping just made, which nothing uses.
        unsafe { rustix::mm::mprotect(base, GUARD, MprotectFlags::empty())? };
        Ok(stack)
    }

    /// The address just past its highest byte.
    fn top(&self) -> *mut std::ffi::c_void {
        self.base.wrapping_byte_add(GUARD + rt::STACK)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`. What ran on it has ended.
        let _ = unsafe { rustix::mm::munmap(self.base, GUARD + rt::STACK) };
    }
}

/// Blocks all signals. No handler may run on the waiting thread, whose storage is in use, nor in
/// the process, which inherits the mask.
fn block_signals() {
    let mut all = std::mem::MaybeUninit::uninit();
    // SAFETY: sigfillset initializes the set, which outlives both calls.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), std::ptr::null_mut());
    }
}

/// Starts the process, whose number goes to `pid`, and waits for its end. Returns whether it was
/// killed. `None`: it was not started, and `start.told` says why.
fn clone_and_wait(start: Box<Start>, pid: &AtomicI32) -> Option<bool> {
    let stack = match Stack::new() {
        Ok(stack) => stack,
        Err(e) => {
            let _ = start.told.set(Err(e));
            return None;
        }
    };
    block_signals();
    let argument = Box::into_raw(start);
    let flags = libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_PARENT_SETTID;
    // SAFETY: the stack is aligned to a page, outlives the process (this function waits for it) and
    // only the process uses it. The process owns the argument from here on. The kernel writes its
    // number to `pid`. Thread-local storage is left to the process: until it has ended, this thread
    // does nothing but the system call below, made without the C library.
    let child = unsafe { libc::clone(enter, stack.top(), flags, argument.cast(), pid.as_ptr()) };
    let Some(child) = Pid::from_raw(child).filter(|_| child > 0) else {
        let error = io::Error::last_os_error();
        // SAFETY: nothing was started, so this thread owns the argument again.
        let start = unsafe { Box::from_raw(argument) };
        let _ = start.told.set(Err(error));
        return None;
    };
    let status = loop {
        match rustix::process::waitid(WaitId::Pid(child), WaitIdOptions::EXITED | ANY_CHILD) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other,
        }
    };
    pid.store(0, Ordering::Release);
    Some(!matches!(status, Ok(Some(status)) if status.exit_status() == Some(0)))
}

extern "C" fn enter(argument: *mut std::ffi::c_void) -> libc::c_int {
    // SAFETY: `clone` passes what it got from Box::into_raw, to this one call.
    let start = unsafe { Box::from_raw(argument.cast::<Start>()) };
    let Start {
        parent,
        name,
        told,
        prepare,
        body,
    } = *start;
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    // A parent that died before that sends no signal any more.
    if rustix::process::getppid() != Some(parent) {
        return 1;
    }
    let _ = rustix::thread::set_name(&name);
    drop(name);
    let whole = move || {
        let prepared = prepare();
        let go = prepared.is_ok();
        let _ = told.set(prepared);
        drop(told);
        if go {
            body();
        }
    };
    match std::panic::catch_unwind(AssertUnwindSafe(whole)) {
        Ok(()) => 0,
        Err(_) => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn it_is_a_process_of_its_own_and_shares_memory() {
        let seen = Arc::new(AtomicI32::new(0));
        let killed = Arc::new(AtomicBool::new(true));
        let (tell, told) = (Arc::clone(&seen), Arc::clone(&killed));
        let twin = Twin::start(
            "quell/test",
            || Ok(()),
            move || {
                tell.store(
                    rustix::process::getpid().as_raw_nonzero().get(),
                    Ordering::Release,
                )
            },
            move |was| told.store(was, Ordering::Release),
        )
        .unwrap();
        twin.end();
        let pid = seen.load(Ordering::Acquire);
        assert!(pid > 0 && pid != rustix::process::getpid().as_raw_nonzero().get());
        assert!(!killed.load(Ordering::Acquire));
    }

    #[test]
    fn one_that_does_not_end_is_killed_and_reported() {
        let killed = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&killed);
        let twin = Twin::start(
            "quell/test",
            || Ok(()),
            || loop {
                std::thread::sleep(Duration::from_secs(1));
            },
            move |was| told.store(was, Ordering::Release),
        )
        .unwrap();
        assert!(twin.pid().is_some());
        twin.end();
        assert!(killed.load(Ordering::Acquire));
    }
    #[test]
    fn a_death_while_it_prepares_is_an_error() {
        let prepare = || {
            let own = rustix::process::getpid();
            rustix::process::kill_process(own, Signal::KILL)?;
            Ok(())
        };
        let killed = Twin::start("quell/test", prepare, || (), |_| ()).unwrap_err();
        assert!(
            killed.to_string().contains("killed while it started"),
            "{killed}"
        );
        let refuse = || Err(io::Error::other("no such CPU"));
        let refused = Twin::start("quell/test", refuse, || (), |_| ()).unwrap_err();
        assert_eq!(refused.to_string(), "no such CPU");
    }
}
