//! The commands that change nothing: `doctor`, `plan`, `bench`, `completions`.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::run;

#[test]
fn doctor_names_every_mechanism_and_its_reason() {
    let mut took = Duration::MAX;
    let mut text = None;
    // The quickest of a few: a host may stop this machine for a while.
    for _ in 0..5 {
        let started = Instant::now();
        text = Some(run(&["doctor"]));
        took = took.min(started.elapsed());
    }
    let text = text.unwrap();
    assert_eq!(text.code, 0, "{text:?}");
    let machine = run(&["doctor", "--json"]).json();
    for mechanism in [
        "cores",
        "bandwidth",
        "ways",
        "sets",
        "banks",
        "pseudo-lock",
        "mba",
        "memory",
        "stop",
        "placement",
        "cpu-max",
    ] {
        assert!(text.out.contains(mechanism), "{mechanism}: {}", text.out);
    }
    assert!(!machine["cpus"].as_array().unwrap().is_empty(), "{machine}");
    // 100 ms are promised (PROG-01, docs/specification/program.md); a busy machine and an
    // unoptimised build get five times that.
    assert!(took < Duration::from_millis(500), "{took:?}");
}

#[test]
fn the_example_policies_plan_for_a_capture_or_say_why_not() {
    let folder = tempfile::tempdir().unwrap();
    let machine = folder.path().join("machine.json");
    std::fs::write(&machine, run(&["doctor", "--json"]).out).unwrap();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut planned = 0;
    for entry in std::fs::read_dir(examples).unwrap() {
        let path = entry.unwrap().path();
        let (policy, machine) = (path.to_str().unwrap(), machine.to_str().unwrap());
        let done = run(&["plan", policy, "--machine", machine, "--json"]);
        if done.code == 0 {
            let plan: serde_json::Value = serde_json::from_str(&done.out).unwrap();
            assert!(
                !plan["promises"].as_array().unwrap().is_empty(),
                "{policy}: {plan}"
            );
            let text = run(&["plan", policy, "--machine", machine]);
            assert!(
                text.out.contains("Promises") && text.out.contains("Cost"),
                "{text:?}"
            );
            planned += 1;
        } else {
            // Refused as a whole: not built yet, too large for this machine, or not measured on it.
            let name = path.file_name().unwrap().to_str().unwrap();
            done.fails(2, &[name]);
            assert!(done.out.is_empty(), "{done:?}");
        }
    }
    if planned == 0 && !quell_kernel::is_root() {
        return quell_testing::skip("without root little is to be had, and no example plans");
    }
    assert!(planned >= 1, "no example plans here");
}

#[test]
fn a_captured_machine_plans_as_the_machine_itself() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("machine.toml");
    let file = file.to_str().unwrap();
    assert_eq!(run(&["doctor", "--capture", file]).code, 0);
    // Of a program that it starts: a plan for this machine is refused where one that is meant does
    // not run.
    let policy = folder.path().join("policy.toml");
    let text = "quell = 1\n[group.service]\nrole = 'critical'\ncommand = ['true']\ncpus = 1\n";
    std::fs::write(&policy, text).unwrap();
    let policy = policy.to_str().unwrap();
    let (here, there) = (
        run(&["plan", policy]),
        run(&["plan", policy, "--machine", file]),
    );
    // Processes are looked for on the machine alone.
    let plan = here.out.split("\nProcesses\n").next();
    let listed = there.out.split("\nNothing is changed").next();
    assert_eq!((here.code, plan), (there.code, listed));
    std::fs::write(file, "schema = 'quell.capture/1'\nfile = 1\n").unwrap();
    run(&["plan", policy, "--machine", file]).fails(2, &["machine.toml", "line 2", "file"]);
}

