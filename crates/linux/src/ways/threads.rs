//! The threads that a sample includes: those in classes other than the root's, and all others of
//! their processes; those of watched programs; and those that run on a CPU which has a class.
//!
//! Threads in the root's class are found by their CPU in a search of `/proc`. A search costs time
//! with every thread of the machine. So it is made at most once a second, and no more often than
//! [`SPARING`] times its own length allows.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use quell_record::ways::{ROOT, Snapshot, Thread};
use quell_types::cpuset::CpuSet;

use quell_kernel::error::Result;
use quell_kernel::procfs::{self, Stat};
use quell_kernel::resctrl::groups::membership;
use quell_kernel::root::Files;

/// The usual time between two searches.
const USUAL: Duration = Duration::from_secs(1);
/// The time between two searches is at least this multiple of the length of the last one.
const SPARING: u32 = 100;

/// Up to so many threads, their children are looked for in every sample, else once a second.
const FEW: usize = 64;

/// Which threads are read.
#[derive(Debug, Default)]
pub struct Threads {
    /// Processes whose threads are read whatever their class.
    watched: BTreeSet<u32>,
    /// Processes of threads that have a class, by thread. Read anew with [`Self::renewed`].
    processes: BTreeMap<u32, u32>,
    /// Threads that the last sample found in the root's class. One that is in no class's list now
    /// is there still.
    in_root: BTreeSet<u32>,
    /// When children and processes were read last.
    renewed: Option<Instant>,
    /// The CPUs that have a class of their own.
    cpus: CpuSet,
    /// When the last search began, and how long it took.
    searched: Option<(Instant, Duration)>,
    /// Nanoseconds that threads on these CPUs had run at the last search, by thread.
    ran: BTreeMap<u32, u64>,
    /// Threads on these CPUs that ran between the last two searches, with their processes.
    active: BTreeMap<u32, u32>,
}

impl Threads {
    /// Includes the threads of a process, and of its children.
    pub fn watch(&mut self, pid: u32) {
        self.watched.insert(pid);
    }

    /// Adds the threads to a sample that has its classes. `classes`: those of threads, where they
    /// have one of their own.
    pub fn sample(
        &mut self,
        files: &dyn Files,
        classes: &BTreeMap<u32, String>,
        seen: &mut Snapshot,
    ) -> Result<()> {
        let renew = self.renewed.is_none_or(|at| at.elapsed() >= USUAL);
        if renew {
            self.renewed = Some(Instant::now());
            self.processes.clear();
        }
        self.processes.retain(|tid, _| classes.contains_key(tid));
        for tid in classes.keys() {
            if !self.processes.contains_key(tid)
                && let Some(pid) = procfs::process_of(files, *tid)?
            {
                self.processes.insert(*tid, pid);
            }
        }
        let mut processes = self.watched.clone();
        processes.extend(self.processes.values());
        let in_root = std::mem::take(&mut self.in_root);
        // The kernel goes through all children of a process for each thread.
        let children = renew || in_root.len() < FEW;
        for pid in processes {
            for tid in procfs::threads(files, pid)? {
                let Some(stat) = procfs::stat(files, tid)?.filter(|stat| !stat.dead()) else {
                    continue;
                };
                if self.watched.contains(&pid) && children {
                    let path = format!("/proc/{pid}/task/{tid}/children");
                    let listed = files.optional(&path)?.unwrap_or_default();
                    let listed = listed.split_ascii_whitespace();
                    self.watched
                        .extend(listed.filter_map(|c| c.parse::<u32>().ok()));
                }
                let class = match classes.get(&tid) {
                    Some(class) => class.clone(),
                    None if in_root.contains(&tid) => ROOT.to_owned(),
                    // In the root's class, or born since the classes were listed.
                    None => match membership(files, tid)?.map(|m| m.control) {
                        Some(class) if !class.is_empty() => class,
                        _ => ROOT.to_owned(),
                    },
                };
                if class == ROOT {
                    self.in_root.insert(tid);
                }
                seen.threads.insert(tid, thread(pid, stat, class));
            }
        }
        self.of_cpus(files, seen)
    }

