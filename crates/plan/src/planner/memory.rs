//! Memory: what is protected, what is locked, which groups are limited, and which controller steers
//! while the plan is held (`[pressure]`).
//!
//! Protection always comes with immunity from the OOM killer. Pages that may not be reclaimed count
//! for their program's score. Without immunity the protected program would be killed first.

use quell_control::config::Allows;
use quell_policy::{Group, MemoryWanted, Permission, Policy, Pressure, Role};
use quell_types::ids::StepId;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::options::PressureController;
use quell_types::refusal::{Cause, Remedy};
use quell_types::units::Bytes;

use crate::inventory::{Inventory, MemoryControl};
use crate::plan::{Pressured, Promise, Setting, Steered, Watched};

use super::bandwidth::allowing;
use super::draft::Draft;
use super::wanted::Worth;
use super::words::memory as words;

/// Settings of the machine with `pressure.sysctls`, for any controller. Writers wait earlier and
/// for less, so that less reclaimable memory waits to be written. What programs use is not swapped
/// out for files that are read. The described daemon tunes the same settings. Its values are not
/// published, so these are assumed.
const SYSCTLS: [(&str, i64); 4] = [
    ("swappiness", 10),
    ("dirty_ratio", 10),
    ("dirty_background_ratio", 5),
    ("overcommit_memory", 0),
];

/// `memory.swappiness` of the groups with the controller `cgroup`, as published: of the critical
/// ones, and of the others. Only cgroup v1 has it.
const SWAPPINESS: [u32; 2] = [90, 0];

/// Whether a policy says anything about memory.
pub(super) fn wanted(policy: &Policy) -> bool {
    protects(policy)
        || policy.groups.values().any(|g| g.limit.memory.is_some())
        || controlled(policy).is_some()
}

fn protects(policy: &Policy) -> bool {
    let keeps = |g: &Group| g.reserve.memory.is_some() || !g.reserve.files.is_empty();
    policy.groups.values().any(keeps)
}

/// The `[pressure]` section, if there is to be a controller. It is as written, or has its defaults
/// where memory is reserved.
fn controlled(policy: &Policy) -> Option<Pressure> {
    let section = match &policy.pressure {
        Some(section) => section.clone(),
        None if protects(policy) => Pressure::default(),
        None => return None,
    };
    (section.controller != PressureController::None).then_some(section)
}

/// The limit around all groups. It comes first, because the groups' cgroups are made below it.
pub(super) fn bound(draft: &mut Draft<'_>) {
    let Some(most) = draft.policy.bounds.memory else {
        return;
    };
    let key = "bounds.memory";
    let total = total(draft.machine);
    if draft.machine.means.memory.control == MemoryControl::None {
        let remedy = Remedy::from(words::RUN_AS_ROOT);
        draft.refuse(key, words::NO_LIMIT_CAN_BE_MADE, remedy);
        return;
    }
    if total > Bytes(0) && most >= total {
        let why = words::is_no_limit(most, total);
        draft.refuse(key, why, Remedy::from("give less"));
        return;
    }
    let set = Setting::BoundMemory { most };
    let because = words::BOUND_BY_THE_EXPERIMENT;
    draft.step(None, Mechanism::Memory, set, because);
}

/// All memory of a machine; zero where it is not known.
fn total(machine: &Inventory) -> Bytes {
    Bytes(machine.nodes.iter().map(|n| n.memory.0).sum())
}

