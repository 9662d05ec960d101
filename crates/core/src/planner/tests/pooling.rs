//! Strict reserves, budgets that are pooled, budgets that are split by demand.

use super::*;
use crate::plan::Regulation;
use crate::policy::{After, Split};

/// Two groups with reserves on a machine of four CPUs whose regulators work together.
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
    // What the reserves leave is for whoever has neither reserve nor limit.
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
    assert!(!call.capped && call.reclaim);
    assert_eq!(
        (call.predictor, call.quantum),
        (Share::percent(25), Lines(1024))
    );
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
        "require = 'none'\nregulator.sustainable = '8GB/s'\nregulator.reclaim = true\n{RESERVES}limit.bandwidth = '2GB/s'\n"
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
    assert_eq!(regulations["call"].split, Split::Even);
}
