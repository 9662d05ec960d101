//! The beginning of a page: what was run, what it means, and how it was measured.

use maud::{Markup, html};
use quell_record::events::Record;

use crate::doctor::lab;
use crate::outcome::outcome;
use crate::text::count;
use crate::verdict::verdict;

use super::page::Page;

pub(crate) fn title(record: &Record) -> String {
    match &record.result {
        Some(result) => result.title.as_deref().unwrap_or(&record.name).to_owned(),
        None if record.plans.is_empty() => "Who may fill which ways of the caches".to_owned(),
        None => "How the run went".to_owned(),
    }
}

/// Title, verdict and circumstances.
pub(crate) fn head(page: &Page<'_>, title: &str) -> Markup {
    let record = page.record;
    let mut circumstances = Vec::new();
    let sentences = if let Some(result) = page.result() {
        circumstances.push(result.experiment.clone());
        circumstances.push(format!(
            "{}, {} times",
            result.backend,
            result.timing.name()
        ));
        if let Some(guest) = &result.machine.identity.lab {
            circumstances.push(format!("Linux {}", result.machine.identity.kernel));
            circumstances.push(lab(guest));
        }
        circumstances.push(count(result.rounds, "round"));
        circumstances.push(format!("seed {}", result.seed));
        verdict(result)
    } else {
        if record.plans.is_empty() {
            circumstances.push("nothing was changed".to_owned());
        } else {
            circumstances.push(format!("policy {}", record.name));
        }
        outcome(record)
    };
    circumstances.extend(record.created.clone());
    circumstances.push(format!("Quell {}", record.version));
    html! {
        h1 { (title) }
        @if !sentences.is_empty() {
            div.verdict { (paragraphs(&sentences)) }
        }
        p.faint { (circumstances.join(" · ")) }
    }
}

pub(crate) fn paragraphs(sentences: &[String]) -> Markup {
    html! { @for sentence in sentences { p { (sentence) } } }
}
