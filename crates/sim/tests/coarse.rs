//! The coarse machine against the detailed one, on programs made from the figures of recorded ones.
//! `docs/results/2026-11-25-smt-coarse.md` has what these studies print.

#![allow(
    clippy::unwrap_used,
    clippy::cast_sign_loss,
    reason = "a test fails by panicking, and no time is negative"
)]

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use quell_control::schedule::named::{Known, named};
use quell_sim::board::Board;
use quell_sim::coarse::World;
use quell_sim::coarse::chip::{Chip, Fit, Thread};
use quell_sim::coarse::process::{Process, Run};
use quell_sim::frames::{Frames, Placement};
use quell_sim::pattern::{Pattern, Recorded};
use quell_sim::profile::Profile;
use quell_sim::recorded::{Phase, Program, built_in, parse};
use quell_sim::{Description, Machine};
use quell_types::options::SchedulerPolicy;
use quell_types::rng::Rng;
use quell_types::units::Nanos;

/// Picoseconds of a millisecond.
const MS: u64 = 1_000_000_000;

/// A program in one of its phases.
type Part<'p> = (&'p Program, &'p Phase);

fn board() -> Board {
    let mut board = Board::of(Profile::built_in("xeon-e5645").unwrap()).unwrap();
    board.description.prefetcher = None;
    // Made programs have no locality within a page, so the TLB would miss where real ones hit.
    board.description.tlb = None;
    board
}

/// Linux numbers the first threads of all cores first: seats of core 0 are threads 0 and 6.
fn thread_of(seat: usize, cores: usize) -> usize {
    seat / 2 + seat % 2 * cores
}

