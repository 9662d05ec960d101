//! CPUs that were isolated at boot: a critical group is given these where they are enough.

use super::*;

/// A machine whose CPUs in this list are isolated.
fn isolating(cores: u32, isolated: &str) -> Inventory {
    let isolated: CpuSet = isolated.parse().unwrap();
    let mut machine = machine(cores, 1);
    for cpu in &mut machine.cpus {
        cpu.isolated = isolated.contains(cpu.id);
    }
    machine
}

/// The CPUs of the critical group, and whether the plan says that they are isolated.
fn given(cpus: &str, machine: &Inventory) -> (String, bool) {
    let policy = format!("[group.a]\nrole='critical'\ncommand=['x']\ncpus={cpus}\n");
    let plan = planned(&policy, machine);
    let confined = plan.steps.iter().find_map(|step| match &step.set {
        Setting::Confine { cpus, .. } => Some(cpus.to_string()),
        _ => None,
    });
    let told = plan.notes.iter().any(|note| note.contains("isolated"));
    (confined.unwrap_or_default(), told)
}

#[test]
fn isolated_cpus_are_taken_where_they_are_enough() {
    let machine = isolating(4, "0-1");
    assert_eq!(given("1", &machine), ("1".to_owned(), true));
    assert_eq!(given("2", &machine), ("0-1".to_owned(), true));
    assert_eq!(given("'auto'", &machine), ("0-1".to_owned(), true));
}

#[test]
fn a_group_is_not_given_both_kinds_without_need() {
    let machine = isolating(5, "4");
    assert_eq!(given("2", &machine), ("2-3".to_owned(), false));
    assert_eq!(given("'auto'", &machine), ("4".to_owned(), true));
    assert_eq!(given("4", &machine), ("1-4".to_owned(), true));
    assert_eq!(given("'3-4'", &machine), ("3-4".to_owned(), true));
}

#[test]
fn without_isolated_cpus_nothing_is_said_of_them() {
    assert_eq!(given("2", &machine(4, 1)), ("2-3".to_owned(), false));
}
