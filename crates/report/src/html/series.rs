//! One round in time, a panel per configuration: the protected subject's windows, what the paying
//! one got, when a regulator stopped it, and what the host took.

use std::ops::Range;

use quell_record::events::{CpuTimes, Span};
use quell_types::cpuset::CpuId;
use quell_types::stats::{median, percentile, sorted};

use crate::text::unit;
use crate::view::{View, median_kept};

use super::chart::{Anchor, Area, Axes, Figure, Scale, Svg, Width};
use super::envelope::{covered, envelope};
use super::page::{Page, Section};

/// Units of the drawing per bucket.
const BUCKET: f64 = 2.0;
/// Samples of a CPU's time at a larger distance belong to different cells.
const APART_NS: u64 = 500_000_000;

/// A stretch of time in ns, and the part of it that counts, from 0 to 1.
pub(crate) type Part = (u64, u64, f64);

/// The part of each stretch between two samples that `pick` counts.
pub(crate) fn parts(times: &[(u64, CpuTimes)], pick: fn(&CpuTimes) -> u64) -> Vec<Part> {
    let stretch = |pair: &[(u64, CpuTimes)]| {
        let [(from, before), (to, after)] = pair else {
            return None;
        };
        let length = to.saturating_sub(*from);
        let part = pick(after).saturating_sub(pick(before)) as f64 / length as f64;
        (length > 0 && length < APART_NS).then(|| (*from, *to, part.min(1.0)))
    };
    times.windows(2).filter_map(stretch).collect()
}

/// One configuration in the round.
struct Cell<'r> {
    name: &'r str,
    class: &'static str,
    victim: &'r Span,
    other: Option<&'r Span>,
    /// Nanoseconds since the run began.
    from: u64,
    to: u64,
}

struct Story<'r> {
    cells: Vec<Cell<'r>>,
    protected: &'r str,
    pays: Option<&'r str>,
    unit: &'r str,
    other_unit: &'r str,
    /// The CPUs of the paying subject, on which its group is stopped.
    stopped: Vec<CpuId>,
    /// The CPUs of the subjects that are shown.
    watched: Vec<CpuId>,
}

pub(crate) fn section(page: &Page<'_>) -> Option<Section> {
    let view = page.view?;
    let story = story(page, &view)?;
    let names: Vec<&str> = story.cells.iter().map(|c| c.name).collect();
    let round = story.cells.first()?.victim.round.saturating_add(1);
    let mut shows = format!(
        "Round {round} in time, under {}: the windows of {}",
        names.join(", "),
        story.protected
    );
    if let Some(pays) = story.pays {
        shows.push_str(&format!(
            ", the rate of {pays}, the part of time that a regulator kept it stopped"
        ));
    }
    shows.push_str(", and the part of their CPUs' time that the host took (steal).");
    let figure = Figure {
        id: "fig-series",
        title: "One round in time",
        shows: &shows,
        reading: "Of all windows that fall on one place the line is the median and the band reaches from the smallest to the \
                  largest, so no outlier is lost. A late window above a peak of steal was the host's doing, not the \
                  neighbour's. The round is the one in which the protected subject's medians were the most ordinary.",
    };
    Some(Section {
        id: "time",
        title: "What it looks like in time",
        body: figure.render(|width| draw(page, &story, width)),
    })
}

