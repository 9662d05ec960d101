//! What `quell doctor --deep` found out, in words: for every block a plain sentence of what it means and what to do about
//! it, and below it the figures. `docs/doctor.md` explains each.

use quell_core::deep::{
    CacheSteps, Case, CounterCheck, Deep, LevelSeen, Loaded, OperationRates, PageCost, Pair, Seen,
    Sharing, Spread, Tail, Wakeup,
};
use quell_core::inventory::Measured;
use quell_core::units::Bytes;

use crate::doctor::size;
use crate::text::{Style, Table, TableCell, Tone, count, number, percent};

/// A block: its title, what it means, and its figures.
struct Block {
    title: &'static str,
    meaning: String,
    figures: String,
}

/// Columns below which tables leave out what can be missed.
const NARROW: usize = 64;

fn blocks(measured: &Measured, deep: Option<&Deep>, style: Style) -> Vec<Block> {
    let mut all = Vec::new();
    let mut add = |title, meaning, figures| {
        all.push(Block {
            title,
            meaning,
            figures,
        });
    };
    if let Some(sharing) = deep.and_then(|d| d.sharing.as_ref()) {
        add(
            "Shared caches",
            sharing_means(sharing),
            sharing_table(sharing, style),
        );
    }
    if !measured.operations.is_empty() {
        add(
            "Rates",
            rates_mean(measured),
            rates_table(&measured.operations, style),
        );
    }
    if let Some(loaded) = deep.and_then(|d| d.loaded.as_ref()) {
        add(
            "Latency under load",
            loaded_means(loaded),
            loaded_table(loaded, style),
        );
    }
    if let Some(caches) = deep.and_then(|d| d.caches.as_ref()) {
        add(
            "Cache sizes",
            caches_mean(caches),
            caches_table(caches, style),
        );
    }
    if let Some(deep) = deep {
        if !deep.pages.is_empty() {
            add(
                "Page size",
                pages_mean(&deep.pages),
                pages_table(&deep.pages, style),
            );
        }
        if !deep.wakeups.is_empty() {
            add(
                "Wake-ups",
                wakeups_mean(deep),
                wakeups_table(&deep.wakeups, style),
            );
        }
        add(
            "Counters",
            counters_mean(measured, deep),
            counters_table(measured, deep, style),
        );
    }
    all
}

/// A sentence per block.
pub(crate) fn short(
    measured: &Measured,
    style: Style,
    labelled: impl Fn(&str, &str) -> String,
) -> String {
    let Some(deep) = measured.deep.as_deref() else {
        return String::new();
    };
    let mut out = style.paint(Tone::Title, "Measured") + "\n";
    for block in blocks(measured, Some(deep), style) {
        out.push_str(&labelled(&block.title.to_lowercase(), &block.meaning));
    }
    out + "\n"
}

/// Every block with its figures.
pub(crate) fn full(measured: &Measured, style: Style) -> String {
    let deep = measured.deep.as_deref();
    let mut out = String::new();
    for block in blocks(measured, deep, style) {
        out.push_str(&style.paint(Tone::Title, block.title));
        out.push('\n');
        out.push_str(&style.wrap("  ", "  ", &block.meaning));
        for line in block.figures.lines() {
            out.push_str("    ");
            out.push_str(line);
            out.push('\n');
        }
        out.push('\n');
    }
    if let Some(deep) = deep {
        for (what, why) in &deep.skipped {
            out.push_str(&style.wrap(&format!("  {what}: not measured: "), "    ", why));
        }
        let hurry = if deep.quick {
            " with few rounds (--quick): spreads are wide"
        } else {
            ""
        };
        out.push_str(&style.wrap(
            "  ",
            "  ",
            &format!("All this took {:.0} s{hurry}.", deep.took_s),
        ));
    }
    out
}

/// A cache probe's rounds, for `quell bench canary`.
#[must_use]
pub fn canary_text(sharing: &Sharing, style: Style) -> String {
    style.wrap("", "", &sharing_means(sharing)) + &sharing_table(sharing, style)
}

