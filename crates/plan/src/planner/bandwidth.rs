//! Limits of memory bandwidth: what holds each of them, its budgets, and what is promised.

use quell_control::config::{Meter, Regulation};
use quell_policy::{BandwidthMechanism, Group, Permission, Role};
use quell_types::ids::StepId;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::options::Split;
use quell_types::refusal::{Cause, Remedy};
use quell_types::units::{Lines, Nanos, Rate, Share};

use crate::inventory::{Measured, MeterKind};
use crate::plan::{Setting, Step};

use super::brake::{self, regulator};
use super::caps::{Limit, Limited};
use super::deadline;
use super::directions;
use super::draft::Draft;
use super::mba;
use super::period;
use super::pooling;
use super::quota;
use super::rates;
use super::reserves::{fit, judge_reserves, spare_of};
use super::wanted::{Budget, LEAST, Wanted, Worth, about};
use super::words::directions::{MAY_GO_UNCOUNTED, leaves_open};
use super::words::{bandwidth as words, on};

/// Below this period a sleep costs more than 2 us above the bare counter (bench `below_budget`).
const DEAR_SLEEP: Nanos = Nanos::millis(1);

pub(super) fn plan(draft: &mut Draft<'_>) {
    let policy = draft.policy;
    let rates = rates::read(draft);
    fit(draft, &rates);
    let spare = spare_of(draft, &rates);
    let budgets: Vec<_> = policy
        .groups
        .iter()
        .map(|(name, group)| pooling::budget(policy, name, group, &rates, spare.as_deref()))
        .collect();
    let neighbours = budgets.iter().flatten().filter(|wanted| {
        let of = policy.groups.get(&wanted.group);
        of.is_some_and(|group| group.role != Role::Critical)
    });
    let together = Rate(neighbours.map(|wanted| wanted.rate.0).sum());
    let (period, why) = period::period(draft, together);
    draft.period = pooled_period(draft, budgets.iter().flatten(), period);
    let mut limited: Vec<Limited> = Vec::new();
    for ((name, group), wanted) in policy.groups.iter().zip(budgets) {
        if let Some(share) = group.limit.cpu_time {
            quota::cpu_time(draft, name, share);
        }
        limited.extend(wanted.and_then(|wanted| limit(draft, group, wanted)));
    }
    rest_allowed(draft);
    let regulated = |step: &Step| matches!(step.set, Setting::Regulate(_));
    if draft.steps.iter().any(regulated) {
        draft.notes.extend(why);
    }
    pooling::notes(draft);
    judge_reserves(draft, &rates, &limited);
    deadline::plan(draft, &rates, &limited);
}

/// Budgets in one pool share one period: the longest that any of them needs.
fn pooled_period<'w>(
    draft: &mut Draft<'_>,
    budgets: impl Iterator<Item = &'w Wanted>,
    period: Nanos,
) -> Nanos {
    let counted = !matches!(draft.machine.means.meter, MeterKind::Time);
    let Some(measured) = draft.machine.measured.as_ref().filter(|_| !counted) else {
        return period;
    };
    let needed = budgets
        .filter(|wanted| {
            wanted.budget != Budget::Reserve
                && pooling::is_pooled(&draft.policy.regulator, wanted.budget)
        })
        .filter_map(|wanted| {
            let cpus = draft.division.of(&wanted.group).cpus.len().max(1) as u64;
            let share = Share::ratio(wanted.rate.0 / cpus, measured.peak_cpu.0);
            period::holding(draft, share, period)
        })
        .max();
    let held = needed.unwrap_or(period);
    if held > period {
        draft.notes.push(words::longer_for_the_pool(held, period));
    }
    held
}

