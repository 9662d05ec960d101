//! `quell ways` in the lab: caches divided wrongly on purpose (`tests/lab/ways.sh`), each told as
//! what it is by looking alone.
//!
//! Skipped aloud where the lab cannot be had: no plugin beside the program, no `apt-get`, no
//! mirror, another architecture.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Scene → kinds of findings, as the guest's `quell ways` told them.
fn scenes(scenes: &[&str], options: &[&str]) -> Option<Vec<(String, Vec<String>)>> {
    let out = tempfile::tempdir().unwrap();
    let said = guest(scenes, options, out.path())?;
    let line = |line: &str| {
        let mut words = line.split_whitespace().map(str::to_owned);
        Some((words.next()?, words.collect()))
    };
    Some(said.lines().filter_map(line).collect())
}

/// What the guest printed. It leaves the records of its scenes in `out`.
fn guest(scenes: &[&str], options: &[&str], out: &Path) -> Option<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/lab/ways.sh");
    let idle = scenes.iter().any(|scene| scene.starts_with("idle"));
    let timeout = if idle { "90min" } else { "15min" };
    let done = Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(["lab", "--timeout", timeout, "--with", "quell"])
        .arg("--with")
        .arg(format!("{}=/ways.sh", script.display()))
        .arg("--out")
        .arg(out)
        .args(options)
        .args(["--", "sh", "/ways.sh"])
        .args(scenes)
        .output()
        .unwrap();
    let (said, errors) = (
        String::from_utf8_lossy(&done.stdout).into_owned(),
        String::from_utf8_lossy(&done.stderr).into_owned(),
    );
    // What is missing here, the program says itself.
    let missing = ["is not beside", "apt-get", "mirror", "packages are for"];
    if !done.status.success() && missing.iter().any(|m| errors.contains(m)) {
        quell_testing::skip(errors);
        return None;
    }
    assert!(done.status.success(), "{said}{errors}");
    println!("{said}{errors}");
    Some(said)
}

const ICELAKE: [&str; 2] = ["--profile", "icelake"];

/// A scene, and the kind of finding that it is. `None`: nothing is wrong.
type Wanted = (&'static str, Option<&'static str>);

/// A right configuration, and wrong masks.
const SEEN: [Wanted; 2] = [("right", None), ("overlap", Some("overlap"))];

/// The other scenes.
const FURTHER: [Wanted; 8] = [
    ("escaped", Some("escaped")),
    ("small", Some("too-small")),
    ("registers", Some("register")),
    ("right_cpu", None),
    ("unused", Some("unused")),
    ("large", Some("too-large")),
    ("empty", Some("empty")),
    ("beyond", Some("beyond")),
];

/// Each scene is told as what it is. A policy that is proposed from the masks has the same.
fn check(wanted: &[Wanted], options: &[&str]) {
    let mut names: Vec<&str> = wanted.iter().map(|(name, _)| *name).collect();
    names.push("proposed");
    let Some(found) = scenes(&names, options) else {
        return;
    };
    let proposed = found.iter().find(|(name, _)| name == "proposed");
    assert_eq!(proposed.unwrap().1, ["0xf", "0xf"]);
    for (scene, kind) in wanted {
        let told = found.iter().find(|(name, _)| name == *scene);
        let (_, kinds) = told.unwrap_or_else(|| panic!("no scene {scene}: {found:?}"));
        match kind {
            Some(kind) => assert!(kinds.iter().any(|k| k == kind), "{scene}: {kinds:?}"),
            None => assert!(kinds.is_empty(), "{scene}: {kinds:?}"),
        }
    }
}

#[test]
fn wrong_configurations_are_told_as_what_they_are() {
    check(&SEEN, &ICELAKE);
}

/// Scenes in which nothing is wrong.
fn nothing_is_found(names: &[&str], kernel: &str) {
    let options = [&ICELAKE[..], &["--kernel", kernel]].concat();
    let Some(found) = scenes(names, &options) else {
        return;
    };
    assert_eq!(found.len(), names.len(), "{found:?}");
    for (scene, kinds) in found {
        assert!(kinds.is_empty(), "{scene} on {kernel}: {kinds:?}");
    }
}

#[test]
fn without_resctrl_both_ways_out_are_named() {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    if mounts.contains(" resctrl ") {
        quell_testing::skip("resctrl is mounted here");
        return;
    }
    let done = Command::new(env!("CARGO_BIN_EXE_quell"))
        .arg("ways")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{errors}");
    for word in ["mount -t resctrl", "quell lab --profile icelake"] {
        assert!(errors.contains(word), "'{word}' is not named in: {errors}");
    }
}

/// Where their files have changed (`tests/changed.toml`).
mod changed {
    use super::*;

