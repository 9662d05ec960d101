//! The throttlers: one real-time thread per regulated CPU, pinned to it, asleep until the CPU's budget is used up.
//!
//! What to do is decided by [`CpuRegulator`]; this module only waits for the counter, asks, and keeps the CPU from
//! everybody else until the time the regulator names, by running on it at real-time priority. It guards against what
//! such a thread can do wrong on a stock kernel:
//!
//! * It can find itself on another CPU (hot-unplug, a shrunk cpuset). The CPU is checked before and during every stop,
//!   and every [`LOOK`] while the thread sleeps: the counter of a CPU that went away is silent for ever. On a mismatch
//!   the thread ends and says so.
//! * It keeps per-CPU kernel workers from running, and calls elsewhere that wait for them. One uninterrupted stop
//!   is therefore at most [`Regulation::longest`]; a longer one is broken by [`BREATH`], whose use is debited.
//! * It outlives its permission: when the lease is revoked or its heartbeat is late, it ends.
//! * Its counter can be taken away: the meter says so, and the thread ends.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;

use quell_core::control::bandwidth::{CpuRegulator, Fast};
use quell_core::cpuset::CpuId;
use quell_core::plan::Regulation;
use quell_core::record::Decision;
use quell_core::units::{Lines, Nanos};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use crate::meter::{MOST_EVENTS, Meter};
use crate::ring::Ring;
use crate::rt;

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
            decisions: Ring::default(),
            lost: AtomicU32::new(0),
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

struct Shared {
    stop: AtomicBool,
    /// Lines per period, looked at when a budget has been used up.
    budget: AtomicU64,
    stats: Stats,
}

/// A running throttler.
pub struct Throttler {
    /// The regulated CPU.
    pub cpu: CpuId,
    shared: Arc<Shared>,
    wake: Arc<OwnedFd>,
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
        meter: Box<dyn Meter>,
        permit: Permit,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            budget: AtomicU64::new(regulation.budget.0),
            stats: Stats::default(),
        });
        let wake = Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?);
        let (ready, started) = mpsc::channel();
        let mut task = Task {
            cpu,
            regulation: regulation.clone(),
            meter,
            permit,
            shared: Arc::clone(&shared),
            wake: Arc::clone(&wake),
        };
        let thread = std::thread::Builder::new()
            .name(format!("quell/{cpu}"))
            .stack_size(rt::STACK)
            .spawn(move || {
                let prepared = task.prepare();
                let go = prepared.is_ok();
                let _ = ready.send(prepared);
                if go && let Err(lost) = task.run() {
                    let code = match lost {
                        Lost::WrongCpu => 1,
                        Lost::NotPermitted => 2,
                        Lost::Meter => 3,
                    };
                    task.shared.stats.lost.store(code, Ordering::Release);
                }
            })?;
        let started = started
            .recv()
            .map_err(|_| io::Error::other("the throttler thread died while starting"))?;
        let throttler = Self {
            cpu,
            shared,
            wake,
            thread: Some(thread),
        };
        started.map(|()| throttler)
    }

    /// From when the budget in force is used up, this is the budget.
    pub fn set_budget(&self, budget: Lines) {
        self.shared.budget.store(budget.0, Ordering::Relaxed);
    }

    /// What it did so far.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.shared.stats
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
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Task {
    cpu: CpuId,
    regulation: Regulation,
    meter: Box<dyn Meter>,
    permit: Permit,
    shared: Arc<Shared>,
    wake: Arc<OwnedFd>,
}

impl Task {
    fn prepare(&self) -> io::Result<()> {
        rt::pin(self.cpu)?;
        rt::fifo(rt::THROTTLER_PRIORITY)?;
        if rt::current_cpu() != self.cpu {
            return Err(io::Error::other(format!(
                "the throttler could not be brought onto CPU {}",
                self.cpu
            )));
        }
        Ok(())
    }

    fn used(&mut self) -> Result<Lines, Lost> {
        match self.meter.read() {
            Ok((lines, true)) => Ok(lines),
            _ => Err(Lost::Meter),
        }
    }

