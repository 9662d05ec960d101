//! `doctor --deep` end to end: the shape of what it finds, what becomes of it, and what others say
//! of the same machine. Speeds are not judged.

use std::path::Path;
use std::process::Command;

use crate::common::{Done, Running, quell};
use serde_json::Value;

fn run(state: &Path, args: &[&str]) -> Done {
    Running::start(quell().env("QUELL_STATE_DIR", state).args(args)).wait()
}

fn numbers(value: &Value) -> Vec<f64> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_f64().unwrap())
        .collect()
}

fn shape(deep: &Value, cpus: usize) {
    assert_eq!(deep["quick"], true);
    let control = |case: &str| {
        let all = deep["sharing"]["controls"].as_array().unwrap();
        all.iter()
            .find(|c| c["case"] == case)
            .unwrap_or_else(|| panic!("{case} in {all:?}"))
    };
    for case in ["same-cpu", "flushed"]
        .into_iter()
        .take(if cpus > 1 { 2 } else { 1 })
    {
        let control = control(case);
        assert!(
            control["wrong"].as_u64() <= control["told"].as_u64(),
            "{control}"
        );
        if let Some(rate) = control.get("wrong-rate") {
            let [low, high] = numbers(rate)[..] else {
                panic!("{rate}")
            };
            assert!((0.0..=high).contains(&low) && high <= 1.0, "{rate}");
        }
    }
    let points = deep["caches"]["points"].as_array().unwrap();
    let sizes: Vec<quell_types::units::Bytes> = points
        .iter()
        .map(|p| p["size"].as_str().unwrap().parse().unwrap())
        .collect();
    assert!(sizes.is_sorted() && sizes.len() > 10, "{sizes:?}");
    for spread in points.iter().map(|p| &p["latency-ns"]) {
        let at = |name: &str| spread[name].as_f64().unwrap();
        assert!(
            0.0 < at("low") && at("low") <= at("p50") && at("p50") <= at("high"),
            "{spread}"
        );
    }
    if cpus > 1 {
        let points = deep["loaded"]["points"].as_array().unwrap();
        assert_eq!(points.len(), 8);
        for tail in points.iter().map(|p| &p["latency-ns"]) {
            let order: Vec<f64> = ["p50", "p95", "p99", "max"]
                .map(|p| tail[p].as_f64().unwrap())
                .into();
            assert!(order.is_sorted(), "{tail}");
        }
    } else {
        assert!(deep["skipped"]["loaded latency"].is_string(), "{deep}");
    }
    assert!(
        deep.get("pages").is_some() || deep["skipped"].get("pages").is_some(),
        "{deep}"
    );
    let ordinary = deep["wakeups"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|w| w["fifo"] == false);
    assert_eq!(ordinary.count(), cpus);
    // Page faults are counted right on every kernel, or by none at all (paranoid).
    if let Some(check) = deep.get("page-faults") {
        let factor = check["factor"]["p50"].as_f64().unwrap();
        assert!((0.9..1.25).contains(&factor), "{check}");
    }
}

