//! How many accesses and requests the models handle per second of this computer's time: `cargo
//! bench -p quell-model [-- NAME]`.
//!
//! Each line is the best and the median of some runs on one thread. Everything is deterministic, so
//! the runs differ only in time.

use std::hint::black_box;

mod measure;

use measure::{RUNS, chosen, of_all, rate};
use quell_model::cache::{Cache, Geometry, Hierarchy, Inclusion, Index, Level, Policy};
use quell_model::dram::{Channel, Config, Request, Timing};
use quell_types::address::bits;

/// Runs `work`, which does `count` things, and prints millions of them per second.
fn bench(name: &str, what: &str, count: u64, mut work: impl FnMut()) {
    if !chosen(name) {
        return;
    }
    work();
    let (best, median) = of_all((0..RUNS).map(|_| rate(count, &mut work)).collect());
    println!("{name:<36} {best:>8.1} M {what}/s   median {median:>8.1}");
}

fn random(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

fn caches() {
    const COUNT: u64 = 1_000_000;
    let l1 = Geometry::plain(32 << 10, 8, 64).expect("a real cache");
    for (name, policy) in [
        ("cache/32 KiB hits LRU", Policy::Lru),
        ("cache/32 KiB hits tree PLRU", Policy::TreePlru),
    ] {
        let mut cache = Cache::new(&l1, policy, 1).expect("a real cache");
        bench(name, "accesses", COUNT, || {
            for i in 0..COUNT {
                black_box(cache.access(i * 64 % (24 << 10), false, 0));
            }
        });
    }
    let hashed = Geometry {
        line: 64,
        ways: 16,
        // The two published slice functions of four-slice Intel processors (Maurice et al., RAID
        // 2015).
        index: Index::Functions {
            set: bits(6, 16),
            slice: vec![0x1b_5f57_5440, 0x2e_b5fa_a880],
        },
    };
    let plain = Geometry::plain(8 << 20, 16, 64).expect("a real cache");
    for (name, geometry, policy, reach) in [
        ("cache/8 MiB random hits LRU", &plain, Policy::Lru, 4 << 20),
        (
            "cache/8 MiB random misses LRU",
            &plain,
            Policy::Lru,
            1 << 30,
        ),
        (
            "cache/8 MiB random misses tree PLRU",
            &plain,
            Policy::TreePlru,
            1 << 30,
        ),
        (
            "cache/8 MiB 4 slices random misses",
            &hashed,
            Policy::Lru,
            1 << 30,
        ),
    ] {
        let mut cache = Cache::new(geometry, policy, 1).expect("a real cache");
        let mut seed = 1;
        bench(name, "accesses", COUNT, || {
            for _ in 0..COUNT {
                black_box(cache.access(random(&mut seed) & (reach - 1), false, 0));
            }
        });
    }
}

fn hierarchies() {
    const COUNT: u64 = 1_000_000;
    let level = |size, ways, inclusion, cache_of: &[usize]| Level {
        geometry: Geometry::plain(size, ways, 64).expect("a real cache"),
        policy: Policy::Lru,
        inclusion,
        cache_of: cache_of.to_vec(),
    };
    let levels = [
        level(32 << 10, 8, Inclusion::NonInclusive, &[0, 1, 2, 3]),
        level(256 << 10, 8, Inclusion::NonInclusive, &[0, 1, 2, 3]),
        level(8 << 20, 16, Inclusion::Inclusive, &[0, 0, 0, 0]),
    ];
    for (name, reach, stride) in [
        ("hierarchy/first level", 16 << 10, 0),
        ("hierarchy/second level random", 128 << 10, 0),
        ("hierarchy/third level random", 1 << 20, 0),
        ("hierarchy/memory random", 1 << 30, 0),
        ("hierarchy/memory stream, 8 B steps", 64 << 20, 8),
    ] {
        let mut caches = Hierarchy::new(&levels, 4).expect("a real hierarchy");
        let (mut seed, mut at) = (1, 0u64);
        bench(name, "accesses", COUNT, || {
            for i in 0..COUNT {
                let core = (i & 3) as u8;
                at = if stride == 0 {
                    random(&mut seed)
                } else {
                    at + stride
                } & (reach - 1);
                black_box(caches.access(
                    usize::from(core),
                    core,
                    at | u64::from(core) << 32,
                    i & 7 == 0,
                ));
            }
        });
    }
}

/// Requests to one channel, with so many of its reads outstanding.
#[derive(Clone, Copy)]
struct Load {
    outstanding: usize,
    random_rows: bool,
    writes: bool,
}

const STREAM: Load = Load {
    outstanding: 40,
    random_rows: false,
    writes: false,
};
const RANDOM: Load = Load {
    random_rows: true,
    ..STREAM
};
const MIXED: Load = Load {
    writes: true,
    ..RANDOM
};
const CHASE: Load = Load {
    outstanding: 1,
    ..RANDOM
};

fn ddr3() -> Config {
    Config {
        ranks: 2,
        ..Config::ddr3(Timing::ddr3_1333())
    }
}

fn ours(config: &Config, load: Load, count: u64) {
    let mut channel = Channel::new(config).expect("a real channel");
    let (mut seed, mut now, mut done) = (1, 0, Vec::with_capacity(64));
    for id in 0..count {
        let r = if load.random_rows {
            random(&mut seed)
        } else {
            id / 8
        };
        let banks = u64::from(config.banks);
        let request = Request {
            id,
            write: load.writes && id % 3 == 0,
            rank: (r / banks) as u32 % config.ranks,
            bank: (r % banks) as u32,
            row: (r >> 12) as u32 & 0x3fff,
            column: (r >> 40) as u32 & 0x78 | id as u32 & 7,
        };
        while channel.waiting().0 >= load.outstanding || !channel.has_room(request.write) {
            now = channel.next_event().expect("requests wait");
            done.clear();
            channel.advance(now, &mut done);
        }
        let _ = black_box(channel.enqueue(request, now));
    }
    black_box(channel.counts());
}

fn dram() {
    // Long enough for the kernel, which counts CPU time in ticks.
    const COUNT: u64 = 1_000_000;
    let ddr4 = Config::ddr4(Timing::ddr4_3200());
    for (name, config, load) in [
        ("dram/DDR3 stream reads", &ddr3(), STREAM),
        ("dram/DDR3 random reads", &ddr3(), RANDOM),
        ("dram/DDR3 random, a third writes", &ddr3(), MIXED),
        ("dram/DDR3 chase", &ddr3(), CHASE),
        ("dram/DDR4 random reads", &ddr4, RANDOM),
        ("dram/DDR4 random, a third writes", &ddr4, MIXED),
    ] {
        bench(name, "requests", COUNT, || ours(config, load, COUNT));
    }
}

/// The same load through DRAMsim3, a run of this model after each of its (`--features oracle`).
#[cfg(feature = "oracle")]
fn dramsim3() {
    const COUNT: u64 = 100_000;
    // DDR3-1333 of two ranks. Parameters that it does not name do not matter here.
    const INI: &str = "[dram_structure]\nprotocol = DDR3\nbankgroups = 1\nbanks_per_group = 8\nrows = 16384\n\
        columns = 1024\ndevice_width = 8\nBL = 8\n[timing]\ntCK = 1.5\nCL = 9\nCWL = 7\ntRCD = 9\ntRP = 9\ntRAS = 24\n\
        tRFC = 74\ntREFI = 5200\ntRRD_S = 4\ntWTR_S = 5\ntFAW = 20\ntWR = 10\ntCCD_S = 4\ntRTP = 5\ntRTRS = 2\n\
        [system]\nchannel_size = 2048\nchannels = 1\nbus_width = 64\naddress_mapping = rochrababgco\n\
        queue_structure = PER_BANK\ntrans_queue_size = 32\ncmd_queue_size = 8\n\
        [other]\nepoch_period = 2000000000\noutput_level = 0\n";
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = folder.join("throughput.ini");
    std::fs::write(&file, INI).expect("the build's own folder");
    let theirs = |load: Load| {
        let mut memory = dramsim3::MemorySystem::new(&file, folder).expect("a real path");
        let (mut seed, mut flying) = (1, 0);
        for id in 0..COUNT {
            let line = if load.random_rows {
                random(&mut seed) >> 38
            } else {
                id
            };
            let write = load.writes && id % 3 == 0;
            while !write && flying >= load.outstanding || !memory.can_add(line * 64, write) {
                memory.tick(|_, write| flying -= usize::from(!write));
            }
            memory.add(line * 64, write);
            flying += usize::from(!write);
        }
        black_box(flying);
    };
    for (name, load) in [
        ("DRAMsim3/DDR3 stream reads", STREAM),
        ("DRAMsim3/DDR3 random reads", RANDOM),
        ("DRAMsim3/DDR3 random, a third writes", MIXED),
        ("DRAMsim3/DDR3 chase", CHASE),
    ] {
        if !chosen(name) {
            continue;
        }
        let rates = |_| {
            let ours = rate(10 * COUNT, &mut || ours(&ddr3(), load, 10 * COUNT));
            (ours, rate(COUNT, &mut || theirs(load)))
        };
        let pairs: Vec<(f64, f64)> = (0..RUNS).map(rates).collect();
        let (best, median) = of_all(pairs.iter().map(|pair| pair.1).collect());
        let ours = of_all(pairs.iter().map(|pair| pair.0).collect());
        let ratio = of_all(pairs.iter().map(|(ours, theirs)| ours / theirs).collect());
        println!(
            "{name:<36} {best:>8.2} M requests/s   median {median:>8.2}   ours {:>6.1}   median {:>6.1}   {:>4.0} times as many",
            ours.0, ours.1, ratio.1
        );
    }
}

fn main() {
    caches();
    hierarchies();
    dram();
    #[cfg(feature = "oracle")]
    dramsim3();
}
