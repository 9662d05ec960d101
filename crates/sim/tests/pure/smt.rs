//! Hardware threads that share a core: answers that are known beforehand.

use std::io::Cursor;

use quell_sim::frames::{Frames, Placement};

use quell_sim::pattern::{Pattern, Replay};
use quell_sim::profile::Profile;
use quell_sim::trace::{Kind, Record, Writer};
use quell_sim::{Counts, Description, Machine};

const MIB: u64 = 1 << 20;
/// Picoseconds of a microsecond.
const US: u64 = 1_000_000;
/// The first core's other thread. Linux numbers the first threads of all cores first.
const SIBLING: usize = 6;

/// The machine of the study, without its prefetcher, with cores that issue so many instructions per
/// cycle.
fn description(issue: u32) -> Description {
    let profile = Profile::built_in("xeon-e5645").unwrap();
    let mut description = profile.description().unwrap();
    description.prefetcher = None;
    description.smt.as_mut().unwrap().issue = issue;
    description
}

/// Instructions per cycle of programs on hardware threads, from 100 to 600 us.
fn ipc(description: &Description, programs: &[(usize, Program)]) -> Vec<f64> {
    let counts = run(description, programs);
    let each = counts.iter().map(|counts| {
        let cycles = (500 * US / description.clock) as f64;
        counts.instructions as f64 / cycles
    });
    each.collect()
}

#[derive(Clone, Copy)]
enum Program {
    /// One instruction per cycle, and one load in ten thousand.
    Computes,
    /// A load per cycle that hits the first level.
    Loads,
    /// A store per cycle that hits the first level.
    Stores,
    /// Loads that hit the first level and wait for each other: one per four cycles.
    Chases,
    /// Loads that miss all caches and do not wait for each other.
    Streams,
    /// Loads that miss all caches and wait for each other.
    Misses,
}

fn pattern(program: Program) -> (Pattern, u64) {
    match program {
        Program::Computes => (replay(&[(10_000, 8)]), 4096),
        Program::Loads => (Pattern::bandwidth(4096, false), 4096),
        Program::Stores => (Pattern::bandwidth(4096, true), 4096),
        Program::Chases => (Pattern::latency(4096, 1), 4096),
        Program::Streams => (Pattern::bandwidth(64 * MIB, false), 64 * MIB),
        Program::Misses => (Pattern::latency(64 * MIB, 1), 64 * MIB),
    }
}

/// A program of loads: the instructions of each, and its bytes.
fn replay(loads: &[(u64, u32)]) -> Pattern {
    let mut writer = Writer::new(Vec::new()).unwrap();
    for (n, (instructions, size)) in (0u64..).zip(loads) {
        let record = Record {
            kind: Kind::Load,
            address: n * 64,
            size: *size,
            instructions: *instructions,
        };
        writer.push(record).unwrap();
    }
    let trace = Cursor::new(writer.finish().unwrap());
    Pattern::Replay(Replay::read(trace, "made").unwrap())
}

/// What programs on hardware threads did from 100 to 600 us.
fn run(description: &Description, programs: &[(usize, Program)]) -> Vec<Counts> {
    let mut machine = Machine::new(description).unwrap();
    let mut frames = Frames::new(19, 1);
    for (thread, program) in programs {
        let (pattern, bytes) = pattern(*program);
        let space = frames.allocate(bytes, &Placement::Plain).unwrap();
        machine.start(*thread, pattern, space, 0);
    }
    machine.run(100 * US);
    let counts = |machine: &Machine, now| {
        let of = |thread: &usize| machine.program_counts(*thread, now).unwrap();
        programs.iter().map(|(t, _)| of(t)).collect::<Vec<_>>()
    };
    let before = counts(&machine, 100 * US);
    machine.run(600 * US);
    let after = counts(&machine, 600 * US);
    let since = after.iter().zip(&before).map(|(after, before)| Counts {
        instructions: after.instructions - before.instructions,
        misses: after.misses - before.misses,
        ..*after
    });
    since.collect()
}

/// Two programs on one core, each by what it does alone on the machine.
fn together(issue: u32, one: Program, two: Program) -> [f64; 2] {
    let description = description(issue);
    let alone = |program| ipc(&description, &[(0, program)])[0];
    let both = ipc(&description, &[(0, one), (SIBLING, two)]);
    [both[0] / alone(one), both[1] / alone(two)]
}

