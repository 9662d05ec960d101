//! The machine zoo: every captured or hand-made machine in `tests/machines` × every example policy is a plan that reads
//! as documentation. `QUELL_BLESS=1 cargo test -p quell --bins` writes them anew after a change that is meant.

use std::path::{Path, PathBuf};

use quell_plan::inventory::MeterKind;
use quell_report::{Measurements, Style};
use quell_types::units::Bytes;

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
        let machine = captured(&path).unwrap_or_else(|f| panic!("{}", f.text));
        let dir = repository().join("tests/machines/plans").join(name);
        wanted.push((
            dir.join("doctor.txt"),
            quell_report::doctor_text(&machine, Measurements::default(), Style::default()),
        ));
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
