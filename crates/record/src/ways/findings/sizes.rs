//! Whether a class's ways fit what it has of a cache.

use quell_types::partition::Mask;

use crate::ways::Cache;
use crate::ways::ROOT;
use crate::ways::lanes::{Sampled, Stretch, Timeline, rate};

use super::{Finding, Kind, TURNS, longest_of, mb, schemata, seconds};

/// Fewer samples than this say nothing about a size.
const SAMPLES: usize = 3;
/// A class counts as filling its ways from this part of them on, in percent.
const FULL: u64 = 90;
/// A class has lines outside its ways from this part of them on, in percent. Counts are not exact.
const BEYOND: u64 = 105;
/// Fewer ways are proposed with this much of the most that the class had, in percent.
const SPARE: u64 = 110;

/// A mask's share of the ways, as text.
fn ways(mask: Mask, cache: &Cache) -> String {
    format!("{} of {} ways", mask.count(), cache.bits)
}

/// A number of bytes, as text.
fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.0} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

/// Whether a class's ways fit what it has of the cache.
pub(super) fn sizes(timeline: &Timeline, cache: &Cache, class: &str) -> Vec<Finding> {
    let place = &cache.place;
    // The kernel counts code and data together. The root class has many programs, and lines from
    // before anything was divided.
    if class == ROOT || *place != place.counted() {
        return Vec::new();
    }
    let key = (class.to_owned(), place.clone());
    let stretches = timeline.masks.get(&key).into_iter().flatten();
    let (mut small, mut large, mut beyond) = (Vec::new(), Vec::new(), Vec::new());
    for held in stretches {
        if held.is.is_empty() || held.is == cache.whole() {
            continue;
        }
        let span = (held.from_ns, held.until_ns);
        let samples = timeline.sampled(class, place, span);
        let part = cache.part(held.is.count());
        let stretch = |from_ns, until_ns| Stretch {
            from_ns,
            until_ns,
            is: (),
        };
        if let Some((from, until, most, gone)) = residue(&samples, part) {
            beyond.push((stretch(from, until), (held.is, most, gone)));
        }
        if samples.len() < SAMPLES || !timeline.had_members(class, span) {
            continue;
        }
        let full = |s: &Sampled| s.occupancy.is_some_and(|o| o * 100 >= part * FULL);
        let filled: Vec<Sampled> = samples.iter().skip_while(|s| !full(s)).copied().collect();
        let stays = filled.iter().filter(|s| full(s)).count() * 2 >= filled.len();
        let moved = rate(&filled).filter(|r| *r >= part as f64 * TURNS);
        if let (Some(moved), true, [first, .., last]) = (moved, stays, filled.as_slice())
            && filled.len() >= SAMPLES
        {
            small.push((stretch(first.at_ns, last.at_ns), (held.is, moved)));
        }
        let later = samples.get(samples.len() / 2..).unwrap_or_default();
        let occupied = || later.iter().filter_map(|s| s.occupancy);
        let (Some(most), Some(least)) = (occupied().max(), occupied().min()) else {
            continue;
        };
        let calm = most - least <= part / 20 && rate(later).is_none_or(|r| r < part as f64 * TURNS);
        let needed = (most * SPARE / 100).div_ceil(cache.part(1).max(1));
        let needed = u32::try_from(needed)
            .unwrap_or(u32::MAX)
            .max(cache.least)
            .max(1);
        if calm && most > 0 && needed < held.is.count() {
            large.push((
                stretch(held.from_ns, held.until_ns),
                (held.is, most, needed),
            ));
        }
    }
    let found = |kind, stretch: &Stretch<()>, what, evidence, remedy| Finding {
        kind,
        class: Some(class.to_owned()),
        place: Some(place.clone()),
        from_ns: stretch.from_ns,
        until_ns: stretch.until_ns,
        what,
        evidence,
        remedy,
    };
    let mut all = Vec::new();
    if let Some((stretch, (mask, moved))) = longest_of(small) {
        let part = cache.part(mask.count());
        all.push(found(
            Kind::TooSmall,
            &stretch,
            format!("what class {class} works on does not fit into its {} of {place}", ways(mask, cache)),
            format!(
                "for {} it had all of its {} and moved {}: its part anew {:.0} times a second",
                seconds(stretch.ns()),
                size(part),
                mb(moved),
                moved / part as f64
            ),
            "give it more ways; if that does not lessen its traffic it streams, and needs none: take some away".to_owned(),
        ));
    }
    if let Some((stretch, (mask, most, needed))) = longest_of(large) {
        all.push(found(
            Kind::TooLarge,
            &stretch,
            format!(
                "class {class} does not use its {} of {place}",
                ways(mask, cache)
            ),
            format!(
                "for {} it had at most {} of {}, and that changed little",
                seconds(stretch.ns()),
                size(most),
                size(cache.part(mask.count()))
            ),
            format!(
                "{needed} ways would hold it: {}",
                schemata(class, place, Mask::run(mask.0.trailing_zeros(), needed))
            ),
        ));
    }
    // Lines left behind are a finding from the first moment on.
    if let Some((stretch, (mask, most, gone))) = beyond.into_iter().max_by_key(|(s, _)| s.ns()) {
        let drains = if gone {
            "until others had filled those ways"
        } else {
            "and still had them when it was looked at last"
        };
        all.push(found(
            Kind::Beyond,
            &stretch,
            format!("class {class} has lines outside its {} of {place}", ways(mask, cache)),
            format!(
                "it had up to {} with a mask for {}, for {}, {drains}",
                size(most),
                size(cache.part(mask.count())),
                seconds(stretch.ns())
            ),
            "moving a task or narrowing a mask evicts nothing: set masks before the program fills the cache, or flush it".to_owned(),
        ));
    }
    all
}

/// The stretch in which more than the part was held, the most that was held, and whether it is
/// over.
fn residue(samples: &[Sampled], part: u64) -> Option<(u64, u64, u64, bool)> {
    let over = |s: &&Sampled| s.occupancy.is_some_and(|o| o * 100 > part * BEYOND);
    let first = samples.iter().find(over)?;
    let last = samples.iter().rev().find(over)?;
    let most = samples.iter().filter_map(|s| s.occupancy).max()?;
    let gone = samples.last() != Some(last);
    Some((first.at_ns, last.at_ns, most, gone))
}