/// Refuses to throttle unmatched tasks. They are in no cgroup of Quell, and a limit concerns a
/// cgroup.
fn rest_allowed(draft: &mut Draft<'_>) {
    let allowed = draft.policy.rest.allow.contains(&Permission::Throttle);
    // One reason is enough, so earlier refusals suppress this one.
    if allowed && !draft.division.rest.is_empty() && draft.refusals.is_empty() {
        let remedies = [
            Remedy::leave_out("rest.allow"),
            Remedy::from("match the tasks that must be limited in a group of their own"),
        ];
        draft.refuse_for(
            Cause::NotBuilt,
            "rest.allow",
            words::REST_IS_NO_GROUP,
            remedies,
        );
    }
}

/// The remedy that adds a permission to a best-effort group. Groups of other roles have no
/// permissions.
pub(super) fn allowing(name: &str, group: &Group, what: Permission) -> Option<Remedy> {
    let all = Permission::ALL;
    let named = all.iter().filter(|p| **p == what || group.allows(**p));
    let named: Vec<String> = named.map(|p| format!("\"{}\"", p.name())).collect();
    let list = format!("[{}]", named.join(", "));
    (group.role == Role::BestEffort).then(|| Remedy::set(format!("group.{name}.allow"), list))
}

/// Whether the group may be limited. If not, it is refused where the policy asked for it.
fn permitted(draft: &mut Draft<'_>, group: &Group, wanted: &Wanted) -> bool {
    // `strict` permits to stop a group that has drawn its reserve. A group without a cap is never
    // stopped.
    let allowed = match wanted.budget {
        Budget::Limit | Budget::Spare => group.allows(Permission::Throttle),
        Budget::Strict | Budget::Reserve => true,
    };
    let permitted = allowed && group.role != Role::Exempt;
    if !permitted && (wanted.budget == Budget::Limit || group.role == Role::BestEffort) {
        let allow = allowing(&wanted.group, group, Permission::Throttle);
        let remedies: Vec<Remedy> = allow
            .into_iter()
            .chain([wanted.without(draft.policy)])
            .collect();
        draft.refuse(
            wanted.key(),
            words::may_not_be_throttled(group.role.name()),
            remedies,
        );
    }
    permitted
}

/// Limits a group. `None`: it is not limited, or other groups' reserves cannot rest on its limit.
fn limit(draft: &mut Draft<'_>, group: &Group, wanted: Wanted) -> Option<Limited> {
    let mechanism = draft.policy.mechanisms.bandwidth;
    if !permitted(draft, group, &wanted) {
        return None;
    }
    let directions = wanted.apart.is_some();
    if directions && !directions::possible(draft, group, &wanted) {
        return None;
    }
    if !directions && mechanism == BandwidthMechanism::Mba {
        return mba::limit(draft, &wanted);
    }
    let limit = sized(draft, group, wanted)?;
    if !directions && limit.binding().next().is_none() {
        let peak = draft.figure(limit.peak);
        draft.notes.push(words::needs_no_step(&limit, &peak));
        let worth = Worth::plain(Level::Estimated);
        promise(draft, &limit, None, &worth);
        return Some(Limited::of(limit, None, worth));
    }
    match holder(draft, group, &limit)? {
        Holder::Quota(by) => quota::quota(draft, limit, &by),
        Holder::Brake(by) => regulate(draft, limit, &by),
    }
}

/// The limit on the CPUs of its group; refused where the rates are not known.
fn sized(draft: &mut Draft<'_>, group: &Group, mut wanted: Wanted) -> Option<Limit> {
    let Some(measured) = draft.machine.measured.as_ref() else {
        let remedy = Remedy::command("quell doctor --deep");
        draft.refuse(wanted.key(), words::UNMEASURED_PEAK, remedy);
        return None;
    };
    let cpus = draft.division.of(&wanted.group).cpus.clone();
    if cpus.is_empty() {
        // Its CPUs have been refused already.
        return None;
    }
    let moves = deadline::moves(draft.policy, group);
    if moves {
        // A budget above what its CPUs can draw would move without an effect.
        let reach = measured.peak_cpu.0.saturating_mul(cpus.len() as u64);
        wanted.rate = wanted.rate.min(Rate(reach));
    }
    let pooled = pooling::is_pooled(&draft.policy.regulator, wanted.budget);
    Some(Limit::on(wanted, cpus, measured, moves || pooled))
}

