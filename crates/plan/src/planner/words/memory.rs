//! Sentences about memory: what is kept, what is limited, and what steers.

use quell_types::options::PressureController;
use quell_types::units::Bytes;

use crate::inventory::MemoryControl;

pub const NO_CONTROLLER: &str = "no cgroup hierarchy carries the memory controller";
pub const NO_LIMIT_CAN_BE_MADE: &str = "no cgroup with a limit of memory can be made here: that takes root, and a hierarchy \
    that carries the memory controller";
pub const RUN_AS_ROOT: &str = "run it as root, or in the lab (--on lab)";
pub const BOUND_BY_THE_EXPERIMENT: &str = "the limit of the experiment: all that runs in it has this memory together, and \
    controllers take it for the machine's";
pub const ONLY_CRITICAL_IS_KEPT: &str = "only the memory of a critical group can be reserved";
pub const WOULD_BE_KILLED_FIRST: &str =
    "memory that may not be reclaimed raises its oom_score, so the kernel would kill it first";
pub const KEPT: &str =
    "memory.min on its cgroup and all above: the kernel reclaims from other cgroups";
pub const KEPT_AS_MEASURED: &str = "memory.min on its cgroup and all above, as large as its working set: measured while it \
    runs, and raised at once when it reads back pages that were reclaimed";
pub const FILES_OF_OTHERS: &str = "pages of files that another cgroup read first are charged to that one (reserve.files locks them all the same)";
pub const TAKEN_UP_AGAIN: &str = "memory that it has not used for a while may be reclaimed, and is read from the disk when it is used again";
pub const LOCKED: &str = "a small process in its cgroup maps and locks them; pages not yet in memory are charged to the group";
pub const REPLACED: &str = "a file that replaces a locked one is not locked";
pub const GIVE_SYS_RESOURCE: &str =
    "give CAP_SYS_RESOURCE, or limit the memory of its neighbours instead (limit.memory)";
pub const GIVE_IPC_LOCK: &str =
    "give CAP_IPC_LOCK, or raise the limit of locked memory (ulimit -l)";
pub const V1_KILLS: &str = "on cgroup v1 the kernel takes back pages of files above a limit of memory, and kills where that does not \
    suffice; the group may not be killed";
pub const LIMITED_BY_V1: &str = "memory.limit_in_bytes: above it the kernel reclaims, and kills in the group where that does not suffice";
pub const LIMITED_AND_KILLED: &str = "memory.max, and memory.high a sixteenth below, so that a task that grows slowly is \
    slowed down first";
pub const LIMITED_AND_SLOWED: &str = "memory.high, since the group may not be killed (allow = [\"kill\"]): a task above it is \
    slowed down";
pub const CHARGED_WHERE_IT_WAS: &str = "memory that its processes have when they are moved stays charged to the cgroup \
    that they come from";
pub const SLEEPS: &str =
    "a task above memory.high sleeps up to 2 s at a time, and still grows slowly";
pub const NO_GROUP_PRESSURE: &str = "the kernel does not report how long one group waits for memory: no cgroup v2 hierarchy \
    with pressure files is mounted";
pub const NO_CRITICAL_GROUP: &str = "there is no critical group to protect";
pub const NOBODY_TO_STEER: &str =
    "no best-effort group allows a limit, freezing or killing that works here";
pub const NAME_WHAT_MAY_BE_DONE: &str =
    "name in a best-effort group's `allow` what may be done to it, as `escalate` does";
pub const SYSCTLS_FOR_EVERYBODY: &str = "pressure.sysctls: for the whole machine, until the end";
pub const WRITE_SYSCTLS: &str =
    "the daemon described tunes sysctls, too: write pressure.sysctls = true for that";
pub const KILLED_LAST: &str = "the kernel kills it last when memory runs out";
pub const TELLS_WHEN_TO_ACT: &str =
    "the time that it waits for memory, and for disks that other groups use, decides when to act";
pub const DISKS_ARE_NOT_HELD_BACK: &str = "other groups' use of the disks that it reads is limited only through their \
    memory";
pub const NOTHING_IS_KEPT: &str =
    "tasks of no group may use any memory, and none is reserved for it (reserve.memory)";
pub const AN_AVERAGE_IS_FOLLOWED: &str =
    "it follows an average of ten seconds, and a stopped process gives no memory back";
pub const A_GUESS: &str =
    "the first limit is an estimate, and nothing lowers it where it is too high";
pub const SWAPPINESS_AS_DESCRIBED: &str = "as described: pages of the critical group's files stay, and the other group is not swapped out";
pub const NO_SWAPPINESS_OF_GROUPS: &str = "cgroup v2 has no memory.swappiness: instead of 0 nothing of the limited groups is \
    swapped out (memory.swap.max), and instead of 90 the critical groups have the machine's";
pub const V1_PROTECTS_NOTHING: &str = "the memory controller is on cgroup v1: nothing is protected, and a limit that moves is \
    used only where a group may be killed";

sentences! {
    is_no_limit(most: Bytes, total: Bytes)
        "{most} is no limit on a machine that has {total}";
    too_much_kept(reserved: Bytes, total: Bytes)
        "{reserved} of {total} would be reserved, and the machine needs some for itself";
    killed_without_immunity(why: &str)
        "without immunity from the OOM killer the protected program would be killed first: {why}";
    cannot_be_locked(why: &str)
        "files cannot be locked in memory: {why}";
    may_not_be_limited(role: &str)
        "the group ({role}) may not be limited in memory";
    pressure_is_not_told(why: &str)
        "the kernel does not report how long tasks wait for memory: {why}";
    nobody_steers(why: &str)
        "the memory of best-effort groups is not controlled: {why}";
    critical_are_not_immune(why: &str)
        "the critical groups are not immune from the OOM killer: {why}";
    nothing_can_be_done(group: &str)
        "group {group}: none of the actions that it allows works on its memory here";
}

/// Why nothing can be protected, and what helps.
pub const fn unprotected(control: &MemoryControl) -> (&'static str, &'static str) {
    match control {
        MemoryControl::V1 => (
            "the memory controller is on cgroup v1, which protects nothing",
            "boot with the memory controller on cgroup v2 (cgroup_no_v1=memory)",
        ),
        _ => (NO_CONTROLLER, "mount cgroup2 with the memory controller"),
    }
}

/// Why a neighbour is steered.
pub const fn steered_by(controller: PressureController) -> &'static str {
    match controller {
        PressureController::Latd => {
            "the process with the highest oom_score is stopped while the machine's pressure is high, and killed at 0.1 % of \
             memory"
        }
        PressureController::Cgroup => {
            "its limit grows while it waits and the critical groups do not; else as the daemon described"
        }
        _ => {
            "it may use what the critical groups and a reserve leave, and less while they wait; harsher steps come after `grace`"
        }
    }
}
