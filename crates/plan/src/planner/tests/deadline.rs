//! The closed loop around a target.

use quell_types::source::Source;

use super::*;
use crate::plan::Adaptation;

const DEADLINE: &str = "regulator.adapt = 'deadline'
[group.victim]
role = 'critical'
command = ['a']
cpus = 1
target.deadline = '8ms'
[group.noise]
role = 'best-effort'
command = ['b']
";

fn adapts(plan: &Plan) -> &Adaptation {
    plan.loops.adapts.as_ref().expect("nothing adapts")
}

#[test]
fn without_a_reserve_the_others_begin_with_all_they_draw() {
    let plan = planned(DEADLINE, &machine(4, 1));
    let adapts = adapts(&plan);
    assert_eq!(adapts.groups, ["victim"]);
    let observed = &plan.loops.observed["victim"];
    assert_eq!(observed.deadline, Some(Nanos::millis(8)));
    assert_eq!(observed.percentile, Share::percent(99));
    assert_eq!(adapts.sustainable, Rate(20_000_000_000));
    assert_eq!(adapts.draws["victim"], Rate(10_000_000_000));
    // A twentieth of each of three CPUs, and all of them.
    let [lever] = adapts.levers.as_slice() else {
        panic!("{:?}", adapts.levers)
    };
    assert_eq!(lever.most, Rate(30_000_000_000));
    assert_eq!(lever.least, Rate(3 * 500_000_000));
    let step = plan.steps.iter().find(|s| s.id == lever.step).unwrap();
    assert!(matches!(&step.set, Setting::Regulate(r) if r.cpus.len() == 3));
    assert_eq!(plan.loops.observed["victim"].source, Source::Client);
    // Where bytes are counted, all CPUs together draw no more than they sustain.
    let plan = planned(DEADLINE, &counted(machine(4, 1), ""));
    assert_eq!(
        plan.loops.adapts.unwrap().levers[0].most,
        Rate(20_000_000_000)
    );
}

#[test]
fn one_neighbour_has_at_least_its_reserve_and_at_most_its_draw() {
    let text = format!("require = 'none'\n{DEADLINE}cpus = 1\nreserve.bandwidth = '3GB/s'");
    let plan = planned(&text, &machine(4, 1));
    let lever = &adapts(&plan).levers[0];
    assert_eq!(
        (lever.least, lever.most),
        (Rate(3_000_000_000), Rate(10_000_000_000))
    );
}

#[test]
fn a_written_reserve_and_a_written_limit_are_the_start() {
    let reserve = DEADLINE.replace("cpus = 1", "cpus = 1\nreserve.bandwidth = '14GB/s'");
    let plan = planned(&format!("require = 'none'\n{reserve}"), &machine(4, 1));
    assert_eq!(adapts(&plan).levers[0].most, Rate(6_000_000_000));
    let text = format!("{DEADLINE}cpus = 1\nlimit.bandwidth = '4GB/s'");
    let plan = planned(&text, &machine(4, 1));
    assert_eq!(adapts(&plan).levers[0].most, Rate(4_000_000_000));
}

#[test]
fn a_reclaimed_reserve_grows_as_the_others_are_left_less() {
    let reserve = DEADLINE.replace("cpus = 1", "cpus = 1\nreserve.bandwidth = '4GB/s'");
    let plan = planned(
        &format!("require = 'none'\nregulator.reclaim = true\n{reserve}"),
        &machine(4, 1),
    );
    let [headroom] = adapts(&plan).headroom.as_slice() else {
        panic!("{:?}", adapts(&plan))
    };
    assert_eq!(
        (headroom.group.as_str(), headroom.least),
        ("victim", Rate(4_000_000_000))
    );
    let regulations = plan.steps.iter().filter_map(|s| match &s.set {
        Setting::Regulate(r) => Some((s.id, r.pooling.as_ref()?.headroom)),
        _ => None,
    });
    for (step, is_headroom) in regulations {
        assert_eq!(is_headroom, step == headroom.step);
    }
    // Without reclaim nothing is given, and nothing has to be moved.
    let plan = planned(&format!("require = 'none'\n{reserve}"), &machine(4, 1));
    assert_eq!(adapts(&plan).headroom, []);
}

#[test]
fn the_target_is_a_promise_worth_what_the_levers_are() {
    let plan = planned(DEADLINE, &machine(4, 1));
    let promise = plan
        .promises
        .iter()
        .find(|p| matches!(p.promise, Promise::Deadline { .. }))
        .unwrap();
    assert_eq!(
        (promise.group.as_str(), promise.level),
        ("victim", Level::Estimated)
    );
    assert_eq!(promise.promise.to_string(), "99% of its units within 8ms");
    assert_eq!(promise.held_by, [adapts(&plan).levers[0].step]);
    let plan = planned(DEADLINE, &counted(machine(4, 1), ""));
    let promise = plan
        .promises
        .iter()
        .find(|p| matches!(p.promise, Promise::Deadline { .. }))
        .unwrap();
    assert_eq!(promise.level, Level::Regulated, "{:?}", promise.weakest);
}

