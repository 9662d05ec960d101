//! Where every number of a profile comes from, and the numbers as reports show them.

use quell_plan::inventory::Parameter;
use quell_types::partition::MbaBounds;

use super::{Assumed, BitFunctions, CacheLevel, Profile, Replacement, TlbShape, Ways};

/// Where one number, or the rest of a section, comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The section, for example `memory` or `cache.L2`.
    pub section: String,
    /// The key. `None`: all keys of the section that are not assumed.
    pub key: Option<String>,
    /// The source, or the reason for the assumption.
    pub text: String,
    /// Whether the value is an assumption; else it has a source.
    pub assumed: bool,
}

impl Profile {
    /// Where every number comes from: for each section its source, then what is assumed.
    #[must_use]
    pub fn origins(&self) -> Vec<Origin> {
        let mut origins = Vec::new();
        for (section, source, assumed) in self.sections() {
            origins.push(Origin {
                section: section.clone(),
                key: None,
                text: source.to_owned(),
                assumed: false,
            });
            origins.extend(assumed.iter().map(|(key, why)| Origin {
                section: section.clone(),
                key: Some(key.clone()),
                text: why.clone(),
                assumed: true,
            }));
        }
        origins
    }

    fn sections(&self) -> Vec<(String, &str, &Assumed)> {
        let mut sections = vec![("cores".to_owned(), &*self.cores.source, &self.cores.assumed)];
        if let Some(smt) = &self.smt {
            sections.push(("smt".into(), &smt.source, &smt.assumed));
        }
        for level in &self.cache {
            let name = format!("cache.{}", level.name);
            sections.push((name, &level.source, &level.assumed));
        }
        sections.push(("memory".into(), &self.memory.source, &self.memory.assumed));
        sections.push(("tlb".into(), &self.tlb.source, &self.tlb.assumed));
        if let Some(first) = &self.tlb.first {
            sections.push(("tlb.first".into(), &first.source, &first.assumed));
        }
        if let Some(p) = &self.prefetcher {
            sections.push(("prefetcher".into(), &p.source, &p.assumed));
        }
        sections.push((
            "counters".into(),
            &self.counters.source,
            &self.counters.assumed,
        ));
        sections.push(("os".into(), &self.os.source, &self.os.assumed));
        let mechanisms = &self.mechanisms;
        sections.push(("mechanisms".into(), &mechanisms.source, &mechanisms.assumed));
        sections
    }

    /// Every number with its value and its origin, for records and reports.
    #[must_use]
    pub fn parameters(&self) -> Vec<Parameter> {
        let mut all = Vec::new();
        let values = self.values();
        for ((section, source, assumed), values) in self.sections().into_iter().zip(values) {
            all.extend(values.into_iter().map(|(key, value)| {
                let origin = match assumed.get(key) {
                    Some(why) => format!("assumed: {why}"),
                    None => source.to_owned(),
                };
                let name = format!("{section}.{key}");
                Parameter {
                    name,
                    value,
                    origin,
                }
            }));
        }
        all
    }

