//! Turns changes in order of time into stretches in which nothing changes: which classes may fill
//! which ways, where threads were, what was counted.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::partition::Mask;

use super::runs::Ran;
use super::{Cache, Change, Class, Mode, Place, ROOT, Register, Snapshot, Thread};

/// A stretch of time in which something is the same, in nanoseconds on the record's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch<T> {
    /// When the stretch begins.
    pub from_ns: u64,
    /// When the stretch ends.
    pub until_ns: u64,
    /// What does not change meanwhile.
    pub is: T,
}

impl<T> Stretch<T> {
    /// The length in nanoseconds.
    #[must_use]
    pub const fn ns(&self) -> u64 {
        self.until_ns.saturating_sub(self.from_ns)
    }
}

/// Which classes and devices may fill some ways.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fill {
    /// The classes that have these ways in their masks.
    pub classes: Vec<String>,
    /// The class that is pseudo-locked into them.
    pub locked: Option<String>,
    /// Whether devices fill them, too.
    pub devices: bool,
}

/// Neighbouring ways of one cache that the same classes may fill, for a stretch of time.
pub type Block = Stretch<Ways>;

/// A run of ways of one cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ways {
    /// The lowest way, from 0.
    pub first: u32,
    /// Number of ways in the run.
    pub count: u32,
    /// Which classes and devices may fill them.
    pub fill: Fill,
}

/// What was counted of a class at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// When, in nanoseconds on the record's clock.
    pub at_ns: u64,
    /// Bytes of the cache that the class occupies.
    pub occupancy: Option<u64>,
    /// Bytes moved from and to memory so far.
    pub traffic: Option<u64>,
}

/// The class and the CPU of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadPosition {
    /// The class that decides which ways its lines may fill.
    pub class: String,
    /// Whether that is the class of its CPU, as it has none of its own.
    pub by_cpu: bool,
    /// The CPU it ran on last.
    pub cpu: CpuId,
}

/// A thread over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadLane {
    /// PID of its process.
    pub pid: u32,
    /// Name of the thread.
    pub name: String,
    /// Where it was, in order of time.
    pub was: Vec<Stretch<ThreadPosition>>,
    /// Only included because it ran ([`Thread::passing`]), all the time.
    pub passing: bool,
}

/// All that the changes of a record say, over time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// The end of the timeline, in nanoseconds on the record's clock.
    pub end_ns: u64,
    /// The caches that can be divided.
    pub caches: Vec<Cache>,
    /// Only registers were read: resctrl was not mounted, and CPUs have classes.
    pub registers_alone: bool,
    /// The classes, in the order in which they were seen.
    pub classes: Vec<String>,
    /// By cache: which classes may fill which ways. Blocks do not overlap, and cover all ways at
    /// all times.
    pub blocks: BTreeMap<Place, Vec<Block>>,
    /// By class and cache: its mask.
    pub masks: BTreeMap<(String, Place), Vec<Stretch<Mask>>>,
    /// By class and memory controller: its bandwidth allocation.
    pub throttles: BTreeMap<(String, Place), Vec<Stretch<u64>>>,
    /// By class: how it shares its ways.
    pub modes: BTreeMap<String, Vec<Stretch<Mode>>>,
    /// By class: the CPUs that belong to it.
    pub cpus: BTreeMap<String, Vec<Stretch<CpuSet>>>,
    /// By class and where the kernel counts ([`Place::counted`]).
    pub samples: BTreeMap<(String, Place), Vec<Sampled>>,
    /// By thread number: its class and CPU.
    pub threads: BTreeMap<u32, ThreadLane>,
    /// By thread number: times, each with what it has missed in the last-level cache until then.
    pub misses: BTreeMap<u32, Vec<(u64, u64)>>,
    /// By CPU: which thread ran from when to when. Empty where switches were not recorded.
    pub ran: BTreeMap<CpuId, Vec<Stretch<Ran>>>,
    /// Context switches that are missing.
    pub lost: u64,
    /// Registers that differed from what the kernel reports.
    pub registers: Vec<Stretch<Register>>,
    /// What has changed, in sentences, with the time of each.
    pub told: Vec<(u64, String)>,
}

