//! A metric over an axis of sizes or numbers: a curve per subject and value of the other axes, and
//! the table.

use maud::html;

use crate::curve::{Curves, Point};
use crate::text::{number, unit};

use super::chart::{Anchor, Area, Figure, LOOKS, Scale, Svg, Width, room, spread};
use super::page::{Page, Section};
use super::table::html_table;

const TALL: f64 = 330.0;
/// The distance of two lines of text.
const LINE: f64 = 16.0;

pub(crate) fn section(page: &Page<'_>) -> Option<Section> {
    let result = page.result()?;
    let curves = Curves::new(result)?;
    let figure = Figure {
        id: "fig-curve",
        title: &format!("{} over {}", curves.metric, curves.axis),
        shows: &format!(
            "Median {} over {}, a curve per subject{}.",
            curves.metric,
            curves.axis,
            if curves.others {
                " and value of the other axes"
            } else {
                ""
            }
        ),
        reading: "Both scales are logarithmic: every step to the right is as many times larger. Whiskers are the confidence \
                  interval over rounds; where those of two curves overlap, chance could have made the difference.",
    };
    let body = html! {
        (figure.render(|width| draw(&curves, width)))
        (html_table(&curves.table(), "Medians; ± is half the confidence interval over rounds"))
    };
    Some(Section {
        id: "curve",
        title: "Along the axis",
        body,
    })
}

fn draw(curves: &Curves, width: Width) -> Svg {
    let names = curves.series.iter().map(|(name, _)| room(name));
    let widest = names.fold(0.0, f64::max);
    // On a page names stand at the ends of the curves, on a phone above them.
    let beside = width == Width::Wide;
    let top = if beside {
        12.0
    } else {
        LINE * curves.series.len() as f64 + 14.0
    };
    let area = Area {
        left: 62.0,
        right: width.units() - if beside { widest + 22.0 } else { 14.0 },
        top,
        bottom: top + TALL,
    };
    let mut svg = Svg::new(width, area.bottom + 42.0);
    let points = || curves.series.iter().flat_map(|(_, points)| points);
    let ends = |p: &Point| {
        p.ci.map_or([p.y, p.y], |ci| [ci.low.min(p.y), ci.high.max(p.y)])
    };
    let (Some(x), Some(y)) = (
        Scale::fitting(points().map(|p| p.x), area.across()),
        Scale::fitting(points().flat_map(ends), area.up()),
    ) else {
        return svg;
    };
    svg.rows(&area, &y, &y.ticks(8), true);
    let ticks: Vec<(f64, String)> = curves
        .places()
        .into_iter()
        .map(|(at, label)| (at, label.to_owned()))
        .collect();
    svg.columns(&area, &x, &ticks, &curves.axis);
    let unit = unit(&curves.metric);
    let of = curves.metric.trim_end_matches(&format!("_{unit}"));
    let what = format!("median {of} ({unit})");
    svg.upright(area.left - 50.0, (area.top + area.bottom) / 2.0, &what);
    let looks = || LOOKS.into_iter().cycle();
    for ((name, points), (class, mark)) in curves.series.iter().zip(looks()) {
        let place = |p: &Point| (x.at(p.x), y.at(p.y));
        let places: Vec<(f64, f64)> = points.iter().map(place).collect();
        svg.line(&format!("line {class}"), &places);
        for point in points {
            let at = place(point);
            if let Some(ci) = point.ci {
                let ends = [(at.0, y.at(ci.low)), (at.0, y.at(ci.high))];
                svg.line(&format!("whisker {class}"), &ends);
            }
            let title = format!("{name}, {}: {}", point.label, number(point.y));
            svg.mark(mark, class, at.0, at.1, &title);
        }
    }
    let last = |points: &[Point]| points.last().map_or(area.top, |p| y.at(p.y));
    let wanted: Vec<f64> = curves.series.iter().map(|(_, p)| last(p)).collect();
    let placed = spread(&wanted, LINE, area.top..area.bottom);
    let named = curves.series.iter().zip(looks()).zip(placed);
    for (row, (((name, points), (class, mark)), at)) in named.enumerate() {
        let class_of_name = format!("name {class}");
        if beside {
            if let Some(end) = points.last() {
                let lead = [(x.at(end.x) + 5.0, y.at(end.y)), (area.right + 10.0, at)];
                svg.line("lead", &lead);
            }
            let x = area.right + 14.0;
            svg.text(x, at + 4.0, Anchor::Start, &class_of_name, name);
        } else {
            let at = 10.0 + LINE * row as f64;
            svg.mark(mark, class, area.left + 4.0, at - 4.0, name);
            svg.text(area.left + 14.0, at, Anchor::Start, &class_of_name, name);
        }
    }
    svg
}
