//! Reserves: whether they fit, what they leave to best-effort groups, and what each is worth.

use quell_control::config::Meter;
use quell_policy::{Group, Role, Sustainable};
use quell_types::cpuset::CpuSet;
use quell_types::ids::StepId;
use quell_types::mechanism::Level;
use quell_types::refusal::Remedy;
use quell_types::units::Rate;

use crate::inventory::Measured;
use crate::plan::Promise;

use super::brake::regulator;
use super::caps::Limited;
use super::deadline;
use super::draft::Draft;
use super::rates::Rates;
use super::wanted::{Budget, MARGIN, Wanted, Worth, rounded};
use super::words::assumed::refused_by_run;
use super::words::reserves as words;

/// Refuses reserves that sum to more than the machine sustains.
pub(super) fn fit(draft: &mut Draft<'_>, rates: &Rates) {
    let Some(sustainable) = draft.sustainable(&draft.machine.cpu_set()) else {
        return;
    };
    let sum: u64 = rates.reserves.iter().map(|r| r.rate.0).sum();
    let Some(largest) = rates.reserves.iter().max_by_key(|r| r.rate) else {
        return;
    };
    if sum <= sustainable.0 {
        return;
    }
    let why = words::too_much(&rates.reserves, Rate(sum), &draft.figure(sustainable));
    if draft.assumes() {
        draft.acts.push(refused_by_run(&why));
        return;
    }
    let key = largest.key();
    let fits = rounded(Rate(largest.rate.0.saturating_sub(sum - sustainable.0)));
    let remedy = match fits {
        Rate(0) => Remedy::leave_out(key.clone()),
        fits => Remedy::set_text(key.clone(), fits),
    };
    draft.refuse(key, why, remedy);
}

/// What the reserves leave, divided by weight among the best-effort groups without a limit. Without
/// reserves a target alone takes nothing before units are late: each has all that it can draw.
pub(super) fn spare_of(draft: &Draft<'_>, rates: &Rates) -> Option<Vec<Wanted>> {
    let policy = draft.policy;
    let open = |(_, g): &(&String, &Group)| g.role == Role::BestEffort && policy.cap(g).is_none();
    let open: Vec<(&String, &Group)> = policy.groups.iter().filter(open).collect();
    let total = draft.sustainable(&draft.machine.cpu_set())?;
    if rates.reserves.is_empty() {
        let peak = draft.machine.measured.as_ref()?.peak_cpu;
        let all = |(name, group): (&String, &Group)| {
            let cpus = draft.division.of(name).cpus.len() as u64;
            let mut wanted = Wanted {
                group: name.clone(),
                rate: Rate(peak.0.saturating_mul(cpus)),
                origin: words::ALL_IT_CAN_DRAW.to_owned(),
                share: None,
                budget: Budget::Spare,
                apart: None,
            };
            if regulator(draft, group, &wanted) == Ok(Meter::Hardware) {
                wanted.rate = wanted.rate.min(total);
            }
            wanted
        };
        return deadline::adapts(policy).then(|| open.into_iter().map(all).collect());
    }
    let fixed = policy.groups.keys().map(|name| {
        let limit = rates.limit(name).map_or(Rate(0), Wanted::exact);
        limit.max(rates.kept(name)).0
    });
    // A reserve on some memory nodes is worth something only if the best-effort groups fit there,
    // too.
    let nodes = rates.reserves.iter();
    let nodes = nodes.filter_map(|wanted| Some(nodes_of(draft, &wanted.group)?.gives));
    let of = nodes.min().map_or(total, |gives| gives.min(total));
    let left = of.0.saturating_sub(fixed.sum());
    // At most half is kept for unmatched tasks: a short peak of theirs must leave something to each
    // group.
    let rest = draft.kept_for_rest().unwrap_or_default();
    let rest = Rate(rest.0.min(left / 2));
    let spare = left - rest.0;
    let all: u64 = open.iter().map(|(_, g)| u64::from(g.weight())).sum();
    let what = words::what_is_left(rest, &draft.figure(of));
    let wanted = |(name, group): (&String, &Group)| {
        let weight = u64::from(group.weight());
        let extra = u128::from(spare) * u128::from(weight) / u128::from(all.max(1));
        let extra = u64::try_from(extra).unwrap_or(u64::MAX);
        Wanted {
            group: name.clone(),
            rate: rounded(Rate(rates.kept(name).0.saturating_add(extra))),
            origin: words::part_of(&what, weight, all),
            share: None,
            budget: Budget::Spare,
            apart: None,
        }
    };
    Some(open.into_iter().map(wanted).collect())
}

