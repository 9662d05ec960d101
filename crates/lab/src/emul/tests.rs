//! The processor as a kernel sees it: identified by `CPUID`, set by registers, with caches that
//! accesses fill.

use proptest::prelude::*;

use super::*;

const ICELAKE: Topology = Topology {
    sockets: 2,
    cores: 1,
    threads: 2,
};

fn machine(profile: &str, topology: Topology) -> Machine {
    Machine::new(Profile::load(profile).unwrap(), topology).unwrap()
}

fn instead(machine: &Machine, leaf: u32, sub: u32) -> [u32; 4] {
    match machine.cpuid(leaf, sub) {
        Some(Answer::Instead(answer)) => answer,
        other => panic!("{leaf:#x}.{sub}: {other:?}"),
    }
}

/// Occupancy in bytes, as a kernel reads it.
fn occupancy(machine: &Machine, cpu: usize, id: u64) -> u64 {
    machine.write(cpu, 0xc8d, id << 32 | 1).unwrap();
    machine.read(cpu, 0xc8e).unwrap().0 * 64
}

fn traffic(machine: &Machine, cpu: usize, id: u64) -> u64 {
    machine.write(cpu, 0xc8d, id << 32 | 2).unwrap();
    machine.read(cpu, 0xc8e).unwrap().0 * 64
}

fn associate(machine: &Machine, cpu: usize, class: u64, id: u64) {
    machine.write(cpu, 0xc8f, class << 32 | id).unwrap();
}

/// Reads memory line by line, so many times.
fn walk(machine: &Machine, cpu: usize, from: u64, size: u64, times: u32) {
    for _ in 0..times {
        for line in 0..size / 64 {
            machine.data(cpu, from + line * 64, false, true);
        }
    }
}

#[test]
fn cpuid_tells_what_the_profile_has() {
    let m = machine("icelake", ICELAKE);
    assert_eq!(
        m.cpuid(7, 0),
        Some(Answer::Beside([0, 1 << 12 | 1 << 15, 0, 0]))
    );
    assert_eq!(m.cpuid(7, 1), None);
    assert_eq!(instead(&m, 0x10, 0)[1], 0b1010);
    // 16 ways, no bit shareable, separate code and data, no holes, 16 classes.
    assert_eq!(instead(&m, 0x10, 1), [15, 0, 4, 15]);
    assert_eq!(instead(&m, 0x10, 3), [89, 0, 4, 7]);
    assert_eq!(instead(&m, 0xf, 1), [20, 64, 63, 7]);
    // Third level: 8192 sets of 16 ways, shared by a socket's two threads.
    let [eax, ebx, ecx, _] = instead(&m, 4, 3);
    assert_eq!(
        (eax & 0x1f, eax >> 5 & 7, (eax >> 14 & 0xfff) + 1),
        (3, 3, 2)
    );
    assert_eq!((ebx >> 22, ebx & 0xfff, ecx), (15, 63, 8191));
    let m = machine("goldmont", ICELAKE);
    assert_eq!(instead(&m, 0x10, 0)[1], 0b100);
    assert_eq!(instead(&m, 4, 3), [0; 4]);
    assert_eq!(m.read(0, 0xc90), None);
    assert_eq!(m.read(0, 0xc8e), None);
    assert_eq!(m.read(0, 0xd13).map(|(mask, _)| mask), Some(0xffff));
    assert_eq!(m.read(0, 0xd14), None);
}

#[test]
fn a_class_occupies_the_smaller_of_its_memory_and_its_mask() {
    let m = machine("icelake", ICELAKE);
    let way = 512 << 10;
    m.write(0, 0xc91, 0x00f0).unwrap();
    associate(&m, 0, 1, 5);
    for (size, expected) in [(way, way), (3 * way, 3 * way), (16 * way, 4 * way)] {
        walk(&m, 0, 1 << 30, size, 2);
        assert_eq!(occupancy(&m, 0, 5), expected, "{size} bytes");
    }
    assert_eq!(occupancy(&m, 2, 5), 0, "the other socket has seen nothing");
    assert_eq!(occupancy(&m, 0, 0), 0);
}

