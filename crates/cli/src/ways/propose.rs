//! A policy from the masks that some tool has set: `quell ways --propose`.
//!
//! Pure. A class whose ways no other class fills is a critical group with these ways. Any other
//! class is a best-effort group, which shares the ways that are left.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use quell_record::ways::{Class, ROOT, Snapshot};
use quell_types::partition::Mask;
use quell_types::task::TaskMatch;

use crate::init::group::{as_toml, name_of};

/// The policy file. `None` where no class but the default one has a thread.
pub fn policy(seen: &Snapshot) -> Option<String> {
    let mut out = String::from(
        "# Written by `quell ways --propose`, from the classes that were set when it looked.\n\
         # Programs are matched by name: check that no other program has the same.\n\
         quell = 1\nname  = \"ways\"\n",
    );
    let mut names = Vec::new();
    for (class, state) in seen.classes.iter().filter(|(class, _)| *class != ROOT) {
        let tables = programs(seen, class);
        if tables.is_empty() {
            continue;
        }
        let name = name_of(&tables, &names);
        let own = own(seen, class, state);
        let role = if own.is_some() {
            "critical"
        } else {
            "best-effort"
        };
        let each: Vec<String> = tables.iter().map(as_toml).collect();
        let _ = write!(
            out,
            "\n# Class {class}: {}.\n[group.{name}]\nrole  = \"{role}\"\nmatch = [{}]\ncpus  = \"any\"\n",
            said(state, own.as_ref()),
            each.join(", ")
        );
        if let Some((level, mask)) = own {
            let _ = writeln!(
                out,
                "reserve.cache = {{ mask = \"{mask}\", level = \"{level}\" }}"
            );
        }
        names.push(name);
    }
    if names.is_empty() {
        return None;
    }
    let rest = seen.classes.get(ROOT).map(|root| said(root, None));
    let _ = write!(
        out,
        "\n# All other programs, now: {}. As planned they share the ways that no group has to itself.\n\
         # See what changes: quell plan FILE --steps\n\
         # Before `quell run` remove these classes (rmdir /sys/fs/resctrl/NAME): it takes no others' ways.\n",
        rest.unwrap_or_default()
    );
    Some(out)
}

/// The programs with threads in a class, by the names of their processes.
fn programs(seen: &Snapshot, class: &str) -> Vec<TaskMatch> {
    let inside: BTreeSet<u32> = seen
        .threads
        .values()
        .filter(|thread| thread.class == class)
        .map(|thread| thread.pid)
        .collect();
    let main = |pid: &u32| {
        let own = seen.threads.get(pid);
        let any = || seen.threads.values().find(|thread| thread.pid == *pid);
        own.or_else(any).map(|thread| thread.name.clone())
    };
    let names: BTreeSet<String> = inside.iter().filter_map(main).collect();
    names
        .into_iter()
        .map(|comm| TaskMatch {
            comm: Some(comm),
            ..TaskMatch::default()
        })
        .collect()
}

/// The ways that a class has to itself: the same in every cache of the last level where it has any.
fn own(seen: &Snapshot, class: &str, state: &Class) -> Option<(String, Mask)> {
    let mut levels: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    for (place, mask) in &state.masks {
        levels.entry(&place.resource).or_default().insert(mask.0);
    }
    let alone = |resource: &str, mask: u64| {
        let others = seen.classes.iter().filter(|(name, _)| *name != class);
        let mut masks = others.flat_map(|(_, other)| &other.masks);
        masks.all(|(place, theirs)| place.resource != resource || theirs.0 & mask == 0)
    };
    levels.into_iter().rev().find_map(|(resource, masks)| {
        let mask = *masks.first()?;
        let same = masks.len() == 1 && ["L2", "L3"].contains(&resource);
        (same && alone(resource, mask)).then(|| (resource.to_owned(), Mask(mask)))
    })
}

/// What a class has now, in words.
fn said(state: &Class, own: Option<&(String, Mask)>) -> String {
    let masks: Vec<String> = state
        .masks
        .iter()
        .map(|(place, mask)| format!("{place} {mask}"))
        .collect();
    let mut said = format!("ways {}", masks.join(", "));
    if own.is_some() {
        said += ", which no other class fills";
    }
    if !state.cpus.is_empty() {
        let _ = write!(said, "; tasks of no class on CPUs {}, too", state.cpus);
    }
    let throttled: Vec<String> = state
        .throttles
        .iter()
        .map(|(place, value)| format!("{place} {value}"))
        .collect();
    if !throttled.is_empty() {
        let _ = write!(said, "; bandwidth {}", throttled.join(", "));
    }
    said
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use quell_policy::{Policy, Role};
    use quell_record::ways::{Place, Thread};

    use super::*;

    fn class(mask: u64) -> Class {
        Class {
            mode: Default::default(),
            masks: [
                (Place::new("L3", 0), Mask(mask)),
                (Place::new("L3", 1), Mask(mask)),
            ]
            .into(),
            throttles: BTreeMap::new(),
            cpus: Default::default(),
            figures: BTreeMap::new(),
        }
    }

    fn thread(pid: u32, name: &str, class: &str) -> Thread {
        Thread {
            pid,
            name: name.to_owned(),
            class: class.to_owned(),
            cpu: Default::default(),
            passing: false,
        }
    }

    #[test]
    fn a_class_with_ways_of_its_own_is_critical_and_others_share() {
        let mut seen = Snapshot::default();
        for (name, mask) in [
            (ROOT, 0xff0),
            ("rt", 0xf),
            ("batch", 0xff0),
            ("empty", 0xf000),
        ] {
            seen.classes.insert(name.to_owned(), class(mask));
        }
        for (tid, pid, name, of) in [
            (7, 7, "control", "rt"),
            (8, 7, "worker", "rt"),
            (9, 9, "stress-ng", "batch"),
            (10, 10, "sh", ROOT),
        ] {
            seen.threads.insert(tid, thread(pid, name, of));
        }
        let text = policy(&seen).unwrap();
        let read = Policy::parse(&text, "ways.toml").unwrap();
        assert_eq!(read.groups.len(), 2, "{text}");
        assert_eq!(read.groups["control"].role, Role::Critical);
        assert!(
            text.contains("reserve.cache = { mask = \"0xf\", level = \"L3\" }"),
            "{text}"
        );
        assert_eq!(read.groups["stress-ng"].role, Role::BestEffort);
        assert!(
            text.contains("All other programs, now: ways L3:0 0xff0, L3:1 0xff0"),
            "{text}"
        );
        // A class whose ways differ from cache to cache has no mask of its own.
        let rt = seen.classes.get_mut("rt").unwrap();
        rt.masks.insert(Place::new("L3", 1), Mask(3));
        assert!(!policy(&seen).unwrap().contains("reserve"));
        seen.threads.retain(|_, thread| thread.class == ROOT);
        assert_eq!(policy(&seen), None);
    }
}
