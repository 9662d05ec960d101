//! Checks of a profile that is well formed but may describe an impossible machine.

use std::collections::HashSet;

use quell_model::Invalid;
use quell_model::cache::{Cache, Hierarchy};
use quell_model::dram::Dram;
use quell_types::address::gf2::Space;
use quell_types::mechanism::Mechanism;
use quell_types::partition::MbaUnit;
use quell_types::text::{Complaint, Path, suggestion};
use quell_types::units::{Bytes, Nanos};

use super::{Assumed, CacheLevel, Profile};

/// Keys that may be assumed, by section.
const CORES: &[&str] = &["count", "threads", "mhz", "misses", "window"];
const SMT: &[&str] = &["issue", "loads", "stores"];
const CACHE: &[&str] = &[
    "size",
    "ways",
    "line",
    "latency",
    "port",
    "cores",
    "replacement",
    "aging",
    "inclusion",
    "set",
    "slice",
];
const MEMORY: &[&str] = &[
    "size",
    "timing",
    "transit",
    "channels-in-turn",
    "channel",
    "rank",
    "bank",
    "row",
    "column",
];
const TLB: &[&str] = &[
    "entries",
    "ways",
    "large-entries",
    "large-ways",
    "large-page",
    "walk",
    "software",
    "tagged",
];
const FIRST_TLB: &[&str] = &["entries", "ways", "large-entries", "large-ways", "refill"];
const PREFETCHER: &[&str] = &["on", "streams", "degree", "distance"];
const COUNTERS: &[&str] = &["delay", "writes"];
const OS: &[&str] = &["slice", "switch", "interrupt", "tick", "kernel", "frames"];
const MECHANISMS: &[&str] = &["available", "ways", "mba", "exclusion"];

#[derive(Default)]
struct Found(Vec<Complaint>);

impl Found {
    fn say(&mut self, at: Path, why: impl Into<String>, remedy: Option<&str>) {
        self.0.push(Complaint {
            at,
            why: why.into(),
            remedy: remedy.map(str::to_owned),
        });
    }

    fn invalid(&mut self, at: Path, error: &Invalid) {
        self.say(at, error.to_string(), None);
    }

    fn origin(&mut self, at: &Path, source: &str, assumed: &Assumed, keys: &[&str]) {
        if source.trim().is_empty() {
            let remedy =
                "name a data sheet, manual or measurement, or list the keys under 'assumed'";
            self.say(at.key("source"), "is empty", Some(remedy));
        }
        for (key, why) in assumed {
            let place = at.key("assumed").key(key);
            if !keys.contains(&key.as_str()) {
                let remedy = suggestion(key, keys.iter().copied()).map_or_else(
                    || format!("known here: {}", keys.join(", ")),
                    |close| format!("did you mean '{close}'?"),
                );
                self.say(place, "is no key of this section", Some(&remedy));
            } else if why.trim().is_empty() {
                self.say(
                    place,
                    "gives no reason",
                    Some("say why this value and not another"),
                );
            }
        }
    }

    fn range(&mut self, at: &Path, key: &str, value: u32, most: u32) {
        if !(1..=most).contains(&value) {
            self.say(
                at.key(key),
                format!("{value}: 1 to {most} are possible"),
                None,
            );
        }
    }
}

/// Lines of a cache that can be modelled: 1 GiB.
const MOST_LINES: u64 = 1 << 24;
/// The longest of the machine's own times.
const LONGEST: Nanos = Nanos::secs(1);
/// Banks of memory that can be modelled.
const MOST_BANKS: u64 = 1 << 16;

/// The most kernel memory that an interrupt can go through.
const MOST_KERNEL: Bytes = Bytes(1 << 20);
/// The shortest time between two ticks.
const SHORTEST_TICK: Nanos = Nanos::micros(50);

