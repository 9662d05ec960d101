//! The closed loop around a target: who is observed, and whose budgets move (`regulator.adapt = "deadline"`).
//!
//! What the regulator holds for best-effort groups is what can be moved: at most as planned, which is their limit or what the
//! reserves leave, and at least what can be held, or their own reserve.

use std::collections::BTreeMap;

use crate::cpuset::CpuSet;
use crate::mechanism::Level;
use crate::plan::{Adaptation, GroupId, Held, Lever, Observed, Promise, Setting, StepId};
use crate::policy::{Adapt, Group, Permission, Policy, Role, Source, Target};
use crate::units::{Nanos, Rate, Share};

use super::Draft;
use super::bandwidth::Limited;
use super::cpus::on;
use super::others::floor;

/// Whether budgets move at all.
pub(super) fn adapts(policy: &Policy) -> bool {
    policy.regulator.adapt == Adapt::Deadline
}

/// Whether the loop may move what the regulator holds for a group.
pub(super) fn moves(policy: &Policy, group: &Group) -> bool {
    adapts(policy) && group.role == Role::BestEffort && group.allows(Permission::Throttle)
}

/// How the units of a target are observed.
fn source(target: &Target) -> Option<&Source> {
    match &target.source {
        None => Some(&Source::Client),
        Some(Source::None) => None,
        Some(source) => Some(source),
    }
}

/// What is launched can be observed: it inherits its session, or its output is read.
fn observable(group: &Group) -> bool {
    group.matching.is_empty()
}

/// Groups whose units are observed, and how.
pub(super) fn observed(policy: &Policy) -> BTreeMap<GroupId, Observed> {
    let groups = policy.groups.iter().filter(|(_, g)| observable(g));
    groups
        .filter_map(|(name, group)| {
            let target = group.target.as_ref()?;
            let observed = Observed {
                source: source(target)?.clone(),
                deadline: target.deadline,
                percentile: millionths(target.percentile),
            };
            Some((name.clone(), observed))
        })
        .collect()
}

/// Targets that nothing follows.
pub(super) fn notes(draft: &mut Draft<'_>) {
    for (name, group) in &draft.policy.groups {
        let Some(target) = &group.target else {
            continue;
        };
        let steered = draft.adapts.as_ref().is_some_and(|a| a.group == *name);
        let what = match source(target) {
            _ if steered || adapts(draft.policy) => continue,
            None => "its target is a wish: nobody observes its units (source = \"none\")",
            Some(_) if !observable(group) => {
                "its target is a wish: not yet: units of programs that run already are not observed, only of those that are launched"
            }
            Some(_) => {
                "its units are observed, and nothing holds them inside its target (regulator.adapt = \"deadline\" would)"
            }
        };
        draft.notes.push(format!("group {name}: {what}"));
    }
}

/// Plans the loop.
pub(super) fn plan(draft: &mut Draft<'_>, reserved: &[(String, Rate)], limited: &[Limited]) {
    // What was refused would be missing here: the reason has been told already.
    if !adapts(draft.policy) || !draft.refusals.is_empty() {
        return;
    }
    let Some((name, target)) = aimed(draft) else {
        return;
    };
    let levers = levers(draft, reserved, limited);
    let Some(sustainable) = draft.sustainable(&draft.machine.cpu_set()) else {
        return;
    };
    if levers.is_empty() {
        draft.refuse(
            "regulator.adapt",
            "there is nobody whose budget could be moved: the regulator holds none of a best-effort group",
            Some("add a best-effort group that may be throttled, and let the regulator hold its bandwidth".to_owned()),
        );
        return;
    }
    let percentile = millionths(target.percentile);
    let deadline = target.deadline;
    promise(draft, &name, (deadline, percentile), &levers, limited);
    let named: Vec<String> = levers
        .iter()
        .map(|l| format!("{} (from {} down to {})", l.group, l.most, l.least))
        .collect();
    draft.notes.push(format!(
        "as units of group {name} are late or in time, less or more is left to {}",
        named.join(", ")
    ));
    draft.adapts = Some(Adaptation {
        group: name,
        deadline,
        percentile,
        sustainable,
        levers,
    });
}

