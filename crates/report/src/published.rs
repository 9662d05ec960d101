//! Published figures next to the measured ones: the table, its legend, and a line for each that
//! `compare --check` fails for.

use quell_policy::experiment::PublishedFigure;
use quell_record::published::{Direction, Fault, PublishedChange, PublishedResult};
use quell_record::result::CompareResult;
use quell_types::stats::{Better, Interval};

use crate::text::{Style, Table, TableCell, Tone, normalized, number, percent, spread};

/// What the words of the last column mean.
pub(crate) const LEGEND: &str = "Change: this configuration ÷ the one in `against`, ours within rounds. Right: both go the same way. \
                                 Flat: no change was published. Unclear: our interval contains ×1.";

/// The table with its legend, sources and notes; empty without published figures.
pub(crate) fn text(result: &CompareResult, style: Style) -> String {
    let Some(table) = table(result) else {
        return String::new();
    };
    let mut out = format!(
        "\n{}",
        style.paint(Tone::Title, "Published figures next to ours")
    );
    out.push('\n');
    out.push_str(&table.render(style));
    for sentence in remarks(result) {
        out.push_str(&style.wrap("", "  ", &sentence));
    }
    out
}

/// One row per published figure; `None` without any.
pub(crate) fn table(result: &CompareResult) -> Option<Table> {
    let changes = result.published.iter().any(|row| row.change.is_some());
    let mut head = vec![
        "configuration",
        "subject",
        "metric",
        "published",
        "ours",
        "ours ÷ published",
    ];
    if changes {
        head.extend(["against", "published change", "our change", "direction"]);
    }
    let rows = result.published.iter().map(|row| {
        let mut cells = vec![
            TableCell::new(&row.configuration),
            TableCell::new(&row.subject),
            TableCell::new(metric(row)),
            TableCell::new(figure(row, Some(row.published), None)),
            TableCell::new(figure(row, row.measured, row.measured_ci95)),
            ratio(row),
        ];
        if changes {
            cells.extend(change(row.change.as_ref()));
        }
        cells
    });
    let table = Table {
        rows: rows.collect(),
        left: vec![1, 2, 6, 9],
        head: head.into_iter().map(str::to_owned).collect(),
    };
    (!table.rows.is_empty()).then_some(table)
}

/// What is to be read below the table: the legend, the sources, what is known to be wrong.
pub(crate) fn remarks(result: &CompareResult) -> Vec<String> {
    let mut said = Vec::new();
    if result.published.iter().any(|row| row.change.is_some()) {
        said.push(LEGEND.to_owned());
    }
    let mut sources: Vec<&str> = Vec::new();
    for row in &result.published {
        if !sources.contains(&row.source.as_str()) {
            sources.push(&row.source);
        }
    }
    said.extend(sources.iter().map(|source| format!("Source: {source}.")));
    // Rows that share a note are named together.
    let mut notes: Vec<(&str, Vec<String>)> = Vec::new();
    for row in &result.published {
        let known = row.change.as_ref().and_then(|c| c.known.as_deref());
        let Some(why) = known else { continue };
        let name = format!("{}, {}", row.configuration, row.subject);
        match notes.iter_mut().find(|(note, _)| *note == why) {
            Some((_, rows)) if rows.contains(&name) => {}
            Some((_, rows)) => rows.push(name),
            None => notes.push((why, vec![name])),
        }
    }
    said.extend(
        notes
            .iter()
            .map(|(why, rows)| format!("Known ({}): {why}.", rows.join("; "))),
    );
    said
}

/// The metric, and which figure of it unless that is its value.
fn metric(row: &PublishedResult) -> String {
    match row.figure {
        PublishedFigure::Value => row.metric.clone(),
        other => format!("{} {}", row.metric, other.name()),
    }
}

fn figure(row: &PublishedResult, value: Option<f64>, interval: Option<Interval>) -> String {
    match row.figure {
        PublishedFigure::Normalized => normalized(value, interval),
        _ => spread(value, interval),
    }
}

fn ratio(row: &PublishedResult) -> TableCell {
    let Some(ratio) = row.ratio else {
        return TableCell::tone("–", Tone::Faint);
    };
    let ratio = number(ratio);
    match (row.near(), row.size) {
        (Some(true), Some(size)) => {
            let text = format!("{ratio}, within {}", percent(size));
            TableCell::tone(text, Tone::Good)
        }
        (Some(false), Some(size)) => {
            let text = format!("{ratio}, NOT within {}", percent(size));
            TableCell::tone(text, Tone::Bad)
        }
        _ => TableCell::new(ratio),
    }
}

