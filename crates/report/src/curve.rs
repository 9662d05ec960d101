//! A metric over an axis of sizes or numbers. Every subject, and every value of the other axes, has
//! a curve over it. They become a table, and a chart with logarithmic scales.

use std::collections::BTreeMap;

use quell_policy::workload::{Caches, Size};
use quell_record::result::{CompareResult, ConfigurationResult};
use quell_types::stats::Interval;

use crate::text::{Style, Table, TableCell, Tone, spread, unit};
use crate::view::middle;

/// Fewer places than this make no curve.
const LEAST: usize = 3;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) label: String,
    pub(crate) y: f64,
    pub(crate) ci: Option<Interval>,
}

/// The curves of one metric over one axis.
#[derive(Debug)]
pub(crate) struct Curves {
    pub(crate) axis: String,
    pub(crate) metric: String,
    /// Whether the curves also differ by values of other axes.
    pub(crate) others: bool,
    pub(crate) series: Vec<(String, Vec<Point>)>,
}

/// A value of an axis as a number above zero: bytes where it is a size.
fn place(value: &str, caches: Option<&Caches>) -> Option<f64> {
    let place = match (value.parse::<f64>(), value.parse::<Size>(), caches) {
        (Ok(plain), _, _) => plain,
        (_, Ok(Size::Bytes(bytes)), _) => bytes.0 as f64,
        (_, Ok(size), Some(caches)) => size.resolve(caches).0 as f64,
        _ => return None,
    };
    (place.is_finite() && place > 0.0).then_some(place)
}

impl Curves {
    pub(crate) fn new(result: &CompareResult) -> Option<Self> {
        let machine = &result.machine;
        let first = machine.cpus.first();
        let caches = first.map(|cpu| machine.data_caches(cpu.id));
        let caches = caches.as_ref();
        let mut axes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for configuration in &result.configurations {
            for (axis, value) in &configuration.axes {
                let values = axes.entry(axis).or_default();
                if !values.contains(&value.as_str()) {
                    values.push(value);
                }
            }
        }
        let (axis, _) = axes
            .iter()
            .filter(|(_, values)| {
                values.len() >= LEAST && values.iter().all(|v| place(v, caches).is_some())
            })
            .max_by_key(|(_, values)| values.len())?;
        let metric = result
            .configurations
            .iter()
            .find_map(|c| c.subjects.first())?;
        let mut series: Vec<(String, Vec<Point>)> = Vec::new();
        let with_axis = result
            .configurations
            .iter()
            .filter(|c| c.axes.contains_key(*axis));
        for configuration in with_axis {
            let label = configuration.axes[*axis].clone();
            let Some(x) = place(&label, caches) else {
                continue;
            };
            for subject in configuration
                .subjects
                .iter()
                .filter(|s| s.metric == metric.metric)
            {
                let Some(y) = middle(&subject.figures).filter(|y| *y > 0.0) else {
                    continue;
                };
                let point = Point {
                    x,
                    label: label.clone(),
                    y,
                    ci: subject.figures.p50_ci95.or(subject.figures.ci95),
                };
                let name = series_name(configuration, axis, &subject.name);
                match series.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, points)) => points.push(point),
                    None => series.push((name, vec![point])),
                }
            }
        }
        for (_, points) in &mut series {
            points.sort_by(|a, b| a.x.total_cmp(&b.x));
        }
        (!series.is_empty()).then(|| Self {
            axis: (*axis).to_owned(),
            metric: metric.metric.clone(),
            others: axes.len() > 1,
            series,
        })
    }

    /// Every place in ascending order, with its label.
    pub(crate) fn places(&self) -> Vec<(f64, &str)> {
        let mut all: Vec<(f64, &str)> = self
            .series
            .iter()
            .flat_map(|(_, points)| points.iter().map(|p| (p.x, p.label.as_str())))
            .collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        all.dedup();
        all
    }

    pub(crate) fn table(&self) -> Table {
        let mut head = vec![self.axis.clone()];
        head.extend(
            self.series
                .iter()
                .map(|(name, _)| format!("{name} {}", unit(&self.metric))),
        );
        let rows = self
            .places()
            .into_iter()
            .map(|(x, label)| {
                let mut row = vec![TableCell::new(label)];
                row.extend(self.series.iter().map(|(_, points)| {
                    points
                        .iter()
                        .find(|p| p.x == x && p.label == label)
                        .map_or_else(
                            || TableCell::tone("–", Tone::Faint),
                            |p| TableCell::new(spread(Some(p.y), p.ci)),
                        )
                }));
                row
            })
            .collect();
        Table {
            head,
            rows,
            left: Vec::new(),
        }
    }
}

/// The name of a curve: the subject, and the values of the other axes.
fn series_name(configuration: &ConfigurationResult, axis: &str, subject: &str) -> String {
    let others = configuration.axes.iter().filter(|(name, _)| *name != axis);
    let values: Vec<&str> = std::iter::once(subject)
        .chain(others.map(|(_, value)| value.as_str()))
        .collect();
    values.join(" ")
}

/// The table for a terminal. Empty without an axis of sizes.
pub(crate) fn text(result: &CompareResult, style: Style) -> String {
    Curves::new(result).map_or_else(String::new, |curves| {
        format!("\n{}", curves.table().render(style))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn an_axis_of_sizes_is_a_curve_per_subject_and_page_size() {
        let curves = Curves::new(&sample::paging()).unwrap();
        assert_eq!(curves.axis, "size");
        let names: Vec<&str> = curves.series.iter().map(|(n, _)| n.as_str()).collect();
        assert_eq!(names, ["victim 4KiB", "victim 2MiB"]);
        let at: Vec<&str> = curves.places().into_iter().map(|(_, l)| l).collect();
        assert_eq!(
            at,
            ["16KiB", "1MiB", "0.5LLC"],
            "by size, parts of the cache resolved"
        );
        let text = text(&sample::paging(), Style::default());
        let row = text.lines().find(|l| l.starts_with("0.5LLC")).unwrap();
        assert!(row.contains("60.0") && row.contains("30.0"), "{text}");
        let page = crate::compare_text(&sample::paging(), Style::default());
        assert!(!page.contains("\n\n\n"), "one empty line at most: {page}");
    }

    #[test]
    fn caps_in_percent_are_the_frontiers_business() {
        assert_eq!(text(&sample::result(), Style::default()), "");
    }
}
