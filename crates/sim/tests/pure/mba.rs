//! Bandwidth allocation in hardware, from its measured curve to what a group reaches. The same
//! percentage is another rate for other numbers of CPUs. A limit in bytes per second holds for each
//! number.
use std::collections::BTreeMap;

use quell_plan::inventory::Inventory;
use quell_plan::planner;
use quell_plan::{Plan, Setting};
use quell_policy::Policy;
use quell_record::backend::{Action, Backend, Observation, Probe, Program, Seen, SubjectSpec};
use quell_sim::Sim;
use quell_sim::board::Board;
use quell_sim::profile::Profile;
use quell_types::mechanism::Mechanism;
use quell_types::units::{Nanos, Rate};

/// Eight cores without their second threads; bandwidth allocation in steps of 10 %.
fn sim() -> Sim {
    let mut profile = Profile::built_in("icelake-sp").unwrap();
    profile.cores.threads = 1;
    Sim::new(Board::of(profile).unwrap(), 1).unwrap()
}

fn planned(machine: &Inventory, cpus: usize, limit: &str) -> Result<Plan, String> {
    let text = format!(
        "quell = 1
mechanisms.bandwidth = 'mba'
[group.victim]
role = 'critical'
cpus = '7'
command = ['a']
[group.noise]
role = 'best-effort'
cpus = {cpus}
command = ['b']
limit.bandwidth = '{limit}'
"
    );
    let policy = Policy::parse(&text, "test.toml").unwrap_or_else(|p| panic!("{p:?}"));
    let all = |refused: Vec<_>| {
        refused
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("\n")
    };
    planner::plan(&policy, machine).map_err(all)
}

fn percent(plan: &Plan) -> u32 {
    let mut steps = plan.steps.iter();
    let set = steps.find_map(|s| match s.set {
        Setting::Mba { percent } => Some(percent),
        _ => None,
    });
    set.unwrap()
}

/// What streams on all CPUs of the group reach together under the plan.
fn reached(plan: &Plan, operation: &str) -> f64 {
    let mut sim = sim();
    for step in &plan.steps {
        sim.apply(step).unwrap();
    }
    let mut subjects = Vec::new();
    for cpu in plan.cpus("noise").unwrap().iter() {
        let subject = SubjectSpec {
            name: format!("noise.{cpu}"),
            group: "noise".to_owned(),
            program: Program::Generator(
                format!("bandwidth:{operation},size=24MiB").parse().unwrap(),
            ),
            cpus: Some([cpu].into_iter().collect()),
            env: BTreeMap::new(),
            capture: true,
        };
        subjects.push(sim.start(&subject).unwrap());
    }
    for &subject in &subjects {
        let (warmup, duration) = (Nanos::micros(200), Nanos::millis(1));
        sim.act(&Action::Go {
            subject,
            warmup,
            duration,
        })
        .unwrap();
    }
    let (mut seen, mut results) = (Observation::new(), Vec::new());
    while results.len() < subjects.len() {
        sim.wait(Nanos::secs(1), &mut seen).unwrap();
        for one in seen.drain(..) {
            if let Seen::Result(_, measured) = one {
                results.push(measured.bytes as f64 * 1e9 / measured.duration_ns as f64);
            }
        }
    }
    results.iter().sum()
}

/// Where their files have changed (`tests/changed.toml`).
mod changed {
    use super::*;

    #[test]
    #[ignore = "where its files have changed"]
    fn a_limit_in_bytes_holds_for_any_number_of_cpus() {
        let machine = sim().inventory(Probe::Deep).unwrap();
        let curve = machine.measured.as_ref().unwrap().mba.as_ref().unwrap();
        // As in resctrl's documentation: 10 % are more for more threads.
        let tenth = |cpus| curve.of(cpus).next().unwrap().rate().0 as f64;
        let of_one = [tenth(2) / tenth(1), tenth(4) / tenth(1)];
        assert!(
            (1.8..=2.1).contains(&of_one[0]) && (3.5..=4.1).contains(&of_one[1]),
            "{of_one:?}"
        );
        let mut percentages = Vec::new();
        for cpus in [1, 2, 4] {
            let plan = planned(&machine, cpus, "6GB/s").unwrap();
            let percent = percent(&plan);
            let expected = curve
                .of(cpus)
                .find(|p| p.percent == percent)
                .unwrap()
                .rate();
            let found = reached(&plan, "read");
            println!("{cpus} CPUs, {percent}%: expected {expected}, reached {found:.0}");
            assert!(
                found <= 6e9 * 1.01,
                "{cpus} CPUs under {percent} %: {found}"
            );
            let of_expected = found / expected.0 as f64;
            assert!(
                (0.95..=1.05).contains(&of_expected),
                "{cpus}: {of_expected} of {expected}"
            );
            // At most a step below the limit.
            assert!(
                curve
                    .of(cpus)
                    .all(|p| p.percent <= percent || p.most() > Rate(6_000_000_000))
            );
            percentages.push(percent);
        }
        assert!(
            percentages.windows(2).all(|p| p[0] > p[1]),
            "{percentages:?}"
        );
        let why = planned(&machine, 4, "1GB/s").unwrap_err();
        assert!(why.contains("cannot be reached by the hardware"), "{why}");
        assert!(matches!(
            machine.mechanisms[&Mechanism::Mba],
            quell_plan::inventory::Availability::Yes { .. }
        ));
    }
}
