//! The tasks in a cgroup and in the cgroups below it. A program in a group that is changed in place
//! may have made cgroups of its own.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::cgroup::Cgroups;
use crate::procfs::{self, UNTOLD};
use crate::root::{Files, gone};

/// Bounds on the depth and the number of cgroups, beyond any tree without bad intentions. They make
/// a hostile tree end.
const DEEPEST: usize = 16;
const MOST: usize = 1024;

/// The directory itself first, then those below it, none before its parent. And whether that is all
/// of them. It is not where there are more than the bounds allow, or a folder whose path cannot be
/// told: its name is not UTF-8, or its path is too long. The cgroups of tasks then say who is
/// inside ([`threads`], [`processes`], [`tasks`]).
#[must_use]
pub fn walk(files: &dyn Files, dir: &str) -> (Vec<String>, bool) {
    let mut found = vec![dir.to_owned()];
    let (mut from, mut depth, mut whole) = (0, 0, true);
    while from < found.len() && depth < DEEPEST {
        let level = from..found.len();
        from = found.len();
        depth += 1;
        for at in level {
            let names = files.folders(&found[at]);
            // A cgroup that is gone has nothing below it.
            whole &= names.as_ref().err().is_none_or(gone);
            for name in names.unwrap_or_default() {
                let path = format!("{}/{name}", found[at]);
                whole &= procfs::is_told(&path);
                // Two names that are not UTF-8 may read the same.
                if found.last() == Some(&path) {
                    continue;
                }
                match found.len() < MOST {
                    true => found.push(path),
                    false => whole = false,
                }
            }
        }
    }
    (found, whole && depth < DEEPEST)
}

/// The tasks of the whole tree, however large that is: threads (v1) or processes (v2). Of a tree
/// that cannot be walked whole, processes that no cgroup lists as well. Cgroups that are gone have
/// none.
#[must_use]
pub fn tasks(files: &dyn Files, dir: &str) -> Vec<u32> {
    tasks_or(files, dir, false)
}

/// The same, and those that may be in it: one too deep to be told is where only who has a tree of
/// cgroups can be.
#[must_use]
pub fn suspects(files: &dyn Files, dir: &str) -> Vec<u32> {
    tasks_or(files, dir, true)
}

fn tasks_or(files: &dyn Files, dir: &str, untold: bool) -> Vec<u32> {
    let (dirs, whole) = walk(files, dir);
    let each = dirs.iter().map(|dir| tasks_in(files, dir));
    let mut all: Vec<u32> = each.flatten().flatten().collect();
    if !whole {
        all.extend(
            by_proc(files, dir, untold)
                .into_iter()
                .map(|(_, pid, _)| pid),
        );
        all.sort_unstable();
        all.dedup();
    }
    all
}

/// The threads in the tree by what `/proc` says of all of the machine: cgroup, process, thread.
/// With `untold`, those whose cgroup nobody knows, too.
fn by_proc(files: &dyn Files, dir: &str, untold: bool) -> Vec<(Arc<str>, u32, u32)> {
    let hierarchies = Cgroups::discover(files).unwrap_or_default().hierarchies;
    let mut hierarchies = hierarchies.into_iter();
    let Some(hierarchy) = hierarchies.find(|h| Path::new(dir).starts_with(&h.mount)) else {
        return Vec::new();
    };
    let mut places: BTreeSet<Arc<str>> = BTreeSet::new();
    let mut place = |task: u32| {
        let at = hierarchy.dir_of(files, task).ok().flatten()?;
        let unknown = at.strip_prefix(&hierarchy.mount) == Some(UNTOLD);
        let inside = Path::new(&at).starts_with(dir) || untold && unknown;
        let at: Arc<str> = inside.then(|| at.into())?;
        let known = places.get(&at).cloned();
        Some(known.unwrap_or_else(|| {
            places.insert(Arc::clone(&at));
            at
        }))
    };
    let mut found = Vec::new();
    for process in procfs::processes(files).unwrap_or_default() {
        let pid = process.id.pid;
        let mut tids = procfs::threads(files, pid).unwrap_or_default();
        tids.retain(|tid| *tid != pid);
        let all = std::iter::once(pid).chain(tids);
        found.extend(all.filter_map(|tid| Some((place(tid)?, pid, tid))));
    }
    found
}

/// The threads of the whole tree. Cgroups that are gone have none.
#[must_use]
pub fn threads(files: &dyn Files, dir: &str) -> Vec<u32> {
    let all = threads_with_cgroups(files, dir).into_iter();
    all.map(|(_, tid)| tid).collect()
}

