//! The CPU-time quota (`cpu.max`). It holds limits of CPU time. It is also the first choice for a
//! limit of bandwidth where CPU time is what is counted.
//!
//! It stops the group and nothing else, does not spin, and gives unused time back. The brake is
//! better where bytes are counted, where each CPU has its own budget, where budgets are pooled, and
//! for periods below 5 ms.

use quell_control::config::Meter;
use quell_policy::Adapt;
use quell_types::ids::StepId;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::options::Split;
use quell_types::refusal::Remedy;
use quell_types::units::{Nanos, Rate, Share};

use crate::plan::{Promise, Setting};

use super::caps::{Limit, Limited};
use super::draft::Draft;
use super::period;
use super::wanted::{Budget, Wanted, Worth, about};
use super::words::bandwidth as words;

/// The period of a limit of CPU time: the kernel's default (sched-bwc.rst).
const USUAL: Nanos = Nanos::millis(100);

/// The period of a bandwidth limit that is held as CPU time. It is shorter, so that the burst of
/// one quota is shorter.
const FOR_BANDWIDTH: Nanos = Nanos::millis(20);

/// Shorter periods cost more than they give (`docs/results/2026-11-23-brake.md`).
const SHORTEST: Nanos = Nanos::millis(5);

/// The kernel accepts no quota below 1 ms and no period above 1 s. The least share follows.
const LEAST: Share = Share(1_000);

/// A unit of work should meet many bursts, not one or none.
const PER_DEADLINE: u64 = 10;

/// The quota's period where the quota is enough to hold a budget. Else the reason for the brake.
pub(super) fn is_enough(
    draft: &Draft<'_>,
    wanted: &Wanted,
    meter: Meter,
) -> Result<Nanos, &'static str> {
    let keys = &draft.policy.regulator;
    if draft.policy.mechanisms.bandwidth.insists() {
        return Err("the policy asks for the regulator");
    }
    if meter != Meter::Time {
        return Err("bytes are counted");
    }
    if wanted.budget != Budget::Limit {
        return Err("a reserve is for every period, not on average");
    }
    if keys.adapt == Adapt::Deadline {
        return Err("the budget moves with the targets");
    }
    if keys.split == Split::Even {
        return Err("each CPU has a budget of its own");
    }
    if keys.period.is_some_and(|period| period < SHORTEST) {
        return Err("the period is shorter than 5 ms");
    }
    let tenth = period::deadline(draft).map(|deadline| Nanos(deadline.0 / PER_DEADLINE));
    if tenth.is_some_and(|tenth| tenth < SHORTEST) {
        return Err("a deadline of less than 50 ms needs a shorter period");
    }
    if draft.unavailable(Mechanism::CpuMax).is_some() {
        return Err("no CPU-time quota can be had");
    }
    let period = keys.period.unwrap_or(FOR_BANDWIDTH);
    Ok(tenth.map_or(period, |tenth| period.min(tenth)))
}

/// Adds a limit of CPU time, or refuses it.
pub(super) fn cpu_time(draft: &mut Draft<'_>, name: &str, share: Share) {
    let key = format!("group.{name}.limit.cpu-time");
    if let Some(why) = draft.unavailable(Mechanism::CpuMax) {
        let instead = Remedy::leave_out(key.clone());
        draft.refuse_lacking(Mechanism::CpuMax, key, why, instead);
        return;
    }
    let because = "limit.cpu-time: the kernel's own quota";
    let id = step(draft, name, (share, USUAL), because);
    let promise = Promise::LimitCpuTime { share };
    draft.promise(name, promise, Worth::plain(Level::Enforced), [id]);
}

/// A bandwidth limit that the quota is to hold: its period, and why the quota holds it.
pub(super) struct ByQuota {
    pub(super) period: Nanos,
    pub(super) why: String,
}

/// Holds a bandwidth limit by the CPU-time quota, over all CPUs of the group together.
pub(super) fn quota(draft: &mut Draft<'_>, limit: Limit, by: &ByQuota) -> Option<Limited> {
    let (wanted, cpus) = (&limit.wanted, limit.cpus.len());
    if let Some(not) = draft.unavailable(Mechanism::CpuMax) {
        let why = words::neither(&by.why, &not);
        let key = format!("group.{}.limit.bandwidth", wanted.group);
        let instead = wanted.without(draft.policy);
        draft.refuse_lacking(Mechanism::CpuMax, key, why, instead);
        return None;
    }
    // Rounded as it is printed.
    let share = about(Share(limit.share().0.saturating_mul(cpus as u64)));
    if share < LEAST {
        let raised = rounded_up(draft, cpus, wanted.rate);
        let remedy = wanted.at(raised, draft.policy);
        let why = words::less_than_the_quota(wanted.rate, LEAST);
        draft.refuse_by_rates(wanted, wanted.rate, why, remedy);
        return None;
    }
    let period = by.period;
    let because = words::as_cpu_time(wanted, &by.why);
    let id = step(draft, &wanted.group, (share, period), &because);
    let worth = Worth::of(Level::Estimated, words::a_whole_quota_at_once(period));
    let rate = wanted.rate;
    let promise = Promise::LimitBandwidth { rate };
    draft.promise(&wanted.group, promise, worth.clone(), [id]);
    Some(Limited::of(limit, Some(id), worth))
}

/// The step of a quota. A group has one, which holds all its limits by the smallest share and the
/// shortest period. A share of each 20 ms is the same share of each 100 ms.
fn step(draft: &mut Draft<'_>, name: &str, quota: (Share, Nanos), because: &str) -> StepId {
    let of_group = draft
        .steps
        .iter_mut()
        .filter(|s| s.group.as_deref() == Some(name));
    for step in of_group {
        if let Setting::CpuMax { share, period } = &mut step.set {
            (*share, *period) = ((*share).min(quota.0), (*period).min(quota.1));
            step.because = format!("{}; {because}", step.because);
            return step.id;
        }
    }
    let (share, period) = quota;
    let set = Setting::CpuMax { share, period };
    draft.step(Some(name), Mechanism::CpuMax, set, because)
}

/// The lowest rate, in whole MB/s, that the quota can hold.
pub(super) fn rounded_up(draft: &Draft<'_>, cpus: usize, asked: Rate) -> Rate {
    let peak = draft.machine.measured.as_ref().map(|m| m.peak_cpu);
    let least = peak.map_or(asked, |peak| peak.part(LEAST));
    Rate(least.0.saturating_add(cpus as u64).div_ceil(1_000_000) * 1_000_000)
}

/// The quota's period where only the quota can hold a bandwidth limit.
pub(super) fn instead(draft: &Draft<'_>) -> Nanos {
    let stated = draft.policy.regulator.period;
    stated.unwrap_or(FOR_BANDWIDTH).max(SHORTEST)
}
