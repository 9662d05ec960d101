//! Which processes run together (`[scheduler]`): one step for all groups. It promises nothing by
//! itself.

use quell_control::config::{ProgramDemand, Scheduling};
use quell_policy::{Role, SchedulerKeys};
use quell_types::cpuset::CpuSet;
use quell_types::ids::GroupId;
use quell_types::mechanism::Mechanism;
use quell_types::options::SchedulerPolicy;
use quell_types::refusal::Remedy;
use quell_types::units::Nanos;

use crate::inventory::DemandSource;
use crate::plan::Setting;

use super::draft::Draft;
use super::windows::dispatchable;
use super::words::schedule as words;

const KEY: &str = "scheduler";

pub(super) fn plan(draft: &mut Draft<'_>) {
    let policy = draft.policy;
    let Some(keys) = &policy.scheduler else {
        return;
    };
    if let Some(why) = draft.unavailable(Mechanism::Placement) {
        draft.refuse_lacking(Mechanism::Placement, KEY, why, [Remedy::leave_out(KEY)]);
        return;
    }
    let by = Scheduling {
        policy: keys.policy,
        quantum: keys.quantum,
        bound: keys.bound,
        cores: Vec::new(),
        groups: [].into(),
        counted: false,
        sustainable: None,
        peak_cpu: None,
    };
    if draft.machine.means.demand == DemandSource::Counted {
        let set = Setting::Schedule(by);
        draft.step(None, Mechanism::Placement, set, words::AS_WRITTEN);
        return;
    }
    let refused = draft.refusals.len();
    let by = of_groups(draft, keys, by);
    if draft.refusals.len() > refused {
        return;
    }
    let by_what = match by.counted {
        true => words::BY_COUNTERS,
        false => words::BY_DECLARED_RATES,
    };
    draft.notes.push(by_what.to_owned());
    let wait = Nanos(by.quantum.0.saturating_mul(u64::from(by.bound)));
    draft.notes.push(words::waits(by.bound, wait));
    let set = Setting::Schedule(by);
    draft.step(None, Mechanism::Placement, set, words::THE_OTHERS_WAIT);
}

/// Completes the step for a machine where processes of some groups take turns: groups, their CPUs
/// and rates. Refuses what cannot be.
fn of_groups(draft: &mut Draft<'_>, keys: &SchedulerKeys, by: Scheduling) -> Scheduling {
    if by.policy.is_kernels() {
        let key = "scheduler.policy";
        let why = words::kernels_own(by.policy.name());
        draft.refuse(key, why, Remedy::leave_out(KEY));
        return by;
    }
    let groups = draft.policy.scheduled();
    if groups.is_empty() {
        let (key, why) = ("scheduler.groups", words::NO_GROUP);
        draft.refuse(key, why, may_be_frozen(draft));
        return by;
    }
    for name in &groups {
        dispatchable(draft, name, words::budgets_not_yet(name));
    }
    let cpus = cpus(draft, &groups);
    let cores = cores(draft, &cpus);
    let threads = cores.iter().map(CpuSet::len).max().unwrap_or(0);
    if cores.iter().any(|core| core.len() != threads) {
        draft.notes.push(words::CORES_DIFFER.to_owned());
    }
    let demands = groups
        .into_iter()
        .map(|name| (name.clone(), demand(draft, keys, name, threads)));
    let demands = demands.collect();
    let sustainable = draft.sustainable(&cpus);
    if by.policy == SchedulerPolicy::Fair && sustainable.is_none() {
        draft.notes.push(words::NO_RATE_OF_MEMORY.to_owned());
    }
    let measured = draft.machine.measured.as_ref();
    Scheduling {
        cores,
        groups: demands,
        counted: draft.machine.means.demand == DemandSource::ByProcess,
        sustainable,
        peak_cpu: measured.map(|m| m.peak_cpu),
        ..by
    }
}

/// The permission, for the first best-effort group; advice where there is none.
fn may_be_frozen(draft: &Draft<'_>) -> Remedy {
    match draft.policy.with_role(Role::BestEffort).next() {
        Some((name, _)) => Remedy::set(format!("group.{name}.allow"), "[\"freeze\"]"),
        None => Remedy::from("write a best-effort group with allow = [\"freeze\"]"),
    }
}