/// The end of a stretch that has not ended.
const OPEN: u64 = u64::MAX;

/// The value is `is` from `at` on; `None` ends it.
fn now<T: PartialEq>(all: &mut Vec<Stretch<T>>, at: u64, is: Option<T>) {
    if let Some(last) = all.last_mut().filter(|last| last.until_ns == OPEN) {
        if is.as_ref() == Some(&last.is) {
            return;
        }
        last.until_ns = at;
    }
    if let Some(is) = is {
        all.push(Stretch {
            from_ns: at,
            until_ns: OPEN,
            is,
        });
    }
}

fn close<T>(all: &mut Vec<Stretch<T>>, end: u64) {
    for one in all.iter_mut() {
        one.until_ns = one.until_ns.min(end);
    }
    all.retain(|one| one.ns() > 0);
}

impl Timeline {
    /// Builds the timeline from changes in order of time, each with its time in nanoseconds. It
    /// ends at `end_ns`, or with the last change if that is later.
    #[must_use]
    pub fn of<'c>(changes: impl IntoIterator<Item = (u64, &'c Change)>, end_ns: u64) -> Self {
        let mut timeline = Self {
            end_ns,
            ..Self::default()
        };
        let mut state = Snapshot::default();
        let mut changes = changes.into_iter().peekable();
        while let Some((at, first)) = changes.next() {
            timeline.end_ns = timeline.end_ns.max(at);
            // The changes of one sample happened at once.
            let mut settings = timeline.take(at, first, &mut state);
            let mut told = vec![first];
            while let Some((_, next)) = changes.next_if(|(then, _)| *then == at) {
                settings |= timeline.take(at, next, &mut state);
                told.push(next);
            }
            // Members are known once the whole sample is.
            let joined = joined(&told);
            timeline
                .told
                .extend(joined.into_iter().map(|told| (at, told)));
            let mut named = BTreeSet::new();
            for change in told {
                let Some(mut told) = change.told() else {
                    continue;
                };
                // Once for each class of a sample.
                if named.insert(change.class()) {
                    told += &members(change, &state);
                }
                timeline.told.push((at, told));
            }
            if settings {
                timeline.sample(at, &state);
            }
        }
        timeline.close();
        timeline
    }

    /// Applies a change. Returns whether it is a change of settings.
    fn take(&mut self, at: u64, change: &Change, state: &mut Snapshot) -> bool {
        state.apply(change);
        match change {
            Change::Machine { caches, registers } => {
                self.caches.clone_from(caches);
                self.registers_alone = *registers;
            }
            Change::Sample {
                class,
                place,
                figures,
            } => {
                let samples = self.samples.entry((class.clone(), place.clone()));
                samples.or_default().push(Sampled {
                    at_ns: at,
                    occupancy: figures.occupancy,
                    traffic: figures.traffic,
                });
                return false;
            }
            Change::Thread { tid, is, .. } => {
                self.thread(at, *tid, is, state);
                return false;
            }
            Change::Ended { tid } => {
                if let Some(lane) = self.threads.get_mut(tid) {
                    now(&mut lane.was, at, None);
                }
                return false;
            }
            Change::Misses { tid, misses } => {
                if let Some(misses) = misses {
                    self.misses.entry(*tid).or_default().push((at, *misses));
                }
                return false;
            }
            Change::Ran { cpu, runs } => {
                self.runs(at, *cpu, runs);
                return false;
            }
            Change::Lost { switches } => {
                self.lost += switches;
                return false;
            }
            Change::Differs { register } => self.registers.push(Stretch {
                from_ns: at,
                until_ns: OPEN,
                is: register.clone(),
            }),
            Change::Agrees { register } => {
                let known = self.registers.iter_mut();
                for known in known.filter(|r| r.until_ns == OPEN && r.is == *register) {
                    known.until_ns = at;
                }
            }
            _ => {}
        }
        true
    }

    fn thread(&mut self, at: u64, tid: u32, is: &Thread, state: &Snapshot) {
        let lane = self.threads.entry(tid).or_insert_with(|| ThreadLane {
            pid: is.pid,
            name: is.name.clone(),
            was: Vec::new(),
            passing: true,
        });
        lane.name.clone_from(&is.name);
        lane.passing &= is.passing;
        let class = state.class_of(is);
        let position = ThreadPosition {
            class: class.to_owned(),
            by_cpu: class != is.class,
            cpu: is.cpu,
        };
        now(&mut lane.was, at, Some(position));
    }

    /// Opens and closes stretches by the settings from `at` on.
    fn sample(&mut self, at: u64, state: &Snapshot) {
        for class in state.classes.keys() {
            if !self.classes.contains(class) {
                self.classes.push(class.clone());
            }
        }
        let none = Class::default();
        for name in &self.classes {
            let there = state.classes.get(name);
            let class = there.unwrap_or(&none);
            let modes = self.modes.entry(name.clone()).or_default();
            now(modes, at, there.map(|c| c.mode));
            let cpus = self.cpus.entry(name.clone()).or_default();
            now(cpus, at, there.map(|c| c.cpus.clone()));
            each(&mut self.masks, name, &class.masks, at);
            each(&mut self.throttles, name, &class.throttles, at);
        }
        // Tasks of the root class on CPUs that go to another class go with them.
        for (tid, thread) in &state.threads {
            self.thread(at, *tid, thread, state);
        }
        for cache in &self.caches {
            let runs = runs(cache, state);
            let blocks = self.blocks.entry(cache.place.clone()).or_default();
            for block in blocks.iter_mut().filter(|b| b.until_ns == OPEN) {
                if !runs.contains(&block.is) {
                    block.until_ns = at;
                }
            }
            for run in runs {
                let open = |b: &Block| b.until_ns == OPEN && b.is == run;
                if !blocks.iter().any(open) {
                    blocks.push(Stretch {
                        from_ns: at,
                        until_ns: OPEN,
                        is: run,
                    });
                }
            }
        }
    }

    fn close(&mut self) {
        let end = self.end_ns;
        self.blocks.values_mut().for_each(|all| close(all, end));
        self.masks.values_mut().for_each(|all| close(all, end));
        self.throttles.values_mut().for_each(|all| close(all, end));
        self.modes.values_mut().for_each(|all| close(all, end));
        self.cpus.values_mut().for_each(|all| close(all, end));
        self.threads
            .values_mut()
            .for_each(|t| close(&mut t.was, end));
        close(&mut self.registers, end);
    }

    /// The mask of a class at a moment; `None` where it has none there.
    #[must_use]
    pub fn mask_at(&self, class: &str, place: &Place, at_ns: u64) -> Option<Mask> {
        let all = self.masks.get(&(class.to_owned(), place.clone()))?;
        let found = all
            .iter()
            .find(|m| (m.from_ns..m.until_ns).contains(&at_ns));
        found.map(|m| m.is)
    }

    /// Whether a thread or a CPU belonged to a class at some time between two moments.
    #[must_use]
    pub fn had_members(&self, class: &str, span: &Range<u64>) -> bool {
        let during = |f: u64, u: u64| f < span.end && span.start < u;
        class == ROOT
            || self
                .cpus
                .get(class)
                .into_iter()
                .flatten()
                .any(|c| during(c.from_ns, c.until_ns) && !c.is.is_empty())
            || self.threads.values().any(|t| {
                let mut was = t.was.iter();
                was.any(|w| during(w.from_ns, w.until_ns) && w.is.class == class)
            })
    }

    /// What was counted of a class at a place between two moments, both included.
    #[must_use]
    pub fn sampled(&self, class: &str, place: &Place, span: &Range<u64>) -> Vec<Sampled> {
        let all = self.samples.get(&(class.to_owned(), place.counted()));
        let all = all.into_iter().flatten();
        all.filter(|s| (span.start..=span.end).contains(&s.at_ns))
            .copied()
            .collect()
    }
}

