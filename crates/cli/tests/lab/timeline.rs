//! `quell ways` in the lab, while cache allocation is set step by step (`tests/lab/timeline.sh`):
//! by registers alone, by resctrl, by Intel's `pqos` through either, and by a process behind
//! resctrl's back. Each change is seen within one sample, with core, process and thread.
//!
//! Skipped aloud where the lab cannot be had: no plugin beside the program, no `apt-get`, no
//! mirror, another architecture.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// A scene: its name, and what has to be seen at each step, in order.
struct Scene {
    name: &'static str,
    steps: &'static [Step],
}

/// A change as the record has it: keys and values, and whether the core, the process and the thread
/// are named next to it.
struct Step {
    keys: &'static [(&'static str, &'static str)],
    named: bool,
}

const fn step(keys: &'static [(&'static str, &'static str)], named: bool) -> Step {
    Step { keys, named }
}

const CLASS_OF_CPU: Step = step(&[("what", "cpus"), ("class", "COS3"), ("to", "1")], true);
const NARROWED: Step = step(&[("what", "mask"), ("class", "COS3"), ("to", "0xf")], true);
const ROOTS: Step = step(&[("what", "mask"), ("class", "/"), ("to", "0xfff0")], false);

const SCENES: [Scene; 5] = [
    Scene {
        name: "registers",
        steps: &[CLASS_OF_CPU, NARROWED, ROOTS],
    },
    Scene {
        name: "pqos_msr",
        steps: &[CLASS_OF_CPU, NARROWED, ROOTS],
    },
    Scene {
        name: "resctrl",
        steps: &[
            step(&[("what", "appeared"), ("class", "db")], false),
            step(&[("what", "thread"), ("class", "db")], true),
            step(&[("what", "mask"), ("class", "db"), ("to", "0xf")], true),
            ROOTS,
        ],
    },
    Scene {
        name: "pqos_os",
        steps: &[
            step(&[("what", "cpus"), ("class", "COS1"), ("to", "1")], true),
            step(&[("what", "mask"), ("class", "COS1"), ("to", "0xf")], true),
            ROOTS,
        ],
    },
    Scene {
        name: "behind",
        steps: &[
            step(&[("what", "thread"), ("class", "db")], true),
            step(&[("what", "differs"), ("class", "db")], true),
            step(&[("what", "agrees"), ("class", "db")], true),
        ],
    },
];

/// The time between two samples: 100 ms, and what a busy host makes of it.
const SAMPLE_S: f64 = 0.1;

/// What the guest left, and what it printed.
fn guest(kernel: &str, out: &Path) -> Option<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/lab/timeline.sh");
    let done = Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(["lab", "--profile", "icelake", "--kernel", kernel])
        .args(["--timeout", "10min", "--with", "quell", "--with"])
        .arg(format!("{}=/timeline.sh", script.display()))
        .arg("--out")
        .arg(out)
        .args(["--", "sh", "/timeline.sh"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let errors = String::from_utf8_lossy(&done.stderr);
    let missing = ["is not beside", "apt-get", "mirror", "packages are for"];
    if !done.status.success() && missing.iter().any(|m| errors.contains(m)) {
        quell_testing::skip(errors);
        return None;
    }
    assert!(done.status.success(), "{said}{errors}");
    println!("{said}{errors}");
    Some(said)
}

/// Seconds and changes of a scene's record.
fn changes(out: &Path, scene: &str) -> Vec<(f64, Value)> {
    let runs = fs::read_dir(out.join(scene)).unwrap();
    let mut runs = runs.map(|run| run.unwrap().path().join("events.jsonl"));
    let events = runs.find(|events| events.exists()).unwrap();
    let text = fs::read_to_string(events).unwrap();
    let change = |line: &str| {
        let event: Value = serde_json::from_str(line).ok()?;
        let at = event.get("at_ns")?.as_f64()? / 1e9;
        Some((at, event.get("change")?.clone()))
    };
    text.lines().filter_map(change).collect()
}

/// The longest time between two samples, as `quell ways` says: `at most S s apart`.
fn spacing(out: &Path, scene: &str) -> f64 {
    let log = fs::read_to_string(out.join(format!("{scene}.log"))).unwrap();
    let words: Vec<&str> = log.split_whitespace().collect();
    let at = words.iter().position(|w| *w == "apart,").unwrap();
    let apart: f64 = words[at - 2].parse().unwrap();
    apart.max(SAMPLE_S)
}

/// When each step was seen, in order.
fn seen(scene: &Scene, all: &[(f64, Value)]) -> Vec<f64> {
    let mut from = 0;
    let mut found = Vec::new();
    for step in scene.steps {
        let is = |change: &Value| {
            let mut keys = step.keys.iter();
            keys.all(|(key, value)| change.get(key).and_then(Value::as_str) == Some(*value))
        };
        let at = all.iter().skip(from).position(|(_, change)| is(change));
        let at =
            at.unwrap_or_else(|| panic!("{}: {:?} was not seen: {all:#?}", scene.name, step.keys));
        from += at;
        found.push(all[from].0);
    }
    found
}

fn check(kernel: &str) {
    let out = tempfile::tempdir().unwrap();
    let Some(said) = guest(kernel, out.path()) else {
        return;
    };
    assert!(!said.contains("failed "), "{said}");
    for scene in &SCENES {
        let line = said
            .lines()
            .find_map(|l| l.strip_prefix(scene.name)?.strip_prefix(' '));
        let mut words = line.unwrap().split_whitespace();
        let process = words.next().unwrap();
        let marks: Vec<f64> = words.map(|w| w.parse().unwrap()).collect();
        let seen = seen(scene, &changes(out.path(), scene.name));
        assert_eq!(marks.len(), 2 * seen.len(), "{}", scene.name);
        // The two clocks begin at different times. There is a difference with which every change
        // was seen no earlier than its step began, and no later than one sample after its end.
        let spacing = spacing(out.path(), scene.name);
        let steps = || marks.chunks(2).zip(&seen);
        let least = steps()
            .map(|(mark, at)| mark[0] - at)
            .fold(f64::MIN, f64::max);
        let most = steps()
            .map(|(mark, at)| mark[1] + spacing - at)
            .fold(f64::MAX, f64::min);
        println!(
            "{}: spacing {spacing:.3} s, slack {:.3} s",
            scene.name,
            most - least
        );
        assert!(
            least - spacing <= most,
            "{}: {seen:?} at {marks:?}, samples every {spacing} s",
            scene.name
        );
        let text = fs::read_to_string(out.path().join(format!("{}.txt", scene.name))).unwrap();
        let text: Vec<&str> = text.split_whitespace().collect();
        let text = text.join(" ");
        let named = scene.steps.iter().filter(|step| step.named).count();
        let process = format!("process {process} (rt): thread");
        let told = text.matches(&process).count();
        assert!(
            told >= named,
            "{}: {process} is named {told} times: {text}",
            scene.name
        );
        assert!(text.contains("on CPU 1"), "{}: {text}", scene.name);
    }
}

#[test]
fn each_change_is_named_within_a_sample_on_6_12() {
    check("6.12");
}

/// For `make soak`.
mod long {
    use super::*;

    #[test]
    #[ignore = "for the long run"]
    fn each_change_is_named_within_a_sample_on_7_2() {
        check("7.2");
    }
}
