//! What a run of the tests came to, and how it is told. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};

use crate::class::Class;
use crate::lists::Lists;
use quell_testing::{ALL, PART};

/// What a test came to.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It ran and passed. The parts that were skipped, with reasons.
    Passed(Vec<String>),
    /// It could not run here, and why.
    Skipped(String),
    /// It failed, the second time, too, where it was tried twice.
    Failed,
    /// It failed, and passed alone.
    Flaky,
}

/// A test that has ended.
#[derive(Clone, Debug)]
pub struct Done {
    /// `PACKAGE/TARGET::MODULE::TEST`.
    pub name: String,
    /// What it needs of the machine.
    pub class: Class,
    /// What it came to.
    pub outcome: Outcome,
    /// Seconds that it took.
    pub wall: f64,
    /// Seconds of CPU time.
    pub cpu: f64,
}

/// The outcome of a test that ran once.
pub fn outcome(passed: bool, skips: &str) -> Outcome {
    if !passed {
        return Outcome::Failed;
    }
    let lines = |what: &str| {
        let of = skips
            .lines()
            .filter_map(move |line| line.strip_prefix(what)?.strip_prefix(' '));
        of.map(str::to_owned).collect::<Vec<_>>()
    };
    match lines(ALL).into_iter().next() {
        Some(reason) => Outcome::Skipped(reason),
        None => Outcome::Passed(lines(PART)),
    }
}

/// The end of a run: lines for a person, and whether it failed. `missing` is what CONTRIBUTING asks
/// for and this machine lacks: skips are judged only where nothing is missing. `there` are all
/// tests.
pub fn verdict(
    all: &[Done],
    lists: &Lists,
    missing: &[String],
    there: &BTreeSet<String>,
) -> (String, bool) {
    let mut text = String::new();
    minutes(&mut text, all);
    skips(&mut text, all, lists);
    let mut wrong = Vec::new();
    if missing.is_empty() {
        wrong.extend(unexpected(all, lists));
    } else {
        line(
            &mut text,
            format_args!(
                "This machine lacks {}: what needs it was skipped.",
                missing.join(", ")
            ),
        );
    }
    wrong.extend(stale(lists, there));
    for one in &wrong {
        line(&mut text, format_args!("{one}"));
    }
    for done in all.iter().filter(|d| d.outcome == Outcome::Flaky) {
        line(
            &mut text,
            format_args!("FLAKY: {} failed, then passed alone", done.name),
        );
        if let Some(flaky) = lists.flaky.get(&done.name) {
            line(
                &mut text,
                format_args!(
                    "    since {}: {} Tried: {}",
                    flaky.since, flaky.why, flaky.tried
                ),
            );
        }
    }
    for done in all.iter().filter(|d| d.outcome == Outcome::Failed) {
        line(&mut text, format_args!("FAILED: {}", done.name));
    }
    let count = |is: &dyn Fn(&Outcome) -> bool| all.iter().filter(|d| is(&d.outcome)).count();
    let failed = count(&|o| *o == Outcome::Failed);
    let passed = count(&|o| matches!(o, Outcome::Passed(_) | Outcome::Flaky));
    let skipped = count(&|o| matches!(o, Outcome::Skipped(_)));
    line(
        &mut text,
        format_args!("{passed} passed, {failed} failed, {skipped} skipped"),
    );
    (text, failed > 0 || !wrong.is_empty())
}

fn line(text: &mut String, line: fmt::Arguments<'_>) {
    let _ = writeln!(text, "{line}");
}

/// Where the time went, by class, and the slowest tests.
fn minutes(text: &mut String, all: &[Done]) {
    let head = "Where the minutes went; CPU time is of all processes that a test waited for:";
    line(text, format_args!("\n{head}"));
    for class in Class::ALL {
        let of: Vec<&Done> = all.iter().filter(|done| done.class == class).collect();
        // Not `sum`: that of none is -0.
        let wall = of.iter().fold(0.0, |sum, done| sum + done.wall);
        let cpu = of.iter().fold(0.0, |sum, done| sum + done.cpu);
        let (name, count) = (class.name(), of.len());
        line(
            text,
            format_args!("{name:9} {count:5} tests {wall:7.0} s {cpu:7.0} s CPU"),
        );
    }
    let mut slowest: Vec<&Done> = all.iter().collect();
    slowest.sort_by(|a, b| b.wall.total_cmp(&a.wall));
    line(text, format_args!("The slowest:"));
    for done in slowest.iter().take(10) {
        line(
            text,
            format_args!("{:7.1} s {:7.1} s CPU  {}", done.wall, done.cpu, done.name),
        );
    }
}

