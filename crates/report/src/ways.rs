//! Which classes may fill which ways, over time: as text for a terminal, and what the page and the
//! trace share with it.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt::Write as _;

use quell_record::events::{Event, Record};
use quell_record::ways::{Cache, Change, Fill, Finding, Kind, ROOT, ThreadRan, Timeline, findings};

use crate::text::{Style, Table, TableCell, Tone, list, percent, thousands};
use crate::view::cells;

/// A timeline of a record. A comparison has one for each configuration with recorded masks, from
/// its first round.
#[derive(Clone, Debug)]
pub(crate) struct Stage {
    /// The configuration. `None` where nothing was compared.
    pub(crate) name: Option<String>,
    /// When it began, in nanoseconds on the record's clock.
    pub(crate) from_ns: u64,
    /// The timeline, with times from `from_ns` on.
    pub(crate) timeline: Timeline,
}

/// The timelines of cache ways that a record has.
pub(crate) fn stages(record: &Record) -> Vec<Stage> {
    let mut stages = Vec::new();
    for cell in cells(record) {
        let changes = record.events.iter().filter_map(|e| match &e.event {
            Event::Ways { change } if cell.has(e.at_ns) => Some((e.at_ns - cell.from_ns, change)),
            _ => None,
        });
        let timeline = Timeline::of(changes, cell.until_ns - cell.from_ns);
        if !timeline.caches.is_empty() {
            stages.push(Stage {
                name: cell.configuration.map(str::to_owned),
                from_ns: cell.from_ns,
                timeline,
            });
        }
    }
    stages
}

/// The timeline and what was found, for a terminal.
#[must_use]
pub fn ways_text<'c>(
    changes: impl IntoIterator<Item = (u64, &'c Change)>,
    end_ns: u64,
    style: Style,
) -> String {
    text(&Timeline::of(changes, end_ns), style)
}

/// The same of a record. Empty where it has no timeline of ways.
pub(crate) fn record_text(record: &Record, style: Style) -> String {
    let mut out = String::new();
    for stage in stages(record) {
        if let Some(name) = &stage.name {
            let _ = write!(out, "\n{}\n", style.paint(Tone::Title, name));
        }
        out.push('\n');
        out += &text(&stage.timeline, style);
    }
    out
}

fn text(timeline: &Timeline, style: Style) -> String {
    let mut out = String::new();
    for cache in &timeline.caches {
        out += &picture(timeline, cache, style);
    }
    out += &ran_text(timeline, style);
    let shown = timeline.told.len().min(MOST_TOLD);
    if shown > 0 {
        let _ = writeln!(out, "{}", style.paint(Tone::Title, "What changed"));
    }
    let mut last = None;
    for (at, told) in timeline.told.iter().take(shown) {
        let time = if last == Some(*at) {
            " ".repeat(TIME)
        } else {
            format!("{:>8.2} s", *at as f64 / 1e9)
        };
        last = Some(*at);
        let rest = " ".repeat(TIME + 2);
        out += &style.wrap(&format!("{time}  "), &rest, told);
    }
    if shown < timeline.told.len() {
        let _ = writeln!(out, "{} more", timeline.told.len() - shown);
    }
    let found = findings(timeline);
    if found.is_empty() {
        let _ = writeln!(out, "\nNothing was found that is set wrong.");
    }
    for finding in &found {
        let what = format!("{}: {}", word(finding.kind), finding.what);
        let _ = write!(
            out,
            "\n{}",
            style.paint(Tone::Bad, style.wrap("", "", &what).trim_end())
        );
        let _ = write!(
            out,
            "\n{}{}",
            style.wrap("  evidence: ", "    ", &evidence(finding)),
            style.wrap("  to do: ", "    ", &finding.remedy)
        );
    }
    out
}

