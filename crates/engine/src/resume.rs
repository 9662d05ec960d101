//! Resuming an experiment that was interrupted.
//!
//! Until the experiment is whole, the record's `cells.jsonl` keeps every measured cell, one a line.
//! A resumed run replays these lines in the seeded order and measures the rest. So its result is
//! that of an uninterrupted run.
//!
//! It is refused where anything that decides about the result differs: experiment, version,
//! machine, plans, seed, rounds, or the chosen configurations.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use quell_files::{MOST_RECORD, text_within};
use quell_record::measurement::Measurement;
use quell_record::standing::Cause;
use quell_types::ids::PromiseId;
use quell_types::mechanism::Level;
use quell_types::units::Nanos;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::throttling::Throttling;

/// The record's file of measured cells.
pub(crate) const CELLS: &str = "cells.jsonl";

/// A cell that was measured. Its times are the record's: nanoseconds since the record began.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Done {
    pub(crate) round: u32,
    pub(crate) configuration: String,
    /// The subject that ran alone. `None`: all subjects ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) subject: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) shared: Option<bool>,
    pub(crate) measured: BTreeMap<String, Measurement>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) throttling: Option<Throttling>,
    /// Promises that were worth less than planned at some moment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) lost: Vec<Lost>,
}

/// A promise that was worth less than planned in a cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Lost {
    pub(crate) id: PromiseId,
    /// The lowest level it had.
    pub(crate) level: Level,
    pub(crate) because: Cause,
}

impl Done {
    /// Converts times of the backend's clock to the record's clock, which also holds in a resumed
    /// run.
    pub(crate) fn shift(&mut self, since: impl Fn(Nanos) -> u64) {
        shift(&mut self.measured, &mut self.throttling, since);
    }
}

/// Converts every time in a cell's results from one clock to another.
pub(crate) fn shift(
    measured: &mut BTreeMap<String, Measurement>,
    throttling: &mut Option<Throttling>,
    to: impl Fn(Nanos) -> u64,
) {
    let shift = |at: &mut u64| *at = to(Nanos(*at));
    for measured in measured.values_mut() {
        if let Some(begun) = &mut measured.begun {
            shift(&mut begun.0);
        }
        let units = measured.account.iter_mut().flat_map(|a| &mut a.units);
        units.for_each(|unit| shift(&mut unit.at_ns));
    }
    for stop in throttling.iter_mut().flat_map(|t| &mut t.stops) {
        shift(&mut stop.from_ns);
        shift(&mut stop.until_ns);
    }
}

/// Identifies a cell: round, configuration, and the subject that ran alone.
pub(crate) type Which = (u32, String, Option<String>);

/// A record that can be resumed.
#[derive(Debug)]
pub(crate) struct Kept {
    /// The folder's present path.
    pub(crate) dir: PathBuf,
    pub(crate) manifest: Value,
    pub(crate) done: BTreeMap<Which, Done>,
}

impl Kept {
    /// Reads a record. `record` is its folder, or the name that this would have had once finished.
    pub(crate) fn open(record: &Path) -> Result<Self, String> {
        let dir = if record.exists() {
            record.to_owned()
        } else {
            partial(record)
        };
        let shown = dir.display();
        let read = |name: &str| {
            text_within(&dir.join(name), MOST_RECORD).map_err(|e| {
                format!(
                    "{}: there is no record of an experiment to go on with: {e}; give the folder that an interrupted \
                     `quell compare` left (names of folders that were cut off begin with a dot and end in .partial)",
                    dir.join(name).display()
                )
            })
        };
        let manifest = serde_json::from_str(&read("manifest.json")?)
            .map_err(|e| format!("{shown}/manifest.json is damaged: {e}; start anew"))?;
        let Ok(cells) = text_within(&dir.join(CELLS), MOST_RECORD) else {
            let whole = dir.join("results.json").exists();
            return if whole {
                Err(format!(
                    "{shown} is whole: there is nothing to go on with; run it without --resume for another measurement"
                ))
            } else {
                Ok(Self {
                    dir,
                    manifest,
                    done: BTreeMap::new(),
                })
            };
        };
        let mut done = BTreeMap::new();
        // What follows the last line break was being written when the run was cut off.
        for line in whole_lines(&cells).lines() {
            let cell: Done = serde_json::from_str(line)
                .map_err(|e| format!("{shown}/{CELLS} is damaged: {e}; start anew"))?;
            let which = (cell.round, cell.configuration.clone(), cell.subject.clone());
            done.insert(which, cell);
        }
        Ok(Self {
            dir,
            manifest,
            done,
        })
    }

    /// A number of the record's manifest.
    pub(crate) fn number(&self, key: &str) -> Option<u64> {
        self.manifest.get(key)?.as_u64()
    }

    /// The configurations that were chosen; empty: all.
    pub(crate) fn only(&self) -> Vec<String> {
        let only = self.manifest.get("only").and_then(Value::as_array);
        let texts = only.into_iter().flatten().filter_map(Value::as_str);
        texts.map(str::to_owned).collect()
    }

