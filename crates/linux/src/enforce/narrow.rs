//! Narrows the cpusets of all tasks that are in no group, in place.

use quell_kernel::cgroup::{Hierarchy, Version};
use quell_kernel::cgroup_tree::tasks_in;
use quell_kernel::error::Result;
use quell_kernel::root::Files;
use quell_types::cpuset::CpuSet;
use quell_types::ids::REST;

use crate::change::JournaledWriter;
use crate::group_cgroups::{LOW_SLICE, SLICE};

/// Narrows every cgroup directly below the root, and in Quell's slices, that is not kept.
pub fn others(
    writer: &mut JournaledWriter<'_>,
    hierarchy: &Hierarchy,
    cpus: &CpuSet,
    kept: &[String],
    notes: &mut Vec<String>,
) -> Result<()> {
    let slices = [SLICE, LOW_SLICE].map(|slice| format!("{}/{slice}", hierarchy.mount));
    let rest = format!("{}/{REST}", slices[0]);
    let mut others = children(writer.files, &hierarchy.mount)?;
    others.retain(|d| !slices.contains(d));
    for slice in slices.iter().filter(|s| writer.files.exists(s)) {
        others.extend(children(writer.files, slice)?);
    }
    others.retain(|d| *d != rest);
    for dir in others {
        let inside = |k: &String| k.starts_with(&format!("{dir}/"));
        if kept.iter().any(inside) && !tasks_in(writer.files, &dir).unwrap_or_default().is_empty() {
            notes.push(format!(
                "tasks directly in {dir} stay where they are: a group of the policy lives below it"
            ));
        }
        match hierarchy.version {
            Version::V1 => {
                let tree = narrowing(writer.files, &dir, cpus, kept)?;
                apply(writer, &tree)?;
            }
            Version::V2 => narrow_v2(writer, &dir, cpus, kept)?,
        }
    }
    Ok(())
}

/// On v2 children inherit. Narrowing the highest cgroup that has no kept one below it is enough.
fn narrow_v2(
    writer: &mut JournaledWriter<'_>,
    dir: &str,
    cpus: &CpuSet,
    kept: &[String],
) -> Result<()> {
    if kept.iter().any(|k| k == dir) {
        return Ok(());
    }
    if kept.iter().any(|k| k.starts_with(&format!("{dir}/"))) {
        for child in children(writer.files, dir)? {
            narrow_v2(writer, &child, cpus, kept)?;
        }
        return Ok(());
    }
    let path = format!("{dir}/cpuset.cpus");
    let Some(own) = writer.files.cpus(&path)? else {
        return Ok(());
    };
    let allowed = own.intersection(cpus);
    let new = if allowed.is_empty() { cpus } else { &allowed };
    writer.set(&path, &new.to_string())?;
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
    path: String,
    now: CpuSet,
    target: CpuSet,
}

/// The changes that narrow a v1 tree to `cpus`. A child has to stay within its parent. So a cpuset
/// that has none of the allowed CPUs gets all that its parent keeps. A cpuset with a kept one below
/// it is not narrowed itself.
pub fn narrowing(
    files: &dyn Files,
    dir: &str,
    cpus: &CpuSet,
    kept: &[String],
) -> Result<Vec<Narrow>> {
    let mut tree = Vec::new();
    let mut open = vec![(dir.to_owned(), cpus.clone())];
    while let Some((dir, allowed)) = open.pop() {
        if kept.contains(&dir) {
            continue;
        }
        let path = format!("{dir}/cpuset.cpus");
        let now = files.cpus(&path)?.unwrap_or_default();
        if now.is_empty() {
            // It was never given CPUs, so neither it nor its children have tasks.
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
            tree.push(Narrow { path, now, target });
        }
    }
    Ok(tree)
}

/// Widens from the top where a target is not within what a cpuset has, then narrows from the
/// bottom. So no intermediate value breaks the rule that a child stays within its parent. That
/// holds in reverse, too, when the changes are reverted.
pub fn apply(writer: &mut JournaledWriter<'_>, tree: &[Narrow]) -> Result<()> {
    for node in tree.iter().filter(|n| !n.target.is_subset(&n.now)) {
        writer.set(&node.path, &node.now.union(&node.target).to_string())?;
    }
    for node in tree.iter().rev() {
        writer.set(&node.path, &node.target.to_string())?;
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
        let plan = narrowing(kernel, "/cs/a", &set(cpus), &kept).unwrap();
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
