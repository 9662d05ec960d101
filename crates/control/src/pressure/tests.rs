use super::plant::*;
use super::*;

mod properties;

const MIB: u64 = 1 << 20;
const MS: fn(u64) -> Nanos = Nanos::millis;

fn rules(allows: &[Allows], measured: bool) -> Rules {
    Rules {
        interval: MS(20),
        start: Share::percent(5),
        release: Share::percent(1),
        grace: MS(500),
        measured: vec![measured],
        allows: allows.to_vec(),
    }
}

const ALL: Allows = Allows {
    limit: true,
    freeze: true,
    reclaim: true,
    kill: true,
};
const LIMIT: Allows = Allows {
    limit: true,
    freeze: false,
    reclaim: false,
    kill: false,
};

/// Runs a controller on a plant. Returns each decision with its time.
fn run(
    plant: &mut Plant,
    kind: PressureController,
    rules: &Rules,
    span: Nanos,
) -> Vec<(Nanos, Decision)> {
    let mut controller = Controller::new(kind, rules, plant.now).unwrap();
    let mut log = Vec::new();
    let mut decisions = Vec::new();
    let end = plant.now.plus(span);
    while plant.now < end {
        plant.run(MS(5));
        if plant.now < controller.next() {
            continue;
        }
        let mut sample = plant.sample();
        if !controller.wants_processes() {
            sample.processes.clear();
        }
        controller.step(plant.now, &sample, &mut decisions);
        for decision in decisions.drain(..) {
            plant.act(&decision.act);
            log.push((plant.now, decision));
        }
    }
    log
}

fn anonymous(mib_per_s: u64, most: u64) -> Hog {
    let kind = Kind::Anonymous {
        rate: mib_per_s * MIB,
        most: most * MIB,
    };
    Hog::new(kind, Nanos::secs(1))
}

fn stream(mib_per_s: u64) -> Hog {
    let kind = Kind::Stream {
        rate: mib_per_s * MIB,
    };
    Hog::new(kind, Nanos::secs(1))
}

fn repeat(mib_per_s: u64, size: u64) -> Hog {
    let kind = Kind::Repeat {
        rate: mib_per_s * MIB,
        size: size * MIB,
    };
    Hog::new(kind, Nanos::secs(1))
}

fn changes(log: &[(Nanos, Decision)], from: Nanos, to: Nanos) -> Vec<Bytes> {
    let limits = log.iter().filter_map(|(at, d)| match d.act {
        Act::Limit { most, .. } if *at >= from && *at < to => most,
        _ => None,
    });
    limits.collect()
}

#[test]
fn without_control_frames_are_late_and_with_limits_they_are_not() {
    for hog in [stream(300), repeat(300, 3000), anonymous(200, 4000)] {
        let mut bare = Plant::new(2048, 1024, vec![hog]);
        let none = rules(&[Allows::default()], false);
        run(&mut bare, PressureController::Quell, &none, Nanos::secs(30));
        assert!(
            bare.late(Nanos::secs(10)) > MS(20),
            "{:?}: {:?}",
            hog.kind,
            bare.late(Nanos::secs(10))
        );
        let mut held = Plant::new(2048, 1024, vec![hog]);
        run(
            &mut held,
            PressureController::Quell,
            &rules(&[LIMIT], true),
            Nanos::secs(30),
        );
        assert!(
            held.late(Nanos::secs(2)) <= MS(2),
            "{:?}: {:?}",
            hog.kind,
            held.late(Nanos::secs(2))
        );
    }
}

#[test]
fn a_file_hog_keeps_its_progress() {
    for hog in [stream(300), repeat(300, 3000)] {
        let mut bare = Plant::new(2048, 1024, vec![hog]);
        run(
            &mut bare,
            PressureController::Quell,
            &rules(&[Allows::default()], false),
            Nanos::secs(30),
        );
        let mut held = Plant::new(2048, 1024, vec![hog]);
        run(
            &mut held,
            PressureController::Quell,
            &rules(&[ALL], true),
            Nanos::secs(30),
        );
        let kept = Share::ratio(held.hogs[0].done, bare.hogs[0].done);
        assert!(kept >= Share::percent(50), "{:?}: {kept}", hog.kind);
    }
}

