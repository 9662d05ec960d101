//! What a [`Backend`] promises: one test body per promise, run on every machine there is. An
//! [`Arm`] prepares a machine for the bodies, and observes from outside what the backend itself
//! does not report. [`conformance!`] makes a test of each body.
//!
//! A body checks results, never how a machine achieves them. Its bounds are as wide as a busy real
//! machine needs. What a machine does not offer (by its own inventory) is skipped with a message.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "test bodies fail by panicking"
)]

pub mod bodies;

use std::cell::RefCell;
use std::collections::BTreeMap;

use quell_control::config::Meter;
use quell_plan::inventory::Availability;
use quell_plan::{Held, Loops, Plan, Promise, Setting, Step};
use quell_record::backend::{
    Action, Backend, Observation, Probe, Program, Seen, SubjectId, SubjectSpec,
};
use quell_record::measurement::Measurement;
use quell_types::cpuset::CpuSet;
use quell_types::ids::StepId;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::units::Nanos;

/// A machine under test.
pub trait Arm {
    /// The backend of the machine.
    fn backend(&mut self) -> &mut dyn Backend;
    /// The CPUs on which a running subject may be found, from a source other than the backend.
    fn found_on(&mut self, subject: SubjectId) -> CpuSet;
    /// How much a running subject has done so far, in any unit. It grows while the subject runs.
    fn progress(&mut self, subject: SubjectId) -> u64;
    /// A warm-up and a measured span that are long enough on this machine.
    fn spans(&self) -> (Nanos, Nanos);
    /// What meters a bandwidth limit. `None`, with a message from the arm, where nothing does.
    fn meter(&self) -> Option<Meter>;
    /// The period of every regulation. It is longer where a stop costs a large part of 1 ms: the
    /// planner lengthens periods there, too.
    fn period(&self) -> Nanos {
        Nanos::millis(1)
    }
    /// Prefers what is gathered now to all other tasks on the machine, which no mechanism under
    /// test does. To be called before its rate is measured. Undoing reverts it.
    fn prefer(&mut self) {}
    /// A stream that draws from memory all it can, even right after a stop.
    fn stream(&self) -> &'static str {
        "bandwidth:write,size=32MiB"
    }
    /// A plan with one promise that [`Self::break_promise`] can make this machine lose. `None`,
    /// with a message, where no promise can be lost.
    fn breakable(&mut self) -> Option<Plan>;
    /// Makes the machine lose the promise of [`Self::breakable`]. Its steps are applied.
    fn break_promise(&mut self);
    /// A plan with a setting that another program can change, by [`Self::meddle`]. `None`, with a
    /// message, on a machine without other programs.
    fn meddled_with(&mut self) -> Option<Plan>;
    /// Changes a setting of [`Self::meddled_with`], as another program would.
    fn meddle(&mut self) {}
    /// Whether that setting still has the value from [`Self::meddle`].
    fn is_meddled(&mut self) -> bool {
        false
    }
    /// The relative variation of a rate between measurements, and how often a measurement may be
    /// tried.
    fn noise(&self) -> (f64, u32) {
        (0.0, 1)
    }
}

/// Makes a test of every body. `$arm` is a function from the body's name to an `Option` of an
/// [`Arm`]. It returns `None`, with a message, where the machine is not available.
#[macro_export]
macro_rules! conformance {
    ($arm:path) => {
        $crate::conformance!($arm:
            subjects_start_are_measured_run_on_and_stop,
            a_confined_group_runs_on_its_cpus,
            exclusive_cpus_are_denied_to_others_and_to_the_rest,
            a_bandwidth_limit_is_held_and_the_subject_goes_on,
            a_program_beside_a_limited_group_runs_on,
            two_limited_groups_on_a_cpu_have_a_budget_each,
            pooled_budgets_give_what_a_sleeper_leaves,
            a_budget_goes_to_the_cpu_that_draws_it,
            a_budget_that_is_moved_holds,
            each_direction_has_its_own_budget,
            units_of_observed_groups_are_seen,
            a_promise_lost_while_held_is_told_by_its_number,
            drift_is_answered_as_asked,
            undoing_takes_everything_back_and_twice_changes_nothing,
            a_group_that_was_not_gathered_is_refused,
            cpus_that_do_not_exist_are_refused,
            a_subject_that_is_not_there_is_refused,
            the_inventory_does_not_change,
            time_does_not_go_backwards,
        );
        $crate::mechanisms!($arm);
        $crate::divided_caches!($arm);
    };
    ($arm:path: $($body:ident),+ $(,)?) => {
        $(
            #[test]
            fn $body() {
                if let Some(mut arm) = $arm(stringify!($body)) {
                    $crate::bodies::$body(&mut arm);
                }
            }
        )+
    };
}

/// A step for `group`, with an arbitrary reason.
#[must_use]
pub fn step(group: &str, mechanism: Mechanism, set: Setting) -> Step {
    Step {
        id: StepId(1),
        group: Some(group.to_owned()),
        mechanism,
        set,
        because: "the promise is tested".to_owned(),
        assumed: false,
    }
}

/// A generator, written as on the command line, in a group that has the same name.
#[must_use]
pub fn subject(name: &str, run: &str, cpus: Option<&CpuSet>) -> SubjectSpec {
    SubjectSpec {
        name: name.to_owned(),
        group: name.to_owned(),
        program: Program::Generator(run.parse().unwrap()),
        cpus: cpus.cloned(),
        env: BTreeMap::new(),
        capture: true,
    }
}

