//! Fault points: the process kills itself at the N-th journal boundary. So a test can enumerate
//! every point at which a crash may come. These are before and after an entry is recorded, after
//! the change itself, and at every step of undoing.
//!
//! Unarmed, a boundary costs one relaxed load.

use std::sync::atomic::{AtomicU64, Ordering};

/// The variable that arms the fault: the number of the boundary, from 1.
pub const VARIABLE: &str = "QUELL_FAULT";
/// The same for the watchdog that this process starts.
pub const WATCHDOG_VARIABLE: &str = "QUELL_WATCHDOG_FAULT";
/// The same for a settler that this process starts.
pub const SETTLER_VARIABLE: &str = "QUELL_SETTLER_FAULT";

static LEFT: AtomicU64 = AtomicU64::new(0);

/// Makes the process die at the `n`-th boundary from now. 0 disarms.
pub fn arm(n: u64) {
    LEFT.store(n, Ordering::SeqCst);
}

/// Arms from [`VARIABLE`]. To be called when a program begins.
pub fn arm_from_environment() {
    if let Some(n) = std::env::var(VARIABLE).ok().and_then(|v| v.parse().ok()) {
        arm(n);
    }
}

/// The panic payload of [`unwind_at`], for `catch_unwind`.
#[cfg(feature = "fake")]
#[derive(Debug)]
pub struct Died;

#[cfg(feature = "fake")]
thread_local! {
    static UNWIND: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Unwinds the calling thread at its `n`-th boundary from now instead of killing the process. So a
/// model of the kernel in the same process outlives the "death". 0 disarms.
#[cfg(feature = "fake")]
pub fn unwind_at(n: u64) {
    UNWIND.set(n);
}

/// Marks a point at which a crash has to be survived.
pub fn boundary() {
    #[cfg(feature = "fake")]
    if UNWIND.get() > 0 {
        UNWIND.set(UNWIND.get() - 1);
        if UNWIND.get() == 0 {
            std::panic::resume_unwind(Box::new(Died));
        }
    }
    if LEFT.load(Ordering::Relaxed) == 0 {
        return;
    }
    if LEFT.fetch_sub(1, Ordering::SeqCst) == 1 {
        // SIGKILL, not abort: nothing of this process may run after it, no handler and no
        // destructor.
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        loop {
            std::thread::park();
        }
    }
}
