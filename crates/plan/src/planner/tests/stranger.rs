//! What a person without prior knowledge would object to in a plan: untrue statements, costs that
//! are not reported, remedies that lead nowhere.

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
fn a_group_that_takes_its_interrupts_is_not_held_by_moving_them() {
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
fn a_limited_group_with_its_own_cpus_keeps_no_group_off() {
    let text = TWO.replace("['b']", "['b']\ncpus = 2\nlimit.bandwidth = '4GB/s'");
    let plan = planned(&format!("{BRAKE}{text}"), &machine(8, 1));
    assert_eq!(
        (cpus(&plan, "first"), cpus(&plan, "second")),
        ("0-1".into(), "0-6".into())
    );
}

#[test]
fn a_small_limit_is_held_on_all_cpus_that_are_left() {
    // 1 GB/s over 7 CPUs is 1.4 % of each.
    let limited = format!("{BRAKE}{PAIR}limit.bandwidth = '1GB/s'\n");
    let plan = planned(&limited, &machine(8, 1));
    assert_eq!(cpus(&plan, "noise"), "0-6");
    let held = regulation(&plan);
    assert!(held.period > Nanos::millis(3), "{}", held.period);
    assert_eq!(held.budget, Lines::at(Rate(1_000_000_000 / 7), held.period));
}

#[test]
fn groups_on_the_same_cpus_have_a_budget_each() {
    let text = TWO
        .replace("cpus = 1", "cpus = 1\nreserve.bandwidth = '2GB/s'")
        .replace("['b']", "['b']\nweight = 200");
    for (machine, level) in [
        (counted(machine(4, 1), ""), Level::Regulated),
        (machine(4, 1), Level::Estimated),
    ] {
        let plan = planned(&text, &machine);
        let budgets: Vec<Lines> = plan
            .steps
            .iter()
            .filter_map(|s| match &s.set {
                Setting::Regulate(r) => Some(r.budget),
                _ => None,
            })
            .collect();
        // The 20 - 2 GB/s by weight, 2 to 1, each over the same three CPUs.
        let rates = [4_000_000_000, 2_000_000_000];
        let each = rates.map(|rate| Lines::at(Rate(rate), Nanos::millis(1)));
        assert_eq!(budgets, each);
        assert_eq!(plan.level(), level);
    }
}

#[test]
fn what_the_others_cannot_draw_needs_no_limit() {
    let unmeasured = |cores| {
        let mut machine = machine(cores, 1);
        machine.measured.as_mut().unwrap().rest = None;
        machine
    };
    // One CPU for all other tasks: 10 of 20 GB/s, though nothing limits unmatched tasks.
    let plan = planned(RESERVE, &unmeasured(2));
    let held = plan.promises.last().unwrap();
    assert_eq!(held.level, Level::Estimated);
    let weakest = held.weakest.clone().unwrap();
    assert!(
        weakest.contains("on CPU 0 draw at most 10GB/s"),
        "{weakest}"
    );
    // Three of them can draw it all.
    assert!(refused(RESERVE, &unmeasured(4)).contains("unmatched tasks"));
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
fn the_die_with_the_largest_cache_is_chosen() {
    let mut machine = machine(8, 1);
    let whole = machine.caches.remove(0);
    for (cpus, size) in [("0-3", 96), ("4-7", 32)] {
        machine.caches.push(Cache {
            size: Bytes(size << 20),
            cpus: cpus.parse().unwrap(),
            ..whole.clone()
        });
    }
    let on = |machine: &Inventory, wanted: &str| {
        let policy = PAIR.replace("cpus = 1", &format!("cpus = {wanted}"));
        let plan = planned(&policy, machine);
        (
            cpus(&plan, "victim"),
            told(&plan, "a last-level cache of 32MiB"),
        )
    };
    assert_eq!(on(&machine, "2"), ("2-3".to_owned(), false));
    assert_eq!(on(&machine, "'4-5'"), ("4-5".to_owned(), true));
    // The smaller one is better than both.
    machine.cpus.retain(|c| c.id > 1);
    assert_eq!(on(&machine, "3"), ("5-7".to_owned(), true));
}

#[test]
fn a_machine_too_small_is_told_once() {
    let text = format!("{}cpus = 2\n", PAIR.replace("cpus = 1", "cpus = 2"));
    let text = refused(&text, &machine(2, 1));
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(
        text.contains("all usable CPUs (0-1)") && text.contains("cpus = \"any\""),
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
