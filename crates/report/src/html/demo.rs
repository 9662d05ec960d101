//! The page of a demonstration: a verdict, one table, what is not covered, and a link to the page
//! of each experiment.

use maud::{Markup, html};
use quell_record::demo::{DemoResult, Found};

use crate::demo::{command, dear, for_yours, headline, shared, uncovered};
use crate::text::{Table, TableCell, Tone, list, number, percent, unit};

use super::document;
use super::page::Section;
use super::table::html_table;

/// The page as HTML. `root`: whether Quell could act.
#[must_use]
pub fn demo_html(result: &DemoResult, root: bool) -> String {
    let title = "What hurts on this machine";
    let head = html! {
        h1 { (title) }
        p.faint { "Quell " (result.version) " · " (number(result.took_s)) " s" }
        div.verdict { p { (headline(result)) } }
    };
    let figures = Section {
        id: "resources",
        title: "Each resource",
        body: html! { (table(result)) (details(&result.resources)) },
    };
    let left = result
        .left_out
        .iter()
        .map(|l| format!("{}: {}", l.name.name(), l.why));
    let sections = [
        Some(figures),
        section("uncovered", "Not covered", &uncovered(result, root)),
        section("left-out", "Left out", &left.collect::<Vec<_>>()),
    ];
    let sections: Vec<Section> = sections.into_iter().flatten().collect();
    document(title, &head, &sections)
}

fn section(id: &'static str, title: &'static str, lines: &[String]) -> Option<Section> {
    let body = html! { ul { @for line in lines { li { (line) } } } };
    (!lines.is_empty()).then_some(Section { id, title, body })
}

fn table(result: &DemoResult) -> Markup {
    let head = [
        "resource",
        "alone, p95",
        "next to it",
        "with Quell",
        "neighbour keeps",
        "by",
    ];
    let row = |found: &Found| {
        let ratio =
            |value: Option<f64>| value.map_or("–".to_owned(), |v| format!("{} ×", number(v)));
        let by: Vec<String> = found.by.iter().map(|m| m.name().to_owned()).collect();
        let tone = if found.hurts { Tone::Bad } else { Tone::Plain };
        let with = if found.covered() {
            Tone::Good
        } else {
            Tone::Plain
        };
        vec![
            TableCell::new(found.name.name()),
            TableCell::new(format!("{} {}", number(found.solo), unit(&found.metric))),
            TableCell::tone(ratio(Some(found.none)), tone),
            TableCell::tone(ratio(found.quell), with),
            TableCell::new(found.neighbour_kept.map_or("–".to_owned(), percent)),
            TableCell::new(list(&by)),
        ]
    };
    let table = Table {
        head: head.map(str::to_owned).to_vec(),
        rows: result.resources.iter().map(row).collect(),
        left: vec![5],
    };
    html_table(
        &table,
        "Ratios are to the p95 alone; red where the neighbour hurts, green where Quell covers it.",
    )
}

/// For each row: what it is about, how to protect another program, and the page of its experiment.
fn details(all: &[Found]) -> Markup {
    html! {
        @for found in all {
            p {
                b { (found.name.name()) } ": " (shared(found.name)) "."
                @if let Some(record) = &found.record {
                    " " a href=(format!("{record}/report.html")) { "All figures of " (found.experiment) } "."
                }
            }
            @if let Some(why) = dear(found) {
                p { (why) }
            } @else if found.covered() && !command(found.name).is_empty() {
                p { (for_yours(found.name)) ":" }
                pre { (command(found.name).join("\n")) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_record::demo::{DEMO_SCHEMA, LeftOut, Resource};

    #[test]
    fn the_page_names_what_was_left_out_and_escapes_it() {
        let result = DemoResult {
            schema: DEMO_SCHEMA.into(),
            version: "0".into(),
            control: false,
            took_s: 1.0,
            resources: Vec::new(),
            left_out: vec![LeftOut {
                name: Resource::Disk,
                why: "<no disk>".into(),
            }],
            interrupted: None,
        };
        let page = demo_html(&result, true);
        assert!(page.contains("disk: &lt;no disk&gt;"), "{page}");
        assert!(page.contains("Nothing could be measured."));
    }
}
