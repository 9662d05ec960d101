//! Which processes the policies leave waiting, and what that takes: on the plant, ten mixes of
//! twenty-four processes for each case.

use quell_types::stats::{bootstrap, mean};

use super::plant::{Process, Rules, Run, Spread, misreported, mix, run};
use super::*;

const SEEDS: std::ops::Range<u64> = 0..10;
const BOUND: u32 = 4;
/// Nothing slows a process, so that the selection alone shows.
const PLAIN: Rules = Rules {
    contention: false,
    restart: true,
    phases: false,
};
const REAL: Rules = Rules {
    contention: true,
    ..PLAIN
};

/// Hardware threads that these processes had, on average over the run.
fn threads(run: &Run, processes: &[usize]) -> f64 {
    processes.iter().fold(0.0, |sum, i| sum + run.ran[*i])
}

/// The standard deviation.
fn deviation(values: &[f64]) -> f64 {
    let middle = mean(values).unwrap();
    let off: Vec<f64> = values.iter().map(|v| (v - middle) * (v - middle)).collect();
    mean(&off).unwrap().sqrt()
}

/// The mean over the mixes, and its 95 % interval.
fn cell(values: &[f64], digits: usize) -> String {
    let interval = bootstrap(values, mean, 0.95, 1).unwrap();
    let (low, high) = (interval.low, interval.high);
    let mean = mean(values).unwrap();
    format!("{mean:.digits$} ({low:.digits$}–{high:.digits$})")
}

/// The printed policy, with rates as the processes would have them alone.
struct Corrected;

impl Scheduler for Corrected {
    fn name(&self) -> &'static str {
        "bandwidth-aware, corrected rates"
    }

    fn decide(&mut self, members: &[Member], cores: Cores) -> Result<Vec<Seat>, TooMany> {
        let corrected = members.iter().map(|member| Member {
            memory: E5645.demand(member).memory * E5645.memory,
            ..*member
        });
        BandwidthAware.decide(&corrected.collect::<Vec<_>>(), cores)
    }
}

/// Those of the table.
fn rows(seed: u64) -> Vec<Box<dyn Scheduler>> {
    let mut rows = policies(BOUND, seed);
    rows.insert(1, Box::new(Corrected));
    rows
}

fn table(title: &str, rules: Rules, mix: &dyn Fn(u64) -> Vec<Process>) {
    println!("\n{title}\n");
    println!(
        "| policy | starved | their threads | wait | last end | unfairness | throughput | asked | \
         spread |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for (n, policy) in rows(0).iter().enumerate() {
        let mut columns = vec![Vec::new(); 8];
        for seed in SEEDS {
            let processes = mix(seed);
            let mut policy = rows(seed).remove(n);
            let run = run(&mut *policy, &processes, rules);
            let starved = run.starved();
            let figures = [
                starved.len() as f64,
                threads(&run, &starved),
                f64::from(*run.waits.iter().max().unwrap()),
                run.last(),
                run.unfairness(&processes),
                run.throughput,
                mean(&run.asked).unwrap(),
                deviation(&run.served),
            ];
            for (column, figure) in columns.iter_mut().zip(figures) {
                column.push(figure);
            }
        }
        let cells = columns.iter().zip([1, 2, 0, 0, 2, 2, 0, 1]);
        let cells: Vec<String> = cells.map(|(column, digits)| cell(column, digits)).collect();
        println!("| `{}` | {} |", policy.name(), cells.join(" | "));
    }
}

#[test]
#[ignore = "prints the tables of docs/results/2026-11-25-smt-policies.md"]
fn the_tables_of_the_policies() {
    let spreads = [
        Spread::Even,
        Spread::Heavy,
        Spread::Logarithm,
        Spread::Kinds,
    ];
    for spread in spreads {
        table(&format!("{spread:?}, no contention"), PLAIN, &|seed| {
            mix(spread, seed)
        });
        table(&format!("{spread:?}"), REAL, &|seed| mix(spread, seed));
    }
    let logarithm = |seed| mix(Spread::Logarithm, seed);
    let phases = Rules {
        phases: true,
        ..REAL
    };
    table("Logarithm, phases", phases, &logarithm);
    let once = Rules {
        restart: false,
        ..REAL
    };
    table("Logarithm, no restart", once, &logarithm);
    for off in [0.2, 0.4] {
        let off_by = |seed| misreported(&logarithm(seed), off, seed);
        table(&format!("Logarithm, figures off by {off}"), REAL, &off_by);
    }
}

#[test]
fn the_printed_selection_starves_and_the_fair_one_does_not() {
    for seed in SEEDS {
        let processes = mix(Spread::Even, seed);
        let printed = run(&mut BandwidthAware, &processes, PLAIN);
        let (turns, starved) = (run(&mut Pair, &processes, PLAIN), printed.starved());
        assert!(starved.len() >= 8, "{seed}: {} starved", starved.len());
        assert!(threads(&printed, &starved) < 1.5, "they have one thread");
        assert!(
            printed.last() > 3.0 * turns.last(),
            "{seed}: {}",
            printed.last()
        );
        let fair = run(&mut Fair::new(E5645, BOUND), &processes, REAL);
        assert!(fair.starved().is_empty());
        assert!(fair.unfairness(&processes) < 1.1, "{seed}");
    }
}

#[test]
#[ignore = "prints how long a decision takes"]
fn the_time_of_a_decision() {
    let processes = mix(Spread::Logarithm, 1);
    for mut policy in policies(BOUND, 0) {
        let begun = std::time::Instant::now();
        let run = run(&mut *policy, &processes, PLAIN);
        let took = begun.elapsed().as_secs_f64() / run.last();
        println!("{} {:.1} us", policy.name(), took * 1e6);
    }
}

/// How much of the largest value the exchanges of `fair` reach, on 2 × 2 with eight processes.
#[test]
#[ignore = "prints how far fair is from the best"]
fn the_distance_of_fair_from_the_best() {
    let mut reached: Vec<f64> = Vec::new();
    for seed in 0..200 {
        let processes = mix(Spread::Logarithm, seed);
        let members: Vec<Member> = processes[..8].iter().map(properties::running).collect();
        reached.push(properties::reached(&members, TWO));
    }
    reached.sort_by(f64::total_cmp);
    let exact = reached.iter().filter(|r| **r > 1.0 - 1e-9).count();
    let mean = mean(&reached).unwrap();
    println!(
        "least {:.4}, mean {mean:.4}, exact {exact} of 200",
        reached[0]
    );
}
