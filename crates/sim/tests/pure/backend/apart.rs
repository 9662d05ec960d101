//! Separate budgets of reads and writes, on the machine's counters of lines read and written back.

use quell_control::config::Meter;
use quell_control::config::Regulation;
use quell_plan::Setting;
use quell_plan::inventory::MeterKind;
use quell_record::backend::{Action, Backend, SubjectId};
use quell_record::demand::Drawn;
use quell_sim::Sim;
use quell_sim::board::Board;
use quell_sim::profile::Profile;
use quell_types::units::{Lines, Nanos, Rate};

use crate::backend::regulation::{PERIOD, regulation};
use crate::backend::{cpus, group, measure, sim, step, subject};

fn apart(reads: Rate, writes: Rate, on: &str) -> Regulation {
    let writes = Lines::at(writes, PERIOD);
    Regulation {
        meter: Meter::Directions { writes },
        ..regulation(reads, on)
    }
}

/// Long enough for rough figures.
const SHORT: Nanos = Nanos::millis(15);

/// What a generator on CPU 1 reads and writes in `span`, in bytes per second.
fn drawn(sim: &mut Sim, run: &str, limit: Option<Regulation>, span: Nanos) -> [f64; 2] {
    group(sim, "noise", "1", false);
    if let Some(limit) = limit {
        sim.apply(&step("noise", Setting::Regulate(limit))).unwrap();
    }
    let noise = sim.start(&subject("noise", run, Some("1"))).unwrap();
    measure(sim, &[noise], Nanos(0), Nanos::millis(4));
    let now = |sim: &mut Sim, noise: SubjectId| sim.drawn(noise).unwrap().unwrap();
    let before = now(sim, noise);
    let mut seen = Vec::new();
    let end = sim.now().plus(span);
    while sim.wait(end, &mut seen).unwrap() < end {}
    let Drawn { read, written, .. } = now(sim, noise);
    sim.undo().unwrap();
    [read - before.read, written - before.written].map(|bytes| bytes as f64 / span.as_secs_f64())
}

const WRITE: &str = "bandwidth:write,size=32MiB";
const READ: &str = "bandwidth:read,size=32MiB";
/// Stores past the caches: no lines are read.
const PAST: &str = "bandwidth:non-temporal,size=32MiB";

#[test]
fn whichever_budget_binds_is_held_over_100_ms() {
    let mut sim = sim();
    let gb = |x: u64| Rate(x * 100_000_000);
    for (run, reads, writes, binds) in [
        (READ, gb(10), gb(1), 0),
        (READ, gb(30), gb(1), 0),
        (WRITE, gb(10), gb(5), 1),
        (WRITE, gb(5), gb(10), 0),
        (WRITE, gb(40), gb(10), 1),
        (PAST, gb(1), gb(10), 1),
    ] {
        let found = drawn(
            &mut sim,
            run,
            Some(apart(reads, writes, "1")),
            Nanos::millis(100),
        );
        let caps = [reads, writes].map(|rate| rate.0 as f64);
        let of_cap = [found[0] / caps[0], found[1] / caps[1]];
        assert!(
            (0.95..=1.05).contains(&of_cap[binds]),
            "{run}, {reads} and {writes}: {of_cap:?} of the caps"
        );
        assert!(of_cap[1 - binds] <= 1.05, "{run}: {of_cap:?}");
    }
}

#[test]
fn a_small_budget_of_writes_costs_a_reader_nothing() {
    let mut sim = sim();
    let [free, none] = drawn(&mut sim, READ, None, SHORT);
    let limit = apart(Rate(20_000_000_000), Rate(100_000_000), "1");
    let [read, _] = drawn(&mut sim, READ, Some(limit), SHORT);
    assert!(read > 0.99 * free, "{read} of {free}");
    assert!(none < 0.01 * free);
    // One budget of that size would have left it next to nothing.
    let [read, _] = drawn(
        &mut sim,
        READ,
        Some(regulation(Rate(100_000_000), "1")),
        SHORT,
    );
    assert!(read < 0.05 * free, "{read} of {free}");
}

/// A budget for one direction alone does not limit the other.
#[test]
fn one_direction_is_counted_alone() {
    let mut sim = sim();
    let limit = Rate(500_000_000);
    let [read, _] = drawn(&mut sim, READ, None, SHORT);
    for (meter, run, binds) in [
        (Meter::Reads, READ, Some(0)),
        (Meter::Reads, PAST, None),
        (Meter::Writes, WRITE, Some(1)),
        (Meter::Writes, READ, None),
    ] {
        let regulation = Regulation {
            meter,
            ..regulation(limit, "1")
        };
        let found = drawn(&mut sim, run, Some(regulation), SHORT);
        match binds {
            Some(n) => {
                let of_cap = found[n] / limit.0 as f64;
                assert!((0.95..=1.05).contains(&of_cap), "{meter:?} {run}: {of_cap}");
            }
            None => assert!(
                found[0].max(found[1]) > 0.5 * read,
                "{meter:?} {run}: {found:?}"
            ),
        }
    }
}

/// On a machine with a counter of both directions, one budget for both holds the sum.
#[test]
fn one_budget_for_both_stays_a_sum_where_counters_see_both() {
    let mut profile = Profile::built_in(Board::USUAL).unwrap();
    profile.counters.writes = true;
    let mut sim = Sim::new(Board::of(profile).unwrap(), 1).unwrap();
    let machine = sim.inventory(quell_record::backend::Probe::Fast).unwrap();
    let MeterKind::Hardware {
        events,
        fills_only,
        apart,
    } = machine.means.meter
    else {
        panic!("counters");
    };
    assert_eq!((events.len(), fills_only.len(), apart.len()), (2, 0, 4));
    let limit = Rate(1_000_000_000);
    for (run, writes) in [(READ, 0.0), (WRITE, 0.5), (PAST, 1.0)] {
        let [read, written] = drawn(&mut sim, run, Some(regulation(limit, "1")), SHORT);
        let of_cap = (read + written) / limit.0 as f64;
        assert!((0.95..=1.05).contains(&of_cap), "{run}: {of_cap}");
        let part = written / (read + written);
        assert!((part - writes).abs() < 0.05, "{run}: {part} written");
    }
}

#[test]
fn one_budget_does_not_move_two() {
    let mut sim = sim();
    group(&mut sim, "noise", "1", false);
    let limit = apart(Rate(1_000_000_000), Rate(1_000_000_000), "1");
    sim.apply(&step("noise", Setting::Regulate(limit))).unwrap();
    let moved = Action::Budget {
        group: "noise".to_owned(),
        cpus: cpus("1"),
        budget: Lines(100),
    };
    let refused = sim.act(&moved).unwrap_err().to_string();
    assert!(
        refused.contains("a budget of reads and one of writes on CPU 1"),
        "{refused}"
    );
}
