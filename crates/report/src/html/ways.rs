//! Which classes may fill which ways of which cache: lanes over time. Below them stand the counts
//! of each class, where threads were, what changed, and what was found.

use maud::{Markup, html};
use quell_record::ways::{
    Block, Cache, Filler, Finding, ROOT, Sampled, Timeline, Who, findings, rate,
};

use crate::text::{Table, TableCell, Tone};
use crate::ways::{MOST_TOLD, Stage, called, evidence, fillers, lost, stages, title, word};

use super::chart::{Anchor, Area, Figure, Scale, Svg, Width, room, spread};
use super::page::{Page, Section};
use super::ran;
use super::table::html_table;

/// The colours of classes other than the root's, which is grey.
const COLOURS: [&str; 7] = ["s2", "s1", "s4", "s5", "s3", "s6", "s7"];
/// The most lanes of cores that are drawn, and of processes and threads.
const MOST_CORES: usize = 8;
const MOST_THREADS: usize = 14;
const LEFT: f64 = 58.0;
const ABOVE: f64 = 26.0;
const COUNTED: f64 = 90.0;
const LANE: f64 = 18.0;
/// Space for the names of lanes within a lane of a core.
const INDENT: f64 = 12.0;

pub(crate) fn section(page: &Page<'_>) -> Option<Section> {
    let stages = stages(page.record);
    let body = html! {
        @for (n, stage) in stages.iter().enumerate() { (drawn(n, stage)) }
    };
    (!stages.is_empty()).then_some(Section {
        id: "ways",
        title: "Who may fill which ways",
        body,
    })
}

fn drawn(number: usize, stage: &Stage) -> Markup {
    let timeline = &stage.timeline;
    html! {
        @if let Some(name) = &stage.name { h3 { (name) ", first round" } }
        (found_html(&findings(timeline)))
        @for (n, cache) in timeline.caches.iter().enumerate() {
            (figure(&format!("fig-ways-{number}-{n}"), timeline, cache))
        }
        @if let Some(lost) = lost(timeline) { p.faint { (lost) } }
        @if let Some((table, caption)) = told(timeline) { (html_table(&table, &caption)) }
    }
}

fn figure(id: &str, timeline: &Timeline, cache: &Cache) -> Markup {
    let shows = format!(
        "{}. Who may fill which of them over time, what each class had of the cache and moved, and which ways each core, process and thread could fill.",
        title(cache)
    );
    let figure = Figure {
        id,
        title: &format!("Who may fill which ways of {}", cache.place),
        shows: &shows,
        reading: "A surface is named by the classes that may fill those ways; ways that several may fill are striped in their colours. \
                  Hardware tells how much a class has of a cache, not in which ways: dashed is what its mask comes to. \
                  In the lane of a core, process or thread stand the ways that it could fill, way 0 at the bottom.",
    };
    figure.render(|width| draw(timeline, cache, width))
}

fn found_html(found: &[Finding]) -> Markup {
    if found.is_empty() {
        return html! { p { "Nothing was found that is set wrong." } };
    }
    html! {
        ul {
            @for finding in found {
                li {
                    span.bad { (word(finding.kind)) } ": " (finding.what) ". "
                    span.faint { (evidence(finding)) "." } " To do: " (finding.remedy) "."
                }
            }
        }
    }
}

/// A table of what changed, and its caption.
fn told(timeline: &Timeline) -> Option<(Table, String)> {
    let row = |(at, what): &(u64, String)| {
        let at = format!("{:.2} s", *at as f64 / 1e9);
        vec![TableCell::new(at), TableCell::tone(what, Tone::Plain)]
    };
    let table = Table {
        head: vec!["after".to_owned(), "what changed".to_owned()],
        rows: timeline.told.iter().take(MOST_TOLD).map(row).collect(),
        left: vec![1],
    };
    if table.rows.is_empty() {
        return None;
    }
    let more = timeline.told.len().saturating_sub(MOST_TOLD);
    let caption = if more > 0 {
        format!("What changed; {more} more are in events.jsonl.")
    } else {
        "What changed.".to_owned()
    };
    Some((table, caption))
}

/// The style-sheet class of a class of service.
pub(super) fn colour(timeline: &Timeline, class: &str) -> &'static str {
    if class == ROOT {
        return "s0";
    }
    let named = timeline.classes.iter().filter(|c| *c != ROOT);
    let place = named.take_while(|c| *c != class).count();
    COLOURS[place % COLOURS.len()]
}

