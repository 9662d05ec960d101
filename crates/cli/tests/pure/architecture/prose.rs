//! How the sources read: widths, names, and lists of what is to become less.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::path::Path;

use crate::architecture::imports::{crates, sources};

/// Columns of a line of a comment.
const COLUMNS: usize = 100;
/// The most lines that a source has.
const SOURCE: usize = 600;
/// Characters of a test's name.
const NAME: usize = 60;
/// Lines of a function, without blank ones and comments.
const LINES: usize = 90;

/// Functions that are longer. Split one, and strike it off: the list may only shrink.
const LONG: &[(&str, &str)] = &[
    ("cli/tests/lab/divided.rs", "parts_are_held"),
    (
        "cli/tests/live/input.rs",
        "options_that_make_no_sense_are_refused",
    ),
    (
        "cli/tests/pure/profiles.rs",
        "a_profiles_mistakes_are_reported_with_place_and_remedy",
    ),
    ("kernel/src/fake/knobs.rs", "new"),
    ("lab-plugin/tests/lab.rs", "divides_and_counts"),
    ("lab/src/guest.rs", "image"),
    ("linux/src/capture/anonymous.rs", "anonymous"),
    ("linux/src/probe.rs", "mechanisms"),
    ("linux/src/profile.rs", "observe"),
    (
        "linux/tests/conformance/locked.rs",
        "the_kernel_locks_and_refuses_and_says_why",
    ),
    (
        "linux/tests/conformance/resctrl.rs",
        "the_kernel_refuses_and_says_why",
    ),
    ("model/tests/pure/dram/replay.rs", "check"),
    ("plan/src/planner/cpus.rs", "divided"),
    ("policy/src/experiment/check.rs", "subject_of"),
    ("policy/src/workload.rs", "resolve"),
    ("policy/src/workload/faults.rs", "fault"),
    (
        "policy/tests/pure/policy.rs",
        "impossible_values_are_answered",
    ),
    ("sim/src/machine/run.rs", "act"),
];

/// Parameters that are tuples, by file. A struct names its fields. The numbers may only shrink.
const TUPLES: &[(&str, usize)] = &[
    ("conformance/src/lib.rs", 1),
    ("kernel/src/fake/cpuset.rs", 1),
    ("kernel/src/fake/knobs.rs", 1),
    ("kernel/src/fake/resctrl/mod.rs", 1),
    ("model/src/cache/hierarchy.rs", 1),
    ("model/src/dram/choice.rs", 2),
    ("model/tests/oracle/main.rs", 1),
    ("plan/src/planner/quota.rs", 1),
    ("sim/src/backend/measure.rs", 1),
    ("sim/src/machine/mod.rs", 1),
    ("sim/src/os/mod.rs", 1),
    ("sim/tests/pure/directions.rs", 1),
];

/// All Rust sources, in order.
fn all() -> Vec<(String, String)> {
    let mut all = sources(&crates());
    all.sort();
    all
}

/// What a line says, if it is one of a comment.
fn comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let rest = line.strip_prefix("//")?;
    Some(rest.trim_start_matches(['/', '!']).trim_start())
}

#[test]
fn comments_have_at_most_a_hundred_columns() {
    let mut wide = Vec::new();
    for (name, text) in all() {
        for (n, line) in text.lines().enumerate() {
            // A row of a table cannot be wrapped.
            let prose = comment(line).is_some_and(|rest| !rest.starts_with('|'));
            if prose && line.chars().count() > COLUMNS {
                wide.push(format!("{name}:{}", n + 1));
            }
        }
    }
    assert!(wide.is_empty(), "wrap these comments: {wide:?}");
}

#[test]
fn sources_have_at_most_six_hundred_lines() {
    let long = all()
        .into_iter()
        .filter(|(_, text)| text.lines().count() > SOURCE);
    let long: Vec<String> = long.map(|(name, _)| name).collect();
    assert!(long.is_empty(), "split these: {long:?}");
}

/// A function as it stands in a source.
struct Function<'t> {
    name: &'t str,
    /// From `fn` to the brace.
    signature: String,
    /// Lines of its body, without blank ones and comments.
    lines: usize,
}

