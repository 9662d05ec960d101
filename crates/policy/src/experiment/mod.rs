//! The experiment language: the same subjects under several configurations. This module has the
//! typed [`Experiment`], its reader, which locates problems, and the expansion of configurations. A
//! configuration is a policy fragment. It is laid over the ones that it extends, and over the roles
//! of the subjects' groups.
//!
//! Where subjects run and where groups are confined are two questions. `subject.X.cpus` is for the
//! runner: it pins the subject in *every* configuration, so that configurations differ in the
//! policy alone. `group.X.cpus` within a configuration asks for a core partition. A configuration
//! in which no group asks for one gets none: its groups have `cpus = "any"`.
//!
//! A configuration may also vary what a generator does (`subject.X.run.rate = "2GB/s"`), because
//! load is an axis of many questions. It may never vary which generator it is: the metric must stay
//! comparable.

mod check;
mod expand;
mod expect;
mod measure;
mod names;
mod published;
mod read;
mod runs;
mod schema;
mod subject;

use std::collections::BTreeMap;

use indexmap::IndexMap;
use quell_types::refusal::{Cause, Refusal, Remedy};
use serde::Serialize;

use crate::lab::Guest;
use crate::policy::{Bounds, Policy};
use crate::workload::{Pages, Size, Workload};

pub use expect::{Bound, Condition, Expect, Figure};
pub use measure::{Canary, Measure, Shorter, Span, Until};
pub use published::{KnownOn, Published, PublishedFigure};
pub use schema::experiment_schema;
pub use subject::{Each, Metric, Pin, RUN_TIME, Start, Subject};

/// The experiments that come with Quell: name and text.
const BUILTIN: [(&str, &str); 31] = [
    (
        "neighbour",
        include_str!("../../../../experiments/neighbour.toml"),
    ),
    (
        "hurts-cpu",
        include_str!("../../../../experiments/hurts-cpu.toml"),
    ),
    (
        "hurts-memory",
        include_str!("../../../../experiments/hurts-memory.toml"),
    ),
    (
        "hurts-cache",
        include_str!("../../../../experiments/hurts-cache.toml"),
    ),
    (
        "hurts-bandwidth",
        include_str!("../../../../experiments/hurts-bandwidth.toml"),
    ),
    (
        "hurts-sibling",
        include_str!("../../../../experiments/hurts-sibling.toml"),
    ),
    (
        "hurts-disk",
        include_str!("../../../../experiments/hurts-disk.toml"),
    ),
    (
        "webrtc",
        include_str!("../../../../experiments/webrtc.toml"),
    ),
    (
        "deadline",
        include_str!("../../../../experiments/deadline.toml"),
    ),
    (
        "ladder",
        include_str!("../../../../experiments/ladder.toml"),
    ),
    (
        "p4080-4core",
        include_str!("../../../../experiments/p4080-4core.toml"),
    ),
    (
        "p4080-8core",
        include_str!("../../../../experiments/p4080-8core.toml"),
    ),
    (
        "apollolake-cat",
        include_str!("../../../../experiments/apollolake-cat.toml"),
    ),
    (
        "p4080-paging",
        include_str!("../../../../experiments/p4080-paging.toml"),
    ),
    (
        "colours",
        include_str!("../../../../experiments/colours.toml"),
    ),
    (
        "colours-linux",
        include_str!("../../../../experiments/colours-linux.toml"),
    ),
    (
        "windows",
        include_str!("../../../../experiments/windows.toml"),
    ),
    (
        "paging",
        include_str!("../../../../experiments/paging.toml"),
    ),
    (
        "paging-sqlite",
        include_str!("../../../../experiments/paging-sqlite.toml"),
    ),
    (
        "pressure-anon",
        include_str!("../../../../experiments/pressure-anon.toml"),
    ),
    (
        "pressure-file-once",
        include_str!("../../../../experiments/pressure-file-once.toml"),
    ),
    (
        "pressure-file-repeat",
        include_str!("../../../../experiments/pressure-file-repeat.toml"),
    ),
    ("disk", include_str!("../../../../experiments/disk.toml")),
    (
        "pressure-dirty",
        include_str!("../../../../experiments/pressure-dirty.toml"),
    ),
    (
        "pressure-native",
        include_str!("../../../../experiments/pressure-native.toml"),
    ),
    (
        "pressure-compile",
        include_str!("../../../../experiments/pressure-compile.toml"),
    ),
    (
        "pressure-compaction",
        include_str!("../../../../experiments/pressure-compaction.toml"),
    ),
    (
        "smt-mixes",
        include_str!("../../../../experiments/smt-mixes.toml"),
    ),
    (
        "smt-assumptions",
        include_str!("../../../../experiments/smt-assumptions.toml"),
    ),
    (
        "contention-memory",
        include_str!("../../../../experiments/contention-memory.toml"),
    ),
    (
        "contention-l1",
        include_str!("../../../../experiments/contention-l1.toml"),
    ),
];

