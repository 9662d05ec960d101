//! What a study published about a subject under a configuration, for comparison with what is
//! measured here.

use indexmap::IndexMap;
use quell_types::text::{Complaint, Path};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::names::{hint, instances};
use super::{Configuration, Subject};

/// A change below this fraction is no change, unless a row says otherwise.
const FLAT: f64 = 0.03;
/// Metrics that the runner measures of any generator.
const MEASURED: [&str; 3] = ["achieved_of_cap", "ipc", "misses_per_ms"];

/// A published figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// The subject, or one of its copies.
    pub subject: String,
    /// The configuration, by its expanded name.
    pub configuration: String,
    /// The metric. Default: the subject's primary one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
    /// Which figure of the metric was published.
    #[serde(default)]
    pub figure: PublishedFigure,
    /// What was published, in the metric's unit. Above 0.
    pub value: f64,
    /// The paper and its table or figure, in words.
    pub source: String,
    /// The configuration whose published row gives the direction: the same subject, metric and
    /// figure. Without it no direction is judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against: Option<String>,
    /// How far the measured value may be from the published one, as a fraction of it. Without it
    /// the ratio is shown and not judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<f64>,
    /// A change of less than this fraction counts as no change.
    #[serde(default = "flat")]
    pub flat: f64,
    /// Why the direction is wrong here. `compare --check` then accepts a wrong direction, and
    /// fails once it is right, so that the note is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known: Option<String>,
    /// The backends that `known` is about: `linux`, `sim` or `lab`. Default: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known_on: Vec<KnownOn>,
}

const fn flat() -> f64 {
    FLAT
}

/// A kind of backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum KnownOn {
    /// The machine that the command runs on.
    Linux,
    /// A simulated machine.
    Sim,
    /// A machine of the lab.
    Lab,
}

/// A figure of a metric that a study can publish.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PublishedFigure {
    /// The mean of the windows.
    #[default]
    Value,
    /// The 50th percentile.
    P50,
    /// The 95th percentile.
    P95,
    /// The 99th percentile.
    P99,
    /// The largest window.
    Max,
    /// Performance against the baseline: 1 = no interference.
    Normalized,
}

impl PublishedFigure {
    /// The name used in files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Value => "value",
            Self::P50 => "p50",
            Self::P95 => "p95",
            Self::P99 => "p99",
            Self::Max => "max",
            Self::Normalized => "normalized",
        }
    }
}

impl Published {
    /// The metric, given the subject that the row names.
    #[must_use]
    pub fn metric<'p>(&'p self, subject: &'p Subject) -> &'p str {
        self.metric.as_deref().unwrap_or_else(|| subject.primary())
    }

    /// The note of a known wrong direction, where it is about this backend.
    #[must_use]
    pub fn known(&self, backend: &str) -> Option<&str> {
        let kind = match backend.split(':').next() {
            Some("sim") => KnownOn::Sim,
            Some("lab") => KnownOn::Lab,
            _ => KnownOn::Linux,
        };
        let here = self.known_on.is_empty() || self.known_on.contains(&kind);
        self.known.as_deref().filter(|_| here)
    }
}

fn at(row: usize) -> Path {
    Path::of(&["published"]).index(row)
}

fn complaint(at: Path, why: impl Into<String>, remedy: &str) -> Complaint {
    Complaint {
        at,
        why: why.into(),
        remedy: (!remedy.is_empty()).then(|| remedy.to_owned()),
    }
}

/// Numbers and texts that mean nothing.
pub(super) fn values(rows: &[Published]) -> Vec<Complaint> {
    let mut list = Vec::new();
    for (i, row) in rows.iter().enumerate() {
        let numbers = [("value", Some(row.value)), ("size", row.size)];
        for (key, number) in numbers {
            if let Some(n) = number.filter(|n| !(n.is_finite() && *n > 0.0)) {
                let why = format!("{n} is not a number above 0");
                list.push(complaint(at(i).key(key), why, ""));
            }
        }
        if !(0.0..1.0).contains(&row.flat) {
            let why = format!("{} is not a fraction from 0 to below 1", row.flat);
            list.push(complaint(at(i).key("flat"), why, "0.03 is the default"));
        }
        if row.source.trim().is_empty() {
            let why = "the source is not named";
            list.push(complaint(at(i).key("source"), why, "name paper and table"));
        }
        if row.known.is_some() && row.against.is_none() {
            let why = "no direction is judged without `against`";
            let remedy = "give `against`, or remove `known`";
            list.push(complaint(at(i).key("known"), why, remedy));
        }
        if row.known.is_none() && !row.known_on.is_empty() {
            let why = "nothing is known to be wrong";
            list.push(complaint(at(i).key("known_on"), why, "give `known`"));
        }
    }
    list
}

