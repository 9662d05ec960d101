//! The rounds of an experiment, by the rules of fair comparison.
//!
//! - Every round runs every cell once, in an order shuffled from the seed. So drift hits all
//!   configurations alike.
//! - Whether the subjects' CPUs shared a cache is measured by the backend's own probe before and
//!   after each cell, never by the subjects.
//! - A cell that fails is tried once more, then noted as failed. The experiment continues.
//! - Each cell is undone before the next one on the same machine, whatever happens.
//! - Cells are taken in and recorded in their order, wherever they ran.

use std::collections::BTreeMap;

use quell_record::backend::{Backend, HoldOptions};
use quell_record::events::Event;
use quell_record::measurement::Measurement;
use quell_record::result::CellFailure;
use quell_record::standing::Standing;
use quell_types::rng::Rng;
use quell_types::units::Nanos;

use crate::cell::Cell;
use crate::collect::Collected;
use crate::compare::{CompareError, Progress};
use crate::drive::{DriveError, Ended, drive};
use crate::folder::{Folder, FolderError, fnv1a64};
use crate::resume::{Done, Lost, Which};
use crate::setup::{Prepared, Setup};
use crate::side_by_side::side_by_side;
use crate::sink::Sink;
use crate::throttling::Throttling;

/// Two CPUs share a cache where the canary's score is at least this.
const SHARED: f64 = 0.5;

/// The machines that cells are run on.
pub enum Machines<'m> {
    /// A single machine: cells run one after the other, and events are recorded as they come.
    One(&'m mut dyn Backend),
    /// One or more that are alike, on which a cell is a function of its number
    /// ([`Backend::begin`]). Cells run side by side, each machine on its own thread. The record is
    /// the same for any number of machines.
    Alike(Vec<&'m mut (dyn Backend + Send)>),
}

impl Machines<'_> {
    /// The time on the first machine's clock.
    pub(crate) fn now(&self) -> Nanos {
        match self {
            Self::One(backend) => backend.now(),
            Self::Alike(all) => all.first().map_or(Nanos(0), |backend| backend.now()),
        }
    }
}

/// A cell, in the order in which cells are run.
pub(crate) struct Place {
    /// The index of its configuration.
    index: usize,
    /// The index of the subject that runs alone. `None`: all run.
    alone: Option<usize>,
    which: Which,
    /// How many rounds there are in all.
    of: u32,
    /// Round, configuration and subject, as shown to the user.
    pub(crate) name: String,
}

impl Place {
    /// Identifies the cell within the experiment, whatever else is chosen to be run.
    fn number(&self) -> u64 {
        let (round, configuration, subject) = &self.which;
        fnv1a64(&format!("{round}\n{configuration}\n{subject:?}"))
    }
}

/// Where the next cell's outcome comes from.
pub(crate) trait Source {
    /// Runs the `at`-th cell, or waits for it. All its times are on the record's clock.
    fn next(
        &mut self,
        at: usize,
        cell: &Place,
        folder: &mut Option<Folder>,
        progress: &mut dyn Progress,
    ) -> Result<Taken, Stopper>;
}

/// The rounds that are to be run.
pub(crate) struct Rounds<'r, 's> {
    pub(crate) setup: &'s Setup<'s>,
    pub(crate) seed: u64,
    pub(crate) rounds: u32,
    /// Cells that the resumed run had measured.
    pub(crate) before: BTreeMap<Which, Done>,
    pub(crate) collected: &'r mut Collected<'s>,
    pub(crate) folder: &'r mut Option<Folder>,
    pub(crate) progress: &'r mut dyn Progress,
}

impl Rounds<'_, '_> {
    /// Runs them. Returns the reason if a cell could not be undone, so that no further one may run.
    pub(crate) fn run(self, machines: Machines<'_>) -> Result<Option<String>, CompareError> {
        let cells = self.cells();
        let setup = self.setup;
        match machines {
            Machines::One(backend) => self.all(&cells, &mut Direct { setup, backend }),
            Machines::Alike(machines) => {
                let to_run = (0..cells.len()).filter(|at| {
                    let cell = cells.get(*at);
                    cell.is_some_and(|c| !self.before.contains_key(&c.which))
                });
                let to_run = to_run.collect();
                let begun = machines.first().map_or(Nanos(0), |backend| backend.now());
                side_by_side(setup, &cells, machines, to_run, begun, |source| {
                    self.all(&cells, source)
                })
            }
        }
    }

