//! Reads an experiment: its keys first, then their meaning, then the expansion of its
//! configurations.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use quell_types::text::{Origin, Problem, Reader};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Expect, Experiment, Measure, Published, Subject, check, expand, schema};
use crate::lab::Guest;
use crate::policy::{Bounds, stem};

/// The keys of the file.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Keys {
    /// Format version: 1. The only required top-level key.
    pub quell: u32,
    /// The experiment's name. Default: the file's name without its extension.
    #[serde(default)]
    pub name: String,
    /// A title in one line, for people.
    #[serde(default)]
    pub title: Option<String>,
    /// Where it can run; the first is the default of `--on`.
    #[serde(default = "linux")]
    pub backends: Vec<String>,
    /// The virtual machine, where the backend is the lab. `--lab KEY=VALUE` overrides its keys.
    #[serde(default)]
    pub lab: Guest,
    /// The seed of the order of cells and of resampling.
    #[serde(default = "one")]
    pub seed: u64,
    /// Rounds, spans, and what is compared.
    #[serde(default)]
    pub measure: Measure,
    /// Limits that all subjects have together.
    #[serde(default)]
    pub bounds: Bounds,
    /// The programs that take part, by name.
    #[serde(default)]
    pub subject: IndexMap<String, Subject>,
    /// The policies under which they run, by name. Each is a policy fragment, and may have `alone`,
    /// `extends`, `name`, `axis`, `skip` and `subject` as well.
    #[serde(default)]
    #[schemars(schema_with = "schema::configurations")]
    pub configuration: IndexMap<String, ConfigurationKeys>,
    /// What must hold for `compare --check`.
    #[serde(default)]
    pub expect: Vec<Expect>,
    /// What studies published, for comparison with what is measured.
    #[serde(default)]
    pub published: Vec<Published>,
}

fn linux() -> Vec<String> {
    vec!["linux".to_owned()]
}

const fn one() -> u64 {
    1
}

/// The keys of a configuration next to its policy fragment. The fragment is taken from the document
/// itself, so that problems in it keep their lines.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct ConfigurationKeys {
    /// Each subject runs by itself, under no policy.
    pub alone: bool,
    /// The configuration whose fragment this one is laid over.
    pub extends: Option<String>,
    /// The expanded name, with {AXIS} for the axes' values. What stands before an `@` names a
    /// family of configurations that differ in what stands behind it alone: a curve of the
    /// frontier. Default: the key.
    pub name: Option<String>,
    /// Axis → value → policy fragment. Several axes multiply.
    #[schemars(with = "IndexMap<String, IndexMap<String, serde_json::Value>>")]
    pub axis: IndexMap<String, IndexMap<String, toml::Table>>,
    /// Combinations of axis values that are left out.
    pub skip: Vec<BTreeMap<String, String>>,
    /// What the generators of subjects do here, laid over their `run` key by key (which generator
    /// it is stays), and the groups they run in.
    pub subject: IndexMap<String, Varied>,
}

/// What a configuration varies of a subject.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Varied {
    /// Laid over the subject's `run`, key by key.
    #[schemars(with = "serde_json::Map<String, serde_json::Value>")]
    pub run: toml::Table,
    /// The group it runs in here.
    pub group: Option<String>,
}

/// The key next to a policy fragment that varies subjects. Like the fragment it is laid over what
/// the configuration extends.
pub(super) const SUBJECT: &str = "subject";

impl ConfigurationKeys {
    /// The keys that are not part of the policy fragment.
    pub const NAMES: [&'static str; 6] = ["alone", "extends", "name", "axis", "skip", SUBJECT];
}

impl Experiment {
    /// Reads an experiment and expands its configurations. Problems call it `file`.
    ///
    /// # Errors
    /// Every problem found. Problems of a policy fragment name the configuration in which they were
    /// found first.
    pub fn parse(text: &str, file: &str) -> Result<Self, Vec<Problem>> {
        let origin = Origin {
            file,
            text: Some(text),
        };
        let root = origin.document(text)?;
        let mut reader = Reader::new(origin);
        let Some(keys) = reader.read::<Keys>(&root) else {
            return Err(reader.problems);
        };
        reader.complain(root.get_ref(), check::check(&keys));
        let configurations = expand::expand(&mut reader, root.get_ref(), &keys);
        // Names can only be checked when all of them are known.
        if reader.problems.is_empty() {
            reader.complain(root.get_ref(), check::names(&keys, &configurations));
        }
        if !reader.problems.is_empty() {
            return Err(reader.problems);
        }
        Ok(Self {
            name: if keys.name.is_empty() {
                stem(file)
            } else {
                keys.name
            },
            title: keys.title,
            backends: keys.backends,
            lab: keys.lab,
            seed: keys.seed,
            measure: keys.measure,
            bounds: keys.bounds,
            subjects: keys.subject,
            configurations,
            expects: keys.expect,
            published: keys.published,
        })
    }
}