/// Adds all steps, promises and notes about memory.
pub(super) fn plan(draft: &mut Draft<'_>) {
    let policy = draft.policy;
    if !wanted(policy) {
        return;
    }
    if let Some(why) = draft.unavailable(Mechanism::Memory) {
        let instead = Remedy::LeaveOut {
            keys: memory_keys(policy),
        };
        draft.refuse_lacking(Mechanism::Memory, first_key(policy), why, instead);
        return;
    }
    let mut reserved = 0u64;
    for (name, group) in &policy.groups {
        reserved = reserved.saturating_add(protect(draft, name, group));
        limit(draft, name, group);
    }
    let total = total(draft.machine).0;
    let total = policy.bounds.memory.map_or(total, |most| most.0);
    // What a machine needs for itself is not known, but it is not nothing.
    if total > 0 && reserved > total / 10 * 9 {
        let key = first_key(policy);
        let why = words::too_much_kept(Bytes(reserved), Bytes(total));
        let remedies = [
            Remedy::leave_out(key.clone()),
            Remedy::from("reserve at most nine tenths"),
        ];
        draft.refuse(key, why, remedies);
    }
    if let Some(section) = controlled(policy) {
        control(draft, &section);
    }
}

/// All keys that ask for anything about memory.
fn memory_keys(policy: &Policy) -> Vec<String> {
    let mut keys = Vec::new();
    for (name, group) in &policy.groups {
        let wanted = [
            ("reserve.memory", group.reserve.memory.is_some()),
            ("reserve.files", !group.reserve.files.is_empty()),
            ("limit.memory", group.limit.memory.is_some()),
        ];
        let wanted = wanted.iter().filter(|(_, wanted)| *wanted);
        keys.extend(wanted.map(|(key, _)| format!("group.{name}.{key}")));
    }
    keys.extend(policy.pressure.is_some().then(|| "pressure".to_owned()));
    keys
}

/// The first of these keys that belongs to a group.
fn first_key(policy: &Policy) -> String {
    let first = memory_keys(policy).into_iter().next();
    let of_group = first.filter(|key| key != "pressure");
    of_group.unwrap_or_else(|| "pressure.controller".to_owned())
}

/// Protects what a group is to keep. Returns the bytes, as far as they are known.
fn protect(draft: &mut Draft<'_>, name: &str, group: &Group) -> u64 {
    let (memory, files) = (group.reserve.memory, &group.reserve.files);
    if memory.is_none() && files.is_empty() {
        return 0;
    }
    let key = if memory.is_some() { "memory" } else { "files" };
    let key = format!("group.{name}.reserve.{key}");
    if group.role != Role::Critical {
        let instead = Remedy::leave_out(key.clone());
        draft.refuse_for(Cause::NotBuilt, key, words::ONLY_CRITICAL_IS_KEPT, instead);
        return 0;
    }
    let means = draft.machine.means.memory.clone();
    if let Err(why) = means.immunity {
        let without = Remedy::leave_out(key.clone());
        let remedies = [Remedy::from(words::GIVE_SYS_RESOURCE), without];
        let why = words::killed_without_immunity(&why);
        draft.refuse_for(Cause::Machine, key, why, remedies);
        return 0;
    }
    let because = words::WOULD_BE_KILLED_FIRST;
    let immune = draft.step(Some(name), Mechanism::Memory, Setting::OomImmune, because);
    let mut known = 0;
    if let Some(memory) = memory {
        if means.control == MemoryControl::V2 {
            let size = match memory {
                MemoryWanted::Size(size) => Some(size),
                MemoryWanted::WorkingSet => None,
            };
            known = size.map_or(0, |s| s.0);
            keep(draft, name, size, immune);
        } else {
            let (why, remedy) = words::unprotected(&means.control);
            let key = format!("group.{name}.reserve.memory");
            let remedies = [Remedy::from(remedy), Remedy::leave_out(key.clone())];
            draft.refuse_for(Cause::Machine, key, why, remedies);
        }
    }
    if !files.is_empty() {
        lock(draft, name, files, immune);
    }
    known
}

