//! The findings of `quell doctor --deep` as text: for every block a sentence of what it means and
//! what to do, with the figures below. `docs/doctor.md` explains each.

mod address_map;
mod cache_sets;
mod memory;
mod sharing;

use quell_plan::deep::{AddressMap, CacheSets, CounterCheck, Deep, Sharing, Spread, Tail, Wakeup};
use quell_plan::inventory::Measured;

use crate::text::{Style, Table, TableCell, Tone, number, percent};
use memory::{
    caches_mean, caches_table, loaded_means, loaded_table, pages_mean, pages_table, rates_mean,
    rates_table,
};
use sharing::{sharing_means, sharing_table};

/// A block of findings: its title, what it means, and its figures.
struct Block {
    title: &'static str,
    /// The title where there is room for a word only.
    label: &'static str,
    meaning: String,
    figures: String,
}

impl Block {
    fn text(&self, style: Style) -> String {
        let mut out = style.paint(Tone::Title, self.title) + "\n";
        out.push_str(&style.wrap("  ", "  ", &self.meaning));
        for line in self.figures.lines() {
            out.push_str("    ");
            out.push_str(line);
            out.push('\n');
        }
        out + "\n"
    }
}

const RATES: &str = "Rates";
const ADDRESS_MAP: &str = "Address map";
const CACHE_SETS: &str = "Cache sets";

/// On fewer columns, tables leave out what is not essential.
const NARROW: usize = 64;

fn blocks(measured: &Measured, deep: Option<&Deep>, style: Style) -> Vec<Block> {
    let mut all = Vec::new();
    let mut add = |(title, label), meaning, figures| {
        all.push(Block {
            title,
            label,
            meaning,
            figures,
        });
    };
    if let Some(sharing) = deep.and_then(|d| d.sharing.as_ref()) {
        add(
            ("Shared caches", "sharing"),
            sharing_means(sharing),
            sharing_table(sharing, style),
        );
    }
    if !measured.operations.is_empty() {
        add(
            (RATES, "rates"),
            rates_mean(measured),
            rates_table(&measured.operations, style),
        );
    }
    if let Some(loaded) = deep.and_then(|d| d.loaded.as_ref()) {
        add(
            ("Latency under load", "under load"),
            loaded_means(loaded),
            loaded_table(loaded, style),
        );
    }
    if let Some(caches) = deep.and_then(|d| d.caches.as_ref()) {
        add(
            ("Cache sizes", "cache sizes"),
            caches_mean(caches),
            caches_table(caches, style),
        );
    }
    if let Some(deep) = deep {
        if !deep.pages.is_empty() {
            add(
                ("Page size", "page size"),
                pages_mean(&deep.pages),
                pages_table(&deep.pages, style),
            );
        }
        if !deep.wakeups.is_empty() {
            add(
                ("Wake-ups", "wake-ups"),
                wakeups_mean(deep),
                wakeups_table(&deep.wakeups, style),
            );
        }
        if let Some(seen) = &deep.address_map {
            let keep = match seen.map() {
                Some(_) => " Keep it as this machine's map with `quell colours map recovered`.",
                None => "",
            };
            add(
                (ADDRESS_MAP, "address map"),
                address_map::meaning(seen) + keep,
                address_map::table(seen, style),
            );
        }
        if !deep.cache_sets.is_empty() {
            add(
                (CACHE_SETS, "cache sets"),
                cache_sets::meaning(&deep.cache_sets),
                cache_sets::table(&deep.cache_sets, style),
            );
        }
        add(
            ("Counters", "counters"),
            counters_mean(measured, deep),
            counters_table(measured, deep, style),
        );
    }
    all
}

/// The findings in short: a sentence per block.
pub(crate) fn short(
    measured: &Measured,
    style: Style,
    labelled: impl Fn(&str, &str) -> String,
) -> String {
    let Some(deep) = measured.deep.as_deref() else {
        return String::new();
    };
    let mut out = style.paint(Tone::Title, "Measured") + "\n";
    // The rates are already shown with the machine's shape.
    let blocks = blocks(measured, Some(deep), style);
    for block in blocks.iter().filter(|b| b.title != RATES) {
        out.push_str(&labelled(block.label, &block.meaning));
    }
    out + "\n"
}

/// What timing says of an address map, as a block of its own.
#[must_use]
pub fn address_map_text(seen: &AddressMap, style: Style) -> String {
    let block = Block {
        title: ADDRESS_MAP,
        label: "",
        meaning: address_map::meaning(seen),
        figures: address_map::table(seen, style),
    };
    block.text(style)
}

/// What eviction says of the sets of caches, as a block of its own.
#[must_use]
pub fn cache_sets_text(all: &[CacheSets], style: Style) -> String {
    let block = Block {
        title: CACHE_SETS,
        label: "",
        meaning: cache_sets::meaning(all),
        figures: cache_sets::table(all, style),
    };
    block.text(style)
}

/// Every block with its figures.
pub(crate) fn full(measured: &Measured, style: Style) -> String {
    let deep = measured.deep.as_deref();
    let mut out = String::new();
    for block in blocks(measured, deep, style) {
        out.push_str(&block.text(style));
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

/// A cache probe's rounds as text, for `quell bench canary`.
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

/// The median and the interval, as `15.3 (14.9–16.1)`.
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

/// A text chart with one column per value, on a logarithmic scale.
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
    /// How many CPUs are shown: those that are worst.
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
    if style.width < NARROW {
        table.head.remove(1);
        table.rows.iter_mut().for_each(|row| drop(row.remove(1)));
        table.left = vec![2];
    }
    table.render(style)
}
