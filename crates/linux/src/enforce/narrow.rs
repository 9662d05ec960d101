//! Narrows the cpusets of all tasks that are in no group, in place.

use quell_kernel::cgroup::{Hierarchy, Version};
use quell_kernel::cgroup_tree::tasks_in;
use quell_kernel::error::Result;
use quell_kernel::root::Files;
use quell_types::cpuset::CpuSet;
use quell_types::ids::REST;

use crate::change::JournaledWriter;
use crate::group_cgroups::SLICE;
use crate::placement;

/// What of a cpuset is narrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The CPUs that its tasks run on.
    Cpus,
    /// The nodes that its tasks have memory from.
    Mems,
}

impl What {
    /// The file of a cpuset.
    fn file(self, dir: &str) -> String {
        match self {
            Self::Cpus => format!("{dir}/cpuset.cpus"),
            Self::Mems => format!("{dir}/cpuset.mems"),
        }
    }
}

/// Narrows every cgroup directly below the root, and in Quell's slice, that is not kept.
pub fn others(
    writer: &mut JournaledWriter<'_>,
    hierarchy: &Hierarchy,
    what: What,
    allowed: &CpuSet,
    kept: &[String],
    notes: &mut Vec<String>,
) -> Result<()> {
    for dir in top(writer.files, hierarchy)? {
        let inside = |k: &String| k.starts_with(&format!("{dir}/"));
        if kept.iter().any(inside) && !tasks_in(writer.files, &dir).unwrap_or_default().is_empty() {
            notes.push(format!(
                "tasks directly in {dir} stay where they are: a group of the policy lives below it"
            ));
        }
        if what == What::Cpus {
            placement::keep(writer, hierarchy, &dir)?;
        }
        match hierarchy.version {
            Version::V1 => {
                let tree = narrowing(writer.files, &dir, what, allowed, kept)?;
                apply(writer, &tree)?;
            }
            Version::V2 => narrow_v2(writer, &dir, what, allowed, kept)?,
        }
    }
    Ok(())
}

/// Every cgroup directly below the root, and in Quell's slice, except that of the tasks of no
/// group.
pub fn top(files: &dyn Files, hierarchy: &Hierarchy) -> Result<Vec<String>> {
    let slice = format!("{}/{SLICE}", hierarchy.mount);
    let rest = format!("{slice}/{REST}");
    let mut found = children(files, &hierarchy.mount)?;
    found.retain(|d| *d != slice);
    if files.exists(&slice) {
        found.extend(children(files, &slice)?);
    }
    found.retain(|d| *d != rest);
    Ok(found)
}

/// On v2 children inherit. Narrowing the highest cgroup that has no kept one below it is enough.
fn narrow_v2(
    writer: &mut JournaledWriter<'_>,
    dir: &str,
    what: What,
    allowed: &CpuSet,
    kept: &[String],
) -> Result<()> {
    if kept.iter().any(|k| k == dir) {
        return Ok(());
    }
    if kept.iter().any(|k| k.starts_with(&format!("{dir}/"))) {
        for child in children(writer.files, dir)? {
            narrow_v2(writer, &child, what, allowed, kept)?;
        }
        return Ok(());
    }
    let path = what.file(dir);
    let Some(own) = writer.files.cpus(&path)? else {
        return Ok(());
    };
    let common = own.intersection(allowed);
    let new = if common.is_empty() { allowed } else { &common };
    put(writer, what, &path, new)
}

/// Sets a list. Memory is migrated meanwhile, which may take long.
fn put(writer: &mut JournaledWriter<'_>, what: What, path: &str, list: &CpuSet) -> Result<()> {
    let text = list.to_string();
    match what {
        What::Cpus => writer.set(path, &text)?,
        What::Mems => writer.set_slowly(path, &text)?,
    };
    Ok(())
}

fn children(files: &dyn Files, dir: &str) -> Result<Vec<String>> {
    let names = files.names(dir)?;
    Ok(names
        .into_iter()
        .map(|name| format!("{dir}/{name}"))
        .filter(|child| files.exists(&format!("{child}/cgroup.procs")))
        .collect())
}

