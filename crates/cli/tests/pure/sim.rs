//! `--on sim`: the simulated machine through the whole program, without root.

use std::io::Read;
use std::path::{Path, PathBuf};
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

/// A machine that is quick to simulate, because it does so little in its time: two cores of one
/// miss at a time, small caches.
fn tiny(dir: &Path) {
    let mut text = include_str!("../../../sim/profiles/xeon-w3530.toml").to_owned();
    for (from, to) in [
        ("name = \"xeon-w3530\"", "name = \"tiny\""),
        ("count = 4", "count = 2"),
        ("mhz = 2800", "mhz = 1000"),
        ("misses = 10", "misses = 1"),
        ("size = \"32KiB\"", "size = \"8KiB\""),
        ("size = \"256KiB\"", "size = \"32KiB\""),
        ("size = \"8MiB\"", "size = \"128KiB\""),
        ("cores = 4", "cores = 2"),
        ("set = [\"6-18\"]", "set = [\"6-12\"]"),
        ("transit = \"10ns\"", "transit = \"500ns\""),
    ] {
        assert!(text.contains(from), "{from}");
        text = text.replacen(from, to, 1);
    }
    std::fs::write(dir.join("tiny.toml"), text).unwrap();
}

const EXPERIMENT: &str = r#"
quell    = 1
name     = "small"
title    = "Small enough for a test"
backends = ["sim"]
[measure]
rounds    = 9
duration  = "1s"
simulated = { rounds = 2, warmup = "1ms", duration = "2ms" }
[subject.victim]
role    = "critical"
cpus    = 1
run     = { kind = "latency", size = "64KiB" }
primary = "latency_ns"
[subject.neighbour]
role    = "best-effort"
cpus    = 1
run     = { kind = "bandwidth", operation = "write", size = "512KiB" }
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

/// A comparison on the tiny machine.
fn compare<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let words = ["compare", "small.toml", "--on", "sim:./tiny.toml"];
    words.iter().chain(more).copied().collect()
}

/// The only record in a folder.
fn record(folder: &Path) -> Option<PathBuf> {
    Some(std::fs::read_dir(folder).ok()?.next()?.unwrap().path())
}

#[test]
fn a_simulated_machine_is_told_of_and_planned_for() {
    let dir = tempfile::tempdir().unwrap();
    tiny(dir.path());
    let text = done(dir.path(), &["doctor", "--on", "sim:./tiny.toml"]);
    assert!(
        text.contains("profile tiny") && text.contains("+ bandwidth    regulated"),
        "{text}"
    );
    std::fs::write(dir.path().join("p.toml"), POLICY).unwrap();
    let text = done(dir.path(), &["plan", "p.toml", "--on", "sim:./tiny.toml"]);
    assert!(
        text.contains("estimated") && text.contains("neighbour: at most"),
        "{text}"
    );
}

#[test]
fn what_cannot_be_told_is_refused_before_it_is_measured() {
    let dir = tempfile::tempdir().unwrap();
    tiny(dir.path());
    let run = "{ kind = \"bandwidth\", operation = \"write\", size = \"512KiB\" }";
    let passes = "{ kind = \"periodic\", size = \"64KiB\", period = \"1ms\", passes = 20 }";
    let text = EXPERIMENT.replace(run, passes);
    let text = text.replace("primary = \"bandwidth_mb_s\"", "primary = \"response_us\"");
    assert_ne!(text, EXPERIMENT);
    std::fs::write(dir.path().join("small.toml"), text).unwrap();
    let out = quell(dir.path(), &compare(&["--out", "runs"]));
    let told = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{told}");
    assert!(told.contains("'neighbour' has `passes`"), "{told}");
    assert!(!dir.path().join("runs").exists());
}