#[test]
fn generators_report_numbers_with_their_units() {
    for bench in [
        &["latency", "--size", "256KiB"][..],
        &["latency", "--size", "1 L1", "--operation", "read-write"],
        &["bandwidth", "--size", "4MiB", "--operation", "read"],
        &["parallel-lists", "--size", "4MiB", "--lists", "3"],
        &[
            "cache-churn",
            "--size",
            "1 L2",
            "--operations",
            "read,flush",
        ],
        &[
            "stores", "--size", "4MiB", "--stride", "8B", "--rate", "50MB/s",
        ],
        &["lattice", "--size", "4MiB", "--rate", "50MB/s"],
    ] {
        let mut args = vec!["bench"];
        args.extend(bench);
        args.extend(["--warmup", "10ms", "--duration", "50ms"]);
        let text = run(&args);
        assert_eq!(text.code, 0, "{text:?}");
        assert!(!text.out.is_empty());
        args.push("--json");
        assert!(run(&args).json().is_object());
    }
    run(&["bench", "latency", "--duration", "50"]).fails(2, &["50", "--duration"]);
    run(&["bench", "latency", "--cpu", "9999", "--duration", "10ms"]).fails(1, &["9999"]);
    run(&["bench", "sharing", "0"]).fails(2, &["0,1"]);
    run(&["bench", "stores", "--operation", "plane"]).fails(2, &["plane", "plain"]);
    run(&["bench", "stores", "--stride", "24B"]).fails(2, &["--stride", "multiple of 64B"]);
    run(&["bench", "parallel-lists", "--lists", "65"]).fails(2, &["--lists", "1 to 64"]);
    let banks = [
        "bench",
        "parallel-lists",
        "--banks",
        "16",
        "--bank-mask",
        "0x7800",
    ];
    run(&banks).fails(2, &["--banks", "no bank 16"]);
    let banks = [
        "bench",
        "parallel-lists",
        "--banks",
        "0",
        "--bank-map",
        "/no/map",
    ];
    run(&banks).fails(2, &["/no/map"]);
}

#[test]
fn a_ladder_shows_the_victim_against_the_reached_rate() {
    let mut args = vec!["bench", "ladder", "--victim", "latency:size=256KiB"];
    args.extend(["--aggressor", "bandwidth:write,size=4MiB"]);
    args.extend(["--rates", "0,100MB/s,max", "--rounds", "2"]);
    args.extend(["--warmup", "5ms", "--duration", "120ms"]);
    let allowed = std::thread::available_parallelism().unwrap();
    if allowed.get() < 2 {
        quell_testing::skip("there is one CPU only");
        return;
    }
    let shown = run(&args);
    assert_eq!(shown.code, 0, "{shown:?}");
    for part in ["rate asked", "100MB/s", "max", "alone", "victim p50 ns"] {
        assert!(shown.out.contains(part), "{part}: {}", shown.out);
    }
    args.push("--json");
    let result = run(&args).json();
    let rate = |configuration: usize| {
        let found = &result["configurations"][configuration];
        let subjects = found["subjects"].as_array().unwrap();
        let aggressor = subjects.iter().find(|s| s["name"] == "aggressor");
        aggressor.unwrap()["value"].as_f64().unwrap()
    };
    assert_eq!(result["configurations"][1]["axes"]["rate"], "100MB/s");
    // The machine may keep the aggressor from running, and what that cost it before the span it
    // makes up for in it.
    assert!((2.0..=300.0).contains(&rate(1)), "{}", rate(1));
    assert!(rate(2) > 2.0 * rate(1), "{} {}", rate(2), rate(1));
    let siz = ["bench", "ladder", "--victim", "latency:siz=1MiB"];
    run(&siz).fails(2, &["--victim", "did you mean 'size'?"]);
    run(&["bench", "ladder", "--rates", "1,2"]).fails(2, &["--rates", "a rate such as"]);
}

#[test]
fn completions_and_man_pages_come_from_the_same_definitions() {
    let done = run(&["completions", "bash"]);
    assert!(
        done.code == 0 && done.out.contains("--best-effort"),
        "{done:?}"
    );
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(run(&["man", folder.path().to_str().unwrap()]).code, 0);
    assert!(folder.path().join("quell-run.1").exists());
    run(&["man", "/no/such/folder"]).fails(1, &["/no/such/folder"]);
}
