//! What an experiment expects of its result, and whether it came out so: the rows of `compare
//! --check`.

use quell_policy::experiment::{Expect, Figure};
use quell_record::result::{ConfigurationResult, ExpectationResult, Figures};

/// One row per condition, in the order of the experiment. A configuration that was not asked for
/// (`--only`) gives no row. One that was refused or could not be measured fails its rows.
pub(crate) fn rows(
    expects: &[Expect],
    configurations: &[ConfigurationResult],
) -> Vec<ExpectationResult> {
    let mut rows = Vec::new();
    for expect in expects {
        let Some(configuration) = configurations
            .iter()
            .find(|c| c.name == expect.configuration)
        else {
            continue;
        };
        let figures = configuration.subject(&expect.subject).and_then(|subject| {
            match expect.metric.as_deref() {
                Some(name) if name != subject.metric => subject.metrics.get(name),
                _ => Some(&subject.figures),
            }
        });
        let mut row = |expected: String, found: Option<f64>, met: bool| {
            rows.push(ExpectationResult {
                configuration: expect.configuration.clone(),
                subject: expect.subject.clone(),
                expected: match &expect.metric {
                    Some(metric) => format!("{metric}: {expected}"),
                    None => expected,
                },
                found,
                met,
            });
        };
        for condition in expect.conditions() {
            let found = figures.and_then(|f| figure(f, condition.figure));
            row(
                condition.to_string(),
                found,
                found.is_some_and(|found| condition.met_by(found)),
            );
        }
        if let Some(least) = expect.guarantee_at_least {
            let met = configuration.guarantee.is_some_and(|level| level >= least);
            row(format!("guarantee_at_least = \"{least}\""), None, met);
        }
    }
    rows
}

fn figure(figures: &Figures, which: Figure) -> Option<f64> {
    match which {
        Figure::Value => figures.value,
        Figure::P99 => figures.p99,
        Figure::Max => figures.max,
        Figure::Normalized => figures.normalized,
        Figure::NormalizedP50 => figures.normalized_p50,
        Figure::NormalizedP99 => figures.normalized_p99,
    }
}
