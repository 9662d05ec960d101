//! One self-contained page about a record. It has no script and loads nothing. It is light or dark
//! as the reader's system is, and readable on a phone and on paper. It is a function of the record
//! alone. There is one module per section. The verdict and one picture come first, then the result,
//! the other pictures and the facts.

mod attribution;
mod bars;
mod caveats;
mod chart;
mod colours;
mod course;
mod curve;
mod demo;
mod envelope;
mod frontier;
mod head;
mod machine;
mod page;
mod plans;
mod pressure;
mod profile;
mod programs;
mod published;
mod ran;
mod repeat;
mod result;
mod series;
mod table;
mod tails;
mod throttling;
mod ways;
mod whole;
mod worst;

#[cfg(test)]
mod tests;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use quell_record::events::Record;

use page::{Page, Section};

pub use demo::demo_html;
pub use profile::profile_html;

/// Builds a section. `None` where the record has nothing for it.
type Build = fn(&Page<'_>) -> Option<Section>;

/// The sections that are mostly a picture. The first one that the record has data for follows the
/// verdict.
const PICTURES: &[Build] = &[
    curve::section,
    frontier::section,
    bars::section,
    tails::section,
    attribution::section,
    series::section,
    course::section,
    colours::section,
    pressure::section,
    ways::section,
    whole::section,
];

/// The sections of text and tables.
const FACTS: &[Build] = &[
    published::section,
    worst::section,
    throttling::section,
    caveats::section,
    plans::section,
    machine::section,
    repeat::section,
];

/// The page of a record as HTML.
#[must_use]
pub fn html(record: &Record) -> String {
    let page = Page::new(record);
    let title = head::title(record);
    if let Some(section) = programs::section(&page) {
        let facts: [Build; 3] = [caveats::section, machine::section, repeat::section];
        let facts = facts.iter().filter_map(|build| build(&page));
        let sections: Vec<Section> = std::iter::once(section).chain(facts).collect();
        return document(&title, &head::head(&page, &title), &sections);
    }
    let mut pictures = PICTURES.iter().filter_map(|build| build(&page));
    let first: Vec<Section> = pictures.next().into_iter().collect();
    let facts = FACTS.iter().filter_map(|build| build(&page));
    let rest = result::section(&page).into_iter().chain(pictures);
    let sections: Vec<Section> = first.into_iter().chain(rest).chain(facts).collect();
    document(&title, &head::head(&page, &title), &sections)
}

/// A whole page: its head, and the sections. Links to the sections follow the first of them.
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
                header { (head) }
                main {
                    @for (n, section) in sections.iter().enumerate() {
                        section aria-labelledby=(section.id) {
                            h2 id=(section.id) { (section.title) }
                            (section.body)
                        }
                        @if n == 0 {
                            nav aria-label="Sections" {
                                @for other in sections.iter().skip(1) { a href={ "#" (other.id) } { (other.title) } " " }
                            }
                        }
                    }
                }
            }
        }
    };
    page.into_string()
}
