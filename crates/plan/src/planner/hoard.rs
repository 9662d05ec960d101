//! Colours on a machine whose memory nodes have all of them: a hoard holds the free page frames of
//! the reserved colours, and the pages of the groups that reserve them are moved into these.
//!
//! No other group is confined: a frame that is held cannot be handed out, whichever program asks
//! for one. That includes exempt groups. So one step holds, and each owner has one that settles it.

use quell_policy::{Coloured, HoardMoves, MemoryWanted, Role};
use quell_types::cpuset::CpuSet;
use quell_types::ids::StepId;
use quell_types::mechanism::Level;
use quell_types::partition::{Colouring, Divides, MapOrigin};
use quell_types::refusal::Remedy;
use quell_types::units::Bytes;

use crate::plan::Setting;

use super::division::{Claim, Divided, Kind, colouring};
use super::draft::Draft;
use super::wanted::Worth;
use super::words::{division as words, hoard as said};

/// The part of memory that stays free for other programs, where the policy does not say, in whole
/// MiB.
const RESERVE: u64 = 8;
const MIB: u64 = 1 << 20;

/// Whether colours are carried out by a hoard here.
pub(super) fn is_used(draft: &Draft<'_>) -> bool {
    draft.machine.partitions.hoarded
}

/// Adds the steps that hold the frames of reserved colours, and move the owners' pages into them.
pub(super) fn plan(draft: &mut Draft<'_>, divided: &mut [Divided]) {
    if !is_used(draft) {
        return;
    }
    let mut first: Option<String> = None;
    for one in divided {
        let Kind::Colours(divides) = one.kind else {
            continue;
        };
        let Some(key) = one.claims.first().map(Claim::at) else {
            continue;
        };
        if let Some(first) = &first {
            let remedies = [first.as_str(), key.as_str()].map(Remedy::leave_out);
            draft.refuse(key.as_str(), said::one_hoard(first), remedies);
            continue;
        }
        first = Some(key);
        let whole = colouring(&draft.machine.partitions, divides).cloned();
        let Some(whole) = whole else { continue };
        let parts = one.allotted.parts.iter();
        let colours = parts.fold(CpuSet::new(), |all, part| all.union(part));
        if let Some(held) = hold(draft, one, divides, &whole, colours.clone()) {
            one.steps.push(held);
            settle(draft, one, divides, &whole);
            vacate(draft, &one.owners(), divides, &whole, &colours);
        }
    }
}

/// The sizes of a hoard.
struct Sizes {
    /// The machine's memory.
    memory: Bytes,
    reserve: Bytes,
    /// What there can be of the reserved colours outside of the reserve, within the limit.
    most: Bytes,
    /// What the owners need at least.
    least: Bytes,
}

fn sizes(draft: &Draft<'_>, one: &Divided, whole: &Colouring, colours: &CpuSet) -> Sizes {
    let nodes = draft.machine.nodes.iter();
    let memory = nodes.map(|node| node.memory.0).fold(0, u64::saturating_add);
    let keys = draft.policy.hoard.clone().unwrap_or_default();
    let reserve = keys
        .reserve
        .map_or(memory / RESERVE / MIB * MIB, |reserve| reserve.0);
    let part = |bytes: u64| {
        let part = u128::from(bytes) * colours.len() as u128 / u128::from(whole.count().max(1));
        u64::try_from(part).unwrap_or(u64::MAX)
    };
    let most = part(memory.saturating_sub(reserve));
    let needed = one.claims.iter().filter_map(|claim| {
        match draft.policy.groups.get(&claim.group)?.reserve.memory? {
            MemoryWanted::Size(size) => Some(size.0),
            _ => None,
        }
    });
    Sizes {
        memory: Bytes(memory),
        reserve: Bytes(reserve),
        most: Bytes(keys.limit.map_or(most, |limit| most.min(limit.0))),
        least: Bytes(needed.fold(0, u64::saturating_add)),
    }
}

