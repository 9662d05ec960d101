//! Collects what every cell measured, and forms the result of it.

use std::collections::BTreeMap;

use quell_plan::inventory::Inventory;
use quell_plan::{Plan, Promise, Setting, Step};
use quell_policy::experiment::Configuration;
use quell_policy::workload::{Pages, Workload};
use quell_record::attribution::{Account, Attribution, Stop, Sum, reference};
use quell_record::events::COMPARE_SCHEMA;
use quell_record::measurement::Measurement;
use quell_record::result::{
    CellFailure, CompareResult, ConfigurationResult, Figures, Frontier, PromiseLost, PromiseResult,
    Reaction, SubjectResult, Timing, Totals,
};
use quell_record::worst::{self, Worst};
use quell_types::ids::PromiseId;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::stats::Better;
use quell_types::stats::{percentile, sorted};
use quell_types::units::Nanos;

use crate::aggregate::{Round, Rules, figures, tidy};
use crate::expect;
use crate::published;
use crate::resume::Done;
use crate::setup::Setup;
use crate::throttling::Throttling;

/// Metric: bytes counted by a generator ÷ the limit of its group.
pub(crate) const ACHIEVED: &str = "achieved_of_cap";
/// Metric of a periodic task, per release: 1 if its job was late or never began, else 0.
const MISSES: &str = "misses";
/// A limit held when its group never moved more than this multiple of it (RECORD-02,
/// `docs/specification/program.md`).
const HELD: f64 = 1.05;

fn reaction(late: &[f64]) -> Option<Reaction> {
    let late = sorted(late);
    Some(Reaction {
        samples: late.len() as u64,
        p50_ns: tidy(percentile(&late, 50.0)?),
        p99_ns: tidy(percentile(&late, 99.0)?),
        max_ns: *late.last()?,
    })
}

/// What one subject measured in one cell.
pub(crate) struct Taken {
    shared: Option<bool>,
    pub(crate) metrics: BTreeMap<String, Round>,
    /// Its worst units in this cell, worst first.
    worst: Vec<Worst>,
    accounted: Option<Accounted>,
}

/// What attribution needs of a cell, kept until its round's baseline is known.
struct Accounted {
    values: Vec<f64>,
    account: Account,
    /// Stops of the subject's own group only.
    stops: Vec<Stop>,
}

/// Everything measured so far, over all rounds.
pub(crate) struct Collected<'s> {
    pub(crate) setup: &'s Setup<'s>,
    /// (configuration, subject) → round → what was measured.
    taken: BTreeMap<(usize, usize), Vec<Option<Taken>>>,
    throttling: BTreeMap<usize, Throttling>,
    cells: BTreeMap<usize, u32>,
    /// (configuration, promise) → in how many cells it was worth less than planned, and how much.
    lost: BTreeMap<(usize, PromiseId), PromiseLost>,
    pub(crate) failures: Vec<CellFailure>,
    pub(crate) rounds: u32,
    pub(crate) interrupted: Option<String>,
}

/// The parts of a result that only the caller knows.
pub(crate) struct Heading<'a> {
    pub(crate) machine: &'a Inventory,
    pub(crate) backend: &'a str,
    pub(crate) timing: Timing,
    pub(crate) seed: u64,
    pub(crate) policy_hash: String,
}

impl<'s> Collected<'s> {
    pub(crate) fn new(setup: &'s Setup<'s>) -> Self {
        Self {
            setup,
            taken: BTreeMap::new(),
            throttling: BTreeMap::new(),
            cells: BTreeMap::new(),
            lost: BTreeMap::new(),
            failures: Vec::new(),
            rounds: 0,
            interrupted: None,
        }
    }

