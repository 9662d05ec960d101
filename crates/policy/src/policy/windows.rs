//! The section `[windows]`: its keys, and what is wrong with them although every value has the
//! right type.

use quell_types::cpuset::CpuSet;
use quell_types::ids::GroupId;
use quell_types::options::{GUARDS_PER_WINDOW, OnLate};
use quell_types::text::Path;
use quell_types::units::Nanos;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::check::Found;
use super::{Bandwidth, Permission, Policy, Role, WindowWays};

/// What `spare` says where no group has the spare time.
const IDLE: &str = "idle";
/// The bounds of a frame. Below, switches take too much of it. Above, peers of a stopped program
/// time out.
const FRAME: (Nanos, Nanos) = (Nanos::millis(1), Nanos::secs(1));
/// The step of the clock that windows are kept by.
const STEP: Nanos = Nanos::micros(1);

/// Fixed windows of a repeating frame: on these CPUs only one group runs at a time, as in ARINC
/// 653. All other groups of the schedule are frozen meanwhile, so each needs `allow = ["freeze"]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct WindowKeys {
    /// After how long the schedule begins again, 1ms to 1s. Frames begin where CLOCK_MONOTONIC is a
    /// multiple of it.
    pub frame: Nanos,
    /// The CPUs that are divided, for example "3" or "2-3": each by the same frame, at the same
    /// time. Only groups of the schedule run there, and they run nowhere else.
    pub cpus: CpuSet,
    /// The windows, in the order of their starts.
    pub schedule: Vec<Window>,
    /// What runs in the time that no window covers: "idle", or a group.
    #[serde(default = "idle")]
    pub spare: GroupId,
    /// How long before a window begins the CPU is taken for the switch. The window before it ends
    /// so much earlier. A window lasts ten guards at least. 200us is enough for groups of 100
    /// tasks, 1ms for 1,000.
    #[serde(default = "guard")]
    pub guard: Nanos,
    /// What happens when a window begins more than a guard late: "report", or "stop" (everything is
    /// undone, and the run ends).
    #[serde(default)]
    pub on_late: OnLate,
}

fn idle() -> GroupId {
    IDLE.to_owned()
}

const fn guard() -> Nanos {
    Nanos::micros(200)
}

/// One window of the schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Window {
    /// The group that runs in it.
    pub group: GroupId,
    /// When it begins, from the beginning of the frame.
    pub start: Nanos,
    /// How long it is.
    pub length: Nanos,
    /// The ways of the last-level cache that the group fills in it: a number, or a mask such as
    /// "0xf0". No other group fills them, whichever window it is. In windows without `ways` the
    /// group fills what groups without ways fill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ways: Option<WindowWays>,
    /// What the group may move to and from memory in it: a rate, or a share of what its CPUs can
    /// draw. Needs `allow = ["freeze", "throttle"]` in the group. On Linux it takes hardware
    /// counters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Bandwidth>,
}

impl Window {
    /// When it ends, from the beginning of the frame.
    #[must_use]
    pub const fn end(&self) -> Nanos {
        self.start.plus(self.length)
    }
}

impl WindowKeys {
    /// The group that has the spare time. `None` where it stays idle.
    #[must_use]
    pub fn spare_group(&self) -> Option<&GroupId> {
        Some(&self.spare).filter(|spare| *spare != IDLE)
    }

    /// The windows in which a group has ways of its own, each with its place in the schedule.
    pub fn ways_of(&self, group: &str) -> impl Iterator<Item = (usize, WindowWays)> {
        let own = self.schedule.iter().enumerate();
        let own = own.filter(move |(_, window)| window.group == group);
        own.filter_map(|(i, window)| Some((i, window.ways?)))
    }

    /// Whether a group has a window, or the spare time.
    #[must_use]
    pub fn has(&self, group: &str) -> bool {
        let spare = self.spare_group().is_some_and(|spare| spare == group);
        spare || self.schedule.iter().any(|window| window.group == group)
    }
}

/// Complains about the section, and about keys of its groups that it contradicts.
pub(super) fn check(found: &mut Found, policy: &Policy) {
    let Some(keys) = &policy.windows else {
        return;
    };
    let at = Path::of(&["windows"]);
    if keys.cpus.is_empty() {
        let remedy = Some("name the CPU, for example cpus = \"1\"");
        found.say(at.key("cpus"), "windows of no CPU divide nothing", remedy);
    }
    if keys.schedule.is_empty() {
        let remedy = "write schedule = [{ group = \"NAME\", start = \"0ms\", length = \"4ms\" }]";
        found.say(at.key("schedule"), "there is no window", Some(remedy));
    }
    if !(FRAME.0..=FRAME.1).contains(&keys.frame) {
        let why = format!("{} is not between {} and {}", keys.frame, FRAME.0, FRAME.1);
        found.say(at.key("frame"), why, None);
    }
    if keys.guard < STEP {
        let why = "a switch takes time: without a guard every window would begin late";
        found.say(at.key("guard"), why, Some("default 200us"));
    }
    for (key, time) in [("frame", keys.frame), ("guard", keys.guard)] {
        in_steps(found, at.key(key), time);
    }
    schedule(found, &at, keys);
    members(found, &at, policy, keys);
    ways(found, &at, policy, keys);
    budgets(found, &at, policy, keys);
}

