//! The groups of resctrl. The default group (the mount point) has all tasks at first. Control
//! groups are below it, and each of these has monitor groups.

use std::collections::BTreeMap;
use std::fmt;

use quell_types::cpuset::CpuSet;

use super::schemata::sizes;
use super::{Resctrl, Schemata};
use crate::error::{Error, Result};
use crate::root::{Files, gone};

/// A control or monitor group, whether it exists or not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    /// Name of its directory. Empty for the default group.
    pub name: String,
    /// Path of its directory.
    pub dir: String,
}

/// What other groups may do with the ways of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Other groups may have some of its ways.
    Shareable,
    /// Other groups may have none of its ways.
    Exclusive,
    /// It is being set up for pseudo-locking, and has no tasks.
    PseudoLockSetup,
    /// Its ways hold locked memory, and no other group may fill them.
    PseudoLocked,
    /// A mode of a newer kernel, as its text.
    Other(String),
}

impl Mode {
    /// The text of the mode in the kernel's file.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Shareable => "shareable",
            Self::Exclusive => "exclusive",
            Self::PseudoLockSetup => "pseudo-locksetup",
            Self::PseudoLocked => "pseudo-locked",
            Self::Other(text) => text,
        }
    }
}

impl From<&str> for Mode {
    fn from(text: &str) -> Self {
        match text.trim() {
            "shareable" => Self::Shareable,
            "exclusive" => Self::Exclusive,
            "pseudo-locksetup" => Self::PseudoLockSetup,
            "pseudo-locked" => Self::PseudoLocked,
            other => Self::Other(other.to_owned()),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Directories that are no groups.
const OWN: [&str; 3] = ["info", "mon_data", "mon_groups"];

impl Resctrl {
    /// The default group, which is the mount point.
    #[must_use]
    pub fn default_group(&self) -> Group {
        Group {
            name: String::new(),
            dir: self.root.clone(),
        }
    }

    /// A control group by its name, whether it exists or not.
    #[must_use]
    pub fn group(&self, name: &str) -> Group {
        Group {
            name: name.to_owned(),
            dir: format!("{}/{name}", self.root),
        }
    }

    /// Every control group, the default one first.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub fn groups(&self, files: &dyn Files) -> Result<Vec<Group>> {
        let mut groups = vec![self.default_group()];
        let names = files.directories(&self.root)?;
        let others = names.iter().filter(|n| !OWN.contains(&n.as_str()));
        groups.extend(others.map(|name| self.group(name)));
        Ok(groups)
    }

    /// The control groups besides the default one that have an effect: with tasks, CPUs or monitor
    /// groups, or that keep other groups from their ways. An empty one, as `pqos` makes one for
    /// every class when it is called, fills nothing.
    ///
    /// # Errors
    /// Files that cannot be read.
    pub fn used(&self, files: &dyn Files) -> Result<Vec<Group>> {
        let mut used = Vec::new();
        for group in self.groups(files)?.into_iter().skip(1) {
            // The mode comes first: in a group that is set up for pseudo-locking nothing else can
            // be read.
            let shared = matches!(group.mode(files)?, None | Some(Mode::Shareable));
            if !shared
                || !group.cpus(files)?.is_empty()
                || !group.tasks(files)?.is_empty()
                || !group.monitors(files)?.is_empty()
            {
                used.push(group);
            }
        }
        Ok(used)
    }
}

/// The errors of files that a group for pseudo-locking has closed.
const fn closed(errno: Option<i32>) -> bool {
    matches!(errno, Some(libc::EOPNOTSUPP | libc::EACCES))
}

impl Group {
    /// Path of one of its files.
    #[must_use]
    pub fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.dir)
    }

    /// Its monitor groups. Empty where there are none.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub fn monitors(&self, files: &dyn Files) -> Result<Vec<Self>> {
        let dir = self.file("mon_groups");
        let names = files.names(&dir)?.into_iter();
        Ok(names
            .map(|name| Self {
                dir: format!("{dir}/{name}"),
                name,
            })
            .collect())
    }

    /// What other groups may do with its ways. `None` for a monitor group, for one that is gone,
    /// and on Linux before 4.19.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn mode(&self, files: &dyn Files) -> Result<Option<Mode>> {
        let text = files.optional(&self.file("mode"))?;
        Ok(text.map(|t| Mode::from(t.as_str())))
    }

    /// Its masks and bandwidth. Empty for a monitor group and for one that is gone.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn schemata(&self, files: &dyn Files) -> Result<Schemata> {
        let text = files.optional(&self.file("schemata"))?;
        Ok(Schemata::parse(&text.unwrap_or_default()))
    }

    /// The size of its parts in bytes, by resource and cache.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn sizes(&self, files: &dyn Files) -> Result<BTreeMap<String, BTreeMap<u32, u64>>> {
        let text = files.optional(&self.file("size"))?;
        Ok(sizes(&text.unwrap_or_default()))
    }

    /// Its threads. Empty for a group that is gone, and for one that is set up for pseudo-locking:
    /// its file cannot be read (EACCES even for root).
    ///
    /// # Errors
    /// The kernel's other errors.
    pub fn tasks(&self, files: &dyn Files) -> Result<Vec<u32>> {
        let path = self.file("tasks");
        match files.read(&path) {
            // 0 stands for a task of another PID namespace, which has no number here.
            Ok(text) => Ok(text
                .split_ascii_whitespace()
                .filter_map(|t| t.parse().ok())
                .filter(|t| *t != 0)
                .collect()),
            Err(e) if gone(&e) || closed(e.raw_os_error()) => Ok(Vec::new()),
            Err(e) => Err(Error::file("read", &path, None, e)),
        }
    }

    /// The CPUs on which tasks of the default group belong to it. Empty for a group that is set up
    /// for pseudo-locking.
    ///
    /// # Errors
    /// When they cannot be read or make no sense.
    pub fn cpus(&self, files: &dyn Files) -> Result<CpuSet> {
        match files.cpus(&self.file("cpus_list")) {
            Ok(cpus) => Ok(cpus.unwrap_or_default()),
            Err(e) if closed(e.errno()) => Ok(CpuSet::new()),
            Err(e) => Err(e),
        }
    }
}

