//! Ways through the processor's registers.

use super::boards::icelake_sp;
use super::*;

/// A machine on which nothing but registers divides the cache.
fn bare() -> Inventory {
    let mut machine = icelake_sp();
    machine.means.registers = Ok(machine.partitions.ways.clone());
    machine.means.fixed_irqs = 1;
    machine.partitions = Default::default();
    machine
}

fn asks(keys: &str) -> String {
    let own = format!("{keys}reserve.cache = {{ ways = 2 }}\n");
    format!(
        "mechanisms.registers = true\n{}",
        PAIR.replace("cpus = 1\n", &own)
    )
}

#[test]
fn a_groups_own_cpus_get_a_class_and_all_others_stay() {
    let plan = planned(&asks("cpus = 1\n"), &bare());
    let given = plan.steps.iter().filter_map(|step| match &step.set {
        Setting::WayRegisters { mask, cpus, .. } => {
            Some((step.group.clone().unwrap(), mask.count(), cpus.len()))
        }
        Setting::Ways { .. } | Setting::WaysCpus { .. } => panic!("{step:?}"),
        _ => None,
    });
    let given: Vec<(String, u32, usize)> = given.collect();
    let victim = given.iter().find(|(group, ..)| group == "victim");
    assert_eq!(victim.map(|(_, ways, cpus)| (*ways, *cpus)), Some((2, 1)));
    assert!(given.len() > 1, "{given:?}");
    for (group, _, cpus) in given.iter().filter(|(group, ..)| group != "victim") {
        assert_eq!(*cpus, 0, "{group}");
    }
}

#[test]
fn what_registers_cannot_do_is_refused() {
    let shared = refused(&asks("cpus = 'any'\n"), &bare());
    assert!(shared.contains("no CPUs to itself"), "{shared}");
    let missing = refused(&asks("cpus = 1\n"), &icelake_sp());
    assert!(
        missing.contains("says nothing about its registers"),
        "{missing}"
    );
    let follows = format!("mechanisms.ways = 'by-misses'\n{}", asks("cpus = 1\n"));
    let follows = refused(&follows, &bare());
    assert!(follows.contains("need the counts of resctrl"), "{follows}");
}