/// An experiment with expanded configurations.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Experiment {
    /// Its name; by default the file's name without folders and extension.
    pub name: String,
    /// A line that describes it, for people.
    pub title: Option<String>,
    /// Where it can run: `linux`, `sim:PROFILE`, `lab:PROFILE`. The first is the default.
    pub backends: Vec<String>,
    /// The parameters of the lab's machine, where that is the backend.
    pub lab: Guest,
    /// The seed for the order of cells and for resampling.
    pub seed: u64,
    /// How each cell is measured.
    pub measure: Measure,
    /// Limits around all subjects together.
    pub bounds: Bounds,
    /// The subjects, in the order of the file.
    pub subjects: IndexMap<String, Subject>,
    /// The configurations, in the order of the file; axes multiply, the first one slowest.
    pub configurations: Vec<Configuration>,
    /// What must hold for `compare --check`.
    pub expects: Vec<Expect>,
    /// What studies published about these configurations.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub published: Vec<Published>,
}

/// One configuration: a policy for the subjects' groups.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Configuration {
    /// Its name, with placeholders replaced.
    pub name: String,
    /// The part of `name` as written before the `@`. Configurations that differ only in their cap
    /// have it in common.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub family: Option<String>,
    /// The part of `name` as written behind the `@`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cap: Option<String>,
    /// The axes of the configuration, each with its value.
    pub axes: BTreeMap<String, String>,
    /// Whether each subject runs alone, and nothing is asked of the machine.
    pub alone: bool,
    /// The policy. Its groups are those of the subjects; none of them matches or launches programs.
    pub policy: Policy,
    /// Subject → what its generator does here, if that differs from what it does elsewhere.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub runs: BTreeMap<String, Workload>,
    /// Subject → the group in which it runs here, if that differs from elsewhere.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<String, String>,
}

impl Configuration {
    /// What the generator of a subject does under this configuration. `None` if the subject is a
    /// command.
    #[must_use]
    pub fn run<'c>(&'c self, instance: &Instance<'c>) -> Option<&'c Workload> {
        let own = self.runs.get(instance.of);
        own.or(instance.subject.run.as_ref())
    }

    /// The group in which a program runs under this configuration.
    #[must_use]
    pub fn group<'c>(&'c self, instance: &Instance<'c>) -> &'c str {
        let own = self.groups.get(instance.of);
        own.map_or(instance.group, String::as_str)
    }

    /// Whether a program takes part in this configuration.
    #[must_use]
    pub fn has(&self, instance: &Instance<'_>) -> bool {
        instance
            .subject
            .takes_part(&self.name, self.family.as_deref())
    }

    /// Whether one of these programs is a generator that asks for huge pages here.
    #[must_use]
    pub fn wants_huge_pages(&self, instances: &[Instance<'_>]) -> bool {
        let mut runs = instances.iter().filter_map(|instance| self.run(instance));
        runs.any(|run| run.pages() == Pages::Huge)
    }
}

/// One program to be started: a subject, or one of its copies.
#[derive(Clone, Debug, PartialEq)]
pub struct Instance<'e> {
    /// Its name: the subject's, or `NAME.1`, `NAME.2`, … for copies.
    pub name: String,
    /// The name of the subject that it is, or is a copy of.
    pub of: &'e str,
    /// The group it runs in, unless a configuration says otherwise ([`Configuration::group`]).
    pub group: &'e str,
    /// The subject that it is, or is a copy of.
    pub subject: &'e Subject,
}

