//! `quell profile` through the whole program: on the simulated machine, where what is found is
//! known, and on this one.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use crate::common::{Done, Running, quell};
use serde_json::{Value, json};

/// Profiles with its files in `dir`.
fn profile(dir: &Path, args: &[&str]) -> Done {
    let mut command = quell();
    command
        .arg("profile")
        .args(args)
        .current_dir(dir)
        .env("QUELL_STATE_DIR", dir);
    Running::start(&mut command).wait()
}

fn figure(profile: &Value, pointer: &str) -> f64 {
    let found = profile.pointer(pointer).and_then(Value::as_f64);
    found.unwrap_or_else(|| panic!("{pointer} is not in the profile"))
}

/// What the subject is made of: 342 MB/s read in the mean, 1247 at the peak, thirty frames a
/// second, a quarter of the lines written.
#[test]
fn the_published_demand_of_the_call_is_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let done = profile(
        dir.path(),
        &[
            "frames-call",
            "--on",
            "sim",
            "--for",
            "500ms",
            "--json",
            "--html",
            "page.html",
        ],
    );
    let found = done.json();
    assert_eq!(found["schema"], "quell.profile/1");
    assert_eq!(found["measuring"]["by"], "simulated");
    let period = figure(&found, "/burst/period_ms");
    assert!((period - 1e3 / 30.0).abs() < 0.5, "{period} ms");
    let read = &found["series"][0];
    assert_eq!(read["quantity"], "read");
    assert_eq!(read["per_bin"].as_array().unwrap().len(), 500);
    let (mean, peak) = (figure(read, "/figures/mean"), figure(read, "/figures/peak"));
    assert!((mean / 342.0 - 1.0).abs() < 0.08, "mean {mean} MB/s");
    assert!((peak / 1247.0 - 1.0).abs() < 0.05, "peak {peak} MB/s");
    let written = figure(&found["series"][1], "/figures/mean");
    assert!(
        (written / mean / 0.25 - 1.0).abs() < 0.1,
        "written {written} of {mean} MB/s"
    );
    // A frame moves mean ÷ 30, in mean ÷ peak of the time. A second, shorter burst has a part of
    // it.
    let (amount, share) = (
        figure(&found, "/burst/amount"),
        figure(&found, "/burst/share"),
    );
    assert!(
        (amount / share / ((mean + written) / 30.0) - 1.0).abs() < 0.1,
        "{amount} MB, {share} of all"
    );
    assert!(share > 0.75, "{share}");
    let length = figure(&found, "/burst/length_ms");
    assert!((length - period * mean / peak).abs() < 2.0, "{length} ms");
    assert_eq!(found["proposal"]["basis"], "peak");
    let set = figure(&found, "/working_set/resident_bytes");
    assert!(
        (set - 4.0 * f64::from(8u32 << 20) - f64::from(512u32 << 10)).abs() < 4097.0,
        "{set}: 4 LLC of buffers, and a working set of 2 L2"
    );
    let page = fs::read_to_string(dir.path().join("page.html")).unwrap();
    assert!(page.contains("fig-second-wide") && page.contains("exact"));

    // It was kept, reads the same again, and the policy is one.
    let again = profile(dir.path(), &["--show", "frames-call@xeon-w3530", "--json"]).json();
    assert_eq!(again, found);
    let text = profile(
        dir.path(),
        &["--show", "profiles/frames-call@xeon-w3530.json"],
    )
    .out;
    assert!(text.contains("one every 33.3"), "{text}");
    let policy = found["proposal"]["policy"].as_str().unwrap();
    fs::write(dir.path().join("p.toml"), policy).unwrap();
    let plan = quell()
        .args(["plan", "p.toml", "--on", "sim"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert_eq!(plan.status.code(), Some(0), "{plan:?}\n{policy}");
}

/// The profiles of a stream and of a list that fits, and how the second one is shown.
static SIMULATED: LazyLock<([Value; 2], String)> = LazyLock::new(|| {
    let dir = tempfile::tempdir().unwrap();
    let of = |generator: &str| {
        let args = [generator, "--on", "sim", "--for", "100ms", "--json"];
        profile(dir.path(), &args).json()
    };
    let all = ["bandwidth:read", "latency:size=64KiB"].map(of);
    let text = profile(dir.path(), &["--show", "latency@xeon-w3530"]).out;
    (all, text)
});

#[test]
fn a_stream_has_no_period_and_a_list_that_fits_draws_nothing() {
    let ([stream, list], _) = &*SIMULATED;
    assert_eq!(stream.get("burst"), None);
    assert_eq!(stream["proposal"]["basis"], "mean");
    assert_eq!(figure(list, "/total/peak"), 0.0);
    assert_eq!(list["proposal"]["basis"], "none");
    assert_eq!(figure(list, "/working_set/cached_bytes"), 65_536.0);
}

#[test]
fn the_figures_of_phases_agree_with_the_demand() {
    let ([stream, list], text) = &*SIMULATED;
    // One that is always on its CPU: lines of 64 bytes per microsecond are 64 MB/s each.
    assert_eq!(stream["phases"].as_array().unwrap().len(), 1);
    let memory = figure(stream, "/phases/0/memory_per_us") * 64.0;
    let mean = figure(stream, "/total/mean");
    assert!((memory / mean - 1.0).abs() < 0.02, "{memory} and {mean}");
    assert_eq!(figure(list, "/phases/0/memory_per_us"), 0.0);
    assert!(figure(list, "/phases/0/first_level_per_us") > 10.0);
    let ipc = |of: &Value| figure(of, "/phases/0/ipc");
    assert!(
        ipc(list) > ipc(stream),
        "a list in the second level stalls less"
    );
    assert!(text.contains("lines/µs"), "{text}");
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
