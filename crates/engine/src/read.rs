//! Reading a record back, from the folder alone: what a report shows is what the record holds. What
//! a record may lack (samples of a run, times of an older version) is absent. What it has must be
//! well formed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use quell_files::{MOST_RECORD, text_within};
use quell_plan::Plan;
use quell_plan::inventory::Inventory;
use quell_record::events::{
    COMPARE_SCHEMA, CpuTimes, EVENTS_SCHEMA, Event, MANIFEST_SCHEMA, MemoryPoint, MemorySeries,
    Phase, Record, Span, Stamped, Stop,
};
use quell_record::result::{CompareResult, ConfigurationResult};
use quell_types::calendar;
use quell_types::cpuset::CpuId;
use quell_types::refusal::Refusal;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::folder::{
    COURSE_HEAD, DECISIONS_HEAD, DECISIONS_HEAD_1, SAMPLES_HEAD, TIMES, TIMES_HEAD, course_name,
    samples_name,
};

/// Why a record cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// A file or folder does not exist or may not be read.
    #[error("{path}: {why}; {remedy}")]
    File {
        /// The path that failed.
        path: PathBuf,
        /// The error of the operating system.
        why: std::io::Error,
        /// What the user can do.
        remedy: &'static str,
    },
    /// A file has other content than its format says.
    #[error("{path}:{line}: {why}; the record was changed or cut off after it was written")]
    Malformed {
        /// The file with that content.
        path: PathBuf,
        /// The line, with the column where it is known.
        line: String,
        /// What is wrong, as part of a sentence.
        why: String,
    },
    /// Another version wrote it, in a schema that this one does not read.
    #[error(
        "{path} has the schema {found:?}, and this version of Quell reads {known:?}: use the version that wrote it{by}"
    )]
    Schema {
        /// The file with that schema.
        path: PathBuf,
        /// The schema that it states.
        found: String,
        /// The schema that this version reads.
        known: &'static str,
        /// The version that wrote it, in parentheses. Empty where it is not recorded.
        by: String,
    },
}

const NO_RECORD: &str = "a record is the folder that `quell compare` or `quell run --out` names when it ends (runs/NAME-DATE-TIME)";
const NOT_WHOLE: &str =
    "the run did not come to its end; what it had until then is in events.jsonl and samples/";

/// The fields with which every file with a schema begins.
#[derive(Deserialize)]
struct Header {
    schema: String,
    #[serde(default)]
    version: Option<String>,
}

#[derive(Deserialize)]
struct Manifest {
    version: String,
    created_unix_s: Option<u64>,
    command_line: Option<String>,
    machine: Option<Inventory>,
    /// Of a comparison: the experiment as written.
    experiment: Option<String>,
    #[serde(default)]
    plans: BTreeMap<String, Plan>,
    #[serde(default)]
    refused: BTreeMap<String, Vec<Refusal>>,
    #[serde(default)]
    placement: BTreeMap<String, String>,
    /// Of a run: the policy as TOML, and its plan.
    policy_text: Option<String>,
    plan: Option<Plan>,
    /// Of a record that only observed: its name.
    watched: Option<String>,
}

/// The latest time of a record, in nanoseconds: 36 years.
const LATEST: u64 = 1 << 60;

/// Reads the record in `folder`.
///
/// # Errors
/// When it is no record, is not whole, is malformed, or has a schema that this version does not
/// know.
pub fn read(folder: &Path) -> Result<Record, ReadError> {
    let path = folder.join("manifest.json");
    let manifest: Manifest = known(&path, &text(&path, NO_RECORD)?, MANIFEST_SCHEMA)?;
    let mut record = Record {
        version: manifest.version,
        created: manifest
            .created_unix_s
            .map(|s| format!("{} UTC", calendar::utc(s))),
        command_line: manifest.command_line,
        machine: manifest.machine,
        plans: manifest.plans,
        refused: manifest.refused,
        text: manifest.experiment.or(manifest.policy_text),
        events: events(&folder.join("events.jsonl"))?,
        ..Record::default()
    };
    if let Some(plan) = manifest.plan {
        record.name.clone_from(&plan.policy);
        record.plans.insert(record.name.clone(), plan);
    } else if let Some(watched) = manifest.watched {
        record.name = watched;
    } else {
        let path = folder.join("results.json");
        let mut result: CompareResult = known(&path, &text(&path, NOT_WHOLE)?, COMPARE_SCHEMA)?;
        let configurations = result.configurations.iter_mut();
        configurations.for_each(ConfigurationResult::complete);
        record.name.clone_from(&result.experiment);
        for configuration in record.plans.keys() {
            for subject in manifest.placement.keys() {
                let path = folder.join(samples_name(configuration, subject));
                if let Some(text) = optional(&path)? {
                    let spans = spans(&path, &text, configuration, subject)?;
                    record.spans.extend(spans);
                }
                let path = folder.join(course_name(configuration, subject));
                if let Some(text) = optional(&path)? {
                    let courses = courses(&path, &text, configuration, subject)?;
                    record.courses.extend(courses);
                }
            }
        }
        record.result = Some(result);
    }
    let path = folder.join(TIMES);
    if let Some(text) = optional(&path)? {
        record.cpu_times = times(&path, &text)?;
    }
    for (cpu, path) in decisions(folder)? {
        record
            .stops
            .insert(cpu, stops(&path, &text(&path, NO_RECORD)?)?);
    }
    Ok(record)
}