fn factor(value: Option<f64>, interval: Option<Interval>) -> String {
    match value {
        Some(_) => format!("×{}", normalized(value, interval)),
        None => "–".to_owned(),
    }
}

/// The columns about the change.
fn change(change: Option<&PublishedChange>) -> [TableCell; 4] {
    let none = || TableCell::tone("–", Tone::Faint);
    let Some(change) = change else {
        return [none(), none(), none(), none()];
    };
    let known = change.known.is_some();
    let direction = match (change.direction, known) {
        (None, _) => none(),
        (Some(Direction::Right), false) => TableCell::tone("right", Tone::Good),
        (Some(Direction::Right), true) => TableCell::tone("right, NOTED AS WRONG", Tone::Bad),
        (Some(Direction::Wrong), false) => TableCell::tone("WRONG", Tone::Bad),
        (Some(Direction::Wrong), true) => TableCell::new("wrong, known"),
        (Some(other), _) => TableCell::tone(other.name(), Tone::Faint),
    };
    [
        TableCell::new(&change.against),
        TableCell::new(factor(Some(change.published), None)),
        TableCell::new(factor(change.measured, change.measured_ci95)),
        direction,
    ]
}

/// One line for each published figure that `compare --check` fails for.
#[must_use]
pub fn published_faults(result: &CompareResult) -> Vec<String> {
    let all = result.published.iter();
    all.flat_map(|row| row.faults().into_iter().map(move |fault| line(row, fault)))
        .collect()
}

fn line(row: &PublishedResult, fault: Fault) -> String {
    let name = format!("{}, {}, {}", row.configuration, row.subject, metric(row));
    let change = row.change.as_ref();
    let against = change.map_or("", |c| c.against.as_str());
    let published = factor(change.map(|c| c.published), None);
    let ours = factor(
        change.and_then(|c| c.measured),
        change.and_then(|c| c.measured_ci95),
    );
    match fault {
        Fault::Direction => format!(
            "{name}: the direction is wrong: {published} of {against} was published, ours is {ours}"
        ),
        Fault::Known => format!(
            "{name}: the direction is right ({published} of {against} published, ours {ours}); remove `known`"
        ),
        Fault::Size => format!(
            "{name}: {} was published, ours is {}, not within {}",
            figure(row, Some(row.published), None),
            figure(row, row.measured, row.measured_ci95),
            percent(row.size.unwrap_or_default()),
        ),
    }
}

/// A published figure as performance against the baseline, where it or the baseline's row says it.
pub(crate) fn published_performance(result: &CompareResult, row: &PublishedResult) -> Option<f64> {
    if row.figure == PublishedFigure::Normalized {
        return Some(row.published);
    }
    let baseline = result.baseline.as_deref()?;
    let same = |other: &&PublishedResult| {
        other.configuration == baseline
            && other.subject == row.subject
            && other.metric == row.metric
            && other.figure == row.figure
    };
    let alone = result.published.iter().find(same)?.published;
    let subject = result
        .configuration(&row.configuration)?
        .subject(&row.subject)?;
    Some(match subject.better {
        Better::Lower => alone / row.published,
        Better::Higher => row.published / alone,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn published_figures_are_a_table_with_legend_and_notes() {
        let result = sample::published(sample::result());
        sample::golden("published", &text(&result, Style::default()));
        assert_eq!(text(&sample::result(), Style::default()), "");
    }

    #[test]
    fn every_fault_is_one_line() {
        let mut result = sample::published(sample::result());
        assert_eq!(
            published_faults(&result),
            [
                "none, neighbour, bandwidth_mb_s: 20,000 was published, ours is 36,800, not within 25 %"
            ]
        );
        for row in &mut result.published {
            if let Some(change) = &mut row.change {
                change.known = change.known.is_none().then(|| "so it is".to_owned());
            }
        }
        let lines = published_faults(&result);
        assert_eq!(
            lines[0],
            "none, victim, latency_ns normalized: the direction is right (×0.50 of solo published, ours ×0.09 ±0.01); remove `known`"
        );
        assert!(
            lines
                .iter()
                .any(|l| l.contains("wrong: ×2.00 of none was published, ours is ×0.97")),
            "{lines:?}"
        );
    }

    #[test]
    fn a_figure_is_performance_where_the_baseline_was_published() {
        let result = sample::published(sample::result());
        let all: Vec<Option<f64>> = result
            .published
            .iter()
            .map(|row| published_performance(&result, row))
            .collect();
        assert_eq!(all[1], Some(0.5), "normalized as it is");
        assert_eq!(all.last(), Some(&None), "alone, nothing was published");
    }
}
