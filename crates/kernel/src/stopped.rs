//! All threads of a process, stopped by ptrace(2). None runs, so none forks, executes another
//! program or starts a thread.
//!
//! Threads that sleep are stopped on one CPU, if the caller says so: that of the caller, which runs
//! anyway. An idle CPU takes up to half a millisecond to wake in a virtual machine, once for each
//! thread. They get their CPUs back when they are let go.
//!
//! The calling process must have no children, and must block SIGCHLD. Where a thread does not even
//! stop within a second, it must end: the kernel lets the thread go then.

use std::io;
use std::time::{Duration, Instant};

use quell_types::cpuset::CpuSet;
use quell_types::pages::SideArea;

use crate::affinity;
use crate::ptrace::{AT_CALL, Lent, SEIZED, in_sequence, request};
use crate::stat::Stat;
use crate::vdso::Vdso;

/// How long a thread may take that has not stopped in time, until it can be let go.
const PATIENCE: Duration = Duration::from_secs(1);

/// A thread that is seized.
struct Seized {
    tid: i32,
    /// The signal of the stop: SIGTRAP, or the one that has stopped the whole process. `None`: it
    /// runs.
    stop: Option<i32>,
    /// The CPUs that it gets back, if it is kept on one.
    cpus: Option<CpuSet>,
}

impl Seized {
    /// A thread is kept on one CPU only when it is seized: its number is its own as long as that.
    fn new(tid: i32, sleeper: Option<(&CpuSet, &CpuSet)>) -> Self {
        let kept = |(_, on): &(&CpuSet, &CpuSet)| affinity::set(tid.unsigned_abs(), on).is_ok();
        Self {
            tid,
            stop: None,
            cpus: sleeper.filter(kept).map(|(cpus, _)| cpus.clone()),
        }
    }

    /// Lets it run on. One that has not stopped is let go when this process ends.
    fn let_go(&self) {
        let _ = request(libc::PTRACE_DETACH, self.tid, 0, 0);
        // Not before: the kernel would wake another CPU for it.
        if let Some(cpus) = &self.cpus {
            let _ = affinity::give_back(self.tid.unsigned_abs(), cpus);
        }
    }
}

/// The stopped threads. They are let go when this is dropped.
pub(crate) struct Stopped {
    pid: i32,
    threads: Vec<Seized>,
}

impl Stopped {
    /// Stops all threads of a process, those that sleep on the CPU of the side area's caller.
    ///
    /// # Errors
    /// EAGAIN where one does not stop in time, ETIMEDOUT where it still has not and is seized,
    /// ESRCH where the process ends, EPERM where it may not be traced.
    pub(crate) fn all(pid: i32, side: &SideArea, within: Duration) -> io::Result<Self> {
        let until = Instant::now() + within;
        let mut all = Self {
            pid,
            threads: Vec::new(),
        };
        // A thread that still runs may start another one.
        while all.seize_new(side)? > 0 {
            while all.threads.iter().any(|thread| thread.stop.is_none()) {
                match all.next_stop(until) {
                    Err(e) if e.raw_os_error() == Some(libc::ETIMEDOUT) => {
                        return Err(all.give_up());
                    }
                    done => done?,
                }
            }
        }
        match all.threads.is_empty() {
            true => Err(io::Error::from_raw_os_error(libc::ESRCH)),
            false => Ok(all),
        }
    }

