//! Windows of a repeating frame (`[windows]`): the step and the promises that follow. Which CPUs
//! they divide is decided with all other CPUs ([`super::cpus`]), and which ways their groups have
//! with all other ways ([`super::claims`]). What is wrong with the schedule itself was refused when
//! the policy was read.
//!
//! A group has the ways of its largest window to itself all the time. In a window with fewer it
//! fills the lowest of them, so what it has in the others stays there.

use std::collections::BTreeMap;

use quell_control::config::{Fill, Frame, Span};
use quell_policy::{WindowKeys, WindowWays};
use quell_types::ids::{REST, StepId};
use quell_types::mechanism::{Level, Mechanism};
use quell_types::partition::Mask;
use quell_types::refusal::{Cause, Remedy};
use quell_types::task::TaskMatch;

use crate::inventory::CpusetKind;
use crate::plan::{Promise, Setting};

use super::amounts::mask_of;
use super::draft::Draft;
use super::wanted::Worth;
use super::window_budgets;
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
    let ways = ways(draft, keys);
    let frame = frame(draft, keys, &ways);
    let (cpus, length) = (frame.cpus.clone(), frame.length);
    let times: Vec<_> = frame
        .groups()
        .into_iter()
        .map(|group| (group.clone(), frame.time_left_to(group)))
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
    window_budgets::promise(draft, keys, step);
}

/// The ways that groups with ways in their windows have to themselves, by the group's name, and
/// those that are left to all groups without.
struct Ways {
    level: u32,
    own: BTreeMap<String, Mask>,
    left: Option<Mask>,
}

impl Ways {
    /// What a group fills in a window that says `wanted`. `None`: as at all times.
    fn fill(&self, group: &str, wanted: Option<WindowWays>) -> Option<Fill> {
        let own = *self.own.get(group)?;
        let mask = match wanted {
            None => self.left.unwrap_or(own),
            Some(WindowWays::Mask(mask)) => Mask(mask),
            Some(WindowWays::Count(n)) => {
                let bits = (0..u64::BITS).filter(|bit| own.0 >> bit & 1 == 1);
                mask_of(&bits.take(n as usize).collect())
            }
        };
        let level = self.level;
        Some(Fill { level, mask })
    }
}

/// The ways that the steps so far give to the groups of the windows.
fn ways(draft: &mut Draft<'_>, keys: &WindowKeys) -> Ways {
    let partitions = draft.machine.partitions.ways.iter();
    let level = partitions.map(|w| w.level).max().unwrap_or(0);
    let given = |name: &str| {
        let mut of = draft.steps.iter();
        of.find_map(|step| match step.set {
            Setting::Ways {
                level: at, mask, ..
            } => (at == level && step.group.as_deref() == Some(name)).then_some(mask),
            _ => None,
        })
    };
    let names = draft.policy.groups.keys();
    let own = names.filter(|name| keys.ways_of(name).next().is_some());
    let own: BTreeMap<String, Mask> = own
        .filter_map(|name| Some((name.clone(), given(name)?)))
        .collect();
    let left = given(REST);
    if let Some(follows) = draft.loops.follows.first().filter(|_| !own.is_empty()) {
        let why = words::part_moves(&follows.group);
        let remedy = Remedy::leave_out("mechanisms.ways");
        draft.refuse("mechanisms.ways", why, remedy);
    }
    Ways { level, own, left }
}

fn frame(draft: &mut Draft<'_>, keys: &WindowKeys, ways: &Ways) -> Frame {
    let mut windows: Vec<Span> = Vec::new();
    for (i, window) in keys.schedule.iter().enumerate() {
        windows.push(Span {
            start: window.start,
            end: window.end(),
            group: Some(window.group.clone()),
            ways: ways.fill(&window.group, window.ways),
            budget: window_budgets::budget(draft, i, window),
        });
    }
    let of = |windows: &[Span], spare| {
        let cpus = keys.cpus.clone();
        Frame::new(cpus, keys.frame, keys.guard, windows, spare)
    };
    let mut spans = of(&windows, keys.spare_group()).spans;
    for span in spans.iter_mut().filter(|span| span.ways.is_none()) {
        let group = span.group.as_ref();
        span.ways = group.and_then(|group| ways.fill(group, None));
    }
    Frame {
        on_late: keys.on_late,
        ..of(&spans, None)
    }
}

/// Refuses groups that the dispatcher cannot stop and resume as it should.
fn members(draft: &mut Draft<'_>, keys: &WindowKeys) {
    let policy = draft.policy;
    let windowed = policy.groups.keys().filter(|name| keys.has(name));
    for name in windowed {
        dispatchable(draft, name, words::limited_by_its_windows(name));
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
