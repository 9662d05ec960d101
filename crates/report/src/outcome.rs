//! The outcome of a run that compared nothing, from its record.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use quell_record::events::{ColouredPages, Declared, Event, Paged, Record, Spent};
use quell_types::mechanism::Level;

use crate::memory::memory;
use crate::plan::plan_steps_text;
use crate::text::{Style, Tone, count, number, thousands};
use crate::throttling::counted;
use crate::ways::record_text;
use crate::{hold, lost, owners};

/// The record of a run for a terminal: its plans, then how it went.
#[must_use]
pub fn run_text(record: &Record, style: Style) -> String {
    let mut out = style.paint(Tone::Title, &format!("Run of {}", record.name)) + "\n";
    if let Some(created) = &record.created {
        out.push_str(&style.wrap("", "", created));
    }
    for plan in record.plans.values() {
        out.push_str(&format!("\n{}", plan_steps_text(plan, style)));
    }
    out.push('\n');
    for sentence in outcome(record) {
        out.push_str(&style.wrap("", "", &sentence));
    }
    out + &record_text(record, style)
}

/// How a run went, in sentences.
pub(crate) fn outcome(record: &Record) -> Vec<String> {
    let mut said = Vec::new();
    said.extend(held(record));
    if let Some(last) = record.events.last() {
        said.push(format!("It lasted {:.1} s.", last.at_ns as f64 / 1e9));
    }
    if let Some(text) = counted(&record.events) {
        said.push(text);
    }
    said.extend(windows(record));
    said.extend(turns(record));
    said.extend(units(record));
    said.extend(targets(record));
    said.extend(memory(record));
    said.extend(spent(record));
    said.extend(paged(record));
    said.extend(coloured(record));
    said.extend(owned(record));
    for event in &record.events {
        if let Event::Exit { group, status } = &event.event {
            said.push(format!("{group} ended with status {status}."));
        }
    }
    said.extend(lost::of_run(record));
    said
}

/// How many promises held at the level that was planned, all the time.
fn held(record: &Record) -> Option<String> {
    let level = record.plans.values().map(|p| p.level()).min()?;
    let (mut all, mut kept) = (0_u32, 0_u32);
    for plan in record.plans.values() {
        let standing = lost::standing(record, plan);
        let worths = standing.all().map(|(_, worth)| worth);
        for worth in worths.filter(|worth| worth.planned > Level::None) {
            all += 1;
            kept += u32::from(worth.least >= worth.planned);
        }
    }
    let promises = count(all, "promise");
    Some(match kept == all {
        true => format!("Held {promises} at level {level}."),
        false => format!("Held {kept} of {promises} as planned."),
    })
}

/// Whether the groups' units met their targets.
fn targets(record: &Record) -> Vec<String> {
    let told = record
        .events
        .iter()
        .filter_map(|stamped| match &stamped.event {
            Event::Target { group, verdict } => Some(hold::target(group, verdict) + "."),
            _ => None,
        });
    told.collect()
}

/// How exactly windows were kept, by the last event of them.
fn windows(record: &Record) -> Vec<String> {
    let mut events = record.events.iter().rev();
    let last = events.find_map(|stamped| match &stamped.event {
        Event::Windows { kept } => Some(kept),
        _ => None,
    });
    let lines = last.map(crate::windows::kept).unwrap_or_default();
    lines.into_iter().map(|line| line + ".").collect()
}

/// How processes took turns, by the last event of them.
fn turns(record: &Record) -> Vec<String> {
    let mut events = record.events.iter().rev();
    let last = events.find_map(|stamped| match &stamped.event {
        Event::Turns { turns } => Some(turns),
        _ => None,
    });
    let lines = last.map(crate::quanta::taken).unwrap_or_default();
    lines.into_iter().map(|line| line + ".").collect()
}