    /// The first difference to the manifest of the run that wants to resume, as a sentence.
    pub(crate) fn difference(&self, new: &Value) -> Option<String> {
        let value = |of: &Value, key: &str| {
            let found = of.pointer(&format!("/{key}"));
            found.cloned().unwrap_or(Value::Null)
        };
        for (key, what) in DECIDING {
            let (old, new) = (value(&self.manifest, key), value(new, key));
            let found = match key {
                "experiment" => lines_differ(&old, &new),
                _ => differ(&old, &new),
            };
            if let Some((at, was, is)) = found {
                return Some(format!("{what}{at} was {was} and is {is}"));
            }
        }
        None
    }
}

/// What decides about the result: places in the manifest, and their names for the user. Of the
/// machine only what is the same after each boot counts. What else the plans depend on shows in the
/// plans.
const DECIDING: [(&str, &str); 12] = [
    ("version", "Quell's version"),
    ("experiment", "the experiment"),
    ("seed", "the seed"),
    ("rounds", "the number of rounds"),
    ("only", "--only"),
    ("backend", "the backend"),
    ("machine/identity", "the machine's identity"),
    ("machine/cpus", "the machine's CPUs"),
    ("machine/caches", "the machine's caches"),
    ("machine/measured", "what was measured of the machine"),
    ("plans", "the plan"),
    ("refused", "what is refused"),
];

/// The path under which a record is written until it is finished.
pub(crate) fn partial(last: &Path) -> PathBuf {
    let name = last
        .file_name()
        .map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    last.with_file_name(format!(".{name}.partial"))
}

/// The path that a record gets when it is finished, from either of its paths.
pub(crate) fn last(dir: &Path) -> PathBuf {
    let name = dir
        .file_name()
        .map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    let inner = name
        .strip_prefix('.')
        .and_then(|n| n.strip_suffix(".partial"));
    inner.map_or_else(|| dir.to_owned(), |n| dir.with_file_name(n))
}

/// The text up to and with the last line break.
pub(crate) fn whole_lines(text: &str) -> &str {
    text.rfind('\n').map_or("", |end| &text[..=end])
}

type Difference = (String, String, String);

fn differ(old: &Value, new: &Value) -> Option<Difference> {
    match (old, new) {
        (Value::Object(a), Value::Object(b)) => a
            .keys()
            .chain(b.keys().filter(|k| !a.contains_key(*k)))
            .find_map(|key| {
                let missing = Value::Null;
                let (a, b) = (
                    a.get(key).unwrap_or(&missing),
                    b.get(key).unwrap_or(&missing),
                );
                differ(a, b).map(|(at, was, is)| (format!(", {key}{at}"), was, is))
            }),
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            let found = a.iter().zip(b).enumerate();
            found.into_iter().find_map(|(n, (a, b))| {
                differ(a, b).map(|(at, was, is)| (format!(", {}{at}", n + 1), was, is))
            })
        }
        _ => (old != new).then(|| (String::new(), short(old), short(new))),
    }
}

fn lines_differ(old: &Value, new: &Value) -> Option<Difference> {
    let (old, new) = (old.as_str()?, new.as_str()?);
    if old == new {
        return None;
    }
    let count = old.lines().count().max(new.lines().count());
    let at = |text: &str, n: usize| text.lines().nth(n).map(str::to_owned);
    let line = (0..count).find(|n| at(old, *n) != at(new, *n)).unwrap_or(0);
    let show =
        |text: &str| at(text, line).map_or_else(|| "not there".to_owned(), |l| format!("'{l}'"));
    Some((format!(", line {}", line + 1), show(old), show(new)))
}

fn short(value: &Value) -> String {
    const MOST: usize = 60;
    let text = match value {
        Value::Null => return "not there".to_owned(),
        Value::String(text) => format!("'{text}'"),
        other => other.to_string(),
    };
    if text.chars().count() <= MOST {
        text
    } else {
        text.chars().take(MOST).chain("…".chars()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_first_difference_is_named_down_to_the_value() {
        let kept = |manifest| Kept {
            dir: PathBuf::new(),
            manifest,
            done: BTreeMap::new(),
        };
        let old = json!({"version": "1", "experiment": "a\nb\n", "seed": 1, "machine": {"identity": {"kernel": "6.1"}}});
        let said = |key: &str, value: Value| {
            let mut new = old.clone();
            new[key] = value;
            kept(old.clone()).difference(&new).unwrap_or_default()
        };
        assert_eq!(said("seed", json!(1)), "");
        assert_eq!(said("seed", json!(2)), "the seed was 1 and is 2");
        assert_eq!(
            said("experiment", json!("a\nc\n")),
            "the experiment, line 2 was 'b' and is 'c'"
        );
        assert_eq!(
            said("machine", json!({"identity": {"kernel": "6.2"}})),
            "the machine's identity, kernel was '6.1' and is '6.2'"
        );
    }

    #[test]
    fn a_record_has_two_names() {
        let whole = Path::new("runs/neighbour-1");
        assert_eq!(partial(whole), Path::new("runs/.neighbour-1.partial"));
        assert_eq!(last(&partial(whole)), whole);
        assert_eq!(last(whole), whole);
        assert_eq!(whole_lines("a\nb\nc"), "a\nb\n");
    }
}
