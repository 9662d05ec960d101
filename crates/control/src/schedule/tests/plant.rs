//! A small machine for the policies. Its speeds come from other formulas than the policies' own
//! estimate: a roofline per core, and a queue at memory.

use quell_types::rng::Rng;

use super::*;

/// A process, by what it does alone.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    /// Main-memory transactions per microsecond, on average.
    pub memory: f64,
    /// Where it is in its phases at the beginning, in quanta of work alone.
    pub phase: f64,
    /// What its IPC alone, first-level and main-memory rates are reported as, by what they are.
    pub reported: [f64; 3],
    /// First-level transactions per microsecond.
    pub first_level: f64,
    pub ipc: f64,
    /// Quanta that it takes.
    pub work: f64,
}

/// How a run goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Whether processes slow each other. Otherwise all run as fast as alone.
    pub contention: bool,
    /// Whether processes that end early start again, until each has ended once.
    pub restart: bool,
    /// Whether main-memory rates change with the work done: half as much again for fifteen quanta
    /// of work, then half as much.
    pub phases: bool,
}

/// What a run came to, until each process had ended once.
#[derive(Clone, Debug)]
pub struct Run {
    /// By process: the quanta in which it ran, divided by all.
    pub ran: Vec<f64>,
    /// By process: when it first ended, in quanta.
    pub ends: Vec<f64>,
    /// By process: the most quanta in a row that it waited.
    pub waits: Vec<u32>,
    /// Quanta of work alone that were done per quantum, by all together.
    pub throughput: f64,
    /// By quantum: what the running processes would ask of memory alone, in transactions per
    /// microsecond.
    pub asked: Vec<f64>,
    /// By quantum: the transactions per microsecond that they did.
    pub served: Vec<f64>,
}

impl Run {
    /// The processes that ran in less than a quarter of the quanta: half of an even share.
    pub fn starved(&self) -> Vec<usize> {
        let all = 0..self.ran.len();
        all.filter(|i| self.ran[*i] < 0.25).collect()
    }

    pub fn last(&self) -> f64 {
        self.ends.iter().copied().fold(0.0, f64::max)
    }

    /// The largest by the smallest normalized progress, waiting charged.
    pub fn unfairness(&self, processes: &[Process]) -> f64 {
        let progress = processes
            .iter()
            .zip(&self.ends)
            .map(|(p, end)| p.work / end);
        let progress: Vec<f64> = progress.collect();
        let most = progress.iter().copied().fold(0.0, f64::max);
        most / progress.iter().copied().fold(f64::MAX, f64::min)
    }
}

/// How fast each process on `groups` runs: 1 is as fast as alone. In the order of the groups.
fn speeds(now: &[Process], groups: &[Vec<usize>]) -> Vec<f64> {
    let of = |i: &usize| &now[*i];
    let mut cores = Vec::new();
    for group in groups {
        let issue: f64 = group.iter().map(|i| of(i).ipc / E5645.issue).sum();
        let ports: f64 = group.iter().map(|i| of(i).first_level / E5645.ports).sum();
        cores.extend(group.iter().map(|_| issue.max(ports).max(1.0)));
    }
    let running: Vec<&Process> = groups.iter().flatten().map(of).collect();
    let speeds = |load: f64| -> Vec<f64> {
        let late = load / (2.0 * (1.0 - load));
        let one = |(p, core): (&&Process, &f64)| 1.0 / (core + p.memory / E5645.thread * late);
        running.iter().zip(&cores).map(one).collect()
    };
    // The load at which memory serves what is then asked of it.
    let (mut low, mut high) = (0.0, 0.999);
    for _ in 0..40 {
        let load = (low + high) / 2.0;
        let asked = running.iter().zip(speeds(load)).map(|(p, s)| p.memory * s);
        if asked.sum::<f64>() / E5645.memory > load {
            low = load;
        } else {
            high = load;
        }
    }
    speeds(low)
}

/// What a process does after `done` quanta of work.
fn at(process: &Process, done: f64, phases: bool) -> Process {
    const LENGTH: f64 = 15.0;
    let high = ((process.phase + done) / LENGTH) % 2.0 < 1.0;
    let factor = match (phases, high) {
        (false, _) => 1.0,
        (true, true) => 1.5,
        (true, false) => 0.5,
    };
    Process {
        memory: process.memory * factor,
        ..*process
    }
}

