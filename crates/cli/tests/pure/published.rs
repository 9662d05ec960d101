//! `compare --check` and published figures, whole, on a simulated machine.

use std::path::Path;
use std::process::Command;

/// A list of the size of a small cache, next to a stream that evicts it: its latency rises.
const EXPERIMENT: &str = r#"
quell    = 1
name     = "small"
backends = ["sim"]
[measure]
simulated = { rounds = 2, warmup = "1ms", duration = "2ms" }
[subject.victim]
role    = "critical"
cpus    = 1
run     = { kind = "latency", size = "96KiB" }
[subject.neighbour]
role    = "best-effort"
cpus    = 1
run     = { kind = "bandwidth", operation = "write", size = "512KiB" }
[configuration.solo]
alone = true
[configuration.none]
[[published]]
configuration = "solo"
subject       = "victim"
value         = 10
source        = "A study, table 1"
"#;

/// A machine that is quick to simulate.
fn tiny(dir: &Path) {
    let mut text = include_str!("../../../sim/profiles/xeon-w3530.toml").to_owned();
    for (from, to) in [
        ("name = \"xeon-w3530\"", "name = \"tiny\""),
        ("count = 4", "count = 2"),
        ("misses = 10", "misses = 1"),
        ("size = \"32KiB\"", "size = \"8KiB\""),
        ("size = \"256KiB\"", "size = \"32KiB\""),
        ("size = \"8MiB\"", "size = \"128KiB\""),
        ("cores = 4", "cores = 2"),
        ("set = [\"6-18\"]", "set = [\"6-12\"]"),
    ] {
        assert!(text.contains(from), "{from}");
        text = text.replacen(from, to, 1);
    }
    std::fs::write(dir.join("tiny.toml"), text).unwrap();
}

/// The exit code of `compare` and what it prints, with one row more.
fn compare(row: &str, args: &[&str]) -> (Option<i32>, String, String) {
    let row = format!(
        "[[published]]\nconfiguration = \"none\"\nsubject = \"victim\"\nagainst = \"solo\"\nsource = \"A study, table 1\"\n{row}\n"
    );
    run(&format!("{EXPERIMENT}{row}"), args)
}

fn run(text: &str, args: &[&str]) -> (Option<i32>, String, String) {
    let dir = tempfile::tempdir().unwrap();
    tiny(dir.path());
    std::fs::write(dir.path().join("small.toml"), text).unwrap();
    let out = Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(["compare", "small.toml", "--on", "sim:./tiny.toml"])
        .args(args)
        .current_dir(dir.path())
        .env("QUELL_STATE_DIR", dir.path().join("state"))
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (out.status.code(), text(out.stdout), text(out.stderr))
}

fn complaints(err: &str) -> Vec<&str> {
    err.lines()
        .filter(|l| l.starts_with("quell: published: "))
        .collect()
}

#[test]
fn check_fails_for_a_wrong_direction_until_it_is_known() {
    let (code, out, err) = compare("value = 5", &["--check"]);
    assert_eq!(code, Some(3), "{err}");
    let lines = complaints(&err);
    assert_eq!(lines.len(), 1, "{err}");
    assert!(
        lines[0].contains("none, victim, latency_ns: the direction is wrong: ×0.50 of solo"),
        "{err}"
    );
    assert!(
        out.contains("Published figures next to ours") && out.contains("WRONG"),
        "{out}"
    );

    let known = "value = 5\nknown = \"the study had another machine\"";
    let (code, out, err) = compare(known, &["--check"]);
    assert_eq!((code, complaints(&err).len()), (Some(0), 0), "{err}");
    assert!(out.contains("wrong, known"), "{out}");

    // A right one that is noted as wrong.
    let known = known.replace("= 5", "= 20");
    let (code, _, err) = compare(&known, &["--check"]);
    assert_eq!(code, Some(3), "{err}");
    assert!(complaints(&err)[0].contains("remove `known`"), "{err}");
}

#[test]
fn published_figures_are_in_the_json_and_fail_nothing_unasked() {
    let (code, out, err) = compare("value = 5", &["--json"]);
    assert_eq!((code, complaints(&err).len()), (Some(0), 0), "{err}");
    let result: serde_json::Value = serde_json::from_str(&out).unwrap();
    let rows = result["published"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[1]["change"]["direction"], "wrong");
    assert_eq!(rows[1]["change"]["published"], 0.5);
    assert!(
        rows[1]["change"]["measured"].as_f64().unwrap() > 1.1,
        "{}",
        rows[1]
    );
}

