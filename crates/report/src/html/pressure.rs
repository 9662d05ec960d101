//! Memory over time under Quell's memory control: how much there was, what the critical groups
//! used, how long they waited, and every act as a mark.

use quell_record::events::{Event, Stamped, Steering};

use crate::text::count;
use crate::view::{Cell, cells};

use super::chart::{Anchor, Area, Figure, Mark, Scale, Svg, Width};
use super::page::{Page, Section};

/// The most marks of one hold of a plan. The rest is counted.
const MOST_MARKS: usize = 150;
const MIB: f64 = 1_048_576.0;

/// A sample of memory, once a second.
#[derive(Clone, Copy, Debug)]
struct Seen {
    at: u64,
    used: f64,
    others: f64,
    available: f64,
    memory: f64,
    full: f64,
    io: f64,
}

/// One hold of a plan.
#[derive(Debug)]
struct Panel<'r> {
    name: &'r str,
    class: &'static str,
    from: u64,
    to: u64,
    total: f64,
    seen: Vec<Seen>,
    acts: Vec<&'r Stamped>,
}

impl Panel<'_> {
    /// The part of the memory that the groups used, on average.
    fn usage(&self) -> f64 {
        let used: f64 = self.seen.iter().map(|s| s.used + s.others).sum();
        used / (self.seen.len() as f64 * self.total).max(1.0)
    }
}

pub(crate) fn section(page: &Page<'_>) -> Option<Section> {
    let panels = panels(page);
    if panels.is_empty() {
        return None;
    }
    let names: Vec<&str> = panels.iter().map(|p| p.name).collect();
    let figure = Figure {
        id: "fig-pressure",
        title: "Memory over time",
        shows: &format!(
            "Memory and what was done about it, under {}: what could be had (dashed), what the critical groups used (line), what the \
             others did (thin line) and to what they were limited (dots); below, the part of each second in which some of their tasks waited for memory \
             (surface), all of them did (dashed) or some waited for a disk (line); below that, every act.",
            names.join(", ")
        ),
        reading: "The first hold of each plan is shown. Triangles limit, reclaim or protect, squares freeze or stop, diamonds let go \
                  on, crosses kill; each says more under the pointer. Beside the name is what all groups together used of the memory, on \
                  average. Good is a line that stays where it is while what could be had \
                  comes near to nothing, and hardly any surface.",
    };
    Some(Section {
        id: "memory",
        title: "What was done about memory",
        body: figure.render(|width| draw(&panels, width)),
    })
}

/// The first hold of each plan in which memory was sampled.
fn panels<'r>(page: &Page<'r>) -> Vec<Panel<'r>> {
    let record = page.record;
    let cells = cells(record);
    let holds: Vec<(&str, &Cell<'_>)> = match page.result() {
        Some(result) => {
            let names = result.configurations.iter().map(|c| c.name.as_str());
            names
                .filter_map(|name| Some((name, cells.iter().find(|c| c.is_of(name))?)))
                .collect()
        }
        None => cells.iter().map(|c| (record.name.as_str(), c)).collect(),
    };
    let panel = |(name, cell): &(&'r str, &Cell<'_>)| {
        let within = record.events.iter().filter(|e| cell.has(e.at_ns));
        let events: Vec<&Stamped> = within.collect();
        let (mut seen, mut total): (Vec<Seen>, f64) = (Vec::new(), 0.0);
        for stamped in &events {
            let Event::Waited {
                memory_ns,
                memory_full_ns,
                io_ns,
                bytes,
                others_bytes,
                available_bytes,
                total_bytes,
                ..
            } = &stamped.event
            else {
                continue;
            };
            total = *total_bytes as f64 / MIB;
            let one = Seen {
                at: stamped.at_ns,
                used: *bytes as f64 / MIB,
                others: *others_bytes as f64 / MIB,
                available: *available_bytes as f64 / MIB,
                memory: *memory_ns as f64 / 1e9,
                full: *memory_full_ns as f64 / 1e9,
                io: *io_ns as f64 / 1e9,
            };
            match seen.last_mut() {
                // Several critical groups are recorded at the same time.
                Some(last) if last.at == one.at => {
                    last.used += one.used;
                    last.memory = last.memory.max(one.memory);
                    last.full = last.full.max(one.full);
                    last.io = last.io.max(one.io);
                }
                _ => seen.push(one),
            }
        }
        let acts = events
            .into_iter()
            .filter(|e| matches!(e.event, Event::Steered { .. }));
        let acts: Vec<&Stamped> = acts.collect();
        let all = seen
            .iter()
            .map(|s| s.at)
            .chain(acts.iter().map(|a| a.at_ns));
        let (from, to) = all.fold((u64::MAX, 0), |(a, b), t| (a.min(t), b.max(t)));
        (seen.len() > 1).then(|| Panel {
            name,
            class: page.appearance(name).class,
            from,
            to,
            total,
            seen,
            acts,
        })
    };
    holds.iter().filter_map(panel).collect()
}

/// Height of each lane, and the room above it.
const LANES: [f64; 3] = [110.0, 60.0, 26.0];
const ABOVE: f64 = 22.0;
const BLOCK: f64 = 330.0;

