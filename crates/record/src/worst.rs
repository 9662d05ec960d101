//! The worst units of a subject, each with what else is known of it.

use std::collections::BTreeMap;

use quell_types::stats::Better;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How many are kept.
pub const MOST: usize = 10;

/// A unit of work, and what it met.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Worst {
    /// Number of the round, from 0.
    pub round: u32,
    /// Number of the unit in its measured span, from 0.
    pub unit: u64,
    /// Its value of the primary metric.
    pub value: f64,
    /// Its values of the metrics that have one per unit, by name.
    pub met: BTreeMap<String, f64>,
}

/// The worst units of one span, worst first. `metrics`: values by name, in order of time. A metric
/// with as many values as the `primary` one has one per unit.
#[must_use]
pub fn of_round(
    metrics: &BTreeMap<String, Vec<f64>>,
    primary: &str,
    better: Better,
    round: u32,
) -> Vec<Worst> {
    let Some(values) = metrics.get(primary) else {
        return Vec::new();
    };
    let others = metrics
        .iter()
        .filter(|(name, all)| name.as_str() != primary && all.len() == values.len());
    let others: Vec<_> = others.collect();
    if others.is_empty() {
        return Vec::new();
    }
    let units = values.iter().enumerate().map(|(unit, value)| Worst {
        round,
        unit: unit as u64,
        value: *value,
        met: others
            .iter()
            .map(|(name, all)| ((*name).clone(), all[unit]))
            .collect(),
    });
    of_all(units, better)
}

/// The worst of all, worst first. Of equal ones the first comes first.
#[must_use]
pub fn of_all(units: impl Iterator<Item = Worst>, better: Better) -> Vec<Worst> {
    let mut all: Vec<Worst> = units.filter(|unit| unit.value.is_finite()).collect();
    all.sort_by(|a, b| match better {
        Better::Lower => b.value.total_cmp(&a.value),
        Better::Higher => a.value.total_cmp(&b.value),
    });
    all.truncate(MOST);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_units_come_with_what_they_met() {
        let metrics: BTreeMap<String, Vec<f64>> = [
            ("cycles", vec![5.0, 9.0, 7.0]),
            ("llc_misses", vec![0.0, 3.0, 1.0]),
            ("wakeup_us", vec![1.0, 1.0]),
        ]
        .map(|(name, values)| (name.to_owned(), values))
        .into();
        let worst = of_round(&metrics, "cycles", Better::Lower, 2);
        let units: Vec<u64> = worst.iter().map(|w| w.unit).collect();
        assert_eq!(units, [1, 2, 0]);
        assert_eq!(worst[0].met, [("llc_misses".to_owned(), 3.0)].into());
        let best = of_round(&metrics, "cycles", Better::Higher, 2);
        assert_eq!(best[0].unit, 0);
        assert!(of_round(&metrics, "wakeup_us", Better::Lower, 2).is_empty());
        let many = (0..30).flat_map(|_| worst.clone());
        assert_eq!(of_all(many, Better::Lower).len(), MOST);
    }
}