/// The kernel's timer interrupts.
fn kernel(profile: &Profile, at: &Path, found: &mut Found) {
    let os = &profile.os;
    if os.kernel > MOST_KERNEL {
        let why = format!("{}: at most {MOST_KERNEL} are possible", os.kernel);
        found.say(at.key("kernel"), why, None);
    }
    if os.tick.0 > 0 && os.tick < SHORTEST_TICK {
        let why = format!("{}: at least {SHORTEST_TICK} are possible", os.tick);
        found.say(at.key("tick"), why, None);
    }
    if os.tick.0 > 0 && os.kernel.0 == 0 {
        let remedy = "say with `kernel` what memory an interrupt goes through";
        found.say(
            at.key("tick"),
            "an interrupt would touch nothing",
            Some(remedy),
        );
    }
}

/// All problems of `profile`.
pub(super) fn check(profile: &Profile) -> Vec<Complaint> {
    let mut found = Found::default();
    let root = Path::default();
    if profile.quell != 1 {
        let why = format!(
            "version {} of the format; this Quell reads version 1",
            profile.quell
        );
        found.say(root.key("quell"), why, None);
    }
    for (key, text) in [
        ("name", &profile.name),
        ("model", &profile.model),
        ("architecture", &profile.architecture),
    ] {
        if text.trim().is_empty() {
            found.say(root.key(key), "is empty", None);
        }
    }
    let at = root.key("cores");
    let cores = &profile.cores;
    found.origin(&at, &cores.source, &cores.assumed, CORES);
    found.range(&at, "count", cores.count, 64);
    found.range(&at, "threads", cores.threads, 8);
    found.range(&at, "mhz", cores.mhz, 10_000);
    found.range(&at, "misses", cores.misses, 1024);
    if let Some(window) = cores.window {
        found.range(&at, "window", window, 4096);
    }
    let counted = found.0.is_empty();
    if counted && cores.count.saturating_mul(cores.threads) > 64 {
        let why = format!(
            "{} cores of {} threads: at most 64 threads are possible",
            cores.count, cores.threads
        );
        let remedy = "give fewer cores, or fewer threads each";
        found.say(at.key("count"), why, Some(remedy));
    }
    let counted = found.0.is_empty();
    threads(profile, &mut found);
    caches(profile, counted, &mut found);
    memory(profile, &mut found);
    let at = root.key("tlb");
    let tlb = &profile.tlb;
    found.origin(&at, &tlb.source, &tlb.assumed, TLB);
    if let Err(error) = tlb.geometries() {
        found.invalid(at.clone(), &error);
    }
    if let Some(first) = &tlb.first {
        let at = at.key("first");
        found.origin(&at, &first.source, &first.assumed, FIRST_TLB);
        if let Err(error) = tlb.first_geometries() {
            found.invalid(at, &error);
        }
    }
    if let Some(prefetcher) = &profile.prefetcher {
        let at = root.key("prefetcher");
        found.origin(&at, &prefetcher.source, &prefetcher.assumed, PREFETCHER);
        found.range(&at, "streams", prefetcher.streams, 256);
        found.range(&at, "degree", prefetcher.degree, 64);
        found.range(&at, "distance", prefetcher.distance, 64);
    }
    let at = root.key("counters");
    found.origin(
        &at,
        &profile.counters.source,
        &profile.counters.assumed,
        COUNTERS,
    );
    let at = root.key("os");
    found.origin(&at, &profile.os.source, &profile.os.assumed, OS);
    if profile.os.slice.0 == 0 {
        found.say(at.key("slice"), "tasks must run for some time", None);
    }
    kernel(profile, &at, &mut found);
    for (section, key, time) in [
        ("memory", "transit", profile.memory.transit),
        ("counters", "delay", profile.counters.delay),
        ("os", "slice", profile.os.slice),
        ("os", "switch", profile.os.switch),
        ("os", "interrupt", profile.os.interrupt),
        ("os", "tick", profile.os.tick),
    ] {
        if time > LONGEST {
            let why = format!("{time}: at most {LONGEST} are possible");
            found.say(root.key(section).key(key), why, None);
        }
    }
    mechanisms(profile, &mut found);
    found.0
}

