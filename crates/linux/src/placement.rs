//! The CPUs that threads had before Quell moved them, and how they get them back.

use std::collections::BTreeMap;

use quell_kernel::cgroup::{Hierarchy, effective_cpus};
use quell_kernel::error::Result;
use quell_kernel::root::{Files, gone};
use quell_kernel::{cgroup_tree, procfs, topology};
use quell_types::cpuset::CpuSet;
use quell_types::journal::{OwnCpus, Undo};
use quell_types::task::TaskId;

use crate::change::JournaledWriter;

/// The most passes over the threads of a cgroup. A thread that is born while its parent still has
/// the CPU of its turn is found by the next pass.
const PASSES: u32 = 20;

/// What came of putting a thread back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Back {
    /// It has its CPUs back.
    Done,
    /// It had them already, or has ended.
    Nothing,
    /// It was left, for this reason.
    Left(String),
}

/// The CPUs that tasks of cgroups usually have, each read once.
#[derive(Default)]
pub(crate) struct Usual(BTreeMap<String, Option<CpuSet>>);

impl Usual {
    fn of(&mut self, files: &dyn Files, hierarchy: &Hierarchy, dir: &str) -> Option<&CpuSet> {
        let read = || usual(files, hierarchy, dir);
        self.0.entry(dir.to_owned()).or_insert_with(read).as_ref()
    }
}

/// The CPUs that tasks of a cgroup usually have. `None` where the hierarchy has no cpusets.
fn usual(files: &dyn Files, hierarchy: &Hierarchy, dir: &str) -> Option<CpuSet> {
    let cpusets = hierarchy.controllers.iter().any(|c| c == "cpuset");
    cpusets
        .then(|| effective_cpus(files, hierarchy, dir).ok().flatten())
        .flatten()
}

/// The entry that restores a thread's affinity, which a v1 cpuset overwrites when the thread enters
/// it. Kernels since 6.2 remember what the thread itself asked for; older ones forget it. It is
/// recorded for both. It is restored if, after the move back, the thread may run wherever its
/// former cgroup may.
pub(crate) fn thread(
    files: &dyn Files,
    hierarchy: &Hierarchy,
    from: &str,
    task: TaskId,
    all_usual: &mut Usual,
) -> Vec<Undo> {
    let usual = all_usual.of(files, hierarchy, from);
    let entry = usual.and_then(|usual| custom_affinity(files, usual, task));
    entry.into_iter().collect()
}

/// The same, where the CPUs of the thread's former cgroup are known.
pub(crate) fn custom_affinity(files: &dyn Files, usual: &CpuSet, task: TaskId) -> Option<Undo> {
    let own = files.affinity(task.pid).ok()?;
    (own != *usual).then_some(Undo::Affinity {
        task,
        old: own,
        new: usual.clone(),
    })
}

/// The entries that restore what the threads of a v2 process have of their own, once the process is
/// back in `from`: affinities, and cgroups below a "domain threaded" one. The process moves whole.
///
/// # Errors
/// [`quell_kernel::error::Error::File`] and
/// [`quell_kernel::error::Error::Malformed`].
pub(crate) fn process(
    files: &dyn Files,
    hierarchy: &Hierarchy,
    from: &str,
    pid: u32,
    all_usual: &mut Usual,
) -> Result<Vec<Undo>> {
    let kind = files.optional(&format!("{from}/cgroup.type"))?;
    let threaded = kind.is_some_and(|kind| kind.trim().ends_with("threaded"));
    let (mut affinities, mut moves) = (Vec::new(), Vec::new());
    for tid in procfs::threads(files, pid)? {
        let dir = match threaded {
            true => hierarchy.dir_of(files, tid)?,
            false => None,
        };
        let dir = dir.unwrap_or_else(|| from.to_owned());
        let custom = all_usual
            .of(files, hierarchy, &dir)
            .filter(|usual| files.affinity(tid).is_ok_and(|own| own != **usual));
        if custom.is_none() && dir == from {
            continue;
        }
        let Some(stat) = procfs::thread_stat(files, pid, tid)? else {
            continue;
        };
        affinities.extend(custom.and_then(|usual| custom_affinity(files, usual, stat.id)));
        if dir != from {
            moves.push(Undo::Move {
                task: stat.id,
                from: dir,
                to: from.to_owned(),
            });
        }
    }
    // The last entry is reverted first: a cpuset that a thread enters overwrites its affinity.
    affinities.extend(moves);
    Ok(affinities)
}

/// Records the affinities of all threads in a cgroup and below it, where a change of its cpuset may
/// widen them for good.
///
/// # Errors
/// [`quell_kernel::error::Error::File`] and
/// [`quell_kernel::error::Error::Malformed`].
pub(crate) fn keep(
    writer: &mut JournaledWriter<'_>,
    hierarchy: &Hierarchy,
    dir: &str,
) -> Result<()> {
    if !topology::widens_affinities(writer.files)? {
        return Ok(());
    }
    let mut entries = Vec::new();
    let mut all_usual = Usual::default();
    for (dir, tid) in cgroup_tree::threads_with_cgroups(writer.files, dir) {
        let Some(usual) = all_usual.of(writer.files, hierarchy, &dir) else {
            continue;
        };
        writer.journal.beat();
        if writer.files.affinity(tid).map_or(true, |own| own == *usual) {
            continue;
        }
        // What the kernel binds stays where it is.
        let stat = procfs::thread_stat(writer.files, tid, tid)?.filter(|s| !s.bound());
        entries.extend(stat.and_then(|s| custom_affinity(writer.files, usual, s.id)));
    }
    writer.journal.record_all(&entries)
}

