//! Turns of processes.

use quell_control::config::{ProgramDemand, Scheduling};

use super::*;

/// A machine whose kernel can let processes take turns.
fn turning(cores: u32, threads: u32) -> Inventory {
    let mut machine = machine(cores, threads);
    let yes = Availability::Yes {
        best: Level::Estimated,
        how: "as on the test machine".to_owned(),
    };
    machine.mechanisms.insert(Mechanism::Placement, yes);
    machine
}

const GROUPS: &str = "
[group.batch]
role = 'best-effort'
command = ['b']
allow = ['freeze']
[group.solver]
role = 'best-effort'
command = ['c']
allow = ['freeze']
[group.other]
role = 'best-effort'
command = ['d']
";

const SCHEDULER: &str = "
[scheduler]
policy = 'bounded'
[scheduler.demand]
batch = { memory = '2GB/s', first-level = '20GB/s' }
solver = { memory = '500MB/s', first-level = '40GB/s' }
";

fn scheduling(text: &str, machine: &Inventory) -> (Plan, Scheduling) {
    let plan = planned(text, machine);
    let found = plan.steps.iter().find_map(|step| match &step.set {
        Setting::Schedule(scheduling) => Some(scheduling.clone()),
        _ => None,
    });
    (plan, found.unwrap())
}

fn cores(scheduling: &Scheduling) -> Vec<String> {
    scheduling.cores.iter().map(ToString::to_string).collect()
}

#[test]
fn groups_that_may_be_frozen_take_turns_on_all_cores() {
    let (plan, by) = scheduling(&format!("{GROUPS}{SCHEDULER}"), &turning(2, 2));
    assert_eq!((by.quantum, by.bound), (Nanos::millis(200), 4));
    assert_eq!(cores(&by), ["0,2", "1,3"]);
    let declared: Vec<_> = by
        .groups
        .iter()
        .map(|(g, d)| (g.as_str(), d.memory))
        .collect();
    assert_eq!(
        declared,
        [
            ("batch", Rate(2_000_000_000)),
            ("solver", Rate(500_000_000))
        ]
    );
    assert_eq!(by.sustainable, Some(Rate(20_000_000_000)));
    assert_eq!(by.peak_cpu, Some(Rate(10_000_000_000)));
    assert!(
        plan.notes.iter().any(|n| n.contains("(estimated)")),
        "{plan:?}"
    );
    assert!(
        plan.notes
            .iter()
            .any(|n| n.contains("4 quanta at most (800ms)"))
    );
    assert!(plan.promises.is_empty());
    // Each of them has a cgroup.
    let gathered = |group: &str| {
        plan.steps.iter().any(|step| {
            matches!(step.set, Setting::Gather { .. }) && step.group.as_deref() == Some(group)
        })
    };
    assert!(gathered("batch") && gathered("solver"));
}

#[test]
fn a_critical_group_keeps_its_cores_from_the_turns() {
    let critical = "[group.a]\nrole = 'critical'\ncommand = ['a']\ncpus = '3'\nsmt = 'shared'\n";
    let (_, by) = scheduling(&format!("{critical}{GROUPS}{SCHEDULER}"), &turning(2, 2));
    // CPU 1 is the other thread of that core.
    assert_eq!(cores(&by), ["0,2"]);
    let alone = critical.replace("smt = 'shared'", "smt = 'alone'");
    let (_, by) = scheduling(&format!("{alone}{GROUPS}{SCHEDULER}"), &turning(2, 2));
    assert_eq!(cores(&by), ["0,2"]);
    let both = critical.replace("cpus = '3'", "cpus = '2-3'");
    let said = refused(&format!("{both}{GROUPS}{SCHEDULER}"), &turning(2, 2));
    assert!(
        said.contains("shares a core with a critical group") && said.contains("smt = \"alone\""),
        "{said}"
    );
}

#[test]
fn rates_that_the_policy_goes_by_have_to_be_declared() {
    let undeclared = format!("{GROUPS}[scheduler]\npolicy = 'bounded'\ngroups = ['batch']\n");
    let said = refused(&undeclared, &turning(2, 2));
    assert!(
        said.contains("scheduler.demand.batch.memory: policy bounded goes by what a process of batch asks of main memory")
            && said.contains("write demand.batch.memory = \"1GB/s\" in [scheduler]")
            && said.contains("scheduler.demand.batch.first-level"),
        "{said}"
    );
    // Nothing shares a core here.
    let one = refused(&undeclared, &turning(2, 1));
    assert!(!one.contains("first-level"), "{one}");
    let pair = undeclared.replace("bounded", "pair");
    assert_eq!(cores(&scheduling(&pair, &turning(2, 1)).1), ["0", "1"]);
    let random = undeclared.replace("bounded", "random");
    scheduling(&random, &turning(2, 2));
}

