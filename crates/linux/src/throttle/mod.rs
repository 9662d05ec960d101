//! The throttlers: one real-time thread per regulated CPU, pinned to it, asleep until the CPU's budget is used up or, where
//! budgets are pooled, the period ends.
//!
//! What to do is decided by [`Regulator`]; this module only waits for the counter, asks, and keeps the CPU from
//! everybody else until the time the regulator names, by running on it at real-time priority (`task`). It guards against what
//! such a thread can do wrong on a stock kernel:
//!
//! * It can find itself on another CPU (hot-unplug, a shrunk cpuset). The CPU is checked before and during every stop,
//!   and every [`LOOK`] while the thread sleeps: the counter of a CPU that went away is silent for ever. On a mismatch
//!   the thread ends and says so.
//! * It keeps per-CPU kernel workers from running, and calls elsewhere that wait for them. One uninterrupted stop
//!   is therefore at most [`Regulation::longest`]; a longer one is broken by [`BREATH`], whose use is debited.
//! * It outlives its permission: when the lease is revoked or its heartbeat is late, it ends.
//! * Its counter can be taken away: it then wakes nobody, so that the meter is asked every [`LOOK`], too, and the thread ends.
//!
//! However it ends, it leaves the pool, so that the others do not wait for it.

mod task;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;

use quell_core::control::Regulator;
use quell_core::cpuset::CpuId;
use quell_core::plan::{Meter as Wanted, Regulation};
use quell_core::record::Pooled;
use quell_core::units::{Lines, Nanos};

use crate::meter::Meter;
use crate::pool::{Bed, Pool};
use crate::ring::Ring;
use crate::rt;
use task::Task;

/// The pause in a stop longer than the longest allowed: long enough for a waiting kernel worker to be scheduled.
pub const BREATH: Nanos = Nanos::micros(100);

/// How long a throttler sleeps at most before it looks where it is.
pub const LOOK: Nanos = Nanos::millis(250);

/// Says whether throttling is still permitted at a time: the lease is held and its heartbeat fresh.
pub type Permit = Arc<dyn Fn(Nanos) -> bool + Send + Sync>;

/// What a throttler did since it started; written by its thread alone, read by anybody.
#[derive(Debug)]
pub struct Stats {
    /// Times the counter woke the thread.
    pub overflows: AtomicU64,
    /// Times the CPU was stopped.
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

/// Why a throttler ended before it was told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Its thread ran on another CPU.
    WrongCpu,
    /// The lease was revoked or its heartbeat stopped.
    NotPermitted,
    /// The counter stopped counting, or could not be read or armed.
    Meter,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WrongCpu => {
                "its thread found itself on another CPU (the CPU went offline or its cpuset shrank)"
            }
            Self::NotPermitted => "the lease on the machine was lost",
            Self::Meter => "its counter stopped counting (another user took it?)",
        })
    }
}

/// What a throttler's thread and its owner share.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// Lines per period, from the next one on.
    budget: AtomicU64,
    stats: Stats,
}

/// A running throttler.
pub struct Throttler {
    /// The regulated CPU.
    pub cpu: CpuId,
    /// Reads and writes have a budget each.
    pub apart: bool,
    pooled: bool,
    shared: Arc<Shared>,
    bed: Arc<Bed>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Throttler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Throttler")
            .field("cpu", &self.cpu)
            .field("stats", self.stats())
            .finish_non_exhaustive()
    }
}

impl Throttler {
    /// Starts regulating `cpu`. The thread is pinned, real-time and seen to be on its CPU before this returns.
    pub fn start(
        cpu: CpuId,
        regulation: &Regulation,
        mut meter: Box<dyn Meter>,
        permit: Permit,
        pool: &Arc<Pool>,
    ) -> io::Result<Self> {
        let (used, _) = meter.read()?;
        let shared = Arc::new(Shared {
            budget: AtomicU64::new(regulation.budget.0),
            ..Shared::default()
        });
        let bed = pool.bed(cpu)?;
        let (ready, started) = mpsc::channel();
        let task = Task {
            cpu,
            regulator: Regulator::new(regulation, rt::now(), used),
            longest: regulation.longest,
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
            bed: Arc::clone(&bed),
        };
        let thread = std::thread::Builder::new()
            .name(format!("quell/{cpu}"))
            .stack_size(rt::STACK)
            .spawn(move || task.run(&ready))?;
        let started = started
            .recv()
            .map_err(|_| io::Error::other("the throttler thread died while starting"))?;
        let throttler = Self {
            cpu,
            apart: matches!(regulation.meter, Wanted::Apart { .. }),
            pooled: regulation.pooling.is_some(),
            shared,
            bed,
            thread: Some(thread),
        };
        started.map(|()| throttler)
    }

    /// What it did so far.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.shared.stats
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

    /// Changes them, from the next time on that the thread looks at its counter; at once, if it does not because they were no limit.
    pub fn set_budget(&self, budget: Lines) {
        self.shared.budget.store(budget.0, Ordering::Relaxed);
        self.bed.ring();
    }

    /// Why it ended by itself, if it did.
    #[must_use]
    pub fn lost(&self) -> Option<Lost> {
        match self.stats().lost.load(Ordering::Acquire) {
            1 => Some(Lost::WrongCpu),
            2 => Some(Lost::NotPermitted),
            3 => Some(Lost::Meter),
            _ => None,
        }
    }
}

impl Drop for Throttler {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.bed.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