#[test]
fn a_target_that_nothing_follows_is_observed_and_told() {
    let off = DEADLINE.replace("regulator.adapt = 'deadline'", "");
    let plan = planned(&off, &machine(4, 1));
    assert_eq!(plan.loops.adapts, None);
    assert_eq!(plan.loops.observed["victim"].source, Source::Client);
    assert!(
        told(&plan, "nothing holds them inside its target"),
        "{:?}",
        plan.notes
    );
    let wish = off.replace("'8ms'", "'8ms'\ntarget.source = 'none'");
    let plan = planned(&wish, &machine(4, 1));
    assert!(plan.loops.observed.is_empty());
    assert!(
        told(&plan, "its units are not observed"),
        "{:?}",
        plan.notes
    );
}

#[test]
fn what_cannot_be_followed_is_refused_with_a_remedy() {
    let machine = machine(4, 1);
    let without = DEADLINE.replace("target.deadline = '8ms'", "");
    assert!(refused(&without, &machine).contains("no critical group has a target"));
    let wish = DEADLINE.replace("'8ms'", "'8ms'\ntarget.source = 'none'");
    assert!(refused(&wish, &machine).contains("no critical group has a target"));
    let slowdown = DEADLINE.replace("deadline = '8ms'", "slowdown = 1.1");
    let text = refused(&slowdown, &machine);
    assert!(
        text.contains("group.victim.target.slowdown: no profile says how long"),
        "{text}"
    );
    assert!(text.contains("run `quell profile"), "{text}");
    // This holds whether anything follows it or not.
    let off = slowdown.replace("regulator.adapt = 'deadline'", "");
    assert!(refused(&off, &machine).contains("group.victim.target.slowdown"));
    let running = DEADLINE
        .replace("command = ['a']", "match = [{ comm = 'a' }]")
        .replace(
            "'8ms'",
            "'8ms'\ntarget.source = { pattern = '([0-9]+)', unit = 'ms' }",
        );
    assert!(
        refused(&running, &machine).contains("write target.source = \"client\" in [group.victim]")
    );
    let strict = DEADLINE.replace(
        "regulator.adapt",
        "regulator.strict = true\nregulator.adapt",
    );
    assert!(refused(&strict, &machine).contains("with regulator.strict"));
    let alone = DEADLINE.split("[group.noise]").next().unwrap().to_owned();
    assert!(refused(&alone, &machine).contains("no best-effort group has a budget"));
    let quota = format!("mechanisms.bandwidth = 'none'\n{DEADLINE}limit.bandwidth = '2GB/s'");
    assert!(refused(&quota, &machine).contains("no best-effort group has a budget"));
}

#[test]
fn several_targets_share_the_levers_and_each_is_a_promise() {
    let two = format!(
        "{DEADLINE}[group.other]\nrole = 'critical'\nmatch = [{{ comm = 'c' }}]\ncpus = 1\ntarget.deadline = '1ms'"
    );
    let plan = planned(&two, &machine(4, 1));
    assert_eq!(adapts(&plan).groups, ["other", "victim"]);
    assert!(
        told(&plan, "the group that is latest decides"),
        "{:?}",
        plan.notes
    );
    let targets: Vec<_> = plan
        .promises
        .iter()
        .filter(|p| matches!(p.promise, Promise::Deadline { .. }))
        .map(|p| (p.group.as_str(), p.promise.to_string()))
        .collect();
    assert_eq!(
        targets,
        [
            ("other", "99% of its units within 1ms".to_owned()),
            ("victim", "99% of its units within 8ms".to_owned())
        ]
    );
    // One that runs already is found as its group is.
    assert_eq!(
        plan.loops.observed["other"].matching[0].comm.as_deref(),
        Some("c")
    );
    assert!(plan.loops.observed["victim"].matching.is_empty());
}

#[test]
fn a_slowdown_is_so_many_times_what_the_profile_has() {
    let text = DEADLINE.replace("deadline = '8ms'", "slowdown = 1.1");
    let with = |took| {
        let profile = "detector".to_owned();
        let works_on = None;
        let solo = Solo {
            profile,
            took,
            works_on,
            curve: None,
            demand: Err("not asked for".to_owned()),
        };
        let solos = Solos::from([("victim".to_owned(), solo)]);
        plan_beside(&policy(&text), &machine(4, 1), &solos)
    };
    let plan = with(Ok(Nanos(7_312_345))).unwrap();
    assert_eq!(
        plan.loops.observed["victim"].deadline,
        Some(Nanos::micros(8_044))
    );
    assert!(
        told(
            &plan,
            "alone 99% of its units took 7312.345us at most (profile detector): they may take 8.044ms"
        ),
        "{:?}",
        plan.notes
    );
    // It bounds the period as a written one does.
    let written = DEADLINE.replace("'8ms'", "'8044us'");
    let written = planned(&written, &machine(4, 1));
    let steps = |plan: &Plan| plan.steps.clone();
    assert_eq!(steps(&plan), steps(&written));
    let refusals = with(Err("profile detector tells of no units".to_owned())).unwrap_err();
    assert_eq!(
        refusals[0].to_string(),
        "group.victim.target.slowdown: profile detector tells of no units; run `quell profile -- PROGRAM`"
    );
}
