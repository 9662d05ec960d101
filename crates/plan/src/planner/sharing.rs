//! Notes that name the CPUs with which a critical group shares a cache. A core partition divides
//! CPUs, not caches.
//!
//! Two sources report shared caches, the kernel's topology and `quell doctor --deep`, and each may
//! be wrong. On a virtual machine the kernel repeats what the hypervisor made up. What the probe
//! found was true when it was measured. CPUs that either source reports as sharing are named. That
//! the probe found CPUs not to share is noted, but removes no warning.

use quell_policy::Role;
use quell_types::calendar;
use quell_types::cpuset::CpuSet;
use quell_types::partition::Divides;

use crate::inventory::Measured;
use crate::plan::Promise;

use super::cpus::Part;
use super::draft::Draft;
use super::words::{cores as words, on};

/// Notes on the caches that critical groups with CPUs of their own share with other tasks. Reads
/// the promises, so it runs after all of them are made.
pub(super) fn notes(draft: &mut Draft<'_>) {
    for (name, _) in draft.policy.with_role(Role::Critical) {
        let part = draft.division.of(name);
        if part.exclusive {
            let found = of_group(draft, name, part);
            draft.notes.extend(found);
        }
    }
}

fn of_group(draft: &Draft<'_>, name: &str, part: &Part) -> Vec<String> {
    let machine = draft.machine;
    let own = || part.cpus.iter().filter_map(|cpu| machine.llc(cpu));
    let level = own().map(|c| c.level).max();
    let claimed = own()
        .fold(CpuSet::new(), |all, c| all.union(&c.cpus))
        .difference(&part.blocked);
    let outside = machine.cpu_set().difference(&part.blocked);
    let found = |shared: bool| match machine.measured.as_ref() {
        Some(measured) => probed(measured, part, &outside, shared),
        None => CpuSet::EMPTY,
    };
    let date = machine.measured.as_ref().map(|m| date(m.at_unix_s));
    let date = date.unwrap_or_default();
    let (shared, separate) = (found(true), found(false));
    let mut notes = Vec::new();
    if let Some(level) = level.filter(|_| !claimed.is_empty()) {
        let what = match has_a_part(draft, name, level) {
            true => words::HITS_ARE_SHARED,
            false => words::CACHES_ARE_NOT_DIVIDED,
        };
        notes.push(words::shares_a_cache(name, level, &on(&claimed), what));
    }
    // The kernel reports sharing; a probe found none, and no probe found sharing.
    let doubtful = separate.difference(&shared).intersection(&claimed);
    if !doubtful.is_empty() {
        let changes = match machine.identity.hypervisor {
            Some(_) => words::HOST_MAY_CHANGE,
            None => words::DOCTOR_LOOKS_AGAIN,
        };
        notes.push(words::found_apart(name, &doubtful, &date, changes));
    }
    // A probe found sharing that the kernel does not report.
    let hidden = shared.difference(&claimed);
    if !hidden.is_empty() {
        notes.push(words::found_sharing(name, &hidden, &date));
    }
    notes
}

/// Whether the group is promised ways, locked memory or sets of its last-level cache.
fn has_a_part(draft: &Draft<'_>, name: &str, last: u32) -> bool {
    let mut own = draft.promises.iter().filter(|p| p.group == name);
    own.any(|held| match &held.promise {
        Promise::ReserveWays { level, .. } | Promise::ReserveLocked { level, .. } => *level == last,
        Promise::ReserveColours { divides, .. } => *divides != Divides::Banks,
        _ => false,
    })
}

/// The CPUs of `outside` in a probed pair with a CPU of the group. `shared` selects the pairs that
/// were found to share a last-level cache, or not to.
fn probed(measured: &Measured, part: &Part, outside: &CpuSet, shared: bool) -> CpuSet {
    let sharing = measured.deep.iter().filter_map(|d| d.sharing.as_ref());
    sharing
        .flat_map(|s| &s.pairs)
        .filter(|pair| pair.shared() == Some(shared))
        .flat_map(|pair| [(pair.a, pair.b), (pair.b, pair.a)])
        .filter(|(own, other)| part.cpus.contains(*own) && outside.contains(*other))
        .map(|(_, other)| other)
        .collect()
}

/// The date in UTC, as `YYYY-MM-DD`.
fn date(unix_s: u64) -> String {
    calendar::utc(unix_s)
        .chars()
        .take_while(|c| *c != ' ')
        .collect()
}