/// What a class occupied, or moved, over time.
struct Line<'t> {
    class: &'t str,
    /// What stands next to its end.
    name: String,
    /// Seconds, each with the value then.
    places: Vec<(f64, f64)>,
    /// The value that its mask allows, over time; may be empty.
    mask: Vec<(f64, f64)>,
}

fn occupied<'t>(timeline: &'t Timeline, cache: &Cache) -> Vec<Line<'t>> {
    let place = &cache.place;
    let line = |class: &'t String| {
        let samples = timeline.sampled(class, place, &(0..timeline.end_ns));
        let mib = |bytes: u64| bytes as f64 / 1_048_576.0;
        let places: Vec<(f64, f64)> = samples
            .iter()
            .filter_map(|s| Some((s.at_ns as f64 / 1e9, mib(s.occupancy?))))
            .collect();
        let key = (class.clone(), place.clone());
        let masks = timeline.masks.get(&key).into_iter().flatten();
        let mut mask = Vec::new();
        for held in masks {
            let bytes = mib(cache.part(held.is.count()));
            mask.push((held.from_ns as f64 / 1e9, bytes));
            mask.push((held.until_ns as f64 / 1e9, bytes));
        }
        if class == ROOT || *place != place.counted() {
            mask.clear();
        }
        (places.len() > 1).then_some(Line {
            class,
            name: called(class).to_owned(),
            places,
            mask,
        })
    };
    timeline.classes.iter().filter_map(line).collect()
}

fn moved<'t>(timeline: &'t Timeline, cache: &Cache) -> Vec<Line<'t>> {
    let line = |class: &'t String| {
        let samples = timeline.sampled(class, &cache.place, &(0..timeline.end_ns));
        let pairs = samples.windows(2).filter_map(|pair: &[Sampled]| {
            let last = pair.last()?;
            Some((last.at_ns as f64 / 1e9, rate(pair)? / 1e6))
        });
        let places: Vec<(f64, f64)> = pairs.collect();
        (places.len() > 1).then_some(Line {
            class,
            name: called(class).to_owned(),
            places,
            mask: Vec::new(),
        })
    };
    timeline.classes.iter().filter_map(line).collect()
}

/// The most threads whose misses are drawn.
const MOST_MISSES: usize = 7;

/// The misses of each thread that ran on the CPUs of a cache: those with the most of them.
fn missed<'t>(timeline: &'t Timeline, cache: &Cache) -> Vec<Line<'t>> {
    let all = timeline.misses.iter().filter_map(|(tid, counted)| {
        let lane = timeline.threads.get(tid)?;
        let here = lane.was.iter().rfind(|w| cache.cpus.contains(w.is.cpu))?;
        let total = counted.last()?.1.saturating_sub(counted.first()?.1);
        let pairs = counted.windows(2).filter_map(|pair| {
            let [(from, before), (until, after)] = pair else {
                return None;
            };
            let seconds = until.saturating_sub(*from) as f64 / 1e9;
            let misses = after.saturating_sub(*before) as f64 / 1e6;
            (seconds > 0.0).then_some((*until as f64 / 1e9, misses / seconds))
        });
        let line = Line {
            class: &here.is.class,
            name: format!("{tid} {}", lane.name),
            places: pairs.collect(),
            mask: Vec::new(),
        };
        (line.places.len() > 1 && total > 0).then_some((total, line))
    });
    let mut all: Vec<(u64, Line<'t>)> = all.collect();
    all.sort_by_key(|(total, _)| std::cmp::Reverse(*total));
    all.truncate(MOST_MISSES);
    all.into_iter().map(|(_, line)| line).collect()
}

/// The lanes that are drawn: cores, processes and threads. Cores come first whose class or threads
/// are not the root's.
fn lanes(timeline: &Timeline, cache: &Cache) -> Vec<Filler> {
    let is_core = |f: &Filler| matches!(f.who, Who::Core(_));
    let (mut cores, mut others): (Vec<Filler>, Vec<Filler>) =
        timeline.fillers(cache).into_iter().partition(is_core);
    let plain = |f: &Filler| {
        let mut all = f.was.iter().flat_map(|w| &w.is);
        all.all(|filling| filling.class == ROOT)
    };
    if cores.len() > MOST_CORES {
        cores.sort_by_key(plain);
        cores.truncate(MOST_CORES);
        cores.sort_by(|a, b| a.who.cmp(&b.who));
    }
    others.truncate(MOST_THREADS);
    cores.append(&mut others);
    cores
}

