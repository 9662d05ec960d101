//! A regulator counts and stops only the tasks of its group. The core is shared with other groups,
//! and with tasks that have no limit.

use std::collections::BTreeMap;

use quell_control::config::Pooling;
use quell_control::config::Regulation;
use quell_plan::Setting;
use quell_record::backend::{Action, Backend, Observation, Seen};
use quell_record::events::Event;
use quell_sim::Sim;
use quell_types::options::{After, Idle};
use quell_types::units::{Lines, Nanos, Rate, Share};

use crate::backend::regulation::{regulation, stream};
use crate::backend::{Outcome, group, measure, rate, sim, step, subject};

const STREAM: &str = "bandwidth:write,size=32MiB";

fn part(free: f64, percent: u64) -> Rate {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    Rate(free as u64 * percent / 100)
}

/// Streams on CPU 1, each in its own group, some with a limit. Returns their rates.
fn together(sim: &mut Sim, groups: &[(&str, Option<Regulation>)], span: Nanos) -> Vec<f64> {
    for (name, limit) in groups {
        group(sim, name, "1", false);
        if let Some(limit) = limit {
            sim.apply(&step(name, Setting::Regulate(limit.clone())))
                .unwrap();
        }
    }
    let start = |(name, _): &(&str, _)| sim.start(&subject(name, STREAM, Some("1"))).unwrap();
    let all: Vec<_> = groups.iter().map(start).collect();
    let outcome = measure(sim, &all, Nanos::millis(5), span);
    sim.undo().unwrap();
    all.iter().map(|id| rate(&outcome.results[id])).collect()
}

/// The known answer: two caps of 20 and 50 % of the core's rate leave 30 % to the third group.
#[test]
fn two_groups_on_a_core_have_a_budget_each() {
    let mut sim = sim();
    let (free, _) = stream(&mut sim, None);
    let limit = |percent| Some(regulation(part(free, percent), "1"));
    let groups = [("a", limit(20)), ("b", limit(50)), ("c", None)];
    let rates = together(&mut sim, &groups, Nanos::millis(40));
    let of = |n: usize, share: f64| rates[n] / free / share;
    println!(
        "of the caps: {:.3}, {:.3}; of what is left: {:.3}",
        of(0, 0.2),
        of(1, 0.5),
        of(2, 0.3)
    );
    assert!((0.95..=1.05).contains(&of(0, 0.2)), "{rates:?} of {free}");
    assert!((0.95..=1.05).contains(&of(1, 0.5)), "{rates:?} of {free}");
    assert!((0.9..=1.05).contains(&of(2, 0.3)), "{rates:?} of {free}");
}

/// What a task without a limit moves is not counted. It neither takes from the group's budget nor
/// is stopped with it.
#[test]
fn a_task_without_a_limit_is_neither_counted_nor_stopped() {
    let mut sim = sim();
    let (free, _) = stream(&mut sim, None);
    group(&mut sim, "noise", "1", false);
    let limit = Setting::Regulate(regulation(part(free, 20), "1"));
    sim.apply(&step("noise", limit)).unwrap();
    let noise = sim.start(&subject("noise", STREAM, Some("1"))).unwrap();
    let other = sim
        .start(&subject("of-no-group", STREAM, Some("1")))
        .unwrap();
    for subject in [noise, other] {
        let go = Action::Go {
            subject,
            warmup: Nanos::millis(5),
            duration: Nanos::millis(40),
        };
        sim.act(&go).unwrap();
    }
    let (mut seen, mut rates) = (Observation::new(), BTreeMap::new());
    while rates.len() < 2 {
        sim.wait(Nanos::secs(1), &mut seen).unwrap();
        for one in seen.drain(..) {
            match one {
                Seen::Result(id, measured) => {
                    // It ran in every window of a millisecond.
                    let windows = &measured.metrics["bandwidth_mb_s"];
                    assert!(windows.iter().all(|w| *w > 0.0), "{windows:?}");
                    rates.insert(id, rate(&measured));
                }
                Seen::Event(Event::Throttle { group, .. }) => assert_eq!(group, "noise"),
                _ => {}
            }
        }
    }
    let (of_cap, of_left) = (rates[&noise] / free / 0.2, rates[&other] / free / 0.8);
    println!("of the cap: {of_cap:.3}; of what is left: {of_left:.3}");
    assert!((0.95..=1.05).contains(&of_cap), "{of_cap}");
    assert!((0.95..=1.05).contains(&of_left), "{of_left}");
}

