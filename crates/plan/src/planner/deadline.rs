//! The closed loop around targets (`regulator.adapt = "deadline"`): which groups are observed, and
//! which groups' budgets move.
//!
//! What moves is what the regulator holds for best-effort groups. The most is as planned: their
//! limit, or what the reserves leave. The least is what can be held, or their own reserve.

use std::collections::BTreeMap;

use quell_policy::{Adapt, Group, Permission, Policy, Role, Target};
use quell_types::ids::GroupId;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::refusal::Remedy;
use quell_types::source::Source;
use quell_types::units::{Nanos, Rate};

use crate::plan::{Adaptation, Headroom, Held, Lever, Observed, Promise, Setting, Step};

use super::caps::Limited;
use super::draft::Draft;
use super::rates::Rates;
use super::wanted::{LEAST, Worth};
use super::words::{deadline as words, on, reserves::the_limit_of};

/// Whether budgets move at all.
pub(super) fn adapts(policy: &Policy) -> bool {
    policy.regulator.adapt == Adapt::Deadline
}

/// Whether the loop may move what the regulator holds for a group.
pub(super) fn moves(policy: &Policy, group: &Group) -> bool {
    adapts(policy) && group.role == Role::BestEffort && group.allows(Permission::Throttle)
}

/// How the units of a target are observed; `None` if they are not.
fn source(target: &Target) -> Option<&Source> {
    match &target.source {
        None => Some(&Source::Client),
        Some(Source::None) => None,
        Some(source) => Some(source),
    }
}

impl Draft<'_> {
    /// The longest time per unit. The policy states it, or it follows from a profile and the
    /// `slowdown` that the policy allows. `None` where neither is known.
    pub(super) fn deadline_of(&self, group: &str, target: &Target) -> Option<Nanos> {
        let slower = || {
            let solo = self.solos.get(group)?.took.as_ref().ok()?;
            Some(times(*solo, target.slowdown?))
        };
        target.deadline.or_else(slower)
    }
}

/// Refuses targets that cannot be followed, even if nothing is to follow them.
pub(super) fn check(draft: &mut Draft<'_>) {
    for (name, group) in &draft.policy.groups {
        let Some((target, source)) = group.target.as_ref().and_then(|t| Some((t, source(t)?)))
        else {
            continue;
        };
        let runs = !group.matching.is_empty();
        if runs && matches!(source, Source::Pattern(_)) {
            let key = format!("group.{name}.target.source");
            let remedies = [
                Remedy::set_text(key.clone(), "client"),
                Remedy::from(
                    "write `command` instead of `match` in the group, so that Quell starts the program",
                ),
            ];
            draft.refuse(key, words::OUTPUT_CANNOT_BE_READ, remedies);
        }
        if target.slowdown.is_none() {
            continue;
        }
        let known = draft.solos.get(name);
        let why = match known.map(|solo| (&solo.profile, &solo.took)) {
            Some((profile, Ok(took))) => {
                let may = draft.deadline_of(name, target).unwrap_or_default();
                let note = words::may_take(name, target.share(), *took, profile, may);
                draft.notes.push(note);
                continue;
            }
            Some((_, Err(why))) => why.as_str(),
            None => words::NO_PROFILE,
        };
        let key = format!("group.{name}.target.slowdown");
        let remedy = Remedy::command("quell profile -- PROGRAM");
        draft.refuse(key, why.to_owned(), remedy);
    }
}

/// The observed groups, and how their units are observed.
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

/// Notes on targets that nothing follows.
pub(super) fn notes(draft: &mut Draft<'_>) {
    if adapts(draft.policy) {
        return;
    }
    for (name, group) in &draft.policy.groups {
        let Some(target) = &group.target else {
            continue;
        };
        draft.acts.push(match source(target) {
            None => words::is_a_wish(name),
            Some(_) => words::is_only_observed(name),
        });
    }
}

