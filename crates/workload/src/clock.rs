//! The clocks of the generators: `CLOCK_MONOTONIC`, read without a system call where the kernel
//! offers that (vDSO), and the CPU time of a thread.

use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Nanoseconds on the monotonic clock.
pub fn now() -> u64 {
    read(ClockId::Monotonic)
}

/// Nanoseconds of CPU time that the calling thread has used.
pub fn of_this_thread() -> u64 {
    read(ClockId::ThreadCPUTime)
}

fn read(clock: ClockId) -> u64 {
    let t = clock_gettime(clock);
    // Neither clock ever shows a negative time.
    t.tv_sec.unsigned_abs() * 1_000_000_000 + t.tv_nsec.unsigned_abs()
}

/// Sleeps until `due` on the monotonic clock. Returns early on a signal.
pub fn sleep_until(due: u64) {
    let due = Timespec {
        tv_sec: i64::try_from(due / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(due % 1_000_000_000).unwrap_or(0),
    };
    let _ = clock_nanosleep_absolute(ClockId::Monotonic, &due);
}
