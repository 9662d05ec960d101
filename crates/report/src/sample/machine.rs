//! The machine of the samples, as it reports itself and with all measurements.

use std::collections::BTreeMap;

use quell_plan::deep::{
    AddressMap, CacheSets, CacheSteps, Case, Control, CounterCheck, CpuRate, Deep, Loaded,
    LoadedPoint, OperationRates, PageCost, Pair, Sharing, SizePoint, Spread, Tail, Wakeup, knee,
    levels,
};
use quell_plan::inventory::{
    Availability, Cache, CacheKind, Cpu, CpusetKind, DemandSource, Identity, Inventory, Lack,
    Means, Measured, MemoryMeans, MeterKind, Node,
};
use quell_types::address::bits;
use quell_types::address::recovery::{Figures, Recovery, SetFigures, SetRecovery, Tally, Verdict};
use quell_types::cpuset::CpuSet;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::partition::{Mask, Partitions};
use quell_types::units::{Bytes, Rate};

use super::cpus;

/// A virtual machine of two CPUs without counters.
pub(crate) fn machine() -> Inventory {
    let cache = |level, kind, size, of: &str| Cache {
        level,
        kind,
        size: Bytes(size),
        ways: Some(8),
        sets: None,
        line: Bytes(64),
        cpus: cpus(of),
    };
    Inventory {
        identity: Identity {
            kernel: "6.18.0".into(),
            architecture: "x86_64".into(),
            vendor: "AuthenticAMD".into(),
            model: "AMD EPYC".into(),
            microcode: None,
            hypervisor: Some("KVM".into()),
            lab: None,
        },
        cpus: (0..2)
            .map(|id| Cpu {
                id,
                siblings: CpuSet::from_iter([id]),
                package: 0,
                node: 0,
                tier: 0,
                isolated: false,
                tickless: false,
            })
            .collect(),
        caches: vec![
            cache(1, CacheKind::Data, 32 << 10, "0"),
            cache(1, CacheKind::Data, 32 << 10, "1"),
            cache(2, CacheKind::Unified, 1 << 20, "0"),
            cache(2, CacheKind::Unified, 1 << 20, "1"),
            cache(3, CacheKind::Unified, 32 << 20, "0-1"),
        ],
        nodes: vec![Node {
            id: 0,
            cpus: cpus("0-1"),
            memory: Bytes(8_375_186_227),
            near: CpuSet::new(),
        }],
        mechanisms: mechanisms(),
        means: Means {
            cpuset: CpusetKind::V2,
            movable_irqs: 12,
            fixed_irqs: 3,
            workqueue_mask: true,
            meter: MeterKind::Time,
            time_meter: true,
            brake: Ok(()),
            brake_in_place: Ok(()),
            cpu_max: true,
            registers: quell_plan::inventory::unknown_registers(),
            counter_users: Vec::new(),
            memory: MemoryMeans::default(),
            demand: DemandSource::default(),
        },
        measured: Some(Measured {
            peak_cpu: Rate(37_500_000_000),
            peak_operation: "write".into(),
            by_operation: BTreeMap::new(),
            sustainable: Rate(45_000_000_000),
            cpus: 2,
            stop_cost: None,
            operations: Vec::new(),
            counters: BTreeMap::new(),
            mba: None,
            within_cache: None,
            rest: None,
            cache_steps: None,
            at_unix_s: 0,
            deep: None,
            assumed: false,
        }),
        partitions: Partitions::default(),
        simulated: None,
    }
}

