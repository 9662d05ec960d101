//! The rules of the architecture, over the `use` lines of the sources, and the specification's word that its tests exist.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeSet;
use std::fs;

mod imports;

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

const RULES: [Rule; 7] = [
    Rule {
        says: "kernel readers know no journal",
        of: &[
            "linux/src/above.rs",
            "linux/src/below.rs",
            "linux/src/cgroup.rs",
            "linux/src/cpuset.rs",
            "linux/src/fair.rs",
            "linux/src/io.rs",
            "linux/src/irq.rs",
            "linux/src/kept.rs",
            "linux/src/memory.rs",
            "linux/src/oom.rs",
            "linux/src/own.rs",
            "linux/src/perf.rs",
            "linux/src/pidfd.rs",
            "linux/src/pmu.rs",
            "linux/src/procfs.rs",
            "linux/src/psi.rs",
            "linux/src/resctrl/",
            "linux/src/root.rs",
            "linux/src/rt.rs",
            "linux/src/sampler.rs",
            "linux/src/sysctl.rs",
            "linux/src/topology.rs",
            "linux/src/workqueue.rs",
        ],
        never: &[
            "crate::journal",
            "crate::change",
            "crate::session",
            "crate::undo",
        ],
        but: &[],
    },
    Rule {
        says: "the policy knows no plan",
        of: &["core/src/policy/"],
        never: &["crate::plan", "crate::planner"],
        but: &[],
    },
    Rule {
        says: "the plan knows no controller's internals",
        of: &["core/src/plan.rs", "core/src/planner/"],
        never: &["crate::control"],
        but: &["crate::control::config"],
    },
    Rule {
        says: "controllers know no plan and no record",
        of: &["core/src/control/"],
        never: &["crate::plan", "crate::planner", "crate::record"],
        but: &[],
    },
    Rule {
        says: "the backend knows no policy",
        of: &["core/src/backend.rs", "linux/src/", "sim/src/"],
        never: &["crate::policy", "quell_core::policy"],
        but: &[],
    },
    Rule {
        says: "generators know no backend",
        of: &["workload/src/"],
        never: &["quell_core::backend"],
        but: &[],
    },
    Rule {
        says: "nothing below the command line knows the reports",
        of: &[
            "client/src/",
            "conformance/src/",
            "core/src/",
            "engine/src/",
            "lab/src/",
            "linux/src/",
            "model/src/",
            "sim/src/",
            "workload/src/",
        ],
        never: &["quell_report"],
        but: &[],
    },
];

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

/// Names of three words and more in backquotes; a star stands for the rest of a name.
#[test]
fn the_tests_that_the_specification_names_exist() {
    let text = fs::read_to_string(crates().join("../docs/specification.md")).unwrap();
    let all: String = sources(&crates())
        .into_iter()
        .map(|(_, text)| text)
        .collect();
    let is_test = |name: &&str| {
        name.matches('_').count() >= 3
            && name
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_*".contains(c))
    };
    let named: BTreeSet<&str> = text.split('`').skip(1).step_by(2).filter(is_test).collect();
    assert!(named.len() > 100, "{}", named.len());
    let there = |name: &&&str| {
        let ends = if name.ends_with('*') { "" } else { "(" };
        let name = name.trim_end_matches('*');
        all.contains(&format!("fn {name}{ends}")) || all.contains(&format!("mod {name} {{"))
    };
    let missing: Vec<&&str> = named.iter().filter(|name| !there(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
