//! Real-time scheduling, pinning and memory locking of Quell's own threads, and the instruction to
//! wait with.
//!
//! `sched(7)`, `mlock2(2)`. The hazards are those of a real-time thread in user space. It can be
//! refused (a cgroup without real-time runtime, a container). It can find itself on another CPU
//! (hot-unplug, a shrunk cpuset). And it can touch memory that is not resident.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::units::Nanos;
use rustix::process::Pid;
use rustix::time::Timespec;

/// The watchdog's priority: above ordinary real-time work's usual 1..50, below the kernel's
/// watchdogs at 99.
pub const WATCHDOG_PRIORITY: i32 = 85;

/// The priority of a dispatcher of windows, and of a brake while it starts and ends: below the
/// watchdog, which undoes what it does.
pub const DISPATCHER_PRIORITY: i32 = 80;

/// A time or span as the kernel takes it.
#[must_use]
pub fn timespec(time: Nanos) -> Timespec {
    let part = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    Timespec {
        tv_sec: part(time.0 / 1_000_000_000),
        tv_nsec: part(time.0 % 1_000_000_000),
    }
}

/// The priority of a settler while threads of a program are stopped: below the watchdog.
pub const SETTLER_PRIORITY: i32 = 79;

/// Makes the calling thread SCHED_FIFO.
pub fn fifo(priority: i32) -> io::Result<()> {
    scheduled(0, libc::SCHED_FIFO, priority)
}

/// Makes the main thread of another process SCHED_FIFO.
pub fn fifo_of(process: Pid, priority: i32) -> io::Result<()> {
    scheduled(process.as_raw_nonzero().get(), libc::SCHED_FIFO, priority)
}

/// Makes the calling thread SCHED_OTHER again.
pub fn ordinary() -> io::Result<()> {
    scheduled(0, libc::SCHED_OTHER, 0)
}

/// Lets other programs have the CPU first, as far as the kernel allows: among those of this
/// process's cgroup, and among sessions (sched(7), autogroups). With a tenth of the usual weight it
/// still goes on next to them. For a process with a session of its own.
pub fn give_way() {
    const NICENESS: i32 = 10;
    // SAFETY: takes numbers.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS) };
    let _ = std::fs::write("/proc/self/autogroup", NICENESS.to_string());
}

