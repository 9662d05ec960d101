//! Running an experiment: what comes before its rounds ([`crate::rounds`]) and after them, with the
//! record. A configuration that cannot be planned here is reported as refused and skipped.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use quell_plan::Plan;
use quell_plan::inventory::Inventory;
use quell_policy::Policy;
use quell_policy::experiment::Experiment;
use quell_record::events::{MANIFEST_SCHEMA, Record};
use quell_record::result::{CompareResult, Timing};
use quell_types::refusal::Refusal;
use serde::Serialize;

use crate::collect::{Collected, Heading};
use crate::folder::{Folder, FolderError, hash};
use crate::place::PlaceError;
use crate::read::{ReadError, read};
use crate::resume::Kept;
use crate::rounds::Rounds;
use crate::setup::Setup;

pub use crate::rounds::Machines;

/// Makes a plan of a policy, or returns the refusals.
pub type PlanFn<'a> = dyn Fn(&Policy, &Inventory) -> Result<Plan, Vec<Refusal>> + 'a;

/// What the caller of [`run`] sets.
pub struct Options<'a> {
    /// The backend's name, as in `--on`.
    pub backend: &'a str,
    /// What times of this backend mean (real or simulated).
    pub timing: Timing,
    /// Overrides the experiment's seed. `None`: the experiment's own.
    pub seed: Option<u64>,
    /// Overrides the experiment's rounds. `None`: the experiment's own.
    pub rounds: Option<u32>,
    /// Only these configurations: by name, by the part before `@`, or by a pattern (`*`, `?`,
    /// `{AXIS}`). The baseline is always included. Empty: all.
    pub only: &'a [String],
    /// The record of an interrupted run to resume. Seed, rounds and `only` come from that record.
    pub resume: Option<&'a Path>,
    /// Why configurations that ask for huge pages are refused. `None`: huge pages are available.
    pub no_huge_pages: Option<Refusal>,
    /// The directory in which the record's folder is made. `None`: no record.
    pub out: Option<&'a Path>,
    /// Seconds since 1970, for the record's name.
    pub now_unix_s: u64,
    /// The command line, word for word.
    pub command_line: &'a str,
    /// The experiment's file, as written.
    pub experiment_text: &'a str,
    /// Makes the record's `report.html`. `None`: no such page.
    pub html: Option<&'a dyn Fn(&Record) -> String>,
}

/// Receives the progress of an experiment. Every function has a default that does nothing.
pub trait Progress {
    /// The experiment has so many cells in all.
    fn begin(&mut self, _cells: u32) {}
    /// So many cells were measured by the run that this one resumes.
    fn resumed(&mut self, _done: u32) {}
    /// A cell begins. `cell` names its round, its configuration and, when alone, its subject.
    fn cell(&mut self, _cell: &str) {}
    /// So many cells are done, measured or given up.
    fn done(&mut self, _done: u32, _cells: u32) {}
    /// A message that the user should see at once.
    fn note(&mut self, _text: &str) {}
    /// Whether no further round may begin after `done` rounds, because their time is up.
    fn enough(&mut self, _done: u32) -> bool {
        false
    }
    /// The number of a signal that wants the experiment to end. Asked while cells run on machines
    /// that see no signals themselves ([`Machines::Alike`]).
    fn stop(&mut self) -> Option<i32> {
        None
    }
}

/// A [`Progress`] that ignores everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProgress;

impl Progress for NoProgress {}

/// An experiment that was run, completely or in part.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// What was measured. `interrupted` is set where it is partial.
    pub result: CompareResult,
    /// The record's folder. `None` where no record was asked for.
    pub folder: Option<PathBuf>,
}

pub use crate::setup::chosen;

/// Why an experiment has no result.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// The experiment asks for something that is not built yet.
    #[error("{}", sentences(.0))]
    NotYet(Vec<Refusal>),
    /// `only` names a configuration that does not exist.
    #[error("there is no configuration '{name}' in this experiment{close}; it has {known}")]
    Unknown {
        /// The name that was given.
        name: String,
        /// The name that may have been meant, in parentheses. Empty where none is close.
        close: String,
        /// The experiment's configurations, as text.
        known: String,
    },
    /// The record cannot be resumed, for this reason.
    #[error("{0}")]
    Resume(String),
    /// The subjects do not fit on the machine.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The record could not be written.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The record could not be read back for its page.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A cell could not be undone. Nothing further may be measured.
    #[error("{why}{}", partial(.folder.as_deref()))]
    NotUndone {
        /// What failed, and the remedy.
        why: String,
        /// The record of what was measured until then, if there is one.
        folder: Option<PathBuf>,
    },
}

fn sentences(refusals: &[Refusal]) -> String {
    let all: Vec<String> = refusals.iter().map(ToString::to_string).collect();
    all.join("\n")
}

fn partial(folder: Option<&Path>) -> String {
    folder.map_or_else(String::new, |f| {
        format!("; what was measured before is in {}", f.display())
    })
}