/// The groups of a thread, as in `/proc/TID/cpu_resctrl_groups`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// Name of the control group. Empty for the default group.
    pub control: String,
    /// Name of the monitor group in it. Empty where it has none of its own.
    pub monitor: String,
}

/// The groups of a thread. `None` where it ended, where nothing is mounted, and before Linux 5.6
/// (`CONFIG_PROC_CPU_RESCTRL`).
///
/// # Errors
/// When it cannot be read.
pub fn membership(files: &dyn Files, tid: u32) -> Result<Option<Membership>> {
    let path = format!("/proc/{tid}/cpu_resctrl_groups");
    let Some(text) = files.optional(&path)? else {
        return Ok(None);
    };
    let of = |key: &str| text.lines().find_map(|l| l.strip_prefix(key));
    // Empty while nothing is mounted.
    Ok(of("res:").filter(|name| !name.is_empty()).map(|control| {
        let plain = |name: &str| name.trim_matches('/').to_owned();
        Membership {
            control: plain(control),
            monitor: plain(of("mon:").unwrap_or_default()),
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Fake, Flavour, Op, Rdt, Spec};
    use crate::root::Kernel;

    #[test]
    fn groups_are_the_folders_below_the_mount() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        for (path, text) in [
            ("r/tasks", "1\n"),
            ("r/mode", "shareable\n"),
            ("r/info/last_cmd_status", "ok\n"),
            ("r/mon_groups/m/tasks", "1\n"),
            ("r/mon_data/mon_L3_00/llc_occupancy", "4096\n"),
            ("r/a/tasks", "0\n7\n8\n"),
            ("r/a/mode", "exclusive\n"),
            ("r/a/size", "L3:0=1024\nMB:0=20\n"),
            ("r/a/cpus_list", "2-3\n"),
            ("proc/7/cpu_resctrl_groups", "res:/a\nmon:\n"),
            ("proc/8/cpu_resctrl_groups", "res:/\nmon:m\n"),
            ("proc/9/cpu_resctrl_groups", "res:\nmon:\n"),
        ] {
            put(path, text);
        }
        let kernel = Kernel::at(dir.path());
        let resctrl = Resctrl::at("/r");
        let groups = resctrl.groups(&kernel).unwrap();
        assert_eq!(groups, [resctrl.default_group(), resctrl.group("a")]);
        let a = &groups[1];
        assert_eq!(a.tasks(&kernel).unwrap(), [7, 8]);
        assert_eq!(a.mode(&kernel).unwrap(), Some(Mode::Exclusive));
        assert_eq!(a.sizes(&kernel).unwrap()["L3"][&0], 1024);
        assert_eq!(a.cpus(&kernel).unwrap().to_string(), "2-3");
        let monitors = groups[0].monitors(&kernel).unwrap();
        assert_eq!(monitors[0].dir, "/r/mon_groups/m");
        let of = |tid| membership(&kernel, tid).unwrap();
        assert_eq!(of(7).unwrap().control, "a");
        assert_eq!(
            of(8).unwrap(),
            Membership {
                control: String::new(),
                monitor: "m".to_owned()
            }
        );
        assert_eq!((of(9), of(10)), (None, None));
    }

    #[test]
    fn a_group_with_closed_files_is_used_and_stops_no_other() {
        let spec = Spec {
            rdt: Some(Rdt::icelake()),
            ..Spec::new(Flavour::V2)
        };
        let fake = Fake::new(&spec);
        let files: &dyn Files = &fake;
        let resctrl = Resctrl::find(files).unwrap().unwrap();
        for name in ["locked", "idle"] {
            files.mkdir(&resctrl.group(name).dir).unwrap();
        }
        let locked = resctrl.group("locked");
        files.write("/sys/fs/resctrl/schemata", "L3:0=f").unwrap();
        files.write(&locked.file("schemata"), "L3:0=f0").unwrap();
        files
            .write(&resctrl.group("idle").file("schemata"), "L3:0=f")
            .unwrap();
        files.write(&locked.file("mode"), "exclusive").unwrap();
        for file in ["tasks", "cpus_list"] {
            fake.refuse(Op::Read, &format!("locked/{file}"), libc::EACCES);
            assert_eq!(locked.tasks(files).unwrap(), Vec::<u32>::new());
            assert!(locked.cpus(files).unwrap().is_empty());
        }
        // The model does not see a closed file; the kernel does.
        fake.refuse(Op::Read, "locked/cpus_list", libc::EACCES);
        assert_eq!(resctrl.used(files).unwrap(), [locked]);
    }
}
