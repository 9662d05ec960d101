//! The `cpuset` controller of both versions. What v2 adds for partitions is in `partition`.
//! Documentation/admin-guide/cgroup-v1/cpusets.rst, cgroup-v2.rst ("Cpuset").
//!
//! Deviations:
//! - CPUs and nodes are never hot-plugged. The v1 mount option `cpuset_v2_mode` is not modelled.
//! - Memory is not migrated. `cpuset.memory_*` and `cpuset.sched_*` are values without an effect.

use quell_types::cpuset::CpuSet;

use super::Answer;
use super::state::{Cpuset, Machine, parent};

/// v1 files that are numbers without an effect, with their text in a new cgroup.
const PLAIN: [(&str, &str); 6] = [
    ("cpuset.mem_hardwall", "0"),
    ("cpuset.memory_migrate", "0"),
    ("cpuset.memory_pressure", "0"),
    ("cpuset.memory_spread_page", "0"),
    ("cpuset.memory_spread_slab", "0"),
    ("cpuset.sched_relax_domain_level", "-1"),
];

/// The controller's files with their modes.
pub(super) fn files(unified: bool, root: bool, release: (u32, u32)) -> Vec<(&'static str, u32)> {
    if unified {
        let mut files = vec![
            ("cpuset.cpus.effective", 0o444),
            ("cpuset.mems.effective", 0o444),
        ];
        if root && release >= (6, 8) {
            files.push(("cpuset.cpus.isolated", 0o444));
        }
        if !root {
            files.extend([
                ("cpuset.cpus", 0o644),
                ("cpuset.mems", 0o644),
                ("cpuset.cpus.partition", 0o644),
            ]);
            if release >= (6, 7) {
                files.push(("cpuset.cpus.exclusive", 0o644));
                files.push(("cpuset.cpus.exclusive.effective", 0o444));
            }
        }
        return files;
    }
    let mut files = vec![
        ("cpuset.cpus", 0o644),
        ("cpuset.mems", 0o644),
        ("cpuset.effective_cpus", 0o444),
        ("cpuset.effective_mems", 0o444),
        ("cpuset.cpu_exclusive", 0o644),
        ("cpuset.mem_exclusive", 0o644),
        ("cpuset.sched_load_balance", 0o644),
    ];
    files.extend(PLAIN.iter().map(|(name, _)| (*name, 0o644)));
    if root {
        files.push(("cpuset.memory_pressure_enabled", 0o644));
    }
    files
}

impl Machine {
    pub(super) fn set(&self, tree: usize, group: &str) -> &Cpuset {
        &self.trees[tree].groups[group].cpuset
    }

    pub(super) fn set_mut(&mut self, tree: usize, group: &str) -> &mut Cpuset {
        &mut self.trees[tree]
            .groups
            .get_mut(group)
            .expect("invariant: the caller looked the group up")
            .cpuset
    }

    /// The nearest cgroup, from `group` upwards, that has the controller.
    pub(super) fn cpuset_holder(&self, tree: usize, group: &str) -> String {
        let mut at = group;
        while !self.trees[tree].css(at, "cpuset") || !self.trees[tree].groups.contains_key(at) {
            match parent(at) {
                Some(above) => at = above,
                None => break,
            }
        }
        at.to_owned()
    }

    /// The CPUs that a task's cpuset lets it use.
    pub(crate) fn cpuset_of(&self, tid: u32) -> CpuSet {
        let found = self.trees.iter().position(|t| t.has("cpuset"));
        let (Some(tree), Some(task)) = (found, self.tasks.get(&tid)) else {
            return self.cpus.clone();
        };
        let holder = self.cpuset_holder(tree, &task.places[tree]);
        let effective = &self.set(tree, &holder).effective;
        // Only a zombie is in a cpuset without CPUs.
        match effective.is_empty() {
            true => self.cpus.clone(),
            false => effective.clone(),
        }
    }

    pub(super) fn cpuset_read(&self, tree: usize, group: &str, name: &str) -> Option<String> {
        if !self.trees[tree].has("cpuset") {
            return None;
        }
        let set = self.set(tree, group);
        let flag = |b: bool| Some(format!("{}\n", u8::from(b)));
        let list = |s: &CpuSet| Some(format!("{s}\n"));
        match name {
            "cpuset.cpus" => list(&set.cpus),
            "cpuset.mems" => list(&set.mems),
            "cpuset.effective_cpus" | "cpuset.cpus.effective" => list(&set.effective),
            "cpuset.effective_mems" | "cpuset.mems.effective" => list(&set.effective_mems),
            "cpuset.cpus.exclusive" => list(&set.exclusive),
            "cpuset.cpus.exclusive.effective" => list(&set.exclusive_effective),
            "cpuset.cpus.partition" => Some(format!("{}\n", set.part)),
            "cpuset.cpus.isolated" => list(&self.isolated(tree)),
            "cpuset.cpu_exclusive" => flag(set.cpu_exclusive),
            "cpuset.mem_exclusive" => flag(set.mem_exclusive),
            "cpuset.sched_load_balance" => flag(set.load_balance),
            _ => {
                let (_, default) = PLAIN
                    .iter()
                    .find(|(n, _)| *n == name)
                    .or_else(|| (name == "cpuset.memory_pressure_enabled").then_some(&("", "0")))?;
                let kept = self.trees[tree].groups[group].values.get(name);
                Some(format!("{}\n", kept.map_or(*default, String::as_str)))
            }
        }
    }