/// Instructions per cycle of programs that run together, on seats in order: two on each core.
fn detailed(description: &Description, parts: &[Part<'_>], seats: &[usize]) -> Vec<f64> {
    let mut machine = Machine::new(description).unwrap();
    let mut frames = Frames::new(21, 1);
    for (n, (program, phase)) in parts.iter().enumerate() {
        let pattern = Pattern::Recorded(Recorded::new(program, phase, n as u64 + 1));
        let space = frames
            .allocate(Recorded::bytes(), &Placement::Plain)
            .unwrap();
        machine.start(thread_of(seats[n], 6), pattern, space, 0);
    }
    let (from, to) = (8 * MS, 16 * MS);
    let instructions = |machine: &Machine, now| {
        let of = |n: usize| {
            machine
                .program_counts(thread_of(seats[n], 6), now)
                .unwrap()
                .instructions
        };
        (0..parts.len()).map(of).collect::<Vec<_>>()
    };
    machine.run(from);
    let before = instructions(&machine, from);
    machine.run(to);
    let cycles = ((to - from) / description.clock) as f64;
    let after = instructions(&machine, to);
    after
        .iter()
        .zip(before)
        .map(|(after, before)| (after - before) as f64 / cycles)
        .collect()
}

fn coarse(chip: &Chip, parts: &[Part<'_>], seats: &[usize]) -> Vec<f64> {
    let threads: Vec<_> = parts
        .iter()
        .zip(seats)
        .map(|((program, phase), seat)| Thread {
            phase,
            cpi: program.cpi,
            overlap: program.overlap,
            core: seat / 2,
        })
        .collect();
    chip.balance(&threads).iter().map(|pace| pace.ipc).collect()
}

/// Does `work` for each number below `count` on two threads.
fn each<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= count {
                        return;
                    }
                    let result = work(n);
                    done.lock().unwrap().push((n, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap();
    done.sort_by_key(|(n, _)| *n);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Synthetic loads: what a thread does, how many of them run, and whether two share a core.
fn synthetic() -> Vec<(String, Vec<usize>)> {
    let mut all = Vec::new();
    let phase = |l1: f64, l2: f64, l3: f64, overlap: f64, cpi: f64| {
        format!(
            "quell-programs = 1\nsizes = [\"1MiB\", \"16MiB\"]\n[program.x]\nlike = \"-\"\ninstructions = 1e9\ncpi = {cpi}\noverlap = {overlap}\n\
             [[program.x.phase]]\naccesses = 400.0\nstores = 100.0\nl1 = {l1}\nl2 = {l2}\nl3 = [{l3}, {l3}]\nwritten = 0.2\n"
        )
    };
    for seats in [
        vec![0],
        vec![0, 2],
        (0..6).map(|n| 2 * n).collect(),
        vec![0, 1],
        (0..12).collect(),
    ] {
        for overlap in [1.0, 3.0, 8.0] {
            for (l1, l2, l3) in [
                (40.0, 0.0, 0.0),
                (10.0, 10.0, 10.0),
                (50.0, 50.0, 50.0),
                (20.0, 2.0, 2.0),
            ] {
                for cpi in [0.5, 1.0] {
                    all.push((phase(l1, l2, l3, overlap, cpi), seats.clone()));
                }
            }
        }
    }
    all
}

fn mean(of: &[f64]) -> f64 {
    of.iter().sum::<f64>() / of.len() as f64
}

fn p95(of: &[f64]) -> f64 {
    let mut of = of.to_vec();
    of.sort_by(f64::total_cmp);
    of[(of.len() * 95).div_ceil(100) - 1]
}

/// Prints the fit with the least mean error of IPC over synthetic loads.
#[test]
#[ignore = "a study: minutes of computing"]
fn fit() {
    let board = board();
    let loads = synthetic();
    let programs: Vec<_> = loads.iter().map(|(text, _)| parse(text).unwrap()).collect();
    let part = |n: usize| {
        let program = &programs[n]["x"];
        (program, &program.phases[0])
    };
    let seen = each(loads.len(), |n| {
        let parts = vec![part(n); loads[n].1.len()];
        mean(&detailed(&board.description, &parts, &loads[n].1))
    });
    let errors = |fit: Fit| -> Vec<f64> {
        let chip = Chip::of(&board, fit).unwrap();
        let of = |n: usize| {
            let parts = vec![part(n); loads[n].1.len()];
            mean(&coarse(&chip, &parts, &loads[n].1)) / seen[n] - 1.0
        };
        (0..loads.len()).map(of).collect()
    };
    let cost = |fit: Fit| mean(&errors(fit).iter().map(|e| e.abs()).collect::<Vec<_>>());
    let mut best = Fit::FITTED;
    let mut least = cost(best);
    let mut step = 1.6;
    while step > 1.01 {
        let before = least;
        for change in [
            |fit: &mut Fit, by: f64| fit.rows *= by,
            |fit: &mut Fit, by: f64| fit.queueing *= by,
            |fit: &mut Fit, by: f64| fit.sustained = (fit.sustained * by).min(1.0),
            |fit: &mut Fit, by: f64| fit.waits *= by,
        ] {
            for by in [step, 1.0 / step] {
                let mut fit = best;
                change(&mut fit, by);
                let cost = cost(fit);
                if cost < least {
                    (best, least) = (fit, cost);
                }
            }
        }
        if least >= before {
            step = 1.0 + (step - 1.0) / 2.0;
        }
    }
    println!("{best:?}: mean error {least:.4}");
    for (n, error) in errors(best).iter().enumerate() {
        let (program, phase) = part(n);
        let of = |bytes: f64| phase.curve.misses(bytes) * 1e3;
        println!(
            "seats {:?} cpi {} overlap {} l1 {} l2 {} l3 {}: detailed {:.3}, error {:+.3}",
            loads[n].1,
            program.cpi,
            program.overlap,
            of(32768.0),
            of(262_144.0),
            of(1e7),
            seen[n],
            error
        );
    }
}

/// Ranks, the smallest first.
fn ranks(of: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..of.len()).collect();
    order.sort_by(|a, b| of[*a].total_cmp(&of[*b]));
    let mut ranks = vec![0.0; of.len()];
    for (rank, n) in order.into_iter().enumerate() {
        ranks[n] = rank as f64;
    }
    ranks
}

fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let (a, b) = (ranks(a), ranks(b));
    let (ma, mb) = (mean(&a), mean(&b));
    let product: f64 = a.iter().zip(&b).map(|(a, b)| (a - ma) * (b - mb)).sum();
    let squares = |of: &[f64], m: f64| of.iter().map(|v| (v - m) * (v - m)).sum::<f64>();
    product / (squares(&a, ma) * squares(&b, mb)).sqrt()
}

fn errors(coarse: &[f64], detailed: &[f64]) -> Vec<f64> {
    coarse
        .iter()
        .zip(detailed)
        .map(|(c, d)| (c / d - 1.0).abs())
        .collect()
}

/// Co-schedules that the fit never saw: each two programs on one core, and draws of twelve.
#[test]
#[ignore = "a study: minutes of computing"]
fn held_out() {
    let board = board();
    let chip = Chip::of(&board, Fit::FITTED).unwrap();
    let mut rng = Rng::new(1);
    // The coarse machine gets what the made programs really miss.
    let made = |parts: &[Part<'_>], seats: &[usize]| {
        let phases: Vec<Phase> = parts
            .iter()
            .map(|(_, phase)| Recorded::made(phase))
            .collect();
        let parts: Vec<Part<'_>> = parts
            .iter()
            .map(|(program, _)| *program)
            .zip(&phases)
            .collect();
        coarse(&chip, &parts, seats)
    };
    // Each program in a phase that is drawn.
    let parts: Vec<Part<'_>> = built_in()
        .values()
        .map(|program| {
            (
                program,
                &program.phases[rng.below(program.phases.len() as u32) as usize],
            )
        })
        .collect();
    let alone = each(parts.len(), |n| {
        detailed(&board.description, &[parts[n]], &[0])[0]
    });
    let predicted: Vec<f64> = parts.iter().map(|part| made(&[*part], &[0])[0]).collect();
    let error = errors(&predicted, &alone);
    println!(
        "alone: mean error {:.3}, p95 {:.3}",
        mean(&error),
        p95(&error)
    );
    for (n, name) in built_in().keys().enumerate() {
        println!(
            "  {name}: detailed {:.3}, coarse {:.3}",
            alone[n], predicted[n]
        );
    }
    let pairs: Vec<(usize, usize)> = (0..parts.len())
        .flat_map(|a| (0..a).map(move |b| (a, b)))
        .collect();
    let of = |(a, b): (usize, usize)| [parts[a], parts[b]];
    let seen = each(pairs.len(), |n| {
        detailed(&board.description, &of(pairs[n]), &[0, 1])
    });
    let guessed: Vec<Vec<f64>> = pairs.iter().map(|pair| made(&of(*pair), &[0, 1])).collect();
    let error = errors(&guessed.concat(), &seen.concat());
    let cost = |ipc: &[Vec<f64>], alone: &[f64]| -> Vec<f64> {
        let each = ipc.iter().zip(&pairs);
        each.map(|(ipc, (a, b))| 2.0 - ipc[0] / alone[*a] - ipc[1] / alone[*b])
            .collect()
    };
    println!(
        "{} pairs: mean error {:.3}, p95 {:.3}, rank correlation of their costs {:.3}",
        pairs.len(),
        mean(&error),
        p95(&error),
        correlation(&cost(&seen, &alone), &cost(&guessed, &predicted))
    );
    let draws: Vec<Vec<Part<'_>>> = (0..100)
        .map(|_| {
            (0..12)
                .map(|_| parts[rng.below(parts.len() as u32) as usize])
                .collect()
        })
        .collect();
    let seats: Vec<usize> = (0..12).collect();
    let seen = each(draws.len(), |n| {
        detailed(&board.description, &draws[n], &seats)
    });
    let guessed: Vec<Vec<f64>> = draws.iter().map(|draw| made(draw, &seats)).collect();
    let error = errors(&guessed.concat(), &seen.concat());
    println!(
        "100 draws of twelve: mean error {:.3}, p95 {:.3}",
        mean(&error),
        p95(&error)
    );
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
            while world.processes.iter().any(|p| p.first.is_none()) {
                world.step(1e12).unwrap();
            }
            let of = |each: fn(&Run) -> f64| -> Vec<f64> {
                let runs = world.processes.iter().filter_map(|p| p.first.as_ref());
                runs.map(each).collect()
            };
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
