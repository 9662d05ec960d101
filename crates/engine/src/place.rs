//! Which subject runs on which CPUs. This is chosen once per experiment. So a configuration never
//! changes where a subject runs, only what is done around it.
//!
//! 1. Critical subjects choose first, from the lowest CPU up.
//! 2. Then the rest choose, as near to the first critical subject as they can without sharing its
//!    core: another core below the same last-level cache. There neighbours hurt most.
//! 3. Only when the machine is too small, subjects that are not critical share CPUs with each
//!    other.
//! 4. When it is too small even for that, critical subjects of one group share theirs.

use std::collections::BTreeMap;

use quell_plan::inventory::Inventory;
use quell_policy::Role;
use quell_types::cpuset::{CpuId, CpuSet};

/// Where a subject is to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The subject's name, unique within the experiment.
    pub name: String,
    /// The name of its group.
    pub group: String,
    /// Critical subjects choose first and share last.
    pub role: Role,
    /// How many CPUs, or which ones.
    pub cpus: Cpus,
}

/// How many CPUs a subject gets, or which ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cpus {
    /// So many CPUs, chosen by [`place`].
    Count(u32),
    /// Exactly these CPUs, by number.
    These(CpuSet),
    /// The CPUs of the subject with that name, shared with it.
    With(String),
    /// The other threads of the cores of the subject with that name.
    SiblingOf(String),
}

/// Why a subject has no CPUs to run on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// The machine has fewer free CPUs than the subject needs.
    #[error(
        "subject '{name}' needs {wanted} CPUs, and of this machine's {online} only {left} are left for it; ask for fewer \
         `cpus` or run fewer subjects"
    )]
    TooFew {
        /// The subject without a place.
        name: String,
        /// How many CPUs it needs.
        wanted: usize,
        /// How many CPUs the machine has.
        online: usize,
        /// How many CPUs could be had for it.
        left: usize,
    },
    /// The subject names CPUs that do not exist or may not be used.
    #[error(
        "subject '{name}' names CPUs {missing}, which are not usable here; usable are {usable}"
    )]
    Missing {
        /// The subject that names them.
        name: String,
        /// Those of its CPUs that cannot be used.
        missing: CpuSet,
        /// All CPUs that can be used.
        usable: CpuSet,
    },
    /// Its CPUs follow those of a subject that has none.
    #[error(
        "subject '{name}' is to run where '{other}' does, and '{other}' is pinned to no CPUs of its own; give          '{other}' `cpus` as a number or a list"
    )]
    NoSubject {
        /// The subject that follows.
        name: String,
        /// The subject that is followed.
        other: String,
    },
    /// It wants the other threads of cores that have one thread each.
    #[error(
        "subject '{name}' is to run on the other threads of the cores of '{other}', and these cores have no other \
         thread that is usable here"
    )]
    NoSibling {
        /// The subject that wants them.
        name: String,
        /// The subject that runs on these cores.
        other: String,
    },
    /// It names a CPU that another subject has, and one of the two is critical.
    #[error("subjects '{name}' and '{other}' both name CPUs {both}, and one of them is critical")]
    Both {
        /// The subject that was placed later.
        name: String,
        /// The subject that has the CPUs already.
        other: String,
        /// The CPUs that both name.
        both: CpuSet,
    },
}

/// Every subject's CPUs, by name.
pub fn place(wishes: &[Wish], machine: &Inventory) -> Result<BTreeMap<String, CpuSet>, PlaceError> {
    place_all(wishes, machine, false)
        .or_else(|apart| place_all(wishes, machine, true).map_err(|_| apart))
}

