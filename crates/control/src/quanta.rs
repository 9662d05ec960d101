//! Turns of processes on CPUs, quantum by quantum: a policy of [`crate::schedule`], and what it has
//! to know of each process meanwhile.
//!
//! The caller says before each quantum which processes there are. Those that run, wait, come and go
//! are counted here.
//!
//! - Where counters are read, a process demands what it did per microsecond of CPU time in the last
//!   quantum that it ran in. Before that, and without counters, it demands what is declared.
//! - Whatever the policy, no process waits for more quanta than the bound
//!   ([`crate::schedule::within`]).
//! - With no more processes than CPUs all of them run.
//! - Where the cores have different numbers of CPUs, each CPU counts as a core of its own.

use std::collections::BTreeMap;

use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::units::{LINE_BYTES, Rate};

use crate::config::{ProgramDemand, Scheduling};
use crate::schedule::contention::Contention;
use crate::schedule::named::{Known, named};
use crate::schedule::selection::kept_bound;
use crate::schedule::within::within;
use crate::schedule::{Alone, Cores, Member, Scheduler};
use crate::work::Work;

/// A process that can run, by a number that it keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Its number. No other process ever has it.
    pub id: u64,
    /// What it demands, as far as that is not counted.
    pub demand: ProgramDemand,
    /// What it has done so far. `None` where no counter says so.
    pub did: Option<Work>,
}

/// A process and the CPU that it runs on for a quantum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The number of the process.
    pub id: u64,
    /// Its CPU.
    pub cpu: CpuId,
}

/// What is known of a process.
#[derive(Clone, Copy, Debug, Default)]
struct Past {
    /// Quanta since it was first seen.
    age: u32,
    /// Those of them in which it ran.
    ran: u32,
    /// Quanta since it last ran.
    waited: u32,
    /// Where it ran last.
    cpu: Option<CpuId>,
    /// What it had done when the last quantum began.
    did: Option<Work>,
    /// What it did in the last quantum that it ran in, as far as that was counted.
    last: Option<Work>,
    /// The sum of what it did in such quanta.
    whole: Work,
}

impl Past {
    /// Notes what a process has done until the end of a quantum.
    fn count(&mut self, did: Option<Work>) {
        if let (Some(before), Some(now)) = (self.did, did) {
            let work = now.since(before);
            // One that waited has done nothing, and one that slept shows no rate.
            if work.cpu_ns > 0 && self.age > 0 && self.waited == 0 {
                self.last = Some(work);
                self.whole = self.whole.with(work);
            }
        }
        self.did = did;
    }
}

/// The turns of processes, from one quantum to the next.
pub struct Quanta {
    policy: Box<dyn Scheduler + Send>,
    bound: u32,
    cores: Vec<Vec<CpuId>>,
    known: BTreeMap<u64, Past>,
}

/// Lines per microsecond: what policies take for transactions.
fn per_microsecond(rate: Rate) -> f64 {
    rate.0 as f64 / LINE_BYTES as f64 / 1e6
}

/// The CPUs of each core. Cores of different sizes are divided into single CPUs.
fn alike(cores: &[CpuSet]) -> Vec<Vec<CpuId>> {
    let size = cores.first().map_or(0, CpuSet::len);
    let cores = cores.iter().map(|core| core.iter().collect::<Vec<_>>());
    let cores: Vec<Vec<CpuId>> = cores.filter(|core| !core.is_empty()).collect();
    if cores.iter().all(|core| core.len() == size) {
        return cores;
    }
    cores.into_iter().flatten().map(|cpu| vec![cpu]).collect()
}

impl Quanta {
    /// The turns of `scheduling` on these cores, each with its CPUs. What is drawn comes from
    /// `seed`.
    #[must_use]
    pub fn new(scheduling: &Scheduling, cores: &[CpuSet], seed: u64) -> Self {
        let demands = scheduling.groups.values();
        // No rate of a core is known: the process that loads and stores most is taken to fill one.
        let ports = demands.map(|d| per_microsecond(d.first_level));
        let known = Known {
            contention: Contention {
                issue: 0.0,
                ports: ports.fold(0.0, f64::max),
                memory: scheduling.sustainable.map_or(0.0, per_microsecond),
                thread: scheduling.peak_cpu.map_or(f64::INFINITY, per_microsecond),
            },
            quantum: scheduling.quantum,
            bound: scheduling.bound,
            seed,
        };
        Self {
            policy: named(scheduling.policy, known),
            bound: scheduling.bound,
            cores: alike(cores),
            known: BTreeMap::new(),
        }
    }

