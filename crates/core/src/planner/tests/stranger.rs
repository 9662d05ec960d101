//! What a stranger who must act on a plan would object to: statements that are not true, costs that are not told, ways out
//! that lead nowhere.

use super::*;

fn cpus(plan: &Plan, group: &str) -> String {
    plan.cpus(group)
        .map(ToString::to_string)
        .unwrap_or_default()
}

const TWO: &str = "
[group.victim]
role = 'critical'
command = ['a']
cpus = 1
[group.first]
role = 'best-effort'
command = ['b']
[group.second]
role = 'best-effort'
command = ['c']
";

/// The steps that hold a group's CPUs, by what they set.
fn holding(plan: &Plan, group: &str) -> (bool, bool) {
    let held = held(plan, group);
    let any = |f: fn(&Setting) -> bool| {
        plan.steps
            .iter()
            .any(|s| held.held_by.contains(&s.id) && f(&s.set))
    };
    (
        any(|s| matches!(s, Setting::MoveIrqs { .. })),
        any(|s| matches!(s, Setting::WorkqueueMask { .. })),
    )
}

#[test]
fn a_group_that_takes_its_interrupts_is_not_held_by_sending_them_away() {
    let leaves = "[group.net]\nrole='critical'\ncommand=['n']\ncpus=1\nirqs='leave'\n";
    let plan = planned(&format!("{PAIR}{leaves}"), &machine(4, 1));
    assert_eq!(holding(&plan, "victim"), (true, true));
    assert_eq!(holding(&plan, "net"), (false, true));
    let weakest = plan.promises[1].weakest.clone().unwrap();
    assert!(weakest.contains("irqs = \"leave\""), "{weakest}");
    // Kernel work is kept off, whatever is done about interrupts.
    let plan = planned(leaves, &machine(4, 1));
    assert_eq!(holding(&plan, "net"), (false, true));
    assert!(!told(&plan, "cannot be moved"), "{:?}", plan.notes);
}

#[test]
fn groups_that_count_their_cpus_get_different_ones() {
    let text = TWO
        .replace("['b']", "['b']\ncpus = 1")
        .replace("['c']", "['c']\ncpus = 1");
    let plan = planned(&text, &machine(4, 1));
    assert_eq!(
        (cpus(&plan, "first"), cpus(&plan, "second")),
        ("0".into(), "1".into())
    );
    // Too few: they share, as before.
    let plan = planned(&text, &machine(2, 1));
    assert_eq!(
        (cpus(&plan, "first"), cpus(&plan, "second")),
        ("0".into(), "0".into())
    );
}

#[test]
fn unmatched_tasks_are_not_put_beside_a_critical_group() {
    // CPUs 0 and 2 are one core; the group shares it from CPU 2, or would from the highest core's.
    let text =
        "[group.net]\nrole='critical'\ncommand=['n']\ncpus='2'\nsmt='shared'\n[rest]\ncpus = 1\n";
    let plan = planned(text, &machine(2, 2));
    let rest = plan.steps.iter().find_map(|s| match &s.set {
        Setting::ConfineRest { cpus } => Some(cpus.to_string()),
        _ => None,
    });
    assert_eq!(rest.as_deref(), Some("1"), "0 shares the core of 2");
}

#[test]
fn a_limited_group_with_cpus_of_its_own_stops_nobody_else() {
    let text = TWO.replace("['b']", "['b']\ncpus = 2\nlimit.bandwidth = '4GB/s'");
    let plan = planned(&text, &machine(8, 1));
    assert_eq!(
        (cpus(&plan, "first"), cpus(&plan, "second")),
        ("0-1".into(), "2-6".into())
    );
    assert!(
        plan.groups[1].throttled_along.is_empty(),
        "{:?}",
        plan.groups
    );
    // Where nothing else is left, and where no throttler comes, nobody is kept off.
    assert_eq!(cpus(&planned(&text, &machine(3, 1)), "second"), "0-1");
    let quota = format!("mechanisms.bandwidth = 'none'\n{text}");
    assert_eq!(cpus(&planned(&quota, &machine(8, 1)), "second"), "0-6");
}

#[test]
fn a_small_limit_takes_the_cpus_it_can_be_held_on() {
    // 1 GB/s over 7 CPUs would be 1.4 % of each; one CPU's floor is 600 MB/s.
    let limited = format!("{PAIR}limit.bandwidth = '1GB/s'\n");
    let plan = planned(&limited, &machine(8, 1));
    assert_eq!(cpus(&plan, "noise"), "0");
    assert_eq!(
        regulation(&plan).budget,
        Lines::at(Rate(1_000_000_000), Nanos::millis(1))
    );
    assert!(
        told(&plan, "runs on CPU 0 of the 7 left"),
        "{:?}",
        plan.notes
    );
    // 10 % of the 20 GB/s there are: three times the floor.
    let plan = planned(&format!("{PAIR}limit.bandwidth = '10%'\n"), &machine(8, 1));
    assert_eq!(cpus(&plan, "noise"), "0-2");
    // What the policy says is not changed.
    let asked = format!("{limited}cpus = 'remaining'\n");
    assert!(refused(&asked, &machine(8, 1)).contains("below the floor"));
}

