//! The CPUs that threads had before Quell moved them, and how they get them back.

use quell_kernel::root::{Files, gone};
use quell_kernel::{cgroup_tree, procfs};
use quell_types::cpuset::CpuSet;
use quell_types::journal::OwnCpus;
use quell_types::task::TaskId;

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

/// Gives a thread its `old` CPUs back, where it still has the `new` ones.
///
/// # Errors
/// What failed, in a sentence.
pub fn put_thread_back(
    files: &dyn Files,
    task: TaskId,
    old: &CpuSet,
    new: &CpuSet,
) -> Result<Back, String> {
    if !procfs::alive(files, task) {
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
) -> Result<bool, String> {
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
) -> Result<bool, String> {
    let mut changed = false;
    for tid in threads {
        let known = own.iter().find(|own| own.task.pid == *tid);
        let known = known.filter(|own| procfs::alive(files, own.task));
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
