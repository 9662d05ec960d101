//! The rules of the architecture, over the `use` lines of the sources, the documents' word that
//! what they name exists, and how the sources read.

use std::collections::BTreeSet;
use std::fs;

mod depends;
mod documents;
mod imports;
mod prose;
mod specification;

use documents::{pages, quoted};
use imports::{crates, imports, program, sources};

/// What some sources do not import.
struct Rule {
    says: &'static str,
    /// Beginnings of their paths below `crates`.
    of: &'static [&'static str],
    /// Beginnings of the paths that they do not import.
    never: &'static [&'static str],
    /// Beginnings of those that they may import all the same.
    but: &'static [&'static str],
}

const RULES: [Rule; 4] = [
    Rule {
        says: "kernel readers know no journal",
        of: &["kernel/src/"],
        never: &["quell_types::journal", "quell_plan", "quell_record"],
        but: &[
            "quell_plan::deep",
            "quell_plan::inventory",
            "quell_record::backend",
            "quell_record::events",
        ],
    },
    Rule {
        says: "the plan knows no controller's internals",
        of: &["plan/src/"],
        never: &["quell_control"],
        but: &["quell_control::config"],
    },
    Rule {
        says: "the machines know no policy",
        of: &[
            "record/src/backend.rs",
            "linux/src/",
            "kernel/src/",
            "sim/src/",
        ],
        never: &["quell_policy"],
        but: &["quell_policy::workload", "quell_policy::lab"],
    },
    Rule {
        says: "generators know no machine",
        of: &["workload/src/"],
        never: &["quell_record::backend"],
        but: &[],
    },
];

/// Every crate, below those that it may depend on: what is not listed is refused, and what is not
/// used has to go.
const CRATES: [(&str, &[&str]); 21] = [
    ("testing", &[]),
    ("types", &[]),
    ("files", &[]),
    ("model", &["types"]),
    ("client", &[]),
    ("control", &["types"]),
    ("policy", &["types"]),
    ("plan", &["control", "policy", "types"]),
    ("record", &["control", "plan", "policy", "types"]),
    (
        "conformance",
        &["control", "plan", "record", "testing", "types"],
    ),
    (
        "engine",
        &["control", "files", "plan", "policy", "record", "types"],
    ),
    ("report", &["control", "plan", "policy", "record", "types"]),
    (
        "sim",
        &["control", "model", "plan", "policy", "record", "types"],
    ),
    ("kernel", &["plan", "record", "types"]),
    ("witness", &["kernel", "types"]),
    (
        "workload",
        &[
            "client", "control", "kernel", "plan", "policy", "record", "types",
        ],
    ),
    ("lab", &["files", "kernel", "model", "policy", "types"]),
    ("lab-plugin", &["lab"]),
    ("profile-plugin", &["model"]),
    (
        "linux",
        &[
            "client", "control", "kernel", "plan", "policy", "record", "types", "witness",
        ],
    ),
    (
        "cli",
        &[
            "engine", "files", "kernel", "lab", "linux", "plan", "policy", "record", "report",
            "sim", "types", "workload",
        ],
    ),
];

#[test]
fn every_crate_depends_on_those_of_the_table() {
    let mut listed: Vec<&str> = CRATES.iter().map(|(name, _)| *name).collect();
    for (at, (name, below)) in CRATES.iter().enumerate() {
        let path = crates().join(name).join("Cargo.toml");
        let manifest: toml::Table = fs::read_to_string(path).unwrap().parse().unwrap();
        let has = manifest.get("dependencies").and_then(toml::Value::as_table);
        let of_ours = has.into_iter().flat_map(toml::Table::keys);
        let has: BTreeSet<&str> = of_ours.filter_map(|k| k.strip_prefix("quell-")).collect();
        assert_eq!(has, below.iter().copied().collect(), "{name}");
        // The order of the table is one in which they can be built.
        let above = |one: &&str| CRATES[..at].iter().all(|(name, _)| name != one);
        let upwards: Vec<&&str> = below.iter().filter(|b| above(b)).collect();
        assert!(upwards.is_empty(), "{name}: {upwards:?}");
    }
    let folders = fs::read_dir(crates()).unwrap().map(|e| e.unwrap());
    let mut there: Vec<String> = folders
        .map(|e| e.file_name().into_string().unwrap())
        .collect();
    there.sort();
    listed.sort_unstable();
    assert_eq!(listed, there);
}

/// `make imports`.
#[test]
#[ignore = "a command"]
fn imports_are_printed() {
    println!("{}", imports::told());
}

