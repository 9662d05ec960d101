//! Which means a policy takes: the least that is enough. A weight comes before CPUs of its own, and
//! those before limits. What the planner refuses on this machine is left out again.
//!
//! Pure. Rules, so that no choice leaves the critical program worse off than nothing done:
//! - CPUs of its own: one per thread that does work, and at most half of the cores. On fewer CPUs
//!   than it uses it would be slower.
//! - A limit is for named neighbours, and rests on a measured slowdown whose lower bound is at
//!   least [`HURTS`].
//! - Neighbours that are not named have no group, and so no weight and no limit.

use std::collections::BTreeSet;

use quell_plan::Plan;
use quell_plan::inventory::{Availability, Inventory};
use quell_plan::planner::plan;
use quell_policy::Policy;
use quell_record::demand::{Pressed, Sensitivity};
use quell_types::mechanism::Mechanism;
use quell_types::refusal::{Refusal, Remedy};
use quell_types::units::{Nanos, Rate};

use super::group::Chosen;
use super::text;

/// A resource hurts when the lower bound of the slowdown is at least this.
pub const HURTS: f64 = 1.25;
/// The part of the time in which it wants a CPU that a program may wait for one.
const WAITS: f64 = 0.1;
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

/// CPUs of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    /// How many.
    pub count: usize,
    /// Whether the other threads of its cores stay idle.
    pub alone: bool,
}

/// The means that are taken. The weight of the neighbours comes by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Setup {
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
}

impl Part {
    /// The part that a refused key belongs to.
    fn of(key: &str) -> Option<Self> {
        let last = |end: &str| key.ends_with(end);
        if last(".cpus") || last(".smt") {
            Some(Self::Cores)
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
                let strongest = [Part::Pressure, Part::Memory, Part::Limit, Part::Cores];
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
                setup = dropped
                    .into_iter()
                    .fold(setup, |setup, part| setup.without(part));
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

/// The strongest that is needed, why, and what is not taken although it would be.
fn wanted(situation: &Situation<'_>) -> (Setup, Vec<Reason>, Vec<Reason>) {
    let mut setup = Setup::default();
    let (mut reasons, mut left_out) = (Vec::new(), Vec::new());
    let critical = &situation.critical;
    if let Some((alone, why)) = needs_cores(situation) {
        match room(situation) {
            Ok(count) => {
                setup.cores = Some(Cores { count, alone });
                let threads = match count {
                    1 => "one thread of it works".to_owned(),
                    n => format!("{n} threads of it may work at once"),
                };
                let why = format!("{why} It needs {count}: {threads}.");
                reasons.push(Reason {
                    part: Part::Cores,
                    why,
                });
            }
            Err(too_many) => left_out.push(Reason {
                part: Part::Cores,
                why: too_many,
            }),
        }
    }
    if let Some((rate, why)) = needs_limit(situation) {
        let part = Part::Limit;
        if situation.neighbours.is_empty() {
            let why = format!(
                "{why} No limit holds programs of no group. Name the neighbours with --best-effort to have one."
            );
            left_out.push(Reason { part, why });
        } else {
            setup.limit = Some(rate);
            reasons.push(Reason { part, why });
        }
    }
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

/// Why a weight is not enough, if it is not; and whether whole cores have to be its own.
fn needs_cores(situation: &Situation<'_>) -> Option<(bool, String)> {
    if let Probed::Found { stand_in, all } = &situation.probed
        && let Some(worst) = resource(all, "sibling").and_then(|s| s.pressed.first())
        && lower(worst) >= HURTS
    {
        let why = format!(
            "{stand_in} took {:.2} times as long next to a program on the other thread of its core.",
            worst.slowdown
        );
        return Some((true, why));
    }
    if situation.neighbours.is_empty() {
        let why = "No neighbour is named, and programs of no group cannot be given a low weight. Only CPUs of its own keep them away.";
        return Some((false, why.to_owned()));
    }
    if let Some(Availability::No { why, .. }) = situation.machine.mechanisms.get(&Mechanism::Weight)
        && situation.root
    {
        let why = format!("A low weight for its neighbours would come first, but: {why}.");
        return Some((false, why));
    }
    let named: f64 = situation.neighbours.iter().map(|g| g.figures.cpus()).sum();
    let unnamed = situation.unnamed_cpus;
    let waited = situation.critical.figures.waited().unwrap_or(0.0);
    (waited >= WAITS && unnamed > named).then(|| {
        let why = format!(
            "Its threads have to wait, and programs of no group used {unnamed:.2} CPUs, its named neighbours {named:.2}. \
             Only CPUs of its own keep programs of no group away."
        );
        (false, why)
    })
}

/// How many CPUs of its own it needs, if half of the machine's cores are enough.
fn room(situation: &Situation<'_>) -> Result<usize, String> {
    let needed = situation.critical.figures.busy();
    let usable = situation.machine.cpu_set();
    let cores: BTreeSet<Option<u32>> = situation
        .machine
        .cpus
        .iter()
        .map(|cpu| cpu.siblings.intersection(&usable).first())
        .collect();
    let half = cores.len() / 2;
    if needed <= half {
        return Ok(needed);
    }
    let threads = if needed == 1 {
        "One thread of it".to_owned()
    } else {
        format!("{needed} threads of it")
    };
    Err(format!(
        "{threads} may work at once, and half of the {} core{} here {} {half}. On fewer CPUs than it uses it would be slower than with nothing done.",
        cores.len(),
        if cores.len() == 1 { "" } else { "s" },
        if half == 1 { "is" } else { "are" },
    ))
}

fn resource<'a>(all: &'a [Sensitivity], name: &str) -> Option<&'a Sensitivity> {
    all.iter().find(|s| s.resource == name)
}

/// The slowdown that is at least so.
pub(super) fn lower(pressed: &Pressed) -> f64 {
    pressed.ci95.map_or(pressed.slowdown, |ci| ci.low)
}

/// The rate that neighbours may draw without hurting, where a higher one was seen to hurt.
fn needs_limit(situation: &Situation<'_>) -> Option<(Rate, String)> {
    let Probed::Found { stand_in, all } = &situation.probed else {
        return None;
    };
    let of = |name: &'static str| {
        let pressed = &resource(all, name)?.pressed;
        // A rate below one that does not hurt does not hurt either: something else disturbed it.
        let harmless = pressed.iter().rposition(|p| lower(p) < HURTS);
        let hurts = harmless.map_or(0, |n| n + 1);
        let worst = pressed.get(hurts)?;
        let at = |p: &Pressed| Some(Rate::measured(p.reached_mb_s? * 1e6));
        let above = at(worst)?;
        let most = match harmless.and_then(|n| pressed.get(n)) {
            Some(before) => at(before)?,
            None => Rate(above.0 / 2),
        };
        let rate = Rate(most.0 / 1_000_000 * 1_000_000).max(Rate(1_000_000));
        let megabytes = |rate: Rate| rate.0 / 1_000_000;
        let why = format!(
            "{stand_in} took {:.2} times as long next to {} MB/s of {name}. {}",
            worst.slowdown,
            megabytes(above),
            if hurts > 0 {
                format!(
                    "The next lower rate that was tried, {} MB/s, did not hurt (less than {HURTS} times).",
                    megabytes(rate)
                )
            } else {
                "Every higher rate hurt, too, and no lower one was tried; the limit is half of it."
                    .to_owned()
            }
        );
        Some((rate, why))
    };
    let found = ["reads", "writes"].into_iter().filter_map(of);
    found.min_by_key(|(rate, _)| *rate)
}
