//! Limits by memory-bandwidth allocation in hardware: percentages of the requests that a core could make, in steps.
//!
//! The hardware delays requests between each core and the last-level cache; what that comes to in bytes depends on the program and on
//! how many cores run it (Documentation/filesystems/resctrl.rst, "Memory bandwidth Allocation"). Where that was measured
//! ([`MbaCurve`]) a limit is a rate, and the percentage the one that so many CPUs were not seen to exceed it under; where it was not, only
//! percentages can be set. Either way a limit held by it alone is an estimate. Where the kernel looks for the percentage itself
//! (`mba_MBps`), it is told the rate.

use quell_policy::Bandwidth;
use quell_types::cpuset::CpuSet;
use quell_types::ids::StepId;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::partition::{MbaBounds, MbaUnit};
use quell_types::refusal::Remedy;
use quell_types::units::{Bytes, Rate, Share};

use crate::deep::MbaCurve;
use crate::plan::{Held, Promise, Setting};

use super::draft::Draft;
use super::wanted::{Limited, Wanted, about, rounded};

const MIB: Bytes = Bytes(1 << 20);

/// How a percentage is arrived at.
enum Way<'a> {
    /// The kernel does.
    Rate,
    /// As measured.
    Curve(&'a MbaCurve),
    /// As the policy says it.
    Share,
}

fn way<'a>(draft: &Draft<'a>, bounds: &MbaBounds) -> Way<'a> {
    let machine = draft.machine;
    match (
        bounds.unit,
        machine.measured.as_ref().and_then(|m| m.mba.as_ref()),
    ) {
        (MbaUnit::MibPerS, _) => Way::Rate,
        (MbaUnit::Percent, Some(curve)) => Way::Curve(curve),
        (MbaUnit::Percent, None) => Way::Share,
    }
}

/// What was set, and what it is worth.
struct Set {
    by: Option<StepId>,
    rate: Rate,
    level: Level,
    weakest: String,
}

/// Limits a group by hardware alone.
pub(super) fn limit(
    draft: &mut Draft<'_>,
    name: &str,
    wanted: &Wanted,
    explicit: Option<Bandwidth>,
) -> Option<Limited> {
    let bounds = bounds(draft)?;
    let cpus = draft.division.of(name).cpus.clone();
    let set = match way(draft, &bounds) {
        Way::Rate => told(draft, name, wanted),
        Way::Curve(curve) => measured(draft, name, wanted, curve, &cpus)?,
        Way::Share => unmeasured(draft, name, wanted, explicit, &bounds)?,
    };
    draft.promises.push(Held {
        group: name.to_owned(),
        promise: Promise::LimitBandwidth { rate: set.rate },
        level: set.level,
        held_by: set.by.into_iter().collect(),
        weakest: Some(set.weakest.clone()),
        assumed: false,
    });
    Some(Limited {
        group: name.to_owned(),
        rate: set.rate,
        level: set.level,
        by: set.by,
        weakest: Some(set.weakest),
        cpus,
    })
}

/// The kernel is told the rate.
fn told(draft: &mut Draft<'_>, name: &str, wanted: &Wanted) -> Set {
    let because = format!(
        "limit {}{}: the kernel looks for the percentage (mba_MBps)",
        wanted.rate, wanted.origin
    );
    Set {
        by: Some(rate_step(draft, name, wanted.rate, because)),
        rate: wanted.rate,
        level: Level::Estimated,
        weakest:
            "the kernel looks once a second and moves by one step: for seconds it may be exceeded"
                .to_owned(),
    }
}

