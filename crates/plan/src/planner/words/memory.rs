//! Sentences about memory: what is kept, what is limited, and what steers.

use quell_types::options::PressureController;
use quell_types::units::Bytes;

use crate::inventory::MemoryControl;

pub const NO_CONTROLLER: &str = "no cgroup hierarchy carries the memory controller";
pub const NO_LIMIT_CAN_BE_MADE: &str = "no cgroup with a limit of memory can be made here: that takes root, and a hierarchy \
    that carries the memory controller";
pub const RUN_AS_ROOT: &str = "run it as root, or in the lab (--on lab)";
pub const BOUND_BY_THE_EXPERIMENT: &str = "the experiment's: whatever runs in it has this memory and no more, and controllers \
    take it for the machine's";
pub const ONLY_CRITICAL_IS_KEPT: &str = "only a critical group's memory is kept";
pub const WOULD_BE_KILLED_FIRST: &str =
    "what may not be reclaimed counts for its score: the kernel would kill it first";
pub const KEPT: &str =
    "memory.min on its cgroup and all above: the kernel reclaims from everybody else";
pub const KEPT_AS_MEASURED: &str = "memory.min on its cgroup and all above, as large as what it works on: measured while it \
    runs, at once more when pages come back that were taken";
pub const FILES_OF_OTHERS: &str =
    "pages of files that others read first are theirs (reserve.files reads them from inside)";
pub const TAKEN_UP_AGAIN: &str =
    "what it has not used for a while, and takes up again, comes from the disk";
pub const LOCKED: &str = "a small process in its cgroup maps and locks them: read from inside, they are charged to the group";
pub const REPLACED: &str = "a file that is replaced by another one is not the one that was locked";
pub const GIVE_IPC_LOCK: &str =
    "give CAP_IPC_LOCK, or raise the limit of locked memory (ulimit -l)";
pub const V1_KILLS: &str =
    "cgroup v1 kills in a group that exceeds its limit of memory, and the group may not be killed";
pub const LIMITED_BY_V1: &str = "memory.limit_in_bytes: what is beyond is reclaimed, or killed for";
pub const LIMITED_AND_KILLED: &str = "memory.max, and memory.high a sixteenth below, so that who grows slowly is slowed down \
    first";
pub const LIMITED_AND_SLOWED: &str = "memory.high, since the group may not be killed (allow = [\"kill\"]): who is beyond is \
    slowed down";
pub const SLEEPS: &str =
    "who is beyond sleeps up to 2 s at a time, and gets on slowly all the same";
pub const NO_GROUP_PRESSURE: &str = "how long one group waits for memory is not told: no cgroup v2 hierarchy with pressure \
    files is mounted";
pub const NO_CRITICAL_GROUP: &str = "there is no critical group to look after";
pub const NOBODY_TO_STEER: &str = "there is nobody who may be limited, frozen or killed here";
pub const NAME_WHAT_MAY_BE_DONE: &str =
    "name in a best-effort group's `allow` what may be done to it, as `escalate` does";
pub const SYSCTLS_FOR_EVERYBODY: &str =
    "pressure.sysctls: for everybody on the machine, until the end";
pub const WRITE_SYSCTLS: &str =
    "the daemon described tunes sysctls, too: write pressure.sysctls = true for that";
pub const KILLED_LAST: &str = "it is to be the last that is killed for memory";
pub const TELLS_WHEN_TO_ACT: &str =
    "the time it waits for memory, and for disks that others use, tells when to act";
pub const DISKS_ARE_NOT_HELD_BACK: &str = "what others do to the disks it reads from is held back no further than their \
    memory";
pub const NOTHING_IS_KEPT: &str =
    "tasks of no group may use any memory, and nothing of its own is kept (reserve.memory)";
pub const AN_AVERAGE_IS_FOLLOWED: &str =
    "an average of ten seconds is followed, and who is stopped gives nothing back";
pub const A_GUESS: &str =
    "the first limit is a guess, and one that is too high is taken back by nobody";
pub const V1_PROTECTS_NOTHING: &str = "the memory controller is on cgroup v1: nothing is protected, and a limit that moves is \
    used only where a group may be killed";

sentences! {
    is_no_limit(most: Bytes, total: Bytes)
        "{most} is no limit on a machine that has {total}";
    too_much_kept(reserved: Bytes, total: Bytes)
        "{reserved} would be kept of the {total} that there are, and the machine needs some for itself";
    killed_without_immunity(why: &str)
        "without immunity from the OOM killer the protected program would be killed first: {why}";
    cannot_be_locked(why: &str)
        "files cannot be locked in memory: {why}";
    may_not_be_limited(role: &str)
        "the group ({role}) may not be limited in memory";
    pressure_is_not_told(why: &str)
        "how long tasks wait for memory is not told: {why}";
    nobody_steers(why: &str)
        "nobody steers the others' memory: {why}";
    critical_are_not_immune(why: &str)
        "the critical groups are not immune from the OOM killer: {why}";
    nothing_can_be_done(group: &str)
        "group {group}: nothing that it allows can be done to its memory here";
}

/// Why nothing can be protected, and what helps.
pub const fn unprotected(control: &MemoryControl) -> (&'static str, &'static str) {
    match control {
        MemoryControl::V1 => (
            "the memory controller is on cgroup v1, which protects nothing",
            "boot with it on cgroup v2 (cgroup_no_v1=memory)",
        ),
        _ => (NO_CONTROLLER, "mount cgroup2 with it"),
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
