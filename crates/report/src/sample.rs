//! Values for the tests: a comparison with figures as a small virtual machine gave them, its plan
//! and its machine.

use std::collections::BTreeMap;

use quell_control::config::Meter;
use quell_control::config::Regulation;
use quell_plan::{GroupPlan, Held, Loops, Plan, Promise, Setting, Step};
use quell_policy::Role;
use quell_record::attribution::{Attribution, Cause, How, Part};
use quell_record::events::{COMPARE_SCHEMA, CpuTimes, Event, Phase, Record, Span, Stamped, Stop};
use quell_record::result::{
    CompareResult, ConfigurationResult, Figures, Frontier, PromiseResult, Reaction, SubjectResult,
    Timing, Totals,
};
use quell_types::cpuset::CpuSet;
use quell_types::ids::StepId;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::options::Split;
use quell_types::refusal::Refusal;
use quell_types::stats::Better;
use quell_types::stats::Interval;
use quell_types::units::{Lines, Nanos, Rate};

mod machine;
pub(crate) mod profile;
mod published;
pub(crate) mod sweep;

pub(crate) use machine::{machine, measured_machine};
pub(crate) use published::published;

/// Compares with `tests/NAME.txt`. `QUELL_BLESS=1 cargo test -p quell-report` rewrites that file
/// after an intended change.
pub(crate) fn golden(name: &str, text: &str) {
    let path = format!("{}/tests/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("QUELL_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap();
    assert!(kept == text, "{path} differs; now it reads:\n{text}");
}

fn around(value: f64, spread: f64) -> Option<Interval> {
    Some([value - spread, value + spread].into())
}

/// One configuration of a victim and a neighbour: latencies at p50 and p99 in ns, and the part of
/// 37,500 MB/s kept.
pub(crate) fn row(
    name: &str,
    mechanisms: &[Mechanism],
    level: Level,
    p50: f64,
    p99: f64,
    kept: f64,
) -> ConfigurationResult {
    let (n50, n99) = (15.3 / p50, 150.0 / p99);
    let latency = Figures {
        value: Some(p50 * 1.1),
        ci95: around(p50 * 1.1, 1.0),
        normalized: Some(n50),
        normalized_ci95: around(n50, 0.03),
        normalized_p50: Some(n50),
        normalized_p50_ci95: around(n50, 0.03),
        normalized_p95: None,
        normalized_p95_ci95: None,
        normalized_p99: Some(n99),
        normalized_p99_ci95: around(n99, 0.04),
        p50: Some(p50),
        p50_ci95: around(p50, p50 * 0.02),
        p95: Some(p99 * 0.9),
        p99: Some(p99),
        p99_ci95: around(p99, p99 * 0.04),
        max: Some(p99 * 2.0),
        samples: Some(15_000),
        rounds: Some(15),
    };
    let rate = Figures {
        value: Some(37_500.0 * kept),
        normalized: Some(kept),
        normalized_ci95: around(kept, 0.01),
        rounds: Some(15),
        ..Figures::default()
    };
    let victim = SubjectResult {
        name: "victim".into(),
        role: Role::Critical,
        cpus: vec![0],
        metric: "latency_ns".into(),
        better: Better::Lower,
        figures: latency.clone(),
        shared: Some(latency),
        metrics: BTreeMap::new(),
        attribution: (name != "solo").then(attributed),
        worst: Vec::new(),
    };
    let neighbour = SubjectResult {
        name: "neighbour".into(),
        role: Role::BestEffort,
        cpus: vec![1],
        metric: "bandwidth_mb_s".into(),
        better: Better::Higher,
        figures: rate.clone(),
        shared: Some(rate),
        metrics: BTreeMap::new(),
        attribution: None,
        worst: Vec::new(),
    };
    let limit = mechanisms
        .contains(&Mechanism::Bandwidth)
        .then(|| PromiseResult {
            group: "neighbour".into(),
            promise: Promise::LimitBandwidth {
                rate: Rate(1_000_000_000),
            },
            level,
            held: Some(true),
            lost: None,
        });
    let parts = name.split_once('@');
    let cap = parts.map(|(_, cap)| cap.to_owned());
    ConfigurationResult {
        name: name.into(),
        family: parts.map(|(family, _)| family.to_owned()),
        cap: cap.clone(),
        axes: cap.map(|c| ("cap".to_owned(), c)).into_iter().collect(),
        mechanisms: mechanisms.to_vec(),
        guarantee: Some(level),
        promises: limit.into_iter().collect(),
        refused: Vec::new(),
        rounds: 15,
        rounds_shared: Some(15),
        subjects: vec![victim, neighbour],
        totals: if name.starts_with("regulated") {
            throttled()
        } else {
            Totals::default()
        },
    }
}

fn attributed() -> Attribution {
    let part = |cause, ns, share, how| Part {
        cause,
        ns,
        share,
        how,
    };
    Attribution {
        late_above: 1.25,
        units: 7_500,
        late: 3_000,
        late_ns: 2_000_000_000,
        parts: vec![
            part(Cause::Memory, 1_240_000_000, 0.62, How::Remainder),
            part(Cause::Preemption, 600_000_000, 0.3, How::Measured),
            part(Cause::Steal, 120_000_000, 0.06, How::Measured),
            part(Cause::Interrupts, 40_000_000, 0.02, How::Counted),
        ],
        memory: Some([0.6, 0.64]),
        sample_ns: 1_600.0,
    }
}

/// Three sizes in two kinds of pages.
pub(crate) fn paging() -> CompareResult {
    let mut result = result();
    let template = result.configuration("none").unwrap().clone();
    let latencies = [
        ("16KiB", 1.5, 1.5),
        ("1MiB", 6.0, 5.0),
        ("0.5LLC", 60.0, 30.0),
    ];
    result.configurations.clear();
    for (size, small, large) in latencies {
        for (pages, latency) in [("4KiB", small), ("2MiB", large)] {
            let mut c = template.clone();
            c.name = format!("{size}/{pages}");
            let axes = [("size", size), ("pages", pages)];
            c.axes = axes.map(|(a, v)| (a.to_owned(), v.to_owned())).into();
            c.subjects.truncate(1);
            c.subjects[0].figures.p50 = Some(latency);
            result.configurations.push(c);
        }
    }
    result
}

fn throttled() -> Totals {
    Totals {
        cells: 15,
        overflows: Some(16_000),
        throttles: Some(15_000),
        throttled_ns: Some(13_500_000_000),
        reaction_user: Some(Reaction {
            samples: 14_000,
            p50_ns: 24_300.0,
            p99_ns: 47_900.0,
            max_ns: 310_000.0,
        }),
        ..Totals::default()
    }
}

/// The result of the default demonstration.
pub(crate) fn result() -> CompareResult {
    use Level::{Enforced, Estimated, None};
    use Mechanism::{Bandwidth, Cores, CpuMax};
    let mut refused = row("regulated@70%", &[], None, 1.0, 1.0, 0.0);
    refused.guarantee = Option::None;
    refused.subjects.clear();
    refused.rounds = 0;
    refused.rounds_shared = Option::None;
    refused.totals = Totals::default();
    refused.refused = self::refused();
    CompareResult {
        schema: COMPARE_SCHEMA.into(),
        version: "0.1.0".into(),
        experiment: "neighbour".into(),
        title: Some("An LLC-sized list beside a write stream".into()),
        backend: "linux".into(),
        timing: Timing::Real,
        seed: 1,
        machine: machine(),
        policy_hash: "fnv1a64:0123456789abcdef".into(),
        confidence: 0.95,
        baseline: Some("solo".into()),
        frontier: Some(Frontier {
            protected: "victim".into(),
            pays: "neighbour".into(),
        }),
        rounds: 15,
        rounds_shared: Some(15),
        interrupted: Option::None,
        configurations: vec![
            row("solo", &[], None, 15.3, 150.0, 1.0),
            row("none", &[], None, 167.8, 189.0, 0.98),
            row("cores", &[Cores], Enforced, 166.0, 188.0, 0.98),
            row("cpu-max@10%", &[Cores, CpuMax], Enforced, 32.2, 174.0, 0.09),
            row(
                "cpu-max@30%",
                &[Cores, CpuMax],
                Enforced,
                103.0,
                180.0,
                0.29,
            ),
            row(
                "regulated@10%",
                &[Cores, Bandwidth],
                Estimated,
                16.7,
                149.0,
                0.05,
            ),
            row(
                "regulated@20%",
                &[Cores, Bandwidth],
                Estimated,
                24.0,
                151.0,
                0.12,
            ),
            row(
                "regulated@30%",
                &[Cores, Bandwidth],
                Estimated,
                96.0,
                164.0,
                0.28,
            ),
            refused,
        ],
        failures: Vec::new(),
        expectations: Vec::new(),
        published: Vec::new(),
    }
}

/// All subjects of all configurations.
pub(crate) fn subjects(result: &mut CompareResult) -> impl Iterator<Item = &mut SubjectResult> {
    let configurations = result.configurations.iter_mut();
    configurations.flat_map(|c| &mut c.subjects)
}

/// A record of it: two rounds of four configurations, 400 windows each, with a host that took a CPU
/// for a while.
pub(crate) fn record() -> Record {
    let stop = |n: u64| Stop {
        from_ns: 2_800_000_000 + n * 1_000_000,
        until_ns: 2_800_900_000 + n * 1_000_000,
    };
    let cell = |at_ns, round| Stamped {
        at_ns,
        event: Event::Cell {
            round,
            of: 2,
            configuration: "solo".into(),
            subject: None,
        },
    };
    Record {
        name: "neighbour".into(),
        version: "0.1.0".into(),
        created: Some("2026-01-02 03:04:05 UTC".into()),
        command_line: Some("quell compare neighbour --on linux && echo <done>".into()),
        result: Some(result()),
        text: Some("quell = 1\nname = \"neighbour\"\n".into()),
        machine: Some(machine()),
        plans: [
            (
                "none".to_owned(),
                Plan {
                    steps: Vec::new(),
                    promises: Vec::new(),
                    ..plan()
                },
            ),
            ("regulated@10%".to_owned(), plan()),
            ("regulated@30%".to_owned(), plan()),
        ]
        .into(),
        refused: [("regulated@70%".to_owned(), refused())].into(),
        spans: spans(),
        courses: Vec::new(),
        events: vec![
            cell(0, 0),
            cell(7_000_000_000, 1),
            Stamped {
                at_ns: 13_000_000_000,
                event: Event::Phase { name: Phase::Undo },
            },
        ],
        stops: [(1, (0..400).map(stop).collect())].into(),
        cpu_times: [(0, times(0)), (1, times(1))].into(),
    }
}

fn spans() -> Vec<Span> {
    let mut spans = Vec::new();
    let cells = [
        ("solo", 15.0, 150.0, 36_000.0),
        ("none", 150.0, 190.0, 35_000.0),
        ("cpu-max@10%", 30.0, 174.0, 3_400.0),
        ("cpu-max@30%", 90.0, 180.0, 11_000.0),
        ("regulated@10%", 15.5, 149.0, 2_000.0),
        ("regulated@30%", 80.0, 164.0, 10_000.0),
    ];
    let windows = 400u32;
    for (place, round) in (0..2).flat_map(|r| (0..cells.len()).map(move |c| (c, r))) {
        let Some((name, low, high, rate)) = cells.get(place) else {
            continue;
        };
        let begun = (place as u64 + 10 * u64::from(round)) * 700_000_000;
        let at: Vec<u64> = (0..windows)
            .map(|w| begun + u64::from(w) * 1_000_000)
            .collect();
        // Every 16th window is late, in an order that no bucket knows.
        let late = |w: u32| {
            if (w * 7).is_multiple_of(16) {
                *high
            } else {
                *low
            }
        };
        for (subject, values) in [
            ("victim", (0..windows).map(late).collect::<Vec<f64>>()),
            (
                "neighbour",
                (0..windows)
                    .map(|w| rate * (1.0 + f64::from(w % 5) / 50.0))
                    .collect(),
            ),
        ] {
            spans.push(Span {
                configuration: (*name).to_owned(),
                subject: subject.to_owned(),
                round,
                at_ns: Some(at.clone()),
                values,
            });
        }
    }
    spans
}

/// Samples of a CPU in 13 s. The host took it for a while, the higher its number the more.
fn times(cpu: u32) -> Vec<(u64, CpuTimes)> {
    (0..130)
        .map(|n| {
            let taken = if n > 40 {
                (n - 40).min(5) * 60_000_000
            } else {
                0
            };
            let times = CpuTimes {
                cpu,
                steal_ns: taken * u64::from(cpu),
                ..CpuTimes::default()
            };
            (n * 100_000_000, times)
        })
        .collect()
}

fn refused() -> Vec<Refusal> {
    vec![Refusal {
        key: "group.neighbour.limit.bandwidth".into(),
        why: "70% cannot be metered here".into(),
        remedies: vec!["ask for less".into()],
        ..Refusal::default()
    }]
}

fn cpus(list: &str) -> CpuSet {
    list.parse().unwrap()
}

/// A regulated neighbour on a machine of two CPUs.
pub(crate) fn plan() -> Plan {
    Plan {
        policy: "regulated@10%".into(),
        groups: vec![
            GroupPlan {
                name: "victim".into(),
                cpus: cpus("0"),
                matching: Vec::new(),
            },
            GroupPlan {
                name: "neighbour".into(),
                cpus: cpus("1"),
                matching: Vec::new(),
            },
        ],
        steps: steps(),
        promises: promises(),
        notes: vec!["CPU 1 is shared: the tasks of rest run on while neighbour is stopped.".into()],
        loops: Loops::default(),
        acts: Vec::new(),
        assumed: None,
    }
}

fn steps() -> Vec<Step> {
    let step = |id, group: Option<&str>, mechanism, set, because: &str| Step {
        id: StepId(id),
        group: group.map(str::to_owned),
        mechanism,
        set,
        because: because.into(),
        assumed: false,
    };
    vec![
        step(
            1,
            Some("victim"),
            Mechanism::Cores,
            Setting::Gather {
                matching: Vec::new(),
                outermost: false,
                braked: false,
            },
            "its CPUs are its own",
        ),
        step(
            2,
            Some("victim"),
            Mechanism::Cores,
            Setting::Confine {
                cpus: cpus("0"),
                mems: cpus("0"),
                exclusive: true,
            },
            "critical groups run on CPUs of their own",
        ),
        step(
            3,
            None,
            Mechanism::Cores,
            Setting::ConfineRest { cpus: cpus("1") },
            "everybody else leaves the victim's CPU",
        ),
        step(
            4,
            None,
            Mechanism::Cores,
            Setting::MoveIrqs {
                from: cpus("0"),
                to: cpus("1"),
            },
            "interrupts are sent away from critical CPUs",
        ),
        step(
            5,
            Some("neighbour"),
            Mechanism::Bandwidth,
            Setting::Regulate(Regulation {
                cpus: cpus("1"),
                budget: Lines(58_593),
                period: Nanos::millis(1),
                meter: Meter::Time,
                peak: Rate(37_500_000_000),
                pooling: None,
                split: Split::Even,
                least: Lines(0),
            }),
            "the limit of 3.75GB/s on one CPU",
        ),
    ]
}

fn promises() -> Vec<Held> {
    vec![
        Held {
            group: "victim".into(),
            promise: Promise::Cpus { cpus: cpus("0") },
            level: Level::Enforced,
            held_by: vec![StepId(2), StepId(3)],
            weakest: None,
            assumed: false,
        },
        Held {
            group: "neighbour".into(),
            promise: Promise::LimitBandwidth {
                rate: Rate(3_750_000_000),
            },
            level: Level::Estimated,
            held_by: vec![StepId(5)],
            weakest: Some(
                "no counter counts here: CPU time times the peak rate is an upper bound".into(),
            ),
            assumed: false,
        },
    ]
}
