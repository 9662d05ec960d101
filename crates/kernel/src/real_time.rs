//! The kernel's bound on the time of real-time threads
//! (Documentation/scheduler/sched-rt-group.rst).
//!
//! Since 6.12 there is none: a server of the fair class takes that part of a CPU only where
//! ordinary threads would starve there.

use quell_types::units::Share;
use quell_types::witness::Amount;

use crate::cgroup_limits::Limit;
use crate::procfs;
use crate::root::Files;
use crate::topology::release_number;

const RUNTIME: &str = "/proc/sys/kernel/sched_rt_runtime_us";
const PERIOD: &str = "/proc/sys/kernel/sched_rt_period_us";
/// The first kernel without the bound.
const UNBOUND: (u32, u32) = (6, 12);

/// What the bound leaves processes with real-time threads of so many CPUs. `None` where no thread
/// of them is real-time, and where nothing is bound. What cannot be read bounds nothing.
#[must_use]
pub fn bound(files: &dyn Files, pids: impl Iterator<Item = u32>, cpus: usize) -> Option<Limit> {
    let text = |path| files.read(path).ok().map(|text| text.trim().to_owned());
    let [runtime, period] = [RUNTIME, PERIOD].map(text);
    let release = text("/proc/sys/kernel/osrelease")?;
    let each = leaves(&release, runtime.as_deref()?, period.as_deref()?)?;
    let real_time = |tid| {
        let policy = files.scheduler(tid).unwrap_or(0) & !libc::SCHED_RESET_ON_FORK;
        policy == libc::SCHED_FIFO || policy == libc::SCHED_RR
    };
    let mut threads = pids.flat_map(|pid| procfs::threads(files, pid).unwrap_or_default());
    threads.any(real_time).then(|| Limit {
        file: RUNTIME.to_owned(),
        value: runtime.unwrap_or_default(),
        gets: Amount::CpuTime(Share(each.0.saturating_mul(cpus as u64))),
    })
}

/// The part of each CPU that real-time threads may use. `None`: all of it.
fn leaves(release: &str, runtime: &str, period: &str) -> Option<Share> {
    // -1: no bound.
    let (runtime, period): (u64, u64) = (runtime.parse().ok()?, period.parse().ok()?);
    let bound = runtime < period && release_number(release)? < UNBOUND;
    bound.then(|| Share::ratio(runtime, period))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_kernels_keep_a_part_of_each_cpu_from_real_time_threads() {
        let usual = |release| leaves(release, "950000", "1000000");
        assert_eq!(usual("6.1.0-rt"), Some(Share::percent(95)));
        assert_eq!(usual("6.12.3"), None);
        assert_eq!(leaves("5.10.1", "-1", "1000000"), None);
        assert_eq!(leaves("5.10.1", "1000000", "1000000"), None);
    }
}
