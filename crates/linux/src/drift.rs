//! Drift: somebody else changed what we set. Seen by reading the values back, once a second.

use quell_core::journal::Undo;
use quell_core::policy::OnDrift;

use crate::root::Files;
use crate::undo::same;

/// Compares every value we wrote with what it reads now; sets it again if the policy says so. A sentence per difference.
pub fn look(files: &dyn Files, changes: &[Undo], on_drift: OnDrift) -> Vec<String> {
    let mut said = Vec::new();
    for (i, change) in changes.iter().enumerate() {
        let Undo::Write { path, new, .. } = change else {
            continue;
        };
        // Only the newest value counts, and what the kernel made of ours comes as a later entry for the same file.
        let superseded = changes[i + 1..]
            .iter()
            .any(|c| matches!(c, Undo::Write { path: p, .. } if p == path));
        if superseded {
            continue;
        }
        let Ok(now) = files.text(path) else { continue };
        if same(path, &now, new) {
            continue;
        }
        let repaired = on_drift == OnDrift::Repair && files.put(path, new).is_ok();
        let what = if repaired { "set again" } else { "left so" };
        said.push(format!(
            "{path} was changed by somebody else, from '{new}' to '{now}': {what}"
        ));
    }
    said
}
