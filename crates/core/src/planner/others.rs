//! Who runs on what the critical groups leave: named and counted CPUs first, then groups whose limit is too small for
//! all of it, then everybody else.
//!
//! A throttler stops everybody on its CPU. A limited group with CPUs of its own therefore keeps them to itself, as long as
//! something is left for the others; and a limited group that names none gets as many as its limit can be held on.

use crate::cpuset::{CpuId, CpuSet};
use crate::inventory::{Availability, Inventory};
use crate::mechanism::Mechanism;
use crate::plan::Refusal;
use crate::policy::{Bandwidth, CpusWanted, Group, Permission, Policy, Role, Sustainable};
use crate::units::{Rate, Share};

use super::apart::Apart;
use super::cpus::{Division, Part, on};

/// The share of a CPU below which no limit is held there: what the kernel gives ordinary tasks beside a real-time thread,
/// unless the policy accepts less.
pub(super) fn floor(policy: &Policy, machine: &Inventory) -> Share {
    let asked = policy.regulator.floor;
    if asked < Share::percent(5) {
        asked
    } else {
        asked.max(machine.means.kernel_floor)
    }
}

/// Gives every group without exclusive CPUs its part, and `rest` its own.
pub(super) fn divide(
    policy: &Policy,
    machine: &Inventory,
    free: &CpuSet,
    division: &mut Division,
    refusals: &mut Vec<Refusal>,
) {
    let mut others = Others {
        policy,
        machine,
        all: machine.cpu_set(),
        free,
        beside: beside(machine, free, division),
        taken: CpuSet::new(),
        kept: CpuSet::new(),
        refusals,
    };
    let open: Vec<(&String, &Group)> = policy
        .groups
        .iter()
        .filter(|(name, _)| !division.has(name))
        .collect();
    // Without an exclusive group nobody is moved, and whoever is not moved may run anywhere.
    let partitioned = division.partitioned();
    for (name, group) in &open {
        if let CpusWanted::List(list) = group.cpus_wanted() {
            others.exist(&format!("group.{name}"), &list);
            others.take(&list, partitioned && others.regulated(name, group));
            division.put(name, part(group, &list, &others.all));
        }
    }
    for (name, group) in &open {
        if let CpusWanted::Count(n) = group.cpus_wanted() {
            let cpus = others.counted(&format!("group.{name}"), n as usize);
            others.take(&cpus, partitioned && others.regulated(name, group));
            division.put(name, part(group, &cpus, &others.all));
        }
    }
    for (name, group) in &open {
        if group.cpus.is_some() || !partitioned || !others.regulated(name, group) {
            continue;
        }
        let pool = others.left();
        let Some(n) = others
            .holding(group, pool.len())
            .filter(|n| *n < pool.len())
        else {
            continue;
        };
        let cpus = lowest(machine, &pool, n);
        division.notes.push(format!(
            "group {name} runs on {} of the {} left: split evenly over all of them its limit would be less than the {} of a \
             CPU that can be held; write `cpus` to choose",
            on(&cpus),
            pool.len(),
            floor(policy, machine)
        ));
        others.take(&cpus, true);
        division.put(name, part(group, &cpus, &others.all));
    }
    let remaining = others.left_by_kept();
    division.rest = match &policy.rest.cpus {
        CpusWanted::List(list) => {
            others.exist("rest", list);
            list.clone()
        }
        CpusWanted::Count(n) => {
            let apart = remaining.difference(&others.beside);
            let pool = if apart.len() < *n as usize {
                &remaining
            } else {
                &apart
            };
            pool.iter().take(*n as usize).collect()
        }
        _ => remaining.clone(),
    };
    for (name, group) in &open {
        if division.has(name) {
            continue;
        }
        // Nobody gathers an exempt group: it is where every other task is.
        let exempt = group.role == Role::Exempt && partitioned;
        let cpus = if exempt {
            division.rest.clone()
        } else {
            remaining.clone()
        };
        if exempt {
            division.notes.push(format!(
                "group {name} is exempt from limits, but not from the partition: like every other task it stays off {}",
                on(&others.all.difference(&cpus))
            ));
        }
        division.put(name, part(group, &cpus, &others.all));
    }
}

fn part(group: &Group, cpus: &CpuSet, all: &CpuSet) -> Part {
    Part {
        cpus: cpus.clone(),
        blocked: CpuSet::new(),
        exclusive: false,
        confined: group.role != Role::Exempt
            && cpus != all
            && !matches!(group.cpus_wanted(), CpusWanted::Any),
    }
}

/// Free threads of cores on which a critical group runs: the last to be given to anybody.
fn beside(machine: &Inventory, free: &CpuSet, division: &Division) -> CpuSet {
    machine
        .cpus
        .iter()
        .filter(|c| division.runs_alone_on(c.id))
        .fold(CpuSet::new(), |all, c| all.union(&c.siblings))
        .intersection(free)
}

