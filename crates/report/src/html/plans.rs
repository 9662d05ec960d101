//! What was done under every configuration, with the reasons and what each promise was worth. Where configurations differ
//! by a cap alone, one is shown open and the others fold.

use std::fmt::Write;

use quell_plan::Plan;

use crate::plan::describe;
use crate::text::list;

use super::escape;
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
    let mut body = String::new();
    if page.result().is_some() {
        body.push_str("<p class=\"faint\">The plan of every configuration: steps in order, each with its reason, then the promises and what each is worth.</p>\n");
    }
    let mut seen: Vec<&str> = Vec::new();
    for name in names {
        let first = !seen.contains(&base(name));
        seen.push(base(name));
        if let Some(refusals) = record.refused.get(name) {
            let why: Vec<String> = refusals.iter().map(|r| escape(&r.to_string())).collect();
            let _ = writeln!(
                body,
                "<p><b>{}</b>: <span class=\"bad\">refused</span>. {}</p>",
                escape(name),
                why.join("; ")
            );
        } else if let Some(plan) = record.plans.get(name) {
            one(&mut body, name, plan, first);
        }
    }
    Some(Section {
        id: "plans",
        title: "What was done, and what it is worth",
        body,
    })
}

fn one(out: &mut String, name: &str, plan: &Plan, open: bool) {
    let name = escape(name);
    if plan.steps.is_empty() {
        let _ = writeln!(out, "<p><b>{name}</b>: nothing is changed.</p>");
        return;
    }
    let open = if open { " open" } else { "" };
    let _ = writeln!(
        out,
        "<details{open}><summary><b>{name}</b>: level {}</summary>\n<ol>",
        plan.level()
    );
    for step in &plan.steps {
        let who = step
            .group
            .as_ref()
            .map_or_else(String::new, |g| format!("{}: ", escape(g)));
        let _ = writeln!(
            out,
            "<li>{who}{} <span class=\"faint\">{}</span></li>",
            escape(&describe(&step.set)),
            escape(&step.because)
        );
    }
    out.push_str("</ol>\n<ul>\n");
    for held in &plan.promises {
        let by: Vec<String> = held.held_by.iter().map(|s| s.0.to_string()).collect();
        let mut why = String::new();
        if !by.is_empty() {
            let steps = if by.len() == 1 { "step" } else { "steps" };
            why = format!("held by {steps} {}", list(&by));
        }
        if let Some(weakest) = &held.weakest {
            let join = if why.is_empty() { "" } else { "; " };
            why.push_str(&format!("{join}weakest: {weakest}"));
        }
        let _ = writeln!(
            out,
            "<li>{}: {}: <b>{}</b> <span class=\"faint\">{}</span></li>",
            escape(&held.group),
            escape(&held.promise.to_string()),
            held.level,
            escape(&why)
        );
    }
    for note in &plan.notes {
        let _ = writeln!(out, "<li class=\"faint\">{}</li>", escape(note));
    }
    out.push_str("</ul></details>\n");
}
