//! Experiments with a limit of memory around all subjects (`[bounds]`), on this machine: at its
//! speed, and without the rest of it noticing anything. At most some 450 MB are used.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common::{Machine, Running, eventually, in_status, machine, quell, status_of};
use quell_kernel::cgroup::{Cgroups, Controller, Hierarchy, Version};
use quell_policy::experiment::Experiment;
use rustix::process::Signal;
use serde_json::Value;

/// The hierarchy that limits memory; `None`, said aloud, where there is none.
fn memory(machine: &Machine) -> Option<Hierarchy> {
    let cgroups = Cgroups::discover(&machine.kernel).unwrap();
    let found = cgroups.of(Controller::Memory).cloned();
    if found.is_none() {
        quell_testing::skip("no hierarchy carries the memory controller");
    }
    found
}

/// The limit around everybody, as the kernel has it.
fn limit(memory: &Hierarchy) -> Option<u64> {
    let file = match memory.version {
        Version::V1 => "memory.limit_in_bytes",
        Version::V2 => "memory.max",
    };
    let path = Path::new(&memory.mount)
        .join("quell.slice/_bound")
        .join(file);
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The cgroups below it that somebody lives in.
fn inhabited(memory: &Hierarchy) -> BTreeSet<String> {
    let bound = Path::new(&memory.mount).join("quell.slice/_bound");
    let dirs = fs::read_dir(&bound).into_iter().flatten().flatten();
    let lived = dirs.filter(|dir| {
        fs::read_to_string(dir.path().join("cgroup.procs")).is_ok_and(|procs| !procs.is_empty())
    });
    lived
        .map(|dir| dir.file_name().to_string_lossy().into_owned())
        .collect()
}

/// A built-in experiment, changed.
fn changed(machine: &Machine, name: &str, changes: &[(&str, &str)]) -> String {
    let mut text = Experiment::builtin(name).unwrap().to_owned();
    for (from, to) in changes {
        assert!(text.contains(from), "{name} has no longer: {from}");
        text = text.replace(from, to);
    }
    machine.file(&format!("{name}.toml"), &text)
}

/// Small enough for a test.
const SHORT: [(&str, &str); 5] = [
    ("memory = \"400MiB\"", "memory = \"112MiB\""),
    ("weights = \"192MiB\"", "weights = \"40MiB\""),
    ("size = \"480MiB\"", "size = \"136MiB\""),
    ("warmup   = \"3s\"", "warmup = \"300ms\""),
    ("duration = \"10s\"", "duration = \"2s\""),
];

/// The events of a record, each a JSON value.
fn events(out: &Path) -> Vec<Value> {
    let folder = fs::read_dir(out).unwrap().next().unwrap().unwrap().path();
    let text = fs::read_to_string(folder.join("events.jsonl")).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn subjects_and_groups_share_one_limit_that_controllers_see() {
    let Some(mut machine) = machine() else {
        return;
    };
    let Some(memory) = memory(&machine) else {
        return;
    };
    let experiment = changed(&machine, "pressure-native", &SHORT);
    machine.remember();
    let out = machine.path("out");
    let mut command = quell();
    command.args(["compare", &experiment, "--on", "linux", "--rounds", "1"]);
    command
        .args(["--only", "none,latd,quell,kept", "--json", "--out"])
        .arg(&out);
    let mut run = Running::start(&mut command);
    let mut seen = BTreeMap::new();
    let mut places = Vec::new();
    while run.alive() {
        places.extend(status_of(run.pid(), "Cpus_allowed_list"));
        places.dedup();
        if let Some(most) = limit(&memory) {
            for name in inhabited(&memory) {
                seen.insert(name, most);
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let done = run.wait();
    // cgroup v1 protects nothing, and without immunity nothing is protected: then `kept` is
    // refused, and the reason told.
    if memory.version == Version::V1 {
        let told = "kept is skipped: group.detector.reserve.memory";
        assert!(done.err.contains(told), "{}", done.err);
    }
    let most = 112 << 20;
    let expected = [("detector", most), ("hog", most), ("rest", most)];
    let expected: BTreeMap<String, u64> = expected.map(|(n, m)| (n.to_owned(), m)).into();
    assert_eq!(seen, expected, "{done:?}");
    // Who looks after the detector's memory keeps off its CPU, and afterwards does not any more.
    let widths: Vec<usize> = places.iter().map(|p| width(p)).collect();
    let (all, fewer) = (widths[0], widths[0].max(2) - 1);
    let narrowed = widths.iter().position(|w| *w == fewer);
    let back = narrowed.is_some_and(|at| widths[at..].contains(&all));
    assert!(back, "{places:?}");
    let result: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!(result["timing"], "real");
    for configuration in result["configurations"].as_array().unwrap() {
        let name = configuration["name"].as_str().unwrap();
        if name == "solo" || name == "none" {
            let mechanisms = configuration["mechanisms"].as_array().unwrap();
            assert!(mechanisms.is_empty(), "{name}: {mechanisms:?}");
        }
    }
    let events = events(&out);
    let waited: Vec<&Value> = events.iter().filter(|e| e["event"] == "waited").collect();
    assert!(!waited.is_empty(), "{events:?}");
    for event in waited {
        assert_eq!(event["total_bytes"].as_u64(), Some(most), "{event}");
        assert!(event["available_bytes"].as_u64() <= Some(most), "{event}");
    }
    machine.unchanged("after the experiment");
    // Killed midway, nothing is left of it.
    let run = Running::start(&mut command);
    eventually("everybody is below the limit", || {
        limit(&memory).is_some() && !inhabited(&memory).is_empty()
    });
    run.signal(Signal::KILL);
    machine.undone();
    eventually("its subjects end", || limit(&memory).is_none());
    machine.unchanged("after a kill");
    drop(run);
}

/// How many CPUs a list names.
fn width(list: &str) -> usize {
    list.parse::<quell_types::cpuset::CpuSet>().unwrap().len()
}

/// Time that tasks of a group have waited for memory so far, in µs.
fn waited(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let total = text.lines().next()?.rsplit_once("total=")?.1;
    total.parse().ok()
}

const ALLOW: &str = "group.hog.allow     = [\"limit-memory\", \"freeze\", \"reclaim\", \"kill\"]";

/// Waiting that goes on after so long began anew.
const PAUSE: Duration = Duration::from_millis(100);
/// It acts sooner than this after somebody began to wait.
const SOON: Duration = Duration::from_millis(100);
/// Less waiting than this in eight seconds is no reason to stop anybody.
const HARDLY: Duration = Duration::from_millis(20);

/// That it acts so soon, once in five tries: whoever looks is late, too, on a machine that others
/// use, and takes any waiting for a reason.
fn soon(allow: &str) {
    let soon = (0..5).any(|_| cost_and_delay(allow) < SOON);
    assert!(soon, "it acted late five times");
}

/// What the controller costs, and how soon it acts after somebody began to wait, seen from outside.
fn cost_and_delay(allow: &str) -> Duration {
    let Some(mut machine) = machine() else {
        return Duration::ZERO;
    };
    let Some(memory) = memory(&machine) else {
        return Duration::ZERO;
    };
    let cgroups = Cgroups::discover(&machine.kernel).unwrap();
    let Some(v2) = cgroups
        .v2()
        .filter(|h| Path::new(&h.mount).join("memory.pressure").exists())
    else {
        quell_testing::skip("no cgroup v2 hierarchy tells of pressure");
        return Duration::ZERO;
    };
    let mut longer = SHORT.to_vec();
    longer.extend([("duration = \"2s\"", "duration = \"8s\""), (ALLOW, allow)]);
    let experiment = changed(&machine, "pressure-native", &longer);
    machine.remember();
    let out = machine.path("out");
    let mut command = quell();
    command.args(["compare", &experiment, "--on", "linux", "--rounds", "1"]);
    command.args(["--only", "quell", "--out"]).arg(&out);
    let mut run = Running::start(&mut command);
    let below =
        |h: &Hierarchy, file: &str| Path::new(&h.mount).join("quell.slice/_bound").join(file);
    let pressure = ["memory", "io"].map(|what| below(v2, &format!("detector/{what}.pressure")));
    let acted: [PathBuf; 2] = [
        below(v2, "hog/cgroup.freeze"),
        below(
            &memory,
            match memory.version {
                Version::V1 => "hog/memory.limit_in_bytes",
                Version::V2 => "hog/memory.high",
            },
        ),
    ];
    let read = || acted.each_ref().map(|p| fs::read_to_string(p).ok());
    let (mut before, mut took) = (None, None);
    // When the waiting began that has not paused since, and how much there was when it grew last.
    let (mut begun, mut grew): (Option<Instant>, (u64, Instant)) = (None, (0, Instant::now()));
    let (mut resident, mut locked) = (0, 0);
    while run.alive() {
        resident = resident.max(in_status(run.pid(), "VmRSS"));
        locked = locked.max(in_status(run.pid(), "VmLck"));
        let now: Option<u64> = pressure.iter().map(|file| waited(file)).sum();
        // Only while both groups are there.
        if let Some(now) = now
            && let [Some(freeze), Some(limit)] = read()
        {
            if now > grew.0 {
                begun.get_or_insert_with(Instant::now);
                grew = (now, Instant::now());
            } else if grew.1.elapsed() > PAUSE {
                begun = None;
            }
            let state = (freeze, limit);
            if took.is_none() && *before.get_or_insert_with(|| state.clone()) != state {
                took = Some(begun.map(|at| at.elapsed()));
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(run.wait().code, 0);
    let events = events(&out);
    let own: Vec<&Value> = events.iter().filter(|e| e["event"] == "own").collect();
    let sum = |key: &str| own.iter().map(|e| e[key].as_u64().unwrap()).sum::<u64>();
    let share = sum("cpu_ns") as f64 / sum("span_ns") as f64 * 100.0;
    println!(
        "{share:.2} % of a CPU, VmRSS {:.1} MiB, VmLck {:.1} MiB; acted {}",
        resident as f64 / 1_048_576.0,
        locked as f64 / 1_048_576.0,
        match took {
            None => "never".to_owned(),
            Some(None) => "before anybody waited".to_owned(),
            // Looked at every millisecond.
            Some(Some(took)) => format!("within {} ms of waiting", took.as_millis() + 1),
        }
    );
    // Hardly anybody waits where the host keeps in its memory what is read from the disk: nothing
    // is to be done then.
    assert!(
        took.is_some() || waited_for_memory(&events) < HARDLY,
        "{events:?}"
    );
    // Bounds for a machine that others use, too; the figures themselves are in docs/results/.
    assert!(share < 10.0, "{share} % of a CPU");
    assert!(resident < 32 << 20, "{resident}");
    machine.unchanged("at the end");
    took.flatten().unwrap_or_default()
}

/// How long the controller saw the group that it protects wait for memory, in the whole run.
fn waited_for_memory(events: &[Value]) -> Duration {
    let waited = |e: &&Value| e["event"] == "waited";
    let ns = |e: &Value| e["memory_ns"].as_u64().unwrap();
    Duration::from_nanos(events.iter().filter(waited).map(ns).sum())
}

/// One short round of an experiment with a real program in it.
fn one_round(name: &str, program: &str, changes: &[(&str, &str)]) {
    let Some(mut machine) = machine() else {
        return;
    };
    if memory(&machine).is_none() {
        return;
    }
    let found = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .any(|dir| dir.join(program).exists());
    if !found {
        return quell_testing::skip(format_args!("{program} is not installed"));
    }
    let experiment = changed(&machine, name, changes);
    machine.remember();
    let mut command = quell();
    command.args([
        "compare",
        &experiment,
        "--on",
        "linux",
        "--rounds",
        "1",
        "--json",
        "--out",
    ]);
    let done = Running::start(command.arg(machine.path("out"))).wait();
    let result = done.json();
    for configuration in result["configurations"].as_array().unwrap() {
        for subject in configuration["subjects"].as_array().unwrap() {
            assert!(
                subject["value"].as_f64().is_some_and(|v| v > 0.0),
                "{configuration}"
            );
        }
    }
    machine.unchanged("after one round");
}

#[test]
fn a_compiler_in_the_background() {
    one_round(
        "pressure-compile",
        "cc",
        &[
            ("weights = \"192MiB\"", "weights = \"40MiB\""),
            ("i < 300000", "i < 30000"),
            ("warmup   = \"3s\"", "warmup = \"300ms\""),
            ("duration = \"15s\"", "duration = \"3s\""),
        ],
    );
}

#[test]
fn the_compaction_of_a_log_in_the_background() {
    one_round(
        "pressure-compaction",
        "sort",
        &[
            ("weights = \"192MiB\"", "weights = \"40MiB\""),
            ("i < 200000", "i < 20000"),
            ("warmup   = \"3s\"", "warmup = \"300ms\""),
            ("duration = \"15s\"", "duration = \"3s\""),
        ],
    );
}

/// Where their files have changed (`tests/changed.toml`).
mod changed {
    use super::*;

    /// Who may only be frozen is, once somebody waits.
    #[test]
    #[ignore = "where its files have changed"]
    fn the_controller_is_cheap_and_quick() {
        soon("group.hog.allow = [\"freeze\"]");
    }

    #[test]
    #[ignore = "where its files have changed"]
    fn the_controller_is_cheap_and_acts_before_anybody_waits() {
        soon(ALLOW);
    }
}
