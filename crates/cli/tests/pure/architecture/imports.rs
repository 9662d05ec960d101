//! What the sources import, read from their text, and the circles in that.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

pub fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The Rust sources below a folder: paths below `crates`, and texts.
pub fn sources(below: &Path) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(below).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            let name = path.strip_prefix(crates()).unwrap().display().to_string();
            all.push((name, fs::read_to_string(&path).unwrap()));
        }
    }
    all
}

/// A source without its comments and without the tests at its end.
pub fn program(text: &str) -> String {
    const TESTS: [&str; 2] = ["#[cfg(test)]\nmod ", "#[cfg(test)]\npub(crate) mod "];
    let ends = TESTS.iter().filter_map(|tests| text.find(tests));
    let text = ends.min().map_or(text, |end| &text[..end]);
    let lines = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or(line));
    lines.collect::<Vec<_>>().join("\n")
}

/// The paths of a use tree: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn paths(tree: &str, before: &str, found: &mut BTreeSet<String>) {
    let Some((head, rest)) = tree.trim().split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or(tree).trim();
        found.insert(format!("{before}{}", path.trim_end_matches("::self")));
        return;
    };
    let before = format!("{before}{}", head.trim());
    let (mut depth, mut branch) = (0, String::new());
    for c in rest.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                paths(&std::mem::take(&mut branch), &before, found);
                continue;
            }
            _ => {}
        }
        branch.push(c);
    }
    if !branch.trim().is_empty() {
        paths(&branch, &before, found);
    }
}

/// What a source imports or names in full, of its own crate and of others.
pub fn imports(text: &str) -> BTreeSet<String> {
    let text = program(text);
    let mut found = BTreeSet::new();
    for part in text.split("use ").skip(1) {
        if let Some((tree, _)) = part.split_once(';') {
            paths(tree, "", &mut found);
        }
    }
    for beginning in ["crate::", "quell_"] {
        for (at, _) in text.match_indices(beginning) {
            let rest = &text[at..];
            let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
            let path = &rest[..end.unwrap_or(rest.len())];
            // What goes on with a brace is a use tree.
            if path.contains("::") && !path.ends_with("::") {
                found.insert(path.to_owned());
            }
        }
    }
    found
}

/// Which module a source is: its crate as others name it, and its path in there (`quell_plan`,
/// `plan::loops`).
fn module(name: &str) -> Option<(String, Vec<String>)> {
    let (krate, path) = name.split_once("/src/")?;
    let krate = match krate {
        "cli" => "quell".to_owned(),
        other => format!("quell_{}", other.replace('-', "_")),
    };
    let path = path.trim_end_matches(".rs");
    let path = path.strip_suffix("/mod").unwrap_or(path);
    let parts = path.split('/').filter(|p| !matches!(*p, "lib" | "main"));
    Some((krate, parts.map(str::to_owned).collect()))
}

/// Source → sources that it imports, of all crates, without tests.
pub fn graph() -> BTreeMap<String, BTreeSet<String>> {
    let all = sources(&crates());
    let all = all.into_iter().filter(|(name, _)| !name.contains("test"));
    let all: Vec<(String, String)> = all.filter(|(name, _)| name.contains("/src/")).collect();
    let mut by_module = BTreeMap::new();
    for (name, _) in &all {
        by_module.insert(module(name).unwrap(), name.clone());
    }
    let mut graph = BTreeMap::new();
    for (name, text) in &all {
        let (krate, own) = module(name).unwrap();
        let mut found = BTreeSet::new();
        for path in imports(text) {
            let mut parts: Vec<&str> = path.split("::").collect();
            let (of, base) = match parts[0] {
                "crate" => (krate.clone(), Vec::new()),
                "self" => (krate.clone(), own.clone()),
                "super" => (krate.clone(), own[..own.len().saturating_sub(1)].to_vec()),
                other if other.starts_with("quell") => (other.to_owned(), Vec::new()),
                _ => continue,
            };
            parts.remove(0);
            let mut base = base;
            while parts.first() == Some(&"super") {
                base.pop();
                parts.remove(0);
            }
            base.extend(parts.into_iter().map(str::to_owned));
            // The longest beginning that is a module: what follows is an item in it.
            let target = (0..=base.len()).rev().find_map(|n| {
                let known = by_module.get(&(of.clone(), base[..n].to_vec()));
                known.filter(|_| n > 0 || of != krate)
            });
            found.extend(target.filter(|t| *t != name).cloned());
        }
        graph.insert(name.clone(), found);
    }
    graph
}

