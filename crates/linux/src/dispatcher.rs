//! A dispatcher: one real-time process that freezes and thaws cgroups at given times. What it
//! switches is its [`Duty`]: the groups of windows ([`windows`]), or processes that take turns
//! ([`quanta`]).
//!
//! It is a process of its own as a brake is ([`crate::twin`]), under the same lease:
//!
//! - After each freeze it asks for the lease again. A run that was revoked before is thawed by the
//!   dispatcher, one that is revoked later by the watchdog.
//! - However it ends by itself, it lets everything run again. Where it is killed, its owner does
//!   that.
//! - The journal has one entry per cgroup, for as long as the dispatcher runs.

use std::fmt;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use quell_control::windows::Lateness;
use quell_kernel::error::{Error, Result};
use quell_kernel::root::{Access, Files};
use quell_kernel::rt;
use quell_record::windows::Late;
use quell_types::cpuset::CpuId;
use quell_types::units::{Nanos, Share};
use rustix::time::ClockId;

use crate::brake::{LOOK, Permit};
use crate::twin::{self, Twin};

pub mod quanta;
pub mod windows;

/// A dispatcher that was not seen for so long does not run.
pub const HUNG: Nanos = Nanos::secs(1);

/// What a dispatcher does.
pub trait Duty: Send {
    /// Switches until [`Post::sleep_until`] says that it is to end.
    ///
    /// # Errors
    /// Why it cannot go on.
    fn dispatch(&mut self, post: &Post) -> std::result::Result<(), Lost>;

    /// Lets everything run that it has stopped, as it ran before.
    fn let_go(&mut self);
}

impl Duty for Box<dyn Duty> {
    fn dispatch(&mut self, post: &Post) -> std::result::Result<(), Lost> {
        self.as_mut().dispatch(post)
    }

    fn let_go(&mut self) {
        self.as_mut().let_go();
    }
}

/// The open files of a group's cgroup: by which it is frozen, and which say that it is.
#[derive(Debug)]
pub struct Gate {
    switch: File,
    state: File,
    /// `cpu.stat`. `None` where the group has no cgroup on v2.
    usage: Option<File>,
    freeze: &'static str,
    thaw: &'static str,
}

impl Gate {
    /// Opens the freezer at `path`, which takes these words, and the account of CPU time in the
    /// directory `v2`.
    ///
    /// # Errors
    /// [`Error::File`]; [`Error::Refused`] on a model of the kernel, whose files have no
    /// descriptors.
    pub fn open(
        files: &dyn Files,
        path: &str,
        [freeze, thaw]: [&'static str; 2],
        v2: Option<&str>,
    ) -> Result<Self> {
        let open = |path: &str, access| {
            files
                .open(path, access)
                .map_err(|e| Error::file("open", path, None, e))?
                .ok_or_else(|| Error::refused(format!("{path} cannot be kept open")))
        };
        let state = match path.strip_suffix("cgroup.freeze") {
            Some(dir) => format!("{dir}cgroup.events"),
            None => path.to_owned(),
        };
        let usage = v2.map(|dir| format!("{dir}/cpu.stat"));
        let usage = usage.filter(|path| files.exists(path));
        Ok(Self {
            switch: open(path, Access::Write)?,
            state: open(&state, Access::Read)?,
            usage: usage.map(|path| open(&path, Access::Read)).transpose()?,
            freeze,
            thaw,
        })
    }

    /// Freezes the group, or thaws it. Returns as soon as the kernel has asked all tasks.
    ///
    /// # Errors
    /// As the kernel's: ENODEV when the cgroup was removed.
    pub fn set(&self, frozen: bool) -> io::Result<()> {
        let word = if frozen { self.freeze } else { self.thaw };
        rustix::io::pwrite(&self.switch, word.as_bytes(), 0)?;
        Ok(())
    }

    /// Whether all of the group's tasks have reached the freezer.
    #[must_use]
    pub fn is_parked(&self) -> bool {
        let mut text = [0; 64];
        let read = rustix::io::pread(&self.state, &mut text, 0).unwrap_or(0);
        let text = text.get(..read).unwrap_or_default();
        text.starts_with(b"FROZEN") || text.windows(8).any(|word| word == b"frozen 1")
    }

    /// The CPU time that the group has used. `None` where no file says.
    #[must_use]
    pub fn used(&self) -> Option<Nanos> {
        let mut text = [0; 48];
        let read = rustix::io::pread(self.usage.as_ref()?, &mut text, 0).ok()?;
        let figure = text.get(..read)?.strip_prefix(b"usage_usec ")?;
        let digits = figure.iter().take_while(|byte| byte.is_ascii_digit());
        let us = digits.fold(0_u64, |sum, digit| {
            sum.saturating_mul(10)
                .saturating_add(u64::from(digit - b'0'))
        });
        Some(Nanos(us.saturating_mul(1_000)))
    }
}

/// The figures of a record: median, 99th percentile and longest.
pub(crate) fn late(lateness: &Lateness) -> Late {
    Late {
        p50_ns: lateness.quantile(Share::percent(50)).0,
        p99_ns: lateness.quantile(Share::percent(99)).0,
        most_ns: lateness.most().0,
    }
}

/// Why a dispatcher ended before it was asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// It ran on another CPU.
    WrongCpu,
    /// The lease was revoked or its heartbeat stopped.
    NotPermitted,
    /// A group could not be frozen or thawed.
    Gate,
    /// A group could not be given the ways of its window.
    Masks,
    /// Its process was killed.
    Killed,
    /// It did not run for [`HUNG`].
    Hung,
}

