//! How a machine's caches, banks and controllers can be divided, in words.

use quell_plan::Setting;
use quell_plan::deep::{MbaCurve, MbaPoint};
use quell_plan::inventory::Inventory;
use quell_types::cpuset::CpuSet;
use quell_types::partition::{
    CodeData, ColourChoice, Colouring, KnownMap, MapOrigin, Mask, MbaBounds, MbaUnit, WayPartition,
};

use crate::plan::on;
use crate::text::size;
use crate::text::{count, list};

/// Labels and lines. Empty where nothing can be divided.
pub(crate) fn lines(machine: &Inventory) -> Vec<(&'static str, String)> {
    let partitions = &machine.partitions;
    let mut lines: Vec<(&str, String)> = Vec::new();
    for ways in &partitions.ways {
        lines.push(("ways", ways_of(machine, ways)));
    }
    if let Some(map) = &partitions.address_map {
        lines.push(("address map", origin_of(map)));
        let of_banks = map.banks.as_ref().map(colours_of);
        let none = || "pages leave none".to_owned();
        lines.push(("bank colours", of_banks.unwrap_or_else(none)));
        if let Some(sets) = &map.sets {
            let text = format!(
                "{}; if the index is plain address bits, which is assumed",
                colours_of(sets)
            );
            lines.push(("set colours", text));
        }
    }
    let kinds = [("sets", &partitions.sets), ("banks", &partitions.banks)];
    for (label, kind) in kinds {
        if let Some(colours) = kind {
            lines.push((label, colours_of(colours)));
        }
    }
    if let Some(joint) = &partitions.joint {
        lines.push((
            "sets + banks",
            format!(
                "share {}: asked for together they are {}",
                count(number(joint.functions.len()), "address bit"),
                colours_of(joint)
            ),
        ));
    }
    if let Some(level) = partitions.lock {
        let text = format!("memory can be locked in ways of L{level}, which everybody then leaves");
        lines.push(("pseudo-lock", text));
    }
    if let Some(mba) = &partitions.mba {
        let measured = machine.measured.as_ref();
        lines.push(("mba", mba_of(mba, measured.and_then(|m| m.mba.as_ref()))));
    }
    for exclusion in &partitions.exclusions {
        let with: Vec<String> = exclusion.with.iter().map(ToString::to_string).collect();
        lines.push((
            "not together",
            format!(
                "{} with {}: {}",
                exclusion.mechanism,
                with.join(" or "),
                exclusion.reason
            ),
        ));
    }
    lines
}

/// Labels and lines about the colours of pages alone, as `label: line`.
#[must_use]
pub fn colour_lines(machine: &Inventory) -> Vec<String> {
    const LABELS: [&str; 6] = [
        "address map",
        "bank colours",
        "set colours",
        "sets",
        "banks",
        "sets + banks",
    ];
    let told = lines(machine).into_iter();
    let told = told.filter(|(label, _)| LABELS.contains(label));
    told.map(|(label, text)| format!("{label}: {text}"))
        .collect()
}

/// Where an address map comes from.
fn origin_of(map: &KnownMap) -> String {
    let origin = match map.origin {
        MapOrigin::Declared => format!("declared in {}", map.from),
        MapOrigin::Published => format!("declared to be the published one of {}", map.from),
        MapOrigin::Recovered => "measured on this machine".to_owned(),
        MapOrigin::Lab => "that of the lab's own processor".to_owned(),
    };
    let about = map.about.as_ref();
    let about = about.map_or_else(String::new, |about| format!(" ({about})"));
    let shared = match map.shared {
        0 => String::new(),
        bits => format!("; banks and cache sets share {}", count(bits, "colour bit")),
    };
    format!("{origin}{about}{shared}")
}

fn mba_of(mba: &MbaBounds, curve: Option<&MbaCurve>) -> String {
    let classes = classes(mba.classes);
    let steps = match mba.unit {
        MbaUnit::Percent => format!(
            "{}% to 100% of a core's requests in steps of {}%",
            mba.least, mba.step
        ),
        MbaUnit::MibPerS => {
            return format!(
                "rates in MiB/s, for which the kernel looks once a second; {classes}, that of all other tasks included"
            );
        }
    };
    let what = match curve {
        None => "what they come to in bytes has not been measured".to_owned(),
        Some(curve) => {
            let mut counts: Vec<u32> = curve.points.iter().map(|p| p.cpus).collect();
            counts.dedup();
            let each: Vec<String> = counts.iter().map(|n| reached(curve, *n)).collect();
            format!("by streams of {} {}", curve.operation, each.join("; "))
        }
    };
    format!("{steps}; {classes}, that of all other tasks included; {what}")
}