/// Runs `experiment` on `machines`, and blocks until it is over.
///
/// A signal makes the result partial. One that a machine sees ends the run after the current cell
/// is undone. One from [`Progress::stop`] ends it after the cells that have begun.
pub fn run(
    experiment: &Experiment,
    machines: Machines<'_>,
    inventory: &Inventory,
    plan: &PlanFn<'_>,
    options: &Options<'_>,
    progress: &mut dyn Progress,
) -> Result<Comparison, CompareError> {
    let begun = machines.now();
    let kept = options
        .resume
        .map(Kept::open)
        .transpose()
        .map_err(CompareError::Resume)?;
    let chosen = match &kept {
        Some(kept) if options.only.is_empty() => kept.only(),
        _ => options.only.to_vec(),
    };
    let huge = options.no_huge_pages.as_ref();
    let setup = Setup::new(experiment, inventory, plan, &chosen, huge)?;
    for prepared in &setup.prepared {
        if let Err(refusals) = &prepared.plan {
            let why = sentences(refusals);
            progress.note(&format!("{} is skipped: {why}", prepared.name()));
        }
    }
    let of_record = |key: &str| kept.as_ref().and_then(|k| k.number(key));
    let seed = options.seed.or_else(|| of_record("seed"));
    let seed = seed.unwrap_or(experiment.seed);
    let rounds = of_record("rounds").and_then(|n| u32::try_from(n).ok());
    let rounds = options.rounds.or(rounds);
    let rounds = rounds.unwrap_or(experiment.measure.rounds);
    let heading = || Heading {
        machine: inventory,
        backend: options.backend,
        timing: options.timing,
        seed,
        policy_hash: hash(options.experiment_text),
    };
    let (mut folder, done) = {
        let heading = heading();
        let manifest = Manifest::new(&setup, options, &heading, rounds, &chosen);
        match kept {
            Some(kept) => {
                let new = serde_json::to_value(&manifest)
                    .expect("invariant: records have text keys and finite numbers");
                if let Some(difference) = kept.difference(&new) {
                    let record = kept.dir.display();
                    return Err(CompareError::Resume(format!(
                        "{record} cannot be gone on with: {difference}; take that back, or start anew without --resume"
                    )));
                }
                (Some(Folder::resume(&kept.dir, begun)?), kept.done)
            }
            None => {
                let folder = options
                    .out
                    .map(|runs| Folder::begin(runs, &experiment.name, options.now_unix_s, begun));
                let folder = folder.transpose()?;
                if let Some(folder) = &folder {
                    folder.write("manifest.json", &json(&manifest))?;
                }
                (folder, BTreeMap::new())
            }
        }
    };
    let mut collected = Collected::new(&setup);
    let broken = Rounds {
        setup: &setup,
        seed,
        rounds,
        before: done,
        collected: &mut collected,
        folder: &mut folder,
        progress,
    }
    .run(machines)?;
    let result = collected.result(heading());
    let folder = folder
        .map(|mut folder| {
            folder.write("results.json", &json(&result))?;
            if let Some(html) = options.html {
                folder.close()?;
                folder.write("report.html", &html(&read(folder.path())?))?;
            }
            if result.interrupted.is_none() && result.failures.is_empty() {
                folder.whole();
            }
            Ok::<_, CompareError>(folder.finish()?)
        })
        .transpose()?;
    match broken {
        None => Ok(Comparison { result, folder }),
        Some(why) => Err(CompareError::NotUndone { why, folder }),
    }
}

/// `manifest.json`: what was run, on which machine, with which settings.
#[derive(Serialize)]
struct Manifest<'a> {
    schema: &'static str,
    version: &'static str,
    created_unix_s: u64,
    command_line: &'a str,
    backend: &'a str,
    timing: Timing,
    seed: u64,
    rounds: u32,
    /// The configurations as asked for; empty: all.
    only: &'a [String],
    machine: &'a Inventory,
    machine_hash: String,
    policy_hash: &'a str,
    /// The experiment's file, as written.
    experiment: &'a str,
    /// Subject → its CPUs as a list.
    placement: BTreeMap<&'a str, String>,
    /// Configuration → its policy, with the subjects' CPUs filled in.
    policies: BTreeMap<&'a str, &'a Policy>,
    plans: BTreeMap<&'a str, &'a Plan>,
    refused: BTreeMap<&'a str, &'a Vec<Refusal>>,
}

impl<'a> Manifest<'a> {
    fn new(
        setup: &'a Setup<'a>,
        options: &Options<'a>,
        heading: &'a Heading<'a>,
        rounds: u32,
        only: &'a [String],
    ) -> Self {
        let prepared = || setup.prepared.iter().map(|p| (p.name(), p));
        Self {
            schema: MANIFEST_SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            created_unix_s: options.now_unix_s,
            command_line: options.command_line,
            backend: options.backend,
            timing: options.timing,
            seed: heading.seed,
            rounds,
            only,
            machine: heading.machine,
            machine_hash: hash(json(heading.machine)),
            policy_hash: &heading.policy_hash,
            experiment: options.experiment_text,
            placement: setup
                .places
                .iter()
                .map(|(name, cpus)| (name.as_str(), cpus.to_string()))
                .collect(),
            policies: prepared().map(|(n, p)| (n, &p.policy)).collect(),
            plans: prepared()
                .filter_map(|(n, p)| Some((n, p.plan.as_ref().ok()?)))
                .collect(),
            refused: prepared()
                .filter_map(|(n, p)| Some((n, p.plan.as_ref().err()?)))
                .collect(),
        }
    }
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value)
        .map(|text| text + "\n")
        .expect("invariant: records have text keys and finite numbers")
}

#[cfg(test)]
#[path = "compare_tests/mod.rs"]
mod tests;
