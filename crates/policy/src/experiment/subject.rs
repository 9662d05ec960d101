//! The subjects of an experiment: the programs that take part in it.

use indexmap::IndexMap;
use quell_types::cpuset::CpuSet;
use quell_types::source::NumberPattern;
use quell_types::stats::Better;
use quell_types::units::Nanos;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use crate::policy::Role;
use crate::workload::Workload;
use quell_types::spelled::{NoTable, Spelled};

/// The metric that each command has without declaring it: its run time in seconds, less is better.
pub const RUN_TIME: &str = "run_time_s";

/// A program that takes part in every configuration, or in those that it names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Subject {
    /// The group it belongs to. Default: the subject's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The role of its group.
    pub role: Role,
    /// Where the runner pins it, in every configuration: a number of CPUs of its own, a list, or by
    /// another subject. `with NAME` is that subject's CPUs, `sibling of NAME` the other threads of
    /// its cores. Absent: nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Pin>,
    /// A load generator and its parameters. Instead of `command`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Workload>,
    /// Any program, with its arguments. Instead of `run`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// The configurations that it takes part in, by their names or what stands there before the
    /// `@` or the `/`. Default: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub only: Vec<String>,
    /// How many copies run. With more than one, they are `NAME.1`, `NAME.2`, …
    #[serde(default = "one")]
    pub copies: u32,
    /// When it starts. Default: together with the other subjects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Start>,
    /// The metric it is judged by. Default: the generator's, the only one declared, or
    /// `run_time_s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary: Option<String>,
    /// Metrics read from its output, by name.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub metric: IndexMap<String, Metric>,
}

const fn one() -> u32 {
    1
}

/// Whether a word of [`Subject::only`] means the configuration of that name and family.
pub(super) fn means(only: &str, name: &str, family: Option<&str>) -> bool {
    let mix = name.split_once('/').map(|(mix, _)| mix);
    [Some(name), family, mix].contains(&Some(only))
}

impl Subject {
    /// The group that the subject runs in; its name by default.
    #[must_use]
    pub fn group_or<'s>(&'s self, name: &'s str) -> &'s str {
        self.group.as_deref().unwrap_or(name)
    }

    /// Whether it takes part in the configuration of that name and family.
    #[must_use]
    pub fn takes_part(&self, name: &str, family: Option<&str>) -> bool {
        let is = |only: &String| means(only, name, family);
        self.only.is_empty() || self.only.iter().any(is)
    }

    /// The name of the metric by which the subject is judged.
    #[must_use]
    pub fn primary(&self) -> &str {
        match (&self.primary, &self.run) {
            (Some(name), _) => name,
            (None, Some(run)) => run.primary(),
            (None, None) if self.metric.len() == 1 => {
                self.metric.keys().next().map_or(RUN_TIME, String::as_str)
            }
            (None, None) => RUN_TIME,
        }
    }

    /// The metrics that it declares or its generator reports.
    #[must_use]
    pub fn reports(&self) -> Vec<&str> {
        let mut all: Vec<&str> = self.metric.keys().map(String::as_str).collect();
        match &self.run {
            Some(run) => all.extend(run.metrics().iter().map(|m| m.name)),
            None => all.push(RUN_TIME),
        }
        all
    }

    /// Which direction of `metric` is good; `None` if the subject does not have that metric.
    #[must_use]
    pub fn better(&self, metric: &str) -> Option<Better> {
        if let Some(declared) = self.metric.get(metric) {
            return Some(declared.better);
        }
        match &self.run {
            Some(run) => {
                let reported = run.metrics().iter().find(|m| m.name == metric);
                reported.map(|m| m.better)
            }
            None => (metric == RUN_TIME).then_some(Better::Lower),
        }
    }
}

/// The text before the name of the subject with which CPUs are shared.
const WITH: &str = "with ";
/// The text before the name of the subject with which cores are shared.
const SIBLING_OF: &str = "sibling of ";

/// Where the runner pins a subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pin {
    /// To this many CPUs, which no other subject has. The runner chooses them, the same in all
    /// configurations.
    Count(u32),
    /// To the CPUs in this list.
    List(CpuSet),
    /// To the CPUs of the subject with this name, which it shares.
    With(String),
    /// To the SMT siblings of the CPUs of the subject with this name.
    SiblingOf(String),
}

impl Spelled for Pin {
    const WANTED: &'static str =
        "a number of CPUs, a list such as \"0,2-3\", \"with SUBJECT\" or \"sibling of SUBJECT\"";
    type Table = NoTable;
    fn integer(n: u32) -> Option<Self> {
        Some(Self::Count(n))
    }
    fn text(text: &str) -> Result<Self, String> {
        if let Some(subject) = text.strip_prefix(WITH) {
            return Ok(Self::With(subject.trim().to_owned()));
        }
        if let Some(subject) = text.strip_prefix(SIBLING_OF) {
            return Ok(Self::SiblingOf(subject.trim().to_owned()));
        }
        let list = text.parse().map(Self::List);
        list.map_err(|e: quell_types::cpuset::CpuSetError| e.to_string())
    }
    fn table(table: NoTable) -> Result<Self, String> {
        match table {}
    }
}

impl Serialize for Pin {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Count(n) => s.serialize_u32(*n),
            Self::List(list) => list.serialize(s),
            Self::With(subject) => s.serialize_str(&format!("{WITH}{subject}")),
            Self::SiblingOf(subject) => s.serialize_str(&format!("{SIBLING_OF}{subject}")),
        }
    }
}

/// When a subject starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Start {
    /// After this subject has started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// And so much later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<Nanos>,
}

/// How often a metric is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Each {
    /// One value per run: the last line that matches.
    #[default]
    Run,
    /// One value per line that matches.
    Line,
}

/// A metric read from a program's output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Metric {
    /// A regular expression that finds the number in a line.
    pub pattern: NumberPattern,
    /// Whether a larger or a smaller value is good.
    pub better: Better,
    /// How often it is read.
    #[serde(default)]
    pub each: Each,
    /// Its unit, for people. Default: what the metric's name ends with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
}
