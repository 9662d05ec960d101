//! Reserves: whether they fit, what they leave to the others, and what each is worth in the end.

use quell_policy::{Group, Role, Sustainable};
use quell_types::ids::StepId;
use quell_types::mechanism::Level;
use quell_types::refusal::Remedy;
use quell_types::units::Rate;

use crate::inventory::Measured;
use crate::plan::{Held, Promise};

use super::assumed::refused_by_run;
use super::cpus::on;
use super::deadline;
use super::draft::Draft;
use super::rates::{in_bytes, resolve};
use super::wanted::{Apart, Budget, Limited, Wanted, rounded};

pub(super) fn reserves(draft: &mut Draft<'_>) -> Vec<(String, Rate)> {
    let policy = draft.policy;
    let mut list = Vec::new();
    for (name, group) in &policy.groups {
        if let Some(wanted) = group.reserve.bandwidth
            && let Some(wanted) = resolve(draft, name, "reserve.bandwidth", wanted)
        {
            list.push((name.clone(), wanted.rate));
        }
    }
    let Some(sustainable) = draft.sustainable(&draft.machine.cpu_set()) else {
        return list;
    };
    let sum: u64 = list.iter().map(|(_, r)| r.0).sum();
    if sum > sustainable.0 {
        let named: Vec<String> = list.iter().map(|(n, r)| format!("{n} {r}")).collect();
        let why = format!(
            "the reserves ({}) come to {}, more than the {} this machine sustains",
            named.join(", "),
            Rate(sum),
            draft.figure(sustainable)
        );
        if draft.assumes() {
            draft.acts.push(refused_by_run(&why));
        } else {
            let largest = list.iter().max_by_key(|(_, rate)| *rate);
            let (name, rate) = largest.cloned().unwrap_or_default();
            let key = format!("group.{name}.reserve.bandwidth");
            let fits = rounded(Rate(rate.0.saturating_sub(sum - sustainable.0)));
            let remedy = match fits {
                Rate(0) => Remedy::leave_out(key.clone()),
                fits => Remedy::set_text(key.clone(), fits),
            };
            draft.refuse(key, why, remedy);
        }
    }
    list
}

/// What the reserves of others leave, divided by weight among the best-effort groups without a limit of their own.
pub(super) fn spare_of(draft: &Draft<'_>, reserved: &[(String, Rate)]) -> Option<Vec<Wanted>> {
    if reserved.is_empty() && !deadline::adapts(draft.policy) {
        return None;
    }
    let total = draft.sustainable(&draft.machine.cpu_set())?;
    let open: Vec<(&String, &Group)> = draft
        .policy
        .groups
        .iter()
        .filter(|(_, g)| g.role == Role::BestEffort && draft.policy.cap(g).is_none())
        .collect();
    let kept = |name: &str| {
        reserved
            .iter()
            .find(|(n, _)| n == name)
            .map_or(0, |(_, r)| r.0)
    };
    let fixed: u64 = draft
        .policy
        .groups
        .iter()
        .map(|(name, g)| {
            let limit = g.limit.bandwidth;
            let limit = limit.and_then(|limit| in_bytes(draft, name, limit).ok());
            limit.map_or(0, |(rate, _)| rate.0).max(kept(name))
        })
        .sum();
    // A reserve on some memory nodes is worth something only where all that others draw fits there, too.
    let of = reserved
        .iter()
        .filter_map(|(name, _)| part_of_nodes(draft, name))
        .min()
        .map_or(total, |part| part.min(total));
    let left = of.0.saturating_sub(fixed);
    // Not more than half: what they drew for a moment must not leave nothing to a group. The promise says what that is worth.
    let rest = draft.kept_for_rest().unwrap_or_default();
    let rest = Rate(rest.0.min(left / 2));
    let spare = left - rest.0;
    let weights: u64 = open.iter().map(|(_, g)| u64::from(g.weight())).sum();
    let wanted = |(name, group): (&String, &Group)| {
        let weight = u64::from(group.weight());
        let extra = u128::from(spare) * u128::from(weight) / u128::from(weights.max(1));
        let extra = u64::try_from(extra).unwrap_or(u64::MAX);
        let what = match rest {
            Rate(0) => format!("what reserves and limits leave of {}", draft.figure(of)),
            rest => format!(
                "what reserves, limits and {} for unmatched tasks leave of {}",
                rounded(rest),
                draft.figure(of)
            ),
        };
        Wanted {
            group: name.clone(),
            rate: rounded(Rate(kept(name).saturating_add(extra))),
            origin: if weight == weights {
                format!(", {what}")
            } else {
                format!(", its part (weight {weight} of {weights}) of {what}")
            },
            of: None,
            budget: Budget::Spare,
            apart: None,
        }
    };
    Some(open.into_iter().map(wanted).collect())
}

/// How often the rate is kept for unmatched tasks that they were measured to draw: nothing stops them at it.
const MARGIN: u64 = 2;

