//! Reads and writes with a budget each.

use quell_control::config::Regulation;

use super::*;
use crate::plan::Direction;
use proptest::prelude::*;

/// A neighbour on its own CPU, with a limit for each direction.
const APART: &str = "[group.victim]
role = 'critical'
command = ['a']
cpus = 1
[group.noise]
role = 'best-effort'
command = ['b']
cpus = 1
limit.bandwidth = { read = '2GB/s', write = '1GB/s' }
";

/// 10 GB/s a CPU, of which plain stores write back 4.
fn fine(cores: u32) -> Inventory {
    let mut machine = counted(machine(cores, 1), "");
    let measured = machine.measured.as_mut().unwrap();
    measured.by_operation = [("read", 10), ("write", 4), ("copy", 6)]
        .map(|(operation, gb)| (operation.to_owned(), Rate(gb * 1_000_000_000)))
        .into();
    machine
}

fn of_noise(plan: &Plan) -> Option<&Regulation> {
    plan.steps.iter().find_map(|s| match &s.set {
        Setting::Regulate(r) if s.group.as_deref() == Some("noise") => Some(r),
        _ => None,
    })
}

/// What is promised of each direction to a group.
fn promised(plan: &Plan, group: &str) -> Vec<(String, Level)> {
    let promises = plan.promises.iter().filter(|p| p.group == group);
    let promises = promises.filter(|p| !matches!(p.promise, Promise::Cpus { .. }));
    promises.map(|p| (p.promise.to_string(), p.level)).collect()
}

#[test]
fn each_direction_has_a_budget_a_reason_and_a_promise() {
    let plan = planned(APART, &fine(4));
    let regulation = of_noise(&plan).unwrap();
    let lines = |gb: u64| Lines::at(Rate(gb * 1_000_000_000), Nanos::millis(1));
    assert_eq!(regulation.budget, lines(2));
    assert_eq!(regulation.meter, Meter::Directions { writes: lines(1) });
    let step = plan
        .steps
        .iter()
        .find(|s| s.mechanism == Mechanism::Bandwidth)
        .unwrap();
    // Stores write back 4 GB/s at the most.
    assert_eq!(
        step.because,
        "limit 2GB/s read (20% of the 10GB/s that one CPU can), and 1GB/s written back (25% of the 4GB/s that one CPU can); \
         whichever is used up first stops the group on that CPU"
    );
    assert_eq!(
        promised(&plan, "noise"),
        [
            ("at most 2GB/s read".to_owned(), Level::Regulated),
            ("at most 1GB/s written back".to_owned(), Level::Regulated)
        ]
    );
    let by: Vec<_> = plan
        .promises
        .iter()
        .filter(|p| p.group == "noise")
        .collect();
    assert!(by.iter().all(|p| p.held_by == [step.id]));
}

#[test]
fn a_budget_for_both_together_stays_one() {
    let text = APART.replace("{ read = '2GB/s', write = '1GB/s' }", "'3GB/s'");
    let plan = planned(&text, &fine(4));
    assert_eq!(of_noise(&plan).unwrap().meter, Meter::Hardware);
    assert_eq!(
        promised(&plan, "noise"),
        [("at most 3GB/s".to_owned(), Level::Regulated)]
    );
}

#[test]
fn one_direction_alone_is_counted_alone_and_bounds_no_other() {
    let one = |keys: &str| APART.replace("read = '2GB/s', write = '1GB/s'", keys);
    let plan = planned(&one("write = '1GB/s'"), &fine(4));
    assert_eq!(of_noise(&plan).unwrap().meter, Meter::Writes);
    let plan = planned(&one("read = '2GB/s'"), &fine(4));
    assert_eq!(of_noise(&plan).unwrap().meter, Meter::Reads);
    // A reserve next to it rests on nothing.
    let reserve = "require = 'none'\n".to_owned()
        + &one("read = '2GB/s'").replace(
            "cpus = 1\n[group.noise]",
            "cpus = 1\nreserve.bandwidth = '15GB/s'\n[group.noise]",
        );
    let plan = planned(&reserve, &fine(2));
    let held = plan
        .promises
        .iter()
        .find(|p| matches!(p.promise, Promise::ReserveBandwidth { .. }))
        .unwrap();
    assert_eq!(held.level, Level::None);
    assert!(
        held.weakest
            .as_ref()
            .unwrap()
            .contains("nothing limits what is written back"),
        "{held:?}"
    );
}

#[test]
fn what_its_cpu_cannot_exceed_needs_no_budget() {
    let text = APART.replace("2GB/s", "12GB/s");
    let plan = planned(&text, &fine(4));
    let regulation = of_noise(&plan).unwrap();
    assert_eq!(regulation.meter, Meter::Writes);
    assert_eq!(
        promised(&plan, "noise")[0],
        ("at most 12GB/s read".to_owned(), Level::Estimated)
    );
    let both = text.replace("1GB/s", "11GB/s");
    assert_eq!(of_noise(&planned(&both, &fine(4))), None);
}

#[test]
fn reserves_of_each_direction_are_promised_and_leave_the_rest() {
    let text = "[group.victim]
role = 'critical'
command = ['a']
cpus = 1
reserve.bandwidth = { read = '2GB/s', write = '1GB/s' }
[group.noise]
role = 'best-effort'
command = ['b']
";
    let plan = planned(&format!("require = 'none'\n{text}"), &fine(4));
    // The best-effort groups have 20 GB/s less 3, in any direction.
    let regulation = of_noise(&plan).unwrap();
    assert_eq!(regulation.meter, Meter::Hardware);
    let all = Rate(regulation.budget.0 * 64 * 1_000 * regulation.cpus.len() as u64);
    assert!((16_990_000_000..=17_000_000_000).contains(&all.0), "{all}");
    let promised: Vec<String> = promised(&plan, "victim")
        .into_iter()
        .map(|(p, _)| p)
        .collect();
    assert_eq!(
        promised,
        ["at least 2GB/s read", "at least 1GB/s written back"]
    );
}