/// How the groups' units of work went, and how their budgets moved.
fn units(record: &Record) -> Vec<String> {
    #[derive(Default)]
    struct Sum {
        units: u64,
        late: u64,
        lost: u64,
        worst_ns: u64,
        left: Vec<u64>,
        declared: Vec<Declared>,
    }
    let mut groups: BTreeMap<&str, Sum> = BTreeMap::new();
    for stamped in &record.events {
        match &stamped.event {
            Event::Units {
                group,
                units,
                late,
                lost,
                worst_ns,
                ..
            } => {
                let sum = groups.entry(group).or_default();
                sum.units += units;
                sum.late += late;
                sum.lost += lost;
                sum.worst_ns = sum.worst_ns.max(*worst_ns);
            }
            Event::Adapted {
                group,
                to_bytes_per_s,
                ..
            } => groups.entry(group).or_default().left.push(*to_bytes_per_s),
            Event::Declared { group, declared } => {
                groups.entry(group).or_default().declared.push(*declared);
            }
            _ => {}
        }
    }
    let mb = |rate: u64| format!("{} MB/s", number(rate as f64 / 1e6));
    let sentence = |(name, sum): (&str, &Sum)| {
        let mut text = format!(
            "{name}: {} units of work, {} late ({:.2} %), the slowest {} ms",
            thousands(&sum.units.to_string()),
            sum.late,
            sum.late as f64 * 100.0 / sum.units.max(1) as f64,
            number(sum.worst_ns as f64 / 1e6),
        );
        if sum.lost > 0 {
            let _ = write!(
                text,
                "; {} more were reported faster than they were read",
                sum.lost
            );
        }
        if let (Some(last), Some(least)) = (sum.left.last(), sum.left.iter().min()) {
            let _ = write!(
                text,
                "; what is left to the others was moved {}, down to {} and at last to {}",
                count(u32::try_from(sum.left.len()).unwrap_or(u32::MAX), "time"),
                mb(*least),
                mb(*last)
            );
        }
        if let Some(said) = sum.declared.last() {
            let _ = write!(text, "; its program says: {said}");
        }
        text + "."
    };
    groups
        .iter()
        .map(|(name, sum)| sentence((name, sum)))
        .collect()
}

/// What kept the groups from running, as totals over the run. The kernel reports this without the
/// programs' help. Which part of it made work late, only a program that times its own work can
/// show.
fn spent(record: &Record) -> Vec<String> {
    let mut groups: BTreeMap<&str, Spent> = BTreeMap::new();
    for stamped in &record.events {
        if let Event::Spent { group, spent } = &stamped.event {
            let sum = groups.entry(group).or_default();
            *sum = sum.plus(*spent);
        }
    }
    let ms = |ns: u64| format!("{} ms", number(ns as f64 / 1e6));
    let faults = |n: u64| thousands(&n.to_string());
    let mut said: Vec<String> = groups
        .iter()
        .filter(|(_, sum)| sum.ran_ns > 0)
        .map(|(name, sum)| {
            let mut text = format!(
                "{name}: its threads ran {} and waited {} for a CPU, with {} minor and {} major page faults",
                ms(sum.ran_ns),
                ms(sum.waited_ns),
                faults(sum.minor_faults),
                faults(sum.major_faults),
            );
            let stolen = stolen(record, name);
            if stolen > 0 {
                let _ = write!(text, "; the hypervisor took {} of its CPUs' time", ms(stolen));
            }
            text + "."
        })
        .collect();
    if !said.is_empty() {
        said.push(
            "Threads were looked at every second: what lived shorter, and the end of each, is missing.".to_owned(),
        );
    }
    said
}

/// The pages that the groups' memory lay in at first and at last.
fn paged(record: &Record) -> Vec<String> {
    let mut groups: BTreeMap<&str, (Paged, Paged)> = BTreeMap::new();
    for stamped in &record.events {
        if let Event::Paged { group, pages } = &stamped.event {
            groups.entry(group).or_insert((*pages, *pages)).1 = *pages;
        }
    }
    let said = groups.iter();
    said.map(|(group, (first, last))| hold::paged(group, *first, *last) + ".")
        .collect()
}

/// The colours of the pages of each process at last.
fn coloured(record: &Record) -> Vec<String> {
    let mut last: BTreeMap<(&str, u32), (&str, bool, ColouredPages)> = BTreeMap::new();
    for stamped in &record.events {
        if let Event::Coloured {
            group,
            pid,
            program,
            out,
            pages,
        } = &stamped.event
        {
            last.insert((group, *pid), (program, *out, *pages));
        }
    }
    let said = last.iter();
    said.map(|((group, pid), (program, out, pages))| {
        hold::coloured(group, *pid, program, *out, *pages) + "."
    })
    .collect()
}

/// Which programs had frames of reserved colours, at first and at last.
fn owned(record: &Record) -> Vec<String> {
    let mut all = record
        .events
        .iter()
        .filter_map(|stamped| match &stamped.event {
            Event::Owners { owners } => Some(owners),
            _ => None,
        });
    let Some(first) = all.next() else {
        return Vec::new();
    };
    let said = owners::had(first, all.next_back().unwrap_or(first));
    said.into_iter().map(|line| line + ".").collect()
}

