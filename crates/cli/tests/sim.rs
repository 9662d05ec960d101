//! `--on sim`: the simulated machine through the whole program, without root.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::path::Path;
use std::process::{Command, Output};

const POLICY: &str = r#"
quell = 1
[group.victim]
role    = "critical"
cpus    = 1
command = ["true"]
[group.neighbour]
role            = "best-effort"
command         = ["true"]
limit.bandwidth = "20%"
"#;

const EXPERIMENT: &str = r#"
quell    = 1
name     = "small"
title    = "Small enough for a test"
backends = ["sim"]
[measure]
rounds    = 9
duration  = "1s"
simulated = { rounds = 1, warmup = "1ms", duration = "2ms" }
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
[configuration.regulated]
group.victim.cpus = 1
group.neighbour.limit.bandwidth = "20%"
"#;

fn quell(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(args)
        .current_dir(dir)
        .output()
        .unwrap()
}

fn done(dir: &Path, args: &[&str]) -> String {
    let out = quell(dir, args);
    assert!(out.status.success(), "{args:?}: {out:?}");
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn a_simulated_machine_is_told_of_and_planned_for() {
    let dir = tempfile::tempdir().unwrap();
    let text = done(dir.path(), &["doctor", "--on", "sim:xeon-w3530"]);
    assert!(
        text.contains("profile xeon-w3530") && text.contains("+ bandwidth    estimated"),
        "{text}"
    );
    std::fs::write(dir.path().join("p.toml"), POLICY).unwrap();
    let text = done(dir.path(), &["plan", "p.toml", "--on", "sim"]);
    assert!(text.contains("estimated") && text.contains("20%"), "{text}");
}

#[test]
fn an_experiment_leaves_a_record_that_says_it_was_simulated() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("small.toml"), EXPERIMENT).unwrap();
    let text = done(dir.path(), &["compare", "small.toml", "--json"]);
    let result: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(result["backend"], "sim:xeon-w3530");
    assert_eq!(
        (&result["timing"], &result["rounds"]),
        (&"simulated".into(), &1.into())
    );
    let parameters = result["machine"]["simulated"]["parameters"]
        .as_array()
        .unwrap();
    assert!(
        parameters
            .iter()
            .all(|p| p["origin"].as_str().is_some_and(|o| !o.is_empty()))
    );
    let record = std::fs::read_dir(dir.path().join("runs"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    for file in [
        "manifest.json",
        "events.jsonl",
        "report.html",
        "samples/decisions-cpu1.csv",
    ] {
        assert!(record.join(file).exists(), "{file}");
    }
    let again = record.display().to_string();
    let out = quell(dir.path(), &["compare", "small.toml", "--resume", &again]);
    assert_eq!(out.status.code(), Some(2), "{out:?}");
}

#[test]
fn commands_do_not_run_on_it() {
    let dir = tempfile::tempdir().unwrap();
    let run = "run     = { kind = \"latency\", size = \"1MiB\" }\nprimary = \"latency_ns\"";
    let text = EXPERIMENT.replace(run, "command = [\"true\"]");
    assert_ne!(text, EXPERIMENT);
    std::fs::write(dir.path().join("small.toml"), text).unwrap();
    let out = quell(dir.path(), &["compare", "small.toml", "--on", "sim"]);
    let told = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(2), "{told}");
    assert!(told.contains("subject 'victim' is a command"), "{told}");
}
