use super::bandwidth_aware::{BandwidthAware, printed};
use super::bounded::Bounded;
use super::contention::Contention;
use super::fair::Fair;
use super::oracle::Oracle;
use super::pair::Pair;
use super::progress::Progress;
use super::random::Random;
use super::select::Select;
use super::selection::target;
use super::worst::Worst;
use super::*;

mod plant;
mod properties;
mod recorded;
mod study;

/// About what the machine of the study can do. Four instructions per cycle, one load and one store
/// at 2.4 GHz; three channels of DDR3-1333 at two thirds of their peak; ten misses of 67 ns each.
const E5645: Contention = Contention {
    issue: 4.0,
    ports: 4_800.0,
    memory: 333.0,
    thread: 149.0,
};
const CORES: Cores = Cores {
    count: 6,
    threads: 2,
};

/// A member that does alone what it did in its last quantum.
fn member(memory: f64, first_level: f64, waited: u32) -> Member {
    Member {
        alone: Alone {
            memory,
            ipc: 1.0,
            time: 10.0,
        },
        memory,
        first_level,
        ipc: 1.0,
        progress: 0.5,
        age: 10,
        waited,
    }
}

/// Every policy but the exhaustive one.
fn policies(bound: u32, seed: u64) -> Vec<Box<dyn Scheduler>> {
    vec![
        Box::new(BandwidthAware),
        Box::new(Select),
        Box::new(Pair),
        Box::new(Bounded::new(bound)),
        Box::new(Random::new(seed)),
        Box::new(Worst),
        Box::new(Progress),
        Box::new(Fair::new(E5645, bound)),
    ]
}

/// The members of each core.
fn by_core(seats: &[Seat], cores: Cores) -> Vec<Vec<usize>> {
    let mut groups = vec![Vec::new(); cores.count];
    for seat in seats {
        groups[seat.core].push(seat.member);
    }
    groups
}

/// Computed by hand. The mean is 14, so WK is 56 for four threads. The head is member 0. Then
/// 46 ÷ 3 is closest to 14, 32 ÷ 2 to 20, and 12 ÷ 1 to 8.
fn six() -> Vec<Member> {
    vec![
        member(10.0, 100.0, 3),
        member(2.0, 900.0, 1),
        member(30.0, 800.0, 1),
        member(8.0, 200.0, 1),
        member(20.0, 300.0, 0),
        member(14.0, 400.0, 0),
    ]
}

const TWO: Cores = Cores {
    count: 2,
    threads: 2,
};

#[test]
fn the_printed_selection_is_the_one_computed_by_hand() {
    assert_eq!(printed(&six(), 4), [0, 5, 4, 3]);
    let seats = BandwidthAware.decide(&six(), TWO).unwrap();
    assert_eq!(by_core(&seats, TWO), [[5, 0], [4, 3]]);
    let seats = Select.decide(&six(), TWO).unwrap();
    assert_eq!(by_core(&seats, TWO), [[0, 4], [5, 3]]);
}

#[test]
fn the_target_is_weighted_by_time_alone() {
    let mut two = [member(10.0, 0.0, 0), member(30.0, 0.0, 0)];
    two[0].alone.time = 30.0;
    assert!((target(&two, 4) - 60.0).abs() < 1e-9);
    (two[0].alone.time, two[1].alone.time) = (0.0, 0.0);
    assert!((target(&two, 4) - 80.0).abs() < 1e-9);
    assert!(target(&[], 4).abs() < 1e-9);
}

#[test]
fn without_rates_the_printed_selection_is_a_queue() {
    let members: Vec<Member> = (0..6).map(|i| member(0.0, 0.0, i % 3)).collect();
    assert_eq!(printed(&members, 4), [2, 5, 1, 4]);
}

#[test]
fn the_pairing_folds_and_the_worst_one_stacks() {
    let members: Vec<Member> = (0..4).map(|i| member(1.0, f64::from(i), 0)).collect();
    let folded = Pair.decide(&members, TWO).unwrap();
    assert_eq!(by_core(&folded, TWO), [[3, 0], [2, 1]]);
    let stacked = Worst.decide(&members, TWO).unwrap();
    assert_eq!(by_core(&stacked, TWO), [[3, 2], [1, 0]]);
    let few = Pair.decide(&members[..2], TWO).unwrap();
    assert_eq!(by_core(&few, TWO), [[1], [0]]);
}

#[test]
fn more_threads_per_core_are_folded_back_and_forth() {
    let cores = Cores {
        count: 2,
        threads: 4,
    };
    let members: Vec<Member> = (0..8).map(|i| member(1.0, f64::from(i), 0)).collect();
    let folded = Pair.decide(&members, cores).unwrap();
    assert_eq!(by_core(&folded, cores), [[7, 4, 3, 0], [6, 5, 2, 1]]);
}

#[test]
fn half_of_the_threads_go_by_progress() {
    let mut members: Vec<Member> = (0..6).map(|_| member(10.0, 1.0, 0)).collect();
    for (member, progress) in members.iter_mut().zip([0.9, 0.2, 0.8, 0.1, 0.7, 0.6]) {
        member.progress = progress;
    }
    // Ten is left for each of the two others, so the closest to it go.
    (members[0].memory, members[4].memory) = (40.0, 0.0);
    let seats = Progress.decide(&members, TWO).unwrap();
    let mut run: Vec<usize> = seats.iter().map(|seat| seat.member).collect();
    run.sort_unstable();
    assert_eq!(run, [1, 2, 3, 5]);
}

#[test]
fn a_rate_measured_in_company_is_corrected() {
    let mut one = member(20.0, 600.0, 0);
    one.ipc = 0.5;
    let demand = E5645.demand(&one);
    assert!((demand.memory - 40.0 / 333.0).abs() < 1e-9);
    assert!((demand.ports - 1_200.0 / 4_800.0).abs() < 1e-9);
    one.ipc = 0.0;
    assert!((E5645.demand(&one).memory - 20.0 / 333.0).abs() < 1e-9);
}

#[test]
fn two_that_saturate_a_core_get_half_each() {
    let busy = contention::Demand {
        issue: 1.0,
        ..contention::Demand::default()
    };
    let speed = Contention::speed(busy, busy.plus(busy), 0.0);
    assert!((speed - 0.5).abs() < 1e-9);
    let loads = contention::Demand {
        memory: 0.5,
        stall: 1.0,
        ..contention::Demand::default()
    };
    let all = (0..4).fold(contention::Demand::default(), |sum, _| sum.plus(loads));
    let speed = Contention::speed(loads, loads.plus(loads), Contention::excess(all));
    assert!((speed - 0.5).abs() < 1e-9);
    // Neither takes anything from the other.
    assert!((Contention::speed(loads, loads.plus(busy), 0.0) - 1.0).abs() < 1e-9);
}

#[test]
fn the_exhaustive_policy_refuses_many() {
    let members = vec![member(1.0, 1.0, 0); 13];
    let refused = Oracle::new(|_, _| 0.0).decide(&members, TWO);
    assert_eq!(
        refused,
        Err(TooMany {
            there: 13,
            most: 12
        })
    );
}
