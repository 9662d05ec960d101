//! Which groups run on which CPUs: exclusive CPUs for critical groups, what is left for other
//! groups.
//!
//! Groups that name CPUs choose first. Counted CPUs are of the fastest kind and near to each other:
//! one node, and one last-level cache if one has enough, the largest of those. They are whole cores
//! where the group is to have its cores alone. They are taken from the highest number down, because
//! the kernel keeps its own housekeeping on the lowest.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use quell_policy::{CpusWanted, Group, Policy, Role, Smt};
use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::refusal::{Cause, Refusal, Remedy};

use crate::inventory::{Cpu, Inventory};

use super::words::{cores as words, on, windows};

/// The CPUs of one group.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// The CPUs that the group runs on.
    pub cpus: CpuSet,
    /// CPUs that no other group may use: its own and, if it is to have its cores alone, their
    /// siblings.
    pub blocked: CpuSet,
    /// Whether no other group runs on these CPUs.
    pub exclusive: bool,
    /// Whether its tasks are confined to `cpus`.
    pub confined: bool,
}

/// The CPUs of all groups.
#[derive(Clone, Debug, Default)]
pub struct Division {
    parts: BTreeMap<String, Part>,
    /// The CPUs of unmatched tasks (`rest`).
    pub rest: CpuSet,
    /// The CPUs that no critical group takes: interrupts and kernel work are sent there.
    pub free: CpuSet,
    /// The CPUs that are divided into windows. Only the groups of the windows run there.
    pub windowed: CpuSet,
    /// Notes for the plan.
    pub notes: Vec<String>,
}

impl Division {
    /// The CPUs of a group; an empty part for an unknown group.
    pub fn of(&self, group: &str) -> &Part {
        static NOTHING: Part = Part {
            cpus: CpuSet::EMPTY,
            blocked: CpuSet::EMPTY,
            exclusive: false,
            confined: false,
        };
        self.parts.get(group).unwrap_or(&NOTHING)
    }

    /// Whether a group has got its CPUs.
    pub(super) fn has(&self, group: &str) -> bool {
        self.parts.contains_key(group)
    }

    pub(super) fn put(&mut self, group: &str, part: Part) {
        self.parts.insert(group.to_owned(), part);
    }

    /// Whether a group has this CPU to itself.
    pub(super) fn runs_alone_on(&self, cpu: CpuId) -> bool {
        self.parts
            .values()
            .any(|p| p.exclusive && p.cpus.contains(cpu))
    }

    /// The CPUs that a group with `cpus` takes from all other groups. Adds a note about its
    /// siblings.
    fn block(
        &mut self,
        machine: &Inventory,
        free: &CpuSet,
        cpus: &CpuSet,
        name: &str,
        smt: Smt,
    ) -> CpuSet {
        let own = machine.cpus.iter().filter(|c| cpus.contains(c.id));
        let whole = own.fold(CpuSet::new(), |all, c| all.union(&c.siblings));
        let whole = whole.intersection(&machine.cpu_set()).union(cpus);
        let siblings = whole.difference(cpus);
        if siblings.is_empty() || smt == Smt::Shared {
            return cpus.clone();
        }
        let leaves_a_core = !free.difference(&whole).is_empty();
        if smt == Smt::Alone || leaves_a_core {
            self.notes.push(words::siblings_stay_idle(name, &siblings));
            return whole;
        }
        let note = words::shares_its_cores(name, &on(&siblings));
        self.notes.push(note);
        cpus.clone()
    }

    /// Whether any CPU is exclusive to a group, or to the groups of the windows.
    pub fn partitioned(&self) -> bool {
        !self.windowed.is_empty() || self.parts.values().any(|p| p.exclusive)
    }
}

/// Divides the machine's CPUs. Adds what cannot be had to `refusals`.
pub fn divide(policy: &Policy, machine: &Inventory, refusals: &mut Vec<Refusal>) -> Division {
    let before = refusals.len();
    let division = divided(policy, machine, refusals);
    // Where fewer CPUs are enough to make the division possible, that remedy comes before leaving
    // out the group's CPUs.
    for refusal in refusals.iter_mut().skip(before) {
        if let Some(fewer) = fewer(policy, machine, &refusal.key) {
            refusal
                .remedies
                .insert(0, Remedy::set(refusal.key.clone(), fewer));
        }
    }
    division
}