impl Draft<'_> {
    /// The rate kept for unmatched tasks, which nothing regulates. `None`: it was not measured.
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

/// What unmatched tasks leave of a reserve's worth. `None` where they do not weaken it.
fn beside_rest(draft: &Draft<'_>, rates: &Rates, limited: &[Limited]) -> Option<Worth> {
    let Some(rest) = draft.kept_for_rest() else {
        return Some(Worth::of(Level::None, words::REST_IS_UNMEASURED));
    };
    let known = draft.known();
    let total = draft.sustainable(&draft.machine.cpu_set())?;
    let budgets = budgets(draft, rates, limited);
    let drawn = rounded(Rate(rest.0 / MARGIN));
    let both = Rate(budgets.0.saturating_add(rest.0));
    if both > total {
        let (budgets, both) = (rounded(budgets), rounded(both));
        let total = draft.figure(total);
        let why = if rest == Rate(0) {
            words::budgets_exceed(budgets, &total)
        } else {
            words::budgets_and_rest_exceed(budgets, drawn, both, known, &total)
        };
        return Some(Worth::of(Level::None, why));
    }
    (rest != Rate(0)).then(|| Worth::of(Level::Estimated, words::kept_for_rest(drawn, known)))
}

/// What all groups may draw together: each its limit or its reserve, whichever is more.
fn budgets(draft: &Draft<'_>, rates: &Rates, limited: &[Limited]) -> Rate {
    let all = draft.policy.groups.keys().map(|name| {
        let limit = of(limited, name).map_or(Rate(0), |l| l.wanted.rate);
        limit.max(rates.kept(name)).0
    });
    Rate(all.fold(0, u64::saturating_add))
}

/// How a group was limited, if it was.
fn of<'l>(limited: &'l [Limited], group: &str) -> Option<&'l Limited> {
    limited.iter().find(|l| l.wanted.group == group)
}

/// The memory nodes of a group's CPUs.
struct Nodes {
    own: CpuSet,
    /// What they are assumed to give: their even part of the machine's rate.
    gives: Rate,
}

/// `None` where the group's nodes are all there are.
fn nodes_of(draft: &Draft<'_>, name: &str) -> Option<Nodes> {
    let own = draft.nodes_of(&draft.division.of(name).cpus);
    let all = draft.nodes_of(&draft.machine.cpu_set());
    if own.len() >= all.len() {
        return None;
    }
    let total = draft.sustainable(&draft.machine.cpu_set())?;
    let gives = Rate(total.0 / all.len() as u64 * own.len() as u64);
    Some(Nodes { own, gives })
}

/// What the nodes of a reserve's group leave of its worth. The machine's rate is that of all nodes
/// together, but all other groups may draw from the same ones.
fn one_node(
    draft: &Draft<'_>,
    reserve: &Wanted,
    rates: &Rates,
    limited: &[Limited],
) -> Option<Worth> {
    let Nodes { own, gives } = nodes_of(draft, &reserve.group)?;
    let others = draft.policy.groups.keys();
    let others = others.filter(|other| **other != reserve.group);
    let others: u64 = others
        .map(|other| {
            of(limited, other)
                .map_or(rates.kept(other), |l| l.wanted.rate)
                .0
        })
        .sum();
    let known = draft.known();
    Some(if reserve.rate.0.saturating_add(others) > gives.0 {
        let why = words::others_fill_the_nodes(&own, Rate(others), gives, known);
        Worth::of(Level::None, why)
    } else {
        Worth::of(
            Level::Estimated,
            words::even_part_of_nodes(&own, gives, known),
        )
    })
}

/// A reserve that is held without any limit, by which steps and why.
struct OutOfReach {
    held_by: Vec<StepId>,
    why: String,
}

