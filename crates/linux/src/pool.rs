//! What the throttlers of one hold share: the pool of budgets, and where each of them sleeps.
//!
//! Whoever is stopped sees what becomes of the pool while it spins, and whoever sleeps wakes when its period ends. A period
//! that begins early must be told to those that sleep: by one write to the descriptor that they poll, and only to those that
//! do not know yet.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};

use quell_core::control::pool::{Period, Pool as _, SharedPool};
use quell_core::cpuset::CpuId;
use rustix::event::EventfdFlags;

use crate::rt;

/// The start of no period.
const AWAKE: u64 = u64::MAX;

/// Where one throttler sleeps.
#[derive(Debug)]
pub struct Bed {
    /// What it polls besides its meter.
    pub wake: OwnedFd,
    /// The period that it sleeps in, by its start.
    sleeps_in: AtomicU64,
}

impl Bed {
    fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self {
            wake: rustix::event::eventfd(0, flags)?,
            sleeps_in: AtomicU64::new(AWAKE),
        })
    }

    /// Wakes whoever sleeps or is about to.
    pub fn ring(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// It was rung, and has heard it.
    pub fn heard(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }

    /// About to sleep in `period`. Whoever begins another one from here on will ring; whether one has begun already must be
    /// looked at after this.
    pub fn lies_down(&self, period: Period) {
        self.sleeps_in.store(period.start.0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Awake.
    pub fn rises(&self) {
        self.sleeps_in.store(AWAKE, Ordering::Relaxed);
    }
}

/// What the throttlers of one hold share.
#[derive(Debug)]
pub struct Pool {
    /// The budgets.
    pub budgets: SharedPool,
    beds: Box<[OnceLock<Arc<Bed>>]>,
}

impl Pool {
    /// For throttlers on CPUs below `cpus`; the first period begins now, the same for all.
    #[must_use]
    pub fn new(cpus: usize) -> Self {
        Self {
            budgets: SharedPool::new(rt::now()),
            beds: (0..cpus).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Where the throttler of `cpu` sleeps.
    ///
    /// # Errors
    /// When there is no such CPU, or no descriptor is to be had.
    pub fn bed(&self, cpu: CpuId) -> io::Result<Arc<Bed>> {
        let number = usize::try_from(cpu).unwrap_or(usize::MAX);
        let bed = self.beds.get(number).ok_or_else(|| {
            io::Error::other(format!("the throttlers are for {} CPUs", self.beds.len()))
        })?;
        if let Some(bed) = bed.get() {
            return Ok(Arc::clone(bed));
        }
        let new = Arc::new(Bed::new()?);
        Ok(Arc::clone(bed.get_or_init(|| new)))
    }

    /// Wakes those that sleep in another period than `period`, which began before theirs was over.
    pub fn wake_for(&self, period: Period) {
        // Either they see the new period after they have lain down, or they are seen lying here.
        fence(Ordering::SeqCst);
        for bed in self.beds.iter().filter_map(OnceLock::get) {
            let asleep = bed.sleeps_in.load(Ordering::Relaxed);
            let late = asleep != AWAKE && asleep != period.start.0;
            // One bell is enough.
            if late
                && bed
                    .sleeps_in
                    .compare_exchange(asleep, AWAKE, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
            {
                bed.ring();
            }
        }
    }

    /// Whether `period` is still the current one.
    #[must_use]
    pub fn is_in(&self, period: Period) -> bool {
        self.budgets.period() == period
    }
}