#[test]
fn an_anonymous_hog_may_have_most_of_it_before_it_is_killed() {
    let mut plant = Plant::new(2048, 1024, vec![anonymous(200, 4000)]);
    let log = run(
        &mut plant,
        PressureController::Quell,
        &rules(&[ALL], true),
        Nanos::secs(60),
    );
    let reserve = reserve(&plant.sample().machine).0;
    let may = (plant.total - plant.works_on - reserve) * 9 / 10;
    let own = plant
        .worst_growth_at_kill
        .expect("it crawls on until it is killed");
    assert!(own >= may, "killed at {} of {} MiB", own / MIB, may / MIB);
    assert!(!plant.out_of_memory, "the kernel did not have to");
    let killed = log
        .iter()
        .find(|(_, d)| matches!(d.act, Act::Kill(_)))
        .unwrap();
    assert!(matches!(killed.1.why, Why::Spare(_)), "{killed:?}");
    assert!(plant.late(killed.0.plus(Nanos::secs(1))) <= MS(2));
}

#[test]
fn who_may_only_be_limited_is_never_stopped_or_killed() {
    let mut plant = Plant::new(1024, 512, vec![anonymous(400, 4000), stream(200)]);
    let log = run(
        &mut plant,
        PressureController::Quell,
        &rules(&[LIMIT, LIMIT], true),
        Nanos::secs(20),
    );
    assert!(!log.is_empty());
    let mild = |d: &Decision| matches!(d.act, Act::Limit { .. } | Act::Protect { .. });
    assert!(log.iter().all(|(_, d)| mild(d)), "{log:?}");
}

#[test]
fn nobody_is_killed_for_what_the_kernel_can_reclaim() {
    let kill = Allows {
        kill: true,
        ..Allows::default()
    };
    let idle = Hog::new(Kind::Idle { own: 100 * MIB }, Nanos(0));
    let mut plant = Plant::new(1024, 256, vec![idle, stream(200)]);
    let log = run(
        &mut plant,
        PressureController::Quell,
        &rules(&[kill, kill], true),
        Nanos::secs(20),
    );
    let killed = |d: &Decision| matches!(d.act, Act::Kill(_));
    assert!(!log.iter().any(|(_, d)| killed(d)), "{log:?}");
}

#[test]
fn nothing_is_done_while_there_is_plenty() {
    let mut plant = Plant::new(8192, 1024, vec![anonymous(50, 1000), stream(2)]);
    let log = run(
        &mut plant,
        PressureController::Quell,
        &rules(&[ALL, ALL], true),
        Nanos::secs(20),
    );
    let protect = |d: &Decision| matches!(d.act, Act::Protect { .. });
    assert!(log.iter().all(|(_, d)| protect(d)), "{log:?}");
}

#[test]
fn limits_settle_and_do_not_swing() {
    for hog in [stream(300), repeat(300, 3000)] {
        let mut plant = Plant::new(2048, 1024, vec![hog]);
        let log = run(
            &mut plant,
            PressureController::Quell,
            &rules(&[ALL], true),
            Nanos::secs(60),
        );
        let late = changes(&log, Nanos::secs(30), Nanos::secs(60));
        let low = late.iter().min().copied().unwrap_or_default().0;
        let high = late.iter().max().copied().unwrap_or_default().0;
        assert!(
            late.len() <= 60,
            "{:?}: {} changes in 30 s",
            hog.kind,
            late.len()
        );
        assert!(
            high - low <= plant.total / 16,
            "{:?}: from {low} to {high}",
            hog.kind
        );
    }
}

#[test]
fn without_limits_a_hog_is_frozen_ever_longer_while_trials_fail() {
    let freeze = Allows {
        freeze: true,
        ..Allows::default()
    };
    let mut plant = Plant::new(1024, 700, vec![repeat(400, 2000)]);
    let log = run(
        &mut plant,
        PressureController::Quell,
        &rules(&[freeze], false),
        Nanos::secs(60),
    );
    let stops = stops(&log, plant.now);
    assert!(stops.len() > 3, "{stops:?}");
    let longest = stops
        .iter()
        .map(|(_, from, to)| to.since(*from))
        .max()
        .unwrap();
    assert!(longest > Nanos::secs(4), "{stops:?}");
    // Late frames become rare: one trial costs one or two.
    let late = plant
        .frames
        .iter()
        .filter(|(at, l)| *at > Nanos::secs(20) && *l > MS(5))
        .count();
    let all = plant
        .frames
        .iter()
        .filter(|(at, _)| *at > Nanos::secs(20))
        .count();
    assert!(late * 10 < all, "{late} of {all}");
}

