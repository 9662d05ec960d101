//! Which means a policy takes: those that [`choose`] takes, and what memory needs. What the planner
//! refuses on this machine is left out again.
//!
//! Pure.

use std::collections::BTreeSet;

use quell_plan::Plan;
use quell_plan::choose::{Choice, Cores, Known, Mean, Slowdown, Tried, Why, choose};
use quell_plan::inventory::Inventory;
use quell_plan::planner::plan;
use quell_policy::Policy;
use quell_record::demand::{Pressed, Sensitivity};
use quell_types::refusal::{Refusal, Remedy};
use quell_types::units::{Nanos, Rate};

use super::group::Chosen;
use super::text;

/// Page faults per second that wait for a disk, from which on memory is kept.
const FAULTS: f64 = 10.0;

/// What is known of memory as a shared resource.
#[derive(Clone, Debug, PartialEq)]
pub enum Probed {
    /// Nothing: why not.
    No(String),
    /// How much slower a stand-in for the critical program got.
    Found {
        /// What ran in its place.
        stand_in: String,
        /// By resource.
        all: Vec<Sensitivity>,
    },
}

/// What a policy is written from.
#[derive(Clone, Debug)]
pub struct Situation<'a> {
    /// The machine.
    pub machine: &'a Inventory,
    /// Whether Quell runs as root: else the machine seems to offer less than it does.
    pub root: bool,
    /// What to protect.
    pub critical: Chosen,
    /// What may be slowed; empty: everything else.
    pub neighbours: Vec<Chosen>,
    /// CPUs that programs of no group used while all were watched.
    pub unnamed_cpus: f64,
    /// What the probe found.
    pub probed: Probed,
    /// The name of the file that will be written.
    pub file: &'a str,
}

/// The means that are taken. The weight of the neighbours comes by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Setup {
    /// Whether it gets a high weight.
    pub high: bool,
    /// CPUs of its own.
    pub cores: Option<Cores>,
    /// The most that all neighbours together may draw from memory.
    pub limit: Option<Rate>,
    /// Whether the memory that it works on is kept.
    pub memory: bool,
    /// Whether its neighbours are held back while it waits for memory. It comes where memory cannot
    /// be kept.
    pub pressure: bool,
}

impl Setup {
    fn without(self, part: Part) -> Self {
        match part {
            Part::Weight => Self {
                high: false,
                ..self
            },
            Part::Cores => Self {
                cores: None,
                ..self
            },
            Part::Limit => Self {
                limit: None,
                ..self
            },
            Part::Memory => Self {
                memory: false,
                ..self
            },
            Part::Pressure => Self {
                pressure: false,
                ..self
            },
        }
    }
}

/// A part of a setup that can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// `[pressure]`, with `allow` of the neighbours.
    Pressure,
    /// `reserve.memory`.
    Memory,
    /// `limit.bandwidth`.
    Limit,
    /// `cpus`.
    Cores,
    /// `cpu-weight` of the critical group.
    Weight,
}

impl Part {
    /// The part that a refused key belongs to.
    fn of(key: &str) -> Option<Self> {
        let last = |end: &str| key.ends_with(end);
        if last(".cpus") || last(".smt") {
            Some(Self::Cores)
        } else if last(".cpu-weight") {
            Some(Self::Weight)
        } else if key.starts_with("pressure") || last(".allow") {
            Some(Self::Pressure)
        } else if key.contains(".reserve.") {
            Some(Self::Memory)
        } else if key.contains(".limit.") || key.starts_with("regulator") {
            Some(Self::Limit)
        } else {
            None
        }
    }
}

/// Why a part is in the policy, or is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// Of which part.
    pub part: Part,
    /// A sentence or two.
    pub why: String,
}

/// A policy, and what it comes to here.
#[derive(Clone, Debug)]
pub struct Written {
    /// The file.
    pub text: String,
    /// The means.
    pub setup: Setup,
    /// The plan of that file on this machine.
    pub plan: Plan,
}

impl Written {
    /// Whether the plan changes anything here.
    pub fn acts(&self) -> bool {
        !self.plan.steps.is_empty()
    }
}

/// Writes the policy.
///
/// # Errors
/// What the planner refuses even of the policy that asks for nothing.
pub fn write(situation: &Situation<'_>) -> Result<Written, Vec<Refusal>> {
    let (mut setup, mut reasons, mut left_out) = wanted(situation);
    loop {
        let file = |plan| text::policy(situation, setup, &reasons, &left_out, plan);
        match planned(situation, &file(None)) {
            Ok(plan) => {
                let text = file(Some(&plan));
                // What is written is what was planned: the comments are the only difference.
                let plan = planned(situation, &text)?;
                return Ok(Written { text, setup, plan });
            }
            Err(refusals) => {
                let mut dropped = BTreeSet::new();
                for refusal in &refusals {
                    if let Some(part) = Part::of(&refusal.key) {
                        // What the policy would leave out is left out anyway: only what enables it
                        // helps here.
                        let edits = |r: &&Remedy| {
                            !matches!(r, Remedy::Set { .. } | Remedy::LeaveOut { .. })
                        };
                        let enables = refusal.remedies.iter().find(edits);
                        let enables = enables.map(ToString::to_string);
                        let why = text::refused(&refusal.why, enables.as_deref());
                        if setup != setup.without(part) && dropped.insert(part) {
                            left_out.push(Reason { part, why });
                        }
                    }
                }
                let strongest = [
                    Part::Pressure,
                    Part::Memory,
                    Part::Limit,
                    Part::Cores,
                    Part::Weight,
                ];
                let strongest = strongest.into_iter().find(|p| setup != setup.without(*p));
                if let (true, Some(part)) = (dropped.is_empty(), strongest) {
                    let first = refusals.first();
                    let why = first.map_or_else(String::new, |r| text::refused(&r.why, None));
                    left_out.push(Reason { part, why });
                    dropped.insert(part);
                }
                if dropped.is_empty() {
                    return Err(refusals);
                }
                if dropped.contains(&Part::Memory) && !situation.neighbours.is_empty() {
                    setup.pressure = true;
                    reasons.push(instead_of_memory(&situation.critical));
                }
                // What is enough without CPUs of its own.
                let weighs = dropped.contains(&Part::Cores).then(|| weighs(situation));
                setup = dropped
                    .into_iter()
                    .fold(setup, |setup, part| setup.without(part));
                if let Some((true, why)) = weighs {
                    setup.high = true;
                    reasons.extend(why);
                }
            }
        }
    }
}

