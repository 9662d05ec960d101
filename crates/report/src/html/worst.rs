//! The worst units and what they met, as a table.

use quell_record::worst::MOST;

use crate::worst::{LEGEND, table};

use super::page::{Page, Section};
use super::table::html_table;

pub(crate) fn section(page: &Page<'_>) -> Option<Section> {
    let table = table(page.result()?, MOST)?;
    Some(Section {
        id: "worst",
        title: "The worst units",
        body: html_table(&table, LEGEND),
    })
}
