//! Text on rates, latency under load, cache sizes and page size.

use quell_plan::deep::{
    CacheSteps, CpuRate, LevelSeen, Loaded, OperationRates, PageCost, Seen, Spread, Tail,
};
use quell_plan::inventory::Measured;

use super::{NARROW, bar, cell, gb, gb_range, head, range, sparkline};
use crate::text::size;
use crate::text::{Style, Table, TableCell, Tone, count, number, percent};

pub(super) fn rates_mean(measured: &Measured) -> String {
    let doubt = measured.doubt().map(|why| format!(" But {why}."));
    format!(
        "One CPU alone reaches {} ({}), {} together {}: what percentages of bandwidth in a policy refer to.{}",
        measured.peak_cpu,
        measured.peak_operation,
        count(measured.cpus, "CPU"),
        measured.sustainable,
        doubt.unwrap_or_default()
    )
}

pub(super) fn rates_table(operations: &[OperationRates], style: Style) -> String {
    let mut table = Table {
        head: head(&["GB/s", "one CPU alone", "one of all", "all together"]),
        ..Table::default()
    };
    for of in operations {
        let all = |rates: &[CpuRate]| {
            let pool = |pick: fn(&Spread) -> f64| -> Vec<f64> {
                rates.iter().map(|r| pick(&r.mb_s)).collect()
            };
            let (mid, low, high) = (pool(|s| s.p50), pool(|s| s.low), pool(|s| s.high));
            Spread::of(&mid).map_or("–".to_owned(), |mid| {
                gb_range(Spread {
                    p50: mid.p50,
                    low: low.iter().copied().fold(f64::INFINITY, f64::min),
                    high: high.iter().copied().fold(0.0, f64::max),
                })
            })
        };
        let mut row = vec![
            cell(of.operation.clone()),
            cell(all(&of.alone)),
            cell(all(&of.loaded)),
            cell(gb_range(of.together)),
        ];
        if style.width < NARROW {
            row.remove(2);
        }
        table.rows.push(row);
    }
    if style.width < NARROW {
        table.head.remove(2);
    }
    table.render(style)
}

pub(super) fn loaded_means(loaded: &Loaded) -> String {
    let (Some(idle), Some(full)) = (loaded.points.first(), loaded.points.last()) else {
        return "Nothing was measured.".to_owned();
    };
    let (quiet, worst) = (idle.rounds.p50, full.rounds.p50);
    let others = match loaded.writers {
        1 => "the other CPU writes".to_owned(),
        n => format!("the {n} other CPUs write"),
    };
    match loaded.knee.and_then(|k| loaded.points.get(k)) {
        Some(knee) => format!(
            "An access to memory takes {} ns, and {} ns while {others} {} GB/s; beyond that it rises out of proportion, to \
             {} ns at {} GB/s. Keep neighbours together below {} GB/s (`limit.bandwidth`).",
            number(quiet),
            number(knee.rounds.p50),
            gb(knee.mb_s.p50),
            number(worst),
            gb(full.mb_s.p50),
            gb(knee.mb_s.p50),
        ),
        None => format!(
            "An access to memory takes {} ns, and {} ns while {others} {} GB/s: no rate at which it begins to rise out \
             of proportion. What neighbours cost here they cost in the caches, or evenly.",
            number(quiet),
            number(worst),
            gb(full.mb_s.p50),
        ),
    }
}

pub(super) fn loaded_table(loaded: &Loaded, style: Style) -> String {
    let wide = style.width >= NARROW;
    let names = ["others GB/s", "p50 ns", "p95", "p99", "rounds' p50", ""];
    let mut table = Table {
        head: head(&names),
        rows: Vec::new(),
        left: vec![5],
    };
    let worst = loaded
        .points
        .iter()
        .map(|p| p.latency_ns.p50)
        .fold(1.0, f64::max);
    for (i, point) in loaded.points.iter().enumerate() {
        let tail: &Tail = &point.latency_ns;
        let knee = if loaded.knee == Some(i) { " knee" } else { "" };
        table.rows.push(vec![
            cell(gb(point.mb_s.p50)),
            cell(number(tail.p50)),
            cell(number(tail.p95)),
            cell(number(tail.p99)),
            cell(format!(
                "{}–{}",
                number(point.rounds.low),
                number(point.rounds.high)
            )),
            cell(bar(tail.p50 / worst, if wide { 24 } else { 8 }) + knee),
        ]);
    }
    if !wide {
        table.head.remove(4);
        table.rows.iter_mut().for_each(|r| drop(r.remove(4)));
        table.left = vec![4];
    }
    table.render(style)
}

