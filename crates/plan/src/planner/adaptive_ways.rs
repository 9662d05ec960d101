//! Ways that follow what their group misses (`mechanisms.ways = "by-misses"`). What the group
//! reserves is the most that it has. The line between it and the best-effort groups moves.

use quell_control::config::Boundary;
use quell_policy::{Role, WaysKept};
use quell_types::mechanism::Mechanism;
use quell_types::refusal::Remedy;
use quell_types::units::{Nanos, Rate};

use crate::plan::Following;

use super::amounts::mask_of;
use super::division::{Claim, Divided, Kind};
use super::draft::Draft;
use super::words::division as words;

/// How much more a group may draw from memory than with all of its ways, for each of its CPUs. This
/// takes a twentieth of a CPU's time if each line takes 100 ns and the CPU waits for it.
const TOLERATED: Rate = Rate(32_000_000);
/// Time between samples. One reads a counter per cache, and lines take a while to come back.
const INTERVAL: Nanos = Nanos::millis(100);
/// The same on a simulated machine: samples cost nothing there, and the measured spans are short.
const SIMULATED: Nanos = Nanos::millis(1);

/// Adds the loop to the plan. Refuses what is asked for and cannot be had.
pub(super) fn plan(draft: &mut Draft<'_>, divided: &[Divided]) {
    if draft.policy.mechanisms.ways != WaysKept::ByMisses {
        return;
    }
    let mut none = true;
    for one in divided {
        let Kind::Ways(level) = one.kind else {
            continue;
        };
        let policy = draft.policy;
        let critical = |claim: &Claim| {
            let role = policy.groups.get(&claim.group).map(|g| g.role);
            role == Some(Role::Critical) && claim.locked.is_none() && claim.window.is_none()
        };
        let mut claims = one.claims.iter().zip(&one.allotted.parts);
        let Some((claim, part)) = claims.find(|(claim, _)| critical(claim)) else {
            continue;
        };
        none = false;
        if let Some((other, _)) = claims.find(|(claim, _)| critical(claim)) {
            let why = words::one_line_moves(&claim.group, &other.group, level);
            draft.refuse("mechanisms.ways", why, Remedy::leave_out("mechanisms.ways"));
            continue;
        }
        if claim.code.is_some() {
            let remedy = Remedy::leave_out("mechanisms.ways");
            draft.refuse(claim.at(), words::SAME_FOR_CODE_AND_DATA, remedy);
            continue;
        }
        let (own, left) = (mask_of(part), mask_of(&one.allotted.left));
        if one.others.is_empty() || Boundary::between(own, left).is_none() {
            let why = words::not_side_by_side(&claim.group, own, level, left);
            let remedies = [
                Remedy::leave_out("mechanisms.ways"),
                Remedy::from("say how many ways instead of which, and lock none"),
            ];
            draft.refuse(claim.at(), why, remedies);
            continue;
        }
        let cpus = draft.division.of(&claim.group).cpus.clone();
        let least = one
            .kind
            .whole(&draft.machine.partitions)
            .map_or(1, |w| w.least);
        let simulated = draft.machine.simulated.is_some();
        let tolerated = Rate(TOLERATED.0 * cpus.len().max(1) as u64);
        let others = one.others.join(", ");
        let note = words::at_first_and_at_most(&claim.group, own, level, tolerated, &others);
        draft.notes.push(note);
        draft.loops.follows.push(Following {
            group: claim.group.clone(),
            level,
            own,
            least,
            others: one.others.clone(),
            left,
            tolerated,
            interval: if simulated { SIMULATED } else { INTERVAL },
        });
    }
    if none {
        let why = draft.unavailable(Mechanism::Ways);
        let why = why.unwrap_or_else(|| words::NOBODY_RESERVES_WAYS.to_owned());
        let remedies = [
            Remedy::leave_out("mechanisms.ways"),
            Remedy::from("reserve some, as in group.NAME.reserve.cache = { ways = 4 }"),
        ];
        draft.refuse("mechanisms.ways", why, remedies);
    }
}
