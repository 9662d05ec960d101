//! Whether the brake can hold a budget, and the step that it then makes.

use quell_control::config::{Meter, Regulation};
use quell_policy::{Group, MeterWanted, Role};
use quell_types::cpuset::CpuSet;
use quell_types::ids::StepId;
use quell_types::mechanism::Mechanism;
use quell_types::task::TaskMatch;

use crate::inventory::MeterKind;
use crate::plan::Setting;

use super::draft::Draft;
use super::wanted::{Budget, Wanted};
use super::words::bandwidth as words;

/// The meter with which the brake can hold a group's budget; or why it cannot.
pub(super) fn regulator(
    draft: &Draft<'_>,
    group: &Group,
    wanted: &Wanted,
) -> Result<Meter, String> {
    if let Some(why) = draft.unavailable(Mechanism::Bandwidth) {
        return Err(why);
    }
    if !draft.policy.mechanisms.bandwidth.regulates() {
        return Err("the policy switches the regulator off".to_owned());
    }
    let means = &draft.machine.means;
    if wanted.budget != Budget::Reserve {
        means.brake.clone()?;
        in_place(draft, &wanted.group, group)?;
    }
    let time = || {
        if means.time_meter {
            Ok(Meter::Time)
        } else {
            Err("CPU time of a cgroup cannot be counted (perf_event)".to_owned())
        }
    };
    match (draft.policy.regulator.meter, &means.meter) {
        (MeterWanted::Time, _) => time(),
        (_, MeterKind::Hardware { .. }) => Ok(Meter::Hardware),
        (MeterWanted::Hardware, MeterKind::None { why }) => Err(why.clone()),
        (MeterWanted::Hardware, MeterKind::Time) => {
            Err("no hardware counter counts on this machine".to_owned())
        }
        (MeterWanted::Auto, _) => time(),
    }
}

/// Whether a brake can hold a group in its own cgroup. It gets threaded children there. Its owner
/// would notice them, so they are made only where the policy insists.
fn in_place(draft: &Draft<'_>, name: &str, group: &Group) -> Result<(), String> {
    let mut tables = group.matching.iter();
    if !tables.clone().any(TaskMatch::in_place) {
        return Ok(());
    }
    if !draft.policy.mechanisms.bandwidth.insists() {
        return Err(words::not_next_to_a_brake(name));
    }
    if !tables.all(TaskMatch::in_place) {
        return Err(words::more_than_one_cgroup(name));
    }
    let means = &draft.machine.means;
    let able = means.brake_in_place.clone();
    able.map_err(|why| words::stays_where_it_is(name, &why))
}

/// The step of a budget: the brake holds it where it is a cap.
pub(super) fn regulate(
    draft: &mut Draft<'_>,
    name: &str,
    regulation: Regulation,
    because: String,
) -> StepId {
    let (capped, cpus) = (regulation.is_capped(), regulation.cpus.clone());
    let set = Setting::Regulate(regulation);
    let id = draft.step(Some(name), Mechanism::Bandwidth, set, because);
    if capped {
        sibling_note(draft, name, &cpus);
    }
    id
}

/// Notes that a stopped group still disturbs the SMT sibling: its brake spins while the group is
/// stopped.
fn sibling_note(draft: &mut Draft<'_>, name: &str, cpus: &CpuSet) {
    let machine = draft.machine;
    let critical = draft.policy.with_role(Role::Critical);
    for (other, _) in critical.filter(|(other, _)| *other != name) {
        let critical = draft.division.of(other).cpus.clone();
        let beside: CpuSet = machine
            .cpus
            .iter()
            .filter(|c| cpus.contains(c.id) && !c.siblings.intersection(&critical).is_empty())
            .map(|c| c.id)
            .collect();
        if !beside.is_empty() {
            draft.notes.push(words::shares_a_core(name, &beside, other));
        }
    }
}
