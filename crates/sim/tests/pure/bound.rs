//! How much of what could be had `fair` gets. The bound is the largest smallest progress of any
//! schedule whose programs share cores pair by pair and nothing else: a linear program over the
//! speeds of all pairs. Real schedules share the third level and memory, too.

#![allow(
    clippy::unwrap_used,
    clippy::cast_sign_loss,
    reason = "a test fails by panicking, and no figure is negative"
)]

use std::collections::BTreeMap;
use std::sync::Arc;

use quell_control::schedule::Scheduler;
use quell_control::schedule::fair::Fair;
use quell_control::schedule::named::{Known, named};
use quell_control::schedule::oracle::Oracle;
use quell_sim::board::Board;
use quell_sim::coarse::World;
use quell_sim::coarse::chip::{Chip, Fit, Thread};
use quell_sim::coarse::process::Process;
use quell_sim::profile::Profile;
use quell_sim::recorded::{Phase, Program, built_in};
use quell_types::options::SchedulerPolicy;
use quell_types::units::Nanos;

const MIXES: &str = include_str!("../../../../experiments/smt-mixes.toml");
/// Quanta that `fair` lets a process wait at most, as in the experiment.
const BOUND: u32 = 4;

/// Largest value of `objective · x` where `rows · x ≤ limits` and x ≥ 0, and no limit is negative:
/// the simplex method with Bland's rule, which never returns to a basis.
fn largest(objective: &[f64], rows: &[Vec<f64>], limits: &[f64]) -> f64 {
    const ZERO: f64 = 1e-9;
    let (width, height) = (objective.len(), rows.len());
    // Each row: its variables, its slack, its limit. The last row is the objective, negated.
    let mut table: Vec<Vec<f64>> = rows
        .iter()
        .zip(limits)
        .enumerate()
        .map(|(n, (row, limit))| {
            let slack = (0..height).map(|m| f64::from(u8::from(m == n)));
            row.iter().copied().chain(slack).chain([*limit]).collect()
        })
        .collect();
    let costs = objective.iter().map(|c| -c);
    table.push(costs.chain(vec![0.0; height + 1]).collect());
    let mut basis: Vec<usize> = (width..width + height).collect();
    let last = width + height;
    while let Some(enters) = (0..last).find(|n| table[height][*n] < -ZERO) {
        let ratio = |n: usize| table[n][last] / table[n][enters];
        let rows = (0..height).filter(|n| table[*n][enters] > ZERO);
        let leaves = rows
            .min_by(|a, b| {
                ratio(*a)
                    .total_cmp(&ratio(*b))
                    .then(basis[*a].cmp(&basis[*b]))
            })
            .expect("a bounded program");
        basis[leaves] = enters;
        let pivot = table[leaves][enters];
        table[leaves].iter_mut().for_each(|v| *v /= pivot);
        let row = table[leaves].clone();
        for (n, other) in table.iter_mut().enumerate() {
            let factor = other[enters];
            if n != leaves && factor != 0.0 {
                other
                    .iter_mut()
                    .zip(&row)
                    .for_each(|(v, r)| *v -= factor * r);
            }
        }
    }
    table[height][last]
}

/// The largest smallest progress. `speeds[a][b]`: of `a` next to `b`, as a part of its speed alone.
fn bound(speeds: &[Vec<f64>], cores: usize) -> f64 {
    let count = speeds.len();
    // A core has a pair, or one program to itself.
    let mut shares: Vec<Vec<(usize, f64)>> = (0..count).map(|a| vec![(a, 1.0)]).collect();
    for (a, next_to) in speeds.iter().enumerate() {
        for (b, others) in speeds.iter().enumerate().skip(a + 1) {
            shares.push(vec![(a, next_to[b]), (b, others[a])]);
        }
    }
    // The last variable is the smallest progress.
    let mut rows = Vec::new();
    for program in 0..count {
        let of = |share: &Vec<(usize, f64)>| {
            let own = share.iter().find(|(n, _)| *n == program);
            own.map_or(0.0, |(_, speed)| -speed)
        };
        rows.push(shares.iter().map(of).chain([1.0]).collect());
    }
    for program in 0..count {
        let of = |share: &Vec<(usize, f64)>| {
            f64::from(u8::from(share.iter().any(|(n, _)| *n == program)))
        };
        rows.push(shares.iter().map(of).chain([0.0]).collect());
    }
    rows.push(shares.iter().map(|_| 1.0).chain([0.0]).collect());
    let limits: Vec<f64> = std::iter::repeat_n(0.0, count)
        .chain(std::iter::repeat_n(1.0, count))
        .chain([cores as f64])
        .collect();
    let objective: Vec<f64> = shares.iter().map(|_| 0.0).chain([1.0]).collect();
    largest(&objective, &rows, &limits)
}

/// A program's mean speed next to another on one core, over all phases of both.
fn speed(chip: &Chip, own: &Program, other: &Program) -> f64 {
    let ipc = |parts: &[(&Program, &Phase)]| {
        let mut threads = Vec::new();
        for (program, phase) in parts {
            threads.push(Thread {
                phase,
                cpi: program.cpi,
                overlap: program.overlap,
                core: 0,
            });
        }
        chip.balance(&threads)[0].ipc
    };
    let mut time = [0.0; 2];
    for phase in &own.phases {
        time[0] += other.phases.len() as f64 / ipc(&[(own, phase)]);
        for beside in &other.phases {
            time[1] += 1.0 / ipc(&[(own, phase), (other, beside)]);
        }
    }
    time[0] / time[1]
}

