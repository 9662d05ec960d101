//! Limits on a group's cgroups and on those above them: quotas of CPU time, limits of memory.

use std::collections::BTreeMap;

use quell_kernel::cgroup::{Version, chain};
use quell_kernel::memory::{self, Memory};
use quell_kernel::root::Files;
use quell_types::cpuset::CpuSet;
use quell_types::units::{Bytes, Share};

use quell_types::witness::{Amount, Fault};

/// A quota of CPU time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Quota {
    /// Path of the file.
    pub file: String,
    /// Its content; in v1 quota and period, as v2 would show them.
    pub value: String,
    /// Quota ÷ period; 100 % is one CPU.
    pub gets: Share,
}

/// A limit of memory, and what it is used for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemoryLimit {
    /// Path of the file.
    pub file: String,
    /// Its content.
    pub value: String,
    pub limit: Bytes,
    /// What is charged there.
    pub used: Bytes,
    /// Pages of files in it, which the kernel can drop.
    pub file_pages: Bytes,
    /// How often a task has run into a limit there. `None` where the kernel does not say.
    pub reached: Option<u64>,
}

/// How often each limit was run into at the last look, by its file.
pub(crate) type Reached = BTreeMap<String, u64>;

/// A directory of a cgroup, and the mount point of its hierarchy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Dir {
    pub mount: String,
    pub dir: String,
}

/// All cgroups from the mount points down to these, each once.
pub(crate) fn above(dirs: &[Dir]) -> Vec<String> {
    let each = dirs.iter().flat_map(|d| chain(&d.mount, &d.dir));
    let mut all: Vec<String> = each.collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// The CPUs on which tasks of each of these cgroups may run, with the file that says so.
fn effective(files: &dyn Files, homes: &[Dir]) -> impl Iterator<Item = (String, CpuSet)> {
    const EFFECTIVE: [&str; 2] = ["cpuset.cpus.effective", "cpuset.effective_cpus"];
    // A cgroup without such files has the CPUs of the one above.
    homes.iter().filter_map(|home| {
        let mut at = chain(&home.mount, &home.dir).into_iter().rev();
        at.find_map(|dir| {
            let mut names = EFFECTIVE.iter().map(|name| format!("{dir}/{name}"));
            names.find_map(|file| {
                let cpus = files.read(&file).ok()?.trim().parse().ok()?;
                Some((file, cpus))
            })
        })
    })
}

/// The first of a group's cgroups whose tasks may not run on all of these CPUs.
pub(crate) fn narrowed(files: &dyn Files, homes: &[Dir], cpus: &CpuSet) -> Option<Fault> {
    let lacks = |(_, may): &(String, CpuSet)| !cpus.is_subset(may);
    let (file, may) = effective(files, homes).find(lacks)?;
    Some(reads(file, &may, format!("CPUs {cpus}")))
}

/// The first of a group's cgroups whose tasks may run on further CPUs than these.
pub(crate) fn widened(files: &dyn Files, homes: &[Dir], cpus: &CpuSet) -> Option<Fault> {
    let more = |(_, may): &(String, CpuSet)| !may.is_subset(cpus);
    let (file, may) = effective(files, homes).find(more)?;
    Some(reads(file, &may, format!("at most CPUs {cpus}")))
}

fn reads(file: String, may: &CpuSet, promised: String) -> Fault {
    Fault::Reads {
        file,
        value: may.to_string(),
        promised,
    }
}

/// Parses quota and period (`20000 100000`, `max 100000`). `None` where there is no limit.
fn quota(text: &str) -> Option<Share> {
    let mut words = text.split_ascii_whitespace();
    let quota: u64 = words.next()?.parse().ok()?;
    let period: u64 = words.next()?.parse().ok().filter(|period| *period > 0)?;
    Some(Share::ratio(quota, period))
}

/// The quotas on these cgroups and above them.
pub(crate) fn quotas(files: &dyn Files, dirs: &[Dir]) -> Vec<Quota> {
    let of = |dir: String| {
        let (v2, v1) = (format!("{dir}/cpu.max"), format!("{dir}/cpu.cfs_quota_us"));
        let (file, value) = match (files.read(&v2), files.read(&v1)) {
            (Ok(text), _) => (v2, text.trim().to_owned()),
            (_, Ok(text)) => {
                let period = files.read(&format!("{dir}/cpu.cfs_period_us")).ok()?;
                (v1, format!("{} {}", text.trim(), period.trim()))
            }
            _ => return None,
        };
        let gets = quota(&value)?;
        Some(Quota { file, value, gets })
    };
    above(dirs).into_iter().filter_map(of).collect()
}

/// Memory of a cgroup. `None` where it has no memory account.
pub(crate) fn memory_of(files: &dyn Files, mount: &str, dir: &str) -> Option<(Memory, Bytes)> {
    [Version::V2, Version::V1].into_iter().find_map(|version| {
        let memory = Memory {
            dir: dir.to_owned(),
            mount: mount.to_owned(),
            version,
        };
        let used = files.read(&memory.usage()).ok()?.trim().parse().ok()?;
        Some((memory, Bytes(used)))
    })
}

/// The limits of one cgroup.
fn limits_of(files: &dyn Files, memory: &Memory, used: Bytes) -> Vec<MemoryLimit> {
    let limit = |file: String| {
        let value = files.read(&file).ok()?.trim().to_owned();
        let limit = memory::amount(&file, &value).ok()??;
        Some((file, value, limit))
    };
    let found: Vec<_> = memory.limits().into_iter().filter_map(limit).collect();
    if found.is_empty() {
        return Vec::new();
    }
    let stat = files.read(&memory.stat()).ok();
    let stat = stat.and_then(|text| memory.parse_stat(&text).ok());
    let stat = stat.unwrap_or_default();
    let file_pages = stat.active_file.0.saturating_add(stat.inactive_file.0);
    let reached = reached(files, memory);
    let each = found.into_iter().map(|(file, value, limit)| MemoryLimit {
        file,
        value,
        limit,
        used,
        file_pages: Bytes(file_pages),
        reached,
    });
    each.collect()
}

/// How often a task has run into a limit of a cgroup, or of one below it (cgroup-v2.rst,
/// `memory.events`; v1: `memory.failcnt`).
fn reached(files: &dyn Files, memory: &Memory) -> Option<u64> {
    if memory.version == Version::V1 {
        let count = files.read(&format!("{}/memory.failcnt", memory.dir));
        return count.ok()?.trim().parse().ok();
    }
    let text = files.read(&format!("{}/memory.events", memory.dir)).ok()?;
    let counts = text.lines().filter_map(|line| {
        let (name, count) = line.split_once(' ')?;
        let count: u64 = count.parse().ok()?;
        ["high", "max"].contains(&name).then_some(count)
    });
    Some(counts.sum())
}

/// The limits of memory on these cgroups and above them.
pub(crate) fn memory_limits(files: &dyn Files, dirs: &[Dir]) -> Vec<MemoryLimit> {
    let mut all = Vec::new();
    for of in dirs {
        for dir in chain(&of.mount, &of.dir) {
            if let Some((memory, used)) = memory_of(files, &of.mount, &dir) {
                all.extend(limits_of(files, &memory, used));
            }
        }
    }
    all.sort_by(|a, b| a.file.cmp(&b.file));
    all.dedup();
    all
}

/// The tightest quota that leaves less than `wanted`.
pub(crate) fn limited(wanted: Share, quotas: &[Quota]) -> Option<Fault> {
    let less = quotas.iter().filter(|quota| quota.gets < wanted);
    let least = less.min_by_key(|quota| (quota.gets, &quota.file))?;
    Some(Fault::Limited {
        file: least.file.clone(),
        value: least.value.clone(),
        gets: Amount::CpuTime(least.gets),
        wanted: Some(Amount::CpuTime(wanted)),
    })
}

/// How full a limit has to be to slow the group down, in percent.
const FULL: u64 = 95;

/// A limit of memory that is all but reached, pages of files not counted: the kernel drops those.
/// And that a task has run into since the last look: who has all it needs is not slowed down. A
/// limit of `promised`, which the plan has set itself, is none.
pub(crate) fn pressed(
    promised: Option<Bytes>,
    limits: &[MemoryLimit],
    last: &mut Reached,
) -> Option<Fault> {
    let now = limits
        .iter()
        .filter_map(|limit| Some((limit.file.clone(), limit.reached?)));
    let last = std::mem::replace(last, now.collect());
    let slows = |limit: &MemoryLimit| match (limit.reached, last.get(&limit.file)) {
        (Some(now), Some(last)) => now > *last,
        (Some(_), None) => false,
        (None, _) => true,
    };
    let of_the_plan = |limit: &MemoryLimit| {
        // The kernel rounds limits to pages.
        promised
            .is_some_and(|promised| limit.limit.0 >= promised.0.saturating_sub(promised.0 / 100))
    };
    let needed = |limit: &MemoryLimit| limit.used.0.saturating_sub(limit.file_pages.0);
    let full = limits
        .iter()
        .filter(|limit| !of_the_plan(limit) && needed(limit) >= limit.limit.0 / 100 * FULL)
        .filter(|limit| slows(limit));
    let least = full.min_by_key(|limit| (limit.limit, &limit.file))?;
    Some(Fault::Limited {
        file: least.file.clone(),
        value: least.value.clone(),
        gets: Amount::Memory(least.limit),
        wanted: Some(Amount::Memory(Bytes(needed(least)))),
    })
}

/// The memory of one home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Charged {
    /// What is charged to it.
    pub used: Bytes,
    /// The tightest limit of it and the cgroups above it. `None` where none has one.
    pub limit: Option<MemoryLimit>,
    /// The file that should have a limit.
    pub file: String,
}