impl Lost {
    const ALL: [Self; 5] = [
        Self::WrongCpu,
        Self::NotPermitted,
        Self::Gate,
        Self::Masks,
        Self::Killed,
    ];

    /// The reason as it is stored; 0 is no reason.
    const fn code(self) -> u32 {
        self as u32 + 1
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WrongCpu => "the dispatcher found itself on another CPU (its own went offline?)",
            Self::NotPermitted => "the lease on the machine was lost",
            Self::Gate => "a group could not be frozen or thawed (its cgroup was removed?)",
            Self::Masks => "a group could not be given the ways of its window (resctrl unmounted?)",
            Self::Killed => "the dispatcher was killed",
            Self::Hung => "the dispatcher did not run for a second (was it stopped?)",
        })
    }
}

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    lost: AtomicU32,
    /// When the dispatcher was last seen to run.
    seen: AtomicU64,
}

/// A dispatcher that runs. Dropping it ends its process, which lets everything run.
#[derive(Debug)]
pub struct Dispatcher {
    shared: Arc<Shared>,
    twin: Option<Twin>,
}

impl Dispatcher {
    /// Starts a process called `name` on `cpu` for this duty. Before this returns, the dispatcher
    /// has entered its cgroups through `procs_files`, was seen on its CPU and has real-time
    /// priority.
    ///
    /// # Errors
    /// When no process can be made, or one of these fails.
    pub fn start(
        name: &str,
        cpu: CpuId,
        procs_files: Vec<String>,
        permit: Permit,
        duty: impl Duty + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            lost: AtomicU32::new(0),
            seen: AtomicU64::new(rt::now().0),
        });
        let post = Post {
            cpu,
            permit,
            shared: Arc::clone(&shared),
        };
        let prepare = move || {
            twin::settle(&procs_files, cpu)?;
            rt::fifo(rt::DISPATCHER_PRIORITY)
        };
        let body = move || {
            let mut duty = duty;
            let ended = duty.dispatch(&post);
            duty.let_go();
            if let Err(lost) = ended {
                post.shared.lost.store(lost.code(), Ordering::Release);
            }
        };
        let ended = Arc::clone(&shared);
        let twin = Twin::start(name, prepare, body, move |killed| {
            if killed {
                ended.lost.store(Lost::Killed.code(), Ordering::Release);
            }
        })?;
        Ok(Self {
            shared,
            twin: Some(twin),
        })
    }

    /// Asks it to end, without waiting for that.
    pub fn dismiss(&self) {
        self.shared.stop.store(true, Ordering::Release);
    }

    /// Its process id. `None` once it has ended.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        let pid = self.twin.as_ref()?.pid()?;
        u32::try_from(pid.as_raw_nonzero().get()).ok()
    }

    /// Why it ended by itself, or that it hangs at `now`. `None` while it runs.
    #[must_use]
    pub fn lost(&self, now: Nanos) -> Option<Lost> {
        let code = self.shared.lost.load(Ordering::Acquire);
        let ended = Lost::ALL.into_iter().find(|lost| lost.code() == code);
        let seen = Nanos(self.shared.seen.load(Ordering::Relaxed));
        ended.or((now.since(seen) > HUNG).then_some(Lost::Hung))
    }
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        self.dismiss();
        if let Some(twin) = self.twin.take() {
            twin.end();
        }
    }
}

