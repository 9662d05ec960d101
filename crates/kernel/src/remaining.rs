//! Tasks left on a CPU that was meant for one group: what a core partition cannot move, reported to
//! a person.

use std::collections::{BTreeMap, BTreeSet};

use quell_types::cpuset::CpuSet;

use crate::error::Result;
use crate::procfs;
use crate::root::Files;

/// Tasks that may still run on some CPUs, counted by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remaining {
    /// Kernel threads that the kernel has bound there, by name without the CPU's number.
    pub bound: BTreeMap<String, u32>,
    /// All other kernel threads, by name without the CPU's number.
    pub kernel: BTreeMap<String, u32>,
    /// User tasks, by command name.
    pub user: BTreeMap<String, u32>,
}

impl Remaining {
    /// The summary for a person, one sentence per kind. Empty when no task is left.
    #[must_use]
    pub fn sentences(&self, cpus: &CpuSet) -> Vec<String> {
        [
            (&self.bound, "kernel thread", "bound by the kernel"),
            (&self.kernel, "kernel thread", "not to be moved"),
            (&self.user, "task", "of other groups"),
        ]
        .into_iter()
        .filter(|(names, ..)| !names.is_empty())
        .map(|(names, what, which)| {
            let total: u32 = names.values().sum();
            let s = if total == 1 { "" } else { "s" };
            format!("CPU {cpus} keeps {total} {what}{s} {which}: {}", few(names))
        })
        .collect()
    }
}

/// Names as `a, b ×3, c and 5 more`.
fn few(names: &BTreeMap<String, u32>) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = names
        .iter()
        .take(SHOWN)
        .map(|(name, n)| {
            if *n == 1 {
                name.clone()
            } else {
                format!("{name} ×{n}")
            }
        })
        .collect();
    let rest: u32 = names.values().skip(SHOWN).sum();
    let shown = shown.join(", ");
    if rest == 0 {
        shown
    } else {
        format!("{shown} and {rest} more")
    }
}

/// Tasks that may still run on `cpus`. Left out are the threads of `except` (processes of the
/// groups that own the CPUs) and this process.
///
/// # Errors
/// [`crate::error::Error::File`], [`crate::error::Error::Malformed`].
pub fn remaining_on(files: &dyn Files, cpus: &CpuSet, except: &BTreeSet<u32>) -> Result<Remaining> {
    let mut found = Remaining::default();
    let ourselves = std::process::id();
    for process in procfs::processes(files)? {
        if process.dead() || process.id.pid == ourselves || except.contains(&process.id.pid) {
            continue;
        }
        let tids = if process.threads > 1 {
            procfs::threads(files, process.id.pid)?
        } else {
            vec![process.id.pid]
        };
        for tid in tids {
            // A thread that ended, or whose affinity cannot be read, is left out.
            let Ok(own) = files.affinity(tid) else {
                continue;
            };
            if own.intersection(cpus).is_empty() {
                continue;
            }
            let kind = match (process.kernel_thread(), process.bound()) {
                (true, true) => &mut found.bound,
                (true, false) => &mut found.kernel,
                (false, _) => &mut found.user,
            };
            let name = if process.kernel_thread() {
                generic(&process.comm)
            } else {
                process.comm.clone()
            };
            *kind.entry(name).or_default() += 1;
        }
    }
    Ok(found)
}

/// The generic name: `kworker/0:1H-kblockd` → `kworker`, `migration/0` → `migration`.
fn generic(comm: &str) -> String {
    comm.split(['/', ':']).next().unwrap_or(comm).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_is_short() {
        let mut left = Remaining::default();
        left.bound.insert("kworker".into(), 3);
        left.bound.insert("migration".into(), 1);
        let text = left.sentences(&"1".parse().unwrap());
        assert_eq!(
            text,
            ["CPU 1 keeps 4 kernel threads bound by the kernel: kworker ×3, migration"]
        );
    }
}
