//! Limits on a cgroup and on those above it: quotas of CPU time, limits of memory and of disks, low
//! weights.

use quell_types::units::{Rate, Share};
use quell_types::witness::Amount;

use crate::cgroup::{Hierarchy, Version, chain};
use crate::memory::{self, Memory};
use crate::root::Files;

/// The usual `cpu.shares` of v1.
const V1_SHARES: u64 = 1024;

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

/// The limits of a cgroup in one hierarchy, and of those above it, the highest first. What cannot
/// be read limits nothing.
#[must_use]
pub fn limits(files: &dyn Files, hierarchy: &Hierarchy, dir: &str) -> Vec<Limit> {
    let mut all = Vec::new();
    for dir in chain(&hierarchy.mount, dir) {
        all.extend(quota(files, hierarchy.version, &dir));
        let memory = Memory::of(hierarchy, &dir).limits().into_iter();
        all.extend(memory.filter_map(|file| memory_limit(files, file)));
        let disks = disk_limits(files, hierarchy.version, &dir).into_iter();
        all.extend(disks.map(Limit::from));
    }
    all
}

/// The cgroups strictly above one that have less than the usual weight, the highest first. Among
/// their siblings all that is below them has less.
#[must_use]
pub fn low_weights(files: &dyn Files, hierarchy: &Hierarchy, dir: &str) -> Vec<Limit> {
    let above = chain(&hierarchy.mount, dir).into_iter();
    let above = above.filter(|above| above != dir);
    above
        .filter_map(|dir| low_weight(files, hierarchy.version, &dir))
        .collect()
}

fn low_weight(files: &dyn Files, version: Version, dir: &str) -> Option<Limit> {
    let read = |file: String| {
        let value = files.read(&file).ok()?.trim().to_owned();
        let number: u64 = value.parse().ok()?;
        Some((file, value, number))
    };
    let (file, value, weight) = match read(format!("{dir}/cpu.idle")) {
        Some((file, value, 1..)) => (file, value, 0),
        _ => match version {
            Version::V2 => read(format!("{dir}/cpu.weight"))?,
            Version::V1 => {
                let (file, value, shares) = read(format!("{dir}/cpu.shares"))?;
                (file, value, (shares.saturating_mul(100) / V1_SHARES).max(1))
            }
        },
    };
    (weight < 100).then_some(Limit {
        file,
        value,
        gets: Amount::Weight(weight),
    })
}

/// A limit of one cgroup on a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskLimit {
    /// Path of the file.
    pub file: String,
    /// Number of the disk, `8:0`.
    pub device: String,
    /// What is limited, as v2 calls it: `rbps`, `wbps`, `riops`, `wiops`.
    pub key: String,
    /// Bytes or requests in a second.
    pub most: u64,
}

impl DiskLimit {
    /// What the tasks of the cgroup get together, at most.
    #[must_use]
    pub fn gets(&self) -> Amount {
        if self.key.ends_with("bps") {
            Amount::DiskRate(Rate(self.most))
        } else {
            Amount::DiskRequests(self.most)
        }
    }

    /// The limit as the file says it, without the others of its line.
    #[must_use]
    pub fn value(&self) -> String {
        format!("{} {}={}", self.device, self.key, self.most)
    }
}

impl From<DiskLimit> for Limit {
    fn from(limit: DiskLimit) -> Self {
        Self {
            value: limit.value(),
            gets: limit.gets(),
            file: limit.file,
        }
    }
}

/// The limits of one cgroup on disks. What cannot be read limits nothing.
#[must_use]
pub fn disk_limits(files: &dyn Files, version: Version, dir: &str) -> Vec<DiskLimit> {
    let names: &[(&str, &str)] = match version {
        Version::V2 => &[("io.max", "")],
        Version::V1 => &[
            ("blkio.throttle.read_bps_device", "rbps"),
            ("blkio.throttle.write_bps_device", "wbps"),
            ("blkio.throttle.read_iops_device", "riops"),
            ("blkio.throttle.write_iops_device", "wiops"),
        ],
    };
    let mut all = Vec::new();
    for (name, key) in names {
        let file = format!("{dir}/{name}");
        for line in files.read(&file).unwrap_or_default().lines() {
            let Some((device, rest)) = line.split_once(' ') else {
                continue;
            };
            for word in rest.split(' ') {
                let (key, value) = word.split_once('=').unwrap_or((key, word));
                // `max` is no number.
                if let Ok(most) = value.parse() {
                    all.push(DiskLimit {
                        file: file.clone(),
                        device: device.to_owned(),
                        key: key.to_owned(),
                        most,
                    });
                }
            }
        }
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
    let gets = Amount::Memory(memory::amount(&file, &value).ok()??);
    Some(Limit { file, value, gets })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Kernel;
    use quell_types::units::Bytes;

    fn made(version: Version, all: &[(&str, &str)]) -> (tempfile::TempDir, Hierarchy) {
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
        (root, hierarchy)
    }

    fn limited(version: Version, all: &[(&str, &str)], dir: &str) -> Vec<(String, Amount)> {
        let (root, hierarchy) = made(version, all);
        let found = limits(&Kernel::at(root.path()), &hierarchy, dir);
        let each = found.into_iter().map(|limit| (limit.file, limit.gets));
        each.collect()
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

    #[test]
    fn limits_of_disks_are_told_with_their_device() {
        let v2 = [("a/io.max", "8:0 rbps=max wbps=1000000 riops=max wiops=50\n")];
        let file = "/c/a/io.max".to_owned();
        let wanted = [
            (file.clone(), Amount::DiskRate(Rate(1_000_000))),
            (file, Amount::DiskRequests(50)),
        ];
        assert_eq!(limited(Version::V2, &v2, "/c/a"), wanted);
        let v1 = [("a/blkio.throttle.read_bps_device", "8:16 2000000\n")];
        let file = "/c/a/blkio.throttle.read_bps_device".to_owned();
        let wanted = [(file, Amount::DiskRate(Rate(2_000_000)))];
        assert_eq!(limited(Version::V1, &v1, "/c/a"), wanted);
    }

    #[test]
    fn low_weights_above_count_and_its_own_does_not() {
        let low = |version, all: &[(&str, &str)]| {
            let (root, hierarchy) = made(version, all);
            let found = low_weights(&Kernel::at(root.path()), &hierarchy, "/c/a/b");
            let each = found.into_iter().map(|limit| (limit.file, limit.gets));
            each.collect::<Vec<_>>()
        };
        let v2 = [("a/cpu.weight", "1\n"), ("a/b/cpu.weight", "2\n")];
        let wanted = ("/c/a/cpu.weight".to_owned(), Amount::Weight(1));
        assert_eq!(low(Version::V2, &v2), [wanted]);
        assert_eq!(low(Version::V2, &[("a/cpu.weight", "100\n")]), []);
        let idle = [("a/cpu.idle", "1\n"), ("a/cpu.weight", "100\n")];
        let wanted = ("/c/a/cpu.idle".to_owned(), Amount::Weight(0));
        assert_eq!(low(Version::V2, &idle), [wanted]);
        for (shares, weight) in [("512", 50), ("2", 1)] {
            let v1 = [("cpu.shares", "1024\n"), ("a/cpu.shares", shares)];
            let wanted = ("/c/a/cpu.shares".to_owned(), Amount::Weight(weight));
            assert_eq!(low(Version::V1, &v1), [wanted]);
        }
    }
}
