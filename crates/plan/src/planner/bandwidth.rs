//! Rates into budgets: limits, by the regulator or the CPU-time quota.

use quell_control::config::Meter;
use quell_control::config::Regulation;
use quell_policy::{Bandwidth, BandwidthMechanism, Group, Permission, Role};
use quell_types::cpuset::CpuSet;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::options::Split;
use quell_types::refusal::{Cause, Remedy};
use quell_types::units::{LINE_BYTES, Lines, Nanos, Rate, Share};

use crate::inventory::{Measured, MeterKind};
use crate::plan::{Setting, Step};

use super::apart;
use super::brake::{self, regulator};
use super::cpus::on;
use super::deadline;
use super::draft::Draft;
use super::mba;
use super::period;
use super::pooling;
use super::quota::{self, cpu_time, quota};
use super::reserves::{judge_reserves, reserves, spare_of};
use super::wanted::{Budget, LEAST, Limited, Wanted, about, limit_held};

/// Why the CPU-time quota comes first.
const QUOTA_FIRST: &str =
    "the least that is enough: CPU time is counted, and cpu.max needs no helper";

/// Below this period a sleep costs more than 2 us above the bare counter (bench `below_budget`).
const DEAR_SLEEP: Nanos = Nanos::millis(1);

pub(super) fn plan(draft: &mut Draft<'_>) {
    let policy = draft.policy;
    let mut limited: Vec<Limited> = Vec::new();
    let reserved = reserves(draft);
    let spare = spare_of(draft, &reserved);
    let budgets: Vec<_> = policy
        .groups
        .iter()
        .map(|(name, group)| pooling::budget(draft, name, group, spare.as_deref()))
        .collect();
    let neighbours = budgets.iter().flatten().filter(|wanted| {
        let of = policy.groups.get(&wanted.group);
        of.is_some_and(|group| group.role != Role::Critical)
    });
    let together = Rate(neighbours.map(|wanted| wanted.rate.0).sum());
    let (period, why) = period::period(draft, together);
    draft.period = pooled_period(draft, budgets.iter().flatten(), period);
    for ((name, group), wanted) in policy.groups.iter().zip(budgets) {
        if let Some(share) = group.limit.cpu_time {
            cpu_time(draft, name, share);
        }
        if let Some(wanted) = wanted
            && let Some(done) = limit(draft, name, group, &wanted, group.limit.bandwidth)
        {
            limited.push(done);
        }
    }
    rest_allowed(draft);
    let regulated = |step: &Step| matches!(step.set, Setting::Regulate(_));
    if draft.steps.iter().any(regulated) {
        draft.notes.extend(why);
    }
    pooling::notes(draft);
    judge_reserves(draft, &reserved, &limited);
    deadline::plan(draft, &reserved, &limited);
}

/// Budgets in one pool have one period: the longest that any of them needs.
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
        draft.notes.push(format!(
            "the period of the pooled budgets is {held} instead of {period}: the smallest of them would be worth less than five \
             wake-ups of a brake"
        ));
    }
    held
}

/// Unmatched tasks are in no cgroup of ours, and a limit counts and stops the tasks of a cgroup.
fn rest_allowed(draft: &mut Draft<'_>) {
    let allowed = draft.policy.rest.allow.contains(&Permission::Throttle);
    // One reason is enough.
    if allowed && !draft.division.rest.is_empty() && draft.refusals.is_empty() {
        draft.refuse_for(
            Cause::NotBuilt,
            "rest.allow",
            "a limit counts and stops the tasks of its group only, and unmatched tasks are in no group that could be \
             regulated",
            [
                Remedy::leave_out("rest.allow"),
                Remedy::from("match the tasks that must be limited in a group of their own"),
            ],
        );
    }
}

/// Adds a permission to what a best-effort group allows. A group of another role is asked nothing.
pub(super) fn allowing(name: &str, group: &Group, what: Permission) -> Option<Remedy> {
    let all = Permission::ALL;
    let named = all.iter().filter(|p| **p == what || group.allows(**p));
    let named: Vec<String> = named.map(|p| format!("\"{}\"", p.name())).collect();
    let list = format!("[{}]", named.join(", "));
    (group.role == Role::BestEffort).then(|| Remedy::set(format!("group.{name}.allow"), list))
}

