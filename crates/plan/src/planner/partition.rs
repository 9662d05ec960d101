//! Caches and DRAM banks: a part for each group that reserves one, what is left for all other
//! tasks, and what each promise is then worth.
//!
//! A part belongs to a group alone only if all other tasks are kept out of it, unmatched ones
//! included. So one reserve makes a step for every group. Exempt groups are never confined. A part
//! that they may use is therefore promised to no group.

use std::collections::BTreeSet;

use quell_policy::{Coloured, Group, Role};
use quell_types::cpuset::CpuSet;
use quell_types::ids::{REST, StepId};
use quell_types::mechanism::{Level, Mechanism};
use quell_types::partition::{ColourChoice, Divides, Mask};
use quell_types::refusal::Remedy;

use crate::plan::{Promise, Setting};

use super::allot::{self, Allotted, Short, Want};
use super::amounts::mask_of;
use super::claims::{self, best_of};
use super::division::{Claim, Claims, Divided, Kind, colouring, domains, ways_of_window};
use super::draft::Draft;
use super::wanted::Worth;
use super::words::{division as words, one_or};
use super::{adaptive_ways, codedata, hoard, locking, near, nodes};

/// Adds the steps, promises and notes about parts.
pub(super) fn plan(draft: &mut Draft<'_>) {
    let before = draft.refusals.len();
    let mut divided: Vec<Divided> = Vec::new();
    for claims in claims::read(draft) {
        for claims in near::split(draft, claims) {
            divided.extend(divide(draft, claims));
        }
    }
    if draft.refusals.len() > before {
        return;
    }
    codedata::mount(draft, &mut divided);
    let policy = draft.policy;
    for (name, group) in &policy.groups {
        if group.role != Role::Exempt {
            confine(draft, name, Some(group), &mut divided);
        }
    }
    confine(draft, REST, None, &mut divided);
    hoard::plan(draft, &mut divided);
    locking::plan(draft, &mut divided);
    adaptive_ways::plan(draft, &divided);
    for one in &divided {
        promise(draft, one);
        notes(draft, one);
    }
    let coloured = |d: &Divided| matches!(d.kind, Kind::Colours(_));
    if !divided.iter().any(coloured) {
        for (name, group) in &policy.groups {
            if group.coloured.is_some() {
                draft.notes.push(words::coloured_changes_nothing(name));
            }
        }
    }
}

/// Divides one kind of part. `None`: it is refused.
fn divide(draft: &mut Draft<'_>, claims: Claims) -> Option<Divided> {
    let Claims {
        kind,
        whole,
        list,
        caches_of,
    } = claims;
    let wants: Vec<Want> = list.iter().map(|c| c.want.clone()).collect();
    let allotted = match allot::allot(whole, &wants) {
        // No program is kept out of anything.
        Ok(allotted) if matches!(kind, Kind::Colours(_)) && hoard::holds_nothing(draft) => {
            Allotted {
                left: (0..whole.count).collect(),
                ..allotted
            }
        }
        Ok(allotted) => allotted,
        Err(short) => {
            too_much(draft, kind, whole.count, &list, &short);
            return None;
        }
    };
    let own = |name: &str| list.iter().any(|c| c.group == name && c.locked.is_none());
    let mut others: Vec<String> = draft
        .policy
        .groups
        .iter()
        .filter(|(name, g)| g.role != Role::Exempt && !own(name))
        .map(|(name, _)| name.clone())
        .collect();
    others.push(REST.to_owned());
    if allotted.left.len() < whole.least as usize {
        let nobody = others.len() == 1 && draft.machine.simulated.is_some();
        if !nobody {
            let key = list.first().map(Claim::at).unwrap_or_default();
            let (least, left) = (whole.least, &allotted.left);
            let taken = whole.count as usize - left.len() - allotted.idle.len();
            let nothing = left.is_empty();
            let why = words::too_little_left(taken, whole.count, &kind.name(), nothing, &others);
            let are = one_or(least as usize, "is", "are");
            let remedies = [
                Remedy::leave_out(key.clone()),
                Remedy::from(format!("reserve less, so that at least {least} {are} left")),
            ];
            draft.refuse(key, why, remedies);
            return None;
        }
        others.clear();
        let note = words::all_are_given_away(whole.count, &kind.name());
        draft.notes.push(note);
    }
    if let Kind::Ways(level) = kind
        && !allotted.idle.is_empty()
    {
        draft.notes.push(words::stay_unused(&allotted.idle, level));
    }
    for (claim, part) in list.iter().zip(&allotted.parts) {
        if claim.want == Want::Even {
            let note = words::private_came_to(&claim.group, &part.brief(), &kind.name());
            draft.notes.push(note);
        }
    }
    Some(Divided {
        kind,
        claims: list,
        allotted,
        caches_of,
        others,
        steps: Vec::new(),
    })
}

