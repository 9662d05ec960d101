//! Whether only the group's tasks run on CPUs: the judgement, on values that were observed.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::units::Nanos;

use quell_types::witness::Fault;

/// CPU time of a thread between two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    /// Nanoseconds that it ran.
    pub ran: u64,
    /// Nanoseconds that it was ready and waited for a CPU.
    pub waited: u64,
}

/// A thread as it was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Thread {
    pub tid: u32,
    /// Its process.
    pub pid: u32,
    /// The command name. Empty where nothing was suspicious, since it was not read then.
    pub comm: String,
    /// CPUs on which it may run.
    pub cpus: CpuSet,
    /// The CPU on which it last ran. `None` where that was not read.
    pub last_cpu: Option<CpuId>,
    /// Whether it runs, or is ready to run, at this moment.
    pub running: bool,
    /// What it used since the last look. `None` where the last look did not read it, or the kernel
    /// does not count it.
    pub spent: Option<Spent>,
    /// Places of its parties in the list of parties.
    pub groups: Vec<usize>,
    /// A thread of the kernel or of Quell, or one that is ending: no promise is about it.
    pub exempt: bool,
}

/// How a CPU spent the time between two looks, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CpuUse {
    /// Programs and system calls (user + nice + system).
    pub busy: u64,
    /// Idle, or waiting for a disk.
    pub idle: u64,
    /// Interrupts, and time that a hypervisor took.
    pub other: u64,
}

/// Whether two sets have a CPU in common.
pub(crate) fn meet(a: &CpuSet, b: &CpuSet) -> bool {
    a.iter().any(|cpu| b.contains(cpu))
}

impl Thread {
    /// Whether it ran on one of these CPUs since the last look.
    fn ran_on(&self, cpus: &CpuSet) -> bool {
        let there = self.last_cpu.is_some_and(|cpu| cpus.contains(cpu));
        there && (self.running || self.spent.is_some_and(|spent| spent.ran > 0))
    }
}

/// The thread of another program that breaks the promise most: one that ran there, then the one
/// that used most CPU time, then the one with the lowest number. `groups` are those that may.
pub(crate) fn stranger(cpus: &CpuSet, groups: &[usize], threads: &[Thread]) -> Option<Fault> {
    let strangers = threads.iter().filter(|t| {
        let may = t.groups.iter().any(|group| groups.contains(group));
        !t.exempt && !may && meet(&t.cpus, cpus)
    });
    let others = strangers.clone().count().saturating_sub(1);
    let rank = |t: &&Thread| {
        let used = t.spent.unwrap_or_default().ran;
        (t.ran_on(cpus), used, Reverse(t.tid))
    };
    let worst = strangers.max_by_key(rank)?;
    let ran = worst.ran_on(cpus);
    let on = worst.last_cpu.filter(|_| ran);
    let cpu = on.or_else(|| worst.cpus.intersection(cpus).first())?;
    Some(Fault::Stranger {
        tid: worst.tid,
        pid: worst.pid,
        comm: worst.comm.clone(),
        cpu,
        ran,
        others: u32::try_from(others).unwrap_or(u32::MAX),
    })
}

/// Whether a thread of the group may run where it should: on some of the claimed CPUs, and on none
/// beyond the party's. An empty `party` says nothing.
pub(crate) fn is_placed(may: &CpuSet, cpus: &CpuSet, party: &CpuSet) -> bool {
    meet(may, cpus) && (party.is_empty() || may.is_subset(party))
}

/// The group's thread with the lowest number that may run elsewhere.
pub(crate) fn elsewhere(
    cpus: &CpuSet,
    party: &CpuSet,
    group: usize,
    threads: &[Thread],
) -> Option<Fault> {
    let own = threads
        .iter()
        .filter(|t| !t.exempt && t.groups.contains(&group));
    let wrong = own
        .filter(|t| !is_placed(&t.cpus, cpus, party))
        .min_by_key(|t| t.tid)?;
    let wanted = match meet(&wrong.cpus, cpus) {
        true => party,
        false => cpus,
    };
    Some(Fault::Elsewhere {
        tid: wrong.tid,
        pid: wrong.pid,
        comm: wrong.comm.clone(),
        may: wrong.cpus.clone(),
        wanted: wanted.clone(),
    })
}

