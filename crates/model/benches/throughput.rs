//! How many accesses and requests per second of this computer's time: `cargo bench -p quell-model [-- NAME]`.
//!
//! Each line is the best and the median of some runs on one thread, per second of its CPU time where the kernel tells that: the
//! best is what the code can do, the distance tells of the machine. Everything is deterministic, so the runs differ in nothing but time.

use std::hint::black_box;
use std::time::Instant;

use quell_model::address::bits;
use quell_model::cache::{Cache, Geometry, Hierarchy, Inclusion, Index, Level, Policy};
use quell_model::dram::{Channel, Config, Request, Timing};

const RUNS: usize = 5;

/// The CPU time of this thread in seconds, without the time that others had the CPU (Linux); else the clock.
fn cpu_seconds(since: Instant) -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = stat.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    nanos.map_or_else(|| since.elapsed().as_secs_f64(), |ns| ns as f64 / 1e9)
}

/// Runs `work`, which does `count` things, and prints millions of them per second.
fn bench(name: &str, what: &str, count: u64, mut work: impl FnMut()) {
    let chosen = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    if chosen.is_some_and(|part| !name.contains(&part)) {
        return;
    }
    work();
    let mut rates: Vec<f64> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            let before = cpu_seconds(start);
            work();
            count as f64 / (cpu_seconds(start) - before) / 1e6
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    println!(
        "{name:<34} {:>8.1} M {what}/s   median {:>8.1}",
        rates[RUNS - 1],
        rates[RUNS / 2]
    );
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
        // The two published slice functions of four-slice Intel processors (Maurice et al., RAID 2015).
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

fn dram() {
    const COUNT: u64 = 1_000_000;
    let ddr3 = Config {
        ranks: 2,
        ..Config::ddr3(Timing::ddr3_1333())
    };
    let ddr4 = Config::ddr4(Timing::ddr4_3200());
    for (name, config, outstanding, random_rows, writes) in [
        ("dram/DDR3 stream reads", &ddr3, 40, false, false),
        ("dram/DDR3 random reads", &ddr3, 40, true, false),
        ("dram/DDR3 random, a third writes", &ddr3, 40, true, true),
        ("dram/DDR3 chase", &ddr3, 1, true, false),
        ("dram/DDR4 random reads", &ddr4, 40, true, false),
        ("dram/DDR4 random, a third writes", &ddr4, 40, true, true),
    ] {
        bench(name, "requests", COUNT, || {
            let mut channel = Channel::new(config).expect("a real channel");
            let (mut seed, mut now, mut done) = (1, 0, Vec::with_capacity(64));
            for id in 0..COUNT {
                let r = if random_rows {
                    random(&mut seed)
                } else {
                    id / 8
                };
                let banks = u64::from(config.banks);
                let request = Request {
                    id,
                    write: writes && id % 3 == 0,
                    rank: (r / banks) as u32 % config.ranks,
                    bank: (r % banks) as u32,
                    row: (r >> 12) as u32 & 0x3fff,
                    column: (r >> 40) as u32 & 0x78 | id as u32 & 7,
                };
                while channel.waiting().0 >= outstanding || !channel.has_room(request.write) {
                    now = channel.next_event().expect("requests wait");
                    done.clear();
                    channel.advance(now, &mut done);
                }
                let _ = black_box(channel.enqueue(request, now));
            }
            black_box(channel.counts());
        });
    }
}

/// The same requests through DRAMsim3, in the same run (`--features oracle`).
#[cfg(feature = "oracle")]
fn dramsim3() {
    const COUNT: u64 = 50_000;
    // DDR3-1333 of two ranks; what it does not name is of no consequence here.
    const INI: &str = "[dram_structure]\nprotocol = DDR3\nbankgroups = 1\nbanks_per_group = 8\nrows = 16384\n\
        columns = 1024\ndevice_width = 8\nBL = 8\n[timing]\ntCK = 1.5\nCL = 9\nCWL = 7\ntRCD = 9\ntRP = 9\ntRAS = 24\n\
        tRFC = 74\ntREFI = 5200\ntRRD_S = 4\ntWTR_S = 5\ntFAW = 20\ntWR = 10\ntCCD_S = 4\ntRTP = 5\ntRTRS = 2\n\
        [system]\nchannel_size = 2048\nchannels = 1\nbus_width = 64\naddress_mapping = rochrababgco\n\
        queue_structure = PER_BANK\ntrans_queue_size = 32\ncmd_queue_size = 8\n\
        [other]\nepoch_period = 2000000000\noutput_level = 0\n";
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = folder.join("throughput.ini");
    std::fs::write(&file, INI).expect("the build's own folder");
    for (name, outstanding, random_rows, writes) in [
        ("DRAMsim3/DDR3 stream reads", 40, false, false),
        ("DRAMsim3/DDR3 random reads", 40, true, false),
        ("DRAMsim3/DDR3 random, a third writes", 40, true, true),
        ("DRAMsim3/DDR3 chase", 1, true, false),
    ] {
        bench(name, "requests", COUNT, || {
            let mut memory = dramsim3::MemorySystem::new(&file, folder).expect("a real path");
            let (mut seed, mut flying) = (1, 0);
            for id in 0..COUNT {
                let line = if random_rows {
                    random(&mut seed) >> 38
                } else {
                    id
                };
                let write = writes && id % 3 == 0;
                while !write && flying >= outstanding || !memory.can_add(line * 64, write) {
                    memory.tick(|_, write| flying -= u64::from(!write));
                }
                memory.add(line * 64, write);
                flying += u64::from(!write);
            }
            black_box(flying);
        });
    }
}

fn main() {
    caches();
    hierarchies();
    dram();
    #[cfg(feature = "oracle")]
    dramsim3();
}