fn keep(draft: &mut Draft<'_>, name: &str, size: Option<Bytes>, immune: StepId) {
    let (because, worth) = match size {
        Some(_) => {
            let group = draft.policy.groups.get(name);
            let weakest = match group.is_some_and(is_moved) {
                true => words::CHARGED_WHERE_IT_WAS,
                false => words::FILES_OF_OTHERS,
            };
            (words::KEPT, Worth::of(Level::Enforced, weakest))
        }
        None => (
            words::KEPT_AS_MEASURED,
            Worth::of(Level::Regulated, words::TAKEN_UP_AGAIN),
        ),
    };
    let set = Setting::ProtectMemory { size };
    let step = draft.step(Some(name), Mechanism::Memory, set, because);
    draft.promise(name, Promise::ReserveMemory { size }, worth, [immune, step]);
}

fn lock(draft: &mut Draft<'_>, name: &str, files: &[String], immune: StepId) {
    if let Err(why) = &draft.machine.means.memory.lock {
        let key = format!("group.{name}.reserve.files");
        let remedies = [
            Remedy::from(words::GIVE_IPC_LOCK),
            Remedy::leave_out(key.clone()),
        ];
        draft.refuse(key, words::cannot_be_locked(why), remedies);
        return;
    }
    let files = files.to_vec();
    let set = Setting::LockFiles {
        files: files.clone(),
    };
    let step = draft.step(Some(name), Mechanism::Memory, set, words::LOCKED);
    let worth = Worth::of(Level::Enforced, words::REPLACED);
    draft.promise(name, Promise::ReserveFiles { files }, worth, [immune, step]);
}

/// Whether processes that run already are moved to the group's cgroup.
fn is_moved(group: &Group) -> bool {
    group.matching.iter().any(|table| !table.in_place())
}

fn limit(draft: &mut Draft<'_>, name: &str, group: &Group) {
    let Some(most) = group.limit.memory else {
        return;
    };
    let key = format!("group.{name}.limit.memory");
    // A limit on the policy's own critical group needs no further permission.
    let without = Remedy::leave_out(key.clone());
    let allowed = |what| {
        let list: Vec<Remedy> = allowing(name, group, what).into_iter().collect();
        [list, vec![without.clone()]].concat()
    };
    if group.role != Role::Critical && !group.allows(Permission::LimitMemory) {
        let remedies = allowed(Permission::LimitMemory);
        draft.refuse(key, words::may_not_be_limited(group.role.name()), remedies);
        return;
    }
    let kills = group.allows(Permission::Kill);
    let control = draft.machine.means.memory.control.clone();
    let because = match (control, kills) {
        (MemoryControl::None, _) => {
            let remedies = [Remedy::from("mount cgroup2 with it"), without];
            draft.refuse_for(Cause::Machine, key, words::NO_CONTROLLER, remedies);
            return;
        }
        (MemoryControl::V1, false) => {
            let remedies = allowed(Permission::Kill);
            draft.refuse(key, words::V1_KILLS, remedies);
            return;
        }
        (MemoryControl::V1, true) => words::LIMITED_BY_V1,
        (MemoryControl::V2, true) => words::LIMITED_AND_KILLED,
        (MemoryControl::V2, false) => words::LIMITED_AND_SLOWED,
    };
    let set = Setting::LimitMemory { most, kills };
    let step = draft.step(Some(name), Mechanism::Memory, set, because);
    let worth = match kills {
        true if is_moved(group) => Worth::of(Level::Enforced, words::CHARGED_WHERE_IT_WAS),
        true => Worth::plain(Level::Enforced),
        false => Worth::of(Level::Regulated, words::SLEEPS),
    };
    draft.promise(name, Promise::LimitMemory { most }, worth, [step]);
}