    /// Adds one cell of the current round.
    pub(crate) fn take(&mut self, configuration: usize, done: Done) {
        let (setup, shared, measured) = (self.setup, done.shared, &done.measured);
        *self.cells.entry(configuration).or_default() += 1;
        for lost in done.lost {
            let of = self
                .lost
                .entry((configuration, lost.id))
                .or_insert(PromiseLost {
                    cells: 0,
                    level: lost.level,
                    because: lost.because.clone(),
                });
            of.cells += 1;
            if lost.level < of.level {
                (of.level, of.because) = (lost.level, lost.because);
            }
        }
        let mut stops: Vec<Stop> = Vec::new();
        if let Some(mut new) = done.throttling {
            stops = std::mem::take(&mut new.stops);
            self.throttling.entry(configuration).or_default().add(new);
        }
        let prepared = setup.prepared.get(configuration);
        let achieved = prepared
            .and_then(|p| p.plan.as_ref().ok().map(|plan| (p.configuration, plan)))
            .map(|(configuration, plan)| achieved(setup, configuration, plan, measured))
            .unwrap_or_default();
        for (index, instance) in setup.instances.iter().enumerate() {
            let Some(measurement) = measured.get(&instance.name) else {
                continue;
            };
            let mut metrics: BTreeMap<String, Round> = measurement
                .metrics
                .iter()
                .filter_map(|(name, windows)| Some((name.clone(), Round::of(windows)?)))
                .collect();
            let group = prepared.map_or(instance.group, |p| p.configuration.group(instance));
            if let Some(round) = achieved.get(group).and_then(|r| Round::of(&[*r])) {
                metrics.insert(ACHIEVED.to_owned(), round);
            }
            let run = prepared.and_then(|p| p.configuration.run(instance));
            let worst = if matches!(run, Some(Workload::Periodic { passes: 1, .. })) {
                let primary = instance.subject.primary();
                let better = instance.subject.better(primary).unwrap_or(Better::Lower);
                let round = self.rounds.saturating_sub(1);
                worst::of_round(&measurement.metrics, primary, better, round)
            } else {
                Vec::new()
            };
            let rounds = self.taken.entry((configuration, index)).or_default();
            rounds.resize_with(self.rounds as usize, || None);
            if let Some(last) = rounds.last_mut() {
                let values = measurement.metrics.get(instance.subject.primary());
                let accounted = values
                    .zip(measurement.account.as_ref())
                    .map(|(v, a)| Accounted {
                        values: v.clone(),
                        account: a.clone(),
                        stops: stops
                            .iter()
                            .filter(|s| s.group == *group)
                            .cloned()
                            .collect(),
                    });
                *last = Some(Taken {
                    shared,
                    metrics,
                    worst,
                    accounted,
                });
            }
        }
    }

    /// The result of everything added so far.
    pub(crate) fn result(&self, heading: Heading<'_>) -> CompareResult {
        let experiment = self.setup.experiment;
        let configurations: Vec<ConfigurationResult> = (0..self.setup.prepared.len())
            .filter_map(|index| self.configuration(index, heading.seed))
            .collect();
        CompareResult {
            schema: COMPARE_SCHEMA.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            experiment: experiment.name.clone(),
            title: experiment.title.clone(),
            backend: heading.backend.to_owned(),
            timing: heading.timing,
            seed: heading.seed,
            machine: heading.machine.clone(),
            policy_hash: heading.policy_hash,
            confidence: experiment.measure.confidence,
            baseline: experiment.baseline().map(str::to_owned),
            frontier: experiment
                .measure
                .frontier
                .clone()
                .map(|(protected, pays)| Frontier { protected, pays }),
            rounds: self.rounds,
            rounds_shared: self.rounds_shared(|_| true),
            interrupted: self.interrupted.clone(),
            expectations: expect::rows(&experiment.expects, &configurations),
            published: published::rows(
                experiment,
                &configurations,
                heading.backend,
                heading.seed,
                &|configuration, subject, metric| self.rounds_of(configuration, subject, metric),
            ),
            configurations,
            failures: self.failures.clone(),
        }
    }

    /// In how many rounds every cell of the wanted configurations shared a cache. `None` if no cell
    /// could measure it.
    fn rounds_shared(&self, wanted: impl Fn(usize) -> bool) -> Option<u32> {
        let cells: Vec<&Vec<Option<Taken>>> = self
            .taken
            .iter()
            .filter(|((configuration, _), _)| wanted(*configuration))
            .map(|(_, rounds)| rounds)
            .collect();
        let told = cells
            .iter()
            .any(|rounds| rounds.iter().flatten().any(|t| t.shared.is_some()));
        let shared = (0..self.rounds as usize).filter(|round| {
            let mut here = cells
                .iter()
                .filter_map(|rounds| rounds.get(*round)?.as_ref())
                .peekable();
            here.peek().is_some() && here.all(|t| t.shared == Some(true))
        });
        told.then(|| u32::try_from(shared.count()).unwrap_or(u32::MAX))
    }

