//! The sizes that `quell profile --sweep` tries on a machine.

use quell_plan::inventory::{Availability, Inventory};
use quell_record::demand::{Subject, Swept};
use quell_sim::profile::Profile;
use quell_types::cpuset::CpuSet;
use quell_types::mechanism::Mechanism;
use quell_types::units::{Bytes, Rate};

use super::written::PROGRAM;

/// Number of budgets, besides all that the machine has.
const BUDGETS: i32 = 8;
/// The smallest budget ÷ the full rate.
const LEAST_BUDGET: f64 = 0.05;

/// One size.
#[derive(Clone, Debug, PartialEq)]
pub struct Size {
    /// As a policy writes it.
    pub label: String,
    /// Ways, colours, or bytes per second.
    pub size: u64,
    /// Cache in it.
    pub cache: Option<Bytes>,
    /// The keys that give it to the program's group, as TOML.
    pub keys: String,
}

/// The sizes of one thing.
#[derive(Clone, Debug, PartialEq)]
pub struct Sizes {
    /// The cache level that is divided.
    pub level: Option<u32>,
    /// The parts or limits, the smallest first.
    pub parts: Vec<Size>,
    /// All of it: no key at all.
    pub whole: Size,
}

/// The sizes on this machine for a program with these CPUs, or why there are none.
pub fn sizes(swept: Swept, machine: &Inventory, cpus: &CpuSet) -> Result<Sizes, String> {
    match swept {
        Swept::Ways => ways(machine),
        Swept::Colours => colours(machine),
        Swept::Budgets => budgets(machine, cpus),
    }
}

/// What divides a cache so. `None` for budgets, which any machine with measured rates has.
const fn mechanism(swept: Swept) -> Option<Mechanism> {
    match swept {
        Swept::Ways => Some(Mechanism::Ways),
        Swept::Colours => Some(Mechanism::Sets),
        Swept::Budgets => None,
    }
}

/// Where else it can be tried.
pub fn elsewhere(swept: Swept, subject: &Subject) -> String {
    let Some(mechanism) = mechanism(swept) else {
        return "`quell doctor --deep` measures the rates".to_owned();
    };
    let has = |name: &&str| {
        let profile = Profile::built_in(name);
        profile.is_ok_and(|p| p.mechanisms.available.contains(&mechanism))
    };
    let sims: Vec<String> = Profile::names()
        .filter(has)
        .map(|p| format!("sim:{p}"))
        .collect();
    let sims = sims.join(", ");
    match (swept, subject) {
        (Swept::Ways, Subject::Generator { .. }) => {
            format!("sweep on a simulated machine (--on {sims}) or in the lab (--on lab:icelake)")
        }
        (Swept::Ways, _) => format!(
            "sweep it in the lab (--on lab:icelake), or a generator like it on a simulated machine (--on {sims})"
        ),
        (_, Subject::Generator { .. }) => format!("sweep on a simulated machine (--on {sims})"),
        _ => format!("sweep a generator like it on a simulated machine (--on {sims})"),
    }
}

/// Why a mechanism cannot be used here. `None` if it can.
fn lacking(machine: &Inventory, mechanism: Mechanism) -> Option<String> {
    match machine.mechanisms.get(&mechanism) {
        Some(Availability::Yes { .. }) => None,
        Some(Availability::No { why, .. }) => Some(why.clone()),
        None => Some("nothing is known of it here".to_owned()),
    }
}

/// The size of the caches of a level: the smallest one.
fn cache(machine: &Inventory, level: u32) -> Bytes {
    let caches = machine.caches.iter().filter(|c| c.holds_data_at(level));
    caches.map(|c| c.size).min().unwrap_or_default()
}

fn ways(machine: &Inventory) -> Result<Sizes, String> {
    if let Some(why) = lacking(machine, Mechanism::Ways) {
        return Err(why);
    }
    let last = machine.partitions.ways.iter().max_by_key(|w| w.level);
    let Some(last) = last else {
        return Err("nothing says how many ways its caches have".to_owned());
    };
    let (bits, least) = (last.bits, last.least.max(1));
    let each = cache(machine, last.level).0 / u64::from(bits.max(1));
    let size = |n: u32| Size {
        label: n.to_string(),
        size: n.into(),
        cache: Some(Bytes(each * u64::from(n))),
        keys: format!("group.{PROGRAM}.reserve.cache = {{ ways = {n} }}"),
    };
    // All other tasks keep the smallest mask that there is.
    let parts = least..bits.saturating_sub(least - 1);
    Ok(Sizes {
        level: Some(last.level),
        parts: parts.map(size).collect(),
        whole: whole(size(bits)),
    })
}

fn colours(machine: &Inventory) -> Result<Sizes, String> {
    if let Some(why) = lacking(machine, Mechanism::Sets) {
        return Err(why);
    }
    let Some(sets) = &machine.partitions.sets else {
        return Err("nothing says how many colours its last-level cache has".to_owned());
    };
    let (count, bits) = (sets.count(), sets.functions.len());
    let level = machine.caches.iter().map(|c| c.level).max().unwrap_or(0);
    let each = cache(machine, level).0 / u64::from(count.max(1));
    let size = |n: u32| {
        let list: CpuSet = (0..n).collect();
        Size {
            label: list.to_string(),
            size: n.into(),
            cache: Some(Bytes(each * u64::from(n))),
            keys: format!("group.{PROGRAM}.reserve.cache = {{ colours = \"{list}\" }}"),
        }
    };
    Ok(Sizes {
        level: Some(level),
        parts: (0..bits).map(|bit| size(1 << bit)).collect(),
        whole: whole(size(count)),
    })
}

