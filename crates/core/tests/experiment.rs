//! The experiment language, by examples: how configurations expand, and what is answered to mistakes.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeMap;

use proptest::prelude::*;
use quell_core::experiment::{Experiment, Pin, RUN_TIME, Span};
use quell_core::policy::{After, Bandwidth, CpusWanted, Role, Split, not_yet};
use quell_core::result::Better;
use quell_core::units::{Nanos, Rate, Share};

const NEIGHBOUR: &str = include_str!("../../../experiments/neighbour.toml");

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
    ] {
        assert!(names.contains(&name), "{name} is not among {names:?}");
    }
    assert!(!names.contains(&"mg-ro@600-10ms"));
    assert_eq!(experiment.not_yet(), []);
    for configuration in experiment.configurations() {
        assert_eq!(not_yet(&configuration.policy), [], "{}", configuration.name);
    }
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
        assert_eq!(not_yet(&configuration.policy), [], "{}", configuration.name);
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
    // Nothing is asked for: nothing is partitioned, although a critical group alone would ask for CPUs.
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
fn axes_multiply_in_the_order_of_the_file_and_skip_leaves_out() {
    let experiment = below(
        r#"
[configuration.cpuset]
group.db.cpus = "0-1"
[configuration.mg]
extends = "cpuset"
name = "mg-{mode}@{budget}-{period}"
skip = [{ budget = "600", period = "10ms" }]
regulator = { split = "even", strict = true }
[configuration.mg.axis.mode]
ro = {}
br-ps = { regulator.reclaim = true, regulator.after = "proportional" }
[configuration.mg.axis.budget]
600 = { group.db.reserve.bandwidth = "600MB/s" }
400 = { group.db.reserve.bandwidth = "400MB/s" }
[configuration.mg.axis.period]
1ms = { regulator.period = "1ms" }
10ms = { regulator.period = "10ms" }
"#,
    )
    .unwrap();
    assert_eq!(
        names(&experiment),
        [
            "cpuset",
            "mg-ro@600-1ms",
            "mg-ro@400-1ms",
            "mg-ro@400-10ms",
            "mg-br-ps@600-1ms",
            "mg-br-ps@400-1ms",
            "mg-br-ps@400-10ms"
        ]
    );
    let last = &experiment
        .configuration("mg-br-ps@400-10ms")
        .unwrap()
        .policy;
    assert_eq!(
        (last.regulator.period, last.regulator.reclaim),
        (Nanos::millis(10), true)
    );
    assert_eq!(
        (
            last.regulator.after,
            last.regulator.split,
            last.regulator.strict
        ),
        (After::Proportional, Some(Split::Even), true)
    );
    assert_eq!(
        last.groups["db"].reserve.bandwidth,
        Some(Bandwidth::Rate(Rate(400_000_000)))
    );
    assert_eq!(
        last.groups["db"].cpus,
        Some(CpusWanted::List("0-1".parse().unwrap()))
    );
    // What is not built is refused per configuration; the others can run.
    assert!(not_yet(&experiment.configurations()[0].policy).is_empty());
    assert!(not_yet(last).iter().any(|r| r.key == "regulator.reclaim"));
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
fn a_mistake_in_a_fragment_is_told_once_where_it_stands() {
    assert_eq!(
        answers(
            "[configuration.a]\ngroup.hog.limit.bandwith = \"10%\"\n[configuration.b]\nextends = \"a\"\n[configuration.c]\nextends = \"b\"\nregulator.period = \"1h\"\n"
        ),
        [
            "e.toml:11:17: configuration 'a': unknown key 'bandwith' in group.hog.limit; did you mean 'bandwidth'?",
            "e.toml:16:20: configuration 'c': regulator.period: '1h' is not a duration such as 500us, 1ms or 2s",
        ]
    );
}

#[test]
fn names_that_do_not_exist_are_answered() {
    for (text, answer) in [
        (
            "[configuration.a]\nextends = \"core\"\n[configuration.cores]",
            "11:11: configuration.a.extends: there is no configuration 'core'; did you mean 'cores'?",
        ),
        (
            "[configuration.a]\nextends = \"b\"\n[configuration.b]\nextends = \"a\"",
            "11:11: configuration.a.extends: the configurations extend each other in a circle: a → b → a",
        ),
        (
            "[configuration.a]\ngroup.hgo.limit.cpu-time = \"5%\"",
            "11:7: configuration 'a': no subject runs in a group 'hgo'; did you mean 'hog'?",
        ),
        (
            "[configuration.a]\nextend = \"b\"",
            "11:1: unknown key 'extend' in configuration.a; did you mean 'extends'?",
        ),
        (
            "[configuration.a]\n[measure]\nbaseline = \"solo\"",
            "12:12: measure.baseline: there is no configuration 'solo'; there is a",
        ),
        (
            "[configuration.a]\n[measure]\nfrontier = [\"db\", \"hog\"]",
            "12:13: measure.frontier[0]: there is no subject 'db'; did you mean 'db.1'?",
        ),
        (
            "[configuration.a]\n[[expect]]\nconfiguration = \"b\"\nsubject = \"hog\"\nvalue_at_least = 1",
            "12:17: expect[0].configuration: there is no configuration 'b'; did you mean 'a'?",
        ),
        (
            "[configuration.a]\n[[expect]]\nconfiguration = \"a\"\nsubject = \"db.3\"\nvalue_at_least = 1",
            "13:11: expect[0].subject: there is no subject 'db.3'; did you mean 'db.1'?",
        ),
        (
            "[configuration.a]\n[[expect]]\nconfiguration = \"a\"\nsubject = \"hog\"",
            "11:1: expect[0]: nothing is expected; give a condition, for example normalized_at_least = 0.8",
        ),
        (
            "[configuration.a]\nname = \"x@{cup}\"\n[configuration.a.axis.cap]\n1 = {}",
            "11:8: configuration.a.name: there is no axis 'cup'; did you mean 'cap'?",
        ),
        (
            "[configuration.a]\n[configuration.a.axis.cap]\n1 = {}\n2 = {}",
            "10:16: configuration.a: there are two configurations 'a'; put every axis into `name`, as {AXIS}",
        ),
        (
            "[configuration.a]\nname = \"b\"\n[configuration.b]",
            "12:16: configuration.b: there are two configurations 'b'; rename one",
        ),
        (
            "[configuration.a]\nskip = [{ cap = \"3\" }]\nname = \"a{cap}\"\n[configuration.a.axis.cap]\n1 = {}",
            "11:17: configuration.a.skip[0]: the axis 'cap' has no value '3'; did you mean '1'?",
        ),
        (
            "[configuration.a]\nalone = true\nregulator.strict = true",
            "10:16: configuration.a: `alone` runs each subject under no policy at all; remove `alone`, or everything beside it but what subjects run",
        ),
        (
            "[configuration.a]\ngroup.hog.match = [{ comm = \"x\" }]",
            "11:19: configuration 'a': group.hog.match: the runner launches the subjects of an experiment; remove it",
        ),
        ("", "1:1: configuration"),
    ] {
        let found = answers(&format!("{text}\n"));
        assert_eq!(found.len(), 1, "{found:#?}");
        let found = found[0].as_str();
        match answer {
            "1:1: configuration" => assert_eq!(
                found,
                "e.toml: configuration: no configuration is given; an experiment needs at least one [configuration.NAME]"
            ),
            _ => assert_eq!(found, format!("e.toml:{answer}"), "{text}"),
        }
    }
}

#[test]
fn mistakes_in_subjects_and_measure_are_answered_together() {
    let text = r#"quell = 1
backends = ["windows"]
[measure]
rounds = 0
duration = "1s"
units = 5
confidence = 95
[subject.a]
role = "critical"
command = ["x"]
primary = "fps"
metric.frames = { pattern = 'no number', better = "higher" }
[subject.b]
role = "best-effort"
group = "a"
run = { kind = "latency", size = "half" }
[configuration.none]
"#;
    let problems = Experiment::parse(text, "e.toml").unwrap_err();
    let found: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        [
            "e.toml:12:29: subject.a.metric.frames.pattern: 'no number' has 0 groups, but exactly one is needed, around the number: 'took ([0-9.]+) ms'",
            "e.toml:16:1: subject.b.run: 'half' is not a size such as 3MiB, '0.5 LLC', '1 L2' or '1 L1'",
            "e.toml:2:12: backends: 'windows' is not a backend; write linux, sim, sim:PROFILE, lab or lab:PROFILE",
            "e.toml:4:10: measure.rounds: 0 is not between 1 and 10000",
            "e.toml:7:14: measure.confidence: 95 is not between 0 and 1; 0.95 is usual",
            "e.toml:3:2: measure: duration and units all say what ends a cell; keep one",
            "e.toml:11:11: subject.a.primary: the subject has no metric 'fps'; there is run_time_s",
            "e.toml:14:8: subject.b.role: the group 'a' is critical by subject 'a', and best-effort here; a group has one role: give the subjects groups of their own",
        ]
    );
}