#[test]
fn a_machine_is_measured_kept_captured_and_forgotten_on_change() {
    // Measuring what a stop costs changes the machine for a moment: nobody else must meanwhile.
    let alone = crate::common::machine();
    let state = tempfile::tempdir().unwrap();
    let capture = state.path().join("machine.toml");
    let capture = capture.to_str().unwrap();
    let mut args = vec!["doctor", "--deep", "--quick", "--json"];
    args.extend(["--capture", capture]);
    // Frames are shown to root alone.
    let root = rustix::process::geteuid().is_root();
    if root {
        args.push("--address-map");
    } else {
        quell_testing::skip_part("the address map needs root");
    }
    let machine = run(state.path(), &args).json();
    drop(alone);
    let cpus = machine["cpus"].as_array().unwrap().len();
    let measured = &machine["measured"];
    shape(&measured["deep"], cpus);
    for operation in measured["operations"].as_array().unwrap() {
        assert_eq!(
            operation["loaded"].as_array().unwrap().len(),
            cpus,
            "{operation}"
        );
    }
    witnesses(&machine);

    let again = run(state.path(), &["doctor", "--json"]).json();
    assert_eq!(again["measured"], *measured, "remembered");
    let text = run(state.path(), &["doctor"]);
    for told in ["; measured ", "Measured", "cache sizes", "wake-ups"] {
        assert!(text.out.contains(told), "{told}: {}", text.out);
    }
    // Of programs that it starts: a plan for this machine is refused where one that is meant does
    // not run.
    let policy = state.path().join("policy.toml");
    let text = "quell = 1\n[group.service]\nrole = 'critical'\ncommand = ['true']\ncpus = 1\n\
        [group.batch]\nrole = 'best-effort'\ncommand = ['true']\nlimit.bandwidth = '20%'\n";
    std::fs::write(&policy, text).unwrap();
    let policy = policy.to_str().unwrap();
    let (here, there) = (
        run(state.path(), &["plan", policy]),
        run(state.path(), &["plan", policy, "--machine", capture]),
    );
    // Processes are looked for on the machine alone.
    let plan = |done: &Done| done.out.split("\nProcesses\n").next().map(str::to_owned);
    let listed = there
        .out
        .split("\nNothing is changed")
        .next()
        .map(str::to_owned);
    assert_eq!((here.code, plan(&here)), (there.code, listed));
    assert!(here.err.contains("rates were measured"), "{here:?}");
    assert!(
        std::fs::read_to_string(capture)
            .unwrap()
            .contains("[measured.deep")
    );

    if root {
        timed(state.path(), &measured["deep"]["address-map"]);
        driven_out(&measured["deep"]["cache-sets"]);
    }

    // Another microcode: what was measured is not of this machine.
    let stored = state.path().join("measured.json");
    let mut store: Value =
        serde_json::from_str(&std::fs::read_to_string(&stored).unwrap()).unwrap();
    store["machines"][0]["machine"]["identity"]["microcode"] = "0xother".into();
    std::fs::write(&stored, store.to_string()).unwrap();
    let changed = run(state.path(), &["doctor", "--json"]);
    assert!(changed.json().get("measured").is_none(), "{changed:?}");
    assert!(changed.err.contains("microcode was 0xother"), "{changed:?}");
}

/// The address map by timing: a verdict, of which nothing is kept unasked. It takes ten seconds at
/// most, and longer where the machine is busy.
fn timed(state: &Path, seen: &Value) {
    assert!(seen["took-s"].as_f64().unwrap() < 20.0, "{seen}");
    assert!(
        seen["found"]["figures"]["times"].as_u64().unwrap() > 2_048,
        "{seen}"
    );
    let verdict = seen["found"]["verdict"]["is"].as_str().unwrap();
    let known = ["map", "hidden", "narrow", "noisy", "flat"];
    assert!(known.contains(&verdict), "{seen}");
    assert!(!state.join("address-map.json").exists());
    let keep = ["colours", "map", "recovered"];
    if verdict != "map" {
        run(state, &keep).fails(2, &["timing could not tell", "colours map FILE"]);
    }
    // What happens where timing tells it, on whatever machine this runs.
    let stored = state.join("measured.json");
    let text = std::fs::read_to_string(&stored).unwrap();
    let mut store: Value = serde_json::from_str(&text).unwrap();
    let found = &mut store["machines"][0]["measured"]["deep"]["address-map"]["found"];
    found["verdict"] = serde_json::json!({
        "is": "map", "functions": ["0x4000", "0x110000"], "confidence": 0.96
    });
    std::fs::write(&stored, store.to_string()).unwrap();
    let kept = run(state, &keep);
    assert!(kept.out.contains("measured on this machine"), "{kept:?}");
    let map = &run(state, &["doctor", "--json"]).json()["partitions"]["address-map"];
    assert_eq!(map["origin"], "recovered");
    assert_eq!(
        map["banks"]["functions"],
        serde_json::json!(["0x4000", "0x110000"])
    );
    assert_eq!(run(state, &["colours", "map", "--forget"]).code, 0);
}

