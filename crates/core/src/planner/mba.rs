//! Limits by memory-bandwidth allocation in hardware: percentages of the requests that a core could make, in steps.
//!
//! The hardware delays requests between a core and the last-level cache; what that comes to in bytes depends on the program
//! (Documentation/filesystems/resctrl.rst, "Memory bandwidth Allocation"). So a limit held by it alone is an estimate.

use crate::cpuset::CpuSet;
use crate::inventory::Availability;
use crate::mechanism::{Level, Mechanism};
use crate::plan::{Held, Promise, Setting, StepId};
use crate::policy::Bandwidth;
use crate::units::Share;

use super::Draft;
use super::bandwidth::Limited;
use super::rates::{Wanted, about, rounded};

/// Limits a group by hardware alone.
pub(super) fn limit(
    draft: &mut Draft<'_>,
    name: &str,
    wanted: &Wanted,
    explicit: Option<Bandwidth>,
) -> Option<Limited> {
    let Some(Bandwidth::Share(share)) = explicit else {
        let why = format!(
            "{}{} is a rate, and the hardware takes a percentage of each core's requests, whatever that comes to in bytes",
            wanted.rate, wanted.origin
        );
        let of = draft.sustainable(&draft.division.of(name).cpus);
        let percent = of.map_or(30, |of| {
            Share::ratio(wanted.rate.0, of.0)
                .0
                .div_ceil(10_000)
                .clamp(1, 100)
        });
        let remedy = format!(
            "write limit.bandwidth = \"{percent}%\", or have rates held by the regulator (mechanisms.bandwidth = \"mba+regulator\" or \
             \"regulator\")"
        );
        draft.refuse(format!("group.{name}.limit.bandwidth"), why, Some(remedy));
        return None;
    };
    let (by, percent) = step(draft, name, share, &format!("limit.bandwidth = {share}"))?;
    let rate = match wanted.of {
        Some(of) => rounded(of.part(Share::percent(percent.into()))),
        None => wanted.rate,
    };
    let (level, weakest) = if percent < 100 {
        let why = "the hardware delays requests by a percentage of what a core could make, and promises no rate in bytes";
        (Level::Estimated, why)
    } else {
        (Level::None, "100% of what a core could make is no limit")
    };
    draft.promises.push(Held {
        group: name.to_owned(),
        promise: Promise::LimitBandwidth { rate },
        level,
        held_by: vec![by],
        weakest: Some(weakest.to_owned()),
    });
    Some(Limited {
        group: name.to_owned(),
        rate,
        level,
        by: Some(by),
        weakest: Some(weakest.to_owned()),
        counts_all: false,
        cpus: draft.division.of(name).cpus.clone(),
    })
}

/// Beside a regulator, which holds the limit: the hardware spreads the requests between two stops.
pub(super) fn beside(draft: &mut Draft<'_>, name: &str, wanted: &Wanted, done: &Limited) {
    let cpus: CpuSet = draft.division.of(name).cpus.clone();
    let (Some(by), Some(of)) = (done.by, wanted.of.or_else(|| draft.sustainable(&cpus))) else {
        return;
    };
    let share = Share::ratio(wanted.rate.0, of.0);
    let because = format!(
        "the regulator holds the limit; {} of the requests spread it over the period",
        about(share)
    );
    let Some((hardware, _)) = step(draft, name, share, &because) else {
        return;
    };
    for held in &mut draft.promises {
        if held.held_by.contains(&by) {
            held.held_by.push(hardware);
        }
    }
}

/// The step, and its percentage: rounded up to what the hardware takes.
fn step(draft: &mut Draft<'_>, name: &str, share: Share, because: &str) -> Option<(StepId, u32)> {
    let bounds = draft.machine.partitions.mba.clone();
    let missing = draft.unavailable(Mechanism::Mba);
    let missing = missing.or_else(|| {
        bounds
            .is_none()
            .then(|| "this machine does not tell its steps".to_owned())
    });
    let (None, Some(bounds)) = (&missing, bounds) else {
        let instead = "write mechanisms.bandwidth = \"regulator\"";
        let remedy = match draft.machine.mechanisms.get(&Mechanism::Mba) {
            Some(Availability::No {
                remedy: Some(remedy),
                ..
            }) => format!("{remedy}, or {instead}"),
            _ => instead.to_owned(),
        };
        let why = missing.unwrap_or_default();
        if !draft
            .refusals
            .iter()
            .any(|r| r.key == "mechanisms.bandwidth" && r.why == why)
        {
            draft.refuse("mechanisms.bandwidth", why, Some(remedy));
        }
        return None;
    };
    let asked = u32::try_from(share.0.div_ceil(10_000)).unwrap_or(100);
    let percent = asked
        .next_multiple_of(bounds.step.max(1))
        .max(bounds.least)
        .min(100);
    if u64::from(percent) * 10_000 != share.0 {
        draft.notes.push(format!(
            "group {name}: {} of the requests is set as {percent}%: the hardware takes steps of {}%, {}% at least",
            about(share),
            bounds.step,
            bounds.least
        ));
    }
    let id = draft.step(
        Some(name),
        Mechanism::Mba,
        Setting::Mba { percent },
        because,
    );
    Some((id, percent))
}
