use proptest::prelude::*;
use quell_plan::choose::HIGH;
use quell_policy::{Bandwidth, CpusWanted, Policy};
use quell_types::rng::Rng;
use quell_types::task::TaskMatch;
use quell_types::units::Rate;

use super::*;

/// Uniform between 0 and 1.
fn even(rng: &mut Rng) -> f64 {
    f64::from(rng.below(1 << 20)) / f64::from(1u32 << 20)
}

/// The sum of twelve uniform values: mean 0, deviation 1.
fn normal(rng: &mut Rng) -> f64 {
    (0..12).map(|_| even(rng)).sum::<f64>() - 6.0
}

/// Bursts of height 100 every `period` bins from `phase` on, on noise of `noise`. Each is `length`
/// bins long, a fifth more or less.
struct Bursts {
    period: f64,
    phase: f64,
    length: f64,
    noise: f64,
}

impl Bursts {
    fn over(&self, bins: usize, seed: u64) -> Vec<f64> {
        let mut rng = Rng::new(seed);
        let mut values: Vec<f64> = (0..bins)
            .map(|_| (self.noise * normal(&mut rng)).abs())
            .collect();
        let mut begin = self.phase - self.period;
        while begin < bins as f64 {
            let end = begin + self.length * (0.8 + 0.4 * even(&mut rng));
            for (bin, value) in values.iter_mut().enumerate() {
                let within = end.min(bin as f64 + 1.0) - begin.max(bin as f64);
                *value += 100.0 * within.max(0.0);
            }
            begin += self.period;
        }
        values
    }
}

fn apart(a: f64, b: f64, period: f64) -> f64 {
    let apart = (a - b).rem_euclid(period);
    apart.min(period - apart)
}

#[test]
fn thirty_frames_a_second_are_found_in_one_second() {
    let frames = Bursts {
        period: 1e3 / 30.0,
        phase: 4.0,
        length: 9.0,
        noise: 3.0,
    };
    let found = burst(&frames.over(1_000, 1)).unwrap();
    assert!((found.period_ms - 1e3 / 30.0).abs() < 0.2, "{found:?}");
    assert!((found.length_ms - 9.0).abs() < 2.0, "{found:?}");
    assert!(
        apart(found.phase_ms, 4.0, found.period_ms) < 2.0,
        "{found:?}"
    );
    assert!((found.amount / 900.0 - 1.0).abs() < 0.15, "{found:?}");
    assert!(found.share > 0.8 && found.regularity > 0.6, "{found:?}");
}

#[test]
fn two_bursts_close_together_are_one() {
    let mut values = vec![0.0; 2_000];
    for frame in 0..50 {
        for bin in [3, 4, 5, 9, 10, 11] {
            values[frame * 40 + bin] = 50.0;
        }
    }
    let found = burst(&values).unwrap();
    assert!((found.period_ms - 40.0).abs() < 0.01, "{found:?}");
    assert!((found.phase_ms - 3.0).abs() < 0.1 && (found.length_ms - 9.0).abs() < 0.1);
    assert!((found.amount - 300.0).abs() < 3.0 && found.share > 0.99);
}

#[test]
fn what_is_even_stands_still_or_changes_once_has_no_period() {
    assert_eq!(burst(&[]), None);
    assert_eq!(burst(&[7.0; 4]), None);
    assert_eq!(burst(&[7.3; 3_000]), None);
    let step: Vec<f64> = (0..3_000).map(|n| f64::from(n > 1_000) * 50.0).collect();
    assert_eq!(burst(&step), None);
    let slope: Vec<f64> = (0..3_000).map(f64::from).collect();
    assert_eq!(burst(&slope), None);
    let mut once = vec![0.0; 3_000];
    once[700..730].fill(90.0);
    assert_eq!(burst(&once), None);
}

#[test]
fn a_ripple_is_no_burst() {
    let ripple = |depth: f64| -> Vec<f64> {
        (0..2_000)
            .map(|n| 100.0 - if n % 8 == 0 { depth } else { 0.0 })
            .collect()
    };
    assert_eq!(burst(&ripple(10.0)), None);
    assert!(burst(&ripple(60.0)).is_some());
}

#[test]
fn a_slow_change_hides_no_period() {
    let frames = Bursts {
        period: 20.0,
        phase: 0.0,
        length: 6.0,
        noise: 1.0,
    };
    let mut values = frames.over(4_000, 3);
    for (bin, value) in values.iter_mut().enumerate() {
        *value += bin as f64 / 10.0;
    }
    let found = burst(&values).unwrap();
    assert!((found.period_ms - 20.0).abs() < 0.1, "{found:?}");
}

