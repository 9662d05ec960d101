//! What a comparison found: the format of `compare --json` (schema `quell.compare/1`).
//!
//! Fields that do not apply are absent, never zero. How the figures are computed:
//!
//! - Within a round, a metric's value is the mean of its windows, and its percentiles are those of
//!   its windows.
//! - Over rounds, each figure is the median of the rounds' figures. Only `max` is the largest
//!   window of all rounds.
//! - `normalized` figures are formed within each round, against the configuration `baseline` of the
//!   same round. They are then reduced in the same way.
//! - Intervals are percentile bootstrap intervals over rounds ([`quell_types::stats`]).

use quell_types::stats::Better;
use std::collections::BTreeMap;

use quell_control::pooled::Pooled;
use quell_plan::Promise;
use quell_plan::inventory::Inventory;
use quell_policy::Role;
use quell_types::cpuset::CpuId;
use quell_types::ids::GroupId;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::refusal::Refusal;
use quell_types::stats::Interval;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::attribution::Attribution;
use crate::published::PublishedResult;
use crate::standing::Cause;
use crate::worst::Worst;

/// Whether the times in a result were measured or computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Timing {
    /// Times measured on hardware.
    Real,
    /// Times computed by the simulator.
    Simulated,
    /// Measured in an emulated machine: orders of events mean something, times do not.
    Emulated,
}

impl Timing {
    /// The name used in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Real => "real",
            Self::Simulated => "simulated",
            Self::Emulated => "emulated",
        }
    }
}

/// The figures of one metric over a set of rounds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Figures {
    /// The median over rounds of the rounds' means, in the metric's unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// Performance against the baseline: 1 = no interference, higher is better.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub normalized: Option<f64>,
    /// The interval of `normalized`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub normalized_ci95: Option<Interval>,
    /// Baseline p50 ÷ measured p50. Only for metrics of which less is better.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub normalized_p50: Option<f64>,
    /// The interval of `normalized_p50`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub normalized_p50_ci95: Option<Interval>,
    /// Baseline p95 ÷ measured p95. Only for metrics of which less is better.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub normalized_p95: Option<f64>,
    /// The interval of `normalized_p95`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub normalized_p95_ci95: Option<Interval>,
    /// Baseline p99 ÷ measured p99. Only for metrics of which less is better.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub normalized_p99: Option<f64>,
    /// The interval of `normalized_p99`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub normalized_p99_ci95: Option<Interval>,
    /// The 50th percentile of a round's windows. Absent with fewer than 2 windows in a round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50: Option<f64>,
    /// The interval of `p50`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50_ci95: Option<Interval>,
    /// The 95th percentile. Absent with fewer than 20 windows in a round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p95: Option<f64>,
    /// The 99th percentile. Absent with fewer than 100 windows in a round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99: Option<f64>,
    /// The interval of `p99`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ci95: Option<Interval>,
    /// The largest window of all rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
    /// Windows over all rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// Rounds that the figures are over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds: Option<u32>,
    /// The interval of `value` at the result's `confidence`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ci95: Option<Interval>,
}

/// One subject under one configuration. The figures of its primary metric stand here, all others in
/// `metrics`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SubjectResult {
    /// Name of the subject, or of its copy.
    pub name: String,
    /// The role of its group.
    pub role: Role,
    /// The CPUs it was pinned to, the same in every configuration.
    pub cpus: Vec<CpuId>,
    /// Its primary metric, with the unit in the name.
    pub metric: String,
    /// The good direction of `metric`.
    pub better: Better,
    /// Its primary metric over all rounds.
    #[serde(flatten)]
    pub figures: Figures,
    /// The primary metric over the rounds in which this configuration's CPUs shared a cache; absent
    /// without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<Figures>,
    /// All other metrics, by name. `achieved_of_cap` is bytes counted by the generator ÷ its limit.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, Figures>,
    /// Why units of the primary metric were late; absent for subjects that are not critical, that
    /// have no units, and without a baseline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attribution: Option<Attribution>,
    /// The ten worst units of the primary metric over all rounds, worst first. Absent for subjects
    /// that report nothing else of each unit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub worst: Vec<Worst>,
}

impl SubjectResult {
    /// The figures over these rounds; `None` where there are none.
    #[must_use]
    pub fn over(&self, rounds: Subset) -> Option<&Figures> {
        match rounds {
            Subset::All => Some(&self.figures),
            Subset::Shared => self.shared.as_ref(),
        }
    }
}