struct Others<'a> {
    policy: &'a Policy,
    machine: &'a Inventory,
    all: CpuSet,
    free: &'a CpuSet,
    beside: CpuSet,
    /// CPUs of groups that named or counted them.
    taken: CpuSet,
    /// Those of regulated ones, which keep everybody else off.
    kept: CpuSet,
    refusals: &'a mut Vec<Refusal>,
}

impl Others<'_> {
    fn refuse(&mut self, group: &str, why: String, remedy: &str) {
        self.refusals.push(Refusal {
            key: format!("{group}.cpus"),
            why,
            remedy: Some(remedy.to_owned()),
        });
    }

    fn take(&mut self, cpus: &CpuSet, kept: bool) {
        self.taken = self.taken.union(cpus);
        if kept {
            self.kept = self.kept.union(cpus);
        }
    }

    /// What nobody has named or counted, if that is anything.
    fn left(&self) -> CpuSet {
        Some(self.free.difference(&self.taken))
            .filter(|left| !left.is_empty())
            .unwrap_or_else(|| self.free.clone())
    }

    /// What regulated groups do not keep, if that is anything.
    fn left_by_kept(&self) -> CpuSet {
        Some(self.free.difference(&self.kept))
            .filter(|left| !left.is_empty())
            .unwrap_or_else(|| self.free.clone())
    }

    fn exist(&mut self, group: &str, list: &CpuSet) {
        let outside = list.difference(self.free);
        if !outside.is_empty() || list.is_empty() {
            let why = format!(
                "CPU {outside} does not exist here or belongs to a critical group; free are {}",
                self.free
            );
            self.refuse(
                group,
                why,
                "name CPUs that are free, or write cpus = \"remaining\"",
            );
        }
    }

    /// So many CPUs: of those nobody has yet, and not beside a critical group, as far as there are enough.
    fn counted(&mut self, group: &str, n: usize) -> CpuSet {
        let untaken = self.free.difference(&self.taken);
        let pools = [untaken.difference(&self.beside), untaken];
        let pool = pools.iter().find(|p| p.len() >= n).unwrap_or(self.free);
        let cpus = lowest(self.machine, pool, n);
        // Where nothing is left at all, that has been told.
        if n == 0 || (cpus.len() < n && !self.free.is_empty()) {
            let why = format!("{n} CPUs are wanted and {} are left", self.free.len());
            self.refuse(group, why, "ask for fewer");
        }
        cpus
    }

    /// Whether a throttler will hold this group's own limit, and may stop whoever else is there.
    fn regulated(&self, name: &str, group: &Group) -> bool {
        let slowed = |g: &Group| g.role == Role::BestEffort && g.allows(Permission::Throttle);
        let mechanisms = &self.policy.mechanisms;
        self.policy.cap(group).is_some()
            && slowed(group)
            && mechanisms.bandwidth.regulates()
            && !mechanisms.deny.contains(&Mechanism::Bandwidth)
            && matches!(
                self.machine.mechanisms.get(&Mechanism::Bandwidth),
                Some(Availability::Yes { .. })
            )
            && self.machine.means.realtime.is_ok()
            && self
                .policy
                .groups
                .iter()
                .all(|(other, g)| other == name || g.role == Role::Critical || slowed(g))
    }

    /// On how many of so many CPUs the group's limit can be held, split evenly.
    fn holding(&self, group: &Group, cpus: usize) -> Option<usize> {
        let measured = self.machine.measured.as_ref()?;
        let peak = measured.peak_cpu;
        let floor = floor(self.policy, self.machine);
        let all = self.machine.cpus.len() as u64;
        let draw = |n: u64| match self.policy.regulator.sustainable {
            Sustainable::Rate(rate) => rate,
            wanted => Rate(
                peak.0
                    .saturating_mul(if wanted == Sustainable::Machine {
                        all
                    } else {
                        n
                    })
                    .min(measured.sustainable.0.max(peak.0)),
            ),
        };
        (1..=cpus).rev().find(|n| {
            let n = *n as u64;
            let cap = self.policy.cap(group);
            if let Some(both) = cap.and_then(Apart::of) {
                return both.holds(measured, floor, n);
            }
            let rate = match cap {
                Some(Bandwidth::Rate(rate)) => rate,
                Some(Bandwidth::Share(share)) => draw(n).part(share),
                _ => return false,
            };
            Share::ratio(rate.0 / n, peak.0) >= floor
        })
    }
}

/// `n` CPUs from the lowest number up, one place after the other.
fn lowest(machine: &Inventory, free: &CpuSet, n: usize) -> CpuSet {
    let place = |cpu: CpuId| {
        let node = machine.cpus.iter().find(|c| c.id == cpu).map(|c| c.node);
        (node, machine.llc(cpu).map(|c| &c.cpus))
    };
    let mut cpus = CpuSet::new();
    let mut left: Vec<CpuId> = free.iter().collect();
    while let Some(first) = left.first().copied().filter(|_| cpus.len() < n) {
        let (near, far): (Vec<_>, Vec<_>) =
            left.into_iter().partition(|c| place(*c) == place(first));
        for cpu in near.into_iter().take(n - cpus.len()) {
            cpus.insert(cpu);
        }
        left = far;
    }
    cpus
}