/// Whether this very thread is alive.
fn alive(files: &dyn Files, task: TaskId) -> bool {
    let stat = procfs::thread_stat(files, task.pid, task.pid);
    stat.ok().flatten().is_some_and(|s| s.is_alive(task))
}

/// Gives a thread its `old` CPUs back, where it still has the `new` ones.
///
/// # Errors
/// What failed, in a sentence.
pub fn put_thread_back(
    files: &dyn Files,
    task: TaskId,
    old: &CpuSet,
    new: &CpuSet,
) -> std::result::Result<Back, String> {
    if !alive(files, task) {
        return Ok(Back::Nothing);
    }
    let now = match files.affinity(task.pid) {
        Ok(now) => now,
        Err(e) if gone(&e) => return Ok(Back::Nothing),
        Err(e) => {
            return Err(format!(
                "the affinity of task {} could not be read: {e}",
                task.pid
            ));
        }
    };
    if now == *old {
        return Ok(Back::Nothing);
    }
    if now != *new {
        return Ok(Back::Left(format!(
            "task {} runs on CPUs {now}, not on the {new} that were set: somebody has changed it since",
            task.pid
        )));
    }
    match files.set_affinity(task.pid, old) {
        Ok(()) => Ok(Back::Done),
        Err(e) if gone(&e) => Ok(Back::Nothing),
        Err(e) => Err(format!(
            "the affinity of task {} could not be set back to {old}: {e}",
            task.pid
        )),
    }
}

/// Gives the threads of a cgroup and of those below it their CPUs back: those of `own`, or `cpus`.
/// Returns whether any thread had others.
///
/// # Errors
/// What failed, in a sentence.
pub fn put_back(
    files: &dyn Files,
    dir: &str,
    cpus: &CpuSet,
    own: &[OwnCpus],
) -> std::result::Result<bool, String> {
    let mut changed = false;
    for _ in 0..PASSES {
        let threads = cgroup_tree::threads(files, dir);
        if !put_threads_back(files, &threads, cpus, own)? {
            break;
        }
        changed = true;
    }
    Ok(changed)
}

/// The same for these threads, once.
///
/// # Errors
/// What failed, in a sentence.
pub fn put_threads_back(
    files: &dyn Files,
    threads: &[u32],
    cpus: &CpuSet,
    own: &[OwnCpus],
) -> std::result::Result<bool, String> {
    let mut changed = false;
    for tid in threads {
        let known = own.iter().find(|own| own.task.pid == *tid);
        let known = known.filter(|own| alive(files, own.task));
        let wanted = known.map_or(cpus, |own| &own.cpus);
        // The kernel shows as much of a mask as the cpuset and the CPUs that are online leave.
        let before = files.affinity(*tid);
        match files.set_affinity(*tid, wanted) {
            Ok(()) => {}
            Err(e) if gone(&e) => continue,
            // Its cpuset has none of these CPUs any more.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => continue,
            Err(e) => {
                return Err(format!(
                    "the affinity of task {tid} could not be set back to {wanted}: {e}"
                ));
            }
        }
        changed |= matches!((before, files.affinity(*tid)), (Ok(a), Ok(b)) if a != b);
    }
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use quell_kernel::affinity;
    use quell_kernel::root::Kernel;

    use super::*;

    /// Others that take CPUs away would be in the way.
    mod live {
        use super::*;

        #[test]
        fn threads_get_back_what_they_had_and_others_the_rest() {
            let files = Kernel::new().unwrap();
            let all = files.affinity(0).unwrap();
            let Some(first) = all.first().filter(|_| all.len() > 1) else {
                quell_testing::skip("needs two CPUs");
                return;
            };
            let mut programs = [(); 2].map(|()| Command::new("sleep").arg("60").spawn().unwrap());
            let pids = programs.each_ref().map(std::process::Child::id);
            for pid in pids {
                affinity::set(pid, &CpuSet::one(first)).unwrap();
            }
            let task = procfs::stat(&files, pids[1]).unwrap().unwrap().id;
            let own = [OwnCpus {
                task,
                cpus: all.difference(&CpuSet::one(first)),
            }];
            let changed = put_threads_back(&files, &pids, &all, &own);
            let now = pids.map(|pid| files.affinity(pid).unwrap());
            let again = put_threads_back(&files, &pids, &all, &own);
            for program in &mut programs {
                program.kill().unwrap();
                program.wait().unwrap();
            }
            assert_eq!((changed, again), (Ok(true), Ok(false)));
            assert_eq!(now, [all, own[0].cpus.clone()]);
            assert_eq!(put_threads_back(&files, &pids, &now[0], &own), Ok(false));
        }
    }
}
