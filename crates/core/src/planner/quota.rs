//! The CPU-time quota: a limit of CPU time as such, and what stands in for the regulator where there is none.

use crate::cpuset::CpuSet;
use crate::inventory::Availability;
use crate::mechanism::{Level, Mechanism};
use crate::plan::{Held, Promise, Setting};
use crate::units::{Nanos, Share};

use super::Draft;
use super::bandwidth::{Limited, limit_held};
use super::rates::Wanted;

/// Period of the CPU-time quota: the kernel's default (sched-bwc.rst).
const QUOTA_PERIOD: Nanos = Nanos::millis(100);

/// A limit of CPU time.
pub(super) fn cpu_time(draft: &mut Draft<'_>, name: &str, share: Share) {
    let key = format!("group.{name}.limit.cpu-time");
    if let Some(why) = draft.unavailable(Mechanism::CpuMax) {
        let remedy = match draft.machine.mechanisms.get(&Mechanism::CpuMax) {
            Some(Availability::No {
                remedy: Some(remedy),
                ..
            }) => format!("{remedy}, or leave the limit out"),
            _ => "leave the limit out".to_owned(),
        };
        draft.refuse(key, why, Some(remedy));
        return;
    }
    let set = Setting::CpuMax {
        share,
        period: QUOTA_PERIOD,
    };
    let id = draft.step(
        Some(name),
        Mechanism::CpuMax,
        set,
        "limit.cpu-time: the kernel's own quota",
    );
    draft.promises.push(Held {
        group: name.to_owned(),
        promise: Promise::LimitCpuTime { share },
        level: Level::Enforced,
        held_by: vec![id],
        weakest: None,
    });
}

/// The CPU-time quota in place of the regulator.
pub(super) fn quota(
    draft: &mut Draft<'_>,
    name: &str,
    wanted: &Wanted,
    share: Share,
    cpus: &CpuSet,
    why: &str,
) -> Option<Limited> {
    let rate = wanted.rate;
    if let Some(not) = draft.unavailable(Mechanism::CpuMax) {
        draft.refuse(
            format!("group.{name}.limit.bandwidth"),
            if why == not {
                format!("neither the regulator nor the CPU-time quota can hold it: {why}")
            } else {
                format!("the regulator cannot hold it ({why}), nor can the CPU-time quota ({not})")
            },
            match draft.machine.mechanisms.get(&Mechanism::CpuMax) {
                Some(Availability::No { remedy, .. }) => remedy.clone(),
                _ => None,
            },
        );
        return None;
    }
    let total = Share(share.0.saturating_mul(cpus.len() as u64));
    // Down to what a person reads; never to nothing.
    let total = Share((total.0 / 1_000 * 1_000).max(total.0.min(1_000)));
    let set = Setting::CpuMax {
        share: total,
        period: QUOTA_PERIOD,
    };
    // A reason with its remedies is told once.
    let (reason, more) = why.split_once(": ").unwrap_or((why, ""));
    let because = format!(
        "limit {rate}{}, as CPU time at the peak rate; no regulator here: {reason}",
        wanted.origin
    );
    let more = format!("{reason}: {more}");
    if more.len() > reason.len() + 2 && !draft.notes.contains(&more) {
        draft.notes.push(more);
    }
    let id = draft.step(Some(name), Mechanism::CpuMax, set, because);
    let weakest = Some(format!(
        "cpu-max lets a whole quota through at once, every {QUOTA_PERIOD}"
    ));
    draft.promises.push(limit_held(
        name,
        rate,
        Level::Estimated,
        Some(id),
        weakest.clone(),
    ));
    Some(Limited {
        group: name.to_owned(),
        rate,
        level: Level::Estimated,
        by: Some(id),
        weakest,
        counts_all: false,
        cpus: cpus.clone(),
    })
}