/// [`place`]; critical subjects of one group share CPUs if `together`, else each has its own.
fn place_all(
    wishes: &[Wish],
    machine: &Inventory,
    together: bool,
) -> Result<BTreeMap<String, CpuSet>, PlaceError> {
    let mut places: BTreeMap<String, CpuSet> = BTreeMap::new();
    let mut critical = CpuSet::new();
    // Named CPUs go before counted ones, and critical subjects before the rest. The sort is stable,
    // so equal ones keep their order.
    let mut order: Vec<&Wish> = wishes.iter().collect();
    let rank = |wish: &Wish| match wish.cpus {
        Cpus::These(_) => 0,
        Cpus::Count(_) => 1,
        Cpus::With(_) | Cpus::SiblingOf(_) => 2,
    };
    order.sort_by_key(|w| (rank(w), w.role != Role::Critical));
    let anchor = wishes
        .iter()
        .find(|w| w.role == Role::Critical)
        .or(wishes.first());
    for wish in order {
        let cpus = match &wish.cpus {
            Cpus::These(list) => named(wish, list, wishes, &places, machine)?,
            Cpus::With(other) => theirs(wish, other, &places)?,
            Cpus::SiblingOf(other) => siblings(wish, other, &places, machine)?,
            Cpus::Count(count) => {
                let near = anchor
                    .and_then(|a| places.get(&a.name))
                    .and_then(CpuSet::first);
                let theirs = wishes
                    .iter()
                    .filter(|w| together && w.role == Role::Critical && w.group == wish.group)
                    .filter_map(|w| places.get(&w.name));
                let theirs = theirs.fold(CpuSet::new(), |all, cpus| all.union(cpus));
                let shared: CpuSet = theirs.iter().take(*count as usize).collect();
                counted(
                    wish,
                    *count as usize,
                    shared,
                    &places,
                    &critical,
                    near,
                    machine,
                )?
            }
        };
        if wish.role == Role::Critical {
            critical = critical.union(&cpus);
        }
        places.insert(wish.name.clone(), cpus);
    }
    Ok(places)
}

/// The CPUs of the subject that a wish names. Where that has copies: of all of them.
fn theirs(
    wish: &Wish,
    other: &str,
    places: &BTreeMap<String, CpuSet>,
) -> Result<CpuSet, PlaceError> {
    let copy = |name: &str| name.strip_prefix(other).is_some_and(|n| n.starts_with('.'));
    let found = places
        .iter()
        .filter(|(name, _)| *name == other || copy(name))
        .fold(CpuSet::new(), |all, (_, cpus)| all.union(cpus));
    if found.is_empty() {
        return Err(PlaceError::NoSubject {
            name: wish.name.clone(),
            other: other.to_owned(),
        });
    }
    Ok(found)
}

/// The threads of the cores of the subject that a wish names, without that subject's own CPUs.
fn siblings(
    wish: &Wish,
    other: &str,
    places: &BTreeMap<String, CpuSet>,
    machine: &Inventory,
) -> Result<CpuSet, PlaceError> {
    let own = theirs(wish, other, places)?;
    let cores = machine.cpus.iter().filter(|cpu| own.contains(cpu.id));
    let threads = cores.fold(CpuSet::new(), |all, cpu| all.union(&cpu.siblings));
    let found = threads.difference(&own).intersection(&machine.cpu_set());
    if found.is_empty() {
        return Err(PlaceError::NoSibling {
            name: wish.name.clone(),
            other: other.to_owned(),
        });
    }
    Ok(found)
}

fn named(
    wish: &Wish,
    list: &CpuSet,
    wishes: &[Wish],
    places: &BTreeMap<String, CpuSet>,
    machine: &Inventory,
) -> Result<CpuSet, PlaceError> {
    let usable = machine.cpu_set();
    let missing = list.difference(&usable);
    if !missing.is_empty() {
        return Err(PlaceError::Missing {
            name: wish.name.clone(),
            missing,
            usable,
        });
    }
    for other in wishes {
        let both = places
            .get(&other.name)
            .map(|theirs| theirs.intersection(list))
            .unwrap_or_default();
        let guarded = wish.role == Role::Critical || other.role == Role::Critical;
        if guarded && !both.is_empty() {
            return Err(PlaceError::Both {
                name: wish.name.clone(),
                other: other.name.clone(),
                both,
            });
        }
    }
    Ok(list.clone())
}

