//! Files that people write, and files that Quell writes and reads again.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::path::Path;
use std::sync::OnceLock;

use quell_lab::profile::Profile as Processor;
use quell_linux::capture::Capture;
use quell_linux::colours::{self, stored::Stored};
use quell_linux::journal::{self, Header, Journal};
use quell_linux::lease::{Lease, MOST_CPUS};
use quell_plan::Plan;
use quell_plan::deep::Fingerprint;
use quell_plan::inventory::{Inventory, Measured};
use quell_plan::planner::plan;
use quell_policy::Policy;
use quell_policy::experiment::Experiment;
use quell_record::demand::Profile as Demand;
use quell_record::demo::DemoResult;
use quell_record::events::{Declared, Record as Recorded, Stamped};
use quell_record::measurement::Measurement;
use quell_record::standing::Standing;
use quell_report::{Measurements, Style};
use quell_sim::board::Board;
use quell_sim::pattern::Replay;
use quell_sim::profile::Profile as Machine;
use quell_sim::trace::{Reader, Record, Writer, import_lackey};
use quell_types::address::{BankMap, BitFunctions};
use quell_types::journal::Undo;
use quell_types::rng::SplitMix;
use quell_types::task::TaskId;
use quell_types::units::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::fuzz::seeds;
use crate::fuzz::texts::{same_json, text};

/// Machines that policies are planned on.
fn machines() -> &'static [Inventory] {
    static ALL: OnceLock<Vec<Inventory>> = OnceLock::new();
    ALL.get_or_init(|| {
        let read = |text: Vec<u8>| Capture::parse(&String::from_utf8(text).unwrap()).unwrap();
        let all = seeds::captures().into_iter().map(read);
        all.map(|capture| capture.inventory().unwrap()).collect()
    })
}

/// Policies that are planned.
fn policies() -> &'static [Policy] {
    static ALL: OnceLock<Vec<Policy>> = OnceLock::new();
    ALL.get_or_init(|| {
        let read = |text: Vec<u8>| Policy::parse(&String::from_utf8(text).unwrap(), "a.toml");
        let all = seeds::policies().into_iter();
        all.map(|text| read(text).unwrap()).collect()
    })
}

/// One of them, by what the input is.
fn one<'a, T>(all: &'a [T], input: &[u8]) -> &'a T {
    let sum = input.iter().map(|byte| usize::from(*byte)).sum::<usize>();
    &all[(sum + input.len()) % all.len()]
}

fn planned(policy: &Policy, machine: &Inventory) -> Result<(), String> {
    match plan(policy, machine) {
        Ok(plan) => {
            let _ = quell_report::plan_text(&plan, Style::default());
            let _ = quell_report::plan_steps_text(&plan, Style::default());
            same_json(&plan)
        }
        Err(refusals) if refusals.is_empty() => Err("refused without a reason".to_owned()),
        Err(refusals) => {
            let _: Vec<String> = refusals.iter().map(ToString::to_string).collect();
            Ok(())
        }
    }
}

/// A refusal has to say something.
fn told<P: ToString>(problems: &[P]) -> Result<bool, String> {
    let all: Vec<String> = problems.iter().map(ToString::to_string).collect();
    match all.iter().all(|one| !one.is_empty()) && !all.is_empty() {
        true => Ok(false),
        false => Err("refused without a reason".to_owned()),
    }
}

pub fn policy(input: &[u8]) -> Result<bool, String> {
    let text = text(input);
    let _ = Policy::parse_open(&text, "a.toml");
    let policy = match Policy::parse(&text, "a.toml") {
        Ok(policy) => policy,
        Err(problems) => return told(&problems),
    };
    // As a record keeps it.
    let written = toml::to_string_pretty(&policy).map_err(|e| format!("{policy:?}: {e}"))?;
    match Policy::parse(&written, "b.toml") {
        Ok(again) if again == policy => {}
        Ok(again) => return Err(format!("{policy:?} is written as {again:?}")),
        Err(problems) => return Err(format!("{written} is refused: {problems:?}")),
    }
    planned(&policy, one(machines(), input))?;
    Ok(true)
}

pub fn experiment(input: &[u8]) -> Result<bool, String> {
    match Experiment::parse(&text(input), "a.toml") {
        Ok(experiment) if experiment.configurations().is_empty() => {
            Err("an experiment without configurations".to_owned())
        }
        Ok(_) => Ok(true),
        Err(problems) => told(&problems),
    }
}

pub fn machine_profile(input: &[u8]) -> Result<bool, String> {
    match Machine::parse(&text(input), "a.toml") {
        Ok(profile) => {
            let _ = Board::of(profile);
            Ok(true)
        }
        Err(problems) => told(&problems),
    }
}

