//! CPU affinity, thread by thread: the core partition of machines without a cpuset hierarchy.
//! `sched_setaffinity(2)`.
//!
//! It is weaker than a cpuset: a task may change its own affinity at any time. Children inherit it,
//! so newborn tasks are covered once their parents are.

use std::collections::BTreeSet;

use quell_kernel::cgroup_tree::tasks;
use quell_kernel::error::{Error, Result};
use quell_kernel::procfs;
use quell_kernel::root::{Files, gone};
use quell_types::cpuset::CpuSet;
use quell_types::journal::Undo;
use quell_types::task::TaskId;

use crate::change::JournaledWriter;
use crate::fault;
use crate::group_cgroups::GroupCgroups;

/// The most passes over all threads, to find those born meanwhile.
const ROUNDS: u32 = 20;

/// What is not confined with the rest.
#[derive(Clone, Copy, Debug)]
pub struct Keep<'a> {
    /// Groups with cgroups of their own. Tasks there are not changed.
    pub homes: &'a [&'a GroupCgroups],
    /// Processes that are not changed: the main process, whose brakes run on the groups' CPUs.
    pub processes: &'a BTreeSet<u32>,
}

/// Lets every thread of `processes` run only on `cpus`. Returns notes for a person.
///
/// # Errors
/// [`Error::File`].
pub fn confine(
    writer: &mut JournaledWriter<'_>,
    processes: &[u32],
    cpus: &CpuSet,
) -> Result<Vec<String>> {
    let mut done = BTreeSet::new();
    let mut refused = BTreeSet::new();
    for _ in 0..ROUNDS {
        let mut fresh = Vec::new();
        for pid in processes {
            for tid in procfs::threads(writer.files, *pid)? {
                writer.journal.beat();
                if let Some(stat) = procfs::thread_stat(writer.files, *pid, tid)?
                    && done.insert(stat.id)
                {
                    fresh.push((stat.id, stat.comm));
                }
            }
        }
        if fresh.is_empty() {
            break;
        }
        pin_all(writer, &fresh, cpus, &mut refused)?;
    }
    Ok(note(&refused))
}

/// Lets every task outside of the kept groups run only on `cpus`. A task that could run only on
/// other CPUs is moved to all of `cpus`.
///
/// # Errors
/// [`Error::File`].
pub fn confine_rest(
    writer: &mut JournaledWriter<'_>,
    keep: Keep<'_>,
    cpus: &CpuSet,
) -> Result<Vec<String>> {
    let mut done = BTreeSet::new();
    let mut refused = BTreeSet::new();
    for _ in 0..ROUNDS {
        let kept = kept(writer.files, keep);
        let mut fresh = Vec::new();
        for process in procfs::processes(writer.files)? {
            if process.bound()
                || process.dead()
                || process.id.pid == 2
                || kept.contains(&process.id.pid)
            {
                continue;
            }
            for tid in procfs::threads(writer.files, process.id.pid)? {
                writer.journal.beat();
                let Some(stat) = procfs::thread_stat(writer.files, process.id.pid, tid)? else {
                    continue;
                };
                if kept.contains(&tid) || done.contains(&stat.id) {
                    continue;
                }
                done.insert(stat.id);
                fresh.push((stat.id, stat.comm));
            }
        }
        if fresh.is_empty() {
            break;
        }
        pin_all(writer, &fresh, cpus, &mut refused)?;
    }
    let mut notes = note(&refused);
    notes.push(
        "no cpuset hierarchy is mounted: tasks are pinned one by one, and can undo that themselves"
            .to_owned(),
    );
    Ok(notes)
}

fn kept(files: &dyn Files, keep: Keep<'_>) -> BTreeSet<u32> {
    let mut kept = keep.processes.clone();
    for place in keep.homes.iter().flat_map(|h| &h.places) {
        kept.extend(tasks(files, &place.dir));
    }
    kept
}

/// Pins threads with one journal write for all, then one call for each.
fn pin_all(
    writer: &mut JournaledWriter<'_>,
    tasks: &[(TaskId, String)],
    cpus: &CpuSet,
    refused: &mut BTreeSet<String>,
) -> Result<()> {
    let mut entries = Vec::new();
    let mut calls = Vec::new();
    for (task, comm) in tasks {
        let Ok(old) = writer.files.affinity(task.pid) else {
            continue;
        };
        let common = old.intersection(cpus);
        let new = if common.is_empty() {
            cpus.clone()
        } else {
            common
        };
        if old != new {
            entries.push(Undo::Affinity {
                task: *task,
                old,
                new: new.clone(),
            });
            calls.push((task.pid, comm, new));
        }
    }
    if entries.is_empty() {
        return Ok(());
    }
    writer.journal.record_all(&entries)?;
    for (tid, comm, new) in calls {
        match writer.files.set_affinity(tid, &new) {
            Ok(()) => fault::boundary(),
            Err(e) if gone(&e) => {}
            // The kernel has bound it to a CPU, or its cpuset confines it to other CPUs.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                refused.insert(comm.clone());
            }
            Err(e) => {
                return Err(Error::file(
                    "write",
                    &format!("/proc/{tid}/affinity"),
                    Some(&new.to_string()),
                    e,
                ));
            }
        }
    }
    Ok(())
}

fn note(refused: &BTreeSet<String>) -> Vec<String> {
    if refused.is_empty() {
        return Vec::new();
    }
    let names: Vec<&str> = refused.iter().map(String::as_str).collect();
    vec![format!("could not be pinned: {}", names.join(", "))]
}
