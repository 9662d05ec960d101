use std::sync::Arc;

use quell_control::schedule::named::{Known, named};
use quell_types::options::SchedulerPolicy;
use quell_types::units::Nanos;

use super::World;
use super::chip::{Chip, Fit, Pace, Thread};
use super::process::Process;
use crate::board::Board;
use crate::profile::Profile;
use crate::recorded::{Programs, parse};

/// Programs with one phase each, invented for what they show.
const PROGRAMS: &str = r#"
quell-programs = 1
sizes = ["512KiB", "1MiB", "6MiB", "12MiB"]

[program.computes]
like = "-"
instructions = 1e9
cpi = 0.25
overlap = 1.0
[[program.computes.phase]]
accesses = 0.1
stores = 0.0
l1 = 0.0
l2 = 0.0
l3 = [0.0, 0.0, 0.0, 0.0]
written = 0.0

[program.loads]
like = "-"
instructions = 1e9
cpi = 1.0
overlap = 1.0
[[program.loads.phase]]
accesses = 1000.0
stores = 0.0
l1 = 0.0
l2 = 0.0
l3 = [0.0, 0.0, 0.0, 0.0]
written = 0.0

[program.streams]
like = "-"
instructions = 1e9
cpi = 0.5
overlap = 8.0
[[program.streams.phase]]
accesses = 400.0
stores = 100.0
l1 = 60.0
l2 = 60.0
l3 = [60.0, 60.0, 60.0, 60.0]
written = 0.5

[program.cached]
like = "-"
instructions = 1e9
cpi = 0.5
overlap = 2.0
[[program.cached.phase]]
accesses = 300.0
stores = 100.0
l1 = 30.0
l2 = 20.0
l3 = [18.0, 16.0, 8.0, 0.0]
written = 0.2
[[program.cached.phase]]
accesses = 300.0
stores = 100.0
l1 = 3.0
l2 = 2.0
l3 = [1.0, 1.0, 1.0, 1.0]
written = 0.2
"#;

fn programs() -> &'static Programs {
    static PROGRAMS_READ: std::sync::OnceLock<Programs> = std::sync::OnceLock::new();
    PROGRAMS_READ.get_or_init(|| parse(PROGRAMS).unwrap())
}

fn chip() -> Chip {
    let board = Board::of(Profile::built_in("xeon-e5645").unwrap()).unwrap();
    Chip::of(&board, Fit::FITTED).unwrap()
}

fn on(name: &str, core: usize) -> Thread<'static> {
    let program = &programs()[name];
    Thread {
        phase: &program.phases[0],
        cpi: program.cpi,
        overlap: program.overlap,
        core,
    }
}

fn paces(threads: &[(&str, usize)]) -> Vec<Pace> {
    let threads: Vec<_> = threads.iter().map(|(name, core)| on(name, *core)).collect();
    chip().balance(&threads)
}

fn near(a: f64, b: f64) -> bool {
    (a / b - 1.0).abs() < 0.02
}

#[test]
fn two_that_compute_share_the_slots_of_a_core() {
    let alone = paces(&[("computes", 0)])[0].ipc;
    assert!(near(alone, 4.0), "{alone}");
    let both = paces(&[("computes", 0), ("computes", 0)]);
    assert!(near(both[0].ipc, 2.0) && near(both[1].ipc, 2.0), "{both:?}");
    let apart = paces(&[("computes", 0), ("computes", 1)]);
    assert!(near(apart[1].ipc, 4.0), "{apart:?}");
}

#[test]
fn two_that_load_share_the_port_of_a_core() {
    let both = paces(&[("loads", 0), ("loads", 0)]);
    assert!(near(both[0].ipc, 0.5) && near(both[1].ipc, 0.5), "{both:?}");
    // One that computes leaves the port alone, and a load takes one of four slots.
    let mixed = paces(&[("loads", 0), ("computes", 0)]);
    assert!(near(mixed[0].ipc, 1.0), "{mixed:?}");
    assert!(near(mixed[1].ipc, 3.0), "{mixed:?}");
}

#[test]
fn memory_is_asked_for_no_more_than_it_sustains() {
    let chip = chip();
    let all: Vec<_> = (0..12).map(|n| ("streams", n % 6)).collect();
    let paces = paces(&all);
    let sum: f64 = paces.iter().map(|pace| pace.memory).sum();
    assert!(
        sum < chip.lines * 1.001 && sum > chip.lines * 0.7,
        "{sum} of {}",
        chip.lines
    );
}

