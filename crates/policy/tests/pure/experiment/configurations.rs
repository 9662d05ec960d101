//! How configurations expand, and what they may vary.

use quell_policy::experiment::Experiment;
use quell_policy::{Bandwidth, CpusWanted};
use quell_types::options::After;
use quell_types::options::Split;
use quell_types::units::{Nanos, Rate};

use super::{answers, below, names};

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
br-ps = { regulator.reclaim = true, regulator.after = "proportional", group.db.limit.bandwidth = { read = "1GB/s", write = "1GB/s" } }
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
    let last = experiment.configuration("mg-br-ps@400-10ms").unwrap();
    let parts = (last.family.as_deref(), last.cap.as_deref());
    assert_eq!(parts, (Some("mg-br-ps"), Some("400-10ms")));
    assert_eq!(experiment.configurations()[0].family, None);
    let last = &last.policy;
    assert_eq!(
        (last.regulator.period, last.regulator.reclaim),
        (Some(Nanos::millis(10)), true)
    );
    assert_eq!(
        (
            last.regulator.after,
            last.regulator.split,
            last.regulator.strict
        ),
        (After::Proportional, Split::Even, true)
    );
    assert_eq!(
        last.groups["db"].reserve.bandwidth,
        Some(Bandwidth::Rate(Rate(400_000_000)))
    );
    assert_eq!(
        last.groups["db"].cpus,
        Some(CpusWanted::List("0-1".parse().unwrap()))
    );
}

/// Two subjects of one group, where they share a CPU. They have a group each where something is
/// divided between them.
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

/// A target rate as an axis: each configuration's neighbour has its own rate, and is otherwise
/// unchanged.
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
fn a_subject_may_take_part_in_some_configurations_only() {
    let text = r#"
[subject.daemon]
role = "exempt"
command = ["watch-memory"]
only = ["watched", "capped"]
[configuration.none]
[configuration.watched]
[configuration.capped]
name = "capped@{cap}"
[configuration.capped.axis.cap]
"10%" = { group.hog.limit.bandwidth = "10%" }
"#;
    let experiment = below(text).unwrap();
    let instances = experiment.instances();
    let daemon = instances.iter().find(|i| i.name == "daemon").unwrap();
    for (name, here) in [("none", false), ("watched", true), ("capped@10%", true)] {
        let configuration = experiment.configuration(name).unwrap();
        assert_eq!(configuration.has(daemon), here, "{name}");
        let groups = &configuration.policy.groups;
        assert_eq!(groups.contains_key("daemon"), here, "{name}");
    }
    let wrong = answers(&text.replace("\"watched\", ", "\"watch\", "));
    let says = |w: &String| w.contains("no configuration 'watch'") && w.contains("'watched'");
    assert!(wrong.iter().any(says), "{wrong:?}");
}
