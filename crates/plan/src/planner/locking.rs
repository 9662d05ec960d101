//! Memory locked in a cache: one step per region, after all classes have left its ways.

use quell_types::cpuset::CpuSet;
use quell_types::mechanism::Mechanism;
use quell_types::partition::Mask;
use quell_types::refusal::Remedy;
use quell_types::units::Bytes;

use crate::plan::Setting;

use super::amounts::mask_of;
use super::division::{Divided, Kind, domains};
use super::draft::Draft;
use super::words::division as words;

/// Adds the steps that lock memory, after those that take its ways from all classes.
pub(super) fn plan(draft: &mut Draft<'_>, divided: &mut [Divided]) {
    for one in divided {
        let Kind::Ways(level) = one.kind else {
            continue;
        };
        let locks = one.claims.iter().zip(&one.allotted.parts);
        let locks: Vec<(String, Bytes, Mask)> = locks
            .filter_map(|(c, part)| Some((c.group.clone(), c.locked?, mask_of(part))))
            .collect();
        one_each(draft, &locks, level);
        for (group, size, mask) in locks {
            one_cache(draft, &group, level);
            let set = Setting::Lock { level, mask, size };
            let because = words::LOCKED_OUT_OF_ALL;
            let id = draft.step(Some(&group), Mechanism::PseudoLock, set, because);
            one.steps.push(id);
        }
    }
}

/// Refuses a group with CPUs of several caches: locked memory lives in one cache.
fn one_cache(draft: &mut Draft<'_>, group: &str, level: u32) {
    let cpus = draft.division.of(group).cpus.clone();
    let domains = domains(draft, level);
    let seen: Vec<&CpuSet> = domains
        .iter()
        .filter(|d| !d.intersection(&cpus).is_empty())
        .collect();
    if seen.len() > 1 {
        let sets: Vec<String> = seen.iter().map(|c| c.brief()).collect();
        let why = words::locked_in_one(seen.len(), level, &sets.join(" | "));
        let key = format!("group.{group}.reserve.cache");
        let remedies = [
            Remedy::leave_out(key.clone()),
            Remedy::from("give the group CPUs of one cache (`cpus`)"),
        ];
        draft.refuse(key, why, remedies);
    }
}

/// Refuses several regions in one cache: the kernel locks one.
fn one_each(draft: &mut Draft<'_>, locks: &[(String, Bytes, Mask)], level: u32) {
    if draft.machine.simulated.is_some() {
        return;
    }
    for cache in domains(draft, level) {
        let near = |group: &str| {
            let cpus = &draft.division.of(group).cpus;
            !cpus.intersection(&cache).is_empty()
        };
        let mut inside = locks.iter().map(|(group, ..)| group).filter(|g| near(g));
        if let (Some(first), Some(second)) = (inside.next(), inside.next()) {
            let key = format!("group.{second}.reserve.cache");
            let why = words::one_region(&cache.brief(), first);
            let remedies = [
                Remedy::leave_out(key.clone()),
                Remedy::from("give one of them ways, or CPUs of another cache"),
            ];
            draft.refuse(key, why, remedies);
            return;
        }
    }
}
