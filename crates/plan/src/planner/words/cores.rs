//! Sentences about which groups run where: CPUs, interrupts, memory nodes, shared caches.

use quell_types::cpuset::CpuSet;
use quell_types::mechanism::Level;
use quell_types::units::Bytes;

use super::{on, one_or};
use crate::inventory::CpusetKind;
use crate::plan::Held;

pub const STAYS_IN: &str = "processes that it starts stay in that cgroup";
pub const CHANGED_IN_PLACE: &str =
    "it has a cgroup already, which is changed in place; no task is moved";
pub const LEAVES_FOR_THIS: &str =
    "its tasks, and the children they will have, leave their cgroups for this one until the end";
pub const RUNS_ON_THE_REST: &str = "it runs on what the critical groups leave";
pub const REST_STAYS_OFF: &str =
    "tasks of no group stay off the critical CPUs, your shell included";
pub const REST_STAYS_OFF_LIMITS: &str = "tasks of no group, your shell included, stay off the critical CPUs and off those \
    where a limit would stop them";
pub const DEVICES_INTERRUPT_OTHERS: &str = "devices interrupt other CPUs instead";
/// Before Linux 6.12 only a trial shows this.
pub const DEVICES_INTERRUPT_OTHERS_IF_MOVED: &str = "devices interrupt other CPUs instead; interrupts that the kernel will \
    not move are listed when applied";
pub const KERNEL_WORK_STAYS_OFF: &str =
    "kernel work that belongs to no CPU stays off the critical CPUs";
pub const KERNEL_WORK_MAY_RUN: &str = "the mask of unbound kernel work cannot be written here; some of it may run on the \
    critical CPUs";
pub const AFFINITY_IS_SET_BACK: &str =
    "a task can set its own affinity back, and tasks born elsewhere are not confined";
pub const INTERRUPTS_COME: &str = "interrupts come to it as before (irqs = \"leave\"), and kernel threads bound to a CPU \
    stay on it";
pub const KERNEL_THREADS_STAY: &str =
    "kernel threads bound to a CPU stay on it (listed when applied)";
pub const REAL_TIME_COMES_FIRST: &str = "real-time programs come first, whatever the weight";
pub const WEIGHED_IN_ITS_SLICE: &str =
    "its cgroup is weighed against those in the same slice, and the slice against all others";
pub const HITS_ARE_SHARED: &str = "its cache ways or sets are its own, but hits, misses in flight and write-backs of \
    other tasks use the same cache";
pub const CACHES_ARE_NOT_DIVIDED: &str = "the CPUs are its own, this cache is not";
pub const HOST_MAY_CHANGE: &str =
    "the host may change that at any moment, and nothing is promised from it";
pub const DOCTOR_LOOKS_AGAIN: &str =
    "nothing is promised from it; `quell doctor --deep` measures again";

/// Why a group has CPUs to itself.
pub const fn alone_by(kind: CpusetKind) -> &'static str {
    match kind {
        CpusetKind::V2Partition => {
            "a partition root: the kernel takes its CPUs away from every other cgroup"
        }
        CpusetKind::V1 | CpusetKind::V2 => {
            "a cpuset of its own; later steps remove its CPUs from all other cpusets"
        }
        CpusetKind::AffinityOnly => {
            "there is no cpuset controller: the affinity of every thread is set"
        }
    }
}

