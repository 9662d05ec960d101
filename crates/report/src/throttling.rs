//! What the regulators did: how often and how long they stopped a group, and how soon after its
//! budget was used up.

use std::collections::BTreeSet;

use quell_record::events::{Event, Stamped};
use quell_record::result::{CompareResult, Reaction};
use quell_types::units::LINE_BYTES;

use crate::text::{Table, TableCell, list, number, thousands};

/// One row per configuration that throttled. `None`: none did.
pub(crate) fn throttling(result: &CompareResult) -> Option<Table> {
    let rows: Vec<Vec<TableCell>> = result
        .configurations
        .iter()
        .filter_map(|c| {
            let totals = &c.totals;
            let cells = f64::from(totals.cells.max(1));
            let stops = totals.throttles.filter(|n| *n > 0)? as f64 / cells;
            let stopped = totals.throttled_ns? as f64 / cells / 1e6;
            Some(vec![
                TableCell::new(&c.name),
                TableCell::new(number(stops)),
                TableCell::new(number(stopped)),
                TableCell::new(reaction(totals.reaction_user)),
                TableCell::new(reaction(totals.reaction_kernel)),
            ])
        })
        .collect();
    (!rows.is_empty()).then(|| Table {
        head: [
            "throttling",
            "stops per cell",
            "stopped ms",
            "late µs: program",
            "late µs: kernel",
        ]
        .map(str::to_owned)
        .to_vec(),
        rows,
        left: Vec::new(),
    })
}

/// One row per configuration with pooled budgets. `None`: none had any.
pub(crate) fn pooled(result: &CompareResult) -> Option<Table> {
    let rows: Vec<Vec<TableCell>> = result
        .configurations
        .iter()
        .filter_map(|c| {
            let pooled = c.totals.pooled?;
            let cells = f64::from(c.totals.cells.max(1));
            let mb =
                |lines: u64| TableCell::new(number(lines as f64 * LINE_BYTES as f64 / 1e6 / cells));
            Some(vec![
                TableCell::new(&c.name),
                mb(pooled.guaranteed),
                mb(pooled.donated),
                mb(pooled.taken_back),
                mb(pooled.reclaimed),
                TableCell::new(number(pooled.missed as f64 / cells)),
                mb(pooled.granted_twice),
                mb(pooled.best_effort),
            ])
        })
        .collect();
    (!rows.is_empty()).then(|| Table {
        head: [
            "pooled budgets, MB per cell",
            "guaranteed",
            "given",
            "taken back",
            "taken",
            "misses",
            "granted twice",
            "best effort",
        ]
        .map(str::to_owned)
        .to_vec(),
        rows,
        left: Vec::new(),
    })
}

/// What the columns of [`pooled`]'s table mean.
pub(crate) const POOLED: &str = "guaranteed: granted within the budgets. given: by CPUs that were predicted not to draw it; what is \
    neither taken back nor taken expires. A miss: what a CPU gave was gone when it needed it; it was granted twice then. best effort: \
    beyond all budgets, once everybody had drawn all there was.";

/// What the last columns of [`throttling`]'s table mean.
pub(crate) const LEGEND: &str = "late: from the counter's overflow to the decision to throttle, median / 99th percentile, by \
    what the overflow interrupted.";

fn reaction(reaction: Option<Reaction>) -> String {
    let us = |ns: f64| number(ns / 1e3);
    reaction.map_or_else(
        || "–".to_owned(),
        |r| format!("{} / {}", us(r.p50_ns), us(r.p99_ns)),
    )
}

/// How often and how long the CPUs of a run were stopped, in a sentence. `None` without a
/// regulator.
pub(crate) fn counted(events: &[Stamped]) -> Option<String> {
    let (mut cpus, mut times, mut ns) = (BTreeSet::new(), 0u64, 0u64);
    for stamped in events {
        if let Event::Throttle {
            cpu,
            throttles,
            throttled_ns,
            ..
        } = &stamped.event
        {
            cpus.insert(*cpu);
            times = times.saturating_add(*throttles);
            ns = ns.saturating_add(*throttled_ns);
        }
    }
    let names: Vec<String> = cpus.iter().map(ToString::to_string).collect();
    (!names.is_empty()).then(|| {
        format!(
            "The regulator of CPU {} stopped it {} times, {} ms in all.",
            list(&names),
            thousands(&times.to_string()),
            number(ns as f64 / 1e6)
        )
    })
}