    fn configuration(&self, index: usize, seed: u64) -> Option<ConfigurationResult> {
        let prepared = self.setup.prepared.get(index)?;
        let plan = prepared.plan.as_ref();
        let rounds = (0..self.rounds as usize).filter(|round| {
            (0..self.setup.instances.len()).any(|s| self.at(index, s, *round).is_some())
        });
        let rounds = u32::try_from(rounds.count()).unwrap_or(u32::MAX);
        let subjects: Vec<SubjectResult> = if plan.is_ok() {
            let instances = self.setup.instances.iter().enumerate();
            instances
                .filter(|(_, instance)| prepared.configuration.has(instance))
                .filter_map(|(subject, _)| self.subject(index, subject, seed))
                .collect()
        } else {
            Vec::new()
        };
        let failed = self
            .failures
            .iter()
            .filter(|f| f.configuration == prepared.name())
            .count();
        let throttling = self.throttling.get(&index);
        let normalized: Option<Vec<f64>> = subjects.iter().map(|s| s.figures.normalized).collect();
        let together = self.together(index, seed).unwrap_or_default();
        let figure = |name: &str| together.figures.get(name).and_then(|ratio| ratio.value);
        let intervals = together.figures.iter();
        let intervals = intervals.filter_map(|(name, ratio)| Some((name.clone(), ratio.ci95?)));
        let totals = Totals {
            avg_ipc: figure("avg_ipc"),
            hm_weighted_ipc: figure("hm_weighted_ipc"),
            stp: figure("stp"),
            unfairness: figure("unfairness"),
            turnaround_s: figure("turnaround_s"),
            last_s: figure("last_s"),
            ci95: intervals.collect(),
            against: together.against,
            cells: self.cells.get(&index).copied().unwrap_or(0),
            failed: u32::try_from(failed).ok().filter(|n| *n > 0),
            normalized_sum: normalized
                .filter(|n| !n.is_empty() && !prepared.configuration.alone)
                .map(|n| tidy(n.iter().sum())),
            overflows: throttling.map(|t| t.overflows),
            throttles: throttling.map(|t| t.throttles),
            throttled_ns: throttling.map(|t| t.throttled_ns),
            pooled: throttling.and_then(|t| t.pooled),
            reaction_user: throttling.and_then(|t| reaction(&t.reactions_user)),
            reaction_kernel: throttling.and_then(|t| reaction(&t.reactions_kernel)),
        };
        let promises = plan
            .map(|plan| self.promises(index, plan))
            .unwrap_or_default();
        Some(ConfigurationResult {
            name: prepared.name().to_owned(),
            family: prepared.configuration.family.clone(),
            cap: prepared.configuration.cap.clone(),
            axes: prepared.configuration.axes.clone(),
            mechanisms: plan.map(mechanisms).unwrap_or_default(),
            guarantee: plan.ok().map(|_| guarantee(&promises)),
            promises,
            refused: plan.err().cloned().unwrap_or_default(),
            rounds,
            rounds_shared: self.rounds_shared(|c| c == index),
            subjects,
            totals,
        })
    }

    pub(crate) fn at(&self, configuration: usize, subject: usize, round: usize) -> Option<&Taken> {
        self.taken
            .get(&(configuration, subject))?
            .get(round)?
            .as_ref()
    }

    /// One metric of one subject, with an entry per round.
    fn column(
        &self,
        configuration: usize,
        subject: usize,
        metric: &str,
        keep: impl Fn(&Taken) -> bool,
    ) -> Vec<Option<&Round>> {
        (0..self.rounds as usize)
            .map(|round| {
                let taken = self.at(configuration, subject, round)?;
                taken.metrics.get(metric).filter(|_| keep(taken))
            })
            .collect()
    }

    /// What every round found of one metric, by names; empty where there is no such cell.
    fn rounds_of(&self, configuration: &str, subject: &str, metric: &str) -> Vec<Option<Round>> {
        let mut prepared = self.setup.prepared.iter();
        let mut instances = self.setup.instances.iter();
        let configuration = prepared.position(|p| p.name() == configuration);
        let cell = configuration.zip(instances.position(|i| i.name == subject));
        cell.map_or_else(Vec::new, |(c, s)| {
            let column = self.column(c, s, metric, |_| true);
            column.into_iter().map(|round| round.cloned()).collect()
        })
    }

