//! The one clock of the generators: `CLOCK_MONOTONIC`, read without a system call where the kernel offers that (vDSO).

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds on the monotonic clock.
pub fn now() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    // The monotonic clock never shows a negative time.
    t.tv_sec.unsigned_abs() * 1_000_000_000 + t.tv_nsec.unsigned_abs()
}

/// Sleeps until `due` on the same clock; returns early on a signal.
pub fn sleep_until(due: u64) {
    let left = due.saturating_sub(now());
    if left > 0 {
        let _ = rustix::thread::nanosleep(&rustix::thread::Timespec {
            tv_sec: i64::try_from(left / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(left % 1_000_000_000).unwrap_or(0),
        });
    }
}
