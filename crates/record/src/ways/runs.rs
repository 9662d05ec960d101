//! Which thread ran on which CPU from when to when, by context switches.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use quell_types::cpuset::CpuId;

use super::lanes::{Stretch, ThreadPosition, Timeline};
use super::{Cache, ROOT};

/// A run of a thread: `[thread, begin, length]`. The begin is in nanoseconds before the sample that
/// has the run, the length in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "[u64; 3]", into = "[u64; 3]")]
#[schemars(with = "[u64; 3]")]
pub struct Run {
    /// Number of the thread.
    pub tid: u32,
    /// Nanoseconds from its begin to the sample.
    pub before_ns: u64,
    /// Its length in nanoseconds.
    pub ns: u64,
}

impl From<[u64; 3]> for Run {
    fn from([tid, before_ns, ns]: [u64; 3]) -> Self {
        Self {
            // No thread has a number beyond that.
            tid: u32::try_from(tid).unwrap_or(u32::MAX),
            before_ns,
            ns,
        }
    }
}

impl From<Run> for [u64; 3] {
    fn from(run: Run) -> Self {
        [u64::from(run.tid), run.before_ns, run.ns]
    }
}

/// What ran in a stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Number of the thread.
    pub tid: u32,
    /// The class whose ways it filled there, by its place in [`Timeline::classes`].
    pub class: usize,
}

/// How much a thread ran on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadRan {
    /// Number of the thread.
    pub tid: u32,
    /// Nanoseconds.
    pub ns: u64,
    /// How often it came.
    pub runs: u64,
}

/// What ran on a CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreRan {
    /// The CPU.
    pub cpu: CpuId,
    /// Its threads, the one that ran longest first.
    pub threads: Vec<ThreadRan>,
}

impl Timeline {
    /// Takes over the runs of a CPU that a sample has.
    pub(super) fn runs(&mut self, at: u64, cpu: CpuId, runs: &[Run]) {
        let mut all = self.ran.remove(&cpu).unwrap_or_default();
        for run in runs {
            let from_ns = at.saturating_sub(run.before_ns);
            let until_ns = from_ns.saturating_add(run.ns).min(at);
            let class = self.class_at(run.tid, cpu, from_ns.midpoint(until_ns));
            let class = self.place_of(&class);
            let is = Ran {
                tid: run.tid,
                class,
            };
            match all.last_mut() {
                // It ran on through the sample before.
                Some(last) if last.until_ns == from_ns && last.is == is => last.until_ns = until_ns,
                _ if from_ns < until_ns => all.push(Stretch {
                    from_ns,
                    until_ns,
                    is,
                }),
                _ => {}
            }
        }
        self.ran.insert(cpu, all);
    }

    /// The class of a thread on a CPU, as the samples around that moment say.
    fn class_at(&self, tid: u32, cpu: CpuId, at: u64) -> String {
        let was = self
            .threads
            .get(&tid)
            .into_iter()
            .flat_map(|lane| &lane.was);
        // What is seen first counts for the time before, too.
        let own = was
            .clone()
            .rev()
            .find(|w| w.from_ns <= at)
            .or(was.clone().next());
        let by_cpu = |is: &ThreadPosition| is.by_cpu || is.class == ROOT;
        match own.filter(|w| !by_cpu(&w.is)) {
            Some(own) => own.is.class.clone(),
            None => self.class_of_cpu(cpu, at).to_owned(),
        }
    }

    /// The class of a CPU at a moment.
    fn class_of_cpu(&self, cpu: CpuId, at: u64) -> &str {
        let mut classes = self.cpus.iter().filter(|(class, _)| *class != ROOT);
        let has = |all: &[Stretch<quell_types::cpuset::CpuSet>]| {
            let then = all
                .iter()
                .rev()
                .find(|c| c.from_ns <= at && at < c.until_ns);
            then.is_some_and(|c| c.is.contains(cpu))
        };
        let found = classes.find(|(_, all)| has(all));
        found.map_or(ROOT, |(class, _)| class.as_str())
    }

