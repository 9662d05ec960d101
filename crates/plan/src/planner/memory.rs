//! Memory: what is protected, what is locked, who is limited, and who steers while the plan holds (`[pressure]`).
//!
//! Protection comes with immunity from the OOM killer, always: pages that may not be reclaimed count for their program's
//! score, so that without it the protected one is killed first (pressure.md 0.5).

use std::collections::BTreeMap;

use quell_control::config::Allows;
use quell_policy::{Group, MemoryWanted, Permission, Policy, Pressure, Role};
use quell_types::ids::StepId;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::options::PressureController;
use quell_types::refusal::{Cause, Remedy};
use quell_types::units::Bytes;

use crate::inventory::{Inventory, MemoryControl};
use crate::plan::{Held, Pressured, Promise, Setting, Steered, Watched};

use super::bandwidth::allowing;
use super::draft::Draft;

/// Settings of the machine with `pressure.sysctls`, whoever controls. Writers wait earlier and for less, so that what
/// waits to be written takes less of what could be reclaimed at once; what programs use is not swapped for files that
/// somebody reads. The described daemon tunes the same; its values are not published, so these are assumed.
const SYSCTLS: [(&str, i64); 4] = [
    ("swappiness", 10),
    ("dirty_ratio", 10),
    ("dirty_background_ratio", 5),
    ("overcommit_memory", 0),
];

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

/// The section, where somebody is to control: as written, or with its defaults where memory is reserved.
fn controlled(policy: &Policy) -> Option<Pressure> {
    let section = match &policy.pressure {
        Some(section) => section.clone(),
        None if protects(policy) => Pressure::default(),
        None => return None,
    };
    (section.controller != PressureController::None).then_some(section)
}

/// The limit around everybody: cgroups of groups are made below it, and so it comes first.
pub(super) fn bound(draft: &mut Draft<'_>) {
    let Some(most) = draft.policy.bounds.memory else {
        return;
    };
    let key = "bounds.memory";
    let total = total(draft.machine);
    if draft.machine.means.memory.control == MemoryControl::None {
        let why = "no cgroup with a limit of memory can be made here: that takes root, and a hierarchy that carries the memory controller";
        let remedy = "run it as root, or in the lab (--on lab)";
        draft.refuse(key, why, Some(remedy.to_owned()));
        return;
    }
    if total > Bytes(0) && most >= total {
        let why = format!("{most} is no limit on a machine that has {total}");
        draft.refuse(key, why, Some("give less".to_owned()));
        return;
    }
    let because = "the experiment's: whatever runs in it has this memory and no more, and controllers take it for the machine's";
    let set = Setting::BoundMemory { most };
    draft.step(None, Mechanism::Memory, set, because);
}

/// All memory of a machine; zero where nobody tells.
fn total(machine: &Inventory) -> Bytes {
    Bytes(machine.nodes.iter().map(|n| n.memory.0).sum())
}

/// Plans all of it.
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
    // What a machine needs for itself is not known; that all of it cannot be kept is.
    if total > 0 && reserved > total / 10 * 9 {
        draft.refuse(
            first_key(policy),
            format!(
                "{} would be kept of the {} that there are, and the machine needs some for itself",
                Bytes(reserved),
                Bytes(total)
            ),
            [
                Remedy::leave_out(first_key(policy)),
                Remedy::from("reserve at most nine tenths"),
            ],
        );
    }
    if let Some(section) = controlled(policy) {
        control(draft, &section);
    }
}

/// Every key that asks for anything about memory.
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

/// The first key that asks for anything about memory.
fn first_key(policy: &Policy) -> String {
    for (name, group) in &policy.groups {
        if group.reserve.memory.is_some() {
            return format!("group.{name}.reserve.memory");
        }
        if !group.reserve.files.is_empty() {
            return format!("group.{name}.reserve.files");
        }
        if group.limit.memory.is_some() {
            return format!("group.{name}.limit.memory");
        }
    }
    "pressure.controller".to_owned()
}

