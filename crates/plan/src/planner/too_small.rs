//! Parts of a cache that are smaller than what their group's program needs, as its profile has it.

use quell_types::ids::GroupId;
use quell_types::units::Bytes;

use crate::plan::Promise;

use super::amounts::size_of;
use super::division::Kind;
use super::draft::{Draft, Solo};
use super::words::division as words;

/// Says of each part that is too small what would be enough. A sweep that tried this number of ways
/// goes before the bytes that the program works on.
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
        let curve = solo.curve.as_ref().filter(|curve| curve.level == level);
        let missed = curve.and_then(|curve| Some((curve, curve.missed.get(&count)?)));
        let kept = curve.and_then(|curve| curve.enough);
        let act = match (missed, kept) {
            (Some((curve, speed)), enough) => {
                let more = enough.map_or_else(String::new, words::ways_kept_it);
                let goal = &curve.goal;
                Some(words::part_misses_its_goal(
                    &group,
                    count,
                    *speed,
                    goal,
                    &solo.profile,
                    &more,
                ))
            }
            (None, Some(enough)) if count >= enough => None,
            _ => by_bytes(draft, &group, solo, level, count),
        };
        draft.acts.extend(act);
    }
}

/// What to say where the program works on more than its part. A program that works on more than
/// the whole cache has no part that is enough, so nothing is said of it.
fn by_bytes(draft: &Draft<'_>, group: &str, solo: &Solo, level: u32, count: u32) -> Option<String> {
    let needed = solo.works_on?;
    let kind = Kind::Ways(level);
    let way = size_of(draft, group, kind).0;
    let whole = kind.whole(&draft.machine.partitions);
    let enough = needed.0.div_ceil(way);
    let fits = enough > u64::from(count) && enough <= whole.map_or(0, |w| u64::from(w.count));
    let part = Bytes(way * u64::from(count));
    fits.then(|| words::part_is_too_small(group, part, needed, &solo.profile, enough))
}