/// What holds a limit, with the reason for the choice.
enum Holder {
    Brake(ByBrake),
    Quota(quota::ByQuota),
}

struct ByBrake {
    meter: Meter,
    why: &'static str,
}

/// Chooses between the CPU-time quota and the brake. `None`: refused, since neither can hold it.
fn holder(draft: &mut Draft<'_>, group: &Group, limit: &Limit) -> Option<Holder> {
    let wanted = &limit.wanted;
    let why = match regulator(draft, group, wanted) {
        Ok(meter) => {
            return Some(match quota::is_enough(draft, wanted, meter) {
                Ok(period) => Holder::Quota(quota::ByQuota {
                    period,
                    why: words::QUOTA_FIRST.to_owned(),
                }),
                Err(why) => Holder::Brake(ByBrake { meter, why }),
            });
        }
        Err(why) => why,
    };
    if pooling::is_pooled(&draft.policy.regulator, wanted.budget) {
        let keys = ["regulator.reclaim", "regulator.after"].map(str::to_owned);
        let remedy = Remedy::LeaveOut { keys: keys.into() };
        let cause = draft.lack(Mechanism::Bandwidth);
        draft.refuse_for(cause, wanted.key(), words::cannot_be_pooled(&why), remedy);
        return None;
    }
    if draft.policy.mechanisms.bandwidth.insists() {
        let remedy = Remedy::set_text("mechanisms.bandwidth", "any");
        draft.refuse_lacking(Mechanism::Bandwidth, wanted.key(), why, remedy);
        return None;
    }
    Some(Holder::Quota(quota::ByQuota {
        period: quota::instead(draft),
        why: words::no_brake(&why),
    }))
}

/// Holds the budgets of a limit with brakes. `None` where they are too small, or not a cap.
fn regulate(draft: &mut Draft<'_>, limit: Limit, by: &ByBrake) -> Option<Limited> {
    let wanted = &limit.wanted;
    let period = held_period(draft, &limit, by.meter)?;
    if too_small(draft, &limit, period) {
        return None;
    }
    let mut worth = worth(draft, by.meter, &limit);
    let (mut step, mut pooled) = (None, false);
    if let Some(regulation) = regulation(draft, &limit, by.meter, period) {
        let peak = draft.figure(limit.peak);
        let because = words::because(&limit, &regulation, &peak, by.why);
        let pooling = regulation.pooling.as_ref();
        worth.weakest = worth.weakest.or_else(|| pooling::weakest(pooling));
        pooled = pooling.is_some();
        step = Some(brake::regulate(draft, &wanted.group, regulation, because));
    }
    if wanted.budget == Budget::Reserve {
        // This limits nothing, so other groups' reserves cannot rest on it.
        return None;
    }
    if period < DEAR_SLEEP && by.meter == Meter::Time {
        draft.notes.push(words::dear_sleep(&wanted.group, period));
    }
    if pooled {
        draft
            .notes
            .push(words::draws_more(&wanted.group, wanted.rate));
    } else {
        promise(draft, &limit, step, &worth);
    }
    let open = limit.open();
    if let Some(open) = open {
        // Other groups' reserves rest on this: a direction that is left open bounds nothing.
        worth = Worth::of(Level::None, leaves_open(open));
    }
    let done = Limited::of(limit, step, worth);
    // The hardware knows no directions: a limit of one would also hold the other.
    if open.is_none() && draft.policy.mechanisms.bandwidth == BandwidthMechanism::MbaAndRegulator {
        mba::beside(draft, &done);
    }
    Some(done)
}

