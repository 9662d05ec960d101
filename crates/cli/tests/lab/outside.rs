//! Commands in the lab, from outside: what comes back, and what a signal does.
//!
//! Skipped aloud where the lab cannot be had: no `apt-get`, no mirror, another architecture.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

/// Of `quell lab` where the lab cannot be had.
const NOT_HERE: i32 = 125;

fn quell() -> Command {
    Command::new(env!("CARGO_BIN_EXE_quell"))
}

fn can_be_had() -> bool {
    let Output { status, stderr, .. } = quell().args(["lab", "--build"]).output().unwrap();
    match status.code() {
        Some(0) => true,
        Some(NOT_HERE) => {
            quell_testing::skip(format_args!("{}", String::from_utf8_lossy(&stderr)));
            false
        }
        code => panic!("{code:?}: {}", String::from_utf8_lossy(&stderr)),
    }
}

#[test]
fn a_run_in_the_lab_brings_its_status_and_its_files() {
    if !can_be_had() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let record = dir.path().join("not there yet").join("record");
    let done = quell()
        .args(["run", "--on", "lab", "--cpus", "1", "--out"])
        .arg(&record)
        .args(["--", "sh", "-c", "echo it said \"a = b\"; exit 7"])
        .output()
        .unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr),
    );
    assert_eq!(done.status.code(), Some(7), "{out}{err}");
    assert!(out.contains("it said a = b"), "{out}{err}");
    assert!(fs::read_dir(&record).unwrap().count() > 0, "{err}");
}

/// Ten minutes in which the guest sleeps take less than a minute here, and are ten minutes there.
#[test]
fn counted_time_does_not_wait_for_sleepers() {
    if !can_be_had() {
        return;
    }
    let script = "cat /proc/uptime; sleep 600; cat /proc/uptime";
    let begun = Instant::now();
    let done = quell()
        .args(["lab", "--accel", "counted", "--", "sh", "-c", script])
        .output()
        .unwrap();
    let took = begun.elapsed();
    let out = String::from_utf8_lossy(&done.stdout);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    let uptimes = out.lines().map(|line| line.split(' ').next().unwrap());
    let uptimes: Vec<f64> = uptimes.map(|uptime| uptime.parse().unwrap()).collect();
    let slept = uptimes[1] - uptimes[0];
    println!("the guest slept {slept:.1} s; it took {took:?} in all");
    assert!((600.0..610.0).contains(&slept), "{slept}");
    assert!(took.as_secs() < 300, "{took:?}");
}

#[test]
fn a_signal_goes_to_the_command_and_its_status_comes_back() {
    if !can_be_had() {
        return;
    }
    let mut lab = quell()
        .args(["lab", "--", "sh", "-c"])
        .arg("trap 'echo heard; exit 3' TERM; echo ready; while :; do sleep 1; done")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(lab.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let pid = Pid::from_child(&lab);
    kill_process(pid, Signal::TERM).unwrap();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(lab.wait().unwrap().code(), Some(3), "{rest}");
    assert!(rest.contains("heard"), "{rest}");
}

/// Where their files have changed (`tests/changed.toml`).
mod changed {
    use super::*;

    #[test]
    #[ignore = "where its files have changed"]
    fn a_kernel_without_pressure_refuses_who_needs_it_by_the_key() {
        if !can_be_had() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let policy = dir.path().join("policy.toml");
        let groups = "quell = 1\n[group.app]\nrole = \"critical\"\ncpus = \"any\"\ncommand = [\"true\"]\n\
                      [group.hog]\nrole = \"best-effort\"\ncpus = \"any\"\ncommand = [\"true\"]\n";
        fs::write(&policy, format!("{groups}[pressure]\n")).unwrap();
        let plan = |path: &std::path::Path| {
            let done = quell()
                .args(["plan"])
                .arg(path)
                .args(["--on", "lab", "--lab", "append=psi=0"])
                .output();
            let done = done.unwrap();
            (
                done.status.code(),
                String::from_utf8_lossy(&done.stderr).into_owned(),
            )
        };
        let (code, why) = plan(&policy);
        assert_eq!(code, Some(2), "{why}");
        for named in ["pressure.controller", "psi=1", "policy.toml:10"] {
            assert!(why.contains(named), "{named}: {why}");
        }
        // Who asks for nothing of it is planned.
        fs::write(&policy, groups).unwrap();
        let (code, why) = plan(&policy);
        assert_eq!(code, Some(0), "{why}");
    }
}
