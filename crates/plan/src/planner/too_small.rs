//! Parts of a cache that are smaller than what their group's program needs, as its profile has it.
//! With such a part a program can be slower than with none.

use quell_types::ids::GroupId;
use quell_types::options::PageSize;
use quell_types::partition::Divides;
use quell_types::units::{Bytes, Share};

use crate::plan::Promise;

use super::amounts::size_of;
use super::division::Kind;
use super::draft::{Draft, Solo};
use super::words::division as words;

/// The most of a program's memory that may have too few ways in a part, beyond what has too few
/// in the whole cache: as much as the lowest goal that a sweep of ways is asked for leaves.
const MOST: f64 = 0.05;

/// Says of each part that is too small what would be enough. A sweep that tried this number of ways
/// goes before the bytes that the program works on.
pub(super) fn acts(draft: &mut Draft<'_>) {
    let promised = draft.promises.iter();
    let promised: Vec<(GroupId, Kind, u32)> = promised
        .filter_map(|held| {
            let (kind, count) = match &held.promise {
                Promise::ReserveWays { level, mask, .. } => (Kind::Ways(*level), mask.count()),
                Promise::ReserveColours {
                    divides, colours, ..
                } if *divides != Divides::Banks => {
                    (Kind::Colours(*divides), u32::try_from(colours.len()).ok()?)
                }
                _ => return None,
            };
            Some((held.group.clone(), kind, count))
        })
        .collect();
    for (group, kind, count) in promised {
        let known = |solo: &&Solo| solo.works_on.is_some() || solo.curve.is_some();
        let Some(solo) = draft.solos.get(&group).filter(known) else {
            if draft.machine.simulated.is_none() {
                let part = Bytes(size_of(draft, &group, kind).0 * u64::from(count));
                draft.notes.push(words::nothing_tells(&group, part));
            }
            continue;
        };
        let curve = solo.curve.as_ref();
        let curve = curve.filter(|curve| kind == Kind::Ways(curve.level));
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
            _ => by_bytes(draft, &group, solo, kind, count),
        };
        draft.acts.extend(act);
    }
}

/// What to say where the program works on more than its part holds. A program that works on more
/// than the whole cache has no part that is enough, so nothing is said of it.
fn by_bytes(draft: &Draft<'_>, group: &str, solo: &Solo, kind: Kind, count: u32) -> Option<String> {
    let needed = solo.works_on?;
    let each = size_of(draft, group, kind).0;
    let whole = kind.whole(&draft.machine.partitions)?.count;
    if needed.0 > each * u64::from(whole) {
        return None;
    }
    // Colours are dealt out evenly. So are the lines of a large page.
    let paging = draft.policy.groups.get(group).map(|group| &group.paging);
    let large = paging.is_some_and(|paging| paging.pages == Some(PageSize::Huge));
    let even = large || matches!(kind, Kind::Colours(_));
    // A way of a mask may stand for several of the cache.
    let mut caches = draft.machine.caches.iter();
    let cache = caches.find(|c| matches!(kind, Kind::Ways(level) if c.holds_data_at(level)));
    let ways = cache.and_then(|c| c.ways).map_or(1, |n| (n / whole).max(1));
    #[expect(clippy::cast_precision_loss, reason = "sizes of caches")]
    let mean = needed.0 as f64 / each as f64 * f64::from(ways);
    let lost = |count: u32| match even {
        true => f64::from(u8::from(mean > f64::from(count * ways))),
        false => crowded(mean, count * ways),
    };
    let fits = |count: &u32| lost(*count) - lost(whole) <= MOST;
    if fits(&count) {
        return None;
    }
    let enough = (count..=whole).find(fits)?;
    let part = Bytes(each * u64::from(count));
    let named = kind.name();
    let profile = &solo.profile;
    Some(match even || part < needed {
        true => words::part_is_too_small(group, part, needed, profile, enough, &named),
        false => {
            let [share, left] = [count, enough].map(|count| percent(lost(count)));
            words::pages_lie_anywhere(group, needed, profile, part, share, enough, left)
        }
    })
}

/// The share of a program's lines that lie in sets with more than `ways` of them, if frames, or the
/// hash of addresses, put lines into sets at random, `mean` of them on average: the chance that at
/// least `ways` others are in a line's set (Poisson). A program that goes through all its memory
/// misses these. In the experiment `colours`, 0.26 of the accesses to a list of 384 KiB miss in
/// eight of sixteen ways of 64 KiB, as this says.
fn crowded(mean: f64, ways: u32) -> f64 {
    let mut chance = (-mean).exp();
    let mut fewer = 0.0;
    for n in 0..ways {
        fewer += chance;
        chance *= mean / f64::from(n + 1);
    }
    1.0 - fewer
}

/// To whole percents.
fn percent(share: f64) -> Share {
    let whole = Share::percent(1).0;
    Share((Share::of(share).0 + whole / 2) / whole * whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against lines that are thrown into sets.
    #[test]
    fn lines_at_random_crowd_sets_as_they_do_when_thrown() {
        let mut random = quell_types::rng::SplitMix::new(1);
        for (lines, ways) in [(6_000_u32, 8), (12_000, 16), (3_000, 2), (9_000, 4)] {
            let mut sets = vec![0_u32; 1_000];
            (0..lines).for_each(|_| sets[random.below(1_000) as usize] += 1);
            let over: u32 = sets.iter().filter(|n| **n > ways).sum();
            let seen = f64::from(over) / f64::from(lines);
            let told = crowded(f64::from(lines) / 1_000.0, ways);
            assert!((seen - told).abs() < 0.03, "{lines} {ways}: {seen} {told}");
        }
    }
}