/// What a group is to keep. How much that is, as far as it is known.
fn protect(draft: &mut Draft<'_>, name: &str, group: &Group) -> u64 {
    let (memory, files) = (group.reserve.memory, &group.reserve.files);
    if memory.is_none() && files.is_empty() {
        return 0;
    }
    let key = if memory.is_some() { "memory" } else { "files" };
    let key = format!("group.{name}.reserve.{key}");
    if group.role != Role::Critical {
        let why = "only a critical group's memory is kept";
        let instead = Remedy::leave_out(key.clone());
        draft.refuse_for(Cause::NotBuilt, key, why, instead);
        return 0;
    }
    let means = draft.machine.means.memory.clone();
    if let Err(why) = means.immunity {
        let instead = Remedy::leave_out(key.clone());
        draft.refuse_for(
            Cause::Machine,
            key,
            format!(
                "without immunity from the OOM killer the protected program would be killed first: {why}"
            ),
            [instead, Remedy::from("give CAP_SYS_RESOURCE")],
        );
        return 0;
    }
    let because = "what may not be reclaimed counts for its score: the kernel would kill it first";
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
            let (why, remedy) = match means.control {
                MemoryControl::V1 => (
                    "the memory controller is on cgroup v1, which protects nothing",
                    "boot with it on cgroup v2 (cgroup_no_v1=memory)",
                ),
                _ => (
                    "no cgroup hierarchy carries the memory controller",
                    "mount cgroup2 with it",
                ),
            };
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
    let because = match size {
        Some(_) => {
            "memory.min on its cgroup and all above: the kernel reclaims from everybody else"
        }
        None => {
            "memory.min on its cgroup and all above, as large as what it works on: measured while it runs, at once more when \
             pages come back that were taken"
        }
    };
    let set = Setting::ProtectMemory { size };
    let step = draft.step(Some(name), Mechanism::Memory, set, because);
    let (level, weakest) = match size {
        Some(_) => (
            Level::Enforced,
            "pages of files that others read first are theirs (reserve.files reads them from inside)",
        ),
        None => (
            Level::Regulated,
            "what it has not used for a while, and takes up again, comes from the disk",
        ),
    };
    draft.promises.push(Held {
        group: name.to_owned(),
        promise: Promise::ReserveMemory { size },
        level,
        held_by: vec![immune, step],
        weakest: Some(weakest.to_owned()),
        assumed: false,
    });
}

fn lock(draft: &mut Draft<'_>, name: &str, files: &[String], immune: StepId) {
    if let Err(why) = draft.machine.means.memory.lock.clone() {
        draft.refuse(
            format!("group.{name}.reserve.files"),
            format!("files cannot be locked in memory: {why}"),
            [
                Remedy::from("give CAP_IPC_LOCK, or raise the limit of locked memory (ulimit -l)"),
                Remedy::leave_out(format!("group.{name}.reserve.files")),
            ],
        );
        return;
    }
    let set = Setting::LockFiles {
        files: files.to_vec(),
    };
    let because = "a small process in its cgroup maps and locks them: read from inside, they are charged to the group";
    let step = draft.step(Some(name), Mechanism::Memory, set, because);
    draft.promises.push(Held {
        group: name.to_owned(),
        promise: Promise::ReserveFiles {
            files: files.to_vec(),
        },
        level: Level::Enforced,
        held_by: vec![immune, step],
        weakest: Some(
            "a file that is replaced by another one is not the one that was locked".to_owned(),
        ),
        assumed: false,
    });
}

