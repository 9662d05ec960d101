//! What the reader must hold against the figures: computed from the record, worst first.

use maud::html;
use quell_plan::inventory::{Inventory, MeterKind};
use quell_record::events::Event;
use quell_record::result::CompareResult;

use crate::compare::{skipped, unmeasured};
use crate::lost;
use crate::text::{count, list, percent};

use super::page::{Page, Section};
use super::series::parts;

/// With fewer rounds an interval says little.
const FEW: u32 = 5;
/// A host that takes less than this of a CPU is not worth a warning.
const LITTLE: f64 = 0.005;
/// More kinds of findings than this are for events.jsonl.
const MOST_FINDINGS: usize = 8;

pub(crate) fn section(page: &Page<'_>) -> Option<Section> {
    let mut said = Vec::new();
    if let Some(result) = page.result() {
        said.extend(lost::of_cells(result));
        incomplete(result, &mut said);
        said.extend(sharing(result));
        rounds(result, &mut said);
    }
    said.push(steal(page));
    if let Some(machine) = &page.record.machine {
        surroundings(machine, &mut said);
    }
    findings(page, &mut said);
    (!said.is_empty()).then(|| Section {
        id: "caveats",
        title: "What to hold against it",
        body: html! { ul { @for sentence in &said { li { (sentence) } } } },
    })
}

fn incomplete(result: &CompareResult, said: &mut Vec<String>) {
    if let Some(why) = &result.interrupted {
        said.push(format!(
            "The experiment ended early: {why}. Later rounds are missing."
        ));
    }
    said.extend(unmeasured(
        result,
        "could not be measured, also not at a second attempt",
    ));
    said.extend(skipped(result));
    for row in result.expectations.iter().filter(|e| !e.met) {
        said.push(format!(
            "Not as expected: {} of {} under {}.",
            row.expected, row.subject, row.configuration
        ));
    }
}

fn sharing(result: &CompareResult) -> Option<String> {
    let baseline = result.baseline.as_ref();
    let told: Vec<(&str, u32, u32)> = result
        .configurations
        .iter()
        .filter(|c| Some(&c.name) != baseline && c.rounds > 0)
        .filter_map(|c| Some((c.name.as_str(), c.rounds_shared?, c.rounds)))
        .collect();
    if told.is_empty() {
        return Some(
            "Whether the subjects' CPUs shared a cache could not be told: without one there is less to protect from."
                .to_owned(),
        );
    }
    let partly: Vec<String> = told
        .iter()
        .filter(|(_, shared, rounds)| shared < rounds)
        .map(|(name, shared, rounds)| format!("{name} {shared} of {rounds}"))
        .collect();
    Some(if partly.is_empty() {
        "By a probe of its own before and after every cell, the subjects' CPUs shared a cache in all rounds.".to_owned()
    } else {
        format!(
            "By a probe of its own before and after every cell, the subjects' CPUs did not share a cache in all rounds: {}. \
             No round was left out by a subject's own result.",
            list(&partly)
        )
    })
}

fn rounds(result: &CompareResult, said: &mut Vec<String>) {
    if result.rounds < FEW {
        said.push(format!(
            "{} only: the intervals are coarse, and a lucky round weighs much. Ask for more with --rounds.",
            count(result.rounds, "round")
        ));
    }
    let shown = result
        .configurations
        .iter()
        .filter(|c| c.rounds > 0)
        .count();
    said.push(format!(
        "Each interval stands for itself at {}: of {shown} configurations looked at together, one may well be outside by \
         chance.",
        percent(result.confidence)
    ));
}

/// What the host took of the CPUs while something was measured.
fn steal(page: &Page<'_>) -> String {
    let mut told = Vec::new();
    for (cpu, times) in &page.record.cpu_times {
        let parts = parts(times, |t| t.steal_ns);
        let all: f64 = parts.iter().map(|(from, to, _)| (to - from) as f64).sum();
        let taken: f64 = parts
            .iter()
            .map(|(from, to, part)| (to - from) as f64 * part)
            .sum();
        let worst = parts.iter().map(|p| p.2).fold(0.0, f64::max);
        if all > 0.0 {
            told.push((taken / all, worst, *cpu));
        }
    }
    told.sort_by(|a, b| b.0.total_cmp(&a.0));
    let Some((most, _, _)) = told.first() else {
        return "What the host took of the CPUs (steal) is not in this record.".to_owned();
    };
    if *most < LITTLE {
        let worst = told.iter().map(|t| t.1).fold(0.0, f64::max);
        return format!(
            "The host took next to nothing of the CPUs while they were measured: {} or less, at most {} of any 100 ms (steal, as \
             far as the host tells).",
            percent(*most),
            percent(worst)
        );
    }
    let words: Vec<String> = told
        .iter()
        .filter(|(part, ..)| *part >= LITTLE)
        .take(4)
        .map(|(part, worst, cpu)| {
            format!(
                "{} of CPU {cpu} ({} in the worst 100 ms)",
                percent(*part),
                percent(*worst)
            )
        })
        .collect();
    format!(
        "While it was measured, the host ran others: it took {}. Late windows that fall there are not the neighbour's doing.",
        list(&words)
    )
}

fn surroundings(machine: &Inventory, said: &mut Vec<String>) {
    if let Some(hypervisor) = &machine.identity.hypervisor {
        said.push(format!(
            "A virtual machine ({hypervisor}): other guests share its caches and its memory, and nothing here shows them \
             but steal."
        ));
    }
    if machine.means.meter == MeterKind::Time {
        said.push(
            "No memory traffic counter counts here: bandwidth limits are held by CPU time at the measured peak rate, an upper \
             bound, hence level estimated at best."
                .to_owned(),
        );
    }
}

/// Most findings are told once per cell, often with other numbers in them: each is told once, with how often.
fn findings(page: &Page<'_>, said: &mut Vec<String>) {
    let mut all: Vec<(String, &str, u32)> = Vec::new();
    for stamped in &page.record.events {
        if let Event::Finding { what, .. } = &stamped.event {
            let kind: String = what.chars().filter(|c| !c.is_ascii_digit()).collect();
            match all.iter_mut().find(|(known, ..)| *known == kind) {
                Some((.., times)) => *times += 1,
                None => all.push((kind, what, 1)),
            }
        }
    }
    let more = all.len().saturating_sub(MOST_FINDINGS);
    for (_, what, times) in all.into_iter().take(MOST_FINDINGS) {
        let times = if times > 1 {
            format!(" ({times} times, or with other numbers)")
        } else {
            String::new()
        };
        said.push(format!("Found: {what}{times}"));
    }
    if more > 0 {
        said.push(format!(
            "{more} more kinds of findings are in events.jsonl."
        ));
    }
}