/// The largest number of CPUs, smaller than what a group asks for, with which the CPUs can be
/// divided.
fn fewer(policy: &Policy, machine: &Inventory, key: &str) -> Option<u32> {
    let mut names = policy.groups.keys();
    let name = names.find(|name| key == format!("group.{name}.cpus"))?;
    let CpusWanted::Count(n) = policy.groups.get(name)?.cpus_wanted() else {
        return None;
    };
    let most = u32::try_from(machine.cpus.len()).unwrap_or(u32::MAX);
    (1..n.min(most.saturating_add(1))).rev().find(|fewer| {
        let mut policy = policy.clone();
        if let Some(group) = policy.groups.get_mut(name) {
            group.cpus = Some(CpusWanted::Count(*fewer));
        }
        let mut refusals = Vec::new();
        divided(&policy, machine, &mut refusals);
        refusals.is_empty()
    })
}

fn divided(policy: &Policy, machine: &Inventory, refusals: &mut Vec<Refusal>) -> Division {
    let all = machine.cpu_set();
    let mut division = Division::default();
    division.windowed = windowed(policy, machine, &mut division, refusals);
    let mut free = all.difference(&division.windowed);
    let mut refuse = |name: &str, cause, why: String, instead: &str| {
        let key = format!("group.{name}.cpus");
        let remedies = vec![Remedy::set_text(key.clone(), instead)];
        refusals.push(Refusal {
            key,
            why,
            cause,
            remedies,
        });
    };
    let wants_exclusive = |group: &Group| {
        group.role == Role::Critical && !matches!(group.cpus_wanted(), CpusWanted::Any)
    };
    // Named CPUs first, then counted ones, then `auto`.
    let rank = |group: &Group| match group.cpus_wanted() {
        CpusWanted::List(_) => 0,
        CpusWanted::Count(_) => 1,
        _ => 2,
    };
    let mut critical: Vec<(&String, &Group)> = policy
        .groups
        .iter()
        .filter(|(name, g)| wants_exclusive(g) && !division.has(name))
        .collect();
    critical.sort_by_key(|(_, g)| rank(g));
    let undecided = critical.iter().filter(|(_, g)| rank(g) == 2).count();
    for (name, group) in critical {
        let cpus = match group.cpus_wanted() {
            CpusWanted::List(list) => list,
            CpusWanted::Count(n) => {
                let n = n as usize;
                choose(
                    machine,
                    &suiting(machine, &free, n, group.smt),
                    n,
                    group.smt,
                )
            }
            _ => {
                // Half of the CPUs that are left; half of the cores, where the group is to have
                // whole ones.
                let units = units_of(machine, &free, group.smt).len();
                let half = (units / 2 / undecided.max(1)).max(1);
                // Somebody has isolated them for such a group.
                let isolated = units_of(machine, &isolated(machine, &free), group.smt).len();
                let n = if isolated > 0 {
                    half.min(isolated)
                } else {
                    half
                };
                let cpus = choose(
                    machine,
                    &suiting(machine, &free, n, group.smt),
                    n,
                    group.smt,
                );
                let what = if group.smt == Smt::Shared {
                    "CPUs"
                } else {
                    "cores"
                };
                let note = words::auto_came_to(name, &cpus.brief(), units, what);
                division.notes.push(note);
                cpus
            }
        };
        let wanted = match group.cpus_wanted() {
            CpusWanted::Count(n) => n as usize,
            _ => cpus.len().max(1),
        };
        let missing = cpus.difference(&all);
        let taken = cpus.intersection(&all).difference(&free);
        if !missing.is_empty() {
            refuse(
                name,
                Cause::Policy,
                words::do_not_exist(&missing, &all),
                "auto",
            );
        } else if !taken.is_empty() {
            refuse(name, Cause::Policy, words::are_taken(&taken), "auto");
        } else if cpus.len() < wanted || wanted == 0 {
            refuse(
                name,
                Cause::Machine,
                words::too_few(wanted, free.len()),
                "any",
            );
        }
        let kind = |cpu: CpuId| machine.cpus.iter().find(|c| c.id == cpu).map(|c| c.tier);
        let slower: CpuSet = cpus
            .iter()
            .filter(|c| kind(*c) > cpus.iter().map(kind).min().flatten())
            .collect();
        if !slower.is_empty() {
            division.notes.push(words::slower_kind(name, &slower));
        }
        division.notes.extend(smaller_cache(machine, name, &cpus));
        let apart = isolated(machine, &cpus);
        if !apart.is_empty() {
            let ticks = machine
                .cpus
                .iter()
                .any(|c| apart.contains(c.id) && !c.tickless);
            division.notes.push(words::isolated(name, &apart, ticks));
        }
        let blocked = division.block(machine, &free, &cpus, name, group.smt);
        free = free.difference(&blocked);
        division.parts.insert(
            name.clone(),
            Part {
                cpus,
                blocked,
                exclusive: true,
                confined: true,
            },
        );
    }
    // On a simulated machine there are no tasks but those of the policy's groups.
    let nobody_else =
        machine.simulated.is_some() && policy.groups.values().all(|g| g.role == Role::Critical);
    if free.is_empty() && !all.difference(&division.windowed).is_empty() && !nobody_else {
        let names: Vec<&str> = division.parts.keys().map(String::as_str).collect();
        refuse(
            names.first().unwrap_or(&""),
            Cause::Machine,
            words::nothing_is_left(&names.join(", "), &all),
            "any",
        );
        if let (Some(refusal), true) = (refusals.last_mut(), names.len() > 1) {
            let share = words::share(&names.join(" and "));
            refusal.remedies.insert(0, Remedy::from(share.as_str()));
        }
    }
    division.free = free;
    division
}