/// What hardware threads share.
fn threads(profile: &Profile, found: &mut Found) {
    let at = Path::default().key("smt");
    let Some(smt) = &profile.smt else {
        return;
    };
    found.origin(&at, &smt.source, &smt.assumed, SMT);
    found.range(&at, "issue", smt.issue, 64);
    found.range(&at, "loads", smt.loads, 64);
    found.range(&at, "stores", smt.stores, 64);
    if profile.cores.threads < 2 {
        let remedy = "leave the section out, or give more threads";
        found.say(at, "a core has one hardware thread", Some(remedy));
    }
}

/// What so many functions of one bit each tell apart.
fn combined(functions: &[usize]) -> u64 {
    let bits = u32::try_from(functions.iter().sum::<usize>()).ok();
    bits.and_then(|bits| 1u64.checked_shl(bits))
        .unwrap_or(u64::MAX)
}

fn caches(profile: &Profile, counted: bool, found: &mut Found) {
    let top = Path::default().key("cache");
    if profile.cache.is_empty() {
        found.say(
            top.clone(),
            "no cache at all",
            Some("give at least one [[cache]]"),
        );
    }
    let mut names = HashSet::new();
    let before = found.0.len();
    for (n, level) in profile.cache.iter().enumerate() {
        let at = top.index(n);
        found.origin(&at, &level.source, &level.assumed, CACHE);
        if !names.insert(&level.name) {
            found.say(at.key("name"), format!("'{}' twice", level.name), None);
        }
        found.range(&at, "aging", level.aging, 1 << 16);
        if level.line != 64 {
            let why = format!("lines of {} bytes: the model's memory moves 64", level.line);
            found.say(at.key("line"), why, None);
        }
        if level.cores == 0 || counted && !profile.cores.count.is_multiple_of(level.cores) {
            let why = format!(
                "{} cores share one: {} cores do not divide by that",
                level.cores, profile.cores.count
            );
            found.say(at.key("cores"), why, None);
        }
        if !(1..=64).contains(&level.ways) {
            found.range(&at, "ways", level.ways, 64);
            continue;
        }
        sets(level, &at, found);
    }
    if !counted || found.0.len() > before {
        return;
    }
    let levels: Result<Vec<_>, Invalid> = profile
        .cache
        .iter()
        .map(|level| level.level(&profile.cores))
        .collect();
    if let Err(error) = levels.and_then(|levels| Hierarchy::new(&levels, 1)) {
        found.invalid(top, &error);
    }
}

/// The functions of sets and slices, and whether they come to the size.
fn sets(level: &CacheLevel, at: &Path, found: &mut Found) {
    let mut space = Space::default();
    let functions = level.set.0.iter().chain(&level.slice.0);
    if let Some(mask) = functions.copied().find(|&mask| !space.insert(mask)) {
        let key = if level.set.0.contains(&mask) {
            "set"
        } else {
            "slice"
        };
        let why =
            format!("function {mask:#x} is the XOR of others: half of the sets would stay empty");
        found.say(at.key(key), why, Some("remove or change it"));
    }
    let sets = combined(&[level.set.0.len(), level.slice.0.len()]);
    let lines = sets.saturating_mul(u64::from(level.ways));
    if lines > MOST_LINES {
        let why = format!(
            "{lines} lines by the functions of sets and slices: at most {MOST_LINES} are possible"
        );
        found.say(at.key("set"), why, Some("use fewer functions"));
        return;
    }
    let built = level.geometry().and_then(|geometry| {
        Cache::new(&geometry, quell_model::cache::Policy::Lru, 1).map(|_| geometry)
    });
    match built {
        Err(error) => {
            let remedy = "correct size, ways, line or the functions";
            found.say(at.key("size"), error.to_string(), Some(remedy));
        }
        Ok(geometry) if geometry.size() != level.size.0 => {
            let why = format!(
                "{} sets by the functions of {} ways of {} bytes are {} bytes, not {}",
                geometry.sets(),
                level.ways,
                level.line,
                geometry.size(),
                level.size.0
            );
            found.say(
                at.key("size"),
                why,
                Some("correct size, ways or the functions"),
            );
        }
        Ok(_) => {}
    }
}

