//! Brakes: one ordinary process per regulated CPU, asleep until the CPU's budget is spent or, where
//! budgets are pooled, the period ends.
//!
//! A group's tasks are in the cgroup `work`, which is `cpu.idle`; its brakes are in `stop` next to
//! it, which has the highest weight. A brake that runs takes the group's own share of its CPU, and
//! the kernel prefers it to `work`. So it stops the group's tasks there and nothing else: other
//! programs and the kernel's processs run on, and get no less than next to the unthrottled group.
//! What to do is decided by [`Regulator`]; this module waits for the counter, asks, and runs until
//! the time the regulator names (`task`).
//!
//! cgroup v2 keeps the threads of a process in one cgroup, so that each brake is a process of its
//! own, which shares this process's memory ([`crate::twin`]).
//!
//! What can go wrong, and what is done about it:
//!
//! * It finds itself on another CPU (hot-unplug, a shrunk cpuset). The CPU is checked before and
//!   during every stop, and every [`LOOK`] while it sleeps: the counter of a CPU that went away is
//!   silent for ever. On a mismatch it ends and reports that.
//! * It outlives its permission: when the lease is revoked or its heartbeat is late, it ends.
//! * Its counter is taken away: it then wakes nothing, so that the meter is read every [`LOOK`],
//!   too, and the brake ends.
//! * It is killed: that is reported, and the backend starts it anew; pooled ones all, in another
//!   pool, which it could not leave.
//!
//! However else it ends, it leaves the pool, so that other CPUs do not wait for it.

mod task;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc;

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
use crate::twin::Twin;
use task::Task;

/// How long a brake sleeps at most before it looks where it is.
pub const LOOK: Nanos = Nanos::millis(250);

/// Says whether throttling is still permitted at a time: the lease is held and its heartbeat fresh.
pub type Permit = Arc<dyn Fn(Nanos) -> bool + Send + Sync>;

/// What a brake did since it started; written by its thread alone, read by anybody.
#[derive(Debug)]
pub struct Stats {
    /// Times the counter overflowed.
    pub overflows: AtomicU64,
    /// Of these, those that were decided in its interrupt and did not wake the brake.
    pub renewed: AtomicU64,
    /// Times the group was stopped there.
    pub throttles: AtomicU64,
    /// Time stopped.
    pub throttled_ns: AtomicU64,
    /// Lines counted up to the last overflow.
    pub lines: AtomicU64,
    /// Lines of debt forgiven.
    pub forgiven: AtomicU64,
    /// What went through the pool.
    pooled: [AtomicU64; Pooled::FIELDS],
    /// Every decision, for the record.
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

/// Why a brake ended before it was told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Its thread ran on another CPU.
    WrongCpu,
    /// The lease was revoked or its heartbeat stopped.
    NotPermitted,
    /// The counter stopped counting, or could not be read or armed.
    Meter,
    /// Its process was killed.
    Killed,
}

impl Lost {
    const ALL: [Self; 4] = [
        Self::WrongCpu,
        Self::NotPermitted,
        Self::Meter,
        Self::Killed,
    ];

    /// As [`Stats`] keeps it; 0 is none.
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
    /// In the counter's interrupt ([`crate::bpf`]): the thread is woken only where it did not.
    Interrupt,
    /// In the thread, which is woken each time.
    Thread,
}

impl Decides {
    /// Whether the interrupt's program cannot decide by itself: of pooled budgets, of two
    /// directions, and of CPUs that share a budget by demand, where what each draws has to be known
    /// at every budget.
    #[must_use]
    pub fn needs_the_thread(regulation: &Regulation) -> bool {
        regulation.pooling.is_some()
            || matches!(regulation.meter, Wanted::Apart { .. })
            || regulation.split == Split::Demand
    }
}

/// What a brake's thread and its owner share.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// Lines per period, from the next one on.
    budget: AtomicU64,
    stats: Stats,
}

/// A running brake.
pub struct Brake {
    /// The regulated CPU.
    pub cpu: CpuId,
    /// Reads and writes have a budget each.
    pub apart: bool,
    /// Where it is decided.
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
    /// Starts regulating `cpu`. The brake has entered its cgroup through `doors` and is seen to be
    /// on its CPU before this returns.
    pub fn start(
        cpu: CpuId,
        regulation: &Regulation,
        mut meter: Box<dyn Meter>,
        (permit, doors): (Permit, Vec<String>),
        pool: &Arc<Pool>,
    ) -> io::Result<Self> {
        let decides = match Decides::needs_the_thread(regulation) || meter.load().is_err() {
            true => Decides::Thread,
            false => Decides::Interrupt,
        };
        let (used, _) = meter.read()?;
        let shared = Arc::new(Shared {
            budget: AtomicU64::new(regulation.budget.0),
            ..Shared::default()
        });
        let slot = pool.slot()?;
        let (ready, started) = mpsc::channel();
        let task = Task {
            cpu,
            doors,
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
        };
        let ended = Arc::clone(&shared);
        let twin = Twin::start(
            &format!("quell/{cpu}"),
            move || task.run(&ready),
            move |killed| {
                if killed {
                    ended
                        .stats
                        .lost
                        .store(Lost::Killed.code(), Ordering::Release);
                }
            },
        )?;
        let started = started
            .recv()
            .map_err(|_| io::Error::other("the brake was killed while it started"))?;
        let brake = Self {
            cpu,
            apart: matches!(regulation.meter, Wanted::Apart { .. }),
            decides,
            pooled: regulation.pooling.is_some(),
            shared,
            slot,
            twin: Some(twin),
        };
        started.map(|()| brake)
    }

    /// What it did so far.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.shared.stats
    }

    /// The brake's process, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        let pid = self.twin.as_ref()?.pid()?;
        u32::try_from(pid.as_raw_nonzero().get()).ok()
    }

    /// What went through the pool since it started, where its budget is in one.
    #[must_use]
    pub fn pooled(&self) -> Option<Pooled> {
        let did = self.stats().pooled.each_ref();
        let did = did.map(|v| v.load(Ordering::Relaxed));
        self.pooled.then(|| Pooled::from_array(did))
    }

    /// What its counter read when the thread last looked at it.
    #[must_use]
    pub fn lines(&self) -> Lines {
        Lines(self.stats().lines.load(Ordering::Relaxed))
    }

    /// Lines per period; where reads and writes have a budget each, that of the reads.
    #[must_use]
    pub fn budget(&self) -> Lines {
        Lines(self.shared.budget.load(Ordering::Relaxed))
    }

    /// Changes them, from the next time on that the thread looks at its counter; at once, if it
    /// does not because they were no limit.
    pub fn set_budget(&self, budget: Lines) {
        self.shared.budget.store(budget.0, Ordering::Relaxed);
        self.slot.ring();
    }

    /// Why it ended by itself, if it did.
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