fn too_much(draft: &mut Draft<'_>, kind: Kind, count: u32, list: &[Claim], short: &Short) {
    let claim = &list[short.which];
    let (wanted, left) = (short.wanted, short.left.len());
    let in_pieces = matches!(kind, Kind::Ways(_)) && left >= wanted as usize;
    let others = list.iter().filter(|c| c.group != claim.group);
    let others: Vec<String> = others.map(|c| words::has_of(&c.group, &c.want)).collect();
    let takes = format!("{wanted} of the {count} {}", kind.name());
    let why = words::takes_too_much(&takes, left, in_pieces, &others);
    let remedies = [Remedy::leave_out(claim.at()), Remedy::from("ask for fewer")];
    draft.refuse(claim.at(), why, remedies);
}

/// Adds the steps that keep one group, or unmatched tasks, to their parts.
fn confine(draft: &mut Draft<'_>, name: &str, group: Option<&Group>, divided: &mut [Divided]) {
    let mut choices: Vec<ColourChoice> = Vec::new();
    let mut reasons: Vec<String> = Vec::new();
    let mut coloured: Vec<usize> = Vec::new();
    for (i, one) in divided.iter_mut().enumerate() {
        let Some((part, own)) = one.of(name) else {
            continue;
        };
        let because = because(one, name, own);
        match one.kind {
            Kind::Ways(level) if !near::fills(draft, name, level, &one.caches_of) => {}
            Kind::Ways(level) => {
                let set = codedata::setting(level, part, own, &one.caches_of);
                let id = draft.step(Some(name), Mechanism::Ways, set, because);
                one.steps.push(id);
            }
            // Nobody but the owners is confined.
            Kind::Colours(_) if hoard::is_used(draft) => {}
            Kind::Colours(divides) => {
                let Some(whole) = colouring(&draft.machine.partitions, divides) else {
                    continue;
                };
                choices.push(ColourChoice {
                    divides,
                    functions: whole.functions.clone(),
                    colours: part.clone(),
                    nodes: whole.nodes_of(part),
                });
                if !reasons.contains(&because) {
                    reasons.push(because);
                }
                coloured.push(i);
            }
        }
    }
    let Some(first) = choices.first() else { return };
    let mechanism = first.divides.mechanisms()[0];
    // Only a group that asks for it fails; unmatched tasks and all other groups may spill. Memory
    // of other nodes is not taken in any case.
    let spill = group.is_none_or(|g| g.coloured != Some(Coloured::Fail));
    let spill = spill && choices.iter().all(|choice| choice.nodes.is_empty());
    let set = Setting::Colour { choices, spill };
    let id = draft.step(Some(name), mechanism, set, reasons.join("; "));
    for i in coloured {
        divided[i].steps.push(id);
    }
}

fn because(one: &Divided, name: &str, own: Option<&Claim>) -> String {
    let kind = one.kind.name();
    let Some(claim) = own else {
        let owners = one.owners().into_iter().filter(|owner| *owner != name);
        let owners: Vec<String> = owners.map(str::to_owned).collect();
        return words::keeps_to_the_rest(name, &owners, &kind);
    };
    let which = one.claims.iter().position(|c| c.group == claim.group);
    let shared = which.map(|w| one.shared_with(w)).unwrap_or_default();
    words::kept_to_others(claim.key, &shared, &kind)
}

fn promise(draft: &mut Draft<'_>, one: &Divided) {
    for (which, claim) in one.claims.iter().enumerate() {
        let part = &one.allotted.parts[which];
        let promise = match (one.kind, claim.locked) {
            (Kind::Ways(level), Some(size)) => Promise::ReserveLocked { level, size },
            (Kind::Ways(level), None) => Promise::ReserveWays {
                level,
                mask: mask_of(part),
                shared_with: one.shared_with(which),
            },
            (Kind::Colours(divides), _) => Promise::ReserveColours {
                divides,
                colours: part.clone(),
                of: one
                    .kind
                    .whole(&draft.machine.partitions)
                    .map_or(0, |w| w.count),
                shared_with: one.shared_with(which),
            },
        };
        let worth = match devices(draft, one.kind, part).or_else(|| keeps(one, which)) {
            Some(why) => Worth::of(Level::None, why),
            None => worth(draft, one.kind, claim),
        };
        let held_by = one.steps.iter().copied();
        let held_by: Vec<StepId> = match one.kind {
            Kind::Colours(_) if hoard::is_used(draft) => held_by
                .filter(|step| hoard::holds(draft, *step, &claim.group))
                .collect(),
            _ => held_by.collect(),
        };
        draft.promise(&claim.group, promise, worth, held_by);
    }
}