/// The group whose target is followed.
fn aimed(draft: &mut Draft<'_>) -> Option<(String, Target)> {
    let policy = draft.policy;
    let keys = &policy.regulator;
    if keys.strict {
        draft.refuse(
            "regulator.adapt",
            "with regulator.strict a critical group is stopped at its reserve, whatever is left to the others",
            Some("use one of them".to_owned()),
        );
        return None;
    }
    let aims = |(_, group): &(&String, &Group)| {
        group.role == Role::Critical && group.target.as_ref().and_then(source).is_some()
    };
    let aimed: Vec<(&String, &Group)> = policy.groups.iter().filter(aims).collect();
    let (name, group) = match aimed.as_slice() {
        [one] => *one,
        [] => {
            draft.refuse(
                "regulator.adapt",
                "no critical group has a target whose units are observed",
                Some("give one a target, as in group.NAME.target.deadline = \"50ms\"".to_owned()),
            );
            return None;
        }
        several => {
            let names: Vec<&str> = several.iter().map(|(n, _)| n.as_str()).collect();
            draft.refuse(
                "regulator.adapt",
                format!(
                    "not yet: budgets follow the target of one group, not of {}",
                    names.join(" and ")
                ),
                Some("write source = \"none\" in the targets of all but one".to_owned()),
            );
            return None;
        }
    };
    let target = group.target.clone()?;
    if target.slowdown.is_some() {
        draft.refuse(
            format!("group.{name}.target.slowdown"),
            "not yet: a slowdown against a profiled run is not followed",
            Some("write a deadline instead".to_owned()),
        );
        return None;
    }
    if !observable(group) {
        draft.refuse(
            format!("group.{name}.target.source"),
            "not yet: units of programs that run already are not observed",
            Some("let Quell launch it (`command`, or after --)".to_owned()),
        );
        return None;
    }
    Some((name.clone(), target))
}

fn levers(draft: &Draft<'_>, reserved: &[(String, Rate)], limited: &[Limited]) -> Vec<Lever> {
    let mut levers: Vec<Lever> = Vec::new();
    for one in limited {
        let group = draft.policy.groups.get(&one.group);
        let Some(step) = one.by.filter(|step| {
            group.is_some_and(|g| moves(draft.policy, g)) && levers.iter().all(|l| l.step != *step)
        }) else {
            continue;
        };
        let held = draft.steps.iter().find(|s| s.id == step).map(|s| &s.set);
        let Some(Setting::Regulate(regulation)) = held else {
            continue;
        };
        let floor = floor(draft.policy, draft.machine);
        let least = regulation
            .peak
            .part(floor)
            .0
            .saturating_mul(one.cpus.len() as u64);
        let own = reserved.iter().find(|(n, _)| *n == one.group);
        levers.push(Lever {
            group: one.group.clone(),
            step,
            least: Rate(least).max(own.map_or(Rate(0), |o| o.1)).min(one.rate),
            most: one.rate,
        });
    }
    levers
}

/// What the target is worth: a loop holds it, as far as what it moves reaches.
fn promise(
    draft: &mut Draft<'_>,
    name: &str,
    (deadline, percentile): (Option<Nanos>, Share),
    levers: &[Lever],
    limited: &[Limited],
) {
    let mut level = Level::Regulated;
    let mut weakest =
        "whatever else makes its units late, the loop can only take from the others".to_owned();
    let by: Vec<StepId> = levers.iter().map(|l| l.step).collect();
    if let Some(worst) = limited
        .iter()
        .filter(|l| l.by.is_some_and(|s| by.contains(&s)))
        .min_by_key(|l| l.level)
        && worst.level < level
    {
        level = worst.level;
        let why = worst
            .weakest
            .as_deref()
            .unwrap_or("a loop holds it, after the fact");
        weakest = format!("the limit of group {}: {why}", worst.group);
    }
    let counted = limited
        .iter()
        .filter(|l| l.counts_all)
        .fold(CpuSet::new(), |sum, l| sum.union(&l.cpus));
    let open = draft.division.rest.difference(&counted);
    if level > Level::Estimated && !open.is_empty() {
        level = Level::Estimated;
        weakest = format!(
            "unmatched tasks (group rest) have no limit on {}: what they draw is taken from the others",
            on(&open)
        );
    }
    draft.promises.push(Held {
        group: name.to_owned(),
        promise: Promise::Deadline {
            deadline,
            percentile,
        },
        level,
        held_by: by,
        weakest: Some(weakest),
    });
}

/// A percentile between 0 and 100, as checked.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "between 0 and a million"
)]
fn millionths(percentile: f64) -> Share {
    Share((percentile.clamp(0.0, 100.0) * 10_000.0).round() as u64)
}
