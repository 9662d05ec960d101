//! What Quell ever changes. A line of a journal that names anything else is damaged or not Quell's,
//! and nothing is done for it.

use std::path::Path;

use quell_kernel::cgroup;
use quell_kernel::root::Files;
use quell_kernel::{irq, msr, workqueue};
use quell_types::journal::{Stopped, Undo};

/// Where these file systems are on every machine that follows the kernel's documentation.
const USUAL: [&str; 2] = ["/sys/fs/cgroup", RESCTRL];
const RESCTRL: &str = "/sys/fs/resctrl";

/// Types of the file systems below which Quell makes folders and moves tasks.
const KINDS: [&str; 3] = ["cgroup", "cgroup2", "resctrl"];

/// The files there that Quell writes.
const FILES: [&str; 31] = [
    "cgroup.freeze",
    "cgroup.subtree_control",
    "cgroup.type",
    "cpu.cfs_period_us",
    "cpu.cfs_quota_us",
    "cpu.idle",
    "cpu.max",
    "cpu.shares",
    "cpu.weight",
    "cpus",
    "cpus_list",
    "cpuset.cpus",
    "cpuset.cpus.exclusive",
    "cpuset.cpus.partition",
    "cpuset.memory_migrate",
    "cpuset.mems",
    "freezer.state",
    "io.bfq.weight",
    "io.latency",
    "io.max",
    "io.weight",
    "memory.high",
    "memory.limit_in_bytes",
    "memory.low",
    "memory.max",
    "memory.min",
    "memory.soft_limit_in_bytes",
    "memory.swap.max",
    "memory.swappiness",
    "mode",
    "schemata",
];

/// Registers of cache and bandwidth allocation: their switches, the class of a CPU, masks and
/// delays (Software Developer's Manual, volume 4).
const REGISTERS: std::ops::RangeInclusive<u32> = msr::L3_CONFIG..=0xd8f;

/// The first thing that changes name and that Quell never changes on this machine. `None` where
/// Quell may have made all of them.
#[must_use]
pub fn stranger<'a>(files: &dyn Files, changes: &'a [Undo]) -> Option<&'a str> {
    let known = Known::here(files);
    changes.iter().find_map(|change| known.stranger(change))
}

/// The places that a change of Quell's may name.
#[derive(Clone, Debug)]
pub struct Known {
    /// Mount points of cgroups and resctrl.
    mounts: Vec<String>,
}

impl Known {
    /// Those of this machine.
    #[must_use]
    pub fn here(files: &dyn Files) -> Self {
        let mounts = cgroup::mounts(files).unwrap_or_default().into_iter();
        let found = mounts.filter(|m| KINDS.contains(&m.kind.as_str()));
        let usual = USUAL.into_iter().map(str::to_owned);
        Self {
            mounts: usual.chain(found.map(|m| m.point)).collect(),
        }
    }