/// The threads of the whole tree, each with the cgroup that it is in. That one may end in
/// [`UNTOLD`]. Threads of one cgroup share its path, which may be long.
#[must_use]
pub fn threads_with_cgroups(files: &dyn Files, dir: &str) -> Vec<(Arc<str>, u32)> {
    let (dirs, whole) = walk(files, dir);
    let (mut found, mut known) = (Vec::new(), BTreeSet::new());
    for dir in dirs {
        let mut listed = threads_in(files, &dir);
        // One that moves meanwhile is listed twice.
        listed.retain(|tid| known.insert(*tid));
        let dir: Arc<str> = dir.into();
        found.extend(listed.into_iter().map(|tid| (Arc::clone(&dir), tid)));
    }
    if !whole {
        let others = by_proc(files, dir, false).into_iter();
        let others = others.filter(|(_, _, tid)| known.insert(*tid));
        found.extend(others.map(|(at, _, tid)| (at, tid)));
    }
    found
}

/// The threads directly in a cgroup. One that is gone has none.
#[must_use]
pub fn threads_in(files: &dyn Files, dir: &str) -> Vec<u32> {
    // The first file is of v1, the second of v2.
    let lists = ["tasks", "cgroup.threads"].map(|name| files.read(&format!("{dir}/{name}")));
    let text = lists.into_iter().find_map(Result::ok);
    listed(&text.unwrap_or_default()).collect()
}

/// The processes of the whole tree. Cgroups that are gone have none.
pub fn processes(files: &dyn Files, dir: &str, mut each: impl FnMut(u32)) {
    let (dirs, whole) = walk(files, dir);
    let mut known: BTreeSet<u32> = BTreeSet::new();
    for dir in dirs {
        let listed: Vec<u32> = match files.read(&format!("{dir}/cgroup.procs")) {
            Ok(text) => listed(&text).collect(),
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                let threads = tasks_in(files, &dir).unwrap_or_default().into_iter();
                let of = threads.filter_map(|tid| procfs::process_of(files, tid).ok().flatten());
                of.collect::<BTreeSet<u32>>().into_iter().collect()
            }
            Err(_) => continue,
        };
        if !whole {
            known.extend(&listed);
        }
        listed.into_iter().for_each(&mut each);
    }
    if !whole {
        let others = by_proc(files, dir, false).into_iter();
        let others = others.filter(|(_, pid, _)| known.insert(*pid));
        others.for_each(|(_, pid, _)| each(pid));
    }
}

/// The tasks that a file lists. 0 stands for a task of another PID namespace, which has no number
/// here, and is left out.
pub fn listed(text: &str) -> impl Iterator<Item = u32> {
    let numbers = text.split_ascii_whitespace().filter_map(|t| t.parse().ok());
    numbers.filter(|task| *task != 0)
}

/// The file through which a task enters a cgroup: a single thread in v1, a whole process in v2.
#[must_use]
pub fn procs_file(files: &dyn Files, dir: &str) -> String {
    let threads = format!("{dir}/tasks");
    if files.exists(&threads) {
        threads
    } else {
        format!("{dir}/cgroup.procs")
    }
}

