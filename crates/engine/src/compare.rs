//! Running an experiment by the rules of fair comparison: every round runs every cell once, in an order shuffled from
//! the seed, so that drift hits all configurations alike; whether the subjects' CPUs shared a cache is asked of the
//! backend's own probe before and after each cell, never of the subjects.
//!
//! A cell that fails is tried once more, then noted as failed, and the experiment goes on. A configuration that cannot
//! be planned here is reported as refused and skipped. Whatever happens, each cell is undone before the next.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use quell_core::backend::{Backend, Measurement};
use quell_core::experiment::Experiment;
use quell_core::inventory::Inventory;
use quell_core::plan::{Plan, Refusal};
use quell_core::policy::Policy;
use quell_core::record::{Event, MANIFEST_SCHEMA, Record};
use quell_core::result::{CellFailure, CompareResult, Timing};
use quell_core::rng::Rng;
use serde::Serialize;

use crate::cell::{Cell, Throttling};
use crate::collect::{Collected, Heading};
use crate::drive::{DriveError, Ended, Sink, drive};
use crate::folder::{Folder, FolderError, hash};
use crate::place::PlaceError;
use crate::read::{ReadError, read};
use crate::resume::{Done, Kept, Which};
use crate::setup::{Prepared, Setup};

/// Makes a plan of a policy, or says why it cannot.
pub type PlanFn<'a> = dyn Fn(&Policy, &Inventory) -> Result<Plan, Vec<Refusal>> + 'a;

/// At or above this score of the canary, two CPUs share a cache.
const SHARED: f64 = 0.5;

/// What the caller wants.
pub struct Options<'a> {
    /// The backend's name, as in `--on`.
    pub backend: &'a str,
    /// What its times are.
    pub timing: Timing,
    /// Instead of the experiment's seed.
    pub seed: Option<u64>,
    /// Instead of the experiment's rounds.
    pub rounds: Option<u32>,
    /// Only these configurations, by name, by the part before `@`, or by a pattern (`*`, `?`, `{AXIS}`); the baseline
    /// always comes along. Empty: all.
    pub only: &'a [String],
    /// The record of an interrupted run to go on with: seed, rounds and `only` are those of the record.
    pub resume: Option<&'a Path>,
    /// Why configurations that ask for huge pages are refused; absent: huge pages are to be had.
    pub no_huge_pages: Option<Refusal>,
    /// The directory in which the record's folder is made; absent: no record.
    pub out: Option<&'a Path>,
    /// Seconds since 1970, for the record's name.
    pub now_unix_s: u64,
    /// The command, word for word.
    pub command_line: &'a str,
    /// The experiment as written.
    pub experiment_text: &'a str,
    /// Makes the record's `report.html`; absent: none.
    pub html: Option<&'a dyn Fn(&Record) -> String>,
}

/// Told how the experiment goes on.
pub trait Progress {
    /// So many cells are to be run.
    fn begin(&mut self, _cells: u32) {}
    /// So many of them were measured by the run that this one goes on with.
    fn resumed(&mut self, _done: u32) {}
    /// A cell begins; `cell` names its round, configuration and, when alone, subject.
    fn cell(&mut self, _cell: &str) {}
    /// So many cells are done, measured or given up.
    fn done(&mut self, _done: u32, _cells: u32) {}
    /// Something a person should know at once.
    fn note(&mut self, _text: &str) {}
}

/// Tells nobody.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProgress;

impl Progress for NoProgress {}

