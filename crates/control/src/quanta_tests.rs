use std::collections::BTreeSet;

use proptest::prelude::*;
use quell_types::options::SchedulerPolicy;
use quell_types::units::Nanos;

use super::*;

/// The policies that a policy file can name and that are not the kernel's.
const POLICIES: [SchedulerPolicy; 8] = [
    SchedulerPolicy::Fair,
    SchedulerPolicy::Random,
    SchedulerPolicy::Worst,
    SchedulerPolicy::BandwidthAware,
    SchedulerPolicy::Select,
    SchedulerPolicy::Pair,
    SchedulerPolicy::Bounded,
    SchedulerPolicy::Progress,
];

fn scheduling(policy: SchedulerPolicy, bound: u32) -> Scheduling {
    Scheduling {
        policy,
        quantum: Nanos::millis(200),
        bound,
        cores: Vec::new(),
        groups: BTreeMap::new(),
        counted: false,
        sustainable: Some(Rate(10_000_000_000)),
        peak_cpu: Some(Rate(6_000_000_000)),
    }
}

fn cores(all: &[&str]) -> Vec<CpuSet> {
    all.iter().map(|cpus| cpus.parse().unwrap()).collect()
}

/// A process whose rates follow from its number.
fn process(id: u64) -> Ready {
    let demand = ProgramDemand {
        memory: Rate(id * 700_000_000 % 5_000_000_000),
        first_level: Rate(id * 3_000_000_000 % 20_000_000_000),
    };
    Ready {
        id,
        demand,
        did: None,
    }
}

fn ids(turns: &[Turn]) -> BTreeSet<u64> {
    turns.iter().map(|turn| turn.id).collect()
}

proptest! {
    #[test]
    fn every_cpu_has_a_turn_and_no_process_waits_too_long(
        policy in 0..POLICIES.len(),
        bound in 0..6_u32,
        threads in 1..3_usize,
        changes in prop::collection::vec((0..5_u32, 0..4_usize, 1..12_usize), 1..5),
        seed: u64,
    ) {
        let all = if threads == 1 { cores(&["0", "3"]) } else { cores(&["0,4", "1,5"]) };
        let cpus: BTreeSet<CpuId> = all.iter().flat_map(CpuSet::iter).collect();
        let mut quanta = Quanta::new(&scheduling(POLICIES[policy], bound), &all, seed);
        let mut ready: Vec<Ready> = Vec::new();
        let mut waited: BTreeMap<u64, u32> = BTreeMap::new();
        let mut most = 0;
        for (end, begin, length) in changes {
            ready.drain(..(end as usize).min(ready.len()));
            let next = ready.last().map_or(1, |r| r.id + 1);
            ready.extend((next..).take(begin).map(process));
            waited.retain(|id, _| ready.iter().any(|r| r.id == *id));
            most = most.max(quanta.longest_wait(ready.len()));
            for _ in 0..length {
                let turns = quanta.decide(&ready);
                let on: BTreeSet<CpuId> = turns.iter().map(|turn| turn.cpu).collect();
                prop_assert_eq!(turns.len(), ready.len().min(cpus.len()));
                prop_assert_eq!((on.len(), ids(&turns).len()), (turns.len(), turns.len()));
                prop_assert!(on.is_subset(&cpus));
                for Ready { id, .. } in &ready {
                    let waited = waited.entry(*id).or_default();
                    *waited = if ids(&turns).contains(id) { 0 } else { *waited + 1 };
                    prop_assert!(*waited <= most, "{id} waits for {waited} of {most}");
                }
            }
        }
    }
}

#[test]
fn the_bound_holds_for_policies_without_one() {
    let all = cores(&["0", "1"]);
    let ready: Vec<Ready> = (1..=5).map(process).collect();
    for policy in [SchedulerPolicy::Random, SchedulerPolicy::Select] {
        let mut quanta = Quanta::new(&scheduling(policy, 2), &all, 1);
        assert_eq!(quanta.longest_wait(5), 2);
        let mut ran: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for quantum in 0..300 {
            for turn in quanta.decide(&ready) {
                ran.entry(turn.id).or_default().push(quantum);
            }
        }
        assert_eq!(ran.len(), 5);
        for at in ran.values() {
            assert!(
                at.windows(2).all(|w| w[1] - w[0] <= 3),
                "{policy:?}: {at:?}"
            );
        }
    }
}