/// Runs `policy` until each process has ended once.
pub fn run(policy: &mut dyn Scheduler, processes: &[Process], rules: Rules) -> Run {
    /// Longer than any policy takes that does not starve a process for ever.
    const MOST: u32 = 100_000;
    let n = processes.len();
    let mut members: Vec<Member> = processes.iter().map(begun).collect();
    let (mut done, mut ran, mut waits) = (vec![0.0; n], vec![0u32; n], vec![0u32; n]);
    let mut ends: Vec<Option<f64>> = vec![None; n];
    let (mut asked, mut served) = (Vec::new(), Vec::new());
    let mut quanta = 0;
    while quanta < MOST && ends.iter().any(Option::is_none) {
        let there: Vec<usize> = (0..n)
            .filter(|i| rules.restart || ends[*i].is_none())
            .collect();
        let runnable: Vec<Member> = there.iter().map(|i| members[*i]).collect();
        let seats = policy.decide(&runnable, CORES).unwrap();
        let mut groups = by_core(&seats, CORES);
        groups.iter_mut().flatten().for_each(|i| *i = there[*i]);
        let now: Vec<Process> = (0..n)
            .map(|i| at(&processes[i], done[i], rules.phases))
            .collect();
        let speeds = if rules.contention {
            speeds(&now, &groups)
        } else {
            vec![1.0; seats.len()]
        };
        for i in &there {
            members[*i].waited += 1;
        }
        let rates = groups.iter().flatten().map(|i| now[*i].memory);
        asked.push(rates.clone().sum());
        served.push(rates.zip(&speeds).map(|(rate, speed)| rate * speed).sum());
        for (i, speed) in groups.iter().flatten().zip(&speeds) {
            let (process, member) = (&now[*i], &mut members[*i]);
            let left = process.work - done[*i];
            if ends[*i].is_none() && left <= *speed {
                ends[*i] = Some(f64::from(quanta) + left / speed);
            }
            done[*i] += speed;
            ran[*i] += 1;
            member.waited = 0;
            member.memory = process.memory * speed * process.reported[2];
            member.first_level = process.first_level * speed * process.reported[1];
            member.ipc = process.ipc * speed;
        }
        quanta += 1;
        for i in there {
            let member = &mut members[i];
            waits[i] = waits[i].max(member.waited);
            member.age = quanta;
            member.progress = done[i] / f64::from(quanta) / processes[i].reported[0];
        }
    }
    let all = f64::from(quanta);
    Run {
        ran: ran.iter().map(|ran| f64::from(*ran) / all).collect(),
        ends: ends.iter().map(|e| e.unwrap_or(f64::INFINITY)).collect(),
        waits,
        throughput: done.iter().sum::<f64>() / all,
        asked,
        served,
    }
}

fn begun(process: &Process) -> Member {
    Member {
        alone: Alone {
            memory: process.memory * process.reported[2],
            ipc: process.ipc * process.reported[0],
            time: process.work,
        },
        ..Member::default()
    }
}

/// How the main-memory rates of the processes are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Evenly from 0 to 24 transactions per microsecond.
    Even,
    /// Evenly from 0 to 60, so that twelve ask for more than memory can do.
    Heavy,
    /// Evenly by their logarithm, from 0.1 to 50.
    Logarithm,
    /// Eighteen from 8 to 12, three from 0.1 to 1, three from 30 to 40.
    Kinds,
}

/// Twenty-four processes in random order. Each takes 60 to 180 quanta alone.
pub fn mix(spread: Spread, seed: u64) -> Vec<Process> {
    let mut rng = Rng::new(seed);
    let mut all: Vec<Process> = (0..24)
        .map(|n| {
            let memory = match spread {
                Spread::Even => between(&mut rng, 0.0, 24.0),
                Spread::Heavy => between(&mut rng, 0.0, 60.0),
                Spread::Logarithm => between(&mut rng, 0.1f64.ln(), 50f64.ln()).exp(),
                Spread::Kinds if n < 18 => between(&mut rng, 8.0, 12.0),
                Spread::Kinds if n < 21 => between(&mut rng, 0.1, 1.0),
                Spread::Kinds => between(&mut rng, 30.0, 40.0),
            };
            // What waits for memory executes less.
            let ipc = between(&mut rng, 0.5, 3.0) * (1.0 - memory / E5645.thread);
            Process {
                memory,
                first_level: 2_400.0 * ipc * between(&mut rng, 0.2, 0.6),
                ipc,
                work: between(&mut rng, 60.0, 180.0),
                phase: between(&mut rng, 0.0, 30.0),
                reported: [1.0; 3],
            }
        })
        .collect();
    rng.shuffle(&mut all);
    all
}

/// The same processes, of which each figure is reported up to `off` too high or too low.
pub fn misreported(processes: &[Process], off: f64, seed: u64) -> Vec<Process> {
    let mut rng = Rng::new(seed);
    let mut factor = || between(&mut rng, 1.0 - off, 1.0 + off);
    let one = |process: &Process| Process {
        reported: [factor(), factor(), factor()],
        ..*process
    };
    processes.iter().map(one).collect()
}

fn between(rng: &mut Rng, low: f64, high: f64) -> f64 {
    low + (high - low) * f64::from(rng.next_u32()) / f64::from(u32::MAX)
}
