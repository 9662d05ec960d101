//! What a machine must show if partitioning is to be studied on it: directions and rough sizes, no
//! published figures.

use quell_model::address::{AddressMap, Fields};
use quell_model::cache::{Geometry, Inclusion, Level, Policy};
use quell_model::dram::{Config, Timing};
use quell_sim::frames::{Choice, Frames, Placement, Refused};
use quell_sim::pattern::{Pattern, Task};
use quell_sim::{Description, Machine};
use quell_types::address::{Colours, bits};

const MS: u64 = 1_000_000_000;
const MIB: u64 = 1 << 20;
const FRAME_BITS: u32 = 18;

/// Four cores with private caches of 32 KiB and 256 KiB, and a shared one of 8 MiB with 16 ways.
/// One channel of DDR3-1066 has sixteen banks. Their four address bits are those of the published
/// case study.
fn description() -> Description {
    let level = |size, ways, inclusion, cache_of: &[usize]| Level {
        geometry: Geometry::plain(size, ways, 64).expect("a real cache"),
        policy: Policy::Lru,
        inclusion,
        cache_of: cache_of.to_vec(),
    };
    let row: Vec<u64> = [bits(14, 18), bits(21, 29)].concat();
    let fields = Fields {
        line_shift: 6,
        rank: bits(20, 20),
        bank: [bits(12, 13), bits(19, 19)].concat(),
        column: bits(6, 11),
        row,
        ..Fields::default()
    };
    Description {
        clock: 357,
        levels: vec![
            (
                level(32 << 10, 8, Inclusion::NonInclusive, &[0, 1, 2, 3]),
                4,
            ),
            (
                level(256 << 10, 8, Inclusion::NonInclusive, &[0, 1, 2, 3]),
                10,
            ),
            (level(8 * MIB, 16, Inclusion::Inclusive, &[0, 0, 0, 0]), 38),
        ],
        transit: 10_000,
        ports: vec![0; 3],
        misses: 10,
        window: None,
        map: AddressMap::new(fields).expect("a real map"),
        dram: Config::ddr3(Timing::ddr3_1066()),
        tlb: None,
        prefetcher: None,
        smt: None,
    }
}

fn bank_colours() -> Colours {
    Colours::new(&[1 << 12, 1 << 13, 1 << 19, 1 << 20], 12)
}

fn coloured(colours: Colours, chosen: &[u64]) -> Placement {
    let chosen = chosen.to_vec();
    Placement::Coloured {
        choices: vec![Choice { colours, chosen }],
        spill: false,
    }
}

fn in_banks(chosen: &[u64]) -> Placement {
    coloured(bank_colours(), chosen)
}

/// Nanoseconds per access of core 0 from 6 to 10 ms, and lines per microsecond of all other cores.
fn measure(programs: Vec<(Pattern, u64, Placement)>, masks: &[u64]) -> (f64, f64) {
    let mut machine = Machine::new(&description()).expect("a real machine");
    let mut frames = Frames::new(FRAME_BITS, 42);
    for (core, &mask) in (0u8..).zip(masks) {
        machine
            .caches_mut()
            .cache_mut(2, 0)
            .set_fill_mask(core, mask)
            .expect("16 ways");
    }
    let cores = programs.len();
    for (core, (pattern, bytes, placement)) in programs.into_iter().enumerate() {
        let space = frames.allocate(bytes, &placement).expect("enough memory");
        machine.start(core, pattern, space, 0);
    }
    machine.run(6 * MS);
    let before: Vec<u64> = (0..cores)
        .map(|core| machine.counts(core).accesses)
        .collect();
    machine.run(10 * MS);
    let done = |core: usize| (machine.counts(core).accesses - before[core]) as f64;
    (4e6 / done(0), (1..cores).map(done).sum::<f64>() / 4e3)
}

fn chase(bytes: u64, placement: Placement) -> (Pattern, u64, Placement) {
    (Pattern::latency(bytes, 1), bytes, placement)
}

fn stream(placement: Placement) -> (Pattern, u64, Placement) {
    (Pattern::bandwidth(16 * MIB, false), 16 * MIB, placement)
}

#[test]
fn a_chase_takes_the_latency_of_where_it_fits() {
    let alone = |bytes| measure(vec![chase(bytes, Placement::Plain)], &[]).0;
    for (bytes, cycles) in [(16 << 10, 4.0), (128 << 10, 10.0)] {
        let expected = cycles * 0.357;
        let found = alone(bytes);
        assert!(
            (0.95..1.6).contains(&(found / expected)),
            "{bytes} bytes: {found} ns, {expected} expected"
        );
    }
    // Lookups, transit, and a row closed, opened and read. Some rows are open already.
    let memory = alone(64 * MIB);
    assert!((55.0..85.0).contains(&memory), "{memory} ns");
}

