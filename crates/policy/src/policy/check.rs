//! Checks a policy for what is wrong although every value has the right type.

use indexmap::IndexMap;
use quell_types::ids::REST;
use quell_types::mechanism::Level;
use quell_types::source::Source;
use quell_types::task;
use quell_types::text::{Complaint, Path};
use quell_types::units::{Bytes, Nanos, Rate, Share};

use super::sections::{HoardKeys, Pressure, RegulatorKeys, Target};
use super::values::{
    Bandwidth, Banks, CacheForm, CacheWanted, CpusWanted, MemoryWanted, Sustainable,
};
use super::{Group, Permission, Policy, Role, Shape, VERSION};
use super::{scheduler, windows};

/// The longest name of a group: it becomes part of a cgroup directory's name.
const LONGEST_NAME: usize = 64;
/// The bounds of the regulation period. Below, brakes cannot keep up. Above, a budget no longer
/// bounds a burst.
const PERIOD: (Nanos, Nanos) = (Nanos::micros(100), Nanos::secs(1));
/// The shortest interval of a slow controller.
const SHORTEST_INTERVAL: Nanos = Nanos::millis(10);
/// The shortest stop of a program whose pages are moved: stopping its threads alone takes as long.
const SHORTEST_STOP: Nanos = Nanos::micros(100);
/// The units of a time read from a program's output.
const TIME_UNITS: [&str; 4] = ["ns", "us", "ms", "s"];

/// Collects the complaints about a policy.
pub(super) struct Found {
    list: Vec<Complaint>,
}

impl Found {
    pub(super) fn say(&mut self, at: Path, why: impl Into<String>, remedy: Option<&str>) {
        self.list.push(Complaint {
            at,
            why: why.into(),
            remedy: remedy.map(str::to_owned),
        });
    }
}

/// All mistakes in the meaning of `policy`.
pub(super) fn check(policy: &Policy, shape: Shape) -> Vec<Complaint> {
    let mut found = Found { list: Vec::new() };
    if policy.quell != VERSION {
        found.say(
            Path::of(&["quell"]),
            format!("format version {} is not known", policy.quell),
            Some("this program reads version 1"),
        );
    }
    if policy.groups.is_empty() && shape != Shape::Configuration {
        found.say(
            Path::of(&["group"]),
            "no group is given",
            Some("a policy needs at least one [group.NAME]"),
        );
    }
    for (name, group) in &policy.groups {
        name_of_group(&mut found, name);
        let windowed = policy.windows.as_ref().is_some_and(|w| w.has(name));
        group_of(&mut found, name, group, shape, windowed);
    }
    twice(&mut found, &policy.groups);
    rest(&mut found, policy);
    regulator(&mut found, &policy.regulator);
    if let Some(pressure) = &policy.pressure {
        pressure_of(&mut found, pressure);
    }
    if let Some(hoard) = &policy.hoard {
        hoard_of(&mut found, hoard, policy.require);
    }
    windows::check(&mut found, policy);
    scheduler::check(&mut found, policy);
    found.list
}

/// Whether `name` can be part of a cgroup directory's name.
pub(crate) fn fit_name(name: &str) -> bool {
    let fit = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    !name.is_empty() && name.len() <= LONGEST_NAME && name.bytes().all(fit)
}

/// The most match tables of a group.
const MOST_TABLES: usize = 1000;
/// The least memory that a program starts in.
const LEAST_MEMORY: Bytes = Bytes(1 << 20);
/// The CPU time of as many CPUs as Linux can have.
const MOST_CPU_TIME: Share = Share::percent(100 * 8192);

fn name_of_group(found: &mut Found, name: &str) {
    let at = Path::of(&["group", name]);
    if name == REST {
        found.say(
            at,
            "this group always exists and has its own section",
            Some("write it as [rest]"),
        );
    } else if !fit_name(name) {
        found.say(
            at,
            "the name cannot become a cgroup's directory",
            Some("use letters, digits, '-' and '_', at most 64 of them"),
        );
    }
}