    /// Keys and values, in the order of [`Profile::sections`]. What the profile lacks is left out.
    fn values(&self) -> Vec<Vec<(&'static str, String)>> {
        let c = &self.cores;
        let mut cores = vec![
            text("count", &c.count),
            text("threads", &c.threads),
            text("mhz", &c.mhz),
            text("misses", &c.misses),
        ];
        cores.extend(c.window.map(|window| text("window", &window)));
        let mut all = vec![cores];
        if let Some(smt) = &self.smt {
            all.push(vec![
                text("issue", &smt.issue),
                text("loads", &smt.loads),
                text("stores", &smt.stores),
            ]);
        }
        for level in &self.cache {
            all.push(cache_values(level));
        }
        let m = &self.memory;
        let mut values = vec![
            text("size", &m.size),
            ("timing", format!("{:?}", m.timing)),
            text("transit", &m.transit),
        ];
        if m.channels_in_turn > 1 {
            values.push(text("channels-in-turn", &m.channels_in_turn));
        }
        let fields = [
            bits("channel", &m.channel),
            bits("rank", &m.rank),
            bits("bank", &m.bank),
            bits("row", &m.row),
            bits("column", &m.column),
        ];
        values.extend(fields.into_iter().flatten());
        all.push(values);
        all.extend(translation(&self.tlb));
        if let Some(p) = &self.prefetcher {
            all.push(vec![
                text("on", &p.on),
                text("streams", &p.streams),
                text("degree", &p.degree),
                text("distance", &p.distance),
            ]);
        }
        let counters = &self.counters;
        all.push(vec![
            text("delay", &counters.delay),
            text("writes", &counters.writes),
        ]);
        let os = &self.os;
        let mut values = vec![
            text("slice", &os.slice),
            text("switch", &os.switch),
            text("interrupt", &os.interrupt),
            text("frames", &os.frames),
        ];
        values.extend((os.tick.0 > 0).then(|| text("tick", &os.tick)));
        values.extend((os.kernel.0 > 0).then(|| text("kernel", &os.kernel)));
        all.push(values);
        let m = &self.mechanisms;
        let names: Vec<&str> = m
            .available
            .iter()
            .map(|mechanism| mechanism.name())
            .collect();
        let mut values = vec![("available", names.join(" "))];
        values.extend(m.ways.as_ref().map(|ways| ("ways", ways.to_string())));
        values.extend(m.mba.as_ref().map(|mba| ("mba", bounds(mba))));
        all.push(values);
        all
    }
}

/// Keys and values of the TLB, and of its first level if there is one.
fn text(key: &'static str, value: &dyn ToString) -> (&'static str, String) {
    (key, value.to_string())
}

/// Nothing where there are no functions.
fn bits(key: &'static str, functions: &BitFunctions) -> Option<(&'static str, String)> {
    (!functions.0.is_empty()).then(|| (key, masks(functions)))
}

/// Keys and values of a cache.
fn cache_values(level: &CacheLevel) -> Vec<(&'static str, String)> {
    let mut values = vec![
        text("size", &level.size),
        text("ways", &level.ways),
        text("line", &level.line),
        ("latency", format!("{} cycles", level.latency)),
        text("cores", &level.cores),
        ("replacement", format!("{:?}", level.replacement)),
        ("inclusion", format!("{:?}", level.inclusion)),
    ];
    if level.port > 0 {
        values.push(("port", format!("{} cycles", level.port)));
    }
    if level.replacement == Replacement::Bimodal {
        values.push(text("aging", &level.aging));
    }
    values.extend(
        [bits("set", &level.set), bits("slice", &level.slice)]
            .into_iter()
            .flatten(),
    );
    values
}

fn translation(tlb: &TlbShape) -> Vec<Vec<(&'static str, String)>> {
    let text = |key, value: &dyn ToString| (key, value.to_string());
    let cycles = |key, cycles: u32| (key, format!("{cycles} cycles"));
    let mut last = vec![
        text("entries", &tlb.entries),
        text("ways", &tlb.ways),
        text("large-entries", &tlb.large_entries),
        text("large-ways", &tlb.large_ways),
        text("large-page", &tlb.large_page),
        cycles("walk", tlb.walk),
    ];
    last.extend(tlb.software.then(|| text("software", &true)));
    last.push(text("tagged", &tlb.tagged));
    let first = tlb.first.as_ref().map(|first| {
        vec![
            text("entries", &first.entries),
            text("ways", &first.ways),
            text("large-entries", &first.large_entries),
            text("large-ways", &first.large_ways),
            cycles("refill", first.refill),
        ]
    });
    std::iter::once(last).chain(first).collect()
}

/// The functions as masks over the address, lowest output bit first.
fn masks(functions: &BitFunctions) -> String {
    let masks: Vec<String> = functions
        .0
        .iter()
        .map(|mask| format!("{mask:#x}"))
        .collect();
    masks.join(" ")
}

impl std::fmt::Display for Ways {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}, {} classes, masks of {} bits, at least {}{}{}",
            self.cache,
            self.classes,
            self.segments,
            self.least,
            if self.sparse { ", with holes" } else { "" },
            if self.regions { ", per region" } else { "" }
        )
    }
}

fn bounds(mba: &MbaBounds) -> String {
    format!(
        "{} classes, from {} % in steps of {} %",
        mba.classes, mba.least, mba.step
    )
}
