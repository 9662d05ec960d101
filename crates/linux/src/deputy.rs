//! The deputy: a thread that keeps up the heartbeat while the main thread is blocked in the kernel.
//! Where memory is short or a disk is busy, one fork, one move into a cgroup or one write of a
//! record may take seconds. That is just when a run must not be lost.
//!
//! If the process is stopped or frozen, so is its deputy, and the watchdog notices as soon as
//! without it. If the main thread hangs, the deputy beats no longer than
//! [`lease::HELD_UP`](crate::lease::HELD_UP).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use quell_kernel::error::{Error, Result};
use quell_kernel::rt;

use crate::lease::Lease;

/// How often it checks the heartbeat, which may be a second old.
const EVERY: Duration = Duration::from_millis(250);
/// Bytes of stack. The thread calls next to nothing.
const STACK: usize = 64 << 10;

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    /// Thread id; 0 until it runs.
    thread: AtomicU32,
}

/// The handle of the thread, which ends when this is dropped.
#[derive(Debug)]
pub struct Deputy {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Deputy {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`Error::Refused`] where no thread can be made.
    pub fn start(lease: Arc<Lease>) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("deputy".to_owned())
            .stack_size(STACK)
            .spawn(move || {
                let number = rustix::thread::gettid().as_raw_nonzero().get();
                own.thread.store(number.unsigned_abs(), Ordering::Release);
                // Without permission for real-time priority it is an ordinary thread, and late on a
                // busy machine.
                let _ = rt::fifo(rt::WATCHDOG_PRIORITY);
                while !own.stop.load(Ordering::Acquire) {
                    lease.stand_in(rt::now());
                    std::thread::park_timeout(EVERY);
                }
            })
            .map_err(|e| {
                Error::refused(format!(
                    "no thread can be made to keep the heart beating: {e}"
                ))
            })?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// The thread's id. `None` until it runs. It starts on the CPUs of the thread that made it.
    #[must_use]
    pub fn thread(&self) -> Option<u32> {
        let number = self.shared.thread.load(Ordering::Acquire);
        (number != 0).then_some(number)
    }
}

impl Drop for Deputy {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