#[test]
fn a_way_out_of_the_floor_tells_what_it_costs() {
    let text = refused(
        &format!("{PAIR}limit.bandwidth = '10%'\ncpus = 'remaining'\n"),
        &machine(8, 1),
    );
    for way in [
        "group.noise.cpus = 3",
        "at least 4.2GB/s (21%)",
        "gives the whole group 20% of one CPU's time",
        "require = \"none\": nothing is promised then",
    ] {
        assert!(text.contains(way), "{way}: {text}");
    }
}

#[test]
fn groups_that_counters_cannot_tell_apart_have_one_budget() {
    let text = TWO
        .replace("cpus = 1", "cpus = 1\nreserve.bandwidth = '2GB/s'")
        .replace("['b']", "['b']\nweight = 200");
    let plan = planned(&text, &counted(machine(4, 1), ""));
    let budgets: Vec<Lines> = plan
        .steps
        .iter()
        .filter_map(|s| match &s.set {
            Setting::Regulate(r) => Some(r.budget),
            _ => None,
        })
        .collect();
    // All of the 20 - 2 GB/s, over three CPUs; the smaller of two budgets would have left a third of it.
    assert_eq!(budgets, [Lines::at(Rate(6_000_000_000), Nanos::millis(1))]);
    assert!(told(&plan, "have one budget together"), "{:?}", plan.notes);
    assert_eq!(plan.level(), Level::Regulated);
    let apart = text
        .replace("['c']", "['c']\ncpus = '0'")
        .replace("['b']", "['b']\ncpus = '1-2'");
    let steps = planned(
        &format!("require='none'\n{apart}"),
        &counted(machine(4, 1), ""),
    )
    .steps;
    let regulated = |s: &&Step| matches!(s.set, Setting::Regulate(_));
    assert_eq!(
        steps.iter().filter(regulated).count(),
        2,
        "told apart by CPU"
    );
}

#[test]
fn limits_on_the_same_cpus_tell_what_both_get() {
    let text = TWO
        .replace("['b']", "['b']\nlimit.bandwidth = '6GB/s'")
        .replace("['c']", "['c']\nlimit.bandwidth = '3GB/s'");
    let plan = planned(&text, &counted(machine(4, 1), ""));
    assert!(
        told(
            &plan,
            "on the same CPUs 0-2: the counters count both, so that together they get no more than the smaller budget, 1GB/s for each CPU"
        ),
        "{:?}",
        plan.notes
    );
    // With one CPU for both there are none to be given.
    let plan = planned(&text, &machine(2, 1));
    assert!(
        told(&plan, "on the same CPU 0") && !told(&plan, "of its own"),
        "{:?}",
        plan.notes
    );
}

#[test]
fn what_the_others_cannot_draw_needs_no_limit() {
    // One CPU for the others: 10 of 20 GB/s, though nothing limits unmatched tasks.
    let plan = planned(RESERVE, &machine(2, 1));
    let held = plan.promises.last().unwrap();
    assert_eq!(held.level, Level::Estimated);
    let weakest = held.weakest.clone().unwrap();
    assert!(
        weakest.contains("on CPU 0 draws at most 10GB/s"),
        "{weakest}"
    );
    // Three of them can draw it all.
    assert!(refused(RESERVE, &machine(4, 1)).contains("unmatched tasks"));
}

#[test]
fn a_cpuset_of_one_node_has_the_memory_of_one_node() {
    let plan = planned(PAIR, &two_nodes(4));
    assert!(
        told(&plan, "group victim gets memory from node 1 only"),
        "{:?}",
        plan.notes
    );
    assert!(!told(&plan, "group noise gets memory"), "{:?}", plan.notes);
    assert!(!told(&planned(PAIR, &machine(4, 1)), "gets memory"));
}

#[test]
fn slower_cpus_in_a_critical_group_are_named() {
    let mut hybrid = machine(4, 1);
    for cpu in &mut hybrid.cpus[2..] {
        cpu.tier = 1;
    }
    let plan = planned(&PAIR.replace("cpus = 1", "cpus = 3"), &hybrid);
    assert!(told(&plan, "CPU 3 is of a slower kind"), "{:?}", plan.notes);
    assert!(!told(&planned(PAIR, &hybrid), "slower kind"));
}

#[test]
fn a_machine_too_small_is_told_once() {
    let text = format!("{}cpus = 2\n", PAIR.replace("cpus = 1", "cpus = 2"));
    let text = refused(&text, &machine(2, 1));
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(
        text.contains("every CPU (0-1)") && text.contains("cpus = \"any\""),
        "{text}"
    );
}

#[test]
fn an_exempt_group_is_where_every_other_task_is() {
    let text = format!(
        "{PAIR}[group.radio]\nrole = 'exempt'\nmatch = [{{ comm = 'radio' }}]\n[rest]\ncpus = 1\n"
    );
    let plan = planned(&text, &machine(4, 1));
    assert_eq!(
        (cpus(&plan, "noise"), cpus(&plan, "radio")),
        ("0-2".into(), "0".into())
    );
    assert!(told(&plan, "stays off CPUs 1-3"), "{:?}", plan.notes);
}
