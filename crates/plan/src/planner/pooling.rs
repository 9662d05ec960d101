//! Pooled budgets: what each group's budget is, and whether other groups may use what it does not
//! draw.
//!
//! A limit that the policy states is held alone, and nothing is added to it. Other budgets can be
//! pooled (MemGuard's dynamic modes, [`quell_control::pooled`]): what the reserves leave to the
//! best-effort groups and, with `strict`, the reserves themselves. A reserve that is not a cap only
//! gives: its CPUs are counted and never stopped.

use quell_control::config::{Meter, Pooling, Regulation};
use quell_policy::{Adapt, Group, Policy, RegulatorKeys, Role};
use quell_types::cpuset::CpuSet;
use quell_types::options::After;
use quell_types::units::{Bytes, LINE_BYTES, Lines, Nanos, Rate, Share};

use crate::plan::Setting;

use super::draft::Draft;
use super::rates::Rates;
use super::wanted::{Budget, Wanted};
use super::words::{on, pooling as words};

const QUANTUM: Bytes = Bytes(64 << 10);

/// Where CPU time is counted, each quantum is an alarm, an interrupt and two switches. A quantum is
/// then at least what the CPU draws in this time, unless the policy states one.
const QUANTUM_TIME: Nanos = Nanos::micros(100);

/// The weight of the newest period in MemGuard's own predictor.
const PREDICTOR: f64 = 0.5;

/// What kind of budget a group is to have; `None`: none.
pub(super) fn budget(
    policy: &Policy,
    name: &str,
    group: &Group,
    rates: &Rates,
    spare: Option<&[Wanted]>,
) -> Option<Wanted> {
    if group.limit.bandwidth.is_some() {
        return rates.limit(name).cloned();
    }
    if policy.cap(group).is_some() {
        let reserve = rates.reserve(name)?.clone();
        return Some(Wanted {
            budget: Budget::Strict,
            origin: format!("{}, which is its cap, too (strict)", reserve.origin),
            ..reserve
        });
    }
    if group.reserve.bandwidth.is_some() && policy.regulator.reclaim && group.role == Role::Critical
    {
        return rates.reserve(name).cloned();
    }
    spare?.iter().find(|w| w.group == *name).cloned()
}

/// Whether such a budget is pooled.
pub(super) fn is_pooled(keys: &RegulatorKeys, budget: Budget) -> bool {
    (keys.reclaim || keys.after != After::Wait) && budget != Budget::Limit
}

/// How a budget is pooled, as the policy says; `None` where it is not.
pub(super) fn pooling(
    keys: &RegulatorKeys,
    budget: Budget,
    meter: Meter,
    peak: Rate,
) -> Option<Pooling> {
    let given = keys.quantum.map(|bytes| Lines(bytes.0 / LINE_BYTES));
    let usual = Lines(QUANTUM.0 / LINE_BYTES);
    let usual = match meter {
        Meter::Time => usual.max(Lines::at(peak, QUANTUM_TIME)),
        _ => usual,
    };
    is_pooled(keys, budget).then(|| Pooling {
        reclaim: keys.reclaim,
        after: keys.after,
        idle: keys.idle,
        predictor: Share::of(keys.predictor.unwrap_or(PREDICTOR)),
        quantum: given.unwrap_or(usual).max(Lines(1)),
        capped: budget != Budget::Reserve,
        headroom: budget == Budget::Reserve && keys.adapt == Adapt::Deadline,
    })
}

/// The weakest point of a reserve that rests on a pooled budget.
pub(super) fn weakest(pooling: Option<&Pooling>) -> Option<String> {
    let given = pooling.filter(|p| p.reclaim);
    given.map(|_| words::GIVEN_AWAY.to_owned())
}

/// Notes on sharing that cannot begin, or that has no group to give to.
pub(super) fn notes(draft: &mut Draft<'_>) {
    let keys = &draft.policy.regulator;
    let regulations = draft.steps.iter().filter_map(|step| match &step.set {
        Setting::Regulate(regulation) => Some(regulation),
        _ => None,
    });
    let pooled: Vec<(&Regulation, &Pooling)> = regulations
        .filter_map(|regulation| Some((regulation, regulation.pooling.as_ref()?)))
        .collect();
    if let Some((one, _)) = pooled.first() {
        let cpus = pooled.iter().map(|(r, _)| &r.cpus);
        let cpus = cpus.fold(CpuSet::new(), |all, cpus| all.union(cpus));
        let capped = pooled.iter().all(|(_, p)| p.capped);
        let note = words::interrupted(&on(&cpus), one.period, capped);
        draft.notes.push(note);
    }
    let asked = keys.reclaim || keys.after != After::Wait;
    if asked && draft.refusals.is_empty() && pooled.is_empty() {
        draft.acts.push(words::CHANGES_NOTHING.to_owned());
    } else if keys.after != After::Wait && !keys.reclaim && keys.idle.is_counted() {
        draft.notes.push(words::NOT_BEYOND_IDLE.to_owned());
    }
}
