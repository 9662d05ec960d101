//! Limits by bandwidth allocation in hardware.

use super::boards::icelake_sp;
use super::*;

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
    // What is promised is what the hardware was told.
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
fn a_rate_in_bytes_is_refused_with_the_percentage_that_is_near_it() {
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
