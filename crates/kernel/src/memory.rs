//! Memory of a cgroup: its use, protection and limits. cgroup-v2.rst ("Memory"),
//! cgroup-v1/memory.rst.
//!
//! - `memory.min` is never reclaimed, and `memory.low` only when there is nothing else. Both hold
//!   only as far as every ancestor has them, too.
//! - Beyond `memory.high` (v2) allocating tasks reclaim and sleep, up to two seconds at a time.
//!   They are never killed.
//! - Beyond `memory.max`, and v1's `memory.limit_in_bytes`, the kernel kills in the cgroup when it
//!   finds nothing to reclaim. v1 has no protection.
//! - A page of a file is charged to the cgroup that touches it first.

use quell_types::units::Bytes;

use crate::cgroup::{self, Cgroups, Controller, Hierarchy, Version};
use crate::error::{Error, Result};
use crate::root::Files;
use crate::vm;

/// The memory of a cgroup and of everything below it (`memory.stat`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Bytes of anonymous memory.
    pub anonymous: Bytes,
    /// Bytes of file pages, shared memory included.
    pub file: Bytes,
    /// Bytes of shared memory, which cannot be dropped. Part of `file`.
    pub shared: Bytes,
    /// Bytes of mapped file pages. Part of `file`.
    pub mapped: Bytes,
    /// Bytes of file pages that were used more than once lately. Part of `file`.
    pub active_file: Bytes,
    /// Bytes of all other file pages that can be reclaimed. Part of `file`.
    pub inactive_file: Bytes,
    /// Bytes that are locked, or cannot be reclaimed for another reason.
    pub unevictable: Bytes,
    /// Pages so far that came back soon after they had been reclaimed.
    pub refaults: u64,
}

/// From here on a limit of v1 limits nothing: it shows the largest number of whole pages then.
const V1_UNLIMITED: u64 = 1 << 62;

/// Keys that are read of `memory.stat`: the name in v2, and in v1.
const KEYS: [(&str, &str); 7] = [
    ("anon", "total_rss"),
    ("file", "total_cache"),
    ("shmem", "total_shmem"),
    ("file_mapped", "total_mapped_file"),
    ("active_file", "total_active_file"),
    ("inactive_file", "total_inactive_file"),
    ("unevictable", "total_unevictable"),
];
/// The same for pages that came back. Before Linux 5.9 one figure counted both kinds.
const REFAULTS: [(&str, &str); 3] = [
    ("workingset_refault_file", "total_workingset_refault_file"),
    ("workingset_refault_anon", "total_workingset_refault_anon"),
    ("workingset_refault", "total_workingset_refault"),
];

/// A cgroup with memory files, and the paths of those files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Path of the cgroup's directory.
    pub dir: String,
    /// The mount point of its hierarchy.
    pub mount: String,
    /// The version of its hierarchy, which decides the names of the files.
    pub version: Version,
}

impl Memory {
    /// The memory of a directory in the hierarchy that has the memory controller.
    #[must_use]
    pub fn of(hierarchy: &Hierarchy, dir: &str) -> Self {
        Self {
            dir: dir.to_owned(),
            mount: hierarchy.mount.clone(),
            version: hierarchy.version,
        }
    }

    /// The version of its hierarchy.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Path of the file with the bytes in use.
    #[must_use]
    pub fn usage(&self) -> String {
        self.file("memory.current", "memory.usage_in_bytes")
    }

    /// Path of `memory.stat`, for [`Self::parse_stat`].
    #[must_use]
    pub fn stat(&self) -> String {
        self.file("memory.stat", "memory.stat")
    }

    /// The limit that a loop moves: `memory.high`, in v1 `memory.limit_in_bytes`.
    #[must_use]
    pub fn steered(&self) -> String {
        self.file("memory.high", "memory.limit_in_bytes")
    }

    /// The file that reclaims as many bytes as are written to it (v2, Linux 5.19).
    #[must_use]
    pub fn reclaim(&self) -> String {
        format!("{}/memory.reclaim", self.dir)
    }

    /// Files of the limits beyond which the cgroup gets no memory, or gets it slowly.
    #[must_use]
    pub fn limits(&self) -> Vec<String> {
        match self.version {
            Version::V2 => ["memory.max", "memory.high"]
                .map(|name| format!("{}/{name}", self.dir))
                .to_vec(),
            Version::V1 => vec![self.steered()],
        }
    }

