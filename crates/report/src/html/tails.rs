//! The distribution of the protected subject's windows, on scales that show the tail. Percentiles
//! are drawn by their distance from 100 %, as in HdrHistogram's plots, and values logarithmically.

use quell_record::result::ConfigurationResult;
use quell_types::stats::Better;
use quell_types::stats::{percentile, sorted};

use crate::text::{thousands, unit};

use super::chart::{Anchor, Area, Axes, Figure, Scale, Svg, Width, room, spread};
use super::page::{Page, Section};

/// How many points a curve has.
const POINTS: i32 = 120;
/// With fewer windows than this beyond a point, its value is as much chance as law.
const ENOUGH: f64 = 10.0;

struct Curve {
    configuration: String,
    family: String,
    /// The text at its end.
    label: String,
    class: &'static str,
    /// Whether it is drawn in every panel, for comparison.
    reference: bool,
    /// Nines → value, and whether enough windows lie beyond.
    points: Vec<(f64, f64, bool)>,
}

struct Panel<'c> {
    name: String,
    curves: Vec<&'c Curve>,
}

pub(crate) fn section(page: &Page<'_>) -> Option<Section> {
    let view = page.view?;
    let better = view
        .result
        .configurations
        .iter()
        .find_map(|c| c.subject(view.protected))
        .map_or(Better::Lower, |s| s.better);
    let curve = |c: &ConfigurationResult, reference| -> Option<Curve> {
        let spans = page.spans(&c.name, view.protected);
        let mut windows: Vec<f64> = spans.flat_map(|s| s.values.iter().copied()).collect();
        windows.retain(|v| v.is_finite());
        let points = points(&windows, better);
        (!points.is_empty()).then(|| Curve {
            configuration: c.name.clone(),
            family: c.family().to_owned(),
            label: if reference { &c.name } else { c.label() }.to_owned(),
            class: page.appearance(&c.name).class,
            reference,
            points,
        })
    };
    let curves: Vec<Curve> = page
        .families
        .iter()
        .flat_map(|f| f.members.iter().map(move |c| (c, f.members.len() == 1)))
        .filter_map(|(c, alone)| curve(c, alone))
        .collect();
    let most = curves
        .iter()
        .flat_map(|c| &c.points)
        .map(|p| p.0)
        .fold(0.0, f64::max);
    if curves.is_empty() || most <= 0.0 {
        return None;
    }
    let panels = panels(page, &curves);
    let count = |name: &str| -> usize {
        page.spans(name, view.protected)
            .map(|s| s.values.len())
            .sum()
    };
    let windows = curves
        .iter()
        .map(|c| count(&c.configuration))
        .min()
        .unwrap_or(0);
    let worse = match better {
        Better::Lower => "at or below",
        Better::Higher => "at or above",
    };
    let figure = Figure {
        id: "fig-tails",
        title: "Distribution of windows to the tail",
        shows: &format!(
            "How the windows of {} are distributed, all rounds together ({} windows or more per configuration).",
            view.protected,
            thousands(&windows.to_string())
        ),
        reading: &format!(
            "At p99 a curve stands at the value that 99 of 100 windows are {worse}; each step to the right is ten times rarer. \
             Flat and near 'solo' is good; a curve that leaves at the right is a tail. Dots: fewer than ten windows lie \
             beyond, take that part as a hint. Labels name the caps, strictest drawn strongest."
        ),
    };
    let unit = unit(view.metric());
    let what = format!(
        "{} ({unit} per window)",
        view.metric().trim_end_matches(&format!("_{unit}"))
    );
    Some(Section {
        id: "tails",
        title: "How late is late",
        body: figure.render(|width| draw(&panels, most, &what, width)),
    })
}

/// A panel for each family of several members. The references are in each of them.
fn panels<'c>(page: &Page<'_>, curves: &'c [Curve]) -> Vec<Panel<'c>> {
    let references: Vec<&Curve> = curves.iter().filter(|c| c.reference).collect();
    let mut panels: Vec<Panel<'c>> = page
        .families
        .iter()
        .filter(|f| f.members.len() > 1)
        .map(|f| Panel {
            name: f.name.to_owned(),
            curves: curves
                .iter()
                .filter(|c| !c.reference && c.family == f.name)
                .collect(),
        })
        .filter(|p| !p.curves.is_empty())
        .collect();
    if panels.is_empty() {
        panels.push(Panel {
            name: String::new(),
            curves: Vec::new(),
        });
    }
    for panel in &mut panels {
        panel.curves.extend(&references);
    }
    panels
}