/// The threads that ran longest, by CPU. Empty where switches were not recorded.
fn ran_text(timeline: &Timeline, style: Style) -> String {
    let mut rows = Vec::new();
    for cache in &timeline.caches {
        for core in timeline.ran_on(cache) {
            rows.extend(core.threads.into_iter().map(|thread| (core.cpu, thread)));
        }
    }
    // Caches of several levels have the same CPUs.
    rows.sort_by_key(|(cpu, thread)| (Reverse(thread.ns), thread.tid, *cpu));
    rows.dedup();
    let classes = |cpu: u32, tid: u32| {
        let all = timeline.ran.get(&cpu).into_iter().flatten();
        let mine = all.filter(|run| run.is.tid == tid);
        let places: BTreeSet<usize> = mine.map(|run| run.is.class).collect();
        let names = places.iter().filter_map(|n| timeline.classes.get(*n));
        list(
            &names
                .map(|class| called(class).to_owned())
                .collect::<Vec<_>>(),
        )
    };
    let row = |(cpu, thread): &(u32, ThreadRan)| {
        let pid = timeline.threads.get(&thread.tid).map_or(0, |lane| lane.pid);
        [
            thread_name(timeline, thread.tid),
            pid.to_string(),
            cpu.to_string(),
            format!("{:.3} s", thread.ns as f64 / 1e9),
            percent(thread.ns as f64 / timeline.end_ns.max(1) as f64),
            thousands(&thread.runs.to_string()),
            classes(*cpu, thread.tid),
        ]
        .map(TableCell::new)
        .to_vec()
    };
    let table = Table {
        head: [
            "what ran", "process", "CPU", "for", "part", "times", "class",
        ]
        .map(str::to_owned)
        .to_vec(),
        rows: rows.iter().take(MOST_RAN).map(row).collect(),
        left: vec![6],
    };
    let mut out = String::new();
    if !table.rows.is_empty() {
        out += &table.render(style);
    }
    if let Some(lost) = lost(timeline) {
        out += &style.wrap("", "", &lost);
    }
    if !out.is_empty() {
        out.push('\n');
    }
    out
}

/// The most threads that are listed.
const MOST_RAN: usize = 10;

/// The name of a thread, with its number.
pub(crate) fn thread_name(timeline: &Timeline, tid: u32) -> String {
    let name = timeline.threads.get(&tid).map_or("", |lane| &lane.name);
    format!("thread {tid} {name}").trim_end().to_owned()
}

/// Says how much is missing of what ran.
pub(crate) fn lost(timeline: &Timeline) -> Option<String> {
    let lost = timeline.lost;
    (lost > 0).then(|| {
        format!(
            "At least {} context switches are missing: what ran then is not shown.",
            thousands(&lost.to_string())
        )
    })
}

const TIME: usize = 10;
/// The most changes that are listed.
pub(crate) const MOST_TOLD: usize = 40;

/// The evidence of a finding, and when it was seen.
pub(crate) fn evidence(finding: &Finding) -> String {
    format!(
        "{} ({:.1} s to {:.1} s)",
        finding.evidence,
        finding.from_ns as f64 / 1e9,
        finding.until_ns as f64 / 1e9
    )
}

/// A finding in a word.
pub(crate) const fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Register => "registers",
        Kind::Unused => "not used",
        Kind::Overlap => "overlap",
        Kind::Escaped => "escaped",
        Kind::OtherCache => "another cache",
        Kind::TooSmall => "too small",
        Kind::TooLarge => "too large",
        Kind::Beyond => "left behind",
        Kind::Empty => "nobody",
        Kind::Devices => "devices",
    }
}

/// The name of a cache as a title.
pub(crate) fn title(cache: &Cache) -> String {
    let part = cache.part(1);
    let part = if part >= 1 << 20 {
        format!("{:.1} MiB", part as f64 / 1_048_576.0)
    } else {
        format!("{} KiB", part >> 10)
    };
    format!(
        "{} of CPUs {}: {} ways of {part}",
        cache.place, cache.cpus, cache.bits
    )
}

/// The name of a class for the user: the root's class has none of its own.
pub(crate) fn called(class: &str) -> &str {
    if class == ROOT {
        "everybody else"
    } else {
        class
    }
}

