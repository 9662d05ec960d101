//! What is done in which order, where it resumes and ends, and the record of it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::*;
use quell_record::events::Span;

#[test]
fn every_round_runs_every_cell_once_in_an_order_of_its_own() {
    let (_, heard) = compare(&mut fake(), 4);
    let per_round = heard.cells.len() / 4;
    let orders: Vec<Vec<&str>> = heard
        .cells
        .chunks(per_round)
        .map(|round| {
            round
                .iter()
                .map(|c| c.split_once(", ").unwrap().1)
                .collect()
        })
        .collect();
    let sets: BTreeSet<BTreeSet<&str>> = orders
        .iter()
        .map(|order| order.iter().copied().collect())
        .collect();
    assert_eq!(sets.len(), 1, "the same cells in every round");
    assert_eq!(sets.first().unwrap().len(), per_round, "each once");
    assert!(orders[0].contains(&"solo, victim") && orders[0].contains(&"solo, neighbour"));
    let distinct: BTreeSet<_> = orders.iter().collect();
    assert_eq!(distinct.len(), 4, "four orders in four rounds");
}

#[test]
fn the_same_seed_gives_the_same_result() {
    let (first, order) = compare(&mut fake(), 3);
    let (second, again) = compare(&mut fake(), 3);
    assert_eq!(first, second);
    assert_eq!(order.cells, again.cells);
    let mut other = Heard::default();
    let options = Options {
        seed: Some(2),
        ..options(3, None)
    };
    attempt(&mut fake(), &options, &mut other).unwrap();
    assert_ne!(order.cells, other.cells);
}

#[test]
fn subjects_keep_their_cpus_in_every_configuration() {
    let mut fake = fake();
    compare(&mut fake, 2);
    for spec in &fake.specs {
        let cpus = spec.cpus.as_ref().unwrap().to_string();
        assert_eq!(cpus, if spec.name == "victim" { "0" } else { "1" });
    }
}

#[test]
fn a_subject_runs_only_in_the_configurations_that_it_names() {
    let more = r#"
[subject.daemon]
role = "exempt"
run = { kind = "bandwidth", operation = "read", size = "1MiB" }
only = ["none"]
"#;
    let experiment = Experiment::parse(&format!("{}{more}", text()), "e.toml").unwrap();
    let mut fake = fake();
    fake.generator("daemon", |scene| steady(scene, "bandwidth_mb_s", 1.0, 1e6));
    let result = run(
        &experiment,
        Machines::One(&mut fake),
        &machine(2),
        &plan,
        &options(1, None),
        &mut Heard::default(),
    );
    let result = result.unwrap().result;
    let started = fake.specs.iter().filter(|s| s.name == "daemon").count();
    assert_eq!(started, 1, "not alone either");
    for configuration in &result.configurations {
        let has = configuration.subject("daemon").is_some();
        assert_eq!(has, configuration.name == "none", "{}", configuration.name);
    }
}

#[test]
fn a_cell_that_fails_once_is_tried_again() {
    for fault in ["apply 2", "start victim", "go neighbour", "wait", "canary"] {
        let mut fake = fake();
        fake.fail_once(fault);
        let (result, heard) = compare(&mut fake, 2);
        assert!(result.failures.is_empty(), "{fault}");
        assert!(heard.notes.iter().any(|n| n.contains("trying once more")));
        assert!(
            result
                .configurations
                .iter()
                .all(|c| c.rounds == 2 || !c.refused.is_empty())
        );
    }
}

#[test]
fn a_cell_that_fails_twice_is_noted_and_the_experiment_goes_on() {
    let mut fake = fake();
    fake.fail_once("apply 2");
    fake.fail_once("apply 2");
    let (result, _) = compare(&mut fake, 2);
    let [failure] = result.failures.as_slice() else {
        panic!("one failure, not {:?}", result.failures);
    };
    assert!(failure.error.contains("scripted fault at 'apply 2'"));
    let failed = of(&result, &failure.configuration);
    assert_eq!((failed.rounds, failed.totals.failed), (1, Some(1)));
    assert_eq!(failed.totals.cells, 1);
}

#[test]
fn what_cannot_be_undone_ends_the_experiment_with_the_remedy() {
    let runs = tempfile::tempdir().unwrap();
    let mut fake = fake();
    fake.fail_once("undo");
    let options = options(2, Some(runs.path()));
    let error = attempt(&mut fake, &options, &mut NoProgress);
    let text = error.unwrap_err().to_string();
    assert!(text.contains("quell restore") && text.contains("measured before is in"));
    assert_eq!(fake.log.iter().filter(|l| *l == "undo").count(), 1);
}

