//! Where the pages of programs with colours lay over time: a lane for each process, whose filled
//! part is the share of its pages that had its colours.

use std::collections::BTreeMap;

use maud::html;
use quell_record::events::{ColouredPages, Event, Record};

use crate::owners::had;
use crate::view::{Cell, cells};

use super::chart::{Anchor, Area, Figure, Scale, Svg, Width};
use super::page::{Page, Section};
use super::series::whole;

/// The most processes of a configuration that are drawn: those with the most pages.
const MOST: usize = 8;
const LEFT: f64 = 58.0;
const ABOVE: f64 = 22.0;
const LANE: f64 = 44.0;
const BELOW: f64 = 44.0;

/// A process, and where its pages lay.
struct Lane {
    name: String,
    /// Seconds since the cell began, and the share of its pages that had its colours from then on.
    shares: Vec<(f64, f64)>,
    last: ColouredPages,
}

/// The first round of a configuration, or a run.
struct Stage<'r> {
    name: Option<&'r str>,
    class: &'static str,
    seconds: f64,
    lanes: Vec<Lane>,
    /// Which programs had frames of reserved colours, in sentences.
    owned: Vec<String>,
}

pub(crate) fn section(page: &Page<'_>) -> Option<Section> {
    let stages = stages(page);
    if stages.is_empty() {
        return None;
    }
    let figure = Figure {
        id: "fig-colours",
        title: "Pages in the program's colours",
        shows: "The share of each program's pages that had frames of its colours over time, in the first round of each configuration. \
                For a program that leaves reserved colours: the share that lay outside of these.",
        reading: "A lane is a process, and full where all of its pages had its colours. It begins when its pages were first counted. \
                  Behind the name are the share at last and the pages that were moved. Only private memory without a file counts.",
    };
    Some(Section {
        id: "colours",
        title: "Pages in the program's colours",
        body: html! {
            (figure.render(|width| draw(&stages, width)))
            ul {
                @for stage in stages.iter().filter(|stage| !stage.owned.is_empty()) {
                    li { @if let Some(name) = stage.name { b { (name) } ": " } (stage.owned.join("; ")) "." }
                }
            }
        },
    })
}

fn stages<'r>(page: &Page<'r>) -> Vec<Stage<'r>> {
    let all = cells(page.record).into_iter().map(|cell| Stage {
        name: cell.configuration,
        class: cell
            .configuration
            .map_or("s2", |name| page.appearance(name).class),
        seconds: seconds(&cell, cell.until_ns),
        lanes: lanes(page.record, &cell),
        owned: owned(page.record, &cell),
    });
    all.filter(|stage| !stage.lanes.is_empty()).collect()
}

fn seconds(cell: &Cell<'_>, at_ns: u64) -> f64 {
    at_ns.saturating_sub(cell.from_ns) as f64 / 1e9
}

/// The processes of a cell, in the order of group and number.
fn lanes(record: &Record, cell: &Cell<'_>) -> Vec<Lane> {
    let mut lanes: BTreeMap<(&str, u32), Lane> = BTreeMap::new();
    for stamped in record.events.iter().filter(|e| cell.has(e.at_ns)) {
        let Event::Coloured {
            group,
            pid,
            program,
            pages,
            ..
        } = &stamped.event
        else {
            continue;
        };
        let lane = lanes.entry((group, *pid)).or_insert_with(|| Lane {
            name: format!("{group}: {program} {pid}"),
            shares: Vec::new(),
            last: *pages,
        });
        let share = share(pages);
        lane.shares.push((seconds(cell, stamped.at_ns), share));
        lane.last = *pages;
    }
    let pages = |lane: &Lane| lane.last.right + lane.last.wrong;
    let mut sizes: Vec<u64> = lanes.values().map(pages).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let least = sizes.get(MOST - 1).copied().unwrap_or(0);
    let large = lanes.into_values().filter(|lane| pages(lane) >= least);
    large.take(MOST).collect()
}

/// What other programs had of reserved colours, at first and at last.
fn owned(record: &Record, cell: &Cell<'_>) -> Vec<String> {
    let here = record.events.iter().filter(|e| cell.has(e.at_ns));
    let mut all = here.filter_map(|stamped| match &stamped.event {
        Event::Owners { owners } => Some(owners),
        _ => None,
    });
    let first = all.next();
    let last = all.next_back().or(first);
    let both = first.zip(last).into_iter();
    both.flat_map(|(first, last)| had(first, last)).collect()
}

fn share(pages: &ColouredPages) -> f64 {
    pages.right as f64 / (pages.right + pages.wrong).max(1) as f64
}

