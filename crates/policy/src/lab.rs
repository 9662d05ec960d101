//! The machine that the lab boots (`quell lab`, `--on lab`). Here is what of it can be chosen, by
//! the `[lab]` table of an experiment and by `--lab KEY=VALUE`, and which combinations are
//! impossible.

use std::fmt;

use quell_types::units::{Bytes, Rate};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::workload::{Fault, Word, words};

words! {
    /// Where pages are swapped to.
    Swap, default None {
        None = "none": "Nowhere",
        File = "file": "A file of the host's, as a disk of its own, at the disk's rate",
        Zram = "zram": "Memory, compressed",
    }
}

words! {
    /// How the kernel ages pages.
    Lru {
        Classic = "classic": "Active and inactive lists",
        Generations = "mglru": "Generations",
    }
}

words! {
    /// What runs the guest's instructions.
    Accelerator, default Auto {
        Auto = "auto": "KVM on bare metal, without an emulated processor; else emulation",
        Kvm = "kvm": "KVM",
        Tcg = "tcg": "Emulation",
        Counted = "counted": "Emulation whose time counts instructions, however busy this machine is",
    }
}

/// The least memory that is accepted: less is not enough for a kernel and the guest's files.
const LEAST_MEMORY: Bytes = Bytes(256 << 20);
/// The most CPUs that are accepted: more were not tried.
const MOST_CPUS: u32 = 64;

/// The most memory nodes, and the least memory of one: less does not hold what the kernel needs of
/// the first.
const MOST_NODES: u32 = 8;
const LEAST_OF_NODE: Bytes = Bytes(128 << 20);

/// The virtual machine of the lab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Guest {
    /// The release of Debian's kernel, or the beginning of it: 6.1, 6.12, 7.2.
    pub kernel: String,
    /// The emulated processor: icelake, goldmont, apollolake (with banks), sparse, or a file.
    /// Without one, caches cannot be divided and no event counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Number of hardware threads.
    pub cpus: u32,
    /// Number of sockets, each with a last-level cache of its own.
    pub sockets: u32,
    /// Whether each core has two hardware threads.
    pub smt: bool,
    /// Size of its memory. The guest's files are in it, too.
    pub memory: Bytes,
    /// Number of memory nodes, each with an equal part of the memory. All CPUs belong to the first.
    #[serde(skip_serializing_if = "is_one")]
    pub nodes: u32,
    /// Whether cgroup v1 carries the memory controller, next to v2 with all else. It takes a kernel
    /// that has v1's: of Debian's up to 6.1.
    #[serde(skip_serializing_if = "is_false")]
    pub memory_v1: bool,
    /// What the guest swaps to.
    pub swap: Swap,
    /// Size of the swap space.
    pub swap_size: Bytes,
    /// An empty disk of this size, mounted at /disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<Bytes>,
    /// What disk and swap file deliver together, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_rate: Option<Rate>,
    /// How pages are aged. Default: as the kernel does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lru: Option<Lru>,
    /// What runs the virtual machine.
    pub accelerator: Accelerator,
    /// More words for the kernel's command line.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub append: Vec<String>,
    /// Programs, files and folders of this machine that the guest has at the same places, or with
    /// "PATH=PLACE" there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub with: Vec<String>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
