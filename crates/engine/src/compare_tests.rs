//! Whole experiments on the scripted machine.
#![expect(clippy::cast_sign_loss, reason = "rates are positive")]

use std::collections::BTreeSet;
use std::fs;

use quell_core::mechanism::{Level, Mechanism};
use quell_core::plan::{GroupPlan, Held, Promise, Regulation, Setting, Step, StepId};
use quell_core::policy::{Bandwidth, CpusWanted};
use quell_core::result::{CompareResult, ConfigurationResult};
use quell_core::units::{Lines, Nanos, Rate, Share};

use super::*;
use crate::fake::{Fake, Scene, machine};

const PEAK: f64 = 10e9;

/// A planner in miniature: confines groups that name CPUs, regulates or limits as asked.
fn plan(policy: &Policy, machine: &Inventory) -> Result<Plan, Vec<Refusal>> {
    let mut plan = Plan {
        policy: policy.name.clone(),
        groups: Vec::new(),
        steps: Vec::new(),
        promises: Vec::new(),
        notes: Vec::new(),
    };
    for (name, group) in &policy.groups {
        let Some(CpusWanted::List(cpus)) = &group.cpus else {
            continue;
        };
        let mut step = |mechanism, set| {
            let id = StepId(u32::try_from(plan.steps.len() + 1).unwrap());
            plan.steps.push(Step {
                id,
                group: Some(name.clone()),
                mechanism,
                set,
                because: "the policy asks for it".into(),
            });
            id
        };
        let confined = step(
            Mechanism::Cores,
            Setting::Confine {
                cpus: cpus.clone(),
                mems: [0].into_iter().collect(),
                exclusive: false,
            },
        );
        let mut promises = vec![(
            Promise::Cpus { cpus: cpus.clone() },
            Level::Enforced,
            confined,
        )];
        if let Some(Bandwidth::Share(share)) = group.limit.bandwidth {
            if share == Share::percent(70) {
                return Err(vec![Refusal {
                    key: format!("group.{name}.limit.bandwidth"),
                    why: "70% cannot be metered here".into(),
                    remedy: Some("ask for less".into()),
                }]);
            }
            let rate = machine.sustainable(cpus).unwrap().part(share);
            let regulation = Regulation {
                cpus: cpus.clone(),
                budget: Lines::at(rate, Nanos::millis(1)),
                period: Nanos::millis(1),
                meter: quell_core::plan::Meter::Time,
                peak: Rate(10_000_000_000),
                stop_cost: Nanos(0),
                longest: Nanos::millis(5),
            };
            let id = step(Mechanism::Bandwidth, Setting::Regulate(regulation));
            promises.push((Promise::LimitBandwidth { rate }, Level::Estimated, id));
        }
        if let Some(share) = group.limit.cpu_time {
            let period = Nanos::millis(100);
            let id = step(Mechanism::CpuMax, Setting::CpuMax { share, period });
            promises.push((Promise::LimitCpuTime { share }, Level::Enforced, id));
        }
        plan.groups.push(GroupPlan {
            name: name.clone(),
            cpus: cpus.clone(),
            throttled_along: Vec::new(),
        });
        plan.promises
            .extend(promises.into_iter().map(|(promise, level, id)| Held {
                group: name.clone(),
                promise,
                level,
                held_by: vec![id],
                weakest: None,
            }));
    }
    Ok(plan)
}

/// The part of its full rate that the neighbour has, and how much of that hurts the victim.
fn load(scene: &Scene<'_>) -> (f64, f64) {
    scene
        .steps
        .iter()
        .find_map(|step| match &step.set {
            Setting::Regulate(r) => {
                let part = r.budget.0 as f64 * 64.0 * 1000.0 / PEAK;
                Some((part, part))
            }
            Setting::CpuMax { share, .. } => Some((share.as_f64(), share.as_f64().sqrt())),
            _ => None,
        })
        .unwrap_or((1.0, 1.0))
}

/// A machine on which a neighbour at full rate makes a list of 15 ns take 150, and the whole drifts from cell to cell.
fn fake() -> Fake {
    let mut fake = Fake::new();
    fake.generator("victim", |scene| {
        let hurt = if scene.beside.is_empty() {
            0.0
        } else {
            load(scene).1
        };
        let drift = 1.0 + f64::from(scene.cell % 5) * 0.01;
        let value = (15.0 + 135.0 * hurt) * drift;
        Measurement {
            metrics: [("latency_ns".to_owned(), vec![value; 200])].into(),
            window_ns: 1_000_000,
            bytes: 0,
            duration_ns: scene.duration.0,
        }
    });
    fake.generator("neighbour", |scene| {
        let rate = PEAK * load(scene).0 * 0.99;
        Measurement {
            metrics: [("bandwidth_mb_s".to_owned(), vec![rate / 1e6; 200])].into(),
            window_ns: 1_000_000,
            bytes: (rate * scene.duration.as_secs_f64()) as u64,
            duration_ns: scene.duration.0,
        }
    });
    fake.report_throttling();
    fake
}