fn cell(text: impl Into<String>) -> TableCell {
    TableCell::new(text)
}

fn head(names: &[&str]) -> Vec<String> {
    names.iter().map(|n| (*n).to_owned()).collect()
}

/// `15.3 (14.9–16.1)`.
fn range(spread: Spread) -> String {
    format!(
        "{} ({}–{})",
        number(spread.p50),
        number(spread.low),
        number(spread.high)
    )
}

fn gb(mb_s: f64) -> String {
    format!("{:.1}", mb_s / 1e3)
}

fn gb_range(spread: Spread) -> String {
    format!(
        "{} ({}–{})",
        gb(spread.p50),
        gb(spread.low),
        gb(spread.high)
    )
}

/// A bar of at most `width` columns in eighths of one.
fn bar(part: f64, width: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    #[expect(
        clippy::cast_sign_loss,
        clippy::cast_possible_truncation,
        reason = "a part of a width, held within it"
    )]
    let eighths = (part.clamp(0.0, 1.0) * width as f64 * 8.0).round() as usize;
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

/// One column per value, on a logarithmic scale.
fn sparkline(values: &[f64]) -> String {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let logs: Vec<f64> = values.iter().map(|v| v.max(1e-9).ln()).collect();
    let low = logs.iter().copied().fold(f64::INFINITY, f64::min);
    let span = (logs.iter().copied().fold(f64::NEG_INFINITY, f64::max) - low).max(1e-9);
    #[expect(
        clippy::cast_sign_loss,
        clippy::cast_possible_truncation,
        reason = "between 0 and 7"
    )]
    let level = |v: &f64| LEVELS[((v - low) / span * 7.0).round().clamp(0.0, 7.0) as usize];
    logs.iter().map(level).collect()
}

fn pair_names(pairs: &[&Pair]) -> String {
    let names: Vec<String> = pairs
        .iter()
        .take(4)
        .map(|p| format!("{} and {}", p.a, p.b))
        .collect();
    let more = if pairs.len() > 4 {
        format!(", and {} more pairs", pairs.len() - 4)
    } else {
        String::new()
    };
    format!("CPUs {}{more}", names.join(", "))
}

fn sharing_means(sharing: &Sharing) -> String {
    let pairs = |claimed: bool, shared: Option<bool>| -> Vec<&Pair> {
        let of = sharing.pairs.iter();
        of.filter(|p| p.claimed == claimed && p.shared() == shared)
            .collect()
    };
    let (denied, hidden) = (pairs(true, Some(false)), pairs(false, Some(true)));
    let mut says = Vec::new();
    if !denied.is_empty() {
        says.push(format!(
            "{} do not share a last-level cache now, though the kernel says so: a neighbour there costs memory bandwidth, not \
             cache. In a virtual machine this changes by the moment.",
            pair_names(&denied)
        ));
    }
    if !hidden.is_empty() {
        says.push(format!(
            "{} share a cache, though the kernel does not say so: keep neighbours of a critical group off both.",
            pair_names(&hidden)
        ));
    }
    let told = sharing
        .pairs
        .iter()
        .filter(|p| p.shared().is_some())
        .count();
    if told == 0 {
        says.push(if sharing.pairs.is_empty() {
            "One CPU: there is nobody to share with.".to_owned()
        } else {
            "Whether CPUs share a cache could not be told: they were busy, or memory is hardly farther than the cache.".to_owned()
        });
    } else if denied.is_empty() && hidden.is_empty() {
        says.push("CPUs share a last-level cache just where the kernel says so: placement can rely on it.".to_owned());
    }
    if let Some(flushed) = sharing.controls.iter().find(|c| c.case == Case::Flushed)
        && let Some(rate) = flushed.wrong_rate
    {
        says.push(format!(
            "The probe said \"shared\" wrongly in {} of {} rounds, which leaves at most {} of wrong ones.",
            flushed.wrong,
            flushed.told,
            percent(rate.high)
        ));
    }
    says.join(" ")
}