/// Which rounds figures are over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subset {
    /// All rounds of the experiment.
    All,
    /// Those in which the canary found that the subjects' CPUs shared a cache.
    Shared,
}

/// A promise, its level, and whether an independent witness saw it hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PromiseResult {
    /// The group that the promise is made to, or that it limits.
    pub group: GroupId,
    /// What is promised to or about the group.
    pub promise: Promise,
    /// The level as planned.
    pub level: Level,
    /// Whether it held in every round, by a witness that is not the thing under test; absent
    /// without a witness.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<bool>,
    /// The cells in which its level was below the planned one. Absent where there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<PromiseLost>,
}

impl PromiseResult {
    /// The level at the worst moment of the hold.
    #[must_use]
    pub fn least(&self) -> Level {
        self.lost
            .as_ref()
            .map_or(self.level, |lost| lost.level.min(self.level))
    }

    /// Whether the plan promised something that nothing held at some moment.
    #[must_use]
    pub fn was_lost(&self) -> bool {
        self.level > Level::None && self.least() == Level::None
    }
}

/// Cells in which a promise's level was below the planned one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PromiseLost {
    /// Number of such cells.
    pub cells: u32,
    /// The lowest level in them.
    pub level: Level,
    /// Why the level was lowest.
    pub because: Cause,
}

/// Sums over all cells of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Totals {
    /// Number of cells that were measured.
    pub cells: u32,
    /// Cells given up after a second attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<u32>,
    /// Sum of the subjects' `normalized`: the weighted speed-up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub normalized_sum: Option<f64>,
    /// Of recorded programs that run until each has ended once: the mean of their instructions per
    /// cycle, on a CPU. As all figures over programs it is the median over rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avg_ipc: Option<f64>,
    /// The harmonic mean of IPC ÷ IPC alone, on a CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hm_weighted_ipc: Option<f64>,
    /// The sum of the time alone ÷ the time of a run, waiting included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stp: Option<f64>,
    /// The largest ÷ the smallest of the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unfairness: Option<f64>,
    /// The mean time of a run in seconds, waiting included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turnaround_s: Option<f64>,
    /// The time until each program has ended once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_s: Option<f64>,
    /// The intervals of these figures, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ci95: BTreeMap<String, Interval>,
    /// Configuration with the same programs → figure → the figure here ÷ there, formed within
    /// each round. Of `unfairness` what is beyond 1.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub against: BTreeMap<String, BTreeMap<String, Ratio>>,
    /// Budgets used up, over all regulated CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overflows: Option<u64>,
    /// How often a group was throttled on a CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttles: Option<u64>,
    /// Time throttled, summed over CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttled_ns: Option<u64>,
    /// What went through the pool of budgets, summed over CPUs; absent where none was pooled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pooled: Option<Pooled>,
    /// From overflow to throttled, where the overflow interrupted a program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reaction_user: Option<Reaction>,
    /// The same, where it interrupted the kernel, which may go on for a while.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reaction_kernel: Option<Reaction>,
}

/// A quotient over rounds, with its interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ratio {
    /// The median over rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// The interval of `value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ci95: Option<Interval>,
}

/// How long it took from a counter's overflow, as the kernel recorded it, to the brake's decision
/// to stop its group.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reaction {
    /// Number of throttles that were measured.
    pub samples: u64,
    /// The median in nanoseconds.
    pub p50_ns: f64,
    /// The 99th percentile in nanoseconds.
    pub p99_ns: f64,
    /// The longest in nanoseconds.
    pub max_ns: f64,
}

/// The results of one configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConfigurationResult {
    /// Its name, with the axes' values filled in.
    pub name: String,
    /// Where its name has two parts, `FAMILY@CAP`: the configurations of a family differ in their
    /// cap alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<String>,
    /// The cap, or whatever distinguishes it within its family.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap: Option<String>,
    /// Axis → value, as text.
    pub axes: BTreeMap<String, String>,
    /// The mechanisms its plan uses.
    pub mechanisms: Vec<Mechanism>,
    /// The minimum over its promises, each at its worst moment; absent when the plan was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guarantee: Option<Level>,
    /// The promises of its plan.
    pub promises: Vec<PromiseResult>,
    /// Why this machine cannot do it: then it was skipped and has no subjects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<Refusal>,
    /// Number of rounds that were measured.
    pub rounds: u32,
    /// Rounds in which the subjects' CPUs shared a cache before and after the cell. Absent where
    /// this cannot be found out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds_shared: Option<u32>,
    /// The results of each subject.
    pub subjects: Vec<SubjectResult>,
    /// Sums over its cells.
    pub totals: Totals,
}