/// The percentage under which so many CPUs were not seen to exceed the limit.
fn measured(
    draft: &mut Draft<'_>,
    name: &str,
    wanted: &Wanted,
    curve: &MbaCurve,
    cpus: &CpuSet,
) -> Option<Set> {
    let (rate, origin) = (wanted.rate, &wanted.origin);
    let by_streams = format!("by streams of {}", curve.operation);
    let Some(point) = curve.at_most(rate, cpus.len()) else {
        let (why, remedies) = unreachable(draft, wanted, curve, cpus);
        draft.refuse(wanted.key(), format!("{rate}{origin} {why}"), remedies);
        return None;
    };
    let (point, reached) = (*point, rounded(point.rate()));
    let (n, measured) = (cpus.len(), point.cpus as usize);
    let who = match n == measured {
        true => counted(n),
        false => format!("{} (measured instead of {n})", counted(measured)),
    };
    if point.percent >= 100 {
        draft.notes.push(format!(
            "group {name}: the limit of {rate}{origin} needs no step: {who} reached {reached} unthrottled, {by_streams}"
        ));
        return Some(Set {
            by: None,
            rate,
            level: Level::Estimated,
            weakest: "what its CPUs reached unthrottled is its bound".to_owned(),
        });
    }
    let percent = point.percent;
    let because = format!(
        "limit {rate}{origin}: under {percent}% of the requests {who} reached {reached} {by_streams} (rounds from {} to {}), {} \
         of the limit",
        rounded(Rate::measured(point.mb_s.low * 1e6)),
        rounded(point.most()),
        about(Share::ratio(reached.0, rate.0))
    );
    Some(Set {
        by: Some(step(draft, name, percent, &because)),
        rate,
        level: Level::Estimated,
        weakest: format!(
            "measured {by_streams}: the hardware delays requests, and promises no rate in bytes to other programs"
        ),
    })
}

/// Why no step of the hardware is low enough, and what to do about it.
fn unreachable(
    draft: &Draft<'_>,
    wanted: &Wanted,
    curve: &MbaCurve,
    cpus: &CpuSet,
) -> (String, Vec<Remedy>) {
    let (name, rate) = (&wanted.group, wanted.rate);
    let regulator = Remedy::set_text("mechanisms.bandwidth", "mba+regulator");
    let Some(least) = curve.least(cpus.len()) else {
        let why = format!(
            "on {} CPUs: what a percentage comes to was not measured with so many",
            cpus.len()
        );
        return (why, vec![regulator, Remedy::command("quell doctor --deep")]);
    };
    let why = format!(
        "cannot be reached by the hardware: under {}%, its strongest step, {} still reached {} by streams of {}, as measured",
        least.percent,
        counted(least.cpus as usize),
        rounded(least.most()),
        curve.operation
    );
    let raised = Rate(least.most().0.div_ceil(1_000_000) * 1_000_000);
    let mut remedies = vec![wanted.at(raised, draft.policy)];
    let fewer = (1..cpus.len())
        .rev()
        .find(|n| curve.at_most(rate, *n).is_some());
    remedies.extend(fewer.map(|n| Remedy::set(format!("group.{name}.cpus"), n)));
    remedies.push(regulator);
    (why, remedies)
}

/// A percentage as it was asked for; what it comes to nobody knows.
fn unmeasured(
    draft: &mut Draft<'_>,
    name: &str,
    wanted: &Wanted,
    explicit: Option<Bandwidth>,
    bounds: &MbaBounds,
) -> Option<Set> {
    let Some(Bandwidth::Share(share)) = explicit else {
        let why = format!(
            "{}{} is a rate, and the hardware takes a percentage of each core's requests; what that comes to in bytes has not been \
             measured here",
            wanted.rate, wanted.origin
        );
        let of = draft.sustainable(&draft.division.of(name).cpus);
        let percent = of.map_or(30, |of| {
            Share::ratio(wanted.rate.0, of.0)
                .0
                .div_ceil(10_000)
                .clamp(1, 100)
        });
        let key = format!("group.{name}.limit.bandwidth");
        let remedies = [
            Remedy::set_text(key.clone(), format!("{percent}%")),
            Remedy::set_text("mechanisms.bandwidth", "regulator"),
        ];
        draft.refuse(key, why, remedies);
        return None;
    };
    let percent = in_steps(draft, name, share, bounds);
    let by = step(draft, name, percent, &format!("limit.bandwidth = {share}"));
    let rate = match wanted.of {
        Some(of) => rounded(of.part(Share::percent(percent.into()))),
        None => wanted.rate,
    };
    let (level, weakest) = if percent < 100 {
        let why = "the hardware delays requests by a percentage of what a core could make, and promises no rate in bytes; what it comes \
                   to has not been measured here";
        (Level::Estimated, why)
    } else {
        (Level::None, "100% of what a core could make is no limit")
    };
    Some(Set {
        by: Some(by),
        rate,
        level,
        weakest: weakest.to_owned(),
    })
}