/// Why ways belong to no group alone: devices fill them, too. `None` if they do not.
fn devices(draft: &Draft<'_>, kind: Kind, part: &CpuSet) -> Option<String> {
    let Kind::Ways(level) = kind else { return None };
    let mut ways = draft.machine.partitions.ways.iter();
    let shareable = ways.find(|w| w.level == level)?.shareable;
    let common = Mask(mask_of(part).0 & shareable.0);
    (!common.is_empty()).then(|| words::devices_fill(common, level, shareable))
}

/// Why colours protect nothing: a group that has some of them has others, too. The owner has less
/// than all of the cache or the banks, and keeps that neighbour. `None` if there is no such group.
fn keeps(one: &Divided, which: usize) -> Option<String> {
    let Kind::Colours(_) = one.kind else {
        return None;
    };
    let own = &one.allotted.parts[which];
    let parts = one.claims.iter().zip(&one.allotted.parts);
    let more = parts
        .filter(|(_, part)| !part.intersection(own).is_empty() && !part.difference(own).is_empty());
    let more: Vec<String> = more.map(|(claim, _)| claim.group.clone()).collect();
    (!more.is_empty()).then(|| words::keeps_neighbours(&more, &one.kind.name()))
}

/// What the promise of a part is worth.
fn worth(draft: &Draft<'_>, kind: Kind, claim: &Claim) -> Worth {
    if matches!(kind, Kind::Colours(_)) && hoard::is_used(draft) {
        return hoard::worth(draft);
    }
    if let Some((exempt, _)) = draft.policy.with_role(Role::Exempt).next() {
        return Worth::of(Level::None, words::exempt_uses_all(exempt, &kind.name()));
    }
    if claim.locked.is_some() {
        return match best_of(draft, Mechanism::PseudoLock) {
            Level::Enforced => Worth::plain(Level::Enforced),
            level => Worth::of(level, words::KERNELS_WORD),
        };
    }
    if draft.loops.follows.iter().any(|f| f.group == claim.group) {
        let level = best_of(draft, Mechanism::Ways).min(Level::Regulated);
        return Worth::of(level, words::LEFT_TO_OTHERS);
    }
    let level = kind.mechanisms().iter().map(|m| best_of(draft, *m)).min();
    let level = level.unwrap_or(Level::None);
    let mut groups = draft.policy.groups.values();
    match kind {
        Kind::Ways(_) => Worth::of(level, words::STAYS_UNTIL_REPLACED),
        Kind::Colours(divides) if nodes::of(draft, divides).is_some() => {
            Worth::of(level, nodes::weakest(draft))
        }
        Kind::Colours(_) if groups.any(|g| g.coloured != Some(Coloured::Fail)) => {
            Worth::of(level, words::USED_UP)
        }
        Kind::Colours(_) => Worth::plain(level),
    }
}

/// Notes on a kind of part for a person.
fn notes(draft: &mut Draft<'_>, one: &Divided) {
    match one.kind {
        Kind::Ways(level) => {
            let domains = domains(draft, level);
            if domains.len() > 1 {
                let sets: Vec<String> = domains.iter().map(CpuSet::brief).collect();
                let (n, sets) = (sets.len(), sets.join(" | "));
                let note = match one.caches_of.is_empty() {
                    true => words::several_caches(n, level, &sets),
                    false => words::some_caches(n, level, &sets, &one.caches_of),
                };
                draft.notes.push(note);
            }
        }
        Kind::Colours(divides) => {
            let partitions = &draft.machine.partitions;
            let Some(colours) = colouring(partitions, divides) else {
                return;
            };
            if hoard::is_used(draft) {
                let narrowed = narrowed(draft, one, divides);
                draft.notes.extend(narrowed);
                return;
            }
            if !colours.nodes.is_empty() {
                let notes = nodes::notes(draft, one, colours);
                draft.notes.extend(notes);
                return;
            }
            let mut groups: Vec<String> = one.owners().iter().map(|o| (*o).to_owned()).collect();
            groups.extend(one.others.iter().cloned());
            let (large, all) = (colours.count_large(), colours.count());
            let large = words::large_pages(&groups, large, all, &one.kind.name());
            let narrowed = narrowed(draft, one, divides);
            draft.notes.push(large);
            draft.notes.extend(narrowed);
        }
    }
}

