//! The closed loop around targets: who is observed, and whose budgets move (`regulator.adapt = "deadline"`).
//!
//! What the regulator holds for best-effort groups is what can be moved: at most as planned, which is their limit or what the
//! reserves leave, and at least what can be held, or their own reserve.

use std::collections::BTreeMap;

use quell_policy::{Adapt, Group, Permission, Policy, Role, Target};
use quell_types::ids::GroupId;
use quell_types::ids::StepId;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::refusal::Remedy;
use quell_types::source::Source;
use quell_types::units::{Nanos, Rate, Share};

use crate::plan::{Adaptation, Headroom, Held, Lever, Observed, Promise, Setting, Step};

use super::cpus::on;
use super::draft::Draft;
use super::wanted::{LEAST, Limited};

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

impl Draft<'_> {
    /// The longest time per unit, if the policy says one, or a profile and how much slower it may be.
    pub(super) fn deadline_of(&self, group: &str, target: &Target) -> Option<Nanos> {
        let slower = || {
            let solo = self.solos.get(group)?.took.as_ref().ok()?;
            Some(times(*solo, target.slowdown?))
        };
        target.deadline.or_else(slower)
    }
}

/// Targets that cannot be followed, whether anything follows them or not.
pub(super) fn check(draft: &mut Draft<'_>) {
    for (name, group) in &draft.policy.groups {
        let Some((target, source)) = group.target.as_ref().and_then(|t| Some((t, source(t)?)))
        else {
            continue;
        };
        let runs = !group.matching.is_empty();
        if runs && matches!(source, Source::Pattern(_)) {
            draft.refuse(
                format!("group.{name}.target.source"),
                "the output of programs that run already cannot be read along",
                [
                    Remedy::set_text(format!("group.{name}.target.source"), "client"),
                    Remedy::from("let Quell launch the program"),
                ],
            );
        }
        if target.slowdown.is_none() {
            continue;
        }
        let known = draft.solos.get(name);
        match known.map(|solo| (&solo.profile, &solo.took)) {
            Some((profile, Ok(took))) => {
                let deadline = draft.deadline_of(name, target).unwrap_or_default();
                draft.notes.push(format!(
                    "group {name}: alone {} of its units took {took} at most (profile {profile}): they may take {deadline}",
                    target.share()
                ));
            }
            unknown => {
                let why = match unknown {
                    Some((_, Err(why))) => why.as_str(),
                    _ => "no profile is at hand that tells what its units take alone",
                };
                let remedy = Remedy::command("quell profile -- PROGRAM");
                draft.refuse(
                    format!("group.{name}.target.slowdown"),
                    why.to_owned(),
                    remedy,
                );
            }
        }
    }
}

/// Groups whose units are observed, and how.
pub(super) fn observed(draft: &Draft<'_>) -> BTreeMap<GroupId, Observed> {
    let observed = |(name, group): (&String, &Group)| {
        let target = group.target.as_ref()?;
        let observed = Observed {
            source: source(target)?.clone(),
            matching: group.matching.clone(),
            deadline: draft.deadline_of(name, target),
            percentile: target.share(),
        };
        Some((name.clone(), observed))
    };
    draft.policy.groups.iter().filter_map(observed).collect()
}

/// Targets that nothing follows.
pub(super) fn notes(draft: &mut Draft<'_>) {
    if adapts(draft.policy) {
        return;
    }
    for (name, group) in &draft.policy.groups {
        let Some(target) = &group.target else {
            continue;
        };
        let what = match source(target) {
            None => "its target is a wish: nobody observes its units (source = \"none\")",
            Some(_) => {
                "its units are observed, and nothing holds them inside its target (regulator.adapt = \"deadline\" would)"
            }
        };
        draft.acts.push(format!("group {name}: {what}"));
    }
}

