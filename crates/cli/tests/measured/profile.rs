//! `quell profile` of programs on this machine.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use crate::common::{Running, machine, profile, quell};
use serde_json::{Value, json};

fn figure(profile: &Value, pointer: &str) -> f64 {
    let found = profile.pointer(pointer).and_then(Value::as_f64);
    found.unwrap_or_else(|| panic!("{pointer} is not in the profile"))
}

/// A task that works for some milliseconds every twenty. A busy machine, or a host that takes the
/// CPU away in a rhythm of its own, makes some of its jobs differ from their neighbours, and the
/// period may then be several of them.
#[test]
fn the_period_of_a_periodic_task_is_seen_in_its_cpu_time() {
    let dir = tempfile::tempdir().unwrap();
    let first = if quell_kernel::is_root() {
        ",priority=50"
    } else {
        ""
    };
    let generator = format!("periodic:size=1MiB,period=20ms,passes=150{first}");
    let done = profile(dir.path(), &[&generator, "--for", "3s", "--json"]);
    if done.err.contains("x86-64 only") {
        quell_testing::skip(&done.err);
        return;
    }
    let found = done.json();
    if found["measuring"]["by"] != "cpu-time" {
        quell_testing::skip("events count here, and the task fits its cache");
        return;
    }
    let period = figure(&found, "/burst/period_ms");
    let jobs = (period / 20.0).round();
    assert!(
        (1.0..=5.0).contains(&jobs) && (period / jobs - 20.0).abs() < 0.5,
        "{period} ms"
    );
    let used = figure(&found, "/total/mean");
    assert!(used > 0.005 && used < 1.0, "{used} CPUs");
    assert!(figure(&found, "/sampler/cpu_share") < 0.2);
    assert!(figure(&found, "/working_set/touched_bytes") >= f64::from(1u32 << 20));
    let text = profile(dir.path(), &["--show", "periodic"]).out;
    assert!(text.contains("CPU time, as a substitute"), "{text}");
    assert_eq!(found["proposal"]["basis"], "none");
}

#[test]
fn a_command_is_profiled_to_its_end_and_its_output_passed_on() {
    let dir = tempfile::tempdir().unwrap();
    let work = "echo hello; i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
    let done = profile(
        dir.path(),
        &["--json", "--out", "mine.json", "--", "sh", "-c", work],
    );
    assert!(
        done.err.contains("hello") && done.err.contains("mine.json"),
        "{done:?}"
    );
    let found = done.json();
    assert_eq!(found["subject"]["command"][0], "sh");
    assert!(figure(&found, "/total/mean") > 0.05);
    assert!(dir.path().join("mine.json").exists());
}

#[test]
fn a_process_that_runs_is_profiled_and_lives_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new("sleep")
        .arg("60")
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let pid = child.id().to_string();
    let done = profile(dir.path(), &["--pid", &pid, "--for", "200ms", "--json"]);
    assert!(child.try_wait().unwrap().is_none(), "it was ended");
    child.kill().unwrap();
    child.wait().unwrap();
    let found = done.json();
    assert!(figure(&found, "/total/mean") < 0.1);
    assert_eq!(found["name"], format!("pid-{pid}"));
    assert_eq!(found.get("burst"), None);
}

#[test]
fn what_cannot_be_profiled_is_refused_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let fails = |args: &[&str], names: &[&str]| profile(dir.path(), args).fails(2, names);
    fails(&[], &["name what to profile"]);
    fails(
        &["--on", "sim", "--", "true"],
        &["no program of this machine"],
    );
    fails(&["latency", "--for", "1ms"], &["100ms to 600s"]);
    fails(&["--show", "nobody"], &["profiles/nobody.json"]);
    fails(&["--pid", "1", "--probe"], &["--probe"]);
    fs::write(
        dir.path().join("x.json"),
        "{\"schema\": \"quell.measured/2\"}",
    )
    .unwrap();
    fails(
        &["--show", "x.json"],
        &["quell.measured/2, not a quell.profile/1"],
    );
    profile(dir.path(), &["--pid", "4194304"]).fails(1, &["no process 4194304"]);
}

