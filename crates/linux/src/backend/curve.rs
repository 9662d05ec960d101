//! A class of service with only the threads that are to be measured in it. It shows what the
//! percentages of bandwidth allocation come to.
//!
//! The class is made as a group's is (`classes`): recorded first, and reverted by whichever of
//! backend and watchdog survives. The threads are moved into it one by one, so that no other thread
//! is throttled by it. They run only on cores where no other program's class is. Hardware throttles
//! cores, and threads of one core may get the smaller of their two percentages
//! (`info/MB/thread_throttle_mode`).

use std::collections::BTreeSet;

use quell_kernel::error::{Error, Result};
use quell_kernel::resctrl::{Group, Resctrl};
use quell_kernel::root::Files;
use quell_plan::Setting;
use quell_plan::inventory::Cpu;
use quell_types::cpuset::CpuSet;

use super::Linux;

impl Linux {
    /// The CPUs on whose cores no task of another control group may run.
    ///
    /// # Errors
    /// [`Error::Refused`] naming the groups, where there are no such CPUs.
    pub fn unclaimed(&mut self) -> Result<CpuSet> {
        let cpus = self.host.inventory()?.cpus.clone();
        unclaimed(&self.host.files, &cpus)
    }

    /// Moves threads into a class of service of their own, with the settings of a new class.
    ///
    /// # Errors
    /// Without root, or where no class is free.
    pub fn class_of_threads(&mut self, threads: &BTreeSet<u32>) -> Result<Group> {
        self.host.session()?;
        self.enforcers.classes.take(&mut self.host, threads)
    }

    /// Sets the percentage of its requests that each core may make that runs such a class.
    ///
    /// # Errors
    /// When it cannot be written, or the run was revoked.
    pub fn throttle_class(&mut self, group: &Group, percent: u32) -> Result<()> {
        self.beat_if_due()?;
        let set = Setting::Mba { percent };
        self.enforcers.classes.steer(&mut self.host, group, &set)
    }
}

fn unclaimed(files: &dyn Files, cpus: &[Cpu]) -> Result<CpuSet> {
    let mut theirs = CpuSet::new();
    let mut names = Vec::new();
    if let Some(resctrl) = Resctrl::find(files)? {
        for group in resctrl.used(files)? {
            theirs = theirs.union(&used_by(files, &group)?);
            names.push(group.name);
        }
    }
    let apart = |cpu: &&Cpu| cpu.siblings.intersection(&theirs).is_empty();
    let free: CpuSet = cpus.iter().filter(apart).map(|c| c.id).collect();
    if free.is_empty() {
        return Err(Error::refused_with(
            format!(
                "what others have in resctrl's groups may run on every core ({})",
                names.join(", ")
            ),
            "measure when it is gone, or confined to some CPUs",
        ));
    }
    Ok(free)
}

/// The CPUs that a control group has, or that its tasks may run on.
fn used_by(files: &dyn Files, group: &Group) -> Result<CpuSet> {
    let mut cpus = group.cpus(files)?;
    for tid in group.tasks(files)? {
        // A thread whose affinity cannot be read has ended.
        if let Ok(allowed) = files.affinity(tid) {
            cpus = cpus.union(&allowed);
        }
    }
    Ok(cpus)
}

#[cfg(test)]
mod tests {
    use quell_kernel::fake::{Fake, Flavour, Rdt, Spec};

    use super::*;

    #[test]
    fn cores_that_others_may_run_on_are_left_to_them() {
        let fake = Fake::new(&Spec {
            rdt: Some(Rdt::icelake()),
            ..Spec::new(Flavour::V2)
        });
        let files: &dyn Files = &fake;
        // Two cores of two threads each.
        let cpu = |id: u32| Cpu {
            id,
            siblings: (id / 2 * 2..=id / 2 * 2 + 1).collect(),
            package: 0,
            node: 0,
            tier: 0,
            isolated: false,
            tickless: false,
        };
        let cpus: Vec<Cpu> = (0..4).map(cpu).collect();
        let free = || unclaimed(files, &cpus).map(|c| c.to_string());
        assert_eq!(free().unwrap(), "0-3");
        let resctrl = Resctrl::find(files).unwrap().unwrap();
        let theirs = resctrl.group("theirs");
        files.mkdir(&theirs.dir).unwrap();
        assert_eq!(free().unwrap(), "0-3", "nobody uses it");
        files.write(&theirs.file("cpus_list"), "3").unwrap();
        assert_eq!(free().unwrap(), "0-1", "nor its sibling");
        let pid = fake.with(|m| m.spawn("sleep"));
        files
            .write(&theirs.file("tasks"), &pid.to_string())
            .unwrap();
        let why = free().unwrap_err().to_string();
        assert!(why.contains("every core (theirs)"), "{why}");
        files.set_affinity(pid, &[2].into_iter().collect()).unwrap();
        assert_eq!(free().unwrap(), "0-1");
    }
}