#[test]
fn the_last_cache_is_divided_by_what_is_fetched_into_it() {
    let alone = paces(&[("cached", 0)])[0];
    let both = paces(&[("cached", 0), ("cached", 1)]);
    assert!(alone.held > both[0].held * 1.9, "{alone:?} {both:?}");
    assert!(near(both[0].held, both[1].held) && both[0].ipc < alone.ipc);
    let beside = paces(&[("cached", 0), ("streams", 1)]);
    assert!(
        beside[0].held < both[0].held,
        "a stream takes more: {beside:?}"
    );
}

fn world(policy: SchedulerPolicy, quantum: f64, names: &[&str]) -> World {
    let chip = chip();
    let known = Known {
        contention: chip.contention(),
        quantum: Nanos::micros(quantum as u64),
        bound: 4,
        seed: 1,
    };
    let mut world = World::new(chip, named(policy, known), quantum, true);
    for (n, name) in names.iter().enumerate() {
        let program = Arc::new(programs()[*name].clone());
        let offset = n as f64 / names.len() as f64;
        let process = Process::new(program, world.chip(), 2e6, offset, 0.0);
        world.processes.push(process);
    }
    world
}

/// Runs until each has ended once.
fn ended(mut world: World) -> World {
    while world
        .processes
        .iter()
        .any(|process| process.first.is_none())
    {
        world.step(1e9).unwrap();
    }
    world
}

#[test]
fn a_program_alone_takes_the_time_that_it_is_given() {
    for name in programs().keys() {
        let world = ended(world(SchedulerPolicy::Pair, 200_000.0, &[name]));
        let run = world.processes[0].first.unwrap();
        assert!(
            near(run.took, 2e6) && near(run.done.on_cpu, 2e6),
            "{name}: {run:?}"
        );
    }
}

#[test]
fn the_kernel_gives_equal_shares_of_time() {
    let names: Vec<&str> = programs()
        .keys()
        .map(String::as_str)
        .cycle()
        .take(24)
        .collect();
    let mut world = world(SchedulerPolicy::Linux, 3_000.0, &names);
    let mut ran = [0.0; 24];
    while world.now() < 3e6 {
        let before = world.now();
        world.step(3e6).unwrap();
        for seat in &world.seats {
            ran[seat.member] += world.now() - before;
        }
    }
    for (n, ran) in ran.into_iter().enumerate() {
        assert!((ran / 1.5e6 - 1.0).abs() < 0.02, "process {n} ran {ran} us");
    }
}

#[test]
fn every_policy_ends_every_program_and_none_beats_being_alone() {
    let names: Vec<&str> = programs()
        .keys()
        .map(String::as_str)
        .cycle()
        .take(16)
        .collect();
    for policy in [
        SchedulerPolicy::Random,
        SchedulerPolicy::Worst,
        SchedulerPolicy::BandwidthAware,
        SchedulerPolicy::Bounded,
        SchedulerPolicy::Progress,
        SchedulerPolicy::Fair,
    ] {
        let world = ended(world(policy, 50_000.0, &names));
        for process in &world.processes {
            let run = process.first.unwrap();
            assert!(run.took > run.alone * 0.999, "{policy:?}: {run:?}");
            assert!(
                run.done.on_cpu <= run.took * 1.000_001,
                "{policy:?}: {run:?}"
            );
        }
    }
}

#[test]
fn what_is_written_wrongly_is_refused_with_its_place() {
    for (from, to, told) in [
        ("cpi = 0.25", "cpi = 0", "program.computes: cpi = 0"),
        (
            "[18.0, 16.0, 8.0, 0.0]",
            "[18.0]",
            "l3 has 1 figures for 4 sizes",
        ),
        ("\"512KiB\"", "\"64KiB\"", "ascend"),
        (
            "quell-programs = 1",
            "quell-programs = 2",
            "this version reads 1",
        ),
    ] {
        let error = parse(&PROGRAMS.replace(from, to)).unwrap_err();
        assert!(error.contains(told), "{error}");
    }
}

#[test]
fn the_programs_that_come_with_quell_are_sane() {
    let all = crate::recorded::built_in();
    assert_eq!(all.len(), 24);
    for (name, program) in all {
        assert!(program.phases.len() >= 10 && program.cpi >= 0.25, "{name}");
        for phase in &program.phases {
            let misses = [32768.0, 262_144.0, 12e6].map(|bytes| phase.curve.misses(bytes));
            assert!(misses.is_sorted_by(|a, b| a >= b), "{name}: {misses:?}");
            assert!(
                phase.accesses >= misses[0] && phase.stores <= phase.accesses,
                "{name}"
            );
        }
    }
    assert!(crate::recorded::synthetic().contains_key("memory-hog"));
}
