//! What hurts on a machine, and how much of it Quell removes. This is the format of `quell demo
//! --json` (schema `quell.demo/1`), and the decisions about it. All are pure functions of
//! comparisons.
//!
//! All ratios are at the 95th percentile. A ratio of 2 means that the 95th percentile is twice that
//! of the program alone. Ratios are formed within each round, and intervals are over rounds.

use quell_types::mechanism::Mechanism;
use quell_types::refusal::Refusal;
use quell_types::stats::Interval;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::result::{CompareResult, Figures};
use quell_policy::Role;

/// The format and its version.
pub const DEMO_SCHEMA: &str = "quell.demo/1";
/// A resource hurts where the lower bound of the ratio is at least this.
pub const HURTS: f64 = 1.25;
/// A resource is covered where at least this part of the excess is removed.
pub const COVERED: f64 = 0.7;
/// The configurations of the experiments `hurts-…`: alone, next to the neighbour, with Quell.
pub const CONFIGURATIONS: [&str; 3] = ["solo", "none", "quell"];

/// What two programs on one machine share.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Resource {
    /// The time of a CPU.
    Cpu,
    /// Memory, and the page cache in it.
    Memory,
    /// The last-level cache of the CPUs.
    Cache,
    /// Bandwidth between caches and memory.
    Bandwidth,
    /// The two threads of a core.
    Sibling,
    /// Bandwidth and requests of a disk.
    Disk,
}

impl Resource {
    /// All resources in the order in which they are tried: what hurts on any machine comes first.
    pub const ALL: [Self; 6] = [
        Self::Cpu,
        Self::Memory,
        Self::Cache,
        Self::Bandwidth,
        Self::Sibling,
        Self::Disk,
    ];

    /// The name in results and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Cache => "cache",
            Self::Bandwidth => "bandwidth",
            Self::Sibling => "sibling",
            Self::Disk => "disk",
        }
    }

    /// The name of the built-in experiment about it.
    #[must_use]
    pub const fn experiment(self) -> &'static str {
        match self {
            Self::Cpu => "hurts-cpu",
            Self::Memory => "hurts-memory",
            Self::Cache => "hurts-cache",
            Self::Bandwidth => "hurts-bandwidth",
            Self::Sibling => "hurts-sibling",
            Self::Disk => "hurts-disk",
        }
    }
}

/// One resource that was tried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Found {
    /// The resource that the programs share.
    pub name: Resource,
    /// The experiment; `quell compare` runs it again.
    pub experiment: String,
    /// What the experiment is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The metric of the protected program, with the unit in the name.
    pub metric: String,
    /// Its 95th percentile alone, in the unit of `metric`.
    pub solo: f64,
    /// The same next to the neighbour ÷ alone.
    pub none: f64,
    /// The interval of `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub none_ci95: Option<Interval>,
    /// The same with Quell ÷ alone. Absent: not tried, or refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quell: Option<f64>,
    /// The interval of `quell`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quell_ci95: Option<Interval>,
    /// The neighbour's rate with Quell ÷ its rate alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub neighbour_kept: Option<f64>,
    /// The mechanisms that Quell used.
    pub by: Vec<Mechanism>,
    /// Whether the neighbour hurts: the lower bound of `none` is at least 1.25.
    pub hurts: bool,
    /// The part of the excess that is gone with Quell, where it hurts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excess_gone: Option<f64>,
    /// Why Quell cannot protect the program on this machine. Absent where it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refusal>,
    /// Number of rounds that were measured.
    pub rounds: u32,
    /// The record's folder, within the folder of the demonstration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<String>,
}

/// One resource that was not tried, or could not be measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LeftOut {
    /// The resource that the programs would share.
    pub name: Resource,
    /// Why, and what would let it be tried.
    pub why: String,
}

/// The result of `quell demo`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DemoResult {
    /// The format and its version: `quell.demo/1`.
    pub schema: String,
    /// The version of Quell that made it.
    pub version: String,
    /// Whether it was a control run, whose neighbours only slept. Then nothing may hurt.
    pub control: bool,
    /// How long it took, in seconds.
    pub took_s: f64,
    /// What was tried, the one that hurts most first.
    pub resources: Vec<Found>,
    /// Resources that were not tried or could not be measured.
    pub left_out: Vec<LeftOut>,
    /// Why it ended early. Absent if it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<String>,
}

/// How many times longer it takes than alone: the inverse of normalized performance.
fn longer(figures: &Figures) -> Option<(f64, Option<Interval>)> {
    let ratio = figures.normalized_p95.filter(|n| *n > 0.0)?.recip();
    let interval = figures.normalized_p95_ci95.filter(|i| i.low > 0.0);
    let interval = interval.map(|i| Interval::from([i.high.recip(), i.low.recip()]));
    Some((ratio, interval))
}