/// The subject that a row's name is of, copies included.
fn subject_of<'s>(subjects: &'s IndexMap<String, Subject>, name: &str) -> Option<&'s Subject> {
    let mut all = subjects.iter();
    all.find_map(|(of, subject)| {
        let mut copies = super::copies(of, subject);
        copies.any(|copy| copy.name == name).then_some(subject)
    })
}

/// References to what does not exist, and rows that are given twice.
pub(super) fn names(
    rows: &[Published],
    subjects: &IndexMap<String, Subject>,
    configurations: &[Configuration],
    normalizes: bool,
) -> Vec<Complaint> {
    let mut list = Vec::new();
    let known = configurations.iter().map(|c| c.name.as_str());
    // Subject, configuration, metric and figure of each row whose subject exists.
    let key = |row: &Published, configuration: &str| {
        let subject = subject_of(subjects, &row.subject)?;
        let metric = row.metric(subject).to_owned();
        Some((
            row.subject.clone(),
            configuration.to_owned(),
            metric,
            row.figure,
        ))
    };
    let keys: Vec<_> = rows
        .iter()
        .map(|row| key(row, &row.configuration))
        .collect();
    for (i, row) in rows.iter().enumerate() {
        let mut unknown = |field: &str, name: &str| {
            if known.clone().all(|c| c != name) {
                let why = format!("there is no configuration '{name}'");
                let remedy = hint(name, known.clone()).unwrap_or_default();
                list.push(complaint(at(i).key(field), why, &remedy));
                return true;
            }
            false
        };
        unknown("configuration", &row.configuration);
        let against = row.against.as_ref().filter(|a| !unknown("against", a));
        let Some(subject) = subject_of(subjects, &row.subject) else {
            let all = instances(subjects);
            let why = format!("there is no subject '{}'", row.subject);
            let remedy = hint(&row.subject, all.iter().map(String::as_str)).unwrap_or_default();
            list.push(complaint(at(i).key("subject"), why, &remedy));
            continue;
        };
        let metric = row.metric(subject);
        if subject.better(metric).is_none() && !MEASURED.contains(&metric) {
            let why = format!("the subject has no metric '{metric}'");
            let all = subject.reports().into_iter().chain(MEASURED);
            let remedy = hint(metric, all).unwrap_or_default();
            list.push(complaint(at(i).key("metric"), why, &remedy));
        } else if row.figure == PublishedFigure::Normalized {
            let without = match (normalizes, subject.better(metric)) {
                (false, _) => Some("no configuration is alone".to_owned()),
                (_, None) => Some(format!("which direction of {metric} is good is not known")),
                _ => None,
            };
            if let Some(why) = without {
                let why = format!("nothing is normalized: {why}");
                list.push(complaint(at(i).key("figure"), why, ""));
            }
        }
        let own = keys.get(i);
        if let Some(first) = keys.iter().take(i).position(|k| Some(k) == own) {
            let why = format!(
                "published[{first}] has the same subject, configuration, metric and figure"
            );
            list.push(complaint(at(i), why, "remove one"));
        }
        let Some(against) = against else {
            continue;
        };
        if *against == row.configuration {
            let why = "a row has no direction against itself";
            list.push(complaint(
                at(i).key("against"),
                why,
                "name another configuration",
            ));
        } else if !keys.contains(&key(row, against)) {
            let figure = row.figure.name();
            let why = format!(
                "there is no published {figure} of {metric} of '{}' under '{against}'",
                row.subject
            );
            let remedy = format!("add a [[published]] row for '{against}'");
            list.push(complaint(at(i).key("against"), why, &remedy));
        }
    }
    list
}