fn story<'r>(page: &Page<'r>, view: &View<'r>) -> Option<Story<'r>> {
    let best = view
        .protecting()
        .filter_map(|c| Some((median_kept(view.protected(c)?)?.value, c)))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, c)| c);
    let rival = best.and_then(|best| {
        let quota = page.families.iter().find(|f| f.appearance.class == "s3")?;
        let same = quota.members.iter().find(|c| c.label() == best.label());
        same.or(quota.members.first()).copied()
    });
    let chosen: Vec<&str> = [view.unprotected(), rival, best]
        .into_iter()
        .flatten()
        .map(|c| c.name.as_str())
        .collect();
    let span = |name: &str, subject: &str, round: u32| {
        let mut spans = page.spans(name, subject);
        spans.find(|s| s.round == round && s.at_ns.is_some())
    };
    // The round with medians nearest to the middle of all rounds.
    let middle = |name: &str, round| median(&span(name, view.protected, round)?.values);
    let rounds: Vec<u32> = (0..view.result.rounds)
        .filter(|r| chosen.iter().all(|name| middle(name, *r).is_some()))
        .collect();
    let distance = |round: u32| -> f64 {
        let of = |name: &&str| -> Option<f64> {
            let all: Vec<f64> = rounds.iter().filter_map(|r| middle(name, *r)).collect();
            let usual = percentile(&sorted(&all), 50.0)?;
            Some((middle(name, round)? / usual).ln().abs())
        };
        chosen.iter().filter_map(of).filter(|d| d.is_finite()).sum()
    };
    let round = rounds
        .iter()
        .copied()
        .min_by(|a, b| distance(*a).total_cmp(&distance(*b)))?;
    let cells: Vec<Cell<'r>> = view
        .result
        .configurations
        .iter()
        .filter(|c| chosen.contains(&c.name.as_str()))
        .filter_map(|c| {
            let victim = span(&c.name, view.protected, round)?;
            let at = victim.at_ns.as_ref()?;
            let (first, last) = (*at.first()?, *at.last()?);
            let window = last.saturating_sub(first) / (at.len() as u64).saturating_sub(1).max(1);
            Some(Cell {
                name: &c.name,
                class: page.appearance(&c.name).class,
                victim,
                other: view.pays.and_then(|pays| span(&c.name, pays, round)),
                from: first,
                to: last + window,
            })
        })
        .filter(|c| c.to > c.from)
        .collect();
    let of = |subject: &str| {
        let mut all = view.result.configurations.iter();
        all.find_map(|c| c.subject(subject))
    };
    let protected = of(view.protected)?;
    let other = view.pays.and_then(of);
    let stopped = other.map(|s| s.cpus.clone()).unwrap_or_default();
    let mut watched = protected.cpus.clone();
    watched.extend(&stopped);
    watched.sort_unstable();
    watched.dedup();
    watched.truncate(4);
    (!cells.is_empty()).then(|| Story {
        cells,
        protected: view.protected,
        pays: view.pays,
        unit: unit(view.metric()),
        other_unit: other.map_or("", |s| unit(&s.metric)),
        stopped,
        watched,
    })
}

/// Height of each lane, and the room above it.
const LANES: [f64; 4] = [120.0, 80.0, 50.0, 50.0];
const ABOVE: f64 = 26.0;
const TITLE: f64 = 20.0;