/// The classes that may fill, in words.
pub(crate) fn fillers(fill: &Fill) -> String {
    let mut names: Vec<String> = fill.classes.iter().map(|c| called(c).to_owned()).collect();
    if fill.devices && !names.is_empty() {
        names.push("devices".to_owned());
    }
    match &fill.locked {
        Some(class) => format!("locked: {class}"),
        None if names.is_empty() => "nobody".to_owned(),
        None => list(&names),
    }
}

/// Text with a row for neighbouring ways alike, and a column for a stretch of time.
fn picture(timeline: &Timeline, cache: &Cache, style: Style) -> String {
    let mut out = style.paint(Tone::Title, &title(cache)) + "\n";
    let Some(blocks) = timeline.blocks.get(&cache.place) else {
        return out;
    };
    let columns = style.width.saturating_sub(40).clamp(20, 60);
    let letter = |class: &str| {
        if class == ROOT {
            return '.';
        }
        let named = timeline.classes.iter().filter(|c| *c != ROOT);
        let place = named.take_while(|c| *c != class).count();
        char::from(b'a' + u8::try_from(place % 26).unwrap_or(0))
    };
    let sign = |fill: &Fill| match (&fill.locked, fill.classes.as_slice()) {
        (Some(_), _) => '=',
        (None, []) => ' ',
        (None, [one]) => letter(one),
        (None, _) => '#',
    };
    let row = |bit: u32| {
        let over = || {
            let mine = blocks.iter();
            mine.filter(move |b| (b.is.first..b.is.first + b.is.count).contains(&bit))
        };
        let line: String = (0..columns)
            .map(|column| {
                let at = timeline.end_ns / columns as u64 * column as u64
                    + timeline.end_ns / columns as u64 / 2;
                let there = over().find(|b| (b.from_ns..b.until_ns).contains(&at));
                there.map_or(' ', |b| sign(&b.is.fill))
            })
            .collect();
        let last = over().max_by_key(|b| b.until_ns);
        (line, last.map(|b| fillers(&b.is.fill)).unwrap_or_default())
    };
    let mut rows: Vec<(u32, u32, (String, String))> = Vec::new();
    for bit in (0..cache.bits).rev() {
        let row = row(bit);
        match rows.last_mut().filter(|(_, _, known)| *known == row) {
            Some((_, lowest, _)) => *lowest = bit,
            None => rows.push((bit, bit, row)),
        }
    }
    for (high, low, (line, last)) in rows {
        let ways = if high == low {
            high.to_string()
        } else {
            format!("{high}-{low}")
        };
        let _ = writeln!(out, "{ways:>6} |{line}| {last}");
    }
    let end = format!("{:.1} s", timeline.end_ns as f64 / 1e9);
    let gap = columns.saturating_sub(3 + end.len());
    let _ = writeln!(out, "{:>8}0 s{}{end}", "", " ".repeat(gap));
    let mut signs: Vec<String> = Vec::new();
    for class in &timeline.classes {
        signs.push(format!("{} {}", letter(class), called(class)));
    }
    let shown = |of: fn(&Fill) -> bool| blocks.iter().any(|b| of(&b.is.fill));
    if shown(|f| f.locked.is_none() && f.classes.len() > 1) {
        signs.push("# several".to_owned());
    }
    if shown(|f| f.locked.is_some()) {
        signs.push("= locked".to_owned());
    }
    out + &style.wrap("        ", "        ", &signs.join("   ")) + "\n"
}

#[cfg(test)]
pub(crate) mod tests {
    use quell_record::events::Stamped;
    use quell_record::ways::{Class, Figures, Mode, Place, Run, Snapshot, Thread, changes};
    use quell_types::partition::Mask;

    use super::*;

    const LOOK: u64 = 100_000_000;