    /// Adds threads of the root's class that run on CPUs of other classes.
    fn of_cpus(&mut self, files: &dyn Files, seen: &mut Snapshot) -> Result<()> {
        let own = seen.classes.iter().filter(|(name, _)| *name != ROOT);
        let cpus: CpuSet = own.flat_map(|(_, class)| class.cpus.iter()).collect();
        if cpus.is_empty() {
            (self.cpus, self.searched) = (cpus, None);
            self.ran.clear();
            self.active.clear();
            return Ok(());
        }
        // Sleeping threads are known as active with the second search after CPUs got a class.
        let first = self.ran.is_empty();
        let due = |(at, took): (Instant, Duration)| {
            let pause = if first { Duration::ZERO } else { USUAL };
            at.elapsed() >= pause.max(took * SPARING)
        };
        if cpus != self.cpus || self.searched.is_none_or(due) {
            let renewed = cpus != self.cpus;
            self.cpus = cpus;
            self.search(files, renewed)?;
        }
        for (tid, pid) in self.active.clone() {
            if seen.threads.contains_key(&tid) {
                continue;
            }
            let stat = procfs::stat(files, tid)?;
            let here = |stat: &Stat| !stat.dead() && self.cpus.contains(stat.last_cpu);
            match stat.filter(here) {
                Some(stat) => {
                    seen.threads.insert(tid, thread(pid, stat, ROOT.to_owned()));
                }
                None => {
                    self.active.remove(&tid);
                }
            }
        }
        Ok(())
    }

    /// Finds the threads that ran on the CPUs since the last search. `renewed`: the CPUs are others
    /// than then.
    fn search(&mut self, files: &dyn Files, renewed: bool) -> Result<()> {
        let begun = Instant::now();
        let before = std::mem::take(&mut self.ran);
        let mut active = BTreeMap::new();
        for process in procfs::processes(files)? {
            let tids = match process.threads {
                0 | 1 => vec![process.id.pid],
                _ => procfs::threads(files, process.id.pid)?,
            };
            for tid in tids {
                let stat = match tid == process.id.pid {
                    true => Some(process.clone()),
                    false => procfs::stat(files, tid)?,
                };
                let here = |s: &Stat| !s.dead() && self.cpus.contains(s.last_cpu);
                let Some(stat) = stat.filter(here) else {
                    continue;
                };
                let ran = procfs::schedstat(files, tid)?.map_or(0, |(ran, _)| ran);
                let grew = before.get(&tid).is_some_and(|then| *then < ran);
                if grew || stat.state == 'R' {
                    active.insert(tid, process.id.pid);
                }
                self.ran.insert(tid, ran);
            }
        }
        if renewed {
            // The baseline was of other CPUs: the next search is soon.
            self.searched = None;
        } else {
            self.searched = Some((begun, begun.elapsed()));
        }
        self.active = active;
        Ok(())
    }
}

fn thread(pid: u32, stat: Stat, class: String) -> Thread {
    Thread {
        pid,
        name: stat.comm,
        class,
        cpu: stat.last_cpu,
    }
}

#[cfg(test)]
mod tests {
    use quell_kernel::root::Kernel;
    use quell_record::ways::Class;

    use super::*;

    #[test]
    fn threads_that_run_on_a_cpu_with_a_class_are_found_by_it() {
        let dir = tempfile::tempdir().unwrap();
        let files = Kernel::at(dir.path());
        let ran = |tid: u32, ns: u64, cpu: u32| {
            let at = dir.path().join(format!("proc/{tid}"));
            std::fs::create_dir_all(&at).unwrap();
            let zeros = |n: usize| "0 ".repeat(n);
            let stat = format!(
                "{tid} (rt) S 1 0 0 0 -1 0 {}20 0 1 0 100 0 9 {}{cpu} 0 0",
                zeros(8),
                zeros(14)
            );
            std::fs::write(at.join("stat"), stat).unwrap();
            std::fs::write(at.join("schedstat"), format!("{ns} 0 1")).unwrap();
        };
        let mut threads = Threads::default();
        let mut seen = |ran: &[(u32, u64, u32)], put: &dyn Fn(u32, u64, u32)| {
            ran.iter().for_each(|(tid, ns, cpu)| put(*tid, *ns, *cpu));
            let class = Class {
                cpus: [1].into_iter().collect(),
                ..Class::default()
            };
            let mut seen = Snapshot::default();
            seen.classes.insert("COS1".to_owned(), class);
            threads.sample(&files, &BTreeMap::new(), &mut seen).unwrap();
            seen.threads.into_keys().collect::<Vec<u32>>()
        };
        // All sleep, and the first search has nothing to compare with. 8 sleeps on the CPU, 9 runs
        // on another one.
        assert!(seen(&[(7, 5, 1), (8, 5, 1), (9, 5, 0)], &ran).is_empty());
        assert_eq!(seen(&[(7, 9, 1), (9, 9, 0)], &ran), [7]);
        // It leaves the CPU, and is no longer included.
        assert!(seen(&[(7, 10, 0)], &ran).is_empty());
    }
}