/// Adds CPUs to those `chosen` already until there are `count`.
fn counted(
    wish: &Wish,
    count: usize,
    mut chosen: CpuSet,
    places: &BTreeMap<String, CpuSet>,
    critical: &CpuSet,
    near: Option<CpuId>,
    machine: &Inventory,
) -> Result<CpuSet, PlaceError> {
    let taken = places
        .values()
        .fold(CpuSet::new(), |all, cpus| all.union(cpus));
    while chosen.len() < count {
        let busy = taken.union(&chosen);
        let best = machine
            .cpus
            .iter()
            .filter(|c| !busy.contains(c.id))
            .min_by_key(|c| {
                let core_shared = c.siblings.iter().any(|s| s != c.id && busy.contains(s));
                let far = near.is_some_and(|n| !same_llc(machine, n, c.id));
                (core_shared, far, c.id)
            })
            .map(|c| c.id);
        // No CPU is free. Subjects that are not critical share among themselves, least crowded CPU
        // first.
        let best = best.or_else(|| {
            machine
                .cpus
                .iter()
                .map(|c| c.id)
                .filter(|c| {
                    wish.role != Role::Critical && !critical.contains(*c) && !chosen.contains(*c)
                })
                .min_by_key(|c| (places.values().filter(|p| p.contains(*c)).count(), *c))
        });
        match best {
            Some(cpu) => chosen.insert(cpu),
            None => {
                return Err(PlaceError::TooFew {
                    name: wish.name.clone(),
                    wanted: count,
                    online: machine.cpus.len(),
                    left: chosen.len(),
                });
            }
        }
    }
    Ok(chosen)
}