/// Beside a regulator, which holds the limit: the hardware spreads the requests between two stops.
pub(super) fn beside(draft: &mut Draft<'_>, name: &str, wanted: &Wanted, done: &Limited) {
    let cpus: CpuSet = draft.division.of(name).cpus.clone();
    let (Some(by), Some(of)) = (done.by, wanted.of.or_else(|| draft.sustainable(&cpus))) else {
        return;
    };
    let Some(bounds) = bounds(draft) else {
        return;
    };
    let because = |requests: &str| {
        format!("the regulator holds the limit; {requests} spread it over the period")
    };
    let share = Share::ratio(wanted.rate.0, of.0);
    let hardware = match way(draft, &bounds) {
        Way::Rate => rate_step(draft, name, wanted.rate, because("delayed requests")),
        // The hardware leaves it to the regulator to hold the limit: a smaller step would be another limit.
        Way::Curve(curve) => {
            let reaching = curve.reaching(wanted.rate, cpus.len());
            let percent = reaching.map_or(100, |point| point.percent);
            if percent >= 100 {
                draft.notes.push(format!(
                    "group {name}: the hardware's throttle is left alone: under no step below 100% did {} reach the limit, as measured",
                    counted(cpus.len())
                ));
                return;
            }
            let requests = format!(
                "{percent}% of the requests, which reach it by streams of {}, as measured,",
                curve.operation
            );
            step(draft, name, percent, &because(&requests))
        }
        Way::Share => {
            let percent = in_steps(draft, name, share, &bounds);
            let requests = format!("{} of the requests", about(share));
            step(draft, name, percent, &because(&requests))
        }
    };
    for held in &mut draft.promises {
        if held.held_by.contains(&by) {
            held.held_by.push(hardware);
        }
    }
}

/// What the hardware takes, or a refusal of it all.
fn bounds(draft: &mut Draft<'_>) -> Option<MbaBounds> {
    let bounds = draft.machine.partitions.mba.clone();
    let missing = draft.unavailable(Mechanism::Mba);
    let missing = missing.or_else(|| {
        bounds
            .is_none()
            .then(|| "this machine does not tell its steps".to_owned())
    });
    let Some(why) = missing else {
        return bounds;
    };
    let said = |r: &quell_types::refusal::Refusal| r.key == "mechanisms.bandwidth" && r.why == why;
    if !draft.refusals.iter().any(said) {
        let instead = Remedy::set_text("mechanisms.bandwidth", "regulator");
        draft.refuse_lacking(Mechanism::Mba, "mechanisms.bandwidth", why, instead);
    }
    None
}

/// A percentage, rounded up to what the hardware takes.
fn in_steps(draft: &mut Draft<'_>, name: &str, share: Share, bounds: &MbaBounds) -> u32 {
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
    percent
}

/// So many CPUs.
fn counted(n: usize) -> String {
    match n {
        1 => "1 CPU".to_owned(),
        n => format!("{n} CPUs"),
    }
}

fn step(draft: &mut Draft<'_>, name: &str, percent: u32, because: &str) -> StepId {
    let set = Setting::Mba { percent };
    draft.step(Some(name), Mechanism::Mba, set, because)
}

fn rate_step(draft: &mut Draft<'_>, name: &str, rate: Rate, because: String) -> StepId {
    let mib_s = u32::try_from(rate.0 / MIB.0).unwrap_or(u32::MAX).max(1);
    let set = Setting::MbaRate { mib_s };
    draft.step(Some(name), Mechanism::Mba, set, because)
}