fn group_of(found: &mut Found, name: &str, group: &Group, shape: Shape, windowed: bool) {
    let at = Path::of(&["group", name]);
    match shape {
        Shape::File if group.matching.is_empty() && group.command.is_none() => {
            found.say(
                at.clone(),
                "no task can belong to it",
                Some("give `match` or `command`"),
            );
        }
        Shape::Configuration if !group.matching.is_empty() || group.command.is_some() => {
            let key = if group.matching.is_empty() {
                "command"
            } else {
                "match"
            };
            found.say(
                at.key(key),
                "the runner launches the subjects of an experiment",
                Some("remove it"),
            );
        }
        _ => {}
    }
    if group.matching.len() > MOST_TABLES {
        let why = format!(
            "{} tables: every process is compared with each, once a second",
            group.matching.len()
        );
        let remedy = format!("give at most {MOST_TABLES}; `arg` takes a regular expression");
        return found.say(at.key("match"), why, Some(&remedy));
    }
    for (i, table) in group.matching.iter().enumerate() {
        for (key, why) in task::check(table) {
            let at = at.key("match").index(i);
            found.say(if key.is_empty() { at } else { at.key(key) }, why, None);
        }
    }
    if group
        .command
        .as_ref()
        .is_some_and(|c| c.first().is_none_or(String::is_empty))
    {
        found.say(
            at.key("command"),
            "no program is named",
            Some("write [\"/path/to/program\", \"argument\"]"),
        );
    }
    if let Some(cpus) = &group.cpus {
        cpus_of(found, at.key("cpus"), cpus);
    }
    if group.weight.is_some_and(|w| !(1..=10_000).contains(&w)) {
        found.say(at.key("weight"), "a weight is between 1 and 10000", None);
    }
    roles(found, &at, group, windowed);
    if let Some(target) = &group.target {
        target_of(found, &at.key("target"), target);
    }
    reserve_and_limit(found, &at, group);
}

fn cpus_of(found: &mut Found, at: Path, cpus: &CpusWanted) {
    match cpus {
        CpusWanted::Count(0) => found.say(
            at,
            "a group without CPUs cannot run",
            Some("ask for at least 1"),
        ),
        CpusWanted::List(list) if list.is_empty() => {
            found.say(
                at,
                "a group without CPUs cannot run",
                Some("name at least one CPU"),
            );
        }
        _ => {}
    }
}

/// Complains of keys that contradict the group's role: an unused promise would be dropped silently.
/// A critical group that is `windowed` may be frozen between its windows.
fn roles(found: &mut Found, at: &Path, group: &Group, windowed: bool) {
    if group.role != Role::BestEffort && group.weight.is_some() {
        found.say(
            at.key("weight"),
            "only best-effort groups share the spare by weight",
            Some("remove it"),
        );
    }
    match group.role {
        Role::Critical => {
            for what in [Permission::Freeze, Permission::Kill] {
                let between = windowed && what == Permission::Freeze;
                if !between && group.allow.iter().flatten().any(|p| *p == what) {
                    found.say(
                        at.key("allow"),
                        format!(
                            "a critical group is protected: it cannot be allowed to {}",
                            what.name()
                        ),
                        Some("remove it, or make the group best-effort"),
                    );
                }
            }
        }
        Role::Exempt => {
            let given = [
                (
                    "cpus",
                    group.cpus.as_ref().is_some_and(|c| *c != CpusWanted::Any),
                ),
                ("limit", !group.limit.is_empty()),
                ("allow", group.allow.as_ref().is_some_and(|a| !a.is_empty())),
            ];
            for (key, _) in given.into_iter().filter(|(_, given)| *given) {
                found.say(
                    at.key(key),
                    "an exempt group is never slowed, stopped or moved",
                    Some("remove it, or make the group best-effort"),
                );
            }
        }
        Role::BestEffort => {}
    }
}

fn target_of(found: &mut Found, at: &Path, target: &Target) {
    match (target.deadline, target.slowdown) {
        (Some(_), Some(_)) => found.say(
            at.clone(),
            "both a deadline and a slowdown are given",
            Some("keep one"),
        ),
        (None, None) => found.say(
            at.clone(),
            "no outcome is given",
            Some("write deadline = \"50ms\" or slowdown = 1.10"),
        ),
        (Some(Nanos(0)), None) => found.say(at.key("deadline"), "no work is done in no time", None),
        (None, Some(factor)) if !(factor >= 1.0 && factor.is_finite()) => {
            found.say(
                at.key("slowdown"),
                format!("{factor} is not a factor of at least 1"),
                Some("1.10 is 10 % slower than alone"),
            );
        }
        _ => {}
    }
    if target.profile.is_some() && target.slowdown.is_none() {
        found.say(
            at.key("profile"),
            "a profile is what a slowdown refers to, and there is none",
            Some("write slowdown = 1.10 instead of the deadline, or remove it"),
        );
    }
    if !(target.percentile > 0.0 && target.percentile <= 100.0) {
        found.say(
            at.key("percentile"),
            format!("{} is not between 0 and 100", target.percentile),
            None,
        );
    }
    if let Some(Source::Pattern(pattern)) = &target.source
        && !TIME_UNITS.contains(&pattern.unit.as_str())
    {
        let why = format!("'{}' is not a unit of time", pattern.unit);
        found.say(
            at.key("source").key("unit"),
            why,
            Some("write one of ns, us, ms, s"),
        );
    }
}

