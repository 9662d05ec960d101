//! Fault points: the process kills itself at the N-th journal boundary, so that a test can
//! enumerate every point at which a crash could come (before an entry is recorded, after, after the
//! change itself, and at every step of undoing).
//!
//! Unarmed, a boundary costs one relaxed load.

use std::sync::atomic::{AtomicU64, Ordering};

/// The variable that arms the fault: the number of the boundary, from 1.
pub const VARIABLE: &str = "QUELL_FAULT";
/// The same for the watchdog that this process starts.
pub const WATCHDOG_VARIABLE: &str = "QUELL_WATCHDOG_FAULT";

static LEFT: AtomicU64 = AtomicU64::new(0);

/// Dies at the `n`-th boundary from now; 0 disarms.
pub fn arm(n: u64) {
    LEFT.store(n, Ordering::SeqCst);
}

/// Arms from [`VARIABLE`]; for the beginning of a program.
pub fn arm_from_environment() {
    if let Some(n) = std::env::var(VARIABLE).ok().and_then(|v| v.parse().ok()) {
        arm(n);
    }
}

/// The death of [`unwind_at`]: what `catch_unwind` catches.
#[cfg(feature = "fake")]
#[derive(Debug)]
pub struct Died;

#[cfg(feature = "fake")]
thread_local! {
    static UNWIND: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Unwinds the calling thread at its `n`-th boundary from now instead of killing the process, so
/// that a model of the kernel in the same process outlives the "death"; 0 disarms.
#[cfg(feature = "fake")]
pub fn unwind_at(n: u64) {
    UNWIND.set(n);
}

/// A point at which a crash is to be survived.
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
        // SIGKILL, not abort: nothing of this process may run after it, no handler, no destructor.
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        loop {
            std::thread::park();
        }
    }
}