/// Adds the loop to the plan, with its promises and notes.
pub(super) fn plan(draft: &mut Draft<'_>, rates: &Rates, limited: &[Limited]) {
    // Something was refused, and its reason reported: it would only be missing here.
    if !adapts(draft.policy) || !draft.refusals.is_empty() {
        return;
    }
    let aimed = aimed(draft);
    if aimed.is_empty() {
        return;
    }
    let levers = levers(draft, rates, limited);
    let Some(sustainable) = draft.sustainable(&draft.machine.cpu_set()) else {
        return;
    };
    let unheld = |held: &Held| {
        held.level == Level::None && matches!(held.promise, Promise::LimitBandwidth { .. })
    };
    if levers.is_empty() && draft.assumes() && draft.promises.iter().any(unheld) {
        // Assumed rates left no budget to move, and a note already says so.
        return;
    }
    if levers.is_empty() {
        let key = "regulator.adapt";
        let mut remedies = vec![Remedy::set_text(key, "off")];
        let cause = draft.lack(Mechanism::Bandwidth);
        let why = match draft.unavailable(Mechanism::Bandwidth) {
            Some(why) => words::no_regulator(&why),
            None => {
                remedies.push(Remedy::from(words::ADD_A_LEVER));
                words::NO_LEVER.to_owned()
            }
        };
        draft.refuse_for(cause, key, why, remedies);
        return;
    }
    for (name, target) in &aimed {
        let worth = worth(draft, &levers, limited);
        let promise = Promise::Deadline {
            deadline: draft.deadline_of(name, target),
            percentile: target.share(),
        };
        draft.promise(name, promise, worth, levers.iter().map(|l| l.step));
    }
    let headroom = headroom(draft, rates);
    if !headroom.is_empty() {
        let of: Vec<&str> = headroom.iter().map(|h| h.group.as_str()).collect();
        draft.notes.push(words::headroom(&of.join(", ")));
    }
    let groups: Vec<GroupId> = aimed.into_keys().collect();
    draft.notes.push(words::follows(&groups, &levers));
    let draws = |group: &GroupId| {
        let cpus = &draft.groups.iter().find(|g| g.name == *group)?.cpus;
        Some((group.clone(), draft.sustainable(cpus)?))
    };
    let draws = groups.iter().filter_map(draws).collect();
    draft.loops.adapts = Some(Adaptation {
        groups,
        sustainable,
        draws,
        levers,
        headroom,
    });
}

/// The reserves that grow by what is taken from the best-effort groups.
fn headroom(draft: &Draft<'_>, rates: &Rates) -> Vec<Headroom> {
    let of = |step: &Step| {
        let (Setting::Regulate(regulation), Some(group)) = (&step.set, &step.group) else {
            return None;
        };
        regulation.pooling.as_ref().filter(|p| p.headroom)?;
        Some(Headroom {
            group: group.clone(),
            step: step.id,
            least: rates.reserve(group)?.rate,
        })
    };
    draft.steps.iter().filter_map(of).collect()
}

/// The groups with targets that are followed; none where something is refused.
fn aimed(draft: &mut Draft<'_>) -> BTreeMap<GroupId, Target> {
    let policy = draft.policy;
    let key = "regulator.adapt";
    if policy.regulator.strict {
        let remedies = ["regulator.strict", key].map(Remedy::leave_out);
        draft.refuse(key, words::STRICT_STOPS_AT_THE_RESERVE, remedies);
        return BTreeMap::new();
    }
    let aim = |(name, group): (&String, &Group)| {
        let target = group.target.as_ref()?;
        let aimed = group.role == Role::Critical && source(target).is_some();
        aimed.then(|| (name.clone(), target.clone()))
    };
    let aimed: BTreeMap<_, _> = policy.groups.iter().filter_map(aim).collect();
    if aimed.is_empty() {
        let remedies = [
            Remedy::set_text(key, "off"),
            Remedy::from(words::GIVE_A_TARGET),
        ];
        draft.refuse(key, words::NO_TARGET, remedies);
    }
    aimed
}

fn levers(draft: &Draft<'_>, rates: &Rates, limited: &[Limited]) -> Vec<Lever> {
    let mut levers: Vec<Lever> = Vec::new();
    for one in limited {
        let wanted = &one.wanted;
        let group = draft.policy.groups.get(&wanted.group);
        let Some(step) = one.by.filter(|step| {
            group.is_some_and(|g| moves(draft.policy, g)) && levers.iter().all(|l| l.step != *step)
        }) else {
            continue;
        };
        let held = draft.steps.iter().find(|s| s.id == step).map(|s| &s.set);
        let Some(Setting::Regulate(regulation)) = held else {
            continue;
        };
        let least = regulation.peak.part(LEAST).0;
        let least = Rate(least.saturating_mul(one.cpus.len() as u64));
        levers.push(Lever {
            group: wanted.group.clone(),
            step,
            least: least.max(rates.kept(&wanted.group)).min(wanted.rate),
            most: wanted.rate,
        });
    }
    levers
}

/// What a target is worth. A loop holds it, as far as what it moves reaches.
fn worth(draft: &Draft<'_>, levers: &[Lever], limited: &[Limited]) -> Worth {
    let mut worth = Worth::of(Level::Regulated, words::TAKES_FROM_OTHERS_ONLY);
    let moved = |l: &&Limited| {
        l.by.is_some_and(|by| levers.iter().any(|lever| lever.step == by))
    };
    if let Some(worst) = limited.iter().filter(moved).min_by_key(|l| l.worth.level) {
        let weakest = worst.worth.weakest.as_deref();
        let why = the_limit_of(&worst.wanted.group, weakest);
        worth.lower(Worth::of(worst.worth.level, why));
    }
    if draft.rest_draws() {
        let why = words::rest_takes(&on(&draft.division.rest));
        worth.lower(Worth::of(Level::Estimated, why));
    }
    worth
}

/// A time multiplied by a factor, to the microsecond.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "at least 1, as checked; too large a time is held at the largest"
)]
fn times(time: Nanos, factor: f64) -> Nanos {
    Nanos((time.0 as f64 * factor / 1e3).round() as u64 * 1_000)
}