fn reserve_and_limit(found: &mut Found, at: &Path, group: &Group) {
    let (reserve, limit) = (at.key("reserve"), at.key("limit"));
    if let Some(bandwidth) = group.reserve.bandwidth {
        bandwidth_of(found, reserve.key("bandwidth"), bandwidth);
    }
    if let Some(cache) = &group.reserve.cache {
        cache_of(found, reserve.key("cache"), cache);
    }
    match &group.reserve.banks {
        Some(Banks::Count(0)) => found.say(
            reserve.key("banks"),
            "a reserve of nothing is none",
            Some("remove it"),
        ),
        Some(Banks::List(list)) if list.is_empty() => {
            found.say(reserve.key("banks"), "no bank is named", None)
        }
        _ => {}
    }
    if group.reserve.memory == Some(MemoryWanted::Size(Bytes(0))) {
        found.say(
            reserve.key("memory"),
            "a reserve of nothing is none",
            Some("remove it"),
        );
    }
    for (i, file) in group.reserve.files.iter().enumerate() {
        if !file.starts_with('/') {
            found.say(
                reserve.key("files").index(i),
                format!("'{file}' is not a path from the root"),
                None,
            );
        }
    }
    if let Some(bandwidth) = group.limit.bandwidth {
        bandwidth_of(found, limit.key("bandwidth"), bandwidth);
    }
    if let Some(most) = group.limit.memory.filter(|most| *most < LEAST_MEMORY) {
        let why = format!("no program starts in {most}");
        let remedy = format!("give at least {LEAST_MEMORY}");
        found.say(limit.key("memory"), why, Some(&remedy));
    }
    if let Some(most) = group.limit.cpu_time.filter(|most| *most > MOST_CPU_TIME) {
        let why = format!("{most} is more than all CPUs that Linux can have");
        found.say(limit.key("cpu-time"), why, Some("100% is one CPU"));
    }
    if group.limit.cpu_time == Some(Share(0)) {
        found.say(
            limit.key("cpu-time"),
            "a limit of nothing stops the group",
            Some("freezing is done with `allow`"),
        );
    }
    let more = match (group.reserve.bandwidth, group.limit.bandwidth) {
        (Some(Bandwidth::Rate(least)), Some(Bandwidth::Rate(most))) => least > most,
        (Some(Bandwidth::Share(least)), Some(Bandwidth::Share(most))) => least > most,
        (
            Some(Bandwidth::ReadWrite { read, write }),
            Some(Bandwidth::ReadWrite {
                read: most_read,
                write: most_write,
            }),
        ) => {
            let more = |least: Option<Rate>, most: Option<Rate>| {
                least.zip(most).is_some_and(|(least, most)| least > most)
            };
            more(read, most_read) || more(write, most_write)
        }
        _ => false,
    };
    if more {
        found.say(
            limit.key("bandwidth"),
            "the group's own reserve is more than its limit",
            None,
        );
    }
}

fn bandwidth_of(found: &mut Found, at: Path, bandwidth: Bandwidth) {
    match bandwidth {
        Bandwidth::Share(share) if share > Share::WHOLE => {
            found.say(
                at,
                format!("{share} is more than the machine has"),
                Some("percentages are of the sustainable rate, at most 100%"),
            );
        }
        Bandwidth::Rate(Rate(0))
        | Bandwidth::Share(Share(0))
        | Bandwidth::ReadWrite {
            read: Some(Rate(0)),
            ..
        }
        | Bandwidth::ReadWrite {
            write: Some(Rate(0)),
            ..
        } => {
            found.say(
                at,
                "no bandwidth at all is neither a reserve nor a limit",
                Some("remove it"),
            );
        }
        _ => {}
    }
}

fn cache_of(found: &mut Found, at: Path, cache: &CacheWanted) {
    match &cache.form {
        CacheForm::Share(share) if *share > Share::WHOLE => {
            found.say(
                at,
                format!("{share} is more than the cache has"),
                Some("at most 100%"),
            );
        }
        CacheForm::Size(Bytes(0))
        | CacheForm::Locked(Bytes(0))
        | CacheForm::Share(Share(0))
        | CacheForm::Ways(0)
        | CacheForm::Apart { code: 0, .. }
        | CacheForm::Apart { data: 0, .. } => {
            found.say(at, "a reserve of nothing is none", Some("remove it"));
        }
        CacheForm::Colours(list) if list.is_empty() => found.say(at, "no colour is named", None),
        _ => {}
    }
}