/// The CPUs that all groups run on, without those that share a core with a critical group's.
fn cpus(draft: &mut Draft<'_>, groups: &[&GroupId]) -> CpuSet {
    let of = |name: &str| draft.division.of(name).cpus.clone();
    let Some((first, rest)) = groups.split_first() else {
        return CpuSet::new();
    };
    let all = of(first);
    if let Some(other) = rest.iter().find(|name| of(name) != all) {
        let why = words::elsewhere(first, &all, other, &of(other));
        let key = format!("group.{other}.cpus");
        let remedy = format!("give both the same cpus, or leave {other} out of scheduler.groups");
        draft.refuse(key, why, Remedy::from(remedy));
        return all;
    }
    let critical = draft.policy.with_role(Role::Critical);
    let protected = critical.fold(CpuSet::new(), |sum, (name, _)| sum.union(&of(name)));
    let beside = draft.machine.cpus.iter().filter(|c| {
        let core = c.siblings.union(&CpuSet::one(c.id));
        !core.intersection(&protected).is_empty()
    });
    let beside: CpuSet = beside.map(|c| c.id).collect();
    let left = all.difference(&beside);
    if left.is_empty() {
        let remedy = "give the critical group smt = \"alone\", or fewer CPUs";
        draft.refuse(KEY, words::ALL_SHARE_A_CORE, Remedy::from(remedy));
    }
    left
}

/// The CPUs of each core, as far as they are among `cpus`.
fn cores(draft: &Draft<'_>, cpus: &CpuSet) -> Vec<CpuSet> {
    let mut cores: Vec<CpuSet> = Vec::new();
    for cpu in draft.machine.cpus.iter().filter(|c| cpus.contains(c.id)) {
        if cores.iter().any(|core| core.contains(cpu.id)) {
            continue;
        }
        let core = cpu.siblings.union(&CpuSet::one(cpu.id));
        cores.push(core.intersection(cpus));
    }
    cores
}

/// What a process of a group demands, as far as the policy goes by it. `threads` is the number of
/// CPUs of a core.
fn demand(
    draft: &mut Draft<'_>,
    keys: &SchedulerKeys,
    group: &GroupId,
    threads: usize,
) -> ProgramDemand {
    let written = keys.demand.get(group).copied().unwrap_or_default();
    let counted = draft.machine.means.demand == DemandSource::ByProcess;
    // Where each core has one CPU, nothing shares a core.
    let shares = keys.policy.reads_first_level() && threads > 1;
    let memory = keys.policy.reads_memory() && written.memory.is_none();
    let first_level = shares && written.first_level.is_none();
    let solos = draft.solos;
    let mut kept = ProgramDemand::default();
    match solos.get(group).map(|solo| (&solo.profile, &solo.demand)) {
        _ if counted || !(memory || first_level) => {}
        Some((profile, Ok(demand))) => {
            kept = *demand;
            draft.notes.push(words::of_profile(group, profile));
        }
        other => {
            let why_not = other.and_then(|(_, demand)| demand.as_ref().err());
            let why_not = why_not.map_or(words::NO_PROFILE, String::as_str);
            let mut want = |key: &str, example: &str, what: &str| {
                let key = format!("scheduler.demand.{group}.{key}");
                let why = words::not_declared(group, keys.policy.name(), what, why_not);
                let remedies = [
                    Remedy::set_text(key.clone(), example),
                    Remedy::set_text("scheduler.policy", SchedulerPolicy::Random.name()),
                    Remedy::command("quell profile -- PROGRAM"),
                ];
                draft.refuse(key, why, remedies);
            };
            if memory {
                want("memory", "1GB/s", "main memory");
            }
            if first_level {
                want("first-level", "10GB/s", "the first-level cache");
            }
        }
    }
    ProgramDemand {
        memory: written.memory.unwrap_or(kept.memory),
        first_level: written.first_level.unwrap_or(kept.first_level),
    }
}