    fn subject(&self, configuration: usize, index: usize, seed: u64) -> Option<SubjectResult> {
        let instance = self.setup.instances.get(index)?;
        let subject = instance.subject;
        let baseline = self.setup.experiment.baseline();
        let prepared = &self.setup.prepared;
        let runs = |c: usize| prepared.get(c).map(|p| p.configuration.run(instance));
        let named = prepared.iter().position(|p| Some(p.name()) == baseline);
        // A subject that runs something else under the baseline cannot be compared with it. The
        // same work in pages of another size counts as another only where the experiment does not
        // name its baseline.
        let stated = self.setup.experiment.measure.baseline.is_some();
        let work = |c: usize| {
            let run = runs(c)??;
            Some(if stated {
                run.clone().in_pages(Pages::Base)
            } else {
                run.clone()
            })
        };
        let baseline = named.filter(|b| work(*b) == work(configuration));
        let asked = named.and_then(|b| slower(runs(b)??, runs(configuration)??));
        let form = |metric: &str, keep: &dyn Fn(&Taken) -> bool| -> Figures {
            let rules = Rules {
                better: subject.better(metric),
                confidence: self.setup.experiment.measure.confidence,
                seed,
            };
            let solo = |b| self.column(b, index, metric, |_| true);
            let rounds = self.column(configuration, index, metric, keep);
            match (baseline, asked, named) {
                (Some(b), ..) => figures(&rounds, &solo(b), rules),
                (None, Some(rate), Some(b)) if metric == subject.primary() => {
                    let paced: Vec<Option<Round>> = solo(b)
                        .into_iter()
                        .map(|r| r.map(|r| r.at_most(rate)))
                        .collect();
                    let paced: Vec<Option<&Round>> = paced.iter().map(Option::as_ref).collect();
                    figures(&rounds, &paced, rules)
                }
                _ => figures(&rounds, &[], rules),
            }
        };
        let primary = subject.primary();
        let shared = form(primary, &|taken| taken.shared == Some(true));
        let names: std::collections::BTreeSet<&String> = self
            .taken
            .get(&(configuration, index))
            .into_iter()
            .flatten()
            .flatten()
            .flat_map(|t| t.metrics.keys())
            .filter(|name| *name != primary)
            .collect();
        let better = subject.better(primary).unwrap_or(Better::Lower);
        let taken = self
            .taken
            .get(&(configuration, index))
            .into_iter()
            .flatten();
        let worst = taken.flatten().flat_map(|taken| &taken.worst).cloned();
        Some(SubjectResult {
            name: instance.name.clone(),
            role: subject.role,
            cpus: self
                .setup
                .places
                .get(&instance.name)
                .map(|cpus| cpus.iter().collect())
                .unwrap_or_default(),
            metric: primary.to_owned(),
            better,
            figures: form(primary, &|_| true),
            shared: shared.rounds.is_some().then_some(shared),
            metrics: names
                .into_iter()
                .map(|name| (name.clone(), form(name, &|_| true)))
                .collect(),
            attribution: baseline.and_then(|b| self.attribution(configuration, index, b)),
            worst: worst::of_all(worst, better),
        })
    }

    /// Why a critical subject's units were late, compared with the same round of the baseline.
    fn attribution(
        &self,
        configuration: usize,
        index: usize,
        baseline: usize,
    ) -> Option<Attribution> {
        let subject = self.setup.instances.get(index)?.subject;
        let primary = subject.primary();
        let better = subject.better(primary)?;
        let of = |configuration, round| self.at(configuration, index, round)?.accounted.as_ref();
        let mut sum = Sum::default();
        for round in 0..self.rounds as usize {
            if let (Some(a), Some(solo)) = (of(configuration, round), of(baseline, round))
                && let Some(reference) = reference(&solo.values, &solo.account)
            {
                sum.add(&a.values, reference, better, &a.account, &a.stops);
            }
        }
        sum.attribution()
    }

