//! Limits by memory-bandwidth allocation in hardware: percentages of the requests that a core could
//! make, in steps.
//!
//! The hardware delays requests between each core and the last-level cache. What that amounts to in
//! bytes depends on the program and on how many cores run it
//! (Documentation/filesystems/resctrl.rst, "Memory bandwidth Allocation"). Where that was measured
//! ([`MbaCurve`]) a limit is a rate. The percentage is then one under which this many CPUs were not
//! measured to exceed it. Elsewhere only percentages can be set. A limit that the hardware alone
//! holds is always an estimate. Where the kernel finds the percentage itself (`mba_MBps`), the
//! setting is the rate.

use quell_types::ids::StepId;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::partition::{MbaBounds, MbaUnit};
use quell_types::refusal::{Refusal, Remedy};
use quell_types::units::{Bytes, Rate, Share};

use crate::deep::MbaCurve;
use crate::plan::{Promise, Setting};

use super::caps::Limited;
use super::draft::Draft;
use super::wanted::{Budget, Wanted, Worth, about, rounded};
use super::words::mba as words;

const MIB: Bytes = Bytes(1 << 20);

/// How the percentage of a limit is found.
enum Way<'a> {
    /// The kernel takes a rate and finds the percentage.
    Rate,
    /// By the measured curve of this machine.
    Curve(&'a MbaCurve),
    /// The policy states a percentage.
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

/// What was set for a group, and what it is worth.
struct Set {
    by: Option<StepId>,
    rate: Rate,
    worth: Worth,
}

/// Limits a group by the hardware alone.
pub(super) fn limit(draft: &mut Draft<'_>, wanted: &Wanted) -> Option<Limited> {
    let bounds = bounds(draft)?;
    let cpus = draft.division.of(&wanted.group).cpus.clone();
    let Set { by, rate, worth } = match way(draft, &bounds) {
        Way::Rate => told(draft, wanted),
        Way::Curve(curve) => measured(draft, wanted, curve, cpus.len())?,
        Way::Share => unmeasured(draft, wanted, &bounds)?,
    };
    let promise = Promise::LimitBandwidth { rate };
    draft.promise(&wanted.group, promise, worth.clone(), by);
    let wanted = wanted.clone();
    Some(Limited {
        wanted: Wanted { rate, ..wanted },
        cpus,
        by,
        worth,
    })
}

/// Sets the rate itself, which the kernel takes.
fn told(draft: &mut Draft<'_>, wanted: &Wanted) -> Set {
    let because = words::told(wanted);
    Set {
        by: Some(rate_step(draft, wanted, because)),
        rate: wanted.rate,
        worth: Worth::of(Level::Estimated, words::LOOKS_ONCE_A_SECOND),
    }
}

/// Sets the percentage under which this many CPUs were not measured to exceed the limit.
fn measured(draft: &mut Draft<'_>, wanted: &Wanted, curve: &MbaCurve, cpus: usize) -> Option<Set> {
    let rate = wanted.rate;
    let Some(point) = curve.at_most(rate, cpus) else {
        let (why, remedies) = unreachable(draft, wanted, curve, cpus);
        draft.refuse(wanted.key(), why, remedies);
        return None;
    };
    let (by, weakest) = if point.percent >= 100 {
        let note = words::needs_no_step(wanted, cpus, curve, point);
        draft.notes.push(note);
        (None, words::UNTHROTTLED_IS_ITS_BOUND.to_owned())
    } else {
        let because = words::as_measured(wanted, cpus, curve, point);
        let by = step(draft, &wanted.group, point.percent, because);
        (Some(by), words::for_streams_only(&curve.operation))
    };
    let worth = Worth::of(Level::Estimated, weakest);
    Some(Set { by, rate, worth })
}

/// Why no step of the hardware is low enough, and the remedies.
fn unreachable(
    draft: &Draft<'_>,
    wanted: &Wanted,
    curve: &MbaCurve,
    cpus: usize,
) -> (String, Vec<Remedy>) {
    let (name, rate) = (&wanted.group, wanted.rate);
    let regulator = Remedy::set_text("mechanisms.bandwidth", "mba+regulator");
    let Some(least) = curve.least(cpus) else {
        let why = words::not_with_so_many(wanted, cpus);
        return (why, vec![regulator, Remedy::command("quell doctor --deep")]);
    };
    let raised = Rate(least.most().0.div_ceil(1_000_000) * 1_000_000);
    let mut remedies = vec![wanted.at(raised, draft.policy)];
    let fewer = (1..cpus).rev().find(|n| curve.at_most(rate, *n).is_some());
    remedies.extend(fewer.map(|n| Remedy::set(format!("group.{name}.cpus"), n)));
    remedies.push(regulator);
    (words::out_of_reach(wanted, curve, least), remedies)
}

/// Sets the percentage as asked for. The rate that it amounts to is not known.
fn unmeasured(draft: &mut Draft<'_>, wanted: &Wanted, bounds: &MbaBounds) -> Option<Set> {
    let name = &wanted.group;
    let asked = wanted.share.filter(|_| wanted.budget == Budget::Limit);
    let Some(asked) = asked else {
        let of = draft.sustainable(&draft.division.of(name).cpus);
        let percent = of.map_or(30, |of| whole_percent(Share::ratio(wanted.rate.0, of.0)));
        let key = format!("group.{name}.limit.bandwidth");
        let remedies = [
            Remedy::set_text(key.clone(), format!("{}%", percent.clamp(1, 100))),
            Remedy::set_text("mechanisms.bandwidth", "regulator"),
        ];
        draft.refuse(key, words::is_a_rate(wanted), remedies);
        return None;
    };
    let percent = in_steps(draft, name, asked.share, bounds);
    let because = format!("limit.bandwidth = {}", asked.share);
    let worth = if percent < 100 {
        Worth::of(Level::Estimated, words::PERCENTAGE_OF_A_CORE)
    } else {
        Worth::of(Level::None, words::WHOLE_IS_NO_LIMIT)
    };
    Some(Set {
        by: Some(step(draft, name, percent, because)),
        rate: rounded(asked.of.part(Share::percent(percent.into()))),
        worth,
    })
}

/// Adds delays next to a regulator, which holds the limit. The hardware spreads the requests
/// between two stops.
pub(super) fn beside(draft: &mut Draft<'_>, done: &Limited) {
    let (wanted, name) = (&done.wanted, &done.wanted.group);
    let of = wanted.share.map(|share| share.of);
    let (Some(by), Some(of)) = (done.by, of.or_else(|| draft.sustainable(&done.cpus))) else {
        return;
    };
    let Some(bounds) = bounds(draft) else {
        return;
    };
    let hardware = match way(draft, &bounds) {
        Way::Rate => rate_step(draft, wanted, words::spreads("delayed requests")),
        // The regulator is to hold the limit. A smaller step of the hardware would itself be a
        // lower limit.
        Way::Curve(curve) => {
            let reaching = curve.reaching(wanted.rate, done.cpus.len());
            let percent = reaching.map_or(100, |point| point.percent);
            if percent >= 100 {
                draft
                    .notes
                    .push(words::left_alone(name, &words::counted(done.cpus.len())));
                return;
            }
            let because = words::spreads(&words::reaching(percent, &curve.operation));
            step(draft, name, percent, because)
        }
        Way::Share => {
            let share = Share::ratio(wanted.rate.0, of.0);
            let percent = in_steps(draft, name, share, &bounds);
            let requests = format!("{} of the requests", about(share));
            step(draft, name, percent, words::spreads(&requests))
        }
    };
    for held in &mut draft.promises {
        if held.held_by.contains(&by) {
            held.held_by.push(hardware);
        }
    }
}

/// What the hardware offers; refused where it offers nothing.
fn bounds(draft: &mut Draft<'_>) -> Option<MbaBounds> {
    let bounds = draft.machine.partitions.mba.clone();
    let why = match draft.unavailable(Mechanism::Mba) {
        Some(why) => why,
        None if bounds.is_some() => return bounds,
        None => words::STEPS_ARE_NOT_TOLD.to_owned(),
    };
    let said = |r: &Refusal| r.key == "mechanisms.bandwidth" && r.why == why;
    if !draft.refusals.iter().any(said) {
        let instead = Remedy::set_text("mechanisms.bandwidth", "regulator");
        draft.refuse_lacking(Mechanism::Mba, "mechanisms.bandwidth", why, instead);
    }
    None
}

/// A share in whole percent, rounded up.
fn whole_percent(share: Share) -> u32 {
    u32::try_from(share.0.div_ceil(10_000)).unwrap_or(u32::MAX)
}

/// A share in percent, rounded up to a step of the hardware.
fn in_steps(draft: &mut Draft<'_>, name: &str, share: Share, bounds: &MbaBounds) -> u32 {
    let percent = whole_percent(share)
        .min(100)
        .next_multiple_of(bounds.step.max(1))
        .max(bounds.least)
        .min(100);
    if Share::percent(percent.into()) != share {
        draft
            .notes
            .push(words::in_steps(name, share, percent, bounds));
    }
    percent
}

fn step(draft: &mut Draft<'_>, name: &str, percent: u32, because: String) -> StepId {
    let set = Setting::Mba { percent };
    draft.step(Some(name), Mechanism::Mba, set, because)
}

fn rate_step(draft: &mut Draft<'_>, wanted: &Wanted, because: String) -> StepId {
    let mib_s = u32::try_from(wanted.rate.0 / MIB.0)
        .unwrap_or(u32::MAX)
        .max(1);
    let set = Setting::MbaRate { mib_s };
    draft.step(Some(&wanted.group), Mechanism::Mba, set, because)
}