fn level_says(level: &LevelSeen, last: bool) -> String {
    let whose = if last {
        "other programs, or other tenants of the host, hold the rest"
    } else {
        "a sibling thread uses it (in a virtual machine maybe another tenant's), or the kernel's figure is not this CPU's"
    };
    match (level.verdict(), level.seen) {
        (Seen::AsClaimed, _) => "as claimed".to_owned(),
        (Seen::Larger, _) => "larger than the kernel says".to_owned(),
        (Seen::Smaller, Some(seen)) => format!(
            "{} of it: {whose}",
            percent(seen.0 as f64 / level.claimed.0.max(1) as f64)
        ),
        (Seen::Smaller | Seen::NotAtAll, _) if last => {
            "not seen: what outgrows the caches before it is as slow as memory; other tenants hold it".to_owned()
        }
        (Seen::Smaller | Seen::NotAtAll, _) => "not seen as a level of its own".to_owned(),
    }
}

pub(super) fn caches_mean(caches: &CacheSteps) -> String {
    let odd: Vec<String> = caches
        .levels
        .iter()
        .enumerate()
        .filter(|(_, l)| l.verdict() != Seen::AsClaimed)
        .map(|(i, l)| {
            format!(
                "L{} ({}): {}",
                l.level,
                size(l.claimed.0),
                level_says(l, i + 1 == caches.levels.len())
            )
        })
        .collect();
    if caches.levels.is_empty() {
        return "The kernel tells of no cache to compare with.".to_owned();
    }
    if odd.is_empty() {
        return format!(
            "Latency steps up where the kernel says the caches end; memory takes {} ns.",
            number(caches.memory_ns)
        );
    }
    format!(
        "{}. Size what must stay in a cache by what was seen, not by what is claimed.",
        odd.join(". ")
    )
}

pub(super) fn caches_table(caches: &CacheSteps, style: Style) -> String {
    let ns: Vec<f64> = caches.points.iter().map(|p| p.latency_ns.p50).collect();
    let mut out = String::new();
    if let (Some(first), Some(last)) = (caches.points.first(), caches.points.last()) {
        let (from, to) = (size(first.size.0), size(last.size.0));
        let room = style.width.saturating_sub(from.len() + to.len() + 6).max(8);
        // Only every n-th point where there is no room for all.
        let step = ns.len().div_ceil(room).max(1);
        let shown: Vec<f64> = ns.iter().copied().step_by(step).collect();
        out = format!("{from} {} {to}\n", sparkline(&shown));
    }
    let mut table = Table {
        head: head(&["cache", "claimed", "seen", "ns", ""]),
        rows: Vec::new(),
        left: vec![4],
    };
    for level in &caches.levels {
        let (text, tone) = match level.verdict() {
            Seen::AsClaimed => ("as claimed", Tone::Good),
            Seen::Larger => ("larger", Tone::Plain),
            Seen::Smaller => ("smaller", Tone::Bad),
            Seen::NotAtAll => ("not seen", Tone::Bad),
        };
        table.rows.push(vec![
            cell(format!("L{}", level.level)),
            cell(size(level.claimed.0)),
            cell(level.seen.map_or("–".to_owned(), |s| size(s.0))),
            cell(level.latency_ns.map_or("–".to_owned(), number)),
            TableCell::tone(text, tone),
        ]);
    }
    let none = || cell("");
    let memory = vec![
        cell("memory"),
        none(),
        none(),
        cell(number(caches.memory_ns)),
        none(),
    ];
    table.rows.push(memory);
    out + &table.render(style)
}

/// From this ratio on, something should be done about the page size.
const WORTH: f64 = 1.15;

pub(super) fn pages_mean(pages: &[PageCost]) -> String {
    let worst = pages
        .iter()
        .max_by(|a, b| a.ratio.p50.total_cmp(&b.ratio.p50));
    let from = pages.iter().find(|p| p.ratio.p50 >= WORTH);
    match (from, worst) {
        (Some(from), Some(worst)) => format!(
            "From {} on, random access in pages of 4 KiB costs more, up to {:.2} times as much at {}: give such memory pages of \
             2 MiB (madvise, or a program's own option for huge pages).",
            size(from.size.0),
            worst.ratio.p50,
            size(worst.size.0)
        ),
        _ => "Pages of 2 MiB gain little here at any size.".to_owned(),
    }
}

pub(super) fn pages_table(pages: &[PageCost], style: Style) -> String {
    let mut table = Table {
        head: head(&["random list", "4 KiB ns", "2 MiB ns", "ratio"]),
        ..Table::default()
    };
    for page in pages {
        let ratio = format!(
            "{:.2} ({:.2}–{:.2})",
            page.ratio.p50, page.ratio.low, page.ratio.high
        );
        let wide = style.width >= NARROW;
        let ns = |s: Spread| if wide { range(s) } else { number(s.p50) };
        table.rows.push(vec![
            cell(page.size.to_string()),
            cell(ns(page.base_ns)),
            cell(ns(page.huge_ns)),
            cell(ratio),
        ]);
    }
    table.render(style)
}