fn limit(
    draft: &mut Draft<'_>,
    name: &str,
    group: &Group,
    wanted: &Wanted,
    explicit: Option<Bandwidth>,
) -> Option<Limited> {
    let mechanism = draft.policy.mechanisms.bandwidth;
    let rate = wanted.rate;
    let key = wanted.key();
    // `strict` is the permission to stop whoever has drawn its reserve, and who has no cap is never stopped.
    let allowed = match wanted.budget {
        Budget::Limit | Budget::Spare => group.allows(Permission::Throttle),
        Budget::Strict | Budget::Reserve => true,
    };
    if group.role == Role::Exempt || !allowed {
        if explicit.is_some() || group.role == Role::BestEffort {
            let remedies = [
                allowing(name, group, Permission::Throttle),
                Some(wanted.without(draft.policy)),
            ];
            let remedies: Vec<Remedy> = remedies.into_iter().flatten().collect();
            draft.refuse(
                key,
                format!("the group ({}) may not be throttled", group.role.name()),
                remedies,
            );
        }
        return None;
    }
    if let Some(both) = wanted.apart {
        return apart::limit(draft, name, group, wanted, both);
    }
    if mechanism == BandwidthMechanism::Mba {
        return mba::limit(draft, name, wanted, explicit);
    }
    let cpus = draft.division.of(name).cpus.clone();
    let Some(peak) = draft.machine.measured.as_ref().map(|m| m.peak_cpu) else {
        draft.refuse(
            key,
            "the peak rate of one CPU has not been measured on this machine",
            Remedy::command("quell doctor --deep"),
        );
        return None;
    };
    if cpus.is_empty() {
        // Refused for its CPUs already.
        return None;
    }
    let moves = deadline::moves(draft.policy, group);
    // More than its CPUs draw would be a budget that moves without an effect.
    let reach = peak.0.saturating_mul(cpus.len() as u64);
    let rate = if moves { rate.min(Rate(reach)) } else { rate };
    let wanted = &Wanted {
        rate,
        ..wanted.clone()
    };
    let each = Rate(rate.0 / cpus.len() as u64);
    let share = Share::ratio(each.0, peak.0);
    let pooled = pooling::is_pooled(&draft.policy.regulator, wanted.budget);
    if share >= Share::WHOLE && !pooled && !moves {
        draft.notes.push(format!(
            "group {name}: the limit of {rate}{} needs no step: {} cannot draw more ({} for each CPU)",
            wanted.origin,
            on(&cpus),
            draft.figure(peak)
        ));
        draft.promises.push(limit_held(
            name,
            rate,
            Level::Estimated,
            None,
            Some(format!(
                "the {} peak of its CPUs is its bound",
                draft.known()
            )),
        ));
        return Some(Limited {
            group: name.to_owned(),
            rate,
            level: Level::Estimated,
            by: None,
            weakest: None,
            cpus,
        });
    }
    let held = match regulator(draft, name, group, wanted.budget) {
        Ok(meter) => match quota::is_enough(draft, wanted, meter) {
            Ok(period) => Err((period, QUOTA_FIRST.to_owned())),
            Err(why) => Ok((meter, why)),
        },
        Err(why) if pooled => {
            draft.refuse_for(
                draft.lack(Mechanism::Bandwidth),
                key,
                format!("its budget cannot be pooled: {why}"),
                Remedy::LeaveOut {
                    keys: vec!["regulator.reclaim".to_owned(), "regulator.after".to_owned()],
                },
            );
            return None;
        }
        Err(why) if mechanism.insists() => {
            let remedy = Remedy::set_text("mechanisms.bandwidth", "any");
            draft.refuse_lacking(Mechanism::Bandwidth, key, why, remedy);
            return None;
        }
        Err(why) => Err((quota::instead(draft), format!("no brake: {why}"))),
    };
    let (meter, why) = match held {
        Ok(held) => held,
        Err((period, why)) => return quota(draft, name, wanted, share, &cpus, (period, &why)),
    };
    let done = regulate(draft, name, wanted, each, peak, share, (meter, why), cpus)?;
    if mechanism == BandwidthMechanism::MbaAndRegulator {
        mba::beside(draft, name, wanted, &done);
    }
    Some(done)
}

