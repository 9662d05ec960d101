//! The specification's pages: their rows, and the tests that they name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::architecture::imports::{crates, sources};

/// A row: `` - **UNDO-07** `held` A requirement. *By:* a test. ``
struct Row {
    page: String,
    id: String,
    status: String,
    /// All of it, on one line.
    text: String,
}

/// The first page, and those of the mechanisms: names below `docs`, and texts.
fn pages() -> Vec<(String, String)> {
    let docs = crates().join("../docs");
    let below = fs::read_dir(docs.join("specification")).unwrap();
    let names = below.map(|entry| {
        let name = entry.unwrap().file_name().into_string().unwrap();
        format!("specification/{name}")
    });
    let names: BTreeSet<String> = names.chain(["specification.md".to_owned()]).collect();
    let text = |name: &String| fs::read_to_string(docs.join(name)).unwrap();
    names.iter().map(|n| (n.clone(), text(n))).collect()
}

fn rows() -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (page, text) in pages() {
        let mut within = false;
        for line in text.lines() {
            if let Some((id, rest)) = line
                .strip_prefix("- **")
                .and_then(|rest| rest.split_once("**"))
            {
                rows.push(Row {
                    page: page.clone(),
                    id: id.to_owned(),
                    status: rest.split('`').nth(1).unwrap_or_default().to_owned(),
                    text: rest.to_owned(),
                });
                within = true;
            } else if within && line.starts_with("  ") {
                let row = rows.last_mut().unwrap();
                row.text.push(' ');
                row.text.push_str(line.trim_start());
            } else {
                within = false;
            }
        }
    }
    rows
}

/// What stands in backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// All Rust sources in one text.
fn all_sources() -> String {
    let sources = sources(&crates());
    sources.into_iter().map(|(_, text)| text).collect()
}

/// Whether there is a test or a module of this name; a star stands for the rest of a name.
fn there(all: &str, name: &str) -> bool {
    let ends = if name.ends_with('*') { "" } else { "(" };
    let name = name.trim_end_matches('*');
    all.contains(&format!("fn {name}{ends}")) || all.contains(&format!("mod {name} {{"))
}

/// Names of four words and more in backquotes, in the designs and the decisions, too.
#[test]
fn the_tests_that_the_specification_names_exist() {
    let mut text: String = pages().into_iter().map(|(_, text)| text).collect();
    for below in ["docs/design", "docs/decisions"] {
        text.extend(super::documents::pages(below).into_values());
    }
    let all = all_sources();
    let is_test = |name: &&str| {
        name.matches('_').count() >= 3
            && name
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_*".contains(c))
    };
    let named: BTreeSet<&str> = quoted(&text).filter(is_test).collect();
    assert!(named.len() > 100, "{}", named.len());
    let missing: Vec<&&str> = named.iter().filter(|name| !there(&all, name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn each_row_of_the_specification_has_an_id_and_a_status() {
    let rows = rows();
    assert!(rows.len() > 200, "{}", rows.len());
    let mut seen = BTreeSet::new();
    for Row {
        page,
        id,
        status,
        text,
    } in &rows
    {
        let number = id.split_once('-').map(|(_, number)| number);
        assert!(
            number.is_some_and(|n| n.len() == 2 && n.chars().all(|c| c.is_ascii_digit())),
            "{page}: {id} is no id"
        );
        assert!(seen.insert(id), "{page}: {id} is there twice");
        let says = match status.as_str() {
            "held" => "*By:* ",
            "open" => "*Missing:* ",
            _ => panic!("{page}: {id} is neither held nor open"),
        };
        assert!(text.contains(says), "{page}: {id} lacks {says}");
    }
}

/// A named test, a file with tests, or a page of results.
#[test]
fn what_the_specification_calls_held_is_held_by_something() {
    let all = all_sources();
    let files: Vec<String> = sources(&crates())
        .into_iter()
        .map(|(name, _)| name.replace("/src/", "/"))
        .collect();
    let holds = |name: &str| {
        let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_*".contains(c);
        let file = name.trim_start_matches("crates/").replace("/src/", "/");
        if file.ends_with(".rs") {
            // `{a,b}` stands for two: the first will do.
            let file = super::alternatives(&file).swap_remove(0);
            files
                .iter()
                .any(|f| *f == file || f.ends_with(&format!("/{file}")))
        } else if name.contains('/') {
            crates().join("..").join(name).exists()
        } else {
            !name.is_empty() && name.chars().all(word) && there(&all, name)
        }
    };
    let without: Vec<String> = rows()
        .into_iter()
        .filter(|row| row.status == "held")
        .filter(|row| {
            let (_, by) = row.text.split_once("*By:* ").unwrap_or_default();
            !(quoted(by).any(holds) || by.contains("](../results/"))
        })
        .map(|row| row.id)
        .collect();
    assert!(without.is_empty(), "{without:?}");
}

/// The first page's table has a page's rows by status.
#[test]
fn the_first_page_of_the_specification_counts_the_rows() {
    let mut counts: BTreeMap<String, [usize; 2]> = BTreeMap::new();
    for row in rows() {
        counts.entry(row.page).or_default()[usize::from(row.status == "open")] += 1;
    }
    let (_, first) = pages()
        .into_iter()
        .find(|(name, _)| name == "specification.md")
        .unwrap();
    for (page, [held, open]) in counts {
        let line = first
            .lines()
            .find(|line| line.starts_with("| [") && line.contains(&format!("]({page})")));
        let ends = format!("| {held} | {open} |");
        assert!(
            line.is_some_and(|line| line.ends_with(&ends)),
            "{page}: {ends} is not what {line:?} says"
        );
    }
}
