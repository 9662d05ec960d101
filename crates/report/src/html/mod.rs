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
mod style;
mod table;
mod tails;
mod throttling;
mod ways;
mod whole;

#[cfg(test)]
mod tests;

use std::fmt::Write;

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
fn document(title: &str, head: &str, sections: &[Section]) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{}</title>\n<style>{}{}</style>\n</head>\n<body>\n<header>\n{head}",
        escape(title),
        style::STYLE,
        series_style(),
    );
    out.push_str("<nav aria-label=\"Sections\">");
    for section in sections {
        let _ = write!(
            out,
            "<a href=\"#{}\">{}</a> ",
            section.id,
            escape(section.title)
        );
    }
    out.push_str("</nav>\n</header>\n<main>\n");
    for section in sections {
        let _ = write!(
            out,
            "<section aria-labelledby=\"{0}\">\n<h2 id=\"{0}\">{1}</h2>\n{2}</section>\n",
            section.id,
            escape(section.title),
            section.body
        );
    }
    out + "</main>\n</body>\n</html>\n"
}

/// The colour of each series.
fn series_style() -> String {
    (0..style::COLOURS)
        .map(|n| format!("svg .s{n} {{ --c: var(--c{n}); }}\n"))
        .collect()
}

/// Text for element content and quoted attributes.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}