/// Two tasks of a group share its budget. A task of no group has the rest of the core.
#[test]
fn the_tasks_of_a_group_share_its_budget() {
    let mut sim = sim();
    let (free, _) = stream(&mut sim, None);
    group(&mut sim, "noise", "1", false);
    let limit = Setting::Regulate(regulation(part(free, 40), "1"));
    sim.apply(&step("noise", limit)).unwrap();
    let names = ["noise", "noise", "of-no-group"];
    let all = names.map(|name| sim.start(&subject(name, STREAM, Some("1"))).unwrap());
    let outcome = measure(&mut sim, &all, Nanos::millis(5), Nanos::millis(40));
    let [one, two, other] = all.map(|id| rate(&outcome.results[&id]) / free);
    println!("of the core: {one:.3}, {two:.3}; the other {other:.3}");
    assert!((0.38..=0.42).contains(&(one + two)), "{one}, {two}");
    assert!((0.8..=1.25).contains(&(one / two)), "{one}, {two}");
    assert!((0.55..=0.62).contains(&other), "{other}");
}

/// Two pooled groups on a core: each gets what the other does not draw.
#[test]
fn pooled_groups_on_a_core_reclaim_from_each_other() {
    let mut sim = sim();
    let (free, _) = stream(&mut sim, None);
    let pooled = |percent| Regulation {
        pooling: Some(Pooling {
            reclaim: true,
            after: After::Wait,
            predictor: Share::percent(50),
            idle: Idle::Counted,
            quantum: Lines(1024),
            capped: true,
            headroom: false,
        }),
        ..regulation(part(free, percent), "1")
    };
    let groups = [("a", Some(pooled(20))), ("b", Some(pooled(30)))];
    let both = together(&mut sim, &groups, Nanos::millis(40));
    for (rate, share) in both.iter().zip([0.2, 0.3]) {
        let of_cap = rate / free / share;
        assert!((0.9..=1.05).contains(&of_cap), "{both:?} of {free}");
    }
    // The second group has no task, so its budget goes to the first.
    for (name, limit) in &groups {
        group(&mut sim, name, "1", false);
        let set = Setting::Regulate(limit.clone().unwrap());
        sim.apply(&step(name, set)).unwrap();
    }
    let one = sim.start(&subject("a", STREAM, Some("1"))).unwrap();
    let outcome: Outcome = measure(&mut sim, &[one], Nanos::millis(5), Nanos::millis(40));
    let of_both = rate(&outcome.results[&one]) / free / 0.5;
    assert!((0.85..=1.05).contains(&of_both), "{of_both}");
}

/// A budget is moved for one group. The other group on the core keeps its own.
#[test]
fn a_budget_is_moved_for_one_group_only() {
    let mut sim = sim();
    let (free, _) = stream(&mut sim, None);
    for name in ["a", "b"] {
        group(&mut sim, name, "1", false);
        let set = Setting::Regulate(regulation(part(free, 30), "1"));
        sim.apply(&step(name, set)).unwrap();
    }
    let all = ["a", "b"].map(|name| sim.start(&subject(name, STREAM, Some("1"))).unwrap());
    let budget = Lines::at(part(free, 10), Nanos::millis(1));
    let moved = |group: &str| Action::Budget {
        group: group.to_owned(),
        cpus: [1].into_iter().collect(),
        budget,
    };
    sim.act(&moved("a")).unwrap();
    let refused = sim.act(&moved("c")).unwrap_err().to_string();
    assert!(
        refused.contains("group c is not regulated on CPU 1"),
        "{refused}"
    );
    let outcome = measure(&mut sim, &all, Nanos::millis(5), Nanos::millis(40));
    let [a, b] = all.map(|id| rate(&outcome.results[&id]) / free);
    assert!((0.095..=0.105).contains(&a), "{a}");
    assert!((0.285..=0.315).contains(&b), "{b}");
}