/// The most processes of a class that are named next to a change.
const PROCESSES: usize = 8;
/// The most threads of each that are named.
const NAMED: usize = 3;

/// A process with some of its threads, in words.
fn named(pid: u32, threads: &[(u32, &Thread)]) -> String {
    let first = threads.iter().find(|(tid, _)| *tid == pid);
    let name = first.or(threads.first()).map_or("", |(_, t)| &t.name);
    let each = threads.iter().take(NAMED);
    let each: Vec<String> = each
        .map(|(tid, thread)| format!("thread {tid} on CPU {}", thread.cpu))
        .collect();
    let more = match threads.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(", {more} more"),
    };
    format!("process {pid} ({name}): {}{more}", each.join(", "))
}

/// The CPUs, processes and threads that a change concerns, in brackets. Empty where none is known.
fn members(change: &Change, state: &Snapshot) -> String {
    let Some(class) = change.class() else {
        return String::new();
    };
    let mut processes: BTreeMap<u32, Vec<(u32, &Thread)>> = BTreeMap::new();
    for (tid, thread) in &state.threads {
        // Of everybody else those are not named that only ran.
        let named = class != ROOT || !thread.passing;
        if named && state.class_of(thread) == class {
            let threads = processes.entry(thread.pid).or_default();
            threads.push((*tid, thread));
        }
    }
    let mut all = Vec::new();
    if let Some(is) = state.classes.get(class).filter(|c| !c.cpus.is_empty()) {
        all.push(format!("CPU {}", is.cpus));
    }
    let first = processes.iter().take(PROCESSES);
    all.extend(first.map(|(pid, threads)| named(*pid, threads)));
    if processes.len() > PROCESSES {
        all.push(format!("{} more", processes.len() - PROCESSES));
    }
    match all.is_empty() {
        true => String::new(),
        false => format!(" [{}]", all.join("; ")),
    }
}

