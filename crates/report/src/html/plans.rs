//! What was done under every configuration, with the reasons and what each promise was worth. Where configurations differ
//! by a cap alone, one is shown open and the others fold.

use maud::{Markup, html};
use quell_plan::{Held, Plan};

use crate::plan::describe;
use crate::text::list;

use super::page::{Page, Section, base};

pub(crate) fn section(page: &Page<'_>) -> Option<Section> {
    let record = page.record;
    let mut names: Vec<&str> = match page.result() {
        Some(result) => result
            .configurations
            .iter()
            .map(|c| c.name.as_str())
            .collect(),
        None => record.plans.keys().map(String::as_str).collect(),
    };
    names.retain(|n| record.plans.contains_key(*n) || record.refused.contains_key(*n));
    if names.is_empty() {
        return None;
    }
    let firsts = names.iter().enumerate().map(|(n, name)| {
        let before = names.iter().take(n);
        before.map(|b| base(b)).all(|b| b != base(name))
    });
    let body = html! {
        @if page.result().is_some() {
            p.faint {
                "The plan of every configuration: steps in order, each with its reason, then the promises and what each is worth."
            }
        }
        @for (name, first) in names.iter().copied().zip(firsts) {
            @if let Some(refusals) = record.refused.get(name) {
                @let why: Vec<String> = refusals.iter().map(ToString::to_string).collect();
                p { b { (name) } ": " span.bad { "refused" } ". " (why.join("; ")) }
            } @else if let Some(plan) = record.plans.get(name) {
                (one(name, plan, first))
            }
        }
    };
    Some(Section {
        id: "plans",
        title: "What was done, and what it is worth",
        body,
    })
}

fn one(name: &str, plan: &Plan, open: bool) -> Markup {
    if plan.steps.is_empty() {
        return html! { p { b { (name) } ": nothing is changed." } };
    }
    html! {
        details open[open] {
            summary { b { (name) } ": level " (plan.level()) }
            ol {
                @for step in &plan.steps {
                    li {
                        @if let Some(group) = &step.group { (group) ": " }
                        (describe(&step.set)) " " span.faint { (step.because) }
                    }
                }
            }
            ul {
                @for held in &plan.promises {
                    li { (held.group) ": " (held.promise) ": " b { (held.level) } " " span.faint { (why(held)) } }
                }
                @for note in &plan.notes { li.faint { (note) } }
            }
        }
    }
}

fn why(held: &Held) -> String {
    let by: Vec<String> = held.held_by.iter().map(|s| s.0.to_string()).collect();
    let steps = if by.len() == 1 { "step" } else { "steps" };
    let by = (!by.is_empty()).then(|| format!("held by {steps} {}", list(&by)));
    let weakest = held.weakest.as_ref().map(|w| format!("weakest: {w}"));
    let said: Vec<String> = by.into_iter().chain(weakest).collect();
    said.join("; ")
}