sentences! {
    never_ran(architecture: &str)
        "Quell has never been run on {architecture}: this plan rests on the kernel's documents";
    has_threaded_children(group: &str)
        "group {group}: its cgroup has the threaded children work and stop until the end: a program that enters it is limited \
         within a second, and a cgroup that is made in it takes no program";
    auto_came_to(group: &str, cpus: &str, units: usize, what: &str)
        "group {group}: cpus = \"auto\" came to {cpus}, of the {units} {what} there were; give a number to change it";
    do_not_exist(missing: &CpuSet, all: &CpuSet)
        "CPU {missing} does not exist here or is outside Quell's cpuset; usable: {all}";
    are_taken(taken: &CpuSet)
        "CPU {taken} belongs to another critical group already";
    are_not_free(outside: &CpuSet, free: &CpuSet)
        "CPU {outside} does not exist here or belongs to a critical group; free: {free}";
    too_few(wanted: usize, left: usize)
        "CPUs wanted: {wanted}, CPUs left: {left}";
    nothing_is_left(groups: &str, all: &CpuSet)
        "the critical groups ({groups}) ask for all usable CPUs ({all}), and other tasks need at least one";
    share(groups: &str)
        "match the programs of {groups} in one group: they then share its CPUs";
    shares_its_cores(group: &str, on: &str)
        "group {group} shares its cores with {on}: no core would be left for other tasks";
    exempt_stays_off(group: &str, on: &str)
        "group {group} is exempt from limits, but not from the partition: like every other task it stays off {on}";
    shares_a_cache(group: &str, level: u32, on: &str, what: &str)
        "group {group} shares an L{level} cache with {on}: {what}";
}

pub fn smt_beside(beside: &CpuSet) -> String {
    let (on, several) = (on(beside), beside.len() > 1);
    let threads = if several {
        "threads of the same cores"
    } else {
        "a thread of the same core"
    };
    format!("other tasks run on {on}, {threads} (SMT): they share what is inside the core")
}

pub fn fixed_interrupts(n: u32) -> String {
    let (s, they) = if n == 1 { ("", "it") } else { ("s", "they") };
    format!(
        "{n} interrupt{s} cannot be moved (the kernel refuses); {they} may still arrive on the critical CPUs"
    )
}

pub fn memory_of_nodes(group: &str, nodes: &CpuSet) -> String {
    let s = if nodes.len() > 1 { "s" } else { "" };
    format!(
        "group {group} gets memory from node{s} {nodes} only, near its CPUs: when that is full it runs out of memory, whatever \
         the other nodes have"
    )
}

pub fn slower_kind(group: &str, slower: &CpuSet) -> String {
    let (on, are) = (on(slower), if slower.len() > 1 { "are" } else { "is" });
    format!("group {group}: {on} {are} of a slower kind than its other CPUs")
}

pub fn smaller_cache(group: &str, least: Bytes, most: Bytes) -> String {
    format!(
        "group {group}: some of its CPUs have a last-level cache of {least}, others of the machine one of {most}: \
         name those in cpus to have them"
    )
}

pub fn isolated(group: &str, cpus: &CpuSet, ticks: bool) -> String {
    let (on, are) = (on(cpus), one_or(cpus.len(), "is", "are"));
    let ticks = if ticks {
        ""
    } else {
        ", and without a tick while one thread runs there"
    };
    format!(
        "group {group}: {on} {are} isolated: the scheduler puts no other program there and balances \
         nothing, so each thread is placed{ticks}"
    )
}

pub fn siblings_stay_idle(group: &str, siblings: &CpuSet) -> String {
    let on = on(siblings);
    let (s, stay) = if siblings.len() > 1 {
        ("s", "stay")
    } else {
        ("", "stays")
    };
    format!("group {group} is alone on its cores: {on}, the other thread{s} there, {stay} idle")
}

pub fn found_apart(group: &str, cpus: &CpuSet, date: &str, changes: &str) -> String {
    let (on, were) = (on(cpus), one_or(cpus.len(), "was", "were"));
    format!(
        "{on} {were} found not to share a cache with group {group} on {date}, though the kernel says so: {changes}"
    )
}

pub fn found_sharing(group: &str, cpus: &CpuSet, date: &str) -> String {
    let (on, were) = (on(cpus), one_or(cpus.len(), "was", "were"));
    format!(
        "{on} {were} found to share a cache with group {group} on {date}, though the kernel does not say so: \
         {CACHES_ARE_NOT_DIVIDED}"
    )
}

/// What is held at a lower level than the policy requires.
pub fn below(held: &Held, require: Level) -> String {
    let (promise, level) = (&held.promise, held.level);
    let weakest = held.weakest.as_ref();
    let weakest = weakest.map_or(String::new(), |w| format!(": {w}"));
    format!("{promise} has level {level} here, and the policy requires {require}{weakest}")
}
