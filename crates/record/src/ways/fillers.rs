//! Which core, process and thread may fill which ways of a cache, over time.
//!
//! A core fills the ways of its class for tasks of no class, and those of the classes of threads
//! that were seen on it. A process fills what any of its threads fills. What runs on the CPUs of
//! another cache fills no way of this one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use quell_types::cpuset::CpuId;
use quell_types::partition::Mask;

use super::lanes::{Stretch, Timeline};
use super::{Cache, ROOT};

/// A core, a process or a thread.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// A CPU.
    Core(CpuId),
    /// A process, by its number, with the name of its first thread.
    Process(u32, String),
    /// A thread, by its number and name.
    Thread(u32, String),
}

/// The ways of a class that may be filled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filling {
    /// Name of the class.
    pub class: String,
    /// Its ways in this cache.
    pub mask: Mask,
}

/// What one core, process or thread may fill over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filler {
    /// Which one it is.
    pub who: Who,
    /// What it may fill, in order of time. Stretches do not overlap.
    pub was: Vec<Stretch<Vec<Filling>>>,
}

/// A class, for a stretch of time.
type InClass<'t> = Stretch<&'t str>;

impl Timeline {
    /// The cores of a cache, then the processes that ran there, each followed by its threads. Those
    /// that ran longest come first, where that is known. What is only included because it ran comes
    /// last.
    #[must_use]
    pub fn fillers(&self, cache: &Cache) -> Vec<Filler> {
        let mut all = Vec::new();
        for cpu in cache.cpus.iter() {
            all.push(Filler {
                who: Who::Core(cpu),
                was: self.filled(cache, &self.classes_of_core(cpu)),
            });
        }
        let mut processes: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (tid, lane) in &self.threads {
            let here = |cpu: CpuId| cache.cpus.contains(cpu);
            if lane.was.iter().any(|w| here(w.is.cpu)) {
                processes.entry(lane.pid).or_default().push(*tid);
            }
        }
        let mut ns: BTreeMap<u32, u64> = BTreeMap::new();
        for thread in self.ran_on(cache).iter().flat_map(|core| &core.threads) {
            *ns.entry(thread.tid).or_default() += thread.ns;
        }
        let ran = |tid: &u32| Reverse(ns.get(tid).copied().unwrap_or(0));
        let passing = |tid: &u32| self.threads.get(tid).is_some_and(|lane| lane.passing);
        let mut processes: Vec<(u32, Vec<u32>)> = processes.into_iter().collect();
        processes.sort_by_key(|(_, tids)| {
            let all: u64 = tids.iter().map(|tid| ran(tid).0).sum();
            (tids.iter().all(passing), Reverse(all))
        });
        for (pid, mut tids) in processes {
            tids.sort_by_key(ran);
            let in_class = |tid: &u32| -> Vec<InClass<'_>> {
                let was = self.threads.get(tid).into_iter().flat_map(|l| &l.was);
                let here = was.filter(|w| cache.cpus.contains(w.is.cpu));
                here.map(|w| stretch(w.from_ns, w.until_ns).with(w.is.class.as_str()))
                    .collect()
            };
            let name = |tid: &u32| self.threads.get(tid).map_or("", |l| l.name.as_str());
            let first = tids.iter().find(|tid| **tid == pid).or(tids.first());
            let together: Vec<InClass<'_>> = tids.iter().flat_map(in_class).collect();
            all.push(Filler {
                who: Who::Process(pid, first.map_or("", name).to_owned()),
                was: self.filled(cache, &together),
            });
            for tid in &tids {
                all.push(Filler {
                    who: Who::Thread(*tid, name(tid).to_owned()),
                    was: self.filled(cache, &in_class(tid)),
                });
            }
        }
        all
    }

    /// The class of a core, and the classes of threads on it that have one of their own.
    fn classes_of_core(&self, cpu: CpuId) -> Vec<InClass<'_>> {
        let mut all: Vec<InClass<'_>> = Vec::new();
        for (class, cpus) in self.cpus.iter().filter(|(class, _)| *class != ROOT) {
            let with = cpus.iter().filter(|c| c.is.contains(cpu));
            all.extend(with.map(|c| stretch(c.from_ns, c.until_ns).with(class.as_str())));
        }
        all.sort_by_key(|one| one.from_ns);
        let mut root = Vec::new();
        let mut until = 0;
        for one in &all {
            if until < one.from_ns {
                root.push(stretch(until, one.from_ns).with(ROOT));
            }
            until = until.max(one.until_ns);
        }
        if until < self.end_ns {
            root.push(stretch(until, self.end_ns).with(ROOT));
        }
        all.extend(root);
        for lane in self.threads.values() {
            let own = |w: &&Stretch<super::ThreadPosition>| w.is.cpu == cpu && !w.is.by_cpu;
            let was = lane.was.iter().filter(own).filter(|w| w.is.class != ROOT);
            all.extend(was.map(|w| stretch(w.from_ns, w.until_ns).with(w.is.class.as_str())));
        }
        all
    }

    /// What members of these classes may fill, cut where a class or a mask changes.
    fn filled(&self, cache: &Cache, all: &[InClass<'_>]) -> Vec<Stretch<Vec<Filling>>> {
        let classes: BTreeSet<&str> = all.iter().map(|one| one.is).collect();
        let masks = |class: &str| {
            let key = (class.to_owned(), cache.place.clone());
            self.masks.get(&key).into_iter().flatten()
        };
        let mut times: BTreeSet<u64> = all.iter().flat_map(|s| [s.from_ns, s.until_ns]).collect();
        let cuts = classes.iter().flat_map(|class| masks(class));
        times.extend(cuts.flat_map(|s| [s.from_ns, s.until_ns]));
        let times: Vec<u64> = times.into_iter().collect();
        let mut found: Vec<Stretch<Vec<Filling>>> = Vec::new();
        for pair in times.windows(2) {
            let over = |from: u64, until: u64| from <= pair[0] && pair[1] <= until;
            let in_force = all.iter().filter(|s| over(s.from_ns, s.until_ns));
            let classes: BTreeSet<&str> = in_force.map(|s| s.is).collect();
            let filling = |class: &&str| {
                let mask = masks(class).find(|m| over(m.from_ns, m.until_ns))?;
                Some(Filling {
                    class: (*class).to_owned(),
                    mask: mask.is,
                })
            };
            let is: Vec<Filling> = classes.iter().filter_map(filling).collect();
            match found.last_mut() {
                Some(last) if last.until_ns == pair[0] && last.is == is => last.until_ns = pair[1],
                _ if is.is_empty() => {}
                _ => found.push(stretch(pair[0], pair[1]).with(is)),
            }
        }
        found
    }
}

fn stretch(from_ns: u64, until_ns: u64) -> Stretch<()> {
    Stretch {
        from_ns,
        until_ns,
        is: (),
    }
}

impl Stretch<()> {
    fn with<T>(&self, is: T) -> Stretch<T> {
        Stretch {
            from_ns: self.from_ns,
            until_ns: self.until_ns,
            is,
        }
    }
}
