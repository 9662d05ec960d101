//! Which source's parser is in which target, so that a new one is missed by nobody.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::fuzz::TARGETS;

/// What a source that parses something contains.
const WORDS: [&str; 8] = [
    "FromStr for",
    "fn parse",
    "serde_json::from_",
    "toml::from_str",
    "from_str_radix",
    ".parse(",
    "parse::<",
    "DeTable::parse",
];

/// Sources below `crates`, by the target that reaches them.
const COVERED: &[(&str, &[&str])] = &[
    (
        "quantities",
        &["types/src/units.rs", "policy/src/workload/size.rs"],
    ),
    (
        "sets",
        &[
            "types/src/cpuset.rs",
            "linux/src/without.rs",
            "types/src/partition.rs",
            "policy/src/policy/values.rs",
        ],
    ),
    ("task_match", &["types/src/task.rs"]),
    ("pattern", &["types/src/source.rs"]),
    ("generator", &["policy/src/workload/spec.rs"]),
    ("lab_key", &["policy/src/lab.rs"]),
    (
        "policy",
        &[
            "policy/src/policy/read.rs",
            "types/src/text.rs",
            "types/src/text/tree.rs",
        ],
    ),
    (
        "experiment",
        &[
            "policy/src/experiment/expand.rs",
            "policy/src/experiment/read.rs",
            "policy/src/experiment/subject.rs",
        ],
    ),
    ("machine_profile", &["sim/src/profile/mod.rs"]),
    ("processor_profile", &["lab/src/profile.rs"]),
    ("capture", &["linux/src/capture/mod.rs"]),
    (
        "address_map",
        &[
            "linux/src/colours/stored.rs",
            "types/src/address/regions.rs",
            "types/src/address/written.rs",
        ],
    ),
    ("inventory", &["cli/src/plan.rs"]),
    (
        "journal",
        &["linux/src/journal.rs", "linux/src/journal/found.rs"],
    ),
    (
        "record",
        &[
            "engine/src/read.rs",
            "report/src/curve.rs",
            "report/src/ladder.rs",
        ],
    ),
    (
        "run_state",
        &[
            "cli/src/bench.rs",
            "cli/src/kept.rs",
            "cli/src/status.rs",
            "cli/src/store.rs",
            "engine/src/calibrate.rs",
            "linux/src/children.rs",
            "plan/src/deep/mod.rs",
        ],
    ),
    ("trace", &["sim/src/trace.rs"]),
    ("hoard", &["linux/src/colours/hoard.rs"]),
    (
        "kernel_file",
        &[
            "kernel/src/cgroup_tree.rs",
            "kernel/src/cached_file.rs",
            "kernel/src/cgroup.rs",
            "kernel/src/io.rs",
            "kernel/src/irq.rs",
            "kernel/src/maps.rs",
            "kernel/src/memory.rs",
            "kernel/src/msr.rs",
            "kernel/src/node_memory.rs",
            "kernel/src/self_usage.rs",
            "kernel/src/procfs.rs",
            "kernel/src/psi.rs",
            "kernel/src/real_time.rs",
            "kernel/src/resctrl/groups.rs",
            "kernel/src/resctrl/info.rs",
            "kernel/src/resctrl/locked.rs",
            "kernel/src/resctrl/monitoring.rs",
            "kernel/src/root.rs",
            "kernel/src/stat.rs",
            "kernel/src/identity.rs",
            "kernel/src/topology.rs",
            "kernel/src/traceable.rs",
            "kernel/src/value.rs",
            "kernel/src/vm.rs",
            "kernel/src/zram.rs",
            "linux/src/ways/class.rs",
            "linux/src/ways/threads.rs",
            "kernel/src/cgroup_limits.rs",
            "witness/src/disks.rs",
            "witness/src/homes.rs",
            "witness/src/limits.rs",
            "witness/src/memory.rs",
            "witness/src/census.rs",
            "witness/src/tasks.rs",
            "witness/src/weights.rs",
        ],
    ),
    ("schemata", &["kernel/src/resctrl/schemata.rs"]),
    ("operand", &["lab/src/emul/operand.rs"]),
];

