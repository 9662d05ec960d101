//! Brakes: one ordinary process per regulated CPU. It sleeps until the CPU's budget is spent or,
//! where budgets are pooled, the period ends.
//!
//! A group's tasks are in the cgroup `work`, which is `cpu.idle`. Its brakes are next to it in
//! `stop`, which has the highest weight. A brake that runs takes the group's own share of its CPU,
//! and the kernel prefers it to `work`. So it stops the group's tasks on that CPU and nothing else.
//! Other programs and the kernel's threads run on, and get no less than next to the unthrottled
//! group. [`Regulator`] decides what to do. This module waits for the counter, asks, and runs until
//! the time that the regulator names (`task`).
//!
//! cgroup v2 keeps the threads of a process in one cgroup. So each brake is a process of its own,
//! which shares this process's memory ([`crate::twin`]).
//!
//! What can go wrong, and what is done about it:
//!
//! * The brake finds itself on another CPU (hot-unplug, a shrunk cpuset). The CPU is checked before
//!   and during every stop, and every [`LOOK`] while the brake sleeps. The counter of a CPU that
//!   went away is silent for ever. On a mismatch the brake ends and reports that.
//! * It outlives its permission. When the lease is revoked or its heartbeat is late, the brake
//!   ends.
//! * Its counter is taken away, and then wakes nothing. So the meter, too, is read every [`LOOK`],
//!   and the brake ends.
//! * It is killed. That is reported, and the backend starts it again. Where budgets are pooled it
//!   starts all brakes again, in another pool: the killed brake could not leave the old one.
//!
//! However else a brake ends, it leaves the pool, so that other CPUs do not wait for it.

mod grants;
mod task;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use quell_control::Regulator;
use quell_control::config::Meter as Wanted;
use quell_control::config::Regulation;
use quell_control::pooled::Pooled;
use quell_kernel::rt;
use quell_types::cpuset::CpuId;
use quell_types::options::Split;
use quell_types::units::{Lines, Nanos};

use crate::meter::Meter;
use crate::pool::{ParkSlot, Pool};
use crate::ring::Ring;
use crate::twin::{self, Twin};
pub use grants::Grants;
use task::{Task, Windows};

/// The longest sleep of a brake before it checks its CPU and its meter.
pub const LOOK: Nanos = Nanos::millis(250);

/// Says whether throttling is permitted at a time: the lease is held and its heartbeat is fresh.
pub type Permit = Arc<dyn Fn(Nanos) -> bool + Send + Sync>;

/// What a brake did since it started. Only its thread writes it; any thread may read it.
#[derive(Debug)]
pub struct Stats {
    /// Times the counter overflowed.
    pub overflows: AtomicU64,
    /// Overflows decided in the counter's interrupt, which did not wake the brake.
    pub renewed: AtomicU64,
    /// Times the group was stopped on this CPU.
    pub throttles: AtomicU64,
    /// Nanoseconds in which the brake stopped the group.
    pub throttled_ns: AtomicU64,
    /// Lines counted up to the last overflow.
    pub lines: AtomicU64,
    /// Lines of debt that were forgiven.
    pub forgiven: AtomicU64,
    /// What went through the pool, as [`Pooled::to_array`].
    pooled: [AtomicU64; Pooled::FIELDS],
    /// Every decision of the regulator, for the record.
    pub decisions: Ring,
    lost: AtomicU32,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            overflows: AtomicU64::new(0),
            renewed: AtomicU64::new(0),
            throttles: AtomicU64::new(0),
            throttled_ns: AtomicU64::new(0),
            lines: AtomicU64::new(0),
            forgiven: AtomicU64::new(0),
            pooled: std::array::from_fn(|_| AtomicU64::new(0)),
            decisions: Ring::default(),
            lost: AtomicU32::new(0),
        }
    }
}

impl Stats {
    fn tell_pooled(&self, did: Pooled) {
        for (slot, value) in self.pooled.iter().zip(did.to_array()) {
            slot.store(value, Ordering::Relaxed);
        }
    }
}

/// Why a brake ended before it was asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Its thread ran on another CPU.
    WrongCpu,
    /// The lease was revoked or its heartbeat stopped.
    NotPermitted,
    /// The counter stopped counting, or could not be read or armed.
    Meter,
    /// The process of the brake was killed.
    Killed,
}

impl Lost {
    const ALL: [Self; 4] = [
        Self::WrongCpu,
        Self::NotPermitted,
        Self::Meter,
        Self::Killed,
    ];

    /// The reason as [`Stats`] stores it; 0 is no reason.
    const fn code(self) -> u32 {
        self as u32 + 1
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WrongCpu => {
                "its thread found itself on another CPU (the CPU went offline or its cpuset shrank)"
            }
            Self::NotPermitted => "the lease on the machine was lost",
            Self::Meter => "its counter stopped counting (another user took it?)",
            Self::Killed => "its process was killed",
        })
    }
}

/// Where it is decided whether a budget lasted a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decides {
    /// In the counter's interrupt ([`crate::bpf`]). It wakes the thread only where the budget
    /// lasted less than a period.
    Interrupt,
    /// In the thread, which every overflow wakes.
    Thread,
}