    /// Eight ways, and two threads. After a second the first four go to `db`, which shares them.
    /// After two seconds all other classes lose them, and they are exclusive.
    pub(crate) fn record() -> Record {
        let place = Place::new("L3", 0);
        let cache = Cache {
            place: place.clone(),
            bits: 8,
            bytes: 8 << 20,
            cpus: [0, 1].into_iter().collect(),
            least: 1,
            shareable: Mask(0x80),
        };
        let class = |mask: u64, mode: Mode, bytes: u64| Class {
            mode,
            masks: [(place.clone(), Mask(mask))].into(),
            figures: [(
                place.clone(),
                Figures {
                    occupancy: Some(bytes),
                    traffic: Some(bytes),
                },
            )]
            .into(),
            ..Class::default()
        };
        let at = |n: u64| {
            let mut seen = Snapshot::default();
            let (root, mode) = if n < 20 {
                (0xff, Mode::Shareable)
            } else {
                (0xf0, Mode::Exclusive)
            };
            seen.classes
                .insert(ROOT.to_owned(), class(root, Mode::Shareable, n << 24));
            if n >= 10 {
                let db = class(0x0f, mode, (n << 16) + (1 << 20));
                seen.classes.insert("db".to_owned(), db);
            }
            let thread = Thread {
                pid: 7,
                name: "redis".to_owned(),
                class: if n >= 12 { "db" } else { ROOT }.to_owned(),
                cpu: 1,
                passing: false,
            };
            if n == 11 {
                let cron = Thread {
                    pid: 8,
                    name: "cron".to_owned(),
                    class: ROOT.to_owned(),
                    passing: true,
                    ..thread.clone()
                };
                seen.threads.insert(8, cron);
            }
            seen.threads.insert(7, thread);
            seen.misses.insert(7, n * n);
            seen
        };
        let mut events = vec![Stamped {
            at_ns: 0,
            event: Event::Ways {
                change: Change::Machine {
                    caches: vec![cache],
                    registers: false,
                },
            },
        }];
        let mut before = Snapshot::default();
        for n in 0..40 {
            let seen = at(n);
            events.extend(changes(&before, &seen).into_iter().map(|change| Stamped {
                at_ns: n * LOOK,
                event: Event::Ways { change },
            }));
            events.extend((n > 0).then(|| Stamped {
                at_ns: n * LOOK,
                event: Event::Ways { change: ran(n) },
            }));
            before = seen;
        }
        Record {
            name: "ways".to_owned(),
            events,
            ..Record::default()
        }
    }

    /// Thread 7 runs every other 50 ms, thread 8 for a moment after the first second.
    fn ran(n: u64) -> Change {
        let run = |tid, before_ns, ns| Run { tid, before_ns, ns };
        let mut runs = vec![run(7, LOOK, LOOK / 2)];
        if n == 11 {
            runs.push(run(8, LOOK / 2, LOOK / 4));
        }
        Change::Ran { cpu: 1, runs }
    }

    #[test]
    fn a_terminal_shows_who_may_fill_what() {
        let style = Style {
            color: false,
            width: 80,
        };
        let text = record_text(&record(), style);
        let rows: Vec<&str> = text.lines().filter(|l| l.contains('|')).collect();
        assert_eq!(
            rows,
            [
                "     7 |........................................| everybody else and devices",
                "   6-4 |........................................| everybody else",
                "   3-0 |..........###########aaaaaaaaaaaaaaaaaaa| db",
            ],
            "{text}"
        );
        assert!(text.contains("L3:0 of CPUs 0-1: 8 ways of 1.0 MiB"));
        assert!(text.contains("a db") && text.contains("# several"));
        assert!(text.contains("L3:0: class / may fill 0xf0 instead of 0xff"));
        assert!(text.contains("thread 7 (redis, process 7) goes from class / to class db"));
        let words: Vec<&str> = text.split_whitespace().collect();
        let words = words.join(" ");
        assert!(words.contains("thread 7 redis 7 1 1.950 s 50 % 39 everybody else and db"));
        assert!(words.contains("thread 8 cron 8 1 0.025 s 0.6 % 1 everybody else"));
        assert!(text.contains("overlap: class db shares 4 of its 4 ways of L3:0 with class /"));
    }
}
