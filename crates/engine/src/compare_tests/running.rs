//! What is done in which order, where it goes on and where it ends, and the record of it.

use std::collections::BTreeSet;
use std::fs;

use super::*;

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
        let plan = quell_core::planner::plan;
        let Comparison { result, folder } = run(
            &neighbour(),
            &mut fake(),
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
        assert!((achieved.value.unwrap() - 0.99).abs() < 0.01);
    }
}