fn scheduled(thread: libc::pid_t, policy: libc::c_int, priority: i32) -> io::Result<()> {
    let param = libc::sched_param {
        sched_priority: priority,
    };
    // Threads that it makes later must not inherit it. SAFETY: `param` is valid for the call; 0 is
    // the calling thread.
    let result = unsafe {
        libc::sched_setscheduler(thread, policy | libc::SCHED_RESET_ON_FORK, &raw const param)
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Pins the calling thread to one CPU.
pub fn pin(cpu: CpuId) -> io::Result<()> {
    crate::affinity::set(0, &CpuSet::from_iter([cpu]))
}

/// The CPU that the calling thread runs on.
#[must_use]
pub fn current_cpu() -> CpuId {
    CpuId::try_from(rustix::thread::sched_getcpu()).unwrap_or(CpuId::MAX)
}

/// CPU time of a process (clock_getcpuclockid(3)). `None` where there is none.
#[must_use]
pub fn process_time(pid: u32) -> Option<Nanos> {
    let pid = libc::pid_t::try_from(pid).ok()?;
    let mut clock = 0;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes into live values.
    let there = unsafe {
        libc::clock_getcpuclockid(pid, &raw mut clock) == 0
            && libc::clock_gettime(clock, &raw mut time) == 0
    };
    let part = |n: i64| u64::try_from(n).ok();
    let time = part(time.tv_sec)? * 1_000_000_000 + part(time.tv_nsec)?;
    there.then_some(Nanos(time))
}

/// CLOCK_MONOTONIC: the clock of every time in a run.
#[must_use]
pub fn now() -> Nanos {
    clock(rustix::time::ClockId::Monotonic)
}

/// The time of any of the kernel's clocks.
#[must_use]
pub fn clock(which: rustix::time::ClockId) -> Nanos {
    let t = rustix::time::clock_gettime(which);
    let part = |n: i64| u64::try_from(n).unwrap_or(0);
    Nanos(part(t.tv_sec) * 1_000_000_000 + part(t.tv_nsec))
}

/// Clock ticks since boot, the unit of tasks' start times (`/proc/PID/stat`, field 22).
#[must_use]
pub fn ticks_since_boot() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let part = |n: i64| u64::try_from(n).unwrap_or(0);
    let ticks = rustix::param::clock_ticks_per_second();
    part(t.tv_sec) * ticks + part(t.tv_nsec) * ticks / 1_000_000_000
}

/// Bytes of a brake's stack. It calls nothing deep, and every page of it is locked.
pub const STACK: usize = 64 << 10;

/// Lets all threads of the process share one heap from now on. glibc reserves 64 MiB of addresses
/// for each further heap. All of that counts as locked once memory is locked, also against the
/// limit of processes that may not lock any amount (RLIMIT_MEMLOCK).
pub fn one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no pointers.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Locks what is mapped now and what is touched later. With MCL_ONFAULT pages become resident when
/// first touched, not all at once: with 64 threads that is 2 MB instead of 134. Of the program's
/// code only what runs from now on is locked. To be called when plans are made and shown.
/// Later calls do nothing.
pub fn lock_memory() -> io::Result<()> {
    static LOCKED: AtomicBool = AtomicBool::new(false);
    if LOCKED.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    give_back_code();
    // SAFETY: no pointers.
    let result =
        unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT) };
    if result < 0 {
        LOCKED.store(false, Ordering::Relaxed);
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Unmaps the pages of code and constants, of the program and its libraries. Code that runs again
/// is mapped again, from the page cache (madvise(2), MADV_DONTNEED). Pages that were relocated, or
/// have a debugger's breakpoint in them, are no longer the file's. They stay, in memory or swapped
/// out (proc_pid_smaps(5): `Anonymous`, and after it `Swap`). To be called between looking at
/// the machine, planning and holding, before memory is locked.
pub fn give_back_code() {
    let Ok(text) = std::fs::read_to_string("/proc/self/smaps") else {
        return;
    };
    let (mut mapping, mut clean) = (None, false);
    for line in text.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words[..] {
            [range, "r-xp" | "r--p", _, _, _, path, ..] if path.starts_with('/') => {
                mapping = range.split_once('-');
            }
            [_, _, _, _, _, ..] if !line.starts_with("VmFlags:") => mapping = None,
            ["Anonymous:", size, _] => clean = size == "0",
            ["Swap:", "0", _] if clean => {
                let address = |text| usize::from_str_radix(text, 16).ok();
                let ends = mapping.and_then(|(a, b)| address(a).zip(address(b)));
                if let Some((from, to)) = ends {
                    let begin = std::ptr::without_provenance_mut(from);
                    let drop = rustix::mm::Advice::LinuxDontNeed;
                    // SAFETY: a whole private mapping of a file that was not written to, so it
                    // reads the same afterwards. Only the program and its libraries are mapped like
                    // this, and nothing unmaps them meanwhile.
                    let _ = unsafe { rustix::mm::madvise(begin, to - from, drop) };
                }
            }
            _ => {}
        }
    }
}

/// Waits an instant without taking execution resources from the SMT sibling (`PAUSE`, on Arm
/// `ISB`).
#[inline]
pub fn relax() {
    std::hint::spin_loop();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_that_was_given_back_leaves_memory_and_still_runs() {
        let mapped = || {
            let text = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = text.lines().find_map(|l| l.strip_prefix("RssFile:"));
            let kib = line.unwrap().trim().strip_suffix(" kB").unwrap();
            kib.parse::<u64>().unwrap()
        };
        // What is in memory of it depends on what ran before. One megabyte of it is touched here.
        let begin = give_back_code as *const () as usize & !0xfffff;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let of = |line: &str| {
            let (range, rest) = line.split_once(' ')?;
            let (from, to) = range.split_once('-')?;
            let number = |text| usize::from_str_radix(text, 16).ok();
            let (from, to) = (number(from)?, number(to)?);
            (rest.starts_with("r-x") && (from..to).contains(&(begin | 0xff_fff)))
                .then_some((from, to))
        };
        let (from, to) = maps.lines().find_map(of).unwrap();
        for at in (from.max(begin)..to.min(begin + (1 << 20))).step_by(4096) {
            // SAFETY: in a mapping that may be read.
            unsafe { std::ptr::with_exposed_provenance::<u8>(at).read_volatile() };
        }
        let before = mapped();
        give_back_code();
        let after = mapped();
        assert!(after + 512 < before, "{before} KiB, then {after}");
    }

    #[test]
    fn a_time_has_whole_seconds() {
        assert_eq!(timespec(Nanos(1_000_000_002)).tv_sec, 1);
    }
}
