//! v2 cpusets and their partitions. Documentation/admin-guide/cgroup-v2.rst ("Cpuset Interface
//! Files"). The texts of invalid partitions are those of Linux 6.12 (of 6.1 where only local
//! partitions exist).
//!
//! Deviations:
//! - An invalid partition becomes valid again when its own `cpuset.cpus` or `cpuset.cpus.exclusive`
//!   is written so that it can be. Its parent has to be a valid one. Linux 6.12 also tries when a
//!   relative changes, and was seen to end up with overlapping sets. That is not modelled.
//! - Linux 6.12 shows no reason where a sibling's change made a partition invalid; 6.1 says "not
//!   exclusive". The model does as the release that it is given.
//! - Lost CPUs stay lost. Linux 6.1 has them back once the controller is disabled and enabled again
//!   in the root.
//! - A partition that comes or goes also widens unbound kernel threads with CPUs of their own
//!   (threaded interrupts, seen with 6.12). The model has no such threads.
//! - There are no housekeeping CPUs (`isolcpus`), so "partition config conflicts with housekeeping
//!   setup" never appears.
//! - A valid partition takes its CPUs even from a parent that would be left with none, if that
//!   parent has no task. Tasks further below it are not searched.

use quell_types::cpuset::CpuSet;

use super::Answer;
use super::state::{Machine, Mode, Part, parent};

const EMPTY: &str = "cpuset.cpus and cpuset.cpus.exclusive are empty";
const EMPTY_OLD: &str = "cpuset.cpus is empty";
const NOT_EXCLUSIVE: &str = "Cpu list in cpuset.cpus not exclusive";
const NOT_A_PARTITION: &str = "Parent is not a partition root";
const INVALID_LIST: &str = "Invalid cpu list in cpuset.cpus.exclusive";
const NONE_LEFT: &str = "Parent unable to distribute cpu downstream";

impl Machine {
    /// The CPUs that a cgroup would have to itself: its exclusive CPUs, else all of its CPUs.
    fn own(&self, tree: usize, group: &str) -> CpuSet {
        let set = self.set(tree, group);
        match set.exclusive.is_empty() {
            true => set.cpus.clone(),
            false => set.exclusive.clone(),
        }
    }

    fn siblings(&self, tree: usize, group: &str) -> Vec<String> {
        let mut all = parent(group).map_or_else(Vec::new, |p| self.trees[tree].children(p));
        all.retain(|s| s != group);
        all
    }

    /// Siblings that prevent `group` from being, or staying, exclusive.
    fn conflicts(&self, tree: usize, group: &str, exclusive: bool) -> Vec<String> {
        let mine = self.set(tree, group);
        let own = self.own(tree, group);
        let mut all = self.siblings(tree, group);
        all.retain(|sibling| {
            let other = self.set(tree, sibling);
            if exclusive || other.part.valid() {
                return !own.intersection(&self.own(tree, sibling)).is_empty();
            }
            let swallowed =
                |small: &CpuSet, large: &CpuSet| !small.is_empty() && small.is_subset(large);
            !mine.exclusive.intersection(&other.exclusive).is_empty()
                || swallowed(&mine.cpus, &other.exclusive)
                || swallowed(&other.cpus, &mine.exclusive)
        });
        all
    }