#[test]
fn the_layers_import_downwards() {
    let all = sources(&crates());
    for rule in &RULES {
        let mut broken = BTreeSet::new();
        for (name, text) in &all {
            if !rule.of.iter().any(|of| name.starts_with(of)) || name.contains("test") {
                continue;
            }
            for path in imports(text) {
                let within = |above: &&str| {
                    path.strip_prefix(*above)
                        .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
                };
                if rule.never.iter().any(within) && !rule.but.iter().any(within) {
                    broken.insert((name.clone(), path));
                }
            }
        }
        assert!(broken.is_empty(), "{}, but: {broken:?}", rule.says);
        for of in rule.of {
            let there = all.iter().any(|(name, _)| name.starts_with(of));
            assert!(there, "{}: there is no {of}", rule.says);
        }
    }
}

#[test]
fn circles_are_of_five_files_at_most_and_none_of_folders() {
    let graph = imports::graph();
    let files = imports::circles(&graph).into_iter();
    let large: Vec<_> = files.filter(|circle| circle.len() > 5).collect();
    assert!(large.is_empty(), "{large:?}");
    let folders = imports::folder_circles(&graph);
    assert!(folders.is_empty(), "{folders:?}");
}

#[test]
fn only_modules_named_arch_know_the_processor() {
    const WORDS: [&str; 4] = ["target_arch", "asm!", "core::arch", "std::arch"];
    let knows: Vec<String> = sources(&crates())
        .into_iter()
        .filter(|(name, _)| name.contains("/src/") && !name.contains("/src/arch"))
        .filter(|(_, text)| WORDS.iter().any(|word| program(text).contains(word)))
        .map(|(name, _)| name)
        .collect();
    assert!(knows.is_empty(), "{knows:?}");
}

/// Files below the command line that write to a terminal, and why they may.
const PRINT: [(&str, &str); 6] = [
    (
        "conformance/src/bodies/next_to.rs",
        "a test says what it found",
    ),
    (
        "lab-plugin/src/lib.rs",
        "a library that QEMU loads has no other way to say why it refuses",
    ),
    (
        "profile-plugin/src/lib.rs",
        "a library that QEMU loads has no other way to say why it refuses",
    ),
    (
        "linux/src/resident.rs",
        "the program of a keeper, which talks to its parent over a pipe",
    ),
    (
        "linux/src/tee.rs",
        "it passes on what a launched program writes",
    ),
    (
        "linux/src/watchdog.rs",
        "the program of the watchdog, which outlives whoever could tell it",
    ),
];

/// Everything else below hands what it has to say to its caller, as values.
#[test]
fn nothing_below_the_command_line_prints() {
    const WORDS: [&str; 5] = ["print!(", "println!(", "dbg!(", "stdout()", "stderr()"];
    let prints: BTreeSet<String> = sources(&crates())
        .into_iter()
        .filter(|(name, _)| name.contains("/src/") && !name.contains("test"))
        .filter(|(name, _)| !name.starts_with("cli/"))
        .filter(|(_, text)| WORDS.iter().any(|word| program(text).contains(word)))
        .map(|(name, _)| name)
        .collect();
    let may: BTreeSet<String> = PRINT.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(prints, may);
}

/// Paths of sources in the documents: from the top (`crates/linux/src/undo.rs`), or from a crate's
/// folder without `src` (`linux/undo.rs`); `{a,b}` stands for two, `NAME` for one that is to be
/// written.
#[test]
fn the_sources_that_the_documents_name_exist() {
    let mut missing = BTreeSet::new();
    for (page, text) in pages("docs") {
        for name in quoted(&text) {
            let Some((first, rest)) = name.split_once('/') else {
                continue;
            };
            let of_a_crate = crates().join(first).join("Cargo.toml").exists();
            let source = name.ends_with(".rs") || name.ends_with('/');
            if !(source && of_a_crate || first == "crates")
                || name.contains("NAME")
                || name.contains('*')
            {
                continue;
            }
            let there = alternatives(rest).iter().all(|rest| {
                let within = crates().join(first);
                [
                    within.join(rest),
                    within.join("src").join(rest),
                    crates().join(rest),
                ]
                .iter()
                .any(|path| path.exists())
            });
            if !there {
                missing.insert((page.clone(), name));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:?}");
}

/// `a/{b,c}.rs` is `a/b.rs` and `a/c.rs`.
fn alternatives(path: &str) -> Vec<String> {
    match path
        .split_once('{')
        .and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
    {
        Some((before, (among, after))) => among
            .split(',')
            .map(|one| format!("{before}{one}{after}"))
            .collect(),
        None => vec![path.to_owned()],
    }
}
