//! Ways that follow what their group misses.

use super::boards::{apollolake, icelake_sp, simulated};
use super::*;

fn policy(reserve: &str, more: &str) -> String {
    format!(
        "mechanisms.ways = 'by-misses'\n\
         [group.job]\nrole='critical'\ncommand=['x']\ncpus=1\nreserve.cache={reserve}\n\
         [group.noise]\nrole='best-effort'\ncommand=['x']\ncpus=1\n{more}"
    )
}

#[test]
fn what_a_group_reserves_is_what_it_has_at_most() {
    let plan = planned(&policy("{ ways = 6 }", ""), &icelake_sp());
    let [following] = plan.loops.follows.as_slice() else {
        panic!("{:?}", plan.loops.follows)
    };
    assert_eq!((following.group.as_str(), following.level), ("job", 3));
    assert_eq!(following.own.to_string(), "0x3f");
    assert_eq!(following.left.to_string(), "0xfc0");
    assert_eq!(following.others, ["noise", "rest"]);
    assert_eq!(following.interval, Nanos::millis(100));
    assert_eq!(following.tolerated, Rate(32_000_000));
    let mut held = plan.promises.iter();
    let held = held
        .find(|p| matches!(p.promise, Promise::ReserveWays { .. }))
        .unwrap();
    assert_eq!(held.level, Level::Regulated);
    assert!(
        held.weakest
            .as_ref()
            .unwrap()
            .contains("come back only after it has missed")
    );
    assert!(told(&plan, "come back as soon as it draws more"));
    let simulated = planned(&policy("{ ways = 6 }", ""), &simulated(icelake_sp()));
    assert_eq!(simulated.loops.follows[0].interval, Nanos::millis(1));
}

#[test]
fn without_the_key_ways_stay() {
    let text = policy("{ ways = 6 }", "").replace("by-misses", "fixed");
    let plan = planned(&text, &icelake_sp());
    assert!(plan.loops.follows.is_empty());
    let mut held = plan.promises.iter();
    let held = held
        .find(|p| matches!(p.promise, Promise::ReserveWays { .. }))
        .unwrap();
    assert_eq!(held.level, Level::Enforced);
}

#[test]
fn what_cannot_move_is_refused() {
    let two = "[group.other]\nrole='critical'\ncommand=['x']\ncpus=1\nreserve.cache={ ways = 2 }";
    let told = refused(&policy("{ ways = 4 }", two), &icelake_sp());
    assert!(
        told.contains("groups job and other both reserve ways of L3"),
        "{told}"
    );
    // What is unused below it stays so, and the line above it moves.
    let plan = planned(&policy("{ mask = '0x3c' }", ""), &icelake_sp());
    assert_eq!(plan.loops.follows[0].left.to_string(), "0xfc0");
    let apart = "[group.other]\nrole='best-effort'\ncommand=['x']\ncpus=1\nreserve.cache={ mask = '0x0c0' }";
    let told = refused(&policy("{ mask = '0x03f' }", apart), &icelake_sp());
    assert!(told.contains("are not side by side"), "{told}");
    let told = refused(
        &policy("'25%'", "").replace("reserve.cache='25%'", ""),
        &icelake_sp(),
    );
    assert!(told.contains("no critical group reserves ways"), "{told}");
    let text = policy(
        "{ ways = 2 }",
        "[group.lock]\nrole='critical'\ncommand=['x']\ncpus=1\nreserve.cache={ locked='128KiB' }",
    );
    let plan = planned(&text, &apollolake());
    assert_eq!(
        plan.loops.follows[0].left.to_string(),
        "0x7c",
        "what is locked stays out of it"
    );
}
