//! The regulator: the same code as on Linux, driven by interrupts of the simulated counters.

use quell_control::bandwidth::Verdict;
use quell_control::config::Meter;
use quell_control::config::Regulation;
use quell_plan::Setting;
use quell_record::backend::{Action, Backend, BackendError};
use quell_sim::Sim;
use quell_sim::board::Board;
use quell_types::options::Split;
use quell_types::units::{LINE_BYTES, Lines, Nanos, Rate};

use crate::backend::{Outcome, cpus, group, measure, rate, sim, step, subject};

pub(crate) const PERIOD: Nanos = Nanos::millis(1);

pub(crate) fn regulation(limit: Rate, on: &str) -> Regulation {
    Regulation {
        cpus: cpus(on),
        budget: Lines::at(limit, PERIOD),
        period: PERIOD,
        meter: Meter::Hardware,
        peak: Rate(8_000_000_000),
        pooling: None,
        split: Split::Even,
        least: Lines(0),
    }
}

fn regulate(sim: &mut Sim, name: &str, limit: Rate, on: &str) -> Result<Vec<String>, BackendError> {
    sim.apply(&step(name, Setting::Regulate(regulation(limit, on))))
}

/// A stream on CPU 1, with a limit if one is given.
pub(crate) fn stream(sim: &mut Sim, limit: Option<Rate>) -> (f64, Outcome) {
    group(sim, "noise", "1", false);
    if let Some(limit) = limit {
        regulate(sim, "noise", limit, "1").unwrap();
    }
    let noise = sim
        .start(&subject("noise", "bandwidth:write,size=32MiB", Some("1")))
        .unwrap();
    let outcome = measure(sim, &[noise], Nanos::millis(2), Nanos::millis(10));
    let rate = rate(&outcome.results[&noise]);
    sim.undo().unwrap();
    (rate, outcome)
}

fn part(rate: f64, percent: u64) -> Rate {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    Rate(rate as u64 * percent / 100)
}

#[test]
fn a_stream_gets_its_limit_no_less_and_no_more() {
    let mut sim = sim();
    let (free, _) = stream(&mut sim, None);
    for percent in [10, 20, 30, 50, 70, 90] {
        let limit = part(free, percent);
        let (rate, outcome) = stream(&mut sim, Some(limit));
        let of_cap = rate / limit.0 as f64;
        assert!(
            (0.95..=1.05).contains(&of_cap),
            "{percent} %: {of_cap} of the cap"
        );
        assert!(
            outcome.throttles >= 5,
            "{percent} %: {} stops",
            outcome.throttles
        );
    }
}

/// The limit is raised and lowered, between budgets that are far from each other.
#[test]
fn a_changed_limit_holds_from_the_next_periods_on() {
    let mut sim = sim();
    group(&mut sim, "noise", "1", false);
    let limits = [1_000_000_000, 2_500_000_000, 300_000_000].map(Rate);
    regulate(&mut sim, "noise", limits[0], "1").unwrap();
    let stream = subject("noise", "bandwidth:write,size=32MiB", Some("1"));
    let noise = sim.start(&stream).unwrap();
    for limit in limits {
        sim.act(&Action::Budget {
            group: "noise".to_owned(),
            cpus: cpus("1"),
            budget: Lines::at(limit, PERIOD),
        })
        .unwrap();
        // Over ten periods, from three periods after the change on.
        let outcome = measure(&mut sim, &[noise], Nanos::millis(3), Nanos::millis(10));
        let of_cap = rate(&outcome.results[&noise]) / limit.0 as f64;
        assert!((0.95..=1.05).contains(&of_cap), "{limit}: {of_cap} of it");
    }
}

#[test]
fn below_its_limit_a_stream_is_never_stopped() {
    let mut sim = sim();
    let (free, _) = stream(&mut sim, None);
    let (rate, outcome) = stream(&mut sim, Some(part(free, 120)));
    assert_eq!(outcome.throttles, 0);
    assert!(rate > 0.97 * free, "{rate} of {free}");
}

/// The group uses more than its budget until the interrupt comes. It pays for that later.
#[test]
fn a_late_interrupt_lets_more_through_and_the_average_holds() {
    let overshoot = |delay: Nanos| {
        let mut board = Board::usual().unwrap();
        board.costs.interrupt_delay = delay;
        let mut sim = Sim::new(board, 1).unwrap();
        let limit = Rate(1_000_000_000);
        let (rate, outcome) = stream(&mut sim, Some(limit));
        let of_cap = rate / 1e9;
        assert!(
            (0.9..=1.1).contains(&of_cap),
            "after {delay}: {of_cap} of the cap"
        );
        let first = outcome.decisions.first().unwrap();
        assert_eq!(first.reaction, Some((delay, false)));
        assert!(matches!(first.what, Verdict::ThrottleUntil(_)));
        first.used.0 - Lines::at(limit, PERIOD).0
    };
    let (soon, late) = (overshoot(Nanos(0)), overshoot(Nanos::micros(20)));
    // 20 us at some 4 GB/s and more.
    let lines = 20_000 * 4 / LINE_BYTES;
    assert!(soon <= 1 && late > lines / 2, "{soon} and {late} lines");
}

#[test]
fn a_limited_neighbour_gives_the_latency_back() {
    let victim_beside = |limit: Option<Rate>| {
        let mut sim = sim();
        group(&mut sim, "victim", "0", true);
        group(&mut sim, "noise", "1", false);
        if let Some(limit) = limit {
            regulate(&mut sim, "noise", limit, "1").unwrap();
        }
        let victim = subject("victim", "latency:size=4MiB", Some("0"));
        let victim = sim.start(&victim).unwrap();
        let noise = subject("noise", "bandwidth:write,size=32MiB", Some("1"));
        let noise = sim.start(&noise).unwrap();
        let outcome = measure(
            &mut sim,
            &[victim, noise],
            Nanos::millis(5),
            Nanos::millis(10),
        );
        let windows = &outcome.results[&victim].metrics["latency_ns"];
        assert_eq!(windows.len(), 10);
        windows.iter().sum::<f64>() / 10.0
    };
    let (free, limited) = (victim_beside(None), victim_beside(Some(Rate(400_000_000))));
    assert!(
        free > 1.5 * limited,
        "{free} ns beside a free stream, {limited} ns beside a limited one"
    );
}

#[test]
fn what_the_machine_has_not_is_refused_with_the_reason() {
    let mut sim = sim();
    group(&mut sim, "noise", "1", false);
    let error = regulate(&mut sim, "noise", Rate(1 << 30), "1,7")
        .unwrap_err()
        .to_string();
    assert!(error.contains("the simulated machine has 0-3"), "{error}");
    let time = Regulation {
        meter: Meter::Time,
        ..regulation(Rate(1 << 30), "1")
    };
    let error = sim
        .apply(&step("noise", Setting::Regulate(time)))
        .unwrap_err()
        .to_string();
    assert!(error.contains("counts lines, not CPU time"), "{error}");
}