/// The threads (v1) or processes (v2) directly in a cgroup, sorted. Empty where the cgroup is gone.
///
/// # Errors
/// The kernel's, except those that mean the cgroup is gone.
pub fn tasks_in(files: &dyn Files, dir: &str) -> io::Result<Vec<u32>> {
    let mut tasks = Vec::new();
    for name in ["tasks", "cgroup.procs", "cgroup.threads"] {
        match files.read(&format!("{dir}/{name}")) {
            Ok(text) => {
                tasks = listed(&text).collect();
                break;
            }
            Err(e) if gone(&e) => {}
            // A threaded v2 cgroup cannot list processes.
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
            Err(e) => return Err(e),
        }
    }
    tasks.sort_unstable();
    tasks.dedup();
    Ok(tasks)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;
    use crate::root::Kernel;

    #[test]
    fn whoever_is_below_is_found_and_a_file_is_no_cgroup() {
        let dir = tempfile::tempdir().unwrap();
        let cgroup = |path: &str, pids: &str| {
            let path = dir.path().join("cg").join(path);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(path.join("cgroup.procs"), pids).unwrap();
            std::fs::write(path.join("memory.high"), "max").unwrap();
        };
        cgroup("", "1\n");
        cgroup("a", "2\n3\n");
        cgroup("a/b", "0\n4\n");
        cgroup("c.d", "5\n");
        let kernel = Kernel::at(dir.path());
        let all = ["/cg", "/cg/a", "/cg/c.d", "/cg/a/b"].map(str::to_owned);
        assert_eq!(walk(&kernel, "/cg"), (all.to_vec(), true));
        let mut pids = Vec::new();
        processes(&kernel, "/cg", |pid| pids.push(pid));
        assert_eq!(pids, [1, 2, 3, 5, 4]);
        assert_eq!(tasks(&kernel, "/cg/a"), [2, 3, 4]);
        assert_eq!(walk(&kernel, "/gone"), (vec!["/gone".to_owned()], true));
    }

    #[test]
    fn who_hides_deep_in_a_tree_is_found_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(
            "proc/self/mountinfo",
            "30 23 0:26 / /cg rw - cgroup2 cgroup2 rw\n",
        );
        write("proc/self/cgroup", "0::/\n");
        write("cg/cgroup.controllers", "cpuset\n");
        let deep = ["d"; 20].join("/");
        std::fs::create_dir_all(dir.path().join("cg/a").join(&deep)).unwrap();
        for (pid, at) in [
            (7, "/a".to_owned()),
            (8, format!("/a/{deep}")),
            (9, "/ab".to_owned()),
            (10, UNTOLD.to_owned()),
        ] {
            let rest = "0 ".repeat(44);
            write(
                &format!("proc/{pid}/stat"),
                &format!("{pid} (x) S 1 {rest}"),
            );
            write(&format!("proc/{pid}/cgroup"), &format!("0::{at}\n"));
        }
        let kernel = Kernel::at(dir.path());
        assert_eq!(tasks(&kernel, "/cg/a"), [7, 8]);
        assert_eq!(suspects(&kernel, "/cg/a"), [7, 8, 10]);
    }

    #[test]
    fn who_hides_behind_a_name_that_is_not_utf_8_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &[u8]| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(
            "proc/self/mountinfo",
            b"30 23 0:26 / /cg rw - cgroup2 cgroup2 rw\n",
        );
        write("proc/self/cgroup", b"0::/\n");
        write("cg/cgroup.controllers", b"cpuset\n");
        let own = dir.path().join("cg/own");
        for name in [&b"b\xff/c"[..], b"b\xfe", b"plain"] {
            std::fs::create_dir_all(own.join(std::ffi::OsStr::from_bytes(name))).unwrap();
        }
        // What the name of the first reads like is another cgroup, of somebody else.
        write("cg/other/b\u{fffd}/cgroup.procs", b"10\n");
        write("cg/own/cgroup.procs", b"6\n");
        write("cg/own/cgroup.threads", b"6\n");
        write("cg/own/plain/cgroup.procs", b"7\n");
        write("cg/own/plain/cgroup.threads", b"7\n");
        for (pid, at) in [
            (6, &b"/own"[..]),
            (7, b"/own/plain"),
            (8, b"/own/b\xff/c"),
            (9, b"/own/b\xfe"),
            (10, "/other/b\u{fffd}".as_bytes()),
            (11, b"/owner/\xff"),
        ] {
            let rest = "0 ".repeat(44);
            let stat = format!("{pid} (x) S 1 {rest}");
            write(&format!("proc/{pid}/stat"), stat.as_bytes());
            write(&format!("proc/{pid}/task/{pid}/stat"), stat.as_bytes());
            let line = [b"0::", at, b"\n"].concat();
            write(&format!("proc/{pid}/cgroup"), &line);
        }
        let kernel = Kernel::at(dir.path());
        let whole = |dir| walk(&kernel, dir).1;
        assert_eq!(["/cg/own", "/cg/own/plain"].map(whole), [false, true]);
        assert_eq!(tasks(&kernel, "/cg/own"), [6, 7, 8, 9]);
        assert_eq!(suspects(&kernel, "/cg/own"), [6, 7, 8, 9]);
        assert_eq!(tasks(&kernel, "/cg/own/plain"), [7]);
        assert_eq!(threads(&kernel, "/cg/own"), [6, 7, 8, 9]);
        let mut pids = Vec::new();
        processes(&kernel, "/cg/own", |pid| pids.push(pid));
        assert_eq!(pids, [6, 7, 8, 9]);
        let placed = threads_with_cgroups(&kernel, "/cg/own");
        assert_eq!(placed[1], ("/cg/own/plain".into(), 7));
        assert_eq!(placed[2], (format!("/cg/own{UNTOLD}").into(), 8));
        assert!(Arc::ptr_eq(&placed[2].0, &placed[3].0), "of one cgroup");
    }

    #[test]
    fn a_folder_that_cannot_be_listed_may_hide_others() {
        let dir = tempfile::tempdir().unwrap();
        let long = ["d".repeat(250).as_str(); 15].join("/");
        let (mut at, path) = (dir.path().join("cg"), format!("/cg/{long}"));
        std::fs::create_dir(&at).unwrap();
        for name in long.split('/').take(12) {
            at.push(name);
            std::fs::create_dir(&at).unwrap();
        }
        let kernel = Kernel::at(dir.path());
        assert!(walk(&kernel, "/cg").1, "short enough");
        assert!(!walk(&kernel, &format!("{path}/{long}")).1, "ENAMETOOLONG");
    }
}