impl Draft<'_> {
    /// What is kept for unmatched tasks, which nothing regulates. `None` where it has not been measured what they draw.
    fn kept_for_rest(&self) -> Option<Rate> {
        if self.division.rest.is_empty() {
            return Some(Rate(0));
        }
        let measured = self.machine.measured.as_ref()?.rest?;
        Some(Rate(measured.0.saturating_mul(MARGIN)))
    }

    /// Whether unmatched tasks may draw anything.
    pub(super) fn rest_draws(&self) -> bool {
        self.kept_for_rest() != Some(Rate(0))
    }
}

/// What unmatched tasks, which nothing regulates, leave of a reserve's worth. `None` where they do not weaken it.
fn beside_rest(
    draft: &Draft<'_>,
    reserved: &[(String, Rate)],
    limited: &[Limited],
) -> Option<(Level, String)> {
    let Some(rest) = draft.kept_for_rest() else {
        let why = "unmatched tasks (group rest) have no limit, and what they draw has not been measured (`quell doctor --deep`)";
        return Some((Level::None, why.to_owned()));
    };
    let known = draft.known();
    let total = draft.sustainable(&draft.machine.cpu_set())?;
    let budgets = budgets(draft, reserved, limited);
    if budgets.0.saturating_add(rest.0) > total.0 {
        let why = if rest == Rate(0) {
            format!(
                "the budgets come to {}, more than the {} that the CPUs sustain together",
                rounded(budgets),
                draft.figure(total)
            )
        } else {
            format!(
                "unmatched tasks (group rest) have no limit: the budgets come to {}, with {MARGIN} x the {} that these tasks were \
                 {known} to draw to {}, more than the {} that the CPUs sustain together",
                rounded(budgets),
                rounded(Rate(rest.0 / MARGIN)),
                rounded(Rate(budgets.0.saturating_add(rest.0))),
                draft.figure(total)
            )
        };
        return Some((Level::None, why));
    }
    (rest != Rate(0)).then(|| {
        let why = format!(
            "unmatched tasks (group rest) have no limit: {MARGIN} x the {} that they were {known} to draw is kept for them",
            rounded(Rate(rest.0 / MARGIN))
        );
        (Level::Estimated, why)
    })
}

/// What all groups may draw together: of each its limit or its reserve, whichever is more.
fn budgets(draft: &Draft<'_>, reserved: &[(String, Rate)], limited: &[Limited]) -> Rate {
    let of = |name: &String| {
        let limit = limited.iter().find(|l| l.group == *name);
        let kept = reserved.iter().find(|(n, _)| n == name);
        let kept = kept.map_or(0, |(_, rate)| rate.0);
        limit.map_or(0, |l| l.rate.0).max(kept)
    };
    let all = draft.policy.groups.keys().map(of);
    Rate(all.fold(0, u64::saturating_add))
}

/// What the memory nodes of a group's CPUs are taken to give: their even part of the machine's rate. `None` where these are all nodes.
fn part_of_nodes(draft: &Draft<'_>, name: &str) -> Option<Rate> {
    let own = draft.nodes_of(&draft.division.of(name).cpus);
    let all = draft.nodes_of(&draft.machine.cpu_set());
    if own.len() >= all.len() {
        return None;
    }
    let total = draft.sustainable(&draft.machine.cpu_set())?;
    Some(Rate(total.0 / all.len() as u64 * own.len() as u64))
}

/// The rate of the machine is that of all memory nodes together. A reserve lives in the nodes of its group, and the
/// others may all draw from the same: what the nodes have is taken to be their even part of the whole.
fn one_node(
    draft: &Draft<'_>,
    name: &str,
    reserve: Rate,
    reserved: &[(String, Rate)],
    limited: &[Limited],
) -> Option<(Level, String)> {
    let own = draft.nodes_of(&draft.division.of(name).cpus);
    let all = draft.nodes_of(&draft.machine.cpu_set());
    if own.len() >= all.len() {
        return None;
    }
    let total = draft.sustainable(&draft.machine.cpu_set())?;
    let part = Rate(total.0 / all.len() as u64 * own.len() as u64);
    let others: u64 = draft
        .policy
        .groups
        .keys()
        .filter(|other| *other != name)
        .map(|other| {
            let limit = limited.iter().find(|l| l.group == *other).map(|l| l.rate.0);
            let kept = reserved.iter().find(|(n, _)| n == other).map(|(_, r)| r.0);
            limit.or(kept).unwrap_or(0)
        })
        .sum();
    let known = draft.known();
    let nodes = if own.len() == 1 { "node" } else { "nodes" };
    Some(if reserve.0.saturating_add(others) > part.0 {
        let why = format!(
            "memory {nodes} {own}: the others together may draw {} there, and it has about {}, its part of the {known} rate; \
             limit them to what it has left",
            rounded(Rate(others)),
            rounded(part)
        );
        (Level::None, why)
    } else {
        let why = format!(
            "memory {nodes} {own} is taken to have its even part of the {known} rate, about {}",
            rounded(part)
        );
        (Level::Estimated, why)
    })
}