/// An experiment that was run, or as much of it as could be.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// What was found; `interrupted` tells whether it is partial.
    pub result: CompareResult,
    /// The record's folder.
    pub folder: Option<PathBuf>,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// The experiment asks for what is not built.
    #[error("{}", sentences(.0))]
    NotYet(Vec<Refusal>),
    /// `only` names a configuration that is not there.
    #[error("there is no configuration '{name}' in this experiment{close}; it has {known}")]
    Unknown {
        /// The name given.
        name: String,
        /// The one that may have been meant, in parentheses.
        close: String,
        /// Those there are.
        known: String,
    },
    /// The record cannot be gone on with.
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
    /// A cell could not be undone, so nothing further may be measured.
    #[error("{why}{}", partial(.folder.as_deref()))]
    NotUndone {
        /// What happened, and the remedy.
        why: String,
        /// The record of what was measured until then.
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

/// Runs `experiment` on `backend`. Blocks until it is over; a signal seen by the backend ends it after the current
/// cell is undone, with a partial result.
pub fn run(
    experiment: &Experiment,
    backend: &mut dyn Backend,
    inventory: &Inventory,
    plan: &PlanFn<'_>,
    options: &Options<'_>,
    progress: &mut dyn Progress,
) -> Result<Comparison, CompareError> {
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
                (Some(Folder::resume(&kept.dir, backend.now())?), kept.done)
            }
            None => {
                let folder = options.out.map(|runs| {
                    Folder::begin(runs, &experiment.name, options.now_unix_s, backend.now())
                });
                let folder = folder.transpose()?;
                if let Some(folder) = &folder {
                    folder.write("manifest.json", &json(&manifest))?;
                }
                (folder, BTreeMap::new())
            }
        }
    };
    let mut collected = Collected::new(&setup);
    let broken = rounds_of(
        &setup,
        backend,
        (seed, rounds),
        done,
        &mut collected,
        &mut folder,
        progress,
    )?;
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

/// Runs the rounds. Returns why no further cell may be run, if a cell could not be undone.
fn rounds_of(
    setup: &Setup<'_>,
    backend: &mut dyn Backend,
    (seed, rounds): (u64, u32),
    mut before: BTreeMap<Which, Done>,
    collected: &mut Collected<'_>,
    folder: &mut Option<Folder>,
    progress: &mut dyn Progress,
) -> Result<Option<String>, CompareError> {
    let mut rng = Rng::new(seed);
    let cells = setup.cells();
    let per_round = u32::try_from(cells.len()).unwrap_or(u32::MAX);
    let total = per_round.saturating_mul(rounds);
    progress.begin(total);
    if !before.is_empty() {
        progress.resumed(u32::try_from(before.len()).unwrap_or(u32::MAX));
    }
    let mut done = 0;
    for round in 0..rounds {
        collected.rounds = round + 1;
        let mut order = cells.clone();
        rng.shuffle(&mut order);
        for (index, alone) in order {
            let Some(prepared) = setup.prepared.get(index) else {
                continue;
            };
            let subject = alone.and_then(|s| setup.instances.get(s)).map(|i| &i.name);
            let which = (round, prepared.name().to_owned(), subject.cloned());
            if let Some(cell) = before.remove(&which) {
                if let Some(folder) = folder {
                    write_samples(setup, folder, prepared, round, &cell.measured)?;
                }
                collected.take(index, cell.shared, &cell.measured, cell.throttling);
                done += 1;
                continue;
            }
            let mut name = format!("round {} of {rounds}, {}", round + 1, prepared.name());
            if let Some(subject) = subject {
                name.push_str(&format!(", {subject}"));
            }
            progress.cell(&name);
            let mut tried = attempt(setup, prepared, alone, backend, &name, folder);
            if let Err(Stopper::Failed(why)) = &tried {
                progress.note(&format!("{name}: {why}; trying once more"));
                tried = attempt(setup, prepared, alone, backend, &name, folder);
            }
            match tried {
                Ok(taken) => {
                    let mut cell = Done {
                        round,
                        configuration: which.1,
                        subject: which.2,
                        shared: taken.shared,
                        measured: taken.measured,
                        throttling: taken.throttling,
                    };
                    if let Some(folder) = folder {
                        cell.on_record(|at| folder.since(at));
                        folder.done(&cell)?;
                        write_samples(setup, folder, prepared, round, &cell.measured)?;
                    }
                    collected.take(index, cell.shared, &cell.measured, cell.throttling);
                }
                Err(Stopper::Failed(error)) => {
                    progress.note(&format!("{name}: {error}; given up"));
                    collected.failures.push(CellFailure {
                        configuration: prepared.name().to_owned(),
                        subject: subject.cloned(),
                        round,
                        error,
                    });
                }
                Err(Stopper::Ended(why)) => {
                    collected.interrupted = Some(why);
                    return Ok(None);
                }
                Err(Stopper::NotUndone(why)) => {
                    collected.interrupted = Some(why.clone());
                    return Ok(Some(why));
                }
            }
            done += 1;
            progress.done(done, total);
            if let Some(folder) = folder {
                folder.check()?;
            }
        }
    }
    Ok(None)
}

