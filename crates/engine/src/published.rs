//! Published figures next to what was measured: the rows of the result's `published`.

use quell_policy::experiment::{Experiment, Published, PublishedFigure, Subject};
use quell_record::published::{Direction, PublishedChange, PublishedResult};
use quell_record::result::ConfigurationResult;
use quell_types::stats::{Better, Interval, bootstrap, median, ratios};

use crate::aggregate::{Round, tidy};

/// What the rounds of (configuration, subject, metric) found, round by round.
pub(crate) type Rounds<'a> = &'a dyn Fn(&str, &str, &str) -> Vec<Option<Round>>;

/// One row per published figure, in the order of the experiment. A configuration that was not
/// asked for (`--only`) gives no row.
pub(crate) fn rows(
    experiment: &Experiment,
    configurations: &[ConfigurationResult],
    backend: &str,
    seed: u64,
    rounds: Rounds<'_>,
) -> Vec<PublishedResult> {
    let instances = experiment.instances();
    let mut rows = Vec::new();
    for row in &experiment.published {
        let instance = instances.iter().find(|i| i.name == row.subject);
        let measured = configurations.iter().find(|c| c.name == row.configuration);
        let (Some(instance), Some(configuration)) = (instance, measured) else {
            continue;
        };
        let own = Row {
            row,
            subject: instance.subject,
            metric: row.metric(instance.subject),
            confidence: experiment.measure.confidence,
            seed,
        };
        let column = |configuration: &str| rounds(configuration, &row.subject, own.metric);
        let (measured, measured_ci95) = own.figure(configuration, &column(&row.configuration));
        let against = row.against.as_deref().and_then(|name| {
            let mut all = experiment.published.iter();
            Some((name, all.find(|other| own.is_row_of(other, name))?))
        });
        let change = against.map(|(name, other)| {
            let there = configurations.iter().find(|c| c.name == name);
            let there = there.and_then(|c| own.figure(c, &column(name)).0);
            let both = measured.zip(there);
            let published = row.value / other.value;
            let found = both.map(|(value, other)| {
                own.change(&column(&row.configuration), &column(name), value / other)
            });
            PublishedChange {
                against: name.to_owned(),
                published: tidy(published),
                measured: found.map(|(ratio, _)| tidy(ratio)),
                measured_ci95: found.and_then(|(_, interval)| interval).map(trim),
                direction: found.map(|(ratio, interval)| {
                    Direction::judge(published, ratio, interval, row.flat)
                }),
                known: row.known(backend).map(str::to_owned),
            }
        });
        rows.push(PublishedResult {
            configuration: row.configuration.clone(),
            subject: row.subject.clone(),
            metric: own.metric.to_owned(),
            figure: row.figure,
            published: row.value,
            source: row.source.clone(),
            measured,
            measured_ci95,
            ratio: measured.map(|m| tidy(m / row.value)),
            size: row.size,
            change,
        });
    }
    rows
}

fn trim(interval: Interval) -> Interval {
    [tidy(interval.low), tidy(interval.high)].into()
}

/// A published row with what is needed to find the same figure here.
struct Row<'e> {
    row: &'e Published,
    subject: &'e Subject,
    metric: &'e str,
    confidence: f64,
    seed: u64,
}

