//! The machine zoo: every captured or hand-made machine in `tests/machines` × every example policy is a plan that reads
//! as documentation. `QUELL_BLESS=1 cargo test -p quell --bins` writes them anew after a change that is meant.

use std::path::{Path, PathBuf};

use quell_plan::inventory::{Measured, MeterKind};
use quell_report::{Measurements, Style};
use quell_types::units::{Bytes, Rate};

use super::*;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Files of a folder by name, without their extension.
fn files(dir: &str) -> Vec<(String, PathBuf)> {
    let mut found: Vec<(String, PathBuf)> = std::fs::read_dir(repository().join(dir))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "toml"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, path)
        })
        .collect();
    found.sort();
    found
}

/// What `quell plan` prints, on stdout or, refused, on stderr.
fn answer(name: &str, path: &Path, machine: &Inventory) -> String {
    let shown = Path::new("examples").join(format!("{name}.toml"));
    let planned = policy(path, false).and_then(|p| plan(&p, Some(path), machine, &Solos::new()));
    match planned {
        Ok(plan) => printed(&plan, &shown, Style::default()),
        Err(failure) => {
            let text = failure
                .text
                .replace(path.to_str().unwrap(), shown.to_str().unwrap());
            format!("quell: {text}\n")
        }
    }
}

#[test]
fn every_machine_and_every_example_policy_make_a_plan_to_read() {
    let bless = std::env::var_os("QUELL_BLESS").is_some();
    let mut wanted: Vec<(PathBuf, String)> = Vec::new();
    let machines = files("tests/machines");
    assert!(machines.len() >= 10, "{machines:?}");
    for (name, path) in machines {
        let mut machine = captured(&path).unwrap_or_else(|f| panic!("{}", f.text));
        let dir = repository().join("tests/machines/plans").join(name);
        wanted.push((
            dir.join("doctor.txt"),
            quell_report::doctor_text(&machine, Measurements::default(), Style::default()),
        ));
        machine::assume(&mut machine);
        for (policy, path) in files("examples") {
            let text = answer(&policy, &path, &machine);
            wanted.push((dir.join(format!("{policy}.txt")), text));
        }
    }
    let plans = repository().join("tests/machines/plans");
    if bless {
        let _ = std::fs::remove_dir_all(&plans);
    }
    let mut wrong = Vec::new();
    for (path, text) in &wanted {
        if bless {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        if std::fs::read_to_string(path).unwrap_or_default() != *text {
            let short = path.strip_prefix(&plans).unwrap().display();
            wrong.push(format!("{short}; now it reads:\n{text}"));
        }
    }
    assert!(wrong.is_empty(), "differ: {}", wrong.join("\n"));
    let there: usize = std::fs::read_dir(&plans)
        .unwrap()
        .map(|dir| std::fs::read_dir(dir.unwrap().path()).unwrap().count())
        .sum();
    assert_eq!(
        there,
        wanted.len(),
        "plans of machines or policies that are gone"
    );
}

/// The buffers that rates are measured with are multiples of it.
#[test]
fn a_last_level_that_each_core_has_for_itself_is_none() {
    let llc = |name: &str| {
        let file = repository().join(format!("tests/machines/{name}.toml"));
        let machine = captured(&file).unwrap_or_else(|f| panic!("{}", f.text));
        machine.data_caches(machine.cpus[0].id).llc
    };
    assert_eq!(llc("arm-altra"), Bytes(32 << 20));
    assert_eq!(llc("jetson-orin"), Bytes(2 << 20));
    assert_eq!(llc("arm-big-little"), Bytes(3 << 20));
    assert_eq!(llc("smt-off"), Bytes(8 << 20));
}

#[test]
fn a_counter_that_is_off_or_was_not_checked_is_no_meter() {
    let file = repository().join("tests/machines/dual-socket-rdt.toml");
    let text = std::fs::read_to_string(file).unwrap();
    let meter = |text: &str| {
        let capture = Capture::parse(text).unwrap();
        capture.inventory().unwrap().means.meter
    };
    assert!(matches!(meter(&text), MeterKind::Hardware { .. }));
    let off = text.replace("p50 = 1.0", "p50 = 0.4");
    assert_ne!(off, text);
    assert_eq!(meter(&off), MeterKind::Time);
    let (before, after) = text.split_once("[measured.counters]").unwrap();
    let (_, after) = after.split_once("[files]").unwrap();
    assert_eq!(meter(&format!("{before}[files]{after}")), MeterKind::Time);
}

/// A machine of the zoo as its files tell it, without what was measured on it.
fn unmeasured(path: &Path) -> Inventory {
    let text = std::fs::read_to_string(path).unwrap();
    let mut table: toml::Table = text.parse().unwrap();
    table.remove("measured");
    let capture = Capture::parse(&table.to_string()).unwrap();
    capture.inventory().unwrap()
}

/// Rates that `quell run` might measure on a machine, from a small board's to a large server's.
fn measurable(machine: &Inventory) -> Vec<Measured> {
    let mut all = Vec::new();
    for peak in [
        500_000_000u64,
        2_000_000_000,
        10_000_000_000,
        60_000_000_000,
    ] {
        for cpus in [1, 2, machine.cpus.len() as u64] {
            for rest in [0, peak / 50] {
                all.push(Measured {
                    peak_cpu: Rate(peak),
                    sustainable: Rate(peak * cpus),
                    rest: Some(Rate(rest)),
                    assumed: false,
                    ..quell_plan::assumed::rates(machine)
                });
            }
        }
    }
    all
}

#[test]
fn what_run_would_accept_plan_does_not_refuse() {
    let (mut accepted, mut refused) = (0, Vec::new());
    for (name, path) in files("tests/machines") {
        let (captured, before) = (
            captured(&path).unwrap_or_else(|f| panic!("{}", f.text)),
            unmeasured(&path),
        );
        assert!(before.measured.is_none(), "{name}");
        let mut assumed = before.clone();
        machine::assume(&mut assumed);
        let mut measured: Vec<Inventory> = measurable(&before)
            .into_iter()
            .map(|rates| Inventory {
                measured: Some(rates),
                ..before.clone()
            })
            .collect();
        measured.extend(captured.measured.is_some().then_some(captured));
        for (example, path) in files("examples") {
            let policy = policy(&path, false).unwrap_or_else(|f| panic!("{}", f.text));
            let plan = |machine: &Inventory| plan(&policy, None, machine, &Solos::new());
            let run = measured.iter().filter(|m| plan(m).is_ok()).count();
            accepted += run;
            if let (1.., Err(failure)) = (run, plan(&assumed)) {
                refused.push(format!("{name}, {example}: {}", failure.text));
            }
        }
    }
    assert!(accepted > 500, "{accepted}");
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

#[test]
fn what_rests_on_assumed_rates_is_marked() {
    let path = repository().join("tests/machines/jetson-orin.toml");
    let mut machine = captured(&path).unwrap_or_else(|f| panic!("{}", f.text));
    assert!(machine.measured.is_none());
    machine::assume(&mut machine);
    let example = repository().join("examples/cap-a-neighbour.toml");
    let policy = policy(&example, false).unwrap_or_else(|f| panic!("{}", f.text));
    let plan =
        plan(&policy, None, &machine, &Solos::new()).unwrap_or_else(|f| panic!("{}", f.text));
    let json = serde_json::to_value(&plan).unwrap();
    assert_eq!(json["assumed"]["peak-cpu"], "10GB/s");
    let marked = |list: &str| {
        let all = json[list].as_array().unwrap().iter();
        all.filter(|one| one.get("assumed").is_some())
            .cloned()
            .collect::<Vec<_>>()
    };
    let (steps, promises) = (marked("steps"), marked("promises"));
    assert_eq!((steps.len(), promises.len()), (1, 1), "{json}");
    assert_eq!(promises[0]["promise"]["kind"], "limit-bandwidth");
    assert_eq!(promises[0]["held-by"][0], steps[0]["id"]);
    assert!(
        steps[0]["because"].as_str().unwrap().contains("(assumed)"),
        "{steps:?}"
    );
    let text = printed(&plan, &example, Style::default());
    let batch = text.lines().find(|l| l.contains("batch: at most")).unwrap();
    assert!(batch.contains("(assumed)"), "{text}");
    assert!(text.contains("`quell plan --measure`"), "{text}");
}
