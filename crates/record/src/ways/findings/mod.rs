//! What a timeline of ways shows about cache allocation: whether it is used, and used well. Each
//! finding has its evidence and what to do.
//!
//! A class's *part* is the size of its mask in bytes. Traffic *turns a part over* if it could fill
//! all of it several times in a second. Less than that comes from the edges of a working set.
//!
//! Occupancy is what lies in the cache, not what is used. Lines from a program's start stay until
//! something fills their ways. So a part that is not filled is too large, but a filled part need
//! not be too small. Sizes are judged where code and data share masks: the kernel counts them
//! together.

mod sharing;
mod sizes;

use std::collections::{BTreeMap, BTreeSet};

use quell_types::cpuset::CpuSet;
use quell_types::partition::Mask;

use super::lanes::{Stretch, Timeline};
use super::{Cache, Mode, Place, ROOT};

/// Nothing is found in shorter stretches, since settings are written one by one.
const LEAST_NS: u64 = 200_000_000;

/// Traffic turns a part over if it could fill it this often in a second. Of 2 MiB that is 20 MB/s:
/// at 80 ns a line, a few hundredths of a program's time.
const TURNS: f64 = 10.0;

/// The kinds of findings.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A register differs from what the kernel reports.
    Register,
    /// A program, or the machine, uses no cache allocation.
    Unused,
    /// A class shares ways with another class that fills them.
    Overlap,
    /// Some threads of a process are in another class.
    Escaped,
    /// Threads of a class run on CPUs of a cache in which other classes share its ways.
    OtherCache,
    /// A class uses all of its ways and fetches more.
    TooSmall,
    /// A class does not use all of its ways.
    TooLarge,
    /// A class has lines outside its ways.
    Beyond,
    /// No thread and no CPU is in the class.
    Empty,
    /// Devices fill ways of a class, too.
    Devices,
}

/// One finding about a timeline.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Finding {
    /// The kind of the finding.
    pub kind: Kind,
    /// The class concerned, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// The cache concerned, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
    /// Its beginning, in nanoseconds on the record's clock.
    pub from_ns: u64,
    /// Its end, on the same clock.
    pub until_ns: u64,
    /// What was found, in a sentence.
    pub what: String,
    /// The evidence: numbers and times.
    pub evidence: String,
    /// What to do about it, in a sentence.
    pub remedy: String,
}

/// All findings of a timeline, the most serious first.
#[must_use]
pub fn findings(timeline: &Timeline) -> Vec<Finding> {
    let mut all = registers(timeline);
    all.extend(unused(timeline));
    all.extend(sharing::overlaps(timeline));
    all.extend(sharing::escaped(timeline));
    all.extend(sharing::other_cache(timeline));
    for cache in timeline.caches.iter() {
        for class in &timeline.classes {
            all.extend(sizes::sizes(timeline, cache, class));
        }
    }
    all.extend(empty(timeline));
    all.extend(devices(timeline));
    all.sort_by_key(|f| f.kind);
    all
}

fn mb(rate: f64) -> String {
    if rate < 9.95e6 {
        format!("{:.1} MB/s", rate / 1e6)
    } else {
        format!("{:.0} MB/s", rate / 1e6)
    }
}

/// The length of a stretch in seconds, as text.
fn seconds(ns: u64) -> String {
    format!("{:.1} s", ns as f64 / 1e9)
}

/// The resctrl directory of a class.
fn folder(class: &str) -> String {
    if class == ROOT {
        "/sys/fs/resctrl".to_owned()
    } else {
        format!("/sys/fs/resctrl/{class}")
    }
}

/// The number of a class of which only registers are known.
fn number(class: &str) -> &str {
    class.strip_prefix("COS").unwrap_or("0")
}

