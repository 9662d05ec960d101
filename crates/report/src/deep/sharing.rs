//! Which CPUs share a cache, and how far the probe for that can be trusted.

use quell_plan::deep::{Case, Pair, Sharing};

use super::{NARROW, cell, head};
use crate::text::{Style, Table, TableCell, Tone, percent};

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

pub(super) fn sharing_means(sharing: &Sharing) -> String {
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
            "Where nothing was shared, the probe said \"shared\" in {} of {} rounds (at most {}, at 95 % confidence).",
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

pub(super) fn sharing_table(sharing: &Sharing, style: Style) -> String {
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