impl Experiment {
    /// The experiment as it is measured on a simulated machine ([`Shorter`]).
    #[must_use]
    pub fn simulated(mut self) -> Self {
        let shorter = self.measure.simulated.as_ref();
        if let Some(shorter) = shorter.and_then(|shorter| shorter.period) {
            let own = self.subjects.values_mut();
            let own = own.filter_map(|subject| subject.run.as_mut());
            let varied = self.configurations.iter_mut();
            let varied = varied.flat_map(|configuration| configuration.runs.values_mut());
            for run in own.chain(varied) {
                if let Workload::Periodic { period, .. } = run {
                    *period = shorter;
                }
            }
        }
        self.measure = self.measure.simulated();
        self
    }

    /// The text of an experiment that comes with Quell; `None` for an unknown name.
    #[must_use]
    pub fn builtin(name: &str) -> Option<&'static str> {
        let found = BUILTIN.iter().find(|(known, _)| *known == name);
        found.map(|(_, text)| *text)
    }

    /// The names of the experiments that come with Quell.
    pub fn builtins() -> impl Iterator<Item = &'static str> {
        BUILTIN.iter().map(|(name, _)| *name)
    }

    /// The expanded configurations, in the order of the file.
    #[must_use]
    pub fn configurations(&self) -> &[Configuration] {
        &self.configurations
    }

    /// The configuration of that name.
    #[must_use]
    pub fn configuration(&self, name: &str) -> Option<&Configuration> {
        self.configurations.iter().find(|c| c.name == name)
    }

    /// Whether a generator asks for huge pages under any configuration.
    #[must_use]
    pub fn wants_huge_pages(&self) -> bool {
        let instances = self.instances();
        self.configurations
            .iter()
            .any(|c| c.wants_huge_pages(&instances))
    }

    /// Whether the size of a generator is relative to the measured last-level cache.
    #[must_use]
    pub fn wants_seen_cache(&self) -> bool {
        let varied = self.configurations.iter().flat_map(|c| c.runs.values());
        let own = self.subjects.values().filter_map(|s| s.run.as_ref());
        own.chain(varied)
            .any(|run| matches!(run.size(), Some(Size::Seen(_))))
    }

    /// The programs to be started, in the order of the file. Each copy is one.
    #[must_use]
    pub fn instances(&self) -> Vec<Instance<'_>> {
        self.subjects
            .iter()
            .flat_map(|(name, subject)| copies(name, subject))
            .collect()
    }

    /// The configuration that `normalized` divides by: the one named, else the first with `alone`.
    #[must_use]
    pub fn baseline(&self) -> Option<&str> {
        let alone = || self.configurations.iter().find(|c| c.alone);
        let named = self.measure.baseline.as_deref();
        named.or_else(|| alone().map(|c| c.name.as_str()))
    }

    /// A refusal for each key that asks for what is not built yet.
    #[must_use]
    pub fn not_yet(&self) -> Vec<Refusal> {
        let refusal = |key: String, what: &str, remedy: &str| Refusal {
            key,
            why: format!("{what} is not built yet"),
            cause: Cause::NotBuilt,
            remedies: vec![Remedy::from(remedy)],
        };
        let mut list = Vec::new();
        if self.measure.units.is_some() {
            let what = "measuring a number of units of work";
            list.push(refusal("measure.units".into(), what, "give a duration"));
        }
        let coarse = |subject: &Subject| subject.run.as_ref().is_some_and(Workload::coarse_only);
        let all_coarse = self.subjects.values().all(coarse);
        if self.measure.until == Some(Until::AllOnce) && !all_coarse {
            let what = "restarting commands and generators until all have ended once";
            list.push(refusal(
                "measure.until".into(),
                what,
                "use \"exit\", or give a duration",
            ));
        }
        for (name, subject) in &self.subjects {
            if subject.start.is_some() {
                let key = format!("subject.{name}.start");
                list.push(refusal(
                    key,
                    "starting subjects one after another",
                    "remove the key",
                ));
            }
        }
        list
    }
}

fn copies<'e>(name: &'e str, subject: &'e Subject) -> impl Iterator<Item = Instance<'e>> {
    (1..=subject.copies).map(move |n| Instance {
        name: if subject.copies == 1 {
            name.to_owned()
        } else {
            format!("{name}.{n}")
        },
        of: name,
        group: subject.group_or(name),
        subject,
    })
}
