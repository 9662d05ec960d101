//! One self-contained page about a record: no script, nothing loaded from anywhere, light or dark as the reader's system
//! is, readable on a phone and on paper. It is a function of the record alone. One module per section; [`SECTIONS`] is
//! their order.

mod attribution;
mod bars;
mod caveats;
mod chart;
mod course;
mod curve;
mod envelope;
mod frontier;
mod head;
mod machine;
mod page;
mod plans;
mod pressure;
mod profile;
mod repeat;
mod series;
mod table;
mod tails;
mod throttling;
mod ways;
mod whole;

#[cfg(test)]
mod tests;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use quell_record::events::Record;

use page::{Page, Section};

pub use profile::profile_html;

/// The sections in their order. Each is left out where the record holds nothing for it.
const SECTIONS: &[fn(&Page<'_>) -> Option<Section>] = &[
    head::figures,
    curve::section,
    frontier::section,
    bars::section,
    tails::section,
    attribution::section,
    series::section,
    course::section,
    pressure::section,
    throttling::section,
    ways::section,
    whole::section,
    caveats::section,
    plans::section,
    machine::section,
    repeat::section,
];

/// The page.
#[must_use]
pub fn html(record: &Record) -> String {
    let page = Page::new(record);
    let title = head::title(record);
    let sections: Vec<Section> = SECTIONS.iter().filter_map(|build| build(&page)).collect();
    document(&title, &head::head(&page, &title), &sections)
}

/// A page of its own: what comes first, and the sections.
fn document(title: &str, head: &Markup, sections: &[Section]) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(include_str!("style.css"))) }
            }
            body {
                header {
                    (head)
                    nav aria-label="Sections" {
                        @for section in sections { a href={ "#" (section.id) } { (section.title) } " " }
                    }
                }
                main {
                    @for section in sections {
                        section aria-labelledby=(section.id) {
                            h2 id=(section.id) { (section.title) }
                            (section.body)
                        }
                    }
                }
            }
        }
    };
    page.into_string()
}