    /// What a change names that Quell never changes. `None` where Quell may have made it.
    #[must_use]
    pub fn stranger<'a>(&self, change: &'a Undo) -> Option<&'a str> {
        let (files, dirs): (Vec<&str>, Vec<&str>) = match change {
            Undo::Write { path, .. } | Undo::Steer { path, .. } => (vec![path], vec![]),
            Undo::Stop { what } | Undo::Resume { what } => match what {
                Stopped::Group(path) => (vec![path], vec![]),
                Stopped::Task(_) => (vec![], vec![]),
            },
            Undo::Mount { path } => return Some(path.as_str()).filter(|path| *path != RESCTRL),
            Undo::Cgroup { path, heir } => (vec![], vec![path, heir]),
            Undo::Move { from, to, .. } => (vec![], vec![from, to]),
            Undo::OomScore { dir, .. } | Undo::Place { dir, .. } => (vec![], vec![dir]),
            // An earlier version recorded none.
            Undo::Lock { dir, .. } if dir.is_empty() => (vec![], vec![]),
            Undo::Lock { dir, .. } => (vec![], vec![dir]),
            Undo::Settle { .. } | Undo::Affinity { .. } => (vec![], vec![]),
        };
        let file = files.into_iter().find(|path| !self.file(path));
        file.or_else(|| dirs.into_iter().find(|path| !self.below(path)))
    }

    fn file(&self, path: &str) -> bool {
        if let Some((_, register)) = msr::parse(path) {
            return REGISTERS.contains(&register);
        }
        let Some((dir, name)) = path.rsplit_once('/') else {
            return false;
        };
        if FILES.contains(&name) && self.below(dir) {
            return true;
        }
        let number = |dir: &str| dir.bytes().all(|b| b.is_ascii_digit());
        [irq::DEFAULT, workqueue::MASK].contains(&path)
            || dir == "/proc/sys/vm" && plain(name)
            || name == "smp_affinity_list"
                && dir
                    .strip_prefix(irq::DIR)
                    .and_then(|rest| rest.strip_prefix('/'))
                    .is_some_and(number)
    }

    /// Whether a folder is one of these file systems' roots, or below.
    fn below(&self, dir: &str) -> bool {
        let on = |mount: &String| Path::new(dir).starts_with(mount);
        dir.split('/').skip(1).all(plain) && self.mounts.iter().any(on)
    }
}

/// Whether a part of a path is a name, so that the path leads where it seems to.
fn plain(part: &str) -> bool {
    !["", ".", ".."].contains(&part)
}

#[cfg(test)]
mod tests {
    use quell_kernel::fake::{Fake, Flavour, Spec};
    use quell_types::task::TaskId;

    use super::*;

    fn write(path: &str) -> Undo {
        Undo::Write {
            path: path.into(),
            old: "1".into(),
            new: "2".into(),
        }
    }

    #[test]
    fn a_change_elsewhere_is_not_quells() {
        let known = Known::here(&Fake::new(&Spec::new(Flavour::V2)));
        for path in [
            "/sys/fs/cgroup/quell.slice/a/cpu.max",
            "/sys/fs/cgroup/cpuset/x/cpuset.cpus",
            "/sys/fs/resctrl/COS1/schemata",
            "/proc/irq/31/smp_affinity_list",
            "/proc/irq/default_smp_affinity",
            "/sys/devices/virtual/workqueue/cpumask",
            "/proc/sys/vm/swappiness",
            "/dev/cpu/0-1/msr/0xc90",
        ] {
            assert_eq!(known.stranger(&write(path)), None, "{path}");
        }
        for path in [
            "/etc/shadow",
            "/sys/fs/cgroup/x/release_agent",
            "/sys/fs/cgroup/x/cgroup.kill",
            "/sys/fs/cgroup/../../../etc/cpu.max",
            "/sys/fs/cgroup//x/./cpu.max",
            "/sys/fs/cgroupx/cpu.max",
            "/tmp/cpu.max",
            "/proc/sys/kernel/core_pattern",
            "/proc/sys/vm/../kernel/core_pattern",
            "/proc/irq/31/../../sys/kernel/smp_affinity_list",
            "/proc/irq/31",
            "/dev/cpu/0/msr/0x1a0",
            "/dev/cpu/0/msr/0xd90",
            "cpu.max",
            "",
        ] {
            assert_eq!(known.stranger(&write(path)), Some(path));
        }
    }

    #[test]
    fn tasks_go_to_cgroups_only() {
        let known = Known::here(&Fake::new(&Spec::new(Flavour::V1)));
        let to = |to: &str| Undo::Move {
            task: TaskId { pid: 1, start: 2 },
            from: "/sys/fs/cgroup/cpuset".into(),
            to: to.into(),
        };
        assert_eq!(known.stranger(&to("/sys/fs/cgroup/cpuset/a")), None);
        assert_eq!(known.stranger(&to("/proc/1")), Some("/proc/1"));
        let mount = |path: &str| Undo::Mount { path: path.into() };
        assert_eq!(known.stranger(&mount("/sys/fs/resctrl")), None);
        assert_eq!(known.stranger(&mount("/home")), Some("/home"));
    }
}
