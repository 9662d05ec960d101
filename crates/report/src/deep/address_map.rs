//! Text on the address map that was recovered by timing.

use quell_plan::deep::AddressMap;
use quell_types::address::recovery::{Tally, Verdict};
use quell_types::address::{BankMap, Colours};
use quell_types::partition::Mask;

use super::{cell, head};
use crate::text::{Style, Table, count, number, size};

/// Page sizes whose colours are shown: those of kernels, and that of a large page.
pub(super) const PAGES: [(&str, u32); 4] =
    [("4 KiB", 12), ("16 KiB", 14), ("64 KiB", 16), ("2 MiB", 21)];

/// What the map is, and what to do.
pub(super) fn meaning(seen: &AddressMap) -> String {
    let figures = &seen.found.figures;
    match &seen.found.verdict {
        Verdict::Map {
            functions,
            confidence,
        } => format!(
            "{} of the address choose one of {} banks. Of {} new pairs of lines {} took the time \
             that the functions say: a confidence of {confidence:.3}.",
            number_of(functions, "function"),
            1u64.checked_shl(u32::try_from(functions.len()).unwrap_or(u32::MAX))
                .unwrap_or(u64::MAX),
            figures.together.of + figures.apart.of,
            figures.together.right + figures.apart.right,
        ),
        Verdict::Hidden { common, in_turn } => {
            let common = match common.as_slice() {
                [] => String::new(),
                all => format!(
                    " What all of them have in common ({}) is not the whole bank: of {} pairs that \
                     agree in it {} were in conflict.",
                    written(all),
                    figures.together.of,
                    figures.together.right
                ),
            };
            let turns = in_turn.map_or_else(String::new, |n| {
                format!(" Lines seem to go to {n} controllers in turn, which no function of address bits describes.")
            });
            format!(
                "The map is hidden: {} of {} conflicts between lines came back, but no functions of \
                 these addresses say where they are (the best explain {}).{common}{turns} In a \
                 virtual machine that is usual: its frames are not the host's. There is nothing to keep.",
                figures.again.right, figures.again.of, figures.explained.right
            )
        }
        Verdict::Narrow { missing } => format!(
            "Functions explain the conflicts, but the pages that were to be had lie too close \
             together: memory has {} that they lack ({}). So functions may have more bits, and \
             there is nothing to keep. Free memory and try again.",
            number_of(missing, "difference"),
            written(missing)
        ),
        Verdict::Noisy => format!(
            "The machine is too noisy to recover its map: usual pairs of lines take {} ± {} ns, the \
             99th percentile is {} ns{}. There is nothing to keep. Try again while the machine does \
             nothing else.",
            number(figures.usual_ns),
            number(figures.spread_ns),
            number(figures.p99_ns),
            match figures.again {
                Tally { of: 0, .. } => String::new(),
                Tally { right, of } => format!(", and of {of} conflicts {right} came back"),
            }
        ),
        Verdict::Flat => format!(
            "No pair of lines takes longer than the others again and again: usual ones take {} ± {} \
             ns, the 99th percentile is {} ns. So no conflict of rows can be seen here, and there \
             is nothing to keep.",
            number(figures.usual_ns),
            number(figures.spread_ns),
            number(figures.p99_ns)
        ),
    }
}

/// How many there are.
pub(super) fn number_of(all: &[Mask], what: &str) -> String {
    count(u32::try_from(all.len()).unwrap_or(u32::MAX), what)
}

/// Functions as a map file has them, one after the other.
pub(super) fn written(functions: &[Mask]) -> String {
    let all: Vec<u64> = functions.iter().map(|function| function.0).collect();
    let map = BankMap::new(all).map(|map| map.to_string());
    map.unwrap_or_default().trim_end().replace('\n', ", ")
}

/// Functions, colours and figures.
pub(super) fn table(seen: &AddressMap, style: Style) -> String {
    let figures = &seen.found.figures;
    let mut table = Table {
        head: head(&["", "seen"]),
        ..Table::default()
    };
    let mut row = |label: &str, text: String| {
        table.rows.push(vec![cell(label.to_owned()), cell(text)]);
    };
    if let Verdict::Map { functions, .. } = &seen.found.verdict {
        for (n, function) in functions.iter().enumerate() {
            row(&format!("function {n}"), written(&[*function]));
        }
        let all: Vec<u64> = functions.iter().map(|function| function.0).collect();
        for (page, shift) in PAGES {
            let colours = Colours::new(&all, shift).count();
            row(&format!("colours of {page} pages"), colours.to_string());
        }
    }
    let of = |tally: Tally| format!("{} of {}", tally.right, tally.of);
    let ns = |ns: f64| format!("{} ns", number(ns));
    row("usual pair", ns(figures.usual_ns));
    if let Some(conflict) = figures.conflict_ns {
        row("pair in conflict", ns(conflict));
    }
    row("spread of usual pairs", ns(figures.spread_ns));
    if figures.slow_lines > 0 {
        row("pairs with a slow line", figures.slow_lines.to_string());
    }
    if figures.passing > 0 {
        row("conflicts for a while only", figures.passing.to_string());
    }
    for (label, tally) in [
        ("conflicts explained", figures.explained),
        ("conflicts that came back", figures.again),
        ("new pairs of a bank", figures.together),
        ("new pairs of two banks", figures.apart),
    ] {
        if tally.of > 0 {
            row(label, of(tally));
        }
    }
    let pool = size(seen.pool.0);
    let pairs = format!("{} of {} pages", figures.pairs, figures.pages);
    row("pairs of lines", pairs);
    row("pool, time", format!("{pool}, {:.1} s", seen.took_s));
    table.render(style)
}
