//! What a run did about memory, in sentences.

use std::collections::BTreeMap;

use quell_record::events::{Event, Record, Steering};
use quell_types::units::Bytes;

use crate::text::{count, list};

/// What was waited for and what was done about it: a sentence per group.
pub(crate) fn memory(record: &Record) -> Vec<String> {
    let mut said = waited(record);
    said.extend(used(record));
    said.extend(steered(record));
    said.extend(own(record));
    said
}

/// What Quell itself used meanwhile.
fn own(record: &Record) -> Option<String> {
    let (mut span, mut cpu, mut resident, mut locked) = (0, 0, 0, 0);
    for stamped in &record.events {
        if let Event::Own {
            span_ns,
            cpu_ns,
            resident_bytes,
            locked_bytes,
        } = &stamped.event
        {
            span += span_ns;
            cpu += cpu_ns;
            resident = resident.max(*resident_bytes);
            locked = locked.max(*locked_bytes);
        }
    }
    (span > 0).then(|| {
        format!(
            "Quell itself took {:.1} % of one CPU meanwhile, had up to {:.1} MiB in memory, and {:.1} MiB of addresses locked.",
            cpu as f64 / span as f64 * 100.0,
            resident as f64 / MIB,
            locked as f64 / MIB,
        )
    })
}

/// How much of the memory was in use under Quell's memory control.
fn used(record: &Record) -> Option<String> {
    let (mut critical, mut others, mut total) = (0u64, 0u64, 0u64);
    let mut last = None;
    for stamped in &record.events {
        if let Event::Waited {
            bytes,
            others_bytes,
            total_bytes,
            ..
        } = &stamped.event
        {
            critical += bytes;
            // Several critical groups are recorded at the same time.
            if last.replace(stamped.at_ns) != Some(stamped.at_ns) {
                others += others_bytes;
                total += total_bytes;
            }
        }
    }
    let part = |of: u64| of as f64 / total as f64 * 100.0;
    (total > 0).then(|| {
        format!(
            "On average {:.0} % of the memory were in use by the groups: {:.0} % by the critical ones, {:.0} % by the others.",
            part(critical + others),
            part(critical),
            part(others),
        )
    })
}

#[derive(Default)]
struct Waited {
    looks: u64,
    memory_ns: u64,
    memory_full_ns: u64,
    io_ns: u64,
    refaults: u64,
    most: u64,
    least_available: Option<u64>,
}

fn waited(record: &Record) -> Vec<String> {
    let mut groups: BTreeMap<&str, Waited> = BTreeMap::new();
    for stamped in &record.events {
        if let Event::Waited {
            group,
            memory_ns,
            memory_full_ns,
            io_ns,
            refaults,
            bytes,
            available_bytes,
            ..
        } = &stamped.event
        {
            let sum = groups.entry(group).or_default();
            sum.looks += 1;
            sum.memory_ns += memory_ns;
            sum.memory_full_ns += memory_full_ns;
            sum.io_ns += io_ns;
            sum.refaults += refaults;
            sum.most = sum.most.max(*bytes);
            let least = sum.least_available.unwrap_or(u64::MAX);
            sum.least_available = Some(least.min(*available_bytes));
        }
    }
    let sentence = |(name, sum): (&str, &Waited)| {
        format!(
            "{name}: waited {:.0} ms for memory ({:.0} ms all its tasks at once) and {:.0} ms for disks; {} pages that were taken \
             came back; it used up to {}, and at least {} of memory were to be had.",
            sum.memory_ns as f64 / 1e6,
            sum.memory_full_ns as f64 / 1e6,
            sum.io_ns as f64 / 1e6,
            sum.refaults,
            mib(sum.most),
            mib(sum.least_available.unwrap_or(0)),
        )
    };
    groups.iter().map(|(n, s)| sentence((n, s))).collect()
}

#[derive(Default)]
struct Acts {
    limits: u32,
    least: Option<u64>,
    unswapped: bool,
    freezes: u32,
    frozen_ns: u64,
    since: Option<u64>,
    stops: u32,
    reclaims: u32,
    kills: u32,
}

