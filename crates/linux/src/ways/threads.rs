//! The threads that a sample includes: those in classes other than the root's, and all others of
//! their processes; those of watched programs; and those that ran.
//!
//! What ran is known by context switches, where they are recorded. Otherwise the time that a thread
//! has run says so (`schedstat`), and only of a thread that ran all else is read. Up to [`FEW`]
//! threads, each is asked in every sample. Of more, those that ran lately are, and of the others
//! as many as a hundredth of the time allows, in turn.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use quell_record::ways::{ROOT, Snapshot, Thread};

use quell_kernel::cached_file::CachedFile;
use quell_kernel::error::Result;
use quell_kernel::procfs::{self, Stat};
use quell_kernel::resctrl::groups::membership;
use quell_kernel::root::Files;
use quell_kernel::switches::{Run, Taken, Task};

use super::by_cpu::ByCpu;
use super::{Pace, SPARING, USUAL};

/// Up to so many threads, each is asked in every sample whether it ran.
const FEW: usize = 64;
/// A thread that did not run in so many samples is asked in turn.
const AWAKE: u32 = 10;
/// At least so many of the others are asked in a sample.
const IN_TURN: usize = 8;

/// A thread, as it was read last.
#[derive(Debug)]
struct Known {
    thread: Thread,
    /// Its `schedstat` and its `stat`, open while there are few threads.
    counts: Option<CachedFile>,
    stat: Option<CachedFile>,
    /// Nanoseconds that it had run. `None` where that is not known.
    ran: Option<u64>,
    /// Samples in a row in which it had not run.
    idle: u32,
}

/// What a thread did since it was asked before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Did {
    /// It ran. Its process has so many threads.
    Run(u32),
    Sleep,
    End,
}

/// Which threads are read.
#[derive(Debug, Default)]
pub struct Threads {
    /// Processes whose threads are read whatever their class.
    watched: BTreeSet<u32>,
    /// Processes whose threads were listed.
    listed: BTreeSet<u32>,
    known: BTreeMap<u32, Known>,
    /// The first thread that is asked in turn.
    turn: u32,
    /// When the sample before was taken.
    before: Option<Pace>,
    /// When the threads of processes were listed last.
    listing: Option<Pace>,
    /// When children were looked for last although there are many threads.
    renewed: Option<Pace>,
    /// Records of switches are missing, perhaps of threads that have ended.
    lost: bool,
    by_cpu: ByCpu,
}

impl Threads {
    /// Includes the threads of a process, and of its children.
    pub fn watch(&mut self, pid: u32) {
        self.watched.insert(pid);
    }

    /// Adds the threads to a sample that has its classes. `classes`: those of threads, where they
    /// have one of their own. `taken`: what ran, where switches are recorded.
    pub fn sample(
        &mut self,
        files: &dyn Files,
        classes: &BTreeMap<u32, String>,
        taken: Option<&Taken>,
        seen: &mut Snapshot,
    ) -> Result<()> {
        let begun = Instant::now();
        for tid in classes.keys() {
            if !self.known.contains_key(tid)
                && let Some(pid) = procfs::process_of(files, *tid)?
            {
                self.add(files, pid, *tid)?;
            }
        }
        match taken {
            Some(taken) => self.by_switches(files, classes, taken)?,
            None => self.by_time(files)?,
        }
        self.new_processes(files)?;
        self.classify(files, classes, taken)?;
        let all = self.known.iter();
        seen.threads
            .extend(all.map(|(tid, known)| (*tid, known.thread.clone())));
        match taken {
            Some(taken) => taken.ended.iter().for_each(|tid| {
                self.known.remove(tid);
            }),
            None => self.by_cpu.sample(files, seen)?,
        }
        self.before = Some(Pace::of(begun));
        Ok(())
    }