/// Plans the loop.
pub(super) fn plan(draft: &mut Draft<'_>, reserved: &[(String, Rate)], limited: &[Limited]) {
    // What was refused would be missing here: the reason has been told already.
    if !adapts(draft.policy) || !draft.refusals.is_empty() {
        return;
    }
    let aimed = aimed(draft);
    if aimed.is_empty() {
        return;
    }
    let levers = levers(draft, reserved, limited);
    let Some(sustainable) = draft.sustainable(&draft.machine.cpu_set()) else {
        return;
    };
    let unheld = |held: &Held| {
        held.level == Level::None && matches!(held.promise, Promise::LimitBandwidth { .. })
    };
    if levers.is_empty() && draft.assumes() && draft.promises.iter().any(unheld) {
        // Assumed rates left no budget to move: that has been said.
        return;
    }
    if levers.is_empty() {
        draft.refuse_for(
            draft.lack(Mechanism::Bandwidth),
            "regulator.adapt",
            "there is nobody whose budget could be moved: the regulator holds none of a best-effort group",
            [
                Remedy::set_text("regulator.adapt", "off"),
                Remedy::from("add a best-effort group that may be throttled, and let the regulator hold its bandwidth"),
            ],
        );
        return;
    }
    for (name, target) in &aimed {
        let percentile = target.share();
        let deadline = draft.deadline_of(name, target);
        promise(draft, name, (deadline, percentile), &levers, limited);
    }
    let named: Vec<String> = levers
        .iter()
        .map(|l| format!("{} (from {} down to {})", l.group, l.most, l.least))
        .collect();
    let headroom = headroom(draft, reserved);
    if !headroom.is_empty() {
        let named: Vec<&str> = headroom.iter().map(|h| h.group.as_str()).collect();
        draft.notes.push(format!(
            "what the others are not left is headroom of {}: given to them while it draws nothing, and kept whole while it does",
            named.join(", ")
        ));
    }
    let groups: Vec<GroupId> = aimed.into_keys().collect();
    draft.notes.push(match groups.as_slice() {
        [one] => format!(
            "as units of group {one} are late or in time, less or more is left to {}",
            named.join(", ")
        ),
        several => format!(
            "as units of the groups {} are late or in time, less or more is left to {}: what the one leaves that is worst off",
            several.join(", "),
            named.join(", ")
        ),
    });
    draft.loops.adapts = Some(Adaptation {
        groups,
        sustainable,
        levers,
        headroom,
    });
}

/// The reserves that what the others are not left is added to.
fn headroom(draft: &Draft<'_>, reserved: &[(String, Rate)]) -> Vec<Headroom> {
    let of = |step: &Step| {
        let (Setting::Regulate(regulation), Some(group)) = (&step.set, &step.group) else {
            return None;
        };
        regulation.pooling.as_ref().filter(|p| p.headroom)?;
        let least = reserved.iter().find(|(name, _)| name == group)?.1;
        Some(Headroom {
            group: group.clone(),
            step: step.id,
            least,
        })
    };
    draft.steps.iter().filter_map(of).collect()
}

/// The groups whose targets are followed; none where something is refused.
fn aimed(draft: &mut Draft<'_>) -> BTreeMap<GroupId, Target> {
    let policy = draft.policy;
    if policy.regulator.strict {
        draft.refuse(
            "regulator.adapt",
            "with regulator.strict a critical group is stopped at its reserve, whatever is left to the others",
            [
                Remedy::leave_out("regulator.strict"),
                Remedy::leave_out("regulator.adapt"),
            ],
        );
        return BTreeMap::new();
    }
    let aim = |(name, group): (&String, &Group)| {
        let target = group.target.as_ref()?;
        let aimed = group.role == Role::Critical && source(target).is_some();
        aimed.then(|| (name.clone(), target.clone()))
    };
    let aimed: BTreeMap<_, _> = policy.groups.iter().filter_map(aim).collect();
    if aimed.is_empty() {
        draft.refuse(
            "regulator.adapt",
            "no critical group has a target whose units are observed",
            [
                Remedy::set_text("regulator.adapt", "off"),
                Remedy::from("give one a target, as in group.NAME.target.deadline = \"50ms\""),
            ],
        );
    }
    aimed
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
        let least = regulation
            .peak
            .part(LEAST)
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
    if level > Level::Estimated && draft.rest_draws() {
        level = Level::Estimated;
        weakest = format!(
            "unmatched tasks (group rest) have no limit on {}: what they draw is taken from the others",
            on(&draft.division.rest)
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
        assumed: false,
    });
}

/// So many times a time, to the microsecond.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "at least 1, as checked; too large a time is held at the largest"
)]
fn times(time: Nanos, factor: f64) -> Nanos {
    Nanos((time.0 as f64 * factor / 1e3).round() as u64 * 1_000)
}