/// What the hypervisor took of a group's CPUs, from the first sample of them to the last.
fn stolen(record: &Record, group: &str) -> u64 {
    let plan = record.plans.values().next();
    let own = plan
        .and_then(|p| p.cpus(group))
        .cloned()
        .unwrap_or_default();
    let looks = own.iter().filter_map(|cpu| record.cpu_times.get(&cpu));
    let taken =
        looks.filter_map(|l| Some(l.last()?.1.steal_ns.saturating_sub(l.first()?.1.steal_ns)));
    taken.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use quell_record::events::Stamped;
    use quell_record::standing::Cause;
    use quell_record::target::TargetVerdict;
    use quell_types::ids::PromiseId;
    use quell_types::units::Share;

    #[test]
    fn a_run_is_told_by_its_plan_and_how_it_went() {
        let mut record = sample::record();
        record.result = None;
        record.plans.retain(|name, _| name == "regulated@10%");
        let half = Spent {
            ran_ns: 1_250_000_000,
            waited_ns: 250_000_000,
            minor_faults: 700,
            major_faults: 1,
        };
        // The host takes 300 ms of the victim's CPU.
        let plan = record.plans.values_mut().next().unwrap();
        plan.groups[0].cpus = "1".parse().unwrap();
        let events = [
            Event::Throttle {
                cpu: 1,
                group: "neighbour".into(),
                overflows: 9,
                throttles: 7,
                throttled_ns: 6_500_000,
                lines: 0,
                pooled: None,
            },
            Event::Spent {
                group: "victim".into(),
                spent: half,
            },
            Event::Spent {
                group: "victim".into(),
                spent: half,
            },
            Event::Exit {
                group: "victim".into(),
                status: 3,
            },
            Event::Units {
                group: "victim".into(),
                units: 1_500,
                late: 3,
                median_ns: 6_000_000,
                worst_ns: 9_500_000,
                lost: 2,
            },
            Event::Declared {
                group: "victim".into(),
                declared: Declared {
                    bytes_per_unit: 4_000_000,
                    working_set: 3 << 20,
                },
            },
            Event::Adapted {
                group: "victim".into(),
                from_bytes_per_s: 4_000_000_000,
                to_bytes_per_s: 2_000_000_000,
                reserved_bytes_per_s: 8_000_000_000,
                why: "a unit took 9ms of 8ms".into(),
            },
        ];
        let at_ns = 14_000_000_000;
        record
            .events
            .extend(events.map(|event| Stamped { at_ns, event }));
        let style = Style {
            color: false,
            width: 400,
        };
        let text = run_text(&record, style);
        for needed in [
            "Run of neighbour",
            "Plan for",
            "It lasted 14.0 s.",
            "The regulator of CPU 1 stopped it 7 times, 6.50 ms in all.",
            "victim: its threads ran 2,500 ms and waited 500 ms for a CPU, with 1,400 minor and 2 major page faults; the \
             hypervisor took 300 ms of its CPUs' time.",
            "what lived shorter, and the end of each, is missing",
            "victim ended with status 3.",
            "victim: 1,500 units of work, 3 late (0.20 %), the slowest 9.50 ms; 2 more were reported faster than they were read; what \
             is left to the others was moved 1 time, down to 2,000 MB/s and at last to 2,000 MB/s; its program says: a unit moves 4MB, its working set is 3MiB.",
        ] {
            assert!(text.contains(needed), "{needed}: {text}");
        }
    }

    #[test]
    fn what_was_lost_or_missed_is_not_said_to_have_held() {
        let mut record = sample::record();
        record.plans.retain(|name, _| name == "regulated@10%");
        let promises = record.plans["regulated@10%"].promises.len();
        assert!(outcome(&record)[0].starts_with(&format!("Held {promises} promises at level")));
        let events = [
            Event::Promise {
                id: PromiseId(2),
                level: Level::None,
                because: Cause::Evicted,
            },
            Event::Target {
                group: "victim".into(),
                verdict: TargetVerdict {
                    units: 100,
                    late: 7,
                    allowed: Share::percent(1),
                    longest_ns: 9_000_000,
                    programs: None,
                },
            },
        ];
        let at_ns = 14_000_000_000;
        record
            .events
            .extend(events.map(|event| Stamped { at_ns, event }));
        let said = outcome(&record);
        let kept = promises - 1;
        assert_eq!(
            said[0],
            format!("Held {kept} of {promises} promises as planned.")
        );
        let missed =
            "victim: target missed: 7 of 100 were late, 1% may be; the longest took 9.00 ms.";
        assert!(said.contains(&missed.to_owned()), "{said:?}");
    }
}