    /// Reads a thread that is not known yet.
    fn add(&mut self, files: &dyn Files, pid: u32, tid: u32) -> Result<()> {
        let stat = procfs::thread_stat(files, pid, tid)?;
        if let Some(stat) = stat.filter(|stat| !stat.dead()) {
            // In the root's class, or born since the classes were listed.
            let class = membership(files, tid)?.map(|m| m.control);
            let class = class.filter(|c| !c.is_empty());
            let class = class.unwrap_or_else(|| ROOT.to_owned());
            self.put(tid, thread(pid, stat, class));
        }
        Ok(())
    }

    fn put(&mut self, tid: u32, thread: Thread) {
        let known = Known {
            thread,
            counts: None,
            stat: None,
            ran: None,
            idle: 0,
        };
        self.known.insert(tid, known);
    }

    /// Adds the threads of a process that are new. Returns all that it has.
    fn list(&mut self, files: &dyn Files, pid: u32) -> Result<BTreeSet<u32>> {
        let tids: BTreeSet<u32> = procfs::threads(files, pid)?.into_iter().collect();
        for tid in &tids {
            if !self.known.contains_key(tid) {
                self.add(files, pid, *tid)?;
            }
        }
        Ok(tids)
    }

    /// Lists processes that are watched, or have a thread with a class, for the first time.
    fn new_processes(&mut self, files: &dyn Files) -> Result<()> {
        let mut processes = self.watched.clone();
        let classed = self.known.values().filter(|k| k.thread.class != ROOT);
        processes.extend(classed.map(|k| k.thread.pid));
        let new: Vec<u32> = processes.difference(&self.listed).copied().collect();
        for pid in new {
            self.list(files, pid)?;
        }
        self.listed = processes;
        Ok(())
    }

    /// Asks threads whether they ran.
    fn by_time(&mut self, files: &dyn Files) -> Result<()> {
        let begun = Instant::now();
        let few = self.known.len() <= FEW;
        let mut ran: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let mut threads: BTreeMap<u32, u32> = BTreeMap::new();
        let mut ask = |known: &mut Known, tid: u32| -> Result<Did> {
            let did = known.ask(files, tid, few)?;
            if let Did::Run(count) = did {
                ran.entry(known.thread.pid).or_default().push(tid);
                threads.insert(known.thread.pid, count);
            }
            Ok(did)
        };
        let mut ended = Vec::new();
        let mut others = Vec::new();
        for (tid, known) in &mut self.known {
            if !few && known.idle >= AWAKE {
                others.push(*tid);
            } else if ask(known, *tid)? == Did::End {
                ended.push(*tid);
            }
        }
        let span = self.before.map_or(USUAL, |pace| pace.since());
        let first = others.partition_point(|tid| *tid < self.turn);
        others.rotate_left(first);
        for (n, tid) in others.iter().enumerate() {
            self.turn = *tid;
            if n >= IN_TURN && begun.elapsed() * SPARING > span {
                break;
            }
            if let Some(known) = self.known.get_mut(tid)
                && ask(known, *tid)? == Did::End
            {
                ended.push(*tid);
            }
        }
        for tid in ended {
            self.known.remove(&tid);
        }
        self.children(files, &ran, few)?;
        // Threads are born of those that ran.
        let due = |pace: &Pace| pace.due(USUAL);
        if few || self.listing.as_ref().is_none_or(due) {
            let begun = Instant::now();
            let mut known: BTreeMap<u32, u32> = BTreeMap::new();
            for one in self.known.values() {
                *known.entry(one.thread.pid).or_default() += 1;
            }
            threads.retain(|pid, count| known.get(pid) != Some(count));
            for pid in threads.into_keys() {
                let tids = self.list(files, pid)?;
                self.known
                    .retain(|tid, known| known.thread.pid != pid || tids.contains(tid));
            }
            self.listing = Some(Pace::of(begun));
        }
        Ok(())
    }

