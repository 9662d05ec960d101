//! Inventories shaped like the machines of the published case studies.

use quell_types::partition::{
    CodeData, Colouring, Exclusion, Mask, MbaBounds, MbaUnit, WayPartition,
};

use super::*;

/// With these mechanisms at their best.
pub(super) fn with(mut machine: Inventory, mechanisms: &[Mechanism]) -> Inventory {
    for mechanism in mechanisms {
        let how = "as on the test machine".to_owned();
        let best = if *mechanism == Mechanism::Mba {
            Level::Estimated
        } else {
            Level::Enforced
        };
        machine
            .mechanisms
            .insert(*mechanism, Availability::Yes { best, how });
    }
    counted(machine, "")
}

/// A simulated machine: no tasks run but those of the groups.
pub(super) fn simulated(mut machine: Inventory) -> Inventory {
    machine.simulated = Some(Simulated {
        profile: "test".to_owned(),
        parameters: Vec::new(),
    });
    machine
}

fn colours(functions: &[u64], large: u32) -> Option<Colouring> {
    Some(Colouring::of_pages(functions.iter().copied(), large))
}

fn bits(list: &[u32]) -> Vec<u64> {
    list.iter().map(|bit| 1 << bit).collect()
}

/// Eight cores; 32 ways of L3 with holes; 4 colours of sets, 16 of banks; ways exclude both.
pub(super) fn p4080() -> Inventory {
    let mut machine = with(
        machine(8, 1),
        &[Mechanism::Ways, Mechanism::Sets, Mechanism::Banks],
    );
    machine.caches[0].size = Bytes(2 << 20);
    machine.partitions = Partitions {
        ways: vec![WayPartition {
            level: 3,
            bits: 32,
            least: 1,
            classes: 16,
            sparse: true,
            shareable: Mask::default(),
            code_data: CodeData::default(),
        }],
        sets: colours(&bits(&[14, 15]), 0),
        banks: colours(&bits(&[16, 17, 18, 19]), 0),
        exclusions: vec![Exclusion {
            mechanism: Mechanism::Ways,
            with: vec![Mechanism::Sets, Mechanism::Banks],
            reason: "ways are given per memory region, so each core's memory must be sequential; partition by set or bank needs \
                     interleaved pages"
                .to_owned(),
        }],
        ..Partitions::default()
    };
    simulated(machine)
}

/// Four cores; no ways; 16 colours of sets and 16 of banks, which share two bits.
pub(super) fn xeon_w3530() -> Inventory {
    let mut machine = with(machine(4, 1), &[Mechanism::Sets, Mechanism::Banks]);
    machine.caches[0].size = Bytes(8 << 20);
    machine.partitions = Partitions {
        sets: colours(&bits(&[15, 16, 17, 18]), 0),
        banks: colours(&bits(&[12, 13, 19, 20]), 0),
        joint: colours(&bits(&[12, 13]), 0),
        ..Partitions::default()
    };
    simulated(machine)
}

/// Two modules of two cores, each with an L2 of eight segments, of which some can be locked; banks
/// by hashes.
pub(super) fn apollolake() -> Inventory {
    let mut machine = with(
        machine(4, 1),
        &[Mechanism::Ways, Mechanism::PseudoLock, Mechanism::Banks],
    );
    let whole = machine.caches[0].clone();
    machine.caches = (0..2)
        .map(|module| Cache {
            level: 2,
            size: Bytes(1 << 20),
            cpus: CpuSet::from_iter([2 * module, 2 * module + 1]),
            ..whole.clone()
        })
        .collect();
    let pair = |a: u32, b: u32| 1 << a | 1 << b;
    machine.partitions = Partitions {
        ways: vec![WayPartition {
            level: 2,
            bits: 8,
            least: 1,
            classes: 4,
            sparse: false,
            shareable: Mask::default(),
            code_data: CodeData::default(),
        }],
        banks: colours(&[pair(14, 17), pair(15, 18), pair(16, 19)], 0),
        lock: Some(2),
        ..Partitions::default()
    };
    machine
}

/// Eight cores; 12 ways of L3; bandwidth in steps of 10 %.
pub(super) fn icelake_sp() -> Inventory {
    let mut machine = with(machine(8, 1), &[Mechanism::Ways, Mechanism::Mba]);
    machine.caches[0].size = Bytes(12 << 20);
    machine.partitions = Partitions {
        ways: vec![WayPartition {
            level: 3,
            bits: 12,
            least: 1,
            classes: 15,
            sparse: false,
            shareable: Mask::default(),
            code_data: CodeData::default(),
        }],
        mba: Some(MbaBounds {
            classes: 8,
            least: 10,
            step: 10,
            unit: MbaUnit::Percent,
        }),
        ..Partitions::default()
    };
    machine
}
