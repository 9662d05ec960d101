//! Whole experiments on the scripted machine: what the tests share.
//!
//! - [`result`]: what is found and reported.
//! - [`running`]: what is done, also after failures, and the record of it.
//! - [`side_by_side`]: several machines.
#![expect(clippy::cast_sign_loss, reason = "rates are positive")]

use quell_control::config::Regulation;
use quell_plan::{GroupPlan, Held, Loops, Promise, Setting, Step};
use quell_policy::{Bandwidth, CpusWanted};
use quell_record::measurement::Measurement;
use quell_record::result::{CompareResult, ConfigurationResult};
use quell_types::ids::StepId;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::options::Split;
use quell_types::units::{Lines, Nanos, Rate, Share};

use super::*;
use crate::fake::{Fake, Scene, machine};

mod result;
mod running;
mod side_by_side;

const PEAK: f64 = 10e9;

/// A planner in miniature: confines groups that name CPUs, and regulates or limits on request.
fn plan(policy: &Policy, machine: &Inventory) -> Result<Plan, Vec<Refusal>> {
    let mut plan = Plan {
        policy: policy.name.clone(),
        groups: Vec::new(),
        steps: Vec::new(),
        promises: Vec::new(),
        notes: Vec::new(),
        loops: Loops::default(),
        acts: Vec::new(),
        assumed: None,
    };
    for (name, group) in &policy.groups {
        let Some(CpusWanted::List(cpus)) = &group.cpus else {
            continue;
        };
        let mut step = |mechanism, set| {
            let id = StepId(u32::try_from(plan.steps.len() + 1).unwrap());
            plan.steps.push(Step {
                id,
                group: Some(name.clone()),
                mechanism,
                set,
                because: "the policy asks for it".into(),
                assumed: false,
            });
            id
        };
        let confined = step(
            Mechanism::Cores,
            Setting::Confine {
                cpus: cpus.clone(),
                mems: [0].into_iter().collect(),
                exclusive: false,
            },
        );
        let mut promises = vec![(
            Promise::Cpus { cpus: cpus.clone() },
            Level::Enforced,
            confined,
        )];
        if let Some(Bandwidth::Share(share)) = group.limit.bandwidth {
            if share == Share::percent(70) {
                return Err(vec![Refusal {
                    key: format!("group.{name}.limit.bandwidth"),
                    why: "70% cannot be metered here".into(),
                    remedies: vec!["ask for less".into()],
                    ..Refusal::default()
                }]);
            }
            let rate = machine.sustainable(cpus).unwrap().part(share);
            let regulation = Regulation {
                cpus: cpus.clone(),
                budget: Lines::at(rate, Nanos::millis(1)),
                period: Nanos::millis(1),
                meter: quell_control::config::Meter::Time,
                peak: Rate(10_000_000_000),
                pooling: None,
                split: Split::Even,
                least: Lines(0),
            };
            let id = step(Mechanism::Bandwidth, Setting::Regulate(regulation));
            promises.push((Promise::LimitBandwidth { rate }, Level::Estimated, id));
        }
        if let Some(share) = group.limit.cpu_time {
            let period = Nanos::millis(100);
            let id = step(Mechanism::CpuMax, Setting::CpuMax { share, period });
            promises.push((Promise::LimitCpuTime { share }, Level::Enforced, id));
        }
        plan.groups.push(GroupPlan {
            name: name.clone(),
            cpus: cpus.clone(),
            matching: Vec::new(),
        });
        plan.promises
            .extend(promises.into_iter().map(|(promise, level, id)| Held {
                group: name.clone(),
                promise,
                level,
                held_by: vec![id],
                weakest: None,
                assumed: false,
            }));
    }
    Ok(plan)
}

/// The part of its full rate that the neighbour has, and how much of that hurts the victim.
fn load(scene: &Scene<'_>) -> (f64, f64) {
    scene
        .steps
        .iter()
        .find_map(|step| match &step.set {
            Setting::Regulate(r) => {
                let part = r.budget.0 as f64 * 64.0 * 1000.0 / PEAK;
                Some((part, part))
            }
            Setting::CpuMax { share, .. } => Some((share.as_f64(), share.as_f64().sqrt())),
            _ => None,
        })
        .unwrap_or((1.0, 1.0))
}

/// 200 equal windows of a generator that moves so many bytes per second.
fn steady(scene: &Scene<'_>, metric: &str, value: f64, bytes_per_s: f64) -> Measurement {
    Measurement {
        ended_ns: Vec::new(),
        account: None,
        metrics: [(metric.to_owned(), vec![value; 200])].into(),
        window_ns: 1_000_000,
        bytes: (bytes_per_s * scene.duration.as_secs_f64()) as u64,
        duration_ns: scene.duration.0,
        begun: None,
        memory_bytes: None,
    }
}

/// A machine on which a neighbour at full rate turns 15 ns of a list into 150. It drifts from cell
/// to cell.
fn fake() -> Fake {
    drifting(0.01)
}

/// The same machine with this drift from cell to cell.
fn drifting(part: f64) -> Fake {
    let mut fake = Fake::new();
    fake.generator("victim", move |scene| {
        let hurt = if scene.beside.is_empty() {
            0.0
        } else {
            load(scene).1
        };
        let drift = 1.0 + f64::from(scene.cell % 5) * part;
        steady(scene, "latency_ns", (15.0 + 135.0 * hurt) * drift, 0.0)
    });
    fake.generator("neighbour", |scene| {
        let rate = PEAK * load(scene).0 * 0.99;
        steady(scene, "bandwidth_mb_s", rate / 1e6, rate)
    });
    fake.report_throttling();
    fake
}

#[derive(Default)]
struct Heard {
    cells: Vec<String>,
    notes: Vec<String>,
    total: u32,
    done: u32,
}

impl Progress for Heard {
    fn begin(&mut self, cells: u32) {
        self.total = cells;
    }
    fn cell(&mut self, cell: &str) {
        self.cells.push(cell.to_owned());
    }
    fn done(&mut self, done: u32, _: u32) {
        self.done = done;
    }
    fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }
}

/// The built-in experiment, as written.
fn text() -> &'static str {
    Experiment::builtin("neighbour").unwrap()
}

fn neighbour() -> Experiment {
    Experiment::parse(text(), "neighbour.toml").unwrap()
}

fn options(rounds: u32, out: Option<&Path>) -> Options<'_> {
    Options {
        backend: "linux",
        timing: Timing::Simulated,
        seed: None,
        rounds: Some(rounds),
        only: &[],
        resume: None,
        no_huge_pages: None,
        out,
        now_unix_s: 0,
        command_line: "quell compare neighbour",
        experiment_text: text(),
        html: Some(&|record| format!("<p>{}</p>", record.name)),
    }
}

/// Runs the built-in experiment on two CPUs.
fn attempt(
    fake: &mut Fake,
    options: &Options<'_>,
    progress: &mut dyn Progress,
) -> Result<Comparison, CompareError> {
    run(
        &neighbour(),
        Machines::One(fake),
        &machine(2),
        &plan,
        options,
        progress,
    )
}

fn compare(fake: &mut Fake, rounds: u32) -> (CompareResult, Heard) {
    let mut heard = Heard::default();
    let out = attempt(fake, &options(rounds, None), &mut heard).unwrap();
    assert!(fake.clean());
    (out.result, heard)
}

fn of<'r>(result: &'r CompareResult, name: &str) -> &'r ConfigurationResult {
    result.configuration(name).unwrap()
}