fn budgets(machine: &Inventory, cpus: &CpuSet) -> Result<Sizes, String> {
    let Some(measured) = &machine.measured else {
        return Err("its rates were not measured".to_owned());
    };
    // A limit above what the program's CPUs can draw limits nothing.
    let reach = measured.peak_cpu.0.saturating_mul(cpus.len() as u64);
    let full = measured.sustainable.min(Rate(reach));
    let size = |rate: Rate| Size {
        label: rate.to_string(),
        size: rate.0,
        cache: None,
        keys: format!(
            "group.{PROGRAM}.allow = [\"throttle\"], group.{PROGRAM}.limit.bandwidth = \"{rate}\""
        ),
    };
    let share = |n: i32| LEAST_BUDGET.powf(1.0 - f64::from(n) / f64::from(BUDGETS));
    let rates = (0..BUDGETS).map(|n| Rate::measured(full.0 as f64 * share(n)));
    Ok(Sizes {
        level: None,
        parts: rates.map(size).collect(),
        whole: whole(size(full)),
    })
}

/// The size that is given by no key.
fn whole(size: Size) -> Size {
    Size {
        label: "all".to_owned(),
        keys: String::new(),
        ..size
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_record::backend::{Backend, Probe};
    use quell_sim::Sim;
    use quell_sim::board::Board;

    fn machine(profile: &str) -> Inventory {
        let board = Board::of(Profile::built_in(profile).unwrap()).unwrap();
        Sim::new(board, 1).unwrap().inventory(Probe::Fast).unwrap()
    }

    fn tried(swept: Swept, profile: &str) -> Result<Sizes, String> {
        sizes(swept, &machine(profile), &CpuSet::from_iter([0]))
    }

    #[test]
    fn every_way_but_the_last_is_a_size() {
        let sizes = tried(Swept::Ways, "icelake-sp").unwrap();
        let counts: Vec<u64> = sizes.parts.iter().map(|s| s.size).collect();
        assert_eq!(counts, (1..12).collect::<Vec<u64>>());
        assert_eq!(sizes.parts[2].cache, Some(Bytes(3 << 20)));
        assert_eq!((sizes.level, sizes.whole.size), (Some(3), 12));
        assert_eq!(sizes.whole.label, "all");
        let sizes = tried(Swept::Ways, "apollolake").unwrap();
        assert_eq!((sizes.level, sizes.parts.len()), (Some(2), 7));
    }

    #[test]
    fn masks_of_two_ways_leave_two_ways_to_all_others() {
        let mut machine = machine("icelake-sp");
        machine.partitions.ways[0].least = 2;
        let sizes = sizes(Swept::Ways, &machine, &CpuSet::from_iter([0])).unwrap();
        let counts: Vec<u64> = sizes.parts.iter().map(|s| s.size).collect();
        assert_eq!(counts, (2..11).collect::<Vec<u64>>());
    }

    #[test]
    fn colours_are_powers_of_two() {
        let sizes = tried(Swept::Colours, "xeon-w3530").unwrap();
        let counts: Vec<u64> = sizes.parts.iter().map(|s| s.size).collect();
        assert!(counts.len() > 1 && counts.iter().all(|n| n.is_power_of_two()));
        assert_eq!(sizes.whole.size, counts[counts.len() - 1] * 2);
        assert_eq!(sizes.parts[1].label, "0-1");
        assert_eq!(sizes.whole.cache, Some(Bytes(8 << 20)));
    }

    #[test]
    fn budgets_are_steps_of_one_factor_from_a_twentieth() {
        let board = Board::of(Profile::built_in("apollolake").unwrap()).unwrap();
        let machine = Sim::new(board, 1).unwrap().inventory(Probe::Deep).unwrap();
        let full = machine.measured.as_ref().unwrap();
        let sizes = sizes(Swept::Budgets, &machine, &CpuSet::from_iter([0])).unwrap();
        assert_eq!(sizes.whole.size, full.peak_cpu.min(full.sustainable).0);
        let of = |n: usize| sizes.parts[n].size as f64 / sizes.whole.size as f64;
        assert!((of(0) - 0.05).abs() < 0.001, "{}", of(0));
        for n in 1..sizes.parts.len() {
            assert!((of(n) / of(n - 1) - 1.454).abs() < 0.02, "{}", of(n));
        }
        assert!(of(7) < 0.7);
    }

    #[test]
    fn a_machine_that_cannot_divide_names_one_that_can() {
        let why = tried(Swept::Ways, "xeon-e5645").unwrap_err();
        assert!(why.contains("xeon-e5645 does not have it"), "{why}");
        assert!(tried(Swept::Budgets, "xeon-w3530").is_err(), "unmeasured");
        let generator = Subject::Generator {
            run: "latency".parse().unwrap(),
        };
        let command = Subject::Command {
            command: vec!["true".to_owned()],
        };
        let there = elsewhere(Swept::Ways, &generator);
        assert!(there.contains("sim:icelake-sp") && there.contains("lab:icelake"));
        assert!(!there.contains("xeon"), "{there}");
        assert!(elsewhere(Swept::Ways, &command).contains("a generator like it"));
        let there = elsewhere(Swept::Colours, &command);
        assert!(there.contains("sim:xeon-w3530") && !there.contains("lab"));
    }
}