impl ConfigurationResult {
    /// Fills in family and cap for a record whose version had both in the name alone.
    pub fn complete(&mut self) {
        if let (None, Some((family, cap))) = (&self.family, self.name.split_once('@')) {
            self.cap = Some(cap.to_owned());
            self.family = Some(family.to_owned());
        }
    }

    /// The family of the configuration. One without a cap is its own family.
    #[must_use]
    pub fn family(&self) -> &str {
        self.family.as_deref().unwrap_or(&self.name)
    }

    /// What distinguishes it within its family: its cap, or its name where it has none.
    #[must_use]
    pub fn label(&self) -> &str {
        self.cap.as_deref().unwrap_or(&self.name)
    }

    /// The subject of that name.
    #[must_use]
    pub fn subject(&self, name: &str) -> Option<&SubjectResult> {
        self.subjects.iter().find(|s| s.name == name)
    }
}

/// A cell that could not be measured, also not at the second attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CellFailure {
    /// Name of the configuration.
    pub configuration: String,
    /// Name of the subject. Absent where all subjects run together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Number of the round, from 0.
    pub round: u32,
    /// What went wrong, as text.
    pub error: String,
}

/// What `frontier` compares: protection given against throughput kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Frontier {
    /// The subject that is protected.
    pub protected: String,
    /// The subject that pays.
    pub pays: String,
}

/// An expectation of the experiment and what was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExpectationResult {
    /// Name of the configuration.
    pub configuration: String,
    /// Name of the subject.
    pub subject: String,
    /// What is expected of it, as written: `normalized_at_least = 0.8`.
    pub expected: String,
    /// The figure found; absent where there is none (then `met` is false).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<f64>,
    /// Whether the expectation was met.
    pub met: bool,
}

/// The result of `compare`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CompareResult {
    /// The format and its version: `quell.compare/1`.
    pub schema: String,
    /// The version of Quell that made it.
    pub version: String,
    /// Name of the experiment.
    pub experiment: String,
    /// The experiment's title. Absent where it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The backend it ran on.
    pub backend: String,
    /// Whether its times were measured or computed.
    pub timing: Timing,
    /// The seed of order and resampling.
    pub seed: u64,
    /// The machine that it ran on.
    pub machine: Inventory,
    /// A hash of the experiment's text, its algorithm before it (`sha256:…`): equal hashes, equal
    /// experiments.
    pub policy_hash: String,
    /// The confidence of every interval; `ci95` is named after the default.
    pub confidence: f64,
    /// The configuration that `normalized` refers to; without one nothing is normalized.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline: Option<String>,
    /// What the frontier compares, if the experiment asks for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frontier: Option<Frontier>,
    /// Number of rounds that were begun.
    pub rounds: u32,
    /// Rounds in which the subjects' CPUs shared a cache around every cell. Absent where this
    /// cannot be found out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds_shared: Option<u32>,
    /// Why the experiment ended before its last round, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<String>,
    /// The configurations, in the order of the experiment.
    pub configurations: Vec<ConfigurationResult>,
    /// Cells that were given up after a second attempt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<CellFailure>,
    /// The experiment's expectations, and whether they were met.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expectations: Vec<ExpectationResult>,
    /// What studies published, next to what was measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub published: Vec<PublishedResult>,
}

impl CompareResult {
    /// The configuration of that name.
    #[must_use]
    pub fn configuration(&self, name: &str) -> Option<&ConfigurationResult> {
        self.configurations.iter().find(|c| c.name == name)
    }

    /// Whether every expectation was met, no promise was lost, and published figures are as
    /// their rows ask.
    #[must_use]
    pub fn as_expected(&self) -> bool {
        let met = self.expectations.iter().all(|e| e.met) && self.lost().next().is_none();
        met && self.published.iter().all(|row| row.faults().is_empty())
    }