/// A plan of these steps, numbered in order, with one promise that rests on the last step.
#[must_use]
pub fn plan(steps: Vec<Step>, promise: Promise, level: Level) -> Plan {
    let numbered = (1..).map(StepId).zip(steps);
    let steps: Vec<Step> = numbered.map(|(id, step)| Step { id, ..step }).collect();
    let last = steps.last().unwrap();
    let held = Held {
        group: last.group.clone().unwrap(),
        promise,
        level,
        held_by: vec![last.id],
        weakest: None,
        assumed: false,
    };
    Plan {
        policy: "conformance".to_owned(),
        groups: Vec::new(),
        steps,
        promises: vec![held],
        notes: Vec::new(),
        loops: Loops::default(),
        acts: Vec::new(),
        assumed: None,
    }
}

/// Gathers a group for programs that are started later.
pub fn gather(arm: &mut dyn Arm, name: &str) {
    let set = Setting::Gather {
        matching: Vec::new(),
        outermost: false,
        braked: true,
    };
    arm.backend()
        .apply(&step(name, Mechanism::Cores, set))
        .unwrap();
}

/// Confines a gathered group to CPUs, on all memory nodes.
pub fn confine(arm: &mut dyn Arm, name: &str, cpus: &CpuSet, exclusive: bool) {
    let mems = inventory(arm).nodes.iter().map(|node| node.id).collect();
    let set = Setting::Confine {
        cpus: cpus.clone(),
        mems,
        exclusive,
    };
    arm.backend()
        .apply(&step(name, Mechanism::Cores, set))
        .unwrap();
}

/// What the machine reports of itself, by a fast probe.
pub fn inventory(arm: &mut dyn Arm) -> quell_plan::inventory::Inventory {
    arm.backend().inventory(Probe::Fast).unwrap()
}

/// The machine's first CPU, and all its other CPUs. Panics on a machine of one CPU.
pub fn divided(arm: &mut dyn Arm) -> (CpuSet, CpuSet) {
    let all = inventory(arm).cpu_set();
    let first = CpuSet::from_iter(all.first());
    let others = all.difference(&first);
    assert!(!others.is_empty(), "these bodies need two CPUs");
    (first, others)
}

/// Whether the machine offers a mechanism; the test is skipped if not.
pub fn offers(arm: &mut dyn Arm, mechanism: Mechanism) -> bool {
    let why = match inventory(arm).mechanisms.get(&mechanism) {
        Some(Availability::Yes { .. }) => return true,
        Some(Availability::No { why, .. }) => why.clone(),
        None => "unknown".to_owned(),
    };
    quell_testing::skip(format_args!("{mechanism:?} is not offered here: {why}"));
    false
}

/// Starts a subject and waits until it is ready.
pub fn started(arm: &mut dyn Arm, spec: &SubjectSpec) -> SubjectId {
    let id = arm.backend().start(spec).unwrap();
    until(arm, |one| (*one == Seen::Ready(id)).then_some(()));
    id
}

/// Starts a subject's measurement and waits for it.
pub fn measured(
    arm: &mut dyn Arm,
    subject: SubjectId,
    warmup: Nanos,
    duration: Nanos,
) -> Measurement {
    let go = Action::Go {
        subject,
        warmup,
        duration,
    };
    arm.backend().act(&go).unwrap();
    until(arm, |one| match one {
        Seen::Result(id, measured) if *id == subject => Some(measured.clone()),
        _ => None,
    })
}

/// Starts the measurements of several subjects together and waits for them.
pub fn measured_together<const N: usize>(
    arm: &mut dyn Arm,
    subjects: [SubjectId; N],
    warmup: Nanos,
    duration: Nanos,
) -> [Measurement; N] {
    for subject in subjects {
        let go = Action::Go {
            subject,
            warmup,
            duration,
        };
        arm.backend().act(&go).unwrap();
    }
    let found = RefCell::new(BTreeMap::new());
    until(arm, |one| {
        if let Seen::Result(id, measured) = one {
            found.borrow_mut().insert(*id, measured.clone());
        }
        let all = subjects.iter().all(|id| found.borrow().contains_key(id));
        all.then_some(())
    });
    subjects.map(|id| found.borrow()[&id].clone())
}

/// Waits until `wanted` finds something in what is seen, at most a minute of the machine's time.
pub fn until<T>(arm: &mut dyn Arm, wanted: impl Fn(&Seen) -> Option<T>) -> T {
    let backend = arm.backend();
    let latest = backend.now().plus(Nanos::secs(60));
    let mut seen = Observation::new();
    let mut passed = Vec::new();
    loop {
        let now = backend.wait(latest, &mut seen).unwrap();
        for one in seen.drain(..) {
            if let Some(found) = wanted(&one) {
                return found;
            }
            passed.push(one);
        }
        assert!(now < latest, "it did not come; seen were {passed:?}");
    }
}

/// Tries, as often as the arm's noise allows, whether what `find` measures lies within the bounds.
/// The noise widens the bounds.
pub fn within(
    arm: &mut dyn Arm,
    what: &str,
    (least, most): (f64, f64),
    find: &mut dyn FnMut(&mut dyn Arm) -> f64,
) {
    let (noise, tries) = arm.noise();
    let mut found = Vec::new();
    for _ in 0..tries {
        let one = find(arm);
        if (least - noise..=most + noise).contains(&one) {
            return;
        }
        found.push(one);
    }
    panic!("{what}: {found:?}, not {least} to {most} (noise {noise})");
}

/// The rate of a measurement, in program bytes per second.
#[must_use]
pub fn rate(measured: &Measurement) -> f64 {
    measured.bytes as f64 * 1e9 / measured.duration_ns.max(1) as f64
}
