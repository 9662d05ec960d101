//! Tables: the first column names the row and stays in sight while a wide table scrolls inside its frame.

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