#[test]
fn an_experiment_leaves_a_record_that_says_it_was_simulated() {
    let dir = tempfile::tempdir().unwrap();
    tiny(dir.path());
    std::fs::write(dir.path().join("small.toml"), EXPERIMENT).unwrap();
    let text = done(dir.path(), &compare(&["--json"]));
    let result: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(result["backend"], "sim:./tiny.toml");
    assert_eq!(
        (&result["timing"], &result["rounds"]),
        (&"simulated".into(), &2.into())
    );
    let parameters = result["machine"]["simulated"]["parameters"]
        .as_array()
        .unwrap();
    assert!(
        parameters
            .iter()
            .all(|p| p["origin"].as_str().is_some_and(|o| !o.is_empty()))
    );
    let record = record(&dir.path().join("runs")).unwrap();
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
    let out = quell(dir.path(), &compare(&["--resume", &again]));
    assert_eq!(out.status.code(), Some(2), "{out:?}");
}

#[test]
fn the_number_of_threads_shows_nowhere() {
    let dir = tempfile::tempdir().unwrap();
    tiny(dir.path());
    std::fs::write(dir.path().join("small.toml"), EXPERIMENT).unwrap();
    let [one, two, five] = ["1", "2", "5"].map(|jobs| {
        done(dir.path(), &compare(&["--jobs", jobs, "--out", jobs]));
        let record = record(&dir.path().join(jobs)).unwrap();
        let read = |name: &str| std::fs::read_to_string(record.join(name)).unwrap();
        [
            "results.json",
            "events.jsonl",
            "samples/solo--victim.csv",
            "samples/decisions-cpu1.csv",
        ]
        .map(read)
    });
    assert!(one == two, "one at a time and two");
    assert!(one == five, "one at a time and five");
}

#[test]
fn what_a_signal_ended_is_gone_on_with_as_if_it_had_not_been() {
    let dir = tempfile::tempdir().unwrap();
    tiny(dir.path());
    let text = EXPERIMENT.replace("rounds = 2,", "rounds = 40,");
    std::fs::write(dir.path().join("small.toml"), text).unwrap();
    let mut stopped = Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(compare(&["--jobs", "1", "--out", "stopped"]))
        .current_dir(dir.path())
        .stderr(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // The first cells are on record.
    let runs = dir.path().join("stopped");
    let begun = || record(&runs).is_some_and(|record| record.join("cells.jsonl").exists());
    let from = std::time::Instant::now();
    while !begun() {
        assert!(from.elapsed() < Duration::from_secs(120), "no cell");
        std::thread::sleep(Duration::from_millis(2));
    }
    let pid = Pid::from_child(&stopped);
    kill_process(pid, Signal::INT).unwrap();
    let status = stopped.wait().unwrap();
    let mut told = String::new();
    let mut stderr = stopped.stderr.take().unwrap();
    stderr.read_to_string(&mut told).unwrap();
    assert_eq!(status.code(), Some(1), "{told}");
    assert!(told.contains("brought to their end"), "{told}");
    assert!(told.contains("interrupted (stopped by signal 2)"), "{told}");
    assert!(told.contains("--resume"), "{told}");

    let partial = record(&runs).unwrap();
    let partial = partial.display().to_string();
    // Whatever it goes on with: the cells that are there are taken, the others measured.
    let gone_on = compare(&["--resume", &partial, "--jobs", "3", "--json"]);
    let gone_on: serde_json::Value = serde_json::from_str(&done(dir.path(), &gone_on)).unwrap();
    let whole = compare(&["--jobs", "2", "--out", "whole", "--json"]);
    let whole: serde_json::Value = serde_json::from_str(&done(dir.path(), &whole)).unwrap();
    assert_eq!(gone_on["interrupted"], serde_json::Value::Null);
    for (key, value) in whole.as_object().unwrap() {
        assert_eq!(&gone_on[key], value, "{key}");
    }
}

#[test]
fn commands_do_not_run_on_it() {
    let dir = tempfile::tempdir().unwrap();
    let run = "run     = { kind = \"latency\", size = \"64KiB\" }\nprimary = \"latency_ns\"";
    let text = EXPERIMENT.replace(run, "command = [\"true\"]");
    assert_ne!(text, EXPERIMENT);
    std::fs::write(dir.path().join("small.toml"), text).unwrap();
    let out = quell(dir.path(), &["compare", "small.toml"]);
    let told = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(2), "{told}");
    assert!(told.contains("subject 'victim' is a command"), "{told}");
}