    /// `--switches` and `--misses`: both programs ran on their CPUs for most of the time that
    /// `quell ways` itself left. The one that streams missed more per second than the one whose
    /// list fits.
    #[test]
    #[ignore = "where its files have changed"]
    fn switches_and_misses_are_on_record() {
        let out = tempfile::tempdir().unwrap();
        if guest(&["sequence"], &ICELAKE, out.path()).is_none() {
            return;
        }
        let runs = std::fs::read_dir(out.path().join("sequence")).unwrap();
        let mut runs = runs.map(|run| run.unwrap().path().join("events.jsonl"));
        let events = runs.find(|events| events.exists()).unwrap();
        let text = std::fs::read_to_string(events).unwrap();
        let number = |value: &Value| value.as_u64().unwrap();
        let mut processes = BTreeMap::<String, Vec<u64>>::new();
        let mut ran = BTreeMap::<(u64, u64), u64>::new();
        // Of each thread: when it was counted first and last, in nanoseconds, and what then.
        let mut missed = BTreeMap::<u64, [(u64, u64); 2]>::new();
        let mut last = 0;
        for line in text.lines() {
            let event: Value = serde_json::from_str(line).unwrap();
            let Some(change) = event.get("change") else {
                continue;
            };
            last = number(&event["at_ns"]);
            match change["what"].as_str().unwrap() {
                "thread" => {
                    let name = change["name"].as_str().unwrap().to_owned();
                    let tids = processes.entry(name).or_default();
                    tids.push(number(&change["tid"]));
                }
                "ran" => {
                    for run in change["runs"].as_array().unwrap() {
                        let run: Vec<u64> = run.as_array().unwrap().iter().map(number).collect();
                        *ran.entry((run[0], number(&change["cpu"]))).or_default() += run[2];
                    }
                }
                "misses" => {
                    if let Some(misses) = change.get("misses") {
                        let now = (last, number(misses));
                        missed.entry(number(&change["tid"])).or_insert([now; 2])[1] = now;
                    }
                }
                "lost" => panic!("switches were lost: {change}"),
                _ => {}
            }
        }
        let of = |name: &str| {
            let all = processes.get(name);
            all.unwrap_or_else(|| panic!("{name} was not seen: {processes:?}"))
        };
        let time = |name: &str, cpu: u64| {
            let tids: BTreeSet<&u64> = of(name).iter().collect();
            let of_each = tids.into_iter().filter_map(|tid| ran.get(&(*tid, cpu)));
            of_each.sum::<u64>() as f64
        };
        // Sampling takes much of an emulated processor.
        let busy = |name: &str, cpu: u64| time(name, cpu) / (last as f64 - time("quell", cpu));
        let rate = |name: &str| {
            let all = of(name).iter().filter_map(|tid| missed.get(tid));
            let rates =
                all.map(|[first, last]| (last.1 - first.1) as f64 / (last.0 - first.0) as f64);
            rates.fold(0.0, f64::max) * 1e9
        };
        for (name, cpu) in [("database", 0), ("batch-job", 1)] {
            println!(
                "{name}: ran {:.2} of the time left on CPU {cpu}, {:.0} misses per second",
                busy(name, cpu),
                rate(name)
            );
            assert!(busy(name, cpu) > 0.5, "{name}: {ran:?}");
        }
        assert!(rate("batch-job") > 2.0 * rate("database"), "{missed:?}");
        assert!(rate("batch-job") > 1000.0, "{missed:?}");
    }

    #[test]
    #[ignore = "where its files have changed"]
    fn a_class_that_runs_or_is_moved_under_another_cache_is_told() {
        let options = [&ICELAKE[..], &["--sockets", "2", "--cpus", "4"]].concat();
        let Some(found) = scenes(&["other", "moved"], &options) else {
            return;
        };
        for scene in ["other", "moved"] {
            let (_, kinds) = found.iter().find(|(name, _)| name == scene).unwrap();
            assert!(
                kinds.iter().any(|k| k == "other-cache"),
                "{scene}: {kinds:?}"
            );
        }
    }

    #[test]
    #[ignore = "where its files have changed"]
    fn a_cpu_that_goes_offline_is_no_finding() {
        nothing_is_found(&["offline", "offline_registers"], "7.2");
    }

    #[test]
    #[ignore = "where its files have changed"]
    fn further_wrong_configurations_are_told_as_what_they_are() {
        check(&FURTHER, &ICELAKE);
    }

    #[test]
    #[ignore = "where its files have changed"]
    fn ways_that_devices_fill_are_told() {
        let Some(found) = scenes(&["devices"], &["--profile", "sparse"]) else {
            return;
        };
        let (_, kinds) = found.iter().find(|(name, _)| name == "devices").unwrap();
        assert!(kinds.iter().any(|k| k == "devices"), "{kinds:?}");
    }
}

/// For `make soak`.
mod long {
    use super::*;

    #[test]
    #[ignore = "for the long run"]
    fn a_cpu_that_goes_offline_is_no_finding_on_6_12() {
        nothing_is_found(&["offline", "offline_registers"], "6.12");
    }

    #[test]
    #[ignore = "for the long run"]
    fn wrong_configurations_are_told_on_6_12() {
        let all = [&SEEN[..], &FURTHER[..]].concat();
        check(&all, &[&ICELAKE[..], &["--kernel", "6.12"]].concat());
    }

    /// Three virtual machines side by side, since each takes an hour.
    #[test]
    #[ignore = "for the long run"]
    fn nothing_is_found_in_an_hour_of_an_idle_machine() {
        let all = [
            ("idle", "6.12"),
            ("idle", "7.2"),
            ("idle_registers", "6.12"),
        ];
        let run = |(scene, kernel)| std::thread::spawn(move || nothing_is_found(&[scene], kernel));
        for one in all.map(run) {
            one.join().unwrap();
        }
    }
}