/// Complains of ways that windows of a group cannot have.
fn ways(found: &mut Found, at: &Path, policy: &Policy, keys: &WindowKeys) {
    for (name, group) in &policy.groups {
        let mut windows = keys.ways_of(name);
        let Some((first, one)) = windows.next() else {
            continue;
        };
        let named = |ways| matches!(ways, WindowWays::Mask(_));
        let key = |i: usize| at.key("schedule").index(i).key("ways");
        if let Some((other, _)) = windows.find(|(_, ways)| named(*ways) != named(one)) {
            let why = format!("group '{name}' has a number of ways in one window, and a mask here");
            let remedy = Some("write masks in all of its windows, or numbers in all");
            let at = key(if named(one) { first } else { other });
            found.say(at, why, remedy);
        }
        if group.reserve.cache.is_some() {
            let why = "its windows say which ways it has (schedule)";
            let of_group = Path::of(&["group", name.as_str()]);
            let remedy = Some("remove it, or `ways` of its windows");
            found.say(of_group.key("reserve").key("cache"), why, remedy);
        }
    }
    for (i, window) in keys.schedule.iter().enumerate() {
        if window.ways == Some(WindowWays::Count(0)) {
            let at = at.key("schedule").index(i).key("ways");
            found.say(
                at,
                "a group without ways cannot fill the cache",
                Some("ask for at least 1"),
            );
        }
    }
}

/// Complains of budgets that windows cannot have.
fn budgets(found: &mut Found, at: &Path, policy: &Policy, keys: &WindowKeys) {
    for (i, window) in keys.schedule.iter().enumerate() {
        let Some(asked) = window.bandwidth else {
            continue;
        };
        let at = at.key("schedule").index(i).key("bandwidth");
        let nothing = matches!(asked, Bandwidth::Rate(rate) if rate.0 == 0)
            || matches!(asked, Bandwidth::Share(share) if share.0 == 0);
        if nothing {
            found.say(at.clone(), "a group that may move nothing cannot run", None);
        }
        if matches!(asked, Bandwidth::ReadWrite { .. }) {
            let why = "a window has one budget, for reads and writes together";
            found.say(
                at.clone(),
                why,
                Some("write a rate such as \"200MB/s\", or a share"),
            );
        }
        let group = policy.groups.get(&window.group);
        if group.is_some_and(|group| !group.allows(Permission::Throttle)) {
            let why = format!(
                "group '{}' is stopped once it has moved that much, and may not be",
                window.group
            );
            let remedy = "write allow = [\"freeze\", \"throttle\"] in the group";
            found.say(at, why, Some(remedy));
        }
    }
}

fn in_steps(found: &mut Found, at: Path, time: Nanos) {
    if !time.0.is_multiple_of(STEP.0) {
        let why = format!("{time} is not a multiple of {STEP}, the step of the clock");
        found.say(at, why, None);
    }
}

/// Complains of windows that do not follow each other within the frame.
fn schedule(found: &mut Found, at: &Path, keys: &WindowKeys) {
    let least = Nanos(keys.guard.0.saturating_mul(GUARDS_PER_WINDOW));
    let mut before: Option<&Window> = None;
    for (i, window) in keys.schedule.iter().enumerate() {
        let at = at.key("schedule").index(i);
        in_steps(found, at.key("start"), window.start);
        in_steps(found, at.key("length"), window.length);
        if window.length == Nanos(0) {
            found.say(at.key("length"), "a window of no length", Some("remove it"));
        } else if window.length < least {
            let why = format!(
                "{} is shorter than {GUARDS_PER_WINDOW} guards of {}, which are {least}",
                window.length, keys.guard
            );
            let remedy = "make it longer, or write a smaller guard in [windows]";
            found.say(at.key("length"), why, Some(remedy));
        }
        if window.end() > keys.frame {
            let (end, frame) = (window.end(), keys.frame);
            let why = format!("the window ends at {end}, beyond the frame of {frame}");
            found.say(at.clone(), why, None);
        }
        if let Some(before) = before {
            if window.start < before.start {
                let (start, other) = (window.start, before.start);
                let why = format!("it starts at {start}, before the window above it ({other})");
                found.say(
                    at.key("start"),
                    why,
                    Some("write windows in the order of their starts"),
                );
            } else if window.start < before.end() {
                let (start, end) = (window.start, before.end());
                let why =
                    format!("it starts at {start}, while the window above it lasts until {end}");
                found.say(at.key("start"), why, Some("windows do not overlap"));
            }
        }
        before = Some(window);
    }
}

/// Complains of groups that cannot have a window.
fn members(found: &mut Found, at: &Path, policy: &Policy, keys: &WindowKeys) {
    let windows = keys.schedule.iter().enumerate();
    let named = windows.map(|(i, w)| (at.key("schedule").index(i).key("group"), &w.group));
    let spare = keys.spare_group().map(|group| (at.key("spare"), group));
    let mut seen: Vec<&GroupId> = Vec::new();
    for (place, name) in named.chain(spare) {
        let Some(group) = policy.groups.get(name) else {
            let why = format!("there is no group '{name}'");
            found.say(place, why, Some("write a [group.NAME] for it"));
            continue;
        };
        if seen.contains(&name) {
            continue;
        }
        seen.push(name);
        let of_group = Path::of(&["group", name.as_str()]);
        if group.role == Role::Exempt {
            let why = format!("group '{name}' is exempt: it is never stopped");
            found.say(place, why, Some("make it best-effort, or leave it out"));
            continue;
        }
        if !group.allows(Permission::Freeze) {
            let why = format!("group '{name}' is frozen outside its windows, and may not be");
            found.say(place, why, Some("write allow = [\"freeze\"] in the group"));
        }
        if group.cpus.is_some() {
            let why = "it has a window, so that it runs on the CPUs of [windows] and nowhere else";
            found.say(of_group.key("cpus"), why, Some("remove it"));
        }
    }
}