#[test]
fn check_can_ask_how_much_of_a_cap_was_achieved() {
    let regulated = r#"
[configuration.regulated]
group.victim.cpus               = 1
group.neighbour.limit.bandwidth = "20%"
mechanisms.bandwidth            = "regulator"
regulator.period                = "1ms"
[[expect]]
configuration  = "regulated"
subject        = "neighbour"
metric         = "achieved_of_cap"
value_at_least = 0.9
value_at_most  = 1.05
"#;
    let text = EXPERIMENT.replace("duration = \"2ms\"", "duration = \"10ms\"") + regulated;
    let (code, out, err) = run(&text, &["--check"]);
    assert_eq!(code, Some(0), "{out}{err}");
    let (code, out, _) = run(&text.replace("= 0.9\n", "= 1.04\n"), &["--check"]);
    assert_eq!(code, Some(3), "{out}");
}

/// An experiment with short windows, a few of its configurations: the exit code of `--check`, and
/// the direction of each published change.
fn directions(text: &str, simulated: &str, only: &str) -> (Option<i32>, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let (before, rest) = text.split_once("[measure]\n").unwrap();
    let section = rest.split_once("\n[").unwrap().0;
    let usual = section.lines().find(|l| l.starts_with("simulated "));
    let rest = usual.map_or(rest.to_owned(), |usual| rest.replace(usual, ""));
    let text = format!("{before}[measure]\nsimulated = {{ rounds = 1, {simulated} }}\n{rest}");
    std::fs::write(dir.path().join("short.toml"), text).unwrap();
    let out = Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(["compare", "short.toml", "--on", "sim", "--check", "--json"])
        .args(["--only", only])
        .current_dir(dir.path())
        .env("QUELL_STATE_DIR", dir.path().join("state"))
        .output()
        .unwrap();
    let result: serde_json::Value = serde_json::from_slice(&out.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&out.stderr)));
    let rows = result["published"].as_array().unwrap();
    let found = rows.iter().filter(|row| !row["change"].is_null());
    let found = found.map(|row| {
        let word = |key: &str| row[key].as_str().unwrap();
        let direction = row["change"]["direction"].as_str().unwrap();
        let what = ["configuration", "subject", "metric"].map(word).join(" ");
        format!("{what}: {direction}")
    });
    (out.status.code(), found.collect())
}

/// A few turns of the list, without regulation, whose period is 5 ms. Other directions of the study
/// are wrong here, and the experiment says why.
#[test]
fn a_short_p4080_goes_the_published_directions() {
    let text = include_str!("../../../../experiments/p4080-4core.toml");
    let windows = r#"warmup = "2ms", duration = "3ms""#;
    let (_, mut found) = directions(text, windows, "solo,none,bank,bank+set");
    found.retain(|direction| direction.ends_with(": right"));
    for holds in [
        "none core1 latency_ns: right",
        "none core2 latency_ns: right",
        "none core3 latency_ns: right",
        "none core4 latency_ns: right",
        "bank+set core1 latency_ns: right",
    ] {
        assert!(found.iter().any(|one| one == holds), "{holds}: {found:?}");
    }
}

/// Twenty passes of the real-time task, alone and next to the cache stressor.
#[test]
fn a_short_cache_allocation_goes_the_published_way() {
    let text = include_str!("../../../../experiments/apollolake-cat.toml");
    let windows = r#"warmup = "2ms", duration = "10ms", period = "501us""#;
    let (code, found) = directions(text, windows, "solo,none");
    assert_eq!(found, ["none rta cycles: right"]);
    assert_eq!(code, Some(0));
}

/// Where their files have changed (`tests/changed.toml`).
mod changed {
    use super::*;

    /// A few frames of the two unprotected configurations.
    #[test]
    #[ignore = "where its files have changed"]
    fn a_short_call_goes_the_published_directions() {
        let text = include_str!("../../../../experiments/webrtc.toml");
        let windows = r#"warmup = "34ms", duration = "100ms""#;
        let (code, found) = directions(text, windows, "solo,cpuset");
        assert_eq!(
            found,
            [
                "cpuset webrtc rtt_ms: right",
                "cpuset webrtc frames_per_s: right",
                "cpuset webrtc media_kb_s: right",
                "cpuset webrtc bandwidth_mb_s: right",
                "cpuset xserver bandwidth_mb_s: right",
            ]
        );
        assert_eq!(code, Some(0));
    }
}
