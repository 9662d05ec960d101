//! What groups may move in their windows (`bandwidth` in the schedule of `[windows]`).
//!
//! Budgets begin anew with each window. A window has a whole number of periods of equal length, so
//! what is drawn in it is the rate times its length. The guard at its end belongs to the last one.

use quell_control::config::{Meter, Regulation};
use quell_policy::{Bandwidth, Window, WindowKeys};
use quell_types::ids::StepId;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::options::Split;
use quell_types::refusal::Remedy;
use quell_types::units::{Lines, Nanos, Rate};

use crate::plan::{Promise, Setting};

use super::brake::regulator;
use super::caps::Limit;
use super::draft::Draft;
use super::wanted::{Budget, Wanted, Worth, rounded};
use super::words::{bandwidth, windows as words};

/// The budget of a window. `None` where it has none, needs none, or cannot have it, which is
/// refused.
pub(super) fn budget(draft: &mut Draft<'_>, place: usize, window: &Window) -> Option<Regulation> {
    window.bandwidth?;
    let key = format!("windows.schedule[{place}].bandwidth");
    let remedy = Remedy::leave_out(key.clone());
    let group = draft.policy.groups.get(&window.group)?;
    let (Some(measured), Some(rate)) = (&draft.machine.measured, rate(draft, window)) else {
        let remedy = Remedy::command("quell doctor --deep");
        draft.refuse(key, bandwidth::UNMEASURED_PEAK, remedy);
        return None;
    };
    let wanted = Wanted {
        group: window.group.clone(),
        rate,
        origin: String::new(),
        share: None,
        budget: Budget::Limit,
        apart: None,
    };
    let meter = match regulator(draft, group, &wanted) {
        Ok(meter) => meter,
        Err(why) => {
            draft.refuse_lacking(Mechanism::Bandwidth, key, why, remedy);
            return None;
        }
    };
    if meter == Meter::Time && draft.machine.simulated.is_none() {
        let mechanism = Mechanism::Bandwidth;
        draft.refuse_lacking(mechanism, key, words::NO_COUNTERS.to_owned(), remedy);
        return None;
    }
    let cpus = draft.division.of(&window.group).cpus.clone();
    let limit = Limit::on(wanted, cpus, measured, false);
    let periods = window.length.0.div_ceil(draft.period.0.max(1)).max(1);
    let period = Nanos(window.length.0 / periods);
    let Some((meter, budget)) = limit.counted(meter, period) else {
        draft.notes.push(words::draws_less(rate, limit.peak));
        return None;
    };
    if let Some(cap) = limit.binding().next().filter(|_| budget == Lines(0)) {
        let why = bandwidth::less_than_a_line(cap, limit.cpus.len(), period);
        draft.refuse(key, why, remedy);
        return None;
    }
    Some(Regulation {
        cpus: limit.cpus.clone(),
        budget,
        period,
        meter,
        peak: limit.peak,
        pooling: None,
        split: Split::Even,
        least: Lines(0),
    })
}

/// The rate that a window asks for. `None` where it asks for none, or for a share of what was not
/// measured.
fn rate(draft: &Draft<'_>, window: &Window) -> Option<Rate> {
    match window.bandwidth? {
        Bandwidth::Rate(rate) => Some(rate),
        Bandwidth::Share(share) => {
            let all = draft.sustainable(&draft.division.of(&window.group).cpus)?;
            Some(rounded(all.part(share)))
        }
        // Refused when the policy was read.
        Bandwidth::ReadWrite { .. } => None,
    }
}

/// Promises the budget of each window that has one. The step of the windows holds it where its
/// group can draw more.
pub(super) fn promise(draft: &mut Draft<'_>, keys: &WindowKeys, step: StepId) {
    for window in &keys.schedule {
        let Some(rate) = rate(draft, window) else {
            continue;
        };
        let (start, end) = (window.start, window.end());
        let promise = Promise::WindowBandwidth { rate, start, end };
        let held = draft.steps.iter().any(|step| match &step.set {
            Setting::Windows(frame) => frame
                .spans
                .iter()
                .any(|span| (span.start..span.end).contains(&start) && span.budget.is_some()),
            _ => false,
        });
        let (level, by) = match held {
            true => (Level::Regulated, Some(step)),
            false => (Level::Estimated, None),
        };
        draft.promise(&window.group, promise, Worth::plain(level), by);
    }
}