#[test]
fn a_part_of_ways_keeps_a_stream_out() {
    let m = machine("icelake", ICELAKE);
    let list = 2 << 20;
    let misses = |m: &Machine| traffic(m, 0, 1) / 64;
    let pass = |m: &Machine, beside: bool| {
        // The stream runs on the other thread of the core, ten lines for each one of the list.
        let before = misses(m);
        for line in 0..list / 64 {
            m.data(0, line * 64, false, true);
            for n in 0..if beside { 10 } else { 0 } {
                m.data(1, (1 << 32) + (line * 10 + n) * 64, true, true);
            }
        }
        misses(m) - before
    };
    associate(&m, 0, 1, 1);
    associate(&m, 1, 2, 2);
    pass(&m, false);
    assert_eq!(pass(&m, false), 0, "alone it fits");
    assert!(pass(&m, true) > 0);
    assert!(
        pass(&m, true) > list / 64 * 9 / 10,
        "the stream takes it all"
    );
    m.write(0, 0xc91, 0x00ff).unwrap();
    m.write(0, 0xc92, 0xff00).unwrap();
    // A line remains until it is evicted, even in the stream's ways.
    pass(&m, true);
    pass(&m, true);
    assert_eq!(pass(&m, true), 0, "with parts of their own");
}

#[test]
fn code_and_data_have_masks_of_their_own() {
    let m = machine("icelake", ICELAKE);
    m.write(0, 0xc81, 1).unwrap();
    // Class 1: data has one way, code has two.
    m.write(0, 0xc92, 0x1).unwrap();
    m.write(0, 0xc93, 0x6).unwrap();
    associate(&m, 0, 1, 3);
    let way = 512u64 << 10;
    walk(&m, 0, 0, 4 * way, 2);
    assert_eq!(occupancy(&m, 0, 3), way);
    m.run(0, 1 << 30, 4 * way / 64, 1, true);
    assert_eq!(occupancy(&m, 0, 3), 3 * way);
}

#[test]
fn what_goes_out_changed_counts_as_traffic_of_its_owner() {
    let m = machine("icelake", ICELAKE);
    associate(&m, 0, 0, 1);
    let size = 16 << 20;
    for line in 0..size / 64 {
        m.data(0, line * 64, true, true);
    }
    assert_eq!(
        m.read(0, 0xc8e).map(|(v, _)| v),
        Some(1 << 63),
        "no event is chosen"
    );
    let came = size;
    let read_only = traffic(&m, 0, 1);
    assert!(read_only >= came && read_only < 2 * came, "{read_only}");
    associate(&m, 0, 0, 2);
    walk(&m, 0, 1 << 32, 32 << 20, 1);
    let both = traffic(&m, 0, 1);
    assert_eq!(both, 2 * came, "all of it has been written back");
    assert_eq!(traffic(&m, 0, 2), 32 << 20);
}

#[test]
fn wrong_values_are_dropped_and_counted() {
    let m = machine("icelake", ICELAKE);
    for wrong in [0, 0x10000, 0b101] {
        assert!(m.write(0, 0xc90, wrong).is_some());
    }
    m.write(0, 0xd50, 91).unwrap();
    associate(&m, 0, 3, 5);
    associate(&m, 0, 16, 5);
    associate(&m, 0, 3, 64);
    m.write(0, 0xc81, 3).unwrap();
    assert_eq!(m.read(0, 0xc90).unwrap().0, 0xffff);
    assert_eq!(m.read(0, 0xd50).unwrap().0, 0);
    assert_eq!(m.read(0, 0xc8f).unwrap().0, 3 << 32 | 5);
    assert_eq!(m.read(0, 0xc81).unwrap().0, 0);
    assert_eq!(m.report().refused, 7);
    let sparse = machine("sparse", ICELAKE);
    sparse.write(0, 0xc90, 0b101).unwrap();
    assert_eq!(sparse.read(0, 0xc90).unwrap().0, 0b101);
    assert_eq!(
        sparse.read(2, 0xc90).unwrap().0,
        0xfff,
        "a register for each socket"
    );
}

