//! What the regulators did, as a table.

use maud::html;

use crate::throttling::{LEGEND, POOLED, pooled, throttling};

use super::page::{Page, Section};
use super::table::html_table;

pub(crate) fn section(page: &Page<'_>) -> Option<Section> {
    let result = page.result()?;
    let tables = [(throttling(result), LEGEND), (pooled(result), POOLED)];
    let body = html! {
        @for (table, legend) in &tables {
            @if let Some(table) = table { (html_table(table, legend)) }
        }
    };
    tables
        .iter()
        .any(|(table, _)| table.is_some())
        .then_some(Section {
            id: "throttling",
            title: "What the regulators did",
            body,
        })
}
