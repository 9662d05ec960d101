//! Separate ways for code and for data.

use quell_types::partition::{CodeData, Mask};

use super::boards::{apollolake, icelake_sp};
use super::*;

const BOTH: &str = "reserve.cache={ code=2, data=4 }";

fn policy(victim: &str, noise: &str) -> String {
    format!("{PAIR}{noise}\n").replace(
        "cpus = 1\n[group.noise]",
        &format!("cpus = 1\n{victim}\n[group.noise]"),
    )
}

fn that_can(code_data: CodeData) -> Inventory {
    let mut machine = icelake_sp();
    machine.partitions.ways[0].code_data = code_data;
    machine
}

/// Of each group: its ways for code and for data.
fn ways(plan: &Plan) -> Vec<(Option<&str>, Mask, Mask)> {
    let told = plan.steps.iter().filter_map(|step| match step.set {
        Setting::Ways { mask, .. } => Some((step.group.as_deref(), mask, mask)),
        Setting::WaysCodeData { code, data, .. } => Some((step.group.as_deref(), code, data)),
        _ => None,
    });
    told.collect()
}

#[test]
fn code_and_data_get_different_ways_and_the_rest_neither() {
    let plan = planned(&policy(BOTH, ""), &that_can(CodeData::Now));
    assert_eq!(
        ways(&plan),
        [
            (Some("victim"), Mask(0x3), Mask(0x3c)),
            (Some("noise"), Mask(0xfc0), Mask(0xfc0)),
            (Some("rest"), Mask(0xfc0), Mask(0xfc0)),
        ]
    );
    let mounts = |s: &Step| matches!(s.set, Setting::MountCodeData { .. });
    assert!(!plan.steps.iter().any(mounts), "it is mounted so");
    let mut held = plan.promises.iter();
    let held = held.find(|p| matches!(p.promise, Promise::ReserveWays { .. }));
    assert_eq!(
        held.unwrap().promise.to_string(),
        "6 ways (0x3f) of L3 to itself"
    );
}

#[test]
fn what_nobody_has_mounted_is_mounted_so_before_anything_is_set() {
    let once = CodeData::OnceMounted { classes: 3 };
    let plan = planned(&policy(BOTH, ""), &that_can(once));
    let first = |set: fn(&Setting) -> bool| plan.steps.iter().position(|s| set(&s.set)).unwrap();
    let mounted = first(|s| matches!(s, Setting::MountCodeData { levels } if levels == &[3]));
    assert!(mounted < first(|s| matches!(s, Setting::WaysCodeData { .. })));
    assert!(mounted < first(|s| matches!(s, Setting::Ways { .. })));
    let mut held = plan.promises.iter();
    let held = held.find(|p| matches!(p.promise, Promise::ReserveWays { .. }));
    assert!(held.unwrap().held_by.contains(&plan.steps[mounted].id));
    // Then there are fewer classes: that of the rest, which the noise shares by name, and one each
    // for two owners.
    let two = policy(BOTH, "reserve.cache={ ways=2 }");
    planned(&two, &that_can(once));
    let text = refused(&two, &that_can(CodeData::OnceMounted { classes: 2 }));
    assert!(
        text.contains("takes 3 classes of service") && text.contains("has 2"),
        "{text}"
    );
}

#[test]
fn where_it_cannot_be_had_the_plan_says_what_to_do() {
    let text = refused(&policy(BOTH, ""), &icelake_sp());
    assert!(
        text.starts_with(
            "group.victim.reserve.cache: the ways of L3 cannot be given to code and data separately"
        ) && text.contains("{ ways = 4 }"),
        "{text}"
    );
    let text = refused(&policy(BOTH, ""), &that_can(CodeData::MountedWithout));
    assert!(
        text.contains("mounting it again changes no option") && text.contains("umount"),
        "{text}"
    );
    let one_each = policy("reserve.cache={ code=1, data=1 }", "");
    let mut pairs = that_can(CodeData::Now);
    pairs.partitions.ways[0].least = 2;
    let text = refused(&one_each, &pairs);
    assert!(text.contains("at least 2 ways"), "{text}");
}

#[test]
fn what_follows_or_is_locked_cannot_be_apart() {
    let text = format!("mechanisms.ways='by-misses'\n{}", policy(BOTH, ""));
    let text = refused(&text, &that_can(CodeData::Now));
    assert!(text.contains("the same for code and data"), "{text}");
    let mut machine = apollolake();
    machine.partitions.ways[0].code_data = CodeData::Now;
    let locked = policy(
        "reserve.cache={ code=1, data=1 }",
        "reserve.cache={ locked='128KiB' }",
    );
    let text = refused(&locked, &machine);
    assert!(
        text.contains("nothing can be locked while code and data have separate ways"),
        "{text}"
    );
}
