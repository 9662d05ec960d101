//! What was measured, against what the kernel reports and what a policy asks for.

use super::*;
use crate::deep::{Deep, OperationRates, Pair, Sharing, Spread};

/// The machine on which pairs of CPUs were found to share their cache, or not to.
fn found(mut machine: Inventory, pairs: &[(u32, u32, f64)]) -> Inventory {
    let pair = |(a, b, score): &(u32, u32, f64)| Pair {
        a: *a,
        b: *b,
        claimed: true,
        score: Spread::of(&[*score]),
        told: 8,
        probes: 8,
    };
    let deep = Deep {
        sharing: Some(Sharing {
            pairs: pairs.iter().map(pair).collect(),
            controls: Vec::new(),
        }),
        ..Deep::default()
    };
    let measured = machine.measured.as_mut().unwrap();
    measured.at_unix_s = 1_709_251_200;
    measured.deep = Some(Box::new(deep));
    machine
}

#[test]
fn cpus_found_separate_are_reported_and_promise_nothing() {
    let believed = planned(PAIR, &machine(4, 1));
    let mut guest = found(machine(4, 1), &[(0, 3, 0.02), (1, 3, 0.9)]);
    let plan = planned(PAIR, &guest);
    assert!(told(&plan, "shares an L3 cache with CPUs 0-2"));
    assert!(
        told(
            &plan,
            "CPU 0 was found not to share a cache with group victim on 2024-03-01"
        ),
        "{:?}",
        plan.notes
    );
    assert_eq!(plan.promises, believed.promises);
    guest.identity.hypervisor = Some("KVM".to_owned());
    assert!(told(&planned(PAIR, &guest), "the host may change that"));
    // Found as the kernel says, or no answer: no note.
    let agreed = planned(PAIR, &found(machine(4, 1), &[(0, 3, 0.9)]));
    assert_eq!(agreed.notes, believed.notes);
}

#[test]
fn a_cache_the_kernel_does_not_report_is_shared_all_the_same() {
    // The victim is on CPU 7, in the cache of the odd ones.
    let plan = planned(PAIR, &found(two_nodes(4), &[(2, 7, 0.8), (0, 7, 0.1)]));
    assert!(
        told(
            &plan,
            "CPU 2 was found to share a cache with group victim on 2024-03-01, though the kernel does not say so"
        ),
        "{:?}",
        plan.notes
    );
    // One of two CPUs of the group is enough.
    let two = PAIR.replace("cpus = 1", "cpus = '2-3'");
    let plan = planned(&two, &found(machine(4, 1), &[(0, 2, 0.1), (0, 3, 0.9)]));
    assert!(!told(&plan, "CPU 0 was found not"), "{:?}", plan.notes);
}

/// The machine with what each operation reaches on all CPUs together, in GB/s.
fn by_operation(mut machine: Inventory, rates: &[(&str, f64)]) -> Inventory {
    let rates = rates.iter().map(|(operation, gb_s)| OperationRates {
        operation: (*operation).to_owned(),
        alone: Vec::new(),
        loaded: Vec::new(),
        together: Spread::of(&[gb_s * 1e3]).unwrap(),
    });
    machine.measured.as_mut().unwrap().operations = rates.collect();
    machine
}

#[test]
fn a_reserve_that_only_some_operations_sustain_is_not_promised() {
    let machine = by_operation(
        counted(machine(4, 1), ""),
        &[("read", 20.0), ("write", 6.0)],
    );
    let reserve = |rate: &str| {
        let text = RESERVE.replace("2GB/s", rate);
        let plan = planned(&format!("require='none'\n{text}"), &machine);
        let held = plan.promises.last().unwrap();
        (held.level, held.weakest.clone().unwrap())
    };
    assert_eq!(reserve("6GB/s").0, Level::Regulated);
    let (level, why) = reserve("7GB/s");
    assert_eq!(level, Level::None);
    assert!(
        why.contains("come to 7GB/s") && why.contains("by write the CPUs sustain 6GB/s together"),
        "{why}"
    );
    // A policy that states its programs' rate is believed.
    let stated = format!(
        "regulator.sustainable='20GB/s'\n{}",
        RESERVE.replace("2GB/s", "7GB/s")
    );
    assert_eq!(planned(&stated, &machine).level(), Level::Regulated);
}

#[test]
fn percentages_of_an_unmeasured_machine_are_refused() {
    let mut unmeasured = machine(2, 1);
    unmeasured.measured = None;
    let text = refused(&format!("{PAIR}limit.bandwidth = '20%'\n"), &unmeasured);
    assert!(text.contains("quell doctor --deep"), "{text}");
}
