//! Limits of a result, computed from the record, in a fixed order of topics.

use maud::html;
use quell_plan::inventory::{Inventory, MeterKind};
use quell_record::about::About;
use quell_record::events::Event;
use quell_record::result::CompareResult;

use crate::compare::{believed, skipped, unmeasured};
use crate::lost;
use crate::published::published_faults;
use crate::text::{count, list, percent};

use super::page::{Page, Section};
use super::series::parts;

/// With fewer rounds an interval says little.
const FEW: u32 = 5;
/// Steal below this fraction of a CPU is reported as next to nothing.
const LITTLE: f64 = 0.005;
/// With more findings than this, the rest is only in events.jsonl.
const MOST_FINDINGS: usize = 8;

/// The section of limits. It is always there, because steal is always reported.
pub(crate) fn section(page: &Page<'_>) -> Option<Section> {
    let mut said = Vec::new();
    if let Some(result) = page.result() {
        said.extend(lost::of_cells(result));
        incomplete(result, &mut said);
        said.push(sharing(result));
        said.extend(believed(result));
        rounds(result, &mut said);
    }
    said.push(steal(page));
    if let Some(machine) = &page.record.machine {
        surroundings(machine, &mut said);
    }
    findings(page, &mut said);
    (!said.is_empty()).then(|| Section {
        id: "caveats",
        title: "Limits of this result",
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
    let unlike = published_faults(result).into_iter();
    said.extend(unlike.map(|fault| format!("Not as published: {fault}.")));
}

/// Whether the subjects' CPUs shared a cache. The baseline runs each subject alone, so it is left
/// out.
fn sharing(result: &CompareResult) -> String {
    let baseline = result.baseline.as_ref();
    let known: Vec<(&str, u32, u32)> = result
        .configurations
        .iter()
        .filter(|c| Some(&c.name) != baseline && c.rounds > 0)
        .filter_map(|c| Some((c.name.as_str(), c.rounds_shared?, c.rounds)))
        .collect();
    if known.is_empty() {
        return "It is not known whether the subjects' CPUs shared a cache. Without a shared cache there is less interference."
            .to_owned();
    }
    let partly: Vec<String> = known
        .iter()
        .filter(|(_, shared, rounds)| shared < rounds)
        .map(|(name, shared, rounds)| format!("{name} {shared} of {rounds}"))
        .collect();
    if partly.is_empty() {
        "The subjects' CPUs shared a cache in all rounds, as a probe before and after every cell found.".to_owned()
    } else {
        format!(
            "The subjects' CPUs shared a cache in only some rounds, as a probe before and after every cell found: {}. \
             Rounds are never left out because of a subject's result.",
            list(&partly)
        )
    }
}

fn rounds(result: &CompareResult, said: &mut Vec<String>) {
    if result.rounds < FEW {
        said.push(format!(
            "{} only: the intervals are coarse, and one unusual round changes them much. Ask for more with --rounds.",
            count(result.rounds, "round")
        ));
    }
    let shown = result
        .configurations
        .iter()
        .filter(|c| c.rounds > 0)
        .count();
    said.push(format!(
        "Each interval holds by itself at {}: of {shown} configurations compared together, one may well be outside by \
         chance.",
        percent(result.confidence)
    ));
}

/// What the host took of the CPUs while plans were held, between one sample and the next.
fn steal(page: &Page<'_>) -> String {
    let mut taken_of = Vec::new();
    for (cpu, times) in &page.record.cpu_times {
        let parts = parts(times, |t| t.steal_ns);
        let all: f64 = parts.iter().map(|(from, to, _)| (to - from) as f64).sum();
        let taken: f64 = parts
            .iter()
            .map(|(from, to, part)| (to - from) as f64 * part)
            .sum();
        let worst = parts.iter().map(|p| p.2).fold(0.0, f64::max);
        if all > 0.0 {
            taken_of.push((taken / all, worst, *cpu));
        }
    }
    taken_of.sort_by(|a, b| b.0.total_cmp(&a.0));
    let Some((most, _, _)) = taken_of.first() else {
        return "What the host took of the CPUs (steal) is not in this record.".to_owned();
    };
    if *most < LITTLE {
        let worst = taken_of.iter().map(|t| t.1).fold(0.0, f64::max);
        return format!(
            "The host took next to nothing of the CPUs while they were measured: {} or less, at most {} between two samples \
             (steal, as far as the host reports it).",
            percent(*most),
            percent(worst)
        );
    }
    let words: Vec<String> = taken_of
        .iter()
        .filter(|(part, ..)| *part >= LITTLE)
        .take(4)
        .map(|(part, worst, cpu)| {
            format!(
                "{} of CPU {cpu} ({} between the worst two samples)",
                percent(*part),
                percent(*worst)
            )
        })
        .collect();
    format!(
        "While it was measured, the host ran other guests: it took {}. Windows that are late at these times may be late because \
         of the host.",
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

/// A finding, with all findings that are shown together with it.
struct Found<'r> {
    about: &'r About,
    group: Option<&'r str>,
    /// The sentence of the first of them.
    what: &'r str,
    /// How many cells had begun when the last one came.
    cell: u32,
    times: u32,
    /// Whether some of them have another sentence.
    differ: bool,
}

impl Found<'_> {
    /// Whether the other finding says the same.
    fn repeats(&self, other: &Found<'_>) -> bool {
        self.group == other.group && self.what == other.what
    }

    /// Whether the other finding is about the same thing. A mechanism may report several things
    /// about one cell, which are listed separately.
    fn covers(&self, other: &Found<'_>) -> bool {
        let several = matches!(self.about, About::Mechanism { .. }) && self.cell == other.cell;
        self.group == other.group && self.about.same(other.about) && !several
    }
}

/// Most findings are recorded once per cell. Those about the same thing are shown once, with their
/// count.
fn findings(page: &Page<'_>, said: &mut Vec<String>) {
    let mut all: Vec<Found<'_>> = Vec::new();
    let mut cell = 0;
    for stamped in &page.record.events {
        let (what, group, about) = match &stamped.event {
            Event::Finding { what, group, about } => (what.as_str(), group.as_deref(), about),
            Event::Cell { .. } => {
                cell += 1;
                continue;
            }
            _ => continue,
        };
        let found = Found {
            about,
            group,
            what,
            cell,
            times: 1,
            differ: false,
        };
        let at = all.iter().position(|known| known.repeats(&found));
        let at = at.or_else(|| all.iter().position(|known| known.covers(&found)));
        match at.and_then(|at| all.get_mut(at)) {
            Some(known) => {
                known.times += 1;
                known.cell = cell;
                known.differ |= known.what != what;
            }
            None => all.push(found),
        }
    }
    let more = all.len().saturating_sub(MOST_FINDINGS);
    for found in all.into_iter().take(MOST_FINDINGS) {
        let times = match (found.times, found.differ) {
            (1, _) => String::new(),
            (times, false) => format!(" ({times} times)"),
            (times, true) => format!(" ({times} times, not always in these words)"),
        };
        said.push(format!("Found: {}{times}", found.what));
    }
    if more > 0 {
        let more = count(u32::try_from(more).unwrap_or(u32::MAX), "more finding");
        said.push(format!("In events.jsonl: {more}."));
    }
}

#[cfg(test)]
mod tests {
    use quell_record::events::{Record, Stamped};
    use quell_types::mechanism::Mechanism;

    use super::*;

    fn told(events: Vec<Event>) -> Vec<String> {
        let events = events.into_iter();
        let record = Record {
            events: events.map(|event| Stamped { at_ns: 0, event }).collect(),
            ..Record::default()
        };
        let mut said = Vec::new();
        findings(&Page::new(&record), &mut said);
        said
    }

    fn cell(round: u32) -> Event {
        Event::Cell {
            round,
            of: 2,
            configuration: "c".to_owned(),
            subject: None,
        }
    }

    #[test]
    fn what_is_about_the_same_is_told_once() {
        let drift = |path: &str, now: u32| {
            let path = path.to_owned();
            let what = format!("{path} is {now}");
            Event::finding(About::Drift { path }, what, None)
        };
        let units = |group| Event::finding(About::Units, "late", Some(group));
        let said = told(vec![
            drift("/cpu1", 3),
            drift("/cpu2", 3),
            drift("/cpu1", 4),
            units("a"),
            units("b"),
            units("a"),
        ]);
        let expected = [
            "Found: /cpu1 is 3 (2 times, not always in these words)",
            "Found: /cpu2 is 3",
            "Found: late (2 times)",
            "Found: late",
        ];
        assert_eq!(said, expected);
    }

    #[test]
    fn what_a_mechanism_says_of_one_cell_stays_apart() {
        let note = |what: &str| {
            let about = About::Mechanism {
                mechanism: Mechanism::Cores,
            };
            Event::finding(about, what, None)
        };
        let said = told(vec![
            cell(0),
            note("kworker/1 stays"),
            note("no cpuset"),
            cell(1),
            note("kworker/3 stays"),
            note("no cpuset"),
            note("no tuning"),
        ]);
        let expected = [
            "Found: kworker/1 stays (2 times, not always in these words)",
            "Found: no cpuset (2 times)",
            "Found: no tuning",
        ];
        assert_eq!(said, expected);
    }

    #[test]
    fn findings_of_older_records_are_told_by_their_words() {
        let old = |what: &str| Event::finding(About::Other, what, None);
        let said = told(vec![old("a 1"), old("a 2"), old("a 1")]);
        assert_eq!(said, ["Found: a 1 (2 times)", "Found: a 2"]);
    }
}