#[test]
fn readings_late_or_early_come_to_what_was_counted() {
    let ms = Nanos::millis;
    // 100 a millisecond; the reader missed the second and third millisecond.
    let readings = [(ms(0), 1_000), (ms(1), 1_100), (ms(4), 1_400)];
    let binned = bins(&readings, BIN);
    assert_eq!(binned.per_bin, [100; 4]);
    assert_eq!(binned.unread, 2);
    // A little late every time.
    let late: Vec<(Nanos, u64)> = (0..=10).map(|n| (Nanos(n * 1_030_000), n * 206)).collect();
    assert_eq!(bins(&late, BIN).per_bin, [200; 10]);
    assert_eq!(bins(&[], BIN), Binned::default());
    assert_eq!(bins(&readings[..1], BIN), Binned::default());
    assert_eq!(bins(&readings, Nanos(0)), Binned::default());
}

#[test]
fn figures_are_over_bins() {
    let mut values = vec![0.0; 90];
    values.extend([100.0; 10]);
    let found = Figures::of(&values).unwrap();
    assert_eq!((found.mean, found.peak, found.p50), (10.0, 100.0, 0.0));
    assert_eq!((found.p95, found.active), (100.0, 0.1));
    assert_eq!(Figures::of(&[]), None);
}

fn sought<'a>(
    subject: &'a Subject,
    total: &'a Figures,
    burst: Option<&'a Burst>,
    quantity: Quantity,
) -> Proposal {
    let machine = serde_json::from_value(serde_json::json!({
        "identity": {"kernel": "6.18", "architecture": "x86_64", "vendor": "v", "model": "m"},
        "cpus": [{"id": 0, "siblings": "0", "package": 0, "node": 0}],
        "caches": [], "nodes": [],
        "mechanisms": {"weight": {"available": "yes", "best": "enforced", "how": "cpu.idle"}},
        "means": {"cpuset": "v1", "movable-irqs": 0, "fixed-irqs": 0, "workqueue-mask": false,
            "meter": {"kind": "time"}, "time-meter": true, "brake": {"Ok": null},
            "brake-in-place": {"Ok": null}, "cpu-max": true, "counter-users": []}
    }))
    .unwrap();
    proposal(&Sought {
        subject,
        quantity,
        total,
        burst,
        sustainable: Some(Rate(8_000_000_000)),
        machine: &machine,
        root: true,
    })
}

const FIGURES: Figures = Figures {
    mean: 341.2,
    peak: 1246.3,
    p50: 0.0,
    p95: 1200.0,
    p99: 1240.0,
    active: 0.3,
};
const FRAMES: Burst = Burst {
    period_ms: 33.3,
    phase_ms: 0.0,
    length_ms: 9.0,
    amount: 11.4,
    share: 1.0,
    regularity: 0.9,
    confidence: 1.0,
};

fn subjects() -> Vec<Subject> {
    let awkward = TaskMatch {
        exe: Some("/opt/a \"b\"/dete ct".to_owned()),
        arg: Some("x\\.py".to_owned()),
        ..TaskMatch::default()
    };
    vec![
        Subject::Generator {
            run: "bandwidth:read".parse().unwrap(),
        },
        Subject::Command {
            command: vec![
                "/usr/bin/it's".to_owned(),
                "a \"b\"\nc".to_owned(),
                String::new(),
            ],
        },
        Subject::Tasks {
            matching: vec![
                awkward,
                TaskMatch {
                    pid: Some(7),
                    ..TaskMatch::default()
                },
            ],
        },
        Subject::Command {
            command: vec!["rest".to_owned()],
        },
    ]
}

#[test]
fn every_proposal_is_a_policy_that_we_read() {
    for subject in subjects() {
        for quantity in [Quantity::Read, Quantity::CpuTime] {
            for burst in [Some(&FRAMES), None] {
                let made = sought(&subject, &FIGURES, burst, quantity);
                let policy = Policy::parse(&made.policy, "proposed.toml");
                let policy = policy.unwrap_or_else(|p| panic!("{p:?}\n{}", made.policy));
                let group = &policy.groups[&subject.name()];
                assert_eq!(group.cpus, Some(CpusWanted::Any));
                let high = made.reserve.is_none().then_some(HIGH);
                assert_eq!(group.cpu_weight, high, "{}", made.policy);
                assert_eq!(
                    group.reserve.bandwidth,
                    made.reserve.map(Bandwidth::Rate),
                    "{}",
                    made.policy
                );
                match &subject {
                    Subject::Command { command } => {
                        assert_eq!(group.command.as_ref(), Some(command))
                    }
                    Subject::Tasks { matching } => assert_eq!(&group.matching, matching),
                    Subject::Generator { .. } => assert_eq!(group.matching.len(), 1),
                }
            }
        }
    }
}