/// The budgets of a period, as the brakes get them. `None` where no budget is held.
fn regulation(draft: &Draft<'_>, limit: &Limit, meter: Meter, period: Nanos) -> Option<Regulation> {
    let keys = &draft.policy.regulator;
    let wanted = &limit.wanted;
    let (meter, budget) = limit.counted(meter, period)?;
    let split = match limit.cpus.len() {
        1 => Split::Even,
        _ if wanted.apart.is_some() => Split::Even,
        _ => keys.split,
    };
    Some(Regulation {
        cpus: limit.cpus.clone(),
        budget,
        period,
        meter,
        peak: limit.peak,
        pooling: pooling::pooling(keys, wanted.budget, meter, limit.peak),
        split,
        least: match split {
            Split::Even => Lines(0),
            Split::Demand => Lines::at(limit.peak.part(LEAST), period).min(budget),
        },
    })
}

/// Promises what a step holds of a limit, and the bounds that its CPUs cannot exceed.
fn promise(draft: &mut Draft<'_>, limit: &Limit, by: Option<StepId>, worth: &Worth) {
    for cap in &limit.caps {
        let worth = if cap.binds {
            worth.clone()
        } else {
            let why = words::its_own_bound(cap, draft.known(), limit.peak);
            Worth::of(Level::Estimated, why)
        };
        let by = by.filter(|_| cap.binds);
        draft.promise(&limit.wanted.group, cap.promise(), worth, by);
    }
}

/// What a limit that this meter holds is worth.
fn worth(draft: &Draft<'_>, meter: Meter, limit: &Limit) -> Worth {
    let mut worth = match (meter, &draft.machine.means.meter) {
        (Meter::Time, _) => Worth::of(Level::Estimated, words::TIME_IS_A_BOUND),
        (_, MeterKind::Hardware { .. }) if limit.wanted.apart.is_some() => Worth {
            level: Level::Regulated,
            weakest: draft
                .machine
                .simulated
                .is_none()
                .then(|| MAY_GO_UNCOUNTED.to_owned()),
        },
        (_, MeterKind::Hardware { fills_only, .. }) => {
            let unseen = fills_only.intersection(&limit.cpus);
            match unseen.is_empty() {
                true => Worth::plain(Level::Regulated),
                false => Worth::of(Level::Estimated, words::fills_only(&on(&unseen))),
            }
        }
        _ => Worth::plain(Level::Regulated),
    };
    let measured = draft.machine.measured.as_ref();
    if let Some(doubt) = measured.and_then(Measured::doubt) {
        let why = worth.weakest.map(|why| format!("{why}; {doubt}"));
        worth = Worth::of(Level::Estimated, why.unwrap_or(doubt));
    }
    worth
}

/// Refuses budgets of less than a line. Returns whether there was one.
fn too_small(draft: &mut Draft<'_>, limit: &Limit, period: Nanos) -> bool {
    let (wanted, cpus) = (&limit.wanted, limit.cpus.len());
    let mut small = limit
        .binding()
        .filter(|cap| Lines::at(cap.each, period) == Lines(0))
        .peekable();
    let refused = small.peek().is_some();
    for cap in small {
        let raised = quota::rounded_up(draft, cpus, wanted.rate);
        let remedy = wanted.at(raised, draft.policy);
        let why = words::less_than_a_line(cap, cpus, period);
        draft.refuse_by_rates(wanted, cap.rate, why, remedy);
    }
    refused
}

/// The period with which a budget can be held. Adds a note if it is not the wanted one. `None`:
/// refused.
fn held_period(draft: &mut Draft<'_>, limit: &Limit, meter: Meter) -> Option<Nanos> {
    let (wanted, period) = (&limit.wanted, draft.period);
    if wanted.budget == Budget::Reserve || meter != Meter::Time {
        return Some(period);
    }
    let share = limit.share();
    let Some(held) = period::holding(draft, share, period) else {
        let raised = quota::rounded_up(draft, limit.cpus.len(), wanted.rate);
        let remedies = [
            wanted.at(raised, draft.policy),
            Remedy::from("run the group on fewer CPUs"),
        ];
        let why = words::no_period(wanted.rate, about(share));
        draft.refuse_by_rates(wanted, wanted.rate, why, remedies);
        return None;
    };
    if held > period {
        draft
            .notes
            .push(words::longer(&wanted.group, held, period, about(share)));
    }
    Some(held)
}
