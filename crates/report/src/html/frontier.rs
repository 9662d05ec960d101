//! The frontier: what the protected subject keeps against what the other one keeps, at the median and at the tail.

use crate::frontier::{Data, Point};
use crate::text::percent;
use crate::verdict::spoken_for;
use crate::view::{Spread, View, median_kept, tail_kept};

use super::chart::{Anchor, Area, Figure, Mark, Scale, Svg, Width, room};
use super::page::{Look, Page, Section, cap};

/// Which figure of a point is drawn.
type Pick = fn(&Point) -> Option<Spread>;

/// A configuration outside the families with caps.
struct Lone {
    name: String,
    look: Look,
    kept: f64,
    median: Option<Spread>,
    tail: Option<Spread>,
}

pub(crate) fn section(page: &Page<'_>) -> Option<Section> {
    let result = page.result()?;
    let data = Data::new(result, spoken_for(result))?;
    let view = View::new(result, spoken_for(result))?;
    let lone: Vec<Lone> = result
        .configurations
        .iter()
        .filter(|c| !view.is_baseline(c) && !c.name.contains('@'))
        .filter_map(|c| {
            let figures = view.protected(c)?;
            Some(Lone {
                name: c.name.clone(),
                look: page.look(&c.name),
                kept: view.kept(c)?,
                median: median_kept(figures),
                tail: tail_kept(figures),
            })
        })
        .collect();
    let tail = data
        .series
        .iter()
        .flat_map(|s| &s.points)
        .any(|p| p.tail.is_some());
    let names: Vec<&str> = data.series.iter().map(|s| s.name.as_str()).collect();
    let figure = Figure {
        id: "fig-frontier",
        title: "Protection against rate kept",
        shows: &format!(
            "What {} keeps of its solo speed, against what {} keeps of its rate, under {} at several caps.",
            data.protected,
            data.pays,
            names.join(" and ")
        ),
        reading: "Up is better protected, right is cheaper: the upper right corner would be free protection. At the same \
                  place from left to right, the higher point is the better mechanism. Labels are the caps; whiskers are the \
                  confidence interval; where they overlap, chance could have made the difference.",
    };
    let body = figure.render(|width| {
        let mut panels: Vec<(&str, Pick, Vec<(&Lone, Spread)>)> = Vec::new();
        let of = |pick: fn(&Lone) -> Option<Spread>| {
            lone.iter().filter_map(|l| Some((l, pick(l)?))).collect()
        };
        panels.push(("at the median", |p| Some(p.median), of(|l| l.median)));
        if tail {
            panels.push(("at the 99th percentile", |p| p.tail, of(|l| l.tail)));
        }
        draw(page, &data, &panels, width)
    });
    Some(Section {
        id: "frontier",
        title: "What protection costs",
        body,
    })
}

const TALL: f64 = 270.0;