    fn run(&mut self) -> Result<(), Lost> {
        let used = self.used()?;
        let mut regulator = CpuRegulator::new(
            self.regulation.budget,
            self.regulation.period,
            rt::now(),
            used,
        );
        self.arm(regulator.left(used))?;
        while self.sleep()? {
            let overflow = self.meter.woken().map_err(|_| Lost::Meter)?;
            let used = self.used()?;
            let now = rt::now();
            let stats = &self.shared.stats;
            stats.overflows.fetch_add(1, Ordering::Relaxed);
            stats.lines.store(used.0, Ordering::Relaxed);
            regulator.set_budget(Lines(self.shared.budget.load(Ordering::Relaxed)));
            let what = regulator.overflow(now, used);
            stats.decisions.push(&Decision {
                at: now,
                used,
                what,
                reaction: overflow.map(|o| (now.since(o.at), o.kernel)),
            });
            let lines = match what {
                Fast::Rearm(lines) | Fast::NewPeriod(lines) => lines,
                // For pooled budgets only, which are refused here.
                Fast::RunFreeUntil(_) => regulator.begin(now, used),
                Fast::ThrottleUntil(until) => {
                    stats.throttles.fetch_add(1, Ordering::Relaxed);
                    let stopped = self.stop_until(until);
                    self.shared
                        .stats
                        .throttled_ns
                        .fetch_add(rt::now().since(now).0, Ordering::Relaxed);
                    if !stopped? {
                        return Ok(());
                    }
                    let used = self.used()?;
                    regulator.begin(rt::now(), used)
                }
            };
            self.shared
                .stats
                .forgiven
                .store(regulator.forgiven().0, Ordering::Relaxed);
            self.arm(lines)?;
        }
        Ok(())
    }

    fn arm(&mut self, lines: Lines) -> Result<(), Lost> {
        self.meter.arm(lines).map_err(|_| Lost::Meter)
    }

    /// Sleeps until the counter overflows (`true`) or the end is asked for (`false`).
    fn sleep(&self) -> Result<bool, Lost> {
        let meters = self.meter.descriptors();
        let mut watched: [PollFd<'_>; 1 + MOST_EVENTS] =
            std::array::from_fn(|_| PollFd::new(&*self.wake, PollFlags::IN));
        for (slot, meter) in watched[1..].iter_mut().zip(&meters) {
            *slot = PollFd::from_borrowed_fd(meter.as_fd(), PollFlags::IN);
        }
        let look = Timespec {
            tv_sec: 0,
            tv_nsec: i64::try_from(LOOK.0).unwrap_or(250_000_000),
        };
        loop {
            match rustix::event::poll(&mut watched[..=meters.len().min(MOST_EVENTS)], Some(&look)) {
                // The kernel wakes a thread whose CPU is gone on another one.
                Ok(0) if rt::current_cpu() != self.cpu => return Err(Lost::WrongCpu),
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return Err(Lost::Meter),
                Ok(_) if self.shared.stop.load(Ordering::Acquire) => return Ok(false),
                // A descriptor that hangs up belongs to an event in error state or to a CPU that went away.
                Ok(_)
                    if watched[1..]
                        .iter()
                        .any(|w| w.revents().intersects(PollFlags::HUP | PollFlags::ERR)) =>
                {
                    return Err(Lost::Meter);
                }
                Ok(_) => return Ok(true),
            }
        }
    }

    /// Keeps the CPU until `until`. `false`: the end was asked for meanwhile.
    fn stop_until(&self, until: Nanos) -> Result<bool, Lost> {
        loop {
            let leg = until.min(rt::now().plus(self.regulation.longest));
            if !self.spin_until(leg)? {
                return Ok(false);
            }
            if leg == until {
                return Ok(true);
            }
            std::thread::sleep(std::time::Duration::from_nanos(BREATH.0));
        }
    }

    fn spin_until(&self, until: Nanos) -> Result<bool, Lost> {
        loop {
            let now = rt::now();
            if now >= until {
                return Ok(true);
            }
            if rt::current_cpu() != self.cpu {
                return Err(Lost::WrongCpu);
            }
            if self.shared.stop.load(Ordering::Acquire) {
                return Ok(false);
            }
            if !(self.permit)(now) {
                return Err(Lost::NotPermitted);
            }
            for _ in 0..4 {
                rt::relax();
            }
        }
    }
}
