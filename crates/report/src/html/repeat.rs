//! How to get these figures again: the commands, and what was run, word for word.

use std::fmt::Write;

use super::escape;
use super::page::{Page, Section};

pub(crate) fn section(page: &Page<'_>) -> Option<Section> {
    let record = page.record;
    let command = record.command_line.as_ref()?;
    let mut body = String::from("<p>What was run:</p>\n");
    let _ = writeln!(body, "<pre>{}</pre>", escape(command));
    if let Some(result) = page.result() {
        let mut settled = command.clone();
        for (option, value) in [
            ("--seed", result.seed.to_string()),
            ("--rounds", result.rounds.to_string()),
        ] {
            if !command.contains(option) {
                settled.push_str(&format!(" {option} {value}"));
            }
        }
        if settled != *command {
            let _ = writeln!(
                body,
                "<p>The same order of cells and the same resampling, whatever the defaults have become:</p>\n<pre>{}</pre>",
                escape(&settled)
            );
        }
    }
    body.push_str("<p>This page again from its record, and the record's figures for other tools:</p>\n<pre>quell report RUN --html page.html\nquell export RUN --format csv</pre>\n");
    if let Some(text) = &record.text {
        let (what, hash) = match page.result() {
            Some(result) => (
                "The experiment",
                format!(" ({})", escape(&result.policy_hash)),
            ),
            None => ("The policy", String::new()),
        };
        let _ = writeln!(
            body,
            "<details class=\"print\"><summary>{what}, word for word{hash}</summary>\n<pre>{}</pre></details>",
            escape(text)
        );
    }
    Some(Section {
        id: "repeat",
        title: "To repeat it",
        body,
    })
}
