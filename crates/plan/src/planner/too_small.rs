//! Parts of a cache that are smaller than what their group's program was seen to work on alone.

use quell_types::ids::GroupId;
use quell_types::units::Bytes;

use crate::plan::Promise;

use super::amounts::size_of;
use super::division::Kind;
use super::draft::Draft;
use super::words::division as words;

/// Says of each part that is too small what would be enough. A program that works on more than the
/// whole cache has no part that is enough, so nothing is said of it.
pub(super) fn acts(draft: &mut Draft<'_>) {
    let promised = draft.promises.iter();
    let promised: Vec<(GroupId, u32, u32)> = promised
        .filter_map(|held| match &held.promise {
            Promise::ReserveWays { level, mask, .. } => {
                Some((held.group.clone(), *level, mask.count()))
            }
            _ => None,
        })
        .collect();
    for (group, level, count) in promised {
        let Some(solo) = draft.solos.get(&group) else {
            continue;
        };
        let Some(needed) = solo.works_on else {
            continue;
        };
        let kind = Kind::Ways(level);
        let way = size_of(draft, &group, kind).0;
        let whole = kind.whole(&draft.machine.partitions);
        let enough = needed.0.div_ceil(way);
        if enough > u64::from(count) && enough <= whole.map_or(0, |w| u64::from(w.count)) {
            let part = Bytes(way * u64::from(count));
            let act = words::part_is_too_small(&group, part, needed, &solo.profile, enough);
            draft.acts.push(act);
        }
    }
}
