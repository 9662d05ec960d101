//! What the regulators did, as a table.

use crate::throttling::{LEGEND, throttling};

use super::page::{Page, Section};
use super::table::html_table;

pub(crate) fn section(page: &Page<'_>) -> Option<Section> {
    let table = throttling(page.result()?)?;
    Some(Section {
        id: "throttling",
        title: "What the regulators did",
        body: html_table(&table, LEGEND),
    })
}