fn text(path: &Path, remedy: &'static str) -> Result<String, ReadError> {
    text_within(path, MOST_RECORD).map_err(|why| ReadError::File {
        path: path.to_owned(),
        why,
        remedy,
    })
}

fn optional(path: &Path) -> Result<Option<String>, ReadError> {
    match text(path, "it must be readable") {
        Ok(text) => Ok(Some(text)),
        Err(ReadError::File { why, .. }) if why.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Parses JSON, and checks that its schema is `schema`.
fn known<T: DeserializeOwned>(
    path: &Path,
    text: &str,
    schema: &'static str,
) -> Result<T, ReadError> {
    let header: Header = json(path, text, 0)?;
    if header.schema != schema {
        return Err(ReadError::Schema {
            path: path.to_owned(),
            found: header.schema,
            known: schema,
            by: header
                .version
                .map_or_else(String::new, |v| format!(" ({v})")),
        });
    }
    json(path, text, 0)
}

/// Parses JSON whose first line is line `before` + 1 of the file.
fn json<T: DeserializeOwned>(path: &Path, text: &str, before: usize) -> Result<T, ReadError> {
    serde_json::from_str(text).map_err(|e| ReadError::Malformed {
        path: path.to_owned(),
        line: format!("{}:{}", before + e.line(), e.column()),
        why: e.to_string(),
    })
}

fn events(path: &Path) -> Result<Vec<Stamped>, ReadError> {
    let text = text(path, NO_RECORD)?;
    let mut lines = text.lines().enumerate();
    let first = lines.next().map_or("", |(_, line)| line);
    let _: serde_json::Value = known(path, first, EVENTS_SCHEMA)?;
    lines
        .map(|(before, line)| {
            let mut stamped: Stamped = json(path, line, before)?;
            stamped.at_ns = stamped.at_ns.min(LATEST);
            if let Event::Phase {
                name: Phase::Other(name),
            } = &stamped.event
                && let Some(cell) = cell_1(name)
            {
                stamped.event = cell;
            }
            Ok(stamped)
        })
        .collect()
}

/// A cell as versions up to 0.1 wrote it: `round 1 of 8, CONFIGURATION, SUBJECT`.
fn cell_1(name: &str) -> Option<Event> {
    let (rounds, cell) = name.strip_prefix("round ")?.split_once(", ")?;
    let (nth, of) = rounds.split_once(" of ")?;
    let (configuration, subject) = match cell.split_once(", ") {
        Some((configuration, subject)) => (configuration, Some(subject.to_owned())),
        None => (cell, None),
    };
    Some(Event::Cell {
        round: nth.parse::<u32>().ok()?.checked_sub(1)?,
        of: of.parse().ok()?,
        configuration: configuration.to_owned(),
        subject,
    })
}

/// The rows of a CSV file below its head, split at commas, each with its line number from 1.
fn rows<'t>(
    path: &Path,
    text: &'t str,
    head: fn(&str) -> bool,
) -> Result<impl Iterator<Item = (usize, Vec<&'t str>)> + use<'t>, ReadError> {
    let mut lines = text.lines().enumerate();
    let first = lines.next().map_or("", |(_, line)| line);
    if !head(first) {
        return Err(malformed(
            path,
            1,
            "the columns are not those of this version",
        ));
    }
    Ok(lines.map(|(n, line)| (n + 1, line.split(',').collect())))
}

fn malformed(path: &Path, line: usize, why: &str) -> ReadError {
    ReadError::Malformed {
        path: path.to_owned(),
        line: line.to_string(),
        why: why.to_owned(),
    }
}

fn spans(
    path: &Path,
    text: &str,
    configuration: &str,
    subject: &str,
) -> Result<Vec<Span>, ReadError> {
    let mut all: Vec<Span> = Vec::new();
    for (line, row) in rows(path, text, |head| head.starts_with(SAMPLES_HEAD))? {
        let wrong = || malformed(path, line, "not a round, a window, a time and a value");
        let [round, _, at, value] = row[..] else {
            return Err(wrong());
        };
        let round: u32 = round.parse().map_err(|_| wrong())?;
        let value: f64 = value.parse().map_err(|_| wrong())?;
        let at: Option<u64> = match at {
            "" => None,
            at => Some(time(at).ok_or_else(wrong)?),
        };
        if all.last().is_none_or(|span| span.round != round) {
            all.push(Span {
                configuration: configuration.to_owned(),
                subject: subject.to_owned(),
                round,
                at_ns: Some(Vec::new()),
                values: Vec::new(),
            });
        }
        if let Some(span) = all.last_mut() {
            span.values.push(value);
            match at {
                Some(at) => {
                    if let Some(times) = &mut span.at_ns {
                        times.push(at);
                    }
                }
                None => span.at_ns = None,
            }
        }
    }
    Ok(all)
}

fn courses(
    path: &Path,
    text: &str,
    configuration: &str,
    subject: &str,
) -> Result<Vec<MemorySeries>, ReadError> {
    let mut all: Vec<MemorySeries> = Vec::new();
    for (line, row) in rows(path, text, |head| head == COURSE_HEAD)? {
        let wrong = || malformed(path, line, "not a round, a time and three values");
        let [round, at, resident, misses, faults] = row[..] else {
            return Err(wrong());
        };
        let round: u32 = round.parse().map_err(|_| wrong())?;
        let value = |text: &str| text.parse::<f64>().map_err(|_| wrong());
        let met = MemoryPoint {
            at_ns: time(at).ok_or_else(wrong)?,
            resident_mb: value(resident)?,
            cache_misses: value(misses)?,
            major_faults: value(faults)?,
        };
        match all.last_mut().filter(|course| course.round == round) {
            Some(course) => course.points.push(met),
            None => all.push(MemorySeries {
                configuration: configuration.to_owned(),
                subject: subject.to_owned(),
                round,
                points: vec![met],
            }),
        }
    }
    Ok(all)
}

/// Nanoseconds. What is later than any run is a damaged record's, and is taken for the latest:
/// times are added and subtracted by whoever draws them.
fn time(text: &str) -> Option<u64> {
    text.parse().ok().map(|ns: u64| ns.min(LATEST))
}

fn numbers<const N: usize>(path: &Path, line: usize, row: &[&str]) -> Result<[u64; N], ReadError> {
    let numbers: Option<Vec<u64>> = row.iter().map(|f| time(f)).collect();
    numbers
        .and_then(|n| n.try_into().ok())
        .ok_or_else(|| malformed(path, line, &format!("not {N} whole numbers")))
}

fn times(path: &Path, text: &str) -> Result<BTreeMap<CpuId, Vec<(u64, CpuTimes)>>, ReadError> {
    let mut all: BTreeMap<CpuId, Vec<(u64, CpuTimes)>> = BTreeMap::new();
    for (line, row) in rows(path, text, |head| head == TIMES_HEAD)? {
        let [at, cpu, busy_ns, irq_ns, softirq_ns, steal_ns, idle_ns] = numbers(path, line, &row)?;
        let cpu = CpuId::try_from(cpu).map_err(|_| malformed(path, line, "not a CPU"))?;
        let times = CpuTimes {
            cpu,
            busy_ns,
            irq_ns,
            softirq_ns,
            steal_ns,
            idle_ns,
        };
        all.entry(cpu).or_default().push((at, times));
    }
    Ok(all)
}

/// The files of regulators' decisions, by CPU.
fn decisions(folder: &Path) -> Result<Vec<(CpuId, PathBuf)>, ReadError> {
    let samples = folder.join("samples");
    let failed = |why| ReadError::File {
        path: samples.clone(),
        why,
        remedy: NO_RECORD,
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(&samples).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
        let cpu = name
            .strip_prefix("decisions-cpu")
            .and_then(|rest| rest.strip_suffix(".csv"))
            .and_then(|cpu| cpu.parse().ok());
        found.extend(cpu.map(|cpu| (cpu, path)));
    }
    found.sort();
    Ok(found)
}

fn stops(path: &Path, text: &str) -> Result<Vec<Stop>, ReadError> {
    let mut all: Vec<Stop> = Vec::new();
    // Group → the index of its last stop.
    let mut last: BTreeMap<Option<&str>, usize> = BTreeMap::new();
    let known = |head: &str| [DECISIONS_HEAD, DECISIONS_HEAD_1].contains(&head);
    for (line, row) in rows(path, text, known)? {
        let group = row.get(7).copied();
        match row[..] {
            [at, _, "throttle", _, until, ..] => {
                let [from_ns, until_ns] = numbers(path, line, &[at, until])?;
                last.insert(group, all.len());
                all.push(Stop { from_ns, until_ns });
            }
            // A stop may end before its time where budgets are pooled.
            [at, _, "rearm" | "new-period" | "free", ..] => {
                let [at] = numbers(path, line, &[at])?;
                if let Some(last) = last.get(&group).and_then(|at| all.get_mut(*at)) {
                    last.until_ns = last.until_ns.min(at);
                }
            }
            _ => {}
        }
    }
    Ok(all)
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