/// What no target reaches, and why that may be.
const ELSEWHERE: &[(&str, &[&str])] = &[
    (
        "words and answers of the person at the terminal: unit tests",
        &[
            "cli/src/init/ask.rs",
            "cli/src/ladder.rs",
            "cli/src/named.rs",
            "cli/src/target.rs",
            "record/src/demand/sweep.rs",
        ],
    ),
    (
        "hands a text to a parser above",
        &[
            "cli/src/compare.rs",
            "cli/src/demo/stage.rs",
            "cli/src/init/probe.rs",
            "cli/src/profile/probe.rs",
        ],
    ),
    (
        "reads what Quell has just written: a variable, a line of its own child, a constant",
        &[
            "cli/src/guest.rs",
            "client/src/locked.rs",
            "client/src/session.rs",
            "conformance/src/lib.rs",
            "control/src/schedule/recorded.rs",
            "engine/src/aggregate.rs",
            "engine/src/folder.rs",
            "files/src/walk.rs",
            "kernel/src/lib.rs",
            "lab-plugin/src/lib.rs",
            "lab/src/boot.rs",
            "lab/src/vm.rs",
            "linux/src/colours/settler.rs",
            "linux/src/fault.rs",
            "linux/src/lock.rs",
            "linux/src/profile.rs",
            "profile-plugin/src/lib.rs",
            "sim/src/backend/generator/work.rs",
            "sim/src/backend/ways.rs",
            "sim/src/recorded.rs",
            "workload/src/pressure/mod.rs",
            "workload/src/serve.rs",
        ],
    ),
    (
        "a number from a file of the kernel, by the standard library, next to its use",
        &[
            "kernel/src/rt.rs",
            "kernel/src/sharing.rs",
            "kernel/src/stopped.rs",
            "linux/src/unsettle.rs",
            "linux/src/enforce/classes/locked.rs",
            "linux/src/enforce/cores.rs",
            "linux/src/enforce/io.rs",
            "linux/src/resident.rs",
            "linux/src/rest.rs",
            "linux/src/restore.rs",
            "workload/src/account.rs",
        ],
    ),
    (
        "a record's cells, to go on with: refused as a whole where a line is damaged",
        &["engine/src/resume.rs"],
    ),
    (
        "a record's decisions, read by a test: refused as a whole where a line is damaged",
        &["engine/src/turns.rs"],
    ),
    (
        "data of the program itself: a test reads it",
        &["types/src/address/published.rs"],
    ),
    (
        "Debian's list of packages, signed",
        &["lab/src/packages.rs"],
    ),
    (
        "a module of tests",
        &[
            "cli/src/plan/zoo.rs",
            "linux/src/enforce/pressure/replay.rs",
            "report/src/sample.rs",
        ],
    ),
];

fn sources(below: &Path, all: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(below).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, all);
        } else if path.extension().is_some_and(|e| e == "rs") {
            all.push(path);
        }
    }
}

/// A source without its comments and without the tests at its end.
fn program(text: &str) -> String {
    let ends = ["#[cfg(test)]\nmod ", "#[cfg(test)]\npub(crate) mod "];
    let end = ends.iter().filter_map(|end| text.find(end)).min();
    let lines = text[..end.unwrap_or(text.len())].lines();
    let lines = lines.map(|line| line.split("//").next().unwrap_or(line));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn every_source_that_parses_is_listed() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut all = Vec::new();
    sources(&crates, &mut all);
    let mut parse = BTreeSet::new();
    for path in all {
        let name = path.strip_prefix(&crates).unwrap().display().to_string();
        if !name.contains("/src/") || name.contains("test") || name.contains("/fake/") {
            continue;
        }
        let text = program(&fs::read_to_string(&path).unwrap());
        if WORDS.iter().any(|word| text.contains(word)) {
            parse.insert(name);
        }
    }
    let listed = COVERED.iter().chain(ELSEWHERE).flat_map(|(_, all)| *all);
    let listed: BTreeSet<String> = listed.map(|name| (*name).to_owned()).collect();
    let missing: Vec<&String> = parse.difference(&listed).collect();
    let gone: Vec<&String> = listed.difference(&parse).collect();
    assert!(missing.is_empty(), "give these a target: {missing:?}");
    assert!(gone.is_empty(), "these parse nothing: {gone:?}");
    for (target, _) in COVERED {
        assert!(TARGETS.iter().any(|t| t.name == *target), "{target}");
    }
}
