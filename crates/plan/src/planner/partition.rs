//! Caches and DRAM banks: a part for every group that reserves one, what is left for everybody else, and what each promise
//! is then worth.
//!
//! A part is a group's own only if everybody else is kept out of it, unmatched tasks included: so one reserve makes a step
//! for every group. Whoever is exempt is never confined, and a part that they may use is promised to nobody.

use std::collections::BTreeSet;

use quell_policy::{Coloured, Group, Role};
use quell_types::cpuset::CpuSet;
use quell_types::ids::REST;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::partition::{ColourChoice, Divides, Mask};
use quell_types::refusal::Remedy;

use crate::plan::{Held, Promise, Setting};

use super::allot::{self, Allotted, Short, Want};
use super::amounts::mask_of;
use super::claims::{self, best_of};
use super::draft::Draft;
use super::parts::{Claim, Claims, Divided, Kind, colouring, domains};
use super::{codedata, following, locking};

/// Adds the steps, promises and notes.
pub(super) fn plan(draft: &mut Draft<'_>) {
    let before = draft.refusals.len();
    let mut divided: Vec<Divided> = Vec::new();
    for claims in claims::read(draft) {
        divided.extend(divide(draft, claims));
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
    locking::plan(draft, &mut divided);
    following::plan(draft, &divided);
    for one in &divided {
        promise(draft, one);
        notes(draft, one);
    }
    let coloured = |d: &Divided| matches!(d.kind, Kind::Colours(_));
    if !divided.iter().any(coloured) {
        for (name, group) in &policy.groups {
            if group.coloured.is_some() {
                draft.notes.push(format!(
                    "group {name}: `coloured` changes nothing, since no page colours are chosen"
                ));
            }
        }
    }
}

/// Divides one kind, if that is possible.
fn divide(draft: &mut Draft<'_>, claims: Claims) -> Option<Divided> {
    let Claims { kind, whole, list } = claims;
    let wants: Vec<Want> = list.iter().map(|c| c.want.clone()).collect();
    let allotted = match allot::allot(whole, &wants) {
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
            let without = Remedy::leave_out(key.clone());
            let names: Vec<String> = others.iter().map(|g| who(g)).collect();
            draft.refuse(
                key,
                format!(
                    "the reserves take {} of the {} {}, and {} left for {}",
                    whole.count as usize - allotted.left.len() - allotted.idle.len(),
                    whole.count,
                    kind.name(),
                    if allotted.left.is_empty() {
                        "nothing is"
                    } else {
                        "too little is"
                    },
                    listed(&names)
                ),
                [
                    without,
                    Remedy::from(format!(
                        "reserve less, so that at least {} {} left",
                        whole.least,
                        if whole.least == 1 { "is" } else { "are" }
                    )),
                ],
            );
            return None;
        }
        others.clear();
        draft.notes.push(format!(
            "all {} {} are given away: beside the groups no task runs on a simulated machine",
            whole.count,
            kind.name()
        ));
    }
    if !allotted.idle.is_empty() {
        draft.notes.push(format!(
            "{} {} of L{} stay{} unused: a mask has no holes here",
            if allotted.idle.len() == 1 {
                "way"
            } else {
                "ways"
            },
            allotted.idle.brief(),
            match kind {
                Kind::Ways(level) => level,
                Kind::Colours(_) => 0,
            },
            if allotted.idle.len() == 1 { "s" } else { "" },
        ));
    }
    if list.iter().any(|c| c.want == Want::Even) {
        even_note(draft, kind, &list, &allotted);
    }
    Some(Divided {
        kind,
        claims: list,
        allotted,
        others,
        steps: Vec::new(),
    })
}

fn too_much(draft: &mut Draft<'_>, kind: Kind, count: u32, list: &[Claim], short: &Short) {
    let claim = &list[short.which];
    let row = if matches!(kind, Kind::Ways(_)) && short.left.len() >= short.wanted as usize {
        ", not in one piece"
    } else {
        ""
    };
    let others: Vec<String> = list
        .iter()
        .filter(|c| c.group != claim.group)
        .map(|c| match &c.want {
            Want::Named(named) => format!("{} {}", c.group, named.brief()),
            Want::Count(n) | Want::Top(n) => format!("{} {n}", c.group),
            Want::Even => format!("{} private ones", c.group),
        })
        .collect();
    let others = if others.is_empty() {
        String::new()
    } else {
        format!(" (others: {})", others.join(", "))
    };
    draft.refuse(
        claim.at(),
        format!(
            "it takes {} of the {count} {}, and {} left{row}{others}",
            short.wanted,
            kind.name(),
            match short.left.len() {
                0 => "none is".to_owned(),
                1 => "1 is".to_owned(),
                n => format!("{n} are"),
            }
        ),
        [Remedy::leave_out(claim.at()), Remedy::from("ask for fewer")],
    );
}

