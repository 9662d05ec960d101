//! Sentences about limits of memory bandwidth: budgets, brakes and the CPU-time quota.

use quell_control::config::Regulation;
use quell_types::cpuset::CpuSet;
use quell_types::options::Split;
use quell_types::units::{LINE_BYTES, Nanos, Rate, Share};

use super::super::caps::{Cap, Limit};
use super::super::wanted::{Budget, Wanted, about, rounded};
use super::{on, pooling};

/// Why the CPU-time quota comes first.
pub const QUOTA_FIRST: &str =
    "the least that is enough: CPU time is counted, and cpu.max needs no helper";
pub const UNMEASURED_PEAK: &str = "the peak rate of one CPU has not been measured on this machine";
pub const REST_IS_NO_GROUP: &str = "a limit counts and stops the tasks of its group only, and unmatched tasks are in no \
    group that could be regulated";
pub const TIME_IS_A_BOUND: &str = "the group's CPU time is counted at the peak rate: an upper bound; what other tasks do on \
    its CPUs is not counted";

sentences! {
    unmeasured_share(share: Share)
        "{share} of a rate that has not been measured on this machine";
    may_not_be_throttled(role: &str)
        "the group ({role}) may not be throttled";
    no_brake(why: &str)
        "no brake: {why}";
    cannot_be_pooled(why: &str)
        "its budget cannot be pooled: {why}";
    fills_only(on: &str)
        "the counters of {on} count the lines that come in, not those written back: a program that writes \
         may move twice the limit, and stores past the caches are not counted at all";
    less_than_a_line(cap: &Cap, cpus: usize, period: Nanos)
        "{cap} over {cpus} CPUs is less than one line of {LINE_BYTES} bytes per {period}";
    no_period(rate: Rate, share: Share)
        "{rate} is {share} of a CPU's time: no period of a second or less makes a budget of it that a brake can hold";
    longer(group: &str, held: Nanos, period: Nanos, share: Share)
        "group {group}: the period is {held} instead of {period}: {share} of {period} is less than five wake-ups of a brake";
    longer_for_the_pool(held: Nanos, period: Nanos)
        "the period of the pooled budgets is {held} instead of {period}: the smallest of them would be worth less than five \
         wake-ups of a brake";
    dear_sleep(group: &str, period: Nanos)
        "group {group}: at a period of {period}, counting costs a task each time that it goes to sleep: 18 us were measured \
         in a virtual machine, 2.5 of them the brake's";
    draws_more(group: &str, rate: Rate)
        "group {group} may draw more than {rate} while other CPUs leave budget unused, or once all budgets are used: so \
         nothing is promised about its limit";
    less_than_the_quota(rate: Rate, least: Share)
        "{rate} is less than {least} of one CPU's time, which is the least that cpu.max can hold (1 ms of every second)";
    as_cpu_time(wanted: &Wanted, why: &str)
        "limit {wanted}, as CPU time at the peak rate; {why}";
    a_whole_quota_at_once(period: Nanos)
        "CPU time stands for bytes, and a whole quota may run at once, every {period}";
    not_next_to_a_brake(group: &str)
        "group {group} stays in its own cgroup, and its tasks cannot be put next to a brake there";
    more_than_one_cgroup(group: &str)
        "group {group} matches a cgroup that exists and also tasks outside of it, and a brake can stop one cgroup only";
    stays_where_it_is(group: &str, why: &str)
        "group {group} stays in its own cgroup: {why}";
    /// A stopped group still disturbs the SMT sibling of its core: its brake spins there.
    shares_a_core(group: &str, cpus: &CpuSet, critical: &str)
        "group {group} is throttled on CPU {cpus}, SMT siblings of group {critical}: while it is stopped, its brake uses a \
         little of the shared core";
}

/// Of what a rate is a share. `cpus`: the group's CPUs, where it is not a share of all CPUs.
pub fn origin(share: Share, total: &str, cpus: Option<&CpuSet>) -> String {
    match cpus {
        Some(cpus) => format!(", {share} of the {total} that {} can draw", on(cpus)),
        None => format!(", {share} of the {total} that all CPUs can draw together"),
    }
}

pub fn needs_no_step(limit: &Limit, peak: &str) -> String {
    let (wanted, on) = (&limit.wanted, on(&limit.cpus));
    let group = &wanted.group;
    format!(
        "group {group}: the limit of {wanted} needs no step: {on} cannot draw more ({peak} for each CPU)"
    )
}

/// The promise for a budget that its CPUs cannot exceed.
pub fn its_own_bound(cap: &Cap, known: &str, peak: Rate) -> String {
    let each = match cap.direction {
        None => String::new(),
        Some(_) => format!(" ({} for each)", rounded(peak)),
    };
    format!("the {known} peak of its CPUs is its bound{each}")
}

/// The budgets of a step, and where they come from. `peak`: what one CPU draws.
pub fn because(limit: &Limit, held: &Regulation, peak: &str, why: &str) -> String {
    let (wanted, what) = (&limit.wanted, limit.wanted.budget.table());
    if wanted.apart.is_some() {
        return format!("{what} {}{}", by_direction(limit), wanted.origin);
    }
    let split = match held.split {
        Split::Even if limit.cpus.len() > 1 => ", split evenly",
        Split::Even => "",
        Split::Demand => ", split evenly at first",
    };
    let by = match wanted.budget {
        Budget::Reserve => "; it is counted and never stopped".to_owned(),
        _ => format!("; by the brake, since {why}"),
    };
    let (share, pooled) = (about(limit.share()), pooling::because(held));
    format!("{what} {wanted}{split}: {share} of one CPU's peak ({peak}){by}{pooled}")
}

fn by_direction(limit: &Limit) -> String {
    let budget = |cap: &Cap| {
        if !cap.binds {
            return format!("{cap} (no budget: its CPUs cannot)");
        }
        let (share, peak) = (about(cap.share()), rounded(cap.peak));
        format!("{cap} ({share} of the {peak} that one CPU can)")
    };
    let each: Vec<String> = limit.caps.iter().map(budget).collect();
    let mut text = each.join(", and ");
    if limit.binding().count() > 1 {
        text.push_str("; whichever is used up first stops the group on that CPU");
    }
    if limit.cpus.len() > 1 {
        text.push_str("; split evenly, since budgets of one direction are not yet split by demand");
    }
    text
}

/// Why neither brake nor quota can be had.
pub fn neither(brake: &str, quota: &str) -> String {
    if brake == quota {
        return format!("neither the regulator nor the CPU-time quota can hold it: {brake}");
    }
    format!("the regulator cannot hold it ({brake}), nor can the CPU-time quota ({quota})")
}
