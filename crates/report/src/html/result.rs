//! The table of the result, over all rounds and over those with a shared cache. Configurations that
//! no measurement distinguishes are one row that opens.

use maud::{Markup, html};
use quell_record::result::{CompareResult, ConfigurationResult, Subset};

use crate::alike::alike;
use crate::columns::Columns;
use crate::compare::{footnote, partly_shared};
use crate::text::list;

use super::page::{Page, Section};
use super::table::{Row, folding_table};

/// Of more names than this only the first and the last are written.
const MOST_NAMES: usize = 3;

pub(crate) fn section(page: &Page<'_>) -> Option<Section> {
    let result = page.result()?;
    let shared = partly_shared(result)
        .then(|| {
            table(
                result,
                Subset::Shared,
                "Only rounds in which the subjects' CPUs shared a cache before and after the cell.",
            )
        })
        .flatten();
    let all = table(
        result,
        Subset::All,
        &format!("All rounds. {}", footnote(result)),
    )?;
    Some(Section {
        id: "result",
        title: "Result",
        body: html! { (all) (shared.unwrap_or_default()) },
    })
}

fn table(result: &CompareResult, subset: Subset, caption: &str) -> Option<Markup> {
    let columns = Columns::new(result, subset)?;
    let rows: Vec<Row> = alike(&columns.view)
        .iter()
        .map(|members| Row {
            cells: match members.as_slice() {
                [one] => columns.row(one),
                several => columns.row_of(&names(several), several),
            },
            inner: match members.as_slice() {
                [_] => Vec::new(),
                several => several.iter().map(|c| columns.row(c)).collect(),
            },
        })
        .collect();
    let folded = rows.iter().any(|row| !row.inner.is_empty());
    let reading = if folded {
        " A row that opens stands for configurations whose intervals overlap, from the smallest to the largest value: \
         chance could have made their differences."
    } else {
        ""
    };
    Some(folding_table(
        &columns.head(),
        &rows,
        &format!("{caption}{reading}"),
    ))
}

/// The names of consecutive configurations: `cores and cpu-max@10% to 70%`.
fn names(members: &[&ConfigurationResult]) -> String {
    let families: Vec<_> = members.chunk_by(|a, b| a.family() == b.family()).collect();
    let named = |family: &&[&ConfigurationResult]| match family {
        [first, .., last] => format!("{} to {}", first.name, last.label()),
        one => one.iter().map(|c| c.name.as_str()).collect(),
    };
    let all: Vec<String> = families.iter().map(named).collect();
    match members {
        [first, .., last] if all.len() > MOST_NAMES => {
            format!("{} to {} ({})", first.name, last.name, members.len())
        }
        _ => format!("{} ({})", list(&all), members.len()),
    }
}
