//! Which classes fill ways that other classes have. The causes are shared ways, threads that were
//! left behind, and threads on the CPUs of another cache.

use std::collections::{BTreeMap, BTreeSet};

use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::partition::Mask;

use crate::ways::lanes::{Stretch, ThreadLane, Timeline, rate};
use crate::ways::{Cache, ROOT};

use super::{Finding, Kind, LEAST_NS, TURNS, folder, give, longest_of, mb, seconds};

fn both<A, B>(one: &Stretch<A>, other: &Stretch<B>) -> Option<Stretch<()>> {
    let from_ns = one.from_ns.max(other.from_ns);
    let until_ns = one.until_ns.min(other.until_ns);
    (from_ns < until_ns).then_some(Stretch {
        from_ns,
        until_ns,
        is: (),
    })
}

/// The longest run of bits.
fn longest(mask: Mask) -> Mask {
    let (mut best, mut bit) = (Mask(0), 0);
    while bit < 64 {
        let run = (mask.0 >> bit).trailing_ones();
        if run > best.count() {
            best = Mask::run(bit, run);
        }
        bit += run.max(1);
    }
    best
}

/// Pairs of classes that may fill the same ways, one of which does.
pub(super) fn overlaps(timeline: &Timeline) -> Vec<Finding> {
    let mut found = Vec::new();
    for cache in &timeline.caches {
        for (n, one) in timeline.classes.iter().enumerate() {
            let others = timeline.classes.iter().skip(n + 1);
            found.extend(others.filter_map(|other| overlap(timeline, cache, one, other)));
        }
    }
    found
}

fn overlap(timeline: &Timeline, cache: &Cache, one: &str, other: &str) -> Option<Finding> {
    let place = &cache.place;
    let masks = |class: &str| {
        let all = timeline.masks.get(&(class.to_owned(), place.clone()));
        all.into_iter().flatten()
    };
    let mut all = Vec::new();
    for a in masks(one) {
        for b in masks(other) {
            let shared = Mask(a.is.0 & b.is.0);
            let Some(stretch) = both(a, b).filter(|_| !shared.is_empty()) else {
                continue;
            };
            // Two classes that have all ways: that is for `unused`.
            let span = stretch.from_ns..stretch.until_ns;
            let there = |class| timeline.had_members(class, &span);
            if (a.is == cache.whole() && b.is == cache.whole()) || !there(one) || !there(other) {
                continue;
            }
            let counted = |class| rate(&timeline.sampled(class, place, &span));
            let rates = (counted(one), counted(other));
            let noisy = |rate: Option<f64>| {
                rate.is_none_or(|r| r >= cache.part(shared.count()) as f64 * TURNS)
            };
            // The class with fewer ways is the one to be protected. Of two with equally many it is
            // the quieter one.
            let first = match (a.is.count(), b.is.count()) {
                (x, y) if x != y => x < y,
                _ => rates.0 <= rates.1,
            };
            let (victim, by) = if first {
                ((one, a.is, rates.0), (other, b.is, rates.1))
            } else {
                ((other, b.is, rates.1), (one, a.is, rates.0))
            };
            if noisy(by.2) {
                all.push((stretch, (shared, victim, by)));
            }
        }
    }
    let (stretch, (shared, victim, by)) = longest_of(all)?;
    let told = |rate: Option<f64>| rate.map_or("not counted here".to_owned(), mb);
    let rest = longest(Mask(by.1.0 & !shared.0));
    let remedy = if rest.count() >= cache.least.max(1) {
        format!(
            "take the ways from it: {}",
            give(timeline, by.0, place, rest)
        )
    } else {
        "give the two of them ways of their own".to_owned()
    };
    Some(Finding {
        kind: Kind::Overlap,
        class: Some(victim.0.to_owned()),
        place: Some(place.clone()),
        from_ns: stretch.from_ns,
        until_ns: stretch.until_ns,
        what: format!(
            "class {} shares {} of its {} ways of {place} with class {}, which fills them",
            victim.0,
            shared.count(),
            victim.1.count(),
            by.0
        ),
        evidence: format!(
            "for {} both had {shared}; class {} moved {}, class {} {}",
            seconds(stretch.ns()),
            by.0,
            told(by.2),
            victim.0,
            told(victim.2)
        ),
        remedy,
    })
}

/// Class → numbers of its threads.
type ByClass<'t> = BTreeMap<&'t str, Vec<u32>>;

