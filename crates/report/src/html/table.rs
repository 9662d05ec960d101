//! Tables: the first column names the row and stays in sight while a wide table scrolls inside its frame.

use std::fmt::Write;

use crate::text::{Table, TableCell, Tone};

use super::escape;

pub(crate) fn html_table(table: &Table, caption: &str) -> String {
    let left = |index: usize| {
        if table.left.contains(&index) {
            " class=\"left\""
        } else {
            ""
        }
    };
    let mut out = format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{0}\"><table>\n<caption><span>{0}</span></caption>\n<thead><tr>",
        escape(caption)
    );
    for (index, head) in table.head.iter().enumerate() {
        let _ = write!(
            out,
            "<th scope=\"col\"{}>{}</th>",
            left(index),
            escape(head)
        );
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        out.push_str("<tr>");
        for (index, cell) in row.iter().enumerate() {
            if index == 0 {
                let _ = write!(out, "<th scope=\"row\">{}</th>", toned(cell));
            } else {
                let _ = write!(out, "<td{}>{}</td>", left(index), toned(cell));
            }
        }
        out.push_str("</tr>\n");
    }
    out + "</tbody></table></div>\n"
}

fn toned(cell: &TableCell) -> String {
    let text = escape(&cell.text);
    match cell.tone {
        Tone::Good => format!("<span class=\"good\">{text}</span>"),
        Tone::Bad => format!("<span class=\"bad\">{text}</span>"),
        Tone::Faint => format!("<span class=\"faint\">{text}</span>"),
        Tone::Plain | Tone::Title => text,
    }
}

/// Two columns: a name and what there is to say, as HTML.
pub(crate) fn facts(rows: &[(String, String)]) -> String {
    let mut out = String::from("<table class=\"prose\"><tbody>\n");
    for (name, html) in rows {
        let _ = writeln!(
            out,
            "<tr><th scope=\"row\">{}</th><td>{html}</td></tr>",
            escape(name)
        );
    }
    out + "</tbody></table>\n"
}
