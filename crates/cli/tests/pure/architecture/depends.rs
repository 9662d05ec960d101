//! What the manifests depend on, and whether the sources use it.

use std::fs;

use crate::architecture::imports::{crates, program, sources};

/// Whether a source names a crate: `name::`, or `use name as` something.
fn names(text: &str, name: &str) -> bool {
    text.match_indices(name).any(|(at, _)| {
        let word = |c: char| c.is_alphanumeric() || c == '_';
        let (before, after) = (&text[..at], &text[at + name.len()..]);
        let path = after.starts_with("::") || before.ends_with("use ") && !after.starts_with(word);
        path && !before.ends_with(word) && !before.ends_with("::")
    })
}

/// The dependencies of a crate that no source of it names; those of its tests and benches, too.
fn unused(name: &str) -> Vec<String> {
    let folder = crates().join(name);
    let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    let of_program: String = sources(&folder.join("src"))
        .iter()
        .map(|(_, text)| program(text))
        .collect();
    let all: String = sources(&folder).into_iter().map(|(_, text)| text).collect();
    let own = manifest["package"]["name"].as_str().unwrap();
    let mut found = Vec::new();
    let sections = [("dependencies", &of_program), ("dev-dependencies", &all)];
    for (section, text) in sections {
        let listed = manifest.get(section).and_then(toml::Value::as_table);
        for (key, value) in listed.into_iter().flatten() {
            // Cargo knows no optional dependencies of tests: those stand among the program's.
            let optional = value.get("optional").is_some();
            let text = if optional { &all } else { text };
            if key != own && !names(text, &key.replace('-', "_")) {
                found.push(format!("{name}: {key} of [{section}]"));
            }
        }
    }
    found
}

#[test]
fn every_dependency_is_used() {
    let folders = fs::read_dir(crates()).unwrap().map(|e| e.unwrap());
    let unused: Vec<String> = folders
        .flat_map(|e| unused(e.file_name().to_str().unwrap()))
        .collect();
    assert!(unused.is_empty(), "{unused:?}");
}

#[test]
fn a_crate_is_named_by_its_paths_alone() {
    assert!(names("let a = libc::SIGTERM;", "libc"));
    assert!(names("use regex as re;", "regex"));
    assert!(!names(
        "use crate::architecture::toml::read; let toml = 1;",
        "toml"
    ));
    assert!(!names("anyhow_like::b", "anyhow") && !names("my_toml::b", "toml"));
}