    fn place_of(&mut self, class: &str) -> usize {
        let known = self.classes.iter().position(|known| known == class);
        known.unwrap_or_else(|| {
            self.classes.push(class.to_owned());
            self.classes.len() - 1
        })
    }

    /// What ran on the CPUs of a cache. Empty where switches were not recorded.
    #[must_use]
    pub fn ran_on(&self, cache: &Cache) -> Vec<CoreRan> {
        let here = self
            .ran
            .iter()
            .filter(|(cpu, _)| cache.cpus.contains(**cpu));
        let core = |(cpu, all): (&CpuId, &Vec<Stretch<Ran>>)| {
            let mut threads: BTreeMap<u32, ThreadRan> = BTreeMap::new();
            for run in all {
                let sum = threads.entry(run.is.tid).or_insert(ThreadRan {
                    tid: run.is.tid,
                    ns: 0,
                    runs: 0,
                });
                sum.ns += run.ns();
                sum.runs += 1;
            }
            let mut threads: Vec<ThreadRan> = threads.into_values().collect();
            threads.sort_by_key(|thread| (std::cmp::Reverse(thread.ns), thread.tid));
            CoreRan { cpu: *cpu, threads }
        };
        here.map(core).collect()
    }

    /// The part of each of `columns` equal columns of time in which each class ran on a CPU, by its
    /// place in [`Timeline::classes`]. Of one thread, or of all.
    #[must_use]
    pub fn shares(
        &self,
        cpu: CpuId,
        tid: Option<u32>,
        columns: usize,
    ) -> Vec<BTreeMap<usize, f64>> {
        let mut all = vec![BTreeMap::new(); columns];
        let wide = self.end_ns as f64 / columns.max(1) as f64;
        let runs = self.ran.get(&cpu).into_iter().flatten();
        for run in runs.filter(|run| tid.is_none_or(|tid| run.is.tid == tid)) {
            let (from, until) = (run.from_ns as f64 / wide, run.until_ns as f64 / wide);
            let first = u128::from(run.from_ns) * columns as u128 / u128::from(self.end_ns.max(1));
            let first = usize::try_from(first).unwrap_or(columns);
            for (n, column) in all.iter_mut().enumerate().skip(first) {
                let part = until.min(n as f64 + 1.0) - from.max(n as f64);
                if part <= 0.0 {
                    break;
                }
                *column.entry(run.is.class).or_insert(0.0) += part;
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use quell_types::partition::Mask;

    use super::*;
    use crate::ways::{Change, Class, Place, Snapshot, Thread, changes};

    const SECOND: u64 = 1_000_000_000;

    fn cache() -> Cache {
        Cache {
            place: Place::new("L3", 0),
            bits: 8,
            bytes: 8 << 20,
            cpus: [0, 1].into_iter().collect(),
            least: 1,
            shareable: Mask(0),
        }
    }

    fn thread(pid: u32, class: &str, cpu: CpuId) -> Thread {
        Thread {
            pid,
            name: "t".to_owned(),
            class: class.to_owned(),
            cpu,
            passing: class == ROOT,
        }
    }

    /// A sample each second, with the classes `db` of thread 7 and `cos` of CPU 1. Thread 7 is in
    /// `db` from the second sample on, thread 8 in no class.
    fn timeline(ran: &[(u64, CpuId, Run)]) -> Timeline {
        let mut all = vec![(
            0,
            Change::Machine {
                caches: vec![cache()],
                registers: false,
            },
        )];
        let mut before = Snapshot::default();
        for n in 0..4 {
            let mut seen = Snapshot::default();
            for name in [ROOT, "cos", "db"] {
                seen.classes.insert(name.to_owned(), Class::default());
            }
            if let Some(cos) = seen.classes.get_mut("cos") {
                cos.cpus = [1].into_iter().collect();
            }
            let class = if n < 2 { ROOT } else { "db" };
            seen.threads.insert(7, thread(7, class, 0));
            seen.threads.insert(8, thread(8, ROOT, 1));
            let at = n * SECOND;
            all.extend(changes(&before, &seen).into_iter().map(|c| (at, c)));
            let here = ran.iter().filter(|(then, ..)| *then == n);
            all.extend(here.map(|(_, cpu, run)| {
                let runs = vec![*run];
                (at, Change::Ran { cpu: *cpu, runs })
            }));
            before = seen;
        }
        Timeline::of(all.iter().map(|(at, c)| (*at, c)), 4 * SECOND)
    }

    const fn run(tid: u32, before_ns: u64, ns: u64) -> Run {
        Run { tid, before_ns, ns }
    }

    #[test]
    fn runs_have_the_class_of_their_thread_or_cpu_then() {
        let timeline = timeline(&[
            (1, 0, run(7, SECOND, SECOND)),
            (2, 0, run(7, SECOND, SECOND)),
            (3, 0, run(7, SECOND / 2, SECOND / 4)),
            (2, 1, run(8, SECOND, SECOND / 2)),
            (3, 1, run(7, SECOND, SECOND / 2)),
        ]);
        let on = |cpu: CpuId| -> Vec<(u64, u64, u32, &str)> {
            let all = timeline.ran[&cpu].iter();
            all.map(|r| {
                let class = timeline.classes[r.is.class].as_str();
                (r.from_ns, r.until_ns, r.is.tid, class)
            })
            .collect()
        };
        // It is in the class from the sample on that says so. A run that a sample cuts is one.
        assert_eq!(
            on(0),
            [
                (0, 2 * SECOND, 7, ROOT),
                (5 * SECOND / 2, 11 * SECOND / 4, 7, "db"),
            ]
        );
        assert_eq!(
            on(1),
            [
                (SECOND, 3 * SECOND / 2, 8, "cos"),
                (2 * SECOND, 5 * SECOND / 2, 7, "db"),
            ]
        );
        let ran = timeline.ran_on(&cache());
        let of = |tid, ns, runs| ThreadRan { tid, ns, runs };
        assert_eq!(ran[0].threads, [of(7, 9 * SECOND / 4, 2)]);
        assert_eq!(ran[1].threads, [of(7, SECOND / 2, 1), of(8, SECOND / 2, 1)]);
    }

    #[test]
    fn shares_are_the_part_of_each_column_that_ran() {
        let timeline = timeline(&[
            (1, 1, run(8, 3 * SECOND / 4, SECOND / 2)),
            (3, 1, run(8, SECOND, SECOND)),
        ]);
        let shares = timeline.shares(1, None, 4);
        let sums: Vec<f64> = shares.iter().map(|c| c.values().sum()).collect();
        assert_eq!(sums, [0.5, 0.0, 1.0, 0.0]);
        assert!(
            timeline
                .shares(1, Some(7), 4)
                .iter()
                .all(BTreeMap::is_empty)
        );
        assert!(timeline.shares(0, None, 4).iter().all(BTreeMap::is_empty));
    }

    #[test]
    fn a_run_is_three_numbers_in_a_record() {
        let change = Change::Ran {
            cpu: 1,
            runs: vec![run(7, 20, 10)],
        };
        let line = serde_json::to_string(&change).unwrap();
        assert_eq!(line, r#"{"what":"ran","cpu":1,"runs":[[7,20,10]]}"#);
        assert_eq!(serde_json::from_str::<Change>(&line).unwrap(), change);
    }

    #[test]
    fn damaged_runs_lie_within_the_record() {
        let timeline = timeline(&[
            (1, 0, run(7, 9 * SECOND, u64::MAX)),
            (2, 0, run(9, 0, SECOND)),
        ]);
        let all = timeline.ran.values().flatten();
        assert!(all.clone().count() == 1);
        assert!(
            all.clone()
                .all(|r| r.from_ns < r.until_ns && r.until_ns <= timeline.end_ns)
        );
        assert!(timeline.shares(0, None, 0).is_empty());
    }
}