pub fn processor_profile(input: &[u8]) -> Result<bool, String> {
    let Ok(profile) = Processor::parse("a", &text(input)) else {
        return Ok(false);
    };
    let written = toml::to_string(&profile).map_err(|e| format!("{profile:?}: {e}"))?;
    match Processor::parse("b", &written) {
        Ok(_) => Ok(true),
        Err(e) => Err(format!("{written} is refused: {e}")),
    }
}

pub fn capture(input: &[u8]) -> Result<bool, String> {
    let Ok(capture) = Capture::parse(&text(input)) else {
        return Ok(false);
    };
    let written = capture.to_string();
    let again = Capture::parse(&written).map_err(|e| format!("{written} is refused: {e}"))?;
    if again.to_string() != written {
        return Err(format!("{written} is written as {again}"));
    }
    if let Ok(machine) = capture.inventory() {
        planned(one(policies(), input), &machine)?;
    }
    Ok(true)
}

/// The number of a captured machine, the path of one of its files, and what that says instead.
pub fn lying_machine(input: &[u8]) -> Result<bool, String> {
    static ALL: OnceLock<Vec<toml::Table>> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        let read = |text: Vec<u8>| toml::from_str(&String::from_utf8(text).unwrap()).unwrap();
        seeds::captures().into_iter().map(read).collect()
    });
    let text = text(input);
    let mut words = text.splitn(3, '\n');
    let (which, file) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let mut machine = all[which.parse().unwrap_or(0) % all.len()].clone();
    let files = machine["files"].as_table_mut().unwrap();
    let says = words.next().unwrap_or("").to_owned();
    files.insert(file.to_owned(), toml::Value::String(says));
    capture(toml::to_string(&machine).unwrap().as_bytes())
}

pub fn inventory(input: &[u8]) -> Result<bool, String> {
    let Ok(machine) = serde_json::from_slice::<Inventory>(input) else {
        return Ok(false);
    };
    planned(one(policies(), input), &machine)?;
    let show = Measurements {
        now_unix_s: Some(1 << 31),
        full: true,
    };
    let _ = quell_report::doctor_text(&machine, show, Style::default());
    Ok(true)
}

/// Entries are as they were written, or damaged: none is made up.
pub fn journal(input: &[u8]) -> Result<bool, String> {
    let found = journal::parse(input, Path::new(journal::FILE));
    let known = seeds::undo();
    if let Some(entry) = found.entries.iter().find(|e| !known.contains(e)) {
        return Err(format!("nobody has written {entry:?}"));
    }
    Ok(found.header.is_some() && found.damaged.is_empty())
}

/// A journal with these entries, as it is written.
pub fn written(entries: &[Undo]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let header = Header {
        version: journal::VERSION,
        boot: "b00t".into(),
        run: "r1".into(),
        main: TaskId { pid: 1, start: 2 },
    };
    let mut journal = Journal::create(folder.path(), header).unwrap();
    journal.record_all(entries).unwrap();
    std::fs::read(journal.path()).unwrap()
}

pub fn lease(input: &[u8]) -> Result<bool, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lease");
    std::fs::write(&path, input).unwrap();
    let Ok(lease) = Lease::open(&path) else {
        return Ok(false);
    };
    let _ = (lease.state(), lease.watchdog(), lease.last_beat());
    let count = (0..=MOST_CPUS).filter(|cpu| lease.record(*cpu).is_some());
    match count.count() * 64 + 64 <= input.len() {
        true => Ok(true),
        false => Err("a record beyond the page".to_owned()),
    }
}

/// A name of a file of a record, and what it says: the record with it is read and rendered.
pub fn record(input: &[u8]) -> Result<bool, String> {
    let text = text(input);
    let (name, says) = text.split_once('\n').unwrap_or((&text, ""));
    let all = seeds::recorded();
    let Some(at) = all.iter().position(|(known, _)| known == name) else {
        return Ok(false);
    };
    let folder = tempfile::tempdir().unwrap();
    for (n, (name, content)) in all.iter().enumerate() {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, if n == at { says } else { content }).unwrap();
    }
    let record = match quell_engine::read::read(folder.path()) {
        Ok(record) => record,
        Err(e) => return told(&[e]),
    };
    rendered(&record);
    Ok(true)
}

fn rendered(record: &Recorded) {
    let _ = quell_report::html(record);
    let _ = quell_report::perfetto(record);
    match &record.result {
        Some(result) => drop(quell_report::compare_text(result, Style::default())),
        None => drop(quell_report::run_text(record, Style::default())),
    }
}

fn read<T: DeserializeOwned + Serialize>(input: &[u8]) -> Option<T> {
    let read = serde_json::from_slice::<T>(input).ok()?;
    let _ = serde_json::to_string(&read);
    Some(read)
}