/// A program that takes turns demands what its profile says. Of another program or machine none is
/// taken.
#[test]
fn turns_take_demands_from_a_kept_profile() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    file("job", "#!/bin/sh\nexec sleep 0.3\n");
    let mode = Permissions::from_mode(0o755);
    fs::set_permissions(dir.path().join("job"), mode).unwrap();
    file(
        "turns.toml",
        r#"quell = 1
[group.batch]
role = "best-effort"
command = ["./job"]
allow = ["freeze"]
[scheduler]
policy = "bounded"
"#,
    );
    let plan = || {
        let mut command = quell();
        command
            .args(["plan", "turns.toml", "--json"])
            .current_dir(dir.path())
            .env("QUELL_STATE_DIR", dir.path());
        Running::start(&mut command).wait()
    };
    let key = "scheduler.demand.batch.memory";
    let none = plan();
    if !none.err.contains(key) {
        quell_testing::skip(format_args!(
            "no turns here, or counters say what a process demands: {none:?}"
        ));
        return;
    }
    none.fails(
        2,
        &[key, "there is no profile job", "write demand.batch.memory"],
    );
    let done = profile(dir.path(), &["--", "./job"]);
    assert_eq!(done.code, 0, "{done:?}");
    let kept = dir.path().join("profiles/job.json");
    let text = fs::read_to_string(&kept).unwrap();
    let first: Value = serde_json::from_str(&text).unwrap();
    let with = |change: &dyn Fn(&mut Value)| {
        let mut profile = first.clone();
        // No counter of this machine says it.
        profile["phases"] = json!([{
            "from_ns": 0, "until_ns": 1_000_000, "cpu_ns": 1_000_000, "ipc": 1.0,
            "memory_per_us": 10.0, "first_level_per_us": 100.0,
        }]);
        change(&mut profile);
        fs::write(&kept, profile.to_string()).unwrap();
        plan()
    };
    let uncounted = with(&|profile| profile["phases"] = json!([]));
    uncounted.fails(2, &[key, "profile job tells of no loads and stores"]);
    let good = with(&|_| {});
    assert_eq!(good.code, 0, "{good:?}");
    let note = "a process of batch demands what profile job says of it alone";
    assert!(good.out.contains(note), "{good:?}");
    let elsewhere = with(&|profile| profile["machine"]["caches"] = json!([]));
    elsewhere.fails(2, &[key, "profile job was made on another machine"]);
    file("job", "#!/bin/sh\nexec sleep 0.4\n");
    let changed = with(&|_| {});
    changed.fails(
        2,
        &[key, "another version of the program: its file has changed"],
    );
}

#[test]
fn a_sweep_that_this_machine_cannot_do_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let fails = |args: &[&str], names: &[&str]| profile(dir.path(), args).fails(2, names);
    fails(&["--sweep", "sets", "--", "true"], &["ways, colours"]);
    fails(&["--pid", "1", "--sweep", "ways"], &["--sweep"]);
    fails(&["--keep", "90%", "--", "true"], &["--sweep"]);
    fails(
        &["latency", "--on", "sim:xeon-e5645", "--sweep", "ways"],
        &["xeon-e5645 does not have it", "sim:icelake-sp"],
    );
    let colours = profile(dir.path(), &["--sweep", "colours", "--", "true"]);
    colours.fails(2, &["--sweep colours: this machine", "--on sim:"]);
    let ways = profile(dir.path(), &["--sweep", "ways", "--", "true"]);
    if ways.code == 0 {
        quell_testing::skip("this machine divides its cache by ways");
        return;
    }
    ways.fails(2, &["--sweep ways: this machine", "--on lab:icelake"]);
    let kept = dir.path().join("profiles");
    assert!(!kept.exists(), "refused before anything was measured");
}

/// Budgets are for every machine on which Quell can hold a limit.
#[test]
fn budgets_are_swept_here_or_refused_with_the_reason() {
    let Some(mut machine) = machine() else {
        return;
    };
    machine.remember();
    let work = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done";
    let out = machine.path("sh.json").display().to_string();
    let args = ["--sweep", "budgets", "--rounds", "2", "--json", "--out"];
    let mut command = quell();
    command
        .arg("profile")
        .args(args)
        .args([&out, "--", "sh", "-c", work]);
    let done = Running::start(&mut command).wait();
    machine.unchanged("after the sweep");
    if done.code != 0 {
        done.fails(2, &["--sweep budgets: this machine can"]);
        return;
    }
    let found = done.json();
    let sweep = &found["sweeps"][0];
    let points = sweep["points"].as_array().unwrap();
    assert_eq!(points.len(), 9, "{sweep:#}");
    assert_eq!(sweep["metric"], "run_time_s");
    assert_eq!(points[8]["label"], "all");
    let cautions = sweep["cautions"].to_string();
    if cautions.contains("No counter counts here") {
        // A twentieth of a CPU's time and two thirds of it, far apart on a busy machine, too.
        let took = |n: usize| points[n]["value"].as_f64().unwrap();
        assert!(took(0) > 2.0 * took(7), "{sweep:#}");
    }
}