#[test]
fn a_signal_leaves_a_partial_result_and_a_whole_record() {
    let runs = tempfile::tempdir().unwrap();
    let mut fake = fake();
    fake.stop_at(Nanos::secs(6), 2);
    let options = options(3, Some(runs.path()));
    let out = attempt(&mut fake, &options, &mut NoProgress).unwrap();
    assert!(fake.clean());
    let result = &out.result;
    assert_eq!(result.interrupted.as_deref(), Some("stopped by signal 2"));
    assert!(result.configurations.iter().any(|c| c.rounds > 0));
    let folder = out.folder.unwrap();
    let written = fs::read_to_string(folder.join("results.json")).unwrap();
    assert_eq!(
        &serde_json::from_str::<CompareResult>(&written).unwrap(),
        result
    );
}

#[test]
fn the_record_holds_all_that_was_run_and_measured() {
    let runs = tempfile::tempdir().unwrap();
    let options = options(2, Some(runs.path()));
    let out = attempt(&mut fake(), &options, &mut NoProgress).unwrap();
    let folder = out.folder.unwrap();
    assert!(folder.ends_with("neighbour-19700101-000000"));
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&read("manifest.json")).unwrap();
    assert_eq!(manifest["schema"], "quell.manifest/1");
    assert_eq!(manifest["experiment"], text());
    assert_eq!(manifest["placement"]["neighbour"], "1");
    assert!(manifest["plans"]["regulated@10%"]["steps"].is_array());
    assert!(manifest["refused"]["regulated@70%"].is_array());
    assert_eq!(manifest["policy_hash"], out.result.policy_hash.as_str());
    assert_eq!(read("report.html"), "<p>neighbour</p>");
    let samples = read("samples/regulated@10%--victim.csv");
    assert_eq!(samples.lines().count(), 1 + 2 * 200);
    assert!(samples.starts_with("round,window,at_ns,latency_ns\n0,0,"));
    let events = read("events.jsonl");
    assert!(
        events
            .lines()
            .all(|l| serde_json::from_str::<serde_json::Value>(l).is_ok())
    );
    assert!(events.contains("\"event\":\"throttle\"") && events.contains("\"event\":\"phase\""));
    let record = crate::read::read(&folder).unwrap();
    assert_eq!(record.result.as_ref(), Some(&out.result));
    assert_eq!(
        record.command_line.as_deref(),
        Some("quell compare neighbour")
    );
    assert_eq!(record.created.as_deref(), Some("1970-01-01 00:00:00 UTC"));
    let of = |name: &str, subject: &str| {
        let spans = record.spans.iter();
        spans
            .filter(|s| s.configuration == name && s.subject == subject)
            .count()
    };
    assert_eq!((of("none", "victim"), of("solo", "neighbour")), (2, 2));
    assert!(record.plans.contains_key("regulated@10%"));
    assert!(record.refused.contains_key("regulated@70%"));
    assert_eq!(record.events.len(), events.lines().count() - 1);
}

#[test]
fn the_real_planner_confines_groups_to_where_their_subjects_run() {
    for cpus in [2, 8] {
        let machine = machine(cpus);
        let runs = tempfile::tempdir().unwrap();
        let options = options(1, Some(runs.path()));
        let plan = quell_plan::planner::plan;
        let Comparison { result, folder } = run(
            &neighbour(),
            Machines::One(&mut fake()),
            &machine,
            &plan,
            &options,
            &mut NoProgress,
        )
        .unwrap();
        for configuration in &result.configurations {
            assert!(
                configuration.refused.is_empty(),
                "{:?}",
                configuration.refused
            );
        }
        for (name, plan) in &read(&folder.unwrap()).unwrap().plans {
            if ["solo", "none"].contains(&name.as_str()) {
                assert!(plan.steps.is_empty(), "{name}: {:?}", plan.steps);
                continue;
            }
            assert_eq!(plan.cpus("victim").unwrap().to_string(), "0", "{name}");
            assert_eq!(plan.cpus("neighbour").unwrap().to_string(), "1", "{name}");
        }
        let regulated = of(&result, "regulated@10%");
        let achieved = &regulated.subject("neighbour").unwrap().metrics["achieved_of_cap"];
        assert!(
            (achieved.value.unwrap() - 0.99).abs() < 0.01,
            "{achieved:?}"
        );
    }
}

/// The machine without drift. A measurement depends on the cell alone, not on how many came before.
fn steady_fake() -> Fake {
    drifting(0.0)
}

/// The folder of a run that a signal ended in the second of two rounds. A round has 13 cells and
/// takes some 9 s.
fn cut(runs: &Path) -> PathBuf {
    let mut fake = steady_fake();
    fake.stop_at(Nanos::secs(12), 2);
    let out = options(2, Some(runs));
    let done = attempt(&mut fake, &out, &mut NoProgress).unwrap();
    done.folder.unwrap()
}