/// Processes whose threads are in several classes at a time.
pub(super) fn escaped(timeline: &Timeline) -> Vec<Finding> {
    let mut processes: BTreeMap<u32, Vec<(u32, &ThreadLane)>> = BTreeMap::new();
    for (tid, thread) in &timeline.threads {
        processes
            .entry(thread.pid)
            .or_default()
            .push((*tid, thread));
    }
    let finding = |(pid, threads): (&u32, &Vec<(u32, &ThreadLane)>)| {
        let was = || threads.iter().flat_map(|(_, t)| &t.was);
        let times: BTreeSet<u64> = was().flat_map(|w| [w.from_ns, w.until_ns]).collect();
        let times: Vec<u64> = times.into_iter().collect();
        let at = |at: u64| {
            let mut classes: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
            for (tid, thread) in threads {
                let there = thread.was.iter();
                let mut there = there.filter(|w| (w.from_ns..w.until_ns).contains(&at));
                if let Some(there) = there.next() {
                    classes.entry(&there.is.class).or_default().push(*tid);
                }
            }
            classes
        };
        let mut all: Vec<(Stretch<()>, ByClass<'_>)> = Vec::new();
        for pair in times.windows(2) {
            let classes = at(pair[0]);
            if classes.len() < 2 {
                continue;
            }
            match all.last_mut() {
                // The same classes without a break.
                Some((last, known))
                    if last.until_ns == pair[0] && known.keys().eq(classes.keys()) =>
                {
                    last.until_ns = pair[1];
                }
                _ => all.push((
                    Stretch {
                        from_ns: pair[0],
                        until_ns: pair[1],
                        is: (),
                    },
                    classes,
                )),
            }
        }
        let (stretch, classes) = longest_of(all)?;
        // The process's own class is the one, other than the root, that has most of its threads.
        // The class of a CPU is none: a thread that happens to run there escapes nothing.
        let put = |class: &str| was().any(|w| w.is.class == class && !w.is.by_cpu);
        let home = classes
            .iter()
            .filter(|(class, _)| **class != ROOT && put(class));
        let home = home.max_by_key(|(_, tids)| tids.len())?;
        let away: Vec<(&&str, &Vec<u32>)> = classes.iter().filter(|(c, _)| *c != home.0).collect();
        let count: usize = classes.values().map(Vec::len).sum();
        let gone: usize = away.iter().map(|(_, tids)| tids.len()).sum();
        let list = |(class, tids): &(&&str, &Vec<u32>)| {
            let tids: Vec<String> = tids.iter().take(4).map(ToString::to_string).collect();
            format!("{} in class {class}", tids.join(", "))
        };
        let away: Vec<String> = away.iter().map(list).collect();
        let name = &threads.first()?.1.name;
        Some(Finding {
            kind: Kind::Escaped,
            class: Some((*home.0).to_owned()),
            place: None,
            from_ns: stretch.from_ns,
            until_ns: stretch.until_ns,
            what: format!(
                "{gone} of {count} threads of process {pid} ({name}) are not in class {}, where the others are",
                home.0
            ),
            evidence: format!("for {}: threads {}", seconds(stretch.ns()), away.join("; ")),
            remedy: format!(
                "move them, too: for t in /proc/{pid}/task/*; do echo ${{t##*/}} > {}/tasks; done; threads are born into the class of the thread that makes them",
                folder(home.0)
            ),
        })
    };
    processes.iter().filter_map(finding).collect()
}

/// Classes that run on CPUs where their ways are not theirs alone, although they have ways alone in
/// another cache.
pub(super) fn other_cache(timeline: &Timeline) -> Vec<Finding> {
    let mut found = Vec::new();
    for class in timeline.classes.iter().filter(|c| *c != ROOT) {
        for cache in &timeline.caches {
            let resource = &cache.place.resource;
            let alike = |c: &&Cache| c.place.resource == *resource && c.place != cache.place;
            let own_at = |cache: &Cache, at: u64| {
                let mask = timeline.mask_at(class, &cache.place, at)?;
                let others = timeline.classes.iter().filter(|c| *c != class);
                let taken = others.filter_map(|c| timeline.mask_at(c, &cache.place, at));
                let taken = taken.fold(0, |all, m| all | m.0);
                (mask != cache.whole() && mask.0 & taken == 0).then_some(mask)
            };
            let mut ran: BTreeMap<CpuId, (u64, u64, u64)> = BTreeMap::new();
            let mut home = None;
            let mut total = 0;
            for thread in timeline.threads.values() {
                for w in thread.was.iter().filter(|w| w.is.class == *class) {
                    total += w.ns();
                    let middle = w.from_ns + w.ns() / 2;
                    if !cache.cpus.contains(w.is.cpu) || own_at(cache, middle).is_some() {
                        continue;
                    }
                    let mut others = timeline.caches.iter().filter(alike);
                    let there = others.find_map(|c| Some((&c.place, own_at(c, middle)?)));
                    if there.is_none() {
                        continue;
                    }
                    home = there;
                    let seen = ran.entry(w.is.cpu).or_insert((0, w.from_ns, w.until_ns));
                    seen.0 += w.ns();
                    seen.1 = seen.1.min(w.from_ns);
                    seen.2 = seen.2.max(w.until_ns);
                }
            }
            let spent: u64 = ran.values().map(|(ns, ..)| ns).sum();
            let Some((home, mask)) = home.filter(|_| spent >= LEAST_NS) else {
                continue;
            };
            let cpus: CpuSet = ran.keys().copied().collect();
            let held = timeline.mask_at(
                class,
                &cache.place,
                ran.values().map(|r| r.1).min().unwrap_or(0),
            );
            found.push(Finding {
                kind: Kind::OtherCache,
                class: Some(class.clone()),
                place: Some(cache.place.clone()),
                from_ns: ran.values().map(|r| r.1).min().unwrap_or(0),
                until_ns: ran.values().map(|r| r.2).max().unwrap_or(0),
                what: format!(
                    "threads of class {class} run on CPUs of {}, where no ways are its own: it has {mask} of {home}",
                    cache.place
                ),
                evidence: format!(
                    "{} of {} of its threads' time on CPU {cpus}, where its mask is {}, which others may fill, too",
                    seconds(spent),
                    seconds(total),
                    held.unwrap_or_default()
                ),
                remedy: format!(
                    "keep it on the CPUs of {home} (cpuset, taskset), or give it ways of its own in {}, too",
                    cache.place
                ),
            });
        }
    }
    found
}
