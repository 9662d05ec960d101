//! What a stop costs a group: CPU time of its budget in which it does not run.
//!
//! - The cost is the interrupt at the end of a budget, the wake-up of the brake, and the switch
//!   back after the stop. On virtual machines their exits come on top.
//! - The planner keeps periods long enough that the cost is a small part of each budget.
//! - It is measured once per machine, on a program that only reads the clock: how much shorter than
//!   the budget its runs are.
//! - The result is nine tenths of what nineteen of twenty runs lose at least.

use quell_control::config::Meter;
use quell_control::config::Regulation;
use quell_plan::inventory::{Availability, Inventory};
use quell_plan::{Setting, Step};
use quell_record::backend::{Backend, BackendError, Program, Seen, SubjectSpec};
use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::ids::StepId;
use quell_types::mechanism::Mechanism;
use quell_types::options::Split;
use quell_types::units::{Lines, Nanos, Share};

const GROUP: &str = "calibration";
const PERIOD: Nanos = Nanos::millis(1);
const SHARE: Share = Share::percent(20);
/// With fewer runs nothing is known.
const FEWEST: u64 = 100;

/// Why the cost of a stop is not known.
#[derive(Debug)]
pub enum Unmeasured {
    /// A signal with this number asked to stop. It will not be seen again.
    Stopped(i32),
    /// The backend failed with this error.
    Failed(BackendError),
}

impl From<BackendError> for Unmeasured {
    fn from(error: BackendError) -> Self {
        Self::Failed(error)
    }
}

/// Measures the cost of a stop. `None` where the regulator cannot run, or nothing could be
/// measured. `watch`: for a CPU, a command that reads the clock there for about a second. It writes
/// `runs.count` and `runs.p95_ns` as JSON (`quell bench overrun`).
///
/// # Errors
/// The backend's error, or a signal. Everything is undone then, too.
pub fn stop_cost(
    backend: &mut dyn Backend,
    machine: &Inventory,
    watch: &dyn Fn(CpuId) -> Vec<String>,
) -> Result<Option<Nanos>, Unmeasured> {
    let available = matches!(
        machine.mechanisms.get(&Mechanism::Bandwidth),
        Some(Availability::Yes { .. })
    );
    let (Some(rates), Some(cpu)) = (&machine.measured, machine.cpus.last()) else {
        return Ok(None);
    };
    if !available || !machine.means.time_meter {
        return Ok(None);
    }
    let regulation = Regulation {
        cpus: CpuSet::one(cpu.id),
        budget: Lines::at(rates.peak_cpu.part(SHARE), PERIOD),
        period: PERIOD,
        meter: Meter::Time,
        peak: rates.peak_cpu,
        pooling: None,
        split: Split::Even,
        least: Lines(0),
    };
    let budget = regulation.budget.time_at(regulation.peak);
    let said = measure(backend, regulation, watch(cpu.id));
    let undone = backend.undo();
    let said = said?;
    undone?;
    Ok(cost(&said, budget))
}

/// Runs the command under the regulation and returns its output.
fn measure(
    backend: &mut dyn Backend,
    regulation: Regulation,
    command: Vec<String>,
) -> Result<String, Unmeasured> {
    let step = |id, mechanism, set| Step {
        id: StepId(id),
        group: Some(GROUP.to_owned()),
        mechanism,
        set,
        because: "measuring what a stop costs".to_owned(),
        assumed: false,
    };
    let cpus = regulation.cpus.clone();
    let gather = Setting::Gather {
        matching: Vec::new(),
        outermost: false,
        braked: true,
    };
    backend.apply(&step(1, Mechanism::Cores, gather))?;
    let regulate = Setting::Regulate(regulation);
    backend.apply(&step(2, Mechanism::Bandwidth, regulate))?;
    backend.start(&SubjectSpec {
        name: GROUP.to_owned(),
        group: GROUP.to_owned(),
        program: Program::Command(command),
        cpus: Some(cpus),
        env: std::collections::BTreeMap::new(),
        capture: true,
    })?;
    let by = backend.now().plus(Nanos::secs(20));
    let (mut seen, mut said) = (Vec::new(), String::new());
    while backend.now() < by {
        backend.wait(backend.now().plus(Nanos::millis(500)), &mut seen)?;
        for one in seen.drain(..) {
            match one {
                Seen::Line(_, line) => said.push_str(&line),
                Seen::Exited(_, 0, _) => return Ok(said),
                Seen::Exited(_, status, _) => {
                    let why = format!("the program that watches ended with status {status}");
                    return Err(BackendError(why).into());
                }
                Seen::Stop(signal) => return Err(Unmeasured::Stopped(signal)),
                Seen::Revoked(why) => return Err(BackendError(why).into()),
                _ => {}
            }
        }
    }
    let why = "the program that watches did not end within 20 s";
    Err(BackendError(why.to_owned()).into())
}

/// Nine tenths of what a run falls short of the budget, at most half a budget.
fn cost(said: &str, budget: Nanos) -> Option<Nanos> {
    let said: serde_json::Value = serde_json::from_str(said).ok()?;
    let runs = said.get("runs")?;
    let enough = runs.get("count")?.as_u64()? >= FEWEST;
    let lost = budget.0 as f64 - runs.get("p95_ns")?.as_f64()?;
    #[expect(
        clippy::cast_sign_loss,
        clippy::cast_possible_truncation,
        reason = "clamped to a small positive range"
    )]
    let cost = (lost * 0.9).clamp(0.0, budget.0 as f64 / 2.0) as u64;
    (enough && cost > 0).then_some(Nanos(cost))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Fake, machine};

    fn runs(count: u64, p95_ns: f64) -> String {
        format!(r#"{{"runs":{{"count":{count},"p95_ns":{p95_ns}}}}}"#)
    }

    const BUDGET: Nanos = Nanos::micros(200);

    #[test]
    fn nine_tenths_of_what_a_run_falls_short_count() {
        assert_eq!(cost(&runs(900, 180e3), BUDGET), Some(Nanos::micros(18)));
    }

    #[test]
    fn nothing_is_known_where_nothing_was_lost_or_little_seen() {
        assert_eq!(cost(&runs(900, 201e3), BUDGET), None);
        assert_eq!(cost(&runs(9, 180e3), BUDGET), None);
        assert_eq!(cost("gibberish", BUDGET), None);
    }

    /// The program writes nothing and takes five seconds.
    fn stopped_at(when: Option<Nanos>) -> (Result<Option<Nanos>, Unmeasured>, Fake) {
        let mut fake = Fake::new();
        fake.command(GROUP, Nanos::secs(5), 0, &[]);
        if let Some(when) = when {
            fake.stop_at(when, 15);
        }
        let mut inventory = machine(2);
        inventory.means.time_meter = true;
        let done = stop_cost(&mut fake, &inventory, &|_| vec!["watch".to_owned()]);
        (done, fake)
    }

    #[test]
    fn a_signal_is_handed_on_and_nothing_stays() {
        let (done, fake) = stopped_at(Some(Nanos::secs(2)));
        assert!(matches!(done, Err(Unmeasured::Stopped(15))), "{done:?}");
        assert!(fake.clean(), "{:?}", fake.log);
        let (done, fake) = stopped_at(None);
        assert!(matches!(done, Ok(None)), "{done:?}");
        assert!(fake.clean(), "{:?}", fake.log);
    }

    #[test]
    fn a_credit_never_exceeds_half_a_budget() {
        assert_eq!(cost(&runs(900, 1.0), BUDGET), Some(Nanos::micros(100)));
    }
}