fn limit(draft: &mut Draft<'_>, name: &str, group: &Group) {
    let Some(most) = group.limit.memory else {
        return;
    };
    let key = format!("group.{name}.limit.memory");
    // What somebody writes about the own critical group needs no further word.
    let without = Remedy::leave_out(key.clone());
    let allowed = |what| {
        let list: Vec<Remedy> = allowing(name, group, what).into_iter().collect();
        [list, vec![without.clone()]].concat()
    };
    if group.role != Role::Critical && !group.allows(Permission::LimitMemory) {
        let remedies = allowed(Permission::LimitMemory);
        draft.refuse(
            key,
            format!(
                "the group ({}) may not be limited in memory",
                group.role.name()
            ),
            remedies,
        );
        return;
    }
    let kills = group.allows(Permission::Kill);
    let control = draft.machine.means.memory.control.clone();
    let because = match (control, kills) {
        (MemoryControl::None, _) => {
            let remedies = [Remedy::from("mount cgroup2 with it"), without];
            let why = "no cgroup hierarchy carries the memory controller";
            draft.refuse_for(Cause::Machine, key, why, remedies);
            return;
        }
        (MemoryControl::V1, false) => {
            let remedies = allowed(Permission::Kill);
            draft.refuse(
                key,
                "cgroup v1 kills in a group that exceeds its limit of memory, and the group may not be killed",
                remedies,
            );
            return;
        }
        (MemoryControl::V1, true) => {
            "memory.limit_in_bytes: what is beyond is reclaimed, or killed for"
        }
        (MemoryControl::V2, true) => {
            "memory.max, and memory.high a sixteenth below, so that who grows slowly is slowed down first"
        }
        (MemoryControl::V2, false) => {
            "memory.high, since the group may not be killed (allow = [\"kill\"]): who is beyond is slowed down"
        }
    };
    let set = Setting::LimitMemory { most, kills };
    let step = draft.step(Some(name), Mechanism::Memory, set, because);
    let (level, weakest) = if kills {
        (Level::Enforced, None)
    } else {
        let text = "who is beyond sleeps up to 2 s at a time, and gets on slowly all the same";
        (Level::Regulated, Some(text.to_owned()))
    };
    draft.promises.push(Held {
        group: name.to_owned(),
        promise: Promise::LimitMemory { most },
        level,
        held_by: vec![step],
        weakest,
        assumed: false,
    });
}

/// What may be done to a group here.
fn allows(draft: &Draft<'_>, group: &Group, section: &Pressure) -> Allows {
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
        // A limit that is written stays where it is.
        limit: limit && may(Permission::LimitMemory) && group.limit.memory.is_none(),
        freeze: means.freeze && !denied && may(Permission::Freeze),
        reclaim: means.reclaim && may(Permission::Reclaim),
        kill,
    }
}

