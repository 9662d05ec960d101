//! What the regulators did, as a table.

use crate::throttling::{LEGEND, POOLED, pooled, throttling};

use super::page::{Page, Section};
use super::table::html_table;

pub(crate) fn section(page: &Page<'_>) -> Option<Section> {
    let result = page.result()?;
    let tables = [(throttling(result), LEGEND), (pooled(result), POOLED)];
    let body: String = tables
        .iter()
        .filter_map(|(table, legend)| Some(html_table(table.as_ref()?, legend)))
        .collect();
    (!body.is_empty()).then_some(Section {
        id: "throttling",
        title: "What the regulators did",
        body,
    })
}