/// What so many CPUs reach from the smallest step to the largest. It shows which steps have the
/// same effect.
fn reached(curve: &MbaCurve, cpus: u32) -> String {
    let points = curve.points.iter().filter(|p| p.cpus == cpus);
    let gb = |p: &MbaPoint| format!("{:.1}", p.mb_s.p50 / 1e3);
    let rates: Vec<String> = points.clone().map(gb).collect();
    let ends: Vec<String> = points.map(|p| format!("{}%", p.percent)).collect();
    format!(
        "{} reach{} {} GB/s from {} to {}",
        count(cpus, "CPU"),
        if cpus == 1 { "es" } else { "" },
        rates.join(" "),
        ends.first().map_or("", String::as_str),
        ends.last().map_or("", String::as_str)
    )
}

fn number(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn classes(n: u32) -> String {
    format!("{n} class{}", if n == 1 { "" } else { "es" })
}

fn ways_of(machine: &Inventory, ways: &WayPartition) -> String {
    let cache = machine.caches.iter().find(|c| c.holds_data_at(ways.level));
    let each = cache
        .map(|c| c.size.0 / u64::from(ways.bits.max(1)))
        .map_or_else(String::new, |each| format!(" of {} each", size(each)));
    format!(
        "L{}: masks of {} ways{each}, {} at least, holes {}; {}, that of all other tasks included{}",
        ways.level,
        ways.bits,
        ways.least,
        if ways.sparse {
            "allowed"
        } else {
            "not allowed"
        },
        classes(ways.classes),
        match ways.code_data {
            CodeData::Never => "",
            CodeData::Now => "; code and data can have different ones",
            CodeData::OnceMounted { .. } =>
                "; code and data can have different ones, once resctrl is mounted so",
            CodeData::MountedWithout =>
                "; code and data could have different ones, were resctrl not mounted without that",
        }
    )
}

fn colours_of(colours: &Colouring) -> String {
    let plain = colours.functions.iter().all(|f| f.count() == 1);
    let each: Vec<String> = colours.functions.iter().map(|f| function(*f)).collect();
    let by = if each.is_empty() {
        String::new()
    } else {
        format!(
            ", by address bit{} {}{}",
            if each.len() > 1 || !plain { "s" } else { "" },
            list(&each),
            if plain { "" } else { " (+: exclusive or)" }
        )
    };
    if !colours.nodes.is_empty() {
        let nodes: Vec<String> = colours.nodes.iter().map(CpuSet::brief).collect();
        return format!(
            "{} of memory nodes ({}){by}",
            count(colours.count(), "colour"),
            nodes.join(" | ")
        );
    }
    format!(
        "{} of pages of {} KiB{by}; large pages have {}",
        count(colours.count(), "colour"),
        colours.page.0 >> 10,
        colours.count_large()
    )
}

/// The address bits of a function: `14`, or `14+17`.
fn function(mask: Mask) -> String {
    let bits = (0..u64::BITS).filter(|bit| mask.0 >> bit & 1 == 1);
    let bits: Vec<String> = bits.map(|bit| bit.to_string()).collect();
    bits.join("+")
}

/// `L3`, or `L3 of CPUs 6-7` where this is about some caches of the level.
pub(crate) fn caches_of_level(level: u32, caches_of: &CpuSet) -> String {
    match caches_of.is_empty() {
        true => format!("L{level}"),
        false => format!("L{level} of {}", on(caches_of)),
    }
}

/// What a step does with caches and banks. Empty for a step that does nothing with them.
pub(crate) fn described(set: &Setting) -> String {
    match set {
        Setting::Ways {
            level,
            mask,
            caches_of,
        } => {
            let ways = if mask.count() == 1 { "way" } else { "ways" };
            let n = mask.count();
            let of = caches_of_level(*level, caches_of);
            format!("fill {n} {ways} of {of} only: {mask}")
        }
        Setting::MountCodeData { levels } => {
            let levels: Vec<String> = levels.iter().map(|l| format!("L{l}")).collect();
            let levels = levels.join(" and ");
            format!("mount resctrl, with code and data apart in {levels}")
        }
        Setting::WaysCodeData { level, code, data } => {
            format!("fill of L{level} only {code} with code and {data} with data")
        }
        Setting::WayRegisters { level, mask, cpus } => {
            let ways = if mask.count() == 1 { "way" } else { "ways" };
            let whose = if cpus.is_empty() {
                "all other CPUs".to_owned()
            } else {
                on(cpus)
            };
            format!(
                "fill {} {ways} of L{level} only: {mask}, by the registers of {whose}",
                mask.count()
            )
        }
        Setting::WaysCpus { cpus } => {
            format!(
                "fill its ways, too, from kernel threads and interrupts on {}",
                on(cpus)
            )
        }
        Setting::Colour { choices, spill } => coloured(choices, *spill),
        Setting::Hoard {
            divides,
            colours,
            reserve,
            ..
        } => format!(
            "hold the free page frames of {} of {}; {reserve} stay free",
            numbered(colours),
            divides.of()
        ),
        Setting::Settle {
            divides,
            colours,
            unheld,
            pace,
            longest,
            ..
        } => format!(
            "move its pages into {}frames of {} of {}: stopped for {pace} of the time, about {longest} each",
            if unheld.is_some() { "free " } else { "" },
            numbered(colours),
            divides.of()
        ),
        Setting::Vacate {
            divides,
            colours,
            pace,
            longest,
            ..
        } => format!(
            "move its pages out of reserved colours into free frames of {} of {}: stopped for {pace} of the time, about {longest} each",
            numbered(colours),
            divides.of()
        ),
        Setting::Lock { level, mask, size } => {
            format!("lock {size} of its memory in L{level}, in ways {mask}")
        }
        _ => String::new(),
    }
}

/// `colours 4-7`
fn numbered(colours: &CpuSet) -> String {
    let s = if colours.len() == 1 { "" } else { "s" };
    format!("colour{s} {}", colours.brief())
}

/// Page frames in words.
fn coloured(choices: &[ColourChoice], spill: bool) -> String {
    let each = choices
        .iter()
        .map(|choice| format!("{} of {}", numbered(&choice.colours), choice.divides.of()));
    let each: Vec<String> = each.collect();
    let nodes = choices.iter().map(|choice| &choice.nodes);
    let nodes = nodes.fold(CpuSet::new(), |all, nodes| all.union(nodes));
    if !nodes.is_empty() {
        let s = if nodes.len() == 1 { "" } else { "s" };
        return format!(
            "take its memory from node{s} {} only: {}",
            nodes.brief(),
            each.join(" and ")
        );
    }
    let after = if spill {
        "; any other when these are used up, reported"
    } else {
        ""
    };
    format!("give it page frames of {} only{after}", each.join(" and "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use quell_types::mechanism::Mechanism;
    use quell_types::partition::{Exclusion, MbaBounds, Partitions};

    #[test]
    fn everything_that_can_be_divided_is_told() {
        let mut machine = sample::machine();
        let colouring =
            |functions: &[u64], large| Some(Colouring::of_pages(functions.iter().copied(), large));
        machine.partitions = Partitions {
            ways: vec![WayPartition {
                level: 3,
                bits: 16,
                least: 2,
                classes: 4,
                sparse: false,
                shareable: Mask::default(),
                code_data: CodeData::default(),
            }],
            sets: colouring(&[1 << 14, 1 << 15], 0),
            banks: colouring(&[1 << 14 | 1 << 17, 1 << 21], 1),
            joint: colouring(&[1 << 14], 0),
            hoarded: false,
            lock: Some(3),
            mba: Some(MbaBounds {
                classes: 8,
                least: 10,
                step: 10,
                unit: MbaUnit::Percent,
            }),
            exclusions: vec![Exclusion {
                mechanism: Mechanism::Ways,
                with: vec![Mechanism::Sets, Mechanism::Banks],
                reason: "so it is".to_owned(),
            }],
            address_map: None,
        };
        let told: Vec<String> = lines(&machine)
            .into_iter()
            .map(|(label, text)| format!("{label}: {text}"))
            .collect();
        let wanted = "\
ways: L3: masks of 16 ways of 2MiB each, 2 at least, holes not allowed; 4 classes, that of all other tasks included
sets: 4 colours of pages of 4 KiB, by address bits 14 and 15; large pages have 1
banks: 4 colours of pages of 4 KiB, by address bits 14+17 and 21 (+: exclusive or); large pages have 2
sets + banks: share 1 address bit: asked for together they are 2 colours of pages of 4 KiB, by address bit 14; large pages have 1
pseudo-lock: memory can be locked in ways of L3, which everybody then leaves
mba: 10% to 100% of a core's requests in steps of 10%; 8 classes, that of all other tasks included; what they come to in bytes has not been measured
not together: ways with sets or banks: so it is";
        assert_eq!(told.join("\n"), wanted);
        let (cpus, bounds) = (machine.cpu_set(), machine.partitions.mba.as_mut().unwrap());
        bounds.step = 50;
        let curve = MbaCurve::measure(bounds, &cpus, "read", 2, &mut |percent, cpus| {
            Ok::<f64, ()>(f64::from(percent) * 1e7 * cpus.len() as f64)
        });
        machine.measured.as_mut().unwrap().mba = curve.ok();
        let mba = |machine: &Inventory| {
            lines(machine)
                .into_iter()
                .find(|(label, _)| *label == "mba")
        };
        let text = mba(&machine).unwrap().1;
        assert!(
            text.ends_with(
                "; by streams of read 1 CPU reaches 0.1 0.5 1.0 GB/s from 10% to 100%; 2 CPUs reach 0.2 1.0 2.0 GB/s from 10% to 100%"
            ),
            "{text}"
        );
        machine.partitions.mba.as_mut().unwrap().unit = MbaUnit::MibPerS;
        assert!(mba(&machine).unwrap().1.starts_with("rates in MiB/s"));
        machine.partitions = Partitions::default();
        assert!(lines(&machine).is_empty());
    }
}