fn mechanisms() -> BTreeMap<Mechanism, Availability> {
    let no = |why: &str, remedy: Option<&str>| Availability::No {
        why: why.into(),
        lack: Lack::Machine,
        remedy: remedy.map(str::to_owned),
    };
    let yes = |best, how: &str| Availability::Yes {
        best,
        how: how.into(),
    };
    BTreeMap::from([
        (Mechanism::Cores, yes(Level::Enforced, "cgroup v2 cpuset")),
        (
            Mechanism::Bandwidth,
            yes(
                Level::Estimated,
                "brakes on CPU time × peak rate (no hardware counter counts)",
            ),
        ),
        (
            Mechanism::Ways,
            no(
                "the processor offers no cache allocation to this virtual machine",
                Some("run on the host, or in `quell lab`"),
            ),
        ),
        (Mechanism::CpuMax, yes(Level::Enforced, "cpu.max")),
    ])
}

fn spread(value: f64) -> Spread {
    Spread {
        p50: value,
        low: value * 0.9,
        high: value * 1.2,
    }
}

fn tail(value: f64) -> Tail {
    Tail {
        p50: value,
        p95: value * 1.1,
        p99: value * 1.4,
        max: value * 9.0,
        samples: 960,
    }
}

/// [`machine`] with all measurements. Other programs use its cache, and its CPUs share less than
/// they report.
pub(crate) fn measured_machine() -> Inventory {
    let mut machine = machine();
    let each = |value| {
        let rate = |cpu| CpuRate {
            cpu,
            mb_s: spread(value),
        };
        vec![rate(0), rate(1)]
    };
    let wakeup = |cpu, fifo, late| Wakeup {
        cpu,
        fifo,
        late_us: tail(late),
        steal: Some(0.021),
    };
    let page = |size, base: f64, huge: f64| PageCost {
        size: Bytes(size),
        base_ns: spread(base),
        huge_ns: spread(huge),
        ratio: spread(base / huge),
    };
    if let Some(measured) = &mut machine.measured {
        measured.operations = [("read", 9_100.0), ("write", 7_400.0)]
            .map(|(operation, rate)| OperationRates {
                operation: operation.into(),
                alone: each(rate),
                loaded: each(rate * 0.8),
                together: spread(rate * 1.6),
            })
            .into();
        measured.counters = BTreeMap::from([("cpu/RIGHT", 997), ("cpu/OFF", 430)].map(
            |(name, counted)| {
                let check = CounterCheck::of("read stream", &[(counted, 1000)]).unwrap();
                (name.to_owned(), check)
            },
        ));
        measured.deep = Some(Box::new(Deep {
            quick: true,
            took_s: 6.2,
            steal: Some(0.021),
            sharing: Some(sharing()),
            loaded: Some(loaded()),
            caches: Some(cache_steps()),
            pages: vec![page(2 << 20, 22.0, 21.0), page(64 << 20, 130.0, 100.0)],
            wakeups: vec![
                wakeup(0, false, 56.0),
                wakeup(1, false, 61.0),
                wakeup(0, true, 4.0),
                wakeup(1, true, 5.0),
            ],
            address_map: Some(address_map()),
            cache_sets: cache_sets(),
            page_faults: CounterCheck::of("number of pages touched", &[(2048, 2048)]),
            skipped: BTreeMap::from([("something".to_owned(), "it was not to be had".to_owned())]),
        }));
    }
    machine
}

/// Two functions, of which one lies within a page of 64 KiB.
fn address_map() -> AddressMap {
    let tally = |right, of| Tally { right, of };
    AddressMap {
        pool: Bytes(256 << 20),
        took_s: 3.25,
        found: Recovery {
            verdict: Verdict::Map {
                functions: vec![Mask(1 << 14), Mask(1 << 16 | 1 << 20)],
                confidence: 0.9625,
            },
            figures: Figures {
                pages: 65_536,
                pairs: 2_900,
                times: 17_000,
                usual_ns: 181.5,
                spread_ns: 3.5,
                p99_ns: 260.0,
                slower: 500,
                slow_lines: 2,
                passing: 3,
                conflict_ns: Some(229.0),
                explained: tally(50, 51),
                again: tally(51, 51),
                together: tally(95, 96),
                apart: tally(96, 96),
            },
        },
    }
}

