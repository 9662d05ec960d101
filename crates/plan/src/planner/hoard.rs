//! Colours on a machine whose memory nodes have all of them: a hoard holds the free page frames of
//! the reserved colours, and the pages of the groups that reserve them are moved into these.
//!
//! No other group is confined: a frame that is held cannot be handed out, whichever program asks
//! for one. That includes exempt groups. So one step holds, and each owner has one that settles it.
//!
//! Sets and banks that share no address bits are reserved independently. A frame then has a
//! *combined colour*: one of the sets and one of the banks. It is held if some group reserves
//! either of them. It is a group's if both are in the group's parts. A group that reserves one kind
//! alone has what is left of the other kind. Combined colours that are held and no group's stay
//! unused: their frames would bring a program into the sets or banks of another group.

use quell_policy::{Coloured, HoardMoves, MemoryWanted, Role};
use quell_types::address::gf2::Space;
use quell_types::address::{Colours, large_shift};
use quell_types::cpuset::{CpuSet, MAX_CPU};
use quell_types::ids::StepId;
use quell_types::mechanism::Level;
use quell_types::partition::{Colouring, Divides, MapOrigin};
use quell_types::refusal::Remedy;
use quell_types::units::Bytes;

use crate::plan::Setting;

use super::division::{BOTH, Claim, Divided, Kind, colouring};
use super::draft::Draft;
use super::wanted::Worth;
use super::words::{division as words, hoard as said};

/// The part of memory that stays free for other programs, where the policy does not say, in whole
/// MiB.
const RESERVE: u64 = 8;
const MIB: u64 = 1 << 20;
/// The most combined colours: lists of colours go up to this number.
const MOST: u32 = MAX_CPU + 1;

/// Whether colours are carried out by a hoard here.
pub(super) fn is_used(draft: &Draft<'_>) -> bool {
    draft.machine.partitions.hoarded
}

/// Whether the policy wants colours without a hoard: groups get theirs, and no program is kept out.
pub(super) fn holds_nothing(draft: &Draft<'_>) -> bool {
    let keys = draft.policy.hoard.as_ref();
    is_used(draft) && keys.is_some_and(|keys| keys.limit == Some(Bytes(0)))
}

/// Whether a step of a hoard holds a promise to this group: it is the hoard's, or the group's own.
pub(super) fn holds(draft: &Draft<'_>, step: StepId, group: &str) -> bool {
    let mut steps = draft.steps.iter().filter(|s| s.id == step);
    steps.all(|s| s.group.as_ref().is_none_or(|own| own == group))
}

/// What a hoard holds, and for which groups.
struct Shape {
    divides: Divides,
    whole: Colouring,
    /// The colours that only their owners get.
    held: CpuSet,
    /// The groups that reserve some, in the order of the policy.
    owners: Vec<Owner>,
}

/// A group that reserves colours.
struct Owner {
    /// Its claim; of two, with the name of both keys.
    claim: Claim,
    colours: CpuSet,
    /// Its part of each kind, in words.
    parts: Vec<String>,
    /// What it has of the kind that it does not reserve, in words.
    rest: Option<String>,
}

/// Adds the steps that hold the frames of reserved colours, and move the owners' pages into them.
pub(super) fn plan(draft: &mut Draft<'_>, divided: &mut [Divided]) {
    if !is_used(draft) {
        return;
    }
    let coloured = |one: &&mut Divided| matches!(one.kind, Kind::Colours(_));
    let mut kinds: Vec<&mut Divided> = divided.iter_mut().filter(coloured).collect();
    // Banks were claimed first. Sets are the lower bits of a combined colour.
    kinds.reverse();
    let Some(shape) = shape(draft, &kinds) else {
        return;
    };
    let mut steps = Vec::new();
    if holds_nothing(draft) {
        unheld(draft);
    } else if let Some(held) = hold(draft, &shape) {
        steps.push(held);
    } else {
        return;
    }
    steps.extend(settle(draft, &shape));
    if !holds_nothing(draft) {
        vacate(draft, &shape);
    }
    kinds.iter_mut().for_each(|one| one.steps.extend(&steps));
}