/// The functions of a source that rustfmt has laid out.
fn functions(text: &str) -> Vec<Function<'_>> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(name) = named(line) else { continue };
        let indent = &line[..line.len() - line.trim_start().len()];
        let ends = |line: &&str| line.contains('{') || line.trim_end().ends_with(';');
        let Some(brace) = (at..lines.len()).find(|n| ends(&lines[*n])) else {
            continue;
        };
        let end = format!("{indent}}}");
        let body = lines[brace + 1..].iter().take_while(|line| **line != end);
        let counts = |line: &&&str| !line.trim().is_empty() && comment(line).is_none();
        let short = lines[brace].trim_end().ends_with(['}', ';']);
        found.push(Function {
            name,
            signature: lines[at..=brace].join("\n"),
            lines: if short {
                0
            } else {
                body.filter(counts).count()
            },
        });
    }
    found
}

/// The name of the function that begins on a line.
fn named(line: &str) -> Option<&str> {
    const BEFORE: [&str; 7] = [
        "pub",
        "pub(crate)",
        "pub(super)",
        "const",
        "unsafe",
        "async",
        "extern \"C\"",
    ];
    let mut rest = line.trim_start();
    while let Some(after) = BEFORE
        .iter()
        .find_map(|word| rest.strip_prefix(word)?.strip_prefix(' '))
    {
        rest = after;
    }
    let name = rest.strip_prefix("fn ")?;
    let end = name.find(|c: char| !(c.is_alphanumeric() || c == '_'))?;
    Some(&name[..end])
}

/// Parameters of a signature that are tuples, or references to one.
fn tuples(signature: &str) -> usize {
    let parameters = signature.split(" -> ").next().unwrap_or(signature);
    let Some((_, parameters)) = parameters.split_once('(') else {
        return 0;
    };
    let mut count = 0;
    for (at, _) in parameters.match_indices('(') {
        let before = parameters[..at].trim_end_matches("mut ");
        let typed = before.trim_end_matches('&').ends_with(": ");
        // The unit, and the parentheses around the bounds of one type.
        let none = ["()", "(dyn ", "(impl "];
        let tuple = !none.iter().any(|text| parameters[at..].starts_with(text));
        count += usize::from(typed && tuple);
    }
    count
}

#[test]
fn names_of_tests_have_at_most_sixty_characters() {
    let mut long = Vec::new();
    for (name, text) in all() {
        let functions = functions(&text);
        let found = functions.iter().filter(|f| f.name.len() > NAME);
        long.extend(found.map(|f| format!("{name}: {}", f.name)));
    }
    assert!(long.is_empty(), "shorten these names: {long:?}");
}

/// What is there and not listed, and what is listed and not there any more.
fn listed<T: Ord + Debug>(there: &BTreeSet<T>, list: &BTreeSet<T>, mend: &str) {
    let new: Vec<&T> = there.difference(list).collect();
    assert!(new.is_empty(), "{mend}: {new:?}");
    let gone: Vec<&T> = list.difference(there).collect();
    assert!(gone.is_empty(), "take these off the list: {gone:?}");
}

#[test]
fn functions_over_ninety_lines_only_become_fewer() {
    let mut long = BTreeSet::new();
    for (name, text) in all() {
        let functions = functions(&text);
        let found = functions.iter().filter(|f| f.lines > LINES);
        long.extend(found.map(|f| (name.clone(), f.name.to_owned())));
    }
    let list = LONG
        .iter()
        .map(|(file, name)| ((*file).to_owned(), (*name).to_owned()));
    listed(&long, &list.collect(), "split these functions");
}

#[test]
fn tuples_of_parameters_only_become_fewer() {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (name, text) in all() {
        let count = functions(&text).iter().map(|f| tuples(&f.signature)).sum();
        if count > 0 {
            counts.insert(name, count);
        }
    }
    let list = TUPLES
        .iter()
        .map(|(file, count)| ((*file).to_owned(), *count));
    let mend = "give these parameters a struct, or lower the number in the list";
    listed(&counts.into_iter().collect(), &list.collect(), mend);
}

#[test]
fn functions_and_their_tuples_are_found() {
    let text = "impl A {\n    pub(crate) const fn one(&self, x: (u8, u8), f: &(dyn Fn(u8, u8) + Sync)) -> (u8, u8) {\n\
        \x20       // Why.\n\n        a();\n        b()\n    }\n}\nfn two(\n    all: &mut (u8, u8),\n    n: ()\n) {}\n";
    let found: Vec<_> = functions(text)
        .iter()
        .map(|f| (f.name.to_owned(), f.lines, tuples(&f.signature)))
        .collect();
    assert_eq!(found, [("one".to_owned(), 2, 1), ("two".to_owned(), 0, 1)]);
    assert!(Path::new(&all()[0].0).is_relative());
}
