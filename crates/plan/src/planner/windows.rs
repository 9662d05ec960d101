//! Windows of a repeating frame (`[windows]`): the step and the promises that follow. Which CPUs
//! they divide is decided with all other CPUs ([`super::cpus`]). What is wrong with the schedule
//! itself was refused when the policy was read.

use quell_control::config::{Frame, Span};
use quell_policy::WindowKeys;
use quell_types::ids::StepId;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::refusal::{Cause, Remedy};
use quell_types::task::TaskMatch;

use crate::inventory::CpusetKind;
use crate::plan::{Promise, Setting};

use super::draft::Draft;
use super::wanted::Worth;
use super::words::{cores, windows as words};

const KEY: &str = "windows";

/// Adds the step that dispatches the windows, and a promise to each of their groups.
pub(super) fn plan(draft: &mut Draft<'_>) {
    let policy = draft.policy;
    let Some(keys) = &policy.windows else {
        return;
    };
    if let Some(why) = draft.unavailable(Mechanism::Windows) {
        let instead = Remedy::leave_out(KEY);
        draft.refuse_lacking(Mechanism::Windows, KEY, why, instead);
        return;
    }
    members(draft, keys);
    let frame = frame(keys);
    let (cpus, length) = (frame.cpus.clone(), frame.length);
    let times: Vec<_> = frame
        .groups()
        .into_iter()
        .map(|group| (group.clone(), frame.time_of(group)))
        .collect();
    draft.notes.push(words::ends_earlier(frame.guard));
    let set = Setting::Windows(frame);
    let step = draft.step(None, Mechanism::Windows, set, words::BY_THE_CLOCK);
    let confining: Vec<StepId> = draft
        .steps
        .iter()
        .filter(|s| match &s.set {
            Setting::ConfineRest { .. } => true,
            Setting::Confine { .. } => s.group.as_deref().is_some_and(|group| keys.has(group)),
            _ => false,
        })
        .map(|s| s.id)
        .collect();
    let worth = match draft.machine.means.cpuset {
        CpusetKind::AffinityOnly => Worth::of(Level::Estimated, cores::AFFINITY_IS_SET_BACK),
        _ => Worth::of(Level::Regulated, words::SYSTEM_CALLS_END),
    };
    for (group, time) in times {
        let promise = Promise::Windows {
            cpus: cpus.clone(),
            time,
            frame: length,
        };
        let held_by = confining.iter().copied().chain([step]);
        draft.promise(&group, promise, worth.clone(), held_by);
    }
}

fn frame(keys: &WindowKeys) -> Frame {
    let windows = keys.schedule.iter().map(|window| Span {
        start: window.start,
        end: window.end(),
        group: Some(window.group.clone()),
        ..Span::default()
    });
    let windows: Vec<Span> = windows.collect();
    let spare = keys.spare_group();
    Frame {
        on_late: keys.on_late,
        ..Frame::new(keys.cpus.clone(), keys.frame, keys.guard, &windows, spare)
    }
}

/// Refuses groups that the dispatcher cannot stop and resume as it should.
fn members(draft: &mut Draft<'_>, keys: &WindowKeys) {
    let policy = draft.policy;
    let windowed = policy.groups.keys().filter(|name| keys.has(name));
    for name in windowed {
        dispatchable(draft, name, words::budgets_not_yet(name));
    }
}

/// Refuses a group that no dispatcher can freeze: one in its own cgroup, and one with a limit of
/// bandwidth, for the reason `capped`.
pub(super) fn dispatchable(draft: &mut Draft<'_>, name: &str, capped: String) {
    let Some(group) = draft.policy.groups.get(name) else {
        return;
    };
    if group.matching.iter().any(TaskMatch::in_place) {
        let remedy = "match its tasks by exe, comm, arg or user instead";
        let key = format!("group.{name}.match");
        let why = words::stays_in_its_cgroup(name);
        draft.refuse_for(Cause::NotBuilt, key, why, Remedy::from(remedy));
    }
    let is_capped = draft.steps.iter().any(|step| {
        let of = step.group.as_deref() == Some(name);
        of && matches!(&step.set, Setting::Regulate(by) if by.is_capped())
    });
    if is_capped {
        let key = format!("group.{name}.limit.bandwidth");
        let remedy = Remedy::leave_out(key.clone());
        draft.refuse_for(Cause::NotBuilt, key, capped, remedy);
    }
}