    /// All cells of all rounds, in order.
    fn cells(&self) -> Vec<Place> {
        let mut rng = Rng::new(self.seed);
        let of_a_round = self.setup.cells();
        let mut cells = Vec::new();
        for round in 0..self.rounds {
            let mut order = of_a_round.clone();
            rng.shuffle(&mut order);
            for (index, alone) in order {
                let Some(prepared) = self.setup.prepared.get(index) else {
                    continue;
                };
                let subject = alone.and_then(|s| self.setup.instances.get(s));
                let subject = subject.map(|i| i.name.clone());
                let (nth, rounds) = (round + 1, self.rounds);
                let mut name = format!("round {nth} of {rounds}, {}", prepared.name());
                if let Some(subject) = &subject {
                    name.push_str(&format!(", {subject}"));
                }
                cells.push(Place {
                    index,
                    alone,
                    which: (round, prepared.name().to_owned(), subject),
                    of: rounds,
                    name,
                });
            }
        }
        cells
    }

    fn all(
        mut self,
        cells: &[Place],
        source: &mut dyn Source,
    ) -> Result<Option<String>, CompareError> {
        let total = u32::try_from(cells.len()).unwrap_or(u32::MAX);
        self.progress.begin(total);
        if !self.before.is_empty() {
            let before = u32::try_from(self.before.len()).unwrap_or(u32::MAX);
            self.progress.resumed(before);
        }
        let mut done = 0;
        for (at, cell) in cells.iter().enumerate() {
            let Some(prepared) = self.setup.prepared.get(cell.index) else {
                continue;
            };
            let (round, configuration, subject) = cell.which.clone();
            let begins = round >= self.collected.rounds;
            if begins && round > 0 && self.progress.enough(round) {
                break;
            }
            self.collected.rounds = round + 1;
            if let Some(before) = self.before.remove(&cell.which) {
                self.take(cell, prepared, before)?;
                done += 1;
                continue;
            }
            self.progress.cell(&cell.name);
            match source.next(at, cell, self.folder, self.progress) {
                Ok(taken) => {
                    let mut new = Done {
                        round,
                        configuration,
                        subject,
                        shared: taken.shared,
                        measured: taken.measured,
                        throttling: taken.throttling,
                        lost: taken.lost,
                    };
                    if let Some(folder) = self.folder.as_ref() {
                        new.shift(|at| folder.since(at));
                        folder.done(&new)?;
                    }
                    self.take(cell, prepared, new)?;
                }
                Err(Stopper::Failed(error)) => {
                    self.progress
                        .note(&format!("{}: {error}; given up", cell.name));
                    self.collected.failures.push(CellFailure {
                        configuration,
                        subject,
                        round,
                        error,
                    });
                }
                Err(Stopper::Ended(why)) => {
                    self.collected.interrupted = Some(why);
                    return Ok(None);
                }
                Err(Stopper::NotUndone(why)) => {
                    self.collected.interrupted = Some(why.clone());
                    return Ok(Some(why));
                }
            }
            done += 1;
            self.progress.done(done, total);
            if let Some(folder) = self.folder {
                folder.check()?;
            }
        }
        Ok(None)
    }

    fn take(
        &mut self,
        cell: &Place,
        prepared: &Prepared<'_>,
        done: Done,
    ) -> Result<(), FolderError> {
        if let Some(folder) = self.folder.as_ref() {
            write_samples(self.setup, folder, prepared, done.round, &done.measured)?;
        }
        self.collected.take(cell.index, done);
        Ok(())
    }
}

/// Runs cells on one machine, recorded as they come.
struct Direct<'d, 's> {
    setup: &'d Setup<'s>,
    backend: &'d mut dyn Backend,
}

