//! The frontier: what the protected subject keeps against what the paying one keeps, at the median
//! and at the tail.

use crate::frontier::{Data, Point};
use crate::text::percent;
use crate::verdict::spoken_for;
use crate::view::{Spread, View, median_kept, tail_kept};

use super::chart::{
    Anchor, Area, Axes, Figure, Labels, Mark, Scale, Svg, Width, room, strong_room,
};
use super::page::{Appearance, Page, Section};

/// Which figure of a point is drawn.
type Pick = fn(&Point) -> Option<Spread>;

/// A panel: its heading, the figure of every point, and the configurations without caps.
type Panel<'p> = (&'p str, Pick, Vec<(&'p Lone, Spread)>);

/// A configuration outside the families with caps.
struct Lone {
    name: String,
    appearance: Appearance,
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
        .filter(|c| !view.is_baseline(c) && c.family.is_none())
        .filter_map(|c| {
            let figures = view.protected(c)?;
            Some(Lone {
                name: c.name.clone(),
                appearance: page.appearance(&c.name),
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
        reading: "Up is better protected, right is cheaper: the upper right corner would be free protection. Of two points above each other \
                  the higher is the better mechanism. Labels are the caps; whiskers are the \
                  confidence interval; where they overlap, chance could have made the difference.",
    };
    let body = figure.render(|width| {
        let mut panels: Vec<Panel<'_>> = Vec::new();
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

fn draw(page: &Page<'_>, data: &Data, panels: &[Panel<'_>], width: Width) -> Svg {
    let columns = width.columns(panels.len());
    let height = TALL + 74.0;
    let rows = panels.len().div_ceil(columns);
    let mut svg = Svg::new(width, height * rows as f64);
    // One scale for all panels, so that they can be compared.
    let values = panels.iter().flat_map(|(_, pick, lone)| {
        let points = data.series.iter().flat_map(|s| &s.points).filter_map(pick);
        points.chain(lone.iter().map(|(_, s)| *s))
    });
    let high = values.map(|s| s.value).fold(1.0, f64::max);
    let most = if high > 1.05 { high * 1.08 } else { 1.08 };
    // As far to the right as any point, in fifths of the solo rate.
    let points = data.series.iter().flat_map(|s| &s.points).map(|p| p.kept);
    let lone = panels
        .iter()
        .flat_map(|(.., lone)| lone)
        .map(|(l, _)| l.kept);
    let widest = points.chain(lone).fold(0.0, f64::max);
    let fifths = (1..5)
        .find(|n| f64::from(*n) / 5.0 >= widest * 1.02)
        .unwrap_or(5);
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
        svg.text(area.left, top - 10.0, Anchor::Start, "strong", heading);
        let x = Scale::linear(0.0..f64::from(fifths) / 5.0, area.across());
        let y = Scale::linear(0.0..most, area.up());
        svg.rows(&area, &y, &y.ticks(6), true);
        let ticks: Vec<(f64, String)> = (0..=fifths)
            .map(|n| (f64::from(n) / 5.0, format!("{} %", n * 20)))
            .collect();
        svg.columns(&area, &x, &ticks, &format!("rate that {} keeps", data.pays));
        if column == 0 {
            let what = format!("{}: solo ÷ measured", data.protected);
            svg.upright(area.left - 40.0, (area.top + area.bottom) / 2.0, &what);
        }
        let one = y.at(1.0);
        svg.line("one", &[(area.left, one), (area.right, one)]);
        let axes = area.axes(&x, &y);
        panel(&mut svg, page, data, *pick, lone, axes);
    }
    svg
}

fn whisker(svg: &mut Svg, x: f64, y: &Scale, class: &str, spread: Spread) {
    if let Some(ci) = spread.ci {
        let class = format!("whisker {class}");
        let (low, high) = (y.at(ci.low), y.at(ci.high));
        svg.line(&class, &[(x, low), (x, high)]);
        for end in [low, high] {
            svg.line(&class, &[(x - 3.0, end), (x + 3.0, end)]);
        }
    }
}

/// One drawn point: its place, its look, and its cap or name.
struct Drawn<'p> {
    at: (f64, f64),
    appearance: Appearance,
    label: &'p str,
}

/// Places around a point, nearest first.
fn around(x: f64, y: f64) -> [(f64, f64, Anchor); 8] {
    [
        (x - 7.0, y - 5.0, Anchor::End),
        (x + 7.0, y + 13.0, Anchor::Start),
        (x + 7.0, y - 5.0, Anchor::Start),
        (x - 7.0, y + 13.0, Anchor::End),
        (x, y - 9.0, Anchor::Middle),
        (x, y + 17.0, Anchor::Middle),
        (x + 4.0, y - 20.0, Anchor::End),
        (x + 4.0, y + 29.0, Anchor::End),
    ]
}

fn panel(
    svg: &mut Svg,
    page: &Page<'_>,
    data: &Data,
    pick: Pick,
    lone: &[(&Lone, Spread)],
    axes: Axes<'_>,
) {
    let Axes { area, x, y } = axes;
    let mut labels = Labels::default();
    let mut series: Vec<(&str, Appearance, Vec<Drawn<'_>>)> = Vec::new();
    for one in &data.series {
        let appearance = page.appearance(&one.name);
        let points: Vec<(&Point, Spread, (f64, f64))> = one
            .points
            .iter()
            .filter_map(|p| {
                let spread = pick(p)?;
                Some((p, spread, (x.at(p.kept), y.at(spread.value))))
            })
            .collect();
        let places: Vec<(f64, f64)> = points.iter().map(|(.., at)| *at).collect();
        let dash = if appearance.mark == Mark::Square {
            " dash"
        } else {
            ""
        };
        svg.line(&format!("line thin{dash} {}", appearance.class), &places);
        let drawn = points.into_iter().map(|(point, spread, at)| {
            let dot = Dot {
                name: &point.name,
                kept: point.kept,
                spread,
                at,
            };
            dot.draw(svg, &mut labels, appearance, y);
            let label = &point.label;
            Drawn {
                at,
                appearance,
                label,
            }
        });
        series.push((&one.name, appearance, drawn.collect()));
    }
    let mut alone = Vec::new();
    for (lone, spread) in lone {
        let at = (x.at(lone.kept), y.at(spread.value));
        let dot = Dot {
            name: &lone.name,
            kept: lone.kept,
            spread: *spread,
            at,
        };
        dot.draw(svg, &mut labels, lone.appearance, y);
        alone.push(Drawn {
            at,
            appearance: lone.appearance,
            label: &lone.name,
        });
    }
    // Names before caps. A point without its cap still has its title, but a line without its name
    // has nothing.
    for (name, appearance, drawn) in &series {
        let near = drawn.iter().rev().flat_map(|d| {
            let (x, y) = d.at;
            let far = [(x, y - 21.0, Anchor::Middle), (x, y + 29.0, Anchor::Middle)];
            far.into_iter().chain(around(x, y))
        });
        let corner = (0..8).map(|n| {
            let down = 14.0 + 15.0 * f64::from(n);
            (area.right - 4.0, area.top + down, Anchor::End)
        });
        if let Some((x, y, anchor)) = labels.place(area, strong_room(name), near.chain(corner)) {
            let class = format!("name strong halo {}", appearance.class);
            svg.text(x, y, anchor, &class, name);
        }
    }
    let caps = series.iter().flat_map(|(.., drawn)| drawn);
    for (drawn, strong) in alone
        .iter()
        .map(|d| (d, true))
        .chain(caps.map(|d| (d, false)))
    {
        let (wide, weight) = if strong {
            (strong_room(drawn.label), " strong")
        } else {
            (room(drawn.label), "")
        };
        if let Some((x, y, anchor)) = labels.place(area, wide, around(drawn.at.0, drawn.at.1)) {
            let class = format!("name small halo{weight} {}", drawn.appearance.class);
            svg.text(x, y, anchor, &class, drawn.label);
        }
    }
}

/// A point with its whisker and its title.
struct Dot<'d> {
    name: &'d str,
    kept: f64,
    spread: Spread,
    at: (f64, f64),
}

impl Dot<'_> {
    fn draw(&self, svg: &mut Svg, labels: &mut Labels, appearance: Appearance, y: &Scale) {
        whisker(svg, self.at.0, y, appearance.class, self.spread);
        let kept = percent(self.kept);
        let title = format!("{}: {:.2} at {kept} kept", self.name, self.spread.value);
        let (x, y) = self.at;
        svg.mark(appearance.mark, appearance.class, x, y, &title);
        labels.mark(x, y);
    }
}
