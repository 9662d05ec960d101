//! The columns of a comparison's table, for one configuration or for several in one row.

use quell_record::result::{CompareResult, ConfigurationResult, PromiseResult, Subset};
use quell_types::stats::Better;

use crate::text::{TableCell, Tone, normalized, number, percent, spread, unit};
use crate::view::View;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Middle,
    Tail,
    NormalizedMiddle,
    NormalizedTail,
    Kept,
    Rounds,
    Level,
}

/// The columns that a result has figures for.
pub(crate) struct Columns<'r> {
    pub(crate) view: View<'r>,
    /// Whether percentiles are shown; otherwise means.
    p50: bool,
    /// Whether medians are normalized; otherwise means.
    times: bool,
    all: Vec<Column>,
}

impl<'r> Columns<'r> {
    /// `None` for a result without subjects.
    pub(crate) fn new(result: &'r CompareResult, subset: Subset) -> Option<Self> {
        let view = View::new(result, subset)?;
        let configurations = result.configurations.iter();
        let all: Vec<_> = configurations.filter_map(|c| view.protected(c)).collect();
        // The mean of a rate says what was done. Its percentiles only say how that was spread over
        // the windows.
        let rate = view.better() == Some(Better::Higher);
        let p50 = !rate && all.iter().any(|f| f.p50.is_some());
        let p99 = !rate && all.iter().any(|f| f.p99.is_some());
        let times = all.iter().any(|f| f.normalized_p50.is_some());
        let shown = [
            (Column::Middle, true),
            (Column::Tail, p99),
            (Column::NormalizedMiddle, true),
            (Column::NormalizedTail, p99 && times),
            (Column::Kept, view.pays.is_some()),
            (Column::Rounds, subset == Subset::Shared),
            (Column::Level, true),
        ];
        let shown = shown.into_iter().filter(|(_, is)| *is);
        Some(Self {
            view,
            p50,
            times,
            all: shown.map(|(column, _)| column).collect(),
        })
    }

    pub(crate) fn head(&self) -> Vec<String> {
        let (who, unit) = (self.view.protected, unit(self.view.metric()));
        let of = |column: &Column| match column {
            Column::Middle if self.p50 => format!("{who} p50 {unit}"),
            Column::Middle => format!("{who} {unit}"),
            Column::Tail => format!("p99 {unit}"),
            Column::NormalizedMiddle if self.times => "norm. p50".to_owned(),
            Column::NormalizedMiddle => "normalized".to_owned(),
            Column::NormalizedTail => "norm. p99".to_owned(),
            Column::Kept => format!("{} kept", self.view.pays.unwrap_or_default()),
            Column::Rounds => "rounds".to_owned(),
            Column::Level => "level".to_owned(),
        };
        let name = "configuration".to_owned();
        [name].into_iter().chain(self.all.iter().map(of)).collect()
    }

    pub(crate) fn row(&self, configuration: &ConfigurationResult) -> Vec<TableCell> {
        let name = TableCell::new(&configuration.name);
        let cells = self
            .all
            .iter()
            .map(|column| self.cell(*column, configuration));
        [name].into_iter().chain(cells).collect()
    }

    fn cell(&self, column: Column, configuration: &ConfigurationResult) -> TableCell {
        let view = &self.view;
        let f = view.protected(configuration).cloned().unwrap_or_default();
        TableCell::new(match column {
            Column::Middle if self.p50 => spread(f.p50, f.p50_ci95),
            Column::Middle => spread(f.value, f.ci95),
            Column::Tail => spread(f.p99, f.p99_ci95),
            Column::NormalizedMiddle if self.times => {
                normalized(f.normalized_p50, f.normalized_p50_ci95)
            }
            Column::NormalizedMiddle => normalized(f.normalized, f.normalized_ci95),
            Column::NormalizedTail => normalized(f.normalized_p99, f.normalized_p99_ci95),
            Column::Kept if view.is_baseline(configuration) => {
                return TableCell::tone("alone", Tone::Faint);
            }
            Column::Kept | Column::Rounds => {
                let value = self.value(column, configuration);
                value.map_or_else(|| "–".to_owned(), |value| written(column, value))
            }
            Column::Level => return level_cell(view, configuration),
        })
    }

    /// A row for configurations of one level, with the smallest and the largest figure of each
    /// column.
    pub(crate) fn row_of(&self, name: &str, members: &[&ConfigurationResult]) -> Vec<TableCell> {
        let of = |column: &Column| {
            let values = members.iter().filter_map(|c| self.value(*column, c));
            let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| {
                (low.min(v), high.max(v))
            });
            match (column, members.first()) {
                (Column::Level, Some(first)) => level_cell(&self.view, first),
                _ if low > high => TableCell::new("–"),
                _ => {
                    let (low, high) = (written(*column, low), written(*column, high));
                    let same = low == high;
                    TableCell::new(if same {
                        low
                    } else {
                        format!("{low} to {high}")
                    })
                }
            }
        };
        let name = TableCell::new(name);
        [name].into_iter().chain(self.all.iter().map(of)).collect()
    }

    fn value(&self, column: Column, configuration: &ConfigurationResult) -> Option<f64> {
        let f = self.view.protected(configuration);
        match column {
            Column::Middle if self.p50 => f?.p50,
            Column::Middle => f?.value,
            Column::Tail => f?.p99,
            Column::NormalizedMiddle if self.times => f?.normalized_p50,
            Column::NormalizedMiddle => f?.normalized,
            Column::NormalizedTail => f?.normalized_p99,
            Column::Kept => self.view.kept(configuration),
            Column::Rounds => configuration.rounds_shared.map(f64::from),
            Column::Level => None,
        }
    }
}

fn written(column: Column, value: f64) -> String {
    match column {
        Column::NormalizedMiddle | Column::NormalizedTail => normalized(Some(value), None),
        Column::Kept => percent(value),
        Column::Rounds => format!("{value:.0}"),
        Column::Middle | Column::Tail | Column::Level => number(value),
    }
}

fn level_cell(view: &View<'_>, configuration: &ConfigurationResult) -> TableCell {
    if !configuration.refused.is_empty() {
        return TableCell::tone("refused", Tone::Bad);
    }
    if view.is_baseline(configuration) {
        return TableCell::tone("–", Tone::Faint);
    }
    let level = configuration.guarantee.unwrap_or_default().name();
    if configuration.promises.iter().any(PromiseResult::was_lost) {
        TableCell::tone(format!("{level}, LOST"), Tone::Bad)
    } else if configuration.promises.iter().any(|p| p.held == Some(false)) {
        TableCell::tone(format!("{level}, NOT HELD"), Tone::Bad)
    } else {
        TableCell::new(level)
    }
}
