//! What the kernel accounts to the threads of a group, without their help. This is time run and
//! time waited for a CPU (`/proc/TID/schedstat`, Documentation/scheduler/sched-stats.rst), and page
//! faults (`/proc/TID/stat`, proc_pid_stat(5)).
//!
//! The kernel keeps these per thread and forgets them with it. A ledger samples a group's threads
//! from time to time and sums what was added since its last sample. Threads that lived between two
//! samples are missing, and so is the end of every thread.

use std::collections::{BTreeMap, BTreeSet};

use quell_record::events::Spent;
use quell_types::task::TaskId;

use crate::cgroup_tree::tasks_in;
use crate::error::{Error, Result};
use crate::procfs;
use crate::root::Files;

/// The most threads of a group that are sampled: each takes two files.
const MOST: usize = 1_000;

/// The threads of one group, as of the last sample.
#[derive(Debug)]
pub struct Ledger {
    known: BTreeMap<TaskId, Spent>,
    /// Clock ticks since boot. Threads born since then are counted from their birth, older ones
    /// from their first sample.
    since: u64,
}

impl Ledger {
    /// A ledger from `since` on, in clock ticks since boot.
    #[must_use]
    pub const fn new(since: u64) -> Self {
        Self {
            known: BTreeMap::new(),
            since,
        }
    }

    /// What the threads in these cgroups have spent since the last sample. `None` where the kernel
    /// does not count how long threads wait (no CONFIG_SCHED_INFO), and for more than a thousand
    /// threads.
    ///
    /// # Errors
    /// Files that cannot be read or make no sense.
    pub fn sample(&mut self, files: &dyn Files, dirs: &[String]) -> Result<Option<Spent>> {
        let mut threads = BTreeSet::new();
        for dir in dirs {
            for task in tasks_in(files, dir).map_err(|e| Error::file("read", dir, None, e))? {
                if !threads.contains(&task) {
                    threads.extend(procfs::threads(files, task)?);
                }
            }
        }
        if threads.len() > MOST {
            return Ok(None);
        }
        let mut sum = Spent::default();
        let mut now = BTreeMap::new();
        for thread in threads {
            // The file of a process adds up all of its threads.
            let Some(stat) = procfs::thread_stat(files, thread, thread)? else {
                continue;
            };
            let Some((ran_ns, waited_ns)) = procfs::schedstat(files, thread)? else {
                continue;
            };
            let spent = Spent {
                ran_ns,
                waited_ns,
                minor_faults: stat.minor_faults,
                major_faults: stat.major_faults,
            };
            let before = match self.known.get(&stat.id) {
                Some(before) => *before,
                None if stat.id.start >= self.since => Spent::default(),
                None => spent,
            };
            sum = sum.plus(spent.less(before));
            now.insert(stat.id, spent);
        }
        self.known = now;
        Ok(Some(sum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Kernel;

    /// A cgroup directory with one process in it.
    fn cgroup(pid: u32) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("cgroup.procs"), format!("{pid}\n")).unwrap();
        dir
    }

    #[test]
    fn a_working_program_is_seen_to_run_and_to_fault() {
        let files = Kernel::new().unwrap();
        let dir = cgroup(std::process::id());
        let dirs = [dir.path().to_str().unwrap().to_owned()];
        let faults = || {
            procfs::stat(&files, std::process::id())
                .unwrap()
                .unwrap()
                .minor_faults
        };
        let before = faults();
        // This process was born before, so counting begins with the first sample.
        let mut ledger = Ledger::new(u64::MAX);
        let Some(first) = ledger.sample(&files, &dirs).unwrap() else {
            quell_testing::skip("this kernel does not tell how long threads wait");
            return;
        };
        assert_eq!(first, Spent::default());
        let begun = std::time::Instant::now();
        let mut touched = Vec::new();
        while begun.elapsed().as_millis() < 30 {
            touched.push(vec![1u8; 1 << 20]);
            if touched.len() > 8 {
                touched.clear();
            }
        }
        let worked = ledger.sample(&files, &dirs).unwrap().unwrap();
        assert!(worked.ran_ns > 1_000_000, "{worked:?}");
        let all = faults() - before;
        assert!(
            (1..=all).contains(&worked.minor_faults),
            "{worked:?} of {all}"
        );
        // Born since: its whole life counts, which is more than the last part of it.
        let whole = Ledger::new(0).sample(&files, &dirs).unwrap().unwrap();
        assert!(whole.ran_ns > worked.ran_ns && whole.minor_faults > worked.minor_faults);
    }

    #[test]
    fn an_empty_group_and_one_that_is_gone_have_spent_nothing() {
        let files = Kernel::new().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| [dir.path().join(name).to_str().unwrap().to_owned()];
        let mut ledger = Ledger::new(0);
        let looked = |ledger: &mut Ledger, dirs: &[String]| ledger.sample(&files, dirs).unwrap();
        assert_eq!(looked(&mut ledger, &at("gone")), Some(Spent::default()));
        assert_eq!(looked(&mut ledger, &[]), Some(Spent::default()));
    }
}