fn draw(
    page: &Page<'_>,
    data: &Data,
    panels: &[(&str, Pick, Vec<(&Lone, Spread)>)],
    width: Width,
) -> Svg {
    let columns = width.columns(panels.len());
    let height = TALL + 74.0;
    let rows = panels.len().div_ceil(columns);
    let mut svg = Svg::new(width, height * rows as f64);
    // One scale for all panels: they are to be compared.
    let values = panels.iter().flat_map(|(_, pick, lone)| {
        let points = data.series.iter().flat_map(|s| &s.points).filter_map(pick);
        points.chain(lone.iter().map(|(_, s)| *s))
    });
    let high = values.map(|s| s.value).fold(1.0, f64::max);
    let most = if high > 1.05 { high * 1.08 } else { 1.08 };
    let step = width.units() / columns as f64;
    for (index, (heading, pick, lone)) in panels.iter().enumerate() {
        let (column, row) = (index % columns, index / columns);
        let top = 26.0 + height * row as f64;
        let area = Area {
            left: step * column as f64 + 52.0,
            right: step * (column + 1) as f64 - 14.0,
            top,
            bottom: top + TALL,
        };
        svg.text((area.left, top - 10.0), Anchor::Start, "strong", heading);
        let x = Scale::linear((0.0, 1.0), area.across());
        let y = Scale::linear((0.0, most), area.up());
        svg.rows(&area, &y, &y.ticks(6), true);
        let ticks: Vec<(f64, String)> = (0..=5)
            .map(|n| (f64::from(n) / 5.0, format!("{} %", n * 20)))
            .collect();
        svg.columns(&area, &x, &ticks, &format!("rate that {} keeps", data.pays));
        if column == 0 {
            let what = format!("{}: solo ÷ measured", data.protected);
            svg.upright((area.left - 40.0, (area.top + area.bottom) / 2.0), &what);
        }
        let one = y.at(1.0);
        svg.line("one", &[(area.left, one), (area.right, one)]);
        panel(&mut svg, page, data, *pick, (&area, &x, &y));
        for (lone, spread) in lone {
            let (at, class) = ((x.at(lone.kept), y.at(spread.value)), lone.look.class);
            whisker(&mut svg, at.0, &y, *spread);
            let title = format!(
                "{}: {:.2} at {} kept",
                lone.name,
                spread.value,
                percent(lone.kept)
            );
            svg.mark(lone.look.mark, class, at, &title);
            name(&mut svg, &area, (at.0, at.1 - 9.0), class, &lone.name);
        }
    }
    svg
}

/// A name at a place, moved inside the panel.
fn name(svg: &mut Svg, area: &Area, (x, y): (f64, f64), class: &str, text: &str) {
    let half = room(text) / 2.0;
    let x = x.clamp(area.left + half, (area.right - half).max(area.left + half));
    let y = y.max(area.top + 10.0);
    let class = format!("name strong halo {class}");
    svg.text((x, y), Anchor::Middle, &class, text);
}

fn whisker(svg: &mut Svg, x: f64, y: &Scale, spread: Spread) {
    if let Some(ci) = spread.ci {
        let (low, high) = (y.at(ci.low), y.at(ci.high));
        svg.line("whisker", &[(x, low), (x, high)]);
        for end in [low, high] {
            svg.line("whisker", &[(x - 3.0, end), (x + 3.0, end)]);
        }
    }
}

fn panel(
    svg: &mut Svg,
    page: &Page<'_>,
    data: &Data,
    pick: Pick,
    (area, x, y): (&Area, &Scale, &Scale),
) {
    // Labels go where they hide nothing: above the points of the first series, below those of the others.
    for (order, series) in data.series.iter().enumerate() {
        let look = page.look(&series.name);
        let class = look.class;
        let points: Vec<(&Point, Spread, (f64, f64))> = series
            .points
            .iter()
            .filter_map(|p| {
                let spread = pick(p)?;
                Some((p, spread, (x.at(p.kept), y.at(spread.value))))
            })
            .collect();
        let places: Vec<(f64, f64)> = points.iter().map(|(.., at)| *at).collect();
        let dash = if look.mark == Mark::Square {
            " dash"
        } else {
            ""
        };
        svg.line(&format!("line thin{dash} {class}"), &places);
        let mut last: Option<(f64, f64)> = None;
        for (point, spread, at) in &points {
            whisker(svg, at.0, y, *spread);
            let title = format!(
                "{}: {:.2} at {} kept",
                point.name,
                spread.value,
                percent(point.kept)
            );
            svg.mark(look.mark, class, *at, &title);
            let label = cap(&point.name);
            let near = last.is_some_and(|(lx, ly)| {
                (at.0 - lx).abs() < room(label) && (at.1 - ly).abs() < 13.0
            });
            if !near {
                let (dx, dy, anchor) = if order % 2 == 0 {
                    (-7.0, -6.0, Anchor::End)
                } else {
                    (7.0, 13.0, Anchor::Start)
                };
                let class = format!("name small halo {class}");
                svg.text((at.0 + dx, at.1 + dy), anchor, &class, label);
                last = Some(*at);
            }
        }
        if let Some((.., at)) = points.last() {
            let down = if order % 2 == 0 { -18.0 } else { 28.0 };
            name(svg, area, (at.0, at.1 + down), class, &series.name);
        }
    }
}
