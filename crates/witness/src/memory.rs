//! Memory that is promised to a group: kept, locked, in pages of one size, files in memory, and how
//! long the group waits for it.

use std::collections::{BTreeMap, VecDeque};

use quell_kernel::cgroup::chain;
use quell_kernel::root::{Access, Files};
use quell_kernel::{page_cache, paging, psi, topology, vm};
use quell_types::units::{Bytes, Nanos, Share};
use quell_types::witness::Fault;

use crate::limits::{Dir, memory_of};

/// Memory of a process that may be unlocked beside what the kernel never locks.
const UNLOCKED: Bytes = Bytes(1 << 20);
/// As much more of its memory, as one part of so many.
const UNLOCKED_PART: u64 = 100;
/// Memory of which the accounts of a cgroup and of its processes may differ, beside what each CPU
/// has not added up yet.
const UNCOUNTED: Bytes = Bytes(8 << 20);
/// The same as one part of so many.
const UNCOUNTED_PART: u64 = 20;
/// Mappings from this size on can have large pages.
const LARGE: u64 = 4 << 20;
/// The time over which waiting is judged. What holds neighbours back begins once the group waits
/// for longer than promised, and takes some seconds.
const WINDOW: Nanos = Nanos::secs(42);

/// What the kernel protects of a cgroup: the least of it and of those above, the root left out.
/// `None` where it has no such files (cgroup v1).
fn protected(files: &dyn Files, of: &Dir) -> Option<(Bytes, String, String)> {
    let chain = chain(&of.mount, &of.dir);
    let below_the_root = chain.into_iter().filter(|dir| *dir != of.mount);
    let each = below_the_root.map(|dir| {
        let value = |name: &str| {
            let file = format!("{dir}/{name}");
            let text = files.read(&file).ok()?.trim().to_owned();
            let amount = match text.as_str() {
                "max" => u64::MAX,
                text => text.parse().ok()?,
            };
            Some((Bytes(amount), file, text))
        };
        let all = ["memory.low", "memory.min"].into_iter().filter_map(value);
        all.max_by_key(|(amount, ..)| *amount)
    });
    let each: Option<Vec<_>> = each.collect();
    each?.into_iter().min_by_key(|(amount, ..)| *amount)
}

/// Whether the kernel keeps so much memory of these cgroups.
///
/// # Errors
/// Why that cannot be seen.
pub(crate) fn kept(files: &dyn Files, homes: &[Dir], size: Bytes) -> Result<Option<Fault>, String> {
    let each = homes.iter().filter_map(|home| protected(files, home));
    let all: Vec<_> = each.collect();
    let Some((_, file, value)) = all.iter().min_by_key(|(amount, ..)| *amount) else {
        return Err("no cgroup of the group protects memory".to_owned());
    };
    let sum = all
        .iter()
        .fold(0_u64, |sum, (a, ..)| sum.saturating_add(a.0));
    // The kernel rounds to pages.
    let enough = sum >= size.0 - size.0 / 100;
    Ok((!enough).then(|| Fault::Reads {
        file: file.clone(),
        value: value.clone(),
        promised: size.to_string(),
    }))
}

/// What processes have in anonymous memory that is charged to other cgroups than these, at least.
/// Pages stay charged to the cgroup in which they were first written, wherever the process goes
/// (cgroup-v2.rst, "Memory Ownership").
pub(crate) fn elsewhere(files: &dyn Files, homes: &[Dir], pids: &[u32]) -> Bytes {
    let of = |home: &Dir| {
        let (memory, _) = memory_of(files, &home.mount, &home.dir)?;
        let stat = files.read(&memory.stat()).ok()?;
        Some(memory.parse_stat(&stat).ok()?.anonymous.0)
    };
    let largest = largest(files, pids);
    let charged: Vec<u64> = homes.iter().filter_map(of).collect();
    let has: u64 = largest.iter().map(|(_, has)| has).sum();
    let here: u64 = charged.iter().sum();
    let cpus = topology::online(files).map_or(1, |cpus| cpus.len() as u64);
    // Each CPU keeps up to so many pages of each count to itself (lib/percpu_counter.c).
    let unsummed = cpus * 32.max(2 * cpus) * rustix::param::page_size() as u64;
    let blurred = (UNCOUNTED.0 + unsummed).max(has / UNCOUNTED_PART);
    let beyond = |has: u64| has.saturating_sub(here) > blurred;
    if charged.is_empty() || !beyond(has) {
        return Bytes(0);
    }
    // Now exactly, and what they share with others in parts. That takes the kernel longer.
    let exact = |(pid, _): &(u32, u64)| {
        let text = files.read(&format!("/proc/{pid}/smaps_rollup")).ok()?;
        Some(vm::amount(&text, "Pss_Anon:")?.0)
    };
    let has: u64 = largest.iter().filter_map(exact).sum();
    match beyond(has) {
        true => Bytes(has - here),
        false => Bytes(0),
    }
}