/// The programs of each mix, in the order of the file.
fn mixes() -> BTreeMap<String, Vec<String>> {
    let file: toml::Table = MIXES.parse().unwrap();
    let mut found = BTreeMap::<String, Vec<String>>::new();
    for subject in file["subject"].as_table().unwrap().values() {
        let program = subject["run"]["program"].as_str().unwrap();
        for mix in subject["only"].as_array().unwrap() {
            let mix = mix.as_str().unwrap().to_owned();
            found.entry(mix).or_default().push(program.to_owned());
        }
    }
    found.remove("solo");
    found
}

/// The smallest progress of the first runs of all programs.
fn smallest(
    chip: &Chip,
    policy: Box<dyn Scheduler + Send>,
    quantum: f64,
    programs: &[&Program],
) -> f64 {
    let mut world = World::new(chip.clone(), policy, quantum, true);
    for (n, program) in programs.iter().enumerate() {
        let offset = n as f64 / programs.len() as f64;
        let program = Arc::new((*program).clone());
        let process = Process::new(program, world.chip(), 2e7, offset, 0.0);
        world.processes.push(process);
    }
    while world.processes.iter().any(|p| p.first.is_none()) {
        world.step(1e12).unwrap();
    }
    let runs = world.processes.iter().filter_map(|p| p.first.as_ref());
    runs.map(|run| run.alone / run.took).fold(1.0, f64::min)
}

/// The same with a policy by its name.
fn by(policy: SchedulerPolicy, chip: &Chip, programs: &[&Program]) -> f64 {
    let quantum = if policy.is_kernels() { 3e3 } else { 2e5 };
    let known = Known {
        contention: chip.contention(),
        quantum: Nanos::micros(quantum as u64),
        bound: BOUND,
        seed: 1,
    };
    smallest(chip, named(policy, known), quantum, programs)
}

fn chip() -> Chip {
    let board = Board::of(Profile::built_in("xeon-e5645").unwrap()).unwrap();
    Chip::of(&board, Fit::FITTED).unwrap()
}

fn of_two_cores(chip: &Chip) -> Chip {
    let mut small = chip.clone();
    small.cores = 2;
    small
}

fn speeds(chip: &Chip, programs: &[&Program]) -> Vec<Vec<f64>> {
    let next_to = |own: &Program| {
        let others = programs.iter();
        others.map(|other| speed(chip, own, other)).collect()
    };
    programs.iter().map(|own| next_to(own)).collect()
}

#[test]
fn known_linear_programs_have_their_answers() {
    // 3x + 5y: x ≤ 4, 2y ≤ 12, 3x + 2y ≤ 18.
    let rows = [vec![1.0, 0.0], vec![0.0, 2.0], vec![3.0, 2.0]];
    let found = largest(&[3.0, 5.0], &rows, &[4.0, 12.0, 18.0]);
    assert!((found - 36.0).abs() < 1e-9, "{found}");
    // Programs that do not hurt each other: as many turns as there are threads for each.
    let alike = |count: usize, speed: f64| vec![vec![speed; count]; count];
    assert!((bound(&alike(24, 1.0), 6) - 0.5).abs() < 1e-9);
    assert!((bound(&alike(4, 1.0), 2) - 1.0).abs() < 1e-9);
    // Where a pair is slower than half, each has a core to itself.
    assert!((bound(&alike(24, 0.4), 6) - 0.25).abs() < 1e-9);
    assert!((bound(&alike(24, 0.8), 6) - 0.4).abs() < 1e-9);
}

#[test]
fn no_policy_is_beyond_the_bound() {
    let (all, chip) = (built_in(), chip());
    let programs: Vec<&Program> = all.values().take(6).collect();
    let small = of_two_cores(&chip);
    let bound = bound(&speeds(&small, &programs), 2);
    for policy in [
        SchedulerPolicy::Linux,
        SchedulerPolicy::Random,
        SchedulerPolicy::Fair,
    ] {
        let smallest = by(policy, &small, &programs);
        // Speeds are means over phases. A run meets them in one order.
        assert!(
            smallest < 1.05 * bound,
            "{}: {smallest}, bound {bound}",
            policy.name()
        );
    }
}

#[test]
#[ignore = "a study: minutes of computing"]
fn what_is_left() {
    let (all, chip) = (built_in(), chip());
    println!("mix    bound  linux  random fair   | eight on 2 x 2: bound  linux  fair   oracle");
    for (mix, names) in mixes() {
        let programs: Vec<&Program> = names.iter().map(|name| &all[name.as_str()]).collect();
        let bound_of =
            |chip: &Chip, programs: &[&Program]| bound(&speeds(chip, programs), chip.cores);
        let figures = [
            bound_of(&chip, &programs),
            by(SchedulerPolicy::Linux, &chip, &programs),
            by(SchedulerPolicy::Random, &chip, &programs),
            by(SchedulerPolicy::Fair, &chip, &programs),
        ];
        let small = of_two_cores(&chip);
        let eight = &programs[..8];
        let fair = Fair::new(small.contention(), BOUND);
        let oracle =
            Oracle::new(move |members: &[_], groups: &[Vec<usize>]| fair.value(members, groups));
        let of_eight = [
            bound_of(&small, eight),
            by(SchedulerPolicy::Linux, &small, eight),
            by(SchedulerPolicy::Fair, &small, eight),
            smallest(&small, Box::new(oracle), 2e5, eight),
        ];
        let text = |figures: &[f64]| {
            let all = figures.iter().map(|figure| format!("{figure:.3}  "));
            all.collect::<String>()
        };
        println!("{mix}  {}|  {}", text(&figures), text(&of_eight));
    }
}
