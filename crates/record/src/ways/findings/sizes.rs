//! Whether a class's ways fit what it has of a cache.

use quell_types::partition::Mask;

use crate::ways::Cache;
use crate::ways::ROOT;
use crate::ways::lanes::{Sampled, Stretch, Timeline, rate};

use super::{Finding, Kind, TURNS, give, longest_of, mb, seconds};

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
    let held = timeline.masks.get(&key).into_iter().flatten();
    let held = held.filter(|h| !h.is.is_empty() && h.is != cache.whole());
    let (mut small, mut large, mut beyond) = (Vec::new(), Vec::new(), Vec::new());
    for held in held {
        let mask = held.is;
        let span = held.from_ns..held.until_ns;
        let samples = timeline.sampled(class, place, &span);
        let part = cache.part(mask.count());
        if let Some((stretch, most, gone)) = residue(&samples, part) {
            beyond.push((stretch, (mask, most, gone)));
        }
        if samples.len() < SAMPLES || !timeline.had_members(class, &span) {
            continue;
        }
        if let Some((stretch, moved)) = overfull(&samples, part) {
            small.push((stretch, (mask, moved)));
        }
        if let Some((most, needed)) = underused(&samples, cache, mask) {
            large.push((stretch(span.start, span.end), (mask, most, needed)));
        }
    }
    // Lines left behind are a finding from the first moment on.
    let beyond = beyond.into_iter().max_by_key(|(s, _)| s.ns());
    let found = [
        longest_of(small).map(|(s, (mask, moved))| too_small(cache, class, &s, mask, moved)),
        longest_of(large).map(|(s, (mask, most, needed))| {
            let finding = too_large(cache, class, &s, mask, most);
            let fewer = Mask::run(mask.0.trailing_zeros(), needed);
            let remedy = give(timeline, class, place, fewer);
            Finding {
                remedy: format!("{needed} ways would hold it: {remedy}"),
                ..finding
            }
        }),
        beyond.map(|(s, (mask, most, gone))| outside(cache, class, &s, mask, most, gone)),
    ];
    found.into_iter().flatten().collect()
}

fn stretch(from_ns: u64, until_ns: u64) -> Stretch<()> {
    Stretch {
        from_ns,
        until_ns,
        is: (),
    }
}

/// The stretch in which a class filled its part and moved it again and again, and the rate at which
/// it moved.
fn overfull(samples: &[Sampled], part: u64) -> Option<(Stretch<()>, f64)> {
    let full = |s: &Sampled| s.occupancy.is_some_and(|o| o * 100 >= part * FULL);
    let filled: Vec<Sampled> = samples.iter().skip_while(|s| !full(s)).copied().collect();
    let stays = filled.iter().filter(|s| full(s)).count() * 2 >= filled.len();
    let moved = rate(&filled).filter(|r| *r >= part as f64 * TURNS)?;
    let (first, last) = (filled.first()?, filled.last()?);
    (stays && filled.len() >= SAMPLES).then(|| (stretch(first.at_ns, last.at_ns), moved))
}

/// The most that a class had of its part, and the fewer ways that would hold it.
fn underused(samples: &[Sampled], cache: &Cache, mask: Mask) -> Option<(u64, u32)> {
    let part = cache.part(mask.count());
    let later = samples.get(samples.len() / 2..).unwrap_or_default();
    let occupied = || later.iter().filter_map(|s| s.occupancy);
    let (most, least) = (occupied().max()?, occupied().min()?);
    let calm = most - least <= part / 20 && rate(later).is_none_or(|r| r < part as f64 * TURNS);
    let needed = (most * SPARE / 100).div_ceil(cache.part(1).max(1));
    let needed = u32::try_from(needed)
        .unwrap_or(u32::MAX)
        .max(cache.least)
        .max(1);
    (calm && most > 0 && needed < mask.count()).then_some((most, needed))
}

/// The stretch in which more than the part was held, the most that was held, and whether it is
/// over.
fn residue(samples: &[Sampled], part: u64) -> Option<(Stretch<()>, u64, bool)> {
    let over = |s: &&Sampled| s.occupancy.is_some_and(|o| o * 100 > part * BEYOND);
    let first = samples.iter().find(over)?;
    let last = samples.iter().rev().find(over)?;
    let most = samples.iter().filter_map(|s| s.occupancy).max()?;
    let gone = samples.last() != Some(last);
    Some((stretch(first.at_ns, last.at_ns), most, gone))
}

/// A finding about a class in a cache, yet without its texts.
fn finding(kind: Kind, cache: &Cache, class: &str, stretch: &Stretch<()>) -> Finding {
    Finding {
        kind,
        class: Some(class.to_owned()),
        place: Some(cache.place.clone()),
        from_ns: stretch.from_ns,
        until_ns: stretch.until_ns,
        what: String::new(),
        evidence: String::new(),
        remedy: String::new(),
    }
}

fn too_small(cache: &Cache, class: &str, stretch: &Stretch<()>, mask: Mask, moved: f64) -> Finding {
    let (place, part) = (&cache.place, cache.part(mask.count()));
    Finding {
        what: format!("what class {class} works on does not fit into its {} of {place}", ways(mask, cache)),
        evidence: format!(
            "for {} it had all of its {} and moved {}: its part anew {:.0} times a second",
            seconds(stretch.ns()),
            size(part),
            mb(moved),
            moved / part as f64
        ),
        remedy: "give it more ways; if that does not lessen its traffic it streams, and needs none: take some away".to_owned(),
        ..finding(Kind::TooSmall, cache, class, stretch)
    }
}

/// Yet without what to do.
fn too_large(cache: &Cache, class: &str, stretch: &Stretch<()>, mask: Mask, most: u64) -> Finding {
    let place = &cache.place;
    Finding {
        what: format!(
            "class {class} does not use its {} of {place}",
            ways(mask, cache)
        ),
        evidence: format!(
            "for {} it had at most {} of {}, and that changed little",
            seconds(stretch.ns()),
            size(most),
            size(cache.part(mask.count()))
        ),
        ..finding(Kind::TooLarge, cache, class, stretch)
    }
}

fn outside(
    cache: &Cache,
    class: &str,
    stretch: &Stretch<()>,
    mask: Mask,
    most: u64,
    gone: bool,
) -> Finding {
    let drains = if gone {
        "until others had filled those ways"
    } else {
        "and still had them when it was looked at last"
    };
    Finding {
        what: format!("class {class} has lines outside its {} of {}", ways(mask, cache), cache.place),
        evidence: format!(
            "it had up to {} with a mask for {}, for {}, {drains}",
            size(most),
            size(cache.part(mask.count())),
            seconds(stretch.ns())
        ),
        remedy: "moving a task or narrowing a mask evicts nothing: set masks before the program fills the cache, or flush it".to_owned(),
        ..finding(Kind::Beyond, cache, class, stretch)
    }
}