const fn is_false(value: &bool) -> bool {
    !*value
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
const fn is_one(value: &u32) -> bool {
    *value == 1
}

impl Default for Guest {
    fn default() -> Self {
        Self {
            kernel: "7.2".to_owned(),
            profile: None,
            cpus: 2,
            sockets: 1,
            smt: false,
            memory: Bytes(1 << 30),
            nodes: 1,
            memory_v1: false,
            swap: Swap::None,
            swap_size: Bytes(1 << 30),
            disk: None,
            disk_rate: None,
            lru: None,
            accelerator: Accelerator::Auto,
            append: Vec::new(),
            with: Vec::new(),
        }
    }
}

impl Guest {
    /// Number of hardware threads per core.
    #[must_use]
    pub const fn threads(&self) -> u32 {
        if self.smt { 2 } else { 1 }
    }

    /// Number of cores per socket, rounded down.
    #[must_use]
    pub fn cores(&self) -> u32 {
        self.cpus / self.threads() / self.sockets.max(1)
    }

    /// What makes the combination impossible; empty if it is possible.
    #[must_use]
    pub fn faults(&self) -> Vec<Fault> {
        let mut all = Vec::new();
        let mut say = |key, why: String, remedy| all.push(Fault { key, why, remedy });
        let kernel = self.kernel.as_bytes();
        if kernel.is_empty() || !kernel.iter().all(|b| b.is_ascii_digit() || *b == b'.') {
            say(
                "kernel",
                format!("'{}' is not the beginning of a release", self.kernel),
                "write one such as \"6.12\" or \"7.2\"",
            );
        }
        let whole = self.cores() * self.threads() * self.sockets == self.cpus;
        if !whole || !(1..=MOST_CPUS).contains(&self.cpus) {
            say(
                "cpus",
                format!(
                    "{} CPUs are not {} sockets of whole cores of {} threads, up to {MOST_CPUS} CPUs in all",
                    self.cpus,
                    self.sockets,
                    self.threads()
                ),
                "change cpus, sockets or smt",
            );
        }
        if self.memory < LEAST_MEMORY {
            say(
                "memory",
                format!("{} do not hold a kernel and its files", self.memory),
                "give at least 256MiB",
            );
        }
        let (nodes, mib) = (u64::from(self.nodes.max(1)), self.memory.0 >> 20);
        let few = (1..=MOST_NODES).contains(&self.nodes);
        let unequal = mib % nodes != 0 || mib / nodes < LEAST_OF_NODE.0 >> 20;
        if !few || nodes > 1 && unequal {
            say(
                "nodes",
                format!("{} are not {} equal nodes", self.memory, self.nodes),
                "give 1 to 8 nodes of at least 128MiB each, in whole MiB",
            );
        }
        if self.swap != Swap::None && self.swap_size < Bytes(1 << 20) {
            say(
                "swap-size",
                format!("{} hold nothing", self.swap_size),
                "give at least 1MiB, or no swap",
            );
        }
        if self.disk_rate.is_some() && self.disk.is_none() && self.swap != Swap::File {
            say(
                "disk-rate",
                "there is neither a disk nor a swap file to hold to a rate".to_owned(),
                "give disk = \"1GiB\" or swap = \"file\", or leave the rate out",
            );
        }
        if self.disk_rate == Some(Rate(0)) {
            say(
                "disk-rate",
                "a disk that delivers nothing cannot be used".to_owned(),
                "give a rate such as 50MB/s",
            );
        }
        let plain = [Accelerator::Kvm, Accelerator::Counted].contains(&self.accelerator);
        if self.profile.is_some() && plain {
            say(
                "accelerator",
                format!(
                    "an emulated processor runs on tcg, not on {}",
                    self.accelerator
                ),
                "leave out one of the two",
            );
        }
        all
    }

    /// A copy with one key changed, written as `KEY=VALUE`. For a list one element is added.
    ///
    /// # Errors
    /// What is wrong with the key or the value, for a person.
    pub fn with(&self, text: &str) -> Result<Self, String> {
        let (key, value) = text
            .split_once('=')
            .ok_or_else(|| format!("'{text}' is no KEY=VALUE such as memory=2GiB"))?;
        let table = toml::Table::try_from(self).map_err(|e| e.to_string())?;
        let changed = |value: toml::Value| -> Result<Self, String> {
            let mut table = table.clone();
            table.insert(key.to_owned(), value);
            let changed: Result<Self, _> = table.try_into();
            changed.map_err(|e| e.message().to_owned())
        };
        let plain = toml::from_str::<toml::Table>(&format!("value = {value}"));
        let plain = plain.ok().and_then(|mut table| table.remove("value"));
        let mut list = table.get(key).and_then(toml::Value::as_array).cloned();
        list.get_or_insert_default().push(value.into());
        let text = changed(value.into());
        let (number, list) = (plain.map(changed), list.map(|l| changed(l.into())));
        // The value is tried as text, as a number or truth value, and as one more element of a
        // list. A key accepts one of them. What is wrong with the text says what the key wants.
        match (text, number, list) {
            (Ok(done), ..) | (_, Some(Ok(done)), _) | (.., Some(Ok(done))) => Ok(done),
            (Err(why), ..) => Err(format!("{key}: {why}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_changed_one_by_one() {
        let mut guest = Guest::default();
        for text in [
            "kernel=6.12",
            "memory=2GiB",
            "cpus=4",
            "smt=true",
            "memory-v1=true",
            "swap=file",
            "disk-rate=20MB/s",
            "lru=classic",
            "append=isolcpus=1,2",
            "append=quiet",
        ] {
            guest = guest.with(text).unwrap();
        }
        assert_eq!(guest.kernel, "6.12");
        assert_eq!(
            (guest.memory, guest.cpus, guest.smt),
            (Bytes(2 << 30), 4, true)
        );
        assert!(guest.memory_v1);
        assert_eq!((guest.swap, guest.lru), (Swap::File, Some(Lru::Classic)));
        assert_eq!(guest.disk_rate, Some(Rate(20_000_000)));
        assert_eq!(guest.append, ["isolcpus=1,2", "quiet"]);
        assert_eq!(guest.faults(), Vec::new());
        for (text, told) in [
            ("memory", "KEY=VALUE"),
            ("memory=much", "memory: "),
            ("cpus=four", "u32"),
            ("swap=tape", "zram"),
            ("colour=red", "unknown field `colour`"),
        ] {
            let why = guest.with(text).unwrap_err();
            assert!(why.contains(told), "{text}: {why}");
        }
    }

    #[test]
    fn what_cannot_be_is_told_by_its_key() {
        let keys = |change: &dyn Fn(&mut Guest)| {
            let mut guest = Guest::default();
            change(&mut guest);
            let faults = guest.faults();
            faults.iter().map(|f| f.key).collect::<Vec<_>>().join(",")
        };
        assert_eq!(keys(&|_| ()), "");
        assert_eq!(keys(&|g| g.kernel = "newest".into()), "kernel");
        assert_eq!(keys(&|g| (g.cpus, g.smt) = (3, true)), "cpus");
        assert_eq!(keys(&|g| g.cpus = 0), "cpus");
        assert_eq!(keys(&|g| g.sockets = 0), "cpus");
        assert_eq!(keys(&|g| g.memory = Bytes(1 << 20)), "memory");
        assert_eq!(keys(&|g| g.nodes = 8), "");
        assert_eq!(keys(&|g| g.nodes = 9), "nodes");
        assert_eq!(keys(&|g| g.nodes = 0), "nodes");
        assert_eq!(keys(&|g| g.disk_rate = Some(Rate(1000))), "disk-rate");
        let both = keys(&|g| {
            (g.profile, g.accelerator) = (Some("icelake".into()), Accelerator::Kvm);
        });
        assert_eq!(both, "accelerator");
    }
}
