//! The caches that a part is about, where a machine has several of a level: those that the group's
//! CPUs use. In all others no task is confined. A group that has its caches to itself by its CPUs
//! needs no ways, which would be taken from nobody but itself.

use quell_policy::WaysKept;
use quell_types::cpuset::CpuSet;
use quell_types::partition::Mask;

use crate::plan::Promise;

use super::allot::Want;
use super::division::{Claim, Claims, Kind, domains};
use super::draft::Draft;
use super::wanted::Worth;

/// The CPUs of the caches that a group can fill. `None`: all caches.
fn reach(draft: &Draft<'_>, name: &str, level: u32) -> Option<CpuSet> {
    let part = draft.division.of(name);
    if !part.confined {
        return None;
    }
    let domains = domains(draft, level).into_iter();
    let own = domains.filter(|cache| !cache.intersection(&part.cpus).is_empty());
    let own = own.fold(CpuSet::new(), |all, cache| all.union(&cache));
    (!own.is_empty()).then_some(own)
}

/// Whether a group can fill one of the caches of these CPUs. An empty set stands for all caches.
pub(super) fn fills(draft: &Draft<'_>, name: &str, level: u32, caches_of: &CpuSet) -> bool {
    let meets = |own: CpuSet| !own.intersection(caches_of).is_empty();
    caches_of.is_empty() || reach(draft, name, level).is_none_or(meets)
}

/// Whether the masks of a kind may differ from cache to cache. Ways that move, and those of
/// registers, are the same in all.
fn differ(draft: &Draft<'_>, claims: &Claims) -> Option<u32> {
    let Kind::Ways(level) = claims.kind else {
        return None;
    };
    let policy = draft.policy;
    let plain =
        |claim: &Claim| claim.locked.is_none() && claim.window.is_none() && claim.code.is_none();
    let fixed = policy.mechanisms.ways != WaysKept::ByMisses
        && !policy.mechanisms.registers
        && policy.windows.is_none()
        && claims.list.iter().all(plain);
    (fixed && domains(draft, level).len() > 1).then_some(level)
}

/// Divides claims by the caches that they are about: those of groups that share a cache stay
/// together. Groups that are alone in their caches are promised them here.
pub(super) fn split(draft: &mut Draft<'_>, claims: Claims) -> Vec<Claims> {
    let Some(level) = differ(draft, &claims) else {
        return vec![claims];
    };
    let mut all: Vec<Claims> = Vec::new();
    for claim in claims.list {
        let own = reach(draft, &claim.group, level);
        if let Some(own) = &own
            && alone(draft, &claim, own)
        {
            promise(draft, &claim, level, claims.whole.count);
            continue;
        }
        let mut one = Claims {
            kind: claims.kind,
            whole: claims.whole,
            list: Vec::new(),
            caches_of: own.unwrap_or_default(),
        };
        let apart = |other: &Claims| {
            let both = [&other.caches_of, &one.caches_of];
            both.iter().all(|caches| !caches.is_empty()) && both[0].intersection(both[1]).is_empty()
        };
        let (others, mut together): (Vec<Claims>, Vec<Claims>) = all.into_iter().partition(apart);
        let everywhere = one.caches_of.is_empty();
        for other in &mut together {
            one.list.append(&mut other.list);
            one.caches_of = match everywhere || other.caches_of.is_empty() {
                true => CpuSet::new(),
                false => one.caches_of.union(&other.caches_of),
            };
        }
        one.list.push(claim);
        all = others;
        all.push(one);
    }
    all
}

/// Whether nobody else runs on the CPUs of a group's caches. Ways that the policy names are given
/// as named.
fn alone(draft: &Draft<'_>, claim: &Claim, caches_of: &CpuSet) -> bool {
    let part = draft.division.of(&claim.group);
    let named = matches!(claim.want, Want::Named(_));
    !named && part.exclusive && caches_of.difference(&part.blocked).is_empty()
}

/// Promises a group all ways of its caches but those that devices fill, too, by what keeps others
/// off its CPUs.
fn promise(draft: &mut Draft<'_>, claim: &Claim, level: u32, ways: u32) {
    let mut held = draft.promises.iter();
    let cpus =
        held.find(|held| held.group == claim.group && matches!(held.promise, Promise::Cpus { .. }));
    let Some(cpus) = cpus.cloned() else { return };
    let partitions = &draft.machine.partitions.ways;
    let of = partitions.iter().find(|of| of.level == level);
    let devices = of.map_or(0, |of| of.shareable.0);
    let promise = Promise::ReserveWays {
        level,
        mask: Mask(u64::MAX >> (64 - ways.clamp(1, 64)) & !devices),
        shared_with: Vec::new(),
    };
    let worth = Worth {
        level: cpus.level,
        weakest: cpus.weakest,
    };
    draft.promise(&claim.group, promise, worth, cpus.held_by);
}
