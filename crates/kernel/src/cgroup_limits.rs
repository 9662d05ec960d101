//! Limits on a cgroup and on those above it: quotas of CPU time, limits of memory.

use quell_types::units::{Bytes, Share};
use quell_types::witness::Amount;

use crate::cgroup::{Hierarchy, Version};
use crate::memory::{self, Memory};
use crate::root::Files;

/// From here on a limit of v1 limits nothing.
const V1_UNLIMITED: u64 = 1 << 62;

/// A limit of one cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Path of the file.
    pub file: String,
    /// Its content. In v1 quota and period, as v2 shows them.
    pub value: String,
    /// What the tasks of the cgroup get together, at most.
    pub gets: Amount,
}

/// The mount point and all cgroups from it down to `dir`, the highest first.
#[must_use]
pub fn chain(mount: &str, dir: &str) -> Vec<String> {
    let mut at = mount.to_owned();
    let mut all = vec![at.clone()];
    let below = dir.strip_prefix(mount).unwrap_or_default();
    for part in below.split('/').filter(|part| !part.is_empty()) {
        at = format!("{at}/{part}");
        all.push(at.clone());
    }
    all
}

/// The limits of a cgroup in one hierarchy, and of those above it, the highest first. What cannot
/// be read limits nothing.
#[must_use]
pub fn limits(files: &dyn Files, hierarchy: &Hierarchy, dir: &str) -> Vec<Limit> {
    let mut all = Vec::new();
    for dir in chain(&hierarchy.mount, dir) {
        all.extend(quota(files, hierarchy.version, &dir));
        let memory = Memory::of(hierarchy, &dir).limits().into_iter();
        all.extend(memory.filter_map(|file| memory_limit(files, file)));
    }
    all
}

/// The quota of CPU time of one cgroup.
fn quota(files: &dyn Files, version: Version, dir: &str) -> Option<Limit> {
    let read = |name: &str| files.read(&format!("{dir}/{name}")).ok();
    let (name, value) = match version {
        Version::V2 => ("cpu.max", read("cpu.max")?.trim().to_owned()),
        Version::V1 => {
            let (quota, period) = (read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?);
            let value = format!("{} {}", quota.trim(), period.trim());
            ("cpu.cfs_quota_us", value)
        }
    };
    // `max`, and -1 in v1, are no numbers.
    let numbers: Vec<u64> = value.split(' ').filter_map(|n| n.parse().ok()).collect();
    let &[quota, period] = numbers.as_slice() else {
        return None;
    };
    Some(Limit {
        file: format!("{dir}/{name}"),
        gets: Amount::CpuTime(Share::ratio(quota, period)),
        value,
    })
}

fn memory_limit(files: &dyn Files, file: String) -> Option<Limit> {
    let value = files.read(&file).ok()?.trim().to_owned();
    let bytes: Bytes = memory::amount(&file, &value).ok()??;
    (bytes.0 < V1_UNLIMITED).then_some(Limit {
        file,
        value,
        gets: Amount::Memory(bytes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Kernel;

    fn limited(version: Version, all: &[(&str, &str)], dir: &str) -> Vec<(String, Amount)> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in all {
            let path = root.path().join("c").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let hierarchy = Hierarchy {
            version,
            mount: "/c".to_owned(),
            top: "/".to_owned(),
            controllers: Vec::new(),
            own: "/".to_owned(),
        };
        let found = limits(&Kernel::at(root.path()), &hierarchy, dir);
        let each = found.into_iter().map(|limit| (limit.file, limit.gets));
        each.collect()
    }

    #[test]
    fn a_chain_begins_at_the_mount_point() {
        assert_eq!(chain("/m", "/m/a/b"), ["/m", "/m/a", "/m/a/b"]);
        assert_eq!(chain("/m", "/m"), ["/m"]);
    }

    #[test]
    fn limits_of_a_cgroup_and_of_those_above_it() {
        let files = [
            ("a/cpu.max", "max 100000\n"),
            ("a/memory.high", "1048576\n"),
            ("a/memory.max", "max\n"),
            ("a/b/cpu.max", "20000 100000\n"),
            ("a/b/c/cpu.max", "10000 100000\n"),
        ];
        let found = limited(Version::V2, &files, "/c/a/b");
        let wanted = [
            ("/c/a/memory.high", Amount::Memory(Bytes(1 << 20))),
            ("/c/a/b/cpu.max", Amount::CpuTime(Share::percent(20))),
        ];
        assert_eq!(found, wanted.map(|(file, gets)| (file.to_owned(), gets)));
    }

    #[test]
    fn v1_has_quota_and_period_in_two_files() {
        let files = [
            ("cpu.cfs_quota_us", "-1\n"),
            ("cpu.cfs_period_us", "100000\n"),
            ("a/cpu.cfs_quota_us", "150000\n"),
            ("a/cpu.cfs_period_us", "100000\n"),
            ("a/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        let found = limited(Version::V1, &files, "/c/a");
        let wanted = (
            "/c/a/cpu.cfs_quota_us".to_owned(),
            Amount::CpuTime(Share::percent(150)),
        );
        assert_eq!(found, [wanted]);
    }
}
