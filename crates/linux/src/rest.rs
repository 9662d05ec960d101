//! How much the tasks of no group draw from memory. A reserve has to leave room for them, since
//! nothing limits them.
//!
//! Method: the CPU time of all threads that belong to no group (`/proc/TID/schedstat`, kernel
//! threads included) is summed at the ends of short windows. The result is the 99th percentile over
//! the windows, at the highest rate of one CPU.
//!
//! Bounds: the rate is an upper bound for the tasks that run while it is measured, since few
//! programs draw at the highest rate. A thread that begins and ends within one window is missing,
//! and so is the last part of every thread that ends. The kernel updates the time of a running
//! thread at its ticks, so one window may contain up to a tick of another. Interrupts and devices
//! are not in it.

use std::collections::{BTreeMap, BTreeSet};

use quell_types::units::{Nanos, Rate};

use quell_kernel::error::{Error, Result};
use quell_kernel::procfs;
use quell_kernel::root::Files;
use quell_kernel::rt;

/// Length of a window: several ticks, and short enough for a burst to be seen.
pub const WINDOW: Nanos = Nanos::millis(25);

/// Number of windows of a measurement: a second.
pub const WINDOWS: u32 = 40;

/// How long all threads ran in one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// CPU time, over all CPUs.
    pub ran: Nanos,
    /// Real time from the window's begin to its end.
    pub length: Nanos,
}

/// The rate that 99 of 100 windows did not exceed, if a CPU draws `peak` all the time that it runs.
/// `None` without windows.
#[must_use]
pub fn percentile(windows: &[Window], peak: Rate) -> Option<Rate> {
    let rate = |window: &Window| {
        let drawn = u128::from(peak.0) * u128::from(window.ran.0);
        let rate = drawn / u128::from(window.length.0.max(1));
        Rate(u64::try_from(rate).unwrap_or(u64::MAX))
    };
    let mut rates: Vec<Rate> = windows.iter().map(rate).collect();
    rates.sort_unstable();
    // Nearest rank: of a hundred windows the 99th, of fewer the highest.
    let rank = (rates.len() * 99).div_ceil(100);
    rates.get(rank.checked_sub(1)?).copied()
}

/// The CPU time in nanoseconds of every thread, by thread id. Processes in `members` and this
/// process are left out. `None` where the kernel does not keep it (no CONFIG_SCHED_INFO).
fn sample(files: &dyn Files, members: &BTreeSet<u32>) -> Result<Option<BTreeMap<u32, u64>>> {
    let ourselves = std::process::id();
    let names = files
        .list("/proc")
        .map_err(|e| Error::file("list", "/proc", None, e))?;
    let mut found = BTreeMap::new();
    for pid in names.iter().filter_map(|name| name.parse().ok()) {
        if pid == ourselves || members.contains(&pid) {
            continue;
        }
        for thread in procfs::threads(files, pid)? {
            if let Some((ran, _)) = procfs::schedstat(files, thread)? {
                found.insert(thread, ran);
            }
        }
    }
    // There is always another process: the first one.
    Ok((!found.is_empty() || members.contains(&1)).then_some(found))
}

/// CPU time between two samples. A thread id that is new, or that ran less than before, is a new
/// thread.
fn since(before: &BTreeMap<u32, u64>, now: &BTreeMap<u32, u64>) -> Nanos {
    let ran = |(thread, ran): (&u32, &u64)| {
        let known = before.get(thread).copied().unwrap_or(0);
        ran.checked_sub(known).unwrap_or(*ran)
    };
    Nanos(now.iter().map(ran).fold(0, u64::saturating_add))
}

/// Takes a sample at the end of each of `count` windows. `wait` returns the time when the next
/// window is over; its first call begins the first window.
///
/// # Errors
/// Files that cannot be read or make no sense.
pub fn windows(
    files: &dyn Files,
    members: &BTreeSet<u32>,
    count: u32,
    wait: &mut dyn FnMut() -> Nanos,
) -> Result<Option<Vec<Window>>> {
    let mut began = wait();
    let Some(mut before) = sample(files, members)? else {
        return Ok(None);
    };
    let mut all = Vec::new();
    for _ in 0..count {
        let ended = wait();
        let Some(now) = sample(files, members)? else {
            return Ok(None);
        };
        all.push(Window {
            ran: since(&before, &now),
            length: ended.since(began),
        });
        (before, began) = (now, ended);
    }
    Ok(Some(all))
}

