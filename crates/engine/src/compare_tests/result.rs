//! What an experiment finds, and how the result reports it.

use super::*;

#[test]
fn an_experiment_says_how_much_it_hurts_and_what_help_costs() {
    let (result, heard) = compare(&mut fake(), 5);
    assert_eq!(heard.done, heard.total);
    assert_eq!((result.rounds, result.rounds_shared), (5, Some(5)));

    let solo = of(&result, "solo").subject("victim").unwrap();
    assert_eq!(solo.figures.normalized, Some(1.0));
    let none = &of(&result, "none").subject("victim").unwrap().figures;
    assert!((none.normalized.unwrap() - 0.1).abs() < 0.01);
    assert!(none.normalized_p99.is_some() && none.p99_ci95.is_some());
    assert_eq!(none.samples, Some(1000));

    let regulated = of(&result, "regulated@10%");
    let neighbour = regulated.subject("neighbour").unwrap();
    assert!((neighbour.figures.normalized.unwrap() - 0.1).abs() < 1e-3);
    assert_eq!(
        neighbour.figures.normalized_p50, None,
        "a rate has no slow tail"
    );
    assert!((neighbour.metrics["achieved_of_cap"].value.unwrap() - 0.99).abs() < 1e-3);
    assert_eq!(
        regulated.mechanisms,
        [Mechanism::Cores, Mechanism::Bandwidth]
    );
    assert_eq!(regulated.guarantee, Some(Level::Estimated));
    assert_eq!(regulated.totals.throttles, Some(100));
    let limit = regulated
        .promises
        .iter()
        .find(|p| matches!(p.promise, Promise::LimitBandwidth { .. }))
        .unwrap();
    assert_eq!(limit.held, Some(true));

    let quota = of(&result, "cpu-max@10%");
    assert_eq!(quota.totals.throttles, None, "absent, not zero");
    assert!(
        quota.promises.iter().all(|p| p.held.is_none()),
        "CPU time has no independent witness here"
    );
}

#[test]
fn the_result_reads_back_as_the_published_type() {
    let (result, _) = compare(&mut fake(), 3);
    let text = serde_json::to_string(&result).unwrap();
    assert_eq!(
        serde_json::from_str::<CompareResult>(&text).unwrap(),
        result
    );
}

#[test]
fn the_canary_alone_decides_what_is_shared() {
    // Two configurations of one cell each and two cells of solo: four cells a round, two probes a
    // cell. One probe of the first cell says no. One of the first cell of the second round gives no
    // answer. All other probes say yes.
    let only = ["none".to_owned(), "cores".to_owned()];
    let mut fake = fake();
    fake.shared = vec![Some(0.9); 16];
    fake.shared[1] = Some(0.49);
    fake.shared[8] = None;
    let mut heard = Heard::default();
    let options = Options {
        only: &only,
        ..options(2, None)
    };
    let out = attempt(&mut fake, &options, &mut heard).unwrap();
    let result = out.result;
    assert_eq!((result.rounds, result.rounds_shared), (2, Some(0)));
    let shared: u32 = result
        .configurations
        .iter()
        .map(|c| c.rounds_shared.unwrap())
        .sum();
    // Three configurations in two rounds. In each round one cell is spoilt, of whichever
    // configuration.
    assert_eq!(shared, 3 * 2 - 2);
    let mut spoilt = heard.cells[0].split(", ").skip(1);
    let hit = of(&result, spoilt.next().unwrap());
    let subject = hit.subject(spoilt.next().unwrap_or("victim")).unwrap();
    assert_eq!(
        subject.figures.rounds,
        Some(2),
        "all rounds are reported, too"
    );
    let shared = subject.shared.as_ref().and_then(|f| f.rounds);
    assert!(shared.is_none_or(|rounds| rounds < 2));
}

