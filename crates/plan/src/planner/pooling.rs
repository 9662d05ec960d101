//! Budgets that go together: what each group's budget is, and whether what it does not draw is of use to others.
//!
//! A limit that was written is a limit: it is held by itself, and nothing is added to it. What the reserves leave to
//! the best-effort groups, and with `strict` the reserves themselves, are budgets that can be pooled (MemGuard's dynamic modes,
//! [`quell_control::pooled`]). A reserve that is no cap only gives: its CPUs are counted and never stopped.

use quell_control::config::Meter;
use quell_control::config::Pooling;
use quell_control::config::Regulation;
use quell_policy::{Adapt, Group, RegulatorKeys, Role};
use quell_types::cpuset::CpuSet;
use quell_types::options::After;
use quell_types::options::Split;
use quell_types::units::{Bytes, LINE_BYTES, Lines, Nanos, Rate, Share};

use crate::plan::Setting;

use super::cpus::on;
use super::draft::Draft;
use super::rates::resolve;
use super::wanted::{Budget, Wanted};

const QUANTUM: Bytes = Bytes(64 << 10);

/// Where CPU time is counted, each quantum is an alarm, an interrupt and two switches: what the CPU draws in this time is taken at least,
/// unless the policy says otherwise.
const QUANTUM_TIME: Nanos = Nanos::micros(100);

/// The weight of the newest period in MemGuard's own predictor.
const PREDICTOR: f64 = 0.5;

/// What a group's budget is to be, if it is to have one.
pub(super) fn budget(
    draft: &mut Draft<'_>,
    name: &str,
    group: &Group,
    spare: Option<&[Wanted]>,
) -> Option<Wanted> {
    if let Some(cap) = draft.policy.cap(group) {
        if group.limit.bandwidth.is_some() {
            return resolve(draft, name, "limit.bandwidth", cap);
        }
        let wanted = resolve(draft, name, "reserve.bandwidth", cap)?;
        let origin = format!("{}, which is its cap, too (strict)", wanted.origin);
        let budget = Budget::Strict;
        return Some(Wanted {
            budget,
            origin,
            ..wanted
        });
    }
    if let Some(wanted) = group.reserve.bandwidth
        && draft.policy.regulator.reclaim
        && group.role == Role::Critical
    {
        let wanted = resolve(draft, name, "reserve.bandwidth", wanted)?;
        let budget = Budget::Reserve;
        return Some(Wanted { budget, ..wanted });
    }
    spare?.iter().find(|w| w.group == *name).cloned()
}

/// Whether the budget is pooled.
pub(super) fn is_pooled(keys: &RegulatorKeys, budget: Budget) -> bool {
    (keys.reclaim || keys.after != After::Wait) && budget != Budget::Limit
}

/// How the budget is pooled, as the policy says.
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
        predictor: fraction(keys.predictor.unwrap_or(PREDICTOR)),
        quantum: given.unwrap_or(usual).max(Lines(1)),
        capped: budget != Budget::Reserve,
        headroom: budget == Budget::Reserve && keys.adapt == Adapt::Deadline,
    })
}

/// A weight between 0 and 1, as checked.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "between 0 and a million"
)]
fn fraction(weight: f64) -> Share {
    Share((weight.clamp(0.0, 1.0) * Share::WHOLE.0 as f64).round() as u64)
}

/// What the step does besides holding a budget, for its `because`.
pub(super) fn because(pooling: Option<&Pooling>, split: Split) -> String {
    let mut text = String::new();
    if split == Split::Demand {
        text.push_str("; then again and again by what each CPU draws");
    }
    let Some(pooling) = pooling else {
        return text;
    };
    if pooling.reclaim {
        let kib = pooling.quantum.0 * LINE_BYTES / 1024;
        text.push_str(&format!(
            "; what a CPU is predicted not to draw (newest period weighs {}) goes to the others, {kib} KiB at a time, and comes back \
             when it is needed",
            pooling.predictor
        ));
    }
    match pooling.after {
        After::Wait => {}
        After::Spare => {
            text.push_str("; once all budgets are spent all run on until the period ends")
        }
        After::Proportional => {
            text.push_str("; once all budgets are spent a new period begins at once");
        }
    }
    text
}

/// What a reserve that rests on a pooled budget is exposed to.
pub(super) fn weakest(pooling: Option<&Pooling>) -> Option<String> {
    pooling.filter(|p| p.reclaim).map(|_| {
        "a loop holds it, after the fact; what a group gave away may be in use for the rest of the period in which it wakes (a \
         counted miss)"
            .to_owned()
    })
}

/// Sharing that cannot begin, or that has nobody to give.
pub(super) fn notes(draft: &mut Draft<'_>) {
    let keys = &draft.policy.regulator;
    let pooled: Vec<&Regulation> = draft
        .steps
        .iter()
        .filter_map(|step| match &step.set {
            Setting::Regulate(regulation) => Some(regulation),
            _ => None,
        })
        .filter(|regulation| regulation.pooling.is_some())
        .collect();
    if let Some(one) = pooled.first() {
        let cpus = pooled
            .iter()
            .fold(CpuSet::new(), |all, r| all.union(&r.cpus));
        let idle = if pooled
            .iter()
            .all(|r| r.pooling.as_ref().is_some_and(|p| p.capped))
        {
            "idle or not"
        } else {
            "idle or not, the critical ones too"
        };
        let dear = if one.period < Nanos::millis(1) {
            "; at such a period that alone may take tens of percent of a CPU"
        } else {
            ""
        };
        draft.notes.push(format!(
            "the budgets of {} are pooled: each of these CPUs is interrupted at the start of every period ({}), {idle}{dear}",
            on(&cpus),
            one.period
        ));
    }
    let asked = keys.reclaim || keys.after != After::Wait;
    if asked && draft.refusals.is_empty() && pooled.is_empty() {
        draft.acts.push(
            "regulator.reclaim and regulator.after change nothing here: no group has a budget from reserves (limits that are written are \
             held as written)"
                .to_owned(),
        );
    } else if keys.after != After::Wait && !keys.reclaim {
        draft.notes.push(
            "without reclaim nothing beyond the budgets is shared while any regulated CPU has some of its own left, idle ones included"
                .to_owned(),
        );
    }
}