fn draw(timeline: &Timeline, cache: &Cache, width: Width) -> Svg {
    let (had, moved) = (occupied(timeline, cache), moved(timeline, cache));
    let who = lanes(timeline, cache);
    let missed = missed(timeline, cache);
    let names = timeline.classes.iter().map(|c| room(called(c)));
    let names = names.chain(missed.iter().map(|line| room(&line.name)));
    // Names of lines stand next to their ends.
    let right = width.units() - names.fold(0.0, f64::max).clamp(20.0, 120.0) - 8.0;
    let way = (180.0 / f64::from(cache.bits.max(1))).clamp(8.0, 16.0);
    let lanes = way * f64::from(cache.bits);
    let counted = [had.is_empty(), moved.is_empty()];
    let counted = counted.iter().filter(|none| !**none).count() as f64 * (ABOVE + COUNTED);
    let below = match who.len() {
        0 => 0.0,
        n => ABOVE + n as f64 * LANE,
    };
    let ran = ran::lanes(timeline, cache);
    let below = below
        + match ran.len() {
            0 => 0.0,
            n => ABOVE + n as f64 * ran::LANE,
        };
    let below = match missed.is_empty() {
        true => below,
        false => below + ABOVE + COUNTED,
    };
    let mut svg = Svg::new(width, ABOVE + lanes + counted + below + 44.0);
    let seconds = timeline.end_ns as f64 / 1e9;
    let x = Scale::linear(0.0..seconds, LEFT..right);
    let mut area = Area {
        left: LEFT,
        right,
        top: ABOVE,
        bottom: ABOVE + lanes,
    };
    svg.text(
        LEFT,
        ABOVE - 8.0,
        Anchor::Start,
        "small",
        &title_of_lanes(cache, width),
    );
    for bit in [0, cache.bits.saturating_sub(1)] {
        let y = area.bottom - way * (f64::from(bit) + 0.5) + 4.0;
        svg.text(LEFT - 6.0, y, Anchor::End, "small", &format!("way {bit}"));
    }
    for block in timeline.blocks.get(&cache.place).into_iter().flatten() {
        surface(&mut svg, timeline, block, &area, &x, way);
    }
    let under = |above: &Area, tall: f64| Area {
        top: above.bottom + ABOVE,
        bottom: above.bottom + ABOVE + tall,
        ..*above
    };
    for (all, what) in [
        (&had, "each class has of the cache, MiB"),
        (&moved, "moved from and to memory, MB/s"),
    ] {
        if !all.is_empty() {
            area = under(&area, COUNTED);
            lines(&mut svg, timeline, all, what, &area, &x);
        }
    }
    if !who.is_empty() {
        area = under(&area, who.len() as f64 * LANE);
        let lanes = Lanes {
            timeline,
            bits: cache.bits,
            area: &area,
            x: &x,
        };
        lanes.draw(&mut svg, &who);
    }
    if !ran.is_empty() {
        area = under(&area, ran.len() as f64 * ran::LANE);
        ran::draw(&mut svg, timeline, &ran, &area);
    }
    if !missed.is_empty() {
        area = under(&area, COUNTED);
        let what = "misses of each thread in the last-level cache, millions/s";
        lines(&mut svg, timeline, &missed, what, &area, &x);
    }
    let bare = Area {
        top: area.bottom,
        ..area
    };
    let ticks = x.ticks(if width == Width::Wide { 8 } else { 4 });
    svg.columns(&bare, &x, &ticks, "seconds since it began");
    svg
}

/// Lanes below each other, in which the ways of a cache are rows.
struct Lanes<'t> {
    timeline: &'t Timeline,
    bits: u32,
    area: &'t Area,
    x: &'t Scale,
}

