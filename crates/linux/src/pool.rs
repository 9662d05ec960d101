//! What the brakes of one hold share: the pool of budgets, and where each of them sleeps.
//!
//! A brake that stops its group sees what becomes of the pool while it spins. A brake that sleeps
//! wakes when its period ends. A period that begins early must be reported to sleeping brakes. That
//! is done by one write to the descriptor that they poll, and only to those that do not know yet.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};

use quell_control::pool::{Period, Pool as _, SharedPool};
use rustix::event::EventfdFlags;

use quell_kernel::rt;

/// Stands for no period in [`ParkSlot`]: the brake is awake.
const AWAKE: u64 = u64::MAX;

/// Where one brake sleeps until a period ends or another thread wakes it.
#[derive(Debug)]
pub struct ParkSlot {
    /// An eventfd that the brake polls next to its meter.
    pub wake: OwnedFd,
    /// Start of the period that the brake sleeps in, or [`AWAKE`].
    sleeps_in: AtomicU64,
}

impl ParkSlot {
    /// One that no brake sleeps in yet.
    ///
    /// # Errors
    /// When no descriptor is available.
    pub fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self {
            wake: rustix::event::eventfd(0, flags)?,
            sleeps_in: AtomicU64::new(AWAKE),
        })
    }

    /// Wakes the brake if it sleeps or is about to.
    pub fn ring(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Clears the wake-up, once the brake has seen it.
    pub fn heard(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }

    /// Announces that the brake is about to sleep in `period`. A thread that begins another period
    /// from here on rings. Whether one has begun already must be checked after this call.
    pub fn parks(&self, period: Period) {
        self.sleeps_in.store(period.start.0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Announces that the brake is awake.
    pub fn leaves(&self) {
        self.sleeps_in.store(AWAKE, Ordering::Relaxed);
    }
}

/// The budgets and the park slots of all brakes of one hold.
#[derive(Debug)]
pub struct Pool {
    /// The pool that regulators give budget to and take it from.
    pub budgets: SharedPool,
    slots: Box<[OnceLock<Arc<ParkSlot>>]>,
}

/// The most brakes of a hold per CPU, on average. As many groups may be regulated on a CPU.
const PER_CPU: usize = 16;

impl Pool {
    /// For brakes on `cpus` CPUs. The first period begins now, the same for all.
    #[must_use]
    pub fn new(cpus: usize) -> Self {
        let most = cpus.saturating_mul(PER_CPU);
        Self {
            budgets: SharedPool::new(rt::now()),
            slots: (0..most).map(|_| OnceLock::new()).collect(),
        }
    }

    /// The place where one more brake sleeps: a new slot, or one that nothing uses any more.
    ///
    /// # Errors
    /// When there are too many, or no descriptor is available.
    pub fn slot(&self) -> io::Result<Arc<ParkSlot>> {
        for place in &self.slots {
            match place.get() {
                // Only the pool itself refers to it.
                Some(slot) if Arc::strong_count(slot) == 1 => {
                    slot.heard();
                    return Ok(Arc::clone(slot));
                }
                Some(_) => {}
                None => {
                    let new = Arc::new(ParkSlot::new()?);
                    return Ok(Arc::clone(place.get_or_init(|| new)));
                }
            }
        }
        Err(io::Error::other(format!(
            "there are {} brakes already",
            self.slots.len()
        )))
    }

    /// Wakes brakes that sleep in another period than `period`, which began before theirs was over.
    pub fn wake_for(&self, period: Period) {
        // Either they see the new period after they have parked, or they are seen parked here.
        fence(Ordering::SeqCst);
        for slot in self.slots.iter().filter_map(OnceLock::get) {
            let asleep = slot.sleeps_in.load(Ordering::Relaxed);
            let late = asleep != AWAKE && asleep != period.start.0;
            // One wake-up is enough.
            if late
                && slot
                    .sleeps_in
                    .compare_exchange(asleep, AWAKE, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
            {
                slot.ring();
            }
        }
    }

    /// Whether `period` is still the current one.
    #[must_use]
    pub fn is_in(&self, period: Period) -> bool {
        self.budgets.period() == period
    }
}
