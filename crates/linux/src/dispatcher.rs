//! The dispatcher of windows: one real-time process on the CPU that is divided. Before a window
//! begins it takes the CPU, freezes the group that ran and thaws the next one. It leaves the CPU at
//! the time that the window begins.
//!
//! User code of the old group ends when the dispatcher takes the CPU, not when the group is frozen.
//! Until the guard is half over the dispatcher sleeps, so that the old group's tasks reach the
//! freezer in the kernel. From then on it keeps the CPU. What it thaws cannot run before the time.
//!
//! It is a process of its own as a brake is ([`crate::twin`]), under the same lease:
//!
//! - After each freeze it asks for the lease again. A run that was revoked before is thawed by the
//!   dispatcher, one that is revoked later by the watchdog.
//! - However it ends by itself, it thaws all groups. Where it is killed, its owner does that.
//! - The journal has one entry per group, for as long as the dispatcher runs.

use std::fmt;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};

use quell_control::config::Frame;
use quell_control::windows::{Dispatch, Lateness, Switch};
use quell_kernel::error::{Error, Result};
use quell_kernel::root::{Access, Files};
use quell_kernel::rt;
use quell_record::windows::{GroupWindows, Kept, Late};
use quell_types::cpuset::CpuId;
use quell_types::units::{Nanos, Share};
use rustix::time::ClockId;

use crate::brake::{LOOK, Permit};
use crate::twin::{self, Twin};

/// Time between two checks whether the old group's tasks have reached the freezer.
const PARKING: Nanos = Nanos::micros(20);
/// A dispatcher that was not seen for so long does not run.
pub const HUNG: Nanos = Nanos::secs(1);

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

/// What became of one group's windows.
#[derive(Debug, Default)]
struct Windows {
    windows: AtomicU64,
    begun: Lateness,
    ended: Lateness,
    unparked: AtomicU64,
    outside: AtomicU64,
    outside_most: AtomicU64,
    /// Whether a file says what was used outside.
    accounted: AtomicBool,
}

/// What a dispatcher did, and those before it for the same frame.
#[derive(Debug)]
pub struct Stats {
    switches: AtomicU64,
    skipped: AtomicU64,
    late: AtomicU64,
    groups: Vec<Windows>,
}

impl Stats {
    /// For a frame with so many groups.
    #[must_use]
    pub fn new(groups: usize) -> Self {
        Self {
            switches: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            late: AtomicU64::new(0),
            groups: (0..groups).map(|_| Windows::default()).collect(),
        }
    }

    /// The figures so far, with the names of the frame's groups.
    #[must_use]
    pub fn kept(&self, frame: &Frame) -> Kept {
        let get = |value: &AtomicU64| value.load(Ordering::Relaxed);
        let late = |lateness: &Lateness| Late {
            p50_ns: lateness.quantile(Share::percent(50)).0,
            p99_ns: lateness.quantile(Share::percent(99)).0,
            most_ns: lateness.most().0,
        };
        let named = frame.groups().into_iter().zip(&self.groups);
        let groups = named.map(|(group, of)| {
            let accounted = of.accounted.load(Ordering::Relaxed);
            GroupWindows {
                group: group.clone(),
                windows: get(&of.windows),
                begun: late(&of.begun),
                ended: late(&of.ended),
                unparked: get(&of.unparked),
                outside_ns: accounted.then(|| get(&of.outside)),
                outside_most_ns: accounted.then(|| get(&of.outside_most)),
            }
        });
        Kept {
            switches: get(&self.switches),
            skipped: get(&self.skipped),
            late: get(&self.late),
            groups: groups.collect(),
        }
    }

    /// Number of windows that began more than a guard late.
    #[must_use]
    pub fn late(&self) -> u64 {
        self.late.load(Ordering::Relaxed)
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
    /// Its process was killed.
    Killed,
    /// It did not run for [`HUNG`].
    Hung,
}

impl Lost {
    const ALL: [Self; 4] = [Self::WrongCpu, Self::NotPermitted, Self::Gate, Self::Killed];

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
    stats: Arc<Stats>,
}

/// A dispatcher that runs. Dropping it ends its process, which thaws all groups.
#[derive(Debug)]
pub struct Dispatcher {
    shared: Arc<Shared>,
    twin: Option<Twin>,
}

impl Dispatcher {
    /// Starts to switch on `cpu`. `gates` are those of the frame's groups, in their order. Before
    /// this returns, the dispatcher has entered its cgroups through `procs_files`, was seen on its
    /// CPU and has real-time priority.
    ///
    /// # Errors
    /// When no process can be made, or one of these fails.
    pub fn start(
        cpu: CpuId,
        frame: &Frame,
        gates: Vec<Gate>,
        permit: Permit,
        procs_files: Vec<String>,
        stats: &Arc<Stats>,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            lost: AtomicU32::new(0),
            seen: AtomicU64::new(rt::now().0),
            stats: Arc::clone(stats),
        });
        let (ready, started) = mpsc::channel();
        let task = Task {
            cpu,
            procs_files,
            frame: frame.clone(),
            used: vec![None; gates.len()],
            gates,
            permit,
            shared: Arc::clone(&shared),
        };
        let ended = Arc::clone(&shared);
        let twin = Twin::start(
            &format!("quell/w{cpu}"),
            move || task.run(&ready),
            move |killed| {
                if killed {
                    ended.lost.store(Lost::Killed.code(), Ordering::Release);
                }
            },
        )?;
        let started = started
            .recv()
            .map_err(|_| io::Error::other("the dispatcher was killed while it started"))?;
        let dispatcher = Self {
            shared,
            twin: Some(twin),
        };
        started.map(|()| dispatcher)
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
        self.shared.stop.store(true, Ordering::Release);
        if let Some(twin) = self.twin.take() {
            twin.end();
        }
    }
}