/// Gives the CPUs of the windows to the groups that have one. Returns the CPUs, which no other
/// group gets.
fn windowed(
    policy: &Policy,
    machine: &Inventory,
    division: &mut Division,
    refusals: &mut Vec<Refusal>,
) -> CpuSet {
    let Some(keys) = &policy.windows else {
        return CpuSet::new();
    };
    let (key, all) = ("windows.cpus", machine.cpu_set());
    let missing = keys.cpus.difference(&all);
    let refused = if !missing.is_empty() {
        Some((Cause::Policy, words::do_not_exist(&missing, &all)))
    } else if keys.cpus == all {
        Some((Cause::Machine, windows::nothing_is_left(&keys.cpus)))
    } else {
        None
    };
    if let Some((cause, why)) = refused {
        let last = all.iter().next_back().filter(|_| all.len() > 1);
        let remedy = match last {
            Some(last) => Remedy::set_text(key, last),
            None => Remedy::leave_out("windows"),
        };
        refusals.push(Refusal {
            key: key.to_owned(),
            why,
            cause,
            remedies: vec![remedy],
        });
    }
    let cpus = keys.cpus.intersection(&all);
    for name in policy.groups.keys().filter(|name| keys.has(name)) {
        let part = Part {
            cpus: cpus.clone(),
            blocked: CpuSet::new(),
            exclusive: false,
            confined: true,
        };
        division.put(name, part);
    }
    for cpu in cpus.iter() {
        let of = machine.cpus.iter().find(|c| c.id == cpu);
        let siblings = of.map(|c| c.siblings.difference(&cpus)).unwrap_or_default();
        if !siblings.is_empty() {
            division.notes.push(windows::shares_a_core(cpu, &siblings));
        }
    }
    cpus
}

/// What a group chooses from: CPUs, or one CPU of each core.
fn units_of(machine: &Inventory, free: &CpuSet, smt: Smt) -> CpuSet {
    match smt {
        Smt::Shared => free.clone(),
        _ => cores(machine, free),
    }
}

/// The CPUs of `of` that the scheduler does not balance.
fn isolated(machine: &Inventory, of: &CpuSet) -> CpuSet {
    let isolated = machine.cpus.iter().filter(|c| c.isolated);
    isolated
        .map(|c| c.id)
        .filter(|id| of.contains(*id))
        .collect()
}

