//! The experiment language, by examples: what is read ([`configurations`]: how they expand) and
//! what is answered to [`mistakes`].
mod configurations;
mod mistakes;
mod published;

use std::collections::BTreeMap;

use quell_policy::experiment::{Experiment, Pin, RUN_TIME, Span};
use quell_policy::workload::Workload;
use quell_policy::{Bandwidth, CpusWanted, Role};
use quell_types::stats::Better;
use quell_types::units::{Nanos, Share};

const NEIGHBOUR: &str = include_str!("../../../../../experiments/neighbour.toml");

const SUBJECTS: &str = r#"quell = 1
[subject.db]
role = "critical"
command = ["redis-benchmark", "--csv"]
copies = 2
metric.requests_per_s = { pattern = '"GET","([0-9.]+)"', better = "higher", each = "run" }
[subject.hog]
role = "best-effort"
run = { kind = "bandwidth", operation = "write", size = "4 LLC" }
"#;

fn below(text: &str) -> Result<Experiment, Vec<String>> {
    Experiment::parse(&format!("{SUBJECTS}{text}"), "e.toml")
        .map_err(|problems| problems.iter().map(ToString::to_string).collect())
}

fn answers(text: &str) -> Vec<String> {
    below(text).unwrap_err()
}

fn names(experiment: &Experiment) -> Vec<&str> {
    experiment
        .configurations()
        .iter()
        .map(|c| c.name.as_str())
        .collect()
}

#[test]
fn the_video_call_has_the_names_that_scripts_rely_on() {
    let text = Experiment::builtin("webrtc").unwrap();
    let experiment = Experiment::parse(text, "webrtc").unwrap();
    let subjects: Vec<&str> = experiment.subjects.keys().map(String::as_str).collect();
    assert_eq!(subjects, ["webrtc", "xserver", "lbm1", "lbm2"]);
    for subject in experiment.subjects.values() {
        assert_eq!(subject.primary(), "bandwidth_mb_s");
    }
    let webrtc = &experiment.subjects["webrtc"];
    for (metric, better) in [
        ("rtt_ms", Better::Lower),
        ("frames_per_s", Better::Higher),
        ("media_kb_s", Better::Higher),
    ] {
        assert_eq!(webrtc.better(metric), Some(better), "{metric}");
    }
    let names = names(&experiment);
    for name in [
        "solo",
        "none",
        "cpuset",
        "mg-ro@600-1ms",
        "mg-ro@400-1ms",
        "mg-ro@400-10ms",
        "mg-ps@600-1ms",
        "mg-br@400-1ms",
        "mg-br-ps@600-1ms",
        "mg-br-ps@400-10ms",
    ] {
        assert!(names.contains(&name), "{name} is not among {names:?}");
    }
    assert!(!names.contains(&"mg-ro@600-10ms"));
    assert_eq!(experiment.not_yet(), []);
}

#[test]
fn the_default_demonstration_compares_at_five_equal_caps() {
    assert_eq!(Experiment::builtin("neighbour"), Some(NEIGHBOUR));
    assert_eq!(Experiment::builtin("nobody"), None);
    let experiment = Experiment::parse(NEIGHBOUR, "neighbour").unwrap();
    assert_eq!(
        names(&experiment),
        [
            "solo",
            "none",
            "cores",
            "cpu-max@10%",
            "cpu-max@20%",
            "cpu-max@30%",
            "cpu-max@50%",
            "cpu-max@70%",
            "regulated@10%",
            "regulated@20%",
            "regulated@30%",
            "regulated@50%",
            "regulated@70%",
        ]
    );
    assert_eq!(experiment.not_yet(), []);
    assert_eq!(
        (experiment.measure.rounds, experiment.measure.warmup),
        (8, Nanos::millis(150))
    );
    assert_eq!(
        experiment.measure.span(),
        Span::Duration(Nanos::millis(500))
    );
    assert_eq!(experiment.baseline(), Some("solo"));
    for configuration in experiment.configurations() {
        let roles: Vec<Role> = configuration
            .policy
            .groups
            .values()
            .map(|g| g.role)
            .collect();
        assert_eq!(
            roles,
            [Role::Critical, Role::BestEffort],
            "{}",
            configuration.name
        );
    }

    let group = |configuration: &str, group: &str| {
        experiment
            .configuration(configuration)
            .unwrap()
            .policy
            .groups[group]
            .clone()
    };
    // Nothing is asked for, so nothing is partitioned. In a policy a critical group alone would ask
    // for CPUs.
    assert_eq!(group("none", "victim").cpus, Some(CpusWanted::Any));
    assert_eq!(group("none", "neighbour").cpus, Some(CpusWanted::Any));
    assert_eq!(group("cores", "victim").cpus, Some(CpusWanted::Count(1)));
    assert_eq!(
        group("cores", "neighbour").cpus,
        Some(CpusWanted::Remaining)
    );
    let regulated = experiment.configuration("regulated@30%").unwrap();
    assert_eq!(
        regulated.axes,
        BTreeMap::from([("cap".to_owned(), "30%".to_owned())])
    );
    assert_eq!(regulated.policy.name, "regulated@30%");
    assert_eq!(
        group("regulated@30%", "victim").cpus,
        Some(CpusWanted::Count(1))
    );
    assert_eq!(
        group("regulated@30%", "neighbour").limit.bandwidth,
        Some(Bandwidth::Share(Share::percent(30)))
    );
    assert_eq!(
        group("cpu-max@30%", "neighbour").limit.cpu_time,
        Some(Share::percent(30))
    );

    let caps = |prefix: &str| -> Vec<_> {
        let of = experiment
            .configurations()
            .iter()
            .filter(|c| c.name.starts_with(prefix));
        of.map(|c| c.axes["cap"].clone()).collect()
    };
    assert_eq!(caps("regulated@"), caps("cpu-max@"));
    assert!(caps("regulated@").len() >= 5);
}