impl Row<'_> {
    /// Whether another row is about the same figure under the configuration of that name.
    fn is_row_of(&self, other: &Published, configuration: &str) -> bool {
        other.configuration == configuration
            && other.subject == self.row.subject
            && other.metric(self.subject) == self.metric
            && other.figure == self.row.figure
    }

    /// The figure over all rounds under a configuration, with its interval.
    fn figure(
        &self,
        configuration: &ConfigurationResult,
        rounds: &[Option<Round>],
    ) -> (Option<f64>, Option<Interval>) {
        let subject = configuration.subject(&self.row.subject);
        let figures = subject.and_then(|s| {
            if s.metric == self.metric {
                Some(&s.figures)
            } else {
                s.metrics.get(self.metric)
            }
        });
        let Some(f) = figures else {
            return (None, None);
        };
        match self.row.figure {
            PublishedFigure::Value => (f.value, f.ci95),
            PublishedFigure::P50 => (f.p50, f.p50_ci95),
            PublishedFigure::P95 => (f.p95, self.interval(&self.column(rounds))),
            PublishedFigure::P99 => (f.p99, f.p99_ci95),
            // The largest of all rounds has no interval over rounds.
            PublishedFigure::Max => (f.max, None),
            PublishedFigure::Normalized => (f.normalized, f.normalized_ci95),
        }
    }

    /// The figure round by round. For `normalized` it is the mean: the baseline is the same below
    /// both configurations of a ratio.
    fn column(&self, rounds: &[Option<Round>]) -> Vec<Option<f64>> {
        let of = |round: &Round| match self.row.figure {
            PublishedFigure::Value | PublishedFigure::Normalized => Some(round.mean),
            PublishedFigure::P50 => round.p50,
            PublishedFigure::P95 => round.p95,
            PublishedFigure::P99 => round.p99,
            PublishedFigure::Max => Some(round.max),
        };
        rounds.iter().map(|r| r.as_ref().and_then(of)).collect()
    }

    fn interval(&self, column: &[Option<f64>]) -> Option<Interval> {
        let values: Vec<f64> = column.iter().copied().flatten().collect();
        bootstrap(&values, median, self.confidence, self.seed).map(trim)
    }

    /// The ratio of the figures under two configurations. It is formed within each round and
    /// reduced to its median; where no round has both, it is `of_medians`, the ratio of the
    /// medians.
    fn change(
        &self,
        own: &[Option<Round>],
        against: &[Option<Round>],
        of_medians: f64,
    ) -> (f64, Option<Interval>) {
        let time = self.subject.better(self.metric) == Some(Better::Lower);
        let turned = self.row.figure == PublishedFigure::Normalized && time;
        let (own, against) = (self.column(own), self.column(against));
        let within = if turned {
            ratios(&against, &own)
        } else {
            ratios(&own, &against)
        };
        let interval = bootstrap(&within, median, self.confidence, self.seed);
        match median(&within) {
            Some(ratio) => (ratio, interval),
            None => (of_medians, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregate::{Rules, figures};
    use proptest::prelude::*;
    use serde_json::json;

    const TEXT: &str = r#"
quell = 1
[subject.victim]
role = "critical"
run  = { kind = "latency", size = "64KiB" }
[configuration.solo]
alone = true
[configuration.none]
[configuration.cores]
group.victim.cpus = 1
"#;

    /// A published row: configuration, figure, value, and what else is asked.
    type Given<'a> = (&'a str, &'a str, f64, &'a str);

    fn experiment(rows: &[Given<'_>]) -> Experiment {
        let row = |(configuration, figure, value, more): &Given<'_>| {
            format!(
                "[[published]]\nsubject = \"victim\"\nconfiguration = \"{configuration}\"\nfigure = \"{figure}\"\nvalue = {value:?}\nsource = \"T\"\n{more}\n"
            )
        };
        let text: String = rows.iter().map(row).collect();
        Experiment::parse(&format!("{TEXT}{text}"), "e").unwrap()
    }

    /// Configurations with the latency of each round.
    type Measured<'a> = &'a [(&'a str, Vec<f64>)];

    fn judged(rows: &[Given<'_>], measured: Measured<'_>) -> Vec<PublishedResult> {
        let all = |name: &str| -> Vec<Option<Round>> {
            let of = measured.iter().find(|(n, _)| *n == name);
            let values = of.map(|(_, values)| values.clone()).unwrap_or_default();
            values.iter().map(|v| Round::of(&[*v, *v])).collect()
        };
        let configurations: Vec<ConfigurationResult> = measured
            .iter()
            .map(|(name, _)| {
                let (own, solo) = (all(name), all("solo"));
                let own: Vec<Option<&Round>> = own.iter().map(Option::as_ref).collect();
                let solo: Vec<Option<&Round>> = solo.iter().map(Option::as_ref).collect();
                let rules = Rules {
                    better: Some(Better::Lower),
                    confidence: 0.95,
                    seed: 1,
                };
                let mut subject = json!({
                    "name": "victim", "role": "critical", "cpus": [0],
                    "metric": "latency_ns", "better": "lower",
                });
                let found = serde_json::to_value(figures(&own, &solo, rules)).unwrap();
                let fields = subject.as_object_mut().unwrap();
                fields.extend(found.as_object().unwrap().clone());
                let whole = json!({
                    "name": name, "axes": {}, "mechanisms": [], "promises": [], "rounds": 3,
                    "subjects": [subject], "totals": {"cells": 3},
                });
                serde_json::from_value(whole).unwrap()
            })
            .collect();
        let all = |configuration: &str, _: &str, _: &str| all(configuration);
        super::rows(&experiment(rows), &configurations, "sim", 1, &all)
    }

    const AGAINST: &str = "against = \"solo\"";

    #[test]
    fn a_figure_stands_next_to_the_published_one() {
        let rows = judged(
            &[
                ("solo", "value", 10.0, ""),
                ("none", "value", 20.0, AGAINST),
            ],
            &[("solo", vec![8.0, 8.0]), ("none", vec![40.0, 48.0])],
        );
        assert_eq!((rows[0].measured, rows[0].ratio), (Some(8.0), Some(0.8)));
        assert_eq!(rows[0].change, None);
        let change = rows[1].change.as_ref().unwrap();
        assert_eq!((change.published, change.measured), (2.0, Some(5.5)));
        assert_eq!(change.measured_ci95, Some([5.0, 6.0].into()));
        assert_eq!(change.direction, Some(Direction::Right));
    }

    #[test]
    fn ratios_are_formed_within_rounds() {
        // The machine gets slower, and in every round there is the same loss.
        let rows = judged(
            &[("solo", "value", 1.0, ""), ("none", "value", 2.0, AGAINST)],
            &[
                ("solo", vec![10.0, 20.0, 40.0]),
                ("none", vec![15.0, 30.0, 60.0]),
            ],
        );
        let change = rows[1].change.as_ref().unwrap();
        assert_eq!(change.measured_ci95, Some([1.5, 1.5].into()));
        // No round has both.
        let rows = judged(
            &[("solo", "value", 1.0, ""), ("none", "value", 2.0, AGAINST)],
            &[
                ("solo", vec![10.0, f64::NAN]),
                ("none", vec![f64::NAN, 15.0]),
            ],
        );
        let change = rows[1].change.as_ref().unwrap();
        assert_eq!((change.measured, change.measured_ci95), (Some(1.5), None));
    }

    #[test]
    fn normalized_rises_where_the_latency_falls() {
        let rows = judged(
            &[
                ("none", "normalized", 0.4, ""),
                ("cores", "normalized", 0.8, "against = \"none\""),
            ],
            &[
                ("solo", vec![10.0, 10.0]),
                ("none", vec![40.0, 40.0]),
                ("cores", vec![20.0, 20.0]),
            ],
        );
        assert_eq!(rows[0].measured, Some(0.25));
        let change = rows[1].change.as_ref().unwrap();
        assert_eq!((change.published, change.measured), (2.0, Some(2.0)));
        assert_eq!(change.direction, Some(Direction::Right));
    }

    #[test]
    fn what_was_not_measured_is_not_judged() {
        let given = [("solo", "value", 1.0, ""), ("none", "value", 2.0, AGAINST)];
        let rows = judged(&given, &[("none", vec![15.0, 30.0])]);
        assert_eq!(rows.len(), 1, "solo was not asked for");
        let change = rows[0].change.as_ref().unwrap();
        assert_eq!((change.measured, change.direction), (None, None));
        // Two windows a round have no 95th percentile.
        let given = [("solo", "p95", 1.0, ""), ("none", "p95", 2.0, AGAINST)];
        let rows = judged(&given, &[("solo", vec![1.0]), ("none", vec![2.0])]);
        assert_eq!((rows[1].measured, rows[1].direction()), (None, None));
    }

    fn direction(published: [f64; 2], solo: &[f64], none: &[f64]) -> Option<Direction> {
        let given = [
            ("solo", "value", published[0], ""),
            ("none", "value", published[1], AGAINST),
        ];
        judged(&given, &[("solo", solo.to_vec()), ("none", none.to_vec())])[1].direction()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn a_scale_changes_no_direction(
            published in [1.0f64..9.0, 1.0f64..9.0], solo in prop::collection::vec(1.0f64..9.0, 3),
            none in prop::collection::vec(1.0f64..9.0, 3), power in -6i32..6,
        ) {
            // A power of two scales without rounding.
            let by = 2f64.powi(power);
            let scaled = |values: &[f64]| values.iter().map(|v| v * by).collect::<Vec<f64>>();
            let before = direction(published, &solo, &none);
            let there = published.map(|value| value * by);
            prop_assert_eq!(before, direction(there, &solo, &none));
            prop_assert_eq!(before, direction(published, &scaled(&solo), &scaled(&none)));
        }

        #[test]
        fn a_swapped_order_flips_the_direction(
            published in [1.0f64..4.0, 5.0f64..9.0], solo in 1.0f64..4.0, none in 5.0f64..9.0,
        ) {
            let (solo, none) = ([solo; 2], [none; 2]);
            prop_assert_eq!(direction(published, &solo, &none), Some(Direction::Right));
            prop_assert_eq!(direction(published, &none, &solo), Some(Direction::Wrong));
            let swapped = [published[1], published[0]];
            prop_assert_eq!(direction(swapped, &solo, &none), Some(Direction::Wrong));
            prop_assert_eq!(direction(swapped, &none, &solo), Some(Direction::Right));
        }
    }
}