    /// Watches the children of watched processes. `ran`: the threads that ran, by process.
    fn children(
        &mut self,
        files: &dyn Files,
        ran: &BTreeMap<u32, Vec<u32>>,
        few: bool,
    ) -> Result<()> {
        // The kernel goes through all children of a process for each thread.
        if !few && self.renewed.is_some_and(|pace| !pace.due(USUAL)) {
            return Ok(());
        }
        let begun = Instant::now();
        for (pid, tids) in ran {
            if !self.watched.contains(pid) {
                continue;
            }
            for tid in tids {
                let path = format!("/proc/{pid}/task/{tid}/children");
                let listed = files.optional(&path)?.unwrap_or_default();
                let listed = listed.split_ascii_whitespace();
                let children = listed.filter_map(|c| c.parse::<u32>().ok());
                self.watched.extend(children);
            }
        }
        self.renewed = Some(Pace::of(begun));
        Ok(())
    }

    /// Takes over what ran, by its switches.
    fn by_switches(
        &mut self,
        files: &dyn Files,
        classes: &BTreeMap<u32, String>,
        taken: &Taken,
    ) -> Result<()> {
        self.lost |= taken.lost > 0;
        if self.lost && self.renewed.is_none_or(|pace| pace.due(USUAL)) {
            let begun = Instant::now();
            self.known
                .retain(|tid, _| files.exists(&format!("/proc/{tid}")));
            self.lost = false;
            self.renewed = Some(Pace::of(begun));
        }
        // The last run of each thread says on which CPU it is. Parents run before their children.
        let mut new: BTreeMap<Task, (Run, u32)> = BTreeMap::new();
        let mut last: BTreeMap<u32, (Run, u32)> = BTreeMap::new();
        for (cpu, runs) in &taken.runs {
            for run in runs {
                let known = self.known.get(&run.task.tid);
                if known.is_none_or(|known| known.thread.pid != run.task.pid) {
                    let first = new.entry(run.task).or_insert((*run, *cpu));
                    if run.from < first.0.from {
                        *first = (*run, *cpu);
                    }
                }
                let latest = last.entry(run.task.tid).or_insert((*run, *cpu));
                if latest.0.until < run.until {
                    *latest = (*run, *cpu);
                }
            }
        }
        let mut new: Vec<(Run, u32)> = new.into_values().collect();
        new.sort_by_key(|(run, _)| run.from);
        for (run, cpu) in new {
            self.newborn(files, classes, taken, run.task, cpu)?;
        }
        for (tid, (_, cpu)) in last {
            if let Some(known) = self.known.get_mut(&tid) {
                known.thread.cpu = cpu;
            }
        }
        for (tid, name) in &taken.names {
            if let Some(known) = self.known.get_mut(tid) {
                known.thread.name.clone_from(name);
            }
        }
        Ok(())
    }

    /// Adds a thread that ran. What has ended already has name and class of its maker.
    fn newborn(
        &mut self,
        files: &dyn Files,
        classes: &BTreeMap<u32, String>,
        taken: &Taken,
        task: Task,
        cpu: u32,
    ) -> Result<()> {
        let Task { pid, tid } = task;
        let parent = taken.born.get(&task).and_then(|tid| {
            let mut parent = self.known.get(tid)?.thread.clone();
            // As listed now: it may be in its class only since this sample.
            if let Some(class) = classes.get(tid) {
                parent.class.clone_from(class);
            }
            Some(parent)
        });
        if parent
            .as_ref()
            .is_some_and(|p| self.watched.contains(&p.pid))
        {
            self.watched.insert(pid);
        }
        self.known.remove(&tid);
        self.add(files, pid, tid)?;
        if !self.known.contains_key(&tid) {
            let inherited = |of: fn(&Thread) -> &String, or: &str| {
                parent.as_ref().map_or(or.to_owned(), |p| of(p).clone())
            };
            let class = classes.get(&tid).cloned();
            let thread = Thread {
                pid,
                name: inherited(|p| &p.name, "?"),
                class: class.unwrap_or_else(|| inherited(|p| &p.class, ROOT)),
                cpu,
                passing: true,
            };
            self.put(tid, thread);
        }
        if let Some(known) = self.known.get_mut(&tid) {
            known.thread.passing = true;
        }
        Ok(())
    }

