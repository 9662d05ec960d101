//! The CPUs of this process as they are without any run of Quell: a plan is for the machine as a
//! run finds it, not for what another run, or one that was killed, has left of it.

use std::path::Path;

use quell_kernel::cgroup::{Cgroups, Controller, Hierarchy, Version, effective_cpus};
use quell_kernel::error::Result;
use quell_kernel::root::Files;
use quell_types::cpuset::CpuSet;
use quell_types::journal::Undo;

use crate::restore;

/// The most steps from a cgroup that a run made to the one that inherits its tasks.
const HEIRS: u32 = 8;

/// The CPUs that this process may use once all runs below `run_root` are reverted. `None` without a
/// cpuset hierarchy, and where no run has left a change that can be read.
///
/// # Errors
/// [`quell_kernel::error::Error::File`] and
/// [`quell_kernel::error::Error::Malformed`].
pub fn cpus(files: &dyn Files, cgroups: &Cgroups, run_root: &Path) -> Result<Option<CpuSet>> {
    let Some(hierarchy) = cgroups.of(Controller::Cpuset) else {
        return Ok(None);
    };
    let mut changes = Vec::new();
    for dir in restore::folders(run_root).unwrap_or_default() {
        // Without root it may not be readable.
        changes.extend(restore::left_by(files, &dir).unwrap_or_default());
    }
    if changes.is_empty() {
        return Ok(None);
    }
    without(files, hierarchy, &hierarchy.own_dir(), &changes)
}

/// The directory of the cgroup that has the tasks of `dir` once these changes are reverted.
fn home<'c>(dir: &'c str, changes: &'c [Undo]) -> &'c str {
    let mut at = dir;
    for _ in 0..HEIRS {
        let heir = changes.iter().rev().find_map(|change| match change {
            Undo::Cgroup { path, heir } if Path::new(at).starts_with(path) => Some(heir),
            _ => None,
        });
        match heir {
            Some(heir) => at = heir,
            None => break,
        }
    }
    at
}

/// The list in a file as it is once these changes are reverted. `None` where it lists nothing.
fn list(files: &dyn Files, file: &str, changes: &[Undo]) -> Result<Option<CpuSet>> {
    let before = changes.iter().find_map(|change| match change {
        Undo::Write { path, old, .. } if path == file => Some(old),
        _ => None,
    });
    let list = match before {
        Some(old) => old.trim().parse().ok(),
        None => files.cpus(file)?,
    };
    Ok(list.filter(|list: &CpuSet| !list.is_empty()))
}

/// The CPUs of a cgroup once these changes are reverted.
fn without(
    files: &dyn Files,
    hierarchy: &Hierarchy,
    dir: &str,
    changes: &[Undo],
) -> Result<Option<CpuSet>> {
    let mount = &hierarchy.mount;
    let Some(mut cpus) = effective_cpus(files, hierarchy, mount)? else {
        return Ok(None);
    };
    // CPUs of a v2 partition are missing in those of the root.
    for change in changes {
        let dir = match change {
            Undo::Cgroup { path, .. } => path,
            Undo::Write { path, .. } => path.trim_end_matches("/cpuset.cpus.partition"),
            _ => continue,
        };
        if hierarchy.version == Version::V2 && Path::new(dir).starts_with(mount) {
            let taken = effective_cpus(files, hierarchy, dir)?;
            cpus = cpus.union(&taken.unwrap_or_default());
        }
    }
    let below = home(dir, changes).strip_prefix(mount.as_str());
    let mut at = mount.clone();
    for part in below
        .unwrap_or_default()
        .split('/')
        .filter(|p| !p.is_empty())
    {
        at = format!("{at}/{part}");
        if let Some(own) = list(files, &format!("{at}/cpuset.cpus"), changes)? {
            let common = own.intersection(&cpus);
            // A v2 cgroup of which no CPU is left has those of its parent.
            cpus = if common.is_empty() { cpus } else { common };
        }
    }
    Ok(Some(cpus))
}

#[cfg(test)]
mod tests {
    use quell_kernel::root::Kernel;

    use super::*;

    /// A hierarchy at `/c` with these files.
    fn machine(version: Version, all: &[(&str, &str)]) -> (tempfile::TempDir, Kernel, Hierarchy) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in all {
            let path = dir.path().join("c").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let hierarchy = Hierarchy {
            version,
            mount: "/c".to_owned(),
            top: "/".to_owned(),
            controllers: vec!["cpuset".to_owned()],
            own: "/".to_owned(),
        };
        let kernel = Kernel::at(dir.path());
        (dir, kernel, hierarchy)
    }

    fn made(path: &str, heir: &str) -> Undo {
        let (path, heir) = (path.to_owned(), heir.to_owned());
        Undo::Cgroup { path, heir }
    }

    fn wrote(path: &str, old: &str, new: &str) -> Undo {
        let [path, old, new] = [path, old, new].map(str::to_owned);
        Undo::Write { path, old, new }
    }

    #[test]
    fn a_moved_process_has_the_cpus_of_where_it_came_from() {
        let (_dir, kernel, v1) = machine(
            Version::V1,
            &[
                ("cpuset.cpus", "0-3"),
                ("quell.slice/cpuset.cpus", "0-3"),
                ("quell.slice/rest/cpuset.cpus", "0-2"),
            ],
        );
        let changes = [
            made("/c/quell.slice", "/c"),
            made("/c/quell.slice/rest", "/c"),
        ];
        let cpus = without(&kernel, &v1, "/c/quell.slice/rest", &changes);
        assert_eq!(cpus.unwrap(), Some("0-3".parse().unwrap()));
        // The first old value is the one that comes back.
        let changes = [
            wrote("/c/quell.slice/rest/cpuset.cpus", "0-1", "0-2"),
            wrote("/c/quell.slice/rest/cpuset.cpus", "0-2", "0"),
        ];
        let cpus = without(&kernel, &v1, "/c/quell.slice/rest", &changes);
        assert_eq!(cpus.unwrap(), Some("0-1".parse().unwrap()));
    }

    #[test]
    fn the_cpus_of_a_partition_come_back() {
        let (_dir, kernel, v2) = machine(
            Version::V2,
            &[
                ("cpuset.cpus.effective", "0-2"),
                ("quell.slice/cpuset.cpus.effective", "0-2"),
                ("quell.slice/a/cpuset.cpus.effective", "3"),
                ("user.slice/cpuset.cpus", "0-2"),
                ("user.slice/cpuset.cpus.effective", "0-2"),
                ("other.slice/cpuset.cpus", "0-1"),
            ],
        );
        let changes = [
            made("/c/quell.slice", "/c"),
            made("/c/quell.slice/a", "/c"),
            wrote("/c/user.slice/cpuset.cpus", "", "0-2"),
        ];
        let of = |dir: &str| without(&kernel, &v2, dir, &changes).unwrap().unwrap();
        assert_eq!(of("/c/user.slice/x"), "0-3".parse().unwrap());
        assert_eq!(of("/c"), "0-3".parse().unwrap());
        // What another program has set stays.
        assert_eq!(of("/c/other.slice"), "0-1".parse().unwrap());
    }
}
