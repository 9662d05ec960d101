//! What divides caches, banks, controllers and CPU time between groups, from steps to what subjects
//! get.

use quell_plan::Setting;
use quell_plan::inventory::Availability;
use quell_record::backend::Backend;
use quell_sim::Sim;
use quell_sim::board::Board;
use quell_sim::profile::Profile;
use quell_types::mechanism::Mechanism;
use quell_types::partition::{ColourChoice, Divides, Mask};
use quell_types::units::{Bytes, Nanos, Share};

use crate::backend::{cpus, group, measure, rate, sim, step, subject};

fn sim_of(name: &str) -> Sim {
    Sim::new(Board::of(Profile::built_in(name).unwrap()).unwrap(), 1).unwrap()
}

fn fast(sim: &mut Sim) -> quell_plan::inventory::Inventory {
    sim.inventory(quell_record::backend::Probe::Fast).unwrap()
}

fn ways(level: u32, mask: Mask) -> Setting {
    Setting::Ways {
        level,
        mask,
        caches_of: cpus(""),
    }
}

fn banks(sim: &mut Sim, colours: &str) -> Setting {
    let banks = fast(sim).partitions.banks.unwrap();
    Setting::Colour {
        choices: vec![ColourChoice {
            divides: Divides::Banks,
            functions: banks.functions,
            colours: cpus(colours),
            nodes: cpus(""),
        }],
        spill: false,
    }
}

/// The inventory agrees with what the published studies say of their machines.
#[test]
fn what_can_be_divided_follows_from_the_profile() {
    let w3530 = fast(&mut sim()).partitions;
    let bits =
        |masks: &[Mask]| -> Vec<u32> { masks.iter().map(|m| m.0.trailing_zeros()).collect() };
    assert_eq!(
        bits(&w3530.banks.clone().unwrap().functions),
        [12, 13, 19, 20]
    );
    assert_eq!(bits(&w3530.joint.unwrap().functions), [12, 13]);
    // Bits 12 to 14 belong to the second level alone.
    assert_eq!(bits(&w3530.sets.unwrap().functions), [15, 16, 17, 18]);
    assert_eq!((w3530.banks.unwrap().large, w3530.ways.len()), (0, 0));

    let p4080 = fast(&mut sim_of("p4080")).partitions;
    assert_eq!(bits(&p4080.sets.clone().unwrap().functions), [14, 15]);
    assert!(p4080.joint.is_none() && p4080.lock.is_none());
    assert_eq!((p4080.ways[0].level, p4080.ways[0].bits), (3, 32));
    for other in [Mechanism::Sets, Mechanism::Banks] {
        let why = p4080.excluded(other, Mechanism::Ways);
        assert!(why.is_some_and(|why| why.contains("sequential")));
    }

    let apollolake = fast(&mut sim_of("apollolake"));
    assert_eq!(apollolake.partitions.lock, Some(2));
    assert_eq!(apollolake.partitions.exclusions, []);
    let caches = apollolake.caches.iter().filter(|cache| cache.level == 2);
    assert_eq!(caches.count(), 2, "one per module");
    // Both threads of a core are in the inventory.
    let icelake = fast(&mut sim_of("icelake-sp"));
    assert_eq!(icelake.cpus[3].siblings, cpus("3,11"));
    assert!(icelake.partitions.mba.is_some() && icelake.partitions.sets.is_none());
    let no = icelake.mechanisms.get(&Mechanism::Banks);
    assert!(matches!(no, Some(Availability::No { why, .. }) if why.contains("icelake-sp")));
    // Every number is reported with its origin.
    let simulated = icelake.simulated.unwrap();
    let find = |name: &str| {
        simulated
            .parameters
            .iter()
            .find(|p| p.name == name)
            .unwrap()
    };
    assert_eq!(find("cores.mhz").value, "2800");
    assert!(find("os.slice").origin.starts_with("assumed: "));
    assert!(simulated.parameters.iter().all(|p| !p.origin.is_empty()));
}

