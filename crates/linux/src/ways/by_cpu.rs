//! Threads of the root's class that run on a CPU which has a class. A search of `/proc` finds them.
//!
//! A search costs time with every thread of the machine. So it is made at most once a second, and
//! no more often than [`Pace`] allows. A thread that happens to run there for a moment is left out:
//! it counts once it was on such a CPU at two searches, and ran for a hundredth of the time between
//! them ([`LEAST`]).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use quell_record::ways::{ROOT, Snapshot};
use quell_types::cpuset::CpuSet;

use quell_kernel::error::Result;
use quell_kernel::procfs::{self, Stat};
use quell_kernel::root::Files;

use super::threads::thread;
use super::{Pace, USUAL};

/// A thread has to run for one part in so many of the time.
const LEAST: u32 = 100;
/// The time from the first search to the second. A running thread's time is old by up to a tick.
const SOON: Duration = Duration::from_millis(50);

/// The threads on CPUs that have a class.
#[derive(Debug, Default)]
pub struct ByCpu {
    /// The CPUs that have a class of their own.
    cpus: CpuSet,
    /// When the last search began, and how long it took.
    searched: Option<Pace>,
    /// The last search had nothing to compare with.
    fresh: bool,
    /// Nanoseconds that threads on these CPUs had run at the last search, by thread.
    ran: BTreeMap<u32, u64>,
    /// Threads on these CPUs that ran between the last two searches, with their processes.
    active: BTreeMap<u32, u32>,
}

impl ByCpu {
    /// Adds threads of the root's class that run on CPUs of other classes.
    pub fn sample(&mut self, files: &dyn Files, seen: &mut Snapshot) -> Result<()> {
        let own = seen.classes.iter().filter(|(name, _)| *name != ROOT);
        let cpus: CpuSet = own.flat_map(|(_, class)| class.cpus.iter()).collect();
        if cpus.is_empty() {
            *self = Self::default();
            return Ok(());
        }
        let renewed = cpus != self.cpus;
        let pause = if self.fresh { SOON } else { USUAL };
        if renewed || self.searched.is_none_or(|pace| pace.due(pause)) {
            self.cpus = cpus;
            self.search(files, renewed)?;
        }
        for (tid, pid) in self.active.clone() {
            if seen.threads.contains_key(&tid) {
                continue;
            }
            let stat = procfs::thread_stat(files, pid, tid)?;
            let here = |stat: &Stat| !stat.dead() && self.cpus.contains(stat.last_cpu);
            match stat.filter(here) {
                Some(stat) => {
                    let mut thread = thread(pid, stat, ROOT.to_owned());
                    thread.passing = true;
                    seen.threads.insert(tid, thread);
                }
                None => {
                    self.active.remove(&tid);
                }
            }
        }
        Ok(())
    }

    /// Finds the threads that ran on the CPUs since the last search. `renewed`: the CPUs are others
    /// than then, and threads that want to run now count until the next search.
    fn search(&mut self, files: &dyn Files, renewed: bool) -> Result<()> {
        let begun = Instant::now();
        let span = self.searched.map_or(Duration::ZERO, |pace| pace.since());
        let least = u64::try_from((span / LEAST).as_nanos()).unwrap_or(u64::MAX);
        let before = std::mem::take(&mut self.ran);
        let mut active = BTreeMap::new();
        for process in procfs::processes(files)? {
            let pid = process.id.pid;
            let tids = match process.threads {
                0 | 1 => vec![pid],
                _ => procfs::threads(files, pid)?,
            };
            for tid in tids {
                let stat = match tid == pid {
                    true => Some(process.clone()),
                    false => procfs::thread_stat(files, pid, tid)?,
                };
                let here = |s: &Stat| !s.dead() && self.cpus.contains(s.last_cpu);
                let Some(stat) = stat.filter(here) else {
                    continue;
                };
                let ran = procfs::schedstat(files, tid)?.map_or(0, |(ran, _)| ran);
                let counts = match before.get(&tid) {
                    Some(then) => ran.saturating_sub(*then) > least,
                    None => renewed && stat.state == 'R',
                };
                if counts {
                    active.insert(tid, pid);
                }
                self.ran.insert(tid, ran);
            }
        }
        self.searched = Some(Pace::of(begun));
        (self.active, self.fresh) = (active, renewed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use quell_kernel::root::Kernel;
    use quell_record::ways::Class;

    use super::*;

    /// A machine in a folder, in which class COS1 has CPU 1.
    struct Machine {
        dir: tempfile::TempDir,
        threads: ByCpu,
    }

    impl Machine {
        fn new() -> Self {
            Self {
                dir: tempfile::tempdir().unwrap(),
                threads: ByCpu::default(),
            }
        }

        /// The thread has run for so long, in this state, and last on this CPU.
        fn put(&self, tid: u32, state: char, ns: u64, cpu: u32) {
            let at = self.dir.path().join(format!("proc/{tid}"));
            std::fs::create_dir_all(at.join(format!("task/{tid}"))).unwrap();
            let zeros = |n: usize| "0 ".repeat(n);
            let stat = format!(
                "{tid} (rt) {state} 1 0 0 0 -1 0 {}20 0 1 0 100 0 9 {}{cpu} 0 0",
                zeros(8),
                zeros(14)
            );
            std::fs::write(at.join("stat"), &stat).unwrap();
            std::fs::write(at.join(format!("task/{tid}/stat")), stat).unwrap();
            std::fs::write(at.join("schedstat"), format!("{ns} 0 1")).unwrap();
        }

        /// The last search was a second ago.
        fn later(&mut self) {
            self.threads.searched = Some(Pace {
                begun: Instant::now() - USUAL,
                took: Duration::ZERO,
            });
        }

        fn seen(&mut self) -> Vec<u32> {
            let class = Class {
                cpus: [1].into_iter().collect(),
                ..Class::default()
            };
            let mut seen = Snapshot::default();
            seen.classes.insert("COS1".to_owned(), class);
            let files = Kernel::at(self.dir.path());
            self.threads.sample(&files, &mut seen).unwrap();
            assert!(seen.threads.values().all(|thread| thread.passing));
            seen.threads.into_keys().collect()
        }
    }

    const LONG: u64 = 1_000_000_000;

    #[test]
    fn threads_that_run_on_a_cpu_with_a_class_are_found_by_it() {
        let mut machine = Machine::new();
        machine.put(7, 'S', 5, 1);
        machine.put(8, 'S', 5, 1);
        machine.put(9, 'S', 5, 0);
        // All sleep, and the first search has nothing to compare with. 8 sleeps on the CPU, 9 runs
        // on another one.
        assert!(machine.seen().is_empty());
        machine.later();
        machine.put(7, 'S', LONG, 1);
        machine.put(9, 'S', LONG, 0);
        assert_eq!(machine.seen(), [7]);
        // It leaves the CPU, and is no longer included.
        machine.put(7, 'S', LONG + 1, 0);
        assert!(machine.seen().is_empty());
    }

    #[test]
    fn what_runs_on_a_cpu_for_a_moment_has_no_lane() {
        let mut machine = Machine::new();
        machine.put(7, 'R', 0, 1);
        machine.put(8, 'R', 0, 1);
        // What wants to run when the CPU gets its class counts until something is known of it.
        assert_eq!(machine.seen(), [7, 8]);
        machine.later();
        machine.put(7, 'R', LONG, 1);
        // A few microseconds of a second, though it wants to run when it is seen.
        machine.put(8, 'R', 9_000, 1);
        // It comes from another CPU, where it has run all the time.
        machine.put(9, 'R', LONG, 1);
        assert_eq!(machine.seen(), [7]);
    }
}
