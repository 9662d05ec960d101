//! Whether lines that come in and lines that are written back can have a budget each.
//!
//! Only counters distinguish the two. CPU time, the kernel's CPU-time quota and the hardware's
//! percentages do not know what a program does with its time.

use quell_control::config::Meter;
use quell_policy::{BandwidthMechanism, Group, MeterWanted};
use quell_types::cpuset::CpuSet;
use quell_types::mechanism::Mechanism;
use quell_types::refusal::{Cause, Refusal, Remedy};

use crate::inventory::MeterKind;

use super::brake::regulator;
use super::deadline;
use super::draft::Draft;
use super::pooling;
use super::wanted::Wanted;
use super::words::{directions as words, on};

/// A refusal of what is wanted, still without remedies.
fn refusal(wanted: &Wanted, cause: Cause, why: impl Into<String>) -> Refusal {
    Refusal {
        key: wanted.key(),
        why: why.into(),
        cause,
        remedies: Vec::new(),
    }
}

/// Whether each direction can have a budget. Refuses it where it cannot.
pub(super) fn possible(draft: &mut Draft<'_>, group: &Group, wanted: &Wanted) -> bool {
    let cpus = &draft.division.of(&wanted.group).cpus;
    let mut refused = match unsuited(draft, group, wanted) {
        Some(refused) => refused,
        // Its CPUs have been refused already.
        None if cpus.is_empty() => return false,
        None => match counted_separately(draft, group, wanted, cpus) {
            Ok(()) => return true,
            Err(refused) => refused,
        },
    };
    refused.remedies.push(wanted.at(wanted.rate, draft.policy));
    draft.refusals.push(refused);
    false
}

/// A refusal where something else in the policy excludes two budgets.
fn unsuited(draft: &Draft<'_>, group: &Group, wanted: &Wanted) -> Option<Refusal> {
    if draft.policy.mechanisms.bandwidth == BandwidthMechanism::Mba {
        return Some(refusal(wanted, Cause::Policy, words::HARDWARE_KNOWS_NONE));
    }
    if pooling::is_pooled(&draft.policy.regulator, wanted.budget) {
        return Some(refusal(wanted, Cause::NotBuilt, words::NOT_POOLED));
    }
    let moves = deadline::moves(draft.policy, group);
    moves.then(|| refusal(wanted, Cause::NotBuilt, words::NOT_MOVED))
}

/// Whether the counters of these CPUs count reads and writes separately; if not, the refusal.
fn counted_separately(
    draft: &Draft<'_>,
    group: &Group,
    wanted: &Wanted,
    cpus: &CpuSet,
) -> Result<(), Refusal> {
    let mut refused = match (regulator(draft, group, wanted), &draft.machine.means.meter) {
        (Err(why), _) => {
            let cause = draft.lack(Mechanism::Bandwidth);
            refusal(wanted, cause, words::only_the_regulator(&why))
        }
        (Ok(Meter::Time), _) if draft.policy.regulator.meter == MeterWanted::Time => Refusal {
            remedies: vec![Remedy::leave_out("regulator.meter")],
            ..refusal(wanted, Cause::Policy, words::TIME_HAS_NONE)
        },
        (Ok(meter), MeterKind::Hardware { apart, .. }) if meter != Meter::Time => {
            if cpus.is_subset(apart) {
                return Ok(());
            }
            let key = format!("group.{}.cpus", wanted.group);
            let near = (!apart.is_empty()).then(|| Remedy::set_text(key, apart));
            Refusal {
                remedies: near.into_iter().collect(),
                ..refusal(
                    wanted,
                    Cause::Machine,
                    words::uncounted(&on(&cpus.difference(apart))),
                )
            }
        }
        _ => refusal(wanted, Cause::Machine, words::NONE_COUNTS),
    };
    refused
        .remedies
        .splice(0..0, draft.enables(Mechanism::Bandwidth));
    Err(refused)
}
