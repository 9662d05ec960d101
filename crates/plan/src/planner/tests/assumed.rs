use super::*;

fn assumed(cores: u32) -> Inventory {
    let mut machine = machine(cores, 1);
    machine.measured = Some(crate::assumed::rates(&machine));
    machine
}

fn acts(plan: &Plan, what: &str) -> bool {
    plan.acts.iter().any(|act| act.contains(what))
}

#[test]
fn what_rests_on_assumed_rates_is_marked_and_nothing_else() {
    let plan = planned(&format!("{PAIR}limit.bandwidth = '20%'\n"), &assumed(2));
    let rates = plan.assumed.as_ref().unwrap();
    assert_eq!(
        (rates.peak_cpu.0, rates.sustainable.0),
        (10_000_000_000, 20_000_000_000)
    );
    for one in &plan.promises {
        let limit = matches!(one.promise, Promise::LimitBandwidth { .. });
        assert_eq!(one.assumed, limit, "{one:?}");
    }
    let marked: Vec<StepId> = plan
        .steps
        .iter()
        .filter(|s| s.assumed)
        .map(|s| s.id)
        .collect();
    assert_eq!(marked, held(&plan, "noise").held_by);
    assert!(acts(&plan, "`quell plan --measure`"), "{:?}", plan.acts);
    // Without a rate nothing is said. A rate in bytes that is counted in bytes assumes nothing.
    let none = planned(PAIR, &assumed(2));
    assert!(none.assumed.is_none() && none.acts.is_empty(), "{none:?}");
    let text = format!("{PAIR}limit.bandwidth = '2GB/s'\n");
    let counted = planned(&text, &counted(assumed(2), ""));
    assert!(counted.assumed.is_none(), "{counted:?}");
}

#[test]
fn what_measured_rates_may_allow_is_said_and_not_refused() {
    let asked = |text: &str| planned(&format!("{PAIR}{text}\n"), &assumed(2));
    let tiny = asked("limit.bandwidth = '1MB/s'");
    assert!(
        acts(&tiny, "`quell run` refuses this if"),
        "{:?}",
        tiny.acts
    );
    assert_eq!(held(&tiny, "noise").level, Level::None);
    let much = PAIR.replace(
        "[group.noise]",
        "reserve.bandwidth = '50GB/s'\n[group.noise]",
    );
    let much = planned(&much, &assumed(2));
    assert!(
        acts(&much, "more than the 20GB/s (assumed)"),
        "{:?}",
        much.acts
    );
    let mut measured = assumed(2);
    measured.measured.as_mut().unwrap().assumed = false;
    let text = format!("{PAIR}limit.bandwidth = '1MB/s'\n");
    assert!(refused(&text, &measured).contains("less than"));
}
