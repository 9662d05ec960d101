//! Tables. The first column names the row, and remains visible while a wide table scrolls inside
//! its frame.

use maud::{Markup, html};

use crate::text::{Table, TableCell, Tone};

pub(crate) fn html_table(table: &Table, caption: &str) -> Markup {
    let left = |index: usize| table.left.contains(&index).then_some("left");
    html! {
        div.scroll tabindex="0" role="region" aria-label=(caption) {
            table {
                caption { span { (caption) } }
                thead {
                    tr {
                        @for (index, head) in table.head.iter().enumerate() {
                            th scope="col" class=[left(index)] { (head) }
                        }
                    }
                }
                tbody {
                    @for row in &table.rows {
                        tr {
                            @for (index, cell) in row.iter().enumerate() {
                                @if index == 0 {
                                    th scope="row" { (toned(cell)) }
                                } @else {
                                    td class=[left(index)] { (toned(cell)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A row of a table that folds.
pub(crate) struct Row {
    pub(crate) cells: Vec<TableCell>,
    /// The rows that it stands for. Empty for a plain row.
    pub(crate) inner: Vec<Vec<TableCell>>,
}

/// A table in which a row may stand for several and opens. Its last column is aligned left. All
/// columns but the first are equally wide, so that inner rows stand below the same heads.
pub(crate) fn folding_table(head: &[String], rows: &[Row], caption: &str) -> Markup {
    if rows.iter().all(|row| row.inner.is_empty()) {
        let table = Table {
            head: head.to_vec(),
            rows: rows.iter().map(|row| row.cells.clone()).collect(),
            left: vec![head.len().saturating_sub(1)],
        };
        return html_table(&table, caption);
    }
    let last = head.len().saturating_sub(1);
    let left = |index: usize| (index == last).then_some("left");
    let plain = |cells: &[TableCell]| {
        html! {
            tr {
                @for (index, cell) in cells.iter().enumerate() {
                    @if index == 0 {
                        th scope="row" { (toned(cell)) }
                    } @else {
                        td class=[left(index)] { (toned(cell)) }
                    }
                }
            }
        }
    };
    html! {
        div.scroll.folding tabindex="0" role="region" aria-label=(caption) {
            p.faint { (caption) }
            table {
                thead {
                    tr {
                        @for (index, head) in head.iter().enumerate() {
                            th scope="col" class=[left(index)] { (head) }
                        }
                    }
                }
                tbody {
                    @for row in rows {
                        @if row.inner.is_empty() {
                            (plain(&row.cells))
                        } @else {
                            tr {
                                td.several colspan=(head.len()) {
                                    details.print {
                                        summary {
                                            @for (index, cell) in row.cells.iter().enumerate() {
                                                span class=[left(index)] { (toned(cell)) } " "
                                            }
                                        }
                                        table { tbody { @for cells in &row.inner { (plain(cells)) } } }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn toned(cell: &TableCell) -> Markup {
    let class = match cell.tone {
        Tone::Good => "good",
        Tone::Bad => "bad",
        Tone::Faint => "faint",
        Tone::Plain | Tone::Title => return html! { (cell.text) },
    };
    html! { span class=(class) { (cell.text) } }
}

/// Two columns: a name and what there is to say.
pub(crate) fn facts(rows: &[(String, Markup)]) -> Markup {
    html! {
        table.prose {
            tbody {
                @for (name, said) in rows {
                    tr { th scope="row" { (name) } td { (said) } }
                }
            }
        }
    }
}
