//! Threads on CPUs that were isolated at boot (`isolcpus`). The scheduler moves no thread there by
//! itself: all of them run on the CPU where the first one is. So each thread of a group is put on
//! one of these CPUs, and put on another one when that has less to do.
//!
//! A thread that the program has bound itself stays where it is. Threads inherit the CPU of the
//! thread that starts them, and are placed within a second.

use std::collections::BTreeMap;

use quell_kernel::cgroup::Controller;
use quell_kernel::error::{Error, Result};
use quell_kernel::procfs;
use quell_kernel::root::{Files, gone};
use quell_kernel::{cgroup_tree, topology};
use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::journal::Undo;
use quell_types::task::TaskId;

use crate::fault;
use crate::group_cgroups::CgroupDir;
use crate::host::Host;

/// The groups whose threads are placed.
#[derive(Default)]
pub(super) struct Spread {
    groups: BTreeMap<String, Placed>,
}

/// The threads of a group that were placed.
struct Placed {
    /// The CPUs of the group.
    cpus: CpuSet,
    threads: BTreeMap<TaskId, Thread>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Thread {
    process: u32,
    cpu: CpuId,
    /// Nanoseconds that it ran, and that it ran between the last two looks.
    ran: u64,
    lately: u64,
}

/// A thread that is to be put on a CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Move {
    task: TaskId,
    /// The CPU that it was put on before.
    from: Option<CpuId>,
    to: CpuId,
}

/// What is seen of a thread.
#[derive(Clone, Debug)]
struct Seen {
    task: TaskId,
    process: u32,
    cpus: CpuSet,
    ran: u64,
}

impl Spread {
    /// Places the threads of a group from now on, where it has several CPUs and some are isolated.
    /// Returns a sentence for a person.
    pub fn begin(&mut self, host: &mut Host, group: &str, cpus: &CpuSet) -> Result<Option<String>> {
        let isolated = topology::isolated(&host.files)?.intersection(cpus);
        if isolated.is_empty() || cpus.len() < 2 {
            return Ok(None);
        }
        let placed = Placed {
            cpus: cpus.clone(),
            threads: BTreeMap::new(),
        };
        self.groups.insert(group.to_owned(), placed);
        self.look(host, group)?;
        Ok(Some(format!(
            "group {group}: the scheduler does not balance CPUs {isolated}, so its threads are placed one \
             by one"
        )))
    }

    /// The groups whose threads are placed.
    pub fn names(&self) -> Vec<String> {
        self.groups.keys().cloned().collect()
    }

    /// Places threads that were born since the last look, and moves one where that helps.
    pub fn look(&mut self, host: &mut Host, group: &str) -> Result<()> {
        let Some(placed) = self.groups.get_mut(group) else {
            return Ok(());
        };
        let cgroups = &host.groups.one(group)?.cgroups;
        let dirs: Vec<String> = cgroups
            .dirs(&host.cgroups, Controller::Cpuset)
            .map(CgroupDir::tasks_dir)
            .collect();
        let mut seen = Vec::new();
        for dir in dirs {
            let mut processes = Vec::new();
            cgroup_tree::processes(&host.files, &dir, |pid| processes.push(pid));
            for process in processes {
                for tid in procfs::threads(&host.files, process)? {
                    seen.extend(one(&host.files, process, tid)?);
                }
            }
        }
        let moves = placed.decide(&seen);
        put(host, &moves)
    }
}