    /// Promises that nothing held at some moment, with their configurations.
    pub fn lost(&self) -> impl Iterator<Item = (&ConfigurationResult, &PromiseResult)> {
        let all = self.configurations.iter();
        all.flat_map(|c| c.promises.iter().map(move |p| (c, p)))
            .filter(|(_, promise)| promise.was_lost())
    }
}

/// The published schema of [`CompareResult`].
#[must_use]
pub fn compare_schema() -> schemars::Schema {
    schemars::schema_for!(CompareResult)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::COMPARE_SCHEMA;

    /// Two configurations on a two-CPU machine: one measured, one refused.
    fn sample() -> serde_json::Value {
        serde_json::json!({
            "schema": COMPARE_SCHEMA, "version": "0.1.0", "experiment": "neighbour", "backend": "linux",
            "timing": "real", "seed": 1, "policy_hash": "fnv1a64:00", "confidence": 0.95, "baseline": "solo",
            "machine": {
                "identity": {"kernel": "6.18", "architecture": "x86_64", "vendor": "v", "model": "m"},
                "cpus": [{"id": 0, "siblings": "0", "package": 0, "node": 0}],
                "caches": [], "nodes": [], "mechanisms": {},
                "means": {"cpuset": "v1", "movable-irqs": 0, "fixed-irqs": 0, "workqueue-mask": false,
                    "meter": {"kind": "time"}, "time-meter": true, "brake": {"Ok": null}, "brake-in-place": {"Ok": null}, "cpu-max": true, "counter-users": []}},
            "rounds": 3, "rounds_shared": 2,
            "configurations": [
                {"name": "regulated@10%", "axes": {"cap": "10%"}, "mechanisms": ["cores", "bandwidth"],
                 "guarantee": "estimated", "rounds": 3, "rounds_shared": 2,
                 "promises": [{"group": "neighbour", "level": "estimated", "held": true,
                    "promise": {"kind": "limit-bandwidth", "rate": "1GB/s"}}],
                 "subjects": [{"name": "victim", "role": "critical", "cpus": [0], "metric": "latency_ns",
                    "better": "lower", "value": 20.0, "normalized": 0.75, "p50": 19.0, "ci95": [18.0, 22.0],
                    "shared": {"value": 21.0}, "metrics": {"achieved_of_cap": {"value": 0.98}}}],
                 "totals": {"cells": 3}},
                {"name": "mba", "axes": {}, "mechanisms": [], "promises": [], "rounds": 0, "subjects": [],
                 "totals": {"cells": 0}, "refused": [{"key": "mechanisms.bandwidth", "why": "no resctrl here"}]}],
        })
    }

    #[test]
    fn a_result_reads_and_writes_as_published() {
        let result: CompareResult = serde_json::from_value(sample()).unwrap();
        assert_eq!(serde_json::to_value(&result).unwrap(), sample());
        assert_eq!(
            result
                .configuration("regulated@10%")
                .unwrap()
                .subject("victim")
                .unwrap()
                .figures
                .value,
            Some(20.0)
        );
        // Results of a version that had both in the name alone.
        let parts = |n: usize| {
            let mut old = result.configurations[n].clone();
            old.complete();
            (old.family, old.cap)
        };
        let written = |text: &str| Some(text.to_owned());
        assert_eq!(parts(0), (written("regulated"), written("10%")));
        assert_eq!(parts(1), (None, None));
    }

    #[test]
    fn an_unknown_field_is_refused() {
        let mut value = sample();
        value["configurations"][0]["subjects"][0]["mean"] = 1.into();
        let error = serde_json::from_value::<CompareResult>(value).unwrap_err();
        assert!(error.to_string().contains("unknown field `mean`"));
    }

    /// `QUELL_BLESS=1 cargo test -p quell-record` rewrites the published schema after a change that
    /// is meant.
    #[test]
    fn the_published_schema_is_this_one() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../schemas/compare.schema.json"
        );
        let text = serde_json::to_string_pretty(&compare_schema()).unwrap() + "\n";
        if std::env::var_os("QUELL_BLESS").is_some() {
            std::fs::create_dir_all(concat!(env!("CARGO_MANIFEST_DIR"), "/../../schemas")).unwrap();
            std::fs::write(path, &text).unwrap();
        }
        let published = std::fs::read_to_string(path).unwrap();
        assert_eq!(
            published, text,
            "schemas/compare.schema.json differs from the types; if meant: QUELL_BLESS=1"
        );
    }
}