#[test]
fn banks_of_their_own_protect_from_conflicts() {
    let others = |banks: [u64; 3]| banks.map(|bank| chase(16 * MIB, in_banks(&[bank])));
    let with = |banks| {
        measure(
            [
                vec![chase(16 * MIB, in_banks(&[0]))],
                others(banks).to_vec(),
            ]
            .concat(),
            &[],
        )
        .0
    };
    let alone = measure(vec![chase(16 * MIB, in_banks(&[0]))], &[]).0;
    let (shared, own) = (with([0, 0, 0]), with([1, 2, 3]));
    assert!(
        own < 1.3 * alone,
        "{own} ns in a bank of its own, {alone} alone"
    );
    assert!(
        shared > 2.0 * alone,
        "{shared} ns in a shared bank, {alone} alone"
    );
}

#[test]
fn ways_of_its_own_protect_a_working_set_that_fits_them() {
    let with = |masks: &[u64]| {
        let mut programs = vec![chase(MIB / 2, Placement::Plain)];
        programs.extend((0..3).map(|_| stream(Placement::Plain)));
        measure(programs, masks)
    };
    let alone = measure(vec![chase(MIB / 2, Placement::Plain)], &[]).0;
    let (shared, _) = with(&[]);
    let (own, neighbours) = with(&[0x000f, 0x00f0, 0x0f00, 0xf000]);
    assert!(shared > 4.0 * alone, "{shared} ns shared, {alone} alone");
    assert!(own < 1.5 * alone, "{own} ns with four ways, {alone} alone");
    // The neighbours are bound by memory anyway: most of the bus is theirs.
    assert!(
        neighbours * 64.0 > 0.7 * 8533.0,
        "{neighbours} lines per microsecond"
    );
}

#[test]
fn one_core_is_bound_by_its_outstanding_misses() {
    let rate = |misses| {
        let mut machine = Machine::new(&Description {
            misses,
            ..description()
        })
        .expect("a real machine");
        let space = Frames::new(FRAME_BITS, 1)
            .allocate(64 * MIB, &Placement::Sequential)
            .expect("enough memory");
        machine.start(0, Pattern::bandwidth(64 * MIB, false), space, 0);
        machine.run(2 * MS);
        machine.counts(0).reads as f64
    };
    let (one, two, many) = (rate(1), rate(2), rate(10));
    assert!(
        (1.7..2.1).contains(&(two / one)),
        "{two} with two, {one} with one"
    );
    // Ten reach the bus rate: 2 ms at 8.5 GB/s, less refresh and turnarounds.
    assert!(many * 64.0 > 0.9 * 2e-3 * 8.533e9, "{many}");
}

#[test]
fn a_window_keeps_a_loop_from_running_ahead_of_its_misses() {
    // 12 cycles before each load of half a line: all misses fit behind the computing, unless the
    // core may run ahead of the oldest one by 78 instructions only.
    let passes = |window| {
        let mut machine = Machine::new(&Description {
            window,
            ..description()
        })
        .expect("a real machine");
        let bytes = 32 * MIB;
        let space = Frames::new(FRAME_BITS, 1)
            .allocate(bytes + Task::own_bytes(bytes), &Placement::Sequential)
            .expect("enough memory");
        let task = Pattern::Task(Task::new(bytes, 32, MS, 12));
        machine.start(0, task, space, 0);
        machine.run(2 * MS);
        let program = machine.program(0).expect("it runs");
        (machine.counts(0).reads, program.counts().stalled)
    };
    let ((free, waits), (bound, stalled)) = (passes(None), passes(Some(78)));
    // 26 cycles a line, and some time for the own lines.
    let cycles = 2 * MS / 357;
    assert!(free > cycles / 30, "{free} of {cycles} cycles");
    assert!(bound < free * 8 / 10, "{bound} of {free} lines");
    assert!(stalled > 4 * waits, "{stalled} and {waits} ps");
}