fn draw(page: &Page<'_>, story: &Story<'_>, width: Width) -> Svg {
    let columns = width.columns(story.cells.len());
    let block = TITLE + LANES.iter().map(|h| h + ABOVE).sum::<f64>() + 48.0;
    let mut svg = Svg::new(width, block * story.cells.len().div_ceil(columns) as f64);
    let margin = 58.0;
    let step = (width.units() - margin) / columns as f64;
    let values = |pick: for<'c> fn(&'c Cell<'_>) -> Option<&'c Span>| -> Vec<f64> {
        let spans = story.cells.iter().filter_map(pick);
        spans
            .flat_map(|s| s.values.iter().copied())
            .filter(|v| v.is_finite())
            .collect()
    };
    let (victims, others) = (values(|c| Some(c.victim)), values(|c| c.other));
    let watched = story
        .watched
        .iter()
        .filter_map(|cpu| page.record.cpu_times.get(cpu));
    let all = watched.flat_map(|times| parts(times, |t| t.steal_ns));
    let during = |p: &Part| story.cells.iter().any(|c| p.1 > c.from && p.0 < c.to);
    let taken = all.filter(during).map(|p| p.2).fold(0.0, f64::max);
    let longest = story.cells.iter().map(|c| c.to - c.from).max().unwrap_or(1);
    for (index, cell) in story.cells.iter().enumerate() {
        let (column, line) = (index % columns, index / columns);
        let left = margin + step * column as f64;
        let right = left + step - 14.0;
        let mut top = block * line as f64 + 14.0;
        svg.text(
            left,
            top,
            Anchor::Start,
            &format!("name strong {}", cell.class),
            cell.name,
        );
        top += TITLE - 14.0;
        let mut areas = [Area {
            left,
            right,
            top,
            bottom: top,
        }; LANES.len()];
        for (area, tall) in areas.iter_mut().zip(LANES) {
            area.top = top + ABOVE;
            area.bottom = area.top + tall;
            top = area.bottom;
        }
        let x = Scale::linear(0.0..longest as f64 / 1e6, left..right);
        let [victim, other, stops, steal] = areas;
        let first = column == 0;
        let head = |svg: &mut Svg, area: &Area, text: &str| {
            if first {
                svg.text(area.left, area.top - 8.0, Anchor::Start, "small", text);
            }
        };
        head(
            &mut svg,
            &victim,
            &format!("{}, {}", story.protected, story.unit),
        );
        if let Some(y) = Scale::fitting(victims.iter().copied(), victim.up()) {
            svg.rows(&victim, &y, &y.ticks(5), first);
            band(&mut svg, cell, cell.victim, victim.axes(&x, &y));
        }
        if let (Some(pays), Some(span)) = (story.pays, cell.other) {
            head(&mut svg, &other, &format!("{pays}, {}", story.other_unit));
            let high = others.iter().copied().fold(0.0, f64::max);
            let y = Scale::linear(0.0..high.max(f64::MIN_POSITIVE) * 1.05, other.up());
            svg.rows(&other, &y, &y.ticks(3), first);
            band(&mut svg, cell, span, other.axes(&x, &y));
        }
        head(
            &mut svg,
            &stops,
            &format!("{} stopped", of_cpus(&story.stopped)),
        );
        let (y, ticks) = whole(&stops);
        svg.rows(&stops, &y, &ticks, first);
        stopped(&mut svg, page, story, cell, stops.axes(&x, &y));
        head(&mut svg, &steal, "taken by the host (steal)");
        // One scale for all configurations, so that they can be compared.
        let (y, ticks) = zoomed(&steal, taken);
        svg.rows(&steal, &y, &ticks, first);
        stolen(&mut svg, page, story, cell, steal.axes(&x, &y));
        svg.columns(
            &steal,
            &x,
            &x.ticks(if columns > 1 { 3 } else { 5 }),
            "ms since the measured span began",
        );
    }
    svg
}

pub(crate) fn of_cpus(cpus: &[CpuId]) -> String {
    let names: Vec<String> = cpus.iter().map(ToString::to_string).collect();
    format!("CPU {}", names.join(", "))
}

/// Where the lanes for parts of time end: at the whole.
pub(crate) fn whole(area: &Area) -> (Scale, [(f64, String); 3]) {
    let tick = |part: f64| (part, format!("{:.0} %", part * 100.0));
    (
        Scale::linear(0.0..1.0, area.up()),
        [tick(0.0), tick(0.5), tick(1.0)],
    )
}

/// The same, but only up to a quarter where no value is higher.
pub(crate) fn zoomed(area: &Area, most: f64) -> (Scale, Vec<(f64, String)>) {
    if most > 0.25 {
        let (scale, ticks) = whole(area);
        return (scale, ticks.to_vec());
    }
    let ticks = vec![(0.0, "0 %".to_owned()), (0.25, "25 %".to_owned())];
    (Scale::linear(0.0..0.25, area.up()), ticks)
}

/// The median and the extremes of the windows over time.
fn band(svg: &mut Svg, cell: &Cell<'_>, span: &Span, axes: Axes<'_>) {
    let Axes { area, x, y } = axes;
    let Some(at) = &span.at_ns else { return };
    let ms = |at: u64| at.saturating_sub(cell.from) as f64 / 1e6;
    let points: Vec<(f64, f64)> = at
        .iter()
        .zip(&span.values)
        .filter(|(at, _)| (cell.from..=cell.to).contains(at))
        .map(|(at, value)| (ms(*at), *value))
        .collect();
    let end = ms(cell.to);
    let buckets = buckets(x.at(end) - area.left);
    let all = envelope(&points, 0.0..end, buckets);
    let upper = all.iter().map(|b| (x.at(b.at), y.at(b.max)));
    let lower = all.iter().rev().map(|b| (x.at(b.at), y.at(b.min)));
    svg.surface(
        &format!("band {}", cell.class),
        &upper.chain(lower).collect::<Vec<_>>(),
    );
    let middle: Vec<(f64, f64)> = all.iter().map(|b| (x.at(b.at), y.at(b.median))).collect();
    svg.line(&format!("line thin {}", cell.class), &middle);
}

