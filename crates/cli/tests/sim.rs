//! `--on sim`: the simulated machine through the whole program, without root.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::io::Read;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

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
    // It is whole.
    let again = record.display().to_string();
    let out = quell(dir.path(), &["compare", "small.toml", "--resume", &again]);
    assert_eq!(out.status.code(), Some(2), "{out:?}");
}

#[test]
fn the_number_of_threads_shows_nowhere() {
    let dir = tempfile::tempdir().unwrap();
    let text = EXPERIMENT.replace("rounds = 1,", "rounds = 2,");
    std::fs::write(dir.path().join("small.toml"), text).unwrap();
    let records = ["1", "5"].map(|jobs| {
        done(
            dir.path(),
            &["compare", "small.toml", "--jobs", jobs, "--out", jobs],
        );
        let mut records = std::fs::read_dir(dir.path().join(jobs)).unwrap();
        let record = records.next().unwrap().unwrap().path();
        let read = |name: &str| std::fs::read_to_string(record.join(name)).unwrap();
        [
            "results.json",
            "events.jsonl",
            "samples/solo--victim.csv",
            "samples/decisions-cpu1.csv",
        ]
        .map(read)
    });
    assert_eq!(records[0], records[1]);
    let refused = ["compare", "small.toml", "--on", "linux", "--jobs", "2"];
    let out = quell(dir.path(), &refused);
    let told = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(2), "{told}");
    assert!(told.contains("one after the other"), "{told}");
    let out = quell(dir.path(), &["compare", "small.toml", "--jobs", "0"]);
    assert_eq!(out.status.code(), Some(2));
}

#[test]
fn a_signal_ends_it_after_the_cells_that_have_begun() {
    let dir = tempfile::tempdir().unwrap();
    // Some seconds of the host's time.
    let text = EXPERIMENT.replace("rounds = 1,", "rounds = 20,");
    std::fs::write(dir.path().join("small.toml"), text).unwrap();
    let mut compare = Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(["compare", "small.toml"])
        .current_dir(dir.path())
        .stderr(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // The first cells are on record.
    let runs = dir.path().join("runs");
    let begun = || {
        let record = std::fs::read_dir(&runs).ok()?.next()?.ok()?.path();
        record.join("cells.jsonl").exists().then_some(())
    };
    let from = std::time::Instant::now();
    while begun().is_none() {
        assert!(from.elapsed() < Duration::from_secs(120), "no cell");
        std::thread::sleep(Duration::from_millis(5));
    }
    let pid = Pid::from_child(&compare);
    kill_process(pid, Signal::INT).unwrap();
    let status = compare.wait().unwrap();
    let mut told = String::new();
    compare
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut told)
        .unwrap();
    assert_eq!(status.code(), Some(1), "{told}");
    assert!(told.contains("brought to their end"), "{told}");
    assert!(told.contains("interrupted (stopped by signal 2)"), "{told}");
    assert!(told.contains("--resume"), "{told}");
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