/// Threads that a sample finds in classes of their own and the one before did not know, by process.
fn joined(changes: &[&Change]) -> Vec<String> {
    let mut found: BTreeMap<(&str, u32), Vec<(u32, &Thread)>> = BTreeMap::new();
    for change in changes {
        if let Change::Thread {
            tid,
            is,
            from: None,
        } = change
            && is.class != ROOT
        {
            let threads = found.entry((is.class.as_str(), is.pid)).or_default();
            threads.push((*tid, is));
        }
    }
    let told = found
        .iter()
        .map(|((class, pid), threads)| format!("class {class} has {}", named(*pid, threads)));
    told.collect()
}

fn each<T: Copy + PartialEq>(
    all: &mut BTreeMap<(String, Place), Vec<Stretch<T>>>,
    class: &str,
    is: &BTreeMap<Place, T>,
    at: u64,
) {
    let known: BTreeSet<Place> = all
        .keys()
        .filter(|(name, _)| name == class)
        .map(|(_, place)| place.clone())
        .chain(is.keys().cloned())
        .collect();
    for place in known {
        let value = is.get(&place).copied();
        now(all.entry((class.to_owned(), place)).or_default(), at, value);
    }
}

/// The ways of a cache as runs of neighbours that the same classes may fill.
fn runs(cache: &Cache, state: &Snapshot) -> Vec<Ways> {
    let mut runs: Vec<Ways> = Vec::new();
    for bit in 0..cache.bits {
        let own = |class: &Class| {
            let mask = class.masks.get(&cache.place);
            mask.is_some_and(|m| m.0 >> bit & 1 == 1)
        };
        let mut fill = Fill {
            devices: cache.shareable.0 >> bit & 1 == 1,
            ..Fill::default()
        };
        for (name, _) in state.classes.iter().filter(|(_, class)| own(class)) {
            let locked = |class: &Class| class.mode == Mode::PseudoLocked;
            if state.classes.get(name).is_some_and(locked) {
                fill.locked = Some(name.clone());
            } else {
                fill.classes.push(name.clone());
            }
        }
        match runs.last_mut().filter(|run| run.fill == fill) {
            Some(run) => run.count += 1,
            None => runs.push(Ways {
                first: bit,
                count: 1,
                fill,
            }),
        }
    }
    runs
}

/// Bytes per second between the first and the last sample that counted traffic.
#[must_use]
pub fn rate(samples: &[Sampled]) -> Option<f64> {
    let mut counted = samples.iter().filter_map(|s| Some((s.at_ns, s.traffic?)));
    let first = counted.next()?;
    let last = counted.next_back()?;
    let seconds = last.0.saturating_sub(first.0) as f64 / 1e9;
    (seconds > 0.0).then(|| last.1.saturating_sub(first.1) as f64 / seconds)
}
