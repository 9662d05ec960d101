//! Strict reserves, budgets that are pooled, budgets that are split by demand.

use quell_control::config::Regulation;
use quell_types::options::After;
use quell_types::options::Split;

use super::*;
use proptest::prelude::*;

/// Two groups with reserves on a machine of four CPUs. Their regulators work together.
const RESERVES: &str = "[group.call]
role = 'critical'
command = ['a']
cpus = 1
reserve.bandwidth = '2GB/s'
[group.corun]
role = 'best-effort'
command = ['b']
cpus = 2
reserve.bandwidth = '2GB/s'
[group.more]
role = 'best-effort'
command = ['c']
cpus = 1
";

fn regulations(plan: &Plan) -> BTreeMap<String, Regulation> {
    let steps = plan.steps.iter();
    steps
        .filter_map(|step| match &step.set {
            Setting::Regulate(r) => Some((step.group.clone()?, r.clone())),
            _ => None,
        })
        .collect()
}

#[test]
fn a_strict_reserve_is_its_groups_cap() {
    let text = format!(
        "require = 'none'\nregulator.sustainable = '8GB/s'\nregulator.strict = true\n{RESERVES}"
    );
    let plan = planned(&text, &machine(4, 1));
    let regulations = regulations(&plan);
    assert_eq!(
        regulations["call"].budget,
        Lines::at(Rate(2_000_000_000), Nanos::millis(1))
    );
    assert_eq!(
        regulations["corun"].budget,
        Lines::at(Rate(1_000_000_000), Nanos::millis(1))
    );
    assert!(regulations["call"].pooling.is_none());
    // What the reserves leave is for groups with neither reserve nor limit.
    assert_eq!(
        regulations["more"].budget,
        Lines::at(Rate(4_000_000_000), Nanos::millis(1))
    );
}

#[test]
fn with_reclaim_a_reserve_gives_and_is_no_cap() {
    let text = format!(
        "require = 'none'\nregulator.sustainable = '8GB/s'\nregulator.reclaim = true\nregulator.after = 'proportional'\nregulator.predictor = 0.25\n{RESERVES}"
    );
    let plan = planned(&text, &machine(4, 1));
    let regulations = regulations(&plan);
    let call = regulations["call"].pooling.clone().expect("pooled");
    let peak = machine(4, 1).measured.unwrap().peak_cpu;
    assert!(!call.capped && call.reclaim);
    assert_eq!(
        (call.predictor, call.quantum),
        (Share::percent(25), Lines::at(peak, Nanos::micros(100))),
        "CPU time is counted"
    );
    let given = text.replace("predictor = 0.25", "quantum = '128KiB'");
    for (text, machine, quantum) in [
        (&given, machine(4, 1), 2_048),
        (&text, counted(machine(4, 1), ""), 1_024),
    ] {
        let plan = planned(text, &machine);
        let pooling = self::regulations(&plan)["call"].pooling.clone();
        assert_eq!(pooling.expect("pooled").quantum, Lines(quantum));
    }
    let corun = regulations["corun"].pooling.clone().expect("pooled");
    assert_eq!((corun.capped, corun.after), (true, After::Proportional));
    assert!(
        told(&plan, "nothing is promised about its limit"),
        "{:?}",
        plan.notes
    );
    let because: Vec<&str> = plan.steps.iter().map(|s| s.because.as_str()).collect();
    assert!(
        because
            .iter()
            .any(|b| b.contains("counted and never stopped")),
        "{because:?}"
    );
    assert!(
        because
            .iter()
            .any(|b| b.contains("a new period begins at once")),
        "{because:?}"
    );
}

#[test]
fn a_limit_that_is_written_is_not_pooled() {
    let text = format!(
        "require = 'none'\nregulator.sustainable = '8GB/s'\nregulator.reclaim = true\nmechanisms.bandwidth = 'regulator'\n{RESERVES}limit.bandwidth = '2GB/s'\n"
    );
    let plan = planned(&text, &machine(4, 1));
    let regulations = regulations(&plan);
    assert!(regulations["more"].pooling.is_none());
    assert!(regulations["corun"].pooling.is_some());
    assert!(
        plan.promises
            .iter()
            .any(|p| p.group == "more" && matches!(p.promise, Promise::LimitBandwidth { .. }))
    );
}

