//! Published figures next to the measured ones.

use maud::html;
use quell_policy::experiment::PublishedFigure;
use quell_record::result::CompareResult;

use crate::published::{published_performance, remarks, table};

use super::chart::{Mark, Scale, Svg};
use super::page::{Page, Section};
use super::table::html_table;

pub(crate) fn section(page: &Page<'_>) -> Option<Section> {
    let result = page.result()?;
    let table = table(result)?;
    Some(Section {
        id: "published",
        title: "What was published",
        body: html! {
            (html_table(&table, "Published figures next to ours."))
            ul { @for sentence in remarks(result) { li { (sentence) } } }
        },
    })
}

/// A published figure that has a place in a chart of normalized performance.
pub(crate) struct PublishedMark {
    performance: f64,
    title: String,
}

impl PublishedMark {
    pub(crate) fn performance(&self) -> f64 {
        self.performance
    }

    pub(crate) fn draw(&self, svg: &mut Svg, x: &Scale, y: f64) {
        svg.mark(Mark::Diamond, "s7", x.at(self.performance), y, &self.title);
    }
}

/// The published figures of a subject's main metric under a configuration: its mean, median or
/// 99th percentile, as the chart has bars for.
pub(crate) fn marks(
    result: &CompareResult,
    configuration: &str,
    subject: &str,
) -> Vec<PublishedMark> {
    use PublishedFigure::{Normalized, P50, P99, Value};
    let measured = result.configuration(configuration);
    let Some(measured) = measured.and_then(|c| c.subject(subject)) else {
        return Vec::new();
    };
    let shown = result.published.iter().filter(|row| {
        row.configuration == configuration
            && row.subject == subject
            && row.metric == measured.metric
            && [Normalized, P50, P99, Value].contains(&row.figure)
    });
    shown
        .filter_map(|row| {
            let performance = published_performance(result, row)?;
            let title = format!(
                "{configuration}: published {performance:.2} ({})",
                row.source
            );
            Some(PublishedMark { performance, title })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use crate::html::html;
    use crate::sample;

    #[test]
    fn the_page_has_published_figures_as_table_and_marks() {
        let mut record = sample::record();
        let without = html(&record);
        record.result = record.result.map(sample::published);
        let page = html(&record);
        // Of three bars' rows each, on a page and on a phone; a refused one has no place.
        let title = "<title>cpu-max@10%: published 1.00 (A study, table 1)</title>";
        assert_eq!(page.matches(title).count(), 2);
        assert_eq!(page.matches(": published ").count(), 2 * 3);
        for needed in [
            "What was published",
            "Diamonds are published figures.",
            "Known (cpu-max@10%, victim): the model has no such effect.",
            "wrong, known",
            "1.84, NOT within 25 %",
        ] {
            assert!(page.contains(needed), "{needed}");
            assert!(!without.contains(needed), "{needed}");
        }
    }
}
