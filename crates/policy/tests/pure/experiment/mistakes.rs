//! How mistakes are answered.

use proptest::prelude::*;
use quell_policy::experiment::Experiment;

use super::{NEIGHBOUR, answers, below};

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
longest = "0s"
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
            "e.toml:13:29: subject.a.metric.frames.pattern: 'no number' has 0 groups, but exactly one is needed, around the number: 'took ([0-9.]+) ms'",
            "e.toml:17:1: subject.b.run: 'half' is not a size such as 3MiB, '0.5 LLC', '0.5 seen LLC', '1 L2' or '1 L1'",
            "e.toml:2:12: backends: 'windows' is not a backend; write linux, sim, sim:PROFILE, lab or lab:PROFILE",
            "e.toml:4:10: measure.rounds: 0 is not between 1 and 10000",
            "e.toml:7:14: measure.confidence: 95 is not between 0 and 1; 0.95 is usual",
            "e.toml:3:2: measure: duration and units all say what ends a cell; keep one",
            "e.toml:8:11: measure.longest: no command ends at once",
            "e.toml:12:11: subject.a.primary: the subject has no metric 'fps'; there is run_time_s",
            "e.toml:15:8: subject.b.role: the group 'a' is critical by subject 'a', and best-effort here; a group has one role: give the subjects groups of their own",
        ]
    );
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

#[test]
fn what_is_not_built_is_refused_by_its_key() {
    let experiment = below("start = { after = \"db\", delay = \"1s\" }\n[measure]\nuntil = \"all-once\"\n[configuration.none]\n").unwrap();
    let keys: Vec<String> = experiment.not_yet().into_iter().map(|r| r.key).collect();
    assert_eq!(keys, ["measure.until", "subject.hog.start"]);
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

#[test]
fn a_limit_around_everything_is_in_every_configuration() {
    let read = below(
        "[configuration.solo]\nalone = true\n[configuration.b]\n[bounds]\nmemory = \"400MiB\"",
    )
    .unwrap();
    for configuration in read.configurations() {
        let memory = configuration.policy.bounds.memory;
        assert_eq!(memory.map(|m| m.to_string()).as_deref(), Some("400MiB"));
    }
    for (text, answer) in [
        (
            "[configuration.a]\n[bounds]\nmemory = \"1MiB\"",
            "12:10: bounds.memory: in 1MiB no program runs; give 16MiB at least",
        ),
        (
            "[configuration.a]\nbounds.memory = \"1GiB\"",
            "11:1: unknown key 'bounds' in configuration.a",
        ),
    ] {
        assert!(answers(text)[0].contains(answer), "{:?}", answers(text));
    }
    let sim = "quell = 1\nbackends = [\"linux\", \"sim:icelake\"]\n[bounds]\nmemory = \"1GiB\"\n\
               [subject.a]\nrole = \"critical\"\nrun = { kind = \"latency\", size = \"1MiB\" }\n[configuration.a]";
    let told = Experiment::parse(sim, "e.toml").unwrap_err()[0].to_string();
    assert!(
        told.contains("needs a kernel's cgroups") && told.contains("sim:icelake"),
        "{told}"
    );
    let policy = quell_policy::Policy::parse("quell = 1\nbounds.memory = \"1GiB\"", "p.toml");
    assert!(policy.unwrap_err()[0].to_string().contains("bounds"));
}