#[expect(
    clippy::too_many_arguments,
    reason = "the arithmetic of one step, each value named once"
)]
fn regulate(
    draft: &mut Draft<'_>,
    name: &str,
    wanted: &Wanted,
    each: Rate,
    peak: Rate,
    share: Share,
    (meter, why): (Meter, &str),
    cpus: CpuSet,
) -> Option<Limited> {
    let rate = wanted.rate;
    let capped = wanted.budget != Budget::Reserve;
    let period = held_period(draft, name, wanted, share, meter)?;
    let budget = Lines::at(each, period);
    if budget.0 == 0 {
        draft.refuse_by_rates(
            (name, wanted.key(), rate),
            format!(
                "{rate} over {} CPUs is less than one line of {LINE_BYTES} bytes per {period}",
                cpus.len()
            ),
            wanted.at(quota::rounded_up(draft, cpus.len(), rate), draft.policy),
        );
        return None;
    }
    let pooling = pooling::pooling(&draft.policy.regulator, wanted.budget, meter, peak);
    let split = match cpus.len() {
        1 => Split::Even,
        _ => draft.policy.regulator.split,
    };
    let (mut level, mut weakest) = worth(draft, meter, &cpus);
    let measured = draft.machine.measured.as_ref();
    if let Some(doubt) = measured.and_then(Measured::doubt) {
        level = Level::Estimated;
        weakest = Some(weakest.map_or(doubt.clone(), |why| format!("{why}; {doubt}")));
    }
    let because = format!(
        "{} {rate}{}{}: {} of one CPU's peak ({}){}{}",
        if wanted.budget == Budget::Limit || wanted.budget == Budget::Spare {
            "limit"
        } else {
            "reserve"
        },
        wanted.origin,
        match split {
            Split::Even if cpus.len() > 1 => ", split evenly",
            Split::Even => "",
            Split::Demand => ", split evenly at first",
        },
        about(share),
        draft.figure(peak),
        if capped {
            format!("; by the brake, since {why}")
        } else {
            "; it is counted and never stopped".to_owned()
        },
        pooling::because(pooling.as_ref(), split),
    );
    if weakest.is_none() {
        weakest = pooling::weakest(pooling.as_ref());
    }
    let shared = pooling.is_some();
    let regulation = Regulation {
        cpus: cpus.clone(),
        budget,
        period,
        meter,
        peak,
        pooling,
        split,
        least: match split {
            Split::Even => Lines(0),
            Split::Demand => Lines::at(peak.part(LEAST), period).min(budget),
        },
    };
    let id = brake::regulate(draft, name, regulation, because);
    if !capped {
        // No limit on this group, and none that others' reserves could rest on.
        return None;
    }
    if period < DEAR_SLEEP && meter == Meter::Time {
        draft.notes.push(format!(
            "group {name}: at a period of {period}, counting costs a task each time that it goes to sleep: 18 us were measured in \
             a virtual machine, 2.5 of them the brake's"
        ));
    }
    if shared {
        draft.notes.push(format!(
            "group {name} draws more than {rate} where others leave what is theirs, or all have drawn all there is: \
             so nothing is promised about its limit"
        ));
    } else {
        draft
            .promises
            .push(limit_held(name, rate, level, Some(id), weakest.clone()));
    }
    Some(Limited {
        group: name.to_owned(),
        rate,
        level,
        by: Some(id),
        weakest,
        cpus,
    })
}

/// What a limit held by this meter on these CPUs is worth, and the weakest link.
fn worth(draft: &Draft<'_>, meter: Meter, cpus: &CpuSet) -> (Level, Option<String>) {
    let unseen = match (meter, &draft.machine.means.meter) {
        (Meter::Time, _) => {
            let why = "counts the group's CPU time at the peak rate: an upper bound; what others do on its CPUs is not counted";
            return (Level::Estimated, Some(why.to_owned()));
        }
        (Meter::Hardware, MeterKind::Hardware { fills_only, .. }) => fills_only.intersection(cpus),
        _ => CpuSet::EMPTY,
    };
    if unseen.is_empty() {
        return (Level::Regulated, None);
    }
    let why = format!(
        "the counters of {} count the lines that come in, not those written back: who writes moves up to twice the limit, \
         and stores past the caches are not counted at all",
        on(&unseen)
    );
    (Level::Estimated, Some(why))
}

/// The period with which a budget can be held, said where it is not the one wanted. `None` where there is none: refused.
fn held_period(
    draft: &mut Draft<'_>,
    name: &str,
    wanted: &Wanted,
    share: Share,
    meter: Meter,
) -> Option<Nanos> {
    let period = draft.period;
    if wanted.budget == Budget::Reserve || meter != Meter::Time {
        return Some(period);
    }
    let Some(held) = period::holding(draft, share, period) else {
        draft.refuse_by_rates(
            (name, wanted.key(), wanted.rate),
            format!(
                "{} is {} of a CPU's time: no period of a second or less makes a budget of it that a brake can hold",
                wanted.rate,
                about(share)
            ),
            [
                wanted.at(
                    quota::rounded_up(draft, draft.division.of(name).cpus.len(), wanted.rate),
                    draft.policy,
                ),
                Remedy::from("run the group on fewer CPUs"),
            ],
        );
        return None;
    };
    if held > period {
        draft.notes.push(format!(
            "group {name}: the period is {held} instead of {period}: {} of {period} is less than five wake-ups of a brake",
            about(share)
        ));
    }
    Some(held)
}