/// What may be done to a group on this machine.
fn allows(draft: &Draft<'_>, name: &str, group: &Group, section: &Pressure) -> Allows {
    let windows = &draft.policy.windows;
    let windowed = windows.as_ref().is_some_and(|w| w.has(name));
    let dispatched = windowed || draft.policy.is_scheduled(name);
    let means = &draft.machine.means.memory;
    let may = |what| section.escalate.contains(&what) && group.allows(what);
    let denied = draft.policy.mechanisms.deny.contains(&Mechanism::Stop);
    let kill = may(Permission::Kill);
    let limit = match means.control {
        MemoryControl::V2 => true,
        // v1 kills beyond its limits.
        MemoryControl::V1 => kill,
        MemoryControl::None => false,
    };
    Allows {
        // A limit that the policy states stays where it is.
        limit: limit && may(Permission::LimitMemory) && group.limit.memory.is_none(),
        // A dispatcher freezes and thaws it.
        freeze: means.freeze && !denied && may(Permission::Freeze) && !dispatched,
        reclaim: means.reclaim && may(Permission::Reclaim),
        kill,
    }
}

/// Adds the loop that steers memory, with its promises and notes.
fn control(draft: &mut Draft<'_>, section: &Pressure) {
    let policy = draft.policy;
    let written = policy.pressure.is_some();
    let key = "pressure.controller";
    let means = draft.machine.means.memory.clone();
    if let Err(why) = &means.pressure {
        missing(draft, written, words::pressure_is_not_told(why));
        return;
    }
    if !means.group_pressure && section.controller != PressureController::Latd {
        missing(draft, written, words::NO_GROUP_PRESSURE.to_owned());
        return;
    }
    let critical: Vec<String> = policy
        .with_role(Role::Critical)
        .map(|(n, _)| n.clone())
        .collect();
    if critical.is_empty() {
        let remedy = Remedy::set_text(key, "none");
        draft.refuse(key, words::NO_CRITICAL_GROUP, remedy);
        return;
    }
    let steered: Vec<(String, Allows)> = policy
        .with_role(Role::BestEffort)
        .map(|(name, group)| (name.clone(), allows(draft, name, group, section)))
        .filter(|(_, allows)| !allows.is_none())
        .collect();
    if steered.is_empty() && written {
        let none = Remedy::set_text(key, "none");
        let remedies = [none, Remedy::from(words::NAME_WHAT_MAY_BE_DONE)];
        draft.refuse(key, words::NOBODY_TO_STEER, remedies);
        return;
    }
    let mut held_by = Vec::new();
    if section.sysctls {
        let values = SYSCTLS.iter().map(|(n, v)| ((*n).to_owned(), *v));
        let set = Setting::Sysctls {
            values: values.collect(),
        };
        let because = words::SYSCTLS_FOR_EVERYBODY;
        held_by.push(draft.step(None, Mechanism::Memory, set, because));
    } else if section.controller == PressureController::Latd {
        draft.acts.push(words::WRITE_SYSCTLS.to_owned());
    }
    let mut watched = Vec::new();
    for name in critical {
        watched.push(watch(draft, &name));
        swappiness(draft, &name, section, SWAPPINESS[0]);
    }
    for (name, allows) in &steered {
        held_by.push(steer(draft, name, *allows, section));
        swappiness(draft, name, section, SWAPPINESS[1]);
    }
    // No group is steered: the reserve's promise already says so.
    if !steered.is_empty() {
        promises(draft, section, &watched, &held_by);
    }
    said(draft, section, &steered);
    draft.loops.pressure = Some(Pressured {
        controller: section.controller,
        interval: section.interval,
        start: section.start,
        release: section.release,
        grace: section.grace,
        critical: watched,
        neighbours: steered
            .into_iter()
            .map(|(group, allows)| Steered { group, allows })
            .collect(),
    });
}

/// The loop lacks something that it needs. That is refused if the policy asked for the loop, and
/// noted if the loop came with a reserve.
fn missing(draft: &mut Draft<'_>, written: bool, why: String) {
    if written {
        let key = "pressure.controller";
        let remedies = [
            Remedy::from("boot with psi=1 and mount cgroup2"),
            Remedy::set_text(key, "none"),
        ];
        draft.refuse_for(Cause::Machine, key, why, remedies);
    } else {
        draft.acts.push(words::nobody_steers(&why));
    }
}