/// Nines (1 = 90 %, 2 = 99 %, …) → value, as far as there are windows.
fn points(windows: &[f64], better: Better) -> Vec<(f64, f64, bool)> {
    let ordered = sorted(windows);
    let count = ordered.len() as f64;
    if count < 2.0 {
        return Vec::new();
    }
    let most = count.log10().min(3.0);
    (0..=POINTS)
        .filter_map(|n| {
            let nines = 3.0 * f64::from(n) / f64::from(POINTS);
            if nines > most {
                return None;
            }
            let beyond = 10f64.powf(-nines);
            let p = 100.0 * (1.0 - beyond);
            let value = match better {
                Better::Lower => percentile(&ordered, p),
                Better::Higher => percentile(&ordered, 100.0 - p),
            }?;
            Some((nines, value, count * beyond >= ENOUGH))
        })
        .collect()
}

const TALL: f64 = 260.0;

fn draw(panels: &[Panel<'_>], most: f64, what: &str, width: Width) -> Svg {
    let columns = width.columns(panels.len().min(2));
    let block = TALL + 78.0;
    let mut svg = Svg::new(width, block * panels.len().div_ceil(columns) as f64);
    let step = width.units() / columns as f64;
    let all = || panels.iter().flat_map(|p| &p.curves);
    let wide = all().map(|c| room(&c.label)).fold(0.0, f64::max);
    for (index, panel) in panels.iter().enumerate() {
        let (column, line) = (index % columns, index / columns);
        let top = 28.0 + block * line as f64;
        let area = Area {
            left: step * column as f64 + 62.0,
            right: step * (column + 1) as f64 - wide - 18.0,
            top,
            bottom: top + TALL,
        };
        let values = all().flat_map(|c| c.points.iter().map(|p| p.1));
        let Some(y) = Scale::fitting(values, area.up()) else {
            continue;
        };
        let x = Scale::linear(0.0..most, area.across());
        svg.text(area.left, top - 12.0, Anchor::Start, "strong", &panel.name);
        svg.rows(&area, &y, &y.ticks(7), true);
        let ticks: Vec<(f64, String)> =
            [(0.301, "p50"), (1.0, "p90"), (2.0, "p99"), (3.0, "p99.9")]
                .into_iter()
                .filter(|(nines, _)| *nines <= most + 1e-9)
                .map(|(nines, name)| (nines, name.to_owned()))
                .collect();
        svg.columns(&area, &x, &ticks, "percentile of windows, best to worst");
        if column == 0 {
            svg.upright(area.left - 50.0, (area.top + area.bottom) / 2.0, what);
        }
        let axes = area.axes(&x, &y);
        curves(&mut svg, &panel.curves, axes);
    }
    svg
}

fn curves(svg: &mut Svg, curves: &[&Curve], axes: Axes<'_>) {
    let Axes { area, x, y } = axes;
    let strong = curves.iter().filter(|c| !c.reference).count().max(1) as f64;
    let mut ends = Vec::new();
    let mut nth = 0.0;
    for curve in curves {
        let class = if curve.reference {
            format!("line dash {}", curve.class)
        } else {
            nth += 1.0;
            let step = ((nth - 1.0) / strong * 3.99f64).floor();
            format!("line o{step:.0} {}", curve.class)
        };
        let place = |p: &(f64, f64, bool)| (x.at(p.0), y.at(p.1));
        let sure: Vec<(f64, f64)> = curve.points.iter().filter(|p| p.2).map(place).collect();
        let mut rest: Vec<(f64, f64)> = curve.points.iter().filter(|p| !p.2).map(place).collect();
        if let Some(last) = sure.last() {
            rest.insert(0, *last);
        }
        svg.line(&class, &sure);
        svg.line(&format!("line dots {}", curve.class), &rest);
        ends.extend(curve.points.last().map(|p| (place(p), *curve)));
    }
    let wanted: Vec<f64> = ends.iter().map(|((_, y), _)| *y).collect();
    let placed = spread(&wanted, 13.0, area.top + 2.0..area.bottom);
    for (((px, py), curve), at) in ends.iter().zip(placed) {
        svg.line("lead", &[(*px, *py), (area.right + 9.0, at)]);
        let class = format!("name {}", curve.class);
        svg.text(
            area.right + 11.0,
            at + 4.0,
            Anchor::Start,
            &class,
            &curve.label,
        );
    }
}
