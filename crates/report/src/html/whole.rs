//! The whole run in time: each cell's median, when groups were stopped, what the host took, and
//! what interrupts cost. For the record of a single run this is the main figure.

use std::collections::BTreeMap;

use quell_record::events::{Event, Record, Stop};
use quell_types::cpuset::CpuId;
use quell_types::stats::median;
use quell_types::units::LINE_BYTES;

use crate::text::unit;

use super::chart::{Anchor, Area, Figure, Scale, Svg, Width, room};
use super::envelope::{covered, envelope};
use super::page::{Appearance, Page, Section};
use super::series::{Part, buckets, parts, steps, whole, zoomed};

/// The most CPUs that get a lane of their own.
const MOST_CPUS: usize = 4;

/// The median of the protected subject in one cell.
struct Dot {
    s: f64,
    value: f64,
    appearance: Appearance,
    title: String,
}

enum Lane {
    /// Each cell's median, and what it is.
    Dots(Vec<Dot>, String),
    /// What is shown, and its values over time.
    Line(String, Vec<(f64, f64)>),
    Stops(CpuId, Vec<Stop>),
    Taken(CpuId, Vec<Part>, Vec<Part>),
}

impl Lane {
    fn height(&self) -> f64 {
        match self {
            Self::Dots(..) => 130.0,
            Self::Line(..) => 90.0,
            Self::Stops(..) | Self::Taken(..) => 54.0,
        }
    }

    fn title(&self) -> String {
        match self {
            Self::Dots(_, what) | Self::Line(what, _) => what.clone(),
            Self::Stops(cpu, _) => format!("CPU {cpu}: stopped by the regulator"),
            Self::Taken(cpu, ..) => {
                format!("CPU {cpu}: host (line), interrupts (dashed)")
            }
        }
    }
}

pub(crate) fn section(page: &Page<'_>) -> Option<Section> {
    let lanes = lanes(page);
    let end = end_ns(page.record);
    if lanes.is_empty() || end == 0 {
        return None;
    }
    let compared = page.result().is_some();
    let shows = if compared {
        "The whole experiment in time: the protected subject's median in every cell, when the regulator stopped a group, and \
         what the host (steal) and interrupts took of the subjects' CPUs."
    } else {
        "The whole run in time: when the regulator stopped a group, what was counted there, and what the host (steal) and \
         interrupts took."
    };
    let reading = if compared {
        "Marks are those of the other figures. A drift or a jump that hits all marks alike came from outside; rounds \
         interleave all configurations so that it hits all alike. Vertical lines begin a round. Of all values that fall on \
         one place the largest is drawn."
    } else {
        "The surface is the part of time stopped. Of all values that fall on one place the largest is drawn."
    };
    let figure = Figure {
        id: "fig-whole",
        title: "The whole run in time",
        shows,
        reading,
    };
    Some(Section {
        id: "whole",
        title: if compared {
            "The whole experiment"
        } else {
            "The whole run"
        },
        body: figure.render(|width| draw(page, &lanes, end, width)),
    })
}

fn end_ns(record: &Record) -> u64 {
    let events = record.events.last().map(|e| e.at_ns);
    let times = record
        .cpu_times
        .values()
        .filter_map(|t| t.last())
        .map(|t| t.0);
    events.into_iter().chain(times).max().unwrap_or(0)
}

