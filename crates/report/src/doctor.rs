//! The text of `quell doctor`: what a machine is, what each mechanism can do on it, and what would
//! enable the missing ones.

use std::collections::BTreeSet;

use quell_plan::inventory::{
    Availability, Cache, CacheKind, CpusetKind, Inventory, Lack, Means, MemoryControl, MeterKind,
};
use quell_policy::lab::{Accelerator, Guest};
use quell_types::cpuset::CpuSet;
use quell_types::mechanism::{Level, Mechanism};

use crate::deep;
use crate::partitions;
use crate::plan::tone;
use crate::text::{Style, Tone, count, list, size};

/// Width of the labels, in columns.
const LABEL: usize = 13;

/// How much of the measurements to show, and the time that their age refers to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measurements {
    /// The present time in seconds since 1970. `None`: no age is shown.
    pub now_unix_s: Option<u64>,
    /// Whether to show every figure, not only what they mean.
    pub full: bool,
}

/// The machine as text for a terminal of the style's width.
#[must_use]
pub fn doctor_text(machine: &Inventory, show: Measurements, style: Style) -> String {
    let mut out = style.paint(Tone::Title, &name(machine)) + "\n\n";
    out.push_str(&style.wrap("", "", &verdict(machine)));
    out.push('\n');
    let mut line = |label: &str, text: &str| out.push_str(&labelled(label, text, style));
    line("cpus", &cpus(machine));
    for (label, text) in caches(machine) {
        line(&label, &text);
    }
    for node in &machine.nodes {
        line(
            &format!("memory {}", node.id),
            &format!("{}, CPUs {}", size(node.memory.0), node.cpus.brief()),
        );
    }
    match &machine.measured {
        Some(measured) => line(
            "bandwidth",
            &format!(
                "one CPU {} ({}), {} together {}{}{}",
                measured.peak_cpu,
                measured.peak_operation,
                count(measured.cpus, "CPU"),
                measured.sustainable,
                show.now_unix_s.map_or_else(String::new, |now| format!(
                    "; measured {}",
                    age(now, measured.at_unix_s)
                )),
                measured
                    .doubt()
                    .map_or_else(String::new, |why| format!("; {why}"))
            ),
        ),
        None => line(
            "bandwidth",
            "not measured: `quell run` measures when it needs rates, `quell doctor --deep` measures now",
        ),
    }
    out.push('\n');
    if let Some(measured) = &machine.measured {
        out.push_str(&if show.full {
            deep::full(measured, style) + "\n"
        } else {
            deep::short(measured, style, |label, text| labelled(label, text, style))
        });
    }
    out.push_str(&style.paint(Tone::Title, "Mechanisms"));
    out.push('\n');
    for mechanism in Mechanism::ALL {
        if let Some(Availability::Yes { best, how }) = machine.mechanisms.get(&mechanism) {
            out.push_str(&available(mechanism, *best, how, style));
        }
    }
    let here = |a: &Availability| matches!(a, Availability::Yes { .. });
    if !machine.mechanisms.values().any(here) {
        out.push_str("  none\n");
    }
    let missing = missing(machine);
    if !missing.is_empty() {
        out.push('\n');
        out.push_str(&style.paint(Tone::Title, "Not here"));
        out.push('\n');
    }
    for one in &missing {
        out.push_str(&unavailable(one, style));
    }
    let parts = partitions::lines(machine);
    if !parts.is_empty() {
        out.push('\n');
        out.push_str(&style.paint(Tone::Title, "Parts"));
        out.push('\n');
    }
    for (label, text) in parts {
        out.push_str(&labelled(label, &text, style));
    }
    out.push('\n');
    out.push_str(&style.paint(Tone::Title, "How"));
    out.push('\n');
    for (label, text) in means(&machine.means, &missing) {
        out.push_str(&labelled(label, &text, style));
    }
    out
}

fn labelled(label: &str, text: &str, style: Style) -> String {
    // A space follows even a label that is longer than its column.
    let first = format!("  {label:<LABEL$}");
    let first = if first.ends_with(' ') {
        first
    } else {
        first + " "
    };
    style.wrap(&first, &" ".repeat(LABEL + 2), text)
}

/// The machine's name: processor, architecture, kernel, hypervisor.
pub(crate) fn name(machine: &Inventory) -> String {
    let identity = &machine.identity;
    let mut parts = vec![
        identity.model.clone(),
        identity.architecture.clone(),
        match &machine.simulated {
            Some(simulated) => format!("{} (profile {})", identity.kernel, simulated.profile),
            None => format!("Linux {}", identity.kernel),
        },
    ];
    match (&identity.lab, &identity.hypervisor) {
        (Some(guest), _) => parts.push(lab(guest)),
        (None, Some(hypervisor)) => parts.push(format!("virtual machine ({hypervisor})")),
        (None, None) => {}
    }
    parts.retain(|p| !p.is_empty());
    parts.join(" · ")
}