#[test]
fn with_fewer_processes_than_cpus_all_run_where_they_are() {
    let all = cores(&["0", "1", "2"]);
    for policy in POLICIES {
        let mut quanta = Quanta::new(&scheduling(policy, 4), &all, 7);
        assert_eq!(quanta.decide(&[]), []);
        let one = quanta.decide(&[process(9)]);
        assert_eq!(ids(&one), [9].into());
        let two = quanta.decide(&[process(9), process(10)]);
        assert_eq!(ids(&two), [9, 10].into());
        for _ in 0..5 {
            let again = quanta.decide(&[process(9), process(10)]);
            let place = |turns: &[Turn]| {
                let all = turns.iter().map(|turn| (turn.id, turn.cpu));
                all.collect::<BTreeSet<_>>()
            };
            assert_eq!(place(&again), place(&two), "{policy:?}");
            assert!(again.contains(&one[0]), "{policy:?}");
        }
    }
}

#[test]
fn cores_of_different_sizes_are_divided_into_cpus() {
    let mut quanta = Quanta::new(
        &scheduling(SchedulerPolicy::Bounded, 4),
        &cores(&["0-1", "2"]),
        1,
    );
    let ready: Vec<Ready> = (1..=4).map(process).collect();
    let turns = quanta.decide(&ready);
    let cpus: BTreeSet<CpuId> = turns.iter().map(|turn| turn.cpu).collect();
    assert_eq!(cpus, [0, 1, 2].into());
}

#[test]
fn without_a_cpu_nothing_runs() {
    let mut quanta = Quanta::new(&scheduling(SchedulerPolicy::Fair, 4), &[], 1);
    assert_eq!(quanta.decide(&[process(1)]), []);
}

#[test]
fn counters_say_what_a_process_demands() {
    let declared = scheduling(SchedulerPolicy::Bounded, 4);
    let mut quanta = Quanta::new(&declared, &cores(&["0"]), 1);
    let at = |id, cpu_ms: u64, lines| Ready {
        did: Some(Work {
            cpu_ns: cpu_ms * 1_000_000,
            cycles: cpu_ms * 2_000_000,
            instructions: cpu_ms * 1_000_000,
            memory: lines,
            first_level: 10 * lines,
        }),
        ..process(id)
    };
    let rates = |quanta: &Quanta, one| {
        let member = quanta.member(&one);
        let all = [member.ipc, member.memory, member.first_level];
        (all, member.alone.memory)
    };
    let process = process(1);
    let memory = per_microsecond(process.demand.memory);
    let first_level = per_microsecond(process.demand.first_level);
    let before = ([0.0, memory, first_level], memory);
    // What it did before it took turns does not count.
    assert_eq!(quanta.decide(&[at(1, 7, 900)]).len(), 1);
    assert_eq!(rates(&quanta, process), before);
    // It ran alone, then next to one that waits, then waits itself, and then counters are lost.
    quanta.decide(&[at(1, 17, 20_900), at(2, 0, 0)]);
    assert_eq!(rates(&quanta, process), ([0.5, 2.0, 20.0], 2.0));
    let waits = quanta.known[&1].waited == 1;
    assert!(waits || quanta.known[&2].waited == 1);
    let more = if waits { 17 } else { 27 };
    quanta.decide(&[at(1, more, 60_900), at(2, 27 - more, 0)]);
    let after = match waits {
        true => ([0.5, 2.0, 20.0], 2.0),
        false => ([0.5, 4.0, 40.0], 3.0),
    };
    assert_eq!(rates(&quanta, process), after);
    for one in [process, at(1, 90, 1_000_000)] {
        quanta.decide(&[one]);
        assert_eq!(rates(&quanta, process), after);
    }
}
