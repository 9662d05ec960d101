//! Mechanisms that are a setting of one group: a body for each, and their list.

use super::*;

/// The bodies of this file, for [`conformance!`](crate::conformance).
#[macro_export]
macro_rules! mechanisms {
    ($arm:path) => {
        $crate::conformance!($arm:
            a_limit_of_cpu_time_is_held,
            a_group_with_settings_of_disks_runs_on,
            each_group_runs_as_long_as_its_windows,
        );
    };
}

/// A limit of a third of a CPU's time gives at most that, and not much less.
pub fn a_limit_of_cpu_time_is_held(arm: &mut dyn Arm) {
    if !offers(arm, Mechanism::CpuMax) {
        return;
    }
    let (first, _) = divided(arm);
    let (warmup, duration) = arm.spans();
    let work = |arm: &mut dyn Arm, share: Option<Share>| {
        gather(arm, "a");
        confine(arm, "a", &first, false);
        if let Some(share) = share {
            let period = Nanos(duration.0.min(100_000_000) / 4).max(Nanos::millis(1));
            let set = Setting::CpuMax { share, period };
            arm.backend()
                .apply(&step("a", Mechanism::CpuMax, set))
                .unwrap();
        }
        arm.prefer();
        let id = started(arm, &subject("a", BUSY, Some(&first)));
        let found = rate(&measured(arm, id, warmup, Nanos(3 * duration.0)));
        arm.backend().undo().unwrap();
        found
    };
    // A span that is not a whole number of periods includes a part of one more.
    within(arm, "work, of its share", (0.6, 1.2), &mut |arm| {
        let free = work(arm, None);
        work(arm, Some(Share::percent(33))) / free / 0.33
    });
}

/// A limit, a target and a weight of disks are accepted, and a group that needs no disk runs on
/// unchanged. What the disks then do is measured in `tests/vm`, where there is a disk.
pub fn a_group_with_settings_of_disks_runs_on(arm: &mut dyn Arm) {
    let limit = Setting::IoMax(DiskRates {
        read: Some(Rate(50_000_000)),
        write_iops: Some(500),
        ..DiskRates::default()
    });
    let target = Setting::IoLatency {
        target: Nanos::millis(20),
    };
    let (first, _) = divided(arm);
    let (warmup, duration) = arm.spans();
    for (mechanism, set) in [
        (Mechanism::IoMax, limit),
        (Mechanism::IoLatency, target),
        (Mechanism::IoWeight, Setting::IoWeight { weight: 700 }),
    ] {
        if !offers(arm, mechanism) {
            continue;
        }
        let of_no_group = step("b", mechanism, set.clone());
        assert!(arm.backend().apply(&of_no_group).is_err(), "{mechanism}");
        gather(arm, "a");
        confine(arm, "a", &first, false);
        arm.backend().apply(&step("a", mechanism, set)).unwrap();
        let id = started(arm, &subject("a", WORK, Some(&first)));
        let found = measured(arm, id, warmup, duration);
        assert!(found.bytes > 0, "{mechanism}: {found:?}");
        let undone = arm.backend().undo().unwrap();
        assert!(undone.left.is_empty(), "{mechanism}: {:?}", undone.left);
    }
}

/// Two groups on one CPU get the CPU for as long as their windows are, at the same time.
pub fn each_group_runs_as_long_as_its_windows(arm: &mut dyn Arm) {
    if !offers(arm, Mechanism::Windows) {
        return;
    }
    let (first, _) = divided(arm);
    let (warmup, duration) = arm.spans();
    let length = Nanos(duration.0 / 5).min(Nanos::millis(10));
    let part = |tenths: u64| Nanos(length.0 / 10 * tenths);
    let window = |group: &str, from, to| Span {
        start: part(from),
        end: part(to),
        group: Some(group.to_owned()),
        ..Span::default()
    };
    let windows = [window("a", 0, 3), window("b", 3, 9)];
    let guard = Nanos(length.0 / 50);
    let frame = Frame::new(first.clone(), length, guard, &windows, None);
    let work = |arm: &mut dyn Arm, frame: Option<&Frame>| {
        for name in ["a", "b"] {
            gather(arm, name);
            confine(arm, name, &first, false);
        }
        if let Some(frame) = frame {
            let set = Setting::Windows(frame.clone());
            let set = step("a", Mechanism::Windows, set);
            arm.backend().apply(&set).unwrap();
        }
        arm.prefer();
        let found = if frame.is_some() {
            let ids = ["a", "b"].map(|name| started(arm, &subject(name, BUSY, Some(&first))));
            measured_together(arm, ids, warmup, Nanos(4 * duration.0)).map(|m| rate(&m))
        } else {
            let id = started(arm, &subject("a", BUSY, Some(&first)));
            [rate(&measured(arm, id, warmup, duration)); 2]
        };
        arm.backend().undo().unwrap();
        found
    };
    for (place, part) in [0.3, 0.6].into_iter().enumerate() {
        within(arm, "work, of its windows", (0.6, 1.15), &mut |arm| {
            let free = work(arm, None)[place];
            work(arm, Some(&frame))[place] / free / part
        });
    }
}
