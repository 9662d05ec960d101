//! Attribution of late time, on made-up units.

use super::*;

const MS: u64 = 1_000_000;

/// A window of a millisecond in which the thread ran all the time.
fn unit(index: u64) -> Unit {
    Unit {
        windows: 1,
        at_ns: (index + 1) * MS,
        wall_ns: MS,
        cpu_ns: MS,
        ..Unit::default()
    }
}

fn shares(units: &[Unit], value: f64, account: &Account, stops: &[Stop]) -> Attribution {
    let account = Account {
        units: units.to_vec(),
        ..account.clone()
    };
    let mut sum = Sum::default();
    sum.add(
        &vec![value; units.len()],
        10.0,
        Better::Lower,
        &account,
        stops,
    );
    sum.attribution().unwrap()
}

fn share(of: &Attribution, cause: Cause) -> f64 {
    let part = of.parts.iter().find(|p| p.cause == cause);
    part.map_or(0.0, |p| p.share)
}

#[test]
fn what_no_clock_accounts_for_is_memory() {
    // Twice the reference: half of the window is late time.
    let found = shares(&[unit(0), unit(1)], 20.0, &Account::default(), &[]);
    assert_eq!((found.units, found.late, found.late_ns), (2, 2, MS));
    assert_eq!(share(&found, Cause::Memory), 1.0);
    assert_eq!(found.memory, Some([1.0, 1.0]));
}

#[test]
fn units_up_to_the_factor_are_not_late() {
    let found = shares(&[unit(0)], 12.5, &Account::default(), &[]);
    assert_eq!((found.late, found.late_ns), (0, 0));
    assert!(found.parts.is_empty() && found.memory.is_none());
    // A rate is late when it is low.
    let mut sum = Sum::default();
    let account = Account {
        units: vec![unit(0)],
        ..Account::default()
    };
    sum.add(&[5.0], 10.0, Better::Higher, &account, &[]);
    assert_eq!(sum.attribution().unwrap().late_ns, MS / 2);
}

#[test]
fn waiting_to_run_is_throttling_as_far_as_a_stop_covers_it() {
    let waiting = Unit {
        cpu_ns: MS / 2,
        waited_ns: MS / 2,
        ..unit(3)
    };
    let stop = |cpu| Stop {
        group: "victim".to_owned(),
        cpu,
        from_ns: 3 * MS + MS / 4,
        until_ns: 3 * MS + MS / 2,
    };
    // 40 against 10: three quarters of the window are late time, half of it a wait.
    let found = shares(&[waiting], 40.0, &Account::default(), &[stop(0), stop(1)]);
    assert_eq!(share(&found, Cause::ThrottledAlong), 0.3333);
    assert_eq!(share(&found, Cause::Preemption), 0.3333);
    assert_eq!(share(&found, Cause::Memory), 0.3333);
}

#[test]
fn time_outside_belongs_to_whoever_can_have_taken_it() {
    let away = Unit {
        cpu_ns: MS / 2,
        ..unit(0)
    };
    let cases = [
        (Cause::Steal, true, false, away),
        (Cause::Interrupts, false, true, away),
        (Cause::Standstill, false, false, away),
        (Cause::Faults, true, false, Unit { major: 1, ..away }),
        (Cause::Waiting, true, false, Unit { slept: 1, ..away }),
    ];
    for (cause, guest, interrupts_apart, unit) in cases {
        let account = Account {
            guest,
            interrupts_apart,
            ..Account::default()
        };
        let found = shares(&[unit], 20.0, &account, &[]);
        assert_eq!(share(&found, cause), 1.0, "{cause:?}");
    }
}

#[test]
fn what_is_counted_widens_the_bounds_of_memory() {
    let account = Account {
        fault_ns: 1_000.0,
        interrupted: 0.05,
        ..Account::default()
    };
    let faulting = Unit {
        minor: 100,
        ..unit(0)
    };
    let found = shares(&[faulting], 20.0, &account, &[]);
    assert_eq!(share(&found, Cause::Faults), 0.2);
    assert_eq!(share(&found, Cause::Interrupts), 0.1);
    assert_eq!(share(&found, Cause::Memory), 0.7);
    assert_eq!(found.memory, Some([0.7, 1.0]));
    assert_eq!(found.parts[1].how, How::Counted);
}

#[test]
fn steal_that_no_unit_shows_lowers_what_is_sure_to_be_memory() {
    let account = Account {
        guest: true,
        steal_ns: 10 * MS + MS / 4,
        ..Account::default()
    };
    let found = shares(&[unit(0)], 20.0, &account, &[]);
    assert_eq!(share(&found, Cause::Memory), 1.0);
    assert_eq!(found.memory, Some([0.5, 1.0]));
}

#[test]
fn a_step_that_stands_still_is_no_memory() {
    let stuck = Unit {
        stalled_ns: MS / 4,
        ..unit(0)
    };
    let found = shares(&[stuck], 20.0, &Account::default(), &[]);
    assert_eq!(share(&found, Cause::Standstill), 0.5);
    // Unless the scheduler says that it waited.
    let waited = Unit {
        waited_ns: MS / 4,
        cpu_ns: MS * 3 / 4,
        ..stuck
    };
    let found = shares(&[waited], 20.0, &Account::default(), &[]);
    assert_eq!(share(&found, Cause::Standstill), 0.0);
    assert_eq!(share(&found, Cause::Preemption), 0.5);
}

#[test]
fn a_unit_over_several_windows_counts_once() {
    let long = Unit {
        windows: 3,
        wall_ns: 3 * MS,
        cpu_ns: 3 * MS,
        ..unit(2)
    };
    let account = Account {
        units: vec![long, unit(3)],
        ..Account::default()
    };
    let mut sum = Sum::default();
    sum.add(
        &[20.0, 20.0, 20.0, 10.0],
        10.0,
        Better::Lower,
        &account,
        &[],
    );
    let found = sum.attribution().unwrap();
    assert_eq!((found.units, found.late, found.late_ns), (2, 1, 3 * MS / 2));
}

#[test]
fn a_stall_moves_the_reference_as_one_unit() {
    let stall = Unit {
        windows: 8,
        ..unit(1)
    };
    let account = Account {
        units: vec![unit(0), stall, unit(9)],
        ..Account::default()
    };
    let mut values = vec![900.0; 10];
    values[0] = 10.0;
    values[9] = 12.0;
    assert_eq!(reference(&values, &account), Some(12.0));
    assert_eq!(reference(&[], &account), None);
}