/// What a comparison shows about a resource. `None` where figures are missing: a configuration was
/// not measured, or its rounds have fewer than 20 values.
#[must_use]
pub fn found(name: Resource, result: &CompareResult, record: Option<String>) -> Option<Found> {
    let [solo, none, quell] = CONFIGURATIONS.map(|c| result.configuration(c));
    let critical = none?.subjects.iter().find(|s| s.role == Role::Critical)?;
    let alone = solo?.subject(&critical.name)?.figures.p95?;
    let (ratio, interval) = longer(&critical.figures)?;
    let with = quell.and_then(|q| longer(&q.subject(&critical.name)?.figures));
    let kept = quell.and_then(|q| {
        let pays = q.subjects.iter().find(|s| s.role == Role::BestEffort)?;
        pays.figures.normalized
    });
    let hurts = hurts(interval);
    Some(Found {
        name,
        experiment: result.experiment.clone(),
        title: result.title.clone(),
        metric: critical.metric.clone(),
        solo: alone,
        none: ratio,
        none_ci95: interval,
        quell: with.map(|(ratio, _)| ratio),
        quell_ci95: with.and_then(|(_, interval)| interval),
        neighbour_kept: kept,
        by: quell.map(|q| q.mechanisms.clone()).unwrap_or_default(),
        hurts,
        excess_gone: with
            .filter(|_| hurts)
            .and_then(|(with, _)| gone(ratio, with)),
        refused: quell.and_then(|q| q.refused.first().cloned()),
        rounds: result.rounds,
        record,
    })
}

/// Whether a neighbour hurts, by the interval of the ratio over rounds. One round has no interval.
#[must_use]
pub fn hurts(ratio: Option<Interval>) -> bool {
    ratio.is_some_and(|interval| interval.low >= HURTS)
}

/// The part of the excess over 1 that is removed. 1: as alone; 0: as without Quell; negative:
/// worse. `None` where there is no excess.
#[must_use]
pub fn gone(none: f64, quell: f64) -> Option<f64> {
    let part = (none - quell) / (none - 1.0);
    (none > 1.0 && part.is_finite()).then_some(part.min(1.0))
}

impl Found {
    /// Whether Quell covers it: most of the excess is removed, and the intervals do not overlap.
    #[must_use]
    pub fn covered(&self) -> bool {
        let apart = match (self.none_ci95, self.quell_ci95) {
            (Some(none), Some(quell)) => quell.high < none.low,
            _ => false,
        };
        apart && self.excess_gone.is_some_and(|part| part >= COVERED)
    }
}

/// Sorts by how much each hurts, and what hurts first. Equal ones keep [`Resource::ALL`]'s order.
pub fn rank(all: &mut [Found]) {
    all.sort_by(|a, b| {
        b.hurts
            .cmp(&a.hurts)
            .then(b.none.total_cmp(&a.none))
            .then(a.name.cmp(&b.name))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: Resource, none: [f64; 3], quell: Option<[f64; 3]>) -> Found {
        let interval = |[low, _, high]: [f64; 3]| Interval::from([low, high]);
        let hurts = hurts(Some(interval(none)));
        Found {
            name,
            experiment: name.experiment().to_owned(),
            title: None,
            metric: "latency_us".to_owned(),
            solo: 100.0,
            none: none[1],
            none_ci95: Some(interval(none)),
            quell: quell.map(|q| q[1]),
            quell_ci95: quell.map(interval),
            neighbour_kept: None,
            by: Vec::new(),
            hurts,
            excess_gone: quell.filter(|_| hurts).and_then(|q| gone(none[1], q[1])),
            refused: None,
            rounds: 5,
            record: None,
        }
    }

    #[test]
    fn what_hurts_is_decided_by_the_lower_bound() {
        assert!(hurts(Some(Interval::from([1.25, 9.0]))));
        assert!(!hurts(Some(Interval::from([1.2, 9.0]))));
        assert!(!hurts(None), "one round has no interval");
    }

    #[test]
    fn what_hurts_most_comes_first_and_what_does_not_comes_last() {
        let mut all = [
            of(Resource::Cpu, [0.9, 7.0, 9.0], None),
            of(Resource::Memory, [1.3, 2.0, 3.0], None),
            of(Resource::Cache, [1.5, 6.0, 9.0], None),
            of(Resource::Disk, [1.5, 6.0, 9.0], None),
        ];
        rank(&mut all);
        let order: Vec<&str> = all.iter().map(|f| f.name.name()).collect();
        assert_eq!(order, ["cache", "disk", "memory", "cpu"]);
    }

    #[test]
    fn the_excess_is_what_lies_above_alone() {
        assert_eq!(gone(5.0, 1.0), Some(1.0));
        assert_eq!(gone(5.0, 2.0), Some(0.75));
        assert_eq!(gone(5.0, 9.0), Some(-1.0));
        assert_eq!(gone(5.0, 0.5), Some(1.0), "more than all of it cannot go");
        assert_eq!(gone(1.0, 1.0), None);
    }

    #[test]
    fn covered_is_most_of_the_excess_with_intervals_apart() {
        let covered = |none, quell| of(Resource::Cpu, none, Some(quell)).covered();
        assert!(covered([4.0, 5.0, 6.0], [0.9, 1.1, 1.5]));
        assert!(!covered([4.0, 5.0, 6.0], [0.9, 1.1, 4.0]), "they touch");
        assert!(!covered([4.0, 5.0, 6.0], [2.0, 2.5, 3.0]), "too little");
        assert!(
            !covered([1.0, 5.0, 6.0], [0.5, 0.9, 0.99]),
            "it does not hurt"
        );
        assert!(!of(Resource::Cpu, [4.0, 5.0, 6.0], None).covered());
    }

    #[test]
    fn a_ratio_is_the_inverse_of_performance() {
        let figures = Figures {
            normalized_p95: Some(0.25),
            normalized_p95_ci95: Some(Interval::from([0.2, 0.5])),
            ..Figures::default()
        };
        let found = longer(&figures).unwrap();
        assert_eq!(found, (4.0, Some(Interval::from([2.0, 5.0]))));
        assert_eq!(longer(&Figures::default()), None);
    }
}