fn lanes(page: &Page<'_>) -> Vec<Lane> {
    let record = page.record;
    let mut lanes = Vec::new();
    let mut cpus: Vec<CpuId> = record.stops.keys().copied().collect();
    if let Some(view) = page.view {
        let dots: Vec<Dot> = record
            .spans
            .iter()
            .filter(|s| s.subject == view.protected)
            .filter_map(|s| {
                let at = *s.at_ns.as_ref()?.first()?;
                let value = median(&s.values)?;
                Some(Dot {
                    s: at as f64 / 1e9,
                    value,
                    appearance: page.appearance(&s.configuration),
                    title: format!("{}, round {}", s.configuration, s.round.saturating_add(1)),
                })
            })
            .collect();
        if !dots.is_empty() {
            let what = format!(
                "{}: median per cell, {}",
                view.protected,
                unit(view.metric())
            );
            lanes.push(Lane::Dots(dots, what));
        }
        let mut configurations = view.result.configurations.iter();
        if let Some(configuration) = configurations.find(|c| !c.subjects.is_empty()) {
            cpus.extend(configuration.subjects.iter().flat_map(|s| &s.cpus));
        }
    } else {
        cpus.extend(record.cpu_times.keys());
        lanes.extend(adapted(record));
        let counted = rates(record).into_iter().take(MOST_CPUS);
        lanes.extend(counted.map(|((cpu, group), rate)| {
            let what = format!("CPU {cpu}, {group}: traffic as the meter counts it, MB/s");
            Lane::Line(what, rate)
        }));
    }
    cpus.sort_unstable();
    cpus.dedup();
    for cpu in cpus.into_iter().take(MOST_CPUS) {
        if let Some(stops) = record.stops.get(&cpu).filter(|s| !s.is_empty()) {
            lanes.push(Lane::Stops(cpu, stops.clone()));
        }
        if let Some(times) = record.cpu_times.get(&cpu) {
            let steal = parts(times, |t| t.steal_ns);
            let interrupts = parts(times, |t| t.irq_ns.saturating_add(t.softirq_ns));
            if !steal.is_empty() {
                lanes.push(Lane::Taken(cpu, steal, interrupts));
            }
        }
    }
    lanes
}

/// The slowest units of every observed group, and the rate left to best-effort groups for them.
fn adapted(record: &Record) -> Vec<Lane> {
    let mut lines: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for stamped in &record.events {
        let at = stamped.at_ns as f64 / 1e9;
        match &stamped.event {
            Event::Units {
                group, worst_ns, ..
            } => {
                let line = lines.entry(format!("{group}: slowest unit of work, ms"));
                line.or_default().push((at, *worst_ns as f64 / 1e6));
            }
            Event::Adapted {
                group,
                from_bytes_per_s,
                to_bytes_per_s,
                ..
            } => {
                let line = lines.entry(format!("{group}: left to the others, MB/s"));
                let mb = |rate: &u64| *rate as f64 / 1e6;
                let places = [(at, mb(from_bytes_per_s)), (at, mb(to_bytes_per_s))];
                line.or_default().extend(places);
            }
            _ => {}
        }
    }
    let lanes = lines.into_iter().filter(|(_, places)| places.len() > 1);
    lanes
        .map(|(what, places)| Lane::Line(what, places))
        .collect()
}

/// What regulators counted, in MB/s over the time between two of their reports.
fn rates(record: &Record) -> BTreeMap<(CpuId, &str), Vec<(f64, f64)>> {
    let mut last: BTreeMap<(CpuId, &str), u64> = BTreeMap::new();
    let mut all: BTreeMap<(CpuId, &str), Vec<(f64, f64)>> = BTreeMap::new();
    for stamped in &record.events {
        let Event::Throttle {
            cpu, group, lines, ..
        } = &stamped.event
        else {
            continue;
        };
        let of = (*cpu, group.as_str());
        if let Some(before) = last.insert(of, stamped.at_ns) {
            let ns = stamped.at_ns.saturating_sub(before);
            if ns > 0 {
                let rate = lines.saturating_mul(LINE_BYTES) as f64 / ns as f64 * 1e3;
                all.entry(of)
                    .or_default()
                    .push((stamped.at_ns as f64 / 1e9, rate));
            }
        }
    }
    all
}

/// When each round began, in seconds, with its number.
fn rounds(record: &Record) -> Vec<(f64, u32)> {
    let mut all: Vec<(f64, u32)> = Vec::new();
    for stamped in &record.events {
        let Event::Cell { round, .. } = &stamped.event else {
            continue;
        };
        let number = round.saturating_add(1);
        if all.last().is_none_or(|(_, last)| *last != number) {
            all.push((stamped.at_ns as f64 / 1e9, number));
        }
    }
    all
}

const ABOVE: f64 = 26.0;

