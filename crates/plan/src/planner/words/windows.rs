//! Sentences about windows of a frame.

use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::units::{Nanos, Rate};

pub const ONLY_ITS_WINDOWS: &str =
    "it runs where its windows are, and groups without a window run elsewhere";
pub const BY_THE_CLOCK: &str =
    "a real-time dispatcher freezes the group that ran and thaws the next one, by the clock";
pub const NO_COUNTERS: &str =
    "a budget of a window needs hardware counters that count bytes: CPU time would only bound them";
pub const SYSTEM_CALLS_END: &str = "a task that is in a system call when its window ends goes on until that returns, and \
    interrupts come at any time";

sentences! {
    nothing_is_left(cpus: &CpuSet)
        "CPU {cpus} is all there is, and tasks without a window need another one";
    stays_in_its_cgroup(group: &str)
        "group {group} stays in its own cgroup, which Quell would freeze for its owner, too";
    limited_by_its_windows(group: &str)
        "group {group} has windows: what it may move is said of each of them (`bandwidth` in the schedule)";
    part_moves(follower: &str)
        "the ways of group {follower} follow its misses, so those of windows cannot be fixed";
    draws_less(rate: Rate, peak: Rate)
        "a limit of {rate} in a window needs no step: its CPUs draw {peak} each at most";
    shares_a_core(cpu: CpuId, others: &CpuSet)
        "the windows of CPU {cpu} share a core with CPU {others} (SMT): tasks there slow what runs in them";
    ends_earlier(guard: Nanos)
        "each window ends {guard} early where the next one follows: that time is for the switch (windows.guard)";
}