fn same_llc(machine: &Inventory, a: CpuId, b: CpuId) -> bool {
    machine.llc(a).is_some_and(|cache| cache.cpus.contains(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::machine;
    use proptest::prelude::*;

    fn wish(name: &str, role: Role, count: u32) -> Wish {
        Wish {
            name: name.into(),
            group: name.into(),
            role,
            cpus: Cpus::Count(count),
        }
    }

    fn placed(wishes: &[Wish], machine: &Inventory) -> Vec<String> {
        let places = place(wishes, machine).unwrap();
        wishes.iter().map(|w| places[&w.name].to_string()).collect()
    }

    #[test]
    fn the_critical_subject_gets_the_lowest_cpu_in_any_order() {
        let wishes = [
            wish("neighbour", Role::BestEffort, 1),
            wish("victim", Role::Critical, 1),
        ];
        assert_eq!(placed(&wishes, &machine(2)), ["1", "0"]);
    }

    #[test]
    fn a_neighbour_that_shares_gets_the_cpus_of_the_other() {
        let with = |name: &str| Wish {
            cpus: Cpus::With(name.into()),
            ..wish("neighbour", Role::BestEffort, 1)
        };
        let victim = wish("victim", Role::Critical, 1);
        assert_eq!(
            placed(&[with("victim"), victim.clone()], &machine(2)),
            ["0", "0"]
        );
        let wrong = place(&[with("victum"), victim.clone()], &machine(2));
        assert!(
            matches!(wrong, Err(PlaceError::NoSubject { .. })),
            "{wrong:?}"
        );
        let sibling = Wish {
            cpus: Cpus::SiblingOf("victim".into()),
            ..wish("neighbour", Role::BestEffort, 1)
        };
        let mut machine = machine(4);
        let alone = place(&[sibling.clone(), victim.clone()], &machine);
        for cpu in &mut machine.cpus {
            cpu.siblings = CpuSet::from_iter([cpu.id % 2, cpu.id % 2 + 2]);
        }
        assert_eq!(placed(&[sibling, victim], &machine), ["2", "0"]);
        assert!(
            matches!(alone, Err(PlaceError::NoSibling { .. })),
            "{alone:?}"
        );
    }

    #[test]
    fn a_neighbour_gets_another_core_rather_than_the_sibling() {
        // Two cores of two threads: 0 and 2 are one core, 1 and 3 the other.
        let mut machine = machine(4);
        for cpu in &mut machine.cpus {
            cpu.siblings = CpuSet::from_iter([cpu.id % 2, cpu.id % 2 + 2]);
        }
        let wishes = [
            wish("victim", Role::Critical, 1),
            wish("neighbour", Role::BestEffort, 1),
            wish("third", Role::BestEffort, 1),
        ];
        assert_eq!(placed(&wishes, &machine), ["0", "1", "2"]);
    }

    #[test]
    fn a_neighbour_stays_below_the_victims_cache() {
        // Even CPUs lie below one last-level cache, odd ones below another.
        let mut machine = machine(4);
        let cache = machine.caches[0].clone();
        machine.caches = [[0, 2], [1, 3]]
            .map(|cpus| {
                let mut cache = cache.clone();
                cache.cpus = CpuSet::from_iter(cpus);
                cache
            })
            .to_vec();
        let wishes = [
            wish("victim", Role::Critical, 1),
            wish("neighbour", Role::BestEffort, 1),
        ];
        assert_eq!(placed(&wishes, &machine), ["0", "2"]);
    }

    #[test]
    fn on_a_small_machine_only_neighbours_share() {
        let wishes = [
            wish("victim", Role::Critical, 1),
            wish("a", Role::BestEffort, 1),
            wish("b", Role::BestEffort, 1),
        ];
        assert_eq!(placed(&wishes, &machine(2)), ["0", "1", "1"]);
        let two = [
            wish("victim", Role::Critical, 2),
            wish("a", Role::BestEffort, 1),
        ];
        let error = place(&two, &machine(2)).unwrap_err().to_string();
        assert!(error.starts_with("subject 'a' needs 1 CPUs, and of this machine's 2 only 0"));
    }

    #[test]
    fn critical_subjects_share_a_cpu_only_where_no_other_would_fit() {
        let of_call = |name| Wish {
            group: "call".into(),
            ..wish(name, Role::Critical, 1)
        };
        let wishes = [
            of_call("webrtc"),
            of_call("xserver"),
            wish("lbm1", Role::BestEffort, 1),
            wish("lbm2", Role::BestEffort, 1),
        ];
        assert_eq!(placed(&wishes, &machine(4)), ["0", "1", "2", "3"]);
        assert_eq!(placed(&wishes, &machine(3)), ["0", "1", "2", "2"]);
        assert_eq!(placed(&wishes, &machine(2)), ["0", "0", "1", "1"]);
        assert!(place(&wishes, &machine(1)).is_err());
    }

    #[test]
    fn named_cpus_are_kept_and_checked() {
        let these = |name: &str, role, list: &str| Wish {
            name: name.into(),
            group: name.into(),
            role,
            cpus: Cpus::These(list.parse().unwrap()),
        };
        let wishes = [
            wish("victim", Role::Critical, 1),
            these("neighbour", Role::BestEffort, "0"),
        ];
        assert_eq!(placed(&wishes, &machine(2)), ["1", "0"]);
        let error = place(&[these("a", Role::BestEffort, "1,7")], &machine(2)).unwrap_err();
        assert!(error.to_string().contains("names CPUs 7"));
        let clash = [
            these("victim", Role::Critical, "0"),
            these("neighbour", Role::BestEffort, "0-1"),
        ];
        assert!(matches!(
            place(&clash, &machine(2)),
            Err(PlaceError::Both { .. })
        ));
    }

    proptest! {
        #[test]
        fn critical_cpus_are_never_shared_and_counts_are_met(
            cpus in 1u32..12, wanted in proptest::collection::vec((any::<bool>(), 1u32..4), 1..5),
        ) {
            let wishes: Vec<_> = wanted.iter().enumerate()
                .map(|(i, (critical, n))| wish(&format!("s{i}"),
                    if *critical { Role::Critical } else { Role::BestEffort }, *n))
                .collect();
            if let Ok(places) = place(&wishes, &machine(cpus)) {
                for (i, a) in wishes.iter().enumerate() {
                    prop_assert_eq!(places[&a.name].len(), wanted[i].1 as usize);
                    for b in wishes.iter().filter(|b| b.name != a.name && a.role == Role::Critical) {
                        prop_assert!(places[&a.name].intersection(&places[&b.name]).is_empty());
                    }
                }
            }
        }
    }
}
