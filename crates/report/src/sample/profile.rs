//! Profiles for the tests: thirty bursts a second with known amounts, and the same as CPU time.

use quell_record::demand::{
    Measuring, PROFILE_SCHEMA, Phase, Pressed, Profile, Quantity, Sampler, Sensitivity, Series,
    Sought, Subject, UnitTimes, WorkingSet, assess, proposal,
};
use quell_record::result::Timing;
use quell_types::units::Rate;

use super::machine;

const MS: u64 = 1_000_000;

/// In every frame ten milliseconds, a quarter of it written.
fn frames(amount: u64) -> [Vec<u64>; 2] {
    let within = |bin: u64| bin * 3 % 100 < 30;
    let bins = |amount: u64| (0..2_000u64).map(move |bin| u64::from(within(bin)) * amount);
    [bins(amount).collect(), bins(amount / 4).collect()]
}

fn profile(subject: Subject, measuring: Measuring, series: Vec<Series>) -> Profile {
    let quantity = series[0].quantity;
    let bins = series[0].per_bin.len();
    let (total, burst) = assess(&series).unwrap();
    Profile {
        schema: PROFILE_SCHEMA.to_owned(),
        version: "0.1.0".to_owned(),
        created_unix_s: 1_798_761_599,
        name: subject.name(),
        program: None,
        backend: "linux".to_owned(),
        timing: Timing::Real,
        machine: machine().fingerprint(None),
        span_ns: bins as u64 * MS,
        bin_ns: MS,
        proposal: proposal(&Sought {
            subject: &subject,
            quantity,
            total: &total,
            burst: burst.as_ref(),
            sustainable: Some(Rate(15_000_000_000)),
            machine: &machine(),
            root: true,
        }),
        subject,
        measuring,
        series,
        total,
        burst,
        phases: Vec::new(),
        working_set: Some(WorkingSet {
            resident_bytes: 48 << 20,
            touched_bytes: Some(12 << 20),
            cached_bytes: None,
            cache_bytes: None,
            resolution_bytes: 4096,
            how: "pages of 4096 bytes".to_owned(),
        }),
        units: UnitTimes::of((1..=200).map(|n| 4_000_000 + n * 5_000).collect()),
        sampler: Some(Sampler {
            readings: 2_001,
            unread_bins: 3,
            cpu_share: 0.011,
        }),
        sensitivity: Vec::new(),
        sweeps: Vec::new(),
    }
}

/// A profile by counters, with a probe and a sweep.
pub(crate) fn bursty() -> Profile {
    let [read, written] = frames(1_000_000);
    let series = [(Quantity::Read, read), (Quantity::Written, written)];
    let measuring = Measuring::Events {
        events: vec!["cpu/L2_LINES_IN.ALL".to_owned()],
        fills_only: false,
    };
    let subject = Subject::Command {
        command: vec!["./detector".to_owned()],
    };
    let all = series.map(|(q, bins)| Series::of(q, bins, MS).unwrap());
    let mut profile = profile(subject, measuring, all.to_vec());
    let pressed = |pressure: &str, slowdown: f64| Pressed {
        pressure: pressure.to_owned(),
        reached_mb_s: Some(980.0),
        slowdown,
        ci95: Some([slowdown - 0.02, slowdown + 0.02].into()),
    };
    profile.phases = [(0, 700, 1.8, 2.5), (700, 2_000, 0.6, 41.0)]
        .map(|(from, until, ipc, memory_per_us)| Phase {
            from_ns: from * MS,
            until_ns: until * MS,
            cpu_ns: (until - from) * MS / 3,
            ipc,
            memory_per_us,
            first_level_per_us: 880.0,
        })
        .to_vec();
    profile.sensitivity = vec![
        Sensitivity {
            resource: "reads".to_owned(),
            neighbour: "bandwidth:read".to_owned(),
            metric: Some("run_time_s".to_owned()),
            pressed: vec![pressed("1GB/s", 1.01), pressed("9GB/s", 1.42)],
            skipped: None,
        },
        Sensitivity {
            resource: "sibling".to_owned(),
            neighbour: "cache-churn:size=1 L1".to_owned(),
            metric: None,
            pressed: Vec::new(),
            skipped: Some("no CPU here has a sibling".to_owned()),
        },
    ];
    profile.sweeps = vec![super::sweep::by_ways()];
    profile
}

/// A profile by CPU time.
pub(crate) fn substitute() -> Profile {
    let [used, _] = frames(900_000);
    let subject = Subject::Command {
        command: vec!["./detector".to_owned()],
    };
    let measuring = Measuring::CpuTime {
        why: "the kernel knows no counter unit of the CPUs".to_owned(),
        bound: Some(Rate(12_000_000_000)),
    };
    let series = Series::of(Quantity::CpuTime, used, MS).unwrap();
    profile(subject, measuring, vec![series])
}
