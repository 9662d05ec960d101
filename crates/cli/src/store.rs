//! What was measured, kept for each machine: several fingerprints next to each other, so that a
//! kernel that is booted again, or a home directory that several machines share, finds its figures.

use std::path::{Path, PathBuf};

use quell_plan::deep::Fingerprint;
use quell_plan::inventory::Measured;
use serde::{Deserialize, Serialize};

const SCHEMA: &str = "quell.measured/3";
/// The schema that held one machine.
const ONE_MACHINE: &str = "quell.measured/2";
/// More machines than this are not kept; the one that was measured longest ago goes first.
const MOST: usize = 16;

/// What was measured, and on which machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry {
    machine: Fingerprint,
    measured: Measured,
}

/// The file.
#[derive(Debug, Serialize, Deserialize)]
struct Store {
    schema: String,
    machines: Vec<Entry>,
}

/// The file of the version before.
#[derive(Debug, Deserialize)]
struct Before {
    schema: String,
    machine: Fingerprint,
    measured: Measured,
}

/// What the store has for a machine.
#[derive(Debug, PartialEq)]
pub enum Found {
    /// Figures that hold.
    Holds(Box<Measured>),
    /// Figures of another machine, or of this one before it changed.
    Changed {
        /// When they were measured, seconds since 1970.
        at_unix_s: u64,
        /// What is different now, each as half a sentence.
        why: Vec<String>,
    },
    /// Nothing.
    Nothing,
}

fn entries(path: &Path) -> Vec<Entry> {
    let Ok(text) = std::fs::read_to_string(path) else {
        return Vec::new();
    };
    if let Ok(store) = serde_json::from_str::<Store>(&text)
        && store.schema == SCHEMA
    {
        return store.machines;
    }
    let before = serde_json::from_str::<Before>(&text).ok();
    let before = before.filter(|b| b.schema == ONE_MACHINE);
    let entry = |b: Before| Entry {
        machine: b.machine,
        measured: b.measured,
    };
    before.map(entry).into_iter().collect()
}

/// What `path` has for `machine`. Of several entries that hold it is the newest; where none holds,
/// the closest one says why.
pub fn find(path: &Path, machine: &Fingerprint) -> Found {
    let all = entries(path);
    let holds = all
        .iter()
        .filter(|e| e.machine.changed(machine).is_empty())
        .max_by_key(|e| e.measured.at_unix_s);
    if let Some(entry) = holds {
        return Found::Holds(Box::new(entry.measured.clone()));
    }
    let closest = all
        .iter()
        .map(|e| (e.machine.changed(machine), e.measured.at_unix_s))
        .min_by_key(|(why, at)| (why.len(), u64::MAX - at));
    match closest {
        Some((why, at_unix_s)) => Found::Changed { at_unix_s, why },
        None => Found::Nothing,
    }
}

/// Keeps what was measured on `machine` next to what is kept of others.
///
/// # Errors
/// The file cannot be written.
pub fn keep(path: &Path, machine: &Fingerprint, measured: &Measured) -> std::io::Result<()> {
    let mut machines = entries(path);
    machines.retain(|e| !e.machine.changed(machine).is_empty());
    machines.sort_by_key(|e| e.measured.at_unix_s);
    let surplus = (machines.len() + 1).saturating_sub(MOST);
    machines.drain(..surplus);
    machines.push(Entry {
        machine: machine.clone(),
        measured: measured.clone(),
    });
    let store = Store {
        schema: SCHEMA.to_owned(),
        machines,
    };
    crate::state::write_whole(path, &serde_json::to_string_pretty(&store)?)
}

/// The file, in the directory where figures are kept.
pub fn path() -> Option<PathBuf> {
    crate::state::state_dir().map(|dir| dir.join("measured.json"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_plan::inventory::Inventory;

    fn machine(change: impl FnOnce(&mut Inventory)) -> (Fingerprint, Measured) {
        let zoo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/machines/smt-off.toml");
        let mut machine = crate::plan::captured(&zoo).unwrap_or_else(|f| panic!("{}", f.text));
        change(&mut machine);
        let measured = quell_plan::assumed::rates(&machine);
        (machine.fingerprint(None), measured)
    }

    fn at(measured: &Measured, at_unix_s: u64) -> Measured {
        Measured {
            at_unix_s,
            ..measured.clone()
        }
    }

    #[test]
    fn several_machines_are_kept_next_to_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("measured.json");
        let (one, measured) = machine(|_| ());
        let (other, _) = machine(|m| m.identity.kernel = "9.9".to_owned());
        assert_eq!(find(&file, &one), Found::Nothing);
        keep(&file, &one, &at(&measured, 1)).unwrap();
        let Found::Changed { at_unix_s: 1, why } = find(&file, &other) else {
            panic!("{:?}", find(&file, &other));
        };
        assert!(why[0].starts_with("the kernel was"), "{why:?}");
        keep(&file, &other, &at(&measured, 2)).unwrap();
        keep(&file, &other, &at(&measured, 3)).unwrap();
        let holds = |n| Found::Holds(Box::new(at(&measured, n)));
        assert_eq!(find(&file, &one), holds(1));
        assert_eq!(find(&file, &other), holds(3));
        assert_eq!(entries(&file).len(), 2, "one entry for each machine");
    }

    #[test]
    fn the_machine_measured_longest_ago_goes_first() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("measured.json");
        let kernel = |n: u64| machine(|m| m.identity.kernel = n.to_string());
        for n in 1..=MOST as u64 + 2 {
            let (print, measured) = kernel(n);
            keep(&file, &print, &at(&measured, n)).unwrap();
        }
        assert_eq!(entries(&file).len(), MOST);
        let held = |n| matches!(find(&file, &kernel(n).0), Found::Holds(_));
        assert_eq!([held(2), held(3)], [false, true]);
    }

    #[test]
    fn the_file_of_the_version_before_is_read_and_others_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("measured.json");
        let (print, measured) = machine(|_| ());
        let write = |schema: &str| {
            let json =
                serde_json::json!({"schema": schema, "machine": print, "measured": measured});
            std::fs::write(&file, json.to_string()).unwrap();
            find(&file, &print)
        };
        assert_eq!(write(ONE_MACHINE), Found::Holds(Box::new(measured.clone())));
        assert_eq!(write("quell.measured/1"), Found::Nothing);
        std::fs::write(&file, "{").unwrap();
        assert_eq!(find(&file, &print), Found::Nothing);
    }
}