/// What is to be held. `None`: no colours are reserved, or it is refused.
fn shape(draft: &mut Draft<'_>, kinds: &[&mut Divided]) -> Option<Shape> {
    let mut divides = None;
    let mut whole: Option<Colouring> = None;
    let mut bits = Vec::new();
    for one in kinds {
        let Kind::Colours(kind) = one.kind else {
            continue;
        };
        let own = colouring(&draft.machine.partitions, kind)?;
        bits.push(own.functions.len());
        let Some(first) = whole.take() else {
            (divides, whole) = (Some(kind), Some(own.clone()));
            continue;
        };
        let both = combined(&first, own);
        let why = match &both {
            None => said::NOT_INDEPENDENT.to_owned(),
            Some(both) if both.count() > MOST => {
                said::too_many_colours(first.count(), own.count(), MOST)
            }
            Some(_) => {
                (divides, whole) = (Some(Divides::Joint), both);
                continue;
            }
        };
        let claims = kinds.iter().filter_map(|one| one.claims.first());
        let keys: Vec<String> = claims.map(Claim::at).collect();
        let key = keys.first().cloned().unwrap_or_default();
        let remedies: Vec<Remedy> = keys.into_iter().map(Remedy::leave_out).collect();
        draft.refuse(key, why, remedies);
        return None;
    }
    let (divides, whole) = divides.zip(whole)?;
    let left: Vec<&CpuSet> = kinds.iter().map(|one| &one.allotted.left).collect();
    let all: CpuSet = (0..whole.count()).collect();
    let policy = draft.policy;
    let owners = policy.groups.keys();
    Some(Shape {
        divides,
        held: all.difference(&product(&left, &bits)),
        owners: owners
            .filter_map(|name| owner(name, kinds, &bits))
            .collect(),
        whole,
    })
}

/// The colours that are made of one of each kind, for the same pages. Their number has the first
/// kind in its lower bits. `None` where both share functions: not every pair of colours has pages.
fn combined(first: &Colouring, second: &Colouring) -> Option<Colouring> {
    let functions = first.functions.iter().chain(&second.functions);
    let functions: Vec<u64> = functions.map(|mask| mask.0).collect();
    let shift = first.page.0.trailing_zeros();
    let large = Colours::new(&functions, large_shift(shift)).bits();
    let rank = Space::spanned(functions.iter().copied()).rank() as usize;
    let independent = rank == functions.len() && first.page == second.page;
    independent.then(|| Colouring {
        page: first.page,
        ..Colouring::of_pages(functions, large)
    })
}

/// The colours made of one of each part. `bits`: how many bits a colour of each kind has.
fn product(parts: &[&CpuSet], bits: &[usize]) -> CpuSet {
    let (mut all, mut shift) = (CpuSet::one(0), 0);
    for (part, bits) in parts.iter().zip(bits) {
        let lower = |high: u32| all.iter().map(move |low| low | high << shift);
        all = part.iter().flat_map(lower).collect();
        shift += bits;
    }
    all
}

/// A group's colours. `None` where it reserves none.
fn owner(name: &str, kinds: &[&mut Divided], bits: &[usize]) -> Option<Owner> {
    let own = kinds.iter().map(|one| one.of(name));
    let own: Vec<(&CpuSet, Option<&Claim>)> = own.collect::<Option<_>>()?;
    let mut claims = own.iter().filter_map(|(_, claim)| *claim);
    let mut claim = claims.next()?.clone();
    if claims.next().is_some() {
        claim.key = BOTH;
    }
    let parts: Vec<&CpuSet> = own.iter().map(|(part, _)| *part).collect();
    let named = parts.iter().zip(kinds);
    let named = named.map(|(part, one)| format!("{} of the {}", part.brief(), one.kind.name()));
    let rest = own
        .iter()
        .zip(kinds)
        .find(|((_, claim), _)| claim.is_none());
    let rest = rest.map(|(_, one)| said::has_the_rest(&one.kind.name()));
    Some(Owner {
        colours: product(&parts, bits),
        parts: named.collect(),
        rest,
        claim,
    })
}

/// The sizes of a hoard.
struct Sizes {
    memory: Bytes,
    reserve: Bytes,
    limit: Option<Bytes>,
    /// Colours that there are, and those that are held.
    all: usize,
    held: usize,
}

impl Sizes {
    /// What there can be of so many of the held colours outside of the reserve, within the limit.
    fn most(&self, colours: usize) -> Bytes {
        let outside = self.memory.0.saturating_sub(self.reserve.0);
        let free = part(outside, colours, self.all);
        let within = self.limit.map(|limit| part(limit.0, colours, self.held));
        Bytes(within.map_or(free, |within| free.min(within)))
    }

