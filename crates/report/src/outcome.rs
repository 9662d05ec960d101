//! How a run went that compared nothing, from its record.

use quell_core::record::{Event, Record};

use crate::plan::plan_text;
use crate::text::{Style, Tone, count};
use crate::throttling::counted;

/// The record of a run for a terminal: its plans, then how it went.
#[must_use]
pub fn run_text(record: &Record, style: Style) -> String {
    let mut out = style.paint(Tone::Title, &format!("Run of {}", record.name)) + "\n";
    if let Some(created) = &record.created {
        out.push_str(&style.wrap("", "", created));
    }
    for plan in record.plans.values() {
        out.push_str(&format!("\n{}", plan_text(plan, style)));
    }
    out.push('\n');
    for sentence in outcome(record) {
        out.push_str(&style.wrap("", "", &sentence));
    }
    out
}

/// How a run went, in sentences.
pub(crate) fn outcome(record: &Record) -> Vec<String> {
    let mut said = Vec::new();
    let level = record.plans.values().map(|p| p.level()).min();
    let promises: usize = record.plans.values().map(|p| p.promises.len()).sum();
    if let Some(level) = level {
        let promises = count(u32::try_from(promises).unwrap_or(u32::MAX), "promise");
        said.push(format!("Held {} at level {level}.", promises));
    }
    if let Some(last) = record.events.last() {
        said.push(format!("It lasted {:.1} s.", last.at_ns as f64 / 1e9));
    }
    if let Some(text) = counted(&record.events) {
        said.push(text);
    }
    for event in &record.events {
        if let Event::Exit { group, status } = &event.event {
            said.push(format!("{group} ended with status {status}."));
        }
    }
    let lost = record.events.iter().filter_map(|e| match &e.event {
        Event::Finding { what, .. } if what.contains("level none") => Some(what.clone()),
        _ => None,
    });
    said.extend(lost);
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use quell_core::record::Stamped;

    #[test]
    fn a_run_is_told_by_its_plan_and_how_it_went() {
        let mut record = sample::record();
        record.result = None;
        record.plans.retain(|name, _| name == "regulated@10%");
        let events = [
            Event::Throttle {
                cpu: 1,
                group: "neighbour".into(),
                overflows: 9,
                throttles: 7,
                throttled_ns: 6_500_000,
                lines: 0,
            },
            Event::Exit {
                group: "victim".into(),
                status: 3,
            },
        ];
        let at_ns = 14_000_000_000;
        record
            .events
            .extend(events.map(|event| Stamped { at_ns, event }));
        let style = Style {
            color: false,
            width: 200,
        };
        let text = run_text(&record, style);
        for needed in [
            "Run of neighbour",
            "Plan for",
            "It lasted 14.0 s.",
            "The regulator of CPU 1 stopped it 7 times, 6.50 ms in all.",
            "victim ended with status 3.",
        ] {
            assert!(text.contains(needed), "{needed}: {text}");
        }
    }
}