/// A command that gives a class these ways.
fn give(timeline: &Timeline, class: &str, place: &Place, mask: Mask) -> String {
    if timeline.registers_alone {
        let kind = match place.resource.as_str() {
            name if name.ends_with("CODE") => "c",
            name if name.ends_with("DATA") => "d",
            _ => "",
        };
        let level = match place.counted().resource.as_str() {
            "L2" => "l2",
            _ => "llc",
        };
        let (id, number) = (place.id, number(class));
        return format!(
            "pqos --iface=msr -e '{level}@{id}:{number}{kind}={:#x}'",
            mask.0
        );
    }
    format!(
        "echo '{}:{}={:x}' > {}/schemata",
        place.resource,
        place.id,
        mask.0,
        folder(class)
    )
}

fn longest_of<T>(all: Vec<(Stretch<()>, T)>) -> Option<(Stretch<()>, T)> {
    let long = all.into_iter().filter(|(s, _)| s.ns() >= LEAST_NS);
    long.max_by_key(|(s, _)| s.ns())
}

fn registers(timeline: &Timeline) -> Vec<Finding> {
    // One register of each kind: those of CPUs that share a cache all have the same value.
    let mut first: BTreeMap<(&str, u32), Vec<&Stretch<super::Register>>> = BTreeMap::new();
    for one in &timeline.registers {
        let key = (one.is.of.as_str(), one.is.number);
        first.entry(key).or_default().push(one);
    }
    let finding = |all: &Vec<&Stretch<super::Register>>| {
        let one = all.first()?;
        let register = &one.is;
        let cpus: CpuSet = all.iter().map(|r| r.is.cpu).collect();
        Some(Finding {
            kind: Kind::Register,
            class: None,
            place: None,
            from_ns: one.from_ns,
            until_ns: all.iter().map(|r| r.until_ns).max()?,
            what: format!(
                "{} was written behind the kernel's back: what resctrl shows is not what the processor does",
                register.of
            ),
            evidence: format!(
                "register {:#x} read on CPU {} is {:#x}, and the kernel believes {:#x}",
                register.number,
                cpus,
                register.register,
                register.kernel
            ),
            remedy: "let one tool set it; writing the same schemata line twice with another value between makes the kernel write its own again"
                .to_owned(),
        })
    };
    first.values().filter_map(finding).collect()
}

/// No class has fewer than all ways; or a watched process is only in classes that have all.
fn unused(timeline: &Timeline) -> Vec<Finding> {
    let whole = |place: &Place| {
        let cache = timeline.caches.iter().find(|c| c.place == *place);
        cache.map(Cache::whole)
    };
    if timeline.caches.is_empty() || timeline.end_ns < LEAST_NS {
        return Vec::new();
    }
    let narrowed: BTreeSet<&str> = timeline
        .masks
        .iter()
        .filter(|((_, place), all)| all.iter().any(|m| Some(m.is) != whole(place)))
        .map(|((class, _), _)| class.as_str())
        .collect();
    let places: Vec<String> = timeline
        .caches
        .iter()
        .map(|c| c.place.to_string())
        .collect();
    let until = timeline.end_ns;
    let remedy = match timeline.registers_alone {
        true => {
            "give a class its ways, take them from class 0, and put the program's CPU into it (pqos --iface=msr -e, -a); `quell run` with reserve.cache does all of it and takes it back"
        }
        false => {
            "make a class, write its ways to its schemata, take them from the root's, and write the program's threads to its tasks; `quell run` with reserve.cache does all of it and takes it back"
        }
    };
    let found = |what: String, evidence: String| Finding {
        kind: Kind::Unused,
        class: None,
        place: None,
        from_ns: 0,
        until_ns: until,
        what,
        evidence,
        remedy: remedy.to_owned(),
    };
    if narrowed.is_empty() {
        return vec![found(
            "no program uses cache allocation: everybody may fill everything".to_owned(),
            format!(
                "for {} every class had all ways of {}",
                seconds(until),
                places.join(", ")
            ),
        )];
    }
    let mut processes: BTreeMap<u32, Vec<&super::ThreadLane>> = BTreeMap::new();
    // Nobody asked for what only ran.
    for thread in timeline.threads.values().filter(|t| !t.passing) {
        processes.entry(thread.pid).or_default().push(thread);
    }
    let finding = |(pid, threads): (&u32, &Vec<&super::ThreadLane>)| {
        let was = || threads.iter().flat_map(|t| &t.was);
        let ns = was().map(Stretch::ns).max()?;
        let classes: BTreeSet<&str> = was().map(|w| w.is.class.as_str()).collect();
        let none = classes.iter().all(|class| !narrowed.contains(class));
        let name = &threads.first()?.name;
        (none && ns >= LEAST_NS).then(|| {
            let classes: Vec<&str> = classes.into_iter().collect();
            found(
                format!("process {pid} ({name}) uses no cache allocation: it may fill all ways"),
                format!(
                    "its {} threads were in class {} for {}, whose mask is all of {}",
                    threads.len(),
                    classes.join(", "),
                    seconds(ns),
                    places.join(", ")
                ),
            )
        })
    };
    processes.iter().filter_map(finding).collect()
}

