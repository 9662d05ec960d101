//! Whether and how resctrl is mounted.

use crate::cgroup;
use crate::error::Result;
use crate::root::Files;

/// The conventional mount point.
pub const USUAL: &str = "/sys/fs/resctrl";

/// A mounted resctrl. There is one instance for the whole machine, at whatever mount point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resctrl {
    /// The mount point, which is the directory of the default group.
    pub root: String,
    /// Whether code and data of the third level are separate.
    pub cdp: bool,
    /// Whether code and data of the second level are separate.
    pub cdp_l2: bool,
    /// Whether bandwidth is written in MiB/s.
    pub mib_s: bool,
}

impl Resctrl {
    /// A resctrl mounted at `root` without options, for tests.
    #[cfg(test)]
    pub(super) fn at(root: &str) -> Self {
        Self {
            root: root.to_owned(),
            cdp: false,
            cdp_l2: false,
            mib_s: false,
        }
    }

    /// Finds resctrl among the mounts. `None` where it is not mounted.
    ///
    /// # Errors
    /// Mounts that cannot be read.
    pub fn find(files: &dyn Files) -> Result<Option<Self>> {
        let mounts = cgroup::mounts(files)?;
        Ok(mounts.into_iter().find(|m| m.kind == "resctrl").map(|m| {
            let has = |option: &str| m.options.split(',').any(|o| o == option);
            Self {
                cdp: has("cdp"),
                cdp_l2: has("cdpl2"),
                mib_s: has("mba_MBps"),
                root: m.point,
            }
        }))
    }

    /// Whether code and data of a level are separate.
    #[must_use]
    pub const fn code_data(&self, level: u32) -> bool {
        match level {
            2 => self.cdp_l2,
            3 => self.cdp,
            _ => false,
        }
    }

    /// The kernel's status text after the last command below the mount. `None` where that was "ok",
    /// or is not reported.
    #[must_use]
    pub fn last_status(&self, files: &dyn Files) -> Option<String> {
        let path = format!("{}/info/last_cmd_status", self.root);
        let text = files.optional(&path).ok().flatten()?;
        (text != "ok").then(|| text.replace('\n', "; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Kernel;

    #[test]
    fn options_are_those_of_the_file_system() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("proc/self")).unwrap();
        let path = dir.path().join("proc/self/mountinfo");
        let root = "21 1 8:1 / / rw - ext4 /dev/vda1 rw\n";
        let kernel = Kernel::at(dir.path());
        std::fs::write(&path, root).unwrap();
        assert_eq!(Resctrl::find(&kernel).unwrap(), None);
        let line = "36 21 0:33 / /sys/fs/resctrl rw,relatime - resctrl resctrl rw,cdp,mba_MBps\n";
        std::fs::write(&path, format!("{root}{line}")).unwrap();
        let found = Resctrl::find(&kernel).unwrap().unwrap();
        assert_eq!(found.root, USUAL);
        assert!(found.cdp && found.mib_s && !found.cdp_l2);
    }
}