/// The largest process of each program, by anonymous memory in bytes. Processes of one program may
/// share pages since a fork; those of two programs share none.
fn largest(files: &dyn Files, pids: &[u32]) -> Vec<(u32, u64)> {
    let mut of: BTreeMap<String, (u32, u64)> = BTreeMap::new();
    for pid in pids {
        let status = files.read(&format!("/proc/{pid}/status")).ok();
        let has = status.and_then(|text| vm::amount(&text, "RssAnon:"));
        if let (Some(has), Ok(exe)) = (has, files.link(&format!("/proc/{pid}/exe"))) {
            let most = of.entry(exe).or_insert((*pid, has.0));
            if has.0 > most.1 {
                *most = (*pid, has.0);
            }
        }
    }
    of.into_values().collect()
}

/// Whether memory that the kernel is to keep is charged to cgroups where it does not.
pub(crate) fn unkept(files: &dyn Files, homes: &[Dir], pids: &[u32], size: Bytes) -> Option<Fault> {
    let memory = elsewhere(files, homes, pids);
    let of = |home: &Dir| Some(memory_of(files, &home.mount, &home.dir)?.1.0);
    let kept: u64 = homes.iter().filter_map(of).sum();
    let much = memory.0 > size.0 / UNCOUNTED_PART;
    (much && kept < size.0).then_some(Fault::Unkept {
        memory,
        promised: size,
    })
}

/// The first of these processes whose memory is not locked.
pub(crate) fn locked(files: &dyn Files, pids: &[u32]) -> Option<Fault> {
    pids.iter().find_map(|pid| {
        let text = files.read(&format!("/proc/{pid}/status")).ok()?;
        let [locked, resident] = ["VmLck:", "VmRSS:"].map(|key| vm::amount(&text, key));
        unlocked(*pid, locked?, resident?)
    })
}

fn unlocked(pid: u32, locked: Bytes, resident: Bytes) -> Option<Fault> {
    let allowed = UNLOCKED.0 + resident.0 / UNLOCKED_PART;
    (resident.0 > locked.0.saturating_add(allowed)).then_some(Fault::Unlocked {
        pid,
        resident,
        locked,
    })
}

/// The first of these files that is not in memory as a whole.
///
/// # Errors
/// Why that cannot be seen.
pub(crate) fn cached(files: &dyn Files, paths: &[String]) -> Result<Option<Fault>, String> {
    for path in paths {
        let unseen = |e: std::io::Error| format!("{path}: {e}");
        let Some(file) = files.open(path, Access::Read).map_err(unseen)? else {
            return Err(format!("{path} cannot be opened here"));
        };
        let missing = page_cache::missing(&file).map_err(unseen)?;
        if missing > Bytes(0) {
            let file = path.clone();
            return Ok(Some(Fault::Uncached { file, missing }));
        }
    }
    Ok(None)
}

/// The first of these processes whose anonymous memory lies in pages of another size. Half of it is
/// enough: the kernel has large pages only for whole blocks.
pub(crate) fn paged(files: &dyn Files, pids: &[u32], large: bool) -> Option<Fault> {
    pids.iter().find_map(|pid| {
        let all = paging::mappings_of(files, *pid).ok()?;
        let wide = |m: &&paging::Mapping| {
            let size = m.range.end.saturating_sub(m.range.start);
            m.anonymous && !m.never_huge && size >= LARGE
        };
        let sum = all.iter().filter(wide).fold((0, 0), |(had, huge), m| {
            (had + m.resident.0, huge + m.huge.0)
        });
        let (anonymous, in_large) = (Bytes(sum.0), Bytes(sum.1));
        let wrong = match large {
            true => anonymous.0 >= LARGE && in_large.0 < anonymous.0 / 2,
            false => all.iter().any(|m| m.anonymous && m.huge > Bytes(0)),
        };
        wrong.then_some(Fault::Paged {
            pid: *pid,
            anonymous,
            large: in_large,
            wanted: large,
        })
    })
}