#[test]
fn what_is_not_built_is_refused_by_its_key() {
    let experiment = below("start = { after = \"db\", delay = \"1s\" }\n[measure]\nuntil = \"all-once\"\n[configuration.none]\n").unwrap();
    let keys: Vec<String> = experiment.not_yet().into_iter().map(|r| r.key).collect();
    assert_eq!(keys, ["measure.until", "subject.hog.start"]);
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

proptest! {
    #[test]
    fn any_text_is_read_or_answered(text in "\\PC{0,200}") {
        if let Err(problems) = Experiment::parse(&text, "e") {
            prop_assert!(!problems.is_empty());
        }
    }

    #[test]
    fn any_damage_is_read_or_answered(at in 0usize..NEIGHBOUR.len(), cut in 0usize..40, put in "[\\[\\]{}=\"'.,a-z0-9 \n]{0,12}") {
        let clean = |mut i: usize| { while !NEIGHBOUR.is_char_boundary(i) { i += 1 } i };
        let (from, to) = (clean(at), clean((at + cut).min(NEIGHBOUR.len())));
        let text = format!("{}{put}{}", &NEIGHBOUR[..from], &NEIGHBOUR[to..]);
        match Experiment::parse(&text, "e") {
            Ok(experiment) => prop_assert!(!experiment.configurations().is_empty()),
            Err(problems) => prop_assert!(!problems.is_empty()),
        }
    }
}

/// Two subjects of one group, where they share a CPU, have a group each where something is divided between them.
#[test]
fn a_configuration_may_put_subjects_in_groups_of_their_own() {
    let text = r#"
quell = 1
[subject.call]
role  = "critical"
group = "both"
run   = { kind = "latency", size = "0.5 LLC" }
[subject.display]
role  = "critical"
group = "both"
run   = { kind = "latency", size = "0.5 LLC" }
[configuration.solo]
alone = true
[configuration.together]
group.both.cpus = 2
[configuration.apart]
subject.call.group = "call"
subject.display.group = "display"
group.call.reserve.banks = "0-3"
"#;
    let experiment = Experiment::parse(text, "e.toml").unwrap();
    let instances = experiment.instances();
    let groups = |name: &str| {
        let configuration = experiment.configuration(name).unwrap();
        let of = instances.iter().map(|i| configuration.group(i).to_owned());
        let policy: Vec<&String> = configuration.policy.groups.keys().collect();
        (of.collect::<Vec<_>>(), format!("{policy:?}"))
    };
    let both = vec!["both".to_owned(), "both".to_owned()];
    assert_eq!(groups("together"), (both, r#"["both"]"#.to_owned()));
    let apart = vec!["call".to_owned(), "display".to_owned()];
    assert_eq!(
        groups("apart"),
        (apart, r#"["call", "display"]"#.to_owned())
    );
    let wrong = text.replace("group.call.reserve", "group.both.reserve");
    let problems = Experiment::parse(&wrong, "e.toml").unwrap_err();
    let said = problems[0].to_string();
    assert!(said.contains("no subject runs in a group 'both'"), "{said}");
}

/// A target rate as an axis: each configuration's neighbour has its own, and everything else of it stays.
#[test]
fn a_generator_may_do_something_else_in_every_configuration() {
    let text = r#"
quell = 1
[subject.victim]
role = "critical"
run  = { kind = "latency", size = "0.5 LLC" }
[subject.neighbour]
role = "best-effort"
run  = { kind = "bandwidth", operation = "write", size = "4 LLC" }
[configuration.solo]
alone = true
[configuration.at]
name = "at@{rate}"
subject.victim.run.pages = "2MiB"
[configuration.at.axis.rate]
"1GB/s" = { subject.neighbour.run.rate = "1GB/s" }
max     = {}
"#;
    let experiment = Experiment::parse(text, "e.toml").unwrap();
    let run = |configuration: &str, subject: usize| {
        let instances = experiment.instances();
        let configuration = experiment.configuration(configuration).unwrap();
        let run = configuration.run(&instances[subject]).unwrap();
        serde_json::to_value(run).unwrap()
    };
    assert_eq!(run("solo", 0)["pages"], "4KiB");
    assert_eq!(run("at@max", 0)["pages"], "2MiB");
    let neighbour = run("at@1GB/s", 1);
    assert_eq!(
        (
            &neighbour["rate"],
            &neighbour["size"],
            &neighbour["operation"]
        ),
        (&"1GB/s".into(), &"4 LLC".into(), &"write".into())
    );
    assert_eq!(run("at@max", 1).get("rate"), None);

    for (line, said) in [
        (
            "subject.neighbor.run.rate = \"1GB/s\"",
            "configuration 'at': there is no subject 'neighbor'; did you mean 'neighbour'?",
        ),
        ("subject.neighbour.run.rat = \"1GB/s\"", "unknown key 'rat'"),
        (
            "subject.neighbour.run.rate = \"0B/s\"",
            "subject.neighbour.run.rate: a target rate of nothing does nothing",
        ),
        (
            "subject.neighbour.run.kind = \"latency\"",
            "subject.neighbour.run.kind: a configuration varies what a generator does, not which",
        ),
        ("subject.neighbour.cpus = 1", "unknown key 'cpus'"),
        (
            "subject.neighbour.group = \"victim\"",
            "'neighbour' and 'victim' would be one group 'victim', and their roles differ",
        ),
        (
            "subject.nobody.group = \"x\"",
            "there is no subject 'nobody'",
        ),
        ("subject.victim.group = 3", "integer '3' is not a string"),
    ] {
        let end = text.find("[configuration.at]").unwrap();
        let text = format!("{}[configuration.at]\n{line}\n", &text[..end]);
        let problems = Experiment::parse(&text, "e.toml").unwrap_err();
        let all: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert!(all[0].contains(said), "{line}: {all:?}");
        assert!(all[0].starts_with("e.toml:12:"), "{line}: {all:?}");
    }
}

#[test]
fn subjects_that_run_alone_may_vary_in_what_they_run() {
    let text = Experiment::builtin("p4080-paging").unwrap();
    let experiment = Experiment::parse(text, "p4080-paging.toml").unwrap();
    assert_eq!(experiment.configurations().len(), 20);
    assert!(experiment.wants_huge_pages());
    let last = experiment.configuration("4LLC/2MiB").unwrap();
    assert!(last.alone && last.wants_huge_pages(&experiment.instances()));
    let run = serde_json::to_value(&last.runs["random"]).unwrap();
    assert_eq!(
        (&run["size"], &run["order"], &run["pages"]),
        (&"4 LLC".into(), &"random".into(), &"2MiB".into())
    );
    let asks = text.replace("4KiB = {}", "4KiB = { regulator.strict = true }");
    let found = Experiment::parse(&asks, "p.toml").unwrap_err();
    assert!(found[0].to_string().contains("remove `alone`"), "{found:?}");
}

#[test]
fn a_recorded_program_is_for_the_simulated_machine_alone() {
    let text = |backends: &str| {
        format!(
            "quell = 1\nbackends = {backends}\n[subject.a]\nrole = \"critical\"\n\
             run = {{ kind = \"trace\", file = \"ls.trace\" }}\n[configuration.none]\n"
        )
    };
    let wrong = Experiment::parse(&text("[\"sim\", \"linux\"]"), "e.toml").unwrap_err();
    let wrong: Vec<String> = wrong.iter().map(ToString::to_string).collect();
    assert_eq!(
        wrong,
        [
            "e.toml:5:1: subject.a.run: a trace is replayed on the simulated machine only, and `backends` has 'linux'; write backends = [\"sim\"], or run the program itself by `command`"
        ]
    );
    let right = Experiment::parse(&text("[\"sim:p4080\"]"), "e.toml").unwrap();
    assert_eq!(right.subjects["a"].primary(), "accesses_per_s");
}
