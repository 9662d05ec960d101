//! What the simulated machine is and offers, from its board.

use std::collections::BTreeMap;

use quell_core::cpuset::CpuSet;
use quell_core::inventory::{
    Availability, Cache, CacheKind, Cpu, CpusetKind, Identity, Inventory, Means, MeterKind, Node,
    Simulated,
};
use quell_core::mechanism::{Level, Mechanism};
use quell_core::partition::Partitions;
use quell_core::units::{Bytes, Share};

use crate::board::Board;

/// The counter that regulates, as `pmu/event`.
pub(super) const METER: &str = "sim/lines-read";

/// The machine, nothing measured.
pub(super) fn inventory(board: &Board) -> Inventory {
    let levels = &board.description.levels;
    let cores = levels.first().map_or(0, |(level, _)| level.cache_of.len());
    let count = u32::try_from(cores).unwrap_or(u32::MAX);
    let all: CpuSet = (0..count).collect();
    Inventory {
        identity: Identity {
            kernel: format!("simulated by Quell {}", env!("CARGO_PKG_VERSION")),
            architecture: board.architecture.clone(),
            vendor: "simulated".to_owned(),
            model: board.model.clone(),
            microcode: None,
            hypervisor: None,
        },
        cpus: (0..count)
            .map(|id| Cpu {
                id,
                siblings: CpuSet::from_iter([id]),
                package: 0,
                node: 0,
                tier: 0,
            })
            .collect(),
        caches: caches(board),
        nodes: vec![Node {
            id: 0,
            cpus: all,
            memory: Bytes(board.memory()),
        }],
        mechanisms: mechanisms(),
        means: Means {
            cpuset: CpusetKind::V2Partition,
            movable_irqs: 0,
            fixed_irqs: 0,
            workqueue_mask: true,
            meter: MeterKind::Hardware {
                events: vec![METER.to_owned()],
                fills_only: (0..count).collect(),
            },
            time_meter: false,
            realtime: Ok(()),
            cpu_max: false,
            kernel_floor: Share(0),
            counter_users: Vec::new(),
        },
        partitions: Partitions::default(),
        measured: None,
        simulated: Some(Simulated {
            profile: board.name.clone(),
            parameters: board.parameters.clone(),
        }),
    }
}

fn caches(board: &Board) -> Vec<Cache> {
    let mut caches = Vec::new();
    for (number, (level, _)) in (1..).zip(&board.description.levels) {
        let geometry = &level.geometry;
        let sets = geometry.sets();
        let kind = if number == 1 {
            CacheKind::Data
        } else {
            CacheKind::Unified
        };
        let most = level.cache_of.iter().max().copied().unwrap_or(0);
        for which in 0..=most {
            caches.push(Cache {
                level: number,
                kind,
                size: Bytes(sets * u64::from(geometry.ways) * geometry.line),
                ways: Some(geometry.ways),
                sets: u32::try_from(sets).ok(),
                line: Bytes(geometry.line),
                cpus: (0u32..)
                    .zip(&level.cache_of)
                    .filter(|(_, cache)| **cache == which)
                    .map(|(cpu, _)| cpu)
                    .collect(),
            });
        }
    }
    caches
}

fn mechanisms() -> BTreeMap<Mechanism, Availability> {
    let yes = |best, how: &str| Availability::Yes {
        best,
        how: how.to_owned(),
    };
    let no = |why: &str| Availability::No {
        why: why.to_owned(),
        remedy: None,
    };
    Mechanism::ALL
        .into_iter()
        .map(|mechanism| {
            let found = match mechanism {
                Mechanism::Cores => yes(
                    Level::Enforced,
                    "the simulated scheduler keeps everybody else off",
                ),
                Mechanism::Bandwidth => yes(
                    Level::Estimated,
                    "an interrupt when a counter of lines read from memory overflows",
                ),
                Mechanism::CpuMax => no("the simulated machine has no CPU-time quota"),
                Mechanism::Ways
                | Mechanism::Sets
                | Mechanism::Banks
                | Mechanism::PseudoLock
                | Mechanism::Mba => no("not yet built: no policy can ask for it"),
                Mechanism::Memory | Mechanism::Stop | Mechanism::Placement => no("not yet built"),
            };
            (mechanism, found)
        })
        .collect()
}