/// The name of a machine of the lab.
pub(crate) fn lab(guest: &Guest) -> String {
    let profile = guest.profile.as_ref();
    let profile = profile.map_or_else(String::new, |name| format!(", profile {name}"));
    let runs = match guest.accelerator {
        Accelerator::Kvm => "under KVM",
        Accelerator::Counted => "emulated, in time that counts instructions",
        Accelerator::Auto | Accelerator::Tcg => {
            "emulated: times are its own, and only ratios within one run mean anything"
        }
    };
    format!("machine of the lab{profile}, {runs}")
}

pub(crate) fn cpus(machine: &Inventory) -> String {
    let cores: BTreeSet<&CpuSet> = machine.cpus.iter().map(|c| &c.siblings).collect();
    let packages: BTreeSet<u32> = machine.cpus.iter().map(|c| c.package).collect();
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let threads = machine
        .cpus
        .iter()
        .map(|c| c.siblings.len())
        .max()
        .unwrap_or(1);
    let alike = machine.cpus.iter().all(|c| c.siblings.len() == threads);
    let slower: CpuSet = machine
        .cpus
        .iter()
        .filter(|c| c.tier > 0)
        .map(|c| c.id)
        .collect();
    format!(
        "{} ({}), {}, {}{}{}",
        number(machine.cpus.len()),
        machine.cpu_set(),
        count(number(cores.len()), "core"),
        count(number(packages.len()), "package"),
        if threads > 1 {
            format!(
                ", {}{threads} threads per core",
                if alike { "" } else { "up to " }
            )
        } else {
            String::new()
        },
        if slower.is_empty() {
            String::new()
        } else {
            format!("; CPUs {slower} are of a slower kind")
        }
    )
}

/// Caches of the same kind and size on one line: `L2` → `512KiB, 16 ways, one per CPU`.
pub(crate) fn caches(machine: &Inventory) -> Vec<(String, String)> {
    let cores: BTreeSet<&CpuSet> = machine.cpus.iter().map(|c| &c.siblings).collect();
    let mut lines: Vec<(String, String)> = Vec::new();
    let mut seen: Vec<&Cache> = Vec::new();
    for cache in &machine.caches {
        let same = |other: &&Cache| {
            (other.level, other.kind, other.size, other.ways)
                == (cache.level, cache.kind, cache.size, cache.ways)
        };
        if seen.iter().any(same) {
            continue;
        }
        seen.push(cache);
        let alike: Vec<&Cache> = machine.caches.iter().filter(same).collect();
        let ways = cache
            .ways
            .map_or_else(String::new, |w| format!(", {w} ways"));
        let whose = match alike.as_slice() {
            [one] if one.cpus.len() == machine.cpus.len() && one.cpus.len() > 1 => {
                ", shared by all".to_owned()
            }
            all if all.len() > 1 && all.iter().all(|c| cores.contains(&c.cpus)) => {
                let whose: CpuSet = all.iter().flat_map(|c| c.cpus.iter()).collect();
                if machine.cpu_set().is_subset(&whose) {
                    ", one per core".to_owned()
                } else {
                    format!(", one per core of CPUs {}", whose.brief())
                }
            }
            all => {
                let sets: Vec<String> = all.iter().map(|c| c.cpus.brief()).collect();
                format!(", of CPUs {}", sets.join(" | "))
            }
        };
        let kind = match cache.kind {
            CacheKind::Data => "d",
            CacheKind::Instruction => "i",
            CacheKind::Unified => "",
        };
        lines.push((
            format!("L{}{kind}", cache.level),
            format!("{}{ways}{whose}", size(cache.size.0)),
        ));
    }
    lines
}

/// An age in the largest unit that leaves at least one: `3 hours ago`.
#[must_use]
pub fn age(now_unix_s: u64, then_unix_s: u64) -> String {
    let seconds = now_unix_s.saturating_sub(then_unix_s);
    let units = [(86_400, "day"), (3_600, "hour"), (60, "minute")];
    match units.into_iter().find(|(unit, _)| seconds >= *unit) {
        Some((unit, name)) => {
            let n = u32::try_from(seconds / unit).unwrap_or(u32::MAX);
            format!("{} ago", count(n, name))
        }
        None => "just now".to_owned(),
    }
}