fn yes_no(shared: Option<bool>) -> &'static str {
    match shared {
        Some(true) => "shared",
        Some(false) => "not shared",
        None => "untold",
    }
}

fn sharing_table(sharing: &Sharing, style: Style) -> String {
    let mut table = Table {
        head: head(&["CPUs", "kernel says", "found", "score", "probes"]),
        rows: Vec::new(),
        left: vec![1, 2],
    };
    for pair in &sharing.pairs {
        let differs = pair.shared().is_some_and(|s| s != pair.claimed);
        table.rows.push(vec![
            cell(format!("{},{}", pair.a, pair.b)),
            cell(yes_no(Some(pair.claimed))),
            TableCell::tone(
                yes_no(pair.shared()),
                if differs { Tone::Bad } else { Tone::Good },
            ),
            cell(pair.score.map_or("–".to_owned(), |s| {
                format!("{:.2} ({:.2}–{:.2})", s.p50, s.low, s.high)
            })),
            cell(format!("{} of {}", pair.told, pair.probes)),
        ]);
    }
    let mut known = Table {
        head: head(&[
            "known case",
            "right answer",
            "wrong",
            "quiet",
            "95 % interval",
        ]),
        rows: Vec::new(),
        left: vec![1],
    };
    for control in &sharing.controls {
        known.rows.push(vec![
            cell(control.case.name()),
            cell(yes_no(Some(control.case.shared()))),
            cell(format!("{} of {}", control.wrong, control.told)),
            cell(format!("{} of {}", control.quiet_wrong, control.quiet)),
            cell(control.wrong_rate.map_or("–".to_owned(), |r| {
                format!("{} to {}", percent(r.low), percent(r.high))
            })),
        ]);
    }
    if style.width < NARROW {
        for row in table.rows.iter_mut().chain(&mut known.rows) {
            row.truncate(4);
        }
        table.head.truncate(4);
        known.head.truncate(4);
    }
    table.render(style) + &known.render(style)
}

fn rates_mean(measured: &Measured) -> String {
    format!(
        "One CPU alone reaches {} ({}), {} together {}: what percentages of bandwidth in a policy refer to.",
        measured.peak_cpu,
        measured.peak_operation,
        count(measured.cpus, "CPU"),
        measured.sustainable
    )
}