#[test]
fn counters_of_processes_take_the_place_of_rates() {
    let mut machine = turning(2, 2);
    machine.means.demand = DemandSource::ByProcess;
    let undeclared = format!("{GROUPS}[scheduler]\npolicy = 'bounded'\ngroups = ['batch']\n");
    let (plan, by) = scheduling(&undeclared, &machine);
    assert!(by.counted && by.groups.contains_key("batch"));
    assert!(
        plan.notes.iter().any(|n| n.contains("by its counters")),
        "{plan:?}"
    );
    // What is declared is for the time before, and for processes that cannot be counted.
    let declared = format!("{undeclared}demand.batch = {{ memory = '1GB/s' }}\n");
    let (_, by) = scheduling(&declared, &machine);
    assert_eq!(by.groups["batch"].memory, Rate(1_000_000_000));
    assert!(
        !scheduling(&declared.replace("bounded", "pair"), &turning(2, 1))
            .1
            .counted
    );
}

#[test]
fn a_kept_profile_takes_the_place_of_rates() {
    let undeclared = format!("{GROUPS}[scheduler]\npolicy = 'bounded'\ngroups = ['batch']\n");
    let with = |demand| {
        let solo = Solo {
            profile: "b".to_owned(),
            took: Err("no target".to_owned()),
            works_on: None,
            curve: None,
            demand,
        };
        let solos = Solos::from([("batch".to_owned(), solo)]);
        plan_beside(&policy(&undeclared), &turning(2, 2), &solos)
    };
    let demand = ProgramDemand {
        memory: Rate(3_000_000_000),
        first_level: Rate(30_000_000_000),
    };
    let plan = with(Ok(demand)).unwrap();
    let by = plan.steps.iter().find_map(|step| match &step.set {
        Setting::Schedule(by) => Some(by.groups["batch"]),
        _ => None,
    });
    assert_eq!(by, Some(demand));
    let note = "a process of batch demands what profile b says of it alone";
    assert!(plan.notes.iter().any(|n| n == note), "{plan:?}");
    let changed = with(Err("profile b was made of another b".to_owned()));
    let refusals = changed.unwrap_err();
    let said: String = refusals.iter().map(ToString::to_string).collect();
    assert!(
        said.contains("scheduler.demand.batch.memory")
            && said.contains("profile b was made of another b")
            && said.contains("quell profile -- PROGRAM"),
        "{said}"
    );
}

#[test]
fn turns_that_cannot_be_are_refused() {
    let four = turning(4, 1);
    let both = format!("{GROUPS}{SCHEDULER}");
    for (text, machine, told) in [
        (
            both.clone(),
            machine(4, 1),
            "scheduler: this machine says nothing about placement",
        ),
        (
            format!("mechanisms.deny = ['placement']\n{both}"),
            four.clone(),
            "the policy denies placement",
        ),
        (
            format!("{GROUPS}[scheduler]\npolicy = 'linux'"),
            four.clone(),
            "scheduler.policy: policy linux is what the kernel does without Quell",
        ),
        (
            format!("{GROUPS}[scheduler]\npolicy = 'random'").replace("allow = ['freeze']", ""),
            four.clone(),
            "write allow = [\"freeze\"] in [group.batch]",
        ),
        (
            both.replace("command = ['b']", "match = [{ cgroup = '/b.slice' }]"),
            four.clone(),
            "group.batch.match: group batch stays in its own cgroup",
        ),
        (
            both.replace("command = ['b']", "command = ['b']\ncpus = '0'"),
            four.clone(),
            "leave solver out of scheduler.groups",
        ),
    ] {
        let said = refused(&text, &machine);
        assert!(said.contains(told), "{told}: {said}");
    }
}

#[test]
fn a_machine_that_counts_demands_decides_for_all_processes() {
    let mut machine = turning(2, 2);
    machine.means.demand = DemandSource::Counted;
    let (_, by) = scheduling(&format!("{GROUPS}[scheduler]\npolicy = 'linux'"), &machine);
    assert!(by.groups.is_empty() && by.cores.is_empty());
}