    pub(super) fn cpuset_write(
        &mut self,
        tree: usize,
        group: &str,
        name: &str,
        text: &str,
    ) -> Answer<()> {
        let unified = self.trees[tree].unified;
        let flag = || match text.parse::<u64>() {
            Ok(n) => Ok(n != 0),
            Err(_) => Err(libc::EINVAL),
        };
        match name {
            "cpuset.cpus" | "cpuset.mems" if group == "/" => Err(libc::EACCES),
            "cpuset.cpus" if unified => self.v2_cpus(tree, group, text),
            "cpuset.mems" if unified => self.v2_mems(tree, group, text),
            "cpuset.cpus.exclusive" => self.v2_exclusive(tree, group, text),
            "cpuset.cpus.partition" => self.v2_partition(tree, group, text),
            "cpuset.cpus" => {
                let mut trial = self.set(tree, group).clone();
                trial.cpus = self.list_of_cpus(text)?;
                self.v1_set(tree, group, trial)
            }
            "cpuset.mems" => {
                let mut trial = self.set(tree, group).clone();
                trial.mems = self.list_of_nodes(text)?;
                self.v1_set(tree, group, trial)
            }
            "cpuset.cpu_exclusive" => {
                let mut trial = self.set(tree, group).clone();
                trial.cpu_exclusive = flag()?;
                self.v1_set(tree, group, trial)
            }
            "cpuset.mem_exclusive" => {
                let mut trial = self.set(tree, group).clone();
                trial.mem_exclusive = flag()?;
                self.v1_set(tree, group, trial)
            }
            "cpuset.sched_load_balance" => {
                self.set_mut(tree, group).load_balance = flag()?;
                Ok(())
            }
            "cpuset.memory_pressure" => Err(libc::EACCES),
            _ => {
                let number: i64 = text.parse().map_err(|_| libc::EINVAL)?;
                let plain = PLAIN.iter().map(|(n, _)| *n);
                let key = plain
                    .chain(["cpuset.memory_pressure_enabled"])
                    .find(|n| *n == name)
                    .ok_or(libc::EINVAL)?;
                let value = match name {
                    "cpuset.sched_relax_domain_level" => number,
                    _ => i64::from(number != 0),
                };
                self.keep(tree, group, key, value.to_string());
                Ok(())
            }
        }
    }

    /// A CPU list. Numbers beyond the kernel's last CPU are out of range.
    pub(super) fn list_of_cpus(&self, text: &str) -> Answer<CpuSet> {
        let list: CpuSet = text.parse().map_err(|_| libc::EINVAL)?;
        match list.is_subset(&self.cpus) {
            true => Ok(list),
            false => Err(libc::ERANGE),
        }
    }

    /// A node list. The kernel can number more nodes than there are, so those are no error of
    /// range.
    pub(super) fn list_of_nodes(&self, text: &str) -> Answer<CpuSet> {
        let list: CpuSet = text.parse().map_err(|_| libc::EINVAL)?;
        match list.is_subset(&self.nodes) {
            true => Ok(list),
            false => Err(libc::EINVAL),
        }
    }

    /// Checks whether a v1 cpuset may become `trial`, and sets it. The order is the kernel's:
    /// children, parent, siblings, tasks.
    fn v1_set(&mut self, tree: usize, group: &str, mut trial: Cpuset) -> Answer<()> {
        let now = self.set(tree, group);
        let children = self.trees[tree].children(group);
        for child in children.iter().map(|c| self.set(tree, c)) {
            let within = child.cpus.is_subset(&trial.cpus)
                && child.mems.is_subset(&trial.mems)
                && child.cpu_exclusive <= trial.cpu_exclusive
                && child.mem_exclusive <= trial.mem_exclusive;
            if !within {
                return Err(libc::EBUSY);
            }
        }
        if let Some(above) = parent(group) {
            let parent = self.set(tree, above);
            let within = trial.cpus.is_subset(&parent.cpus)
                && trial.mems.is_subset(&parent.mems)
                && trial.cpu_exclusive <= parent.cpu_exclusive
                && trial.mem_exclusive <= parent.mem_exclusive;
            if !within {
                return Err(libc::EACCES);
            }
            for sibling in self.trees[tree].children(above) {
                if sibling == group {
                    continue;
                }
                let other = self.set(tree, &sibling);
                let cpus = (trial.cpu_exclusive || other.cpu_exclusive)
                    && !trial.cpus.intersection(&other.cpus).is_empty();
                let mems = (trial.mem_exclusive || other.mem_exclusive)
                    && !trial.mems.intersection(&other.mems).is_empty();
                if cpus || mems {
                    return Err(libc::EINVAL);
                }
            }
        }
        let emptied = (!now.cpus.is_empty() && trial.cpus.is_empty())
            || (!now.mems.is_empty() && trial.mems.is_empty());
        if emptied && !self.threads_in(tree, group).is_empty() {
            return Err(libc::ENOSPC);
        }
        let moved = trial.cpus != now.cpus;
        trial.effective = trial.cpus.clone();
        trial.effective_mems = trial.mems.clone();
        *self.set_mut(tree, group) = trial;
        if moved {
            for tid in self.threads_in(tree, group) {
                self.refit(tid);
            }
        }
        Ok(())
    }

    /// Computes what every v2 cpuset really has, and moves the tasks of changed cpusets to their
    /// new CPUs.
    pub(super) fn cpusets_changed(&mut self, tree: usize) {
        if !self.trees[tree].has("cpuset") || !self.trees[tree].unified {
            return;
        }
        self.effective_of_all(tree);
        let tids: Vec<u32> = self
            .tasks
            .iter()
            .filter(|(_, t)| !t.dead())
            .map(|(i, _)| *i)
            .collect();
        for tid in tids {
            let usual = self.cpuset_of(tid);
            let task = &self.tasks[&tid];
            let wanted = match &task.asked {
                Some(asked) if !asked.intersection(&usual).is_empty() => asked.intersection(&usual),
                _ => usual,
            };
            if task.allowed != wanted {
                self.refit(tid);
            }
        }
    }
}