impl Lanes<'_> {
    fn draw(&self, svg: &mut Svg, all: &[Filler]) {
        let what = "ways that each core, process and thread could fill";
        let area = self.area;
        svg.text(LEFT, area.top - 8.0, Anchor::Start, "small", what);
        for (n, filler) in all.iter().enumerate() {
            let top = area.top + LANE * n as f64;
            self.lane(svg, filler, top);
            let (indent, name) = named(&filler.who);
            svg.text(
                LEFT + 3.0 + indent,
                top + LANE / 2.0 + 3.0,
                Anchor::Start,
                "value halo",
                &name,
            );
        }
    }

    fn lane(&self, svg: &mut Svg, filler: &Filler, top: f64) {
        let tall = (LANE - 2.0) / f64::from(self.bits.max(1));
        for was in &filler.was {
            let from = self.x.at(was.from_ns as f64 / 1e9);
            let wide = (self.x.at(was.until_ns as f64 / 1e9) - from).max(1.0);
            svg.rect("lane", from, top, wide, LANE - 2.0);
            for filling in &was.is {
                let class = format!("band {}", colour(self.timeline, &filling.class));
                for run in filling.mask.runs() {
                    let high = f64::from(self.bits.saturating_sub(run.end)) * tall;
                    let rows = f64::from(run.end - run.start) * tall;
                    svg.rect(&class, from, top + high, wide, rows);
                }
            }
        }
    }
}

/// How far a lane's name is moved in, and the name.
fn named(who: &Who) -> (f64, String) {
    match who {
        Who::Core(cpu) => (0.0, format!("core {cpu}")),
        Who::Process(pid, name) => (0.0, format!("process {pid} {name}")),
        Who::Thread(tid, name) => (INDENT, format!("thread {tid} {name}")),
    }
}

fn title_of_lanes(cache: &Cache, width: Width) -> String {
    match width {
        Width::Wide => title(cache),
        Width::Narrow => format!("{}, {} ways", cache.place, cache.bits),
    }
}

/// The ways of a block, in the colours of the classes that may fill them.
fn surface(svg: &mut Svg, timeline: &Timeline, block: &Block, area: &Area, x: &Scale, way: f64) {
    let (from, until) = (
        x.at(block.from_ns as f64 / 1e9),
        x.at(block.until_ns as f64 / 1e9),
    );
    let wide = (until - from - 1.0).max(0.5);
    let top = area.bottom - way * f64::from(block.is.first + block.is.count);
    let tall = way * f64::from(block.is.count);
    let fill = &block.is.fill;
    if fill.locked.is_some() {
        svg.rect("fill s7", from, top, wide, tall - 1.0);
    }
    for n in 0..block.is.count {
        let stripe = (way - 1.0) / fill.classes.len().max(1) as f64;
        for (k, class) in fill.classes.iter().enumerate() {
            let y = top + way * f64::from(n) + stripe * k as f64;
            let class = format!("pale {}", colour(timeline, class));
            svg.rect(&class, from, y, wide, stripe);
        }
    }
    let name = fillers(fill);
    if room(&name) + 8.0 < wide && tall >= 8.0 {
        let class = if fill.locked.is_some() {
            "inside"
        } else {
            "value strong halo"
        };
        svg.text(
            from + 5.0,
            top + tall / 2.0 + 4.0,
            Anchor::Start,
            class,
            &name,
        );
    }
}

fn lines(svg: &mut Svg, timeline: &Timeline, all: &[Line<'_>], what: &str, area: &Area, x: &Scale) {
    svg.text(LEFT, area.top - 8.0, Anchor::Start, "small", what);
    let values = all.iter().flat_map(|l| l.places.iter().chain(&l.mask));
    let high = values.map(|(_, v)| *v).fold(0.0, f64::max);
    let y = Scale::linear(0.0..high.max(f64::MIN_POSITIVE) * 1.05, area.up());
    svg.rows(area, &y, &y.ticks(3), true);
    let placed = |places: &[(f64, f64)]| -> Vec<(f64, f64)> {
        places.iter().map(|(s, v)| (x.at(*s), y.at(*v))).collect()
    };
    for line in all {
        let class = colour(timeline, line.class);
        svg.line(&format!("line {class}"), &placed(&line.places));
        svg.line(&format!("line thin dash {class}"), &placed(&line.mask));
    }
    let ends = all
        .iter()
        .map(|l| l.places.last().map_or(0.0, |(_, v)| y.at(*v)));
    let ends: Vec<f64> = ends.collect();
    let labels = spread(&ends, 13.0, area.top + 4.0..area.bottom);
    for (line, at) in all.iter().zip(labels) {
        let class = format!("name small {}", colour(timeline, line.class));
        svg.text(
            area.right + 5.0,
            at + 4.0,
            Anchor::Start,
            &class,
            &line.name,
        );
    }
}