    /// Says of each thread which class it is in, and whether it is only there because it ran.
    fn classify(
        &mut self,
        files: &dyn Files,
        classes: &BTreeMap<u32, String>,
        taken: Option<&Taken>,
    ) -> Result<()> {
        let ended: BTreeSet<u32> = taken.iter().flat_map(|t| &t.ended).copied().collect();
        let mut gone = Vec::new();
        for (tid, known) in &mut self.known {
            match classes.get(tid) {
                Some(class) if *class == known.thread.class => {}
                Some(class) => known.thread.class.clone_from(class),
                None if known.thread.class == ROOT || ended.contains(tid) => {}
                // It was in a class: moved to the root's, or ended.
                None => match procfs::thread_stat(files, known.thread.pid, *tid)? {
                    Some(stat) if !stat.dead() => {
                        let class = membership(files, *tid)?.map(|m| m.control);
                        let class = class.filter(|c| !c.is_empty());
                        known.thread.class = class.unwrap_or_else(|| ROOT.to_owned());
                    }
                    // Its switches say when it has ended.
                    _ if taken.is_some() => {}
                    _ => gone.push(*tid),
                },
            }
        }
        for tid in gone {
            self.known.remove(&tid);
        }
        let listed = &self.listed;
        for known in self.known.values_mut().filter(|k| k.thread.passing) {
            let own = known.thread.class != ROOT || listed.contains(&known.thread.pid);
            known.thread.passing = !own;
        }
        Ok(())
    }
}

impl Known {
    /// Reads the thread, if it ran since it was asked before. `keep`: its file stays open.
    fn ask(&mut self, files: &dyn Files, tid: u32, keep: bool) -> Result<Did> {
        let ran = self.counted(files, tid, keep)?;
        if ran.is_some() && ran == self.ran {
            self.idle = self.idle.saturating_add(1);
            return Ok(Did::Sleep);
        }
        let stat = self.stat(files, tid, keep)?;
        let Some(stat) = stat.filter(|stat| !stat.dead()) else {
            return Ok(Did::End);
        };
        (self.ran, self.idle) = (ran, 0);
        (self.thread.name, self.thread.cpu) = (stat.comm, stat.last_cpu);
        Ok(Did::Run(stat.threads))
    }

    /// Its `stat`. `None` where it has ended.
    fn stat(&mut self, files: &dyn Files, tid: u32, keep: bool) -> Result<Option<Stat>> {
        if !keep {
            self.stat = None;
            return procfs::thread_stat(files, self.thread.pid, tid);
        }
        if self.stat.is_none() {
            let path = procfs::thread_stat_path(self.thread.pid, tid);
            self.stat = CachedFile::open(files, &path)?;
        }
        let Some(file) = &mut self.stat else {
            return Ok(None);
        };
        Ok(file.text(files)?.and_then(Stat::parse))
    }

    /// Nanoseconds that it has run. `None` where it has ended, or nothing counts them.
    fn counted(&mut self, files: &dyn Files, tid: u32, keep: bool) -> Result<Option<u64>> {
        if !keep {
            self.counts = None;
            return Ok(procfs::schedstat(files, tid)?.map(|(ran, _)| ran));
        }
        if self.counts.is_none() {
            let path = procfs::schedstat_path(tid);
            self.counts = CachedFile::open(files, &path)?;
        }
        let Some(file) = &mut self.counts else {
            return Ok(None);
        };
        let text = file.text(files)?;
        Ok(text.and_then(|text| text.split_ascii_whitespace().next()?.parse().ok()))
    }
}

pub fn thread(pid: u32, stat: Stat, class: String) -> Thread {
    Thread {
        pid,
        name: stat.comm,
        class,
        cpu: stat.last_cpu,
        passing: false,
    }
}

#[cfg(test)]
#[path = "threads_tests.rs"]
mod tests;