/// Complains of two groups with an identical `match` table.
fn twice(found: &mut Found, groups: &IndexMap<String, Group>) {
    let tables = || {
        groups.iter().flat_map(|(name, group)| {
            group
                .matching
                .iter()
                .enumerate()
                .map(move |(i, t)| (name, i, t))
        })
    };
    for (n, (name, i, table)) in tables().enumerate() {
        if let Some((first, ..)) = tables().take(n).find(|(_, _, t)| *t == table) {
            let at = Path::of(&["group", name, "match"]).index(i);
            let why = if first == name {
                "the same table stands here twice".to_owned()
            } else {
                format!(
                    "the groups '{first}' and '{name}' match the same tasks, but a task is in exactly one group"
                )
            };
            found.say(at, why, Some("remove one of the two"));
        }
    }
}

fn rest(found: &mut Found, policy: &Policy) {
    let at = Path::of(&["rest"]);
    cpus_of(found, at.key("cpus"), &policy.rest.cpus);
    for what in [Permission::Freeze, Permission::Kill] {
        if policy.rest.allow.contains(&what) {
            found.say(
                at.key("allow"),
                format!(
                    "everything unmatched is here, your shell included: it cannot be allowed to {}",
                    what.name()
                ),
                Some("put the tasks meant into a group of their own"),
            );
        }
    }
}

fn regulator(found: &mut Found, keys: &RegulatorKeys) {
    let at = Path::of(&["regulator"]);
    if let Some(period) = keys.period
        && !(PERIOD.0..=PERIOD.1).contains(&period)
    {
        found.say(
            at.key("period"),
            format!("{period} is not between {} and {}", PERIOD.0, PERIOD.1),
            None,
        );
    }
    if keys.predictor.is_some_and(|p| !(0.0..=1.0).contains(&p)) {
        found.say(at.key("predictor"), "a weight is between 0 and 1", None);
    }
    if keys
        .quantum
        .is_some_and(|q| q.0 < quell_types::units::LINE_BYTES)
    {
        found.say(
            at.key("quantum"),
            "less than one cache line cannot be granted",
            Some("default 64KiB"),
        );
    }
    if keys.sustainable == Sustainable::Rate(Rate(0)) {
        found.say(
            at.key("sustainable"),
            "a machine without bandwidth cannot be shared",
            None,
        );
    }
}

fn hoard_of(found: &mut Found, keys: &HoardKeys, require: Level) {
    let at = Path::of(&["hoard"]);
    if keys.pace == Share(0) || keys.pace > Share::WHOLE {
        let why = format!("{} is no share of time to move pages in", keys.pace);
        found.say(at.key("pace"), why, Some("more than 0%, at most 100%"));
    }
    if keys.longest_stop < SHORTEST_STOP {
        let why = format!("stopping threads alone takes {}", keys.longest_stop);
        found.say(at.key("longest-stop"), why, Some("at least 100us"));
    }
    if keys.reserve == Some(Bytes(0)) {
        let why = "nothing would stay for other programs";
        found.say(at.key("reserve"), why, Some("leave it out, or give a size"));
    }
    if keys.limit == Some(Bytes(0)) && require > Level::None {
        let why = "nothing could be held, so that other programs get frames of reserved colours";
        let remedy = "leave it out, or give a size; or write require = \"none\"";
        found.say(at.key("limit"), why, Some(remedy));
    }
}

fn pressure_of(found: &mut Found, keys: &Pressure) {
    let at = Path::of(&["pressure"]);
    if keys.interval < SHORTEST_INTERVAL {
        found.say(
            at.key("interval"),
            format!("{} is too short to measure a stall", keys.interval),
            Some("at least 10ms"),
        );
    }
    for (key, share) in [("start", keys.start), ("release", keys.release)] {
        if share > Share::WHOLE {
            found.say(
                at.key(key),
                format!("{share} is more than all of the time"),
                Some("at most 100%"),
            );
        }
    }
    if keys.release >= keys.start {
        let why = format!(
            "{} is not below start = {}: it would let go as soon as it acts",
            keys.release, keys.start
        );
        found.say(at.key("release"), why, None);
    }
    if keys.escalate.contains(&Permission::Throttle) {
        let why = "throttling relieves no memory pressure";
        found.say(
            at.key("escalate"),
            why,
            Some("use limit-memory, freeze, reclaim, kill"),
        );
    }
}