/// How long a group has waited for memory, from look to look.
#[derive(Debug, Default)]
pub(crate) struct Waiting(VecDeque<(Nanos, Nanos)>);

impl Waiting {
    /// Takes what the kernel says now, and judges the last [`WINDOW`]. At the beginning, too: who
    /// has waited for longer than a whole window allows will have at its end.
    pub fn judge(&mut self, now: Nanos, waited: Nanos, most: Share) -> Option<Fault> {
        self.0.push_back((now, waited));
        while self
            .0
            .get(1)
            .is_some_and(|(at, _)| now.since(*at) >= WINDOW)
        {
            self.0.pop_front();
        }
        let (first, before) = *self.0.front()?;
        let (span, waited) = (now.since(first).max(WINDOW), waited.since(before));
        let share = Share::ratio(waited.0, span.0.max(1));
        (share > most).then_some(Fault::Stalled { waited, span, most })
    }
}

/// How long some task of these cgroups has waited for memory so far, at the cgroup that waited
/// longest. `None` where the kernel does not count it.
pub(crate) fn waited(files: &dyn Files, homes: &[Dir]) -> Option<Nanos> {
    let of = |home: &Dir| {
        let path = psi::Resource::Memory.of(&home.dir);
        let text = files.read(&path).ok()?;
        psi::totals(&path, &text).ok().map(|totals| totals.some)
    };
    homes.iter().filter_map(of).max()
}

#[cfg(test)]
mod tests {
    use quell_kernel::root::Kernel;

    use super::*;

    fn put(root: &std::path::Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn protection_is_that_of_the_weakest_above() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Kernel::at(dir.path());
        put(dir.path(), "m/a/memory.low", "0\n");
        put(dir.path(), "m/a/memory.min", "209715200\n");
        put(dir.path(), "m/a/b/memory.low", "max\n");
        put(dir.path(), "m/a/b/memory.min", "0\n");
        let home = Dir {
            mount: "/m".to_owned(),
            dir: "/m/a/b".to_owned(),
        };
        let homes = [home];
        assert_eq!(kept(&kernel, &homes, Bytes(200 << 20)), Ok(None));
        let fault = kept(&kernel, &homes, Bytes(300 << 20)).unwrap().unwrap();
        assert_eq!(
            fault.to_string(),
            "/m/a/memory.min reads '209715200', where 300MiB was promised"
        );
        put(dir.path(), "m/a/memory.min", "max\n");
        assert_eq!(kept(&kernel, &homes, Bytes(300 << 20)), Ok(None));
        let v1 = Dir {
            mount: "/m".to_owned(),
            dir: "/m/c".to_owned(),
        };
        assert!(kept(&kernel, &[v1], Bytes(1 << 20)).is_err());
    }

