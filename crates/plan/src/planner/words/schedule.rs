//! Sentences about turns of processes.

use quell_types::cpuset::CpuSet;
use quell_types::units::Nanos;

pub const AS_WRITTEN: &str = "as written";
pub const THE_OTHERS_WAIT: &str =
    "a real-time dispatcher thaws the processes whose turn it is, and freezes the others";
pub const NO_GROUP: &str = "no best-effort group may be frozen, so nothing can wait for its turn";
pub const BY_DECLARED_RATES: &str = "who runs is decided by the rates in scheduler.demand, as no counter of a process is \
     read: the decision is as good as they are (estimated)";
pub const BY_COUNTERS: &str = "who runs is decided by what each process did in the last quantum that it ran in, by its \
     counters; a process whose counters cannot be read counts with the rates in scheduler.demand";
pub const NO_PROFILE: &str = "no profile of its program is kept";
pub const NO_RATE_OF_MEMORY: &str = "policy fair does not know what memory sustains here, and takes it to be enough for all: \
     measure the machine (quell doctor --deep)";
pub const CORES_DIFFER: &str = "the CPUs of [scheduler] are not the same number on each core: each counts as a core of its \
     own, and who shares one is not decided";
pub const ALL_SHARE_A_CORE: &str =
    "every CPU that its groups could have shares a core with a critical group";

sentences! {
    budgets_not_yet(group: &str)
        "group {group} takes turns, and a limit of bandwidth does not switch with them yet";
    kernels_own(policy: &str)
        "policy {policy} is what the kernel does without Quell";
    not_declared(group: &str, policy: &str, what: &str, why: &str)
        "policy {policy} goes by what a process of {group} asks of {what}, and nothing here counts that; {why}";
    of_profile(group: &str, profile: &str)
        "a process of {group} demands what profile {profile} says of it alone";
    elsewhere(group: &str, cpus: &CpuSet, other: &str, others: &CpuSet)
        "processes that take turns share their CPUs, and {group} runs on CPUs {cpus}, {other} on {others}";
    waits(bound: u32, time: Nanos)
        "a process waits for {bound} quanta at most ({time}), or for a turn of all where there are too many for that";
}
