//! Which resources can be tried on a machine: decided on values.

use quell_plan::inventory::Inventory;
use quell_record::demo::Resource;
use quell_types::units::Bytes;

/// What is known besides the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Whether we may change the machine.
    pub root: bool,
    /// Whether the processor is emulated.
    pub emulated: bool,
    /// Memory that is free or can be freed; absent: not known.
    pub available: Option<Bytes>,
}

/// What `hurts-memory` needs: its limit, and as much again for the rest of the machine.
const FOR_MEMORY: Bytes = Bytes(256 << 20);
/// Both programs of `hurts-bandwidth`, in measured caches.
const FOR_BANDWIDTH: u64 = 8;

/// Why a resource is left out, and what would let it be tried.
pub fn left_out(resource: Resource, machine: &Inventory, facts: Facts) -> Option<String> {
    let cpus = machine.cpus.len();
    let lacks = |needed: Bytes| {
        let available = facts.available.filter(|a| *a < needed)?;
        Some(format!(
            "it needs {needed} of free memory, and {available} are free"
        ))
    };
    if facts.emulated && !matches!(resource, Resource::Cpu | Resource::Memory) {
        return Some("an emulated processor has no times of its own for it".to_owned());
    }
    if !matches!(resource, Resource::Cpu | Resource::Sibling) && cpus < 2 {
        return Some(format!("it needs two CPUs, and {cpus} is usable here"));
    }
    match resource {
        Resource::Cpu | Resource::Disk => None,
        Resource::Memory if !facts.root => Some(
            "it needs root: a cgroup limits both programs, so that the rest of the machine keeps \
             its memory"
                .to_owned(),
        ),
        Resource::Memory => lacks(FOR_MEMORY),
        Resource::Cache => crate::machine::unseen(machine),
        Resource::Bandwidth => {
            let cpu = machine.cpus.first()?.id;
            let needed = machine
                .data_caches(cpu)
                .seen
                .0
                .saturating_mul(FOR_BANDWIDTH);
            lacks(Bytes(needed.saturating_mul(2)))
        }
        Resource::Sibling => {
            let usable = machine.cpu_set();
            let pair = |c: &quell_plan::inventory::Cpu| c.siblings.intersection(&usable).len() > 1;
            (!machine.cpus.iter().any(pair))
                .then(|| "every usable core has one thread here".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use quell_plan::deep::{CacheSteps, LevelSeen};
    use quell_plan::inventory::Measured;
    use quell_types::units::Rate;

    const ROOT: Facts = Facts {
        root: true,
        emulated: false,
        available: Some(Bytes(8 << 30)),
    };

    /// Two cores of one thread, 1 MiB of second level, 32 MiB of last level, of which so much is
    /// seen.
    fn machine(seen: u64) -> Inventory {
        let mut machine: Inventory = serde_json::from_value(serde_json::json!({
            "identity": {"kernel": "6.18", "architecture": "x86_64", "vendor": "v", "model": "m"},
            "cpus": [{"id": 0, "siblings": "0", "package": 0, "node": 0},
                     {"id": 1, "siblings": "1", "package": 0, "node": 0}],
            "caches": [{"level": 2, "kind": "unified", "size": "1MiB", "line": "64B", "cpus": "0"},
                       {"level": 3, "kind": "unified", "size": "32MiB", "line": "64B", "cpus": "0-1"}],
            "nodes": [], "mechanisms": {},
            "means": {"cpuset": "v1", "movable-irqs": 0, "fixed-irqs": 0, "workqueue-mask": false,
                "meter": {"kind": "time"}, "time-meter": true, "brake": {"Ok": null},
                "brake-in-place": {"Ok": null}, "cpu-max": true, "counter-users": []}
        }))
        .unwrap();
        let steps = CacheSteps {
            cpu: 0,
            points: Vec::new(),
            levels: vec![LevelSeen {
                level: 3,
                claimed: Bytes(32 << 20),
                seen: Some(Bytes(seen)),
                latency_ns: None,
            }],
            memory_ns: 100.0,
        };
        machine.measured = Some(Measured {
            peak_cpu: Rate(8_000_000_000),
            peak_operation: "read".to_owned(),
            by_operation: BTreeMap::new(),
            sustainable: Rate(8_000_000_000),
            cpus: 2,
            stop_cost: None,
            operations: Vec::new(),
            counters: BTreeMap::new(),
            mba: None,
            within_cache: None,
            assumed: false,
            rest: None,
            cache_steps: Some(steps),
            at_unix_s: 0,
            deep: None,
        });
        machine
    }

    fn tried(machine: &Inventory, facts: Facts) -> Vec<&'static str> {
        Resource::ALL
            .into_iter()
            .filter(|r| left_out(*r, machine, facts).is_none())
            .map(Resource::name)
            .collect()
    }

    #[test]
    fn what_the_machine_lacks_is_left_out() {
        let two = machine(8 << 20);
        assert_eq!(
            tried(&two, ROOT),
            ["cpu", "memory", "cache", "bandwidth", "disk"]
        );
        let user = Facts {
            root: false,
            ..ROOT
        };
        assert_eq!(tried(&two, user), ["cpu", "cache", "bandwidth", "disk"]);
        let lab = Facts {
            emulated: true,
            ..ROOT
        };
        assert_eq!(tried(&two, lab), ["cpu", "memory"]);
        let small = Facts {
            available: Some(Bytes(100 << 20)),
            ..ROOT
        };
        assert_eq!(tried(&two, small), ["cpu", "cache", "disk"]);
        let mut one = two.clone();
        one.cpus.truncate(1);
        assert_eq!(tried(&one, ROOT), ["cpu"]);
    }

    #[test]
    fn a_cache_no_larger_than_the_second_level_is_not_seen() {
        let seen = machine(1 << 20);
        assert_eq!(tried(&seen, ROOT), ["cpu", "memory", "bandwidth", "disk"]);
        let why = left_out(Resource::Cache, &seen, ROOT).unwrap();
        assert!(why.contains("32MiB reported"), "{why}");
    }

    #[test]
    fn a_core_with_two_threads_has_a_sibling() {
        let mut machine = machine(8 << 20);
        for cpu in &mut machine.cpus {
            cpu.siblings = "0-1".parse().unwrap();
        }
        assert!(tried(&machine, ROOT).contains(&"sibling"));
    }
}
