//! Recorded programs under several scheduling policies: a table over all programs of each
//! configuration, and how often a policy beats the controls.

use std::collections::BTreeMap;

use quell_record::result::{CompareResult, ConfigurationResult, Ratio, Totals};
use quell_types::stats::Interval;

use crate::text::{Style, Table, TableCell, number, spread};

/// What the columns mean.
pub const LEGEND: &str = "avg IPC, hm: instructions per cycle on a CPU, and the harmonic mean of IPC ÷ IPC alone. All \
                          others charge waiting: STP is the sum of time alone ÷ time here, unfairness the largest ÷ the \
                          smallest of these; turnaround is the mean time of a run, last the longest.";

/// How to read the second table.
pub const AGAINST: &str = "× the geometric mean over mixes of the figure here ÷ there; in parentheses the mixes in which the whole \
                           interval is better (+) and worse (-).";

/// Name in results, head of its column, and whether more is better.
struct Figure {
    name: &'static str,
    head: &'static str,
    of: fn(&Totals) -> Option<f64>,
    higher: bool,
}

const fn figure(
    name: &'static str,
    head: &'static str,
    of: fn(&Totals) -> Option<f64>,
    higher: bool,
) -> Figure {
    Figure {
        name,
        head,
        of,
        higher,
    }
}

const FIGURES: [Figure; 6] = [
    figure("avg_ipc", "avg IPC", |t| t.avg_ipc, true),
    figure("hm_weighted_ipc", "hm", |t| t.hm_weighted_ipc, true),
    figure("stp", "STP", |t| t.stp, true),
    figure("unfairness", "unfairness", |t| t.unfairness, false),
    figure("turnaround_s", "turnaround s", |t| t.turnaround_s, false),
    figure("last_s", "last s", |t| t.last_s, false),
];

/// Whether the result is about programs that run together until each has ended once.
#[must_use]
pub fn is_about(result: &CompareResult) -> bool {
    result
        .configurations
        .iter()
        .any(|c| c.totals.avg_ipc.is_some())
}

/// The table over all programs.
#[must_use]
pub fn table(result: &CompareResult) -> Table {
    let heads = FIGURES.iter().map(|figure| figure.head.to_owned());
    let all = result
        .configurations
        .iter()
        .filter(|c| c.totals.avg_ipc.is_some());
    Table {
        head: std::iter::once("configuration".to_owned())
            .chain(heads)
            .collect(),
        rows: all.map(row).collect(),
        left: Vec::new(),
    }
}

fn row(configuration: &ConfigurationResult) -> Vec<TableCell> {
    let cell = |figure: &Figure| {
        let interval = configuration.totals.ci95.get(figure.name).copied();
        TableCell::new(spread((figure.of)(&configuration.totals), interval))
    };
    std::iter::once(TableCell::new(configuration.name.clone()))
        .chain(FIGURES.iter().map(cell))
        .collect()
}

/// A policy against a control, over the mixes in which both ran.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Record {
    mixes: u32,
    /// Mixes in which the whole interval is on the better side, and on the worse side.
    better: u32,
    worse: u32,
    /// Sum of the logarithms of the quotients.
    logarithms: f64,
}

impl Record {
    fn add(&mut self, ratio: &Ratio, higher: bool) {
        let Some(value) = ratio.value else {
            return;
        };
        self.mixes += 1;
        self.logarithms += value.max(f64::MIN_POSITIVE).ln();
        let (above, below) = match ratio.ci95 {
            Some(Interval { low, high }) => (low > 1.0, high < 1.0),
            None => (false, false),
        };
        let (better, worse) = if higher {
            (above, below)
        } else {
            (below, above)
        };
        self.better += u32::from(better);
        self.worse += u32::from(worse);
    }

    fn text(self) -> String {
        let mean = (self.logarithms / f64::from(self.mixes.max(1))).exp();
        format!("×{} ({}+ {}-)", number(mean), self.better, self.worse)
    }
}

/// Policy and control, each as the values of the configurations' axes.
type Pair = (String, String);

/// What distinguishes a configuration from the others of its mix: the values of its axes.
#[must_use]
pub fn policy_of(configuration: &ConfigurationResult) -> String {
    let values: Vec<&str> = configuration.axes.values().map(String::as_str).collect();
    values.join(" ")
}

/// How each policy fares against each control, over all mixes.
fn records(result: &CompareResult) -> BTreeMap<Pair, [Record; 6]> {
    let named: BTreeMap<&str, String> = {
        let all = result.configurations.iter();
        all.map(|c| (c.name.as_str(), policy_of(c))).collect()
    };
    let mut records: BTreeMap<Pair, [Record; 6]> = BTreeMap::new();
    for configuration in &result.configurations {
        for (other, ratios) in &configuration.totals.against {
            let Some(control) = named.get(other.as_str()) else {
                continue;
            };
            let all = records
                .entry((policy_of(configuration), control.clone()))
                .or_default();
            for (record, figure) in all.iter_mut().zip(&FIGURES) {
                if let Some(ratio) = ratios.get(figure.name) {
                    record.add(ratio, figure.higher);
                }
            }
        }
    }
    records
}

/// The second table: policies against controls.
#[must_use]
pub fn against(result: &CompareResult) -> Option<Table> {
    let records = records(result);
    let heads = FIGURES.iter().map(|figure| match figure.name {
        "unfairness" => "unfairness - 1".to_owned(),
        _ => figure.head.to_owned(),
    });
    let first = ["policy", "against"].map(str::to_owned);
    let rows = records.iter().map(|((policy, control), all)| {
        let names = [policy, control].map(|name| TableCell::new(name.clone()));
        let cells = all.iter().map(|record| TableCell::new(record.text()));
        names.into_iter().chain(cells).collect()
    });
    let table = Table {
        head: first.into_iter().chain(heads).collect(),
        rows: rows.collect(),
        left: vec![1],
    };
    (!table.rows.is_empty()).then_some(table)
}

/// Both tables, and how to read them.
#[must_use]
pub fn text(result: &CompareResult, style: Style) -> String {
    let mut out = table(result).render(style);
    out.push_str(&style.wrap("", "", LEGEND));
    if let Some(against) = against(result) {
        out.push('\n');
        out.push_str(&against.render(style));
        out.push_str(&style.wrap("", "", AGAINST));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(low: f64, value: f64, high: f64) -> Ratio {
        Ratio {
            value: Some(value),
            ci95: Some([low, high].into()),
        }
    }

    #[test]
    fn a_mix_counts_where_its_whole_interval_is_on_one_side() {
        let mut more = Record::default();
        more.add(&ratio(1.1, 2.0, 2.2), true);
        more.add(&ratio(0.9, 0.5, 1.1), true);
        assert_eq!((more.mixes, more.better, more.worse), (2, 1, 0));
        assert_eq!(more.text(), "×1.00 (1+ 0-)");
        let mut less = Record::default();
        less.add(&ratio(1.1, 2.0, 2.2), false);
        less.add(&Ratio::default(), false);
        assert_eq!((less.mixes, less.better, less.worse), (1, 0, 1));
    }
}