fn steered(record: &Record) -> Vec<String> {
    let mut groups: BTreeMap<&str, Acts> = BTreeMap::new();
    let end = record.events.last().map_or(0, |e| e.at_ns);
    for stamped in &record.events {
        let Event::Steered { group, did, .. } = &stamped.event else {
            continue;
        };
        let acts = groups.entry(group).or_default();
        match did {
            Steering::Protect { .. } | Steering::Continue { .. } => {}
            Steering::KeepUnswapped => acts.unswapped = true,
            Steering::Limit { bytes } => {
                acts.limits += 1;
                let least = acts.least.unwrap_or(u64::MAX);
                acts.least = bytes.map(|b| b.min(least)).or(acts.least);
            }
            Steering::Freeze => {
                acts.freezes += 1;
                acts.since = Some(stamped.at_ns);
            }
            Steering::Thaw => {
                let since = acts.since.take().unwrap_or(stamped.at_ns);
                acts.frozen_ns += stamped.at_ns.saturating_sub(since);
            }
            Steering::Reclaim { .. } => acts.reclaims += 1,
            Steering::Stop { .. } => acts.stops += 1,
            Steering::Kill { .. } => acts.kills += 1,
        }
    }
    let mut said = Vec::new();
    for (name, acts) in groups {
        let frozen = acts.frozen_ns + acts.since.map_or(0, |since| end.saturating_sub(since));
        let mut parts = Vec::new();
        if let Some(least) = acts.least {
            parts.push(format!(
                "its limit moved {}, down to {}",
                count(acts.limits, "time"),
                mib(least)
            ));
        }
        if acts.unswapped {
            parts.push("it was not swapped out any more, since that freed little".to_owned());
        }
        if acts.freezes > 0 {
            parts.push(format!(
                "it was frozen {} for {:.1} s in all",
                count(acts.freezes, "time"),
                frozen as f64 / 1e9
            ));
        }
        let rest = [
            (acts.stops, "process", "stopped"),
            (acts.kills, "process", "killed"),
        ];
        for (n, what, done) in rest.into_iter().filter(|r| r.0 > 0) {
            let what = if n == 1 { what } else { "processes" };
            parts.push(format!("{n} {what} of it {done}"));
        }
        if acts.reclaims > 0 {
            parts.push(format!(
                "memory was reclaimed from it {}",
                count(acts.reclaims, "time")
            ));
        }
        if !parts.is_empty() {
            said.push(format!("{name}: {}.", list(&parts)));
        }
    }
    said
}

const MIB: f64 = 1_048_576.0;

/// Bytes, rounded down to whole MiB.
fn mib(bytes: u64) -> Bytes {
    Bytes(bytes >> 20 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_record::events::Stamped;

    #[test]
    fn acts_are_summed_and_an_endless_freeze_lasts_to_the_end() {
        let act = |at_ns, did| Stamped {
            at_ns,
            event: Event::Steered {
                group: "batch".into(),
                did,
                why: "it waited".into(),
            },
        };
        let limit = |mib: u64| Steering::Limit {
            bytes: Some(mib << 20),
        };
        let waited = Stamped {
            at_ns: 9_000_000_000,
            event: Event::Waited {
                group: "detector".into(),
                memory_ns: 120_000_000,
                memory_full_ns: 90_000_000,
                io_ns: 30_000_000,
                refaults: 7,
                bytes: 900 << 20,
                others_bytes: 738 << 20,
                available_bytes: 100 << 20,
                total_bytes: 2 << 30,
            },
        };
        let own = |cpu_ns, mib: u64| Stamped {
            at_ns: 9_000_000_000,
            event: Event::Own {
                span_ns: 1_000_000_000,
                cpu_ns,
                resident_bytes: mib << 20,
                locked_bytes: 3 << 20,
            },
        };
        let record = Record {
            events: vec![
                own(4_000_000, 7),
                own(8_000_000, 6),
                act(1_000_000_000, limit(300)),
                act(2_000_000_000, limit(200)),
                act(3_000_000_000, Steering::Limit { bytes: None }),
                act(4_000_000_000, Steering::Freeze),
                act(4_500_000_000, Steering::Thaw),
                act(8_000_000_000, Steering::Freeze),
                act(8_500_000_000, Steering::Kill { pid: 7 }),
                waited,
            ],
            ..Record::default()
        };
        assert_eq!(
            memory(&record),
            [
                "detector: waited 120 ms for memory (90 ms all its tasks at once) and 30 ms for disks; 7 pages that were taken came \
                 back; it used up to 900MiB, and at least 100MiB of memory were to be had.",
                "On average 80 % of the memory were in use by the groups: 44 % by the critical ones, 36 % by the others.",
                "batch: its limit moved 3 times, down to 200MiB, it was frozen 2 times for 1.5 s in all and 1 process of it killed.",
                "Quell itself took 0.6 % of one CPU meanwhile, had up to 7.0 MiB in memory, and 3.0 MiB of addresses locked.",
            ]
        );
        assert_eq!(memory(&Record::default()), [] as [&str; 0]);
    }
}