    /// What has to be held, so that so many of the held colours have this size.
    fn to_hold(&self, size: Bytes, colours: usize) -> Bytes {
        let all = u128::from(size.0) * self.held as u128;
        let all = all.div_ceil(colours.max(1) as u128);
        Bytes(u64::try_from(all).unwrap_or(u64::MAX))
    }
}

fn part(bytes: u64, colours: usize, of: usize) -> u64 {
    let part = u128::from(bytes) * colours as u128 / of.max(1) as u128;
    u64::try_from(part).unwrap_or(u64::MAX)
}

fn sizes(draft: &Draft<'_>, shape: &Shape) -> Sizes {
    let nodes = draft.machine.nodes.iter();
    let memory = nodes.map(|node| node.memory.0).fold(0, u64::saturating_add);
    let keys = draft.policy.hoard.as_ref();
    let reserve = keys.and_then(|keys| keys.reserve);
    Sizes {
        memory: Bytes(memory),
        reserve: reserve.unwrap_or(Bytes(memory / RESERVE / MIB * MIB)),
        limit: keys.and_then(|keys| keys.limit),
        all: shape.whole.count() as usize,
        held: shape.held.len(),
    }
}

/// What has to be held at least, so that every owner has what it reserves of memory. `None`: there
/// cannot be as much, which is refused.
fn least(draft: &mut Draft<'_>, shape: &Shape, sizes: &Sizes) -> Option<Bytes> {
    let needs = |owner: &Owner| match draft
        .policy
        .groups
        .get(&owner.claim.group)?
        .reserve
        .memory?
    {
        MemoryWanted::Size(size) => Some(size),
        _ => None,
    };
    let owners: Vec<(&Owner, Option<Bytes>)> = shape
        .owners
        .iter()
        .map(|owner| (owner, needs(owner)))
        .collect();
    let mut least = Bytes(0);
    for owner in &shape.owners {
        // Owners of some of these colours and of no other have their memory there, too.
        let within = owners.iter().filter(|(other, need)| {
            let own = other.claim.group == owner.claim.group;
            own || need.is_some() && other.colours.is_subset(&owner.colours)
        });
        let (names, needed): (Vec<String>, Vec<u64>) = within
            .map(|(other, need)| (other.claim.group.clone(), need.map_or(0, |need| need.0)))
            .unzip();
        let needed = Bytes(needed.into_iter().fold(0, u64::saturating_add));
        let colours = owner.colours.len();
        let most = sizes.most(colours);
        if needed > most || most < shape.whole.page {
            let key = owner.claim.at();
            let why = said::holds_too_little(colours, sizes.all, most, &names, needed);
            let remedies = [
                Remedy::leave_out(key.clone()),
                Remedy::from("reserve more colours, or change hoard.limit or hoard.reserve"),
            ];
            draft.refuse(key, why, remedies);
            return None;
        }
        least = least.max(sizes.to_hold(needed, colours));
    }
    Some(least)
}

/// Adds the step that holds frames. `None`: it is refused.
fn hold(draft: &mut Draft<'_>, shape: &Shape) -> Option<StepId> {
    let sizes = sizes(draft, shape);
    if sizes.reserve >= sizes.memory {
        let why = said::nothing_is_left(sizes.reserve, sizes.memory);
        let key = shape.owners.first()?.claim.at();
        let remedies = ["hoard.reserve", key.as_str()].map(Remedy::leave_out);
        draft.refuse("hoard.reserve", why, remedies);
        return None;
    }
    let least = least(draft, shape, &sizes)?;
    let most = sizes.most(sizes.held);
    draft.notes.push(said::at_most(most, sizes.held, sizes.all));
    for owner in shape.owners.iter().filter(|owner| owner.parts.len() > 1) {
        let (group, count) = (&owner.claim.group, owner.colours.len());
        let parts = words::listed(&owner.parts);
        let note = said::has_combined(group, &parts, count, sizes.all, sizes.most(count));
        draft.notes.push(note);
    }
    let owned = shape.owners.iter();
    let owned = owned.fold(CpuSet::new(), |all, owner| all.union(&owner.colours));
    let unused = shape.held.difference(&owned).len();
    if unused > 0 {
        draft.notes.push(said::unused(sizes.most(unused), unused));
    }
    draft.notes.push(said::not_sorted(sizes.reserve));
    draft.notes.push(said::NO_LARGE_PAGES.to_owned());
    if let Some(limit) = sizes.limit {
        draft.notes.push(said::limited(limit));
    }
    let set = Setting::Hoard {
        divides: shape.divides,
        colouring: shape.whole.clone(),
        colours: shape.held.clone(),
        limit: sizes.limit,
        reserve: sizes.reserve,
        least,
    };
    let mechanism = shape.divides.mechanisms()[0];
    Some(draft.step(None, mechanism, set, said::EXCLUDES))
}

