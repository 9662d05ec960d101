//! Co-schedules that the fit never saw: each two programs on one core, and draws of twelve.

use super::*;
use quell_sim::coarse::chip::Fit;

/// Prints mean and 95th percentile of the errors, and the mean with its sign of each program.
fn report(what: &str, who: &[Vec<usize>], guessed: &[Vec<f64>], seen: &[Vec<f64>]) {
    let all = errors(&guessed.concat(), &seen.concat());
    println!("{what}: mean error {:.4}, p95 {:.4}", mean(&all), p95(&all));
    for (n, name) in built_in().keys().enumerate() {
        let ratios = guessed.concat().into_iter().zip(seen.concat());
        let own = who.concat().into_iter().zip(ratios);
        let own: Vec<f64> = own
            .filter(|(of, _)| *of == n)
            .map(|(_, (guessed, seen))| guessed / seen - 1.0)
            .collect();
        println!("  {name}: {:+.3}", mean(&own));
    }
}

/// Each seed draws other phases and other twelves.
fn held_out(seed: u64) {
    let board = board();
    let chip = Chip::of(&board, Fit::FITTED).unwrap();
    let mut rng = Rng::new(seed);
    let parts = drawn(&mut rng);
    let of = |who: &[usize]| -> Vec<Part<'_>> { who.iter().map(|n| parts[*n]).collect() };
    let study = |what: &str, who: &[Vec<usize>]| {
        let all: Vec<usize> = (0..12).collect();
        let seats = |n: usize| -> &[usize] { &all[..who[n].len()] };
        let seen = each(who.len(), |n| {
            detailed(&board.description, &of(&who[n]), seats(n))
        });
        let guess = |n: usize| coarse(&chip, &of(&who[n]), seats(n));
        let guessed: Vec<Vec<f64>> = (0..who.len()).map(guess).collect();
        report(what, who, &guessed, &seen);
        (guessed, seen)
    };
    let alone: Vec<Vec<usize>> = (0..parts.len()).map(|n| vec![n]).collect();
    let (guessed_alone, seen_alone) = study("alone", &alone);
    let pairs: Vec<Vec<usize>> = (0..parts.len())
        .flat_map(|a| (0..a).map(move |b| vec![a, b]))
        .collect();
    let (guessed, seen) = study("276 pairs", &pairs);
    // What two lose next to each other.
    let cost = |ipc: &[Vec<f64>], alone: &[Vec<f64>]| -> Vec<f64> {
        let of = |(pair, ipc): (&Vec<usize>, &Vec<f64>)| {
            2.0 - ipc[0] / alone[pair[0]][0] - ipc[1] / alone[pair[1]][0]
        };
        pairs.iter().zip(ipc).map(of).collect()
    };
    let rank = correlation(&cost(&seen, &seen_alone), &cost(&guessed, &guessed_alone));
    println!("rank correlation of the pairs' costs {rank:.4}");
    let mut twelve = || -> Vec<usize> {
        let one = |_| rng.below(parts.len() as u32) as usize;
        (0..12).map(one).collect()
    };
    let draws: Vec<Vec<usize>> = (0..100).map(|_| twelve()).collect();
    study("100 draws of twelve", &draws);
}

#[test]
#[ignore = "a study: tens of minutes of computing"]
fn held_out_co_schedules() {
    held_out(1);
}

/// Drawn once the model was done.
#[test]
#[ignore = "a study: tens of minutes of computing"]
fn held_out_phases_drawn_afterwards() {
    held_out(2);
}