#[derive(Default)]
struct Heard {
    cells: Vec<String>,
    notes: Vec<String>,
    total: u32,
    done: u32,
}

impl Progress for Heard {
    fn begin(&mut self, cells: u32) {
        self.total = cells;
    }
    fn cell(&mut self, cell: &str) {
        self.cells.push(cell.to_owned());
    }
    fn done(&mut self, done: u32, _: u32) {
        self.done = done;
    }
    fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }
}

fn neighbour() -> (Experiment, &'static str) {
    let text = Experiment::builtin("neighbour").unwrap();
    (Experiment::parse(text, "neighbour.toml").unwrap(), text)
}

fn options<'a>(text: &'a str, rounds: u32, out: Option<&'a Path>) -> Options<'a> {
    Options {
        backend: "linux",
        timing: Timing::Simulated,
        seed: None,
        rounds: Some(rounds),
        only: &[],
        out,
        now_unix_s: 0,
        command_line: "quell compare neighbour",
        experiment_text: text,
        html: Some(&|report| format!("<p>{}</p>", report.result.experiment)),
    }
}

fn compare(fake: &mut Fake, rounds: u32) -> (CompareResult, Heard) {
    let (experiment, text) = neighbour();
    let mut heard = Heard::default();
    let options = options(text, rounds, None);
    let out = run(&experiment, fake, &machine(2), &plan, &options, &mut heard).unwrap();
    assert!(fake.clean());
    (out.report.result, heard)
}

fn of<'r>(result: &'r CompareResult, name: &str) -> &'r ConfigurationResult {
    result.configuration(name).unwrap()
}

#[test]
fn an_experiment_says_how_much_it_hurts_and_what_protection_costs() {
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
    let (experiment, text) = neighbour();
    let mut other = Heard::default();
    let options = Options {
        seed: Some(2),
        ..options(text, 3, None)
    };
    run(
        &experiment,
        &mut fake(),
        &machine(2),
        &plan,
        &options,
        &mut other,
    )
    .unwrap();
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
fn a_configuration_that_cannot_be_planned_is_reported_and_the_others_run() {
    let (result, heard) = compare(&mut fake(), 2);
    let refused = of(&result, "regulated@70%");
    assert_eq!(refused.refused[0].why, "70% cannot be metered here");
    assert_eq!((refused.rounds, refused.guarantee), (0, None));
    assert!(refused.subjects.is_empty());
    assert!(heard.notes[0].starts_with("regulated@70% is skipped"));
    assert_eq!(of(&result, "regulated@50%").rounds, 2);
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
    let (experiment, text) = neighbour();
    let mut fake = fake();
    fake.fail_once("undo");
    let options = options(text, 2, Some(runs.path()));
    let error = run(
        &experiment,
        &mut fake,
        &machine(2),
        &plan,
        &options,
        &mut NoProgress,
    );
    let text = error.unwrap_err().to_string();
    assert!(text.contains("quell restore") && text.contains("measured before is in"));
    assert_eq!(fake.log.iter().filter(|l| *l == "undo").count(), 1);
}

#[test]
fn a_signal_leaves_a_partial_result_and_a_whole_record() {
    let runs = tempfile::tempdir().unwrap();
    let (experiment, text) = neighbour();
    let mut fake = fake();
    fake.stop_at(Nanos::secs(6), 2);
    let options = options(text, 3, Some(runs.path()));
    let out = run(
        &experiment,
        &mut fake,
        &machine(2),
        &plan,
        &options,
        &mut NoProgress,
    )
    .unwrap();
    assert!(fake.clean());
    let result = &out.report.result;
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
    let (experiment, text) = neighbour();
    let options = options(text, 2, Some(runs.path()));
    let out = run(
        &experiment,
        &mut fake(),
        &machine(2),
        &plan,
        &options,
        &mut NoProgress,
    )
    .unwrap();
    let folder = out.folder.unwrap();
    assert!(folder.ends_with("neighbour-19700101-000000"));
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&read("manifest.json")).unwrap();
    assert_eq!(manifest["schema"], "quell.manifest/1");
    assert_eq!(manifest["experiment"], text);
    assert_eq!(manifest["placement"]["neighbour"], "1");
    assert!(manifest["plans"]["regulated@10%"]["steps"].is_array());
    assert!(manifest["refused"]["regulated@70%"].is_array());
    assert_eq!(
        manifest["policy_hash"],
        out.report.result.policy_hash.as_str()
    );
    assert_eq!(read("report.html"), "<p>neighbour</p>");
    let samples = read("samples/regulated@10%--victim.csv");
    assert_eq!(samples.lines().count(), 1 + 2 * 200);
    assert!(samples.starts_with("round,window,latency_ns\n0,0,"));
    let events = read("events.jsonl");
    assert!(
        events
            .lines()
            .all(|l| serde_json::from_str::<serde_json::Value>(l).is_ok())
    );
    assert!(events.contains("\"event\":\"throttle\"") && events.contains("\"event\":\"phase\""));
    let curve = &out.report.quantiles["none"]["victim"];
    assert_eq!(curve.len(), 101);
}

