//! The coarse machine against the detailed one, on programs made from the figures of recorded ones.
//! `docs/results/2026-11-25-smt-coarse.md` has what these studies print.

#![allow(
    clippy::unwrap_used,
    clippy::cast_sign_loss,
    reason = "a test fails by panicking, and no time is negative"
)]

mod fit;
mod held_out;
mod policies;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use quell_sim::board::Board;
use quell_sim::coarse::chip::{Chip, Thread};
use quell_sim::frames::{Frames, Placement};
use quell_sim::pattern::{Pattern, Recorded};
use quell_sim::profile::Profile;
use quell_sim::recorded::{Phase, Program, built_in};
use quell_sim::{Description, Machine};
use quell_types::rng::Rng;

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

/// What the coarse machine says. It gets what the made programs really miss.
fn coarse(chip: &Chip, parts: &[Part<'_>], seats: &[usize]) -> Vec<f64> {
    let phases: Vec<Phase> = parts
        .iter()
        .map(|(_, phase)| Recorded::made(phase))
        .collect();
    let threads: Vec<_> = parts
        .iter()
        .zip(&phases)
        .zip(seats)
        .map(|(((program, _), phase), seat)| Thread {
            phase,
            cpi: program.cpi,
            overlap: program.overlap,
            core: seat / 2,
        })
        .collect();
    chip.balance(&threads).iter().map(|pace| pace.ipc).collect()
}

/// Each recorded program in a phase that is drawn.
fn drawn(rng: &mut Rng) -> Vec<Part<'static>> {
    let phase = |program: &'static Program| {
        let n = rng.below(program.phases.len() as u32) as usize;
        (program, &program.phases[n])
    };
    built_in().values().map(phase).collect()
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

fn mean(of: &[f64]) -> f64 {
    of.iter().sum::<f64>() / of.len() as f64
}

fn p95(of: &[f64]) -> f64 {
    let mut of = of.to_vec();
    of.sort_by(f64::total_cmp);
    of[(of.len() * 95).div_ceil(100) - 1]
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
