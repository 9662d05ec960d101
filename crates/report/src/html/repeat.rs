//! How to get these figures again: the commands, and what was run, word for word.

use maud::html;

use super::page::{Page, Section};

pub(crate) fn section(page: &Page<'_>) -> Option<Section> {
    let record = page.record;
    let command = record.command_line.as_ref()?;
    let mut settled = command.clone();
    if let Some(result) = page.result() {
        for (option, value) in [
            ("--seed", result.seed.to_string()),
            ("--rounds", result.rounds.to_string()),
        ] {
            if !command.contains(option) {
                settled.push_str(&format!(" {option} {value}"));
            }
        }
    }
    let (what, hash) = match page.result() {
        Some(result) => ("The experiment", format!(" ({})", result.policy_hash)),
        None => ("The policy", String::new()),
    };
    let body = html! {
        p { "What was run:" }
        pre { (command) }
        @if settled != *command {
            p { "The same order of cells and the same resampling, whatever the defaults have become:" }
            pre { (settled) }
        }
        p { "This page again from its record, and the record's figures for other tools:" }
        pre { "quell report RUN --html page.html\nquell export RUN --format csv" }
        @if let Some(text) = &record.text {
            details.print { summary { (what) ", word for word" (hash) } pre { (text) } }
        }
    };
    Some(Section {
        id: "repeat",
        title: "To repeat it",
        body,
    })
}
