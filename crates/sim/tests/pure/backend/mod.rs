//! What the engine may rely on, on the simulated machine. `crates/linux/tests/conformance` and
//! `crates/linux/tests/measured/regulator.rs` test the same promises on Linux.

mod apart;
mod determinism;
mod divide;
mod generators;
mod partition;
mod pooling;
mod regulation;
mod scoped;
mod windows;

use std::collections::BTreeMap;

use quell_plan::{Setting, Step};
use quell_record::backend::{Action, Backend, Observation, Program, Seen, SubjectId, SubjectSpec};
use quell_record::events::{Decision, Event};
use quell_record::measurement::Measurement;
use quell_sim::Sim;
use quell_sim::board::Board;
use quell_types::cpuset::CpuSet;
use quell_types::ids::StepId;
use quell_types::mechanism::Mechanism;
use quell_types::units::Nanos;

pub(crate) fn sim() -> Sim {
    Sim::new(Board::usual().unwrap(), 1).unwrap()
}

pub(crate) fn cpus(text: &str) -> CpuSet {
    text.parse().unwrap()
}

pub(crate) fn step(group: &str, set: Setting) -> Step {
    Step {
        id: StepId(1),
        group: Some(group.to_owned()),
        mechanism: Mechanism::Cores,
        set,
        because: "the test says so".to_owned(),
        assumed: false,
    }
}

/// A group of programs that will be started. With `exclusive` it has the CPUs to itself.
pub(crate) fn group(sim: &mut Sim, name: &str, on: &str, exclusive: bool) {
    let matching = Vec::new();
    sim.apply(&step(
        name,
        Setting::Gather {
            matching,
            outermost: false,
            braked: false,
        },
    ))
    .unwrap();
    let set = Setting::Confine {
        cpus: cpus(on),
        mems: cpus("0"),
        exclusive,
    };
    sim.apply(&step(name, set)).unwrap();
}

pub(crate) fn subject(name: &str, run: &str, on: Option<&str>) -> SubjectSpec {
    SubjectSpec {
        name: name.to_owned(),
        group: name.to_owned(),
        program: Program::Generator(run.parse().unwrap()),
        cpus: on.map(cpus),
        env: BTreeMap::new(),
        capture: true,
    }
}

/// What was seen until all of `all` had their results.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) results: BTreeMap<SubjectId, Measurement>,
    pub(crate) decisions: Vec<Decision>,
    pub(crate) throttles: u64,
}

/// Starts all measurements together and waits for their results.
pub(crate) fn measure(sim: &mut Sim, all: &[SubjectId], warmup: Nanos, duration: Nanos) -> Outcome {
    let mut outcome = Outcome::default();
    let mut seen = Observation::new();
    for &subject in all {
        sim.act(&Action::Go {
            subject,
            warmup,
            duration,
        })
        .unwrap();
    }
    let latest = sim.now().plus(Nanos::secs(1));
    while outcome.results.len() < all.len() {
        assert!(sim.wait(latest, &mut seen).unwrap() < latest, "no result");
        for one in seen.drain(..) {
            match one {
                Seen::Result(id, measured) => {
                    outcome.results.insert(id, measured);
                }
                Seen::Decisions(_, _, mut decisions, _) => outcome.decisions.append(&mut decisions),
                Seen::Event(Event::Throttle { throttles, .. }) => outcome.throttles += throttles,
                _ => {}
            }
        }
    }
    outcome
}

/// Program bytes per second.
pub(crate) fn rate(measured: &Measurement) -> f64 {
    measured.bytes as f64 * 1e9 / measured.duration_ns as f64
}
