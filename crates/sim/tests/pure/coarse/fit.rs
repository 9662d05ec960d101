//! The fit to the detailed machine, on synthetic loads.

use quell_sim::recorded::{Programs, parse};

use super::*;
use quell_sim::coarse::chip::Fit;

/// Synthetic programs: misses of the two private caches, and of caches of 1, 4 and 16 MiB, per
/// 1,000 instructions.
const MISSES: [(f64, f64, [f64; 3]); 7] = [
    (40.0, 0.0, [0.0, 0.0, 0.0]),
    (10.0, 10.0, [10.0, 10.0, 10.0]),
    (50.0, 50.0, [50.0, 50.0, 50.0]),
    (20.0, 2.0, [2.0, 2.0, 2.0]),
    (1.0, 0.0, [0.0, 0.0, 0.0]),
    (20.0, 15.0, [10.0, 2.0, 0.5]),
    (30.0, 10.0, [2.0, 0.5, 0.0]),
];

/// Each with 1, 3 and 8 misses under way together, and 0.3, 0.5 and 1 cycles per instruction.
fn synthetic() -> Vec<Programs> {
    let mut all = Vec::new();
    for overlap in [1.0, 3.0, 8.0] {
        for (l1, l2, l3) in MISSES {
            for cpi in [0.3, 0.5, 1.0] {
                let text = format!(
                    "quell-programs = 1\nsizes = [\"1MiB\", \"4MiB\", \"16MiB\"]\n\
                     [program.x]\nlike = \"-\"\ninstructions = 1e9\n\
                     cpi = {cpi}\noverlap = {overlap}\n[[program.x.phase]]\n\
                     accesses = 400.0\nstores = 100.0\nl1 = {l1}\nl2 = {l2}\n\
                     l3 = {l3:?}\nwritten = 0.2\n"
                );
                all.push(parse(&text).unwrap());
            }
        }
    }
    all
}

/// What runs together: a program for each seat, and the seats.
type Load = (Vec<usize>, Vec<usize>);

/// Each program alone and next to itself on a core, then pairs, sixes on a core each, and twelves,
/// drawn of all, and some of the same program.
fn loads(count: usize) -> Vec<(&'static str, Load)> {
    let mut all = Vec::new();
    for n in 0..count {
        all.push(("alone", (vec![n], vec![0])));
        all.push(("twice on a core", (vec![n; 2], vec![0, 1])));
    }
    let mut rng = Rng::new(77);
    let mut draw = |of: usize| -> Vec<usize> {
        let one = |_| rng.below(count as u32) as usize;
        (0..of).map(one).collect()
    };
    let apart: Vec<usize> = (0..6).map(|n| 2 * n).collect();
    let full: Vec<usize> = (0..12).collect();
    all.extend((0..60).map(|_| ("two on a core", (draw(2), vec![0, 1]))));
    all.extend((0..10).map(|_| ("six", (draw(6), apart.clone()))));
    all.extend((0..12).map(|_| ("twelve", (draw(12), full.clone()))));
    for n in [4, 7, 25, 28, 46, 49, 37, 16] {
        all.push(("the same six times", (vec![n; 6], apart.clone())));
    }
    for n in [4, 7, 25, 28, 46, 49, 37, 16] {
        all.push(("the same twelve times", (vec![n; 12], full.clone())));
    }
    all
}

/// Prints the fit with the least mean error of IPC over synthetic loads.
#[test]
#[ignore = "a study: minutes of computing"]
fn fit() {
    let board = board();
    let programs = synthetic();
    let loads = loads(programs.len());
    let parts = |n: usize| -> Vec<Part<'_>> {
        let programs = loads[n].1.0.iter().map(|n| &programs[*n]["x"]);
        programs.map(|of| (of, &of.phases[0])).collect()
    };
    let seats = |n: usize| &loads[n].1.1;
    let seen = each(loads.len(), |n| {
        detailed(&board.description, &parts(n), seats(n))
    });
    // By load.
    let off = |fit: Fit| -> Vec<Vec<f64>> {
        let chip = Chip::of(&board, fit).unwrap();
        let of = |n: usize| errors(&coarse(&chip, &parts(n), seats(n)), &seen[n]);
        (0..loads.len()).map(of).collect()
    };
    let cost = |fit: Fit| mean(&off(fit).concat());
    let mut best = Fit::FITTED;
    let mut least = cost(best);
    let mut step = 1.3;
    while step > 1.01 {
        let before = least;
        for change in [
            |fit: &mut Fit, by: f64| fit.rows *= by,
            |fit: &mut Fit, by: f64| fit.queueing *= by,
            |fit: &mut Fit, by: f64| fit.sustained = (fit.sustained * by).min(1.0),
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
    let off = off(best);
    let mut kinds: Vec<&str> = loads.iter().map(|(kind, _)| *kind).collect();
    kinds.dedup();
    kinds.sort_unstable();
    kinds.dedup();
    for kind in kinds {
        let of = (0..loads.len()).filter(|n| loads[*n].0 == kind);
        let of: Vec<f64> = of.flat_map(|n| off[n].clone()).collect();
        println!("{kind}: mean {:.4}, p95 {:.4}", mean(&of), p95(&of));
    }
}