#[test]
fn a_chase_in_banks_of_its_own_is_not_disturbed() {
    let victim = |partition: bool| {
        let mut sim = sim();
        group(&mut sim, "victim", "0", true);
        if partition {
            let (own, rest) = (banks(&mut sim, "0-3"), banks(&mut sim, "4-15"));
            sim.apply(&step("victim", own)).unwrap();
            sim.apply(&step("rest", rest)).unwrap();
        }
        let start = |sim: &mut Sim, name: &str, cpu: &str| {
            sim.start(&subject(name, "latency:size=32MiB", Some(cpu)))
                .unwrap()
        };
        let all = [
            start(&mut sim, "victim", "0"),
            start(&mut sim, "a", "1"),
            start(&mut sim, "b", "2"),
            start(&mut sim, "c", "3"),
        ];
        let outcome = measure(&mut sim, &all, Nanos::millis(2), Nanos::millis(4));
        let windows = &outcome.results[&all[0]].metrics["latency_ns"];
        windows.iter().sum::<f64>() / windows.len() as f64
    };
    let (shared, own) = (victim(false), victim(true));
    assert!(
        own < 0.97 * shared,
        "{own} ns in its own banks, {shared} ns in all"
    );
}

#[test]
fn large_pages_have_no_colours_and_are_refused_with_the_cost() {
    let mut sim = sim();
    group(&mut sim, "victim", "0", true);
    let own = banks(&mut sim, "0-3");
    sim.apply(&step("victim", own)).unwrap();
    let run = "latency:size=8MiB,pages=2MiB";
    let error = sim
        .start(&subject("victim", run, None))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("a page of 2MiB leaves 1 of the 16 colours of DRAM banks"),
        "{error}"
    );
    // The rest has no colours, so large pages are allowed there.
    sim.start(&subject("other", run, None)).unwrap();
}

#[test]
fn ways_locks_and_the_throttle_are_the_profiles_own() {
    let mut xeon = sim();
    let mask = Mask(0xf);
    let refused = |sim: &mut Sim, set| sim.apply(&step("rest", set)).unwrap_err().to_string();
    let text = refused(&mut xeon, ways(3, mask));
    assert_eq!(text, "ways: the profile xeon-w3530 does not have it");
    assert!(refused(&mut xeon, Setting::Mba { percent: 50 }).starts_with("mba: "));

    let mut sim = sim_of("apollolake");
    let size = Bytes(128 << 10);
    assert!(refused(&mut sim, ways(2, Mask(0x100))).contains("of 8 bits"));
    assert!(refused(&mut sim, ways(1, mask)).contains("L1"));
    group(&mut sim, "rta", "0", true);
    sim.apply(&step(
        "rta",
        Setting::Lock {
            level: 2,
            mask: Mask(1),
            size,
        },
    ))
    .unwrap();
    sim.apply(&step("rest", ways(2, Mask(0xfe)))).unwrap();
    let rta = sim
        .start(&subject("rta", "latency:size=128KiB", None))
        .unwrap();
    let noise = sim
        .start(&subject("noise", "bandwidth:read,size=8MiB", Some("1")))
        .unwrap();
    let outcome = measure(&mut sim, &[rta, noise], Nanos::millis(1), Nanos::millis(3));
    let windows = &outcome.results[&rta].metrics["latency_ns"];
    // 17 cycles of the second level at 1.6 GHz, or the first level.
    assert!(windows.iter().all(|ns| *ns < 12.0), "{windows:?}");

    let mut icelake = sim_of("icelake-sp");
    assert!(refused(&mut icelake, Setting::Mba { percent: 5 }).contains("10 to 100 %"));
    icelake
        .apply(&step("rest", Setting::Mba { percent: 10 }))
        .unwrap();
}

#[test]
fn a_quota_of_cpu_time_holds() {
    let mut sim = sim();
    group(&mut sim, "noise", "1", false);
    let stream = |sim: &mut Sim| {
        let run = "bandwidth:read,size=16KiB";
        let noise = sim.start(&subject("noise", run, Some("1"))).unwrap();
        rate(&measure(sim, &[noise], Nanos::millis(10), Nanos::millis(20)).results[&noise])
    };
    let free = stream(&mut sim);
    sim.undo().unwrap();
    group(&mut sim, "noise", "1", false);
    let (share, period) = (Share::percent(25), Nanos::millis(5));
    sim.apply(&step("noise", Setting::CpuMax { share, period }))
        .unwrap();
    let part = stream(&mut sim) / free;
    assert!((0.23..0.27).contains(&part), "{part}");
}

#[test]
fn a_simulated_machine_can_go_to_another_thread() {
    fn send<T: Send>(_: &T) {}
    send(&sim());
}
