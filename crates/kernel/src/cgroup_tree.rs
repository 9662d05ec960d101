//! The tasks in a cgroup and in the cgroups below it. A program in a group that is changed in place
//! may have made cgroups of its own.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use crate::cgroup::Cgroups;
use crate::procfs::{self, UNTOLD};
use crate::root::{Files, gone};

/// Bounds on the depth and the number of cgroups, beyond any tree without bad intentions. They make
/// a hostile tree end.
const DEEPEST: usize = 16;
const MOST: usize = 1024;

/// The directory itself first, then those below it, none before its parent.
#[must_use]
pub fn tree(files: &dyn Files, dir: &str) -> Vec<String> {
    walk(files, dir).0
}

/// The same, and whether that is all of it.
fn walk(files: &dyn Files, dir: &str) -> (Vec<String>, bool) {
    let mut found = vec![dir.to_owned()];
    let (mut from, mut depth, mut whole) = (0, 0, true);
    while from < found.len() && depth < DEEPEST {
        let level = from..found.len();
        from = found.len();
        depth += 1;
        for at in level {
            // A cgroup that is gone has nothing below it.
            for name in files.folders(&found[at]).unwrap_or_default() {
                match found.len() < MOST {
                    true => found.push(format!("{}/{name}", found[at])),
                    false => whole = false,
                }
            }
        }
    }
    (found, whole && depth < DEEPEST)
}

/// The tasks of the whole tree, however large that is: threads (v1) or processes (v2), of a tree
/// beyond the bounds processes. Cgroups that are gone have none.
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
    if whole {
        let each = dirs.iter().map(|dir| tasks_in(files, dir));
        return each.flatten().flatten().collect();
    }
    let below = |at: &str, above: &str| Path::new(at).starts_with(above);
    let all = Cgroups::discover(files).unwrap_or_default().hierarchies;
    let Some(hierarchy) = all.into_iter().find(|h| below(dir, &h.mount)) else {
        return Vec::new();
    };
    let inside = |pid: &u32| {
        let at = hierarchy.dir_of(files, *pid).ok().flatten();
        at.is_some_and(|at| below(&at, dir) || untold && at.ends_with(UNTOLD))
    };
    let all = procfs::processes(files).unwrap_or_default().into_iter();
    all.map(|stat| stat.id.pid).filter(inside).collect()
}

/// The threads of the whole tree. Cgroups that are gone have none.
#[must_use]
pub fn threads(files: &dyn Files, dir: &str) -> Vec<u32> {
    let all = tree(files, dir);
    all.iter().flat_map(|dir| threads_in(files, dir)).collect()
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
    for dir in tree(files, dir) {
        match files.read(&format!("{dir}/cgroup.procs")) {
            Ok(text) => listed(&text).for_each(&mut each),
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                let threads = tasks_in(files, &dir).unwrap_or_default().into_iter();
                let of = threads.filter_map(|tid| procfs::process_of(files, tid).ok().flatten());
                of.collect::<BTreeSet<u32>>()
                    .into_iter()
                    .for_each(&mut each);
            }
            Err(_) => {}
        }
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
        assert_eq!(tree(&kernel, "/cg"), ["/cg", "/cg/a", "/cg/c.d", "/cg/a/b"]);
        let mut pids = Vec::new();
        processes(&kernel, "/cg", |pid| pids.push(pid));
        assert_eq!(pids, [1, 2, 3, 5, 4]);
        assert_eq!(tasks(&kernel, "/cg/a"), [2, 3, 4]);
        assert_eq!(tree(&kernel, "/gone"), ["/gone"]);
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
}