    fn cores(&self) -> Cores {
        Cores {
            count: self.cores.len(),
            threads: self.cores.first().map_or(0, Vec::len),
        }
    }

    /// How many quanta one of so many processes waits at most, as long as none comes or goes.
    #[must_use]
    pub fn longest_wait(&self, processes: usize) -> u32 {
        kept_bound(self.bound, processes, self.cores().seats())
    }

    /// Says who runs in the next quantum, and where. All others of `ready` wait. A process that is
    /// not in `ready` any more is forgotten. Each has one turn at most, and so has each CPU.
    pub fn decide(&mut self, ready: &[Ready]) -> Vec<Turn> {
        let there = |id: &u64, _: &mut Past| ready.iter().any(|r| r.id == *id);
        self.known.retain(there);
        for one in ready {
            self.known.entry(one.id).or_default().count(one.did);
        }
        let members: Vec<Member> = ready.iter().map(|r| self.member(r)).collect();
        let cores = self.cores();
        if cores.seats() == 0 {
            return Vec::new();
        }
        // Only the exhaustive policy can have too many, and no policy file can name that one.
        let seats = self.policy.decide(&members, cores).unwrap_or_default();
        let seats = within(&members, self.bound, cores, seats);
        let mut groups: Vec<Vec<u64>> = vec![Vec::new(); cores.count];
        for seat in seats {
            let member = ready.get(seat.member);
            if let (Some(group), Some(member)) = (groups.get_mut(seat.core), member) {
                group.push(member.id);
            }
        }
        let turns = self.placed(groups);
        for Ready { id, .. } in ready {
            let past = self.known.entry(*id).or_default();
            past.age = past.age.saturating_add(1);
            match turns.iter().find(|turn| turn.id == *id) {
                Some(turn) => {
                    past.ran = past.ran.saturating_add(1);
                    past.waited = 0;
                    past.cpu = Some(turn.cpu);
                }
                None => past.waited = past.waited.saturating_add(1),
            }
        }
        turns
    }

    /// What the policy gets to know of a process.
    fn member(&self, ready: &Ready) -> Member {
        let past = self.known.get(&ready.id).copied().unwrap_or_default();
        let declared = [ready.demand.memory, ready.demand.first_level].map(per_microsecond);
        let declared = [0.0, declared[0], declared[1]];
        let [ipc, memory, first_level] = past.last.map_or(declared, Work::figures);
        let [_, average, _] = past.last.map_or(declared, |_| past.whole.figures());
        Member {
            alone: Alone {
                memory: average,
                ..Alone::default()
            },
            memory,
            first_level,
            ipc,
            progress: f64::from(past.ran) / f64::from(past.age.max(1)),
            age: past.age,
            waited: past.waited,
        }
    }

    /// Gives each group of processes a core, and each process a CPU of it. Cores are alike, so a
    /// group gets the core on which most of its processes ran last, and a process its last CPU,
    /// where these are free.
    fn placed(&self, groups: Vec<Vec<u64>>) -> Vec<Turn> {
        let last = |id: &u64| self.known.get(id).and_then(|past| past.cpu);
        let mut left: Vec<&Vec<CpuId>> = self.cores.iter().collect();
        let mut groups = groups;
        let stays = |group: &[u64], core: &[CpuId]| {
            let on = |id: &&u64| last(id).is_some_and(|cpu| core.contains(&cpu));
            group.iter().filter(on).count()
        };
        // Those with most to gain choose first.
        groups.sort_by_cached_key(|group| {
            let best = self.cores.iter().map(|core| stays(group, core)).max();
            std::cmp::Reverse(best)
        });
        let mut turns = Vec::new();
        for group in groups {
            let gain = |at: &usize| left.get(*at).map_or(0, |core| stays(&group, core));
            // The first of several equal ones.
            let Some(best) = (0..left.len()).rev().max_by_key(gain) else {
                break;
            };
            let mut free: Vec<CpuId> = left.remove(best).clone();
            let (staying, moving): (Vec<u64>, Vec<u64>) = group
                .into_iter()
                .partition(|id| last(id).is_some_and(|cpu| free.contains(&cpu)));
            let mut homeless = moving;
            for id in staying {
                let home = free.iter().position(|cpu| last(&id) == Some(*cpu));
                match home {
                    Some(at) => turns.push(Turn {
                        id,
                        cpu: free.remove(at),
                    }),
                    // Another process of the group ran there, too.
                    None => homeless.push(id),
                }
            }
            let rest = homeless.into_iter().zip(free);
            turns.extend(rest.map(|(id, cpu)| Turn { id, cpu }));
        }
        turns
    }
}

#[cfg(test)]
#[path = "quanta_tests.rs"]
mod tests;