/// The loop.
fn control(draft: &mut Draft<'_>, section: &Pressure) {
    let policy = draft.policy;
    let written = policy.pressure.is_some();
    let key = "pressure.controller";
    let means = draft.machine.means.memory.clone();
    if let Err(why) = &means.pressure {
        missing(
            draft,
            written,
            format!("how long tasks wait for memory is not told: {why}"),
        );
        return;
    }
    if !means.group_pressure && section.controller != PressureController::Latd {
        let why = "how long one group waits for memory is not told: no cgroup v2 hierarchy with pressure files is mounted";
        missing(draft, written, why.to_owned());
        return;
    }
    let critical: Vec<String> = policy
        .with_role(Role::Critical)
        .map(|(n, _)| n.clone())
        .collect();
    if critical.is_empty() {
        let remedy = Remedy::set_text(key, "none");
        draft.refuse(key, "there is no critical group to look after", remedy);
        return;
    }
    let steered: Vec<(String, Allows)> = policy
        .with_role(Role::BestEffort)
        .map(|(name, group)| (name.clone(), allows(draft, group, section)))
        .filter(|(_, allows)| !allows.is_none())
        .collect();
    if steered.is_empty() && written {
        draft.refuse(
            key,
            "there is nobody who may be limited, frozen or killed here",
            [
                Remedy::set_text(key, "none"),
                Remedy::from("name in a best-effort group's `allow` what may be done to it, as `escalate` does"),
            ],
        );
        return;
    }
    let mut held_by = Vec::new();
    if section.sysctls {
        let values: BTreeMap<String, i64> =
            SYSCTLS.iter().map(|(n, v)| ((*n).to_owned(), *v)).collect();
        let because = "pressure.sysctls: for everybody on the machine, until the end";
        held_by.push(draft.step(
            None,
            Mechanism::Memory,
            Setting::Sysctls { values },
            because,
        ));
    } else if section.controller == PressureController::Latd {
        draft.acts.push(
            "the daemon described tunes sysctls, too: write pressure.sysctls = true for that"
                .to_owned(),
        );
    }
    let mut watched = Vec::new();
    for name in critical {
        watched.push(watch(draft, &name));
    }
    for (name, allows) in &steered {
        held_by.push(steer(draft, name, *allows, section));
    }
    promises(draft, section, &watched, &held_by, steered.is_empty());
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

/// What the loop cannot do without is missing: refused if it was asked for, said if it came along with a reserve.
fn missing(draft: &mut Draft<'_>, written: bool, why: String) {
    if written {
        let key = "pressure.controller";
        let remedies = [
            Remedy::from("boot with psi=1 and mount cgroup2"),
            Remedy::set_text(key, "none"),
        ];
        draft.refuse_for(Cause::Machine, key, why, remedies);
    } else {
        draft
            .acts
            .push(format!("nobody steers the others' memory: {why}"));
    }
}

fn watch(draft: &mut Draft<'_>, name: &str) -> Watched {
    let own = |s: &crate::plan::Step| s.group.as_deref() == Some(name);
    let immune = draft
        .steps
        .iter()
        .any(|s| own(s) && s.set == Setting::OomImmune);
    if !immune && draft.machine.means.memory.immunity.is_ok() {
        let because = "it is to be the last that is killed for memory";
        draft.step(Some(name), Mechanism::Memory, Setting::OomImmune, because);
    }
    let because = "the time it waits for memory, and for disks that others use, tells when to act";
    draft.step(Some(name), Mechanism::Memory, Setting::WatchMemory, because);
    let measured = Setting::ProtectMemory { size: None };
    Watched {
        group: name.to_owned(),
        measured: draft.steps.iter().any(|s| own(s) && s.set == measured),
    }
}

fn steer(draft: &mut Draft<'_>, name: &str, allows: Allows, section: &Pressure) -> StepId {
    let because = match section.controller {
        PressureController::Latd => {
            "the process with the highest oom_score is stopped while the machine's pressure is high, and killed at 0.1 % of memory"
        }
        PressureController::Cgroup => {
            "its limit grows while it waits and the critical groups do not; else as the daemon described"
        }
        _ => {
            "it may use what the critical groups and a reserve leave, and less while they wait; harsher steps come after `grace`"
        }
    };
    let v2 = draft.machine.means.memory.control == MemoryControl::V2;
    let set = Setting::SteerMemory {
        allows,
        unswapped: v2 && section.controller == PressureController::Cgroup,
    };
    draft.step(Some(name), Mechanism::Memory, set, because)
}

fn promises(
    draft: &mut Draft<'_>,
    section: &Pressure,
    watched: &[Watched],
    held_by: &[StepId],
    nobody: bool,
) {
    // Nobody to steer: what the reserve promises is said with it.
    if nobody {
        return;
    }
    for one in watched {
        let kept = draft.promises.iter().find(|held| {
            held.group == one.group && matches!(held.promise, Promise::ReserveMemory { .. })
        });
        let mut by = held_by.to_vec();
        let (level, weakest) = match (section.controller, kept) {
            (PressureController::Quell, Some(kept)) => {
                by.splice(0..0, kept.held_by.iter().copied());
                (
                    Level::Regulated,
                    "what others do to the disks it reads from is held back no further than their memory",
                )
            }
            (PressureController::Quell, None) => (
                Level::Estimated,
                "tasks of no group may use any memory, and nothing of its own is kept (reserve.memory)",
            ),
            (PressureController::Latd, _) => (
                Level::Estimated,
                "an average of ten seconds is followed, and who is stopped gives nothing back",
            ),
            (PressureController::Cgroup | PressureController::None, _) => (
                Level::Estimated,
                "the first limit is a guess, and one that is too high is taken back by nobody",
            ),
        };
        draft.promises.push(Held {
            group: one.group.clone(),
            promise: Promise::MemoryStall {
                share: section.start,
            },
            level,
            held_by: by,
            weakest: Some(weakest.to_owned()),
            assumed: false,
        });
    }
}

/// What a person should know of the loop.
fn said(draft: &mut Draft<'_>, section: &Pressure, steered: &[(String, Allows)]) {
    let means = draft.machine.means.memory.clone();
    if means.control == MemoryControl::V1 {
        draft.notes.push(
            "the memory controller is on cgroup v1: nothing is protected, and a limit that moves is used only where a group may be killed"
                .to_owned(),
        );
    }
    if let Err(why) = means.immunity {
        draft.notes.push(format!(
            "the critical groups are not immune from the OOM killer: {why}"
        ));
    }
    for (name, group) in draft.policy.with_role(Role::BestEffort) {
        let asked = |what| group.allows(what) && section.escalate.contains(&what);
        if steered.iter().any(|(n, _)| n == name) || !asked(Permission::LimitMemory) {
            continue;
        }
        draft.notes.push(format!(
            "group {name}: nothing that it allows can be done to its memory here"
        ));
    }
}
