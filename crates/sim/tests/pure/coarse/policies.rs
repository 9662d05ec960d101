//! Policies on the detailed machine and on the coarse one.

use std::sync::Arc;

use quell_control::schedule::named::{Known, named};
use quell_control::schedule::{Alone, Cores, Member, Seat};
use quell_sim::coarse::World;
use quell_sim::coarse::chip::Fit;
use quell_sim::coarse::process::{Process, Run};
use quell_sim::{Counts, Program as OnCore};
use quell_types::options::SchedulerPolicy;
use quell_types::units::Nanos;

use super::*;

/// Half of the processor, so that twelve programs wait as much as 24 on all of it.
const CORES: Cores = Cores {
    count: 3,
    threads: 2,
};
/// For how long a decision holds, in microseconds. What it is on real machines would take hours
/// here.
const QUANTUM: f64 = 1_000.0;
/// Microseconds that each program takes alone.
const LENGTH: f64 = 10_000.0;
/// Policies that need no recording and know no more than others.
const POLICIES: [SchedulerPolicy; 9] = [
    SchedulerPolicy::Linux,
    SchedulerPolicy::Random,
    SchedulerPolicy::Worst,
    SchedulerPolicy::Select,
    SchedulerPolicy::Pair,
    SchedulerPolicy::BandwidthAware,
    SchedulerPolicy::Bounded,
    SchedulerPolicy::Progress,
    SchedulerPolicy::Fair,
];

/// What a mix came to.
#[derive(Clone, Copy, Debug)]
struct Totals {
    average_ipc: f64,
    stp: f64,
    unfairness: f64,
    last_ms: f64,
}

impl Totals {
    /// By program: its IPC on a CPU, and the microseconds from its beginning to its end.
    fn of(each: &[(f64, f64)]) -> Self {
        let progress: Vec<f64> = each.iter().map(|(_, took)| LENGTH / took).collect();
        let of = |first: f64, more: fn(f64, f64) -> f64| progress.iter().copied().fold(first, more);
        let last = each.iter().map(|(_, took)| *took).fold(0.0, f64::max);
        Self {
            average_ipc: mean(&each.iter().map(|(ipc, _)| *ipc).collect::<Vec<_>>()),
            stp: progress.iter().sum(),
            unfairness: of(0.0, f64::max) / of(f64::MAX, f64::min),
            last_ms: last / 1e3,
        }
    }
}

/// A program on the detailed machine.
struct Task {
    /// Where it waits while it is on no hardware thread.
    waits: Option<OnCore>,
    alone: Alone,
    /// What it had done before its last quantum, and after it.
    done: [Counts; 2],
    on_cpu: f64,
    waited: u32,
    /// Its IPC on a CPU and when it ended, once it has.
    ended: Option<(f64, f64)>,
}

impl Task {
    fn member(&self, now: f64, mhz: f64) -> Member {
        let [before, after] = self.done;
        let recent = |of: fn(&Counts) -> u64| (of(&after) - of(&before)) as f64 / QUANTUM;
        let alone = self.alone.ipc * mhz * now;
        let age = (now / QUANTUM).round() as u32;
        Member {
            alone: self.alone,
            memory: recent(|counts| counts.misses + counts.writebacks),
            first_level: recent(|counts| counts.accesses),
            ipc: recent(|counts| counts.instructions) / mhz,
            progress: match age {
                0 => 1.0,
                _ => after.instructions as f64 / alone,
            },
            age,
            waited: self.waited,
        }
    }

    /// It ran for a quantum that began at `from`.
    fn ran(&mut self, after: Counts, from: f64, mhz: f64) {
        self.done = [self.done[1], after];
        let [before, after] = self.done.map(|counts| counts.instructions as f64);
        let all = self.alone.ipc * mhz * LENGTH;
        let part = ((all - before) / (after - before).max(1.0)).min(1.0);
        self.on_cpu += QUANTUM * part;
        if after >= all && self.ended.is_none() {
            let ipc = all / (self.on_cpu * mhz);
            self.ended = Some((ipc, from + QUANTUM * part));
        }
    }
}

