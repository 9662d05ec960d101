//! The weight of best-effort groups: the cheapest means against neighbours that want the same CPU.
//!
//! It costs a neighbour nothing while no other program wants the CPU.

use quell_policy::{Group, Role};
use quell_types::mechanism::Mechanism;
use quell_types::options::CpuWeight;
use quell_types::refusal::Remedy;

use crate::inventory::Availability;
use crate::plan::Setting;

use super::draft::Draft;

/// What a best-effort group gets where the policy does not say. Next to any number a program that
/// wakes may wait for a tick: redis at half of its peak had a p99 of 3.3 ms next to 10 of 100, of
/// 1.7 next to 2, of 0.4 next to an idle group, and of 0.2 alone
/// (`docs/results/2026-11-23-brake.md`).
const LOW: CpuWeight = CpuWeight::Idle;

/// The same where a group cannot be made idle: a kernel before 5.15, or a cgroup of its own, which
/// would lose its weight.
const LOW_NUMBER: CpuWeight = CpuWeight::Of(2);

/// The weight a group is to have, if it is to have one of its own.
fn wanted(draft: &Draft<'_>, group: &Group) -> Option<CpuWeight> {
    let allowed = !draft.policy.mechanisms.deny.contains(&Mechanism::Weight);
    let idle = draft.machine.means.brake.is_ok() && !group.matching.iter().any(|m| m.in_place());
    let usual = if idle { LOW } else { LOW_NUMBER };
    let usual = (group.role == Role::BestEffort && allowed).then_some(usual);
    group.cpu_weight.or(usual)
}

/// Whether its cgroup lies in the slice of low weights: below what the kernel gives every cgroup.
pub(super) fn is_low(weight: CpuWeight) -> bool {
    match (weight, CpuWeight::USUAL) {
        (CpuWeight::Of(weight), CpuWeight::Of(usual)) => weight < usual,
        _ => true,
    }
}

/// The weight of a group for which the machine has the means.
pub(super) fn of(draft: &Draft<'_>, group: &Group) -> Option<CpuWeight> {
    wanted(draft, group).filter(|_| draft.unavailable(Mechanism::Weight).is_none())
}

pub(super) fn plan(draft: &mut Draft<'_>) {
    let policy = draft.policy;
    for (name, group) in &policy.groups {
        if let Some(weight) = of(draft, group) {
            let because = match (group.cpu_weight, weight) {
                (Some(_), _) => "as written",
                (None, CpuWeight::Idle) => {
                    "a best-effort group has what no other program wants, and hardly anything next to a busy one (cpu-weight = 10 \
                     gives it a tenth of that CPU)"
                }
                (None, CpuWeight::Of(_)) => {
                    "a best-effort group takes a fiftieth of a CPU from a busy program, and has all that no other program wants"
                }
            };
            let set = Setting::Weight { weight };
            draft.step(Some(name), Mechanism::Weight, set, because);
        } else if group.cpu_weight.is_some()
            && let Some(why) = draft.unavailable(Mechanism::Weight)
        {
            let key = format!("group.{name}.cpu-weight");
            let instead = Remedy::leave_out(key.clone());
            draft.refuse_lacking(Mechanism::Weight, key, why, instead);
        } else if wanted(draft, group).is_some()
            && let Some(Availability::No { why, .. }) =
                draft.machine.mechanisms.get(&Mechanism::Weight)
        {
            let kept = format!("{name} keeps the CPU weight that it has: {why}");
            draft.acts.push(kept);
        }
    }
}
