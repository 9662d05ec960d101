//! Text on the sets of caches that were recovered by eviction.

use quell_plan::deep::{CacheSets, Difference};
use quell_types::address::recovery::{Tally, Verdict};

use super::address_map::{PAGES, number_of, written};
use super::{cell, head};
use crate::text::{Style, Table, number, size};

/// log2 of the bytes of the pages whose colours are compared.
const SHIFT: u32 = 12;

/// What was found, cache by cache.
pub(super) fn meaning(all: &[CacheSets]) -> String {
    let of = |seen: &CacheSets| format!("L{} ({}): {}", seen.level, size(seen.size.0), says(seen));
    let mut text: Vec<String> = all.iter().map(of).collect();
    text.push("Nothing that is planned changes by this.".to_owned());
    text.join(" ")
}

fn says(seen: &CacheSets) -> String {
    let figures = &seen.found.figures;
    let levels = format!(
        "a line takes {} ns to read again after half of what the cache holds, and {} ns after more \
         than it holds",
        number(figures.kept_ns),
        number(figures.lost_ns)
    );
    match &seen.found.verdict {
        Verdict::Map { confidence, .. } => {
            let colours = seen.found.colours(SHIFT).map_or(1, |c| c.count());
            format!(
                "pages of 4 KiB have {colours} colours. Of {} new groups of lines {} drove out or \
                 kept a line as the functions say: a confidence of {confidence:.3}. {}",
                figures.together.of + figures.apart.of,
                figures.together.right + figures.apart.right,
                compared(seen)
            )
        }
        Verdict::Hidden { common, in_turn } => {
            let common = match common.as_slice() {
                [] => String::new(),
                all => format!(
                    " They have these in common, which are not the whole set: {}.",
                    written(all)
                ),
            };
            let turns = in_turn.map_or_else(String::new, |n| {
                format!(" Lines seem to go to sets in turns of {n}, which no function of address bits describes.")
            });
            format!(
                "the sets are hidden. {} of {} lines that share a set came back, but no functions of \
                 these addresses say which do.{common}{turns}",
                figures.again.right, figures.again.of
            )
        }
        Verdict::Narrow { missing } => format!(
            "functions explain which lines share a set, but memory has {} that the pages lack ({}). \
             So functions may have more bits.",
            number_of(missing, "difference"),
            written(missing)
        ),
        Verdict::Noisy if figures.over => format!(
            "it was not done when its time was over. {} re-reads were timed: {levels}.",
            figures.times
        ),
        Verdict::Noisy => format!("the times differ too much to say anything: {levels}."),
        Verdict::Flat => format!(
            "no eviction is seen, or the pages that were to be had are too few for it: {levels}."
        ),
    }
}

/// The colours found next to those that the inventory assumes.
fn compared(seen: &CacheSets) -> String {
    match seen.difference(SHIFT) {
        None => String::new(),
        Some(Difference { more, missing }) if more.is_empty() && missing.is_empty() => {
            "The inventory assumes the same: plain address bits.".to_owned()
        }
        Some(Difference { more, missing }) => {
            let part = |what: &str, all: &[_]| match all {
                [] => String::new(),
                all => format!(" {what}: {}.", written(all)),
            };
            format!(
                "They differ from the plain address bits that the inventory assumes.{}{}",
                part("Only found", &more),
                part("Only assumed", &missing)
            )
        }
    }
}

/// Functions, colours and figures, cache by cache.
pub(super) fn table(all: &[CacheSets], style: Style) -> String {
    let mut table = Table {
        head: head(&["", "seen"]),
        ..Table::default()
    };
    let mut row = |label: String, text: String| table.rows.push(vec![cell(label), cell(text)]);
    for seen in all {
        let (level, figures) = (format!("L{}", seen.level), &seen.found.figures);
        if let Verdict::Map { functions, .. } = &seen.found.verdict {
            for (n, function) in functions.iter().enumerate() {
                row(format!("{level} function {n}"), written(&[*function]));
            }
            for (page, shift) in PAGES {
                let colours = seen.found.colours(shift).map_or(1, |c| c.count());
                row(
                    format!("{level} colours of {page} pages"),
                    colours.to_string(),
                );
            }
        }
        if let Some(ways) = seen.found.ways {
            let reported = seen
                .ways
                .map_or(String::new(), |n| format!(" ({n} reported)"));
            row(
                format!("{level} lines of a set"),
                format!("{ways}{reported}"),
            );
        }
        let ns = |ns: f64| format!("{} ns", number(ns));
        row(format!("{level} re-read, kept"), ns(figures.kept_ns));
        row(format!("{level} re-read, driven out"), ns(figures.lost_ns));
        let of = |tally: Tally| format!("{} of {}", tally.right, tally.of);
        for (label, tally) in [
            ("minimal sets", figures.classes),
            ("lines explained", figures.explained),
            ("lines that came back", figures.again),
            ("new groups of a set", figures.together),
            ("new groups of two sets", figures.apart),
        ] {
            if tally.of > 0 {
                row(format!("{level} {label}"), of(tally));
            }
        }
        let spent = format!("{}, {:.1} s", figures.times, seen.took_s);
        row(format!("{level} re-reads, time"), spent);
    }
    table.render(style)
}