    /// Seizes the threads that are not yet, and asks them to stop. Returns how many.
    fn seize_new(&mut self, side: &SideArea) -> io::Result<usize> {
        let on = side.caller.as_ref();
        let on = on.map(|caller| CpuSet::from_iter([caller.on]));
        let before = self.threads.len();
        for entry in std::fs::read_dir(format!("/proc/{}/task", self.pid))? {
            let name = entry?.file_name();
            let Some(tid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            if self.threads.iter().any(|thread| thread.tid == tid) {
                continue;
            }
            let asked = request(libc::PTRACE_SEIZE, tid, 0, SEIZED).and_then(|()| {
                let mut sleepers = side.sleepers();
                let sleeper = sleepers.find(|(sleeper, _)| *sleeper == tid.unsigned_abs());
                let thread = Seized::new(tid, sleeper.map(|(_, cpus)| cpus).zip(on.as_ref()));
                let asked = request(libc::PTRACE_INTERRUPT, tid, 0, 0);
                match asked {
                    Ok(()) => self.threads.push(thread),
                    Err(_) => thread.let_go(),
                }
                asked
            });
            match asked {
                Ok(()) => {}
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
                // So the kernel answers for a first thread that ended before others, too.
                Err(_) if self.is_dead(tid) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(self.threads.len() - before)
    }

    fn stat(&self, tid: i32) -> Option<Stat> {
        let path = format!("/proc/{}/task/{tid}/stat", self.pid);
        let text = std::fs::read_to_string(path).ok()?;
        Stat::parse(&text)
    }

    fn is_dead(&self, tid: i32) -> bool {
        self.stat(tid).is_none_or(|stat| stat.dead())
    }

    /// Waits until a seized thread has stopped or ended, or a signal has come.
    fn next_stop(&mut self, until: Instant) -> io::Result<()> {
        let mut status = 0;
        // SAFETY: the kernel writes the status into a live value.
        let tid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::WNOHANG) };
        match tid {
            0 => wait_for_child(until),
            tid if tid > 0 => self.stopped(tid, status),
            // All threads have ended.
            _ => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    }

    /// Lets each thread go as soon as it has stopped.
    fn give_up(&mut self) -> io::Error {
        let until = Instant::now() + PATIENCE;
        loop {
            self.threads.retain(|thread| {
                let stopped = thread.stop.is_some();
                if stopped {
                    thread.let_go();
                }
                !stopped
            });
            if self.threads.is_empty() {
                return io::Error::from_raw_os_error(libc::EAGAIN);
            }
            if let Err(e) = self.next_stop(until) {
                return e;
            }
        }
    }

    /// Takes note of a thread's stop or end. A signal that is delivered first is passed on.
    fn stopped(&mut self, tid: i32, status: i32) -> io::Result<()> {
        if !libc::WIFSTOPPED(status) {
            self.threads.retain(|thread| thread.tid != tid);
            return Ok(());
        }
        let (signal, event) = (libc::WSTOPSIG(status), status >> 16);
        if event != libc::PTRACE_EVENT_STOP {
            // Such a stop takes the place of the one that was asked for.
            let signal = if signal == AT_CALL { 0 } else { signal };
            let signal = usize::try_from(signal).unwrap_or(0);
            let asked = request(libc::PTRACE_INTERRUPT, tid, 0, 0)
                .and_then(|()| request(libc::PTRACE_CONT, tid, 0, signal));
            return match asked {
                // It is being killed.
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(()),
                done => done,
            };
        }
        for thread in self.threads.iter_mut().filter(|thread| thread.tid == tid) {
            thread.stop = Some(signal);
        }
        Ok(())
    }

    /// A thread that can do calls: one of the program's, outside of restartable sequences. This one
    /// rather than others. `None` where there is none, or the process is stopped by a signal.
    pub(crate) fn lend<'a>(
        &self,
        vdso: &'a Vdso,
        rather: Option<u32>,
        boundary: &'a dyn Fn(),
    ) -> io::Result<Option<Lent<'a>>> {
        let trapped = |thread: &&Seized| thread.stop == Some(libc::SIGTRAP);
        let first = |thread: &&Seized| Some(thread.tid.unsigned_abs()) == rather;
        let all = || self.threads.iter().filter(trapped);
        let mut all = all().filter(first).chain(all());
        let own = |thread: &Seized| self.stat(thread.tid).is_some_and(|stat| !stat.io_worker());
        let found = all.find(|thread| !in_sequence(thread.tid) && own(thread));
        // What finishes the work of a caller that died needs room, too.
        let lent = found.map(|thread| Lent::new(thread.tid, vdso, 1, boundary));
        lent.transpose()
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.threads.iter().for_each(Seized::let_go);
    }
}

/// Waits until a child has stopped or ended. ETIMEDOUT where none has in time.
fn wait_for_child(until: Instant) -> io::Result<()> {
    let rest = until.saturating_duration_since(Instant::now());
    if rest.is_zero() {
        return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
    }
    let rest = libc::timespec {
        tv_sec: libc::time_t::try_from(rest.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: rest.subsec_nanos().into(),
    };
    // SAFETY: the set is initialised before use, and all values are live. A signal that came before
    // is pending, because the caller blocks it. A time that is over is noticed by the next call.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const rest);
    }
    Ok(())
}
