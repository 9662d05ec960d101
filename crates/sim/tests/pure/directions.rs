//! What separate budgets are for, from the policy to what the victim sees, on a machine with
//! counters of both directions.
//! - A budget for the sum that makes a reader harmless does not stop a writer from doing harm.
//! - One that makes the writer harmless costs the reader most of its rate.
//! - With a budget for each direction, both keep the rate at which they do no harm.
use std::collections::BTreeMap;

use quell_plan::inventory::Inventory;
use quell_plan::planner;
use quell_policy::Policy;
use quell_record::backend::{
    Action, Backend, Observation, Probe, Program, Seen, SubjectId, SubjectSpec,
};
use quell_sim::Sim;
use quell_sim::board::Board;
use quell_sim::profile::Profile;
use quell_types::units::Nanos;

/// CPUs of the neighbour.
const CPUS: u32 = 3;

const READ: &str = "bandwidth:read,size=64MiB";
const WRITE: &str = "bandwidth:write,size=64MiB";

fn machine() -> (Board, Inventory) {
    let mut profile = Profile::built_in(Board::USUAL).unwrap();
    profile.counters.writes = true;
    let board = Board::of(profile).unwrap();
    let machine = Sim::new(board.clone(), 1)
        .unwrap()
        .inventory(Probe::Deep)
        .unwrap();
    (board, machine)
}

/// The outcome under one limit of the neighbour.
#[derive(Debug)]
struct Outcome {
    /// The victim's mean latency in nanoseconds.
    victim: f64,
    /// What all of the neighbour read from memory and wrote back, in MB/s.
    read: f64,
    written: f64,
}

/// Measures a list that just fits the last-level cache on CPU 0, over `span`. Next to it run three
/// streams, held to `limit`.
fn beside((board, machine): &(Board, Inventory), run: &str, limit: &str, span: Nanos) -> Outcome {
    let text = format!(
        "quell = 1
[group.victim]
role = 'critical'
cpus = '0'
command = ['a']
[group.noise]
role = 'best-effort'
cpus = '1-{CPUS}'
command = ['b']
{limit}
[regulator]
split = 'even'
"
    );
    let policy = Policy::parse(&text, "test.toml").unwrap_or_else(|p| panic!("{p:?}"));
    let plan = planner::plan(&policy, machine).unwrap_or_else(|r| panic!("{r:?}"));
    let mut sim = Sim::new(board.clone(), 1).unwrap();
    for step in &plan.steps {
        sim.apply(step).unwrap();
    }
    let mut start = |group: &str, run: &str, cpu: u32| {
        let subject = SubjectSpec {
            name: group.to_owned(),
            group: group.to_owned(),
            program: Program::Generator(run.parse().unwrap()),
            cpus: Some([cpu].into_iter().collect()),
            env: BTreeMap::new(),
            capture: true,
        };
        sim.start(&subject).unwrap()
    };
    let victim = start("victim", "latency:size=4MiB", 0);
    let noise: Vec<SubjectId> = (1..=CPUS).map(|cpu| start("noise", run, cpu)).collect();
    let measure = |sim: &mut Sim, duration: Nanos| {
        for &subject in noise.iter().chain([&victim]) {
            let warmup = Nanos(0);
            sim.act(&Action::Go {
                subject,
                warmup,
                duration,
            })
            .unwrap();
        }
        let (mut seen, mut found) = (Observation::new(), BTreeMap::new());
        let latest = sim.now().plus(Nanos::secs(1));
        while found.len() <= noise.len() {
            assert!(sim.wait(latest, &mut seen).unwrap() < latest, "no result");
            for one in seen.drain(..) {
                if let Seen::Result(id, measured) = one {
                    found.insert(id, measured);
                }
            }
        }
        let windows = &found[&victim].metrics["latency_ns"];
        windows.iter().sum::<f64>() / windows.len() as f64
    };
    let drawn = |sim: &mut Sim| {
        noise.iter().fold([0, 0], |[read, written], id| {
            let one = sim.drawn(*id).unwrap().unwrap();
            [read + one.read, written + one.written]
        })
    };
    measure(&mut sim, Nanos::millis(5));
    let (before, began) = (drawn(&mut sim), sim.now());
    let victim = measure(&mut sim, span);
    let (after, ended) = (drawn(&mut sim), sim.now());
    let mb_s = |n: usize| (after[n] - before[n]) as f64 * 1e3 / ended.since(began).0 as f64;
    let outcome = Outcome {
        victim,
        read: mb_s(0),
        written: mb_s(1),
    };
    println!(
        "{limit:60} {run:26} victim {:5.1} ns, neighbour reads {:4.0} and writes {:4.0} MB/s",
        outcome.victim, outcome.read, outcome.written
    );
    outcome
}

#[test]
fn a_budget_for_each_direction_spares_the_victim_and_the_reader() {
    const READS: f64 = 4_500.0;
    const WRITES: f64 = 1_350.0;
    let machine = machine();
    let short = Nanos::millis(20);
    let both = |limit: &str, span| [READ, WRITE].map(|run| beside(&machine, run, limit, span));
    // The sum that the reader is to have: under it the writer does more harm.
    let [reader, writer] = both("limit.bandwidth = '4500MB/s'", short);
    assert!(reader.read > 0.95 * READS, "{reader:?}");
    assert!(
        writer.victim > 1.15 * reader.victim,
        "{writer:?} {reader:?}"
    );
    let harmless = reader.victim;
    // The sum that the writer may have: it does no more harm than that reader. Under it the reader
    // has two thirds of what it could have.
    let [reader, writer] = both("limit.bandwidth = '3000MB/s'", short);
    assert!(writer.victim < 1.05 * harmless, "{writer:?}");
    assert!(reader.read < 0.7 * READS, "{reader:?}");
    // Separate budgets.
    let apart = "limit.bandwidth = { read = '4500MB/s', write = '1350MB/s' }";
    let [reader, writer] = both(apart, Nanos::millis(100));
    assert!((0.95..=1.05).contains(&(reader.read / READS)), "{reader:?}");
    assert!(reader.written < 0.01 * WRITES, "{reader:?}");
    assert!(
        (0.95..=1.05).contains(&(writer.written / WRITES)),
        "{writer:?}"
    );
    assert!(writer.read <= 1.05 * READS, "{writer:?}");
    assert!(writer.victim < 1.05 * harmless, "{writer:?}");
    assert!(reader.victim < 1.05 * harmless, "{reader:?}");
}