/// What is kept of a run, of a measurement and of a profile: a file each.
pub fn run_state(input: &[u8]) -> Result<bool, String> {
    let mut known = false;
    if let Some(plan) = read::<Plan>(input) {
        let _ = quell_report::plan_text(&plan, Style::default());
        let _ = quell_report::plan_steps_text(&plan, Style::default());
        known = true;
    }
    if let Some(standing) = read::<Standing>(input) {
        same_json(&standing)?;
        for plan in plans() {
            let _ = quell_report::plan_text(&standing.over(plan), Style::default());
        }
        known = true;
    }
    if let Some(profile) = read::<Demand>(input) {
        let _ = quell_report::profile_text(&profile, Style::default());
        let _ = quell_report::profile_html(&profile);
        known = true;
    }
    if let Some(result) = read::<DemoResult>(input) {
        let _ = quell_report::demo_html(&result, false);
        known = true;
    }
    known |= read::<BTreeMap<String, Declared>>(input).is_some();
    known |= read::<Measurement>(input).is_some();
    known |= read::<Measured>(input).is_some();
    known |= read::<Fingerprint>(input).is_some();
    known |= read::<Stamped>(input).is_some();
    Ok(known)
}

fn plans() -> &'static [Plan] {
    static ALL: OnceLock<Vec<Plan>> = OnceLock::new();
    ALL.get_or_init(|| {
        let all = policies().iter().zip(machines());
        all.filter_map(|(policy, machine)| plan(policy, machine).ok())
            .collect()
    })
}

/// The first of the plans, for [`seeds::run_state`].
pub fn a_plan() -> &'static Plan {
    &plans()[0]
}

/// The first of the machines.
pub fn a_machine() -> &'static Inventory {
    &machines()[0]
}

/// A map is written so that it reads the same, and pages of different colours share no bank.
pub fn address_map(input: &[u8]) -> Result<bool, String> {
    let text = text(input);
    let mut known = false;
    if let Ok(functions) = BitFunctions::line(&text) {
        same_json(&functions)?;
        known = true;
    }
    if let Ok(map) = BankMap::parse(&text) {
        let written = map.to_string();
        if BankMap::parse(&written).as_ref() != Ok(&map) {
            return Err(format!("{map:?} is written as {written:?}"));
        }
        same_json(&map)?;
        shares_no_bank(&map)?;
        known = true;
    }
    if let Ok(stored) = Stored::parse(&text) {
        let written = stored.text()?;
        if Stored::parse(&written).as_ref() != Ok(&stored) {
            return Err(format!("{stored:?} is written as {written:?}"));
        }
        let machine = a_machine();
        if let Ok(map) = stored.on(machine) {
            let (caches, nodes) = (&machine.caches, &machine.nodes);
            let files = quell_kernel::root::Kernel::at("/nowhere");
            let around = colours::Around {
                caches,
                nodes,
                page: Bytes(4096),
                frames: Ok(()),
            };
            let _ = colours::offer(&files, Some(&map), around);
        }
        known = true;
    }
    Ok(known)
}

fn shares_no_bank(map: &BankMap) -> Result<(), String> {
    let mut random = SplitMix::new(7);
    for shift in [12, 14, 16, 21] {
        let colours = map.colours(shift, (1 << 52) - 1);
        let mut seen: BTreeMap<(usize, u64), u64> = BTreeMap::new();
        for _ in 0..200 {
            let address = random.below(1 << 52);
            let colour = colours.of_frame(address >> shift);
            let bank = map.bank(address);
            let first = *seen.entry(bank).or_insert(colour);
            if first != colour {
                let text = map.to_string();
                return Err(format!(
                    "{text:?}: bank {bank:?} has colours {first} and {colour}"
                ));
            }
        }
    }
    Ok(())
}

pub fn trace(input: &[u8]) -> Result<bool, String> {
    let Ok(reader) = Reader::new(Cursor::new(input), "a.trace") else {
        return Ok(false);
    };
    let Ok(records) = reader.collect::<Result<Vec<Record>, _>>() else {
        return Ok(false);
    };
    let _ = Replay::read(Cursor::new(input), "a.trace");
    let mut writer = Writer::new(Vec::new()).map_err(|e| e.to_string())?;
    for record in &records {
        writer.push(*record).map_err(|e| e.to_string())?;
    }
    let written = writer.finish().map_err(|e| e.to_string())?;
    let again = Reader::new(Cursor::new(&written), "b.trace").map_err(|e| e.to_string())?;
    match again.collect::<Result<Vec<Record>, _>>() {
        Ok(again) if again == records => Ok(true),
        other => Err(format!("{records:?} is written as {other:?}")),
    }
}

pub fn lackey(input: &[u8]) -> Result<bool, String> {
    let mut out = Vec::new();
    let Ok(count) = import_lackey(Cursor::new(input), "a.txt", &mut out) else {
        return Ok(false);
    };
    let reader = Reader::new(Cursor::new(&out), "a.trace").map_err(|e| e.to_string())?;
    match reader.collect::<Result<Vec<Record>, _>>() {
        Ok(all) if all.len() as u64 == count => Ok(true),
        other => Err(format!("{count} accesses are {other:?}")),
    }
}

/// Of this repository.
pub fn top() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}
