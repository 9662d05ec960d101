//! The weight of best-effort groups: the cheapest means against neighbours that want the same CPU.
//!
//! A low weight costs a neighbour nothing while nobody else wants the CPU, and leaves a busy critical program 91 % of it.

use crate::mechanism::Mechanism;
use crate::plan::Setting;
use crate::policy::{CpuWeight, Group, Policy, Role};

use super::Draft;

/// What a best-effort group gets where the policy does not say. Chosen as the largest of 1, 2, 5 and 10 next to which redis
/// answers as alone (`docs/results/2026-11-23-brake.md`).
pub(super) const LOW: CpuWeight = CpuWeight::Of(10);

/// The same of a group that a brake stops. Chosen as the largest of 1, 2, 5 and 10 next to which a periodic program wakes as
/// next to the weight alone: the group's tasks run in short bursts, and what wakes early in one waits for its end the more
/// rarely the smaller the weight.
const UNDER_A_BRAKE: CpuWeight = CpuWeight::Of(2);

/// That weight, and why.
pub(super) fn under_a_brake() -> (CpuWeight, String) {
    let because = "a best-effort group that a brake stops takes a fiftieth of a CPU from a busy program, and all of its limit where \
        nobody else wants the CPU";
    (UNDER_A_BRAKE, because.to_owned())
}

/// The weight a group is to have, if it is to have one of its own.
pub(super) fn wanted(policy: &Policy, group: &Group) -> Option<CpuWeight> {
    let allowed = !policy.mechanisms.deny.contains(&Mechanism::Weight);
    let usual = (group.role == Role::BestEffort && allowed).then_some(LOW);
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
    wanted(draft.policy, group).filter(|_| draft.unavailable(Mechanism::Weight).is_none())
}

pub(super) fn plan(draft: &mut Draft<'_>) {
    let policy = draft.policy;
    for (name, group) in &policy.groups {
        if let Some(weight) = of(draft, group) {
            let because = match group.cpu_weight {
                Some(_) => "as written",
                None => {
                    "a best-effort group takes a tenth of a CPU from a busy program, and all that nobody else wants"
                }
            };
            draft.step(
                Some(name),
                Mechanism::Weight,
                Setting::Weight { weight },
                because,
            );
        } else if group.cpu_weight.is_some()
            && let Some(why) = draft.unavailable(Mechanism::Weight)
        {
            let remedy = "leave cpu-weight out".to_owned();
            draft.refuse(format!("group.{name}.cpu-weight"), why, Some(remedy));
        }
    }
}
