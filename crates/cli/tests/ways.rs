//! `quell ways` in the lab: caches divided wrongly on purpose (`tests/lab/ways.sh`), each told as
//! what it is by looking alone.
//!
//! Skipped aloud where the lab cannot be had: no plugin beside the program, no `apt-get`, no
//! mirror, another architecture.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::path::Path;
use std::process::Command;

/// Scene → kinds of findings, as the guest's `quell ways` told them.
fn scenes(scenes: &[&str], options: &[&str]) -> Option<Vec<(String, Vec<String>)>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/lab/ways.sh");
    let out = tempfile::tempdir().unwrap();
    let done = Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(["lab", "--timeout", "15min", "--with", "quell"])
        .arg("--with")
        .arg(format!("{}=/ways.sh", script.display()))
        .arg("--out")
        .arg(out.path())
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
        eprintln!("SKIPPED the lab: {errors}");
        return None;
    }
    assert!(done.status.success(), "{said}{errors}");
    println!("{said}{errors}");
    let line = |line: &str| {
        let mut words = line.split_whitespace().map(str::to_owned);
        Some((words.next()?, words.collect()))
    };
    Some(said.lines().filter_map(line).collect())
}

const ICELAKE: [&str; 2] = ["--profile", "icelake"];

/// Two right configurations, and eight wrong ones.
fn check(options: &[&str]) {
    let wanted = [
        ("right", None),
        ("right_cpu", None),
        ("unused", Some("unused")),
        ("overlap", Some("overlap")),
        ("small", Some("too-small")),
        ("large", Some("too-large")),
        ("escaped", Some("escaped")),
        ("empty", Some("empty")),
        ("beyond", Some("beyond")),
        ("registers", Some("register")),
    ];
    let mut names: Vec<&str> = wanted.iter().map(|(name, _)| *name).collect();
    names.push("proposed");
    let Some(found) = scenes(&names, options) else {
        return;
    };
    let proposed = found.iter().find(|(name, _)| name == "proposed");
    assert_eq!(proposed.unwrap().1, ["0xf", "0xf"]);
    for (scene, kind) in wanted {
        let told = found.iter().find(|(name, _)| name == scene);
        let (_, kinds) = told.unwrap_or_else(|| panic!("no scene {scene}: {found:?}"));
        match kind {
            Some(kind) => assert!(kinds.iter().any(|k| k == kind), "{scene}: {kinds:?}"),
            None => assert!(kinds.is_empty(), "{scene}: {kinds:?}"),
        }
    }
}

#[test]
fn wrong_configurations_are_told_as_what_they_are() {
    check(&ICELAKE);
}

#[test]
fn wrong_configurations_are_told_on_6_12() {
    if std::env::var_os("QUELL_SOAK").is_none() {
        eprintln!("SKIPPED: kernel 6.12 is for the long run (QUELL_SOAK)");
        return;
    }
    check(&[&ICELAKE[..], &["--kernel", "6.12"]].concat());
}

#[test]
fn ways_that_devices_fill_are_told() {
    let Some(found) = scenes(&["devices"], &["--profile", "sparse"]) else {
        return;
    };
    let (_, kinds) = found.iter().find(|(name, _)| name == "devices").unwrap();
    assert!(kinds.iter().any(|k| k == "devices"), "{kinds:?}");
}

#[test]
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
fn without_resctrl_both_ways_out_are_named() {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    if mounts.contains(" resctrl ") {
        eprintln!("SKIPPED: resctrl is mounted here");
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