/// The sets of caches by eviction: a verdict on each cache beyond the first level. They take twenty
/// seconds at most, and longer where the machine is busy.
fn driven_out(seen: &Value) {
    let all = seen.as_array().unwrap();
    let took = |cache: &Value| cache["took-s"].as_f64().unwrap();
    assert!(all.iter().map(took).sum::<f64>() < 40.0, "{seen}");
    for cache in all {
        assert!(cache["level"].as_u64().unwrap() > 1, "{cache}");
        let figures = &cache["found"]["figures"];
        assert!(figures["times"].as_u64().unwrap() > 100, "{cache}");
        assert!(figures["kept-ns"].as_f64().unwrap() > 0.0, "{cache}");
        let verdict = cache["found"]["verdict"]["is"].as_str().unwrap();
        let known = ["map", "hidden", "narrow", "noisy", "flat"];
        assert!(known.contains(&verdict), "{cache}");
    }
}

/// What others say of the same machine.
fn witnesses(machine: &Value) {
    let said = |command: &str, args: &[&str]| -> Option<String> {
        match Command::new(command).args(args).output() {
            Ok(out) if out.status.success() => {
                Some(String::from_utf8_lossy(&out.stdout).into_owned())
            }
            _ => {
                quell_testing::skip_part(format_args!(
                    "{command} is not here, or does not know {args:?}"
                ));
                None
            }
        }
    };
    if let Some(text) = said("lscpu", &["-J", "-B", "--caches=NAME,ONE-SIZE"]) {
        let lscpu: Value = serde_json::from_str(&text).unwrap();
        for cache in lscpu["caches"].as_array().unwrap() {
            let name = cache["name"].as_str().unwrap();
            let bytes: u64 = cache["one-size"].as_str().unwrap().parse().unwrap();
            let ours = machine["caches"].as_array().unwrap().iter().any(|c| {
                let kind = match c["kind"].as_str().unwrap() {
                    "data" => "d",
                    "instruction" => "i",
                    _ => "",
                };
                let size: quell_types::units::Bytes = c["size"].as_str().unwrap().parse().unwrap();
                format!("L{}{kind}", c["level"]) == name && size.0 == bytes
            });
            assert!(ours, "{cache} is not in {}", machine["caches"]);
        }
    }
    // lscpu -p lists online CPUs; we may be confined to some of them.
    if let Some(text) = said("lscpu", &["-p=CPU"]) {
        let online: Vec<&str> = text.lines().filter(|l| !l.starts_with('#')).collect();
        for cpu in machine["cpus"].as_array().unwrap() {
            assert!(
                online.contains(&cpu["id"].to_string().as_str()),
                "{cpu} is not in {online:?}"
            );
        }
    }
    if let Some(text) = said("numactl", &["-H"]) {
        let nodes = machine["nodes"].as_array().unwrap().len();
        let line = format!("available: {nodes} nodes");
        assert!(text.contains(&line), "{line} is not in {text}");
    }
}

#[test]
fn the_canary_counts_its_errors_and_odd_requests_are_refused() {
    let state = tempfile::tempdir().unwrap();
    let found = run(
        state.path(),
        &["bench", "canary", "--rounds", "3", "--json"],
    );
    if found.code == 2 {
        quell_testing::skip_part("one CPU only");
    } else {
        let found = found.json();
        assert_eq!(found["pairs"][0]["probes"], 3, "{found}");
        assert!(found["controls"].as_array().unwrap().len() >= 2, "{found}");
    }
    run(state.path(), &["bench", "canary", "--rounds", "0"]).fails(2, &["--rounds"]);
    run(state.path(), &["bench", "canary", "0"]).fails(2, &["0,1"]);
    run(state.path(), &["doctor", "--quick"]).fails(2, &["--deep"]);
}