/// Other groups draw no more than their CPUs can. Where that leaves enough for a group with
/// exclusive CPUs, the partition holds the reserve, with or without limits.
fn out_of_reach(draft: &Draft<'_>, reserve: &Wanted) -> Option<OutOfReach> {
    let mut own = draft.promises.iter().filter(|p| p.group == reserve.group);
    let partition = own.find(|p| matches!(p.promise, Promise::Cpus { .. }))?;
    let part = draft.division.of(&reserve.group);
    let others = draft.machine.cpu_set().difference(&part.blocked);
    // The rate of a single node is not known well enough for this.
    if draft.nodes_of(&draft.machine.cpu_set()).len() > 1 {
        return None;
    }
    let peak = draft.machine.measured.as_ref()?.peak_cpu;
    let draw = peak.0.saturating_mul(others.len() as u64);
    let total = draft.sustainable(&draft.machine.cpu_set())?;
    (reserve.rate.0.saturating_add(draw) <= total.0).then(|| OutOfReach {
        held_by: partition.held_by.clone(),
        why: words::draws_at_most(&others, Rate(draw), draft.known(), &draft.figure(total)),
    })
}

/// Why reserves are not promised that exceed what all CPUs sustain of the most expensive operation.
/// They are there for some programs only: the sustainable rate is that of the cheapest operation.
fn not_for_all(draft: &Draft<'_>, rates: &Rates) -> Option<String> {
    if let Sustainable::Rate(_) = draft.policy.regulator.sustainable {
        return None;
    }
    let measured = draft.machine.measured.as_ref()?;
    let (operation, least) = measured.least_sustained()?;
    let sum = Rate(rates.reserves.iter().map(|r| r.rate.0).sum());
    (sum > least).then(|| words::not_for_all(sum, operation, least, measured))
}

/// What a reserve is worth next to another group.
fn beside(draft: &Draft<'_>, other: &str, group: &Group, limited: Option<&Limited>) -> Worth {
    match limited {
        Some(l) => Worth::of(
            l.worth.level,
            words::the_limit_of(other, l.worth.weakest.as_deref()),
        ),
        None if group.reserve.bandwidth.is_some() => {
            Worth::of(Level::None, words::has_no_limit_but_a_reserve(other))
        }
        None if draft.machine.measured.is_none() => {
            Worth::of(Level::None, words::has_no_limit_unmeasured(other))
        }
        None => Worth::of(Level::None, words::has_no_limit(other)),
    }
}

/// Each reserve is worth what the weakest limit on other groups and unmatched tasks is worth.
pub(super) fn judge_reserves(draft: &mut Draft<'_>, rates: &Rates, limited: &[Limited]) {
    let beyond = not_for_all(draft, rates);
    for reserve in &rates.reserves {
        let mut worth = Worth::plain(Level::Enforced);
        let mut held_by: Vec<StepId> = Vec::new();
        let others = draft.policy.groups.iter();
        for (other, group) in others.filter(|(name, _)| **name != reserve.group) {
            let limited = of(limited, other);
            held_by.extend(
                limited
                    .and_then(|l| l.by)
                    .filter(|by| !held_by.contains(by)),
            );
            worth.lower(beside(draft, other, group, limited));
        }
        let measured = draft.machine.measured.as_ref();
        let doubt = measured.and_then(Measured::doubt);
        let weaker = [
            beside_rest(draft, rates, limited),
            doubt.map(|why| Worth::of(Level::Estimated, why)),
            beyond.clone().map(|why| Worth::of(Level::None, why)),
            one_node(draft, reserve, rates, limited),
        ];
        weaker.into_iter().flatten().for_each(|to| worth.lower(to));
        if worth.level < Level::Estimated
            && beyond.is_none()
            && let Some(out) = out_of_reach(draft, reserve)
        {
            worth = Worth::of(Level::Estimated, out.why);
            held_by = out.held_by;
        }
        if worth.level == Level::Enforced {
            // No other task is there, but it is still only as good as the measured rate.
            worth.level = Level::Estimated;
        }
        promise(draft, reserve, &worth, &held_by);
    }
}

/// Promises a reserve, once per direction where the reserve names directions.
fn promise(draft: &mut Draft<'_>, reserve: &Wanted, worth: &Worth, held_by: &[StepId]) {
    let rate = reserve.rate;
    let promises = match reserve.apart {
        None => vec![Promise::ReserveBandwidth { rate }],
        Some(directions) => directions
            .given()
            .map(|(direction, rate)| Promise::ReserveDirection { direction, rate })
            .collect(),
    };
    for promise in promises {
        let held_by = held_by.iter().copied();
        draft.promise(&reserve.group, promise, worth.clone(), held_by);
    }
}
