//! Words of policies, experiments and the command line.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use quell_control::hoard::{Memory, Slots};
use quell_kernel::root::{format_mask, parse_mask};
use quell_linux::colours::hoard;
use quell_policy::lab::Guest;
use quell_policy::workload::{Size, Workload};
use quell_policy::{Bandwidth, CpusWanted};
use quell_record::ways::Place;
use quell_types::cpuset::CpuSet;
use quell_types::partition::Mask;
use quell_types::source::{NumberPattern, Pattern};
use quell_types::task::TaskMatch;
use quell_types::units::{Bytes, Nanos, Rate, Share};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub fn text(input: &[u8]) -> String {
    String::from_utf8_lossy(input).into_owned()
}

/// What is read is written so that it reads the same. Whether it was read.
fn same<T: FromStr + Display + PartialEq + Debug>(text: &str) -> Result<bool, String> {
    let Ok(read) = text.parse::<T>() else {
        return Ok(false);
    };
    let written = read.to_string();
    match written.parse::<T>() {
        Ok(again) if again == read => Ok(true),
        Ok(again) => Err(format!(
            "{text:?} is {read:?}, its {written:?} is {again:?}"
        )),
        Err(_) => Err(format!("{text:?} is {read:?}, its {written:?} is refused")),
    }
}

/// The same by JSON.
pub fn same_json<T: Serialize + DeserializeOwned + PartialEq + Debug>(
    read: &T,
) -> Result<(), String> {
    let json = serde_json::to_string(read).map_err(|e| format!("{read:?}: {e}"))?;
    match serde_json::from_str::<T>(&json) {
        Ok(again) if again == *read => Ok(()),
        Ok(again) => Err(format!("{read:?} as {json} is {again:?}")),
        Err(e) => Err(format!("{read:?} as {json}: {e}")),
    }
}

fn any(all: &[Result<bool, String>]) -> Result<bool, String> {
    let mut read = false;
    for one in all {
        read |= one.clone()?;
    }
    Ok(read)
}

/// Lines between the keeper of a hoard and the main process, and the rules that it gets.
pub fn hoard(input: &[u8]) -> Result<bool, String> {
    let text = text(input);
    if let Ok(report) = hoard::Report::parse(&text) {
        let _ = (report.words(), report.is_loss());
        return same_json(&report).map(|()| true);
    }
    if let Ok(command) = hoard::Command::parse(&text) {
        return same_json(&command).map(|()| true);
    }
    let Ok(rules) = hoard::parse_rules(&text) else {
        return Ok(false);
    };
    same_json(&rules)?;
    let Ok(mut slots) = Slots::new(&rules) else {
        return Ok(true);
    };
    let all = Bytes(u64::MAX);
    let memory = Memory {
        free: all,
        available: all,
    };
    let runs = slots.take(memory, quell_control::hoard::AT_ONCE);
    slots.sort(0, &[Some(0), None, Some(u64::MAX), Some(1 << 40)]);
    slots.sort(4, &[None; 2000]);
    let released: usize = slots.release().into_iter().map(|run| run.len()).sum();
    let taken: usize = runs.into_iter().map(|run| run.len()).sum();
    let kept = usize::try_from(slots.kept()).unwrap_or(usize::MAX);
    match taken == released + kept && slots.held() <= rules.pages() {
        true => Ok(true),
        false => Err(format!("{taken} taken, {released} released, {kept} kept")),
    }
}

pub fn quantities(input: &[u8]) -> Result<bool, String> {
    let text = text(input);
    any(&[
        same::<Nanos>(&text),
        same::<Bytes>(&text),
        same::<Rate>(&text),
        same::<Share>(&text),
        same::<Size>(&text),
    ])
}

pub fn sets(input: &[u8]) -> Result<bool, String> {
    let text = text(input);
    let mask = match parse_mask(&text) {
        Some(set) if parse_mask(&format_mask(&set)).as_ref() != Some(&set) => Err(format!(
            "{text:?} is {set}, its mask is {}",
            format_mask(&set)
        )),
        read => Ok(read.is_some()),
    };
    if let Ok(set) = text.parse::<CpuSet>() {
        let _ = (set.brief(), set.spread(7));
    }
    let json = |done: Result<(), String>| done.map(|()| true);
    any(&[
        same::<CpuSet>(&text),
        same::<Mask>(&text),
        same::<Place>(&text),
        mask,
        text.parse::<CpusWanted>()
            .map_or(Ok(false), |wanted| json(same_json(&wanted))),
        text.parse::<Bandwidth>()
            .map_or(Ok(false), |wanted| json(same_json(&wanted))),
    ])
}

pub fn task_match(input: &[u8]) -> Result<bool, String> {
    let text = text(input);
    // A backslash at the end of a value cannot be told from the one before a comma.
    let ambiguous = |read: &TaskMatch| read.to_string().contains("\\,");
    match text.parse::<TaskMatch>() {
        Ok(read) if ambiguous(&read) => Ok(true),
        _ => same::<TaskMatch>(&text),
    }
}

/// A pattern, and on the next line what it is looked for in.
pub fn pattern(input: &[u8]) -> Result<bool, String> {
    let text = text(input);
    let (pattern, line) = text.split_once('\n').unwrap_or((&text, ""));
    let Ok(pattern) = pattern.parse::<NumberPattern>() else {
        return Ok(false);
    };
    same_json(&pattern)?;
    for unit in ["ns", "us", "ms", "s"] {
        let pattern = Pattern {
            pattern: pattern.clone(),
            unit: unit.to_owned(),
        };
        if let Some(time) = pattern.time(line)
            && time > Nanos::secs(3600)
        {
            return Err(format!("{line:?} has {time} in {unit}"));
        }
    }
    Ok(true)
}

pub fn generator(input: &[u8]) -> Result<bool, String> {
    let Ok(workload) = text(input).parse::<Workload>() else {
        return Ok(false);
    };
    same_json(&workload)?;
    Ok(true)
}

pub fn lab_key(input: &[u8]) -> Result<bool, String> {
    let Ok(guest) = Guest::default().with(&text(input)) else {
        return Ok(false);
    };
    let _ = guest.faults();
    same_json(&guest)?;
    Ok(true)
}