#[test]
fn a_group_that_was_made_anew_is_not_taken_for_frozen() {
    let freeze = Allows {
        freeze: true,
        ..Allows::default()
    };
    let mut quell = Quell::new(&rules(&[freeze], false), Nanos(0));
    let mut out = Vec::new();
    let mut sample = Plant::new(1024, 700, vec![anonymous(1, 1)]).sample();
    let mut frozen = 0;
    // It waits all the time.
    for i in 1..200 {
        sample.critical[0].memory_stall = MS(20 * i);
        quell.step(MS(20 * i), &sample, &mut out);
        sample.neighbours[0].thawed = false;
        for decision in out.drain(..) {
            match decision.act {
                Act::Freeze { .. } => {
                    frozen += 1;
                    sample.neighbours[0].thawed = true;
                }
                Act::Thaw { .. } => panic!("no group is frozen: {:?}", decision.why),
                _ => {}
            }
        }
    }
    assert!(frozen > 1, "{frozen}");
}

#[test]
fn a_frozen_group_is_thawed_when_nothing_can_be_seen_any_more() {
    let rules = rules(&[ALL], false);
    let mut control = Controller::new(PressureController::Quell, &rules, Nanos(0)).unwrap();
    let mut sample = Plant::new(1024, 700, vec![anonymous(1, 1)]).sample();
    let (mut out, mut frozen) = (Vec::new(), None);
    for i in 1..1_000 {
        let now = MS(20 * i);
        match frozen {
            None => {
                sample.critical[0].memory_stall = now;
                control.step(now, &sample, &mut out);
            }
            Some(_) => control.blind(now, &mut out),
        }
        for decision in out.drain(..) {
            match decision.act {
                Act::Freeze { .. } => frozen = Some(now),
                Act::Thaw { .. } => {
                    assert_eq!(decision.why, Why::Bound);
                    assert!(now.since(frozen.unwrap()) <= rules.grace);
                    return;
                }
                other => assert!(frozen.is_none(), "{other:?}"),
            }
        }
    }
    panic!("frozen for ever: {frozen:?}");
}

#[test]
fn what_the_described_ones_stopped_goes_on_when_samples_fail() {
    for kind in [PressureController::Latd, PressureController::Cgroup] {
        let mut control = Controller::new(kind, &rules(&[ALL], false), Nanos(0)).unwrap();
        let mut sample = Plant::new(1024, 200, vec![anonymous(1, 1)]).sample();
        sample.machine.average = Some(Share::percent(50));
        let mut out = Vec::new();
        let mut step = |at: u64, sample: Option<&Sample>| {
            match sample {
                Some(sample) => control.step(MS(at), sample, &mut out),
                None => control.blind(MS(at), &mut out),
            }
            let acts = out.drain(..).map(|d| (d.act, d.why));
            let stops = |(act, _): &(Act, Why)| matches!(act, Act::Stop(_) | Act::Continue(_));
            acts.filter(stops).collect::<Vec<_>>()
        };
        let [(Act::Stop(task), _)] = step(1_000, Some(&sample))[..] else {
            panic!("{kind:?} stops no process");
        };
        // A sample that succeeds in between: the time of failures begins anew.
        for at in (2_000..9_000).step_by(20) {
            assert_eq!(step(at, None), [], "{kind:?} {at}");
        }
        assert_eq!(step(9_000, Some(&sample)), []);
        for at in (10_000..18_000).step_by(20) {
            assert_eq!(step(at, None), [], "{kind:?} {at}");
        }
        assert_eq!(step(18_000, None), [(Act::Continue(task), Why::Bound)]);
        assert_eq!(step(18_020, None), [], "once");
    }
}

#[test]
fn a_group_that_may_hold_a_lock_goes_on() {
    let mut quell = Quell::new(&rules(&[ALL], false), Nanos(0));
    let mut out = Vec::new();
    let mut sample = Plant::new(1024, 512, vec![anonymous(1, 1)]).sample();
    sample.machine.available = sample.machine.total;
    let mut frozen = None;
    // Units end every 50 ms. From 1 s on it waits, until its neighbour is frozen. Then no unit ends
    // any more.
    for i in 1..200 {
        let now = MS(20 * i);
        if frozen.is_none() {
            sample.critical[0].unit_end = Some(MS(50 * (20 * i / 50)));
            if now >= Nanos::secs(1) {
                sample.critical[0].memory_stall =
                    Nanos(sample.critical[0].memory_stall.0 + 10_000_000);
            }
        }
        quell.step(now, &sample, &mut out);
        for decision in out.drain(..) {
            match decision.act {
                Act::Freeze { .. } => frozen = Some(now),
                Act::Thaw { .. } => {
                    assert_eq!(decision.why, Why::Heartbeat);
                    assert!(now.since(frozen.unwrap()) <= MS(300));
                    return;
                }
                _ => {}
            }
        }
    }
    panic!("never frozen and let go");
}

