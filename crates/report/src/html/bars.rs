//! Normalized performance of every subject under every configuration, with the interval over
//! rounds.

use quell_record::result::{ConfigurationResult, Subset};

use crate::text::percent;
use crate::view::{Spread, median_kept, tail_kept};

use super::chart::{Anchor, Area, Figure, Scale, Svg, Width, room};
use super::page::{Page, Section};
use super::published::{PublishedMark, marks};

const ROW: f64 = 26.0;
const BAR: f64 = 9.0;

/// One subject's panel, with a bar per configuration.
struct Panel {
    subject: String,
    tail: bool,
    rows: Vec<Vec<Spread>>,
    /// Per configuration, what was published.
    published: Vec<Vec<PublishedMark>>,
}

pub(crate) fn section(page: &Page<'_>) -> Option<Section> {
    let view = page.view?;
    let result = view.result;
    let shown: Vec<&ConfigurationResult> = result
        .configurations
        .iter()
        .filter(|c| !view.is_baseline(c))
        .collect();
    let mut subjects: Vec<&str> = Vec::new();
    for subject in shown.iter().flat_map(|c| &c.subjects) {
        if !subjects.contains(&subject.name.as_str()) {
            subjects.push(&subject.name);
        }
    }
    let panels: Vec<Panel> = subjects
        .iter()
        .filter_map(|subject| {
            let figures = |c: &ConfigurationResult| view.figures(c, subject).cloned();
            let rows: Vec<Vec<Spread>> = shown
                .iter()
                .map(|c| {
                    let figures = figures(c);
                    let median = figures.as_ref().and_then(median_kept);
                    median
                        .into_iter()
                        .chain(figures.as_ref().and_then(tail_kept))
                        .collect()
                })
                .collect();
            rows.iter().any(|r| !r.is_empty()).then(|| Panel {
                subject: (*subject).to_owned(),
                tail: rows.iter().any(|r| r.len() > 1),
                published: shown
                    .iter()
                    .map(|c| marks(result, &c.name, subject))
                    .collect(),
                rows,
            })
        })
        .collect();
    if panels.is_empty() {
        return None;
    }
    let rounds = if view.subset == Subset::Shared {
        "rounds with a shared cache"
    } else {
        "all rounds"
    };
    let baseline = result.baseline.as_deref().unwrap_or("solo");
    let confidence = percent(result.confidence);
    let diamonds = if panels.iter().flat_map(|p| &p.published).all(Vec::is_empty) {
        ""
    } else {
        "Diamonds are published figures. "
    };
    let figure = Figure {
        id: "fig-bars",
        title: "Normalized performance by configuration and subject",
        shows: &format!(
            "Performance of every subject under every configuration, as a part of what it is in '{baseline}', over {rounds}."
        ),
        reading: &format!(
            "1 (dotted line) is as fast as in '{baseline}', longer is better. {diamonds}Solid bars are medians or mean rates, pale ones \
             the 99th percentile. Whiskers are {confidence} intervals over rounds; an arrow leaves the scale."
        ),
    };
    Some(Section {
        id: "performance",
        title: "Who gains and who pays",
        body: figure.render(|width| draw(page, &shown, &panels, width)),
    })
}

fn draw(page: &Page<'_>, shown: &[&ConfigurationResult], panels: &[Panel], width: Width) -> Svg {
    let columns = width.columns(panels.len().min(2));
    let label = shown.iter().map(|c| room(&c.name)).fold(0.0, f64::max) + 8.0;
    let tall = ROW * shown.len() as f64;
    let block = tall + 78.0;
    let mut svg = Svg::new(width, block * panels.len().div_ceil(columns) as f64);
    let step = (width.units() - label) / columns as f64;
    for (index, panel) in panels.iter().enumerate() {
        let (column, line) = (index % columns, index / columns);
        let top = 28.0 + block * line as f64;
        let left = label + step * column as f64;
        let area = Area {
            left,
            right: left + step - if column + 1 < columns { 64.0 } else { 46.0 },
            top,
            bottom: top + tall,
        };
        let high = panel
            .rows
            .iter()
            .flatten()
            .map(|s| s.value)
            .chain(
                panel
                    .published
                    .iter()
                    .flatten()
                    .map(PublishedMark::performance),
            )
            .fold(0.0, f64::max);
        let most = if high > 1.0 { high * 1.15 } else { 1.08 };
        let x = Scale::linear(0.0..most, area.across());
        let wanted = if area.right - area.left > 220.0 { 6 } else { 4 };
        svg.text(
            area.left,
            top - 12.0,
            Anchor::Start,
            "strong",
            &panel.subject,
        );
        svg.columns(&area, &x, &x.ticks(wanted), "normalized performance");
        svg.line("one", &[(x.at(1.0), area.top), (x.at(1.0), area.bottom)]);
        for (row, (configuration, bars)) in shown.iter().zip(&panel.rows).enumerate() {
            let middle = top + ROW * (row as f64 + 0.5);
            if column == 0 {
                svg.text(
                    left - 8.0,
                    middle + 4.0,
                    Anchor::End,
                    "",
                    &configuration.name,
                );
            }
            if bars.is_empty() {
                let why = if configuration.refused.is_empty() {
                    "not measured"
                } else {
                    "refused"
                };
                svg.text(area.left + 4.0, middle + 4.0, Anchor::Start, "small", why);
            }
            let class = page.appearance(&configuration.name).class;
            for (order, spread) in bars.iter().enumerate() {
                let shift = match (bars.len(), order) {
                    (1, _) => 0.0,
                    (_, 0) => -BAR / 2.0 - 0.5,
                    _ => BAR / 2.0 + 0.5,
                };
                bar(&mut svg, &area, &x, middle + shift, class, order, *spread);
            }
        }
        for (row, published) in panel.published.iter().enumerate() {
            for mark in published {
                mark.draw(&mut svg, &x, top + ROW * (row as f64 + 0.5));
            }
        }
        svg.line("base", &[(area.left, area.top), (area.left, area.bottom)]);
        if panel.tail && column == 0 {
            svg.text(
                area.right,
                top - 12.0,
                Anchor::End,
                "small",
                "solid p50, pale p99",
            );
        }
    }
    svg
}

fn bar(svg: &mut Svg, area: &Area, x: &Scale, y: f64, class: &str, order: usize, spread: Spread) {
    let kind = if order == 0 { "fill" } else { "pale" };
    let width = (x.at(spread.value) - area.left).max(0.5);
    svg.rect(
        &format!("{kind} {class}"),
        area.left,
        y - BAR / 2.0,
        width,
        BAR,
    );
    let mut end = x.at(spread.value);
    if let Some(ci) = spread.ci {
        let (low, high) = (x.at(ci.low), x.at(ci.high));
        svg.line("whisker", &[(low, y), (high, y)]);
        if ci.high > spread.value && high >= area.right - 0.05 {
            svg.line(
                "whisker",
                &[(high - 4.0, y - 3.0), (high, y), (high - 4.0, y + 3.0)],
            );
        } else {
            svg.line("whisker", &[(high, y - 3.0), (high, y + 3.0)]);
        }
        end = end.max(high);
    }
    svg.text(
        end + 5.0,
        y + 4.0,
        Anchor::Start,
        "value halo",
        &format!("{:.2}", spread.value),
    );
}