/// What runs in the dispatcher's process.
struct Task {
    cpu: CpuId,
    /// Files of its cgroups. The process writes `0` to them to enter.
    procs_files: Vec<String>,
    frame: Frame,
    gates: Vec<Gate>,
    /// CPU time of each group when its last window had ended.
    used: Vec<Option<Nanos>>,
    permit: Permit,
    shared: Arc<Shared>,
}

impl Task {
    fn run(mut self, ready: &Sender<io::Result<()>>) {
        let prepared = self.prepare();
        let go = prepared.is_ok();
        let _ = ready.send(prepared);
        if !go {
            return;
        }
        let ended = self.dispatch();
        for gate in &self.gates {
            let _ = gate.set(false);
        }
        if let Err(lost) = ended {
            self.shared.lost.store(lost.code(), Ordering::Release);
        }
    }

    fn prepare(&self) -> io::Result<()> {
        twin::settle(&self.procs_files, self.cpu)?;
        rt::fifo(rt::DISPATCHER_PRIORITY)
    }

    fn dispatch(&mut self) -> std::result::Result<(), Lost> {
        for place in 0..self.gates.len() {
            self.freeze(place)?;
        }
        let half = Nanos(self.frame.guard.0 / 2);
        let before = self.shared.stats.skipped.load(Ordering::Relaxed);
        let mut dispatch = Dispatch::new(&self.frame, rt::now());
        while self.sleep_until(dispatch.due())? {
            let taken = rt::now();
            let switch = dispatch.take(taken);
            if let Some(old) = switch.stop {
                self.freeze(old)?;
                self.park(old, switch.at.since(half));
                if let Some(of) = self.shared.stats.groups.get(old) {
                    of.ended.note(taken.since(switch.at));
                }
            }
            if let Some(new) = switch.go {
                nap(switch.at.since(half));
                self.resume(new, switch)?;
            }
            let stats = &self.shared.stats;
            stats.switches.fetch_add(1, Ordering::Relaxed);
            let skipped = before + dispatch.skipped();
            stats.skipped.store(skipped, Ordering::Relaxed);
        }
        Ok(())
    }

    fn freeze(&self, place: usize) -> std::result::Result<(), Lost> {
        let gate = self.gates.get(place).ok_or(Lost::Gate)?;
        gate.set(true).map_err(|_| Lost::Gate)?;
        // Revoked before: the watchdog may have thawed the group already. Revoked later: it will.
        match (self.permit)(rt::now()) {
            true => Ok(()),
            false => Err(Lost::NotPermitted),
        }
    }

    /// Leaves the CPU to the tasks of a group that reach the freezer in the kernel, until all have
    /// or `until`.
    fn park(&mut self, place: usize, until: Nanos) {
        let (Some(gate), Some(of)) = (self.gates.get(place), self.shared.stats.groups.get(place))
        else {
            return;
        };
        let mut parked = gate.is_parked();
        while !parked {
            let now = rt::now();
            if now >= until {
                break;
            }
            nap(until.min(now.plus(PARKING)));
            parked = gate.is_parked();
        }
        if !parked {
            of.unparked.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(used) = self.used.get_mut(place) {
            *used = gate.used();
        }
    }

    /// Thaws a group, and keeps the CPU until its window begins.
    fn resume(&self, place: usize, switch: Switch) -> std::result::Result<(), Lost> {
        let gate = self.gates.get(place).ok_or(Lost::Gate)?;
        let of = self.shared.stats.groups.get(place).ok_or(Lost::Gate)?;
        if let Some(before) = self.used.get(place).copied().flatten()
            && let Some(used) = gate.used()
        {
            let outside = used.since(before).0;
            of.outside.fetch_add(outside, Ordering::Relaxed);
            of.outside_most.fetch_max(outside, Ordering::Relaxed);
            of.accounted.store(true, Ordering::Relaxed);
        }
        gate.set(false).map_err(|_| Lost::Gate)?;
        while rt::now() < switch.at {
            rt::relax();
        }
        let late = rt::now().since(switch.at);
        of.begun.note(late);
        of.windows.fetch_add(1, Ordering::Relaxed);
        if late > self.frame.guard {
            self.shared.stats.late.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Sleeps, and looks at least every [`LOOK`] whether it may go on. `false`: its owner asked it
    /// to end.
    fn sleep_until(&self, until: Nanos) -> std::result::Result<bool, Lost> {
        loop {
            let now = rt::now();
            self.shared.seen.store(now.0, Ordering::Relaxed);
            if self.shared.stop.load(Ordering::Acquire) {
                return Ok(false);
            }
            if !(self.permit)(now) {
                return Err(Lost::NotPermitted);
            }
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
    use quell_types::cpuset::CpuSet;

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

    #[test]
    fn figures_have_the_names_of_the_groups() {
        let (length, guard) = (Nanos::millis(10), Nanos::micros(200));
        let window = quell_control::config::Span {
            start: Nanos(0),
            end: Nanos::millis(4),
            group: Some("control".to_owned()),
        };
        let frame = Frame::new(CpuSet::from_iter([1]), length, guard, &[window], None);
        let stats = Stats::new(frame.groups().len());
        stats.groups[0].begun.note(Nanos(7));
        stats.groups[0].windows.fetch_add(1, Ordering::Relaxed);
        let kept = stats.kept(&frame);
        let group = &kept.groups[0];
        assert_eq!((group.group.as_str(), group.windows), ("control", 1));
        assert_eq!((group.begun.most_ns, group.outside_ns), (7, None));
    }
}