/// Says what colours without a hoard are worth. Refuses what needs one.
fn unheld(draft: &mut Draft<'_>) {
    draft.notes.push(said::UNHELD.to_owned());
    let keys = draft.policy.hoard.as_ref();
    if keys.is_some_and(|keys| keys.moved == HoardMoves::Groups) {
        let remedies = ["hoard.move", "hoard.limit"].map(Remedy::leave_out);
        draft.refuse("hoard.move", said::MOVED_BACK, remedies);
    }
}

/// Adds a step for each owner, which moves its pages. One that may use all colours has no step.
fn settle(draft: &mut Draft<'_>, shape: &Shape) -> Vec<StepId> {
    let keys = draft.policy.hoard.clone().unwrap_or_default();
    let unheld = holds_nothing(draft).then(|| sizes(draft, shape).reserve);
    let all = shape.whole.count() as usize;
    let mut steps = Vec::new();
    for owner in shape
        .owners
        .iter()
        .filter(|owner| owner.colours.len() < all)
    {
        let name = &owner.claim.group;
        let group = draft.policy.groups.get(name);
        let fails = group.is_some_and(|g| g.coloured == Some(Coloured::Fail));
        let after = if fails { said::fails } else { said::spills };
        if fails || unheld.is_none() {
            draft.notes.push(after(name));
        }
        if unheld.is_none() && !group.is_some_and(|group| group.paging.locked) {
            draft.notes.push(said::drifts(name));
        }
        let set = Setting::Settle {
            divides: shape.divides,
            colouring: shape.whole.clone(),
            colours: owner.colours.clone(),
            spill: !fails,
            unheld,
            pace: keys.pace,
            longest: keys.longest_stop,
        };
        let moved = match unheld {
            Some(_) => said::moved_unheld(owner.claim.key),
            None => said::moved(owner.claim.key),
        };
        let because = moved + owner.rest.as_deref().unwrap_or_default();
        let mechanism = shape.divides.mechanisms()[0];
        steps.push(draft.step(Some(name), mechanism, set, because));
    }
    steps
}

/// Adds a step for each best-effort group without reserved colours, which moves its pages out of
/// them, if the policy allows that.
fn vacate(draft: &mut Draft<'_>, shape: &Shape) {
    let keys = draft.policy.hoard.clone().unwrap_or_default();
    if keys.moved != HoardMoves::Groups {
        return;
    }
    let all: CpuSet = (0..shape.whole.count()).collect();
    let left = all.difference(&shape.held);
    let (policy, mut any) = (draft.policy, false);
    for (name, _) in policy.with_role(Role::BestEffort) {
        if shape.owners.iter().any(|owner| owner.claim.group == *name) {
            continue;
        }
        any = true;
        draft
            .notes
            .push(said::vacates(name, keys.pace, keys.longest_stop));
        let set = Setting::Vacate {
            divides: shape.divides,
            colouring: shape.whole.clone(),
            colours: left.clone(),
            pace: keys.pace,
            longest: keys.longest_stop,
        };
        let mechanism = shape.divides.mechanisms()[0];
        draft.step(Some(name), mechanism, set, said::VACATED);
    }
    if !any {
        draft.notes.push(said::NOTHING_TO_VACATE.to_owned());
    }
}

/// What the promise of colours is worth.
pub(super) fn worth(draft: &Draft<'_>) -> Worth {
    if holds_nothing(draft) {
        return Worth::of(Level::None, said::UNHELD);
    }
    let map = draft.machine.partitions.address_map.as_ref();
    let published = map.filter(|map| map.origin == MapOrigin::Published);
    let published = published.map(|map| words::published_map(&map.from) + "; ");
    Worth::of(
        Level::Regulated,
        published.unwrap_or_default() + said::NOT_PROMISED,
    )
}