/// Adds the step that holds frames. `None`: it is refused.
fn hold(
    draft: &mut Draft<'_>,
    one: &Divided,
    divides: Divides,
    whole: &Colouring,
    colours: CpuSet,
) -> Option<StepId> {
    let sizes = sizes(draft, one, whole, &colours);
    let key = one.claims.first()?.at();
    if sizes.reserve >= sizes.memory {
        let why = said::nothing_is_left(sizes.reserve, sizes.memory);
        let remedies = ["hoard.reserve", key.as_str()].map(Remedy::leave_out);
        draft.refuse("hoard.reserve", why, remedies);
        return None;
    }
    let count = (colours.len(), whole.count());
    if sizes.least > sizes.most || sizes.most < whole.page {
        let why = said::holds_too_little(count.0, count.1, sizes.most, sizes.least);
        let remedies = [
            Remedy::leave_out(key.clone()),
            Remedy::from("reserve more colours, or change hoard.limit or hoard.reserve"),
        ];
        draft.refuse(key, why, remedies);
        return None;
    }
    let limit = draft.policy.hoard.as_ref().and_then(|keys| keys.limit);
    draft
        .notes
        .push(said::at_most(sizes.most, count.0, count.1));
    draft.notes.push(said::not_sorted(sizes.reserve));
    draft.notes.push(said::NO_LARGE_PAGES.to_owned());
    if let Some(limit) = limit {
        draft.notes.push(said::limited(limit));
    }
    let set = Setting::Hoard {
        colouring: whole.clone(),
        colours,
        limit,
        reserve: sizes.reserve,
        least: sizes.least,
    };
    let mechanism = divides.mechanisms()[0];
    Some(draft.step(None, mechanism, set, said::EXCLUDES))
}

/// Adds a step for each owner, which moves its pages.
fn settle(draft: &mut Draft<'_>, one: &mut Divided, divides: Divides, whole: &Colouring) {
    let keys = draft.policy.hoard.clone().unwrap_or_default();
    for (claim, part) in one.claims.iter().zip(&one.allotted.parts) {
        let group = draft.policy.groups.get(&claim.group);
        let fails = group.is_some_and(|g| g.coloured == Some(Coloured::Fail));
        let after = if fails { said::fails } else { said::spills };
        draft.notes.push(after(&claim.group));
        let set = Setting::Settle {
            divides,
            colouring: whole.clone(),
            colours: part.clone(),
            spill: !fails,
            pace: keys.pace,
            longest: keys.longest_stop,
        };
        let because = said::moved(claim.key);
        let step = draft.step(Some(&claim.group), divides.mechanisms()[0], set, because);
        one.steps.push(step);
    }
}

/// Adds a step for each best-effort group without reserved colours, which moves its pages out of
/// them, if the policy allows that. `reserved` are the colours of all owners.
fn vacate(
    draft: &mut Draft<'_>,
    owners: &[&str],
    divides: Divides,
    whole: &Colouring,
    reserved: &CpuSet,
) {
    let keys = draft.policy.hoard.clone().unwrap_or_default();
    if keys.moved != HoardMoves::Groups {
        return;
    }
    let left: CpuSet = (0..whole.count())
        .filter(|colour| !reserved.contains(*colour))
        .collect();
    let (policy, mut any) = (draft.policy, false);
    for (name, _) in policy.with_role(Role::BestEffort) {
        if owners.contains(&name.as_str()) {
            continue;
        }
        any = true;
        draft
            .notes
            .push(said::vacates(name, keys.pace, keys.longest_stop));
        let set = Setting::Vacate {
            divides,
            colouring: whole.clone(),
            colours: left.clone(),
            pace: keys.pace,
            longest: keys.longest_stop,
        };
        draft.step(Some(name), divides.mechanisms()[0], set, said::VACATED);
    }
    if !any {
        draft.notes.push(said::NOTHING_TO_VACATE.to_owned());
    }
}

/// What the promise of colours is worth.
pub(super) fn worth(draft: &Draft<'_>) -> Worth {
    let map = draft.machine.partitions.address_map.as_ref();
    let published = map.filter(|map| map.origin == MapOrigin::Published);
    let published = published.map(|map| words::published_map(&map.from) + "; ");
    Worth::of(
        Level::Regulated,
        published.unwrap_or_default() + said::NOT_PROMISED,
    )
}