#[test]
fn subjects_and_their_copies() {
    let experiment = below("[configuration.solo]\nalone = true\n").unwrap();
    let instances = experiment.instances();
    let seen: Vec<(&str, &str)> = instances
        .iter()
        .map(|i| (i.name.as_str(), i.group))
        .collect();
    assert_eq!(seen, [("db.1", "db"), ("db.2", "db"), ("hog", "hog")]);
    let db = &experiment.subjects["db"];
    assert_eq!(
        (db.primary(), db.better("requests_per_s")),
        ("requests_per_s", Some(Better::Higher))
    );
    assert_eq!(
        db.metric["requests_per_s"]
            .pattern
            .find(r#""GET","1234.5""#),
        Some(1234.5)
    );
    assert_eq!(
        (db.better(RUN_TIME), db.better("latency_ns")),
        (Some(Better::Lower), None)
    );
    assert_eq!(experiment.subjects["hog"].primary(), "bandwidth_mb_s");
    let solo = &experiment.configurations()[0];
    assert!(solo.alone && solo.policy.groups.len() == 2);
    assert_eq!(
        (
            experiment.name.as_str(),
            experiment.seed,
            experiment.baseline()
        ),
        ("e", 1, Some("solo"))
    );
}

#[test]
fn a_subject_is_pinned_apart_from_its_groups_partition() {
    let text = NEIGHBOUR.replacen("cpus    = 1", "cpus    = \"1,3\"", 1);
    let experiment = Experiment::parse(&text, "n").unwrap();
    assert_eq!(
        experiment.subjects["victim"].cpus,
        Some(Pin::List("1,3".parse().unwrap()))
    );
    assert_eq!(
        experiment.configuration("none").unwrap().policy.groups["victim"].cpus,
        Some(CpusWanted::Any)
    );
}

#[test]
fn a_condition_reads_as_it_was_written() {
    let experiment = below("[configuration.none]\n[[expect]]\nconfiguration = \"none\"\nsubject = \"db.2\"\nnormalized_p99_at_least = 0.5\nmax_at_most = 9\n").unwrap();
    let nan = "[configuration.none]\n[[expect]]\nconfiguration = \"none\"\nsubject = \"hog\"\nmax_at_most = nan\n";
    assert_eq!(answers(nan), ["e.toml:11:1: expect[0]: nan is not a bound"]);
    let conditions = experiment.expects[0].conditions();
    let written: Vec<String> = conditions.iter().map(ToString::to_string).collect();
    assert_eq!(
        written,
        ["normalized_p99_at_least = 0.5", "max_at_most = 9"]
    );
    assert!(conditions[0].met_by(0.5) && !conditions[0].met_by(0.49));
    assert!(conditions[1].met_by(9.0) && !conditions[1].met_by(9.1));
}

#[test]
fn a_simulated_machine_releases_tasks_as_often_as_is_said() {
    const CAT: &str = include_str!("../../../../../experiments/apollolake-cat.toml");
    let written = Experiment::parse(CAT, "e.toml").unwrap();
    let period = |experiment: &Experiment| match experiment.subjects["rta"].run {
        Some(Workload::Periodic {
            period, compute, ..
        }) => (period, compute),
        _ => panic!("it is a periodic task"),
    };
    assert_eq!(period(&written), (Nanos::millis(10), 11));
    let simulated = written.simulated();
    assert_eq!(period(&simulated), (Nanos::micros(501), 11));
    assert_eq!(simulated.measure.duration, Some(Nanos::millis(501)));
    assert_eq!(simulated.measure.rounds, 3);
}