fn even_note(draft: &mut Draft<'_>, kind: Kind, list: &[Claim], allotted: &Allotted) {
    for (claim, part) in list.iter().zip(&allotted.parts) {
        if claim.want == Want::Even {
            draft.notes.push(format!(
                "group {}: \"private\" came to {} of the {}, as many as are left for everybody else; give a number to change it",
                claim.group,
                part.brief(),
                kind.name()
            ));
        }
    }
}

/// The steps that keep one group, or unmatched tasks, to their parts.
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
            Kind::Ways(level) => {
                let set = codedata::setting(level, part, own);
                let id = draft.step(Some(name), Mechanism::Ways, set, because);
                one.steps.push(id);
            }
            Kind::Colours(divides) => {
                let functions = colouring(&draft.machine.partitions, divides)
                    .map(|c| c.functions.clone())
                    .unwrap_or_default();
                choices.push(ColourChoice {
                    divides,
                    functions,
                    colours: part.clone(),
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
    // Nobody asked for unmatched tasks, or groups that name nothing, to fail.
    let spill = group.is_none_or(|g| g.coloured != Some(Coloured::Fail));
    let set = Setting::Colour { choices, spill };
    let id = draft.step(Some(name), mechanism, set, reasons.join("; "));
    for i in coloured {
        divided[i].steps.push(id);
    }
}

fn because(one: &Divided, name: &str, own: Option<&Claim>) -> String {
    let Some(claim) = own else {
        let owners: Vec<String> = one
            .owners()
            .iter()
            .filter(|o| **o != name)
            .map(|o| (*o).to_owned())
            .collect();
        let whose = if owners.is_empty() {
            "what is locked".to_owned()
        } else {
            format!("group {}", listed(&owners))
        };
        return format!(
            "{}what {} of the {}",
            if name == REST {
                "tasks of no group, your shell included, keep to "
            } else {
                "it reserves none: "
            },
            if owners.is_empty() {
                "is not locked".to_owned()
            } else {
                format!("{whose} leave{}", if owners.len() == 1 { "s" } else { "" })
            },
            one.kind.name()
        );
    };
    let which = one.claims.iter().position(|c| c.group == claim.group);
    let shared = which.map(|w| one.shared_with(w)).unwrap_or_default();
    if shared.is_empty() {
        format!(
            "{}: everybody else is kept to other {}",
            claim.key,
            one.kind.name()
        )
    } else {
        format!(
            "{}, of which the policy gives some to {}, too: everybody else is kept to other {}",
            claim.key,
            listed(&shared),
            one.kind.name()
        )
    }
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
        let (level, weakest) = match devices(draft, one.kind, part) {
            Some(why) => (Level::None, why),
            None => worth(draft, one.kind, claim),
        };
        draft.promises.push(Held {
            group: claim.group.clone(),
            promise,
            level,
            held_by: one.steps.clone(),
            weakest: Some(weakest).filter(|w| !w.is_empty()),
            assumed: false,
        });
    }
}

/// Why ways are nobody's own: devices fill them, too.
fn devices(draft: &Draft<'_>, kind: Kind, part: &CpuSet) -> Option<String> {
    let Kind::Ways(level) = kind else { return None };
    let mut ways = draft.machine.partitions.ways.iter();
    let shareable = ways.find(|w| w.level == level)?.shareable;
    let common = Mask(mask_of(part).0 & shareable.0);
    (!common.is_empty()).then(|| {
        format!("devices fill {common} of L{level}, too, whatever masks say: name ways without {shareable}")
    })
}

/// What a part is worth, and the weakest link.
fn worth(draft: &Draft<'_>, kind: Kind, claim: &Claim) -> (Level, String) {
    let exempt = draft.policy.with_role(Role::Exempt).next();
    if let Some((name, _)) = exempt {
        let why = format!(
            "group {name} is exempt, so it is not kept out: it uses all {}",
            kind.name()
        );
        return (Level::None, why);
    }
    if claim.locked.is_some() {
        let level = best_of(draft, Mechanism::PseudoLock);
        let why = match level {
            Level::Enforced => "",
            _ => {
                "the kernel's word alone, until it has locked: then others' lines are swept through the cache, and the run is refused if what was locked is gone"
            }
        };
        return (level, why.to_owned());
    }
    if draft.loops.follows.iter().any(|f| f.group == claim.group) {
        let level = best_of(draft, Mechanism::Ways).min(Level::Regulated);
        let why = "what it does not need is left to the others, and taken back when it has missed already";
        return (level, why.to_owned());
    }
    let level = kind.mechanisms().iter().map(|m| best_of(draft, *m)).min();
    let spills = draft
        .policy
        .groups
        .values()
        .any(|g| g.coloured != Some(Coloured::Fail));
    let weakest = match kind {
        Kind::Ways(_) => "what others left there before stays until it is replaced",
        Kind::Colours(_) if spills => {
            "who has used up the pages of its colours gets others, reported (coloured = \"fail\" refuses them)"
        }
        Kind::Colours(_) => "",
    };
    (level.unwrap_or(Level::None), weakest.to_owned())
}

/// What a person should know of a kind of part.
fn notes(draft: &mut Draft<'_>, one: &Divided) {
    match one.kind {
        Kind::Ways(level) => {
            let domains = domains(draft, level);
            if domains.len() > 1 {
                let sets: Vec<String> = domains.iter().map(CpuSet::brief).collect();
                draft.notes.push(format!(
                    "there are {} caches of L{level} (CPUs {}): the masks hold in each of them, and who runs on the CPUs of one fills \
                     no other",
                    domains.len(),
                    sets.join(" | ")
                ));
            }
        }
        Kind::Colours(divides) => {
            let partitions = &draft.machine.partitions;
            let Some(colours) = colouring(partitions, divides) else {
                return;
            };
            let mut groups: Vec<String> = one.owners().iter().map(|o| (*o).to_owned()).collect();
            groups.extend(one.others.iter().cloned());
            let names: Vec<String> = groups.iter().map(|g| who(g)).collect();
            let large = format!(
                "{} use{} pages of 4 KiB: large pages have {} of the {} {}",
                listed(&names),
                if names.len() == 1 { "s" } else { "" },
                colours.count_large(),
                colours.count(),
                one.kind.name()
            );
            let narrowed = narrowed(draft, one, divides);
            draft.notes.push(large);
            draft.notes.extend(narrowed);
        }
    }
}

/// Where colours of one of two kinds that share address bits are chosen, what that leaves of the other.
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
                format!(
                    "{}: {} {} leave {reached} of {of} parts of {what}, which share address bits with them",
                    who(group),
                    one.kind.name(),
                    part.brief()
                )
            })
        })
        .collect()
}