/// The memory of each of these homes that has an account.
pub(crate) fn charged(files: &dyn Files, homes: &[Dir]) -> Vec<Charged> {
    let of = |home: &Dir| {
        let (memory, used) = memory_of(files, &home.mount, &home.dir)?;
        let limits = memory_limits(files, std::slice::from_ref(home));
        Some(Charged {
            used,
            limit: limits.into_iter().min_by_key(|limit| limit.limit),
            file: memory.file("memory.max", "memory.limit_in_bytes"),
        })
    };
    homes.iter().filter_map(of).collect()
}

/// How much more than promised a group may have for a moment, in percent: the kernel charges in
/// batches, and reclaims beyond `memory.high` only while the group allocates.
const OVER: u64 = 5;

/// Judges what a group may have, and has, of memory: what is charged to it, and what its processes
/// have elsewhere.
pub(crate) fn at_most(most: Bytes, charged: &[Charged], elsewhere: Bytes) -> Option<Fault> {
    for home in charged {
        let (file, value) = match &home.limit {
            Some(limit) if limit.limit <= most => continue,
            Some(limit) => (&limit.file, limit.value.clone()),
            None => (&home.file, "no limit".to_owned()),
        };
        return Some(Fault::Unlimited {
            file: file.clone(),
            value,
            promised: most,
        });
    }
    let has: u64 = charged.iter().map(|home| home.used.0).sum();
    let has = has.saturating_add(elsewhere.0);
    (has > most.0.saturating_add(most.0 / 100 * OVER)).then_some(Fault::Overfull {
        has: Bytes(has),
        promised: most,
    })
}

#[cfg(test)]
#[path = "limits_tests.rs"]
mod tests;
