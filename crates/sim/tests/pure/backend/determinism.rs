//! A run depends only on the experiment, the seed and the version.

use quell_engine::compare::{Machines, NoProgress, Options, run};
use quell_policy::experiment::Experiment;
use quell_record::backend::{Backend, Probe};
use quell_record::result::Timing;

const EXPERIMENT: &str = r#"
quell    = 1
name     = "small"
title    = "Small enough for a test"
backends = ["sim"]
seed     = 7

[measure]
rounds   = 2
warmup   = "1ms"
duration = "3ms"
baseline = "solo"
canary   = "shared-cache"

[subject.victim]
role    = "critical"
cpus    = 1
run     = { kind = "latency", size = "1MiB" }
primary = "latency_ns"

[subject.neighbour]
role    = "best-effort"
cpus    = 1
run     = { kind = "bandwidth", operation = "write", size = "16MiB" }
primary = "bandwidth_mb_s"

[configuration.solo]
alone = true
[configuration.none]
[configuration.regulated]
group.victim.cpus = 1
group.neighbour.limit.bandwidth = "20%"
"#;

/// The digest of the whole result, and the result, of so many machines side by side.
fn result(seed: u64, machines: usize) -> (String, serde_json::Value) {
    let experiment = Experiment::parse(EXPERIMENT, "small.toml").unwrap();
    let board = quell_sim::board::Board::usual().unwrap();
    let mut sims: Vec<_> = (0..machines)
        .map(|_| quell_sim::Sim::new(board.clone(), seed).unwrap())
        .collect();
    let machine = sims[0].inventory(Probe::Deep).unwrap();
    let all = sims.iter_mut().map(|s| s as &mut (dyn Backend + Send));
    let options = Options {
        backend: "sim:xeon-w3530",
        timing: Timing::Simulated,
        seed: Some(seed),
        rounds: None,
        only: &[],
        resume: None,
        no_huge_pages: None,
        out: None,
        now_unix_s: 0,
        command_line: "",
        experiment_text: EXPERIMENT,
        html: None,
    };
    let plan = quell_plan::planner::plan;
    let done = run(
        &experiment,
        Machines::Alike(all.collect()),
        &machine,
        &plan,
        &options,
        &mut NoProgress,
    )
    .unwrap();
    assert!(
        done.result.failures.is_empty(),
        "{:?}",
        done.result.failures
    );
    let mut result = done.result;
    // The digest covers what was simulated, not how a hash of the policy is written.
    result.policy_hash = fnv1a64(EXPERIMENT);
    let text = serde_json::to_string(&result).unwrap();
    (fnv1a64(&text), serde_json::from_str(&text).unwrap())
}

fn fnv1a64(text: &str) -> String {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("fnv1a64:{hash:016x}")
}

/// Changes with every intended change of the model, the planner or the statistics. Then write down
/// the new one.
const GOLDEN: &str = "fnv1a64:af4e4a851f879265";

/// Where their files have changed (`tests/changed.toml`).
mod changed {
    use super::*;

    #[test]
    #[ignore = "where its files have changed"]
    fn a_seed_gives_the_same_result_on_any_number_of_threads() {
        let (first, value) = result(7, 1);
        for machines in [2, 5] {
            assert_eq!(result(7, machines).0, first, "{machines}");
        }
        assert_eq!(first, GOLDEN);
        assert_ne!(result(8, 2).0, first);
        // A check that it is a result: the limit protects, and holds.
        let figures = |configuration: &str, subject: usize| {
            let all = value["configurations"].as_array().unwrap();
            let found = all.iter().find(|c| c["name"] == configuration).unwrap();
            found["subjects"][subject].clone()
        };
        let normalized =
            |configuration: &str| figures(configuration, 0)["normalized"].as_f64().unwrap();
        assert!(normalized("regulated") > normalized("none") + 0.1);
        let of_cap = &figures("regulated", 1)["metrics"]["achieved_of_cap"]["value"];
        assert!((0.95..1.05).contains(&of_cap.as_f64().unwrap()), "{of_cap}");
        assert_eq!(value["timing"], "simulated");
        assert_eq!(value["machine"]["simulated"]["profile"], "xeon-w3530");
    }
}