/// The masks by level (for code, for data) and the percentage or rate that a class of service stands for.
type Class = (Vec<(u32, [Mask; 2])>, Option<u32>);

/// Ways and percentages are given to classes of service, of which there are few.
pub(super) fn classes(draft: &mut Draft<'_>) {
    let mut levels: BTreeSet<u32> = BTreeSet::new();
    let mut mba = false;
    let mut locks = 0;
    let mut names: Vec<String> = vec![REST.to_owned()];
    names.extend(draft.policy.groups.keys().cloned());
    let mut distinct: BTreeSet<Class> = BTreeSet::new();
    for name in &names {
        let mut class: Class = (Vec::new(), None);
        for step in draft
            .steps
            .iter()
            .filter(|s| s.group.as_ref() == Some(name))
        {
            if let Some((level, masks)) = codedata::masks(&step.set) {
                levels.insert(level);
                class.0.push((level, masks));
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
        distinct.insert(class);
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
        let key = match draft.promises.iter().find(|p| {
            matches!(
                p.promise,
                Promise::ReserveWays { .. } | Promise::ReserveLocked { .. }
            )
        }) {
            Some(held) => format!("group.{}.reserve.cache", held.group),
            None => "mechanisms.bandwidth".to_owned(),
        };
        let without = key.clone();
        draft.refuse(
            key,
            format!(
                "the plan takes {used} classes of service, that of unmatched tasks (group rest) included{}, and the hardware has {most}",
                if locks > 0 { " and one to lock with" } else { "" }
            ),
            [
                Remedy::leave_out(without),
                Remedy::from("let groups share: name the same mask"),
            ],
        );
    }
}

fn who(group: &str) -> String {
    if group == REST {
        "unmatched tasks (group rest)".to_owned()
    } else {
        format!("group {group}")
    }
}

/// `a, b and c`.
fn listed(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}
