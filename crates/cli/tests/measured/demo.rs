//! `quell demo`: what it finds is asserted in ratios only, so that a slow or busy machine passes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::{Done, Machine, Running, eventually, machine, quell};
use quell_kernel::cgroup::{Cgroups, Controller, Version};
use rustix::process::Signal;
use serde_json::Value;

fn demo(machine: &Machine, args: &[&str]) -> Done {
    let out = machine.folder.path().join("runs");
    Running::start(quell().arg("demo").args(args).arg("--out").arg(out)).wait()
}

/// The resource of that name.
fn resource<'j>(json: &'j Value, name: &str) -> &'j Value {
    let all = json["resources"].as_array().unwrap();
    let found = all.iter().find(|r| r["name"] == name);
    found.unwrap_or_else(|| panic!("{name} is not in {json}"))
}

/// The one folder of a demonstration.
fn record(machine: &Machine) -> PathBuf {
    let runs = std::fs::read_dir(machine.folder.path().join("runs")).unwrap();
    let mut all = runs.map(|e| e.unwrap().path());
    let found = all.next().unwrap();
    assert!(all.next().is_none());
    found
}

#[test]
fn a_busy_neighbour_hurts_and_quell_takes_it_away() {
    let Some(mut machine) = machine() else {
        return;
    };
    machine.remember();
    let done = demo(&machine, &["--only", "cpu", "--rounds", "3", "--json"]);
    let json = done.json();
    assert_eq!(json["schema"], "quell.demo/1");
    let cpu = resource(&json, "cpu");
    let ratio = |key: &str| cpu[key].as_f64().unwrap_or_else(|| panic!("{key}: {cpu}"));
    // The two want the same CPU: many times as long, with a wide margin below what was ever seen.
    assert!(ratio("none") > 1.5, "{cpu}");
    assert!(ratio("quell") < ratio("none"), "{cpu}");
    assert!(ratio("neighbour_kept") > 0.3, "{cpu}");
    assert_eq!(cpu["by"], serde_json::json!(["weight"]), "{cpu}");
    // A page, and the record of the experiment that the figures are from.
    let folder = record(&machine);
    let page = std::fs::read_to_string(folder.join("report.html")).unwrap();
    assert!(page.contains("What hurts on this machine"));
    let experiment = folder.join(cpu["record"].as_str().unwrap());
    assert!(experiment.join("results.json").is_file());
    let kept = std::fs::read_to_string(folder.join("results.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&kept).unwrap(), json);
}

#[test]
fn a_neighbour_that_sleeps_hurts_nothing() {
    let Some(machine) = machine() else {
        return;
    };
    // Three rounds on a machine that others use may show anything once, hardly three times.
    let hurt = (0..3).all(|_| {
        let done = demo(
            &machine,
            &["--control", "--only", "cpu", "--rounds", "3", "--json"],
        );
        assert!([0, 3].contains(&done.code), "{done:?}");
        let json: Value = serde_json::from_str(&done.out).unwrap();
        let cpu = resource(&json, "cpu");
        assert!(cpu.get("quell").is_none(), "{cpu}");
        assert_eq!(cpu["hurts"] == true, done.code == 3, "{cpu}");
        done.code == 3
    });
    assert!(!hurt, "sleepers hurt three times in a row");
}

/// How it ends. What it measures is not looked at.
mod live {
    use super::*;

    #[test]
    fn without_a_place_for_the_record_it_is_shown_all_the_same() {
        let Some(machine) = machine() else {
            return;
        };
        let mut command = quell();
        // No directory can be made below a file of the kernel.
        command.args([
            "demo",
            "--only",
            "cpu",
            "--rounds",
            "2",
            "--out",
            "/proc/version",
        ]);
        let done = Running::start(&mut command).wait();
        assert_eq!(done.code, 0, "{done:?}");
        assert!(done.err.contains("no record is kept"), "{}", done.err);
        assert!(done.out.contains("cpu"), "{}", done.out);
        drop(machine);
    }

    #[test]
    fn a_signal_ends_it_and_leaves_nothing() {
        let Some(mut machine) = machine() else {
            return;
        };
        machine.remember();
        let out = machine.folder.path().join("runs");
        let mut command = quell();
        command.args(["demo", "--only", "cpu", "--rounds", "50", "--out"]);
        let running = Running::start(command.arg(&out));
        // The experiment's own record has begun: cells run.
        eventually("an experiment runs", || {
            let begun = |path: PathBuf| {
                let names = std::fs::read_dir(path).into_iter().flatten().flatten();
                let mut names = names.map(|e| e.file_name());
                names.any(|name| name.to_string_lossy().starts_with(".hurts-cpu"))
            };
            let demos = std::fs::read_dir(&out).into_iter().flatten().flatten();
            demos.map(|e| e.path()).any(begun)
        });
        std::thread::sleep(Duration::from_millis(700));
        running.signal(Signal::INT);
        let done = running.wait();
        done.fails(1, &["interrupted", "the result is partial"]);
        assert!(Path::new(&out).is_dir());
    }

    /// While it looks at the machine, probes it, and measures.
    #[test]
    fn a_signal_at_any_time_leaves_nothing() {
        let Some(mut machine) = machine() else {
            return;
        };
        machine.remember();
        let out = machine.folder.path().join("runs");
        for after_ms in [30, 200, 1_000, 2_500, 5_000] {
            let mut command = quell();
            command.args(["demo", "--out"]).arg(&out);
            let running = Running::start(&mut command);
            std::thread::sleep(Duration::from_millis(after_ms));
            running.signal(Signal::INT);
            let done = running.wait();
            assert_ne!(done.code, 0, "after {after_ms} ms: {done:?}");
            machine.unchanged(&format!("after {after_ms} ms"));
        }
    }

    /// On one CPU, in 512 MiB, with a full disk.
    #[test]
    fn where_little_is_left_it_ends_well() {
        let Some(mut machine) = machine() else {
            return;
        };
        let cgroups = Cgroups::discover(&machine.kernel).unwrap();
        let Some(memory) = cgroups.of(Controller::Memory) else {
            return quell_testing::skip("no memory controller");
        };
        let (dir, limit) = match memory.version {
            Version::V1 => (memory.mount.clone(), "memory.limit_in_bytes"),
            Version::V2 => (memory.own_dir(), "memory.max"),
        };
        let small = Path::new(&dir).join("demo-of-a-test");
        let full = machine.path("full");
        std::fs::create_dir(&full).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=16k", "tmpfs"])
            .arg(&full)
            .status();
        assert!(mounted.unwrap().success());
        std::fs::create_dir(&small).unwrap();
        std::fs::write(small.join(limit), "512M").unwrap();
        machine.remember();
        let script = format!(
            "echo 0 >{}/cgroup.procs; exec taskset -c 0 {} demo --only cpu,memory --rounds 2 --out {}",
            small.display(),
            env!("CARGO_BIN_EXE_quell"),
            full.display()
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script]);
        let done = Running::start(&mut command).wait();
        let unmounted = Command::new("umount").arg(&full).status();
        eventually("its cgroup is empty", || {
            std::fs::remove_dir(&small).is_ok()
        });
        assert!(unmounted.unwrap().success());
        assert_eq!(done.code, 0, "{done:?}");
        assert!(done.err.contains("no record is kept"), "{}", done.err);
    }
}

/// For `make soak`.
mod long {
    use super::*;

    /// `make soak`: the same first place in nine of ten runs, and nothing hurts in nineteen of
    /// twenty controls.
    #[test]
    #[ignore = "for the long run"]
    fn the_first_place_and_the_control_are_steady() {
        let Some(machine) = machine() else {
            return;
        };
        let mut first = std::collections::BTreeMap::<String, u32>::new();
        for _ in 0..10 {
            let json = demo(&machine, &["--json"]).json();
            assert!(json["took_s"].as_f64().unwrap() <= 120.0, "{json}");
            let name = json["resources"][0]["name"].as_str().unwrap().to_owned();
            *first.entry(name).or_default() += 1;
        }
        assert!(first.values().any(|n| *n >= 9), "{first:?}");
        let hurt = (0..20).filter(|_| demo(&machine, &["--control"]).code == 3);
        let hurt = hurt.count();
        assert!(hurt <= 1, "sleepers hurt in {hurt} of 20");
    }
}

/// Where their files have changed (`tests/changed.toml`).
mod changed {
    use super::*;

    /// As root by name only, as in a container. What is left out is named where it was seen to
    /// hurt.
    #[test]
    #[ignore = "where its files have changed"]
    fn where_little_is_allowed_it_ends_well() {
        let Some(mut machine) = machine() else {
            return;
        };
        machine.remember();
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-all", "--inh-caps=-all"]);
        command.arg(env!("CARGO_BIN_EXE_quell"));
        command.args(["demo", "--only", "cpu,memory", "--rounds", "2", "--out"]);
        command.arg(machine.path("runs")).env("NO_COLOR", "1");
        let bare = Running::start(&mut command).wait();
        assert_eq!(bare.code, 0, "{bare:?}");
        assert!(bare.out.contains("call it with sudo"), "{bare:?}");
        assert!(bare.out.contains("memory: it needs root"), "{bare:?}");
        assert!(!bare.err.contains("Permission denied"), "{bare:?}");
        assert!(!bare.out.contains('\x1b'), "{bare:?}");
    }
}
