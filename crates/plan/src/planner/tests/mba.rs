//! Limits by bandwidth allocation in hardware.

use quell_types::partition::MbaUnit;

use super::boards::icelake_sp;
use super::*;
use crate::deep::MbaCurve;

fn limited(mechanism: &str, limit: &str) -> String {
    format!("mechanisms.bandwidth='{mechanism}'\n{PAIR}cpus=1\nlimit.bandwidth='{limit}'\n")
}

fn percent(plan: &Plan) -> u32 {
    let mut set = plan.steps.iter().filter_map(|s| match s.set {
        Setting::Mba { percent } => Some(percent),
        _ => None,
    });
    set.next().expect("a percentage")
}

#[test]
fn a_percentage_is_rounded_up_to_the_hardwares_steps() {
    let plan = planned(&limited("mba", "25%"), &icelake_sp());
    assert_eq!(percent(&plan), 30);
    let held = held(&plan, "noise");
    assert_eq!(held.level, Level::Estimated);
    // What is promised is what was set in the hardware.
    assert_eq!(held.promise.to_string(), "at most 3GB/s");
    assert!(held.weakest.as_ref().unwrap().contains("no rate in bytes"));
    assert!(
        told(&plan, "25% of the requests is set as 30%"),
        "{:?}",
        plan.notes
    );
    assert_eq!(percent(&planned(&limited("mba", "3%"), &icelake_sp())), 10);
    let text = refused(&limited("mba", "95%"), &icelake_sp());
    assert!(text.contains("is no limit"), "{text}");
}

#[test]
fn a_rate_in_bytes_is_refused_with_the_percentage_near_it() {
    let text = refused(&limited("mba", "2500MB/s"), &icelake_sp());
    assert!(
        text.contains("takes a percentage")
            && text.contains("\"25%\"")
            && text.contains("regulator"),
        "{text}"
    );
    // What reserves leave is a rate, too.
    let text = refused(
        &format!("mechanisms.bandwidth='mba'\n{RESERVE}"),
        &icelake_sp(),
    );
    assert!(text.contains("takes a percentage"), "{text}");
}

#[test]
fn with_the_regulator_both_are_set() {
    let plan = planned(&limited("mba+regulator", "2500MB/s"), &icelake_sp());
    assert_eq!(percent(&plan), 30);
    let held = held(&plan, "noise");
    assert_eq!((held.level, held.held_by.len()), (Level::Regulated, 2));
    let plan = planned(&limited("any", "25%"), &icelake_sp());
    assert!(!plan.steps.iter().any(|s| s.mechanism == Mechanism::Mba));
}

#[test]
fn without_the_hardware_it_is_refused() {
    let text = refused(&limited("mba", "20%"), &machine(2, 1));
    assert!(
        text.starts_with("mechanisms.bandwidth: ") && text.contains("\"regulator\""),
        "{text}"
    );
}

/// One CPU alone reaches 10 GB/s, all together 20, by percentages.
fn calibrated() -> Inventory {
    let mut machine = icelake_sp();
    let cpus = machine.cpu_set();
    let bounds = machine.partitions.mba.clone().unwrap();
    let curve = MbaCurve::measure(&bounds, &cpus, "write", 2, &mut |percent, cpus| {
        Ok::<f64, ()>((f64::from(percent) * 1e8 * cpus.len() as f64).min(20e9))
    });
    machine.measured.as_mut().unwrap().mba = curve.ok();
    machine
}

fn because(plan: &Plan) -> &str {
    let mut steps = plan.steps.iter();
    &steps
        .find(|s| s.mechanism == Mechanism::Mba)
        .unwrap()
        .because
}