/// The free CPUs that a group with `n` CPUs is given some of: isolated ones where these are enough,
/// else the others where those are. Threads that may run on both kinds are kept off the isolated
/// ones by the scheduler.
fn suiting(machine: &Inventory, free: &CpuSet, n: usize, smt: Smt) -> CpuSet {
    let isolated = isolated(machine, free);
    let balanced = free.difference(&isolated);
    let units = |cpus| units_of(machine, cpus, smt).len();
    if !isolated.is_empty() && units(&isolated) >= n {
        isolated
    } else if units(&balanced) > n {
        balanced
    } else {
        free.clone()
    }
}

/// A note where CPUs of the same kind as some of a group's share a larger last-level cache.
fn smaller_cache(machine: &Inventory, group: &str, cpus: &CpuSet) -> Option<String> {
    let sized = |cpu: &Cpu| Some((machine.llc(cpu.id)?.size, cpu.tier));
    let own = |cpu: &&Cpu| cpus.contains(cpu.id);
    let (least, tier) = machine.cpus.iter().filter(own).filter_map(sized).min()?;
    let alike = machine
        .cpus
        .iter()
        .filter_map(sized)
        .filter(|s| s.1 == tier);
    let (most, _) = alike.max().filter(|(most, _)| *most > least)?;
    Some(words::smaller_cache(group, least, most))
}

/// The cores with a free CPU, each represented by its highest one.
fn cores(machine: &Inventory, free: &CpuSet) -> CpuSet {
    let mut seen = CpuSet::new();
    let mut cores = CpuSet::new();
    for cpu in machine.cpus.iter().rev().filter(|c| free.contains(c.id)) {
        if !seen.contains(cpu.id) {
            cores.insert(cpu.id);
            seen = seen.union(&cpu.siblings);
        }
    }
    cores
}

/// CPUs near to each other: one kind of core, whether their memory node is empty, that node, one
/// last-level cache.
type Place = (u32, bool, u32, CpuSet);

/// `n` CPUs of the fastest kind, near to each other, from the highest number down. They are on
/// different cores as far as possible, unless the group shares cores.
fn choose(machine: &Inventory, free: &CpuSet, n: usize, smt: Smt) -> CpuSet {
    let units = units_of(machine, free, smt);
    let mut places: BTreeMap<Place, CpuSet> = BTreeMap::new();
    let cached = |cpus: &CpuSet| {
        cpus.first()
            .and_then(|cpu| machine.llc(cpu))
            .map(|c| c.size)
    };
    for cpu in machine.cpus.iter().filter(|c| units.contains(c.id)) {
        let cache = machine.llc(cpu.id).map(|c| c.cpus.clone());
        let bare = (machine.nodes.iter()).any(|n| n.id == cpu.node && n.memory.0 == 0);
        let place = (cpu.tier, bare, cpu.node, cache.unwrap_or_default());
        places.entry(place).or_default().insert(cpu.id);
    }
    let mut cpus = CpuSet::new();
    let mut home = None;
    while cpus.len() < n && !places.is_empty() {
        let left = n - cpus.len();
        // Of the places that hold what is left, those with the most cache, the smallest of them.
        // Where none does, the largest, so that few places are broken up.
        let best = places
            .iter()
            .min_by_key(|((tier, bare, node, cache), units)| {
                let fits = units.len() >= left;
                (
                    *tier,
                    *bare,
                    home.is_some_and(|h| h != *node),
                    !fits,
                    Reverse(cached(cache).filter(|_| fits)),
                    if fits {
                        units.len()
                    } else {
                        usize::MAX - units.len()
                    },
                    Reverse(units.iter().next_back()),
                )
            })
            .map(|(place, _)| place.clone());
        let Some((place, units)) = best.and_then(|p| places.remove_entry(&p)) else {
            break;
        };
        home = home.or(Some(place.2));
        for cpu in units.iter().rev().take(left) {
            cpus.insert(cpu);
        }
    }
    for cpu in free.iter().rev() {
        if cpus.len() < n {
            cpus.insert(cpu);
        }
    }
    cpus
}