#[track_caller]
fn near(found: [f64; 2], expected: [f64; 2]) {
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 0.03, "{found}, not {expected}");
    }
}

#[test]
fn alone_a_thread_has_the_whole_core() {
    let description = description(4);
    let alone = |program| ipc(&description, &[(0, program)])[0];
    let found = [alone(Program::Computes), alone(Program::Loads)];
    near(found, [1.0, 1.0]);
    near(
        [alone(Program::Chases), alone(Program::Stores)],
        [0.25, 1.0],
    );
}

#[test]
fn threads_of_two_cores_share_nothing_of_a_core() {
    let both = [(0, Program::Loads), (1, Program::Loads)];
    let found = ipc(&description(1), &both);
    near([found[0], found[1]], [1.0, 1.0]);
}

#[test]
fn two_that_only_compute_get_half_of_the_slots_each() {
    let computes = Program::Computes;
    near(together(1, computes, computes), [0.5, 0.5]);
    // Two of four slots are enough for both.
    near(together(4, computes, computes), [1.0, 1.0]);
}

#[test]
fn two_that_only_load_get_half_of_the_port_each() {
    near(together(4, Program::Loads, Program::Loads), [0.5, 0.5]);
    near(together(4, Program::Stores, Program::Stores), [0.5, 0.5]);
    near(together(4, Program::Loads, Program::Stores), [1.0, 1.0]);
    // A quarter of the port is wanted. The other thread has what is left.
    near(together(4, Program::Loads, Program::Chases), [0.75, 1.0]);
    near(together(4, Program::Chases, Program::Chases), [1.0, 1.0]);
}

#[test]
fn one_that_computes_and_one_that_loads_share_the_slots() {
    near(together(1, Program::Computes, Program::Loads), [0.5, 0.5]);
    near(together(2, Program::Computes, Program::Loads), [1.0, 1.0]);
    near(together(1, Program::Computes, Program::Chases), [0.75, 1.0]);
}

#[test]
fn who_waits_for_memory_takes_no_slots() {
    near(together(1, Program::Computes, Program::Misses), [1.0, 1.0]);
}

#[test]
fn two_that_miss_share_the_miss_buffers() {
    let mut description = description(4);
    let lines = |description: &Description, programs: &[(usize, Program)]| -> Vec<f64> {
        let counts = run(description, programs);
        counts.iter().map(|counts| counts.misses as f64).collect()
    };
    // With two misses at a time a core is far from what memory can do.
    for misses in [1, 2] {
        description.misses = misses;
        let alone = lines(&description, &[(0, Program::Streams)])[0];
        let pair = [(0, Program::Streams), (SIBLING, Program::Streams)];
        let both = lines(&description, &pair);
        assert!((both[0] / both[1] - 1.0).abs() < 0.05, "{both:?}");
        let sum = (both[0] + both[1]) / alone;
        assert!((0.8..1.05).contains(&sum), "{sum} of one alone");
        let cores = [(0, Program::Streams), (1, Program::Streams)];
        let apart = lines(&description, &cores);
        assert!(apart[0] + apart[1] > 1.5 * alone, "{apart:?}, {alone}");
    }
}

#[test]
fn a_replay_counts_the_instructions_of_the_trace() {
    // The third load lies on two lines, and the fourth is of the same instruction.
    let loads = [(7, 8), (1, 8), (100, 65), (0, 8)];
    let mut pattern = replay(&loads);
    let mut sum = 0;
    for _ in 0..5 {
        let mut access = pattern.next_access();
        let computed = access.compute(access.compute);
        sum += computed + access.instructions.unwrap();
    }
    assert_eq!(sum, 108);
}

#[test]
fn instructions_are_split_as_cycles_are() {
    let mut access = quell_sim::access::Access {
        compute: 100,
        instructions: Some(301),
        ..Default::default()
    };
    // The access has a cycle, too, and as many as the others.
    assert_eq!((access.compute(64), access.compute), (190, 36));
    assert_eq!((access.compute(64), access.compute), (108, 0));
    assert_eq!(access.instructions, Some(3));
}