fn available(mechanism: Mechanism, best: Level, how: &str, style: Style) -> String {
    let rest = " ".repeat(LABEL + 16);
    let first = format!("  + {:<13}{:<12}", mechanism.name(), best.name());
    paint_head(&style.wrap(&first, &rest, how), &first, tone(best), style)
}

/// Mechanisms that are missing for one reason.
struct Missing<'a> {
    why: &'a str,
    remedy: Option<&'a str>,
    mechanisms: Vec<Mechanism>,
}

/// All missing mechanisms, grouped so that each reason occurs once.
fn missing(machine: &Inventory) -> Vec<Missing<'_>> {
    let mut all: Vec<Missing<'_>> = Vec::new();
    for mechanism in Mechanism::ALL {
        let Some(Availability::No { why, remedy, .. }) = machine.mechanisms.get(&mechanism) else {
            continue;
        };
        match all.iter_mut().find(|m| m.why == why) {
            Some(one) => one.mechanisms.push(mechanism),
            None => all.push(Missing {
                why,
                remedy: remedy.as_deref(),
                mechanisms: vec![mechanism],
            }),
        }
    }
    all
}

fn unavailable(missing: &Missing<'_>, style: Style) -> String {
    let names: Vec<&str> = missing.mechanisms.iter().map(|m| m.name()).collect();
    let mut out: String = style
        .wrap("  ", "  ", &names.join(", "))
        .lines()
        .map(|line| style.paint(Tone::Faint, line) + "\n")
        .collect();
    let rest = " ".repeat(LABEL + 2);
    out.push_str(&style.wrap(&rest, &rest, missing.why));
    if let Some(remedy) = missing.remedy {
        out.push_str(&style.wrap(&format!("{rest}help: "), &rest, remedy));
    }
    out
}

/// What mechanisms are good for, in the words of a user. Several mechanisms may belong to one
/// purpose.
const PROMISES: [(&str, &[Mechanism]); 8] = [
    ("CPUs of its own", &[Mechanism::Cores]),
    ("limits on its neighbours' CPU time", &[Mechanism::CpuMax]),
    (
        "limits on their memory bandwidth",
        &[Mechanism::Bandwidth, Mechanism::Mba],
    ),
    (
        "a part of a cache",
        &[Mechanism::Ways, Mechanism::Sets, Mechanism::PseudoLock],
    ),
    ("DRAM banks of its own", &[Mechanism::Banks]),
    ("memory that is kept for it", &[Mechanism::Memory]),
    (
        "memory that is locked, or in pages of one size",
        &[Mechanism::Paging],
    ),
    (
        "its share of a disk",
        &[Mechanism::IoMax, Mechanism::IoLatency, Mechanism::IoWeight],
    ),
];

/// What this machine can promise to a program, and what it cannot: two sentences.
fn verdict(machine: &Inventory) -> String {
    let best = |mechanisms: &[Mechanism]| {
        let levels = mechanisms
            .iter()
            .filter_map(|m| match machine.mechanisms.get(m) {
                Some(Availability::Yes { best, .. }) => Some(*best),
                _ => None,
            });
        levels.max()
    };
    let mut can: Vec<(Level, Vec<String>)> = Vec::new();
    let mut cannot: Vec<String> = Vec::new();
    for (what, mechanisms) in PROMISES {
        // A memory controller of cgroup v1 limits, and protects nothing. A program that is not
        // immune from the OOM killer is not protected either: it would be killed first.
        let memory = &machine.means.memory;
        let limits_only = memory.control == MemoryControl::V1 || memory.immunity.is_err();
        let what = match limits_only && mechanisms == [Mechanism::Memory] {
            true => "limits on its neighbours' memory",
            false => what,
        };
        match best(mechanisms) {
            Some(level) => match can.iter_mut().find(|(l, _)| *l == level) {
                Some((_, all)) => all.push(what.to_owned()),
                None => can.push((level, vec![what.to_owned()])),
            },
            None => cannot.push(what.to_owned()),
        }
    }
    can.sort_by_key(|(level, _)| std::cmp::Reverse(*level));
    let rights = machine.mechanisms.values().any(|m| {
        matches!(
            m,
            Availability::No {
                lack: Lack::Rights,
                ..
            }
        )
    });
    let each: Vec<String> = can
        .iter()
        .map(|(level, all)| format!("{} ({level})", list(all)))
        .collect();
    let first = match (each.is_empty(), rights) {
        (true, true) => {
            "Quell can promise nothing as it runs now: only root, outside of a container, may change this machine."
                .to_owned()
        }
        (true, false) => "Quell can promise nothing on this machine.".to_owned(),
        (false, _) => format!("This machine can promise a program {}.", each.join("; ")),
    };
    let or = match cannot.split_last() {
        None => return format!("{first} It lacks nothing that Quell uses."),
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
    };
    format!("{first} It cannot promise {or}.")
}

