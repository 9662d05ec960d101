//! Reserves: whether they fit, what they leave to the others, and what each is worth in the end.

use crate::cpuset::CpuSet;
use crate::mechanism::Level;
use crate::plan::{Held, Promise};
use crate::policy::{Bandwidth, Group, Role};
use crate::units::Rate;

use super::Draft;
use super::bandwidth::{Limited, Wanted, resolve, rounded};
use super::cpus::on;

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
        draft.refuse(
            "reserve.bandwidth",
            format!(
                "the reserves ({}) come to {}, more than the {sustainable} this machine sustains",
                named.join(", "),
                Rate(sum)
            ),
            Some("lower them until they fit".to_owned()),
        );
    }
    list
}

/// What the reserves of others leave, divided by weight among the best-effort groups without a limit of their own.
pub(super) fn spare_of(draft: &Draft<'_>, reserved: &[(String, Rate)]) -> Option<Vec<Wanted>> {
    if reserved.is_empty() {
        return None;
    }
    let total = draft.sustainable(&draft.machine.cpu_set())?;
    let open: Vec<(&String, &Group)> = draft
        .policy
        .groups
        .iter()
        .filter(|(_, g)| g.role == Role::BestEffort && g.limit.bandwidth.is_none())
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
        .map(|(name, g)| match g.limit.bandwidth {
            Some(Bandwidth::Rate(rate)) => rate.0.max(kept(name)),
            Some(Bandwidth::Share(share)) => draft
                .sustainable(&draft.division.of(name).cpus)
                .map_or(0, |r| r.part(share).0)
                .max(kept(name)),
            _ => kept(name),
        })
        .sum();
    let spare = total.0.saturating_sub(fixed);
    let weights: u64 = open.iter().map(|(_, g)| u64::from(g.weight())).sum();
    let part = |g: &Group| u128::from(spare) * u128::from(g.weight()) / u128::from(weights.max(1));
    Some(
        open.iter()
            .map(|(name, g)| {
                let extra = u64::try_from(part(g)).unwrap_or(u64::MAX);
                Wanted {
                    group: (*name).clone(),
                    rate: rounded(Rate(kept(name).saturating_add(extra))),
                    origin: format!(
                        ", its part (weight {} of {weights}) of what reserves and limits leave of {}",
                        g.weight(),
                        rounded(total)
                    ),
                }
            })
            .collect(),
    )
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
    let nodes = if own.len() == 1 { "node" } else { "nodes" };
    Some(if reserve.0.saturating_add(others) > part.0 {
        let why = format!(
            "memory {nodes} {own}: the others together may draw {} there, and it has about {}, its part of the measured rate; \
             limit them to what it has left",
            rounded(Rate(others)),
            rounded(part)
        );
        (Level::None, why)
    } else {
        let why = format!(
            "memory {nodes} {own} is taken to have its even part of the measured rate, about {}",
            rounded(part)
        );
        (Level::Estimated, why)
    })
}

/// A reserve is worth what the weakest limit on everyone else is worth.
pub(super) fn judge_reserves(
    draft: &mut Draft<'_>,
    reserved: &[(String, Rate)],
    limited: &[Limited],
) {
    let policy = draft.policy;
    for (name, rate) in reserved {
        let mut level = Level::Enforced;
        let mut weakest = None;
        let mut held_by = Vec::new();
        let mut weaken = |to: Level, why: String| {
            if to < level {
                level = to;
                weakest = Some(why);
            }
        };
        for (other, group) in policy.groups.iter().filter(|(n, _)| *n != name) {
            match limited.iter().find(|l| l.group == *other) {
                Some(l) => {
                    held_by.extend(l.by);
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
        let counted = limited
            .iter()
            .filter(|l| l.counts_all)
            .fold(CpuSet::new(), |sum, l| sum.union(&l.cpus));
        if !draft.division.rest.is_subset(&counted) {
            weaken(
                Level::None,
                if counted.is_empty() {
                    "unmatched tasks (group rest) have no limit".to_owned()
                } else {
                    format!(
                        "unmatched tasks (group rest) have no limit on {}",
                        on(&draft.division.rest.difference(&counted))
                    )
                },
            );
        }
        if let Some((bound, why)) = one_node(draft, name, *rate, reserved, limited) {
            weaken(bound, why);
        }
        if level == Level::Enforced {
            // Nobody else is there: still only as good as the measured rate.
            level = Level::Estimated;
        }
        draft.promises.push(Held {
            group: name.clone(),
            promise: Promise::ReserveBandwidth { rate: *rate },
            level,
            held_by,
            weakest,
        });
    }
}