    /// Computes effective CPUs and nodes of all cgroups from the top.
    pub(super) fn effective_of_all(&mut self, tree: usize) {
        let names: Vec<String> = self.trees[tree].groups.keys().cloned().collect();
        let given = |machine: &Self, from: &str| {
            let mut taken = CpuSet::new();
            for name in &names {
                let set = machine.set(tree, name);
                let local = parent(name) == Some(from) && !set.part.remote;
                if (set.part.valid() || set.part.withheld)
                    && (local || (set.part.remote && from == "/"))
                {
                    taken = taken.union(&set.exclusive_effective);
                }
            }
            taken
        };
        for name in &names {
            let Some(above) = parent(name).map(|p| self.cpuset_holder(tree, p)) else {
                let left = self
                    .cpus
                    .difference(&given(self, "/"))
                    .difference(&self.leaked);
                self.set_mut(tree, "/").effective = left;
                self.set_mut(tree, "/").exclusive_effective = self.cpus.clone();
                continue;
            };
            let above = self.set(tree, &above).clone();
            if !self.trees[tree].css(name, "cpuset") {
                continue;
            }
            let set = self.set(tree, name).clone();
            let within = |own: &CpuSet, all: &CpuSet| {
                let common = own.intersection(all);
                if common.is_empty() {
                    all.clone()
                } else {
                    common
                }
            };
            let nodes = within(&set.mems, &above.effective_mems);
            let (effective, exclusive) = match set.part.valid() {
                true => {
                    let taken = given(self, name);
                    (
                        set.exclusive_effective.difference(&taken),
                        set.exclusive_effective.clone(),
                    )
                }
                false if set.part.withheld => (set.cpus.clone(), set.exclusive_effective.clone()),
                false => (
                    within(&set.cpus, &above.effective),
                    set.exclusive.intersection(&above.exclusive_effective),
                ),
            };
            let set = self.set_mut(tree, name);
            set.effective = effective;
            set.effective_mems = nodes;
            set.exclusive_effective = exclusive;
        }
    }

    pub(super) fn isolated(&self, tree: usize) -> CpuSet {
        let mut found = CpuSet::new();
        for group in self.trees[tree].groups.values() {
            if group.cpuset.part.valid() && group.cpuset.part.mode == Mode::Isolated {
                found = found.union(&group.cpuset.exclusive_effective);
            }
        }
        found
    }

    pub(super) fn v2_mems(&mut self, tree: usize, group: &str, text: &str) -> Answer<()> {
        let nodes = self.list_of_nodes(text)?;
        let now = &self.set(tree, group).mems;
        if !now.is_empty() && nodes.is_empty() && self.populated(tree, group) {
            return Err(libc::ENOSPC);
        }
        self.set_mut(tree, group).mems = nodes;
        self.cpusets_changed(tree);
        Ok(())
    }

    pub(super) fn v2_cpus(&mut self, tree: usize, group: &str, text: &str) -> Answer<()> {
        let cpus = self.list_of_cpus(text)?;
        let now = &self.set(tree, group).cpus;
        if !now.is_empty() && cpus.is_empty() && self.populated(tree, group) {
            return Err(libc::ENOSPC);
        }
        self.set_mut(tree, group).cpus = cpus;
        // A partition that is no longer exclusive becomes invalid, on either side.
        let valid = self.set(tree, group).part.valid();
        let against = self.conflicts(tree, group, valid);
        if !against.is_empty() {
            let why = if self.release >= (6, 7) {
                ""
            } else {
                NOT_EXCLUSIVE
            };
            for name in against.iter().map(String::as_str).chain([group]) {
                let part = &mut self.set_mut(tree, name).part;
                if part.valid() {
                    part.invalid = Some(why);
                    part.withheld = part.remote;
                }
            }
        }
        self.again(tree, group);
        self.cpusets_changed(tree);
        Ok(())
    }

    pub(super) fn v2_exclusive(&mut self, tree: usize, group: &str, text: &str) -> Answer<()> {
        let cpus = self.list_of_cpus(text)?;
        let old = std::mem::replace(&mut self.set_mut(tree, group).exclusive, cpus);
        let valid = self.set(tree, group).part.valid();
        if !self.conflicts(tree, group, valid).is_empty() {
            self.set_mut(tree, group).exclusive = old;
            return Err(libc::EINVAL);
        }
        self.again(tree, group);
        self.cpusets_changed(tree);
        Ok(())
    }