impl Source for Direct<'_, '_> {
    fn next(
        &mut self,
        _: usize,
        cell: &Place,
        folder: &mut Option<Folder>,
        progress: &mut dyn Progress,
    ) -> Result<Taken, Stopper> {
        attempts(self.setup, cell, self.backend, folder, &mut |note| {
            progress.note(note);
        })
    }
}

/// What one cell measured.
pub(crate) struct Taken {
    pub(crate) shared: Option<bool>,
    pub(crate) measured: BTreeMap<String, Measurement>,
    pub(crate) throttling: Option<Throttling>,
    pub(crate) lost: Vec<Lost>,
}

/// Why a cell has no result.
pub(crate) enum Stopper {
    /// It failed and was undone. Another attempt may succeed.
    Failed(String),
    /// The experiment is to end here, for this reason.
    Ended(String),
    /// It could not be undone. Nothing further may run.
    NotUndone(String),
}

impl Stopper {
    pub(crate) fn signal(number: i32) -> Self {
        Self::Ended(format!("stopped by signal {number}"))
    }
}

/// Runs a cell, and once more if it fails.
pub(crate) fn attempts(
    setup: &Setup<'_>,
    cell: &Place,
    backend: &mut dyn Backend,
    sink: &mut dyn Sink,
    note: &mut dyn FnMut(&str),
) -> Result<Taken, Stopper> {
    match attempt(setup, cell, backend, sink) {
        Err(Stopper::Failed(why)) => {
            note(&format!("{}: {why}; trying once more", cell.name));
            attempt(setup, cell, backend, sink)
        }
        other => other,
    }
}

fn attempt(
    setup: &Setup<'_>,
    place: &Place,
    backend: &mut dyn Backend,
    sink: &mut dyn Sink,
) -> Result<Taken, Stopper> {
    let prepared = setup.prepared.get(place.index);
    let Some((prepared, plan)) = prepared.and_then(|p| Some((p, p.plan.as_ref().ok()?))) else {
        return Err(Stopper::Failed("it was refused".to_owned()));
    };
    backend
        .begin(place.number(), place.which.0)
        .map_err(|e| Stopper::Failed(e.to_string()))?;
    let (round, configuration, subject) = place.which.clone();
    sink.put(
        backend.now(),
        &Event::Cell {
            round,
            of: place.of,
            configuration,
            subject,
        },
    );
    let before = canary(setup, backend)?;
    let members = setup.members(prepared.configuration, place.alone);
    let mut cell = Cell::new(members, setup.span).under(plan);
    let how = HoldOptions {
        on_drift: prepared.policy.on_drift,
    };
    let driven = drive(backend, plan, how, &mut cell, sink).map_err(|error| match error {
        DriveError::Failed(why) => Stopper::Failed(why),
        left @ DriveError::NotUndone { .. } => Stopper::NotUndone(left.to_string()),
    })?;
    match driven.ended {
        Ended::Finished => {}
        Ended::Stopped(signal) => return Err(Stopper::signal(signal)),
        Ended::Revoked(why) => return Err(Stopper::Ended(why)),
    }
    let after = canary(setup, backend)?;
    let (measured, throttling) = cell.into_measurements();
    Ok(Taken {
        shared: before.zip(after).map(|(a, b)| a >= SHARED && b >= SHARED),
        measured,
        throttling,
        lost: lost(&driven.standing),
    })
}

/// The promises that were worth less than planned at some moment of a cell.
fn lost(standing: &Standing) -> Vec<Lost> {
    let lost = standing.all().filter_map(|(id, worth)| {
        Some(Lost {
            id,
            level: worth.least,
            because: worth.least_because.clone()?,
        })
    });
    lost.collect()
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
            folder.course(prepared.name(), &instance.name, round, measurement)?;
        }
        if let Some(account) = measurement.and_then(|m| m.account.as_ref()) {
            folder.units(prepared.name(), &instance.name, round, account)?;
        }
    }
    Ok(())
}