/// Colours the label at the beginning of a wrapped text.
fn paint_head(text: &str, head: &str, tone: Tone, style: Style) -> String {
    match text.strip_prefix(head) {
        Some(tail) => style.paint(tone, head) + tail,
        None => text.to_owned(),
    }
}

fn means(means: &Means, missing: &[Missing<'_>]) -> Vec<(&'static str, String)> {
    let cpuset = match means.cpuset {
        CpusetKind::V1 => "cgroup v1 cpuset",
        CpusetKind::V2 => "cgroup v2 cpuset",
        CpusetKind::V2Partition => "cgroup v2 cpuset partitions",
        CpusetKind::AffinityOnly => "CPU affinity of the matched tasks only; no cpuset controller",
    };
    let meter = match &means.meter {
        MeterKind::Hardware {
            events,
            fills_only,
            apart,
        } => format!(
            "hardware events {}: {}; {}",
            events.join(", "),
            if fills_only.is_empty() {
                "lines that come in and lines written back".to_owned()
            } else {
                format!(
                    "lines that come in; on CPUs {fills_only} those written back are not counted"
                )
            },
            match apart.len() {
                0 => "reads and writes cannot have a budget each".to_owned(),
                1 => format!("on CPU {apart} reads and writes can have a budget each"),
                _ => format!("on CPUs {apart} reads and writes can have a budget each"),
            }
        ),
        MeterKind::Time => "CPU time × this machine's peak rate: an upper bound".to_owned(),
        MeterKind::None { why } => format!("none: {why}"),
    };
    let brake = match &means.brake {
        Ok(()) => "stops a group and nothing else on its CPU".to_owned(),
        // The meter's reason ends with it where the CPU clock of a cgroup is refused.
        Err(why) if meter.contains(why.as_str()) => "none, for the reason of the meter".to_owned(),
        Err(why) if missing.iter().any(|m| m.why.contains(why.as_str())) => {
            "none, as said above".to_owned()
        }
        Err(why) => format!("none: {why}"),
    };
    let yes = |able: bool| if able { "can be set" } else { "cannot be set" };
    let mut lines = vec![
        ("cores", cpuset.to_owned()),
        (
            "interrupts",
            format!("{} movable, {} fixed", means.movable_irqs, means.fixed_irqs),
        ),
        (
            "kernel work",
            format!("the mask of unbound work {}", yes(means.workqueue_mask)),
        ),
        ("meter", meter),
        ("brake", brake),
        ("cpu quota", yes(means.cpu_max).to_owned()),
    ];
    if !means.counter_users.is_empty() {
        lines.push(("counters", means.counter_users.join("; ")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn a_machine_reads_as_a_page() {
        let style = Style {
            color: false,
            width: 80,
        };
        let text = doctor_text(&sample::machine(), Measurements::default(), style);
        sample::golden("doctor", &text);
    }

    #[test]
    fn a_measured_machine_reads_as_a_page_wide_narrow_and_in_short() {
        let machine = sample::measured_machine();
        let text = |full, width| {
            let show = Measurements {
                now_unix_s: Some(7_300),
                full,
            };
            let style = Style {
                color: false,
                width,
            };
            doctor_text(&machine, show, style)
        };
        sample::golden("doctor-deep", &text(true, 100));
        sample::golden("doctor-deep-short", &text(false, 80));
        let narrow = text(true, 56);
        let wide = narrow.lines().find(|l| l.chars().count() > 60);
        assert_eq!(wide, None, "{narrow}");
    }

    #[test]
    fn an_age_is_told_in_its_largest_unit() {
        assert_eq!(age(100, 90), "just now");
        assert_eq!(age(7_300, 0), "2 hours ago");
        assert_eq!(age(90_000, 0), "1 day ago");
        assert_eq!(age(0, 90), "just now", "a clock that was set back");
    }

    #[test]
    fn colour_changes_no_column() {
        let show = Measurements {
            now_unix_s: Some(7_300),
            full: true,
        };
        let machine = sample::measured_machine();
        let plain = doctor_text(&machine, show, Style::default());
        let colour = doctor_text(
            &machine,
            show,
            Style {
                color: true,
                ..Style::default()
            },
        );
        assert_ne!(plain, colour);
        let mut stripped = String::new();
        let mut inside = false;
        for c in colour.chars() {
            match (inside, c) {
                (_, '\x1b') => inside = true,
                (true, 'm') => inside = false,
                (false, c) => stripped.push(c),
                _ => {}
            }
        }
        assert_eq!(stripped, plain);
    }
}