fn memory(profile: &Profile, found: &mut Found) {
    let at = Path::default().key("memory");
    let memory = &profile.memory;
    found.origin(&at, &memory.source, &memory.assumed, MEMORY);
    // Each has a state of its own, which is made before anything else is known of the map.
    let among = [&memory.channel, &memory.rank, &memory.bank].map(|f| f.0.len());
    let banks = combined(&among).saturating_mul(memory.channels_in_turn.max(1));
    if banks > MOST_BANKS {
        let why =
            format!("{banks} banks in all channels and ranks: at most {MOST_BANKS} are possible");
        let remedy = "use fewer functions of channel, rank and bank, or fewer channels in turn";
        found.say(at.key("bank"), why, Some(remedy));
        return;
    }
    match memory.map().and_then(|map| Dram::new(map, &memory.dram())) {
        Err(error) => {
            // The error is about one field, or about the whole map.
            let field = error.what.strip_suffix(" function").map(|key| at.key(key));
            found.invalid(field.unwrap_or(at), &error);
        }
        Ok(_) if memory.reach() != memory.size.0 => {
            let why = format!(
                "the functions tell {} apart, not {}",
                Bytes(memory.reach()),
                memory.size
            );
            let remedy =
                "every address bit from 6 up must be in channel, rank, bank, row or column";
            found.say(at.key("size"), why, Some(remedy));
        }
        Ok(_) => {}
    }
}

fn mechanisms(profile: &Profile, found: &mut Found) {
    let at = Path::default().key("mechanisms");
    let m = &profile.mechanisms;
    found.origin(&at, &m.source, &m.assumed, MECHANISMS);
    let has = |mechanism| m.available.contains(&mechanism);
    for (mechanism, key, given) in [
        (Mechanism::Ways, "ways", m.ways.is_some()),
        (Mechanism::Mba, "mba", m.mba.is_some()),
    ] {
        if has(mechanism) != given {
            let why = if given {
                "described, but not in 'available'"
            } else {
                "in 'available', but not described"
            };
            found.say(at.key(key), why, None);
        }
    }
    if let Some(ways) = &m.ways {
        let at = at.key("ways");
        match profile.cache.iter().find(|level| level.name == ways.cache) {
            None => {
                let known: Vec<&str> = profile.cache.iter().map(|level| &*level.name).collect();
                let why = format!("'{}' is not one of {}", ways.cache, known.join(", "));
                found.say(at.key("cache"), why, None);
            }
            Some(level) if ways.segments == 0 || !level.ways.is_multiple_of(ways.segments) => {
                let why = format!(
                    "{} of {} ways: not a whole number each",
                    ways.segments, level.ways
                );
                found.say(at.key("segments"), why, None);
            }
            Some(_) => {}
        }
        found.range(&at, "classes", ways.classes, 256);
        found.range(&at, "least", ways.least, ways.segments.max(1));
    }
    if let Some(mba) = &m.mba {
        let at = at.key("mba");
        found.range(&at, "classes", mba.classes, 256);
        found.range(&at, "least", mba.least, 100);
        found.range(&at, "step", mba.step, 100);
        if mba.unit != MbaUnit::Percent {
            found.say(at.key("unit"), "the model throttles by percentages", None);
        }
    }
    for (n, exclusion) in m.exclusion.iter().enumerate() {
        let at = at.key("exclusion").index(n);
        for &one in exclusion.with.iter().chain([&exclusion.mechanism]) {
            if !has(one) {
                let why = format!("excludes '{}', which is not in 'available'", one.name());
                found.say(at.clone(), why, None);
            }
        }
        if exclusion.reason.trim().is_empty() {
            found.say(at.key("reason"), "is empty", None);
        }
    }
}