#[test]
fn a_budget_is_split_by_demand_where_there_is_more_than_one_cpu() {
    let text = format!(
        "require = 'none'\nregulator.sustainable = '8GB/s'\nregulator.strict = true\n{RESERVES}"
    );
    let plan = planned(&text, &machine(4, 1));
    let regulations = regulations(&plan);
    assert_eq!(regulations["corun"].split, Split::Demand);
    // An eighth of a budget may be less than can be held.
    let floor = machine(4, 1)
        .measured
        .unwrap()
        .peak_cpu
        .part(Share::percent(5));
    assert!(regulations["corun"].least >= Lines::at(floor, Nanos::millis(1)));
    assert_eq!(regulations["call"].split, Split::Even);
    let even = text.replace("strict = true", "strict = true\nregulator.split = 'even'");
    let plan = planned(&even, &machine(4, 1));
    assert_eq!(self::regulations(&plan)["corun"].split, Split::Even);
}

#[test]
fn pooling_says_whom_it_wakes() {
    let text = format!(
        "require = 'none'\nregulator.sustainable = '8GB/s'\nregulator.reclaim = true\n{RESERVES}"
    );
    let plan = planned(&text, &machine(4, 1));
    assert!(
        told(
            &plan,
            "interrupted at the start of every period (1ms), idle or not, the critical ones too"
        ),
        "{:?}",
        plan.notes
    );
    let dear = "tens of percent of a CPU";
    assert!(!told(&plan, dear));
    let short = text.replace(
        "reclaim = true",
        "reclaim = true\nregulator.period = '200us'",
    );
    assert!(told(&planned(&short, &machine(4, 1)), dear));
}

/// `regulator` keys, and a group of each role. It has its own CPUs or shares, and has or has not a
/// reserve or a limit.
fn policies() -> impl Strategy<Value = String> {
    let cpus = prop_oneof![
        Just(""),
        Just("cpus = 1\n"),
        Just("cpus = 2\n"),
        Just("cpus = 'any'\n")
    ];
    let rates = prop_oneof![
        Just(""),
        Just("reserve.bandwidth = '2GB/s'\n"),
        Just("limit.bandwidth = '3GB/s'\n"),
        Just("reserve.bandwidth = '1GB/s'\nlimit.bandwidth = '3GB/s'\n"),
    ];
    let after = prop_oneof![Just("wait"), Just("spare"), Just("proportional")];
    let group = (cpus, rates);
    (any::<(bool, bool)>(), after, [group.clone(), group], any::<bool>()).prop_map(
        |((reclaim, strict), after, groups, reserve)| {
            let mut text = format!(
                "require = 'none'\nregulator.sustainable = '8GB/s'\nregulator.reclaim = {reclaim}\nregulator.strict = {strict}\nregulator.after = '{after}'\n"
            );
            let reserve = if reserve { "reserve.bandwidth = '2GB/s'\n" } else { "" };
            text.push_str(&format!(
                "[group.exempt]\nrole = 'exempt'\ncommand = ['a']\n{reserve}"
            ));
            let roles = ["critical", "best-effort"];
            for (role, (cpus, rates)) in roles.iter().zip(groups) {
                text.push_str(&format!("[group.{role}]\nrole = '{role}'\ncommand = ['a']\n{cpus}{rates}"));
            }
            text
        },
    )
}

proptest! {
    /// An exempt group is never counted or stopped.
    #[test]
    fn an_exempt_group_is_never_touched(text in policies()) {
        let machine = machine(4, 1);
        let Ok(plan) = plan(&policy(&text), &machine) else {
            return Ok(());
        };
        let regulations = regulations(&plan);
        prop_assert!(!regulations.contains_key("exempt"), "{text}");
    }
}

#[test]
fn beside_an_exempt_group_budgets_are_pooled() {
    let text = "require = 'none'\nregulator = { sustainable = '8GB/s', reclaim = true, strict = true }\n[group.exempt]\nrole = 'exempt'\n\
                command = ['a']\n[group.call]\nrole = 'critical'\ncommand = ['b']\ncpus = 1\nreserve.bandwidth = '2GB/s'\n";
    let plan = planned(text, &machine(4, 1));
    let regulations = regulations(&plan);
    assert_eq!(regulations.keys().collect::<Vec<_>>(), ["call"]);
    let own = plan.cpus("exempt").unwrap();
    assert!(
        regulations["call"].pooling.is_some()
            && own.intersection(&regulations["call"].cpus).is_empty()
    );
    // Where it does run, other groups are stopped, and it is not.
    let text = format!("{text}[group.more]\nrole = 'best-effort'\ncommand = ['c']\n");
    let plan = planned(&text, &machine(4, 1));
    assert!(self::regulations(&plan).contains_key("more"));
}