#[test]
fn a_rate_is_the_percentage_under_which_the_cpus_stay_below_it() {
    let on = |cpus: u32, limit: &str| {
        let text = limited("mba", limit).replace("cpus=1\nlimit", &format!("cpus={cpus}\nlimit"));
        planned(&text, &calibrated())
    };
    let plan = on(1, "4500MB/s");
    assert_eq!(percent(&plan), 40);
    let promised = held(&plan, "noise");
    assert_eq!(promised.promise.to_string(), "at most 4.5GB/s");
    assert_eq!(promised.level, Level::Estimated);
    assert!(
        because(&plan)
            .contains("under 40% of the requests 1 CPU reached 4GB/s by streams of write")
            && because(&plan).contains("88.9% of the limit"),
        "{}",
        because(&plan)
    );
    // The same rate for more CPUs is another percentage.
    assert_eq!(
        [percent(&on(2, "4500MB/s")), percent(&on(4, "4500MB/s"))],
        [20, 10]
    );
    // Three were not measured, four were.
    let plan = on(3, "4500MB/s");
    assert_eq!(percent(&plan), 10);
    assert!(
        because(&plan).contains("4 CPUs (measured instead of 3) reached 4GB/s"),
        "{}",
        because(&plan)
    );
    // A percentage is of what the CPUs can draw: 50 % of 20 GB/s.
    let plan = on(4, "50%");
    assert_eq!(
        (percent(&plan), held(&plan, "noise").promise.to_string()),
        (20, "at most 10GB/s".to_owned())
    );
}

#[test]
fn a_rate_out_of_reach_is_refused_with_what_can_be_had() {
    let text = limited("mba", "1500MB/s").replace("cpus=1\nlimit", "cpus=4\nlimit");
    let why = refused(&text, &calibrated());
    for part in [
        "group.noise.limit.bandwidth: 1.5GB/s cannot be reached by the hardware: under 10%",
        "4 CPUs still reached 4GB/s by streams of write",
        "write limit.bandwidth = \"4GB/s\" in [group.noise]",
        "write cpus = 1 in [group.noise]",
        "mba+regulator",
    ] {
        assert!(why.contains(part), "{part}: {why}");
    }
    let reserve = format!("mechanisms.bandwidth='mba'\n{RESERVE}");
    let plan = planned(&format!("require='none'\n{reserve}"), &calibrated());
    assert!(
        held(&plan, "noise").level == Level::Estimated,
        "what reserves leave is a rate, too"
    );
}

#[test]
fn what_its_cpus_do_not_reach_needs_no_step() {
    let plan = planned(&limited("mba", "12GB/s"), &calibrated());
    assert!(!plan.steps.iter().any(|s| s.mechanism == Mechanism::Mba));
    assert!(
        told(&plan, "needs no step: 1 CPU reached 10GB/s unthrottled"),
        "{:?}",
        plan.notes
    );
}

#[test]
fn beside_the_regulator_the_hardware_lets_the_limit_be_reached() {
    let plan = planned(&limited("mba+regulator", "2500MB/s"), &calibrated());
    assert_eq!(percent(&plan), 30);
    let plan = planned(&limited("mba+regulator", "3GB/s"), &calibrated());
    assert_eq!(percent(&plan), 30);
    assert!(
        because(&plan).contains("30% of the requests, which reach it"),
        "{}",
        because(&plan)
    );
}

#[test]
fn where_the_kernel_takes_rates_it_is_told_one() {
    let mut machine = calibrated();
    machine.partitions.mba.as_mut().unwrap().unit = MbaUnit::MibPerS;
    for mechanism in ["mba", "mba+regulator"] {
        let plan = planned(&limited(mechanism, "1GiB/s"), &machine);
        let set = plan.steps.iter().find(|s| s.mechanism == Mechanism::Mba);
        assert_eq!(set.unwrap().set, Setting::MbaRate { mib_s: 1024 });
    }
    let plan = planned(&limited("mba", "1GiB/s"), &machine);
    let weakest = held(&plan, "noise").weakest.clone().unwrap();
    assert!(weakest.contains("once a second"), "{weakest}");
}