/// A second level as assumed, and a third one with a hash.
fn cache_sets() -> Vec<CacheSets> {
    let tally = |right, of| Tally { right, of };
    let figures = SetFigures {
        pages: 65_536,
        times: 2_345,
        kept_ns: 21.5,
        lost_ns: 45.0,
        kept: tally(62, 64),
        lost: tally(64, 64),
        classes: tally(3, 4),
        explained: tally(71, 73),
        again: tally(45, 46),
        together: tally(95, 96),
        apart: tally(96, 96),
        over: false,
    };
    let seen = |level, megabytes: u64, sets: u32, functions: &[u64]| {
        let cache = Cache {
            level,
            kind: CacheKind::Unified,
            size: Bytes(megabytes << 20),
            ways: Some(16),
            sets: Some(sets),
            line: Bytes(64),
            cpus: cpus("0"),
        };
        let verdict = Verdict::Map {
            functions: functions.iter().copied().map(Mask).collect(),
            confidence: 0.9625,
        };
        let found = SetRecovery {
            verdict,
            ways: Some(16),
            figures: figures.clone(),
        };
        CacheSets::new(&cache, Bytes(256 << 20), 1.5, found)
    };
    vec![
        seen(2, 2, 2_048, &bits(12, 16)),
        seen(
            3,
            4,
            4_096,
            &[bits(12, 16), vec![1 << 17 | 1 << 21]].concat(),
        ),
    ]
}

/// Two CPUs that claim a cache and do not share it.
fn sharing() -> Sharing {
    let rounds = |scores: &[f64]| -> Vec<(Option<f64>, bool)> {
        scores.iter().map(|s| (Some(*s), *s != 0.7)).collect()
    };
    Sharing {
        pairs: vec![Pair {
            a: 0,
            b: 1,
            claimed: true,
            score: Some(spread(0.1)),
            told: 29,
            probes: 30,
        }],
        controls: vec![
            Control::of(Case::SameCpu, &rounds(&[0.9; 30])),
            Control::of(
                Case::Flushed,
                &rounds(&[[0.0; 29].as_slice(), &[0.7]].concat()),
            ),
        ],
    }
}

fn loaded() -> Loaded {
    let loads = [
        (0.0, 92.0),
        (4_000.0, 95.0),
        (8_000.0, 99.0),
        (12_000.0, 118.0),
        (14_000.0, 190.0),
        (14_600.0, 260.0),
    ];
    Loaded {
        cpu: 0,
        list: Bytes(128 << 20),
        writers: 1,
        points: loads
            .map(|(rate, ns)| LoadedPoint {
                wanted_mb_s: Some(rate),
                mb_s: spread(rate),
                latency_ns: tail(ns),
                rounds: spread(ns),
            })
            .into(),
        knee: knee(&loads),
    }
}

fn cache_steps() -> CacheSteps {
    let sizes = [
        (16 << 10, 1.6),
        (32 << 10, 1.6),
        (64 << 10, 4.2),
        (128 << 10, 5.0),
        (256 << 10, 5.1),
        (512 << 10, 5.2),
        (1 << 20, 5.4),
        (2 << 20, 22.0),
        (4 << 20, 24.0),
        (8 << 20, 25.0),
        (16 << 20, 70.0),
        (32 << 20, 90.0),
        (64 << 20, 100.0),
        (128 << 20, 101.0),
    ]
    .map(|(size, ns)| (Bytes(size), ns));
    let caches = [
        (1, Bytes(32 << 10)),
        (2, Bytes(1 << 20)),
        (3, Bytes(32 << 20)),
    ];
    CacheSteps {
        cpu: 0,
        points: sizes
            .map(|(size, ns)| SizePoint {
                size,
                latency_ns: spread(ns),
            })
            .into(),
        levels: levels(&sizes, &caches),
        memory_ns: 101.0,
    }
}