    #[test]
    fn memory_that_is_charged_elsewhere_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Kernel::at(dir.path());
        let process = |pid: u32, mib: u64, exe: &str| {
            let text = format!("Name:\tx\nRssAnon:\t{} kB\n", mib << 10);
            put(dir.path(), &format!("proc/{pid}/status"), &text);
            let text = format!(
                "00-ff ---p 00 00:00 0 [rollup]\nPss_Anon: {} kB\n",
                mib << 10
            );
            put(dir.path(), &format!("proc/{pid}/smaps_rollup"), &text);
            std::os::unix::fs::symlink(exe, dir.path().join(format!("proc/{pid}/exe"))).unwrap();
        };
        // What a child has since a fork may be its parent's.
        process(7, 300, "/bin/db");
        process(8, 290, "/bin/db");
        process(9, 50, "/bin/helper");
        let rest = ["file", "shmem", "file_mapped", "active_file"];
        let rest = [rest.as_slice(), &["inactive_file", "unevictable"]].concat();
        let rest = rest.iter().map(|key| format!("\n{key} 0"));
        let rest: String = rest.collect();
        let charged = |mib: u64| {
            let stat = format!("anon {}{rest}\n", mib << 20);
            put(dir.path(), "m/a/memory.stat", &stat);
            put(
                dir.path(),
                "m/a/memory.current",
                &format!("{}\n", mib << 20),
            );
            let home = Dir {
                mount: "/m".to_owned(),
                dir: "/m/a".to_owned(),
            };
            [home]
        };
        let pids = [6, 7, 8, 9];
        let of = |mib| elsewhere(&kernel, &charged(mib), &pids).0 >> 20;
        assert_eq!([of(0), of(100), of(330), of(400)], [350, 250, 20, 0]);
        // The accounts of a cgroup and of its processes are not read at once.
        assert_eq!(of(340), 0);
        // Half of it is the parent's, which is not of the group.
        let shared = "Pss_Anon: 153600 kB\n";
        put(dir.path(), "proc/7/smaps_rollup", shared);
        assert_eq!([of(100), of(190)], [100, 0]);
        put(dir.path(), "proc/7/smaps_rollup", "Pss_Anon: 307200 kB\n");
        let kept = |mib: u64| unkept(&kernel, &charged(100), &pids, Bytes(mib << 20));
        assert_eq!(kept(100), None);
        assert_eq!(
            kept(200).unwrap().to_string(),
            "250MiB of the group's memory is charged to a cgroup that its processes were in before and that keeps \
             nothing of it, where 200MiB was promised"
        );
    }

    #[test]
    fn what_is_resident_has_to_be_locked() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Kernel::at(dir.path());
        let status = |locked: u64| {
            let text = format!("Name:\tx\nVmLck:\t{locked} kB\nVmRSS:\t  20480 kB\n");
            put(dir.path(), "proc/7/status", &text);
        };
        status(20_000);
        assert_eq!(locked(&kernel, &[7]), None);
        status(10_000);
        let fault = locked(&kernel, &[6, 7]).unwrap();
        assert_eq!(
            fault.to_string(),
            "10000KiB of the 20MiB that process 7 has in memory are locked"
        );
    }

    #[test]
    fn a_file_with_a_hole_is_not_in_memory() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Kernel::at(dir.path());
        let file = std::fs::File::create(dir.path().join("f")).unwrap();
        file.set_len(1 << 20).unwrap();
        let fault = cached(&kernel, &["/f".to_owned()]).unwrap().unwrap();
        assert_eq!(fault.to_string(), "1MiB of /f are not in memory");
        std::fs::write(dir.path().join("f"), [1; 5000]).unwrap();
        assert_eq!(cached(&kernel, &["/f".to_owned()]), Ok(None));
        assert!(cached(&kernel, &["/g".to_owned()]).is_err());
    }

    #[test]
    fn waiting_is_judged_over_many_looks() {
        let at = |waiting: &mut Waiting, look: u64, ms: u64| {
            let (now, waited) = (Nanos::secs(look), Nanos::millis(ms));
            waiting.judge(now, waited, Share::percent(10)).is_some()
        };
        let mut waiting = Waiting::default();
        for look in 0..70 {
            assert!(!at(&mut waiting, look, look * 100), "{look}");
        }
        // A second in which it waited all the time is a forty-second of what counts.
        assert!(!at(&mut waiting, 70, 6_900));
        assert!(at(&mut waiting, 71, 7_900));
        // At the beginning, what a whole window allows.
        let mut waiting = Waiting::default();
        assert!(!at(&mut waiting, 0, 0) && !at(&mut waiting, 5, 4_200));
        assert!(at(&mut waiting, 6, 4_201));
    }

    #[test]
    fn large_pages_are_counted_where_they_can_be() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Kernel::at(dir.path());
        let map = |huge: u64| {
            let text = format!(
                "7f0000000000-7f0000800000 rw-p 00000000 00:00 0\nRss: 8192 kB\nAnonHugePages: {huge} kB\nVmFlags: rd wr mr mw me ac\n"
            );
            put(dir.path(), "proc/7/smaps", &text);
        };
        map(8192);
        assert_eq!(paged(&kernel, &[7], true), None);
        assert!(paged(&kernel, &[7], false).is_some());
        map(0);
        let fault = paged(&kernel, &[7], true).unwrap().to_string();
        assert_eq!(
            fault,
            "0B of 8MiB of process 7 lie in large pages, where all should"
        );
        assert_eq!(paged(&kernel, &[7], false), None);
    }
}