/// A cpuset to be narrowed, in a list with parents before children.
#[derive(Debug, PartialEq, Eq)]
pub struct Narrow {
    what: What,
    path: String,
    now: CpuSet,
    target: CpuSet,
}

/// The changes that narrow a v1 tree to what is allowed. A child has to stay within its parent. So
/// a cpuset that has nothing of what is allowed gets all that its parent keeps. A cpuset with a
/// kept one below it is not narrowed itself.
pub fn narrowing(
    files: &dyn Files,
    dir: &str,
    what: What,
    allowed: &CpuSet,
    kept: &[String],
) -> Result<Vec<Narrow>> {
    let mut tree = Vec::new();
    let mut open = vec![(dir.to_owned(), allowed.clone())];
    while let Some((dir, allowed)) = open.pop() {
        if kept.contains(&dir) {
            continue;
        }
        let path = what.file(&dir);
        let now = files.cpus(&path)?.unwrap_or_default();
        if now.is_empty() {
            // It was never given any, so neither it nor its children have tasks.
            continue;
        }
        let below = children(files, &dir)?;
        if kept.iter().any(|k| k.starts_with(&format!("{dir}/"))) {
            open.extend(below.into_iter().map(|child| (child, allowed.clone())));
            continue;
        }
        let common = now.intersection(&allowed);
        let target = if common.is_empty() { allowed } else { common };
        open.extend(below.into_iter().map(|child| (child, target.clone())));
        if now != target {
            tree.push(Narrow {
                what,
                path,
                now,
                target,
            });
        }
    }
    Ok(tree)
}

/// Widens from the top where a target is not within what a cpuset has, then narrows from the
/// bottom. So no intermediate value breaks the rule that a child stays within its parent. That
/// holds in reverse, too, when the changes are reverted.
pub fn apply(writer: &mut JournaledWriter<'_>, tree: &[Narrow]) -> Result<()> {
    for node in tree.iter().filter(|n| !n.target.is_subset(&n.now)) {
        put(writer, node.what, &node.path, &node.now.union(&node.target))?;
    }
    for node in tree.iter().rev() {
        put(writer, node.what, &node.path, &node.target)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use quell_kernel::root::Kernel;

    use super::*;

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    fn tree(cpusets: &[(&str, &str)]) -> (tempfile::TempDir, Kernel) {
        let dir = tempfile::tempdir().unwrap();
        for (path, cpus) in cpusets {
            let path = dir.path().join(path);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(path.join("cpuset.cpus"), format!("{cpus}\n")).unwrap();
            std::fs::write(path.join("cgroup.procs"), "").unwrap();
        }
        let kernel = Kernel::at(dir.path());
        (dir, kernel)
    }

    fn plan(kernel: &Kernel, cpus: &str, kept: &[&str]) -> Vec<(String, String)> {
        let kept: Vec<String> = kept.iter().map(|k| (*k).to_owned()).collect();
        let plan = narrowing(kernel, "/cs/a", What::Cpus, &set(cpus), &kept).unwrap();
        plan.into_iter()
            .map(|n| (n.path, n.target.to_string()))
            .collect()
    }

    #[test]
    fn a_tree_is_narrowed_within_its_parents() {
        let (_dir, kernel) = tree(&[
            ("cs/a", "0-3"),
            ("cs/a/b", "0-1"),
            ("cs/a/c", "2-3"),
            ("cs/a/d", ""),
        ]);
        let expected = [("/cs/a/cpuset.cpus", "2-3"), ("/cs/a/b/cpuset.cpus", "2-3")];
        assert_eq!(
            plan(&kernel, "2-3", &[]),
            expected.map(|(p, c)| (p.to_owned(), c.to_owned()))
        );
    }

    #[test]
    fn a_kept_cpuset_and_those_above_it_are_left_alone() {
        let (_dir, kernel) = tree(&[("cs/a", "0-3"), ("cs/a/b", "0-1"), ("cs/a/c", "0-3")]);
        let expected = [("/cs/a/c/cpuset.cpus".to_owned(), "2-3".to_owned())];
        assert_eq!(plan(&kernel, "2-3", &["/cs/a/b"]), expected);
        assert!(plan(&kernel, "2-3", &["/cs/a"]).is_empty());
    }
}
