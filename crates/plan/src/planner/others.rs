//! Which groups run on the CPUs that the critical groups leave: first those with named CPUs, then
//! those with counted ones, then all others.

use quell_policy::{CpusWanted, Group, Policy, Role};
use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::refusal::{Refusal, Remedy};

use crate::inventory::Inventory;

use super::cpus::{Division, Part};
use super::words::{cores as words, on};

/// Gives each group without exclusive CPUs its CPUs, and `rest` as well.
pub(super) fn divide(
    policy: &Policy,
    machine: &Inventory,
    division: &mut Division,
    refusals: &mut Vec<Refusal>,
) {
    let free = &division.free.clone();
    if free.is_empty() {
        return;
    }
    let mut others = Others {
        machine,
        all: machine.cpu_set(),
        free,
        beside: beside(machine, free, division),
        taken: CpuSet::new(),
        refusals,
    };
    let open: Vec<(&String, &Group)> = policy
        .groups
        .iter()
        .filter(|(name, _)| !division.has(name))
        .collect();
    // Without an exclusive group no task is moved, and may run anywhere.
    let partitioned = division.partitioned();
    for (name, group) in &open {
        if let CpusWanted::List(list) = group.cpus_wanted() {
            others.exist(&format!("group.{name}"), &list);
            others.take(&list);
            division.put(name, part(group, &list, &others.all, partitioned));
        }
    }
    for (name, group) in &open {
        if let CpusWanted::Count(n) = group.cpus_wanted() {
            let cpus = others.counted(&format!("group.{name}"), n as usize);
            others.take(&cpus);
            division.put(name, part(group, &cpus, &others.all, partitioned));
        }
    }
    let remaining = free.clone();
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
        // An exempt group is not gathered: its tasks are among all other tasks.
        let exempt = group.role == Role::Exempt && partitioned;
        let cpus = if exempt {
            division.rest.clone()
        } else {
            remaining.clone()
        };
        if exempt {
            let off = on(&others.all.difference(&cpus));
            division.notes.push(words::exempt_stays_off(name, &off));
        }
        division.put(name, part(group, &cpus, &others.all, partitioned));
    }
}

/// Next to a partition a group that may run anywhere is kept off it as well: its own cgroup is not
/// among those of all other tasks.
fn part(group: &Group, cpus: &CpuSet, all: &CpuSet, partitioned: bool) -> Part {
    let anywhere = matches!(group.cpus_wanted(), CpusWanted::Any) && !partitioned;
    Part {
        cpus: cpus.clone(),
        blocked: CpuSet::new(),
        exclusive: false,
        confined: group.role != Role::Exempt && cpus != all && !anywhere,
    }
}

/// Free SMT threads of cores on which a critical group runs: the last to be given away.
fn beside(machine: &Inventory, free: &CpuSet, division: &Division) -> CpuSet {
    machine
        .cpus
        .iter()
        .filter(|c| division.runs_alone_on(c.id))
        .fold(CpuSet::new(), |all, c| all.union(&c.siblings))
        .intersection(free)
}

struct Others<'a> {
    machine: &'a Inventory,
    all: CpuSet,
    free: &'a CpuSet,
    beside: CpuSet,
    /// CPUs of groups that named or counted them.
    taken: CpuSet,
    refusals: &'a mut Vec<Refusal>,
}

impl Others<'_> {
    fn refuse(&mut self, group: &str, why: String, fewer: Option<usize>) {
        let key = format!("{group}.cpus");
        let remedy = match fewer.filter(|n| *n > 0) {
            Some(n) => Remedy::set(key.clone(), n),
            None => Remedy::set_text(key.clone(), "remaining"),
        };
        self.refusals.push(Refusal {
            key,
            why,
            remedies: vec![remedy],
            ..Refusal::default()
        });
    }

    fn take(&mut self, cpus: &CpuSet) {
        self.taken = self.taken.union(cpus);
    }

    fn exist(&mut self, group: &str, list: &CpuSet) {
        let outside = list.difference(self.free);
        if !outside.is_empty() || list.is_empty() {
            let why = words::are_not_free(&outside, self.free);
            self.refuse(group, why, None);
        }
    }

    /// `n` CPUs that no group has yet and that do not share a core with a critical group, as far as
    /// there are enough.
    fn counted(&mut self, group: &str, n: usize) -> CpuSet {
        let untaken = self.free.difference(&self.taken);
        let pools = [untaken.difference(&self.beside), untaken];
        let pool = pools.iter().find(|p| p.len() >= n).unwrap_or(self.free);
        let cpus = lowest(self.machine, pool, n);
        // Where no CPU is left at all, that has been refused already.
        if n == 0 || (cpus.len() < n && !self.free.is_empty()) {
            let why = words::too_few(n, self.free.len());
            self.refuse(group, why, Some(self.free.len()));
        }
        cpus
    }
}

/// `n` CPUs from the lowest number up; one cache and node is used up before the next.
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