impl Decides {
    /// Whether the thread has to decide. It does for pooled budgets, for budgets of two directions,
    /// and for CPUs that share a budget by demand. There, what each CPU draws has to be known at
    /// every budget.
    #[must_use]
    pub fn needs_the_thread(regulation: &Regulation) -> bool {
        regulation.pooling.is_some()
            || matches!(regulation.meter, Wanted::Directions { .. })
            || regulation.split == Split::Demand
    }
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// Lines per period, from the next period on.
    budget: AtomicU64,
    stats: Stats,
}

/// A brake that runs. Dropping it ends its process.
pub struct Brake {
    /// The CPU that it regulates.
    pub cpu: CpuId,
    /// Whether reads and writes have a budget each.
    pub directions: bool,
    /// Where it is decided whether a budget lasted a period.
    pub decides: Decides,
    pooled: bool,
    shared: Arc<Shared>,
    slot: Arc<ParkSlot>,
    twin: Option<Twin>,
}

impl fmt::Debug for Brake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Brake")
            .field("cpu", &self.cpu)
            .field("stats", self.stats())
            .finish_non_exhaustive()
    }
}

impl Brake {
    /// Starts regulating `cpu`. Before this returns, the brake has entered its cgroup through
    /// `procs_files` and was seen on its CPU. With `grants` its budget is that of the group's
    /// window, and `regulation` says only what is counted.
    pub fn start(
        cpu: CpuId,
        regulation: &Regulation,
        mut meter: Box<dyn Meter>,
        permit: Permit,
        procs_files: Vec<String>,
        pool: &Arc<Pool>,
        grants: Option<&Arc<Grants>>,
    ) -> io::Result<Self> {
        let by_thread = grants.is_some() || Decides::needs_the_thread(regulation);
        let decides = match by_thread || meter.load().is_err() {
            true => Decides::Thread,
            false => Decides::Interrupt,
        };
        let (used, _) = meter.read()?;
        let shared = Arc::new(Shared {
            budget: AtomicU64::new(regulation.budget.0),
            ..Shared::default()
        });
        let slot = match grants.and_then(|grants| grants.slot(cpu)) {
            Some(slot) => slot,
            None => pool.slot()?,
        };
        let task = Task {
            cpu,
            regulator: Regulator::new(regulation, rt::now(), used),
            // Of several CPUs that share a budget by demand, what each draws has to be known.
            most: meter
                .most(regulation.period)
                .filter(|_| regulation.cpus.len() == 1),
            free: false,
            used,
            armed: None,
            meter,
            permit,
            shared: Arc::clone(&shared),
            pool: Arc::clone(pool),
            slot: Arc::clone(&slot),
            windows: grants.map(|grants| Windows::new(Arc::clone(grants))),
        };
        let ended = Arc::clone(&shared);
        let twin = Twin::start(
            &format!("quell/{cpu}"),
            move || twin::settle(&procs_files, cpu),
            move || task.run(),
            move |killed| {
                if killed {
                    ended
                        .stats
                        .lost
                        .store(Lost::Killed.code(), Ordering::Release);
                }
            },
        )?;
        Ok(Self {
            cpu,
            directions: matches!(regulation.meter, Wanted::Directions { .. }),
            decides,
            pooled: regulation.pooling.is_some(),
            shared,
            slot,
            twin: Some(twin),
        })
    }

    /// What the brake did since it started.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.shared.stats
    }

    /// The process id of the brake. `None` once it has ended.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        let pid = self.twin.as_ref()?.pid()?;
        u32::try_from(pid.as_raw_nonzero().get()).ok()
    }

    /// What went through the pool since the brake started. `None` where its budget is not in a
    /// pool.
    #[must_use]
    pub fn pooled(&self) -> Option<Pooled> {
        let did = self.stats().pooled.each_ref();
        let did = did.map(|v| v.load(Ordering::Relaxed));
        self.pooled.then(|| Pooled::from_array(did))
    }

    /// Lines that the counter had when the thread last read it.
    #[must_use]
    pub fn lines(&self) -> Lines {
        Lines(self.stats().lines.load(Ordering::Relaxed))
    }

    /// Lines per period. Where reads and writes have a budget each, that of the reads.
    #[must_use]
    pub fn budget(&self) -> Lines {
        Lines(self.shared.budget.load(Ordering::Relaxed))
    }

    /// Changes the lines per period, from the next time on that the thread reads its counter. If
    /// the thread does not count because the budget was no limit, they change at once.
    pub fn set_budget(&self, budget: Lines) {
        self.shared.budget.store(budget.0, Ordering::Relaxed);
        self.slot.ring();
    }

    /// Why the brake ended by itself. `None` while it runs, or where its owner ended it.
    #[must_use]
    pub fn lost(&self) -> Option<Lost> {
        let code = self.stats().lost.load(Ordering::Acquire);
        Lost::ALL.into_iter().find(|lost| lost.code() == code)
    }
}

impl Drop for Brake {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.slot.ring();
        if let Some(twin) = self.twin.take() {
            twin.end();
        }
    }
}