#[test]
fn a_limit_that_the_bytes_contradict_did_not_hold() {
    let mut fake = fake();
    fake.generator("neighbour", |scene| {
        steady(scene, "bandwidth_mb_s", 5000.0, 5e9)
    });
    let (result, _) = compare(&mut fake, 2);
    let held = |name: &str| {
        let promises = &of(&result, name).promises;
        promises.iter().find_map(|p| p.held)
    };
    assert_eq!(held("regulated@10%"), Some(false));
    assert_eq!(held("regulated@50%"), Some(true));
}

#[test]
fn expectations_become_rows() {
    let (result, _) = compare(&mut fake(), 3);
    let rows: Vec<_> = result
        .expectations
        .iter()
        .map(|e| (e.subject.as_str(), e.expected.as_str(), e.met))
        .collect();
    assert_eq!(
        rows,
        [
            ("victim", "normalized_at_least = 0.5", true),
            ("neighbour", "normalized_at_most = 0.25", true)
        ]
    );
    let mut gentle = fake();
    gentle.generator("victim", |scene| {
        let value = if scene.beside.is_empty() { 1.0 } else { 9.0 };
        steady(scene, "latency_ns", value, 0.0)
    });
    let (result, _) = compare(&mut gentle, 3);
    assert!(!result.as_expected());
}

#[test]
fn only_names_configurations_or_says_what_there_is() {
    let mut heard = Heard::default();
    let only = ["cpu-max".to_owned()];
    let options = Options {
        only: &only,
        ..options(1, None)
    };
    let out = attempt(&mut fake(), &options, &mut heard).unwrap();
    let names: Vec<_> = out.result.configurations.iter().map(|c| &c.name).collect();
    assert_eq!(names[0], "solo", "the baseline comes along");
    assert!(names[1..].iter().all(|n| n.starts_with("cpu-max@")) && names.len() > 5);
    assert!(out.result.expectations.is_empty());

    let wrong = ["regulate".to_owned()];
    let options = Options {
        only: &wrong,
        ..options
    };
    let error = attempt(&mut fake(), &options, &mut NoProgress);
    let text = error.unwrap_err().to_string();
    assert!(text.starts_with("there is no configuration 'regulate'"));
    assert!(text.contains("regulated@10%"));
}

#[test]
fn an_unplannable_configuration_is_reported_and_the_others_run() {
    let (result, heard) = compare(&mut fake(), 2);
    let refused = of(&result, "regulated@70%");
    assert_eq!(refused.refused[0].why, "70% cannot be metered here");
    assert_eq!((refused.rounds, refused.guarantee), (0, None));
    assert!(refused.subjects.is_empty());
    assert!(heard.notes[0].starts_with("regulated@70% is skipped"));
    assert_eq!(of(&result, "regulated@50%").rounds, 2);
}

#[test]
fn a_slower_aggressor_is_judged_by_what_it_was_asked_for() {
    let mut fake = Fake::new();
    fake.generator("victim", |scene| steady(scene, "latency_ns", 15.0, 0.0));
    fake.generator("aggressor", |scene| {
        let rate = if scene.beside.is_empty() { 6e9 } else { 1.9e9 };
        steady(scene, "bandwidth_mb_s", rate / 1e6, rate)
    });
    let text = Experiment::builtin("ladder").unwrap();
    let ladder = Experiment::parse(text, "ladder.toml").unwrap();
    let options = Options {
        experiment_text: text,
        ..options(3, None)
    };
    let mut heard = Heard::default();
    let result = run(
        &ladder,
        Machines::One(&mut fake),
        &machine(2),
        &plan,
        &options,
        &mut heard,
    )
    .unwrap()
    .result;
    let normalized = |name: &str| {
        of(&result, name)
            .subject("aggressor")
            .unwrap()
            .figures
            .normalized
    };
    assert_eq!(normalized("solo"), Some(1.0));
    assert_eq!(
        normalized("at@2GB/s"),
        Some(0.95),
        "of the 2 GB/s asked for"
    );
    // Alone it reaches 6 GB/s, whether it is asked for more or for as much as it can.
    assert_eq!(normalized("at@8GB/s"), normalized("at@max"));
    assert!((normalized("at@max").unwrap() - 1.9 / 6.0).abs() < 1e-3);
}