fn watch(draft: &mut Draft<'_>, name: &str) -> Watched {
    let own = |s: &crate::plan::Step| s.group.as_deref() == Some(name);
    let immune = draft
        .steps
        .iter()
        .any(|s| own(s) && s.set == Setting::OomImmune);
    if !immune && draft.machine.means.memory.immunity.is_ok() {
        let because = words::KILLED_LAST;
        draft.step(Some(name), Mechanism::Memory, Setting::OomImmune, because);
    }
    let because = words::TELLS_WHEN_TO_ACT;
    draft.step(Some(name), Mechanism::Memory, Setting::WatchMemory, because);
    let measured = Setting::ProtectMemory { size: None };
    Watched {
        group: name.to_owned(),
        measured: draft.steps.iter().any(|s| own(s) && s.set == measured),
    }
}

fn steer(draft: &mut Draft<'_>, name: &str, allows: Allows, section: &Pressure) -> StepId {
    let because = words::steered_by(section.controller);
    let v2 = draft.machine.means.memory.control == MemoryControl::V2;
    let set = Setting::SteerMemory {
        allows,
        unswapped: v2 && section.controller == PressureController::Cgroup,
    };
    draft.step(Some(name), Mechanism::Memory, set, because)
}

/// Sets a group's swappiness where the controller's description has one and the machine does.
fn swappiness(draft: &mut Draft<'_>, name: &str, section: &Pressure, value: u32) {
    let v1 = draft.machine.means.memory.control == MemoryControl::V1;
    if v1 && section.controller == PressureController::Cgroup {
        let set = Setting::Swappiness { value };
        let because = words::SWAPPINESS_AS_DESCRIBED;
        draft.step(Some(name), Mechanism::Memory, set, because);
    }
}

fn promises(draft: &mut Draft<'_>, section: &Pressure, watched: &[Watched], held_by: &[StepId]) {
    for one in watched {
        let kept = draft.promises.iter().find(|held| {
            held.group == one.group && matches!(held.promise, Promise::ReserveMemory { .. })
        });
        let mut by = held_by.to_vec();
        let (level, weakest) = match (section.controller, kept) {
            (PressureController::Quell, Some(kept)) => {
                by.splice(0..0, kept.held_by.iter().copied());
                (Level::Regulated, words::DISKS_ARE_NOT_HELD_BACK)
            }
            (PressureController::Quell, None) => (Level::Estimated, words::NOTHING_IS_KEPT),
            (PressureController::Latd, _) => (Level::Estimated, words::AN_AVERAGE_IS_FOLLOWED),
            (PressureController::Cgroup | PressureController::None, _) => {
                (Level::Estimated, words::A_GUESS)
            }
        };
        let share = section.start;
        let worth = Worth::of(level, weakest);
        draft.promise(&one.group, Promise::MemoryStall { share }, worth, by);
    }
}

/// Notes on the loop for a person.
fn said(draft: &mut Draft<'_>, section: &Pressure, steered: &[(String, Allows)]) {
    let means = draft.machine.means.memory.clone();
    if means.control == MemoryControl::V1 {
        draft.notes.push(words::V1_PROTECTS_NOTHING.to_owned());
    }
    if means.control == MemoryControl::V2 && section.controller == PressureController::Cgroup {
        draft.notes.push(words::NO_SWAPPINESS_OF_GROUPS.to_owned());
    }
    if let Err(why) = means.immunity {
        draft.notes.push(words::critical_are_not_immune(&why));
    }
    for (name, group) in draft.policy.with_role(Role::BestEffort) {
        let asked = |what| group.allows(what) && section.escalate.contains(&what);
        if steered.iter().any(|(n, _)| n == name) || !asked(Permission::LimitMemory) {
            continue;
        }
        draft.notes.push(words::nothing_can_be_done(name));
    }
}
