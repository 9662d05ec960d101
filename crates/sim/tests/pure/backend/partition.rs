//! Core partition and the tasks on the cores.

use quell_plan::Setting;
use quell_record::backend::{Backend, Program, Seen};
use quell_types::task::TaskMatch;
use quell_types::units::Nanos;

use crate::backend::{cpus, group, measure, rate, sim, step, subject};

const MS: Nanos = Nanos::millis(1);

/// The part of a CPU's time that a list in the first-level cache gets. Alone its latency is that of
/// the cache.
fn share(latency_ns: f64) -> f64 {
    4.0 * 0.357 / latency_ns
}

#[test]
fn a_group_that_has_its_cpus_to_itself_is_not_disturbed_there() {
    let mut sim = sim();
    group(&mut sim, "victim", "0", true);
    let victim = sim
        .start(&subject("victim", "latency:size=16KiB", None))
        .unwrap();
    // Tasks of no group, which could run anywhere before.
    let others =
        (0..4).map(|n| sim.start(&subject(&format!("other{n}"), "latency:size=16KiB", None)));
    let mut all = vec![victim];
    all.extend(others.map(Result::unwrap));
    let outcome = measure(&mut sim, &all, MS, Nanos::millis(20));
    let latency = |id| {
        let windows = &outcome.results[id].metrics["latency_ns"];
        windows.iter().sum::<f64>() / windows.len() as f64
    };
    let shares: Vec<f64> = all.iter().map(|id| share(latency(id))).collect();
    assert!(shares[0] > 0.95, "{shares:?}");
    // Four tasks share three CPUs, so two of them share one.
    assert!(
        shares[1..].iter().filter(|s| **s < 0.6).count() >= 2,
        "{shares:?}"
    );
}

#[test]
fn whoever_is_pinned_to_the_cpus_of_others_is_refused() {
    let mut sim = sim();
    group(&mut sim, "victim", "0", true);
    let error = sim
        .start(&subject("other", "latency:size=16KiB", Some("0")))
        .unwrap_err();
    assert!(
        error.to_string().contains("its group may run on 1-3 only"),
        "{error}"
    );
}

#[test]
fn the_rest_is_kept_where_the_plan_says() {
    let mut sim = sim();
    let set = Setting::ConfineRest { cpus: cpus("2-3") };
    sim.apply(&step("rest", set)).unwrap();
    let error = sim
        .start(&subject("other", "latency:size=16KiB", Some("0-1")))
        .unwrap_err();
    assert!(error.to_string().contains("may run on 2-3 only"), "{error}");
}

#[test]
fn tasks_on_one_cpu_take_turns() {
    let mut sim = sim();
    let start = |sim: &mut quell_sim::Sim, name| {
        sim.start(&subject(name, "bandwidth:read,size=16KiB", Some("1")))
            .unwrap()
    };
    let alone = start(&mut sim, "a");
    let free = rate(&measure(&mut sim, &[alone], MS, Nanos::millis(9)).results[&alone]);
    sim.undo().unwrap();
    let all = [
        start(&mut sim, "a"),
        start(&mut sim, "b"),
        start(&mut sim, "c"),
    ];
    let outcome = measure(&mut sim, &all, MS, Nanos::millis(36));
    let parts: Vec<f64> = all
        .iter()
        .map(|id| rate(&outcome.results[id]) / free)
        .collect();
    // A third of the time each, less the switches: 2 us every 3 ms.
    assert!(parts.iter().all(|p| (0.30..0.36).contains(p)), "{parts:?}");
    let sum: f64 = parts.iter().sum();
    assert!((0.99..1.0).contains(&sum), "{sum}");
}

#[test]
fn undoing_puts_everything_back() {
    let mut sim = sim();
    let stream = |sim: &mut quell_sim::Sim| {
        let noise = sim
            .start(&subject("noise", "bandwidth:read,size=32MiB", Some("0")))
            .unwrap();
        rate(&measure(sim, &[noise], MS, Nanos::millis(5)).results[&noise])
    };
    let before = stream(&mut sim);
    assert_eq!(sim.undo().unwrap().restored, 0);
    group(&mut sim, "victim", "0", true);
    let set = Setting::ConfineRest { cpus: cpus("1-3") };
    sim.apply(&step("rest", set)).unwrap();
    let then = sim.now();
    let undone = sim.undo().unwrap();
    assert_eq!((undone.restored, undone.left), (3, Vec::new()));
    assert!(sim.now() >= then, "time goes on");
    // All tasks may use CPU 0 again, and it is as fast as before.
    let after = stream(&mut sim);
    assert!(
        (0.97..1.03).contains(&(after / before)),
        "{before} before, {after} after"
    );
    assert_eq!(sim.undo().unwrap().restored, 0);
}

#[test]
fn commands_and_tasks_to_be_found_are_refused() {
    let mut sim = sim();
    let mut spec = subject("db", "latency:size=16KiB", None);
    spec.program = Program::Command(vec!["sleep".to_owned(), "1".to_owned()]);
    let error = sim.start(&spec).unwrap_err().to_string();
    assert!(
        error.contains("'db' is a command") && error.contains("--on linux"),
        "{error}"
    );
    let matching = vec![TaskMatch::default()];
    let error = sim
        .apply(&step(
            "db",
            Setting::Gather {
                matching,
                outermost: false,
                braked: false,
            },
        ))
        .unwrap_err()
        .to_string();
    assert!(error.contains("no tasks to be found"), "{error}");
    let set = Setting::Confine {
        cpus: cpus("0"),
        mems: cpus("0"),
        exclusive: true,
    };
    let error = sim.apply(&step("ghost", set)).unwrap_err().to_string();
    assert!(error.contains("was not gathered"), "{error}");
}

#[test]
fn a_generator_is_ready_measures_again_and_stops() {
    let mut sim = sim();
    let id = sim
        .start(&subject("a", "latency:size=16KiB", None))
        .unwrap();
    let mut seen = Vec::new();
    sim.wait(Nanos(1), &mut seen).unwrap();
    assert_eq!(seen, [Seen::Ready(id)]);
    for _ in 0..2 {
        let measured = measure(&mut sim, &[id], MS, Nanos::millis(3))
            .results
            .remove(&id)
            .unwrap();
        assert_eq!(
            (measured.window_ns, measured.duration_ns),
            (1_000_000, 3_000_000)
        );
        assert_eq!(measured.metrics["latency_ns"].len(), 3);
    }
    let stop = quell_record::backend::Action::Stop(id);
    sim.act(&stop).unwrap();
    assert!(
        sim.act(&stop)
            .unwrap_err()
            .to_string()
            .contains("no subject")
    );
    assert!(sim.shared_cache(0, 3).unwrap() == Some(1.0) && sim.shared_cache(0, 9).is_err());
}