/// The reasons for which a test or a part of it was skipped.
pub fn reasons(done: &Done) -> Vec<&str> {
    match &done.outcome {
        Outcome::Skipped(reason) => vec![reason],
        Outcome::Passed(parts) => parts.iter().map(String::as_str).collect(),
        Outcome::Failed | Outcome::Flaky => Vec::new(),
    }
}

/// All skips, by reason.
fn skips(text: &mut String, all: &[Done], lists: &Lists) {
    let mut skipped: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for done in all {
        for reason in reasons(done) {
            skipped.entry(reason).or_default().push(&done.name);
        }
    }
    for (reason, names) in skipped {
        line(text, format_args!("SKIPPED: {reason}"));
        for name in names {
            let why = lists
                .skips
                .get(name)
                .map(|of| format!(" (expected: {})", of.why));
            line(text, format_args!("    {name}{}", why.unwrap_or_default()));
        }
    }
}

/// Skips that no list expects.
fn unexpected<'a>(all: &'a [Done], lists: &'a Lists) -> impl Iterator<Item = String> + 'a {
    let skipped = all.iter().filter(|done| !reasons(done).is_empty());
    let unexpected = skipped.filter(|done| !lists.skips.contains_key(&done.name));
    unexpected.map(|done| {
        let why = reasons(done).join("; ");
        format!(
            "SKIPPED, but not in tests/skips.toml: {} ({why})",
            done.name
        )
    })
}

/// Entries of lists that name no test.
fn stale(lists: &Lists, there: &BTreeSet<String>) -> Vec<String> {
    let skips = lists.skips.keys().map(|name| ("skips", name));
    let listed = skips.chain(lists.flaky.keys().map(|name| ("flaky", name)));
    let gone = listed.filter(|(_, name)| !there.contains(*name));
    gone.map(|(list, name)| format!("tests/{list}.toml names a test that is not there: {name}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(name: &str, outcome: Outcome) -> Done {
        Done {
            name: name.to_owned(),
            class: Class::Pure,
            outcome,
            wall: 1.0,
            cpu: 1.0,
        }
    }

    fn judged(all: &[Done], lists: &Lists, missing: &[String]) -> (String, bool) {
        let there = all.iter().map(|d| d.name.clone()).collect();
        verdict(all, lists, missing, &there)
    }

    #[test]
    fn a_skip_is_no_pass() {
        let skipped = Outcome::Skipped("no root".into());
        assert_eq!(outcome(true, "all no root\n"), skipped);
        assert_eq!(
            outcome(true, "part b\npart c\n"),
            Outcome::Passed(vec!["b".into(), "c".into()])
        );
        assert_eq!(outcome(false, "all no root\n"), Outcome::Failed);
        let all = [done("a", Outcome::Passed(Vec::new())), done("b", skipped)];
        let (text, _) = judged(&all, &Lists::default(), &[]);
        assert!(
            text.ends_with("\n1 passed, 0 failed, 1 skipped\n"),
            "{text}"
        );
    }

    #[test]
    fn a_skip_that_is_not_listed_fails_on_a_whole_machine() {
        let missing = ["root".to_owned()];
        for outcome in [
            Outcome::Skipped("x".into()),
            Outcome::Passed(vec!["x".into()]),
        ] {
            let all = [done("a", outcome)];
            let mut lists = Lists::default();
            let (text, failed) = judged(&all, &lists, &[]);
            assert!(
                failed && text.contains("not in tests/skips.toml: a (x)"),
                "{text}"
            );
            let (text, failed) = judged(&all, &lists, &missing);
            assert!(!failed && text.contains("lacks root"), "{text}");
            let why = "hardware".to_owned();
            lists
                .skips
                .insert("a".to_owned(), crate::lists::Skip { why });
            assert!(!judged(&all, &lists, &[]).1);
        }
    }

    #[test]
    fn a_list_names_tests_that_are_there() {
        let mut lists = Lists::default();
        let why = "hardware".to_owned();
        lists
            .skips
            .insert("gone".to_owned(), crate::lists::Skip { why });
        let (text, failed) = judged(&[done("a", Outcome::Flaky)], &lists, &[]);
        assert!(failed && text.contains("not there: gone"), "{text}");
    }

    #[test]
    fn a_failure_fails_and_a_flaky_test_is_named() {
        let (text, failed) = judged(&[done("a", Outcome::Failed)], &Lists::default(), &[]);
        assert!(failed && text.contains("FAILED: a\n"), "{text}");
        let (text, failed) = judged(&[done("a", Outcome::Flaky)], &Lists::default(), &[]);
        assert!(!failed && text.contains("FLAKY: a "), "{text}");
    }
}
