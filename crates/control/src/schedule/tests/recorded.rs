//! A schedule on record: what it is read from, what is replayed, and the recording itself next to
//! the model of the kernel.

use std::collections::BTreeMap;

use super::*;
use crate::schedule::linux::Linux;
use crate::schedule::recorded::{Recorded, Recording, kernel};
use quell_types::units::Nanos;

/// The part of a replay's time in which each process runs, and in which each two share a core.
#[derive(Debug, Default)]
struct Shares {
    of_each: BTreeMap<usize, f64>,
    together: BTreeMap<(usize, usize), f64>,
}

fn shares(policy: &mut dyn Scheduler, quanta: u32) -> Shares {
    let members = vec![Member::default(); 24];
    let mut found = Shares::default();
    for _ in 0..quanta {
        let seats = policy.decide(&members, CORES).unwrap();
        for seat in &seats {
            *found.of_each.entry(seat.member).or_default() += 1.0 / f64::from(quanta);
        }
        for core in 0..CORES.count {
            let on: Vec<usize> = seats
                .iter()
                .filter(|seat| seat.core == core)
                .map(|seat| seat.member)
                .collect();
            if let [a, b] = on[..] {
                let pair = (a.min(b), a.max(b));
                *found.together.entry(pair).or_default() += 1.0 / f64::from(quanta);
            }
        }
    }
    found
}

#[test]
fn a_recording_is_read_or_its_first_wrong_line_named() {
    let text = "# made by hand\ncpu 0: 0x20 1x10\ncpu 1: -x5 2x30\n";
    let found = Recording::read(text).unwrap();
    assert_eq!((found.cpus(), found.processes()), (2, 3));
    assert_eq!(found.length(), Nanos::millis(3));
    let at = |cpu, us| found.at(cpu, Nanos::micros(us));
    assert_eq!(
        [at(0, 0), at(0, 1_999), at(0, 2_000)],
        [Some(0), Some(0), Some(1)]
    );
    assert_eq!([at(1, 0), at(1, 500), at(2, 0)], [None, Some(2), None]);
    for (wrong, line) in [
        ("cpu 1: 0x1", 1),
        ("\ncpu 0 0x1", 2),
        ("cpu 0: 0", 1),
        ("cpu 0: 300x1", 1),
        ("cpu 0: 1x-2", 1),
        ("core 0: 1x2", 1),
    ] {
        assert_eq!(Recording::read(wrong), Err(line), "{wrong}");
    }
}

#[test]
fn a_replay_needs_the_same_processor_and_no_more_members() {
    let mut policy = Recorded::new(kernel(), Nanos::millis(3), 1);
    let members = vec![Member::default(); 25];
    let refused = policy.decide(&members, CORES);
    assert_eq!(
        refused,
        Err(TooMany {
            there: 25,
            most: 24
        })
    );
    let four = Cores { count: 4, ..CORES };
    assert!(policy.decide(&members[..8], four).is_err());
    let seats = policy.decide(&members[..3], CORES).unwrap();
    assert!(seats.iter().all(|seat| seat.member < 3), "{seats:?}");
}

#[test]
fn the_kernel_gave_each_process_its_share() {
    let mut policy = Recorded::new(kernel(), Nanos::millis(3), 1);
    let quanta = kernel().length().0 / Nanos::millis(3).0;
    let found = shares(&mut policy, u32::try_from(quanta).unwrap());
    let all: Vec<f64> = found.of_each.values().copied().collect();
    assert_eq!(all.len(), 24);
    let busy: f64 = all.iter().sum();
    assert!(busy > 11.6, "of twelve hardware threads {busy} were busy");
    let (least, most) = all.iter().fold((1.0_f64, 0.0_f64), |(least, most), share| {
        (least.min(*share), most.max(*share))
    });
    println!("shares of CPU time from {least:.3} to {most:.3}");
    assert!(most / least < 1.06, "{all:?}");
}

/// The model keeps each process on its hardware thread, as the kernel did.
#[test]
fn the_model_shares_cores_as_the_kernel_did() {
    let slice = Nanos::millis(3);
    let quanta = u32::try_from(kernel().length().0 / slice.0).unwrap();
    let pairs = |policy: &mut dyn Scheduler| {
        let found = shares(policy, quanta);
        let mut all: Vec<f64> = found.together.into_values().collect();
        all.sort_by(f64::total_cmp);
        all.reverse();
        all
    };
    let kernels = pairs(&mut Recorded::new(kernel(), slice, 1));
    let model = pairs(&mut Linux::new(1));
    let often = |all: &[f64]| all.iter().filter(|share| **share > 0.02).count();
    println!(
        "pairs that share a core for over 2 % of the time: the kernel {}, its model {}; the most \
         frequent {:.3} and {:.3}",
        often(&kernels),
        often(&model),
        kernels[0],
        model[0]
    );
    // Four programs of a core make four pairs.
    assert_eq!([often(&kernels), often(&model)], [24, 24]);
    let near = kernels.iter().zip(&model).take(24);
    let apart = near.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(apart < 0.06, "{apart}: {kernels:?} and {model:?}");
}