fn draw(page: &Page<'_>, lanes: &[Lane], end: u64, width: Width) -> Svg {
    let key = keys(page, lanes, width);
    let head = key.last().map_or(0.0, |k| k.1 + 14.0);
    let tall: f64 = lanes.iter().map(|l| l.height() + ABOVE).sum();
    let mut svg = Svg::new(width, head + tall + 44.0);
    for (x, y, name, appearance) in &key {
        svg.mark(appearance.mark, appearance.class, *x, *y, name);
        svg.text(
            x + 9.0,
            y + 4.0,
            Anchor::Start,
            &format!("name {}", appearance.class),
            name,
        );
    }
    let seconds = end as f64 / 1e9;
    let (left, right) = (58.0, width.units() - 12.0);
    let x = Scale::linear(0.0..seconds, left..right);
    let mut top = head;
    let rounds = rounds(page.record);
    for (index, lane) in lanes.iter().enumerate() {
        let area = Area {
            left,
            right,
            top: top + ABOVE,
            bottom: top + ABOVE + lane.height(),
        };
        top = area.bottom;
        svg.text(left, area.top - 8.0, Anchor::Start, "small", &lane.title());
        let mut free = f64::NEG_INFINITY;
        for (at, number) in &rounds {
            let at = x.at(*at);
            svg.line("grid", &[(at, area.top), (at, area.bottom)]);
            if index == 0 && at > free && rounds.len() > 1 {
                let label = if free < 0.0 {
                    format!("round {number}")
                } else {
                    number.to_string()
                };
                free = at + room(&label) + 6.0;
                svg.text(
                    at + 3.0,
                    area.bottom - 4.0,
                    Anchor::Start,
                    "small halo",
                    &label,
                );
            }
        }
        self::lane(&mut svg, lane, &area, &x, seconds, end);
        if index + 1 == lanes.len() {
            let ticks = x.ticks(if width == Width::Wide { 8 } else { 5 });
            let bare = Area {
                top: area.bottom,
                ..area
            };
            svg.columns(&bare, &x, &ticks, "seconds since it began");
        }
    }
    svg
}

/// The families' marks above the first lane: x, y, name and look.
fn keys<'p>(
    page: &'p Page<'_>,
    lanes: &[Lane],
    width: Width,
) -> Vec<(f64, f64, &'p str, Appearance)> {
    if !lanes.iter().any(|l| matches!(l, Lane::Dots(..))) {
        return Vec::new();
    }
    let (mut x, mut y) = (64.0, 8.0);
    let mut all = Vec::new();
    for family in &page.families {
        let wide = room(family.name) + 26.0;
        if x + wide > width.units() && x > 64.0 {
            (x, y) = (64.0, y + 17.0);
        }
        all.push((x, y, family.name, family.appearance));
        x += wide;
    }
    all
}

fn lane(svg: &mut Svg, lane: &Lane, area: &Area, x: &Scale, seconds: f64, end: u64) {
    let buckets = buckets(area.right - area.left);
    match lane {
        Lane::Dots(dots, _) => {
            // The numbers of the rounds stand below.
            let inner = area.bottom - 20.0..area.top + 6.0;
            let Some(y) = Scale::fitting(dots.iter().map(|d| d.value), inner) else {
                return;
            };
            svg.rows(area, &y, &y.ticks(5), true);
            for dot in dots {
                svg.mark(
                    dot.appearance.mark,
                    dot.appearance.class,
                    x.at(dot.s),
                    y.at(dot.value),
                    &dot.title,
                );
            }
        }
        Lane::Line(_, rate) => {
            let high = rate.iter().map(|r| r.1).fold(0.0, f64::max);
            let y = Scale::linear(0.0..high.max(f64::MIN_POSITIVE) * 1.05, area.up());
            svg.rows(area, &y, &y.ticks(3), true);
            let all = envelope(rate, 0.0..seconds, buckets);
            let places: Vec<(f64, f64)> = all.iter().map(|b| (x.at(b.at), y.at(b.max))).collect();
            svg.line("line s2", &places);
        }
        Lane::Stops(_, stops) => {
            let (y, ticks) = whole(area);
            svg.rows(area, &y, &ticks, true);
            let parts = covered(stops, 0..end, buckets);
            steps(svg, "band s2", x, &y, 0.0..seconds, &parts);
        }
        Lane::Taken(_, steal, interrupts) => {
            let most = steal.iter().chain(interrupts).map(|p| p.2);
            let (y, ticks) = zoomed(area, most.fold(0.0, f64::max));
            svg.rows(area, &y, &ticks, true);
            for (class, parts) in [("line thin s7", steal), ("line thin dash s5", interrupts)] {
                let points: Vec<(f64, f64)> = parts
                    .iter()
                    .map(|(from, to, part)| ((*from as f64 + *to as f64) / 2e9, *part))
                    .collect();
                let all = envelope(&points, 0.0..seconds, buckets);
                let places: Vec<(f64, f64)> =
                    all.iter().map(|b| (x.at(b.at), y.at(b.max))).collect();
                svg.line(class, &places);
            }
        }
    }
}