fn planned(situation: &Situation<'_>, text: &str) -> Result<Plan, Vec<Refusal>> {
    let policy = Policy::parse(text, situation.file).map_err(|problems| {
        let refusal = |p: &dyn std::fmt::Display| Refusal {
            key: "quell".to_owned(),
            why: p.to_string(),
            ..Refusal::default()
        };
        problems.iter().map(|p| refusal(p)).collect::<Vec<_>>()
    })?;
    plan(&policy, situation.machine)
}

/// What is known of the program and its neighbours.
fn known(situation: &Situation<'_>) -> Known {
    let named = situation.neighbours.iter().map(|g| g.figures.cpus());
    let found = match &situation.probed {
        Probed::Found { all, .. } => all.as_slice(),
        Probed::No(_) => &[],
    };
    let slowdown = |pressed: &Pressed| Slowdown {
        found: pressed.slowdown,
        least: lower(pressed),
    };
    let tried = |pressed: &Pressed| {
        Some(Tried {
            rate: Rate::measured(pressed.reached_mb_s? * 1e6),
            slowdown: slowdown(pressed),
        })
    };
    let traffic = ["reads", "writes"].into_iter().filter_map(|name| {
        let pressed = &resource(found, name)?.pressed;
        Some((name.to_owned(), pressed.iter().filter_map(tried).collect()))
    });
    let sibling = resource(found, "sibling").and_then(|s| s.pressed.first());
    Known {
        root: situation.root,
        named: !situation.neighbours.is_empty(),
        threads: Some(situation.critical.figures.busy()),
        waited: situation.critical.figures.waited(),
        named_cpus: Some(named.sum()),
        unnamed_cpus: Some(situation.unnamed_cpus),
        sibling: sibling.map(slowdown),
        traffic: traffic.collect(),
    }
}

/// The strongest that is needed, why, and what is not taken although it would be.
fn wanted(situation: &Situation<'_>) -> (Setup, Vec<Reason>, Vec<Reason>) {
    let choice = choose(situation.machine, &known(situation));
    let mut setup = Setup {
        high: choice.means.high,
        cores: choice.means.cores,
        limit: choice.means.limit,
        ..Setup::default()
    };
    let (mut reasons, left_out) = said(situation, &choice);
    let critical = &situation.critical;
    if faults(critical) >= FAULTS {
        setup.memory = true;
        let why = format!("{} Its memory is kept.", faulted(critical));
        reasons.push(Reason {
            part: Part::Memory,
            why,
        });
    }
    (setup, reasons, left_out)
}

/// Whether a high weight is what is left without CPUs of its own, and why.
fn weighs(situation: &Situation<'_>) -> (bool, Option<Reason>) {
    let known = Known {
        threads: None,
        ..known(situation)
    };
    let choice = choose(situation.machine, &known);
    let (reasons, _) = said(situation, &choice);
    let because = reasons.into_iter().find(|r| r.part == Part::Weight);
    (choice.means.high, because)
}

/// The reasons of a choice as sentences: why each mean is taken, and why others are not.
fn said(situation: &Situation<'_>, choice: &Choice) -> (Vec<Reason>, Vec<Reason>) {
    let stand_in = match &situation.probed {
        Probed::Found { stand_in, .. } => stand_in.as_str(),
        Probed::No(_) => "",
    };
    let reason = |(mean, why): &(Mean, Why)| {
        let part = match mean {
            Mean::Weight => Part::Weight,
            Mean::Cores => Part::Cores,
            Mean::Limit => Part::Limit,
        };
        let why = why.to_string();
        let why = match why.strip_prefix("It took") {
            Some(rest) if !stand_in.is_empty() => format!("{stand_in} took{rest}"),
            _ => why,
        };
        Reason { part, why }
    };
    let all = |list: &[(Mean, Why)]| list.iter().map(reason).collect();
    (all(&choice.because), all(&choice.left_out))
}

/// Page faults per second that waited for a disk.
fn faults(critical: &Chosen) -> f64 {
    let span_s = Nanos(critical.figures.span_ns.max(1)).as_secs_f64();
    critical.figures.major_faults as f64 / span_s
}

fn faulted(critical: &Chosen) -> String {
    let faults = faults(critical);
    format!("While it was watched it had {faults:.0} page faults a second that waited for a disk.")
}

fn instead_of_memory(critical: &Chosen) -> Reason {
    let why = format!(
        "{} Its memory cannot be kept here. So its neighbours are held back while it waits for memory: \
         limited, then frozen.",
        faulted(critical)
    );
    Reason {
        part: Part::Pressure,
        why,
    }
}

fn resource<'a>(all: &'a [Sensitivity], name: &str) -> Option<&'a Sensitivity> {
    all.iter().find(|s| s.resource == name)
}

/// The slowdown that is at least so.
pub(super) fn lower(pressed: &Pressed) -> f64 {
    pressed.ci95.map_or(pressed.slowdown, |ci| ci.low)
}
