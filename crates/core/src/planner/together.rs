//! Throttled groups on SMT siblings of a critical group.

use crate::cpuset::CpuSet;
use crate::policy::Role;

use super::Draft;

/// Notes that a stopped group is not silent for the other thread of its core: while it is stopped, its brake spins there.
pub(super) fn sibling_note(draft: &mut Draft<'_>, name: &str, cpus: &CpuSet) {
    let machine = draft.machine;
    let critical = draft.policy.with_role(Role::Critical);
    for (other, _) in critical.filter(|(other, _)| *other != name) {
        let critical = draft.division.of(other).cpus.clone();
        let beside: CpuSet = machine
            .cpus
            .iter()
            .filter(|c| cpus.contains(c.id) && !c.siblings.intersection(&critical).is_empty())
            .map(|c| c.id)
            .collect();
        if !beside.is_empty() {
            draft.notes.push(format!(
                "group {name} is throttled on CPU {beside}, SMT siblings of group {other}: while it is stopped, its brake uses a \
                 little of the shared core"
            ));
        }
    }
}