    fn promises(&self, configuration: usize, plan: &Plan) -> Vec<PromiseResult> {
        plan.numbered()
            .map(|(id, held)| {
                // The metric that shows whether the promise held, and its largest value where it
                // did.
                let witness = match held.promise {
                    Promise::LimitBandwidth { .. } => Some((ACHIEVED, HELD)),
                    // The share of late units, as the generator itself counts them.
                    Promise::Deadline {
                        deadline,
                        percentile,
                    } => self
                        .counts_late(configuration, &held.group, deadline)
                        .then(|| (MISSES, 1.0 - percentile.as_f64())),
                    _ => None,
                };
                let witness = witness
                    .map(|(metric, most)| {
                        (self.over_rounds(configuration, &held.group, metric), most)
                    })
                    .filter(|(rounds, _)| !rounds.is_empty());
                PromiseResult {
                    group: held.group.clone(),
                    promise: held.promise.clone(),
                    level: held.level,
                    held: witness.map(|(rounds, most)| rounds.iter().all(|r| *r <= most)),
                    lost: self.lost.get(&(configuration, id)).cloned(),
                }
            })
            .collect()
    }

    /// Whether the group's generators are periodic tasks with this deadline of their own.
    fn counts_late(&self, configuration: usize, group: &str, wanted: Option<Nanos>) -> bool {
        let Some(prepared) = self.setup.prepared.get(configuration) else {
            return false;
        };
        let configuration = prepared.configuration;
        let mut own = self.setup.instances.iter();
        own.any(|i| {
            let run = configuration.run(i).filter(|_| configuration.group(i) == group);
            matches!(run, Some(Workload::Periodic { period, deadline, .. }) if Some(deadline.unwrap_or(*period)) == wanted)
        })
    }

    /// The mean of a metric of a group's first subject, round by round.
    fn over_rounds(&self, configuration: usize, group: &str, metric: &str) -> Vec<f64> {
        let Some(prepared) = self.setup.prepared.get(configuration) else {
            return Vec::new();
        };
        let mut instances = self.setup.instances.iter();
        let Some(member) = instances.position(|i| prepared.configuration.group(i) == group) else {
            return Vec::new();
        };
        self.column(configuration, member, metric, |_| true)
            .into_iter()
            .flatten()
            .map(|round| round.mean)
            .collect()
    }
}

/// What a configuration guarantees: the lowest level that any of its promises had at its worst
/// moment. `none` without promises.
fn guarantee(promises: &[PromiseResult]) -> Level {
    let least = promises.iter().map(PromiseResult::least).min();
    least.unwrap_or(Level::None)
}

/// The mechanisms that a plan uses, in the order of the design. Two steps do not count: the bound
/// on memory that an experiment puts around all configurations, and a cgroup in which tasks are
/// gathered, which restricts nothing by itself.
fn mechanisms(plan: &Plan) -> Vec<Mechanism> {
    let own = |s: &&Step| !matches!(s.set, Setting::BoundMemory { .. } | Setting::Gather { .. });
    let used = |m: &Mechanism| {
        plan.steps
            .iter()
            .filter(own)
            .any(|s| s.mechanisms().contains(m))
    };
    Mechanism::ALL.into_iter().filter(used).collect()
}

/// Group → bytes its generators moved ÷ what its limit grants, where all its members count their
/// bytes. Bytes measured at memory are preferred to those a program moved: a buffer in a cache
/// costs no memory bandwidth.
fn achieved(
    setup: &Setup<'_>,
    configuration: &Configuration,
    plan: &Plan,
    measured: &BTreeMap<String, Measurement>,
) -> BTreeMap<String, f64> {
    let mut all = BTreeMap::new();
    for held in &plan.promises {
        let Promise::LimitBandwidth { rate } = held.promise else {
            continue;
        };
        let rates: Option<Vec<f64>> = setup
            .instances
            .iter()
            .filter(|i| configuration.group(i) == held.group)
            .map(|i| {
                let m = measured.get(&i.name).filter(|_| i.subject.run.is_some())?;
                (m.duration_ns > 0)
                    .then(|| m.memory_bytes.unwrap_or(m.bytes) as f64 / m.duration_ns as f64 * 1e9)
            })
            .collect();
        if let Some(rates) = rates.filter(|r| !r.is_empty() && rate.0 > 0) {
            all.insert(
                held.group.clone(),
                rates.iter().sum::<f64>() / rate.0 as f64,
            );
        }
    }
    all
}

/// The target in 10^6 bytes per second where `run` is `baseline` at a lower rate; else `None`. Such
/// a run is compared with this target, or with what the baseline reached where that is less.
fn slower(baseline: &Workload, run: &Workload) -> Option<f64> {
    let rate = run.rate()?;
    let same = baseline.clone().at(Some(rate)) == *run;
    (same && baseline.rate().is_none_or(|r| r > rate)).then(|| rate.0 as f64 / 1e6)
}