/// A delayed thread is delayed even if the other thread of its core is not.
#[test]
fn threads_of_a_core_are_delayed_each_by_its_class() {
    let m = machine("icelake", ICELAKE);
    m.write(0, 0xd51, 90).unwrap();
    associate(&m, 0, 1, 1);
    let mut delayed = [Duration::ZERO; 2];
    for round in 0..20 {
        for (cpu, delayed) in delayed.iter_mut().enumerate() {
            // A batch of requests that no cache has.
            for line in 0..4096u64 {
                let address = ((round * 2 + cpu as u64) * 4096 + line) * 64;
                let after = m.data(cpu, address, false, true);
                std::thread::sleep(after.delay);
                if round >= 10 {
                    *delayed += after.delay;
                }
            }
        }
    }
    assert!(delayed[0] > Duration::ZERO, "{delayed:?}");
    assert_eq!(delayed[1], Duration::ZERO);
}

#[test]
fn a_repeat_is_the_same_line_and_no_first_store() {
    let m = machine("icelake", ICELAKE);
    assert!(!m.repeats(0, 128, false, true));
    assert!(m.repeats(0, 191, false, true));
    assert!(!m.repeats(0, 130, true, true), "the line is changed now");
    assert!(m.repeats(0, 130, false, true) && m.repeats(0, 130, true, true));
    assert!(!m.repeats(0, 0, true, true));
    assert!(!m.repeats(1, 0, true, true), "each CPU for itself");
}

#[test]
fn instructions_and_misses_reach_the_counters() {
    let m = machine("icelake", ICELAKE);
    m.write(0, 0x38f, 0xf | 7 << 32).unwrap();
    m.write(0, 0x186, 0x412e | 1 << 22 | 1 << 16).unwrap();
    m.write(0, 0x38d, 0xbb).unwrap();
    for n in 0..1000 {
        let after = m.run(0, 4096, 1, 10, n % 2 == 0);
        assert!(!after.interrupt);
    }
    assert_eq!(m.rdpmc(0, 1 << 30).unwrap().0, 10_000);
    walk(&m, 0, 1 << 30, 1 << 20, 1);
    // One of them is the miss of the code's only line.
    assert_eq!(m.rdpmc(0, 0).unwrap().0, (1 << 20) / 64 + 1);
    let stalled = m.rdpmc(0, 1 << 30 | 1).unwrap().0;
    let cycles = m.profile.cycles.memory;
    assert_eq!(stalled, 10_000 + u64::from(cycles) * ((1 << 20) / 64 + 1));
    // An overflow is noticed once it is due, at most 4096 instructions later.
    m.write(0, 0x309, (1 << 48) - 5000).unwrap();
    let late = (0..)
        .find(|_| m.run(0, 4096, 1, 10, true).interrupt)
        .unwrap();
    assert!((499..1000).contains(&late), "{late}");
}