/// Measures for a second what the tasks draw whose processes are not in `members`. This process is
/// left out, too. `peak` is the highest rate of one CPU. `None` where the kernel does not keep the
/// CPU time of threads.
///
/// # Errors
/// Files that cannot be read or make no sense.
pub fn measure(files: &dyn Files, members: &BTreeSet<u32>, peak: Rate) -> Result<Option<Rate>> {
    let mut next = rt::now();
    let mut wait = || {
        let left = next.since(rt::now());
        std::thread::sleep(std::time::Duration::from_nanos(left.0));
        next = rt::now().plus(WINDOW);
        rt::now()
    };
    let windows = windows(files, members, WINDOWS, &mut wait)?;
    Ok(windows.and_then(|windows| percentile(&windows, peak)))
}

#[cfg(test)]
mod tests {
    use quell_kernel::root::Kernel;

    use super::*;
    use std::path::Path;

    fn window(ran_ms: u64, length_ms: u64) -> Window {
        Window {
            ran: Nanos::millis(ran_ms),
            length: Nanos::millis(length_ms),
        }
    }

    #[test]
    fn the_rate_is_that_of_the_99th_window_of_100() {
        let peak = Rate(10_000_000_000);
        assert_eq!(percentile(&[], peak), None);
        assert_eq!(percentile(&[window(0, 25)], peak), Some(Rate(0)));
        // One CPU of two all the time, then both.
        assert_eq!(percentile(&[window(25, 25)], peak), Some(peak));
        let both = percentile(&[window(50, 25)], peak);
        assert_eq!(both, Some(Rate(20_000_000_000)));
        // One burst in 100 windows does not count, two do. Of fewer windows the highest counts.
        let mut windows = vec![window(1, 100); 99];
        windows.push(window(100, 100));
        assert_eq!(percentile(&windows, peak), Some(Rate(100_000_000)));
        windows[0] = window(100, 100);
        assert_eq!(percentile(&windows, peak), Some(peak));
        assert_eq!(percentile(&windows[..20], peak), Some(peak));
        // Windows of different length are compared by their rates.
        let mixed = [window(10, 100), window(8, 40), window(1, 20)];
        assert_eq!(percentile(&mixed, peak), Some(Rate(2_000_000_000)));
    }

    /// Makes the files of a thread that ran for `ran` nanoseconds.
    fn thread(root: &Path, pid: u32, tid: u32, ran: u64) {
        let proc = root.join("proc");
        std::fs::create_dir_all(proc.join(format!("{pid}/task/{tid}"))).unwrap();
        std::fs::create_dir_all(proc.join(tid.to_string())).unwrap();
        let file = proc.join(format!("{tid}/schedstat"));
        std::fs::write(file, format!("{ran} 5 1\n")).unwrap();
    }

    #[test]
    fn threads_of_groups_do_not_count_and_new_ones_do() {
        let dir = tempfile::tempdir().unwrap();
        let (root, files) = (dir.path(), Kernel::at(dir.path()));
        for (pid, tid) in [(1, 1), (50, 50), (50, 51), (60, 60)] {
            thread(root, pid, tid, 1_000_000);
        }
        let members = BTreeSet::from([60]);
        let mut step = 0;
        let mut wait = || {
            step += 1;
            match step {
                2 => {
                    thread(root, 50, 51, 3_000_000);
                    thread(root, 60, 60, 90_000_000);
                }
                3 => {
                    // A thread that began since, and a thread id that another thread has now.
                    thread(root, 70, 70, 500_000);
                    thread(root, 50, 50, 200_000);
                }
                _ => {}
            }
            Nanos::millis(10 * step)
        };
        let found = windows(&files, &members, 3, &mut wait).unwrap().unwrap();
        let ran: Vec<u64> = found.iter().map(|w| w.ran.0).collect();
        assert_eq!(ran, [2_000_000, 700_000, 0]);
        assert!(found.iter().all(|w| w.length == Nanos::millis(10)));
    }

    #[test]
    fn a_kernel_that_keeps_no_time_is_told_from_idle_tasks() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("proc/1/task/1")).unwrap();
        let files = Kernel::at(dir.path());
        let mut now = 0;
        let mut wait = || {
            now += 1;
            Nanos::millis(now)
        };
        let found = windows(&files, &BTreeSet::new(), 2, &mut wait).unwrap();
        assert_eq!(found, None);
    }

    #[test]
    fn this_machine_can_be_measured() {
        let files = Kernel::new().unwrap();
        let mut wait = || {
            std::thread::sleep(std::time::Duration::from_millis(5));
            rt::now()
        };
        let Some(found) = windows(&files, &BTreeSet::new(), 4, &mut wait).unwrap() else {
            quell_testing::skip("this kernel keeps no CPU time of threads");
            return;
        };
        let cpus = std::thread::available_parallelism().unwrap().get() as u64;
        // A window may contain an additional tick of each CPU.
        let most = |w: &Window| cpus.max(64) * (w.length.0 + 20_000_000);
        assert!(found.iter().all(|w| w.ran.0 <= most(w)), "{found:?}");
    }
}
