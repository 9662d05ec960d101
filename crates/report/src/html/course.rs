//! What a subject had and missed in memory over time, under every configuration, with Quell's
//! memory control or without.

use quell_record::events::{MemoryPoint, MemorySeries};

use super::chart::{Anchor, Area, Axes, Figure, Scale, Svg, Width};
use super::envelope::envelope;
use super::page::{Page, Section};
use super::series::{buckets, whole};

/// One round under one configuration.
struct Panel<'r> {
    name: &'r str,
    class: &'static str,
    points: &'r [MemoryPoint],
}

impl Panel<'_> {
    fn seconds(&self, met: &MemoryPoint) -> f64 {
        let first = self.points.first().map_or(0, |first| first.at_ns);
        met.at_ns.saturating_sub(first) as f64 / 1e9
    }

    fn length(&self) -> f64 {
        self.points.last().map_or(0.0, |last| self.seconds(last))
    }
}

pub(crate) fn section(page: &Page<'_>) -> Option<Section> {
    let panels = panels(page);
    let subject = &page.record.courses.first()?.subject;
    if panels.is_empty() {
        return None;
    }
    let names: Vec<&str> = panels.iter().map(|p| p.name).collect();
    let figure = Figure {
        id: "fig-course",
        title: "What it had in memory",
        shows: &format!(
            "What {subject} had in memory, under {}: its resident set (MB), and the share of the pages of files it read that had been \
             taken from the page cache.",
            names.join(", ")
        ),
        reading: "The first round of each configuration is shown, a value for each unit of its work: of all that fall on one place the \
                  line is the median and the band reaches from the smallest to the largest. Beside the name are the page faults that \
                  waited for a disk, per unit. Good is a line that stays where it is without a neighbour, and nothing below it.",
    };
    Some(Section {
        id: "course",
        title: "What it had in memory",
        body: figure.render(|width| draw(&panels, width)),
    })
}

/// The first round of each configuration.
fn panels<'r>(page: &Page<'r>) -> Vec<Panel<'r>> {
    let courses = &page.record.courses;
    let Some((result, first)) = page.result().zip(courses.first()) else {
        return Vec::new();
    };
    let names = result.configurations.iter().map(|c| c.name.as_str());
    let panel = |name: &'r str| {
        let is = |c: &&MemorySeries| c.configuration == name && c.subject == first.subject;
        let course = courses.iter().find(is)?;
        (course.points.len() > 1).then(|| Panel {
            name,
            class: page.appearance(name).class,
            points: &course.points,
        })
    };
    names.filter_map(panel).collect()
}

/// Height of each lane, and the room above it.
const LANES: [f64; 2] = [90.0, 60.0];
const ABOVE: f64 = 22.0;
const BLOCK: f64 = 260.0;

fn draw(panels: &[Panel<'_>], width: Width) -> Svg {
    let columns = width.columns(panels.len().min(3));
    let mut svg = Svg::new(width, BLOCK * panels.len().div_ceil(columns) as f64);
    let margin = 58.0;
    let step = (width.units() - margin) / columns as f64;
    let all = panels.iter().flat_map(|p| p.points);
    let most = all.map(|m| m.resident_mb).fold(1.0, f64::max);
    let longest = panels.iter().map(Panel::length).fold(0.0, f64::max);
    for (index, panel) in panels.iter().enumerate() {
        let (column, line) = (index % columns, index / columns);
        let left = margin + step * column as f64;
        let mut top = BLOCK * line as f64 + 14.0;
        let faults: f64 = panel.points.iter().map(|m| m.major_faults).sum();
        svg.text(
            left,
            top,
            Anchor::Start,
            &format!("name strong {}", panel.class),
            &format!(
                "{}, {:.1} faults",
                panel.name,
                faults / panel.points.len() as f64
            ),
        );
        let [resident, misses] = LANES.map(|tall| {
            let area = Area {
                left,
                right: left + step - 14.0,
                top: top + ABOVE,
                bottom: top + ABOVE + tall,
            };
            top = area.bottom;
            area
        });
        let x = Scale::linear(0.0..longest, resident.across());
        let first = column == 0;
        let head = |svg: &mut Svg, area: &Area, text: &str| {
            if first {
                svg.text(area.left, area.top - 6.0, Anchor::Start, "small", text);
            }
        };
        head(&mut svg, &resident, "resident, MB");
        let y = Scale::linear(0.0..most * 1.05, resident.up());
        svg.rows(&resident, &y, &y.ticks(4), first);
        let axes = resident.axes(&x, &y);
        band(&mut svg, panel, |m| m.resident_mb, axes);
        head(&mut svg, &misses, "pages missed");
        let (y, ticks) = whole(&misses);
        svg.rows(&misses, &y, &ticks, first);
        let axes = misses.axes(&x, &y);
        band(&mut svg, panel, |m| m.cache_misses, axes);
        svg.columns(&misses, &x, &x.ticks(if columns > 1 { 3 } else { 5 }), "s");
    }
    svg
}

fn band(svg: &mut Svg, panel: &Panel<'_>, pick: fn(&MemoryPoint) -> f64, axes: Axes<'_>) {
    let Axes { area, x, y } = axes;
    let points = panel.points.iter().map(|m| (panel.seconds(m), pick(m)));
    let points: Vec<(f64, f64)> = points.collect();
    let end = panel.length();
    let all = envelope(&points, 0.0..end, buckets(x.at(end) - area.left));
    let upper = all.iter().map(|b| (x.at(b.at), y.at(b.max)));
    let lower = all.iter().rev().map(|b| (x.at(b.at), y.at(b.min)));
    let surface: Vec<(f64, f64)> = upper.chain(lower).collect();
    svg.surface(&format!("band {}", panel.class), &surface);
    let middle: Vec<(f64, f64)> = all.iter().map(|b| (x.at(b.at), y.at(b.median))).collect();
    svg.line(&format!("line {}", panel.class), &middle);
}
