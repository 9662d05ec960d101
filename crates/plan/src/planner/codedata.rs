//! Separate ways of a cache for code and for data (`reserve.cache = { code = 2, data = 4 }`;
//! resctrl's `cdp`).
//!
//! To all other groups it is one part with the sum of these ways, of which they fill none. Inside
//! the part the lowest ways are for code. The kernel separates code and data only where resctrl is
//! mounted with that option, for all groups at once. Mounting resctrl a second time changes no
//! option.

use quell_types::cpuset::CpuSet;
use quell_types::mechanism::Mechanism;
use quell_types::partition::{CodeData, Mask};
use quell_types::refusal::Remedy;

use crate::plan::Setting;

use super::amounts::mask_of;
use super::division::{Claim, Divided, Kind, Refused};
use super::draft::Draft;
use super::words::division as words;

/// Whether ways of this kind can be separated for code and data.
pub(super) fn possible(draft: &Draft<'_>, kind: Kind) -> Result<(), Refused> {
    let (why, remedy) = match at(draft, kind) {
        CodeData::Now | CodeData::OnceMounted { .. } => return Ok(()),
        CodeData::Never => (
            words::not_apart(&kind.name()),
            "say how many for both, as in { ways = 4 }",
        ),
        CodeData::MountedWithout => (words::MOUNTED_WITHOUT.to_owned(), words::UNMOUNT_IT),
    };
    Err((why, vec![Remedy::from(remedy)]))
}

fn at(draft: &Draft<'_>, kind: Kind) -> CodeData {
    let Kind::Ways(level) = kind else {
        return CodeData::Never;
    };
    let mut ways = draft.machine.partitions.ways.iter();
    ways.find(|w| w.level == level)
        .map_or(CodeData::Never, |w| w.code_data)
}

/// The step that mounts resctrl before anything else is set. Refuses what cannot be combined with
/// it.
pub(super) fn mount(draft: &mut Draft<'_>, divided: &mut [Divided]) {
    let code_data = |one: &Divided| one.claims.iter().any(|c| c.code.is_some());
    let mut claims = divided.iter().flat_map(|d| &d.claims);
    if let Some(locked) = claims.clone().find(|c| c.locked.is_some())
        && let Some(other) = claims.find(|c| c.code.is_some())
    {
        let (key, other) = (locked.at(), other.at());
        let remedies = [&key, &other].map(|key| Remedy::leave_out(key.clone()));
        draft.refuse(key, words::not_locked_beside(&other), remedies);
        return;
    }
    let mut levels = Vec::new();
    for one in divided.iter().filter(|d| code_data(d)) {
        if let (Kind::Ways(level), CodeData::OnceMounted { .. }) = (one.kind, at(draft, one.kind)) {
            levels.push(level);
        }
    }
    if levels.is_empty() {
        return;
    }
    let because = words::NOBODY_MOUNTED_IT;
    let set = Setting::MountCodeData { levels };
    let id = draft.step(None, Mechanism::Ways, set, because);
    for one in divided.iter_mut().filter(|d| code_data(d)) {
        one.steps.push(id);
    }
}

/// The setting that gives a group its ways.
pub(super) fn setting(
    level: u32,
    part: &CpuSet,
    own: Option<&Claim>,
    caches_of: &CpuSet,
) -> Setting {
    let Some(code) = own.and_then(|claim| claim.code) else {
        return Setting::Ways {
            level,
            mask: mask_of(part),
            caches_of: caches_of.clone(),
        };
    };
    let low: CpuSet = part.iter().take(code as usize).collect();
    Setting::WaysCodeData {
        level,
        code: mask_of(&low),
        data: mask_of(&part.difference(&low)),
    }
}

/// The ways of a level that a setting gives, for code and for data.
pub(super) fn masks(set: &Setting) -> Option<(u32, [Mask; 2])> {
    match *set {
        Setting::Ways { level, mask, .. } => Some((level, [mask; 2])),
        Setting::WaysCodeData { level, code, data } => Some((level, [code, data])),
        _ => None,
    }
}

/// The number of classes of service for ways of a level, after the plan's mount if it has one.
pub(super) fn classes(draft: &Draft<'_>, ways: &quell_types::partition::WayPartition) -> u32 {
    let mounts = |s: &crate::plan::Step| matches!(s.set, Setting::MountCodeData { .. });
    match ways.code_data {
        CodeData::OnceMounted { classes } if draft.steps.iter().any(mounts) => classes,
        _ => ways.classes,
    }
}