/// What one cell gave.
struct CellTaken {
    shared: Option<bool>,
    measured: BTreeMap<String, Measurement>,
    throttling: Option<Throttling>,
}

/// Why a cell gave nothing.
enum Stopper {
    /// It failed and was undone: another attempt may do better.
    Failed(String),
    /// The experiment is to end here.
    Ended(String),
    /// It could not be undone.
    NotUndone(String),
}

fn attempt(
    setup: &Setup<'_>,
    prepared: &Prepared<'_>,
    alone: Option<usize>,
    backend: &mut dyn Backend,
    name: &str,
    sink: &mut dyn Sink,
) -> Result<CellTaken, Stopper> {
    let Ok(plan) = &prepared.plan else {
        return Err(Stopper::Failed("it was refused".to_owned()));
    };
    let name = name.to_owned();
    sink.put(backend.now(), &Event::Phase { name });
    let before = canary(setup, backend)?;
    let mut cell = Cell::new(setup.members(prepared.configuration, alone), setup.span);
    let driven = drive(backend, plan, &mut cell, sink).map_err(|error| match error {
        DriveError::Failed(why) => Stopper::Failed(why),
        left @ DriveError::NotUndone { .. } => Stopper::NotUndone(left.to_string()),
    })?;
    match driven.ended {
        Ended::Finished => {}
        Ended::Stopped(signal) => {
            return Err(Stopper::Ended(format!("stopped by signal {signal}")));
        }
        Ended::Revoked(why) => return Err(Stopper::Ended(why)),
    }
    let after = canary(setup, backend)?;
    let (measured, throttling) = cell.into_measurements();
    Ok(CellTaken {
        shared: before.zip(after).map(|(a, b)| a >= SHARED && b >= SHARED),
        measured,
        throttling,
    })
}

fn canary(setup: &Setup<'_>, backend: &mut dyn Backend) -> Result<Option<f64>, Stopper> {
    let Some((a, b)) = setup.canary else {
        return Ok(None);
    };
    backend
        .shared_cache(a, b)
        .map_err(|e| Stopper::Failed(format!("the probe for a shared cache: {e}")))
}

fn write_samples(
    setup: &Setup<'_>,
    folder: &Folder,
    prepared: &Prepared<'_>,
    round: u32,
    measured: &BTreeMap<String, Measurement>,
) -> Result<(), FolderError> {
    for instance in &setup.instances {
        let primary = instance.subject.primary();
        let measurement = measured.get(&instance.name);
        if let Some(measurement) = measurement.filter(|m| m.metrics.contains_key(primary)) {
            folder.samples(prepared.name(), &instance.name, primary, round, measurement)?;
        }
        if let Some(account) = measurement.and_then(|m| m.account.as_ref()) {
            folder.units(prepared.name(), &instance.name, round, account)?;
        }
    }
    Ok(())
}

/// `manifest.json`: what was run, where, with what.
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
    /// As asked for.
    only: &'a [String],
    machine: &'a Inventory,
    machine_hash: String,
    policy_hash: &'a str,
    /// As written.
    experiment: &'a str,
    /// Subject → CPUs.
    placement: BTreeMap<&'a str, String>,
    /// Configuration → its policy, the subjects' CPUs filled in.
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
            machine_hash: hash(&json(heading.machine)),
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