/// Groups that import each other, the largest first.
pub fn circles(graph: &BTreeMap<String, BTreeSet<String>>) -> Vec<Vec<String>> {
    let reach = |from: &String| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(one) = next.pop() {
            for to in graph.get(one).into_iter().flatten() {
                if seen.insert(to) {
                    next.push(to);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        graph.keys().map(|k| (k, reach(k))).collect();
    let mut groups: BTreeSet<Vec<String>> = BTreeSet::new();
    for (one, all) in &reached {
        let both = all.iter().filter(|other| reached[*other].contains(one));
        let group: Vec<String> = both.map(|s| (*s).clone()).collect();
        if group.len() > 1 {
            groups.insert(group);
        }
    }
    let mut groups: Vec<Vec<String>> = groups.into_iter().collect();
    groups.sort_by_key(|g| std::cmp::Reverse(g.len()));
    groups
}

/// Circles between a folder and what lies next to it, in every folder: `core/src/control` and
/// `core/src/plan.rs`. What a folder imports is what the files in it import; `mod.rs`, `lib.rs` and
/// `main.rs` put together what is there and count for nothing.
pub fn folder_circles(graph: &BTreeMap<String, BTreeSet<String>>) -> Vec<Vec<String>> {
    let mut within: BTreeSet<&str> = BTreeSet::new();
    for name in graph.keys() {
        let ends = name.match_indices('/').map(|(at, _)| &name[..at]);
        within.extend(ends.filter(|folder| folder.contains("/src")));
    }
    let mut found = Vec::new();
    for folder in within {
        let child = |name: &str| {
            let rest = name.strip_prefix(folder)?.strip_prefix('/')?;
            let first = rest.split('/').next()?;
            let plain = first.trim_end_matches(".rs");
            (!["mod", "lib", "main"].contains(&plain)).then(|| format!("{folder}/{plain}"))
        };
        let mut among: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (name, to) in graph {
            if let Some(from) = child(name) {
                let others = to.iter().filter_map(|to| child(to));
                let others = others.filter(|to| *to != from).collect::<BTreeSet<_>>();
                among.entry(from).or_default().extend(others);
            }
        }
        let is_folder = |one: &String| {
            graph
                .keys()
                .any(|name| name.starts_with(&format!("{one}/")))
        };
        found.extend(
            circles(&among)
                .into_iter()
                .filter(|c| c.iter().any(is_folder)),
        );
    }
    found
}

/// For people.
pub fn told() -> String {
    let graph = graph();
    let mut out = String::new();
    let edges: usize = graph.values().map(BTreeSet::len).sum();
    writeln!(out, "{} files, {edges} imports", graph.len()).unwrap();
    for (what, circles) in [
        ("files", circles(&graph)),
        ("folders", folder_circles(&graph)),
    ] {
        writeln!(out, "{} circles of {what}", circles.len()).unwrap();
        for circle in circles {
            writeln!(out, "  {}: {}", circle.len(), circle.join(" ")).unwrap();
        }
    }
    out
}

#[test]
fn a_use_tree_is_read_to_its_leaves() {
    let text = "use crate::a::{self, b, c::{D, e as f}};\n// use crate::x;\nfn g() { crate::h::i() }\n\
        #[cfg(test)]\nmod tests { use crate::y; }\n";
    let found: Vec<String> = imports(text).into_iter().collect();
    assert_eq!(
        found,
        [
            "crate::a::b",
            "crate::a::c::D",
            "crate::a::c::e",
            "crate::a::self",
            "crate::h::i"
        ]
    );
}

#[test]
fn a_circle_is_found_and_a_chain_is_none() {
    let graph = [("a", "b"), ("b", "c"), ("c", "b"), ("c", "d")];
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (from, to) in graph {
        all.entry(from.to_owned())
            .or_default()
            .insert(to.to_owned());
        all.entry(to.to_owned()).or_default();
    }
    assert_eq!(circles(&all), [["b", "c"]]);
}

#[test]
fn a_folder_and_a_file_next_to_it_are_a_circle() {
    let graph = [
        ("a/src/deep/x.rs", "a/src/top.rs"),
        ("a/src/top.rs", "a/src/deep/mod.rs"),
        ("a/src/deep/mod.rs", "a/src/deep/x.rs"),
        ("a/src/one.rs", "a/src/two.rs"),
        ("a/src/two.rs", "a/src/one.rs"),
    ];
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (from, to) in graph {
        all.entry(from.to_owned())
            .or_default()
            .insert(to.to_owned());
        all.entry(to.to_owned()).or_default();
    }
    assert_eq!(folder_circles(&all), [["a/src/deep", "a/src/top"]]);
}