/// Where a dispatcher runs, and whether it may go on.
pub struct Post {
    cpu: CpuId,
    permit: Permit,
    shared: Arc<Shared>,
}

impl Post {
    /// Asks for the lease again after something was stopped or moved. Revoked before: the watchdog
    /// may have undone that already, and so must the dispatcher. Revoked later: the watchdog will.
    ///
    /// # Errors
    /// [`Lost::NotPermitted`].
    pub fn permitted(&self) -> std::result::Result<(), Lost> {
        match (self.permit)(rt::now()) {
            true => Ok(()),
            false => Err(Lost::NotPermitted),
        }
    }

    /// Sleeps, and looks at least every [`LOOK`] whether it may go on. `false`: its owner asked it
    /// to end.
    ///
    /// # Errors
    /// [`Lost::NotPermitted`], [`Lost::WrongCpu`].
    pub fn sleep_until(&self, until: Nanos) -> std::result::Result<bool, Lost> {
        loop {
            let now = rt::now();
            self.shared.seen.store(now.0, Ordering::Relaxed);
            if self.shared.stop.load(Ordering::Acquire) {
                return Ok(false);
            }
            self.permitted()?;
            let there = || rt::current_cpu() == self.cpu;
            if !(there() || rt::pin(self.cpu).is_ok() && there()) {
                return Err(Lost::WrongCpu);
            }
            if now >= until {
                return Ok(true);
            }
            nap(until.min(now.plus(LOOK)));
        }
    }
}

/// Sleeps until a time of CLOCK_MONOTONIC. Returns at once where that has passed.
fn nap(until: Nanos) {
    let _ = rustix::thread::clock_nanosleep_absolute(ClockId::Monotonic, &rt::timespec(until));
}

#[cfg(test)]
mod tests {
    use std::fs;

    use quell_kernel::root::Kernel;

    use super::*;

    #[test]
    fn a_gate_reads_the_files_of_both_versions() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Kernel::at(dir.path());
        let file = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        for (name, state, parked, free) in [
            (
                "cgroup.freeze",
                "cgroup.events",
                "populated 1\nfrozen 1\n",
                "populated 1\nfrozen 0\n",
            ),
            ("freezer.state", "freezer.state", "FROZEN\n", "FREEZING\n"),
        ] {
            file(name, "");
            file("cpu.stat", "usage_usec 1500\nuser_usec 1000\n");
            file(state, free);
            let path = format!("/{name}");
            let gate = Gate::open(&kernel, &path, ["1", "0"], Some("")).unwrap();
            assert!(!gate.is_parked(), "{name}");
            file(state, parked);
            assert!(gate.is_parked(), "{name}");
            assert_eq!(gate.used(), Some(Nanos::micros(1_500)));
            file(name, "");
            gate.set(true).unwrap();
            let written = fs::read_to_string(dir.path().join(name)).unwrap();
            assert_eq!(written, "1");
        }
        assert!(Gate::open(&kernel, "/gone/cgroup.freeze", ["1", "0"], None).is_err());
    }
}