/// Where a group has CPUs to itself, the others draw no more than their own CPUs can: where that leaves the reserve, it is
/// held by the partition, limits or not.
fn out_of_reach(draft: &Draft<'_>, name: &str, reserve: Rate) -> Option<(Vec<StepId>, String)> {
    let partition = draft
        .promises
        .iter()
        .find(|p| p.group == name && matches!(p.promise, Promise::Cpus { .. }))?;
    let part = draft.division.of(name);
    let others = draft.machine.cpu_set().difference(&part.blocked);
    // The rate of one node is not known well enough for this.
    if draft.nodes_of(&draft.machine.cpu_set()).len() > 1 {
        return None;
    }
    let peak = draft.machine.measured.as_ref()?.peak_cpu;
    let draw = peak.0.saturating_mul(others.len() as u64);
    let known = draft.known();
    let total = draft.sustainable(&draft.machine.cpu_set())?;
    (reserve.0.saturating_add(draw) <= total.0).then(|| {
        let why = format!(
            "whoever runs on {} draws at most {} there, as {known}, of the {} there are",
            on(&others),
            rounded(Rate(draw)),
            draft.figure(total)
        );
        (partition.held_by.clone(), why)
    })
}

/// The sustainable rate is that of the operation which costs the least traffic per program byte. Reserves beyond what
/// the dearest sustains are there for some programs and not for others: nothing is promised.
fn not_for_all(draft: &Draft<'_>, reserved: &[(String, Rate)]) -> Option<String> {
    if let Sustainable::Rate(_) = draft.policy.regulator.sustainable {
        return None;
    }
    let measured = draft.machine.measured.as_ref()?;
    let (operation, least) = measured.least_sustained()?;
    let sum = Rate(reserved.iter().map(|(_, r)| r.0).sum());
    (sum > least).then(|| {
        format!(
            "the reserves come to {sum}, and by {operation} the CPUs sustain {} together ({} by {}); reserve no more than that, \
             or state `regulator.sustainable` for what your programs do",
            rounded(least),
            rounded(measured.sustainable),
            measured.peak_operation
        )
    })
}

/// A reserve is worth what the weakest limit is worth on everything else that may draw: other groups and unmatched tasks.
pub(super) fn judge_reserves(
    draft: &mut Draft<'_>,
    reserved: &[(String, Rate)],
    limited: &[Limited],
) {
    let policy = draft.policy;
    let beyond = not_for_all(draft, reserved);
    for (name, rate) in reserved {
        let mut level = Level::Enforced;
        let mut weakest = None;
        let mut held_by: Vec<StepId> = Vec::new();
        let mut weaken = |to: Level, why: String| {
            if to < level {
                level = to;
                weakest = Some(why);
            }
        };
        for (other, group) in policy.groups.iter().filter(|(n, _)| *n != name) {
            match limited.iter().find(|l| l.group == *other) {
                Some(l) => {
                    held_by.extend(l.by.filter(|by| !held_by.contains(by)));
                    weaken(
                        l.level,
                        format!(
                            "the limit of group {other}: {}",
                            l.weakest
                                .as_deref()
                                .unwrap_or("a loop holds it, after the fact")
                        ),
                    );
                }
                None if group.reserve.bandwidth.is_some() => {
                    weaken(
                        Level::None,
                        format!(
                            "group {other} has a reserve but no limit: nothing stops it at that rate"
                        ),
                    );
                }
                None if draft.machine.measured.is_none() => weaken(
                    Level::None,
                    format!(
                        "group {other} has no limit, and none can be divided among the others before rates are measured (`quell \
                         doctor --deep`)"
                    ),
                ),
                None => weaken(Level::None, format!("group {other} has no limit")),
            }
        }
        if let Some((bound, why)) = beside_rest(draft, reserved, limited) {
            weaken(bound, why);
        }
        let measured = draft.machine.measured.as_ref();
        if let Some(doubt) = measured.and_then(Measured::doubt) {
            weaken(Level::Estimated, doubt);
        }
        if let Some(why) = &beyond {
            weaken(Level::None, why.clone());
        }
        if let Some((bound, why)) = one_node(draft, name, *rate, reserved, limited) {
            weaken(bound, why);
        }
        if let Some((steps, why)) = out_of_reach(draft, name, *rate)
            .filter(|_| level < Level::Estimated && beyond.is_none())
        {
            (level, weakest, held_by) = (Level::Estimated, Some(why), steps);
        }
        if level == Level::Enforced {
            // Nobody else is there: still only as good as the measured rate.
            level = Level::Estimated;
        }
        let apart = policy.groups.get(name).and_then(|g| g.reserve.bandwidth);
        let promises: Vec<Promise> = match apart.and_then(Apart::of) {
            None => vec![Promise::ReserveBandwidth { rate: *rate }],
            Some(both) => both
                .given()
                .map(|(direction, rate)| Promise::ReserveDirection { direction, rate })
                .collect(),
        };
        draft
            .promises
            .extend(promises.into_iter().map(|promise| Held {
                group: name.clone(),
                promise,
                level,
                held_by: held_by.clone(),
                weakest: weakest.clone(),
                assumed: false,
            }));
    }
}