#[test]
fn strict_reserves_cap_each_direction() {
    let text = "require = 'none'\nregulator.strict = true\n[group.noise]
role = 'best-effort'
command = ['b']
cpus = 1
reserve.bandwidth = { read = '2GB/s', write = '1GB/s' }
";
    let regulation = planned(text, &fine(4));
    let regulation = of_noise(&regulation).unwrap();
    assert!(
        matches!(regulation.meter, Meter::Directions { .. }),
        "{regulation:?}"
    );
    for pooled in ["reclaim = true", "after = 'spare'"] {
        let text = format!("regulator.{pooled}\n{text}");
        let why = refused(&text, &fine(4));
        assert!(
            why.contains(
                "group.noise.reserve.bandwidth: budgets of reads and writes are not pooled"
            ),
            "{why}"
        );
        // A limit is never pooled.
        let limit = text.replace("reserve.bandwidth", "limit.bandwidth");
        planned(&limit, &fine(4));
    }
}

#[test]
fn without_counters_of_both_directions_it_is_refused() {
    // No counters at all; counters that see no write-backs, on all CPUs or some.
    let why = refused(APART, &machine(4, 1));
    assert!(
        why.contains("only hardware counters count reads and writes separately"),
        "{why}"
    );
    assert!(
        why.contains("write limit.bandwidth = \"3GB/s\" in [group.noise]"),
        "{why}"
    );
    let why = refused(APART, &counted(machine(4, 1), "0-3"));
    assert!(
        why.contains("lines that are written back are not counted"),
        "{why}"
    );
    let text = APART
        .replace("cpus = 1\nlimit", "cpus = '1-2'\nlimit")
        .replace("cpus = 1\n[group.noise]", "cpus = '0'\n[group.noise]");
    let why = refused(&text, &counted(machine(4, 1), "2"));
    assert!(
        why.contains("on CPU 2 lines") && why.contains("write cpus = \"0-1,3\" in [group.noise]"),
        "{why}"
    );
    let mut none = machine(4, 1);
    none.means.meter = MeterKind::None {
        why: "nothing counts".to_owned(),
    };
    none.means.time_meter = false;
    assert!(refused(APART, &none).contains("only the regulator limits reads and writes"));
    let time = format!("regulator.meter = 'time'\n{APART}");
    assert!(refused(&time, &fine(4)).contains("leave out meter of [regulator]"));
    for mechanism in ["mba", "none"] {
        let text = format!("mechanisms.bandwidth = '{mechanism}'\n{APART}");
        assert!(refused(&text, &fine(4)).contains("group.noise.limit.bandwidth"));
    }
}

#[test]
fn who_may_not_be_throttled_is_not_limited_in_any_direction() {
    let text = APART.replace(
        "limit.bandwidth",
        "allow = ['limit-memory']\nlimit.bandwidth",
    );
    assert!(refused(&text, &fine(4)).contains("the group (best-effort) may not be throttled"));
}

proptest! {
    /// For any input, the budgets of all CPUs sum to at most what is asked for in each direction.
    /// They fall short of it by at most one line per CPU.
    #[test]
    fn budgets_add_up_to_what_is_asked_for(
        read in 1_000u64..20_000,
        write in 1_000u64..20_000,
        cpus in 1u32..5,
    ) {
        let text = APART
            .replace("2GB/s", &format!("{read}MB/s"))
            .replace("1GB/s", &format!("{write}MB/s"))
            .replace("cpus = 1\nlimit", &format!("cpus = {cpus}\nlimit"));
        let Ok(plan) = plan(&policy(&text), &fine(8)) else {
            // Below the floor.
            prop_assert!((read / u64::from(cpus)) < 600 || (write / u64::from(cpus)) < 240);
            return Ok(());
        };
        let all = |lines: Lines| lines.0 * 64 * 1_000 * u64::from(cpus);
        let check = |lines: Lines, mb: u64| {
            let rate = mb * 1_000_000;
            all(lines) <= rate && all(lines) + 64_000 * u64::from(cpus) + 1_000 > rate
        };
        let regulation = of_noise(&plan);
        let promises = plan.promises.iter().filter(|p| matches!(p.promise, Promise::LimitDirection { .. }));
        prop_assert_eq!(promises.count(), 2);
        let (reads, writes) = match regulation.map(|r| (r.budget, r.meter)) {
            Some((budget, Meter::Directions { writes })) => (Some(budget), Some(writes)),
            Some((budget, Meter::Reads)) => (Some(budget), None),
            Some((budget, Meter::Writes)) => (None, Some(budget)),
            None => (None, None),
            other => panic!("{other:?}"),
        };
        let free = |mb: u64| mb / u64::from(cpus) >= 10_000;
        for (lines, mb, direction) in [(reads, read, Direction::Read), (writes, write, Direction::Write)] {
            match lines {
                Some(lines) => prop_assert!(check(lines, mb), "{} of {} {}", lines.0, mb, direction),
                None => prop_assert!(free(mb), "{mb} {direction}"),
            }
        }
    }
}