#[test]
fn bursts_get_their_peak_and_the_rest_its_mean() {
    let subject = &subjects()[0];
    let made = |burst, quantity| sought(subject, &FIGURES, burst, quantity);
    let peak = made(Some(&FRAMES), Quantity::Read);
    assert_eq!(
        (peak.basis, peak.reserve),
        (Basis::Peak, Some(Rate(1_247_000_000)))
    );
    let mean = made(None, Quantity::Written);
    assert_eq!(
        (mean.basis, mean.reserve),
        (Basis::Mean, Some(Rate(342_000_000)))
    );
    let time = made(Some(&FRAMES), Quantity::CpuTime);
    assert_eq!((time.basis, time.reserve), (Basis::None, None));
    assert!(time.because.contains("no amount to reserve"), "{time:?}");
    let nothing = Figures {
        mean: 0.0,
        peak: 0.0,
        ..FIGURES
    };
    assert_eq!(
        sought(subject, &nothing, None, Quantity::Read).reserve,
        None
    );
    // More than the machine sustains is not proposed.
    let huge = Figures {
        peak: 9_000.0,
        ..FIGURES
    };
    let made = sought(subject, &huge, Some(&FRAMES), Quantity::Read);
    assert_eq!(
        (made.basis, made.reserve),
        (Basis::Mean, Some(Rate(342_000_000)))
    );
    let more = Figures {
        mean: 8_500.0,
        ..huge
    };
    let made = sought(subject, &more, None, Quantity::Read);
    assert_eq!((made.basis, made.reserve), (Basis::None, None));
}

#[test]
fn names_are_fit_for_groups_and_files() {
    let names: Vec<String> = subjects().iter().map(Subject::name).collect();
    assert_eq!(names, ["bandwidth", "it-s", "dete-ct", "program"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn when_it_was_looked_at_changes_the_phase_and_nothing_else(
        period in 10.0..80.0f64,
        shift in 1..500usize,
        seed in 0..1000u64,
    ) {
        let made = Bursts { period, phase: 0.0, length: 0.3 * period, noise: 2.0 };
        let all = made.over(4_500, seed);
        let (first, later) = (burst(&all[..4_000]).unwrap(), burst(&all[shift..shift + 4_000]).unwrap());
        prop_assert!((first.period_ms - later.period_ms).abs() < 0.1, "{first:?} {later:?}");
        let expected = first.phase_ms - shift as f64;
        prop_assert!(apart(later.phase_ms, expected, period) < 2.0 + 0.1 * period, "{first:?} {later:?}");
        let mut turned = all.clone();
        turned.rotate_left(shift);
        let (a, b) = (Figures::of(&all).unwrap(), Figures::of(&turned).unwrap());
        prop_assert!((a.mean - b.mean).abs() < 1e-9 * a.mean && a.peak == b.peak && a.p99 == b.p99 && a.active == b.active);
    }

    #[test]
    fn bins_lose_and_invent_nothing(
        steps in prop::collection::vec((1u64..3_000_000, 0u64..1 << 40), 2..200),
        begin in 0u64..1 << 50,
    ) {
        let (mut at, mut value) = (begin, 12);
        let mut readings = vec![(Nanos(at), value)];
        for (time, grown) in steps {
            at += time;
            value += grown;
            readings.push((Nanos(at), value));
        }
        let binned = bins(&readings, BIN);
        prop_assert_eq!(binned.per_bin.len() as u64, (at - begin) / BIN.0);
        let sum: u64 = binned.per_bin.iter().sum();
        let end = begin + binned.per_bin.len() as u64 * BIN.0;
        // The readings around the end.
        let below = readings.iter().rev().find(|r| r.0.0 <= end).unwrap().1;
        let above = readings.iter().find(|r| r.0.0 >= end).unwrap().1;
        prop_assert!((below..=above).contains(&(sum + 12)), "{below} {} {above}", sum + 12);
    }
}