fn rates_table(operations: &[OperationRates], style: Style) -> String {
    let mut table = Table {
        head: head(&["GB/s", "one CPU alone", "one of all", "all together"]),
        ..Table::default()
    };
    for of in operations {
        let all = |rates: &[quell_core::deep::CpuRate]| {
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

fn loaded_means(loaded: &Loaded) -> String {
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

fn loaded_table(loaded: &Loaded, style: Style) -> String {
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

fn caches_mean(caches: &CacheSteps) -> String {
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

fn caches_table(caches: &CacheSteps, style: Style) -> String {
    let ns: Vec<f64> = caches.points.iter().map(|p| p.latency_ns.p50).collect();
    let mut out = String::new();
    if let (Some(first), Some(last)) = (caches.points.first(), caches.points.last()) {
        let (from, to) = (size(first.size.0), size(last.size.0));
        let room = style.width.saturating_sub(from.len() + to.len() + 6).max(8);
        // Every so many points where there is no room for all.
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

/// A ratio from here on is worth doing something about.
const WORTH: f64 = 1.15;

fn pages_mean(pages: &[PageCost]) -> String {
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

fn pages_table(pages: &[PageCost], style: Style) -> String {
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
            cell(Bytes(page.size.0).to_string()),
            cell(ns(page.base_ns)),
            cell(ns(page.huge_ns)),
            cell(ratio),
        ]);
    }
    table.render(style)
}

fn wakeups_mean(deep: &Deep) -> String {
    let worst = |fifo: bool, pick: fn(&Tail) -> f64| {
        let of = deep.wakeups.iter().filter(move |w| w.fifo == fifo);
        of.map(|w| pick(&w.late_us)).fold(f64::NAN, f64::max)
    };
    let mut says = format!(
        "A thread that sleeps until a given time wakes {} µs late at the median and {} µs at p99 on the worst CPU",
        number(worst(false, |t| t.p50)),
        number(worst(false, |t| t.p99)),
    );
    if deep.wakeups.iter().any(|w| w.fifo) {
        says += &format!(
            ", a real-time one {} and {} µs: what a deadline has to allow for.",
            number(worst(true, |t| t.p50)),
            number(worst(true, |t| t.p99))
        );
    } else {
        says += "; real-time scheduling is not to be had here.";
    }
    match deep.steal {
        Some(steal) if steal >= 0.005 => {
            says += &format!(
                " The hypervisor gave {} of the CPUs' time to others meanwhile: no setting here helps against that.",
                percent(steal)
            );
        }
        _ => {}
    }
    says
}

fn wakeups_table(wakeups: &[Wakeup], style: Style) -> String {
    /// CPUs shown; the worst of them.
    const MOST: usize = 16;
    let mut table = Table {
        head: head(&["CPU", "µs late", "p50", "p99", "max", "stolen"]),
        rows: Vec::new(),
        left: vec![1],
    };
    let mut shown: Vec<&Wakeup> = wakeups.iter().collect();
    if shown.len() > MOST {
        shown.sort_by(|a, b| b.late_us.p99.total_cmp(&a.late_us.p99));
        shown.truncate(MOST);
        shown.sort_by_key(|w| (w.fifo, w.cpu));
    }
    for wakeup in shown {
        let late = &wakeup.late_us;
        table.rows.push(vec![
            cell(wakeup.cpu.to_string()),
            cell(if wakeup.fifo { "real-time" } else { "ordinary" }),
            cell(number(late.p50)),
            cell(number(late.p99)),
            cell(number(late.max)),
            cell(wakeup.steal.map_or("–".to_owned(), percent)),
        ]);
    }
    let left_out = wakeups.len().saturating_sub(MOST);
    let more = if left_out > 0 {
        format!("and {left_out} better ones\n")
    } else {
        String::new()
    };
    table.render(style) + &more
}

fn counters_mean(measured: &Measured, deep: &Deep) -> String {
    if measured.counters.is_empty() {
        let tried = deep.page_faults.as_ref().map_or_else(String::new, |check| {
            format!(
                " The check itself was tried on page faults, which the kernel counts: {:.2} of what was known.",
                check.factor.p50
            )
        });
        return format!(
            "No hardware counter of memory traffic counts here, so none was checked; limits are held by CPU time.{tried}"
        );
    }
    let wrong = measured
        .counters
        .values()
        .filter(|c| c.refusal().is_some())
        .count();
    if wrong == 0 {
        "Every counter agrees with traffic that was known, and may meter.".to_owned()
    } else {
        format!(
            "{wrong} of {} counters are off and are not used to meter.",
            measured.counters.len()
        )
    }
}

fn counters_table(measured: &Measured, deep: &Deep, style: Style) -> String {
    let mut table = Table {
        head: head(&["event", "beside", "counted ÷ known", ""]),
        rows: Vec::new(),
        left: vec![1, 3],
    };
    let mut row = |name: &str, check: &CounterCheck, meter: bool| {
        let (text, tone) = match check.refusal() {
            Some(_) => ("refused", Tone::Bad),
            None if meter => ("may meter", Tone::Good),
            None => ("the check works", Tone::Good),
        };
        let factor = check.factor;
        table.rows.push(vec![
            cell(name),
            cell(check.traffic.clone()),
            cell(format!(
                "{:.3} ({:.3}–{:.3})",
                factor.p50, factor.low, factor.high
            )),
            TableCell::tone(text, tone),
        ]);
    };
    for (name, check) in &measured.counters {
        row(name, check, true);
    }
    if let Some(check) = &deep.page_faults {
        row("page faults", check, false);
    }
    if table.rows.is_empty() {
        return String::new();
    }
    table.render(style)
}