    /// The lowest limit of the cgroup itself, in bytes. `None` where it has none.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Malformed`].
    pub fn limit(&self, files: &dyn Files) -> Result<Option<Bytes>> {
        let mut least = None;
        for path in self.limits() {
            if let Some(text) = files.optional(&path)? {
                least = least.into_iter().chain(amount(&path, &text)?).min();
            }
        }
        Ok(least)
    }

    /// The path of the file that is named `v2` in one version and `v1` in the other.
    #[must_use]
    pub fn file(&self, v2: &str, v1: &str) -> String {
        let name = match self.version {
            Version::V2 => v2,
            Version::V1 => v1,
        };
        format!("{}/{name}", self.dir)
    }

    /// Parses the text of [`Self::stat`].
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn parse_stat(&self, text: &str) -> Result<Stat> {
        let names = |key: &(&'static str, &'static str)| match self.version {
            Version::V2 => key.0,
            Version::V1 => key.1,
        };
        // In one pass, because it is read fifty times a second.
        let (keys, refaulting) = (KEYS.each_ref().map(names), REFAULTS.each_ref().map(names));
        let (mut values, mut refaults) = ([None; KEYS.len()], 0u64);
        for line in text.lines() {
            let Some((key, number)) = line.split_once(' ') else {
                continue;
            };
            if let Some(at) = keys.iter().position(|k| *k == key) {
                values[at] = number.parse().ok().map(Bytes);
            } else if refaulting.contains(&key) {
                refaults = refaults.saturating_add(number.parse().unwrap_or(0));
            }
        }
        if let Some(at) = values.iter().position(Option::is_none) {
            let what = format!("the memory.stat of a cgroup: it lacks {}", KEYS[at].0);
            return Err(Error::malformed(&self.stat(), text, what));
        }
        let [
            anonymous,
            file,
            shared,
            mapped,
            active_file,
            inactive_file,
            unevictable,
        ] = values.map(Option::unwrap_or_default);
        Ok(Stat {
            anonymous,
            file,
            shared,
            mapped,
            active_file,
            inactive_file,
            unevictable,
            refaults,
        })
    }

    /// The cgroup and its ancestors below the root, the highest first.
    pub fn chain(&self) -> Vec<String> {
        cgroup::chain(&self.mount, &self.dir).split_off(1)
    }
}

/// Parses the text of a limit or protection. `None` stands for all there is: `max`, or in v1 the
/// largest number of whole pages.
///
/// # Errors
/// [`Error::Malformed`].
pub fn amount(path: &str, text: &str) -> Result<Option<Bytes>> {
    match text.trim() {
        "max" => Ok(None),
        number => {
            let bytes = number.parse().map(Bytes);
            let expected = |_| Error::malformed(path, text, "a number of bytes, or max");
            Ok(Some(bytes.map_err(expected)?).filter(|bytes| bytes.0 < V1_UNLIMITED))
        }
    }
}

/// The text of a limit to write: without a limit, v2's `max` or v1's `-1`.
#[must_use]
pub fn written(version: Version, limit: Option<Bytes>) -> String {
    match (limit, version) {
        (Some(bytes), _) => bytes.0.to_string(),
        (None, Version::V2) => "max".to_owned(),
        (None, Version::V1) => "-1".to_owned(),
    }
}

/// What the tightest limit of this process's cgroups leaves, pages of files not counted, and the
/// cgroup that has the limit. `None` where none has one.
///
/// # Errors
/// [`Error::File`], [`Error::Malformed`].
pub fn left(files: &dyn Files) -> Result<Option<(String, Bytes)>> {
    let cgroups = Cgroups::discover(files)?;
    let Some(hierarchy) = cgroups.of(Controller::Memory) else {
        return Ok(None);
    };
    let mut least: Option<(String, Bytes)> = None;
    // In a container the uppermost cgroup that it sees is its own, with its limit.
    for dir in cgroup::chain(&hierarchy.mount, &hierarchy.own_dir()) {
        let memory = Memory::of(hierarchy, &dir);
        let (limit, usage) = (memory.limit(files)?, memory.usage());
        let used = files.parsed::<u64>(&usage, "a number of bytes")?;
        let stat = files.optional(&memory.stat())?;
        let (Some(limit), Some(used), Some(stat)) = (limit, used, stat) else {
            continue;
        };
        let stat = memory.parse_stat(&stat)?;
        let pages_of_files = stat.active_file.0.saturating_add(stat.inactive_file.0);
        let left = Bytes(limit.0.saturating_sub(used.saturating_sub(pages_of_files)));
        if least.as_ref().is_none_or(|(_, least)| left < *least) {
            least = Some((dir, left));
        }
    }
    Ok(least)
}