impl Placed {
    /// Which threads are put on which CPU.
    fn decide(&mut self, seen: &[Seen]) -> Vec<Move> {
        let before = std::mem::take(&mut self.threads);
        // Who starts a thread hands on its CPU.
        let inherited = |seen: &Seen| {
            let mut of = before.values().filter(|t| t.process == seen.process);
            of.any(|t| seen.cpus == CpuSet::one(t.cpu))
        };
        let mut fresh = Vec::new();
        for one in seen {
            match before.get(&one.task) {
                Some(thread) if one.cpus == CpuSet::one(thread.cpu) => {
                    let lately = one.ran.saturating_sub(thread.ran);
                    let thread = Thread {
                        ran: one.ran,
                        lately,
                        ..*thread
                    };
                    self.threads.insert(one.task, thread);
                }
                // The program has bound it by now.
                Some(_) => {}
                None if one.cpus == self.cpus || inherited(one) => fresh.push(one),
                None => {}
            }
        }
        let mut moves = Vec::new();
        // The busiest first, each to where the least is.
        fresh.sort_by_key(|one| std::cmp::Reverse(one.ran));
        for one in fresh {
            let Some(cpu) = self.emptiest() else {
                break;
            };
            let thread = Thread {
                process: one.process,
                cpu,
                ran: one.ran,
                lately: 0,
            };
            self.threads.insert(one.task, thread);
            moves.push(Move {
                task: one.task,
                from: None,
                to: cpu,
            });
        }
        if moves.is_empty() {
            moves.extend(self.even_out());
        }
        moves
    }

    /// How long threads of a CPU ran lately, and how many there are.
    fn load(&self, cpu: CpuId) -> (u64, usize) {
        let there = self.threads.values().filter(|t| t.cpu == cpu);
        there.fold((0, 0), |(ran, n), t| (ran + t.lately, n + 1))
    }

    fn emptiest(&self) -> Option<CpuId> {
        self.cpus.iter().min_by_key(|cpu| self.load(*cpu))
    }

    /// One thread from the busiest CPU to the one with the least, where both are nearer to each
    /// other then.
    fn even_out(&mut self) -> Option<Move> {
        let busiest = self.cpus.iter().max_by_key(|cpu| self.load(*cpu).0)?;
        let least = self.emptiest()?;
        let apart = self.load(busiest).0.saturating_sub(self.load(least).0);
        let there = self.threads.iter_mut().filter(|(_, t)| t.cpu == busiest);
        // What is nearest to half of what they differ by. More than that would only swap them.
        let helps = there.filter(|(_, t)| t.lately > 0 && t.lately < apart / 10 * 9);
        let (task, thread) = helps.min_by_key(|(_, t)| t.lately.abs_diff(apart / 2))?;
        thread.cpu = least;
        Some(Move {
            task: *task,
            from: Some(busiest),
            to: least,
        })
    }
}

fn one(files: &dyn Files, process: u32, tid: u32) -> Result<Option<Seen>> {
    let Some(stat) = procfs::thread_stat(files, tid, tid)?.filter(|s| !s.leaving() && !s.bound())
    else {
        return Ok(None);
    };
    let cpus = match files.affinity(tid) {
        Ok(cpus) => cpus,
        Err(e) if gone(&e) => return Ok(None),
        Err(e) => {
            let file = format!("/proc/{tid}/affinity");
            return Err(Error::file("read", &file, None, e));
        }
    };
    let ran = procfs::schedstat(files, tid)?.map_or(0, |(ran, _)| ran);
    Ok(Some(Seen {
        task: stat.id,
        process,
        cpus,
        ran,
    }))
}

fn put(host: &mut Host, moves: &[Move]) -> Result<()> {
    if moves.is_empty() {
        return Ok(());
    }
    // What a thread may use that nobody has bound. Its cpuset takes away the rest.
    let all = topology::possible(&host.files)?;
    if all.is_empty() {
        return Ok(());
    }
    let writer = host.writer()?;
    let entries: Vec<Undo> = moves
        .iter()
        .map(|one| Undo::Affinity {
            task: one.task,
            old: one.from.map_or_else(|| all.clone(), CpuSet::one),
            new: CpuSet::one(one.to),
        })
        .collect();
    writer.journal.record_all(&entries)?;
    for one in moves {
        match writer
            .files
            .set_affinity(one.task.pid, &CpuSet::one(one.to))
        {
            Ok(()) => fault::boundary(),
            Err(e) if gone(&e) => {}
            Err(e) => {
                let file = format!("/proc/{}/affinity", one.task.pid);
                return Err(Error::file("write", &file, Some(&one.to.to_string()), e));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "spread_tests.rs"]
mod tests;