#[test]
fn loads_and_stores_reach_the_counters_repeats_included() {
    let m = machine("icelake", ICELAKE);
    m.write(0, 0x38f, 0xf).unwrap();
    // Loads in user mode, stores in both.
    m.write(0, 0x186, 0x81d0 | 1 << 22 | 1 << 16).unwrap();
    m.write(0, 0x187, 0x82d0 | 1 << 22 | 3 << 16).unwrap();
    for n in 0..100 {
        m.repeats(0, 64 * (n / 10), false, true);
        m.repeats(0, 8, false, false);
        m.repeats(0, 8, true, n % 2 == 0);
    }
    m.repeats(1, 8, true, true);
    assert_eq!(
        (m.rdpmc(0, 0).unwrap().0, m.rdpmc(0, 1).unwrap().0),
        (100, 100)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever runs and is set: all occupancy is at most what was accessed, and that of a class at
    /// most the ways it may fill.
    #[test]
    fn occupancy_adds_up(steps in prop::collection::vec((0usize..4, 0u64..4, 0u64..64, 1u64..16), 1..40)) {
        let m = machine("icelake", ICELAKE);
        let mut seen = [std::collections::BTreeSet::new(), std::collections::BTreeSet::new()];
        for (cpu, class, start, length) in steps {
            m.write(cpu, 0xc90 + class as u32, 0xf << (class * 4)).unwrap();
            associate(&m, cpu, class, class + 1);
            walk(&m, cpu, start << 16, length << 16, 1);
            seen[cpu / 2].extend((start << 16..(start + length) << 16).step_by(64));
            for (socket, seen) in seen.iter().enumerate() {
                let ids: Vec<u64> = (1..5).map(|id| occupancy(&m, 2 * socket, id)).collect();
                prop_assert!(ids.iter().all(|&bytes| bytes <= 4 * (512 << 10)));
                prop_assert!(ids.iter().sum::<u64>() <= seen.len() as u64 * 64);
            }
        }
    }
}

/// A profile with eight banks, with rows of 8 KiB.
fn with_banks(profile: &str) -> Machine {
    const BANKS: &str = "[dram]\ncolumn = ['6-12']\nbank = [[13, 17], [14, 18], 15]\nrow = ['16-29']\n\
                         hit = 150\nmiss = 200\nconflict = 250\n";
    let profile = toml::to_string(&Profile::load(profile).unwrap()).unwrap();
    let profile = Profile::parse("banks", &format!("{profile}{BANKS}")).unwrap();
    // Written and read again, as the lab hands it on.
    let again = toml::to_string(&profile).unwrap();
    Machine::new(Profile::parse("again", &again).unwrap(), ICELAKE).unwrap()
}

#[test]
fn streams_in_one_bank_close_each_others_rows() {
    // Two rows in turn: conflicts, and the cycle counter of one stream.
    let beside = |other: u64| {
        let m = with_banks("icelake");
        m.write(0, 0x38d, 0b11 << 4).unwrap();
        m.write(0, 0x38f, 1 << 33).unwrap();
        for n in 0..128 {
            m.data(0, n * 64, false, true);
            m.data(2, other + n * 64, false, true);
        }
        let conflicts: u64 = m.report().banks.iter().map(|b| b.conflicts).sum();
        (conflicts, m.read(0, 0x30a).unwrap().0)
    };
    assert_eq!(beside(1 << 15), (0, 200 + 127 * 150));
    // Row 8 of bank 0: no function of the bank has bit 19.
    assert_eq!(beside(1 << 19), (255, 200 + 127 * 250));
}

#[test]
fn a_flushed_line_comes_from_memory_and_goes_back_once() {
    for profile in ["icelake", "goldmont"] {
        let m = with_banks(profile);
        let touch = |cpu, write| {
            if !m.repeats(cpu, 0x4567, write, true) {
                m.data(cpu, 0x4567, write, true);
            }
        };
        let traffic = || -> [u64; 2] {
            let ids = m.report().ids;
            let all = ids.iter().flat_map(|ids| ids.values());
            all.fold([0; 2], |[misses, back], one| {
                [misses + one.misses, back + one.writebacks]
            })
        };
        touch(0, false);
        touch(0, false);
        assert_eq!(traffic(), [1, 0]);
        m.flush_line(0, 0x4540);
        assert_eq!(traffic(), [1, 0]);
        touch(0, true);
        assert_eq!(traffic(), [2, 0]);
        // By another CPU than the one that has it modified.
        m.flush_line(1, 0x4567);
        m.flush_line(1, 0x4567);
        assert_eq!(traffic(), [2, 1]);
        // All caches of the machine are emptied of it.
        touch(2, false);
        assert_eq!(traffic(), [3, 1]);
        m.flush(2);
        touch(2, false);
        assert_eq!(traffic(), [4, 1]);
    }
}

proptest! {
    /// Every line that a last level reads from memory or writes back is an access to a bank.
    #[test]
    fn banks_see_what_goes_to_memory(
        profile in prop::sample::select(vec!["icelake", "goldmont"]),
        accesses in prop::collection::vec((0u64..1 << 21, any::<bool>(), 0usize..4, 1u64..200), 1..60),
    ) {
        let m = with_banks(profile);
        for (from, write, cpu, lines) in accesses {
            for n in 0..lines {
                // Strides of 64 KiB use few sets, so that lines are evicted.
                m.data(cpu, from + n * (64 << 10), write, true);
            }
        }
        for n in 0..64 {
            m.flush_line(0, n * (64 << 10));
        }
        if profile == "icelake" {
            m.flush(0);
        }
        let report = m.report();
        let banks: u64 = report.banks.iter().map(|b| b.hits + b.misses + b.conflicts).sum();
        let lines = |of: &Traffic| of.misses + of.writebacks;
        let memory: u64 = report.ids.iter().flat_map(|ids| ids.values().map(lines)).sum();
        prop_assert_eq!(banks, memory);
        prop_assert_eq!(report.banks.len(), 8);
        prop_assert_eq!(machine(profile, ICELAKE).report().banks.len(), 0);
    }
}