#[test]
fn a_group_waiting_for_its_own_first_reads_holds_nobody_back() {
    let mut quell = Quell::new(&rules(&[ALL], false), Nanos(0));
    let mut sample = Plant::new(1024, 512, vec![anonymous(1, 1)]).sample();
    sample.machine.available = sample.machine.total;
    let mut out = Vec::new();
    for i in 1..100 {
        sample.critical[0].io_stall = MS(15 * i);
        quell.step(MS(20 * i), &sample, &mut out);
    }
    assert_eq!(out, []);
    // The same while a neighbour uses the disks: the group queues behind it. A memory limit would
    // change nothing, as long as there is enough for all.
    for i in 100..300 {
        sample.critical[0].io_stall = MS(15 * i);
        sample.neighbours[0].io += 1 << 20;
        if i == 200 {
            assert_eq!(out, []);
            let files = sample.critical[0].file.0;
            sample.machine.available = Bytes(files + reserve(&sample.machine).0);
        }
        quell.step(MS(20 * i), &sample, &mut out);
    }
    assert!(
        out.iter().any(|d| matches!(d.act, Act::Limit { .. })),
        "{out:?}"
    );
}

#[test]
fn what_does_not_compress_is_not_swapped_out_any_more() {
    for (takes, unswapped) in [(64, 2), (49, 2), (47, 0), (16, 0)] {
        let hogs = vec![anonymous(1, 1), anonymous(1, 1)];
        let mut quell = Quell::new(&rules(&[ALL, LIMIT], false), Nanos(0));
        let mut sample = Plant::new(1024, 512, hogs).sample();
        let mut out = Vec::new();
        for i in 1..100 {
            // So little may be chance.
            let stored = if i < 50 { 15 } else { 64 };
            sample.machine.compressed = Bytes(stored * MIB);
            sample.machine.compressed_takes = Bytes(takes * stored / 64 * MIB);
            quell.step(MS(20 * i), &sample, &mut out);
            let all = out.iter().map(|decision| decision.act);
            let kept = all.filter(|act| matches!(act, Act::KeepUnswapped { .. }));
            let wanted = if i < 50 { 0 } else { unswapped };
            assert_eq!(kept.count(), wanted, "{takes} of 64, sample {i}");
        }
    }
}

#[test]
fn processes_are_read_only_while_there_is_little_to_be_had() {
    for (hog, wanted) in [
        (stream(300), false),
        (repeat(300, 3000), false),
        (anonymous(200, 4000), true),
    ] {
        let mut plant = Plant::new(2048, 1024, vec![hog]);
        let rules = rules(&[ALL], true);
        let mut quell = Quell::new(&rules, Nanos(0));
        let (mut samples, mut killed) = (0, false);
        for i in 1..=1_500 {
            plant.run(MS(20));
            let mut sample = plant.sample();
            let asked = quell.wants_processes();
            samples += u32::from(asked);
            if !asked {
                sample.processes.clear();
            }
            let mut out = Vec::new();
            quell.step(MS(20 * i), &sample, &mut out);
            for decision in out {
                killed |= matches!(decision.act, Act::Kill(_));
                plant.act(&decision.act);
            }
        }
        assert_eq!((samples > 0, killed), (wanted, wanted), "{:?}", hog.kind);
        assert!(samples < 500, "{:?}: {samples} of 1500", hog.kind);
        assert!(!plant.out_of_memory, "{:?}", hog.kind);
    }
}

/// Each stop with its end: neighbour, from, to.
fn stops(log: &[(Nanos, Decision)], end: Nanos) -> Vec<(usize, Nanos, Nanos)> {
    let mut open: Vec<(usize, Nanos)> = Vec::new();
    let mut found = Vec::new();
    for (at, decision) in log {
        match decision.act {
            Act::Freeze { neighbour } => {
                assert!(open.iter().all(|(n, _)| *n != neighbour), "frozen twice");
                open.push((neighbour, *at));
            }
            Act::Thaw { neighbour } => {
                let place = open.iter().position(|(n, _)| *n == neighbour);
                let (_, from) = open.remove(place.expect("thawed without a stop"));
                found.push((neighbour, from, *at));
            }
            _ => {}
        }
    }
    found.extend(open.into_iter().map(|(n, from)| (n, from, end)));
    found
}