/// Memory that this process can take without swapping and within the limits of its cgroups. `None`
/// where the kernel does not tell.
///
/// # Errors
/// [`Error::File`], [`Error::Malformed`].
pub fn available(files: &dyn Files) -> Result<Option<Bytes>> {
    let machine = vm::memory(files)?.map(|memory| memory.available);
    let cgroups = left(files)?.map(|(_, left)| left);
    Ok(machine.into_iter().chain(cgroups).min())
}

/// Whether the memory controller's files exist. A v2 cgroup has them only where its parent enables
/// the controller.
#[must_use]
pub fn has(files: &dyn Files, memory: &Memory) -> bool {
    files.exists(&memory.usage())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Kernel;

    fn memory(version: Version) -> Memory {
        Memory {
            dir: "/sys/fs/cgroup/quell.slice/a".into(),
            mount: "/sys/fs/cgroup".into(),
            version,
        }
    }

    #[test]
    fn both_versions_stat_is_read_with_what_is_below() {
        // From Linux 6.18 (v1) and 6.12 (v2), shortened.
        let v1 = "cache 9650176\nrss 9392128\ntotal_cache 187101184\ntotal_rss 15683584\ntotal_shmem 9084928\n\
                  total_mapped_file 11255808\ntotal_inactive_file 5\ntotal_active_file 27156480\ntotal_unevictable 16949248\n\
                  total_workingset_refault_anon 2\ntotal_workingset_refault_file 40\ntotal_pgmajfault 144758\n";
        let stat = memory(Version::V1).parse_stat(v1).unwrap();
        assert_eq!(stat.anonymous, Bytes(15_683_584));
        assert_eq!((stat.shared, stat.refaults), (Bytes(9_084_928), 42));
        let v2 = "anon 1\nfile 20\nkernel 3\nshmem 4\nfile_mapped 5\ninactive_file 7\nactive_file 6\nunevictable 7\n\
                  workingset_refault_anon 8\nworkingset_refault_file 9\nworkingset_activate_file 3\n";
        let stat = memory(Version::V2).parse_stat(v2).unwrap();
        assert_eq!(
            (stat.file, stat.active_file, stat.refaults),
            (Bytes(20), Bytes(6), 17)
        );
        let error = memory(Version::V2).parse_stat(v1).unwrap_err().to_string();
        assert!(
            error.contains("/quell.slice/a/memory.stat") && error.contains("lacks anon"),
            "{error}"
        );
    }

    #[test]
    fn ancestors_are_those_below_the_root() {
        assert_eq!(
            memory(Version::V2).chain(),
            ["/sys/fs/cgroup/quell.slice", "/sys/fs/cgroup/quell.slice/a"]
        );
        for all in ["max", "9223372036854771712\n"] {
            assert_eq!(amount("/x", all).unwrap(), None);
        }
        assert!(amount("/x", "lots").is_err());
        assert_eq!(written(Version::V1, None), "-1");
    }

    /// In a container whose cgroup is the root that it sees.
    #[test]
    fn what_is_available_is_within_the_limits_of_cgroups() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(
            "proc/meminfo",
            "MemTotal: 9 kB\nMemFree: 2 kB\nMemAvailable: 8 kB\n",
        );
        write(
            "proc/self/mountinfo",
            "41 31 0:38 / /c rw - cgroup2 cgroup2 rw\n",
        );
        write("proc/self/cgroup", "0::/\n");
        write("c/cgroup.controllers", "memory\n");
        let found = || available(&Kernel::at(root.path())).unwrap();
        assert_eq!(found(), Some(Bytes(8 << 10)));
        write("c/memory.max", "4096\n");
        write("c/memory.current", "3000\n");
        write(
            "c/memory.stat",
            "anon 2000\nfile 1000\nshmem 0\nfile_mapped 0\ninactive_file 600\nactive_file 300\nunevictable 0\n",
        );
        assert_eq!(found(), Some(Bytes(4096 - 3000 + 900)));
        write("c/memory.max", "1000000\n");
        assert_eq!(found(), Some(Bytes(8 << 10)));
    }
}