/// Notes what a choice of colours leaves of the other kind, where both share address bits.
fn narrowed(draft: &Draft<'_>, one: &Divided, divides: Divides) -> Vec<String> {
    let partitions = &draft.machine.partitions;
    let (Some(own), Some(joint)) = (colouring(partitions, divides), &partitions.joint) else {
        return Vec::new();
    };
    let what = match divides {
        Divides::Banks => "the last-level cache's sets",
        Divides::Sets => "the DRAM banks",
        Divides::Joint => return Vec::new(),
    };
    let owned = one
        .claims
        .iter()
        .zip(&one.allotted.parts)
        .map(|(c, part)| (&c.group, part));
    let left = one.others.iter().map(|g| (g, &one.allotted.left));
    owned
        .chain(left)
        .filter_map(|(group, part)| {
            let (reached, of) = own.reach(part, joint);
            (reached < of).then(|| {
                let (who, kind) = (words::who(group), one.kind.name());
                let left = format!("{reached} of {of}");
                words::leave_of_the_other(&who, &kind, &part.brief(), &left, what)
            })
        })
        .collect()
}

/// What a class of service stands for: the masks by level (for code, for data) with the CPUs whose
/// caches they are about, and the percentage or rate.
type Class = (Vec<(u32, [Mask; 2], String)>, Option<u32>);

/// Refuses a plan that needs more classes of service than the hardware has.
pub(super) fn classes(draft: &mut Draft<'_>) {
    let mut levels: BTreeSet<u32> = BTreeSet::new();
    let mut mba = false;
    let mut locks = 0;
    let mut names: Vec<String> = vec![REST.to_owned()];
    names.extend(draft.policy.groups.keys().cloned());
    let windows = draft.policy.windows.as_ref();
    let first_window = |name: &str| windows.and_then(|keys| Some(keys.ways_of(name).next()?.0));
    // Ways that switch cannot be those of another group, too.
    let mut distinct: BTreeSet<(Option<usize>, Class)> = BTreeSet::new();
    for name in &names {
        let mut class: Class = (Vec::new(), None);
        for step in draft
            .steps
            .iter()
            .filter(|s| s.group.as_ref() == Some(name))
        {
            if let Some((level, masks)) = codedata::masks(&step.set) {
                levels.insert(level);
                let caches = match &step.set {
                    Setting::Ways { caches_of, .. } => caches_of.to_string(),
                    _ => String::new(),
                };
                class.0.push((level, masks, caches));
            }
            match step.set {
                Setting::Mba { percent: set } | Setting::MbaRate { mib_s: set } => {
                    mba = true;
                    class.1 = Some(set);
                }
                Setting::Lock { .. } => locks += 1,
                _ => {}
            }
        }
        // Tasks of a group without parts stay in the default class.
        if name == REST || class != Class::default() {
            distinct.insert((first_window(name), class));
        }
    }
    let partitions = &draft.machine.partitions;
    let ways = partitions.ways.iter().filter(|w| levels.contains(&w.level));
    let most = ways
        .map(|w| codedata::classes(draft, w))
        .chain(partitions.mba.iter().filter(|_| mba).map(|m| m.classes))
        .min();
    let Some(most) = most else { return };
    let used = distinct.len() + locks;
    if used > most as usize {
        let mut reserving = draft.promises.iter().filter(|p| {
            matches!(
                p.promise,
                Promise::ReserveWays { .. } | Promise::ReserveLocked { .. }
            )
        });
        let share = Remedy::from("let groups share: name the same mask");
        let (key, instead) = match (names.iter().find_map(|n| first_window(n)), reserving.next()) {
            (Some(window), _) => {
                let instead = "give ways to windows of fewer groups";
                (ways_of_window(window), Remedy::from(instead))
            }
            (None, Some(held)) => (format!("group.{}.reserve.cache", held.group), share),
            (None, None) => ("mechanisms.bandwidth".to_owned(), share),
        };
        let remedies = [Remedy::leave_out(key.clone()), instead];
        draft.refuse(
            key,
            words::too_many_classes(used, locks > 0, most),
            remedies,
        );
    }
}