fn draw(panels: &[Panel<'_>], width: Width) -> Svg {
    let columns = width.columns(panels.len().min(3));
    let mut svg = Svg::new(width, BLOCK * panels.len().div_ceil(columns) as f64);
    let margin = 58.0;
    let step = (width.units() - margin) / columns as f64;
    for (index, panel) in panels.iter().enumerate() {
        let (column, line) = (index % columns, index / columns);
        let left = margin + step * column as f64;
        let mut top = BLOCK * line as f64 + 14.0;
        svg.text(
            left,
            top,
            Anchor::Start,
            &format!("name strong {}", panel.class),
            &format!(
                "{}, {:.0} % of memory used",
                panel.name,
                panel.usage() * 100.0
            ),
        );
        let areas = LANES.map(|tall| {
            let area = Area {
                left,
                right: left + step - 14.0,
                top: top + ABOVE,
                bottom: top + ABOVE + tall,
            };
            top = area.bottom;
            area
        });
        lanes(&mut svg, panel, areas, column == 0, columns);
    }
    svg
}

fn lanes(
    svg: &mut Svg,
    panel: &Panel<'_>,
    [memory, waited, acts]: [Area; 3],
    first: bool,
    columns: usize,
) {
    let seconds = |at: u64| at.saturating_sub(panel.from) as f64 / 1e9;
    let x = Scale::linear(0.0..seconds(panel.to).max(1.0), memory.across());
    let head = |svg: &mut Svg, area: &Area, text: &str| {
        if first {
            svg.text(area.left, area.top - 6.0, Anchor::Start, "small", text);
        }
    };
    head(svg, &memory, "MiB");
    let y = Scale::linear(0.0..panel.total.max(1.0), memory.up());
    svg.rows(&memory, &y, &y.ticks(4), first);
    let line = |pick: fn(&Seen) -> f64, y: &Scale| -> Vec<(f64, f64)> {
        let place = |s: &Seen| (x.at(seconds(s.at)), y.at(pick(s)));
        panel.seen.iter().map(place).collect()
    };
    svg.line(
        &format!("line dash {}", panel.class),
        &line(|s| s.available, &y),
    );
    svg.line(&format!("line {}", panel.class), &line(|s| s.used, &y));
    svg.line(
        &format!("line thin {}", panel.class),
        &line(|s| s.others, &y),
    );
    let mut limits: Vec<(f64, f64)> = Vec::new();
    for stamped in &panel.acts {
        if let Event::Steered {
            did: Steering::Limit { bytes: Some(bytes) },
            ..
        } = &stamped.event
        {
            let to = (x.at(seconds(stamped.at_ns)), y.at(*bytes as f64 / MIB));
            if let Some(last) = limits.last().copied() {
                limits.push((to.0, last.1));
            }
            limits.push(to);
        }
    }
    svg.line(&format!("line thin dots {}", panel.class), &limits);
    head(
        svg,
        &waited,
        "waited for memory (surface; all tasks: dashed), for a disk (line)",
    );
    let (y, ticks) = super::series::whole(&waited);
    svg.rows(&waited, &y, &ticks, first);
    let mut surface = line(|s| s.memory, &y);
    if let (Some(from), Some(to)) = (surface.first().copied(), surface.last().copied()) {
        surface.push((to.0, y.at(0.0)));
        surface.push((from.0, y.at(0.0)));
    }
    svg.surface(&format!("band {}", panel.class), &surface);
    svg.line(
        &format!("line thin dash {}", panel.class),
        &line(|s| s.full, &y),
    );
    svg.line(&format!("line thin {}", panel.class), &line(|s| s.io, &y));
    head(
        svg,
        &acts,
        &count(u32::try_from(panel.acts.len()).unwrap_or(u32::MAX), "act"),
    );
    for stamped in rarest(&panel.acts) {
        let Event::Steered { group, did, why } = &stamped.event else {
            continue;
        };
        let (mark, what) = shown(did);
        let at = seconds(stamped.at_ns);
        let title = format!("{at:.2} s: {group} {what}, as {why}");
        svg.mark(
            mark,
            panel.class,
            x.at(at),
            (acts.top + acts.bottom) / 2.0,
            &title,
        );
    }
    svg.columns(&acts, &x, &x.ticks(if columns > 1 { 3 } else { 5 }), "s");
}

/// All acts, without the kind that there are too many of. A limit that moves again and again is
/// drawn as a line already.
fn rarest<'r>(acts: &[&'r Stamped]) -> Vec<&'r Stamped> {
    let moves = |e: &Stamped| matches!(&e.event, Event::Steered { did, .. } if matches!(did, Steering::Limit { .. } | Steering::Protect { .. }));
    let all = acts.iter().copied();
    let mut rest: Vec<&Stamped> = if acts.len() > MOST_MARKS {
        all.filter(|e| !moves(e)).collect()
    } else {
        all.collect()
    };
    rest.truncate(MOST_MARKS);
    rest
}

fn shown(did: &Steering) -> (Mark, String) {
    let mib = |bytes: u64| format!("{:.0} MiB", bytes as f64 / MIB);
    match did {
        Steering::Protect { bytes } => (Mark::Triangle, format!("is protected, {}", mib(*bytes))),
        Steering::Limit { bytes: Some(bytes) } => {
            (Mark::Triangle, format!("may use {}", mib(*bytes)))
        }
        Steering::Limit { bytes: None } => (Mark::Diamond, "is not limited any more".to_owned()),
        Steering::KeepUnswapped => (Mark::Triangle, "is not swapped out any more".to_owned()),
        Steering::Freeze => (Mark::Square, "is frozen".to_owned()),
        Steering::Thaw => (Mark::Diamond, "goes on".to_owned()),
        Steering::Reclaim { bytes } => (Mark::Triangle, format!("gives back {}", mib(*bytes))),
        Steering::Stop { pid } => (Mark::Square, format!("has process {pid} stopped")),
        Steering::Continue { pid } => (Mark::Diamond, format!("has process {pid} go on")),
        Steering::Kill { pid } => (Mark::Cross, format!("has process {pid} killed")),
    }
}