#[test]
fn an_interrupted_run_resumes_to_the_same_result() {
    let runs = tempfile::tempdir().unwrap();
    let mut whole = Heard::default();
    let expected = attempt(
        &mut steady_fake(),
        &options(3, Some(runs.path())),
        &mut whole,
    )
    .unwrap();
    // A round has 13 cells and takes some 9 s: the signal comes in the second round.
    let mut fake = steady_fake();
    fake.stop_at(Nanos::secs(12), 2);
    let mut first = Heard::default();
    let cut = attempt(&mut fake, &options(3, Some(runs.path())), &mut first).unwrap();
    let folder = cut.folder.unwrap();
    assert!(cut.result.interrupted.is_some());
    assert!(folder.join("cells.jsonl").exists());
    let mut rest = Heard::default();
    let mut again = options(3, None);
    again.rounds = None;
    again.resume = Some(&folder);
    let resumed = attempt(&mut steady_fake(), &again, &mut rest).unwrap();
    assert_eq!(resumed.result, expected.result);
    let cells: Vec<&String> = first.cells[..first.cells.len() - 1]
        .iter()
        .chain(&rest.cells)
        .collect();
    assert_eq!(
        cells,
        whole.cells.iter().collect::<Vec<_>>(),
        "no cell twice"
    );
    let again_read = read(&folder).unwrap();
    let there = read(&expected.folder.unwrap()).unwrap();
    for (ours, theirs) in again_read.spans.iter().zip(&there.spans) {
        let what = |s: &Span| (s.configuration.clone(), s.subject.clone(), s.round);
        assert_eq!(what(ours), what(theirs));
        assert_eq!(ours.values, theirs.values);
    }
    assert_eq!(again_read.spans.len(), there.spans.len());
    // One clock for both runs: a later round has later times.
    for two in again_read.spans.windows(2) {
        let begun = |span: &Span| span.at_ns.as_ref().unwrap()[0];
        if two[0].round < two[1].round {
            assert!(begun(&two[0]) < begun(&two[1]), "{two:?}");
        }
    }
    assert!(
        !folder.join("cells.jsonl").exists(),
        "nothing is left to do"
    );
    let error = attempt(&mut steady_fake(), &again, &mut rest).unwrap_err();
    assert!(error.to_string().contains("is whole"), "{error}");
}

#[test]
fn a_run_that_was_killed_goes_on_from_its_partial_folder() {
    let runs = tempfile::tempdir().unwrap();
    let folder = cut(runs.path());
    // As a kill leaves it: a name with a leading dot, no result, a line half written.
    let partial = crate::resume::partial(&folder);
    fs::rename(&folder, &partial).unwrap();
    for name in ["cells.jsonl", "events.jsonl"] {
        let mut text = fs::read_to_string(partial.join(name)).unwrap();
        text.push_str("{\"round\":1,\"conf");
        fs::write(partial.join(name), text).unwrap();
    }
    for record in [&partial, &folder] {
        let mut again = options(2, None);
        again.resume = Some(record);
        again.seed = Some(9);
        let error = attempt(&mut steady_fake(), &again, &mut NoProgress).unwrap_err();
        assert!(
            error.to_string().contains("the seed was 1 and is 9"),
            "{error}"
        );
    }
    let mut again = options(2, None);
    again.resume = Some(&folder);
    let done = attempt(&mut steady_fake(), &again, &mut NoProgress).unwrap();
    let mut expected = Heard::default();
    let whole = attempt(&mut steady_fake(), &options(2, None), &mut expected).unwrap();
    assert_eq!(done.result, whole.result);
    assert_eq!(done.folder.unwrap(), folder);
}

#[test]
fn another_machine_is_no_machine_to_go_on_with() {
    let runs = tempfile::tempdir().unwrap();
    let folder = cut(runs.path());
    let mut again = options(2, None);
    again.resume = Some(&folder);
    let mut other = machine(2);
    other.identity.kernel = "6.19.0".into();
    let error = run(
        &neighbour(),
        Machines::One(&mut steady_fake()),
        &other,
        &plan,
        &again,
        &mut NoProgress,
    );
    let text = error.unwrap_err().to_string();
    assert!(
        text.contains("the machine's identity, kernel was '6.18.0' and is '6.19.0'"),
        "{text}"
    );
    let only = ["none".to_owned()];
    again.only = &only;
    let error = attempt(&mut steady_fake(), &again, &mut NoProgress).unwrap_err();
    assert!(error.to_string().contains("--only"), "{error}");
}

#[test]
fn configurations_are_meant_by_pattern_and_slips_are_answered() {
    let named = |only: &str| {
        let only = [only.to_owned()];
        let mut wanted = options(1, None);
        wanted.only = &only;
        let done = attempt(&mut steady_fake(), &wanted, &mut NoProgress)?;
        let names = done.result.configurations.into_iter().map(|c| c.name);
        Ok::<Vec<String>, CompareError>(names.collect())
    };
    assert_eq!(
        named("*@10%").unwrap(),
        ["solo", "cpu-max@10%", "regulated@10%"]
    );
    assert_eq!(named("regulated@{cap}").unwrap().len(), 6);
    let error = named("regulatd").unwrap_err().to_string();
    assert!(error.contains("did you mean 'regulated'"), "{error}");
}