/// Classes without a thread or a CPU.
fn empty(timeline: &Timeline) -> Vec<Finding> {
    let mut found = Vec::new();
    for class in timeline.classes.iter().filter(|c| *c != ROOT) {
        let modes = timeline.modes.get(class).into_iter().flatten();
        let modes: Vec<&Stretch<Mode>> = modes.collect();
        let (Some(first), Some(last)) = (modes.first(), modes.last()) else {
            continue;
        };
        let there = last.until_ns - first.from_ns;
        let locked = modes
            .iter()
            .any(|m| m.is != Mode::Shareable && m.is != Mode::Exclusive);
        let span = first.from_ns..last.until_ns;
        if locked || there < LEAST_NS || timeline.had_members(class, &span) {
            continue;
        }
        let masks = timeline.masks.iter().filter(|((c, _), _)| c == class);
        let masks = masks.filter_map(|((_, place), all)| Some((place, all.last()?.is)));
        let masks: Vec<String> = masks.map(|(place, m)| format!("{m} of {place}")).collect();
        found.push(Finding {
            kind: Kind::Empty,
            class: Some(class.clone()),
            place: None,
            from_ns: span.start,
            until_ns: span.end,
            what: format!("nobody is in class {class}"),
            evidence: format!(
                "for {} it had {}, and neither a task nor a CPU",
                seconds(there),
                masks.join(", ")
            ),
            remedy: match timeline.registers_alone {
                true => format!(
                    "put a CPU into it (pqos --iface=msr -a 'core:{}=CPU'), or give it all ways again",
                    number(class)
                ),
                false => format!(
                    "write tasks to {0}/tasks, or remove it (rmdir {0}): it takes one of few classes",
                    folder(class)
                ),
            },
        });
    }
    found
}

/// Ways that were given to a class and that devices fill.
fn devices(timeline: &Timeline) -> Vec<Finding> {
    let mut found = Vec::new();
    for cache in timeline.caches.iter().filter(|c| !c.shareable.is_empty()) {
        for class in timeline.classes.iter().filter(|c| *c != ROOT) {
            let key = (class.clone(), cache.place.clone());
            let masks = timeline.masks.get(&key).into_iter().flatten();
            let shared = |m: &&Stretch<Mask>| {
                m.is != cache.whole() && m.is.0 & cache.shareable.0 != 0 && m.ns() >= LEAST_NS
            };
            let Some(one) = masks.filter(shared).max_by_key(|m| m.ns()) else {
                continue;
            };
            let both = Mask(one.is.0 & cache.shareable.0);
            found.push(Finding {
                kind: Kind::Devices,
                class: Some(class.clone()),
                place: Some(cache.place.clone()),
                from_ns: one.from_ns,
                until_ns: one.until_ns,
                what: format!(
                    "devices may fill {} of the {} ways of {} that class {class} has",
                    both.count(),
                    one.is.count(),
                    cache.place
                ),
                evidence: format!(
                    "its mask is {}, the ways of devices are {}",
                    one.is, cache.shareable
                ),
                remedy: "where devices move much, choose other ways".to_owned(),
            });
        }
    }
    found
}
