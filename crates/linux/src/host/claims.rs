//! What the witness is to judge: the promises of the plan, and the groups as they were gathered.

use quell_plan::{GroupPlan, Held, Plan, Promise, Setting, Step};
use quell_types::ids::PromiseId;
use quell_witness::{Claim, Party, What};

use super::Groups;

/// The promises at which the witness can look. Others have no claim.
pub fn claims(plan: &Plan) -> Vec<Claim> {
    let claim = |(id, held): (PromiseId, &Held)| {
        Some(Claim {
            id,
            group: held.group.clone(),
            what: what(plan, held)?,
        })
    };
    plan.numbered().filter_map(claim).collect()
}

fn what(plan: &Plan, held: &Held) -> Option<What> {
    let by = |step: &&Step| held.held_by.contains(&step.id);
    let mut steps = plan.steps.iter().filter(by);
    match &held.promise {
        Promise::Cpus { cpus } => Some(What::Alone { cpus: cpus.clone() }),
        Promise::LimitCpuTime { share } => {
            let period = steps.find_map(|step| match &step.set {
                Setting::CpuMax { period, .. } => Some(*period),
                _ => None,
            })?;
            Some(What::CpuTime {
                share: *share,
                period,
            })
        }
        Promise::LimitMemory { most } => Some(What::Memory { most: *most }),
        Promise::ReserveWays {
            level,
            mask,
            shared_with,
        } => {
            // Ways that move while the plan holds, or with windows, are not what was planned.
            let moves = !plan.loops.follows.is_empty()
                || (plan.steps.iter()).any(|step| matches!(step.set, Setting::Windows(_)));
            let by_classes = steps.any(|step| matches!(step.set, Setting::Ways { .. }));
            (by_classes && !moves).then(|| What::Ways {
                level: *level,
                mask: *mask,
                shared_with: shared_with.clone(),
            })
        }
        _ => None,
    }
}

/// The groups of a plan, with the cgroups that they have now.
pub fn parties(plan: &Plan, groups: &Groups) -> Vec<Party> {
    let party = |group: &GroupPlan| {
        let gathered = groups.of.get(&group.name)?;
        let places = gathered.cgroups.places.iter();
        Some(Party {
            name: group.name.clone(),
            matching: gathered.matching.clone(),
            homes: places.map(|place| place.dir.clone()).collect(),
            cpus: group.cpus.clone(),
        })
    };
    plan.groups.iter().filter_map(party).collect()
}