#[expect(
    clippy::cast_sign_loss,
    clippy::cast_possible_truncation,
    reason = "the width of a panel, at least one bucket"
)]
pub(crate) fn buckets(units: f64) -> usize {
    (units / BUCKET).max(1.0) as usize
}

fn stopped(svg: &mut Svg, page: &Page<'_>, story: &Story<'_>, cell: &Cell<'_>, axes: Axes<'_>) {
    let Axes { area, x, y } = axes;
    let end = (cell.to - cell.from) as f64 / 1e6;
    let buckets = buckets((x.at(end) - area.left) / 2.0);
    let mut none = true;
    for cpu in &story.stopped {
        let Some(stops) = page.record.stops.get(cpu) else {
            continue;
        };
        let covered = covered(stops, cell.from..cell.to, buckets);
        if covered.iter().all(|part| *part == 0.0) {
            continue;
        }
        none = false;
        steps(
            svg,
            &format!("band {}", cell.class),
            x,
            y,
            0.0..end,
            &covered,
        );
    }
    if none {
        svg.text(
            area.left + 4.0,
            area.bottom - 6.0,
            Anchor::Start,
            "small",
            "never by a regulator",
        );
    }
}

/// Columns of equal width from the bottom.
pub(crate) fn steps(
    svg: &mut Svg,
    class: &str,
    x: &Scale,
    y: &Scale,
    span: Range<f64>,
    parts: &[f64],
) {
    let Range {
        start: from,
        end: to,
    } = span;
    let width = (to - from) / parts.len().max(1) as f64;
    let mut places = vec![(x.at(from), y.at(0.0))];
    for (index, part) in parts.iter().enumerate() {
        let left = from + width * index as f64;
        places.push((x.at(left), y.at(*part)));
        places.push((x.at(left + width), y.at(*part)));
    }
    places.push((x.at(to), y.at(0.0)));
    svg.surface(class, &places);
}

/// Line styles that distinguish CPUs.
pub(crate) const CPU_LINES: [&str; 4] = [
    "line thin s7",
    "line thin dash s7",
    "line thin dots s7",
    "line thin s5",
];

fn stolen(svg: &mut Svg, page: &Page<'_>, story: &Story<'_>, cell: &Cell<'_>, axes: Axes<'_>) {
    let Axes { area, x, y } = axes;
    let mut shown: Vec<(CpuId, &str, Vec<Part>)> = Vec::new();
    let mut known = false;
    for (cpu, class) in story.watched.iter().zip(CPU_LINES) {
        let Some(times) = page.record.cpu_times.get(cpu) else {
            continue;
        };
        let mut parts = parts(times, |t| t.steal_ns);
        parts.retain(|(from, to, _)| *to > cell.from && *from < cell.to);
        known |= !parts.is_empty();
        if parts.iter().any(|p| p.2 > 0.0) {
            shown.push((*cpu, class, parts));
        }
    }
    let high = |parts: &[Part]| parts.iter().map(|p| p.2).fold(0.0, f64::max);
    let ms = |at: u64| (at as f64 - cell.from as f64) / 1e6;
    let end = ms(cell.to);
    for (_, class, parts) in &shown {
        let place = |at: u64, part: f64| (x.at(ms(at).min(end)), y.at(part));
        let places = parts
            .iter()
            .flat_map(|(from, to, part)| [place(*from, *part), place(*to, *part)]);
        svg.line(class, &places.collect::<Vec<_>>());
    }
    let most: Vec<String> = shown
        .iter()
        .map(|(cpu, _, parts)| format!("CPU {cpu} ≤ {:.0} %", high(parts) * 100.0))
        .collect();
    let text = match (known, most.is_empty()) {
        (false, _) => "not recorded".to_owned(),
        (true, true) => "nothing".to_owned(),
        (true, false) => most.join(", "),
    };
    svg.text(
        area.right,
        area.top + 10.0,
        Anchor::End,
        "small halo",
        &text,
    );
}