#[test]
fn the_canary_alone_decides_what_is_shared() {
    // Two configurations of one cell each and solo's two: four cells a round, two probes a cell. In the first cell of
    // the first round one probe says no, in that of the second one cannot tell; all others say yes.
    let (experiment, text) = neighbour();
    let only = ["none".to_owned(), "cores".to_owned()];
    let mut fake = fake();
    fake.shared = vec![Some(0.9); 16];
    fake.shared[1] = Some(0.49);
    fake.shared[8] = None;
    let mut heard = Heard::default();
    let options = Options {
        only: &only,
        ..options(text, 2, None)
    };
    let out = run(
        &experiment,
        &mut fake,
        &machine(2),
        &plan,
        &options,
        &mut heard,
    )
    .unwrap();
    let result = out.report.result;
    assert_eq!((result.rounds, result.rounds_shared), (2, Some(0)));
    let shared: u32 = result
        .configurations
        .iter()
        .map(|c| c.rounds_shared.unwrap())
        .sum();
    // Three configurations in two rounds, and one cell spoilt in each round, whichever configuration it was.
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
    fake.generator("neighbour", |scene| Measurement {
        metrics: [("bandwidth_mb_s".to_owned(), vec![5000.0; 200])].into(),
        window_ns: 1_000_000,
        bytes: (5e9 * scene.duration.as_secs_f64()) as u64,
        duration_ns: scene.duration.0,
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
            ("neighbour", "normalized_at_most = 0.2", true)
        ]
    );
    let mut gentle = fake();
    gentle.generator("victim", |scene| Measurement {
        metrics: [(
            "latency_ns".to_owned(),
            vec![if scene.beside.is_empty() { 1.0 } else { 9.0 }; 200],
        )]
        .into(),
        window_ns: 1,
        bytes: 0,
        duration_ns: scene.duration.0,
    });
    let (result, _) = compare(&mut gentle, 3);
    assert!(!result.as_expected());
}

#[test]
fn only_names_configurations_or_says_what_there_is() {
    let (experiment, text) = neighbour();
    let mut heard = Heard::default();
    let only = ["cpu-max".to_owned()];
    let options = Options {
        only: &only,
        ..options(text, 1, None)
    };
    let out = run(
        &experiment,
        &mut fake(),
        &machine(2),
        &plan,
        &options,
        &mut heard,
    )
    .unwrap();
    let names: Vec<_> = out
        .report
        .result
        .configurations
        .iter()
        .map(|c| &c.name)
        .collect();
    assert_eq!(names[0], "solo", "the baseline comes along");
    assert!(names[1..].iter().all(|n| n.starts_with("cpu-max@")) && names.len() > 5);
    assert!(out.report.result.expectations.is_empty());

    let wrong = ["regulate".to_owned()];
    let options = Options {
        only: &wrong,
        ..options
    };
    let error = run(
        &experiment,
        &mut fake(),
        &machine(2),
        &plan,
        &options,
        &mut NoProgress,
    );
    let text = error.unwrap_err().to_string();
    assert!(text.starts_with("there is no configuration 'regulate'"));
    assert!(text.contains("regulated@10%"));
}

#[test]
fn the_real_planner_confines_groups_to_where_their_subjects_run() {
    for cpus in [2, 8] {
        let (experiment, text) = neighbour();
        let machine = machine(cpus);
        let options = options(text, 1, None);
        let plan = quell_core::planner::plan;
        let report = run(
            &experiment,
            &mut fake(),
            &machine,
            &plan,
            &options,
            &mut NoProgress,
        )
        .unwrap()
        .report;
        for configuration in &report.result.configurations {
            assert!(
                configuration.refused.is_empty(),
                "{:?}",
                configuration.refused
            );
        }
        for (name, plan) in &report.plans {
            if ["solo", "none"].contains(&name.as_str()) {
                assert!(plan.steps.is_empty(), "{name}: {:?}", plan.steps);
                continue;
            }
            assert_eq!(plan.cpus("victim").unwrap().to_string(), "0", "{name}");
            assert_eq!(plan.cpus("neighbour").unwrap().to_string(), "1", "{name}");
        }
        let regulated = of(&report.result, "regulated@10%");
        let achieved = &regulated.subject("neighbour").unwrap().metrics["achieved_of_cap"];
        assert!((achieved.value.unwrap() - 0.99).abs() < 0.01);
    }
}
