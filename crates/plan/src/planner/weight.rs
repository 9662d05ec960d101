//! The weight of best-effort groups: the cheapest way to keep neighbours from a CPU that a program
//! wants.
//!
//! It costs a neighbour nothing while no other program wants the CPU.

use quell_policy::{Group, Role};
use quell_types::mechanism::{Level, Mechanism};
use quell_types::options::CpuWeight;
use quell_types::refusal::Remedy;
use quell_types::task::TaskMatch;

use crate::inventory::{Availability, CpusetKind};
use crate::plan::{Promise, Setting};

use super::draft::Draft;
use super::wanted::Worth;
use super::words::cores as words;

/// The weight of a best-effort group where the policy states none. Next to any number, a program
/// that wakes may wait for a tick. At half of its peak, redis had a p99 of 3.3 ms next to weight 10
/// of 100, and 1.7 ms next to weight 2. It had 0.4 ms next to an idle group, and 0.2 ms alone
/// (`docs/results/2026-11-23-brake.md`).
const LOW: CpuWeight = CpuWeight::Idle;

/// The weight where a group cannot be made idle. That is so before Linux 5.15, and for a group in
/// its own cgroup, which would lose its weight.
const LOW_NUMBER: CpuWeight = CpuWeight::Of(2);

/// The weight that a group is to have; `None`: it keeps the usual one.
fn wanted(draft: &Draft<'_>, group: &Group) -> Option<CpuWeight> {
    let allowed = !draft.policy.mechanisms.deny.contains(&Mechanism::Weight);
    let idle = draft.machine.means.brake.is_ok() && !group.matching.iter().any(|m| m.in_place());
    let usual = if idle { LOW } else { LOW_NUMBER };
    let usual = (group.role == Role::BestEffort && allowed).then_some(usual);
    group.cpu_weight.or(usual)
}

/// Whether each hierarchy has controllers of its own (v1).
const fn split(draft: &Draft<'_>) -> bool {
    matches!(draft.machine.means.cpuset, CpusetKind::V1)
}

/// Whether the group's cgroups lie below a limit around all groups, next to those of the others.
const fn enclosed(draft: &Draft<'_>) -> bool {
    draft.policy.bounds.memory.is_some() && !split(draft)
}

/// Whether the group's cgroup lies directly below the root: a weight is to count against all other
/// programs. On CPUs of its own there are none.
pub(super) fn is_outermost(draft: &Draft<'_>, name: &str, group: &Group) -> bool {
    let weighed = of(draft, group).is_some() || group.reserve.disk_weight.is_some();
    weighed && !draft.division.of(name).exclusive && !enclosed(draft)
}

/// The weight of a group, if the machine can set it.
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
            let step = draft.step(Some(name), Mechanism::Weight, set, because);
            let in_place = group.matching.iter().any(TaskMatch::in_place);
            // Its own cgroup may lie in a hierarchy without the cpu controller.
            if group.cpu_weight.is_none() && in_place && split(draft) {
                continue;
            }
            let weakest = match in_place || enclosed(draft) {
                true => words::WEIGHED_IN_ITS_SLICE,
                false => words::REAL_TIME_COMES_FIRST,
            };
            let worth = Worth::of(Level::Enforced, weakest);
            draft.promise(name, Promise::Weight { weight }, worth, [step]);
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
