//! Published figures for the sample.

use quell_policy::experiment::PublishedFigure;
use quell_record::published::{Direction, PublishedChange, PublishedResult};
use quell_record::result::CompareResult;

use super::around;

/// The same with published figures: a right, a wrong, a flat and a known direction, one too far
/// from ours, and one of a configuration that was not measured.
pub(crate) fn published(mut result: CompareResult) -> CompareResult {
    let row = |name: &str, subject: &str, metric: &str, of: PublishedFigure, value: f64| {
        let figures = result.configuration(name).and_then(|c| c.subject(subject));
        let figures = figures.map(|s| s.figures.clone()).unwrap_or_default();
        let (measured, measured_ci95) = match of {
            PublishedFigure::Normalized => (figures.normalized, figures.normalized_ci95),
            _ => (figures.value, figures.ci95),
        };
        PublishedResult {
            configuration: name.into(),
            subject: subject.into(),
            metric: metric.into(),
            figure: of,
            published: value,
            source: "A study, table 1".into(),
            measured,
            measured_ci95,
            ratio: measured.map(|m| m / value),
            size: None,
            change: None,
        }
    };
    let normalized = |name: &str, value| {
        row(
            name,
            "victim",
            "latency_ns",
            PublishedFigure::Normalized,
            value,
        )
    };
    let change = |against: &str, published, measured: Option<f64>, known: Option<&str>| {
        let interval = measured.and_then(|m| around(m, 0.01));
        Some(PublishedChange {
            against: against.into(),
            published,
            measured,
            measured_ci95: interval,
            direction: measured.map(|m| Direction::judge(published, m, interval, 0.03)),
            known: known.map(str::to_owned),
        })
    };
    result.published = vec![
        normalized("solo", 1.0),
        PublishedResult {
            change: change("solo", 0.5, Some(0.09), None),
            ..normalized("none", 0.5)
        },
        PublishedResult {
            change: change(
                "none",
                2.0,
                Some(0.97),
                Some("the model has no such effect"),
            ),
            ..normalized("cpu-max@10%", 1.0)
        },
        PublishedResult {
            change: change("none", 1.02, Some(2.0), None),
            ..normalized("cpu-max@30%", 0.51)
        },
        PublishedResult {
            change: change("none", 1.8, None, None),
            ..normalized("regulated@70%", 0.9)
        },
        PublishedResult {
            size: Some(0.25),
            ..row(
                "none",
                "neighbour",
                "bandwidth_mb_s",
                PublishedFigure::Value,
                20_000.0,
            )
        },
    ];
    result
}