/// Each program alone on the detailed machine: instructions per cycle, and lines moved per
/// microsecond.
fn alone(description: &Description, part: Part<'_>, mhz: f64) -> Alone {
    let (mut machine, mut tasks) = begin(description, &[part], &[Alone::default()]);
    machine.switch(0, tasks[0].waits.take(), 0);
    let counts = |machine: &Machine, at| machine.program_counts(0, at).unwrap();
    let (from, to) = (4 * MS, 12 * MS);
    machine.run(from);
    let before = counts(&machine, from);
    machine.run(to);
    let after = counts(&machine, to);
    let per_us = |of: fn(&Counts) -> u64| (of(&after) - of(&before)) as f64 / 8e3;
    Alone {
        ipc: per_us(|counts| counts.instructions) / mhz,
        memory: per_us(|counts| counts.misses + counts.writebacks),
        time: LENGTH / 1e6,
    }
}

/// A machine, and the programs that wait to run on it. Their buffers have been touched.
fn begin(description: &Description, mix: &[Part<'_>], alone: &[Alone]) -> (Machine, Vec<Task>) {
    let mut machine = Machine::new(description).unwrap();
    let mut frames = Frames::new(21, 1);
    let task = |(n, (program, phase)): (usize, &Part<'_>)| {
        let pattern = Recorded::new(program, phase, n as u64 + 1).warm();
        let bytes = Recorded::bytes();
        let space = frames.allocate(bytes, &Placement::Plain).unwrap();
        machine.touch(0, 0, &space, Recorded::buffers(), false);
        let mut program = OnCore::endless(Pattern::Recorded(pattern), space, 0);
        program.number = n as u16;
        Task {
            waits: Some(program),
            alone: alone[n],
            done: [Counts::default(); 2],
            on_cpu: 0.0,
            waited: 0,
            ended: None,
        }
    };
    let tasks = mix.iter().enumerate().map(task).collect();
    (machine, tasks)
}

/// A mix on the detailed machine until each program has ended once.
fn in_detail(
    description: &Description,
    mix: &[Part<'_>],
    alone: &[Alone],
    policy: SchedulerPolicy,
    known: Known,
) -> Totals {
    let mhz = 1e6 / description.clock as f64;
    let quantum = (QUANTUM * 1e6) as u64;
    let mut policy = named(policy, known);
    let (mut machine, mut tasks) = begin(description, mix, alone);
    let thread = |seat: &Seat| thread_of(seat.core * 2 + seat.thread, 6);
    let (mut seats, mut at) = (Vec::new(), 0);
    while tasks.iter().any(|task| task.ended.is_none()) {
        let now = at as f64 / 1e6;
        let members: Vec<Member> = tasks.iter().map(|task| task.member(now, mhz)).collect();
        let next = policy.decide(&members, CORES).unwrap();
        for seat in seats.iter().filter(|seat| !next.contains(seat)) {
            tasks[seat.member].waits = machine.switch(thread(seat), None, at);
        }
        for seat in next.iter().filter(|seat| !seats.contains(seat)) {
            let program = tasks[seat.member].waits.take();
            machine.switch(thread(seat), program, at);
        }
        at += quantum;
        machine.run(at);
        tasks.iter_mut().for_each(|task| task.waited += 1);
        for seat in &next {
            let task = &mut tasks[seat.member];
            task.waited = 0;
            let counts = machine.program_counts(thread(seat), at).unwrap();
            task.ran(counts, now, mhz);
        }
        seats = next;
    }
    Totals::of(
        &tasks
            .iter()
            .filter_map(|task| task.ended)
            .collect::<Vec<_>>(),
    )
}

/// The same on the coarse machine.
fn coarsely(chip: &Chip, mix: &[Part<'_>], policy: SchedulerPolicy, known: Known) -> Totals {
    let mut chip = chip.clone();
    chip.cores = CORES.count;
    let mut world = World::new(chip, named(policy, known), QUANTUM, true);
    for (program, phase) in mix {
        let program = Program {
            phases: vec![Recorded::made(phase)],
            ..(*program).clone()
        };
        let process = Process::new(Arc::new(program), world.chip(), LENGTH, 0.0, 0.0);
        world.processes.push(process);
    }
    let each: Vec<(f64, f64)> = ended(&mut world)
        .iter()
        .map(|run| {
            let cycles = run.done.on_cpu * world.chip().mhz;
            (run.done.instructions / cycles, run.took)
        })
        .collect();
    Totals::of(&each)
}

/// Runs until each program has ended once.
fn ended(world: &mut World) -> Vec<Run> {
    while world.processes.iter().any(|p| p.first.is_none()) {
        world.step(1e12).unwrap();
    }
    let runs = world.processes.iter();
    runs.filter_map(|process| process.first).collect()
}

/// Two mixes of twelve programs on three cores, under all policies, on both machines.
#[test]
#[ignore = "a study: tens of minutes of computing"]
fn policies_on_mixes_of_twelve() {
    let board = board();
    let chip = Chip::of(&board, Fit::FITTED).unwrap();
    let known = Known {
        contention: chip.contention(),
        quantum: Nanos::micros(QUANTUM as u64),
        bound: 4,
        seed: 1,
    };
    let mut rng = Rng::new(12);
    let mut parts = drawn(&mut rng);
    rng.shuffle(&mut parts);
    for (n, mix) in parts.chunks(12).enumerate() {
        let own: Vec<Alone> = each(mix.len(), |n| alone(&board.description, mix[n], chip.mhz));
        let seen = each(POLICIES.len(), |n| {
            in_detail(&board.description, mix, &own, POLICIES[n], known)
        });
        let guessed = POLICIES.map(|policy| coarsely(&chip, mix, policy, known));
        for ((policy, seen), guessed) in POLICIES.iter().zip(&seen).zip(&guessed) {
            println!("mix {n}, {}: detailed {seen:.3?}", policy.name());
            println!("mix {n}, {}: coarse {guessed:.3?}", policy.name());
        }
        let rank = |of: fn(&Totals) -> f64| {
            let all = |totals: &[Totals]| totals.iter().map(of).collect::<Vec<_>>();
            correlation(&all(&seen), &all(&guessed))
        };
        println!(
            "mix {n}, rank correlations over policies: average IPC {:.2}, STP {:.2}, unfairness \
             {:.2}, last end {:.2}",
            rank(|totals| totals.average_ipc),
            rank(|totals| totals.stp),
            rank(|totals| totals.unfairness),
            rank(|totals| totals.last_ms)
        );
    }
}

/// The policies on all programs, with and without what caches cost that others have filled.
#[test]
#[ignore = "a study"]
fn switching() {
    let board = board();
    for refills in [true, false] {
        for policy in [
            SchedulerPolicy::Linux,
            SchedulerPolicy::Random,
            SchedulerPolicy::BandwidthAware,
            SchedulerPolicy::Fair,
        ] {
            let chip = Chip::of(&board, Fit::FITTED).unwrap();
            let quantum = if policy.is_kernels() { 3e3 } else { 2e5 };
            let known = Known {
                contention: chip.contention(),
                quantum: Nanos::micros(quantum as u64),
                bound: 4,
                seed: 1,
            };
            let mut world = World::new(chip, named(policy, known), quantum, refills);
            for (n, program) in built_in().values().enumerate() {
                let offset = n as f64 / 24.0;
                let process =
                    Process::new(Arc::new(program.clone()), world.chip(), 2e7, offset, 0.0);
                world.processes.push(process);
            }
            let runs = ended(&mut world);
            let of = |each: fn(&Run) -> f64| runs.iter().map(each).collect::<Vec<f64>>();
            let ipc = of(|run| run.done.instructions / run.done.on_cpu / 2400.0);
            let progress = of(|run| run.alone / run.took);
            println!(
                "caches cost {refills}, {}: average IPC {:.3}, STP {:.2}",
                policy.name(),
                mean(&ipc),
                progress.iter().sum::<f64>()
            );
        }
    }
}