fn draw(stages: &[Stage<'_>], width: Width) -> Svg {
    let tall = |stage: &Stage<'_>| ABOVE + stage.lanes.len() as f64 * (ABOVE + LANE) + BELOW;
    let mut svg = Svg::new(width, stages.iter().map(tall).sum());
    let longest = stages.iter().map(|stage| stage.seconds).fold(0.0, f64::max);
    let x = Scale::linear(0.0..longest.max(1e-9), LEFT..width.units() - 14.0);
    let mut top = 0.0;
    for stage in stages {
        let class = format!("name strong {}", stage.class);
        let name = stage.name.unwrap_or_default();
        svg.text(LEFT, top + 14.0, Anchor::Start, &class, name);
        let mut area = Area {
            left: LEFT,
            right: width.units() - 14.0,
            top,
            bottom: top + ABOVE,
        };
        for one in &stage.lanes {
            area.top = area.bottom + ABOVE;
            area.bottom = area.top + LANE;
            lane(&mut svg, one, stage, &area, &x);
        }
        let bare = Area {
            top: area.bottom,
            ..area
        };
        let ticks = x.ticks(if width == Width::Wide { 8 } else { 4 });
        svg.columns(&bare, &x, &ticks, "seconds since the cell began");
        top = area.bottom + BELOW;
    }
    svg
}

fn lane(svg: &mut Svg, lane: &Lane, stage: &Stage<'_>, area: &Area, x: &Scale) {
    let (y, ticks) = whole(area);
    svg.rows(area, &y, &ticks, true);
    let moved = lane.last.moved;
    let at_last = share(&lane.last) * 100.0;
    let name = format!("{}, {at_last:.1} %, {moved} moved", lane.name);
    svg.text(area.left, area.top - 6.0, Anchor::Start, "small", &name);
    let Some(&(first, _)) = lane.shares.first() else {
        return;
    };
    let ends = lane.shares.iter().skip(1).map(|(at, _)| *at);
    let ends = ends.chain([stage.seconds]);
    let mut places = vec![(x.at(first), y.at(0.0))];
    for (&(from, share), until) in lane.shares.iter().zip(ends) {
        places.push((x.at(from), y.at(share)));
        places.push((x.at(until), y.at(share)));
    }
    places.push((x.at(stage.seconds), y.at(0.0)));
    svg.surface(&format!("band {}", stage.class), &places);
}

#[cfg(test)]
mod tests {
    use quell_record::events::Stamped;

    use super::*;
    use crate::sample;

    fn coloured(second: u64, pid: u32, right: u64, wrong: u64) -> Stamped {
        Stamped {
            at_ns: second * 1_000_000_000,
            event: Event::Coloured {
                group: "victim".to_owned(),
                pid,
                program: "list".to_owned(),
                out: false,
                pages: ColouredPages {
                    right,
                    wrong,
                    moved: right / 2,
                    ..ColouredPages::default()
                },
            },
        }
    }

    /// The sample with cells of ten seconds: `solo` from 0, `regulated@10%` from 10, and `solo`
    /// again, in the second round.
    fn record(coloured: Vec<Stamped>) -> Record {
        let cell = |second: u64, round, configuration: &str| Stamped {
            at_ns: second * 1_000_000_000,
            event: Event::Cell {
                round,
                of: 2,
                configuration: configuration.to_owned(),
                subject: None,
            },
        };
        let mut record = sample::record();
        record.events = vec![
            cell(0, 0, "solo"),
            cell(10, 0, "regulated@10%"),
            cell(20, 1, "solo"),
        ];
        record.events.extend(coloured);
        record.events.sort_by_key(|stamped| stamped.at_ns);
        record
    }

    #[test]
    fn a_lane_has_the_share_of_a_process_over_the_first_round() {
        let all = vec![
            coloured(12, 7, 100, 300),
            coloured(14, 7, 400, 0),
            coloured(15, 8, 30, 10),
            coloured(25, 7, 1, 1),
        ];
        let record = record(all);
        let page = Page::new(&record);
        let stages = stages(&page);
        assert_eq!(stages.len(), 1);
        assert_eq!(stages[0].name, Some("regulated@10%"));
        let lanes = &stages[0].lanes;
        let said: Vec<_> = lanes
            .iter()
            .map(|lane| (&*lane.name, &*lane.shares))
            .collect();
        let first: &[_] = &[(2.0, 0.25), (4.0, 1.0)];
        let second: &[_] = &[(5.0, 0.75)];
        assert_eq!(
            said,
            [("victim: list 7", first), ("victim: list 8", second)]
        );
        let body = section(&page).map(|section| section.body.into_string());
        let body = body.unwrap_or_default();
        assert!(
            body.contains("victim: list 7, 100.0 %, 200 moved"),
            "{body}"
        );
    }

    #[test]
    fn the_processes_with_the_most_pages_are_drawn() {
        let all = (0..20).map(|pid| coloured(11, pid, 10 + u64::from(pid), 0));
        let record = record(all.collect());
        let lanes = stages(&Page::new(&record)).remove(0).lanes;
        let names: Vec<&str> = lanes.iter().map(|lane| &*lane.name).collect();
        assert_eq!(names.len(), MOST);
        assert_eq!(names[0], "victim: list 12");
        assert!(section(&Page::new(&sample::record())).is_none());
    }
}