#[test]
fn cores_wait_for_the_port_of_their_cache() {
    let lines = |port| {
        let mut machine = Machine::new(&Description {
            ports: vec![0, 0, port],
            ..description()
        })
        .expect("a real machine");
        let mut frames = Frames::new(FRAME_BITS, 1);
        for core in 0..2 {
            let space = frames
                .allocate(MIB, &Placement::Plain)
                .expect("enough memory");
            machine.touch(core, 0, &space, MIB, false);
            machine.start(core, Pattern::bandwidth(MIB, false), space, 0);
        }
        machine.run(MS);
        machine.counts(0).accesses + machine.counts(1).accesses
    };
    // One line a cycle and core without, one in four cycles for both together with it.
    let (without, with) = (lines(0), lines(4));
    assert!(without * 357 > 19 * MS / 10, "{without}");
    let share = with * 4 * 357;
    assert!((9 * MS / 10..=11 * MS / 10).contains(&share), "{with}");
}

#[test]
fn writes_come_back_out() {
    let mut machine = Machine::new(&description()).expect("a real machine");
    let space = Frames::new(FRAME_BITS, 1)
        .allocate(32 * MIB, &Placement::Plain)
        .expect("enough memory");
    machine.start(0, Pattern::bandwidth(32 * MIB, true), space, 0);
    machine.run(30 * MS);
    let counts = machine.counts(0);
    let written: u64 = machine.dram().channels()[0]
        .counts()
        .iter()
        .map(|bank| bank.writes)
        .sum();
    // All lines except those in the caches and the queue.
    assert!(
        counts.reads - counts.writebacks <= (8 * MIB + 512 * 1024) / 64
            && counts.writebacks > 200_000,
        "{counts:?}"
    );
    assert!(
        counts.writebacks - written <= 64 + 10,
        "{written} of {}",
        counts.writebacks
    );
}

#[test]
fn equal_runs_are_equal_however_they_are_cut_and_stay_so() {
    let digest = |step: u64| {
        let mut machine = Machine::new(&description()).expect("a real machine");
        let mut frames = Frames::new(FRAME_BITS, 7);
        let placements = [
            Placement::Sequential,
            Placement::Huge,
            in_banks(&[3, 9]),
            Placement::Plain,
        ];
        for (core, placement) in placements.iter().enumerate() {
            let space = frames.allocate(12 * MIB, placement).expect("enough memory");
            let pattern = if core % 2 == 0 {
                Pattern::latency(12 * MIB, core as u64)
            } else {
                Pattern::bandwidth(12 * MIB, core == 1)
            };
            machine.start(core, pattern, space, core as u64 * 1000);
        }
        for end in (0..=MS).step_by(usize::try_from(step).expect("small")) {
            machine.run(end);
        }
        (0..4)
            .flat_map(|core| {
                let c = machine.counts(core);
                [c.accesses, c.reads, c.writebacks]
            })
            .fold(0xcbf2_9ce4_8422_2325u64, |hash, n| {
                n.to_le_bytes().iter().fold(hash, |hash, &byte| {
                    (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
                })
            })
    };
    let (whole, cut) = (digest(MS), digest(MS / 1000));
    assert_eq!(whole, cut);
    // The golden digest. It changes only when the model is changed on purpose.
    assert_eq!(whole, 0xaad7_78d0_db5f_6278, "{whole:#x}");
}

#[test]
fn memory_is_placed_as_asked_or_refused() {
    let mut frames = Frames::new(12, 5);
    let two = coloured(Colours::new(&bits(12, 13), 12), &[1, 2]);
    let both = frames.allocate(2 * MIB, &two).expect("enough memory");
    let mut all: Vec<u64> = both.frames().collect();
    assert!(all.iter().all(|frame| matches!(frame & 3, 1 | 2)));
    let huge = Frames::new(12, 5)
        .allocate(3 * MIB, &Placement::Huge)
        .expect("enough memory");
    assert_eq!(huge.frames().count(), 1024);
    assert_eq!(
        huge.physical(2 * MIB - 1).map(|a| a >> 21),
        huge.physical(0).map(|a| a >> 21)
    );
    let sequential = frames
        .allocate(12 * MIB, &Placement::Sequential)
        .unwrap_err();
    assert_eq!(
        sequential,
        Refused::Full {
            wanted: 3072,
            found: 0
        }
    );
    all.extend(
        frames
            .allocate(4 * MIB, &Placement::Plain)
            .expect("enough memory")
            .frames(),
    );
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), (512 + 1024), "no frame is given twice");
    let error = frames.allocate(4096, &coloured(Colours::new(&bits(12, 13), 12), &[4]));
    assert_eq!(
        error.unwrap_err().to_string(),
        "colours [4] of 0-3: choose at least one, each within the range"
    );
}
