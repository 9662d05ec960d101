//! Budgets in one pool: what a neighbour gets while the critical group sleeps, and what remains of
//! it when that group wakes.

use quell_control::config::Pooling;
use quell_control::config::Regulation;
use quell_control::pooled::Pooled;
use quell_plan::Setting;
use quell_record::backend::{Action, Backend, Observation, Seen};
use quell_record::events::Event;
use quell_types::options::Split;
use quell_types::options::{After, Idle};
use quell_types::units::{Lines, Nanos, Rate, Share};

use crate::backend::regulation::{PERIOD, regulation, stream};
use crate::backend::{group, measure, rate, sim, step, subject};

const RESERVE: Rate = Rate(1_000_000_000);
const NOISE: Rate = Rate(500_000_000);

/// What the two CPUs of a cell reached, in bytes per second.
struct Cell {
    /// The neighbour's rate while the critical group slept, and afterwards.
    alone: f64,
    beside: f64,
    /// The critical group's rate from the moment it woke.
    critical: f64,
    /// What its CPU gave to the pool and took from it.
    pooled: Pooled,
}

/// A stream on CPU 1. After ten periods another one wakes on CPU 0, which has had a reserve from
/// the start.
fn cell(reclaim: bool, after: After) -> Cell {
    const IDLE: Nanos = Nanos::millis(10);
    const AWAKE: Nanos = Nanos::millis(6);
    let mut sim = sim();
    let pooling = (reclaim || after != After::Wait).then_some(Pooling {
        reclaim,
        after,
        predictor: Share::percent(75),
        idle: Idle::Counted,
        quantum: Lines(1024),
        capped: true,
        headroom: false,
    });
    for (name, on, limit) in [("critical", "0", RESERVE), ("noise", "1", NOISE)] {
        group(&mut sim, name, on, false);
        let regulation = Regulation {
            pooling: pooling.clone(),
            ..regulation(limit, on)
        };
        sim.apply(&step(name, Setting::Regulate(regulation)))
            .unwrap();
    }
    let writes = "bandwidth:write,size=32MiB";
    let [noise, critical] = [("noise", "1"), ("critical", "0")]
        .map(|(name, on)| sim.start(&subject(name, writes, Some(on))).unwrap());
    let go = |sim: &mut quell_sim::Sim, subject, warmup, duration| {
        sim.act(&Action::Go {
            subject,
            warmup,
            duration,
        })
        .unwrap();
    };
    let mut pooled = Pooled::default();
    let mut result = |sim: &mut quell_sim::Sim, of| {
        let latest = sim.now().plus(Nanos::secs(1));
        let mut found = None;
        let mut seen = Observation::new();
        while found.is_none() {
            assert!(sim.wait(latest, &mut seen).unwrap() < latest, "no result");
            for one in seen.drain(..) {
                match one {
                    Seen::Result(id, measured) if id == of => found = Some(rate(&measured)),
                    Seen::Event(Event::Throttle {
                        cpu: 0,
                        pooled: Some(new),
                        ..
                    }) => pooled = pooled.plus(new),
                    _ => {}
                }
            }
        }
        found.unwrap()
    };
    go(&mut sim, noise, Nanos::millis(6), Nanos::millis(4));
    let alone = result(&mut sim, noise);
    assert_eq!(sim.now(), IDLE);
    go(&mut sim, noise, Nanos::millis(2), AWAKE);
    go(&mut sim, critical, Nanos(0), AWAKE);
    let critical = result(&mut sim, critical);
    let beside = result(&mut sim, noise);
    Cell {
        alone,
        beside,
        critical,
        pooled,
    }
}

/// Two streams of one group. The second begins when the first has run alone for 30 ms. Returns the
/// rate of the first alone, then of each.
fn split(by: Split) -> [f64; 3] {
    let mut sim = sim();
    group(&mut sim, "noise", "0-1", false);
    let regulation = Regulation {
        split: by,
        ..regulation(NOISE, "0-1")
    };
    sim.apply(&step("noise", Setting::Regulate(regulation)))
        .unwrap();
    let stream = "bandwidth:write,size=32MiB";
    let [one, two] = ["0", "1"].map(|on| sim.start(&subject("noise", stream, Some(on))).unwrap());
    let alone = measure(&mut sim, &[one], Nanos::millis(30), Nanos::millis(10));
    let alone = rate(&alone.results[&one]);
    let both = measure(&mut sim, &[one, two], Nanos::millis(30), Nanos::millis(10));
    [alone, rate(&both.results[&one]), rate(&both.results[&two])]
}

#[test]
fn a_budget_goes_where_it_is_drawn() {
    let of = |rate: f64| rate / (2.0 * NOISE.0 as f64);
    let [alone, one, two] = split(Split::Even).map(of);
    assert!((0.47..=0.53).contains(&alone), "{alone}");
    assert!((0.94..=1.05).contains(&(one + two)), "{one} + {two}");
    // All but an eighth of the other CPU's part, and it is given back when the other stream wakes.
    let [alone, one, two] = split(Split::Demand).map(of);
    assert!((0.88..=0.97).contains(&alone), "{alone}");
    assert!((0.94..=1.05).contains(&(one + two)), "{one} + {two}");
    assert!((0.9..=1.1).contains(&(one / two)), "{one} to {two}");
}

#[test]
fn what_a_sleeper_leaves_its_neighbour_draws_and_gives_back() {
    let reservation = cell(false, After::Wait);
    let reclaim = cell(true, After::Wait);
    let shared = cell(true, After::Proportional);
    let near = |rate: f64, of: u64| (0.95..=1.05).contains(&(rate / of as f64));

    // While it sleeps: the neighbour's own budget, both budgets, and more than both.
    assert!(near(reservation.alone, NOISE.0), "{}", reservation.alone);
    let both = NOISE.0 + RESERVE.0;
    assert!(near(reclaim.alone, both), "{}", reclaim.alone);
    assert!(shared.alone > 1.2 * both as f64, "{}", shared.alone);
    // No other task draws anything: all but the time of the interrupts between two periods.
    let (free, _) = stream(&mut sim(), None);
    assert!(shared.alone > 0.9 * free, "{} of {free}", shared.alone);

    // Awake, it has its reserve back. In one period it lacks what was in use, which is counted as a
    // miss. (Six periods' time may contain seven budgets.)
    for critical in [reservation.critical, reclaim.critical] {
        let of_reserve = critical / RESERVE.0 as f64;
        assert!((0.95..=1.2).contains(&of_reserve), "{of_reserve}");
    }
    assert!(near(reclaim.beside, NOISE.0), "{}", reclaim.beside);
    let did = reclaim.pooled;
    assert!(did.missed <= 1 && did.donated > 0, "{did:?}");
    assert!(did.granted_twice <= Lines::at(RESERVE, PERIOD).0);

    let spare = cell(true, After::Spare);
    assert!(spare.alone > 1.2 * both as f64, "{}", spare.alone);
    assert!(spare.pooled.best_effort > 0);

    // Sharing begins when both have drawn their budgets. Both get more, and none of it is
    // guaranteed.
    assert!(
        shared.critical > 1.2 * RESERVE.0 as f64,
        "{}",
        shared.critical
    );
    assert!(shared.beside > 1.2 * NOISE.0 as f64, "{}", shared.beside);
    assert!(shared.pooled.best_effort > 0);
    assert_eq!(reclaim.pooled.best_effort, 0);
}