    /// Checks a partition again after a change of its own CPUs.
    fn again(&mut self, tree: usize, group: &str) {
        let part = self.set(tree, group).part;
        let parent_is = parent(group).is_some_and(|p| self.is_partition(tree, p));
        if part.mode == Mode::Member || part.withheld || (!part.valid() && !parent_is) {
            return;
        }
        self.become_partition(tree, group, part.mode);
    }

    fn is_partition(&self, tree: usize, group: &str) -> bool {
        group == "/" || self.set(tree, group).part.valid()
    }

    /// Tries to make a cgroup a partition. The result is in its `part`.
    fn become_partition(&mut self, tree: usize, group: &str, mode: Mode) {
        // Its own old share is free for itself.
        self.set_mut(tree, group).part = Part::default();
        self.effective_of_all(tree);
        let above = parent(group).unwrap_or("/").to_owned();
        let remote = !self.is_partition(tree, &above);
        let part = |invalid| Part {
            mode,
            invalid,
            remote,
            withheld: false,
        };
        let result = self.share(tree, group, &above, remote);
        let set = self.set_mut(tree, group);
        match result {
            Ok(cpus) => {
                set.part = part(None);
                set.exclusive_effective = cpus;
            }
            Err(why) => set.part = part(Some(why)),
        }
    }

    /// The CPUs that a partition would get, or why it gets none.
    fn share(
        &self,
        tree: usize,
        group: &str,
        above: &str,
        remote: bool,
    ) -> Result<CpuSet, &'static str> {
        let modern = self.release >= (6, 7);
        let set = self.set(tree, group);
        let own = self.own(tree, group);
        if own.is_empty() {
            return Err(if modern { EMPTY } else { EMPTY_OLD });
        }
        if !self.conflicts(tree, group, true).is_empty() {
            return Err(NOT_EXCLUSIVE);
        }
        if remote {
            if !modern {
                return Err(NOT_A_PARTITION);
            }
            let above = self.set(tree, above);
            let cpus = set.exclusive.intersection(&above.exclusive_effective);
            let top = &self.set(tree, "/").effective;
            return match !cpus.is_empty() && cpus.is_subset(top) && cpus != *top {
                true => Ok(cpus),
                false => Err(INVALID_LIST),
            };
        }
        let has = &self.set(tree, above).effective;
        let cpus = own.intersection(has);
        let left = has.difference(&cpus);
        match !cpus.is_empty() && (!left.is_empty() || self.threads_in(tree, above).is_empty()) {
            true => Ok(cpus),
            false => Err(NONE_LEFT),
        }
    }

    pub(super) fn v2_partition(&mut self, tree: usize, group: &str, text: &str) -> Answer<()> {
        let mode = match text {
            "member" => Mode::Member,
            "root" => Mode::Root,
            "isolated" => Mode::Isolated,
            _ => return Err(libc::EINVAL),
        };
        let now = self.set(tree, group).part;
        if now.mode == mode && (now.valid() || mode == Mode::Member) {
            return Ok(());
        }
        match mode {
            Mode::Member => {
                self.set_mut(tree, group).part = Part::default();
                // Partitions below it have lost their parent.
                for child in self.trees[tree].children(group) {
                    let part = &mut self.set_mut(tree, &child).part;
                    if part.valid() && !part.remote {
                        part.invalid = Some(NOT_A_PARTITION);
                    }
                }
            }
            _ => self.become_partition(tree, group, mode),
        }
        self.cpusets_changed(tree);
        Ok(())
    }

    /// Ends the partition of a cgroup that is removed, or loses its controller.
    pub(super) fn cpuset_gone(&mut self, tree: usize, group: &str) {
        if !self.trees[tree].has("cpuset") {
            return;
        }
        let set = self.set(tree, group);
        // Seen with Linux 6.12, where a valid partition gives its CPUs back. In 6.1 not even that
        // does.
        if set.part.withheld || (set.part.valid() && self.release < (6, 7)) {
            self.leaked = self.leaked.union(&set.exclusive_effective.clone());
        }
        self.set_mut(tree, group).part = Part::default();
    }
}