/// The share of a span, in percent, from which on a CPU counts as idle.
const IDLE: u64 = 90;
/// The share of a span, in percent, that a thread waits at least where it shares a CPU.
const WAITS: u64 = 20;
/// The share of a span, in percent, that it runs at least.
const RUNS: u64 = 10;

/// Whether a CPU idled all the time but for a little.
pub(crate) fn idled(cpu: &CpuUse, span: Nanos) -> bool {
    cpu.idle >= span.0 / 100 * IDLE
}

/// Threads of the group that run and wait on one claimed CPU while another one idles. The scheduler
/// does not balance CPUs that were isolated at boot. A program that has bound some of its threads
/// to one CPU itself is no fault; all of its threads on one CPU are.
pub(crate) fn stacked(
    cpus: &CpuSet,
    group: usize,
    threads: &[Thread],
    uses: &BTreeMap<CpuId, CpuUse>,
    span: Nanos,
) -> Option<Fault> {
    let idles = |cpu: &CpuId| uses.get(cpu).is_some_and(|used| idled(used, span));
    let own: Vec<&Thread> = threads
        .iter()
        .filter(|t| !t.exempt && t.groups.contains(&group))
        .collect();
    let all_bound = own
        .iter()
        .all(|t| t.cpus.len() == 1 && t.cpus == own[0].cpus);
    let least = |percent: u64| span.0 / 100 * percent;
    for cpu in cpus.iter().filter(|cpu| !idles(cpu)) {
        let sharing = own.iter().filter(|t| {
            let spent = t.spent.unwrap_or_default();
            let competes = spent.waited >= least(WAITS) && spent.ran >= least(RUNS);
            competes && t.last_cpu == Some(cpu)
        });
        let count = sharing.clone().count();
        if count < 2 {
            continue;
        }
        let can_move = |idle: &CpuId| all_bound || sharing.clone().any(|t| t.cpus.contains(*idle));
        if let Some(idle) = cpus.iter().filter(idles).find(can_move) {
            return Some(Fault::Stacked {
                cpu,
                threads: u32::try_from(count).unwrap_or(u32::MAX),
                idle,
            });
        }
    }
    None
}

/// The share of one CPU, in percent, that others may use before it counts: the kernel counts busy
/// time in ticks.
const OTHERS: u64 = 5;
/// As much more for each further CPU.
const FURTHER: u64 = 1;

/// What others than the group used of its CPUs. `group` is what the group used by its cgroups'
/// account, wherever it ran; `exempt` what the kernel's threads and Quell used that may run there.
/// A CPU without an entry in `uses` counts nothing.
///
/// The kernel measures idle time and samples busy time. The lower of the two results counts.
pub(crate) fn used(
    cpus: &CpuSet,
    uses: &BTreeMap<CpuId, CpuUse>,
    group: Nanos,
    exempt: Nanos,
    span: Nanos,
) -> Option<Fault> {
    let busy = |cpu: CpuId| {
        let used = uses.get(&cpu)?;
        let not_idle = span.0.saturating_sub(used.idle).saturating_sub(used.other);
        Some(used.busy.min(not_idle))
    };
    let busy: u64 = cpus.iter().filter_map(busy).sum();
    let others = busy.saturating_sub(group.0).saturating_sub(exempt.0);
    let further = (cpus.len() as u64).saturating_sub(1);
    let allowed = span.0 / 100 * (OTHERS + FURTHER * further);
    (others > allowed).then(|| Fault::Used {
        cpus: cpus.clone(),
        others: Nanos(others),
        span,
    })
}

#[cfg(test)]
#[path = "alone_tests.rs"]
mod tests;
