//! Drift: another program changed what Quell set. It is found by reading the values back, once a
//! second.

use std::time::Duration;

use quell_types::journal::Undo;
use quell_types::options::OnDrift;

use quell_kernel::resctrl::Resctrl;
use quell_kernel::resctrl::lock::For;
use quell_kernel::root::Files;
use quell_kernel::value::{covers, only, same};

/// A value that another program has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drift {
    /// The file that holds it.
    pub path: String,
    /// One sentence: the old value, the new value, and whether it was set again.
    pub what: String,
}

/// Compares every value that was written with what its file reads now. Sets it again if the policy
/// says so. `held` is asked before each value. Once the run is revoked, a value may differ because
/// the watchdog has reverted it.
pub fn find(
    files: &dyn Files,
    changes: &[Undo],
    on_drift: OnDrift,
    held: &dyn Fn() -> bool,
) -> Vec<Drift> {
    let mut said = Vec::new();
    for (i, change) in changes.iter().enumerate() {
        if !held() {
            break;
        }
        let Undo::Write { path, new, .. } = change else {
            continue;
        };
        // Only the newest value counts. What the kernel made of a written value is a later entry
        // for the same file.
        let superseded = changes[i + 1..]
            .iter()
            .any(|c| matches!(c, Undo::Write { path: p, new: later, .. } if p == path && covers(path, later, new)))
            // In this file each controller is a value of its own.
            && !path.ends_with("/cgroup.subtree_control");
        // A file that a loop moves need not read what a step once set.
        let steered = changes.iter().any(
            |c| matches!(c, Undo::Steer { path: p, old } if p == path && covers(path, old, new)),
        );
        if superseded || steered {
            continue;
        }
        let Ok(now) = files.text(path) else { continue };
        let new = &*only(path, new, &now);
        if same(path, &now, new) || holds_controller(path, &now, new) {
            continue;
        }
        let repaired = on_drift == OnDrift::Repair && repair(files, path, new);
        let what = if repaired { "set again" } else { "left so" };
        said.push(Drift {
            what: format!("{path} was changed by somebody else, from '{new}' to '{now}': {what}"),
            path: path.clone(),
        });
    }
    said
}

/// Sets the value again. Below resctrl that is done only while no other tool works there; the next
/// check tries again.
fn repair(files: &dyn Files, path: &str, new: &str) -> bool {
    let resctrl = match Resctrl::find(files) {
        Ok(Some(resctrl)) if path.starts_with(&format!("{}/", resctrl.root)) => resctrl,
        _ => return files.put(path, new).is_ok(),
    };
    let lock = resctrl.lock(files, For::Changing, Duration::ZERO);
    lock.is_ok_and(|_lock| files.put(path, new).is_ok())
}

/// `cgroup.subtree_control` lists all controllers, where `+cpu` was written.
fn holds_controller(path: &str, now: &str, new: &str) -> bool {
    path.ends_with("/cgroup.subtree_control")
        && new
            .strip_prefix('+')
            .is_some_and(|ours| now.split_ascii_whitespace().any(|c| c == ours))
}

#[cfg(test)]
mod tests {
    use quell_kernel::root::Kernel;

    use super::*;

    #[test]
    fn a_controller_among_others_is_no_drift_and_one_taken_away_is() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("cg")).unwrap();
        let file = dir.path().join("cg/cgroup.subtree_control");
        let kernel = Kernel::at(dir.path());
        let change = |controller: &str| Undo::Write {
            path: "/cg/cgroup.subtree_control".into(),
            old: format!("-{controller}"),
            new: format!("+{controller}"),
        };
        let changes = [change("cpuset"), change("cpu")];
        std::fs::write(&file, "cpuset cpu\n").unwrap();
        let held = &|| true;
        assert!(find(&kernel, &changes, OnDrift::Report, held).is_empty());
        std::fs::write(&file, "cpuset\n").unwrap();
        assert_eq!(find(&kernel, &changes, OnDrift::Report, held).len(), 1);
    }

    #[test]
    fn what_a_loop_moves_is_no_drift_and_is_not_set_again() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("memory.min"), "300").unwrap();
        let kernel = Kernel::at(dir.path());
        let set = Undo::Write {
            path: "/memory.min".into(),
            old: "0".into(),
            new: "100".into(),
        };
        let steer = Undo::Steer {
            path: "/memory.min".into(),
            old: "100".into(),
        };
        let find = |changes: &[Undo]| find(&kernel, changes, OnDrift::Repair, &|| true);
        assert!(find(&[set.clone(), steer]).is_empty());
        assert_eq!(kernel.read("/memory.min").unwrap(), "300");
        assert_eq!(find(&[set]).len(), 1);
    }

    #[test]
    fn beside_a_line_that_a_loop_moves_others_drift() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("schemata"), "MB:0=60\nL3:0=3\n").unwrap();
        let kernel = Kernel::at(dir.path());
        let path = || "/schemata".to_owned();
        let set = |old: &str, new: &str| Undo::Write {
            path: path(),
            old: old.into(),
            new: new.into(),
        };
        let steer = Undo::Steer {
            path: path(),
            old: "L3:0=f".into(),
        };
        let changes = [set("L3:0=ff", "L3:0=f"), set("MB:0=100", "MB:0=50"), steer];
        let said = find(&kernel, &changes, OnDrift::Report, &|| true);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].what.contains("from 'MB:0=50'"), "{said:?}");
    }

    #[test]
    fn lines_of_schemata_are_values_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("schemata");
        let kernel = Kernel::at(dir.path());
        let change = |new: &str| Undo::Write {
            path: "/schemata".into(),
            old: String::new(),
            new: new.into(),
        };
        let changes = [change("L3:0=f"), change("MB:0=50"), change("L3:0=ff")];
        let held = &|| true;
        let said = || find(&kernel, &changes, OnDrift::Report, held);
        // With padding, as older kernels write it, and with values that Quell did not set.
        std::fs::write(&file, "    MB:0=  50\n    L3:0=00ff\n    L2:0=0001\n").unwrap();
        assert!(said().is_empty());
        std::fs::write(&file, "MB:0=50\nL3:0=f\nL2:0=1\n").unwrap();
        assert_eq!(said().len(), 1, "{:?}", said());
        assert!(said()[0].what.contains("from 'L3:0=ff'"));
        std::fs::write(&file, "MB:0=60\nL3:0=f\n").unwrap();
        assert_eq!(said().len(), 2);
    }

    #[test]
    fn a_cache_that_is_offline_has_not_drifted_and_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("schemata");
        let kernel = Kernel::at(dir.path());
        let change = Undo::Write {
            path: "/schemata".into(),
            old: "L3:0=ff;1=ff".into(),
            new: "L3:0=f;1=f".into(),
        };
        let find = || {
            find(
                &kernel,
                std::slice::from_ref(&change),
                OnDrift::Repair,
                &|| true,
            )
        };
        std::fs::write(&file, "L3:0=f\n").unwrap();
        assert!(find().is_empty());
        std::fs::write(&file, "L3:0=1\n").unwrap();
        assert_eq!(find().len(), 1);
        assert_eq!(kernel.read("/schemata").unwrap().trim(), "L3:0=f");
    }

    #[test]
    fn what_the_watchdog_took_back_is_not_set_again() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("x"), "before").unwrap();
        let kernel = Kernel::at(dir.path());
        let change = Undo::Write {
            path: "/x".into(),
            old: "before".into(),
            new: "ours".into(),
        };
        assert!(find(&kernel, &[change], OnDrift::Repair, &|| false).is_empty());
        assert_eq!(kernel.read("/x").unwrap(), "before");
    }
}
